//! Compares compressed gradients with a second implementation of MXNet's arithmetic, element by element.

use std::slice::from_ref;

use half::{bf16, f16};

use ringpull_base::{DType, Tensor};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::rows::sparse;
use crate::world::{Promise, World, promises};

/// For kinds whose workers push in rounds. With allreduce and with servers, workers see the same bits in
/// these promises.
pub(crate) const SYNC: &[Promise] = promises![
    two_bits_give_mxnets_own_numbers,
    integer_codecs_give_the_models_bits_over_several_pushes,
    the_largest_elements_give_the_models_bits_over_several_pushes,
    halves_give_the_models_bits_over_several_pushes,
    a_key_of_many_segments_is_compressed_as_a_short_one_is,
    several_values_are_summed_before_they_are_compressed,
    only_f32_gradients_are_compressed,
    compression_can_be_switched_off,
    an_optimizer_is_given_the_compressed_sum,
    loaded_states_begin_with_nothing_kept,
];

/// For `dist_async`.
pub(crate) const ASYNC: &[Promise] = promises![each_push_is_decoded_and_applied];

fn compress(world: &World, text: &str) -> Compression {
    let compression = text.parse().unwrap();
    world.store.set_gradient_compression(&compression).unwrap();
    compression
}

/// Returns the gradient of `rank` in `round`.
fn gradient(rank: usize, round: usize, len: usize) -> Vec<f32> {
    (0..len).map(|element| ((element * 31 + rank * 17 + round * 7) % 23) as f32 / 8.0 - 1.3).collect()
}

/// One worker's residuals and codes.
struct Sender {
    kept: Vec<f32>,
}

impl Sender {
    /// Returns the code that `say` gives for each element, and keeps the rest, which is the sum less the
    /// code.
    fn say(&mut self, gradient: &[f32], say: impl Fn(f32) -> f32) -> Vec<f32> {
        let pairs = self.kept.iter_mut().zip(gradient);
        pairs
            .map(|(kept, gradient)| {
                *kept += gradient;
                let said = say(*kept);
                *kept -= said;
                said
            })
            .collect()
    }

    fn say_largest(&mut self, gradient: &[f32], count: usize) -> Vec<f32> {
        self.kept.iter_mut().zip(gradient).for_each(|(kept, gradient)| *kept += gradient);
        let mut order: Vec<usize> = (0..gradient.len()).collect();
        order.sort_by(|a, b| self.kept[*b].abs().total_cmp(&self.kept[*a].abs()).then(a.cmp(b)));
        let mut said = vec![0.0; gradient.len()];
        order[..count].iter().for_each(|index| said[*index] = std::mem::take(&mut self.kept[*index]));
        said
    }
}

/// The model's sum of a round.
type Round = Box<dyn FnMut(usize) -> Vec<f32>>;

fn model(world: &World, text: &str, len: usize) -> Round {
    let (workers, kind) = (world.workers(), world.store.kind());
    // Dense keys are not on servers if the workers are ranks.
    let has_servers = kind.has_servers() && !kind.has_ranks();
    let mut senders: Vec<Sender> = (0..workers).map(|_| Sender { kept: vec![0.0; len] }).collect();
    let (name, parameter) = text.split_once(':').unwrap_or((text, "0.5"));
    let (name, parameter) = (name.to_owned(), parameter.parse::<f32>().unwrap());
    Box::new(move |round| {
        let said = senders.iter_mut().enumerate().map(|(rank, sender)| {
            let gradient = gradient(rank, round, len);
            match name.as_str() {
                "2bit" => sender.say(&gradient, |sum| {
                    if sum >= parameter {
                        parameter
                    } else if sum <= -parameter {
                        -parameter
                    } else {
                        0.0
                    }
                }),
                "1bit" => sender.say(&gradient, |sum| if sum > parameter { 1.0 } else { -1.0 }),
                "fp16" => sender.say(&gradient, |sum| f16::from_f32(sum).to_f32()),
                "bf16" => sender.say(&gradient, |sum| bf16::from_f32(sum).to_f32()),
                _ => sender.say_largest(&gradient, (f64::from(parameter) * len as f64).ceil() as usize),
            }
        });
        let said: Vec<Vec<f32>> = said.collect();
        let sum = |element: usize| match name.as_str() {
            // A multiple of the threshold, rounded once.
            "2bit" => said.iter().map(|said| said[element] / parameter).sum::<f32>() * parameter,
            "fp16" if !has_servers => f16::from_f32(said.iter().fold(0.0, |sum, said| sum + said[element])).to_f32(),
            "bf16" if !has_servers => bf16::from_f32(said.iter().fold(0.0, |sum, said| sum + said[element])).to_f32(),
            _ => said.iter().fold(0.0, |sum, said| sum + said[element]),
        };
        (0..len).map(sum).collect()
    })
}

