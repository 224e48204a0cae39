//! Compares optimizers with states divided over the ranks with the same optimizers on every rank. The bits
//! and the bytes on the wire are the same, and each rank holds only a part of the states. The ranks are
//! threads.

use std::path::Path;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use ringpull::internal::{Allreduce, store_over};
use ringpull::{CallOptions, Communicator, KvStore, Reduction};
use ringpull_base::config::Config;
use ringpull_base::{Algorithm, AlgorithmChoice, DType, Error, Kind, Result, RowSparse, Tensor};
use ringpull_kernels::optim::Optimizer;

use crate::ranks;

fn by(algorithm: AlgorithmChoice) -> Config {
    Config { timeout: Duration::from_secs(30), algorithm, ..Config::default() }
}

fn set(store: &KvStore, optimizer: &str, is_sharded: bool) -> Result<()> {
    let optimizer: Optimizer = optimizer.parse()?;
    if is_sharded { store.set_sharded_optimizer(&optimizer) } else { store.set_optimizer(&optimizer) }
}

/// The lengths of the keys. Most keys share buckets, some have fewer elements than there are ranks, and one
/// is too long for a bucket.
const LENS: [usize; 7] = [300, 1, 200_003, 0, 3, 1000, 77];

fn key(index: usize) -> String {
    format!("key {index}")
}

/// Returns a gradient whose sums are not exact.
fn gradient(store: &KvStore, dtype: DType, len: usize, step: usize) -> Tensor {
    let value = |at: usize| 1.0 / (at % 1000 + step + 1 + 7 * store.rank()) as f64 - 0.1;
    ringpull_base::with_element!(dtype, T => {
        Tensor::from_slice(&[len], &(0..len).map(|at| <T as ringpull_base::Element>::from_f64(value(at))).collect::<Vec<T>>())
    })
}

fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    tensor.read().unwrap().bytes().to_vec()
}

/// The form in which a step gives gradients and takes weights.
#[derive(Clone, Copy, Debug)]
enum Form {
    PushThenPull,
    InPlace,
    IntoOthers,
}

fn init(store: &KvStore, dtype: DType) {
    for (index, len) in LENS.iter().enumerate() {
        store.init(key(index), &gradient(store, dtype, *len, 3)).unwrap();
    }
}

/// Returns the values of all keys after each step. Enough steps run for their calls to be frozen and fused.
fn trained(store: &KvStore, dtype: DType, form: Form, steps: usize) -> Vec<Vec<u8>> {
    let mut seen = Vec::new();
    for step in 0..steps {
        let gradients: Vec<Tensor> = LENS.iter().map(|len| gradient(store, dtype, *len, step)).collect();
        let outs: Vec<Tensor> = match form {
            Form::InPlace => gradients.clone(),
            Form::PushThenPull | Form::IntoOthers => LENS.iter().map(|len| Tensor::zeros(dtype, &[*len])).collect(),
        };
        for (index, (gradient, out)) in gradients.iter().zip(&outs).enumerate().rev() {
            match form {
                Form::PushThenPull => store.push(key(index), from_ref(gradient), -(index as i32)).unwrap(),
                Form::InPlace | Form::IntoOthers => {
                    store.push_pull(key(index), from_ref(gradient), from_ref(out), -(index as i32)).unwrap();
                }
            }
        }
        if matches!(form, Form::PushThenPull) {
            for (index, out) in outs.iter().enumerate() {
                store.pull(key(index), from_ref(out), 0).unwrap();
            }
        }
        seen.extend(outs.iter().map(bytes_of));
    }
    seen
}

