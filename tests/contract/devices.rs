//! Tensors in the memory of devices, for the kinds that work on them.

use std::any::Any;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use ringpull_base::{Buffer, DType, Element, Tensor, with_element};
use ringpull_device::{Devices, Loan, Memory, Slice, Stream, Work};
use ringpull_kernels::optim::{Optimizer, State};

use crate::world::{Promise, World, promises};

/// For kinds whose workers push in rounds, before an optimizer is set.
pub(crate) const SYNC: &[Promise] = promises![
    a_tensor_on_each_device_is_summed,
    tensors_on_devices_are_summed_in_place,
    tensors_may_be_anywhere,
    every_dtype_sums_on_devices,
    outputs_on_devices_follow_the_value,
    a_tensor_on_a_device_may_be_written_again_after_its_push,
    many_steps_on_devices_need_no_other_order,
    a_tensor_of_other_devices_is_an_error_and_changes_nothing,
    memory_of_another_owner_is_used_in_the_order_of_its_stream,
];

/// Uses memory that the store did not make, with a stream of its owner and without one.
#[allow(unsafe_code)]
fn memory_of_another_owner_is_used_in_the_order_of_its_stream(world: &World) {
    const LEN: usize = 1003;
    let (devices, bytes, limit) = (devices(world), LEN * DType::F32.size_bytes(), Duration::from_secs(60));
    let platform = devices.platform();
    for has_stream in [true, false] {
        let key = format!("lent {has_stream}");
        let (address, lender): (u64, Box<dyn Any + Send + Sync>) = if platform.name() == "sim" {
            let memory = Buffer::zeroed(bytes);
            (memory.bytes().as_ptr() as u64, Box::new(memory))
        } else {
            let memory = Memory::on(platform, 0, bytes).unwrap();
            (memory.address(), Box::new(memory))
        };
        let owners = Stream::on(platform, 0).unwrap();
        // SAFETY: the memory is the lender's, and nothing but the store and this function uses it.
        let loan = unsafe { Loan::new(address, bytes) };
        let stream = has_stream.then(|| owners.id());
        let tensor = devices.lent(0, (DType::F32, &[LEN]), &loan, stream, lender).unwrap();
        world.init(&key, DType::F32, &[LEN], 5.0);
        world.store.pull(key.as_str(), from_ref(&tensor), 0).unwrap();
        let copy = devices.copy_beside(&tensor).unwrap();
        world.store.push_pull(key.as_str(), &[tensor.clone(), copy.clone()], from_ref(&tensor), 0).unwrap();
        // The owner's next work runs after the store's.
        let array = devices.array(tensor.remote()).unwrap();
        let seen = Slice::all(&Memory::pinned(platform, bytes).unwrap());
        drop(tensor.read_anywhere().unwrap());
        let next = if has_stream { &*owners } else { array.stream() };
        platform.enqueue(next, &Work::copy(array.slice().clone(), seen.clone())).unwrap();
        devices.settle(&tensor).unwrap();
        owners.record().unwrap().synchronize(limit).unwrap();
        let sum = 10.0 * world.workers() as f32;
        assert_eq!(bytemuck::cast_slice::<u8, f32>(&seen.host_bytes().unwrap()), [sum; LEN], "{key}");
        assert_eq!(see(world, &copy), [5.0; LEN], "{key}");
    }
}

/// For kinds that update on devices.
pub(crate) const OPTIMIZED: &[Promise] = promises![updates_on_devices_give_the_hosts_bits];

/// For asynchronous kinds, with an optimizer set.
pub(crate) const ASYNC: &[Promise] = promises![pushes_from_devices_are_applied_once];

fn devices(world: &World) -> &Arc<Devices> {
    world.store.devices().expect("these promises are made by stores that work on devices")
}

fn on(world: &World, device: usize, tensor: &Tensor) -> Tensor {
    devices(world).upload(device, tensor).unwrap()
}

fn full(world: &World, device: usize, len: usize, value: f64) -> Tensor {
    on(world, device, &Tensor::full(DType::F32, &[len], value))
}

/// Adds a tensor on a device to the hash.
fn see(world: &World, tensor: &Tensor) -> Vec<f32> {
    world.see(&devices(world).download(tensor).unwrap())
}

