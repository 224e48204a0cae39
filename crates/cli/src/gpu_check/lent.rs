//! Memory of other owners: a tensor lent to a store.
#![allow(unsafe_code)]

use std::any::Any;
use std::slice::from_ref;
use std::sync::Arc;

use ringpull::internal::{OnDevices, store_over};
use ringpull_base::config::Config;
use ringpull_base::{Buffer, DType, Kind, Result, Tensor};
use ringpull_device::{Devices, Loan, Memory, Slice, Stream, Work};

use super::stores::expect;
use super::{Check, FIRST, LIMIT, check};

const LEN: usize = 1003;

/// A tensor in memory that the store did not make, on a stream of its owner and without one.
pub(super) fn checks(devices: &Arc<Devices>) -> Vec<Check> {
    [("of its owner", true), ("of ours", false)]
        .map(|(whose, named)| check(format!("a lent tensor on a stream {whose}"), lend(devices, named)))
        .into()
}

fn lend(devices: &Arc<Devices>, is_named: bool) -> Result<String> {
    let (platform, bytes) = (devices.platform(), LEN * DType::F32.size_bytes());
    let lent: (u64, Box<dyn Any + Send + Sync>) = if platform.name() == "sim" {
        let memory = Buffer::zeroed(bytes);
        (memory.bytes().as_ptr() as u64, Box::new(memory))
    } else {
        let memory = Memory::on(platform, FIRST, bytes)?;
        (memory.address(), Box::new(memory))
    };
    let (address, lender) = lent;
    let owners = Stream::on(platform, FIRST)?;
    // SAFETY: the memory is the lender's, and nothing but the store and this function uses it.
    let loan = unsafe { Loan::new(address, bytes) };
    let stream = is_named.then(|| owners.id());
    let tensor = devices.lent(FIRST, (DType::F32, &[LEN]), &loan, stream, lender)?;
    let backend = OnDevices::alone(Arc::clone(devices), LIMIT);
    let store = store_over(Kind::Device, Box::new(backend), &Config::default());
    store.init("w", &Tensor::full(DType::F32, &[LEN], 5.0))?;
    store.pull("w", from_ref(&tensor), 0)?;
    let copy = devices.copy_beside(&tensor)?;
    store.push_pull("w", &[tensor.clone(), copy.clone()], from_ref(&tensor), 0)?;
    // The owner's next work runs after the store's.
    let array = devices.array(tensor.remote())?;
    let seen = Slice::all(&Memory::pinned(platform, bytes)?);
    drop(tensor.read_anywhere()?);
    platform
        .enqueue(if is_named { &owners } else { array.stream() }, &Work::copy(array.slice().clone(), seen.clone()))?;
    devices.settle(&tensor)?;
    owners.record()?.synchronize(LIMIT)?;
    expect("the owner", bytemuck::cast_slice(&seen.host_bytes()?), 10.0)?;
    expect("a copy", &devices.download(&copy)?.to_vec::<f32>()?, 5.0)?;
    Ok("used where it is, in the order of the stream".to_owned())
}