#[test]
fn weights_have_the_bits_of_the_optimizer_on_every_rank() {
    for (size, dtype, optimizer, form) in [
        (2, DType::F32, "adam,lr=0.1,wd=0.1", Form::PushThenPull),
        (3, DType::F32, "adam,lr=0.1", Form::InPlace),
        (4, DType::F32, "sgd,lr=0.5,momentum=0.9", Form::IntoOthers),
        (5, DType::F64, "nag,lr=0.1,momentum=0.5", Form::InPlace),
        (3, DType::F16, "adam,lr=0.1,multi_precision=1", Form::PushThenPull),
        (2, DType::BF16, "sgd,lr=0.1", Form::InPlace),
        (1, DType::F32, "adam,lr=0.1", Form::InPlace),
    ] {
        let config = by(AlgorithmChoice::Ordered);
        let run = |is_sharded| {
            ranks::workers(size, &config, |store| {
                set(store, optimizer, is_sharded).unwrap();
                init(store, dtype);
                trained(store, dtype, form, 9)
            })
        };
        let (sharded, replicated) = (run(true), run(false));
        assert!(sharded == replicated, "{optimizer} of {dtype} on {size} ranks, {form:?}");
    }
}

#[test]
fn every_way_of_summing_gives_all_ranks_the_same_bits_and_every_element_its_update() {
    let rings = [Algorithm::Ring, Algorithm::Direct].map(AlgorithmChoice::Plan);
    for choice in rings.into_iter().chain([AlgorithmChoice::Auto, AlgorithmChoice::Plan(Algorithm::Tree)]) {
        for fusion_bytes in [None, Some(0)] {
            let config = Config { fusion_bytes, ..by(choice) };
            let seen = ranks::workers(4, &config, |store| {
                set(store, "test", true).unwrap();
                for (index, len) in LENS.iter().enumerate() {
                    store.init(key(index), &Tensor::full(DType::F32, &[*len], index as f64)).unwrap();
                }
                for step in 1..8u8 {
                    for (index, len) in LENS.iter().enumerate() {
                        store
                            .push(key(index), &[Tensor::full(DType::F32, &[*len], (store.rank() + 1) as f64)], 0)
                            .unwrap();
                    }
                    for (index, len) in LENS.iter().enumerate() {
                        let out = Tensor::zeros(DType::F32, &[*len]);
                        store.pull(key(index), from_ref(&out), 0).unwrap();
                        let expected = index as f32 + 10.0 * f32::from(step);
                        assert!(out.to_vec::<f32>().unwrap().iter().all(|value| *value == expected), "{choice} {step}");
                    }
                }
                trained(store, DType::F32, Form::InPlace, 5)
            });
            assert!(seen.iter().all(|bits| *bits == seen[0]), "{choice}");
        }
    }
}

#[test]
fn each_rank_has_its_part_of_the_states_and_as_many_bytes_travel() {
    const LEN: usize = 240_000;
    let run = |is_sharded| {
        ranks::workers(8, &by(AlgorithmChoice::Plan(Algorithm::Ring)), |store| {
            set(store, "adam", is_sharded).unwrap();
            store.init("w", &Tensor::zeros(DType::F32, &[LEN])).unwrap();
            store.wait_all().unwrap();
            let before = store.stats().sent_bytes;
            for step in 0..3 {
                store.push("w", &[gradient(store, DType::F32, LEN, step)], 0).unwrap();
                store.wait_all().unwrap();
            }
            let stats = store.stats();
            (stats.state_bytes, stats.sent_bytes - before)
        })
    };
    let (sharded, replicated) = (run(true), run(false));
    let states: Vec<u64> = sharded.iter().map(|(states, _)| *states).collect();
    assert_eq!(states, [(2 * 4 * LEN / 8) as u64; 8]);
    assert!(replicated.iter().all(|(states, _)| *states == (2 * 4 * LEN) as u64));
    let sent = |of: &[(u64, u64)]| of.iter().map(|(_, sent)| *sent).collect::<Vec<_>>();
    assert_eq!(sent(&sharded), sent(&replicated));
}

