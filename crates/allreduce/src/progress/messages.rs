//! The messages of the control star. docs/protocol.md has their table.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use ringpull_base::config::Config;
use ringpull_base::status::RankStatus;
use ringpull_base::timeline::Name;
use ringpull_base::topology::Peer;
use ringpull_base::{AlgorithmChoice, DType, Error, Key, Reduction};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::communicator::HelpRequest;
use crate::progress::topic_key::TopicKey;

/// The subject of an operation. Calls are counted per topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Topic {
    /// A key of the `store`-th store that the process created.
    Key {
        /// The number of the store.
        store: u32,
        /// The key in that store.
        key: TopicKey,
    },
    /// A barrier.
    Barrier,
    /// A collective that is called directly, outside any store.
    Direct,
    /// A collective of a communicator.
    Collective {
        /// The `comm`-th communicator or store that the process created.
        comm: u32,
        /// The ranks of its process set; `None` for all ranks of the job.
        set: Option<Vec<usize>>,
        /// The name that its callers give it. Collectives without a name are identified by their order.
        name: Option<Key>,
    },
    /// A send or a receive. Rank 0 pairs sends with receives (`agreement/envelopes.rs`).
    Message(Envelope),
}

/// The identity of a rank's send or receive. Ranks have their numbers in the job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Envelope {
    /// The number of the communicator, as for a collective.
    pub comm: u32,
    /// The communicator's ranks, if they are not all ranks of the job.
    pub among: Option<Vec<usize>>,
    /// The tag that the caller chose for the message.
    pub tag: u32,
    /// The rank that calls.
    pub rank: usize,
    /// The peer of the send or the receive.
    pub peer: Peering,
}

/// The peer of a send or a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Peering {
    /// A send: the rank that receives.
    To(usize),
    /// A receive: the rank that sends, or `None` for any rank.
    From(Option<usize>),
}

impl Peering {
    /// Returns the peer's rank, if it is known.
    pub fn rank(self) -> Option<usize> {
        match self {
            Peering::To(to) => Some(to),
            Peering::From(from) => from,
        }
    }

    /// Returns this peer with its rank converted by `number`.
    #[must_use]
    pub fn map(self, number: impl FnOnce(usize) -> usize) -> Self {
        match self {
            Peering::To(to) => Peering::To(number(to)),
            Peering::From(from) => Peering::From(from.map(number)),
        }
    }
}

impl Envelope {
    /// The name of the call in errors.
    fn key(&self) -> Key {
        let Envelope { rank, tag, .. } = self;
        Key::from(match self.peer {
            Peering::To(to) => format!("from rank {rank} to rank {to}, tag {tag}"),
            Peering::From(Some(from)) => format!("from rank {from} to rank {rank}, tag {tag}"),
            Peering::From(None) => format!("from any rank to rank {rank}, tag {tag}"),
        })
    }
}

impl Topic {
    /// The topic in a timeline.
    pub(super) fn name(&self) -> Name {
        match self {
            Topic::Key { key, .. } => key.key().into(),
            Topic::Barrier => "barrier".into(),
            Topic::Direct | Topic::Collective { name: None, .. } => "collective".into(),
            Topic::Collective { name: Some(name), .. } => name.into(),
            Topic::Message(envelope) => (&envelope.key()).into(),
        }
    }

    /// Returns the ranks that call the operation, if not all do.
    pub fn set(&self) -> Option<&[usize]> {
        match self {
            Topic::Collective { set, .. } => set.as_deref(),
            Topic::Message(envelope) => Some(std::slice::from_ref(&envelope.rank)),
            Topic::Key { .. } | Topic::Barrier | Topic::Direct => None,
        }
    }

    /// Returns true if the topic is a receive from any rank.
    pub(super) fn is_from_any(&self) -> bool {
        matches!(self, Topic::Message(Envelope { peer: Peering::From(None), .. }))
    }

    /// Returns true if the topic is a collective with a name.
    pub(super) fn is_named(&self) -> bool {
        matches!(self, Topic::Collective { name: Some(_), .. })
    }

    /// Returns true if calls that do not fit together fail only this one operation, and not the job.
    pub(super) fn is_collective(&self) -> bool {
        matches!(self, Topic::Collective { .. } | Topic::Message(_))
    }

