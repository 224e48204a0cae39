//! The thread that owns a worker's sockets: commands in, segments out and back, and the link to the
//! scheduler.
//!
//! Each server has a `queue` of segments, ordered by priority and then by the order of the calls, with a
//! limit on what is not answered. A segment becomes a message when there is room for it, so that a late call
//! of high priority overtakes what has not left. An operation ends when all of its segments have left and the
//! last answer is in; then its guards are dropped. `patience` has the limits of waiting for answers;
//! `elastic`: what is more in a job that goes on without lost workers.

mod elastic;
mod patience;
mod queue;

use elastic::Membership;
pub use elastic::WorkersChanged;
pub(super) use patience::Patience;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use ringpull_base::config::Role;
use ringpull_base::status::{RankStatus, Stopwatch};
use ringpull_base::timeline::{self, Phase};
use ringpull_base::{Error, Result, notice};
use ringpull_kernels::optim::Optimizer;

use crate::link::Link;
use crate::message::{FromScheduler, Job, Reply, Request, ToScheduler, decode, encode};
use crate::operation::Operation;
use crate::socket::{Bell, Connection, Frame};
use crate::status::{self, Described, Question};
use crate::worker::{self, Command, Worker, WorkerState};
use crate::worker_loop::queue::{Queue, Queued};
pub use crate::worker_loop::queue::{WINDOW, WINDOW_BYTES};

/// Messages taken from one server before the others have their turn.
const BATCH: usize = 32;

/// The most messages to one server that wait to be written. The others stay in the queue, in the order of
/// their priorities.
const SEND_LIMIT: usize = 16;

struct ServerConnection {
    connection: Connection,
    optimizers: Vec<(u64, Optimizer)>,
    queue: Queue,
    broken: Option<Instant>,
}

/// A request that a server has not answered.
struct Waiting {
    item: Queued,
    server: usize,
    since: Instant,
    /// The same by the timeline's clock.
    since_ns: u64,
    sent_bytes: u64,
    /// The server has reported once that no worker is missing.
    vouched: bool,
}

/// How many servers were asked whether everything sent has arrived, and which answers are still to come.
#[derive(Default)]
struct Flush {
    asked: usize,
    replies: BTreeSet<u64>,
}

/// The thread's state.
pub(super) struct WorkerLoop {
    job: Job,
    link: Link,
    servers: Vec<ServerConnection>,
    inbox: Receiver<Command>,
    /// Signals that a command or a message has come.
    bell: Bell,
    shared: Arc<WorkerState>,
    patience: Patience,
    operations: BTreeMap<u64, Operation>,
    waiting: BTreeMap<u64, Waiting>,
    /// Segments of pushes that no caller waits for, each with its server, until a word says that they are
    /// done.
    words: BTreeMap<u64, (usize, Queued)>,
    barriers: Vec<(u64, Sender<Result<()>>)>,
    barrier_count: u64,
    next: u64,
    started: Instant,
    /// Operations and barriers called, and the pushes of the key that was pushed most often.
    calls: u64,
    steps: u64,
    /// For how long operations were under way.
    moving: Stopwatch,
    question: Option<Question>,
    progress: Instant,
    asked: Option<Instant>,
    /// When a server last reported which workers are missing.
    claimed: Option<Instant>,
    /// The workers that have left, each with its last error, and when this worker heard of the last of them.
    left: BTreeMap<usize, Option<String>>,
    left_since: Option<Instant>,
    flush: Flush,
    closing_since: Option<Instant>,
    closing: bool,
    elastic: Option<Membership>,
}

impl WorkerLoop {
    pub(crate) fn new(
        job: Job,
        link: Link,
        servers: Vec<Connection>,
        inbox: Receiver<Command>,
        bell: Bell,
        shared: Arc<WorkerState>,
        patience: Patience,
    ) -> Self {
        let servers = servers.into_iter().map(|connection| ServerConnection {
            connection,
            optimizers: Vec::new(),
            queue: Queue::default(),
            broken: None,
        });
        let elastic = job.is_elastic.then(|| Membership::new(&job));
        let mut servers: Vec<_> = servers.collect();
        if elastic.is_some() {
            // A round is answered when all of the key is there: no segment of it may wait for an answer.
            servers.iter_mut().for_each(|server: &mut ServerConnection| server.queue.leave());
        }
        WorkerLoop {
            job,
            link,
            servers,
            inbox,
            bell,
            shared,
            patience,
            operations: BTreeMap::new(),
            waiting: BTreeMap::new(),
            words: BTreeMap::new(),
            barriers: Vec::new(),
            barrier_count: 0,
            next: 0,
            started: Instant::now(),
            calls: 0,
            steps: 0,
            moving: Stopwatch::default(),
            question: None,
            progress: Instant::now(),
            asked: None,
            claimed: None,
            left: BTreeMap::new(),
            left_since: None,
            flush: Flush::default(),
            closing_since: None,
            closing: false,
            elastic,
        }
    }