/// The second push of a key is held until the first push is done, and pushes of other keys pass it.
#[test]
fn a_rank_may_wait_for_a_key_that_was_pushed_twice_before_it_pushes_the_others() {
    ranks::workers(3, &by(AlgorithmChoice::Auto), |store| {
        const LEN: usize = 300_000;
        set(store, "sgd,lr=1", true).unwrap();
        let zeros = Tensor::zeros(DType::F32, &[LEN]);
        (0..24).for_each(|key| store.init(key, &zeros).unwrap());
        let one = Tensor::from_slice(&[LEN], &vec![1.0_f32; LEN]);
        let push = |key: i64| store.push(key, from_ref(&one), 0).unwrap();
        let pull = |key: i64| {
            let out = Tensor::zeros(DType::F32, &[LEN]);
            store.pull(key, from_ref(&out), 0).unwrap();
            out.to_vec::<f32>().unwrap()[LEN - 1]
        };
        for step in 1..=12 {
            push(0);
            push(0);
            if step == 12 && store.rank() == 1 {
                assert!((pull(0) + 72.0).abs() < 1e-3);
            }
            (1..24).for_each(push);
            assert!((1..24).all(|key| (pull(key) + 3.0 * step as f32).abs() < 1e-3));
        }
    });
}

#[test]
fn compressed_gradients_and_rows_are_updated_by_parts_with_the_same_bits() {
    let run = |is_sharded| {
        ranks::workers(3, &by(AlgorithmChoice::Ordered), |store| {
            set(store, "adam,lr=0.1", is_sharded).unwrap();
            init(store, DType::F32);
            store.init("table", &Tensor::full(DType::F32, &[7, 5], 1.0)).unwrap();
            let mut seen = Vec::new();
            for compression in ["2bit:0.05", "topk:0.1", "fp16"] {
                store.set_gradient_compression(&compression.parse().unwrap()).unwrap();
                seen.extend(trained(store, DType::F32, Form::InPlace, 4));
                seen.extend(trained(store, DType::F32, Form::PushThenPull, 4));
            }
            for step in 0..6i64 {
                let ids = [(step + store.rank() as i64) % 7, (step * 3 + 2) % 7];
                let rows = RowSparse::new(&[7, 5], &ids, Tensor::full(DType::F32, &[2, 5], 0.3 + step as f64)).unwrap();
                store.push_rows("table", &[rows], 0).unwrap();
                // Dense gradients and rows of one key share the key's states.
                if step == 3 {
                    let dense = Tensor::full(DType::F32, &[7, 5], 0.1);
                    store.push("table", &[dense], 0).unwrap();
                }
                let out = Tensor::zeros(DType::F32, &[7, 5]);
                store.pull("table", from_ref(&out), 0).unwrap();
                seen.push(bytes_of(&out));
            }
            seen
        })
    };
    let (sharded, replicated) = (run(true), run(false));
    assert!(sharded.iter().all(|bits| *bits == sharded[0]));
    assert!(sharded == replicated);
}

#[test]
fn ranks_that_have_joined_go_on_with_their_parts() {
    let run = |is_sharded| {
        ranks::workers(3, &by(AlgorithmChoice::Ordered), |store| {
            set(store, "adam,lr=0.1", is_sharded).unwrap();
            for (index, len) in LENS.iter().enumerate() {
                store.init(key(index), &Tensor::full(DType::F32, &[*len], 1.0)).unwrap();
            }
            for step in 0..3 * (store.rank() + 1) {
                for (index, len) in LENS.iter().enumerate() {
                    store.push(key(index), &[gradient(store, DType::F32, *len, step)], 0).unwrap();
                }
            }
            store.join().unwrap();
            let pull = |index: usize, len: &usize| {
                let out = Tensor::zeros(DType::F32, &[*len]);
                store.pull(key(index), from_ref(&out), 0).unwrap();
                bytes_of(&out)
            };
            LENS.iter().enumerate().map(|(index, len)| pull(index, len)).collect::<Vec<_>>()
        })
    };
    let (sharded, replicated) = (run(true), run(false));
    assert!(sharded.iter().all(|bits| *bits == sharded[0]));
    assert!(sharded == replicated);
}

