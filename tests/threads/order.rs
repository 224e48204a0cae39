//! Tests of `dist_sync_mpi` with threads as ranks, without MPI: order, overlap and faults.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use ringpull::KvStore;
use ringpull::internal::{Allreduce, store_over};
use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::progress::Engine;
use ringpull_base::config::Config;
use ringpull_base::{Buffer, DType, Error, Kind, Result, Tensor};

use crate::ranks;

/// Runs `work` as [`ranks::workers`] does. Waits become faults after `timeout`.
fn workers<T: Send>(size: usize, timeout: Duration, work: impl Fn(&KvStore) -> T + Sync) -> Vec<T> {
    ranks::workers(size, &Config { timeout, ..Config::default() }, work)
}

const LONG: Duration = Duration::from_secs(20);

fn ones(len: usize) -> Tensor {
    Tensor::full(DType::F32, &[len], 1.0)
}

#[test]
fn ranks_may_init_and_push_in_any_order() {
    workers(3, LONG, |store| -> Result<()> {
        let mut keys: Vec<i64> = (0..20).collect();
        keys.rotate_left(7 * store.rank());
        for key in &keys {
            store.init(*key, &Tensor::zeros(DType::F32, &[5]))?;
        }
        keys.reverse();
        for key in &keys {
            let value = Tensor::full(DType::F32, &[5], (*key + store.rank() as i64) as f64);
            store.push(*key, &[value], 0)?;
        }
        for key in &keys {
            let out = Tensor::zeros(DType::F32, &[5]);
            store.pull(*key, std::slice::from_ref(&out), 0)?;
            assert_eq!(out.to_vec::<f32>()?, [(3 * key + 3) as f32; 5]);
        }
        Ok(())
    })
    .into_iter()
    .for_each(|outcome| outcome.unwrap());
}

#[test]
fn push_returns_while_a_peer_has_not_come_and_reading_an_output_waits_for_it() {
    let gate = Barrier::new(2);
    workers(2, LONG, |store| {
        store.init("w", &Tensor::zeros(DType::F32, &[1000])).unwrap();
        let (gradient, out) = (ones(1000), Tensor::zeros(DType::F32, &[1000]));
        if store.rank() == 1 {
            gate.wait();
        }
        store.push_pull("w", &[gradient], std::slice::from_ref(&out), 0).unwrap();
        if store.rank() == 0 {
            // This rank gets here before rank 1 has pushed, so push returned before communication ended.
            gate.wait();
        }
        assert_eq!(out.to_vec::<f32>().unwrap(), vec![2.0; 1000]);
    });
}

#[test]
fn in_place_sums_share_memory_with_the_store_until_somebody_writes() {
    workers(2, LONG, |store| {
        store.init("w", &ones(4)).unwrap();
        let gradient = ones(4);
        for step in 0..3 {
            store.push_pull("w", std::slice::from_ref(&gradient), std::slice::from_ref(&gradient), 0).unwrap();
            assert_eq!(gradient.to_vec::<f32>().unwrap(), [2.0; 4], "step {step}");
            gradient.write().as_mut_slice::<f32>().fill(1.0);
            let kept = Tensor::zeros(DType::F32, &[4]);
            store.pull("w", std::slice::from_ref(&kept), 0).unwrap();
            assert_eq!(kept.to_vec::<f32>().unwrap(), [2.0; 4], "the store's value is not the caller's tensor");
        }
    });
}

#[test]
fn a_rank_that_does_not_push_is_named_on_every_rank() {
    let errors = workers(3, Duration::from_millis(300), |store| {
        store.init("w", &ones(4)).unwrap();
        store.barrier().unwrap();
        if store.rank() != 1 {
            store.push("w", &[ones(4)], 0).unwrap();
        }
        store.pull("w", &[ones(4)], 0).and_then(|()| store.barrier()).unwrap_err()
    });
    for error in errors {
        assert!(matches!(&error, Error::Stalled { missing, .. } if missing.contains(&1)), "{error}");
    }
}

#[test]
fn ranks_that_disagree_on_a_shape_or_dtype_all_get_one_error() {
    for dtype in [DType::F32, DType::F16] {
        let errors = workers(3, LONG, |store| {
            let (shape, dtype) = if store.rank() == 2 { ([5], dtype) } else { ([4], DType::F32) };
            store.init("w", &Tensor::zeros(dtype, &shape)).and_then(|()| store.barrier()).unwrap_err()
        });
        for error in &errors {
            let text = error.to_string();
            assert!(
                text.contains("key \"w\"")
                    && text.contains("in init")
                    && text.contains(&format!("rank 2 has {dtype} of shape [")),
                "{text}"
            );
            assert_eq!(error, &errors[0], "every rank reports the same");
        }
    }
}