    /// Runs until the store is dropped.
    pub(super) fn run(mut self) {
        while !(self.closing && self.operations.is_empty() && self.has_flushed()) {
            let was_closing = self.closing;
            match self.turn() {
                Ok(()) => {}
                Err(error) => {
                    if was_closing && !self.operations.is_empty() {
                        // No caller waits for an error here.
                        notice(&error.report());
                    }
                    if let Err(cause) = self.link.send(&ToScheduler::Fault(error.clone())) {
                        tracing::warn!(%cause, "cannot report a fault to the scheduler");
                    }
                    self.fail(&error);
                    break;
                }
            }
        }
        let failed = self.shared.fault.lock().clone();
        let limit = if failed.is_some() { Duration::ZERO } else { self.patience.silence };
        for server in self.servers {
            server.connection.close(limit);
        }
        match failed {
            None => {
                if let Err(error) = self.link.leave() {
                    tracing::warn!(%error, "cannot send a goodbye to the scheduler");
                }
            }
            Some(fault) => {
                self.link.close();
                // Every later call fails with the same error, until the store is dropped.
                while !self.closing
                    && let Ok(command) = self.inbox.recv()
                {
                    self.closing = matches!(command, Command::Close { .. });
                    refuse(command, &fault);
                }
            }
        }
    }

    /// Whether everything that was sent has arrived, so that this worker can say goodbye. Asks the servers;
    /// true after the limit in any case.
    fn has_flushed(&mut self) -> bool {
        let since = *self.closing_since.get_or_insert_with(Instant::now);
        if self.elastic.as_ref().is_some_and(Membership::has_uncommitted) && since.elapsed() < self.patience.silence {
            return false;
        }
        while let Some(server) = self.servers.get(self.flush.asked) {
            self.next += 1;
            if server.connection.send(encode(&Request::Flush { reply: self.next })) {
                self.flush.replies.insert(self.next);
            }
            self.flush.asked += 1;
        }
        let all = self.flush.asked == self.servers.len() && self.flush.replies.is_empty();
        all || since.elapsed() >= self.patience.silence
    }

    fn turn(&mut self) -> Result<()> {
        self.bell.wait(self.link.interval());
        while let Ok(command) = self.inbox.try_recv() {
            self.take(command)?;
        }
        for index in 0..self.servers.len() {
            self.receive(index)?;
        }
        for index in 0..self.servers.len() {
            self.send(index);
        }
        while let Some(message) = self.link.receive() {
            match message {
                FromScheduler::Abort(error) => return Err(self.seen(error)),
                FromScheduler::BarrierDone { number } => {
                    for (_, done) in self.barriers.extract_if(.., |(waited, _)| *waited == number) {
                        answer(&done, Ok(()));
                    }
                }
                FromScheduler::WorkerLeft { rank, why } => {
                    self.left.insert(rank, why);
                    self.left_since = Some(Instant::now());
                }
                FromScheduler::Describe { question } => {
                    self.link.send(&ToScheduler::Described { question, status: Box::new(self.describe()) })?;
                }
                FromScheduler::Described { question, role, rank, status } => {
                    if let Some(asked) = self.question.as_ref().filter(|asked| asked.number == question) {
                        // Whoever asked may have stopped waiting.
                        drop(asked.answers.send(Described { role, rank, status: *status }));
                    }
                }
                FromScheduler::Changed { generation, workers } => self.change(generation, workers, true),
                FromScheduler::Entered { generation, workers, calls, barriers } => {
                    self.barrier_count = barriers;
                    self.change(generation, workers, false);
                    self.entered(calls);
                }
                FromScheduler::Count => self.count_calls()?,
                FromScheduler::Welcome(_)
                | FromScheduler::Alive
                | FromScheduler::Farewell
                | FromScheduler::Lost { .. }
                | FromScheduler::Settle { .. }
                | FromScheduler::Join { .. } => {}
            }
        }
        self.link.beat(self.shared.sent.load(Ordering::Relaxed) + self.shared.received.load(Ordering::Relaxed))?;
        if let Some(cause) = self.link.loss() {
            return Err(self.seen(self.link.lost(&cause)));
        }
        self.moving.run(!self.operations.is_empty());
        self.look_at_servers()?;
        self.ask_who_is_missing()
    }