    /// Returns true if the topics are of one communicator. All stores of the job count as one communicator.
    /// Messages share ranks only if their topics are equal.
    pub(super) fn shares_ranks(&self, other: &Topic) -> bool {
        let is_message = [self, other].iter().any(|topic| matches!(topic, Topic::Message(_)));
        if is_message { self == other } else { self.set() == other.set() }
    }

    pub(super) fn key(&self) -> Key {
        match self {
            Topic::Key { key, .. } => key.key().clone(),
            Topic::Barrier => Key::from("barrier"),
            Topic::Collective { name: Some(name), .. } => name.clone(),
            Topic::Direct | Topic::Collective { set: None, .. } => Key::from("collective"),
            Topic::Collective { set: Some(set), .. } => Key::from(format!("collective of ranks {set:?}").as_str()),
            Topic::Message(envelope) => envelope.key(),
        }
    }
}

/// A job's use of the transport. It is the same on every rank, except for the priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transfer {
    /// A collective that runs alone.
    Alone,
    /// Messages that the job chooses itself. They may run beside other operations.
    Messages {
        /// A higher one goes first.
        priority: i32,
    },
    /// A sum or another reduction over all ranks. It may run beside other operations.
    Sum {
        /// Its element type.
        dtype: DType,
        /// The reduction of two elements.
        reduction: Reduction,
        /// Its length.
        len_bytes: usize,
        /// A higher one goes first.
        priority: i32,
        /// True if each rank updates the sums of its part before all ranks get them.
        is_divided: bool,
    },
}

/// The kind of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// A key gets its first value.
    Init,
    /// Gradients are summed.
    Push,
    /// Row-sparse gradients are summed.
    PushRows,
    /// The ranks wait for each other.
    Barrier,
    /// A collective that is called directly, by its name.
    Collective(String),
}

impl Operation {
    /// Returns the operation by which some ranks of a communicator get their own communicator.
    pub fn split() -> Self {
        Operation::Collective("split".to_owned())
    }

    /// Returns the operation of a send and of a receive. Sender and receiver of a message call the same
    /// operation.
    pub fn message() -> Self {
        Operation::Collective("send and recv".to_owned())
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Operation::Init => "init",
            Operation::Push => "push",
            Operation::PushRows => "push_rows",
            Operation::Barrier => "barrier",
            Operation::Collective(name) => name,
        })
    }
}

/// The settings of sums, which must be the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    algorithm: AlgorithmChoice,
    segment_bytes: usize,
    segment_is_fixed: bool,
    /// The number of updates of a key after which its replicas are compared. 0 means never.
    pub check_replicas: u64,
    /// True if values are in the memory of devices.
    pub on_devices: bool,
}

impl From<&Config> for Sums {
    fn from(config: &Config) -> Self {
        let Config { algorithm, segment_bytes, segment_is_fixed, check_replicas, .. } = *config;
        Sums { algorithm, segment_bytes, segment_is_fixed, check_replicas, on_devices: false }
    }
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let most = if self.segment_is_fixed { "" } else { "up to " };
        write!(f, "by {} in segments of {most}{} bytes", self.algorithm, self.segment_bytes)?;
        if self.check_replicas > 0 {
            write!(f, ", replicas compared every {} updates", self.check_replicas)?;
        }
        f.write_str(if self.on_devices { " on devices" } else { "" })
    }
}

/// The arguments of an operation that must be the same on every rank. All fields are empty for an operation
/// without a key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// The key's element type and shape.
    pub value: Option<(DType, Arc<[usize]>)>,
    /// The optimizer that applies the sum to the value.
    pub optimizer: Option<Arc<Optimizer>>,
    /// True if each rank applies the sum only to its own part, and has the optimizer's states of this part
    /// only.
    pub is_sharded: bool,
    /// True if an updater applies the sum. Updaters cannot be compared.
    pub has_updater: bool,
    /// The compression of gradients.
    pub compression: Option<Compression>,
    /// The settings of sums. Only an init has them, so that they are compared once per key.
    pub sums: Option<Sums>,
    /// All other arguments that must be the same on every rank, as text.
    pub arguments: String,
}

