//! Allreduce of memory that lies on devices, over ranks that reach each other through host memory.
//!
//! The whole is cut into segments at places that depend on its length alone, so ranks may have different numbers of devices. Each
//! segment is copied down into pinned memory, summed over the ranks, and copied up again. While one is on the network, those
//! behind it are on their way down and the one before it on its way up, on streams of their own:
//!
//! | down | 0 | 1 | 2 | 3 | 4 |   |   |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | ranks |   | 0 | 1 | 2 | 3 | 4 |   |
//! | up |   |   | 0 | 1 | 2 | 3 | 4 |
//!
//! Where every rank's transport takes memory of devices, and all have as many of them, nothing is staged: `direct`.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Host, direct};
use crate::collective::Parts;
use crate::device::{Devices, Event, Layout, Memory, Pool, Slice, Work};
use crate::dtype::DType;
use crate::error::Result;
use crate::transport::Stamp;

/// Bytes of one segment: long enough for a copy to run at full speed, short against what is worth staging.
const SEGMENT_BYTES: usize = 2 << 20;
/// Segments under way: one down, one on the network, one up, and one between.
const DEPTH: usize = 4;

/// Pinned memory for one segment, with the copies that are using it.
struct Berth {
    memory: Arc<Memory>,
    down: Vec<Event>,
    up: Vec<Event>,
}

/// Which way the sums of a store go, which its ranks agree on with its first one, and the memory that they pass through: kept from sum
/// to sum, so that from the second of its kind on nothing is allocated.
#[derive(Default)]
pub struct Route {
    is_direct: OnceLock<bool>,
    pub(super) pool: Arc<Pool>,
}

impl Route {
    /// Whether the transport is given the memory of devices. Collective the first time.
    fn is_direct(&self, host: &mut Host, devices: &Devices, stamp: Stamp) -> Result<bool> {
        if let Some(known) = self.is_direct.get() {
            return Ok(*known);
        }
        let size = host.size();
        // No machine has as many.
        let own = if host.takes_device_memory() { u8::try_from(devices.count()).unwrap_or(0) } else { 0 };
        let counts = host.gather(Parts::even(size, size), stamp, |count| count[0] = own)?;
        let is_direct = own > 0 && counts.bytes().iter().all(|count| *count == own);
        if host.rank() == 0 {
            let way = if is_direct { "is given their memory" } else { "is given copies in pinned memory" };
            tracing::info!("sums over the ranks' devices: {} {way}", host.library());
        }
        Ok(*self.is_direct.get_or_init(|| is_direct))
    }
}

/// What is summed.
pub struct How<'a> {
    /// How it is spread over the devices.
    pub layout: &'a Layout,
    /// The element type.
    pub dtype: DType,
    /// The operation's stamp.
    pub stamp: Stamp,
    /// How long work on a device may take.
    pub limit: Duration,
}

/// `parts`, one on each device and written on the lanes, become the sums over all ranks, in the order of the lanes. Blocks for
/// the ranks; collective.
pub fn allreduce(host: &mut Host, devices: &Devices, how: &How<'_>, parts: &[Slice], route: &Route) -> Result<()> {
    let How { layout, dtype, stamp, limit } = *how;
    if route.is_direct(host, devices, stamp)? {
        return direct::allreduce(host, devices, dtype, parts, stamp, limit, &route.pool);
    }
    let segments = segments(layout);
    for device in 0..devices.count() {
        devices.down(device).follow(devices.lane(device))?;
        devices.up(device).follow(devices.lane(device))?;
    }
    let longest = segments.iter().map(Range::len).max().unwrap_or(0);
    let memory = || route.pool.take(devices.platform(), None, longest);
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
        if let Err(cause) = host.allreduce(dtype, &mut slice.host_bytes_mut()?, stamp) {
            // The transport may still use it.
            std::mem::forget(Arc::clone(&berth.memory));
            return Err(cause);
        }
        staging.bring_up(segment, berth)?;
    }
    for device in 0..devices.count() {
        devices.lane(device).follow(devices.up(device))?;
    }
    berths.iter().flat_map(|berth| &berth.up).try_for_each(|event| event.synchronize(limit))?;
    berths.into_iter().for_each(|berth| route.pool.give(berth.memory));
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

/// The bytes of each segment: whole elements, the last one shorter.
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
