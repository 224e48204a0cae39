//! Limits the data that a rank may send ahead of each of its peers.
//!
//! A segment is normally sent without waiting for the peer, and MPI reports it as sent when it is in a
//! socket. If the peer lags, the peer's library takes the segment out of the socket and keeps it until it is
//! wanted. So one message is synchronous after every [`UNASKED_BYTES`] that go to a peer, and after every
//! [`UNASKED_BYTES`] of each operation. A synchronous message occupies the window until the peer has begun to
//! receive it. By then the peer has received all that the operation sent before it.
//!
//! The peer's answer comes a round trip later, through a queue that may be long. Only the window waits for
//! the answer. An operation that will change the bytes goes on at once, because a synchronous message is sent
//! from a copy (unless the processor may not touch the memory). Within the last [`UNASKED_BYTES`] of an
//! operation the limit is twice as high: a message is synchronous only after twice [`UNASKED_BYTES`] without
//! a synchronous message. Otherwise the operation would end a round trip later.
//!
//! So of one operation, however long, a peer keeps at most ([`WINDOW`] + 1) * [`UNASKED_BYTES`], plus
//! [`WINDOW`] messages. A short operation consists only of these last bytes, so of many short operations
//! together the peer keeps at most 2 * [`WINDOW`] * [`UNASKED_BYTES`]. Operations that sent no synchronous
//! message themselves come on top of this, each with less than 2 * [`UNASKED_BYTES`], and mostly far less.

use crate::transport::SendMode;

/// The most messages in flight to one peer. Two messages keep a link busy, and more hide the polling interval
/// of a sleeping receiver.
pub(super) const WINDOW: usize = 4;
/// The bytes between synchronous messages. A link of 1 Gbit/s carries four times this number while a receiver
/// waits 64 ms for its turn on a busy processor. With many tensors on such hosts, half this number cost a
/// twentieth of the time, and twice the number gained nothing.
pub(super) const UNASKED_BYTES: usize = 2 << 20;
/// The least bytes that a message counts for, because the library keeps a record of each message.
const LEAST_BYTES: usize = 1 << 10;

/// The messages on their way to one peer, of all operations.
#[derive(Clone, Copy, Default)]
pub(super) struct SendWindow {
    messages: usize,
    /// The number of messages in flight that are synchronous.
    synchronous: usize,
    /// The bytes sent since the last synchronous message.
    unasked: UnaskedBytes,
}

/// Bytes sent since a synchronous message.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnaskedBytes(usize);

impl SendWindow {
    /// Returns true if the window is full: an operation that has a message in flight to this peer must not
    /// send another.
    pub(super) fn is_full(&self) -> bool {
        self.messages >= WINDOW
    }

    /// Returns true if the link may be idle although messages are in flight: they wait for the peer.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.synchronous == self.messages
    }

    /// Records an operation's next message, of `len` bytes. The operation has sent the bytes `operation`
    /// since its last synchronous message, and has `left` bytes to send after this one. Returns the mode in
    /// which to send it.
    pub(super) fn send(&mut self, len: usize, left: usize, operation: &mut UnaskedBytes) -> SendMode {
        self.messages += 1;
        self.unasked.0 += len.max(LEAST_BYTES);
        operation.0 += len.max(LEAST_BYTES);
        let most = if left < UNASKED_BYTES { 2 * UNASKED_BYTES } else { UNASKED_BYTES };
        if self.unasked.max(*operation) < UnaskedBytes(most) && self.synchronous < WINDOW {
            return SendMode::Standard;
        }
        self.synchronous += 1;
        (self.unasked, *operation) = Default::default();
        SendMode::Synchronous
    }

    /// Records that a message that was sent in this mode is done.
    pub(super) fn done(&mut self, mode: SendMode) {
        self.messages -= 1;
        self.synchronous -= usize::from(mode == SendMode::Synchronous);
    }
}