impl std::fmt::Display for Terms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.iter().try_for_each(|(dtype, shape)| f.write_str(&dtype.of_shape(shape)))?;
        self.optimizer.iter().try_for_each(|optimizer| write!(f, " with {optimizer}"))?;
        f.write_str(if self.is_sharded { " sharded over the ranks" } else { "" })?;
        f.write_str(if self.has_updater { " with an updater" } else { "" })?;
        self.compression.iter().try_for_each(|compression| write!(f, " compressed by {compression}"))?;
        f.write_str(&self.arguments)
    }
}

/// One rank's call of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The subject of the call.
    pub topic: Topic,
    /// The number of earlier calls of this rank on this topic.
    pub ordinal: u64,
    /// The kind of the call.
    pub operation: Operation,
    /// The arguments that must be the same on every rank.
    pub terms: Terms,
    /// The call's use of the transport.
    pub transfer: Transfer,
    /// True if the rank's caller has waited for an operation since its previous call.
    pub waited: bool,
}

impl Call {
    /// Returns true if the calls of two ranks match.
    pub(super) fn is_like(&self, other: &Call) -> bool {
        self.operation == other.operation && self.terms == other.terms
    }
}

/// An operation that every rank has called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// The subject of the operation.
    pub topic: Topic,
    /// The operation's number among those of the topic.
    pub ordinal: u64,
    /// The operation's number in the order of launches.
    pub number: u32,
    /// The call, if a rank has joined and needs it to make its own job.
    pub call: Option<Box<Call>>,
    /// For a receive, the rank that sends.
    pub from: Option<usize>,
}

impl Launch {
    /// Returns the rank that sends a message and the rank that receives it, or `None` for other topics.
    pub fn ends(&self) -> Option<[usize; 2]> {
        match &self.topic {
            Topic::Message(Envelope { rank, peer: Peering::To(to), .. }) => Some([*rank, *to]),
            Topic::Message(Envelope { rank, peer: Peering::From(_), .. }) => Some([self.from?, *rank]),
            _ => None,
        }
    }
}

/// An operation of a communicator that its ranks have called differently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// The subject of the operation.
    pub topic: Topic,
    /// The operation's number among those of the topic.
    pub ordinal: u64,
    /// The error that names the difference.
    pub fault: Error,
}

/// One operation of a frozen cycle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The subject of the operation.
    pub topic: Topic,
    /// The operation's number among those of the topic, in the first cycle.
    pub ordinal: u64,
    /// The kind of the operation.
    pub operation: Operation,
    /// The arguments that must be the same on every rank.
    pub terms: Terms,
    /// The operation's use of the transport.
    pub transfer: Transfer,
}

/// The frozen sequence of calls, which rank 0 sends to every rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Freeze {
    /// Counts the freezes.
    pub epoch: u32,
    /// The last operation that was launched by itself.
    pub last: Launch,
    /// The number of the first unit.
    pub number: u32,
    /// The operations of a cycle, in the order in which rank 0 calls them.
    pub steps: Vec<Step>,
    /// The units of a cycle, as indices of `steps`.
    pub units: Vec<Vec<u32>>,
}

/// The progress of a rank in a frozen cycle that was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppedCycle {
    /// The epoch of the cycle.
    pub epoch: u32,
    /// The number of units begun.
    pub begun: u64,
    /// The first call of the next unit that this rank has not made: the key and the operation.
    pub missing: Option<(Key, Operation)>,
}

/// The end of a frozen cycle that was stopped. All ranks end it at one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTo {
    /// The epoch of the cycle.
    pub epoch: u32,
    /// The number of units to begin.
    pub until: u64,
    /// A rank that has begun all of them.
    pub by: usize,
}

/// An order of rank 0 to every rank, including itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// An operation may begin.
    Launch(Launch),
    /// One operation of a communicator fails.
    Refuse(Refusal),
    /// The sequence of calls is frozen.
    Freeze(Freeze),
    /// The frozen cycle of this epoch is stopped. The rank must report the units that it has begun.
    Stop(u32),
    /// The unit of that cycle at which every rank ends.
    RunTo(RunTo),
    /// Every rank has joined. The number is that of the last rank to join.
    Joined(usize),
    /// A rank wants to stop. The receiver must report the first call of `should_stop` at which it can stop.
    /// It must not return from this call or a later one before it knows the answer.
    ReportStop,
    /// All ranks stop at this call of `should_stop`.
    StopAt(u64),
    /// These names are forgotten. Every rank has made this number of calls of each name. Later calls count
    /// from 0.
    Forget(Vec<(Topic, u64)>),
}

