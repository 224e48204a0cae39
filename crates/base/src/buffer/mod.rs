//! The memory of a tensor. It is owned and aligned, or it is foreign and its owner is kept alive.
//!
//! If a host has several ranks, large owned buffers come from the process's `arena`, which the other ranks
//! map.
#![allow(unsafe_code)]

pub mod arena;
pub mod region;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::ptr::NonNull;

use self::arena::{Arena, Room};
use crate::{Error, Result};

/// The alignment of owned memory. It is a cache line, which is enough for every element type and SIMD load.
const ALIGNMENT: usize = 64;

fn layout_of(len_bytes: usize) -> Layout {
    Layout::from_size_align(len_bytes, ALIGNMENT).expect("DType::len_bytes bounds what a shape can ask for")
}

enum BufferOwner {
    Heap(Layout),
    Shared(&'static Arena),
    Foreign(#[allow(dead_code)] Box<dyn Any + Send + Sync>),
    Nobody,
}

/// A range of bytes in host memory. It is exclusively ours, or lent by a foreign owner.
pub struct Buffer {
    start: NonNull<u8>,
    len_bytes: usize,
    owner: BufferOwner,
}

// SAFETY: a `Buffer` is its bytes and nothing else; access follows Rust's borrow of the `Buffer`.
unsafe impl Send for Buffer {}
// SAFETY: as above; `&Buffer` only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns `len_bytes` zero bytes. Pages are touched only when they are written. The process ends if
    /// there is no memory. Use [`try_zeroed`](Self::try_zeroed) for lengths that a caller chooses.
    pub fn zeroed(len_bytes: usize) -> Self {
        Self::zeroed_or_none(len_bytes).unwrap_or_else(|| handle_alloc_error(layout_of(len_bytes)))
    }

    /// Returns zeros as [`zeroed`](Self::zeroed) does, or an error if there is no memory for `what`.
    pub fn try_zeroed(len_bytes: usize, what: &str) -> Result<Self> {
        let none = || Error::OutOfMemory { what: what.to_owned(), len_bytes };
        Self::zeroed_or_none(len_bytes).ok_or_else(none)
    }

    fn zeroed_or_none(len_bytes: usize) -> Option<Self> {
        if len_bytes == 0 {
            return Some(Buffer { start: NonNull::<u64>::dangling().cast(), len_bytes, owner: BufferOwner::Nobody });
        }
        if let Some(buffer) = Self::zeroed_for_peers(len_bytes) {
            return Some(buffer);
        }
        let layout = layout_of(len_bytes);
        // SAFETY: the layout has a size other than zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Buffer { start, len_bytes, owner: BufferOwner::Heap(layout) })
    }

    /// Returns zeros as [`zeroed`](Self::zeroed) does, in whole pages that the other ranks of this host map.
    /// Returns `None` if there is no such memory, or `len_bytes` is too short to be worth it.
    pub fn zeroed_for_peers(len_bytes: usize) -> Option<Self> {
        let (arena, room) = shared(len_bytes)?;
        if !room.is_zero {
            // SAFETY: the range just given out.
            unsafe { room.start.write_bytes(0, len_bytes) };
        }
        Some(Buffer { start: room.start, len_bytes, owner: BufferOwner::Shared(arena) })
    }

    /// Returns a copy of `bytes` in owned memory.
    pub fn copy_of(bytes: &[u8]) -> Self {
        Self::try_copy_of(bytes, "a copy").unwrap_or_else(|_| handle_alloc_error(layout_of(bytes.len())))
    }

    /// Returns a copy as [`copy_of`](Self::copy_of) does, or an error if there is no memory for `what`.
    pub fn try_copy_of(bytes: &[u8], what: &str) -> Result<Self> {
        let mut buffer = match shared(bytes.len()) {
            Some((arena, room)) => {
                Buffer { start: room.start, len_bytes: bytes.len(), owner: BufferOwner::Shared(arena) }
            }
            None => Buffer::try_zeroed(bytes.len(), what)?,
        };
        buffer.bytes_mut().copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Returns a buffer of memory that belongs to `owner`. The owner is dropped with the buffer.
    ///
    /// # Safety
    /// `start` is valid for reads and writes of `len_bytes` for as long as `owner` lives, is aligned for the
    /// elements it will be read as, and nobody else writes it while a tensor over it is locked by a reader or
    /// a writer. Tensors over overlapping memory are locked together, so they do not count as somebody else.
    pub unsafe fn foreign(start: NonNull<u8>, len_bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Buffer { start, len_bytes, owner: BufferOwner::Foreign(owner) }
    }

    /// Lets forked children of this process read the memory: they get a copy, which is made at the fork.
    /// Without this, the content of memory that ranks share is undefined in a child. Other memory does not
    /// need this.
    pub fn keep_for_children(&self) {
        if let BufferOwner::Shared(arena) = self.owner {
            arena.keep_for_children(self.start, self.len_bytes);
        }
    }

    /// Returns true if the memory is foreign, so that sharing it with a later reader would not freeze its
    /// content.
    pub fn is_foreign(&self) -> bool {
        matches!(self.owner, BufferOwner::Foreign(_))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len_bytes` by construction, and `&self` keeps writers out.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` is valid for `len_bytes` by construction, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

/// A range of the arena, if there is one for a buffer of this length.
fn shared(len_bytes: usize) -> Option<(&'static Arena, Room)> {
    let arena = if len_bytes >= arena::LEAST_BYTES { arena::for_buffers() } else { None }?;
    Some((arena, arena.allocate(len_bytes)?))
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: `start` came from `alloc_zeroed` with this layout, and is freed once.
            BufferOwner::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            BufferOwner::Shared(arena) => arena.free(self.start, self.len_bytes),
            BufferOwner::Foreign(_) | BufferOwner::Nobody => {}
        }
    }
}