/// Pushes four times, each time by another way to push and pull, and compares the results with the model.
fn check(world: &World, text: &str, len: usize, is_seen: bool) {
    compress(world, text);
    let key = format!("{text} of {len}");
    world.vector(&key, len);
    let mut model = model(world, text, len);
    for round in 0..4 {
        let value = Tensor::from_slice(&[len], &gradient(world.rank(), round, len));
        let out = Tensor::full(DType::F32, &[len], 7.0);
        let result = match round {
            0 => {
                world.store.push(key.as_str(), &[value], 0).unwrap();
                world.store.pull(key.as_str(), from_ref(&out), 0).unwrap();
                out
            }
            1 => {
                world.store.push_pull(key.as_str(), from_ref(&value), from_ref(&value), 0).unwrap();
                value
            }
            _ => {
                world.store.push_pull(key.as_str(), &[value], from_ref(&out), 0).unwrap();
                out
            }
        };
        let got = if is_seen { world.see::<f32>(&result) } else { result.to_vec().unwrap() };
        let expected = model(round);
        let wrong = got.iter().zip(&expected).position(|(got, expected)| got != expected);
        if let Some(at) = wrong {
            panic!("{key}, round {round}: element {at} is {} where {} is right", got[at], expected[at]);
        }
    }
}

fn two_bits_give_mxnets_own_numbers(world: &World) {
    compress(world, "{'type': '2bit', 'threshold': 0.5}");
    world.vector("mxnet's numbers", 3);
    let half = world.workers() as f32 / 2.0;
    world.push("mxnet's numbers", &[0.3, 0.6, -0.9]);
    assert_eq!(world.pull_f32("mxnet's numbers", 3), [0.0, half, -half]);
    world.push("mxnet's numbers", &[0.3, 0.6, -0.9]);
    assert_eq!(world.pull_f32("mxnet's numbers", 3), [half, half, -half]);
}

fn integer_codecs_give_the_models_bits_over_several_pushes(world: &World) {
    for text in ["2bit:0.5", "2bit:0.1", "2bit:1.3", "1bit:0.5", "1bit:0"] {
        for len in [1, 33, 1003] {
            check(world, text, len, true);
        }
    }
}

fn the_largest_elements_give_the_models_bits_over_several_pushes(world: &World) {
    for len in [1, 33, 5003] {
        check(world, "topk:0.125", len, true);
    }
}

fn halves_give_the_models_bits_over_several_pushes(world: &World) {
    for text in ["fp16", "bf16"] {
        // The values are not hashed, because servers do not round the sum.
        [1, 33, 1003].iter().for_each(|len| check(world, text, *len, false));
    }
}

fn a_key_of_many_segments_is_compressed_as_a_short_one_is(world: &World) {
    check(world, "2bit:0.5", 200_003, true);
    check(world, "1bit:0.25", 200_003, true);
}

fn several_values_are_summed_before_they_are_compressed(world: &World) {
    compress(world, "2bit:0.5");
    world.vector("several", 2);
    let value = Tensor::from_slice(&[2], &[0.25f32, -0.125]);
    world.store.push("several", &[value.clone(), value], 0).unwrap();
    assert_eq!(world.pull_f32("several", 2), [world.workers() as f32 / 2.0, 0.0]);
}