impl Order {
    /// Returns true if the order is sent to this rank. An order about a process set concerns only the ranks
    /// of the set.
    pub fn concerns(&self, rank: usize) -> bool {
        let (Order::Launch(Launch { topic, .. }) | Order::Refuse(Refusal { topic, .. })) = self else { return true };
        topic.set().is_none_or(|set| set.contains(&rank))
    }
}

/// A report that a rank has waited long for a unit of a frozen cycle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overdue {
    /// True if the unit has begun on the reporting rank and makes no progress.
    pub has_begun: bool,
    /// The time that it has waited, in seconds.
    pub waited_s: f64,
}

/// A report that a rank waits in a call for an operation that cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The number of orders of rank 0 that the rank has received.
    pub orders: u64,
    /// True if an operation that the rank has called has begun, so that it may wait for data.
    pub has_begun: bool,
    /// The place in the rank's program where it waits, if that is known.
    pub site: Option<String>,
}

/// A message of the control star.
#[derive(Serialize, Deserialize)]
pub(super) enum ControlMessage {
    Here(Peer),
    /// To rank 0: an operation was called.
    Called(Call),
    /// To rank 0: the frozen cycle of this epoch cannot go on.
    Invalidate(u32, Option<Overdue>),
    /// To rank 0: this rank has made its outstanding calls of a frozen cycle that was stopped.
    CaughtUp,
    /// To rank 0: this rank has no data left.
    Joined,
    /// To rank 0: this rank's progress in a frozen cycle.
    Stopped(StoppedCycle),
    /// From rank 0.
    Order(Order),
    Failed(Error),
    /// This rank makes no more calls. Its progress in a frozen cycle comes with the message.
    Leaving(Option<StoppedCycle>),
    /// To rank 0: this rank is leaving, and all its operations are done.
    Done,
    /// From rank 0: every rank is done.
    Ending,
    /// A heartbeat.
    Alive,
    /// The error with which this rank would end if it ended now, because its last call has failed. `None`
    /// withdraws it.
    Failing(Option<String>),
    /// To rank 0: this rank waits in a call for an operation that cannot begin. `None`: it no longer waits.
    Stuck(Option<Stuck>),
    /// To rank 0: messages of MPI are under way on this rank, and none has moved for a while (true), or they
    /// move again (false).
    DataStill(bool),
    /// From rank 0: other ranks wait for this rank, so it must report the place of its program.
    Where,
    /// To rank 0: the place of this rank's program.
    At(String),
    /// A request for the receiver's state, from rank 0. Or a request to rank 0 for all states, from a rank
    /// that received SIGUSR1. The answer has the same number.
    Describe(u32),
    /// To rank 0: the answer to `Describe`.
    Described(u32, Box<RankStatus>),
    /// From rank 0: the state of all ranks, in lines.
    Everybody(String),
    /// A request for rank 0's time, with the time of the rank that asks.
    Asked(u64),
    /// The answer: the time of the rank that asked, and rank 0's time.
    Answered(u64, u64),
    /// To rank 0: this rank has forgotten the names.
    Forgot,
    /// To rank 0: the first call of `should_stop` at which this rank can stop.
    StopFrom(u64),
    /// From rank 0 to a helper: take part in this sum.
    Help(HelpRequest),
    /// From rank 0 or to rank 0: these ranks were silent for `RINGPULL_SILENCE`, and the others go on without
    /// them.
    Silent(Vec<usize>),
}

impl ControlMessage {
    /// Returns true if the message is about an operation, and not about the state of a process.
    pub(super) fn is_counted(&self) -> bool {
        matches!(
            self,
            ControlMessage::Called(_)
                | ControlMessage::Joined
                | ControlMessage::Invalidate(..)
                | ControlMessage::CaughtUp
                | ControlMessage::Stopped(_)
                | ControlMessage::Order(_)
                | ControlMessage::Help(_)
        )
    }

    /// Returns true if helpers send this message too. A helper calls nothing, and nobody waits for its calls.
    pub(super) fn is_of_a_helper(&self) -> bool {
        matches!(
            self,
            ControlMessage::Here(_)
                | ControlMessage::Failed(_)
                | ControlMessage::Alive
                | ControlMessage::Describe(_)
                | ControlMessage::Described(..)
                | ControlMessage::Asked(_)
        )
    }
}
