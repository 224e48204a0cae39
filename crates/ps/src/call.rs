//! The calls of a worker as its thread gets them, the thread's answers, and the state that callers and thread
//! share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use ringpull_base::{Buffer, DType, Error, Key, OnFault, Result, TensorMut, TensorRef};
use ringpull_kernels::optim::{Optimizer, State};

use crate::coded::KeyCodes;
use crate::message::{CallsMade, Job, PullTarget};
use crate::scheduler::lost_node;
use crate::shard::Layout;
use crate::status::NodeStatus;

/// The bytes of a gradient while they are sent.
pub enum Bytes {
    /// In the caller's tensor, locked against writers.
    Held(TensorRef),
    /// In memory of our own.
    Owned(Buffer),
    /// In memory that is shared and not written.
    Shared(Arc<Buffer>),
    /// In the output with this index.
    InPlace(usize),
    /// In memory of our own, compressed.
    Coded(KeyCodes),
    /// Nowhere.
    Nothing,
}

impl Bytes {
    /// Returns the bytes of a gradient that is not compressed. `outs` are the outputs of the push.
    pub(crate) fn bytes<'a>(&'a self, outs: &'a [TensorMut]) -> &'a [u8] {
        match self {
            Bytes::Held(tensor) => tensor.bytes(),
            Bytes::Owned(buffer) => buffer.bytes(),
            Bytes::Shared(buffer) => buffer.bytes(),
            Bytes::InPlace(index) => outs[*index].bytes(),
            Bytes::Coded(_) | Bytes::Nothing => &[],
        }
    }
}

/// The work for each segment of a key.
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum Task {
    /// The key's first value, if this is rank 0.
    Init { dtype: DType, shape: Vec<u64>, value: Bytes },
    /// This worker's gradient of `round`, which the optimizer of version `optimizer` applies. The new value
    /// is written to `outs`, and then `applied` is at least `round`.
    Push { gradient: Bytes, outs: Vec<TensorMut>, round: u64, optimizer: u64, applied: Arc<AtomicU64> },
    /// Like `Push`, of some rows, which `units` names.
    PushRows { units: Vec<usize>, rows: Arc<Buffer>, round: u64, optimizer: u64 },
    /// The value after `rounds` of this worker's pushes, or some rows of it. Each message has an answer.
    Pull { rounds: u64, want: PullTarget, units: Vec<usize>, answers: Sender<Result<ServerAnswer>> },
    /// The optimizer's states of the segments. Each has an answer.
    SetState { optimizer: u64, states: Vec<State>, answers: Sender<Result<ServerAnswer>> },
}

/// A server's answer to one message.
pub struct ServerAnswer {
    /// The index in the layout of the first segment that the message was about.
    pub segment: usize,
    /// The bytes of the answer.
    pub payload: Vec<u8>,
    /// The optimizer's state, if it was asked for.
    pub state: Option<State>,
}

/// The commands of the thread.
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum Command {
    /// Do `task` with every segment of a key.
    Run { key: Key, layout: Arc<Layout>, priority: i32, task: Task },
    /// Later pushes are applied by `optimizer`, which has this version.
    SetOptimizer { version: u64, optimizer: Optimizer },
    /// Take part in rounds and barriers. For a worker that has come later. The answer has the calls of the
    /// others.
    Enter { done: Sender<Result<CallsMade>> },
    /// Take part in a barrier. `done` is answered when all workers have come.
    Barrier { done: Sender<Result<()>> },
    /// The reason that this worker would give if it ended now.
    Failing(Option<String>),
    /// End with a fault from outside, and report it to every node.
    Fail(Error),
    /// Ask every node for its state.
    Describe { answers: Sender<NodeStatus> },
    /// End. Say goodbye first, unless the program panicked.
    Close { panicked: bool },
}

/// The state that the thread and its callers share.
#[derive(Default)]
pub struct WorkerState {
    /// The changes since this worker came.
    pub(crate) changes: Mutex<Vec<WorkersChanged>>,
    /// The number of changes, this worker's number, and the number of workers.
    pub(crate) generation: AtomicU64,
    pub(crate) rank: AtomicUsize,
    pub(crate) num_workers: AtomicUsize,
    /// The first fatal fault.
    pub fault: Mutex<Option<Error>>,
    /// The function that is called with the first fault.
    pub(crate) on_fault: OnceLock<OnFault>,
    /// True if the scheduler has a reason for which this worker would end.
    pub(crate) failing: AtomicBool,
    /// True if this worker leaves, or has left, the job.
    pub(crate) leaving: AtomicBool,
    /// Payload bytes sent.
    pub sent: AtomicU64,
    /// Payload bytes received.
    pub received: AtomicU64,
    /// Messages without a payload.
    pub control: AtomicU64,
}

/// A change of the workers of an elastic job: workers were lost or have come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkersChanged {
    /// The number of changes, including this one.
    pub generation: u64,
    /// This worker's number from then on. Present workers are numbered in the order of their ranks.
    pub rank: usize,
    /// The number of workers.
    pub num_workers: usize,
    /// The numbers that the lost workers had. Empty if workers have come.
    pub lost: Vec<usize>,
}

/// Sends an answer to a caller. The caller may no longer wait for it.
pub(crate) fn answer<T>(to: &Sender<Result<T>>, with: Result<T>) {
    if to.send(with).is_err() {
        tracing::debug!("nobody waits for an answer any more");
    }
}

/// Returns the error that the other nodes get when this worker panics.
pub(crate) fn panicked(job: &Job) -> Error {
    lost_node(job.worker_name(job.rank), Some(job.rank), "it panicked".to_owned())
}

/// Returns the error of a call after the store was closed.
pub(crate) fn has_left() -> Error {
    Error::argument("the store has been closed", "create another one")
}