    /// What this worker does.
    fn describe(&self) -> RankStatus {
        let barrier = || self.barriers.first().map(|_| "barrier".to_owned());
        let doing = self.operations.values().next().map(Operation::describe).or_else(barrier);
        RankStatus {
            calls: self.calls,
            steps: self.steps,
            moving_s: self.moving.elapsed().as_secs_f64(),
            sent_bytes: self.shared.sent.load(Ordering::Relaxed),
            received_bytes: self.shared.received.load(Ordering::Relaxed),
            control_messages: self.shared.control.load(Ordering::Relaxed),
            doing: doing.map(status::short),
            ..status::of_this(Role::Worker, &self.job, self.started)
        }
    }

    fn take(&mut self, command: Command) -> Result<()> {
        if self.closing {
            // Another thread of the program goes on calling.
            refuse(command, &worker::has_left());
            return Ok(());
        }
        match command {
            Command::Run { key, layout, priority, task } => {
                let operation = Operation::new(key, layout, task);
                self.calls += 1;
                self.steps = self.steps.max(operation.round().unwrap_or(0));
                let id = self.number();
                if self.waiting.is_empty() {
                    self.progress = Instant::now();
                }
                let unsent = operation.unsent();
                if unsent.is_empty() {
                    // A pull of no rows sends no request, and its caller does not wait for an answer.
                    return Ok(());
                }
                if let (Some(elastic), Some(round)) = (&mut self.elastic, operation.contribution()) {
                    elastic.called(operation.key(), round, || operation.servers());
                }
                let priority = operation.priority(priority);
                for (segment, server) in unsent {
                    let answered_bytes = operation.answered_bytes(segment);
                    self.servers[server].queue.push(priority, Queued { operation: id, segment, answered_bytes });
                }
                self.operations.insert(id, operation);
            }
            Command::SetOptimizer { version, optimizer } => {
                if let Some(elastic) = &mut self.elastic {
                    elastic.calls.optimizer = Some((version, optimizer.clone()));
                }
                for server in &mut self.servers {
                    server.optimizers.push((version, optimizer.clone()));
                }
            }
            Command::Enter { done } => self.enter(done)?,
            Command::Barrier { done } => {
                self.calls += 1;
                self.barrier_count += 1;
                self.barriers.push((self.barrier_count, done));
                self.link.send(&ToScheduler::Barrier { number: self.barrier_count })?;
                count(&self.shared.control, 1);
            }
            Command::Failing(why) => self.link.send(&ToScheduler::Failing(why))?,
            Command::Fail(fault) => return Err(fault),
            Command::Describe { answers } => {
                let number = self.number();
                self.question = Some(Question { number, answers });
                self.link.send(&ToScheduler::Describe { question: number })?;
            }
            Command::Close { panicked } => {
                self.closing = true;
                self.servers.iter_mut().for_each(|server| server.queue.leave());
                if panicked {
                    return Err(Worker::panicked(&self.job));
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, index: usize) {
        let has_room = |server: &ServerConnection| server.connection.has_room(SEND_LIMIT);
        while !self.servers[index].optimizers.is_empty() && has_room(&self.servers[index]) {
            let server = &mut self.servers[index];
            let (version, optimizer) = server.optimizers.remove(0);
            let named = server.queue.operations().filter_map(|id| self.operations.get(&id)?.optimizer());
            let oldest = named.min().unwrap_or(version).min(version);
            let header = encode(&Request::SetOptimizer { version, oldest, optimizer });
            server.connection.send(header);
            count(&self.shared.control, 1);
        }
        while self.servers[index].optimizers.is_empty()
            && !self.servers[index].queue.is_empty()
            && has_room(&self.servers[index])
        {
            let server = &mut self.servers[index];
            let Some(item) = server.queue.next() else { break };
            let Some(operation) = self.operations.get_mut(&item.operation) else { continue };
            self.next += 1;
            let reply = self.next;
            let (request, payload) = operation.request(item.segment, reply);
            let (since_ns, sent_bytes) = (timeline::now_ns(), payload.len() as u64);
            count(&self.shared.sent, sent_bytes);
            server.connection.send(Frame { header: encode(&request), payload });
            self.progress = Instant::now();
            if operation.is_answered() {
                let since = self.progress;
                let waiting = Waiting { item, server: index, since, since_ns, sent_bytes, vouched: false };
                self.waiting.insert(reply, waiting);
            } else if let Some(word) = operation.word(item.segment, reply) {
                server.connection.send(encode(&word));
                self.words.insert(reply, (index, item));
            }
            if operation.sent_one() {
                self.operations.remove(&item.operation);
            }
        }
    }

    fn receive(&mut self, index: usize) -> Result<()> {
        for _ in 0..BATCH {
            let Some(Frame { header, payload }) = self.servers[index].connection.receive() else { return Ok(()) };
            let Some(reply) = decode::<Reply>(&header) else {
                return Err(self.broken_protocol(index, "a message that cannot be decoded".to_owned()));
            };
            self.asked = None;
            match reply {
                Reply::Missing { reply, operation, ranks } => self.claim(reply, operation, ranks)?,
                Reply::Value { reply } if self.flush.replies.remove(&reply) => {}
                Reply::Value { reply } => self.finish(reply, payload, None)?,
                Reply::State { reply, state } => self.finish(reply, payload, Some(state))?,
                Reply::Arrived { key, round } => self.arrived(key, round),
            }
        }
        // The next wait ends at once.
        self.bell.ring();
        Ok(())
    }

    fn finish(&mut self, reply: u64, payload: Vec<u8>, state: Option<ringpull_kernels::optim::State>) -> Result<()> {
        if let Some((server, item)) = self.words.remove(&reply) {
            self.servers[server].queue.answered(item);
            return self.has_come_on();
        }
        let Some(waiting) = self.waiting.remove(&reply) else { return Ok(()) };
        self.has_come_on()?;
        self.servers[waiting.server].queue.answered(waiting.item);
        count(&self.shared.received, payload.len() as u64);
        let Some(operation) = self.operations.get_mut(&waiting.item.operation) else { return Ok(()) };
        let moved = waiting.sent_bytes + payload.len() as u64;
        timeline::record(Phase::Request, || operation.key(), waiting.since_ns, moved);
        let fits = operation.receive(waiting.item.segment, payload, state);
        if !fits {
            let what = format!("a value of key {} with a wrong length", operation.key());
            return Err(self.broken_protocol(waiting.server, what));
        }
        if operation.is_done() {
            self.operations.remove(&waiting.item.operation);
        }
        Ok(())
    }

    fn fail(&mut self, fault: &Error) {
        self.shared.fault.lock().get_or_insert_with(|| fault.clone());
        if let Some(hook) = self.shared.on_fault.get() {
            hook(fault);
        }
        for (_, operation) in std::mem::take(&mut self.operations) {
            operation.fail(fault);
        }
        for (_, done) in self.barriers.drain(..) {
            answer(&done, Err(fault.clone()));
        }
        if let Some(elastic) = &mut self.elastic {
            elastic.fail(fault);
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Answers a command with the fault.
fn refuse(command: Command, fault: &Error) {
    match command {
        Command::Run { key, layout, task, .. } => Operation::new(key, layout, task).fail(fault),
        Command::Barrier { done } => answer(&done, Err(fault.clone())),
        Command::Enter { done } => answer(&done, Err(fault.clone())),
        Command::SetOptimizer { .. }
        | Command::Failing(_)
        | Command::Fail(_)
        | Command::Describe { .. }
        | Command::Close { .. } => {}
    }
}

/// Sends an answer to a caller, which may no longer wait for it.
pub(super) fn answer<T>(to: &Sender<Result<T>>, with: Result<T>) {
    if to.send(with).is_err() {
        tracing::debug!("nobody waits for an answer any more");
    }
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
