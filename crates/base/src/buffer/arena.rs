//! The process's share of memory that its peers on the same host can reach: large buffers are taken from it, so that
//! ranks can read and write each other's tensors without a copy between.
//!
//! One region per process, as long as the machine's memory is large and almost all of it untouched. A buffer is a range
//! of it. Of what is freed, as much is kept as is in use, for buffers of the same length: its pages, which every neighbour
//! has mapped by then, serve the next step of a training loop. The rest goes back to the system at once.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::region::{Address, Region};
use crate::{config, topology};

/// Buffers from this length on are worth the system calls.
pub(super) const LEAST_BYTES: usize = 128 << 10;
/// Ranges are whole units: pages, of whatever size a processor has.
const UNIT_BYTES: usize = 64 << 10;
/// More than this is not reserved: address space is finite where hundreds of ranks map one another.
const MOST_BYTES: usize = 256 << 30;

/// The range allocator over one region.
pub struct Arena {
    region: Region,
    ranges: Mutex<Ranges>,
    /// A forked child has the same memory, but no right to free it.
    pid: u32,
}

/// What is where in the region.
#[derive(Default)]
struct Ranges {
    /// Untouched ranges, which are zeros, by their start; neighbours are merged.
    free: BTreeMap<usize, usize>,
    /// Freed ranges with their old content, the latest last.
    kept: Vec<Range<usize>>,
    kept_bytes: usize,
    used_bytes: usize,
}

/// A range given out.
pub(super) struct Room {
    /// Where it begins.
    pub(super) start: NonNull<u8>,
    /// Whether it is zeros.
    pub(super) is_zero: bool,
}

static ARENA: OnceLock<Option<Arena>> = OnceLock::new();

/// This process's arena, made by the first call; `None` if the system refuses it.
pub fn of_process() -> Option<&'static Arena> {
    ARENA.get_or_init(make).as_ref()
}

/// The arena for a new buffer: if there is one already, or if a launcher says that this host has several ranks.
pub(super) fn for_buffers() -> Option<&'static Arena> {
    static EXPECTED: OnceLock<bool> = OnceLock::new();
    let is_expected = || config::shared_memory() && config::launcher_local_size().is_some_and(|count| count > 1);
    match ARENA.get() {
        Some(arena) => arena.as_ref(),
        None if *EXPECTED.get_or_init(is_expected) => of_process(),
        None => None,
    }
}

fn make() -> Option<Arena> {
    let len_bytes = topology::memory_bytes().unwrap_or(MOST_BYTES).min(MOST_BYTES) / UNIT_BYTES * UNIT_BYTES;
    match Region::create(len_bytes) {
        Ok(region) => Some(Arena::over(region)),
        Err(cause) => {
            tracing::debug!(%cause, len_bytes, "buffers are not shared with ranks on the same host");
            None
        }
    }
}

impl Arena {
    fn over(region: Region) -> Self {
        let ranges = Ranges { free: BTreeMap::from([(0, region.len_bytes())]), ..Ranges::default() };
        Arena { region, ranges: Mutex::new(ranges), pid: std::process::id() }
    }

    /// Where peers find it.
    pub fn address(&self) -> Address {
        self.region.address()
    }

    /// Where these bytes lie in the region, if they do.
    pub fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.region.start().as_ptr() as usize)?;
        (offset + bytes.len() <= self.region.len_bytes()).then_some(offset)
    }

    /// A range of the region for so many bytes, `None` if there is no room.
    pub(super) fn allocate(&self, len_bytes: usize) -> Option<Room> {
        if self.pid != std::process::id() {
            return None;
        }
        let len = len_bytes.checked_next_multiple_of(UNIT_BYTES)?;
        let mut ranges = self.ranges.lock();
        let kept = ranges.kept.iter().rposition(|range| range.len() == len).map(|at| ranges.kept.remove(at));
        let (start, is_zero) = if let Some(range) = kept {
            ranges.kept_bytes -= len;
            (range.start, false)
        } else {
            let untouched = ranges.take_free(len).or_else(|| {
                let kept = std::mem::take(&mut ranges.kept);
                ranges.kept_bytes = 0;
                kept.into_iter().for_each(|range| self.discard(&mut ranges, range));
                ranges.take_free(len)
            });
            (untouched?, true)
        };
        ranges.used_bytes += len;
        // SAFETY: the range is within the region.
        Some(Room { start: unsafe { self.region.start().add(start) }, is_zero })
    }

    /// Takes back what `allocate` gave for this length.
    pub(super) fn free(&self, start: NonNull<u8>, len_bytes: usize) {
        if self.pid != std::process::id() {
            return;
        }
        let start = start.as_ptr() as usize - self.region.start().as_ptr() as usize;
        let range = start..start + len_bytes.next_multiple_of(UNIT_BYTES);
        let mut ranges = self.ranges.lock();
        ranges.used_bytes -= range.len();
        ranges.kept_bytes += range.len();
        ranges.kept.push(range);
        while ranges.kept_bytes > ranges.used_bytes {
            let oldest = ranges.kept.remove(0);
            ranges.kept_bytes -= oldest.len();
            self.discard(&mut ranges, oldest);
        }
    }

    fn discard(&self, ranges: &mut Ranges, range: Range<usize>) {
        if let Err(cause) = self.region.discard(range.start, range.len()) {
            // Not given out again: what is free is zeros.
            tracing::debug!(%cause, "freed shared memory stays in use");
            return;
        }
        insert(&mut ranges.free, range);
    }
}

