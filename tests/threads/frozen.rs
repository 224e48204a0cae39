//! Tests of the cost of a loop of steps after its calls have repeated, and of the behaviour when they stop
//! repeating. The ranks are threads, without MPI.

use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::ranks::{on_hosts, workers};

use ringpull::KvStore;
use ringpull::internal::{Allreduce, store_over};
use ringpull_allreduce::progress::Engine;
use ringpull_base::config::Config;
use ringpull_base::{DType, Error, Key, Kind, Result, Tensor};

const KEYS: i64 = 12;
const LONG: Duration = Duration::from_secs(20);

fn patient(timeout: Duration) -> Config {
    Config { timeout, ..Config::default() }
}

/// Returns the number of elements of a key. Every third key is too long for a bucket, and the other keys are
/// short.
fn len(key: i64) -> usize {
    if key % 3 == 2 { 200_000 } else { 100 + key as usize }
}

fn init(store: &KvStore) -> Vec<Tensor> {
    let tensors: Vec<Tensor> = (0..KEYS).map(|key| Tensor::zeros(DType::F32, &[len(key)])).collect();
    for (key, tensor) in (0..).zip(&tensors) {
        store.init(key, tensor).unwrap();
    }
    tensors
}

/// Returns a gradient whose sums are not exact.
fn gradient(store: &KvStore, key: i64, step: usize) -> Tensor {
    let value = |index: usize| 1.0 / (index + step + 1 + 7 * store.rank() + key as usize) as f32;
    Tensor::from_slice(&[len(key)], &(0..len(key)).map(value).collect::<Vec<f32>>())
}

/// Pushes and pulls every key. Returns the pulled values.
fn step(store: &KvStore, keys: &[i64], number: usize) -> Result<Vec<u32>> {
    let mut keys = keys.to_vec();
    // Ranks may call in different orders.
    let turn = store.rank() % keys.len();
    keys.rotate_left(turn);
    for key in &keys {
        store.push(*key, &[gradient(store, *key, number)], -(*key as i32))?;
    }
    keys.sort_unstable();
    let mut bits = Vec::new();
    for key in &keys {
        let out = Tensor::zeros(DType::F32, &[len(*key)]);
        store.pull(*key, std::slice::from_ref(&out), 0)?;
        bits.extend(out.to_vec::<f32>()?.iter().map(|value| value.to_bits()));
    }
    Ok(bits)
}

fn all_keys() -> Vec<i64> {
    (0..KEYS).collect()
}

#[test]
fn after_step_2_a_step_sends_no_control_message() {
    let messages = workers(4, &patient(LONG), |store| {
        init(store);
        (0..2).for_each(|number| drop(step(store, &all_keys(), number).unwrap()));
        let before = store.stats().control_messages;
        (2..30).for_each(|number| drop(step(store, &all_keys(), number).unwrap()));
        (before, store.stats().control_messages)
    });
    for (before, after) in messages {
        assert!(before > 0);
        assert_eq!(before, after);
    }
}

#[test]
fn barriers_push_pulls_and_row_sparse_pushes_in_a_loop_need_no_control_message_either() {
    let messages = workers(3, &patient(LONG), |store| {
        let tensors = init(store);
        store.init(100, &Tensor::zeros(DType::F32, &[6, 2])).unwrap();
        let mut messages = Vec::new();
        for number in 0..12 {
            store.barrier().unwrap();
            for (key, tensor) in (0..).zip(&tensors) {
                tensor.write().as_mut_slice::<f32>().fill((number + store.rank()) as f32);
                store.push_pull(key, std::slice::from_ref(tensor), std::slice::from_ref(tensor), 0).unwrap();
            }
            let ids: Vec<i64> = (0..=store.rank() as i64).collect();
            let rows = Tensor::full(DType::F32, &[ids.len(), 2], 1.0);
            store.push_rows(100, &[ringpull_base::RowSparse::new(&[6, 2], &ids, rows).unwrap()], 0).unwrap();
            for tensor in &tensors {
                assert!(tensor.to_vec::<f32>().unwrap().iter().all(|sum| *sum == (3 * number + 3) as f32));
            }
            let rows = store.pull_rows(100, &[0, 1, 2, 3], 0).unwrap();
            assert_eq!(rows.rows().to_vec::<f32>().unwrap(), [3.0, 3.0, 2.0, 2.0, 1.0, 1.0, 0.0, 0.0]);
            messages.push(store.stats().control_messages);
        }
        messages
    });
    messages.iter().for_each(|messages| assert_eq!(messages[2], messages[11], "{messages:?}"));
}