/// Returns one tensor on each device, with 1, 2, ... times the worker's value.
fn one_each(world: &World, len: usize) -> (Vec<Tensor>, f64) {
    let count = devices(world).count();
    let tensors = (0..count).map(|device| full(world, device, len, (device + 1) as f64 * world.mine())).collect();
    (tensors, (count * (count + 1) / 2) as f64 * world.total())
}

fn a_tensor_on_each_device_is_summed(world: &World) {
    for (number, len) in [0, 1, 3, 16, 1001, (5 << 20) / 4 + 3].into_iter().enumerate() {
        let key = format!("each device {number}");
        world.vector(&key, len);
        let (values, sum) = one_each(world, len);
        world.store.push(key.as_str(), &values, 0).unwrap();
        assert!(world.pull_f32(&key, len).iter().all(|value| *value == sum as f32), "length {len}");
    }
}

fn tensors_on_devices_are_summed_in_place(world: &World) {
    for (number, len) in [2, 1003].into_iter().enumerate() {
        let key = format!("devices in place {number}");
        world.vector(&key, len);
        let (values, sum) = one_each(world, len);
        world.store.push_pull(key.as_str(), &values, &values, 0).unwrap();
        for value in &values {
            assert_eq!(see(world, value), vec![sum as f32; len]);
        }
    }
}

fn tensors_may_be_anywhere(world: &World) {
    world.vector("anywhere", 7);
    let last = devices(world).count() - 1;
    let host = Tensor::full(DType::F32, &[7], 100.0 * world.mine());
    let values = [full(world, last, 7, world.mine()), host, full(world, last, 7, 10.0 * world.mine())];
    let outs = [full(world, last, 7, 0.0), Tensor::zeros(DType::F32, &[7]), full(world, 0, 7, 0.0)];
    world.store.push_pull("anywhere", &values, &outs, 0).unwrap();
    let sum = vec![111.0 * world.total() as f32; 7];
    assert_eq!(
        (see(world, &outs[0]), world.see::<f32>(&outs[1]), see(world, &outs[2])),
        (sum.clone(), sum.clone(), sum)
    );
    assert_eq!(see_own(world, &values[0]), [world.mine() as f32; 7]);
}

/// Values that only this worker has are not hashed.
fn see_own(world: &World, tensor: &Tensor) -> Vec<f32> {
    devices(world).download(tensor).unwrap().to_vec().unwrap()
}

fn every_dtype_sums_on_devices(world: &World) {
    let count = devices(world).count();
    for dtype in DType::ALL {
        let key = format!("device {dtype}");
        world.init(&key, dtype, &[67], 0.0);
        with_element!(dtype, T => {
            let of = |scale: f64| -> Vec<T> {
                (0..67).map(|index| <T as Element>::from_f64(scale * f64::from(index % 3))).collect()
            };
            let host = Tensor::from_slice(&[67], &of(world.mine()));
            let values: Vec<Tensor> = (0..count).map(|device| on(world, device, &host)).collect();
            world.store.push(key.as_str(), &values, 0).unwrap();
            assert_eq!(world.pull::<T>(&key, &[67]), of(count as f64 * world.total()), "{dtype}");
        });
    }
}

fn outputs_on_devices_follow_the_value(world: &World) {
    world.init("device outs", DType::F32, &[5], 3.0);
    let count = devices(world).count();
    let outs: Vec<Tensor> = (0..count).rev().map(|device| full(world, device, 5, 0.0)).collect();
    world.store.pull("device outs", &outs, 0).unwrap();
    outs.iter().for_each(|out| assert_eq!(see(world, out), [3.0; 5]));
    let value = Tensor::full(DType::F32, &[5], world.mine());
    world.store.push_pull("device outs", &[value], &outs[..1], 0).unwrap();
    assert_eq!(see(world, &outs[0]), [world.total() as f32; 5]);
    let first = full(world, 0, 5, 0.0);
    world
        .store
        .broadcast("device broadcast", &full(world, 0, 5, 9.0 + world.rank() as f64), from_ref(&first), 0)
        .unwrap();
    assert_eq!(see(world, &first), [9.0; 5]);
}

fn a_tensor_on_a_device_may_be_written_again_after_its_push(world: &World) {
    world.vector("device again", 300);
    let value = full(world, 0, 300, world.mine());
    world.store.push("device again", from_ref(&value), 0).unwrap();
    devices(world).overwrite(&value, &Tensor::full(DType::F32, &[300], -1000.0)).unwrap();
    assert_eq!(world.pull_f32("device again", 300), [world.total() as f32; 300]);
}

