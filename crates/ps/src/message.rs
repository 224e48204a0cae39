//! The messages between the nodes of a job.
//!
//! A message is a frame: a header, which is [`MAGIC`] and a `postcard` encoded enum, and the raw bytes of a
//! segment if there are any. Decoding never fails otherwise: a frame that cannot be decoded gives `None`, and
//! no length inside a header is used to allocate memory.

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

/// The greatest length of a header that is decoded.
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
    /// The segments' indices within the key, ascending. Units are counted from the first unit of the first
    /// segment, through all segments in order.
    pub segments: Vec<u32>,
}

/// From a worker to a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// The key's dtype and shape as this worker gave them. Rank 0's message has the segment's first value as
    /// payload. In an elastic job every worker's message has it.
    Init {
        /// The segment.
        place: Place,
        /// The key's element type.
        dtype: DType,
        /// The key's shape.
        shape: Vec<u64>,
        /// The size of this segment.
        len_bytes: u64,
        /// The size of one unit of the segment. Row ids count units.
        unit_bytes: u64,
        /// The number of segments of the key that this server has.
        here: u32,
        /// True if other servers have segments of the key.
        spans: bool,
    },
    /// A dense gradient of the segment, as payload.
    Push {
        /// The segment.
        place: Place,
        /// The number of this push among this worker's pushes of the segment, from 1.
        round: u64,
        /// The version of the optimizer at the time of the push, or 0 if there was none.
        optimizer: u64,
        /// The compression of the payload, if it is compressed.
        compression: Option<Compression>,
        /// The content of the answer when the round is done, and the number of the answer.
        reply: Option<(PullTarget, u64)>,
    },
    /// A row-sparse gradient of some segments. The payload is the code of its units' ids
    /// ([`row_ids`](ringpull_kernels::row_ids)), followed by the units.
    PushRows {
        /// The segments.
        places: Places,
        /// As in `Push`.
        round: u64,
        /// As in `Push`.
        optimizer: u64,
        /// The length of the code of the ids.
        ids_bytes: u64,
        /// The number of the confirmation to send when the round of all these segments is done.
        word: Option<u64>,
    },
    /// A request for the segments' value, after this number of rounds of each.
    Pull {
        /// The segments.
        places: Places,
        /// The rounds that must have been applied.
        rounds: u64,
        /// The content of the answer.
        want: PullTarget,
        /// The number of the answer.
        reply: u64,
    },
    /// Pushes that name this version are applied by this optimizer, with the factors of their key.
    SetOptimizer {
        /// The version. Every worker counts versions from 1 in the same way.
        version: u64,
        /// The oldest version that a later push may name.
        oldest: u64,
        /// The optimizer.
        optimizer: Optimizer,
    },
    /// A question for the workers that have not pushed yet, so that the segments have not had this number of
    /// rounds.
    WhoIsMissing {
        /// The segments.
        places: Places,
        /// The number of rounds for which the worker waits.
        rounds: u64,
        /// The number of the answer.
        reply: u64,
    },
    /// Replaces the optimizer's state of the segment.
    SetState {
        /// The segment.
        place: Place,
        /// The version of an optimizer with the rule to which the state belongs.
        optimizer: u64,
        /// The state.
        state: State,
        /// The number of the confirmation.
        reply: u64,
    },
    /// A request that is answered when everything before it has arrived.
    Flush {
        /// The number of the answer.
        reply: u64,
    },
    /// In an elastic job: every server that has segments of the key has received this worker's push.
    Commit {
        /// The key.
        key: Key,
        /// The number of the push, from 1. 0 is the init.
        round: u64,
    },
}

/// The content for which a pull asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullTarget {
    /// The whole value.
    Value,
    /// Some units. The payload is the code of their ids, as in [`Request::PushRows`].
    Rows,
    /// Only a confirmation.
    Word,
    /// The optimizer's state of one segment.
    State,
}

/// From a server to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The requested content, as payload.
    Value {
        /// The number that the request gave.
        reply: u64,
    },
    /// The answer to `WhoIsMissing`. It has no ranks if nobody is missing.
    Missing {
        /// The number that the request gave.
        reply: u64,
        /// The call that these ranks have not made: `init` or `push`.
        operation: String,
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// The answer to `Pull` of `PullTarget::State`.
    State {
        /// The number that the request gave.
        reply: u64,
        /// The state.
        state: State,
    },
    /// In an elastic job: this server has received all of its segments of a push. Other servers have segments
    /// too.
    Arrived {
        /// The key.
        key: Key,
        /// The number of the push, from 1. 0 is the init.
        round: u64,
    },
}

