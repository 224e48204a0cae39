//! What the nodes of a job say to each other.
//!
//! A message is a frame: a header, which is [`MAGIC`] and a `postcard` encoded enum, and the raw bytes of a
//! segment if there are any. Decoding is total: whatever cannot be decoded is `None`, and no length inside a
//! header is used to allocate memory.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use ringpull_base::config::Role;
use ringpull_base::status::RankStatus;
use ringpull_base::{DType, Error, Key, Kind};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::{Optimizer, State};

/// The first bytes of every header: the protocol's name and version.
pub const MAGIC: &[u8; 5] = b"RPPS\x0a";

/// The longest header that is looked at.
pub const MAX_HEADER_BYTES: usize = 64 << 20;

/// A segment of a key, as workers and servers name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The key.
    pub key: Key,
    /// The index of the segment within the key.
    pub segment: u32,
}

/// Segments of a key on one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// The key.
    pub key: Key,
    /// The segments' indices within the key, ascending. Units are counted from the first one's first, through
    /// one segment after the other.
    pub segments: Vec<u32>,
}

/// From a worker to a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// The key's dtype and shape as this worker gave them; rank 0's carries the segment's first value as
    /// payload, and in an elastic job every worker's does.
    Init {
        /// Which segment.
        place: Place,
        /// The key's element type.
        dtype: DType,
        /// The key's shape.
        shape: Vec<u64>,
        /// The size of this segment.
        len_bytes: u64,
        /// The size of one unit of the segment, which row ids count.
        unit_bytes: u64,
        /// How many segments of the key this server has.
        here: u32,
        /// True if other servers have segments of the key.
        spans: bool,
    },
    /// A dense gradient of the segment, as payload.
    Push {
        /// Which segment.
        place: Place,
        /// The how manieth push of this segment by this worker it is, from 1.
        round: u64,
        /// The version of the optimizer when it was pushed, 0 for none.
        optimizer: u64,
        /// How the payload is compressed, if it is.
        compression: Option<Compression>,
        /// What to send when the round is done, and where to.
        reply: Option<(PullTarget, u64)>,
    },
    /// A row-sparse gradient of some segments: the payload is the code of its units' ids
    /// ([`row_ids`](ringpull_kernels::row_ids)), and then the units.
    PushRows {
        /// Which segments.
        places: Places,
        /// As in `Push`.
        round: u64,
        /// As in `Push`.
        optimizer: u64,
        /// The length of the code of the ids.
        ids_bytes: u64,
        /// Where to send a word when the round of all these segments is done.
        word: Option<u64>,
    },
    /// The segments' value, after this many rounds of each.
    Pull {
        /// Which segments.
        places: Places,
        /// The rounds that must have been applied.
        rounds: u64,
        /// What to send.
        want: PullTarget,
        /// Where to send the value.
        reply: u64,
    },
    /// Pushes that name this version are applied by this optimizer, as it is for their key.
    SetOptimizer {
        /// Counted from 1 by every worker alike.
        version: u64,
        /// The oldest version that a push still to come may name.
        oldest: u64,
        /// The optimizer.
        optimizer: Optimizer,
    },
    /// Who keeps the segments from having had this many rounds?
    WhoIsMissing {
        /// Which segments.
        places: Places,
        /// The rounds waited for.
        rounds: u64,
        /// Where the answer is to go.
        reply: u64,
    },
    /// Replaces the optimizer's state of the segment.
    SetState {
        /// Which segment.
        place: Place,
        /// The rule the state belongs to, by the version of the optimizer that has it.
        optimizer: u64,
        /// The state.
        state: State,
        /// Where to send the confirmation.
        reply: u64,
    },
    /// Is answered once everything before it has arrived.
    Flush {
        /// Where the answer is to go.
        reply: u64,
    },
    /// In an elastic job: this worker's push is with every server that has segments of the key.
    Commit {
        /// The key.
        key: Key,
        /// The push, from 1; 0 is the init.
        round: u64,
    },
}

/// What a pull asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullTarget {
    /// All of it.
    Value,
    /// The units whose ids the payload is the code of, as in [`Request::PushRows`].
    Rows,
    /// Only the confirmation.
    Word,
    /// The optimizer's state of one segment.
    State,
}

