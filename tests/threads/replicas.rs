//! Tests of `RINGPULL_CHECK_REPLICAS` with threads as ranks: every rank's error names the rank that holds a
//! different value, and no error comes without a difference.

use std::sync::Barrier;
use std::time::Duration;

use ringpull::{Config, DType, Error, KvStore, Optimizer, Result, RowSparse, Tensor};

use crate::ranks;

const KEYS: [&str; 3] = ["w", "v", "b"];

fn workers<T: Send>(size: usize, check_replicas: u64, work: impl Fn(&KvStore) -> T + Sync) -> Vec<T> {
    ranks::workers(size, &Config { check_replicas, ..Config::default() }, work)
}

fn ones(len: usize) -> Tensor {
    Tensor::full(DType::F32, &[len], 1.0)
}

fn init(store: &KvStore) -> Result<()> {
    KEYS.iter().try_for_each(|key| store.init(*key, &ones(100)))
}

fn push(store: &KvStore, key: &str) -> Result<()> {
    store.push(key, &[ones(100)], 0)
}

fn named(error: &Error) -> Option<(String, u64, Vec<usize>, Vec<usize>)> {
    match error {
        Error::ReplicasDiffer { key, update, ranks, others } => {
            Some((key.to_string(), *update, ranks.clone(), others.clone()))
        }
        _ => None,
    }
}

/// Runs steps in which the updater of rank 1 of three is off by one from the fifth update of "v" on. Returns
/// the first error of each rank.
fn differing(check_replicas: u64) -> Vec<Option<Error>> {
    workers(3, check_replicas, |store| {
        let (rank, mut calls) = (store.rank(), 0);
        let updater = move |key: &ringpull::Key, sum: &Tensor, value: &Tensor| {
            calls += u32::from(*key == "v".into());
            let wrong = if rank == 1 && *key == "v".into() && calls == 5 { 1.0 } else { 0.0 };
            let sum = sum.to_vec::<f32>()?;
            value.write().as_mut_slice::<f32>().iter_mut().zip(&sum).for_each(|(value, sum)| *value += sum + wrong);
            Ok(())
        };
        store.set_updater(Box::new(updater)).unwrap();
        let steps = || {
            init(store)?;
            for _ in 0..12 {
                KEYS.iter().try_for_each(|key| push(store, key))?;
            }
            KEYS.iter().try_for_each(|key| store.pull(*key, &[ones(100)], 0))?;
            store.barrier()
        };
        steps().err()
    })
}

#[test]
fn a_rank_with_another_value_is_named_with_the_key_on_every_rank() {
    for (every, found) in [(1, 5), (2, 6), (4, 8)] {
        for error in differing(every) {
            let error = error.expect("every rank has the error");
            assert_eq!(named(&error), Some(("\"v\"".to_owned(), found, vec![1], vec![0, 2])), "{error}");
            let text = error.to_string();
            assert!(text.contains("rank(s) [1]") && text.contains("hint: RINGPULL_CHECK_REPLICAS"), "{text}");
        }
    }
}

#[test]
fn nothing_is_compared_unless_it_is_asked_for() {
    assert_eq!(differing(0), [None, None, None]);
    // Checks that are less frequent find no difference either.
    assert_eq!(differing(13), [None, None, None]);
}

#[test]
fn of_two_ranks_each_may_be_the_wrong_one() {
    let errors = workers(2, 1, |store| {
        let wrong = store.rank() as f32;
        store.set_updater(Box::new(move |_, _, value| {
            value.write().as_mut_slice::<f32>().fill(wrong);
            Ok(())
        }))?;
        init(store)?;
        push(store, "w")?;
        push(store, "w")?;
        store.barrier()
    });
    for error in errors {
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("\"w\"") && text.contains("rank(s) [1] have another value than rank(s) [0]; no"),
            "{text}"
        );
    }
}

