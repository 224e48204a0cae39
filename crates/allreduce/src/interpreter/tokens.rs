//! The numbers by which the transport refers to messages, and the record of each message until it is done.

use ringpull_base::timeline;

use crate::interpreter::flight::Ticket;
use crate::transport::SendMode;

/// A message in the transport.
#[derive(Clone, Copy)]
pub(super) struct PostedMessage {
    /// The operation.
    pub(super) ticket: Ticket,
    /// The message of its schedule.
    pub(super) index: u32,
    /// The mode in which it was sent, if it is a message that this rank sends.
    pub(super) mode: SendMode,
    /// The time at which it was given to the transport, by the timeline's clock.
    pub(super) since_ns: u64,
}

/// The messages in the transport. A token is a place in the list.
#[derive(Default)]
pub(super) struct Tokens {
    given: Vec<PostedMessage>,
    free: Vec<u32>,
}

impl Tokens {
    /// Returns a token for message `index` of an operation, valid from now on.
    pub(super) fn give(&mut self, ticket: Ticket, index: u32, mode: SendMode) -> u32 {
        let given = PostedMessage { ticket, index, mode, since_ns: timeline::now_ns() };
        if let Some(token) = self.free.pop() {
            self.given[token as usize] = given;
            token
        } else {
            self.given.push(given);
            (self.given.len() - 1) as u32
        }
    }

    /// Returns the message for which the token was given.
    pub(super) fn redeem(&mut self, token: u32) -> PostedMessage {
        self.free.push(token);
        self.given[token as usize]
    }
}
