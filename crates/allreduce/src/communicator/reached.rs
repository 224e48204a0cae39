//! The buffers of one operation of the ranks of a host, and this rank's access to each of them. A buffer is
//! mapped into this process, or the kernel reads and writes it in the buffer's process, or it is not reached
//! at all.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use ringpull_base::Buffer;
use ringpull_base::buffer::arena;
use ringpull_base::buffer::region::Region;

use crate::transport::peer_memory;

/// The bit that marks a shown number as an address. Any other number is 0 (the memory is not reached), or 1
/// plus an offset in the rank's arena.
const IS_ADDRESS: u64 = 1 << 63;
/// The bytes of mapped buffers that are summed in one go.
const TAKEN_BYTES: usize = 512 << 10;
/// The bytes of all inputs of one piece that are read from other processes: they stay in a core's cache.
const ALL_READ_BYTES: usize = 1 << 20;
const LEAST_READ_BYTES: usize = 64 << 10;

/// The place of a local rank's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BufferPlace {
    Mapped(*mut u8),
    /// At an address of its process.
    InProcess(u64),
    Unreached,
}

/// This rank's access to the memory of the other ranks of its host.
pub(super) struct MemoryReach {
    /// Each local rank's arena, as it is mapped into this process. Empty if arenas cannot be shared.
    pub(super) arenas: Vec<Region>,
    /// Each local rank's process, if all of them can read each other's memory and do so.
    pub(super) processes: Option<Arc<[u32]>>,
    /// Room for copies, used by the one operation that computes at a time.
    scratch: RefCell<Option<Buffer>>,
}

impl MemoryReach {
    pub(super) fn new(arenas: Vec<Region>, processes: Option<Arc<[u32]>>) -> Self {
        MemoryReach { arenas, processes, scratch: RefCell::new(None) }
    }

    /// Returns true if ranks read each other's processes.
    pub(super) fn reads_processes(&self) -> bool {
        self.processes.is_some()
    }

    /// Returns the number that shows this memory to the other ranks: see [`IS_ADDRESS`].
    pub(super) fn shown(&self, from: *const u8, len_bytes: usize) -> u64 {
        let arena = if self.arenas.is_empty() { None } else { arena::of_process() };
        // SAFETY: the caller has lent it; only its address is looked at.
        let memory = unsafe { std::slice::from_raw_parts(from, len_bytes) };
        match arena.and_then(|arena| arena.offset_of(memory)) {
            Some(offset) => offset as u64 + 1,
            None if self.reads_processes() && is_ordinary(memory) => from as u64 | IS_ADDRESS,
            None => 0,
        }
    }

    /// Returns the buffers of an operation, from the number that each local rank has shown. The own buffer
    /// keeps the address that the caller lent.
    pub(super) fn buffers(
        &self,
        (own, len_bytes): (*mut u8, usize),
        (local_rank, piece_bytes): (usize, usize),
        shown: impl Iterator<Item = u64>,
    ) -> ReachedBuffers {
        let place = |(other, shown): (usize, u64)| match shown {
            0 => BufferPlace::Unreached,
            address if address & IS_ADDRESS != 0 => BufferPlace::InProcess(address ^ IS_ADDRESS),
            _ if other == local_rank => BufferPlace::Mapped(own),
            place => {
                let (offset, arena) = (place as usize - 1, &self.arenas[other]);
                assert!(offset + len_bytes <= arena.len_bytes(), "a buffer lies within its rank's arena");
                BufferPlace::Mapped(arena.start().as_ptr().wrapping_add(offset))
            }
        };
        let places: Vec<BufferPlace> = shown.enumerate().map(place).collect();
        let count = places.len();
        let mut taken_bytes = TAKEN_BYTES;
        let mut scratch = std::ptr::null_mut();
        if places.iter().any(|place| matches!(place, BufferPlace::InProcess(_))) {
            taken_bytes = (ALL_READ_BYTES / count / 4096 * 4096).clamp(LEAST_READ_BYTES, TAKEN_BYTES);
            let mut room = self.scratch.borrow_mut();
            let room = room.get_or_insert_with(|| Buffer::zeroed((count + 1) * taken_bytes));
            scratch = room.bytes_mut().as_mut_ptr();
        }
        ReachedBuffers {
            own,
            len_bytes,
            piece_bytes,
            taken_bytes,
            local_rank,
            places,
            processes: self.processes.clone().unwrap_or_default(),
            scratch,
        }
    }
}

/// Returns true if the kernel can read `memory` for other processes. It refuses memory that a device has
/// mapped.
fn is_ordinary(memory: &[u8]) -> bool {
    let pid = std::process::id();
    let mut byte = 0_u8;
    [memory.first(), memory.last()].into_iter().flatten().all(|end| {
        // SAFETY: one byte of lent memory is read into one byte.
        unsafe { peer_memory::read(pid, std::ptr::from_ref(end) as u64, &raw mut byte, 1) }.is_ok()
    })
}