/// From a server to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// What was asked for, as payload.
    Value {
        /// The number the request gave.
        reply: u64,
    },
    /// The answer to `WhoIsMissing`; empty if nobody is.
    Missing {
        /// The number the request gave.
        reply: u64,
        /// `init` or `push`: what they have not done.
        operation: String,
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// The answer to `Pull` of `PullTarget::State`.
    State {
        /// The number the request gave.
        reply: u64,
        /// The state.
        state: State,
    },
    /// In an elastic job: this server has all of its segments of a push, and others have some too.
    Arrived {
        /// The key.
        key: Key,
        /// The push, from 1; 0 is the init.
        round: u64,
    },
}

/// The pushes of a lost worker that a server knows to be whole: to be with every server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholePushes {
    /// All of these rounds: they are done.
    pub completed: u64,
    /// These beside them; 0 is the init.
    pub rounds: BTreeSet<u64>,
}

/// The same for each key that has segments on several servers.
pub type WholeKeys = BTreeMap<Key, WholePushes>;

/// Where a worker that comes later begins: what those that are there have called.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallsMade {
    /// The pushes of each key.
    pub pushes: BTreeMap<Key, u64>,
    /// The optimizer with its version.
    pub optimizer: Option<(u64, Optimizer)>,
}

/// The longest text in a message to the scheduler, in bytes.
const LONGEST_TEXT: usize = 300;

/// The text, cut if it is longer.
pub(crate) fn short(text: String) -> String {
    if text.len() > LONGEST_TEXT { text.chars().take(LONGEST_TEXT).chain("...".chars()).collect() } else { text }
}

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Worker or server.
    pub role: Role,
    /// The address the others reach it by.
    pub address: String,
    /// A server's port, 0 for a worker.
    pub port: u16,
    /// Its process.
    pub pid: u32,
    /// Its host's name.
    pub host: String,
}

/// From a node to the scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToScheduler {
    /// The node wants to take part.
    Register {
        /// Who it is.
        info: NodeInfo,
        /// The rank it would like.
        preferred: Option<usize>,
        /// A worker's kind of store.
        kind: Option<Kind>,
        /// `DMLC_NUM_WORKER` as this node has it.
        num_workers: usize,
        /// `DMLC_NUM_SERVER` as this node has it.
        num_servers: usize,
    },
    /// The node lives, and has moved this many payload bytes since it started.
    Heartbeat {
        /// Sent and received.
        moved: u64,
    },
    /// The worker has come to this barrier, counted from 1.
    Barrier {
        /// Which.
        number: u64,
    },
    /// The worker is connected to all servers.
    Connected,
    /// Something happened that ends the job.
    Fault(Error),
    /// The worker has waited without progress for the ranks that this [`Error::Stalled`] names.
    Stalled(Error),
    /// The worker's program waits in a call for what these ranks have not called, and does nothing else.
    /// Until it moves payload again.
    Waits {
        /// Where it waits, if that is known, and for what: the text after `rank 1 waits`.
        what: String,
        /// The ranks; none if it no longer waits.
        missing: Vec<usize>,
    },
    /// The node is done.
    Goodbye,
    /// The error that the worker would end with, if it ended now; `None`: none any more.
    Failing(Option<String>),
    /// What does every node do?
    Describe {
        /// The question's number.
        question: u64,
    },
    /// What this node does, as it was asked.
    Described {
        /// The number that the scheduler gave.
        question: u64,
        /// What it does.
        status: Box<RankStatus>,
    },
    /// A worker that has come later wants to take part in rounds and barriers.
    Enter,
    /// The answer to `Count`.
    Counts(CallsMade),
    /// A server's answer to `Lost`: it takes no more from that worker.
    Known {
        /// The worker's rank.
        rank: usize,
        /// Its pushes that are whole.
        whole: WholeKeys,
    },
    /// A server's answer to `Settle`.
    Settled {
        /// The worker's rank.
        rank: usize,
    },
    /// A server's answer to `Join`.
    Joined {
        /// The worker's rank.
        rank: usize,
    },
}

