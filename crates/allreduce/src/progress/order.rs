//! What ranks tell rank 0 of their calls, and what rank 0 answers.

use serde::{Deserialize, Serialize};

use ringpull_base::Key;
use ringpull_base::timeline::Name;

use crate::progress::calls::RunTo;
use crate::progress::frozen::Freeze;
use crate::progress::job::{Terms, Wire};

/// What an operation is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Topic {
    /// A key of the `store`-th store that the process created.
    Key {
        /// Which store.
        store: u32,
        /// Which key.
        key: Key,
    },
    /// A barrier.
    Barrier,
    /// A collective that is called directly, outside any store.
    Direct,
}

impl Topic {
    /// The topic in a timeline.
    pub(super) fn name(&self) -> Name {
        match self {
            Topic::Key { key, .. } => key.into(),
            Topic::Barrier => "barrier".into(),
            Topic::Direct => "collective".into(),
        }
    }

    pub(super) fn key(&self) -> Key {
        match self {
            Topic::Key { key, .. } => key.clone(),
            Topic::Barrier => Key::from("barrier"),
            Topic::Direct => Key::from("collective"),
        }
    }
}

/// One rank's call of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// What it is about.
    pub topic: Topic,
    /// How many calls on this topic the rank has made before.
    pub ordinal: u64,
    /// `init`, `push`, ...
    pub operation: String,
    /// What has to be the same on every rank.
    pub terms: Terms,
    /// What it asks of the wire.
    pub wire: Wire,
    /// Whether the rank's caller has waited for something since its call before.
    pub waited: bool,
}

impl Call {
    /// Whether two ranks that have called it so go together.
    pub(super) fn is_like(&self, other: &Call) -> bool {
        self.operation == other.operation && self.terms == other.terms
    }
}

/// An operation that every rank has called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// What it is about.
    pub topic: Topic,
    /// Which operation of the topic.
    pub ordinal: u64,
    /// Its place in the order of launches.
    pub number: u32,
    /// What was called, where a rank has joined and has to stand in for a call of its own.
    pub call: Option<Box<Call>>,
}

/// What rank 0 tells every rank, itself among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// An operation may begin.
    Launch(Launch),
    /// The sequence of calls is frozen.
    Freeze(Freeze),
    /// The frozen cycle of this epoch is stopped: say how far you have come.
    Stop(u32),
    /// How far to go in it.
    RunTo(RunTo),
    /// Every rank has joined, this one last.
    Joined(usize),
}

/// A rank has waited long for a unit of a frozen cycle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overdue {
    /// Whether the unit has begun on that rank, and does not come on.
    pub has_begun: bool,
    /// How long.
    pub waited_s: f64,
}

/// A rank waits in a call for what cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// How many orders of rank 0 it had heard.
    pub orders: u64,
    /// Where its program is, if that is known.
    pub site: Option<String>,
}
