//! How far a rank may be ahead of each of its peers.
//!
//! A segment goes without asking, and MPI calls it sent when it lies in a socket: the library of a peer that
//! lags takes it out of there and keeps it until it is wanted. So after every [`UNASKED_BYTES`] to a peer,
//! and in each operation, a message is synchronous. It has a place in the window until the peer has begun to
//! receive it, and with it all that its operation sent there before.
//!
//! The answer comes a round trip later, through a queue that may be long. Nothing waits for it but the
//! window: what will change the bytes goes on at once, as a synchronous message is sent from a copy (not of
//! memory that the processor may not touch). And the end of an operation, its last [`UNASKED_BYTES`], asks
//! for none before twice as much was sent unasked: the operation would end a round trip later.
//!
//! So of one operation a peer keeps at most [`WINDOW`] + 1 times [`UNASKED_BYTES`], and a message for each
//! place of the window, however long it is. Of many short ones, which are all end, it keeps twice [`WINDOW`]
//! times that together. What was sent of others than those that asked comes on top: less than twice
//! [`UNASKED_BYTES`] of each, and mostly far less.

use crate::transport::SendMode;

/// Messages in flight to one peer. Two keep a link busy; more hide the polling interval of a sleeping
/// receiver.
pub(super) const WINDOW: usize = 4;
/// Between synchronous messages. Four times this is what 1 Gbit/s carries while a receiver waits 64 ms for
/// its turn on a busy processor: of many tensors half of it cost a twentieth of the time on such hosts, twice
/// it gained nothing.
pub(super) const UNASKED_BYTES: usize = 2 << 20;
/// A short message counts as this much: the library keeps a record of each.
const LEAST_BYTES: usize = 1 << 10;

/// What is on its way to one peer, of all operations.
#[derive(Clone, Copy, Default)]
pub(super) struct Ahead {
    messages: usize,
    /// Of these, synchronous ones.
    synchronous: usize,
    /// Sent since the last synchronous message.
    unasked: Unasked,
}

/// Bytes sent since a synchronous message.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unasked(usize);

impl Ahead {
    /// Whether an operation that has a message in flight to this peer must not send another: there is a whole
    /// window of them.
    pub(super) fn is_full(&self) -> bool {
        self.messages >= WINDOW
    }

    /// Whether the link may be idle although messages are in flight: they wait for the peer.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.synchronous == self.messages
    }

    /// Records the next message, of `len` bytes, of an operation that has sent `operation` unasked and has
    /// `left` bytes to send after it. Returns the mode in which to send it.
    pub(super) fn send(&mut self, len: usize, left: usize, operation: &mut Unasked) -> SendMode {
        self.messages += 1;
        self.unasked.0 += len.max(LEAST_BYTES);
        operation.0 += len.max(LEAST_BYTES);
        let most = if left < UNASKED_BYTES { 2 * UNASKED_BYTES } else { UNASKED_BYTES };
        if self.unasked.max(*operation) < Unasked(most) && self.synchronous < WINDOW {
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