fn only_f32_gradients_are_compressed(world: &World) {
    compress(world, "2bit:0.5");
    world.init("doubles", DType::F64, &[2], 3.0);
    let error = world.store.push("doubles", &[Tensor::full(DType::F64, &[2], 0.25)], 0).unwrap_err().to_string();
    for part in ["only supported for float32", "f64", "\"doubles\"", &format!("rank {}", world.rank()), "hint:"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(world.pull::<f64>("doubles", &[2]), [3.0; 2], "nothing was changed");
    world.init("rows beside codes", DType::F32, &[3, 2], 0.0);
    world.store.push_rows("rows beside codes", &[sparse([3, 2], &[(1, 0.375)])], 0).unwrap();
    let row = 0.375 * world.workers() as f32;
    assert_eq!(world.pull::<f32>("rows beside codes", &[3, 2]), [0.0, 0.0, row, row, 0.0, 0.0]);
}

fn compression_can_be_switched_off(world: &World) {
    compress(world, "2bit:0.5");
    world.vector("switched", 2);
    for (push, each) in [([0.75f32, 0.25], [0.5f32, 0.0]), ([0.0, 0.375], [0.0, 0.375]), ([0.0, 0.375], [0.0, 0.0])] {
        world.push("switched", &push);
        let sum = each.map(|each| each * world.workers() as f32);
        assert_eq!(world.pull_f32("switched", 2), sum);
        if each[1] == 0.0 {
            // The residual of the first push is dropped.
            world.store.unset_gradient_compression().unwrap();
        } else {
            world.init("doubles after codes", DType::F64, &[2], 3.0);
            compress(world, "2bit:0.5");
        }
    }
}

fn an_optimizer_is_given_the_compressed_sum(world: &World) {
    compress(world, "2bit:0.5");
    world.init("weights", DType::F32, &[3], 8.0);
    world.store.set_optimizer(&Optimizer::sgd(1.0)).unwrap();
    let (value, out) = (Tensor::from_slice(&[3], &[0.75f32, -0.25, -2.0]), Tensor::zeros(DType::F32, &[3]));
    let half = world.workers() as f32 / 2.0;
    for expected in [[8.0 - half, 8.0, 8.0 + half], [8.0 - 2.0 * half, 8.0 + half, 8.0 + 2.0 * half]] {
        world.store.push_pull("weights", from_ref(&value), from_ref(&out), 0).unwrap();
        assert_eq!(world.see::<f32>(&out), expected);
    }
    assert_eq!(value.to_vec::<f32>().unwrap(), [0.75, -0.25, -2.0], "the gradient is only read");
}

fn loaded_states_begin_with_nothing_kept(world: &World) {
    compress(world, "2bit:0.5");
    world.store.set_optimizer(&Optimizer::sgd(1.0)).unwrap();
    world.vector("kept", 1);
    world.push("kept", &[0.375]);
    let path = world.folder.join(format!("states of compressed {}", world.rank()));
    world.store.save_optimizer_states(&path, true).unwrap();
    world.store.load_optimizer_states(&path).unwrap();
    world.push("kept", &[0.375]);
    assert_eq!(world.pull_f32("kept", 1), [0.0], "twice 0.375 is beyond the threshold, and each alone is not");
    world.push("kept", &[0.375]);
    assert_eq!(world.pull_f32("kept", 1), [-(world.workers() as f32) / 2.0]);
}

fn each_push_is_decoded_and_applied(world: &World) {
    compress(world, "2bit:0.5");
    world.store.set_optimizer(&"test".parse().unwrap()).unwrap();
    world.vector("async", 3);
    for _ in 0..2 {
        world.push("async", &[0.3, 0.6, -0.9]);
    }
    world.store.wait_all().unwrap();
    world.store.barrier().unwrap();
    let half = world.workers() as f32 / 2.0;
    assert_eq!(world.pull_f32("async", 3), [half, 2.0 * half, -2.0 * half]);
}
