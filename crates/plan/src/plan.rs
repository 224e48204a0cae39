//! What a plan is: the moves of one rank, as data.
//!
//! A plan says who sends which parts to whom and what the receiver does with them. It holds no buffer and
//! touches no wire, so that the same plan can be checked with symbols (`check`), executed on a transport
//! (`run`) and counted (the tests' bounds on traffic). Every rank computes its own plan from
//! `(rank, size, len)` alone; that the plans of all ranks fit together is what the checker proves.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use ringpull_base::Error;

pub(crate) use super::parts::Parts;

/// What a receiver does with the elements that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Adds them to its own: `own = own + arrived`.
    Reduce,
    /// Puts them in the place of its own.
    Copy,
}

/// One message, seen from one of its two ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// Sends the present value of some parts.
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
        /// What becomes of them.
        then: Then,
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

/// What one rank does, in program order.
///
/// The meaning of a plan is its moves executed one after the other, with sends that copy their elements out
/// at once and never wait. An interpreter may do better, as long as nobody can tell the difference: moves
/// that touch different parts run concurrently, and messages are cut into segments. Between two ranks, in
/// each direction, messages arrive in the order in which they were sent: the k-th send of `a` to `b` is the
/// k-th receive of `b` from `a`, and both name the same parts.
///
/// Every plan of this module also makes progress when nothing is buffered, by these rules: a send is issued
/// once the earlier receives into its parts and the earlier sends to the same rank are done; a receive is
/// posted once the earlier receives from the same rank are done and, if it copies, the earlier moves on its
/// parts; what a reduce receives is added once the earlier moves on its parts are done. So an interpreter
/// that follows these rules may bound what is in flight per peer as tightly as it likes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// How the buffer is divided; the same on every rank.
    pub parts: Parts,
    /// This rank's moves. No move is without elements, and none is to this rank itself.
    pub moves: Vec<Move>,
}

impl Plan {
    /// A plan without moves.
    pub fn new(parts: Parts) -> Self {
        Plan { parts, moves: Vec::new() }
    }

    /// Appends a send, unless the parts are empty: then the receiver leaves its receive out as well.
    pub fn send(&mut self, to: usize, parts: Range<usize>) {
        if !self.parts.range(parts.clone()).is_empty() {
            self.moves.push(Move::Send { to, parts });
        }
    }

    /// Appends a receive, unless the parts are empty: then the sender leaves its send out as well.
    pub fn recv(&mut self, from: usize, parts: Range<usize>, then: Then) {
        if !self.parts.range(parts.clone()).is_empty() {
            self.moves.push(Move::Recv { from, parts, then });
        }
    }

    /// The number of elements this rank sends.
    pub fn sent_len(&self) -> usize {
        let sends = self.moves.iter().filter(|step| matches!(step, Move::Send { .. }));
        sends.map(|step| self.parts.range(step.parts()).len()).sum()
    }
}

/// The ways to allreduce that are plans of our own. `auto` (see [`choose`](super::choose())) and the MPI
/// library's own are not among them: who accepts those names handles them before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Reduce-scatter and allgather along a ring (`ring`).
    Ring,
    /// Every rank to every rank, twice (`direct`).
    Direct,
    /// Reduce-scatter and allgather on a circulant graph, in rounds that halve and double (`circulant`).
    Circulant,
    /// Recursive doubling of the whole buffer (`doubling`).
    Doubling,
    /// Everything to rank 0 and back (`star`).
    Star,
    /// A binomial tree up to rank 0 and down again (`tree`).
    Tree,
}

impl Algorithm {
    /// Every algorithm, in the order of the documentation.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::Ring,
        Algorithm::Direct,
        Algorithm::Circulant,
        Algorithm::Doubling,
        Algorithm::Star,
        Algorithm::Tree,
    ];

    /// The name that `--algorithm` and `RINGPULL_ALGORITHM` take.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::Direct => "direct",
            Algorithm::Circulant => "circulant",
            Algorithm::Doubling => "doubling",
            Algorithm::Star => "star",
            Algorithm::Tree => "tree",
        }
    }

    /// All names, for messages.
    pub fn names() -> String {
        Algorithm::ALL.map(Algorithm::name).join(", ")
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    /// Names are strict, with one alias: `halving` is `circulant`, the form of halving and doubling that
    /// takes any number of ranks.
    fn from_str(given: &str) -> Result<Self, Error> {
        let name = if given == "halving" { "circulant" } else { given };
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or_else(|| {
            Error::argument(
                format!("unknown allreduce algorithm {given:?}"),
                format!("the algorithms are {} (halving is another name of circulant)", Algorithm::names()),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_as_itself() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        assert_eq!("halving".parse(), Ok(Algorithm::Circulant));
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_names() {
        for given in ["rign", "Ring", "", "auto"] {
            let error = given.parse::<Algorithm>().expect_err("not a name").to_string();
            assert!(error.contains(&format!("{given:?}")), "{error}");
            assert!(error.contains("ring, direct, circulant, doubling, star, tree"), "{error}");
        }
    }

    #[test]
    fn moves_without_elements_are_left_out() {
        let mut plan = Plan::new(Parts::even(2, 3));
        plan.send(1, 2..3);
        plan.recv(1, 2..3, Then::Copy);
        assert_eq!(plan.moves, []);
        plan.send(1, 1..3);
        assert_eq!((plan.moves.len(), plan.sent_len()), (1, 1));
    }
}