impl Ranges {
    /// The start of a range of `len` untouched bytes: the first that is long enough.
    fn take_free(&mut self, len: usize) -> Option<usize> {
        let (start, room) = self.free.iter().map(|(start, room)| (*start, *room)).find(|(_, room)| *room >= len)?;
        self.free.remove(&start);
        if room > len {
            self.free.insert(start + len, room - len);
        }
        Some(start)
    }
}

/// Adds a free range and merges it with its neighbours.
fn insert(free: &mut BTreeMap<usize, usize>, mut range: Range<usize>) {
    if let Some(room) = free.remove(&range.end) {
        range.end += room;
    }
    let before = free.range(..range.start).next_back().map(|(start, room)| (*start, *room));
    match before {
        Some((start, room)) if start + room == range.start => free.insert(start, room + range.len()),
        _ => free.insert(range.start, range.len()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_zero(room: &Room, len_bytes: usize) -> bool {
        // SAFETY: the test's own range of its own arena.
        unsafe { std::slice::from_raw_parts(room.start.as_ptr(), len_bytes) }.iter().all(|byte| *byte == 0)
    }

    #[test]
    fn what_is_freed_while_as_much_is_in_use_serves_the_next_buffer_of_its_length() {
        let arena = Arena::over(Region::create(8 * UNIT_BYTES).unwrap());
        let (one, other) = (arena.allocate(UNIT_BYTES).unwrap(), arena.allocate(UNIT_BYTES).unwrap());
        assert!(one.is_zero && other.is_zero && is_zero(&one, UNIT_BYTES));
        arena.free(one.start, UNIT_BYTES);
        assert!(arena.allocate(2 * UNIT_BYTES).unwrap().is_zero);
        let again = arena.allocate(UNIT_BYTES).unwrap();
        assert!(again.start == one.start && !again.is_zero);
    }

    #[test]
    fn the_last_buffers_ranges_merge_and_are_zeros_when_they_are_given_out_again() {
        let arena = Arena::over(Region::create(8 * UNIT_BYTES).unwrap());
        let all: Vec<Room> = (0..4).map(|_| arena.allocate(UNIT_BYTES + 1).unwrap()).collect();
        assert!(arena.allocate(1).is_none());
        // SAFETY: each is a range of this arena that nobody else has.
        all.iter().for_each(|room| unsafe { room.start.as_ptr().write_bytes(1, UNIT_BYTES + 1) });
        for index in [2, 0, 1, 3] {
            arena.free(all[index].start, UNIT_BYTES + 1);
        }
        assert_eq!(arena.ranges.lock().free, BTreeMap::from([(0, 8 * UNIT_BYTES)]));
        let whole = arena.allocate(8 * UNIT_BYTES).unwrap();
        assert!(whole.is_zero && is_zero(&whole, 8 * UNIT_BYTES));
    }

    #[test]
    fn bytes_elsewhere_have_no_offset() {
        let arena = Arena::over(Region::create(UNIT_BYTES).unwrap());
        let room = arena.allocate(UNIT_BYTES).unwrap();
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(room.start.as_ptr(), UNIT_BYTES) };
        assert_eq!(arena.offset_of(&bytes[5..9]), Some(5));
        assert_eq!(arena.offset_of(&[0u8; 4]), None);
    }
}
