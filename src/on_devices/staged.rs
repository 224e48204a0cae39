//! Allreduce of device memory, over ranks that reach each other through host memory.
//!
//! The whole is cut into segments at offsets that depend only on its length, so ranks may have different
//! numbers of devices. Each segment is copied down into pinned memory, summed over the ranks, and copied up
//! again. While one segment is on the network, the next ones are copied down and the previous one is copied
//! up, on separate streams:
//!
//! | down | 0 | 1 | 2 | 3 | 4 |   |   |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | ranks |   | 0 | 1 | 2 | 3 | 4 |   |
//! | up |   |   | 0 | 1 | 2 | 3 | 4 |
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::interpreter::Memory;
use ringpull_base::{Buffer, Result};
use ringpull_device::{Devices, Event, Layout, Slice, Work};

use super::sum::Sum;

/// The bytes of one segment. It is long enough for a copy to run at full speed, and short compared with the
/// sums that use staging.
const SEGMENT_BYTES: usize = 2 << 20;
/// The number of segments under way: one is copied down, one is on the network, one is copied up, and one is
/// in between.
const DEPTH: usize = 4;

/// Pinned memory for one segment, with the copies that use it.
struct Berth {
    memory: Arc<ringpull_device::Memory>,
    down: Vec<Event>,
    up: Vec<Event>,
}

/// Replaces the parts by the sums over all ranks. Blocks; collective.
pub(super) fn allreduce(comm: &mut Communicator, sum: &Sum<'_>) -> Result<()> {
    let Sum { devices, layout, dtype, parts, stamp, limit, pool } = *sum;
    let segments = segments(layout);
    for device in 0..devices.count() {
        devices.down(device).follow(devices.lane(device))?;
        devices.up(device).follow(devices.lane(device))?;
    }
    let longest = segments.iter().map(Range::len).max().unwrap_or(0);
    let memory = || pool.take(devices.platform(), None, longest);
    let berth = |_| Ok(Berth { memory: memory()?, down: vec![], up: vec![] });
    let mut berths = (0..DEPTH.min(segments.len())).map(berth).collect::<Result<Vec<_>>>()?;
    let depth = berths.len();
    let staging = Staging { devices, layout, parts, limit };
    for (index, segment) in segments.iter().take(depth).enumerate() {
        staging.bring_down(segment, &mut berths[index])?;
    }
    for (index, segment) in segments.iter().enumerate() {
        if index > 0
            && let Some(next) = segments.get(index - 1 + depth)
        {
            staging.bring_down(next, &mut berths[(index - 1) % depth])?;
        }
        let berth = &mut berths[index % depth];
        berth.down.drain(..).try_for_each(|event| event.synchronize(limit))?;
        let slice = Slice::of(&berth.memory, 0..segment.len());
        let start = NonNull::from(&mut *slice.host_bytes_mut()?).cast();
        let owner = Box::new(Arc::clone(&berth.memory));
        // SAFETY: the owner is the pinned memory, and nobody touches it before the sum is there: the copies
        // down have ended, and the copies up have not begun.
        let pinned = unsafe { Buffer::foreign(start, segment.len(), owner) };
        comm.allreduce(dtype, Memory::Own(pinned), stamp)?;
        staging.bring_up(segment, berth)?;
    }
    for device in 0..devices.count() {
        devices.lane(device).follow(devices.up(device))?;
    }
    berths.iter().flat_map(|berth| &berth.up).try_for_each(|event| event.synchronize(limit))?;
    berths.into_iter().for_each(|berth| pool.give(berth.memory));
    Ok(())
}

struct Staging<'a> {
    devices: &'a Devices,
    layout: &'a Layout,
    parts: &'a [Slice],
    limit: Duration,
}

impl Staging<'_> {
    fn bring_down(&self, segment: &Range<usize>, berth: &mut Berth) -> Result<()> {
        berth.up.drain(..).try_for_each(|event| event.synchronize(self.limit))?;
        for (device, of_part, of_segment) in self.layout.pieces(segment) {
            let (from, to) = (self.parts[device].part(of_part), Slice::of(&berth.memory, of_segment));
            let stream = self.devices.down(device);
            self.devices.platform().enqueue(stream, &Work::copy(from, to))?;
            berth.down.push(stream.record()?);
        }
        Ok(())
    }

    fn bring_up(&self, segment: &Range<usize>, berth: &mut Berth) -> Result<()> {
        for (device, of_part, of_segment) in self.layout.pieces(segment) {
            let (from, to) = (Slice::of(&berth.memory, of_segment), self.parts[device].part(of_part));
            let stream = self.devices.up(device);
            self.devices.platform().enqueue(stream, &Work::copy(from, to))?;
            berth.up.push(stream.record()?);
        }
        Ok(())
    }
}

/// Returns the byte range of each segment. Segments have whole elements, and the last one may be shorter.
fn segments(layout: &Layout) -> Vec<Range<usize>> {
    let (len, each) = (layout.len_bytes(), SEGMENT_BYTES / layout.size_bytes() * layout.size_bytes());
    (0..len.div_ceil(each)).map(|index| index * each..len.min((index + 1) * each)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_tile_the_whole_whatever_the_number_of_devices() {
        for len in [0, 1, SEGMENT_BYTES / 4, SEGMENT_BYTES / 4 + 1, SEGMENT_BYTES] {
            let of = |count| segments(&Layout::new(len, 4, count));
            assert_eq!(of(1), of(4));
            assert_eq!(of(1).iter().map(Range::len).sum::<usize>(), len * 4);
        }
    }
}