fn many_steps_on_devices_need_no_other_order(world: &World) {
    let keys: Vec<String> = (0..6).map(|number| format!("device step {number}")).collect();
    let len = |number: usize| number * 97 + 1;
    let tensors: Vec<Vec<Tensor>> = keys
        .iter()
        .enumerate()
        .map(|(number, key)| {
            world.vector(key, len(number));
            one_each(world, len(number)).0
        })
        .collect();
    let (_, once) = one_each(world, 1);
    let (count, workers) = (devices(world).count() as f64, world.workers() as f64);
    let mut sum = once;
    for _ in 0..3 {
        for (key, values) in keys.iter().zip(&tensors) {
            world.store.push_pull(key.as_str(), values, values, 0).unwrap();
        }
        for values in &tensors {
            assert!(see(world, &values[0]).iter().all(|value| *value == sum as f32));
        }
        sum *= count * workers;
    }
}

fn a_tensor_of_other_devices_is_an_error_and_changes_nothing(world: &World) {
    world.init("other devices", DType::F32, &[2], 4.0);
    let other = Devices::simulated(1).unwrap();
    let stranger = other.upload(0, &Tensor::full(DType::F32, &[2], 1.0)).unwrap();
    for outcome in [
        world.store.push("other devices", from_ref(&stranger), 0),
        world.store.pull("other devices", from_ref(&stranger), 0),
    ] {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("sim:0") && text.contains("hint:"), "{text}");
    }
    // The error of a store in host memory names the tensor's device.
    let local = ringpull::create("local");
    if let Ok(local) = local {
        local.init("w", &Tensor::zeros(DType::F32, &[2])).unwrap();
        let text = local.push("w", from_ref(&stranger), 0).unwrap_err().to_string();
        assert!(text.contains("memory of sim:0") && text.contains("hint:"), "{text}");
    }
    assert_eq!(world.pull_f32("other devices", 2), [4.0; 2]);
}

fn updates_on_devices_give_the_hosts_bits(world: &World) {
    let len = 1003;
    let rules = [
        "sgd,lr=0.1,wd=0.01",
        "sgd,lr=0.1,momentum=0.9",
        "nag,lr=0.1,momentum=0.9,clip_gradient=3",
        "adam,lr=0.01,wd=0.1",
    ];
    for (number, rule) in rules.into_iter().enumerate() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let mastered = !matches!(dtype, DType::F32 | DType::F64);
            let optimizer: Optimizer = format!("{rule},multi_precision={}", u8::from(mastered)).parse().unwrap();
            world.store.set_optimizer(&optimizer).unwrap();
            let key = format!("host bits {number} {dtype}");
            world.init(&key, dtype, &[len], 1.0);
            with_element!(dtype, T => {
                let of = |scale: f64, round: usize| -> Vec<T> {
                    (0..len).map(|index| <T as Element>::from_f64(scale * ((index + round) % 5) as f64)).collect()
                };
                let (mut weight, mut state) = (vec![<T as Element>::from_f64(1.0); len], State::default());
                for round in 0..3 {
                    let values = [on(world, 0, &Tensor::from_slice(&[len], &of(world.mine(), round)))];
                    world.store.push(key.as_str(), &values, 0).unwrap();
                    let (sum, bytes) = (of(world.total(), round), bytemuck::cast_slice_mut(&mut weight));
                    optimizer.apply(&mut state, dtype, bytes, bytemuck::cast_slice(&sum)).unwrap();
                    assert!(world.pull::<T>(&key, &[len]) == weight, "{rule} on {dtype} in round {round}");
                }
            });
        }
    }
}

fn pushes_from_devices_are_applied_once(world: &World) {
    world.store.set_optimizer(&"test".parse().unwrap()).unwrap();
    world.vector("device async", 9);
    world.store.barrier().unwrap();
    let (values, sum) = one_each(world, 9);
    world.store.push("device async", &values, 0).unwrap();
    world.store.wait_all().unwrap();
    world.store.barrier().unwrap();
    assert_eq!(world.pull_f32("device async", 9), [sum as f32; 9]);
    let out = full(world, 0, 9, 0.0);
    world.store.pull("device async", from_ref(&out), 0).unwrap();
    assert_eq!(see(world, &out), [sum as f32; 9]);
    world.store.barrier().unwrap();
}