/// The pushes of a lost worker that a server knows to be whole, which means that every server has received
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholePushes {
    /// The number of rounds that are done. Their pushes are whole.
    pub completed: u64,
    /// The rounds of other whole pushes. 0 is the init.
    pub rounds: BTreeSet<u64>,
}

/// The whole pushes of each key that has segments on several servers.
pub type WholeKeys = BTreeMap<Key, WholePushes>;

/// The calls that the present workers have made. A worker that comes later begins there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallsMade {
    /// The pushes of each key.
    pub pushes: BTreeMap<Key, u64>,
    /// The optimizer with its version.
    pub optimizer: Option<(u64, Optimizer)>,
}

/// The longest text in a message to the scheduler, in bytes.
const LONGEST_TEXT: usize = 300;

/// Returns the text, cut if it is longer than `LONGEST_TEXT`.
pub(crate) fn short(text: String) -> String {
    if text.len() > LONGEST_TEXT { text.chars().take(LONGEST_TEXT).chain("...".chars()).collect() } else { text }
}

/// The information that a node sends about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Worker or server.
    pub role: Role,
    /// The address at which the others reach the node.
    pub address: String,
    /// A server's port, or 0 for a worker.
    pub port: u16,
    /// Its process.
    pub pid: u32,
    /// Its host's name.
    pub host: String,
}

/// From a node to the scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToScheduler {
    /// The node asks to take part.
    Register {
        /// The node's information about itself.
        info: NodeInfo,
        /// The rank that the node prefers.
        preferred: Option<usize>,
        /// A worker's kind of store.
        kind: Option<Kind>,
        /// `DMLC_NUM_WORKER` as this node has it.
        num_workers: usize,
        /// `DMLC_NUM_SERVER` as this node has it.
        num_servers: usize,
    },
    /// The node is alive, and has moved `moved` payload bytes since it started.
    Heartbeat {
        /// The bytes sent and received.
        moved: u64,
    },
    /// The worker has come to this barrier.
    Barrier {
        /// The barrier's number, from 1.
        number: u64,
    },
    /// The worker is connected to all servers.
    Connected,
    /// A fault that ends the job.
    Fault(Error),
    /// The worker has waited without progress for the ranks that the [`Error::Stalled`] names.
    Stalled(Error),
    /// The worker's program waits in a call for operations that these ranks have not called, and does nothing
    /// else. This holds until the worker moves payload again.
    Waits {
        /// The place where it waits, if that is known, and the operation: the text after `rank 1 waits`.
        what: String,
        /// The ranks. Empty if the worker no longer waits.
        missing: Vec<usize>,
    },
    /// The node is done.
    Goodbye,
    /// The error with which the worker would end if it ended now. `None` withdraws it.
    Failing(Option<String>),
    /// A question for the state of every node.
    Describe {
        /// The question's number.
        question: u64,
    },
    /// The state of this node, as the answer to a question.
    Described {
        /// The number that the scheduler gave.
        question: u64,
        /// The node's state.
        status: Box<RankStatus>,
    },
    /// A worker that has come later asks to take part in rounds and barriers.
    Enter,
    /// The answer to `Count`.
    Counts(CallsMade),
    /// A server's answer to `Lost`: it accepts no more messages from this worker.
    Known {
        /// The worker's rank.
        rank: usize,
        /// The worker's whole pushes.
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

/// The description of a job, when all nodes have registered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The receiver's rank in its role.
    pub rank: usize,
    /// The number by which the nodes of this job recognise each other.
    pub token: u64,
    /// The kind of store.
    pub kind: Kind,
    /// Keys of at least this number of elements are split over all servers. The scheduler's setting holds for
    /// all nodes.
    pub bigarray_bound: usize,
    /// The workers, by rank.
    pub workers: Vec<NodeInfo>,
    /// The servers, by rank.
    pub servers: Vec<NodeInfo>,
    /// True if the job goes on without workers that it loses.
    pub is_elastic: bool,
    /// The receiver's number among the workers that have come later, from 1, or 0 if it was there at the
    /// start. It distinguishes the receiver from earlier workers of its rank.
    pub incarnation: u32,
    /// The number of earlier changes of the workers.
    pub generation: u64,
    /// The ranks of the present workers. The others are lost.
    pub present: Vec<usize>,
}

