//! Dense values: `init`, `push`, `pull`, `push_pull`, `broadcast`, `barrier`.

use std::slice::from_ref;

use ringpull::Capability;
use ringpull_base::{DType, Element, Error, Tensor, with_element};

use crate::world::{Promise, World, promises};

/// For kinds whose workers push in rounds, before an optimizer is set.
pub(crate) const SYNC: &[Promise] = promises![
    a_push_without_an_optimizer_overwrites_with_the_sum_over_workers,
    a_list_of_values_is_summed,
    every_out_of_a_list_gets_the_value,
    pull_sees_every_push_this_worker_made,
    push_returns_before_the_peers_have_pushed,
    push_pull_returns_before_the_peers_have_pushed,
    push_pull_reduces_in_place,
    push_pull_sums_a_list_into_its_own_tensors,
    push_pull_leaves_the_value_and_fills_the_outputs,
    a_pushed_tensor_may_be_written_again_at_once,
    keys_may_be_pushed_in_any_order,
    priorities_change_no_result,
    every_dtype_sums,
    every_length_sums,
    many_keys_of_many_sizes_in_one_step,
    nan_and_inf_pass_through,
    values_are_weighted_by_their_workers_share,
    stats_count_pushes_and_pulls,
];

/// For every kind, with and without an optimizer: nothing here is pushed.
pub(crate) const ANY: &[Promise] = promises![
    ranks_are_numbered,
    rank_0s_first_value_wins,
    keys_may_be_initialised_in_any_order,
    broadcast_gives_every_rank_rank_0s_value,
    every_dtype_and_shape_can_be_initialised_and_pulled,
    an_empty_list_is_a_no_op,
    a_barrier_waits_for_every_worker,
];

fn ranks_are_numbered(world: &World) {
    assert!(world.rank() < world.workers());
    assert!(world.store.is_capable(Capability::Optimizer));
    world.announce("rank");
    world.store.barrier().unwrap();
    for rank in 0..world.workers() {
        assert!(world.has_announced("rank", rank), "nobody is rank {rank}");
    }
}

fn rank_0s_first_value_wins(world: &World) {
    world.init("first value", DType::F32, &[3], 10.0 + world.rank() as f64);
    assert_eq!(world.pull_f32("first value", 3), [10.0; 3]);
}

fn keys_may_be_initialised_in_any_order(world: &World) {
    let keys: Vec<String> = (0..7).map(|number| format!("init order {number}")).collect();
    for step in 0..7 {
        let number = (step + 3 * world.rank()) % 7;
        world.init(&keys[number], DType::F32, &[number + 1], number as f64);
    }
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(world.pull_f32(key, number + 1), vec![number as f32; number + 1]);
    }
}

fn broadcast_gives_every_rank_rank_0s_value(world: &World) {
    let outs = [Tensor::zeros(DType::F32, &[2]), Tensor::zeros(DType::F32, &[2])];
    let value = Tensor::full(DType::F32, &[2], 5.0 + world.rank() as f64);
    world.store.broadcast("broadcast", &value, &outs, 0).unwrap();
    for out in &outs {
        assert_eq!(world.see::<f32>(out), [5.0; 2]);
    }
}

fn every_dtype_and_shape_can_be_initialised_and_pulled(world: &World) {
    for dtype in DType::ALL {
        for (index, shape) in [&[] as &[usize], &[0], &[3, 0, 2], &[1], &[2, 3, 5]].into_iter().enumerate() {
            let key = format!("shape {dtype} {index}");
            world.init(&key, dtype, shape, 3.0);
            let len: usize = shape.iter().product();
            with_element!(dtype, T => {
                assert_eq!(world.pull::<T>(&key, shape), vec![<T as Element>::from_f64(3.0); len]);
            });
        }
    }
}

fn an_empty_list_is_a_no_op(world: &World) {
    world.init("empty list", DType::F32, &[2], 4.0);
    let out = Tensor::full(DType::F32, &[2], 9.0);
    let before = world.store.stats();
    world.store.push("empty list", &[], 0).unwrap();
    world.store.push_rows("empty list", &[], 0).unwrap();
    world.store.push_pull("empty list", &[], &[], 0).unwrap();
    world.store.pull("empty list", &[], 0).unwrap();
    let after = world.store.stats();
    assert_eq!((before.pushes, before.pulls), (after.pushes, after.pulls));
    assert_eq!(out.to_vec::<f32>().unwrap(), [9.0; 2]);
    assert_eq!(world.pull_f32("empty list", 2), [4.0; 2]);
}

