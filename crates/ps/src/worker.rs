//! A worker's end of the job. Calls become commands for the one thread that owns the sockets, `worker_loop`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use ringpull_base::config::{self, Config, Dmlc, Role};
use ringpull_base::status::JobStatus;
use ringpull_base::{Error, Key, Kind, OnFault, Result, waits};
use ringpull_session::DialTarget;

use crate::call::has_left;
pub use crate::call::{Bytes, Command, ServerAnswer, Task, WorkerState, WorkersChanged};
use crate::link::{self, Link};
use crate::message::Job;
use crate::shard::Layout;
use crate::socket::{self, Bell, Connection};
use crate::status;
use crate::worker_loop::{Patience, WorkerLoop};

/// A worker that has joined its job.
pub struct Worker {
    job: Job,
    commands: Sender<Command>,
    /// Ends the wait of the thread.
    bell: Bell,
    shared: Arc<WorkerState>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The files to remove when this worker leaves.
    files: Mutex<Vec<PathBuf>>,
    /// Locked while a caller asks for the states of the nodes.
    asking: Mutex<()>,
}

impl Worker {
    /// Joins the job. Returns when every node has joined.
    pub fn join(kind: Kind, config: &Config, dmlc: &Dmlc) -> Result<Self> {
        let bell = Bell::default();
        let info = link::describe(Role::Worker, dmlc, 0)?;
        let (link, job) = Link::register(&bell, config, dmlc, info, Some(kind))?;
        if config.elastic && !job.is_elastic {
            return Err(Error::argument(
                "the job's scheduler does not go on without lost workers, and this worker asks for it",
                "set RINGPULL_ELASTIC=1 for every process of the job, as `ringpull launch --elastic` does",
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
            let target = DialTarget {
                to: vec![SocketAddr::new(address, server.port)],
                name: format!("server {index}"),
                identity: job.identity(job.rank, job.incarnation),
                secret: config::secret()?,
                settings: socket::WORKER,
                has_port: false,
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

    /// The job's description, as the scheduler has sent it.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Returns this worker's number among the present workers.
    pub fn rank(&self) -> usize {
        self.shared.rank.load(Ordering::Relaxed)
    }

    /// The number of workers.
    pub fn num_workers(&self) -> usize {
        self.shared.num_workers.load(Ordering::Relaxed)
    }

    /// Returns the number of times that workers were lost or have come.
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Relaxed)
    }

    /// Returns these changes since this worker came, without the first `seen`.
    pub fn changes(&self, seen: usize) -> Vec<WorkersChanged> {
        self.shared.changes.lock().get(seen..).unwrap_or_default().to_vec()
    }

    /// The state that the thread shares with its callers.
    pub fn shared(&self) -> &WorkerState {
        &self.shared
    }

    /// The first fatal fault.
    pub fn fault(&self) -> Option<Error> {
        self.shared.fault.lock().clone()
    }

    /// Calls `hook` with the first fault, at once if it has come already. To be called once.
    pub fn on_fault(&self, hook: OnFault) {
        let hook = self.shared.on_fault.get_or_init(|| hook);
        if let Some(fault) = self.fault() {
            hook(&fault);
        }
    }

    /// Returns a function that ends the job with a fault from outside.
    pub fn fail_with(&self) -> OnFault {
        let (commands, bell) = (self.commands.clone(), self.bell.clone());
        Box::new(move |fault| {
            // After the thread has ended, nobody can be told.
            if commands.send(Command::Fail(fault.clone())).is_ok() {
                bell.ring();
            }
        })
    }

    /// Returns the states of the job's nodes that answer in time. Blocks for about a second at most.
    pub fn status(&self) -> JobStatus {
        // A later question would replace one that is not answered.
        let _one = self.asking.lock();
        JobStatus::ask(|| {
            let (answers, come) = channel();
            // After the thread has ended, nobody answers.
            drop(self.submit(Command::Describe { answers }));
            status::collect(&self.job, self.fault().map(|fault| fault.to_string()), &come)
        })
    }

    /// Returns true if this worker leaves the job, or has left it.
    pub fn is_leaving(&self) -> bool {
        self.shared.leaving.load(Ordering::Acquire)
    }

    /// Removes the file when this worker leaves the job.
    pub fn remove_at_end(&self, file: PathBuf) {
        self.files.lock().push(file);
    }

    /// Records the reason that this worker would give if it ended now. It is sent to the scheduler, because a
    /// worker that just exits sends no goodbye.
    pub fn failing(&self, why: Option<&str>) {
        let had_told = self.shared.failing.swap(why.is_some(), Ordering::AcqRel);
        if !(had_told || why.is_some()) || self.fault().is_some() {
            return;
        }
        if let Err(cause) = self.submit(Command::Failing(why.map(str::to_owned))) {
            tracing::debug!(%cause, "cannot report to the scheduler why this worker may end");
        }
    }

    /// Passes a command to the thread.
    pub fn submit(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| self.ended())?;
        self.bell.ring();
        Ok(())
    }

    /// Waits for the next answer. The thread answers every command, with an error if necessary.
    pub fn wait<T>(&self, answers: &Receiver<Result<T>>) -> Result<T> {
        let _wait = waits::wait();
        waits::until(|limit| match limit {
            Some(limit) => self.wait_within(answers, limit),
            None => answers.recv().unwrap_or_else(|_| Err(self.ended())).map(Some),
        })
    }

    /// Waits as [`wait`](Self::wait) does. Returns `None` if no answer comes within `limit`.
    pub fn wait_within<T>(&self, answers: &Receiver<Result<T>>, limit: Duration) -> Result<Option<T>> {
        match answers.recv_timeout(limit) {
            Ok(answer) => answer.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// Runs `task`, and passes every answer to `take` when it comes.
    pub fn ask(
        &self,
        key: &Key,
        layout: &Arc<Layout>,
        priority: i32,
        expected: usize,
        task: impl FnOnce(Sender<Result<ServerAnswer>>) -> Task,
        mut take: impl FnMut(ServerAnswer) -> Result<()>,
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

    /// Leaves the job in order, when everything that was called is done. Other threads may be in a call: a
    /// call that waits is answered first, and later calls are errors.
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
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.leave();
        let received = self.shared.received.load(Ordering::Relaxed);
        tracing::debug!(rank = self.job.rank, received, "left the job");
    }
}
