//! Plans: the moves of one rank, as data.
//!
//! A plan lists the parts that a rank sends to and receives from other ranks, and the use of received parts.
//! It has no buffer and no transport, so a plan can be checked with symbols (`check`), executed on a
//! transport (`run`) and counted (the tests' bounds on traffic). Every rank computes its own plan from
//! `(rank, size, len)` alone. The checker proves that the plans of all ranks fit together.

use std::ops::Range;

pub(crate) use super::parts::Parts;

/// The use that a receiver makes of the elements that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveAction {
    /// Combines them with its own elements: `own = own + arrived`, or another operator in place of `+`.
    Reduce,
    /// Replaces its own elements by them.
    Copy,
}

/// One message, seen from one of its two ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// Sends the current value of some parts.
    Send {
        /// The receiving rank.
        to: usize,
        /// The parts, consecutive, with at least one element among them.
        parts: Range<usize>,
    },
    /// Receives some parts.
    Recv {
        /// The sending rank.
        from: usize,
        /// The parts, consecutive, with at least one element among them.
        parts: Range<usize>,
        /// The use of the elements.
        then: ReceiveAction,
    },
}

impl Move {
    /// The rank at the other end.
    pub fn peer(&self) -> usize {
        match self {
            Move::Send { to, .. } => *to,
            Move::Recv { from, .. } => *from,
        }
    }

    /// The parts that are read or written.
    pub fn parts(&self) -> Range<usize> {
        match self {
            Move::Send { parts, .. } | Move::Recv { parts, .. } => parts.clone(),
        }
    }
}

/// The moves of one rank, in program order.
///
/// A plan means that its moves are executed one after the other, with sends that copy their elements out at
/// once and never wait. An interpreter may do better, as long as the result is the same: moves on different
/// parts may run concurrently, and messages may be cut into segments. Between two ranks, in each direction,
/// messages arrive in the order in which they were sent. The k-th send of `a` to `b` is the k-th receive of
/// `b` from `a`, and both name the same parts. If each rank divides its own buffer, both name parts of the
/// same lengths.
///
/// Every plan of this module also makes progress when nothing is buffered, by these rules: a send is issued
/// when the earlier receives into its parts and the earlier sends to its rank are done. A receive is posted
/// when the earlier receives from its rank are done and, if it copies, when the earlier moves on its parts
/// are done too. The data of a reduce is added when the earlier moves on its parts are done. So an
/// interpreter that follows these rules may limit the messages in flight per peer as tightly as it likes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The division of the buffer. It is the same on every rank, except in an alltoall.
    pub parts: Parts,
    /// This rank's moves. No move is without elements, and none is to this rank itself.
    pub moves: Vec<Move>,
    /// Additional waits of sends, beside those that follow from their parts: the index of a send, and the
    /// index of an earlier receive that must be done before the send is issued. They are in ascending order
    /// of the sends.
    pub after: Vec<(usize, usize)>,
}

impl Plan {
    /// Returns a plan without moves.
    pub fn new(parts: Parts) -> Self {
        Plan { parts, moves: Vec::new(), after: Vec::new() }
    }

    /// Appends a send, unless the parts are empty: then the receiver leaves its receive out as well.
    pub fn send(&mut self, to: usize, parts: Range<usize>) {
        if !self.parts.range(parts.clone()).is_empty() {
            self.moves.push(Move::Send { to, parts });
        }
    }

    /// Appends a receive, unless the parts are empty: then the sender leaves its send out as well.
    pub fn recv(&mut self, from: usize, parts: Range<usize>, then: ReceiveAction) {
        if !self.parts.range(parts.clone()).is_empty() {
            self.moves.push(Move::Recv { from, parts, then });
        }
    }

    /// Returns this plan for some ranks of a job: rank `r` of the plan is `members[r]`.
    ///
    /// # Panics
    /// If a rank of the plan is no member.
    #[must_use]
    pub fn among(mut self, members: &[usize]) -> Self {
        for step in &mut self.moves {
            match step {
                Move::Send { to: peer, .. } | Move::Recv { from: peer, .. } => *peer = members[*peer],
            }
        }
        self
    }

    /// The number of elements this rank sends.
    pub fn sent_len(&self) -> usize {
        let sends = self.moves.iter().filter(|step| matches!(step, Move::Send { .. }));
        sends.map(|step| self.parts.range(step.parts()).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_without_elements_are_left_out() {
        let mut plan = Plan::new(Parts::even(2, 3));
        plan.send(1, 2..3);
        plan.recv(1, 2..3, ReceiveAction::Copy);
        assert_eq!(plan.moves, []);
        plan.send(1, 1..3);
        assert_eq!((plan.moves.len(), plan.sent_len()), (1, 1));
    }

    #[test]
    fn among_some_ranks_every_peer_is_a_member() {
        let plan = crate::allreduce(crate::Algorithm::Ring, 1, 3, 9).among(&[4, 2, 7]);
        let peers: Vec<usize> = plan.moves.iter().map(Move::peer).collect();
        assert_eq!(peers, [7, 4, 7, 4, 7, 4, 7, 4]);
    }
}
