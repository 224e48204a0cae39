//! How far a rank may be ahead of each of its peers.
//!
//! A segment goes without asking, and MPI calls it sent when it lies in a socket: the library of a peer that lags takes it out of there
//! and keeps it until it is wanted. So after every [`UNASKED_BYTES`] to a peer, and in each operation, a message is synchronous. It has a
//! place in the window until the peer has begun to receive it, and with it all that its operation sent there before. So of one
//! operation a peer keeps at most [`WINDOW`] times that, however long it is; of each further one that is under way at most
//! that once, and mostly far less.

use crate::transport::Mode;

/// Messages in flight to one peer. Two keep a link busy; more hide the polling interval of a sleeping receiver.
pub(super) const WINDOW: usize = 4;
/// Between synchronous messages. Four times this is what 1 Gbit/s carries while a receiver waits 64 ms for its turn on a busy
/// processor: half of it cost many tensors a twentieth of their time on such hosts, twice it gained nothing.
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
#[derive(Clone, Copy, Default)]
pub(super) struct Unasked(usize);

impl Unasked {
    /// Whether so many more should wait for an answer.
    fn count(&mut self, bytes: usize) -> bool {
        self.0 += bytes;
        self.0 >= UNASKED_BYTES
    }
}

impl Ahead {
    /// Whether an operation that has a message in flight to this peer must not send another.
    pub(super) fn is_full(&self) -> bool {
        self.messages >= WINDOW
    }

    /// Whether the link may be idle although messages are in flight: they wait for the peer.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.synchronous == self.messages
    }

    /// Takes note of the next message, of so many bytes, of an operation that has sent so much. Returns how it is to be sent.
    pub(super) fn send(&mut self, len: usize, operation: &mut Unasked) -> Mode {
        self.messages += 1;
        let bytes = len.max(LEAST_BYTES);
        let asks = self.unasked.count(bytes) | operation.count(bytes);
        if !asks && self.synchronous < WINDOW {
            return Mode::Standard;
        }
        self.synchronous += 1;
        (self.unasked, *operation) = Default::default();
        Mode::Synchronous
    }

    /// Takes note that a message that was sent so is done.
    pub(super) fn done(&mut self, mode: Mode) {
        self.messages -= 1;
        self.synchronous -= usize::from(mode == Mode::Synchronous);
    }
}
