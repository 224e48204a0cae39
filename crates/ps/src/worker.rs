//! A worker's end: calls become commands for the one thread that owns its sockets, `worker_loop`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use ringpull_base::config::{self, Config, Dmlc, Role};
use ringpull_base::status::JobStatus;
use ringpull_base::{Buffer, DType, Error, Key, Kind, OnFault, Result, TensorMut, TensorRef, waits};
use ringpull_kernels::optim::{Optimizer, State};

use crate::check_replicas;
use crate::coded::Coded;
use crate::link::{self, Link};
use crate::message::{CallsMade, Job, Want};
use crate::scheduler::lost_node;
use crate::shard::Layout;
use crate::socket::{Bell, Connection, Limits, Target};
use crate::status::{self, Described};
pub use crate::worker_loop::WorkersChanged;
use crate::worker_loop::{Patience, WorkerLoop};

/// Where a gradient's bytes stand while they leave.
pub enum Bytes {
    /// In the caller's tensor, locked against writers.
    Held(TensorRef),
    /// In memory of our own.
    Owned(Buffer),
    /// In memory that is shared and not written.
    Shared(Arc<Buffer>),
    /// In this output.
    InPlace(usize),
    /// In memory of our own, compressed.
    Coded(Coded),
    /// Nowhere.
    Nothing,
}

