//! What ranks tell each other over the control star. docs/protocol.md has the table of these messages.

use serde::{Deserialize, Serialize};

use ringpull_base::timeline::Name;
use ringpull_base::topology::Peer;
use ringpull_base::{DType, Error, Key};

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

/// What a job asks of the wire. The same on every rank, but for the priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wire {
    /// A whole collective, when nothing else is under way.
    Alone,
    /// A sum over all ranks, beside others.
    Sum {
        /// Its element type.
        dtype: DType,
        /// Its length.
        len_bytes: usize,
        /// A higher one goes first.
        priority: i32,
    },
}

/// What has to be the same on every rank for an operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Terms {
    /// In words: dtype, shape, optimizer.
    pub words: String,
    /// How the ranks sum, in words, where that is to be compared; said only if it differs and nothing else
    /// does.
    pub how: String,
    /// As data, for a rank that stands in for a call that it has not made.
    pub settings: Vec<u8>,
}

impl<T: Into<String>> From<T> for Terms {
    fn from(words: T) -> Self {
        Terms { words: words.into(), ..Terms::default() }
    }
}

impl std::fmt::Display for Terms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words)
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

/// One operation of a frozen cycle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What it is about.
    pub topic: Topic,
    /// Which operation of the topic it is in the first cycle.
    pub ordinal: u64,
    /// `push`, `barrier`, ...
    pub operation: String,
    /// What has to be the same on every rank.
    pub terms: Terms,
    /// What it asks of the wire.
    pub wire: Wire,
}

/// What rank 0 tells every rank when it freezes the sequence of calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    /// Counts the freezes.
    pub epoch: u32,
    /// The last operation that was agreed on by itself.
    pub last: Launch,
    /// The number of the first unit.
    pub number: u32,
    /// The operations of a cycle, in the order in which rank 0 calls them.
    pub steps: Vec<Step>,
    /// The units of a cycle, as indices of `steps`.
    pub units: Vec<Vec<u32>>,
}

/// How far a rank has come in a frozen cycle that was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Which cycle.
    pub epoch: u32,
    /// Units begun.
    pub begun: u64,
    /// What this rank has not called of the next unit: the key and the operation.
    pub missing: Option<(Key, String)>,
}

/// How far every rank has to go in a frozen cycle that was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTo {
    /// Which cycle.
    pub epoch: u32,
    /// Units to begin.
    pub until: u64,
    /// A rank that has begun them all.
    pub by: usize,
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

/// What ranks tell each other over the control star.
#[derive(Serialize, Deserialize)]
pub(super) enum Note {
    Here(Peer),
    /// To rank 0: an operation was called.
    Called(Call),
    /// To rank 0: the frozen cycle of this epoch cannot go on.
    Thaw(u32, Option<Overdue>),
    /// To rank 0: this rank has called what it owed of a frozen cycle that was stopped.
    Even,
    /// To rank 0: this rank has no data left.
    Joined,
    /// To rank 0: how far this rank has come in a frozen cycle.
    Stopped(Stopped),
    /// From rank 0.
    Order(Order),
    Failed(Error),
    /// This rank calls no more; how far it has come in a frozen cycle.
    Leaving(Option<Stopped>),
    /// To rank 0: this rank is leaving, and all that it has called is done.
    Done,
    /// From rank 0: every rank is done.
    Ending,
    Alive,
    /// Why this rank would end, if it ended now: its last call failed.
    Failing(Option<String>),
    /// To rank 0: this rank waits in a call for what cannot begin, or does so no more.
    Stuck(Option<Stuck>),
    /// To rank 0: messages of MPI are under way here, and none has moved for a while; or they move again.
    DataStill(bool),
    /// From rank 0: others wait for this rank; where is its program?
    Where,
    /// There.
    At(String),
    /// What time is it? With the asker's own.
    Asked(u64),
    /// The asker's time, and rank 0's.
    Answered(u64, u64),
}

impl Note {
    /// Whether it is about an operation, and not about the state of a process.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self, Note::Called(_) | Note::Joined | Note::Thaw(..) | Note::Even | Note::Stopped(_) | Note::Order(_))
    }
}