#[test]
fn every_way_of_updating_leaves_the_same_bits_on_every_rank() {
    for (size, every) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
        let compressed = "2bit:0.5".parse().unwrap();
        workers(size, every, |store| -> Result<()> {
            init(store)?;
            let noise = |step: usize| -> Vec<f32> {
                (0..100).map(|at| ((at * 37 + step * 11 + store.rank() * 101) % 997) as f32 / 331.0 - 1.5).collect()
            };
            let out = Tensor::zeros(DType::F32, &[100]);
            for step in 0..30 {
                match step {
                    6 => store.set_optimizer(&Optimizer::sgd(0.1))?,
                    12 => store.set_optimizer(&"adam,lr=0.01".parse()?)?,
                    18 => store.set_gradient_compression(&compressed)?,
                    24 => store.unset_gradient_compression()?,
                    _ => {}
                }
                let gradient = Tensor::from_slice(&[100], &noise(step));
                store.push("w", std::slice::from_ref(&gradient), 0)?;
                store.push_pull("v", std::slice::from_ref(&gradient), std::slice::from_ref(&out), 0)?;
                store.push_pull("b", std::slice::from_ref(&gradient), std::slice::from_ref(&gradient), 0)?;
                out.to_vec::<f32>()?;
            }
            store.barrier()
        })
        .into_iter()
        .for_each(|outcome| outcome.unwrap());
    }
}

/// The second push of a key waits for the first push. No push may pass a push that is being compared.
#[test]
fn keys_that_are_pushed_twice_without_a_wait_are_compared_in_one_order() {
    let compressed = "2bit:0.5".parse().unwrap();
    for is_compressed in [false, true] {
        workers(3, 3, |store| -> Result<()> {
            let zeros = Tensor::zeros(DType::F32, &[4, 2]);
            store.init("a", &zeros)?;
            store.init("b", &zeros)?;
            if is_compressed {
                store.set_gradient_compression(&compressed)?;
            }
            for _ in 0..40 {
                for _ in 0..2 {
                    if is_compressed {
                        store.push("a", &[Tensor::full(DType::F32, &[4, 2], 1.0)], 0)?;
                    } else {
                        store.push_rows(
                            "a",
                            &[RowSparse::new(&[4, 2], &[1], Tensor::full(DType::F32, &[1, 2], 1.0))?],
                            0,
                        )?;
                    }
                }
                store.push("b", &[Tensor::full(DType::F32, &[4, 2], 1.0)], 0)?;
                store.pull("b", &[Tensor::zeros(DType::F32, &[4, 2])], 0)?;
            }
            store.wait_all()
        })
        .into_iter()
        .for_each(|outcome| outcome.unwrap());
    }
}

#[test]
fn rows_are_compared_as_well() {
    let errors = workers(2, 3, |store| -> Result<()> {
        let rank = store.rank();
        store.init("rows", &Tensor::zeros(DType::F32, &[4, 2]))?;
        let mut calls = 0;
        store.set_updater(Box::new(move |_, _, value| {
            calls += 1;
            value.write().as_mut_slice::<f32>()[7] = if calls == 3 { rank as f32 } else { 1.0 };
            Ok(())
        }))?;
        for _ in 0..4 {
            let rows = RowSparse::new(&[4, 2], &[1], Tensor::full(DType::F32, &[1, 2], 1.0))?;
            store.push_rows("rows", &[rows], 0)?;
        }
        store.wait_all()
    });
    errors.iter().for_each(|error| assert!(named(error.as_ref().unwrap_err()).is_some_and(|named| named.1 == 3)));
}