/// Runs three steps in which rank 0 pushes gradients and the other ranks push zeros. Loads the states and
/// weights of `loads` first, if it is given, and saves them as `saves` at the end. Returns the values.
fn stage(size: usize, is_sharded: bool, folder: &Path, loads: Option<&str>, saves: &str) -> Vec<Vec<u8>> {
    let seen = ranks::workers(size, &by(AlgorithmChoice::Auto), |store| {
        set(store, "adam,lr=0.1", is_sharded).unwrap();
        for (index, len) in LENS.iter().enumerate() {
            let first = match loads {
                None => Tensor::full(DType::F32, &[*len], 1.0),
                Some(name) => {
                    let bytes = std::fs::read(folder.join(format!("{name} {index}"))).unwrap();
                    let values: Vec<f32> = bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
                    Tensor::from_slice(&[*len], &values)
                }
            };
            store.init(key(index), &first).unwrap();
        }
        if let Some(name) = loads {
            store.load_optimizer_states(&folder.join(format!("{name} states 0"))).unwrap();
        }
        for step in 0..3 {
            for (index, len) in LENS.iter().enumerate() {
                let own = gradient(store, DType::F32, *len, step);
                let zeros = Tensor::zeros(DType::F32, &[*len]);
                store.push(key(index), &[if store.rank() == 0 { own } else { zeros }], 0).unwrap();
            }
        }
        store.save_optimizer_states(&folder.join(format!("{saves} states {}", store.rank())), true).unwrap();
        let mut seen = Vec::new();
        for (index, len) in LENS.iter().enumerate() {
            let out = Tensor::zeros(DType::F32, &[*len]);
            store.pull(key(index), from_ref(&out), 0).unwrap();
            seen.push(bytes_of(&out));
        }
        seen
    });
    for (index, bytes) in seen[0].iter().enumerate() {
        std::fs::write(folder.join(format!("{saves} {index}")), bytes).unwrap();
    }
    let states = |rank: usize| std::fs::read(folder.join(format!("{saves} states {rank}"))).unwrap();
    assert!((1..size).all(|rank| states(rank) == states(0)), "the ranks have saved different states");
    seen.into_iter().next().unwrap()
}

#[test]
fn states_are_one_file_that_any_number_of_ranks_goes_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let steps =
        [(None, "alone a"), (Some("alone a"), "alone b"), (Some("alone b"), "alone c"), (Some("alone c"), "alone d")];
    let values = steps.map(|(loads, saves)| stage(1, false, folder.path(), loads, saves));
    assert!(values.windows(2).all(|pair| pair[0] != pair[1]));
    let alone = |saves: &str| std::fs::read(folder.path().join(format!("alone {saves} states 0"))).unwrap();
    let mut loads = None;
    for (size, is_sharded, saves) in [(4, true, "a"), (2, true, "b"), (3, false, "c"), (5, true, "d")] {
        stage(size, is_sharded, folder.path(), loads, saves);
        let of = |name: String| std::fs::read(folder.path().join(name)).unwrap();
        for index in 0..LENS.len() {
            assert!(of(format!("{saves} {index}")) == of(format!("alone {saves} {index}")), "{saves} {index}");
        }
        assert!(of(format!("{saves} states 0")) == alone(saves), "{saves}");
        loads = Some(saves);
    }
}

#[test]
fn replicas_of_sharded_updates_are_compared_too_and_a_step_costs_no_control_message() {
    for check_replicas in [0, 2] {
        let config = Config { check_replicas, ..by(AlgorithmChoice::Auto) };
        let messages = ranks::workers(3, &config, |store| {
            set(store, "adam", true).unwrap();
            init(store, DType::F32);
            trained(store, DType::F32, Form::InPlace, 4);
            let messages: Vec<u64> = (4..12)
                .map(|step| {
                    for (index, len) in LENS.iter().enumerate() {
                        let gradient = gradient(store, DType::F32, *len, step);
                        store.push_pull(key(index), from_ref(&gradient), from_ref(&gradient), 0).unwrap();
                    }
                    store.wait_all().unwrap();
                    store.stats().control_messages
                })
                .collect();
            messages
        });
        messages.iter().for_each(|messages| assert_eq!(messages[4], messages[7], "{messages:?}"));
    }
}