#[test]
fn sums_have_the_same_bits_on_every_rank_and_in_every_run() {
    let run = |config: &Config| {
        workers(3, config, |store| {
            init(store);
            (0..6).map(|number| step(store, &all_keys(), number).unwrap()).collect::<Vec<_>>()
        })
    };
    let first = run(&patient(LONG));
    assert!(first.iter().all(|bits| *bits == first[0]), "the ranks differ");
    assert!((0..3).all(|_| run(&patient(LONG)) == first), "the runs differ");
    let unfused = run(&Config { fusion_bytes: Some(0), ..patient(LONG) });
    assert!(unfused.iter().all(|bits| *bits == unfused[0]), "the ranks differ without buckets");
}

#[test]
fn a_sequence_that_changes_is_agreed_on_again() {
    workers(3, &patient(LONG), |store| {
        init(store);
        let few: Vec<i64> = (0..KEYS).filter(|key| key % 4 != 1).collect();
        for (round, keys) in [all_keys(), few, all_keys(), vec![3], all_keys()].iter().enumerate() {
            (0..9).for_each(|number| drop(step(store, keys, 10 * round + number).unwrap()));
        }
        // One rank alone reads in the middle of a step.
        for number in 0..20 {
            for key in 0..KEYS {
                store.push(key, &[gradient(store, key, number)], 0).unwrap();
                if store.rank() == 1 && key == 5 && number % 6 == 3 {
                    store.pull(5, &[Tensor::zeros(DType::F32, &[len(5)])], 0).unwrap();
                }
            }
            store.wait_all().unwrap();
        }
    });
}

/// Checks every route: messages, shared memory, and both together.
#[test]
fn a_rank_may_wait_for_a_later_key_before_it_calls_an_earlier_one() {
    let config = patient(LONG);
    for hosts in [[0, 1, 2, 3], [0; 4], [0, 0, 1, 1]] {
        on_hosts(&hosts, &config, &|engine: &Arc<Engine>| {
            let store = store_over(Kind::DistSyncMpi, Box::new(Allreduce::new(Arc::clone(engine))), &config);
            // The keys are too long to share a bucket, and too many for shared memory at once.
            let shape = [300_000];
            let keys = 0..24;
            keys.clone().for_each(|key| store.init(key, &Tensor::zeros(DType::F32, &shape)).unwrap());
            let one = Tensor::from_slice(&shape, &vec![1.0_f32; shape[0]]);
            let push = |key: i64| store.push(key, std::slice::from_ref(&one), 0).unwrap();
            let check = |key: i64| {
                let out = Tensor::zeros(DType::F32, &shape);
                store.pull(key, std::slice::from_ref(&out), 0).unwrap();
                assert!(out.to_vec::<f32>().unwrap().iter().all(|sum| *sum == 4.0), "key {key} on {hosts:?}");
            };
            for step in 0..24 {
                // The cycle is frozen in these steps. Some ranks wait for a later key, or for the first key,
                // before they call the other keys.
                if step % 8 == 7 && store.rank() % 2 == 1 {
                    let first = if step == 7 { 0 } else { 12 };
                    push(first);
                    check(first);
                    keys.clone().filter(|key| *key != first).for_each(push);
                    keys.clone().filter(|key| *key != first).for_each(check);
                } else {
                    keys.clone().for_each(push);
                    keys.clone().for_each(check);
                }
            }
        });
    }
}

#[test]
fn reading_an_output_never_waits_for_a_neighbour_in_its_bucket() {
    workers(2, &patient(LONG), |store| {
        let tensors = init(store);
        for number in 0..12 {
            for (key, tensor) in (0..).zip(&tensors) {
                store.push_pull(key, std::slice::from_ref(tensor), std::slice::from_ref(tensor), 0).unwrap();
                if number > 5 {
                    drop(tensor.read().unwrap());
                }
            }
            tensors.iter().for_each(|tensor| drop(tensor.read().unwrap()));
        }
    });
}

#[test]
fn an_output_that_is_written_over_and_over_needs_no_reader() {
    workers(2, &patient(LONG), |store| {
        let staging = Tensor::full(DType::F32, &[100], 1.0);
        (0..4).for_each(|key| store.init(key, &staging).unwrap());
        for _ in 0..10 {
            for key in 0..4 {
                staging.write().as_mut_slice::<f32>().fill(1.0);
                store.push_pull(key, std::slice::from_ref(&staging), std::slice::from_ref(&staging), 0).unwrap();
            }
        }
        assert_eq!(staging.to_vec::<f32>().unwrap(), [2.0; 100]);
    });
}