#[test]
fn a_rank_that_has_joined_is_compared_like_the_others() {
    for wrong in [0.0, 1.0] {
        let outcomes = workers(3, 2, |store| -> Result<()> {
            let (rank, mut calls) = (store.rank(), 0);
            store.set_updater(Box::new(move |_, _, value| {
                calls += 1;
                let wrong = if rank == 2 && calls == 4 { wrong } else { 0.0 };
                value.write().as_mut_slice::<f32>().iter_mut().for_each(|value| *value += 1.0 + wrong);
                Ok(())
            }))?;
            store.init("w", &ones(100))?;
            let steps = if rank == 2 { 1 } else { 7 };
            (0..steps).try_for_each(|_| push(store, "w"))?;
            store.join()?;
            store.barrier()
        });
        for outcome in outcomes {
            let found = outcome.err().and_then(|error| named(&error));
            let expected = (wrong > 0.0).then(|| ("\"w\"".to_owned(), 4, vec![2], vec![0, 1]));
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn steps_with_checks_repeat_themselves_and_send_no_control_message() {
    workers(3, 20, |store| {
        init(store).unwrap();
        let steps = |count: usize| {
            for _ in 0..count {
                let outs = KEYS.map(|_| ones(100));
                for (key, out) in KEYS.iter().zip(&outs) {
                    store.push_pull(*key, std::slice::from_ref(out), std::slice::from_ref(out), 0).unwrap();
                }
                outs.iter().for_each(|out| assert_eq!(out.to_vec::<f32>().unwrap(), [3.0; 100]));
            }
        };
        steps(48);
        let before = store.stats().control_messages;
        steps(48);
        assert_eq!(store.stats().control_messages - before, 0, "rank {}", store.rank());
    });
}

#[test]
fn steps_whose_calls_change_are_compared_as_well() {
    for seed in 0..12_usize {
        workers(3, 1 + seed as u64 % 3, |store| {
            let keys: Vec<i64> = (0..8).collect();
            keys.iter().for_each(|key| store.init(*key, &ones(50)).unwrap());
            for step in 0..160 {
                // In some steps each rank uses another order and leaves some keys out. After them the steps
                // repeat again.
                let (turn, left_out) = if step % 20 < 3 { (3 * store.rank() + seed + step, step % 8) } else { (0, 8) };
                let mut order = keys.clone();
                order.rotate_left(turn % 8);
                let called: Vec<i64> = order.into_iter().filter(|key| *key as usize != left_out).collect();
                let outs: Vec<Tensor> = called.iter().map(|_| ones(50)).collect();
                for (key, out) in called.iter().zip(&outs) {
                    store.push_pull(*key, std::slice::from_ref(out), std::slice::from_ref(out), 0).unwrap();
                }
                outs.iter().for_each(|out| assert_eq!(out.to_vec::<f32>().unwrap(), [3.0; 50], "step {step}"));
            }
            store.barrier().unwrap();
        });
    }
}

#[test]
fn what_another_rank_has_begun_of_a_stopped_cycle_is_compared_in_its_order() {
    let (timeout, gate) = (Duration::from_secs(10), Barrier::new(2));
    let config = Config { check_replicas: 1, fusion_bytes: Some(0), timeout, ..Config::default() };
    ranks::workers(2, &config, |store| -> Result<()> {
        init(store)?;
        let sum = |keys: &[&str]| -> Result<()> {
            let outs: Vec<Tensor> = keys.iter().map(|_| ones(100)).collect();
            for (key, out) in keys.iter().zip(&outs) {
                store.push_pull(*key, std::slice::from_ref(out), std::slice::from_ref(out), 0)?;
                if store.rank() == 0 && *key == "v" && keys.len() == 3 {
                    gate.wait();
                }
            }
            outs.iter().try_for_each(|out| out.to_vec::<f32>().map(|sum| assert_eq!(sum, [2.0; 100])))
        };
        sum(&["b"])?;
        (0..30).try_for_each(|_| sum(&["w", "v"]))?;
        if store.rank() == 0 {
            return sum(&["w", "v", "b"]);
        }
        // Rank 0 has begun both; "b" ends the cycle, and "v" is called before "w".
        gate.wait();
        sum(&["b", "v", "w"])
    })
    .into_iter()
    .for_each(|outcome| outcome.unwrap());
}