fn a_barrier_waits_for_every_worker(world: &World) {
    for round in 0..3 {
        let event = format!("barrier {round}");
        world.announce(&event);
        world.store.barrier().unwrap();
        for rank in 0..world.workers() {
            assert!(world.has_announced(&event, rank), "rank {rank} had not called barrier {round}");
        }
    }
}

fn a_push_without_an_optimizer_overwrites_with_the_sum_over_workers(world: &World) {
    world.init("overwrite", DType::F32, &[3], 100.0);
    for round in 1..4u8 {
        let value = f32::from(round) * world.mine() as f32;
        world.push("overwrite", &[value, -value, 0.0]);
        let sum = f32::from(round) * world.total() as f32;
        assert_eq!(world.pull_f32("overwrite", 3), [sum, -sum, 0.0]);
    }
}

fn a_list_of_values_is_summed(world: &World) {
    world.vector("list", 2);
    let values = [1.0, 2.0, 4.0].map(|factor| Tensor::full(DType::F32, &[2], factor * world.mine()));
    world.store.push("list", &values, 0).unwrap();
    assert_eq!(world.pull_f32("list", 2), [7.0 * world.total() as f32; 2]);
}

fn every_out_of_a_list_gets_the_value(world: &World) {
    world.vector("outs", 2);
    world.push("outs", &[world.mine() as f32; 2]);
    let outs: Vec<Tensor> = (0..3).map(|_| Tensor::zeros(DType::F32, &[2])).collect();
    world.store.pull("outs", &outs, 0).unwrap();
    for out in &outs {
        assert_eq!(world.see::<f32>(out), [world.total() as f32; 2]);
    }
}

fn pull_sees_every_push_this_worker_made(world: &World) {
    world.vector("every push", 1);
    for round in 1..6u8 {
        world.push("every push", &[f32::from(round) * world.mine() as f32]);
    }
    assert_eq!(world.pull_f32("every push", 1), [5.0 * world.total() as f32]);
}

fn push_returns_before_the_peers_have_pushed(world: &World) {
    world.vector("push returns", 2);
    if world.rank() > 0 {
        world.wait_for("pushed", 0);
    }
    world.push("push returns", &[world.mine() as f32; 2]);
    world.announce("pushed");
    assert_eq!(world.pull_f32("push returns", 2), [world.total() as f32; 2]);
}

fn push_pull_returns_before_the_peers_have_pushed(world: &World) {
    world.vector("push_pull returns", 1);
    let last = world.workers() - 1;
    if world.rank() < last {
        world.wait_for("push_pulled", last);
    }
    let out = Tensor::zeros(DType::F32, &[1]);
    let value = Tensor::full(DType::F32, &[1], world.mine());
    world.store.push_pull("push_pull returns", &[value], std::slice::from_ref(&out), 0).unwrap();
    world.announce("push_pulled");
    assert_eq!(world.see::<f32>(&out), [world.total() as f32]);
}

fn push_pull_reduces_in_place(world: &World) {
    world.vector("in place", 5);
    let tensor = Tensor::full(DType::F32, &[5], world.mine());
    for round in 0..3 {
        world.store.push_pull("in place", from_ref(&tensor), from_ref(&tensor), 0).unwrap();
        let sum = world.total() * (world.workers() as f64).powi(round);
        assert_eq!(world.see::<f32>(&tensor), [sum as f32; 5]);
    }
}

fn push_pull_sums_a_list_into_its_own_tensors(world: &World) {
    world.vector("list in place", 2);
    let tensors = [1.0, 10.0].map(|factor| Tensor::full(DType::F32, &[2], factor * world.mine()));
    world.store.push_pull("list in place", &tensors, &tensors, 0).unwrap();
    for tensor in &tensors {
        assert_eq!(world.see::<f32>(tensor), [11.0 * world.total() as f32; 2]);
    }
}