/// What a job is, once everybody is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The receiver's rank in its role.
    pub rank: usize,
    /// Tells this job's nodes from strangers.
    pub token: u64,
    /// The kind of store.
    pub kind: Kind,
    /// Keys of at least this many elements are split over all servers; the scheduler's setting holds for all.
    pub bigarray_bound: usize,
    /// The workers, by rank.
    pub workers: Vec<NodeInfo>,
    /// The servers, by rank.
    pub servers: Vec<NodeInfo>,
    /// True if it goes on without workers that it loses.
    pub is_elastic: bool,
    /// The number of workers that had come later when the receiver did, with it; 0 if it was there at the
    /// start. Tells it from earlier workers of its rank.
    pub incarnation: u32,
    /// How many changes of the workers there were before.
    pub generation: u64,
    /// The ranks of the workers that are there; the others are lost.
    pub present: Vec<usize>,
}

impl Job {
    /// Returns true if there are servers, and the receiver is among those of its role.
    pub(crate) fn has(&self, role: Role) -> bool {
        let own = if role == Role::Server { &self.servers } else { &self.workers };
        !self.servers.is_empty() && self.rank < own.len()
    }

    /// The nodes, as text: `4 workers and 2 servers on 3 hosts`.
    pub fn description(&self) -> String {
        let hosts: BTreeSet<&str> = self.workers.iter().chain(&self.servers).map(|node| node.host.as_str()).collect();
        let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let workers = counted(self.workers.len(), "worker");
        format!("{workers} and {} on {}", counted(self.servers.len(), "server"), counted(hosts.len(), "host"))
    }

    /// Returns true if a round has one push of each worker.
    pub(crate) fn is_sync(&self) -> bool {
        !self.kind.is_async()
    }

    /// Server `rank` as errors name it.
    pub(crate) fn server_name(&self, rank: usize) -> String {
        let NodeInfo { pid, host, address, port, .. } = &self.servers[rank];
        format!("server {rank} (pid {pid} on {host}, {address}:{port})")
    }

    /// Worker `rank` as errors name it.
    pub fn worker_name(&self, rank: usize) -> String {
        let NodeInfo { pid, host, .. } = &self.workers[rank];
        format!("worker rank {rank} (pid {pid} on {host})")
    }

    /// The routing identity at every server of worker `rank`. Its incarnation is its number among the workers
    /// that came later, 0 if it was there at the start.
    pub fn identity(&self, rank: usize, incarnation: u32) -> Vec<u8> {
        let mut identity = b"W".to_vec();
        identity.extend_from_slice(&self.token.to_le_bytes());
        identity.extend_from_slice(&(rank as u32).to_le_bytes());
        if incarnation > 0 {
            identity.extend_from_slice(&incarnation.to_le_bytes());
        }
        identity
    }

    /// The rank and incarnation whose [`identity`](Self::identity) it is.
    pub fn rank_of(&self, identity: &[u8]) -> Option<(usize, u32)> {
        let rest = identity.strip_prefix(b"W")?.strip_prefix(&self.token.to_le_bytes())?;
        let (rank, bytes) = rest.split_first_chunk::<4>()?;
        let rank = u32::from_le_bytes(*rank) as usize;
        let incarnation = match bytes {
            [] => 0,
            bytes => {
                Some(u32::from_le_bytes(bytes.try_into().ok()?)).filter(|number| self.is_elastic && *number > 0)?
            }
        };
        (rank < self.workers.len()).then_some((rank, incarnation))
    }
}

/// From the scheduler to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromScheduler {
    /// Everybody is there.
    Welcome(Job),
    /// The scheduler lives; the answer to a heartbeat.
    Alive,
    /// Every worker has come to this barrier.
    BarrierDone {
        /// Which.
        number: u64,
    },
    /// To workers: all of them that have not left are connected to all servers.
    AllConnected,
    /// A worker has left: waiting for it is an error.
    WorkerLeft {
        /// Which.
        rank: usize,
        /// The error that it had met last.
        why: Option<String>,
    },
    /// The job has failed.
    Abort(Error),
    /// The job has ended: the answer to `Goodbye`, and to servers after the last worker's.
    Farewell,
    /// What do you do?
    Describe {
        /// Where the answer belongs.
        question: u64,
    },
    /// What a node does.
    Described {
        /// The number that the worker gave.
        question: u64,
        /// The node's role.
        role: Role,
        /// Its rank in that role.
        rank: usize,
        /// What it does.
        status: Box<RankStatus>,
    },
    /// To workers of an elastic job: others have been lost or have come.
    Changed {
        /// The number of changes, with this one.
        generation: u64,
        /// The workers that are there now, by rank.
        workers: BTreeMap<usize, NodeInfo>,
    },
    /// To a worker of an elastic job: what has it called?
    Count,
    /// To a worker that has come later: it takes part from now on.
    Entered {
        /// The number of changes, with this one.
        generation: u64,
        /// The workers that are there now, by rank.
        workers: BTreeMap<usize, NodeInfo>,
        /// What the others have called.
        calls: CallsMade,
        /// The barriers they have met in.
        barriers: u64,
    },
    /// To servers: this worker is lost.
    Lost {
        /// Its rank.
        rank: usize,
        /// Its incarnation.
        incarnation: u32,
    },
    /// To servers, when all have answered `Lost`: these of its pushes count, and no others.
    Settle {
        /// Its rank.
        rank: usize,
        /// Those of keys that have segments on several servers.
        whole: WholeKeys,
    },
    /// To servers: this worker takes part in the rounds after these.
    Join {
        /// Its rank.
        rank: usize,
        /// Its incarnation.
        incarnation: u32,
        /// The rounds of each key that go on without it.
        after: BTreeMap<Key, u64>,
    },
}

