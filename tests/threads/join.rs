//! Tests of ranks with different amounts of data: a rank that has joined has the same effect as a rank that
//! pushes zeros. The ranks are threads.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use ringpull::KvStore;
use ringpull::internal::{Allreduce, store_over};
use ringpull_allreduce::progress::Engine;
use ringpull_base::config::Config;
use ringpull_base::{DType, Error, Kind, Result, RowSparse, Tensor};
use ringpull_kernels::optim::Optimizer;

use crate::ranks;

const LONG: Duration = Duration::from_secs(20);
const KEYS: i64 = 4;
/// The number of batches that all ranks have after they have joined.
const MORE: usize = 4;

fn patient(timeout: Duration) -> Config {
    Config { timeout, ..Config::default() }
}

/// Returns the number of elements of a key. Three keys share a bucket, and one key is too long for a bucket.
fn len(key: i64) -> usize {
    if key == 2 { 150_000 } else { 130 + key as usize }
}

fn init(store: &KvStore) {
    (0..KEYS).for_each(|key| store.init(key, &Tensor::full(DType::F32, &[len(key)], 4.0)).unwrap());
}

/// Returns a gradient of small multiples of 1/4. Sums over the ranks are exact in any order of addition.
fn gradient(rank: usize, key: i64, batch: usize) -> Tensor {
    let value = |at: usize| ((at * 7 + batch * 5 + rank * 3 + key as usize) % 17) as f32 / 4.0 - 2.0;
    Tensor::from_slice(&[len(key)], &(0..len(key)).map(value).collect::<Vec<f32>>())
}

fn values(store: &KvStore) -> Vec<u32> {
    let mut bits = Vec::new();
    for key in 0..KEYS {
        let out = Tensor::zeros(DType::F32, &[len(key)]);
        store.pull(key, std::slice::from_ref(&out), 0).unwrap();
        bits.extend(out.to_vec::<f32>().unwrap().iter().map(|value| value.to_bits()));
    }
    bits
}

type Step<'a> = dyn Fn(&KvStore, i64, Tensor) + Sync + 'a;

/// Returns the values on each of 3 ranks after each rank has had its `batches`, and after `MORE` batches on
/// all ranks. A rank without further batches either joins or pushes zeros. `before` is called before each
/// batch.
fn trained(
    batches: [usize; 3],
    joins: bool,
    before: &(dyn Fn(&KvStore, usize) + Sync),
    step: &Step<'_>,
) -> Vec<[Vec<u32>; 2]> {
    let most = *batches.iter().max().unwrap();
    ranks::workers(3, &patient(LONG), |store| {
        init(store);
        let own = batches[store.rank()];
        let train = |batch: usize, has_data: bool| {
            before(store, batch);
            for key in 0..KEYS {
                let zeros = || Tensor::zeros(DType::F32, &[len(key)]);
                step(store, key, if has_data { gradient(store.rank(), key, batch) } else { zeros() });
            }
            drop(values(store));
        };
        (0..own).for_each(|batch| train(batch, true));
        if joins {
            assert_eq!(batches[store.join().unwrap()], most, "the rank with the most batches joins last");
        } else {
            (own..most).for_each(|batch| train(batch, false));
        }
        let joined = values(store);
        (most..most + MORE).for_each(|batch| train(batch, true));
        [joined, values(store)]
    })
}

fn compare(before: impl Fn(&KvStore, usize) + Sync, step: impl Fn(&KvStore, i64, Tensor) + Sync) {
    // Ranks join long after the steps were frozen, and before.
    for batches in [[5, 7, 10], [10, 5, 7], [1, 0, 2]] {
        let joined = trained(batches, true, &before, &step);
        let zeros = trained(batches, false, &before, &step);
        assert!(joined.iter().all(|values| *values == zeros[0]), "{batches:?}: a rank's values differ");
        assert!(zeros.iter().all(|values| *values == zeros[0]));
    }
}

fn push(store: &KvStore, key: i64, gradient: Tensor) {
    store.push(key, &[gradient], -(key as i32)).unwrap();
}

#[test]
fn sums_are_those_with_explicit_zeros() {
    compare(|_, _| (), push);
}

#[test]
fn sums_in_place_are_those_with_explicit_zeros() {
    compare(
        |_, _| (),
        |store, key, gradient| {
            let gradient = std::slice::from_ref(&gradient);
            store.push_pull(key, gradient, gradient, 0).unwrap();
        },
    );
}

#[test]
fn an_optimizer_gives_the_same_weights_and_may_be_changed_while_a_rank_has_joined() {
    let schedule = |store: &KvStore, batch: usize| {
        let mut optimizer = Optimizer::sgd(if batch < 6 { 0.125 } else { 0.0625 });
        optimizer.rule = ringpull_kernels::optim::Rule::Sgd { momentum: 0.5, nesterov: false };
        store.set_optimizer(&optimizer).unwrap();
    };
    compare(schedule, push);
}

#[test]
fn an_updater_gives_the_same_values() {
    let set = |store: &KvStore, batch: usize| {
        if batch == 0 {
            let add = |_: &ringpull_base::Key, received: &Tensor, stored: &Tensor| {
                let received = received.to_vec::<f32>()?;
                let mut stored = stored.write();
                stored.as_mut_slice::<f32>().iter_mut().zip(received).for_each(|(value, sum)| *value += sum / 8.0);
                Ok(())
            };
            store.set_updater(Box::new(add)).unwrap();
        }
    };
    // A rank with no batch at all has to set it, too, before it joins.
    join_makes_what_zeros_make(&set);
}