fn push_pull_leaves_the_value_and_fills_the_outputs(world: &World) {
    world.vector("apart", 3);
    let value = Tensor::full(DType::F32, &[3], world.mine());
    let outs = [Tensor::zeros(DType::F32, &[3]), Tensor::zeros(DType::F32, &[3])];
    world.store.push_pull("apart", from_ref(&value), &outs, 0).unwrap();
    for out in &outs {
        assert_eq!(world.see::<f32>(out), [world.total() as f32; 3]);
    }
    assert_eq!(value.to_vec::<f32>().unwrap(), [world.mine() as f32; 3]);
    assert_eq!(world.pull_f32("apart", 3), [world.total() as f32; 3]);
}

fn values_are_weighted_by_their_workers_share(world: &World) {
    // Worker 0 has half of the others' share, and worker 1 gets the other half in addition, so the mean
    // weight is 1.
    let weights: Vec<f64> = (0..world.workers())
        .map(|worker| match (worker, world.workers()) {
            (0, 2..) => 0.5,
            (1, _) => 1.5,
            _ => 1.0,
        })
        .collect();
    world.vector("weighted", 3);
    world.init("counted", DType::I32, &[2], 0.0);
    if let Err(error) = world.store.set_shares(&weights) {
        assert!(matches!(error, Error::Unsupported { .. }) && world.store.kind().name() != "local", "{error}");
        return;
    }
    let sum: f64 = weights.iter().enumerate().map(|(worker, weight)| (worker + 1) as f64 * weight).sum();
    let own = || Tensor::full(DType::F32, &[3], (world.rank() + 1) as f64);
    let (value, in_place, out) = (own(), own(), Tensor::zeros(DType::F32, &[3]));
    world.store.push("weighted", from_ref(&value), 0).unwrap();
    assert_eq!(world.pull_f32("weighted", 3), [sum as f32; 3]);
    world.store.push_pull("weighted", from_ref(&in_place), from_ref(&in_place), 0).unwrap();
    assert_eq!(world.see::<f32>(&in_place), [sum as f32; 3]);
    world.store.push_pull("weighted", &[value.clone(), own()], from_ref(&out), 0).unwrap();
    assert_eq!(world.see::<f32>(&out), [2.0 * sum as f32; 3]);
    assert_eq!(value.to_vec::<f32>().unwrap(), [(world.rank() + 1) as f32; 3], "a value is not written");
    let count = Tensor::full(DType::I32, &[2], world.mine());
    world.store.push("counted", from_ref(&count), 0).unwrap();
    assert_eq!(world.pull::<i32>("counted", &[2]), [world.total() as i32; 2], "integers are not weighted");
    assert!(world.store.set_shares(&[1.0; 99]).is_err() && world.store.set_shares(&vec![-1.0; weights.len()]).is_err());
    world.store.set_shares(&vec![2.0; weights.len()]).unwrap();
    world.store.push("weighted", from_ref(&value), 0).unwrap();
    assert_eq!(world.pull_f32("weighted", 3), [(1..=world.workers()).sum::<usize>() as f32; 3]);
}

fn a_pushed_tensor_may_be_written_again_at_once(world: &World) {
    world.vector("written again", 4);
    let value = Tensor::full(DType::F32, &[4], world.mine());
    world.store.push("written again", from_ref(&value), 0).unwrap();
    world.announce("written");
    value.write().as_mut_slice::<f32>().fill(-1000.0);
    assert_eq!(world.pull_f32("written again", 4), [world.total() as f32; 4]);
}