#[test]
fn a_store_with_a_sharded_optimizer_takes_no_other_and_a_replicated_one_may_be_sharded() {
    let errors = ranks::workers(2, &by(AlgorithmChoice::Auto), |store| {
        set(store, "sgd,momentum=0.5,lr=0.5", false).unwrap();
        store.init("w", &Tensor::zeros(DType::F32, &[5])).unwrap();
        let push = || store.push("w", &[Tensor::full(DType::F32, &[5], 1.0)], 0).unwrap();
        push();
        set(store, "sgd,momentum=0.5,lr=0.5", true).unwrap();
        push();
        set(store, "sgd,momentum=0.5,lr=1", true).unwrap();
        push();
        let out = Tensor::zeros(DType::F32, &[5]);
        store.pull("w", from_ref(&out), 0).unwrap();
        // The momentum goes on: steps of 1, 1.5 and 2 + 0.75.
        assert_eq!(out.to_vec::<f32>().unwrap(), [-5.25; 5]);
        let error = set(store, "sgd", false).unwrap_err();
        push();
        store.wait_all().unwrap();
        error
    });
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, Error::InvalidArgument { .. }) && text.contains("sharded"), "{text}");
    }
}

/// Rank 0 pushes a key twice in steps that send no message, and then meets rank 1 in a process set. Rank 1
/// meets rank 0 first. Rank 0's second push waits for the first one, which waits for rank 1.
#[test]
fn a_divided_sum_that_waits_for_an_earlier_one_keeps_no_process_set_waiting() {
    // The ranks of a whole job do not create their process set themselves.
    for (size, is_first) in [(2, false), (3, false), (3, true)] {
        let config = by(AlgorithmChoice::Ordered);
        let messages = ranks::on_engines(size, &config, |engine| {
            let store = store_over(Kind::DistSyncMpi, Box::new(Allreduce::new(Arc::clone(engine))), &config);
            let comm = Communicator::over(Arc::clone(engine), &config).unwrap();
            // In this order the ranks make a process set even if they are all ranks of the job.
            let make = || comm.subset(&[1, 0]).unwrap();
            let made = (!is_first && comm.rank() < 2).then(make);
            let meet = || {
                let one = Tensor::full(DType::F32, &[1], 1.0);
                let sum = |pair: &Communicator| pair.allreduce(&one, Reduction::Sum, &CallOptions::default()).unwrap();
                let sum = made.as_ref().map_or_else(|| sum(&make()), sum);
                assert_eq!(sum.wait().unwrap().to_vec::<f32>().unwrap(), [2.0]);
            };
            set(&store, "test", true).unwrap();
            store.init("w", &Tensor::zeros(DType::F32, &[9])).unwrap();
            let (one, out) = (Tensor::full(DType::F32, &[9], 1.0), Tensor::zeros(DType::F32, &[9]));
            let step = || {
                store.push("w", from_ref(&one), 0).unwrap();
                store.pull("w", from_ref(&out), 0).unwrap();
            };
            (0..30).for_each(|_| step());
            let before = store.stats().control_messages;
            (0..8).for_each(|_| step());
            let messages = store.stats().control_messages - before;
            // No rank is more than one step ahead.
            (0..2).for_each(|_| step());
            for turn in 0..2 {
                if comm.rank() == 1 {
                    meet();
                }
                (0..2).for_each(|_| store.push("w", from_ref(&one), 0).unwrap());
                if comm.rank() == 0 {
                    meet();
                }
                store.pull("w", from_ref(&out), 0).unwrap();
                let steps = 40 + 2 * (turn + 1);
                assert_eq!(out.to_vec::<f32>().unwrap(), [(steps * size) as f32; 9], "{size} ranks, {is_first}");
            }
            messages
        });
        assert!(messages.iter().all(|messages| *messages == 0), "{messages:?}");
    }
}
