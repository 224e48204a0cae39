//! Limits the data that a rank may send ahead of each of its peers.
//!
//! A segment goes without asking, and MPI reports it as sent when it lies in a socket. The library of a peer
//! that lags takes it out of there and keeps it until it is wanted. So a message is synchronous after every
//! [`UNASKED_BYTES`] to a peer, and in each operation. It has a place in the window until the peer has begun
//! to receive it, and with it all that its operation sent there before.
//!
//! The answer comes a round trip later, through a queue that may be long. Only the window waits for it. An
//! operation that will change the bytes goes on at once, as a synchronous message is sent from a copy (except
//! of memory that the processor may not touch). The end of an operation, its last [`UNASKED_BYTES`], asks for
//! no answer before twice that number was sent unasked: the operation would end a round trip later.
//!
//! So a peer keeps at most [`WINDOW`] + 1 times [`UNASKED_BYTES`] of one operation of any length, and a
//! message for each place of the window. Of many short operations, which are all end, it keeps twice
//! [`WINDOW`] times that together. Messages of operations other than those that asked come on top: less than
//! twice [`UNASKED_BYTES`] of each, and mostly far less.

use crate::transport::SendMode;

/// Messages in flight to one peer. Two keep a link busy; more hide the polling interval of a sleeping
/// receiver.
pub(super) const WINDOW: usize = 4;
/// The bytes between synchronous messages. A link of 1 Gbit/s carries four times this number while a receiver
/// waits 64 ms for its turn on a busy processor. With many tensors on such hosts, half this number cost a
/// twentieth of the time, and twice the number gained nothing.
pub(super) const UNASKED_BYTES: usize = 2 << 20;
/// The bytes for which a short message counts: the library keeps a record of each.
const LEAST_BYTES: usize = 1 << 10;

/// The messages on their way to one peer, of all operations.
#[derive(Clone, Copy, Default)]
pub(super) struct SendWindow {
    messages: usize,
    /// The number of these that are synchronous.
    synchronous: usize,
    /// The bytes sent since the last synchronous message.
    unasked: UnaskedBytes,
}

/// Bytes sent since a synchronous message.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnaskedBytes(usize);

impl SendWindow {
    /// Returns true if an operation that has a message in flight to this peer must not send another: there is
    /// a whole window of them.
    pub(super) fn is_full(&self) -> bool {
        self.messages >= WINDOW
    }

    /// Returns true if the link may be idle although messages are in flight: they wait for the peer.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.synchronous == self.messages
    }

    /// Records the next message, of `len` bytes, of an operation that has sent `operation` unasked and has
    /// `left` bytes to send after it. Returns the mode in which to send it.
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
