//! The process's memory that its peers on the same host can map. Large buffers are taken from it, so that
//! ranks can read and write each other's tensors without a copy in between.
//!
//! There is one region per process. It is as long as the machine's memory is large, and almost all of it is
//! untouched. A buffer is a range of it. Freed ranges are kept for later buffers of their length, because
//! every neighbour has mapped their pages by then. So they serve the next step of a training loop. The kept
//! bytes are at most as many as the bytes in use, and the rest goes back to the system at once.
//!
//! A forked child does not share the arena. Memory that a program may read in a child
//! (`Arena::keep_for_children`: arrays of `ringpull.zeros`) is copied at the fork. So the child has its
//! content from that time, as with all other memory; a private mapping would show the parent's later writes.
//! Memory that only a store uses is not copied, because that would copy a model's values for every worker of
//! a data loader. The child has a private mapping of it, and its writes stay in the child.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::region::{Address, Region};
use crate::forked::{self, Hooks, Process};
use crate::{config, topology};

/// The least length of a buffer that is worth the system calls.
pub(super) const LEAST_BYTES: usize = 128 << 10;
/// Ranges are whole units: pages, of whatever size a processor has.
const UNIT_BYTES: usize = 64 << 10;
/// The most bytes that are reserved. Address space is limited if hundreds of ranks map each other's arenas.
const MOST_BYTES: usize = 256 << 30;

/// The range allocator over one region.
pub struct Arena {
    region: Region,
    ranges: Mutex<Ranges>,
    /// The process of the arena. A forked child has its own copy, and can neither allocate from it nor free
    /// to it.
    process: Process,
    /// True if the arena is shared with the peers. It is no longer true in a child.
    is_shared: AtomicBool,
}

/// The used and the free ranges of the region.
#[derive(Default)]
struct Ranges {
    /// Untouched ranges, which are zeros, by their start. Adjacent ranges are merged.
    free: BTreeMap<usize, usize>,
    /// Freed ranges with their old content, the latest last.
    kept: Vec<Range<usize>>,
    kept_bytes: usize,
    used_bytes: usize,
    /// The allocated ranges of which a forked child gets a copy: their lengths, by their start.
    for_children: BTreeMap<usize, usize>,
}

/// An allocated range.
pub(super) struct Room {
    /// The beginning of the region.
    pub(super) start: NonNull<u8>,
    /// True if the range is zeros.
    pub(super) is_zero: bool,
}

static ARENA: OnceLock<Option<Arena>> = OnceLock::new();

/// Returns this process's arena, which the first call makes. Returns `None` if the system refuses it, and in
/// a child of the process that made it.
pub fn of_process() -> Option<&'static Arena> {
    ARENA.get_or_init(make).as_ref().filter(|arena| arena.process.is_here())
}

/// Returns the arena for a new buffer, if there is an arena already, or if a launcher has put several ranks
/// on this host.
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
    match Region::create(len_bytes).and_then(|region| region.keep_for_children().map(|()| region)) {
        Ok(region) => {
            forked::around_forks(Hooks { prepare: copy_for_child, parent: drop_copy, child: take_copy });
            Some(Arena::over(region))
        }
        Err(cause) => {
            tracing::debug!(%cause, len_bytes, "buffers are not shared with ranks on the same host");
            None
        }
    }
}

impl Arena {
    fn over(region: Region) -> Self {
        let ranges = Ranges { free: BTreeMap::from([(0, region.len_bytes())]), ..Ranges::default() };
        Arena { region, ranges: Mutex::new(ranges), process: Process::this(), is_shared: AtomicBool::new(true) }
    }

    /// Returns the address by which peers find the arena.
    pub fn address(&self) -> Address {
        self.region.address()
    }

    /// Returns the offset of these bytes in the region, if they lie there.
    pub fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.region.start().as_ptr() as usize)?;
        (offset + bytes.len() <= self.region.len_bytes()).then_some(offset)
    }

    /// Allocates a range of the region for `len_bytes` bytes. Returns `None` if there is no room.
    pub(super) fn allocate(&self, len_bytes: usize) -> Option<Room> {
        if !self.process.is_here() {
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

    /// Takes back a range that `allocate` returned for this length.
    pub(super) fn free(&self, start: NonNull<u8>, len_bytes: usize) {
        if !self.process.is_here() {
            return;
        }
        let start = start.as_ptr() as usize - self.region.start().as_ptr() as usize;
        let range = start..start + len_bytes.next_multiple_of(UNIT_BYTES);
        let mut ranges = self.ranges.lock();
        ranges.for_children.remove(&range.start);
        ranges.used_bytes -= range.len();
        ranges.kept_bytes += range.len();
        ranges.kept.push(range);
        while ranges.kept_bytes > ranges.used_bytes {
            let oldest = ranges.kept.remove(0);
            ranges.kept_bytes -= oldest.len();
            self.discard(&mut ranges, oldest);
        }
    }

    /// Gives a forked child a copy of a range that `allocate` returned for this length, made at the fork.
    pub(super) fn keep_for_children(&self, start: NonNull<u8>, len_bytes: usize) {
        if !self.process.is_here() {
            return;
        }
        let start = start.as_ptr() as usize - self.region.start().as_ptr() as usize;
        self.ranges.lock().for_children.insert(start, len_bytes.next_multiple_of(UNIT_BYTES));
    }

    fn discard(&self, ranges: &mut Ranges, range: Range<usize>) {
        if let Err(cause) = self.region.discard(range.start, range.len()) {
            // The range is not allocated again, because free ranges must be zeros.
            tracing::debug!(%cause, "freed shared memory stays in use");
            return;
        }
        insert(&mut ranges.free, range);
    }
}

/// Private memory of this process with the content of ranges of the arena, one behind the other.
struct Copies {
    start: *mut libc::c_void,
    len_bytes: usize,
    ranges: Vec<Range<usize>>,
}

thread_local! {
    /// The copies for the fork that this thread is about to make.
    static COPIES: Cell<*mut Copies> = const { Cell::new(ptr::null_mut()) };
}

/// Copies the memory that a child may read. Runs in the parent before the fork. Other threads go on
/// meanwhile, as they do during a fork.
fn copy_for_child() {
    let Some(Some(arena)) = ARENA.get() else { return };
    if !arena.process.is_here() {
        return;
    }
    let ranges: Vec<Range<usize>> =
        arena.ranges.lock().for_children.iter().map(|(start, len)| *start..start + len).collect();
    let len_bytes: usize = ranges.iter().map(Range::len).sum();
    if len_bytes == 0 {
        return;
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place of the kernel's choosing.
    let start = unsafe { libc::mmap(ptr::null_mut(), len_bytes, protection, flags | libc::MAP_NORESERVE, -1, 0) };
    if start == libc::MAP_FAILED {
        let cause = std::io::Error::last_os_error();
        return tracing::warn!(%cause, len_bytes, "a forked child sees what its parent writes to shared arrays");
    }
    let mut at = 0;
    for range in &ranges {
        // SAFETY: within the mapping just made, which nobody else knows.
        let into = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>().add(at), range.len()) };
        if let Err(cause) = arena.region.read(range.start, into) {
            tracing::warn!(%cause, "a forked child has zeros in the place of a shared array");
        }
        at += range.len();
    }
    COPIES.set(Box::into_raw(Box::new(Copies { start, len_bytes, ranges })));
}