impl Bytes {
    /// Those of a gradient that is not compressed; `outs` came with it.
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

/// What is done with each segment of a key.
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum Task {
    /// The key's first value, if this is rank 0.
    Init { dtype: DType, shape: Vec<u64>, value: Bytes },
    /// This worker's gradient of `round`, to be applied by the optimizer of that version; the new value is
    /// written to `outs`, and then `applied` is at least `round`.
    Push { gradient: Bytes, outs: Vec<TensorMut>, round: u64, optimizer: u64, applied: Arc<AtomicU64> },
    /// As `Push` of some rows, named by `units`.
    PushRows { units: Vec<usize>, rows: Buffer, round: u64, optimizer: u64 },
    /// The value after `rounds` of this worker's pushes, or some rows of it; an answer for each message.
    Pull { rounds: u64, want: Want, units: Vec<usize>, answers: Sender<Result<Answer>> },
    /// The optimizer's states of the segments; an answer for each.
    SetState { optimizer: u64, states: Vec<State>, answers: Sender<Result<Answer>> },
}

/// What a server answered to one message.
pub struct Answer {
    /// The first segment that it was about: its index in the layout.
    pub segment: usize,
    /// Its bytes.
    pub payload: Vec<u8>,
    /// The optimizer's state, if it was asked for.
    pub state: Option<State>,
}

/// The commands of the thread.
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum Command {
    /// Do `task` with every segment of a key.
    Run { key: Key, layout: Arc<Layout>, priority: i32, task: Task },
    /// Later pushes are applied by `optimizer`, known by its version.
    SetOptimizer { version: u64, optimizer: Optimizer },
    /// Take part in rounds and barriers, of a worker that has come later; answered with what the others have
    /// called.
    Enter { done: Sender<Result<CallsMade>> },
    /// Meet the other workers; `done` is answered when all have come.
    Barrier { done: Sender<Result<()>> },
    /// Why this worker would end, if it ended now.
    Failing(Option<String>),
    /// End with a fault from elsewhere, which every node is told.
    Fail(Error),
    /// Ask every node what it does.
    Describe { answers: Sender<Described> },
    /// Say goodbye, or not, and end.
    Close { panicked: bool },
}

/// What the thread and its callers share.
#[derive(Default)]
pub struct WorkerState {
    /// The changes since this worker came.
    pub(crate) changes: Mutex<Vec<WorkersChanged>>,
    /// How many there were, this worker's number, and how many workers there are.
    pub(crate) generation: AtomicU64,
    pub(crate) rank: AtomicUsize,
    pub(crate) num_workers: AtomicUsize,
    /// The first fatal fault.
    pub fault: Mutex<Option<Error>>,
    /// Who is told of it.
    pub(crate) on_fault: OnceLock<OnFault>,
    /// Whether the scheduler knows why this worker would end.
    failing: AtomicBool,
    /// Whether this worker leaves, or has left, the job.
    leaving: AtomicBool,
    /// Payload bytes sent.
    pub sent: AtomicU64,
    /// Payload bytes received.
    pub received: AtomicU64,
    /// Messages without a payload.
    pub control: AtomicU64,
}

/// A worker that has joined its job.
pub struct Worker {
    job: Job,
    commands: Sender<Command>,
    /// Ends the wait of the thread.
    bell: Bell,
    shared: Arc<WorkerState>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Removed when this worker leaves.
    files: Mutex<Vec<PathBuf>>,
    /// Held while somebody asks what the nodes are doing.
    asking: Mutex<()>,
}

impl Worker {
    /// Joins the job; returns when every node has.
    pub fn join(kind: Kind, config: &Config, dmlc: &Dmlc) -> Result<Self> {
        check_replicas(config, dmlc)?;
        let bell = Bell::default();
        let info = link::describe(Role::Worker, dmlc, 0)?;
        let (link, job) = Link::register(&bell, config, dmlc, info, Some(kind))?;
        if config.elastic && !job.is_elastic {
            return Err(Error::argument(
                "the job's scheduler does not go on without lost workers, and this worker asks for it",
                "set RINGPULL_ELASTIC=1 for every process of the job, as `ringpull launch --elastic` does",
            ));
        }
        if config.replicas > job.replicas {
            return Err(Error::argument(
                format!("the job's scheduler has RINGPULL_REPLICAS={}, this worker {}", job.replicas, config.replicas),
                "set RINGPULL_REPLICAS alike on every process of the job, as `ringpull launch --replicas` does",
            ));
        }
        let mut servers = Vec::new();
        for (index, server) in job.servers.iter().enumerate() {
            let address = server.address.parse().map_err(|_| Error::Protocol {
                rank: Some(job.rank),
                peer: format!("server {index}"),
                what: format!("the address {:?}", server.address),
                remedy: "set DMLC_NODE_HOST to an address of that host".to_owned(),
            })?;
            let target = Target {
                to: SocketAddr::new(address, server.port),
                name: format!("server {index}"),
                identity: job.identity(job.rank, job.incarnation),
                secret: config::secret()?,
                limits: Limits::WORKER,
            };
            servers.push(Connection::open(target, &bell)?);
        }
        let number = job.present.iter().position(|rank| *rank == job.rank).unwrap_or(job.rank);
        let shared = Arc::new(WorkerState {
            generation: job.generation.into(),
            rank: number.into(),
            num_workers: job.present.len().into(),
            ..WorkerState::default()
        });
        let (commands, inbox) = channel();
        let worker_loop =
            WorkerLoop::new(job.clone(), link, servers, inbox, bell.clone(), Arc::clone(&shared), Patience::of(config));
        let thread = std::thread::Builder::new()
            .name("ringpull-ps".to_owned())
            .spawn(move || worker_loop.run())
            .map_err(|cause| Error::io("start", "the thread that talks to the servers", &cause))?;
        Ok(Worker {
            job,
            commands,
            bell,
            shared,
            thread: Mutex::new(Some(thread)),
            files: Mutex::default(),
            asking: Mutex::default(),
        })
    }

    /// What the scheduler has said of the job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// This worker's number among those that are there.
    pub fn rank(&self) -> usize {
        self.shared.rank.load(Ordering::Relaxed)
    }

    /// How many workers are there.
    pub fn num_workers(&self) -> usize {
        self.shared.num_workers.load(Ordering::Relaxed)
    }

