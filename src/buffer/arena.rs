//! The process's share of memory that its peers on the same host can reach: large buffers are taken from it, so that
//! ranks can read and write each other's tensors without a copy between.
//!
//! One region per process, as long as the machine's memory is large and almost all of it untouched. A buffer is a range
//! of it; what is freed goes back to the system at once.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::region::{Address, Region};
use crate::config;

/// Buffers from this length on are worth the system calls.
pub(super) const LEAST_BYTES: usize = 128 << 10;
/// Ranges are whole units: pages, of whatever size a processor has.
const UNIT_BYTES: usize = 64 << 10;
/// More than this is not reserved: address space is finite where hundreds of ranks map one another.
const MOST_BYTES: usize = 256 << 30;

/// The range allocator over one region.
pub struct Arena {
    region: Region,
    /// Free ranges by their start; neighbours are merged.
    free: Mutex<BTreeMap<usize, usize>>,
    /// A forked child has the same memory, but no right to free it.
    pid: u32,
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
    let memory = rustix::system::sysinfo();
    let total = (memory.totalram as usize).saturating_mul(memory.mem_unit as usize);
    let len_bytes = total.min(MOST_BYTES) / UNIT_BYTES * UNIT_BYTES;
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
        let free = Mutex::new(BTreeMap::from([(0, region.len_bytes())]));
        Arena { region, free, pid: std::process::id() }
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

    /// Zero bytes of the region, `None` if there is no room.
    pub(super) fn allocate(&self, len_bytes: usize) -> Option<NonNull<u8>> {
        if self.pid != std::process::id() {
            return None;
        }
        let len = len_bytes.checked_next_multiple_of(UNIT_BYTES)?;
        let mut free = self.free.lock();
        let (start, room) = free.iter().map(|(start, room)| (*start, *room)).find(|(_, room)| *room >= len)?;
        free.remove(&start);
        if room > len {
            free.insert(start + len, room - len);
        }
        // SAFETY: the range is within the region.
        Some(unsafe { self.region.start().add(start) })
    }

    /// Takes back what `allocate` gave for this length.
    pub(super) fn free(&self, start: NonNull<u8>, len_bytes: usize) {
        if self.pid != std::process::id() {
            return;
        }
        let mut range = start.as_ptr() as usize - self.region.start().as_ptr() as usize..0;
        range.end = range.start + len_bytes.next_multiple_of(UNIT_BYTES);
        if let Err(cause) = self.region.discard(range.start, range.len()) {
            // Not given out again: a new buffer is zeros.
            tracing::debug!(%cause, "freed shared memory stays in use");
            return;
        }
        insert(&mut self.free.lock(), range);
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

    #[test]
    fn freed_ranges_merge_and_are_zeros_when_they_are_given_out_again() {
        let arena = Arena::over(Region::create(8 * UNIT_BYTES).unwrap());
        let all: Vec<NonNull<u8>> = (0..4).map(|_| arena.allocate(UNIT_BYTES + 1).unwrap()).collect();
        assert_eq!(arena.allocate(1), None);
        // SAFETY: each is a range of this arena that nobody else has.
        all.iter().for_each(|start| unsafe { start.as_ptr().write_bytes(1, UNIT_BYTES + 1) });
        for index in [2, 0, 1, 3] {
            arena.free(all[index], UNIT_BYTES + 1);
        }
        assert_eq!(*arena.free.lock(), BTreeMap::from([(0, 8 * UNIT_BYTES)]));
        let whole = arena.allocate(8 * UNIT_BYTES).unwrap();
        // SAFETY: as above, the whole region.
        let bytes = unsafe { std::slice::from_raw_parts(whole.as_ptr(), 8 * UNIT_BYTES) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert_eq!(arena.offset_of(&bytes[5..9]), Some(5));
        assert_eq!(arena.offset_of(&[0u8; 4]), None);
    }
}