/// Frees the copy. Runs in the parent after the fork, when the child has its own.
fn drop_copy() {
    let copies = COPIES.replace(ptr::null_mut());
    if copies.is_null() {
        return;
    }
    // SAFETY: `copy_for_child` made it on this thread, and the cell no longer has it.
    let copies = unsafe { Box::from_raw(copies) };
    // SAFETY: the mapping made with it, unmapped once.
    if unsafe { libc::munmap(copies.start, copies.len_bytes) } != 0 {
        tracing::debug!(cause = %std::io::Error::last_os_error(), "a copy for a child stays mapped");
    }
}

/// Moves the copy into place. Runs in the child, on the thread that forked, and makes only system calls.
fn take_copy() {
    let Some(Some(arena)) = ARENA.get() else { return };
    let copies = COPIES.replace(ptr::null_mut());
    // A child of the child has this memory like any other memory.
    if !arena.is_shared.swap(false, Ordering::Relaxed) {
        return;
    }
    arena.region.make_private();
    // SAFETY: null or what `copy_for_child` made on this thread; it is leaked.
    let Some(copies) = (unsafe { copies.as_ref() }) else { return };
    let mut at = 0;
    for range in &copies.ranges {
        // SAFETY: moves whole pages of the copy over the same range of the arena's place, which is the
        // child's own by now.
        unsafe {
            let (from, to) = (copies.start.byte_add(at), arena.region.start().as_ptr().add(range.start));
            libc::mremap(from, range.len(), range.len(), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to);
        }
        at += range.len();
    }
}

impl Ranges {
    /// Takes `len` untouched bytes from the first range that is long enough. Returns their start.
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
    #[test]
    fn a_forked_child_has_a_copy_of_what_it_may_read_and_all_that_it_writes_is_its_own() {
        let arena = of_process().unwrap();
        let len = 3 * UNIT_BYTES;
        let rooms = [(); 3].map(|()| arena.allocate(len - 5).unwrap().start.as_ptr());
        let [kept, untouched, internal] = rooms;
        [kept, untouched].into_iter().for_each(|start| arena.keep_for_children(NonNull::new(start).unwrap(), len - 5));
        // SAFETY: the ranges are this test's alone, and within the arena.
        unsafe {
            kept.write_bytes(3, len);
            internal.write_bytes(4, len);
            let mut turns = [0; 2];
            assert_eq!(libc::pipe2(turns.as_mut_ptr(), libc::O_CLOEXEC), 0);
            let child = libc::fork();
            if child == 0 {
                libc::read(turns[0], turns.as_mut_ptr().cast(), 1);
                let all = |start: *mut u8, byte: u8| (0..len).all(|at| start.add(at).read() == byte);
                let is_copy = all(kept, 3) && all(untouched, 0);
                rooms.iter().for_each(|start| start.write_bytes(9, len));
                let is_own = all(kept, 9) && all(internal, 9) && arena.allocate(1).is_none() && of_process().is_none();
                // The child's own child has this memory like any other memory.
                let grandchild = libc::fork();
                if grandchild == 0 {
                    libc::_exit(i32::from(!all(kept, 9)));
                }
                let mut status = 0;
                libc::waitpid(grandchild, &raw mut status, 0);
                libc::_exit(i32::from(!(is_copy && is_own && status == 0)));
            }
            kept.write_bytes(5, len);
            untouched.write_bytes(6, len);
            assert_eq!(libc::write(turns[1], b".".as_ptr().cast(), 1), 1);
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0, "the child has other memory");
            let all = |start: *mut u8, byte: u8| (0..len).all(|at| start.add(at).read() == byte);
            assert!(all(kept, 5) && all(untouched, 6) && all(internal, 4));
            assert_eq!(turns.map(|end| libc::close(end)), [0, 0]);
        }
        rooms.into_iter().for_each(|start| arena.free(NonNull::new(start).unwrap(), len - 5));
        assert!(arena.ranges.lock().for_children.is_empty());
    }
}
