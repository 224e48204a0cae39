//! The thread that owns a worker's sockets: commands in, segments out and back, and the link to the
//! scheduler.
//!
//! Each server has a `queue` of segments, ordered by priority and then by the order of the calls, with a
//! limit on the messages without an answer. A segment becomes a message when there is room for it, so that a
//! late call of high priority overtakes segments that have not left. An operation ends when all of its
//! segments have left and the last answer has come. Then its guards are dropped. `start`: the time at which
//! the first values leave; `patience`: the limits of waiting for answers; `elastic`: additional work in a job
//! that goes on without lost workers.

mod elastic;
mod patience;
mod queue;
mod start;

use elastic::Membership;
pub(super) use patience::Patience;
use patience::WaitRecord;
use start::StartState;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use ringpull_base::config::Role;
use ringpull_base::status::{RankStatus, Stopwatch};
use ringpull_base::timeline::{self, Phase};
use ringpull_base::{Error, Result, notice};
use ringpull_kernels::optim::{Optimizer, State};
use ringpull_session::Frame;

use crate::call::{self, Command, WorkerState, answer};
use crate::link::Link;
use crate::message::{FromScheduler, Job, Reply, Request, ToScheduler, decode, encode, short};
use crate::operation::Operation;
use crate::socket::{Bell, Connection};
use crate::status::{self, NodeStatus, Question};
pub use crate::worker_loop::queue::window;
use crate::worker_loop::queue::{PendingMessage, Queue, weight};

/// The number of messages that are taken from one server before the other servers get their turn.
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
struct OpenRequest {
    item: PendingMessage,
    server: usize,
    since: Instant,
    /// The time at which the request was sent, by the timeline's clock.
    since_ns: u64,
    sent_bytes: u64,
    /// True if the server has reported once that no worker is missing.
    vouched: bool,
}

/// A question to servers if everything that was sent has arrived: the number of servers that were asked, and
/// the answers that have not come.
#[derive(Default)]
struct Flush {
    asked: usize,
    replies: BTreeSet<u64>,
}

impl Flush {
    /// Returns true if everything that was sent to `servers` has arrived. Asks each server once. `next`
    /// numbers the answers.
    fn is_answered(&mut self, servers: &[ServerConnection], next: &mut u64) -> bool {
        while let Some(server) = servers.get(self.asked) {
            *next += 1;
            if server.connection.send(encode(&Request::Flush { reply: *next })) {
                self.replies.insert(*next);
            }
            self.asked += 1;
        }
        self.replies.is_empty()
    }
}

/// The barriers at which this worker waits, by their numbers, and the number of barriers to which it has
/// come.
#[derive(Default)]
struct Barriers {
    waiting: Vec<(u64, Sender<Result<()>>)>,
    count: u64,
}