#[test]
fn two_stores_on_one_engine_are_frozen_together() {
    let config = patient(LONG);
    let engines = Engine::in_process(2, &config).unwrap();
    std::thread::scope(|scope| {
        for engine in &engines {
            let config = &config;
            scope.spawn(move || {
                let new = || store_over(Kind::DistSyncMpi, Box::new(Allreduce::new(Arc::clone(engine))), config);
                let (one, two) = (new(), new());
                init(&one);
                init(&two);
                let mut messages = 0;
                for number in 0..10 {
                    let first = step(&one, &all_keys(), number).unwrap();
                    assert_eq!(first, step(&two, &all_keys(), number).unwrap());
                    if number == 2 {
                        messages = one.stats().control_messages;
                    }
                }
                assert_eq!(messages, two.stats().control_messages);
            });
        }
    });
    std::thread::scope(|scope| engines.into_iter().for_each(|engine| drop(scope.spawn(move || drop(engine)))));
}

#[test]
fn a_sum_of_high_priority_overtakes_a_long_one_under_way_in_frozen_steps() {
    // Long enough to tolerate a busy machine that does not run a thread for some tens of milliseconds.
    const LONG_LEN: usize = 16 << 20;
    let (config, rounds) = (patient(LONG), 6);
    let gates: Vec<Barrier> = (0..rounds).map(|_| Barrier::new(2)).collect();
    let orders = workers(2, &config, |store| {
        let order: Arc<Mutex<Vec<String>>> = Arc::default();
        let (long, short) = (Tensor::zeros(DType::F32, &[LONG_LEN]), Tensor::zeros(DType::F32, &[50_000]));
        store.init("long", &long).unwrap();
        store.init("short", &short).unwrap();
        let noting = Arc::clone(&order);
        let note = move |key: &Key, _: &Tensor, _: &Tensor| {
            noting.lock().unwrap().push(key.to_string());
            Ok(())
        };
        store.set_updater(Box::new(note)).unwrap();
        let mut messages = 0;
        for (round, gate) in gates.iter().enumerate() {
            if store.rank() == 0 {
                store.push("long", std::slice::from_ref(&long), -1).unwrap();
                store.push("short", std::slice::from_ref(&short), 0).unwrap();
                gate.wait();
            } else {
                // Rank 0's operations progress after this rank has begun them, and it begins them after it
                // has called both.
                gate.wait();
                store.push("short", std::slice::from_ref(&short), 0).unwrap();
                store.push("long", std::slice::from_ref(&long), -1).unwrap();
            }
            store.wait_all().unwrap();
            if round == 2 {
                messages = store.stats().control_messages;
            }
        }
        assert_eq!(store.stats().control_messages, messages, "the steps are frozen");
        order.lock().unwrap().split_off(2 * 3)
    });
    for order in orders {
        assert!(order.chunks(2).all(|step| step[0].contains("short") && step[1].contains("long")), "{order:?}");
    }
}

/// The time for which a call may wait for the other ranks, in tests of that limit. It is longer than a busy
/// machine keeps a rank from running.
const SHORT: Duration = Duration::from_secs(2);

/// Returns the error of each of 3 ranks when rank 1 makes other calls in step 100. The other ranks may get
/// the error while they still read the results of step 99.
fn odd_step(patience: Duration, odd: impl Fn(&KvStore) -> Result<()> + Sync) -> Vec<Error> {
    workers(3, &patient(patience), |store| {
        init(store);
        let steps = |count: usize| (0..count).try_for_each(|number| step(store, &[0, 1, 2, 3], number).map(drop));
        let outcome = match store.rank() {
            1 => {
                steps(100).unwrap();
                odd(store)
            }
            _ => steps(101),
        };
        let on_and_on = |()| -> Result<()> {
            loop {
                store.barrier()?;
            }
        };
        outcome.and_then(on_and_on).unwrap_err()
    })
}

#[test]
fn a_mismatch_in_step_100_is_an_error_on_every_rank() {
    let errors = odd_step(LONG, |store| {
        store.set_optimizer(&ringpull_kernels::optim::Optimizer::sgd(0.1))?;
        step(store, &[0, 1, 2, 3], 100).map(drop)
    });
    for error in errors {
        assert!(matches!(error, Error::Disagreement { .. }), "{error}");
    }
}

#[test]
fn a_key_left_out_in_step_100_is_named_with_the_rank_that_left_it_out() {
    let errors = odd_step(SHORT, |store| step(store, &[0, 1, 3], 100).map(drop));
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("push of key 2") && text.contains("rank(s) [1] have not called it"), "{text}");
    }
}

#[test]
fn a_key_added_in_step_100_is_named_with_the_ranks_that_lack_it() {
    let errors = odd_step(SHORT, |store| step(store, &[0, 1, 2, 3, 4], 100).map(drop));
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("key 4") && text.contains("[0, 2]") || text.contains("barrier"), "{text}");
    }
}

#[test]
fn a_rank_that_stops_calling_in_a_frozen_loop_is_named_with_what_it_has_not_called() {
    let errors = odd_step(SHORT, |store| {
        loop {
            store.wait_all()?;
            std::thread::yield_now();
        }
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("push of key") && text.contains("[1] have not called it"), "{text}");
    }
}
