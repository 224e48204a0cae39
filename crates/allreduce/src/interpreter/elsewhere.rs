//! Buffers that the processor does not touch: the memory of devices, where the transport takes it.
//!
//! The interpreter moves their bytes as it moves others, by address. What arrives to be added goes into a room that the owner of the
//! memory gives, and the owner adds it up. For host memory a room is a buffer of ours.

use ringpull_base::{Buffer, Result};

/// Who owns such a buffer, of one operation.
pub trait Elsewhere {
    /// The address of a room for `len_bytes` that arrive. They may be written from now on.
    fn room(&mut self, len_bytes: usize) -> Result<*mut u8>;
    /// Adds the `len_bytes` in a room to those from `start` of the buffer, and takes the room back. Blocks until both may be used again.
    fn add(&mut self, start: usize, room: *mut u8, len_bytes: usize) -> Result<()>;
}

/// Where the bytes of a message arrive that are to be added.
pub(super) enum Room {
    Here(Buffer),
    Elsewhere(*mut u8),
}
