//! What the transport is told a message is, and what is known again when it is done with it.

use crate::collective::run::Ticket;
use crate::timeline;

/// The messages in the transport. A token is a place in the list.
#[derive(Default)]
pub(super) struct Tokens {
    /// With the time by the timeline's clock.
    given: Vec<(Ticket, u32, u64)>,
    free: Vec<u32>,
}

impl Tokens {
    /// A token for message `index` of an operation.
    pub(super) fn give(&mut self, ticket: Ticket, index: u32) -> u32 {
        let given = (ticket, index, timeline::now_ns());
        if let Some(token) = self.free.pop() {
            self.given[token as usize] = given;
            token
        } else {
            self.given.push(given);
            (self.given.len() - 1) as u32
        }
    }

    /// The operation, the message, and when its token was given.
    pub(super) fn redeem(&mut self, token: u32) -> (Ticket, u32, u64) {
        self.free.push(token);
        self.given[token as usize]
    }
}