/// Ranks that join end with the values that pushes of zeros in their place would have made.
fn join_makes_what_zeros_make(set: &(dyn Fn(&KvStore, usize) + Sync)) {
    for batches in [[5, 7, 10], [1, 1, 2]] {
        let joined = trained(batches, true, set, &push);
        let zeros = trained(batches, false, set, &push);
        assert!(joined.iter().all(|values| *values == zeros[0]), "{batches:?}: a rank's values differ");
    }
}

#[test]
fn compressed_gradients_give_the_same_values_with_what_the_joined_rank_has_kept() {
    let compress = |store: &KvStore, batch: usize| {
        if batch == 0 {
            store.set_gradient_compression(&"2bit:0.5".parse().unwrap()).unwrap();
        }
    };
    join_makes_what_zeros_make(&compress);
}

#[test]
fn barriers_and_row_sparse_pushes_go_on_without_a_rank_that_has_joined() {
    let sums = ranks::workers(3, &patient(LONG), |store| {
        store.init(0, &Tensor::zeros(DType::F32, &[6, 2])).unwrap();
        store.set_optimizer(&Optimizer::sgd(1.0)).unwrap();
        for _ in 0..[3, 8, 5][store.rank()] {
            store.barrier().unwrap();
            let ids = [store.rank() as i64, 5];
            let rows = Tensor::full(DType::F32, &[2, 2], -1.0);
            store.push_rows(0, &[RowSparse::new(&[6, 2], &ids, rows).unwrap()], 0).unwrap();
            drop(store.pull_rows(0, &[5], 0).unwrap());
        }
        assert_eq!(store.join().unwrap(), 1);
        store.barrier().unwrap();
        store.pull_rows(0, &[0, 1, 2, 3, 5], 0).unwrap().rows().to_vec::<f32>().unwrap()
    });
    for sum in sums {
        assert_eq!(sum, [3.0, 3.0, 8.0, 8.0, 5.0, 5.0, 0.0, 0.0, 16.0, 16.0]);
    }
}

#[test]
fn steps_after_a_join_are_frozen_again() {
    let messages = ranks::workers(3, &patient(LONG), |store| {
        init(store);
        let train = |batch: usize| {
            (0..KEYS).for_each(|key| push(store, key, gradient(store.rank(), key, batch)));
            drop(values(store));
            store.stats().control_messages
        };
        let before: Vec<u64> = (0..8 + store.rank()).map(train).collect();
        assert!(before.last() > before.first());
        store.join().unwrap();
        (0..6).map(train).collect::<Vec<u64>>()
    });
    messages.iter().for_each(|messages| assert_eq!(messages[2], messages[5], "{messages:?}"));
}

#[test]
fn a_job_in_which_nobody_has_data_can_join_and_one_rank_alone_need_not_wait() {
    let last = ranks::workers(3, &patient(LONG), |store| (store.join().unwrap(), store.join().unwrap()));
    assert!(last.iter().all(|both| *both == last[0]), "{last:?}");
    assert_eq!(ranks::workers(1, &patient(LONG), |store| store.join().unwrap()), [0]);
    let local = ringpull::create("local").unwrap();
    assert_eq!(local.join(), Ok(0));
}

/// Waits until the store reports a fault, and makes no other call.
fn until_told(store: &KvStore) -> Result<()> {
    loop {
        store.wait_all()?;
        std::thread::yield_now();
    }
}

#[test]
fn a_key_that_is_initialised_while_a_rank_has_joined_is_an_error_that_says_so() {
    let errors = ranks::workers(2, &patient(LONG), |store| {
        init(store);
        if store.rank() == 1 {
            return store.join().unwrap_err();
        }
        store.init(100, &Tensor::zeros(DType::F32, &[3])).and_then(|()| until_told(store)).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("init of key 100") && text.contains("rank 1 has joined"), "{text}");
    }
}

#[test]
fn a_rank_that_never_joins_is_named() {
    let errors = ranks::workers(2, &patient(Duration::from_millis(500)), |store| {
        if store.rank() == 1 {
            return store.join().unwrap_err();
        }
        until_told(store).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("join") && text.contains("[0] have not called it"), "{text}");
    }
}

#[test]
fn a_rank_that_dies_after_it_has_joined_is_named_on_every_rank() {
    let config = patient(LONG);
    let engines = Engine::in_process(3, &config).unwrap();
    let has_joined = Barrier::new(2);
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let (config, has_joined) = (&config, &has_joined);
        let threads = engines.iter().enumerate().map(|(rank, engine)| {
            let store = store_over(Kind::DistSyncMpi, Box::new(Allreduce::new(Arc::clone(engine))), config);
            scope.spawn(move || {
                store.init(0, &Tensor::zeros(DType::F32, &[10])).unwrap();
                if rank == 1 {
                    return store.join().unwrap_err();
                }
                for batch in 0.. {
                    let outcome = store.push(0, &[Tensor::full(DType::F32, &[10], 1.0)], 0);
                    if let Err(error) = outcome.and_then(|()| store.wait_all()) {
                        return error;
                    }
                    if rank == 0 && batch == 2 {
                        // Rank 1 has pushed nothing. The end of this push shows that rank 1 has joined.
                        has_joined.wait();
                    }
                }
                unreachable!("the loop ends with an error")
            })
        });
        let threads: Vec<_> = threads.collect();
        has_joined.wait();
        engines[1].give_up();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for error in &errors {
        assert!(error.to_string().contains("rank 1") && error.to_string().contains("is lost"), "{error}");
    }
    std::thread::scope(|scope| engines.into_iter().for_each(|engine| drop(scope.spawn(move || drop(engine)))));
}