/// The header frame of a message.
///
/// # Panics
/// Never: every message is an enum of plain fields.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_extend(message, MAGIC.to_vec()).expect("messages are enums of plain fields, which postcard can encode")
}

/// The message of a header frame; `None` if it is none of this protocol and version.
pub fn decode<T: DeserializeOwned>(header: &[u8]) -> Option<T> {
    let body = header.get(..header.len().min(MAX_HEADER_BYTES))?.strip_prefix(MAGIC)?;
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn push() -> Request {
        let place = Place { key: Key::from("conv1_weight"), segment: 3 };
        Request::Push { place, round: 7, optimizer: 1, compression: None, reply: Some((PullTarget::Value, 12)) }
    }

    #[test]
    fn a_message_survives_the_wire_and_another_version_does_not() {
        let mut header = encode(&push());
        assert_eq!(decode::<Request>(&header), Some(push()));
        header.push(0);
        assert_eq!(decode::<Request>(&header), None, "bytes after the message");
        header.pop();
        header[4] = 1;
        assert_eq!(decode::<Request>(&header), None, "another version");
    }

    #[test]
    fn only_the_jobs_own_identities_have_ranks() {
        let info = NodeInfo { role: Role::Worker, address: "::1".into(), port: 0, pid: 1, host: "h".into() };
        let job = Job {
            rank: 0,
            token: 77,
            kind: Kind::DistSync,
            bigarray_bound: 9,
            workers: vec![info.clone(), info],
            servers: Vec::new(),
            is_elastic: false,
            incarnation: 0,
            generation: 0,
            present: vec![0, 1],
        };
        assert_eq!(job.rank_of(&job.identity(1, 0)), Some((1, 0)));
        assert_eq!(job.rank_of(&job.identity(2, 0)), None);
        assert_eq!(job.rank_of(&job.identity(1, 3)), None, "nobody comes later");
        let elastic = Job { is_elastic: true, ..job.clone() };
        assert_eq!(elastic.rank_of(&job.identity(1, 3)), Some((1, 3)));
        assert_eq!(job.rank_of(&Job { token: 78, ..job.clone() }.identity(1, 0)), None);
        assert_eq!(job.rank_of(b"W"), None);
        assert_eq!(job.rank_of(b""), None);
        assert!(!job.has(Role::Worker), "a job without servers");
        let info = job.workers[0].clone();
        let job = Job { servers: vec![info], ..job };
        assert!(job.has(Role::Worker) && job.has(Role::Server) && !Job { rank: 2, ..job }.has(Role::Worker));
    }

    proptest! {
        #[test]
        fn decoding_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let framed = [MAGIC.as_slice(), &bytes].concat();
            for header in [&bytes, &framed] {
                decode::<Request>(header);
                decode::<Reply>(header);
                decode::<ToScheduler>(header);
                decode::<FromScheduler>(header);
            }
        }

        #[test]
        fn a_damaged_message_is_decoded_or_refused(at in 0usize..64, bit in 0u8..8) {
            let mut header = encode(&push());
            let at = at % header.len();
            header[at] ^= 1 << bit;
            decode::<Request>(&header);
            decode::<Request>(&header[..at]);
        }
    }
}