    /// How often workers were lost, or others have come.
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Relaxed)
    }

    /// These changes since this worker came, from the one at place `seen` on.
    pub fn changes(&self, seen: usize) -> Vec<WorkersChanged> {
        self.shared.changes.lock().get(seen..).unwrap_or_default().to_vec()
    }

    /// What the thread shares with its callers.
    pub fn shared(&self) -> &WorkerState {
        &self.shared
    }

    /// The first fatal fault.
    pub fn fault(&self) -> Option<Error> {
        self.shared.fault.lock().clone()
    }

    /// Lets `hook` know of the first fault, which may have come already. To be called once.
    pub fn on_fault(&self, hook: OnFault) {
        let hook = self.shared.on_fault.get_or_init(|| hook);
        if let Some(fault) = self.fault() {
            hook(&fault);
        }
    }

    /// What ends the job with a fault from elsewhere.
    pub fn fail_with(&self) -> OnFault {
        let (commands, bell) = (self.commands.clone(), self.bell.clone());
        Box::new(move |fault| {
            // After the end of the thread there is nobody to tell.
            if commands.send(Command::Fail(fault.clone())).is_ok() {
                bell.ring();
            }
        })
    }

    /// What every node of the job is doing, as far as it answers in time. Blocks, for about a second at most.
    pub fn status(&self) -> JobStatus {
        // A later question would take the place of one that is not answered.
        let _one = self.asking.lock();
        JobStatus::ask(|| {
            let (answers, come) = channel();
            // After the end of the thread nobody answers.
            drop(self.submit(Command::Describe { answers }));
            status::collect(&self.job, self.fault().map(|fault| fault.to_string()), &come)
        })
    }

    /// Whether this worker leaves the job, or has left it.
    pub fn is_leaving(&self) -> bool {
        self.shared.leaving.load(Ordering::Acquire)
    }

    /// Has the file removed when this worker leaves the job.
    pub fn remove_at_end(&self, file: PathBuf) {
        self.files.lock().push(file);
    }

    /// Why this worker would end, if it ended now; the scheduler is told, as a worker that just exits says no
    /// goodbye.
    pub fn failing(&self, why: Option<&str>) {
        let had_told = self.shared.failing.swap(why.is_some(), Ordering::AcqRel);
        if !(had_told || why.is_some()) || self.fault().is_some() {
            return;
        }
        if let Err(cause) = self.submit(Command::Failing(why.map(str::to_owned))) {
            tracing::debug!(%cause, "cannot report to the scheduler why this worker may end");
        }
    }

    /// Hands a command to the thread.
    pub fn submit(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| self.ended())?;
        self.bell.ring();
        Ok(())
    }

    /// The next answer. The thread answers every command, with an error if need be.
    pub fn wait<T>(&self, answers: &Receiver<Result<T>>) -> Result<T> {
        let _wait = waits::wait();
        waits::until(|limit| match limit {
            Some(limit) => self.wait_within(answers, limit),
            None => answers.recv().unwrap_or_else(|_| Err(self.ended())).map(Some),
        })
    }

    /// As [`wait`](Self::wait), but `None` if there is none within `limit`.
    pub fn wait_within<T>(&self, answers: &Receiver<Result<T>>, limit: Duration) -> Result<Option<T>> {
        match answers.recv_timeout(limit) {
            Ok(answer) => answer.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// Every answer to `task`, handed to `take` as it comes.
    pub fn ask(
        &self,
        key: &Key,
        layout: &Arc<Layout>,
        priority: i32,
        expected: usize,
        task: impl FnOnce(Sender<Result<Answer>>) -> Task,
        mut take: impl FnMut(Answer) -> Result<()>,
    ) -> Result<()> {
        let (sender, answers) = channel();
        let task = task(sender);
        self.submit(Command::Run { key: key.clone(), layout: Arc::clone(layout), priority, task })?;
        for _ in 0..expected {
            take(self.wait(&answers)?)?;
        }
        Ok(())
    }

    fn ended(&self) -> Error {
        let thread = || "the thread for parameter servers".to_owned();
        self.fault().unwrap_or_else(|| {
            if self.is_leaving() {
                has_left()
            } else {
                Error::ThreadEnded { thread: thread(), rank: Some(self.job.rank) }
            }
        })
    }

    /// Leaves the job in order, when everything that was called is done. Other threads may be in a call: one
    /// that waits is answered first, and later ones are errors.
    pub fn leave(&self) {
        self.shared.leaving.store(true, Ordering::Release);
        self.files.lock().drain(..).for_each(|file| drop(std::fs::remove_file(file)));
        let closing = self.submit(Command::Close { panicked: std::thread::panicking() });
        if closing.is_ok()
            && let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that talks to the parameter servers panicked");
        }
    }

    /// What is reported to the other nodes when this worker panics.
    pub(crate) fn panicked(job: &Job) -> Error {
        lost_node(job.worker_name(job.rank), Some(job.rank), "it panicked".to_owned())
    }
}

/// The error of a call after the store was closed.
pub(crate) fn has_left() -> Error {
    Error::argument("the store has been closed", "create another one")
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.leave();
        let received = self.shared.received.load(Ordering::Relaxed);
        tracing::debug!(rank = self.job.rank, received, "left the job");
    }
}