#[test]
fn a_poisoned_store_returns_the_first_cause_and_frees_its_outputs() {
    let errors = workers(2, Duration::from_millis(200), |store| {
        store.init("w", &ones(4)).unwrap();
        store.barrier().unwrap();
        let out = ones(4);
        if store.rank() == 0 {
            store.push_pull("w", &[ones(4)], std::slice::from_ref(&out), 0).unwrap();
            let first = out.read().err().expect("reading the output raises what kept it from being written");
            assert_eq!(store.push("w", &[ones(4)], 0), Err(first.clone()));
            assert_eq!(store.barrier(), Err(first.clone()));
            return first;
        }
        loop {
            if let Err(fault) = store.wait_all() {
                return fault;
            }
            std::thread::yield_now();
        }
    });
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn a_call_after_rank_0_has_ended_its_run_is_an_error_that_names_it() {
    let config = Config { timeout: Duration::from_secs(2), ..Config::default() };
    let mut engines = Engine::in_process(2, &config).unwrap();
    let (last, first) = (engines.pop().unwrap(), engines.pop().unwrap());
    drop(first);
    let store = store_over(Kind::DistSyncMpi, Box::new(Allreduce::new(last)), &config);
    store.init("w", &ones(4)).unwrap();
    let error = store.wait_all().unwrap_err();
    assert!(error.to_string().contains("rank 0"), "{error}");
}

#[test]
fn ranks_that_compress_differently_all_get_one_error() {
    let errors = workers(3, LONG, |store| {
        let text = if store.rank() == 1 { "2bit:0.25" } else { "2bit:0.5" };
        // The fault of two ranks may reach the third rank in any of its calls.
        let pushed = store
            .init("w", &ones(4))
            .and_then(|()| store.set_gradient_compression(&text.parse().unwrap()))
            .and_then(|()| store.push("w", &[ones(4)], 0))
            .and_then(|()| store.wait_all());
        pushed.unwrap_err()
    });
    for error in &errors {
        let text = error.to_string();
        assert!(text.contains("key \"w\"") && text.contains("compressed by 2bit:0.25"), "{text}");
        assert_eq!(error, &errors[0], "every rank reports the same");
    }
}

/// Checks every codec's traffic on long keys, and that the sums are the same on every rank.
#[test]
fn codes_travel_instead_of_floats() {
    const LEN: usize = 1 << 20;
    for (text, most) in [("2bit:0.5", 0.15), ("1bit:0.5", 0.1), ("bf16", 0.51), ("fp16", 0.51), ("topk:0.01", 0.041)] {
        let results = workers(4, LONG, |store| {
            store.init("w", &Tensor::zeros(DType::F32, &[LEN])).unwrap();
            store.set_gradient_compression(&text.parse().unwrap()).unwrap();
            store.wait_all().unwrap();
            let before = store.stats().sent_bytes;
            let gradient: Vec<f32> = (0..LEN).map(|at| ((at * 7 + store.rank()) % 13) as f32 / 8.0 - 0.75).collect();
            let tensor = Tensor::from_slice(&[LEN], &gradient);
            store.push_pull("w", std::slice::from_ref(&tensor), std::slice::from_ref(&tensor), 0).unwrap();
            let sum = tensor.to_vec::<f32>().unwrap();
            store.barrier().unwrap();
            (store.stats().sent_bytes - before, sum)
        });
        // The number of bytes that an allreduce of floats sends.
        let plain = 2.0 * 3.0 / 4.0 * (LEN * 4) as f64;
        for (sent, sum) in &results {
            assert!(
                (*sent as f64) < most * plain,
                "{text}: {sent} bytes, {:.3} of an allreduce's",
                *sent as f64 / plain
            );
            assert_eq!(*sum, results[0].1, "{text}: the same bits on every rank");
        }
    }
}

#[test]
fn the_owner_of_a_collectives_memory_gets_the_fault_or_the_memory() {
    let config = Config { timeout: LONG, ..Config::default() };
    for fails in [false, true] {
        let engines = Engine::in_process(2, &config).unwrap();
        let (freed, both) = (Arc::<AtomicUsize>::default(), Arc::new(Barrier::new(2)));
        std::thread::scope(|scope| {
            for engine in &engines {
                let (noting, both) = (Arc::clone(&freed), Arc::clone(&both));
                let released = Box::new(move |fault: Option<Error>| {
                    noting.fetch_add(usize::from(fault.is_none()), Ordering::SeqCst);
                });
                scope.spawn(move || {
                    let memory = Tensor::watched(DType::F32, &[8], Buffer::zeroed(32), released);
                    let work = move |comm: &mut Communicator, stamp: u32| {
                        both.wait();
                        if fails && comm.rank() == 1 {
                            return Err(Error::argument("it fails on purpose", "leave it"));
                        }
                        comm.allreduce_tensor(comm.choice(), &memory, stamp)
                    };
                    assert_eq!(engine.collective("test", work).is_err(), fails);
                });
            }
        });
        std::thread::scope(|scope| engines.into_iter().for_each(|engine| drop(scope.spawn(move || drop(engine)))));
        // Rank 1 had not given it away.
        assert_eq!(freed.load(Ordering::SeqCst), if fails { 1 } else { 2 });
    }
}

/// Works as MXNet's engine does: pushes keys in the order of their gradients, begins the next step when all
/// sums have been returned, and never calls a wait.
#[test]
fn a_caller_that_only_watches_its_tensors_is_never_held_up_by_a_bucket() {
    const KEYS: i64 = 4;
    let timeout = Duration::from_secs(4);
    for turns in 1..KEYS as usize {
        let begun = Instant::now();
        workers(2, timeout, |store| {
            (0..KEYS).for_each(|key| store.init(key, &ones(8)).unwrap());
            for step in 0..20 {
                let (told, returned) = std::sync::mpsc::channel();
                let mut keys: Vec<i64> = (0..KEYS).collect();
                // The first step has another order than the later steps, so that the repeating calls begin in
                // the middle of a step.
                keys[..=turns].rotate_left(usize::from(step == 0));
                for key in keys {
                    let told = told.clone();
                    let released = Box::new(move |fault: Option<Error>| told.send(fault).unwrap());
                    let value = Buffer::copy_of(bytemuck::cast_slice(&[key as f32 + 1.0; 8]));
                    let tensor = Tensor::watched(DType::F32, &[8], value, released).unkept();
                    let both = std::slice::from_ref(&tensor);
                    store.push_pull(key, both, both, 0).unwrap();
                }
                for _ in 0..KEYS {
                    assert_eq!(returned.recv_timeout(timeout * 2).unwrap(), None);
                }
            }
        });
        assert!(begun.elapsed() < timeout, "{turns}: {:?}: a sum waited for the next step's", begun.elapsed());
    }
}
