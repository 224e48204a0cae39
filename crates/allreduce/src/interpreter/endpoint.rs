//! The handling of a segment before it leaves a rank and after it has arrived, if more is needed than to add
//! or copy it in host memory.
//!
//! The interpreter decides which message goes when. For most operations the bytes of a message are those of
//! the buffer, and bytes that arrive are added to them or replace them. An [`Endpoint`] may do otherwise:
//! encode a gradient segment by segment, or add the memory of a device by a kernel.
#![allow(unsafe_code)]

use ringpull_base::{Buffer, Result};
use ringpull_plan::Message;

use crate::interpreter::memory::Memory;
use crate::interpreter::scratch::Scratch;

/// One rank's end of one operation.
///
/// # Safety
/// It has the bytes of every message of its schedule. The transport can read at the addresses that `outgoing`
/// returns and write at those that `incoming` returns, and nobody else uses them, until the endpoint is
/// notified that their message is done. After an error the addresses stay valid for ever, if the endpoint is
/// never dropped. The endpoint is not called after an error, so other data that it borrows need not live on.
pub unsafe trait Endpoint {
    /// The bytes that a message has on the wire.
    fn wire_bytes(&self, message: &Message) -> usize {
        message.len()
    }

    /// Returns true if segments received with [`Copy`](ringpull_plan::Action::Copy) are written into their
    /// place in the buffer as they arrive.
    fn copies_in_place(&self) -> bool;

    /// The address of the bytes of a message to send. Called once, when the message leaves.
    fn outgoing(&mut self, message: &Message, scratch: &mut Scratch) -> Result<*const u8>;

    /// Called when the transport is done with a message that was sent.
    fn sent(&mut self, message: &Message, scratch: &mut Scratch);

    /// Returns the address for the bytes of a message from `peer`, which may be written from now on.
    fn incoming(&mut self, message: &Message, peer: usize, scratch: &mut Scratch) -> Result<*mut u8>;

    /// Takes the bytes that have arrived in `place`. All earlier messages of the plan are done. Blocks until
    /// `place` and the message's target may be used again.
    fn received(&mut self, message: &Message, peer: usize, place: *mut u8, scratch: &mut Scratch) -> Result<()>;

    /// Gives back the memory that the operation took, when it is done or has failed.
    fn take_memory(&mut self) -> Memory {
        Memory::Nothing
    }
}

/// The memory of a message's bytes, if they are not in the buffer.
pub(super) enum Room {
    /// Memory for bytes that arrive to be added, or for a copy of bytes that are sent.
    Own(Buffer),
    /// An address that the endpoint returned.
    Given(*mut u8),
}