/// The calls of this worker since it started.
struct CallCounts {
    started: Instant,
    /// The number of operations and barriers.
    calls: u64,
    /// The number of pushes of the key that was pushed most often.
    steps: u64,
    /// The time for which operations were under way.
    moving: Stopwatch,
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
    waiting: BTreeMap<u64, OpenRequest>,
    /// The messages of pushes for which no caller waits, each with its server, until a confirmation comes.
    words: BTreeMap<u64, (usize, PendingMessage)>,
    barriers: Barriers,
    next: u64,
    counts: CallCounts,
    question: Option<Question>,
    waits: WaitRecord,
    flush: Flush,
    /// The state of the start, until values may leave.
    connecting: Option<StartState>,
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
        let window = window(job.workers.len(), job.servers.len());
        let servers = servers.into_iter().map(|connection| ServerConnection {
            connection,
            optimizers: Vec::new(),
            queue: Queue::new(window),
            broken: None,
        });
        let elastic = job.is_elastic.then(|| Membership::new(&job));
        let mut servers: Vec<_> = servers.collect();
        if elastic.is_some() {
            // A round is answered when all segments of the key have arrived, so no segment may wait for an
            // answer.
            servers.iter_mut().for_each(|server: &mut ServerConnection| server.queue.leave());
        }
        let connecting = (job.incarnation == 0).then(|| StartState::new(&patience));
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
            barriers: Barriers::default(),
            next: 0,
            counts: CallCounts { started: Instant::now(), calls: 0, steps: 0, moving: Stopwatch::default() },
            question: None,
            waits: WaitRecord::new(),
            flush: Flush::default(),
            connecting,
            closing_since: None,
            closing: false,
            elastic,
        }
    }

    /// Runs until the store is dropped.
    pub(super) fn run(mut self) {
        // The first turn waits for no call, because it asks the servers if they are connected.
        self.bell.ring();
        while !(self.closing && self.operations.is_empty() && self.has_flushed()) {
            let was_closing = self.closing;
            match self.turn() {
                Ok(()) => {}
                Err(error) => {
                    if was_closing && !self.operations.is_empty() {
                        // No caller waits for this error.
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
        self.servers.into_iter().for_each(|server| server.connection.close(limit));
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

    /// Returns true if everything that was sent has arrived, so that this worker can say goodbye. Asks the
    /// servers. Returns true after the limit in any case.
    fn has_flushed(&mut self) -> bool {
        let since = *self.closing_since.get_or_insert_with(Instant::now);
        if self.elastic.as_ref().is_some_and(Membership::has_uncommitted) && since.elapsed() < self.patience.silence {
            return false;
        }
        self.flush.is_answered(&self.servers, &mut self.next) || since.elapsed() >= self.patience.silence
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
            self.send_optimizers(index);
        }
        if !self.is_connecting()? {
            self.send_all();
            self.send_held_barriers()?;
        }
        while let Some(message) = self.link.receive() {
            match message {
                FromScheduler::Abort(error) => return Err(self.seen(error)),
                FromScheduler::AllConnected => self.let_values_leave(),
                FromScheduler::BarrierDone { number } => {
                    for (_, done) in self.barriers.waiting.extract_if(.., |(waited, _)| *waited == number) {
                        answer(&done, Ok(()));
                    }
                }
                FromScheduler::WorkerLeft { rank, why } => {
                    self.waits.left.insert(rank, why);
                    self.waits.left_since = Some(Instant::now());
                }
                FromScheduler::Describe { question } => {
                    self.link.send(&ToScheduler::Described { question, status: Box::new(self.describe()) })?;
                }
                FromScheduler::Described { question, role, rank, status } => {
                    if let Some(asked) = self.question.as_ref().filter(|asked| asked.number == question) {
                        // The caller that asked may have stopped waiting.
                        drop(asked.answers.send(NodeStatus { role, rank, status: *status }));
                    }
                }
                FromScheduler::Changed { generation, workers } => {
                    self.change(generation, workers, true);
                    self.let_values_leave();
                }
                FromScheduler::Entered { generation, workers, calls, barriers } => {
                    self.barriers.count = barriers;
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
        self.link.refusal()?;
        if let Some(cause) = self.link.loss() {
            return Err(self.seen(self.link.lost(&cause)));
        }
        self.counts.moving.run(!self.operations.is_empty());
        self.look_at_servers()?;
        self.ask_who_is_missing()
    }

    /// Returns the state of this worker.
    fn describe(&self) -> RankStatus {
        let barrier = || self.barriers.waiting.first().map(|_| "barrier".to_owned());
        let doing = self.operations.values().next().map(Operation::describe).or_else(barrier);
        RankStatus {
            calls: self.counts.calls,
            steps: self.counts.steps,
            moving_s: self.counts.moving.elapsed().as_secs_f64(),
            sent_bytes: self.shared.sent.load(Ordering::Relaxed),
            received_bytes: self.shared.received.load(Ordering::Relaxed),
            control_messages: self.shared.control.load(Ordering::Relaxed),
            doing: doing.map(short),
            ..status::of_this(Role::Worker, &self.job, self.counts.started)
        }
    }

    fn take(&mut self, command: Command) -> Result<()> {
        if self.closing {
            // Another thread of the program still makes calls.
            refuse(command, &call::has_left());
            return Ok(());
        }
        match command {
            Command::Run { key, layout, priority, task } => {
                let operation = Operation::new(key, layout, task);
                self.counts.calls += 1;
                self.counts.steps = self.counts.steps.max(operation.traits.round.unwrap_or(0));
                let id = self.number();
                if self.waiting.is_empty() {
                    self.waits.progress = Instant::now();
                }
                if operation.batch_servers().is_empty() {
                    // A pull of no rows sends no request, and its caller does not wait for an answer.
                    return Ok(());
                }
                if let (Some(elastic), Some(round)) = (&mut self.elastic, operation.contribution()) {
                    elastic.called(operation.key(), round, || operation.servers());
                }
                self.put_in_queues(id, operation.priority(priority), &operation);
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
                self.counts.calls += 1;
                self.barriers.count += 1;
                self.barriers.waiting.push((self.barriers.count, done));
                self.come_to_barrier(self.barriers.count)?;
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
                    return Err(call::panicked(&self.job));
                }
            }
        }
        Ok(())
    }

    /// Puts the messages of a call into the queues of their servers.
    fn put_in_queues(&mut self, id: u64, priority: i32, operation: &Operation) {
        for (batch, server) in operation.batch_servers().into_iter().enumerate() {
            let item = PendingMessage {
                operation: id,
                batch,
                is_pull: operation.traits.is_pull,
                answered_bytes: operation.answered_bytes(batch),
                weight: weight(self.job.workers.len(), self.job.servers.len(), operation.is_push_pull()),
            };
            self.servers[server].queue.push(priority, item);
        }
    }

    fn send_optimizers(&mut self, index: usize) {
        let server = &mut self.servers[index];
        while !server.optimizers.is_empty() && server.connection.has_room(SEND_LIMIT) {
            let (version, optimizer) = server.optimizers.remove(0);
            let named = self.operations.values().filter_map(|operation| operation.traits.optimizer);
            let oldest = named.min().unwrap_or(version).min(version);
            let header = encode(&Request::SetOptimizer { version, oldest, optimizer });
            server.connection.send(header);
            count(&self.shared.control, 1);
        }
    }

    /// Sends messages while there is room, one to each server in turn. Each worker begins with another
    /// server. Otherwise the first messages of all workers would share one server's link, and the next
    /// messages the next server's.
    fn send_all(&mut self) {
        let first = self.job.rank % self.servers.len().max(1);
        let mut servers: Vec<usize> = (first..self.servers.len()).chain(0..first).collect();
        while !servers.is_empty() {
            servers.retain(|server| self.send(*server));
        }
    }

    /// Sends the next message to a server, if there is one and there is room for it. Returns true if it sent
    /// one.
    fn send(&mut self, to: usize) -> bool {
        let server = &mut self.servers[to];
        if !server.optimizers.is_empty() || !server.connection.has_room(SEND_LIMIT) {
            return false;
        }
        let Some(item) = server.queue.next() else { return false };
        let Some(operation) = self.operations.get_mut(&item.operation) else { return true };
        self.next += 1;
        let reply = self.next;
        let (request, payload) = operation.request(item.batch, reply);
        let (since_ns, sent_bytes) = (timeline::now_ns(), payload.len() as u64);
        count(&self.shared.sent, sent_bytes);
        server.connection.send(Frame { header: encode(&request), payload: payload.into() });
        self.waits.progress = Instant::now();
        if operation.traits.is_answered {
            let since = self.waits.progress;
            self.waiting.insert(reply, OpenRequest { item, server: to, since, since_ns, sent_bytes, vouched: false });
        } else if item.answered_bytes.is_some() {
            self.words.insert(reply, (to, item));
        }
        if operation.sent_one() {
            self.operations.remove(&item.operation);
        }
        true
    }

    fn receive(&mut self, index: usize) -> Result<()> {
        for _ in 0..BATCH {
            let Some(Frame { header, payload }) = self.servers[index].connection.receive() else { return Ok(()) };
            let Some(reply) = decode::<Reply>(&header) else {
                return Err(self.broken_protocol(index, "a message that cannot be decoded".to_owned()));
            };
            self.waits.asked = None;
            match reply {
                Reply::Missing { reply, operation, ranks } => self.claim(reply, operation, ranks)?,
                Reply::Value { reply } if self.flush.replies.remove(&reply) => {}
                Reply::Value { reply }
                    if self.connecting.as_mut().is_some_and(|start| start.flush.replies.remove(&reply)) => {}
                Reply::Value { reply } => self.finish(index, reply, payload, None)?,
                Reply::State { reply, state } => self.finish(index, reply, payload, Some(state))?,
                Reply::Arrived { key, round } => self.arrived(key, round),
            }
        }
        // The next wait ends at once.
        self.bell.ring();
        Ok(())
    }

    /// Takes an answer of server `from`.
    fn finish(&mut self, from: usize, reply: u64, payload: Vec<u8>, state: Option<State>) -> Result<()> {
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
        let fits = operation.receive(waiting.item.batch, payload, state);
        if !fits {
            let what = format!("a value of key {} with a wrong length", operation.key());
            return Err(self.broken_protocol(from, what));
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
        for (_, done) in self.barriers.waiting.drain(..) {
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

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