/// The buffers of one operation.
pub(super) struct ReachedBuffers {
    pub(super) own: *mut u8,
    pub(super) len_bytes: usize,
    /// The bytes that go through the window at once.
    piece_bytes: usize,
    /// The bytes that are read and summed at once if every buffer is reached.
    pub(super) taken_bytes: usize,
    local_rank: usize,
    places: Vec<BufferPlace>,
    processes: Arc<[u32]>,
    /// Room for a piece of each local rank, and for a sum.
    scratch: *mut u8,
}

impl ReachedBuffers {
    /// Returns the address of a local rank's buffer in this process, if it is mapped there.
    pub(super) fn mapped(&self, local_rank: usize) -> Option<*mut u8> {
        match self.places[local_rank] {
            BufferPlace::Mapped(place) => Some(place),
            BufferPlace::InProcess(_) if local_rank == self.local_rank => Some(self.own),
            _ => None,
        }
    }

    pub(super) fn is_mapped(&self, local_rank: usize) -> bool {
        self.mapped(local_rank).is_some()
    }

    pub(super) fn is_reached(&self, local_rank: usize) -> bool {
        self.places[local_rank] != BufferPlace::Unreached
    }

    pub(super) fn all_reached(&self) -> bool {
        (0..self.places.len()).all(|local_rank| self.is_reached(local_rank))
    }

    /// Returns true if other ranks reach a buffer through its process.
    pub(super) fn is_in_process(&self, local_rank: usize) -> bool {
        matches!(self.places[local_rank], BufferPlace::InProcess(_))
    }

    /// Returns true if some buffer is reached through its process. Every local rank gets the same answer.
    pub(super) fn reads_processes(&self) -> bool {
        (0..self.places.len()).any(|local_rank| self.is_in_process(local_rank))
    }

    /// Marks as not reached each buffer for which `is_hidden` returns true.
    fn hide(&mut self, is_hidden: impl Fn(BufferPlace) -> bool) {
        self.places.iter_mut().filter(|place| is_hidden(**place)).for_each(|place| *place = BufferPlace::Unreached);
    }

    /// Marks as not reached each buffer that is not mapped.
    pub(super) fn hide_processes(&mut self) {
        self.hide(|place| matches!(place, BufferPlace::InProcess(_)));
    }

    pub(super) fn hide_all(&mut self) {
        self.hide(|_| true);
    }

    pub(super) fn pieces(&self) -> usize {
        self.len_bytes.div_ceil(self.piece_bytes)
    }

    pub(super) fn piece(&self, index: usize) -> Range<usize> {
        index * self.piece_bytes..((index + 1) * self.piece_bytes).min(self.len_bytes)
    }

    /// Returns the address of a range of at most `taken_bytes` of a reached buffer, or the address of a copy.
    pub(super) fn input(&self, local_rank: usize, range: Range<usize>) -> io::Result<*const u8> {
        if let Some(place) = self.mapped(local_rank) {
            return Ok(place.wrapping_add(range.start));
        }
        assert!(range.len() <= self.taken_bytes, "a copy fits into its room");
        let room = self.room(local_rank);
        // SAFETY: the room is this local rank's, and is long enough.
        unsafe { self.read(local_rank, range, room) }.map(|()| room.cast_const())
    }

    /// Room for a sum of at most `taken_bytes`.
    pub(super) fn room_of_sum(&self) -> *mut u8 {
        self.room(self.places.len())
    }

    fn room(&self, index: usize) -> *mut u8 {
        self.scratch.wrapping_add(index * self.taken_bytes)
    }

    /// Copies a range of a local rank's buffer, which is reached.
    ///
    /// # Safety
    /// Nobody writes the range meanwhile. `to` is valid for the length of the range, and nobody else touches
    /// these bytes.
    pub(super) unsafe fn read(&self, local_rank: usize, range: Range<usize>, to: *mut u8) -> io::Result<()> {
        match (self.mapped(local_rank), self.places[local_rank]) {
            // SAFETY: the range lies in the buffer; the rest is the caller's promise.
            (Some(place), _) => unsafe { place.add(range.start).copy_to_nonoverlapping(to, range.len()) },
            (_, BufferPlace::InProcess(address)) => {
                let from = address + range.start as u64;
                // SAFETY: as the caller promises.
                return unsafe { peer_memory::read(self.processes[local_rank], from, to, range.len()) };
            }
            _ => unreachable!("only buffers that are reached are read"),
        }
        Ok(())
    }

    /// Copies to a range of a local rank's buffer, which is reached.
    ///
    /// # Safety
    /// Nobody else touches the range. `from` is valid for the length of the range.
    pub(super) unsafe fn write(&self, local_rank: usize, range: Range<usize>, from: *const u8) -> io::Result<()> {
        match (self.mapped(local_rank), self.places[local_rank]) {
            // SAFETY: the range lies in the buffer; the rest is the caller's promise.
            (Some(place), _) => unsafe { place.add(range.start).copy_from_nonoverlapping(from, range.len()) },
            (_, BufferPlace::InProcess(address)) => {
                let to = address + range.start as u64;
                // SAFETY: as the caller promises.
                return unsafe { peer_memory::write(self.processes[local_rank], from, to, range.len()) };
            }
            _ => unreachable!("only buffers that are reached are written"),
        }
        Ok(())
    }
}