impl Job {
    /// Returns true if there are servers and the receiver's rank exists in its role.
    pub(crate) fn has(&self, role: Role) -> bool {
        let own = if role == Role::Server { &self.servers } else { &self.workers };
        !self.servers.is_empty() && self.rank < own.len()
    }

    /// Returns the nodes, as text: `4 workers and 2 servers on 3 hosts`.
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

    /// Returns server `rank` as errors name it.
    pub(crate) fn server_name(&self, rank: usize) -> String {
        let NodeInfo { pid, host, address, port, .. } = &self.servers[rank];
        format!("server {rank} (pid {pid} on {host}, {address}:{port})")
    }

    /// Returns worker `rank` as errors name it.
    pub fn worker_name(&self, rank: usize) -> String {
        let NodeInfo { pid, host, .. } = &self.workers[rank];
        format!("worker rank {rank} (pid {pid} on {host})")
    }

    /// Returns the routing identity of worker `rank` at every server. Its incarnation is its number among the
    /// workers that came later, or 0 if it was there at the start.
    pub fn identity(&self, rank: usize, incarnation: u32) -> Vec<u8> {
        let mut identity = b"W".to_vec();
        identity.extend_from_slice(&self.token.to_le_bytes());
        identity.extend_from_slice(&(rank as u32).to_le_bytes());
        if incarnation > 0 {
            identity.extend_from_slice(&incarnation.to_le_bytes());
        }
        identity
    }

    /// Returns the rank and the incarnation that have this [`identity`](Self::identity).
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
    /// All nodes have registered.
    Welcome(Job),
    /// The scheduler is alive. This is the answer to a heartbeat.
    Alive,
    /// Every worker has come to this barrier.
    BarrierDone {
        /// The barrier's number, from 1.
        number: u64,
    },
    /// To workers: all workers that have not left are connected to all servers.
    AllConnected,
    /// A worker has left. Waiting for it is an error.
    WorkerLeft {
        /// The worker's rank.
        rank: usize,
        /// The worker's last error, if it had one.
        why: Option<String>,
    },
    /// The job has failed.
    Abort(Error),
    /// The job has ended. This is the answer to `Goodbye`, and goes to servers after the last worker's
    /// `Goodbye`.
    Farewell,
    /// A question for the receiver's state.
    Describe {
        /// The question's number.
        question: u64,
    },
    /// The state of a node.
    Described {
        /// The number of the worker's question.
        question: u64,
        /// The node's role.
        role: Role,
        /// The node's rank in this role.
        rank: usize,
        /// The node's state.
        status: Box<RankStatus>,
    },
    /// To workers of an elastic job: workers have been lost or have come.
    Changed {
        /// The number of changes, including this one.
        generation: u64,
        /// The present workers, by rank.
        workers: BTreeMap<usize, NodeInfo>,
    },
    /// To a worker of an elastic job: a question for the calls that it has made.
    Count,
    /// To a worker that has come later: it now takes part.
    Entered {
        /// The number of changes, including this one.
        generation: u64,
        /// The present workers, by rank.
        workers: BTreeMap<usize, NodeInfo>,
        /// The calls that the others have made.
        calls: CallsMade,
        /// The number of barriers that are done.
        barriers: u64,
    },
    /// To servers: this worker is lost.
    Lost {
        /// The worker's rank.
        rank: usize,
        /// The worker's incarnation.
        incarnation: u32,
    },
    /// To servers, when all have answered `Lost`: of the lost worker's pushes, only these count.
    Settle {
        /// The worker's rank.
        rank: usize,
        /// The whole pushes of keys that have segments on several servers.
        whole: WholeKeys,
    },
    /// To servers: this worker takes part in the rounds after `after`.
    Join {
        /// The worker's rank.
        rank: usize,
        /// The worker's incarnation.
        incarnation: u32,
        /// For each key, the number of rounds that are done without the worker.
        after: BTreeMap<Key, u64>,
    },
}

/// Returns the header frame of a message.
///
/// # Panics
/// Never: every message is an enum of plain fields.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_extend(message, MAGIC.to_vec()).expect("messages are enums of plain fields, which postcard can encode")
}

/// Returns the message of a header frame, or `None` if it is not of this protocol and version.
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