fn keys_may_be_pushed_in_any_order(world: &World) {
    let keys: Vec<String> = (0..5).map(|number| format!("push order {number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        world.vector(key, 10 * number + 1);
    }
    for round in 0..2 {
        for step in 0..5 {
            let number = (step + 2 * world.rank() + round) % 5;
            world.push(&keys[number], &vec![(number + round) as f32 * world.mine() as f32; 10 * number + 1]);
        }
        for (number, key) in keys.iter().enumerate() {
            let sum = (number + round) as f32 * world.total() as f32;
            assert_eq!(world.pull_f32(key, 10 * number + 1), vec![sum; 10 * number + 1]);
        }
    }
}

fn priorities_change_no_result(world: &World) {
    let outs: Vec<Tensor> = (0..6).map(|number| Tensor::zeros(DType::F32, &[number + 1])).collect();
    for (number, out) in outs.iter().enumerate() {
        world.vector(&format!("priority {number}"), out.len());
    }
    for (number, out) in outs.iter().enumerate() {
        let value = Tensor::full(DType::F32, out.shape(), world.mine() * number as f64);
        let priority = [i32::MAX, -1, 0, i32::MIN, 5, -3][number];
        world.store.push_pull(format!("priority {number}"), &[value], from_ref(out), priority).unwrap();
    }
    for (number, out) in outs.iter().enumerate() {
        assert_eq!(world.see::<f32>(out), vec![(number as f64 * world.total()) as f32; number + 1]);
    }
}

fn every_dtype_sums(world: &World) {
    for dtype in DType::ALL {
        let key = format!("dtype {dtype}");
        world.init(&key, dtype, &[67], 0.0);
        with_element!(dtype, T => {
            let of = |scale: f64| -> Vec<T> {
                (0..67).map(|index| <T as Element>::from_f64(scale * f64::from(index % 7))).collect()
            };
            world.store.push(key.as_str(), &[Tensor::from_slice(&[67], &of(world.mine()))], 0).unwrap();
            assert_eq!(world.pull::<T>(&key, &[67]), of(world.total()), "{dtype}");
        });
    }
}

fn every_length_sums(world: &World) {
    let workers = world.workers();
    // The last length gives several segments and shards, and is no multiple of anything.
    let lengths = [0, 1, workers - 1, workers, workers + 1, 2 * workers + 1, 1001, (3 << 20) / 4 + 1];
    for (number, len) in lengths.into_iter().enumerate() {
        let key = format!("length {number}");
        world.vector(&key, len);
        let of = |scale: f64| (0..len).map(|index| (scale * (index % 13) as f64) as f32).collect::<Vec<_>>();
        world.push(&key, &of(world.mine()));
        assert!(world.pull_f32(&key, len) == of(world.total()), "length {len}");
    }
    world.init("length scalar", DType::F64, &[], 0.0);
    world.store.push("length scalar", &[Tensor::full(DType::F64, &[], world.mine())], 0).unwrap();
    assert_eq!(world.pull::<f64>("length scalar", &[]), [world.total()]);
}

fn many_keys_of_many_sizes_in_one_step(world: &World) {
    let lengths: Vec<usize> = (0..60).map(|number| (number * number * 37) % 5000).collect();
    let key = |number: usize| format!("step {number}");
    for (number, len) in lengths.iter().enumerate() {
        world.vector(&key(number), *len);
    }
    for round in 1..4 {
        let tensors: Vec<Tensor> =
            lengths.iter().map(|len| Tensor::full(DType::F32, &[*len], world.mine() * f64::from(round))).collect();
        for (number, tensor) in tensors.iter().enumerate().rev() {
            world.store.push_pull(key(number), from_ref(tensor), from_ref(tensor), -(number as i32)).unwrap();
        }
        for (number, tensor) in tensors.iter().enumerate() {
            let sum = (world.total() * f64::from(round)) as f32;
            assert!(world.see::<f32>(tensor).iter().all(|value| *value == sum), "key {number} in round {round}");
        }
    }
    world.store.wait_all().unwrap();
}

fn nan_and_inf_pass_through(world: &World) {
    world.vector("not finite", 3);
    let special = if world.rank() == 0 { [f32::NAN, f32::INFINITY, 1.0] } else { [1.0; 3] };
    world.push("not finite", &special);
    let out = Tensor::zeros(DType::F32, &[3]);
    world.store.pull("not finite", std::slice::from_ref(&out), 0).unwrap();
    // The values are not hashed, because the bits of a NaN depend on the processor.
    let values = out.to_vec::<f32>().unwrap();
    assert!(values[0].is_nan() && values[1] == f32::INFINITY && values[2] == world.workers() as f32, "{values:?}");
}

fn stats_count_pushes_and_pulls(world: &World) {
    world.vector("stats", 1000);
    let before = world.store.stats();
    let value = Tensor::full(DType::F32, &[1000], world.mine());
    world.store.push("stats", &[value.clone(), value.clone()], 0).unwrap();
    world.store.push_pull("stats", from_ref(&value), from_ref(&value), 0).unwrap();
    assert_eq!(world.pull_f32("stats", 1000), [world.total() as f32; 1000]);
    let after = world.store.stats();
    assert_eq!((after.pushes - before.pushes, after.pulls - before.pulls), (2, 2));
    if world.workers() > 1 {
        assert!(after.sent_bytes > before.sent_bytes && after.received_bytes > before.received_bytes, "{after:?}");
    }
}
