//! Allreduce of compressed gradients in device memory, over ranks that reach each other through host memory.
//!
//! If the devices have the codec, and each has whole blocks of the gradient, only codes leave the devices and
//! only sums of codes come back; the residual stays on the devices. The codes of the parts, one after the
//! other, are the codes of the whole, so the ranks exchange the same bytes as with gradients in host memory:
//!
//! ```text
//!   lanes  quantise, codes down                         sums up, decode
//!   host                        exchange with the ranks
//! ```
//!
//! With any other codec, or less than a block for each device, the whole gradient passes through host memory.
//! It is encoded there, and the residual stays there. Each of the two ways continues with the residuals of
//! the other, and both give the same bits.

use std::sync::Arc;

use parking_lot::Mutex;

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::interpreter::Memory as HostMemory;
use ringpull_base::{Buffer, Result};
use ringpull_device::{Memory, Operation, Slice, Work};
use ringpull_kernels::compress::{Codec, Compression, Feedback};

use super::sum::Sum;

/// The encoding of a key's gradients, and the state of the encoding.
pub(crate) struct DeviceCoding<'a> {
    /// The codec.
    pub compression: &'a Compression,
    /// The state on the host.
    pub feedback: &'a mut Feedback,
    /// The residual, with a part on each device, if it is kept on the devices and not on the host.
    pub residual: &'a mut Option<Vec<Slice>>,
}

/// Replaces the parts, which are `f32`, by the sums over all ranks of the decoded gradients, in the order of
/// the lanes. Blocks; collective. After an error the key's residual is undefined.
pub(crate) fn allreduce(comm: &mut Communicator, sum: &Sum<'_>, coding: DeviceCoding<'_>) -> Result<()> {
    match *coding.compression {
        Compression::Codec(codec @ Codec::TwoBit { threshold }) if sum.layout.is_blocked() => {
            on_devices(comm, sum, (codec, &Operation::Quantise2 { threshold }), coding)
        }
        Compression::Codec(codec @ Codec::OneBit { threshold }) if sum.layout.is_blocked() => {
            on_devices(comm, sum, (codec, &Operation::Quantise1 { threshold }), coding)
        }
        _ => on_host(comm, sum, coding),
    }
}

fn on_devices(
    comm: &mut Communicator,
    sum: &Sum<'_>,
    (codec, quantise): (Codec, &Operation),
    coding: DeviceCoding<'_>,
) -> Result<()> {
    let Sum { devices, layout, parts, stamp, limit, pool, .. } = *sum;
    let (platform, count) = (devices.platform(), comm.size());
    let len = layout.len_bytes() / layout.size_bytes();
    let residual = residual_on_devices(sum, coding)?;
    let codes_of = |device| {
        let elements = layout.elements(device);
        codec.code_bytes(elements.start)..codec.code_bytes(elements.end)
    };
    let sums_of = |device| {
        let elements = layout.elements(device);
        codec.sum_bytes(elements.start, count)..codec.sum_bytes(elements.end, count)
    };
    let codes = pool.take(platform, None, codec.code_bytes(len))?;
    let sums = pool.take(platform, None, codec.sum_bytes(len, count))?;
    // On each device the memory is used first for codes and then for sums.
    let room = |device| pool.take(platform, Some(device), codes_of(device).len().max(sums_of(device).len()));
    let rooms = (0..devices.count()).map(room).collect::<Result<Vec<Arc<Memory>>>>()?;
    for (device, room) in rooms.iter().enumerate() {
        let (own, kept) = (Slice::of(room, 0..codes_of(device).len()), &residual[device]);
        let reads = vec![parts[device].clone(), kept.clone()];
        let encode = Work { operation: quantise.clone(), reads, writes: vec![own.clone(), kept.clone()] };
        platform.enqueue(devices.lane(device), &encode)?;
        platform.enqueue(devices.lane(device), &Work::copy(own, Slice::of(&codes, codes_of(device))))?;
    }
    devices.drain(limit)?;
    // The transport gets only copies, because the memory may be freed after an error.
    let (all_codes, all_sums) =
        (Slice::of(&codes, 0..codec.code_bytes(len)), Slice::of(&sums, 0..codec.sum_bytes(len, count)));
    comm.allreduce_codes(codec, len, &all_codes.host_bytes()?, &mut all_sums.host_bytes_mut()?, stamp)?;
    for (device, room) in rooms.iter().enumerate() {
        let own = Slice::of(room, 0..sums_of(device).len());
        platform.enqueue(devices.lane(device), &Work::copy(Slice::of(&sums, sums_of(device)), own.clone()))?;
        let operation = Operation::DecodeSum { codec, count };
        let decode = Work { operation, reads: vec![own], writes: vec![parts[device].clone()] };
        platform.enqueue(devices.lane(device), &decode)?;
    }
    devices.drain(limit)?;
    rooms.into_iter().chain([codes, sums]).for_each(|memory| pool.give(memory));
    Ok(())
}

/// Returns the residual, and copies it to the devices first if the host has it.
fn residual_on_devices<'a>(sum: &Sum<'_>, coding: DeviceCoding<'a>) -> Result<&'a [Slice]> {
    let Sum { devices, layout, limit, .. } = *sum;
    let DeviceCoding { feedback, residual, .. } = coding;
    if let Some(parts) = residual.take() {
        return Ok(residual.insert(parts));
    }
    let parts = devices.parts(layout)?;
    if let Some(kept) = feedback.take_residual() {
        devices.scatter(layout, kept.bytes(), &parts, limit)?;
    } else {
        for (device, part) in parts.iter().enumerate() {
            devices.platform().enqueue(devices.lane(device), &Work::zero(part.clone()))?;
        }
    }
    Ok(residual.insert(parts))
}

fn on_host(comm: &mut Communicator, sum: &Sum<'_>, coding: DeviceCoding<'_>) -> Result<()> {
    let Sum { devices, layout, parts, stamp, limit, pool, .. } = *sum;
    let DeviceCoding { compression, feedback, residual } = coding;
    if let Some(parts) = residual.take() {
        let kept = devices.fetch(layout, &parts, limit)?;
        feedback
            .residual_mut(kept.bytes().len() / layout.size_bytes())
            .copy_from_slice(bytemuck::cast_slice(kept.bytes()));
    }
    let memory = pool.take(devices.platform(), None, layout.len_bytes())?;
    let staging = Slice::of(&memory, 0..layout.len_bytes());
    let on_host = |device: usize| staging.part(layout.bytes(device));
    for (device, part) in parts.iter().enumerate() {
        devices.platform().enqueue(devices.lane(device), &Work::copy(part.clone(), on_host(device)))?;
    }
    devices.drain(limit)?;
    // The transport gets only codes, because the memory may be freed after an error.
    let mut whole = staging.host_bytes_mut()?;
    let shared = Arc::new(Mutex::new(std::mem::take(feedback)));
    let out = HostMemory::Own(Buffer::copy_of(&whole));
    let summed = comm.allreduce_compressed(compression, &shared, out, stamp);
    *feedback = std::mem::take(&mut *shared.lock());
    whole.copy_from_slice(summed?.bytes());
    drop(whole);
    for (device, part) in parts.iter().enumerate() {
        devices.platform().enqueue(devices.lane(device), &Work::copy(on_host(device), part.clone()))?;
    }
    devices.drain(limit)?;
    pool.give(memory);
    Ok(())
}
