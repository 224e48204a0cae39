//! The state that the threads of one rank's engine share. It also spreads a fault to them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Instant;

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use ringpull_base::config::{Config, Role};
use ringpull_base::topology::Peer;
use ringpull_base::{Error, Result, Waiter};

use crate::communicator::{Communicator, HelpRequest};
use crate::progress::answer::{Reply, answer};
use crate::progress::answers::Answers;
use crate::progress::calls::{Act, Calls};
use crate::progress::changes::Changes;
use crate::progress::condition::{Condition, EarlierState};
use crate::progress::connected::Sever;
use crate::progress::frozen::Unit;
use crate::progress::handover::Handover;
use crate::progress::help::{Help, Rooms};
use crate::progress::job::{Barrier, StandIn, Submission};
use crate::progress::kept::RetryStore;
use crate::progress::messages::{Call, ControlMessage, Launch, Operation, Order, Refusal, Terms, Topic, Transfer};
use crate::progress::stopping::StopCalls;
use crate::progress::under_way::OperationsUnderWay;
use crate::transport::control::Control;
use crate::transport::messages;

/// The commands of the comm thread.
pub(super) enum Command {
    Run(LaunchedJobs),
    /// Go on with the operations under way, or notice a fault.
    Go,
    Stop,
}

/// The jobs of an operation that begins. There is one job, or those of a bucket.
pub(super) struct LaunchedJobs {
    pub(super) jobs: Vec<(Topic, Submission)>,
    /// The launch of the first job.
    pub(super) launch: Launch,
    /// The bytes that the operation's frozen cycle sums, or `None` if the operation was launched by itself.
    pub(super) cycle_bytes: Option<usize>,
}

impl Command {
    fn of_one(job: Submission, launch: Launch) -> Self {
        Command::Run(LaunchedJobs { jobs: vec![(launch.topic.clone(), job)], launch, cycle_bytes: None })
    }

    pub(super) fn into_jobs(self) -> Vec<(Topic, Submission)> {
        if let Command::Run(LaunchedJobs { jobs, .. }) = self { jobs } else { Vec::new() }
    }

    pub(super) fn jobs(&self) -> impl Iterator<Item = &(Topic, Submission)> {
        let jobs = if let Command::Run(LaunchedJobs { jobs, .. }) = self { &jobs[..] } else { &[] };
        jobs.iter()
    }

    pub(super) fn is_of_a_set(&self) -> bool {
        matches!(self, Command::Run(launched) if launched.launch.topic.set().is_some())
    }

    pub(super) fn is_of(&self, topic: &Topic) -> bool {
        self.jobs().any(|(own, _)| own == topic)
    }

    /// Returns true if the operation needs the results of earlier operations of its topics. Divided sums and
    /// messages of a key do.
    pub(super) fn needs_earlier(&self) -> bool {
        self.jobs().any(|(topic, job)| match job.job.transfer() {
            Transfer::Sum { is_divided, .. } => is_divided,
            Transfer::Messages { .. } => matches!(topic, Topic::Key { .. }),
            Transfer::Alone => false,
        })
    }
}

/// The objects that make jobs, by store, for calls that a joined rank does not make.
type StandIns = Arc<Mutex<BTreeMap<u32, Weak<dyn StandIn>>>>;

/// The state that the caller, the comm thread, the finishing thread and the control thread share.
pub(super) struct Shared {
    pub(super) rank: usize,
    /// The number of ranks that make calls, which helpers do not.
    pub(super) size: usize,
    pub(super) info: GenerationInfo,
    pub(super) control: Control,
    pub(super) condition: Condition,
    pub(super) losses: LossRecord,
    /// The operations saved for the next generation of ranks, or `None` if the job ends with the first loss.
    pub(super) elastic: Option<RetryStore>,
    /// The jobs of operations that this rank has called and that have not begun.
    pub(super) waiting: Mutex<BTreeMap<(Topic, u64), Submission>>,
    pub(super) callers: WaitingCallers,
    /// The memory of a helper's sums.
    pub(super) rooms: Arc<Rooms>,
    /// The objects that make jobs, by store, for calls that a joined rank does not make.
    pub(super) stand_ins: StandIns,
    /// This rank's calls. A thread that locks both this and `waiting` locks this first. Commands that are
    /// sent to the comm thread under this lock are in order.
    pub(super) calls: Mutex<Calls>,
    /// The operations of the comm thread that are under way, in the order in which they began: the number,
    /// and one topic of each.
    pub(super) running: Mutex<OperationsUnderWay>,
    pub(super) commands: mpsc::Sender<Command>,
    /// The number of jobs that the finishing thread has been given, or that the comm thread finishes itself,
    /// and that are not finished.
    pub(super) unfinished: Handover,
    pub(super) loans: Loans,
    /// Control messages of rank 0 to itself.
    pub(super) own_notes: Sender<ControlMessage>,
    pub(super) counters: Counters,
    pub(super) answers: Answers,
    pub(super) stopping: StopCalls,
}

/// The properties of a generation of ranks.
pub(super) struct GenerationInfo {
    pub(super) number: u64,
    /// The number of helpers. They are the last ranks, and only reduce.
    pub(super) helpers: usize,
    /// The library under the transport.
    pub(super) library: String,
    /// The placement of the ranks, as text.
    pub(super) placement: String,
    /// The time at which this rank's first generation began.
    pub(super) started: Instant,
}

/// This rank's knowledge of ranks that are lost or end, and of whether it can go on.
#[derive(Default)]
pub(super) struct LossRecord {
    /// Makes the transport treat silent ranks as lost, in a job that goes on without them.
    sever: Option<Sever>,
    /// True if some rank is silent and its process may be alive.
    is_silent: AtomicBool,
    /// The error on this rank because of which the job must not go on after a loss.
    pub(super) obstacle: OnceLock<Error>,
    /// The errors with which other ranks would end, as far as they have reported them to this rank.
    pub(super) reasons: Mutex<BTreeMap<usize, String>>,
}

impl LossRecord {
    /// Returns true if some rank is silent and its process may be alive.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Acquire)
    }
}

/// The senders that end the waits of callers which wait for no operation.
#[derive(Default)]
pub(super) struct WaitingCallers {
    /// The sender for a caller that has joined.
    pub(super) joining: Mutex<Option<Reply<usize>>>,
    /// The sender for a helper, which waits until the job has ended.
    pub(super) serving: Mutex<Option<Reply<()>>>,
}

/// The lent tensors whose owners are notified when they are returned.
#[derive(Default, Clone)]
pub(super) struct Loans {
    /// The number of these tensors that have not been returned.
    watched: Arc<AtomicU64>,
    /// True if all had been returned at some time since the last call.
    all_returned: Arc<AtomicBool>,
}

/// Counts that show progress.
#[derive(Default)]
pub(super) struct Counters {
    /// The number of orders of rank 0 that were carried out.
    pub(super) orders: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) control_messages: AtomicU64,
}

/// Returns true if a fault may be the loss of a process.
pub(super) fn is_loss(fault: &Error) -> bool {
    matches!(fault, Error::PeerLost { .. } | Error::Library { .. } | Error::Stopped {})
}

/// The state that a generation of ranks takes over from the previous one.
#[derive(Default)]
pub(super) struct InheritedState {
    /// The function that makes silent ranks lost. It is set in a job that goes on without lost ranks.
    pub(super) sever: Option<Sever>,
    generation: u64,
    /// The number of operations of each topic that are done.
    done: BTreeMap<Topic, u64>,
    stand_ins: StandIns,
    loans: Loans,
    is_leaving: bool,
    changes: Arc<Changes>,
    control_messages: u64,
    since: Option<Instant>,
}

impl InheritedState {
    pub(super) fn of(old: &Shared, generation: u64, done: BTreeMap<Topic, u64>) -> Self {
        InheritedState {
            sever: None,
            generation,
            done,
            stand_ins: Arc::clone(&old.stand_ins),
            loans: old.loans.clone(),
            is_leaving: old.condition.is_leaving(),
            changes: Arc::clone(&old.condition.changes),
            control_messages: old.counters.control_messages.load(Ordering::Relaxed),
            since: Some(old.info.started),
        }
    }
}

impl Shared {
    pub(super) fn new(
        comm: &Communicator,
        control: Control,
        config: &Config,
        (stop, commands, own_notes): (Arc<AtomicBool>, mpsc::Sender<Command>, Sender<ControlMessage>),
        inherited: InheritedState,
    ) -> Self {
        let calls = if comm.size() == 1 {
            Calls::of_one_rank()
        } else {
            // A check runs before a sum, when nothing else is under way, so sums with checks also need one
            // order on all ranks.
            Calls::new(control.rank(), comm.sums_block() || config.check_replicas > 0)
        };
        let info = GenerationInfo {
            number: inherited.generation,
            helpers: control.size() - comm.size(),
            library: comm.library(),
            placement: comm.placement(),
            started: inherited.since.unwrap_or_else(Instant::now),
        };
        let elastic = inherited.sever.is_some().then(|| RetryStore::new(inherited.done));
        Shared {
            rank: control.rank(),
            size: comm.size(),
            info,
            control,
            condition: Condition::new(stop, inherited.is_leaving, inherited.changes),
            losses: LossRecord { sever: inherited.sever, ..LossRecord::default() },
            elastic,
            waiting: Mutex::default(),
            callers: WaitingCallers::default(),
            rooms: Arc::default(),
            stand_ins: inherited.stand_ins,
            calls: Mutex::new(calls),
            running: Mutex::default(),
            commands,
            unfinished: Handover::default(),
            loans: inherited.loans,
            own_notes,
            counters: Counters { control_messages: AtomicU64::new(inherited.control_messages), ..Counters::default() },
            answers: Answers::default(),
            stopping: StopCalls::default(),
        }
    }

    /// Returns the sum of a topic's last operation that this rank has done.
    pub(super) fn last_sum(&self, topic: &Topic) -> Result<Vec<u8>> {
        let Topic::Key { store, key } = topic else { return Ok(Vec::new()) };
        let store = self.stand_ins.lock().get(store).and_then(Weak::upgrade);
        let key = key.key();
        let sum = store.and_then(|store| store.last_sum(key));
        sum.ok_or_else(|| {
            Error::argument(
                format!(
                    "the sum of key {key}, which other ranks lack after a loss, is not on rank {} any more",
                    self.rank
                ),
                "keep the store until every rank has called its last operation, by a barrier",
            )
        })
    }

    /// The number of processes of the job.
    pub(super) fn ranks(&self) -> usize {
        self.size + self.info.helpers
    }

    pub(super) fn is_helper(&self) -> bool {
        self.rank >= self.size
    }

    /// This process, as others name it.
    pub(super) fn peer(&self) -> Peer {
        if self.is_helper() {
            Peer::this(Role::Helper, self.rank - self.size)
        } else {
            Peer::this(Role::Worker, self.rank)
        }
    }

    /// Asks all helpers to take part in a sum. Called on rank 0.
    pub(super) fn ask_helpers(&self, asked: &HelpRequest) {
        (self.size..self.ranks()).for_each(|helper| self.send(helper, &ControlMessage::Help(asked.clone())));
    }

    /// Takes part in a sum. Called on a helper.
    pub(super) fn help(&self, asked: HelpRequest) {
        let launch = Launch { topic: Topic::Direct, ordinal: 0, number: asked.stamp(), call: None, from: None };
        let job = Submission::new(Help::new(asked, Arc::clone(&self.rooms)));
        drop(self.commands.send(Command::of_one(job, launch)));
    }

    /// Ends the wait of `serve` on a helper, because the job has ended.
    pub(super) fn served(&self) {
        self.callers.serving.lock().take().into_iter().for_each(|result| result.send(Ok(())));
    }

    pub(super) fn send(&self, to: usize, note: &ControlMessage) {
        let bytes = postcard::to_stdvec(note).expect("control messages are plain data");
        if note.is_counted() {
            self.counters.control_messages.fetch_add(1, Ordering::Relaxed);
        }
        if let Err(fault) = self.control.send(to, &bytes) {
            // The message is too long, or the peer has not taken too many of them. Other ranks would wait for
            // it for ever. The fault is recorded first, so that reporting it does not lead here again.
            if self.condition.fail(&fault, self.goes_on_after(&fault)) {
                self.send_to_peers(&ControlMessage::Failed(fault));
                self.fail_waiting();
            }
        }
    }

    /// Sends a message: from rank 0 to every other rank, from another rank to rank 0.
    pub(super) fn send_to_peers(&self, note: &ControlMessage) {
        let peers = if self.rank == 0 { 1..self.ranks() } else { 0..1 };
        peers.for_each(|peer| self.send(peer, note));
    }

    /// Tells rank 0, which may be this one.
    pub(super) fn send_to_rank_0(&self, note: ControlMessage) {
        if self.rank == 0 {
            drop(self.own_notes.send(note));
        } else {
            self.send(0, &note);
        }
    }

    /// Carries out an order of rank 0.
    pub(super) fn apply(&self, order: Order) {
        let mut calls = self.calls.lock();
        self.counters.orders.fetch_add(1, Ordering::Relaxed);
        let acts = match order {
            Order::Launch(launch) => calls.launched(launch),
            Order::Refuse(Refusal { topic, ordinal, fault }) => {
                calls.refused(&topic, ordinal);
                let job = self.waiting.lock().remove(&(topic, ordinal));
                job.into_iter().for_each(|job| job.job.fail(&fault));
                self.condition.changes.notify();
                Vec::new()
            }
            Order::Freeze(freeze) => calls.freeze(freeze),
            Order::Stop(epoch) => {
                calls.stop(epoch).into_iter().for_each(|stopped| self.send_to_rank_0(ControlMessage::Stopped(stopped)));
                Vec::new()
            }
            Order::RunTo(end) => calls.run_to(end),
            Order::ReportStop => {
                let call = self.stopping.report();
                call.into_iter().for_each(|call| self.send_to_rank_0(ControlMessage::StopFrom(call)));
                Vec::new()
            }
            Order::StopAt(call) => {
                self.stopping.stop_at(call);
                self.condition.changes.notify();
                Vec::new()
            }
            Order::Joined(last) => {
                calls.joined();
                self.callers.joining.lock().take().into_iter().for_each(|result| result.send(Ok(last)));
                Vec::new()
            }
            Order::Forget(topics) => {
                calls.forget(&topics);
                let mut waiting = self.waiting.lock();
                for (topic, made) in topics {
                    // Calls made since then.
                    let later = (topic.clone(), made)..=(topic, u64::MAX);
                    let later: Vec<(Topic, u64)> = waiting.range(later).map(|(call, _)| call.clone()).collect();
                    for (topic, ordinal) in later {
                        if let Some(job) = waiting.remove(&(topic.clone(), ordinal)) {
                            waiting.insert((topic, ordinal - made), job);
                        }
                    }
                }
                // A job that cannot be sent is a fault, and the handling of a fault takes the lock.
                drop(waiting);
                self.send_to_rank_0(ControlMessage::Forgot);
                Vec::new()
            }
        };
        self.act(acts);
    }

    /// Does the actions that follow from a call or a message. To be called with `calls` locked, so that the
    /// actions are done in order.
    pub(super) fn act(&self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Announce(call) => self.send_to_rank_0(ControlMessage::Called(call)),
                Act::Begin(unit) => self.begin(unit),
                Act::Run(launch) => self.launch(launch),
                Act::StandIn(call) => match self.stand_in(&call) {
                    Ok(job) => drop(self.waiting.lock().insert((call.topic, call.ordinal), job)),
                    Err(fault) => self.poison(&fault, true),
                },
                Act::Join => self.send_to_rank_0(ControlMessage::Joined),
                Act::CaughtUp => self.send_to_rank_0(ControlMessage::CaughtUp),
                Act::Invalidate(epoch) => self.send_to_rank_0(ControlMessage::Invalidate(epoch, None)),
                Act::Fault(fault) => self.poison(&fault, true),
            }
        }
    }

    /// Returns the job for a call that this rank does not make, because it has joined.
    fn stand_in(&self, call: &Call) -> Result<Submission> {
        match &call.topic {
            Topic::Key { store, key } => {
                let store = self.stand_ins.lock().get(store).and_then(Weak::upgrade);
                let store = store.ok_or_else(|| impossible(self.rank, call, "its store has been dropped there"))?;
                store.stand_in(key.key(), &call.operation, &call.terms)
            }
            // No caller waits for this barrier.
            Topic::Barrier => Ok(Submission::new(Barrier::new(answer().0))),
            Topic::Collective { comm, .. } => {
                let comm = self.stand_ins.lock().get(comm).and_then(Weak::upgrade);
                let comm =
                    comm.ok_or_else(|| impossible(self.rank, call, "its communicator has been dropped there"))?;
                comm.stand_in(&call.topic.key(), &call.operation, &call.terms)
            }
            Topic::Direct | Topic::Message(_) => {
                Err(impossible(self.rank, call, "that rank does not know what this collective does"))
            }
        }
    }

    fn launch(&self, launch: Launch) {
        // The lock is held until the job is sent, because a thread that finds no waiting job may stop the
        // comm thread.
        let mut waiting = self.waiting.lock();
        if self.condition.is_renewing() {
            // The comm thread takes no more commands. The job stays here, to be kept for the next generation.
            return;
        }
        if let Some(job) = waiting.remove(&(launch.topic.clone(), launch.ordinal)) {
            drop(self.commands.send(Command::of_one(job, launch)));
            self.condition.changes.notify();
        }
    }

    fn begin(&self, unit: Unit) {
        let mut waiting = self.waiting.lock();
        if self.condition.is_renewing() {
            return;
        }
        // After a fault some jobs have been failed and are gone. The others stay, to be failed too.
        if unit.members.iter().all(|member| waiting.contains_key(member)) {
            let Some((topic, ordinal)) = unit.members.first().cloned() else { return };
            let launch = Launch { topic, ordinal, number: unit.number, call: None, from: None };
            let job = |member| waiting.remove(&member).map(|job| (member.0, job));
            let jobs = unit.members.into_iter().filter_map(job).collect();
            let cycle_bytes = Some(unit.cycle_bytes);
            drop(self.commands.send(Command::Run(LaunchedJobs { jobs, launch, cycle_bytes })));
            self.condition.changes.notify();
        }
    }

    /// Returns true if the ranks that are left may go on after a fault.
    fn goes_on_after(&self, fault: &Error) -> bool {
        self.elastic.is_some() && is_loss(fault)
    }

    /// Records the first fault, sends it to all ranks if `spread`, and fails every waiting job with it.
    pub(super) fn poison(&self, fault: &Error, spread: bool) {
        let fault = &fault.clone().met_by(self.rank);
        if self.condition.fail(fault, self.goes_on_after(fault)) {
            self.publish(fault, spread);
        }
    }

    /// Sends the first fault to all ranks if `spread`, and fails every waiting job with it.
    fn publish(&self, fault: &Error, spread: bool) {
        tracing::debug!(rank = self.rank, %fault, "poisoned");
        if spread {
            self.send_to_peers(&ControlMessage::Failed(fault.clone()));
        }
        self.condition.call_hook(fault);
        self.fail_waiting();
        if self.elastic.is_some() {
            // The comm thread may be asleep, and it has to make the next generation.
            drop(self.commands.send(Command::Go));
        }
    }

    /// Makes these silent ranks lost for MPI too. Their processes may be alive.
    pub(super) fn sever(&self, ranks: &[usize]) {
        self.losses.is_silent.store(true, Ordering::Release);
        if let Some(sever) = &self.losses.sever {
            sever(ranks);
        }
    }

    /// Returns the error of a rank that is cut off from the others and does not go on.
    pub(super) fn cut_off(&self, why: &str) -> Error {
        Error::PeerLost {
            peer: self.peer().to_string(),
            ranks: vec![self.rank],
            cause: format!("it is cut off: {why}, so the others go on without it"),
            operation: self.doing_or_done(),
            rank: Some(self.rank),
        }
    }

    /// Ends the job without a next generation: saved operations fail. Ranks that have not yet handled the
    /// loss and wait for this rank get the fault.
    pub(super) fn end(&self, fault: &Error) {
        let fault = &fault.clone().met_by(self.rank);
        let before = self.condition.end(fault);
        let orphans = self.elastic.as_ref().map(RetryStore::end).unwrap_or_default();
        match before {
            EarlierState::Well => self.publish(fault, true),
            EarlierState::Renewing if !is_loss(fault) => self.send_to_peers(&ControlMessage::Failed(fault.clone())),
            EarlierState::Renewing | EarlierState::Failed => {}
        }
        orphans.into_iter().for_each(|(_, orphan)| orphan.job.fail(fault));
        self.fail_waiting();
    }

    /// Finishes a job. An error, such as an updater's, ends the job on all ranks. After a loss the survivors
    /// get the error when they would go on.
    pub(super) fn finish(&self, job: Submission) {
        if let Err(cause) = job.job.finish() {
            self.poison(&cause, true);
            if self.condition.is_renewing() && !is_loss(&cause) {
                drop(self.losses.obstacle.set(cause));
            }
        }
        self.unfinished.finished();
        self.condition.changes.notify();
    }

    /// Fails a job after a fault, or keeps it for a retry.
    pub(super) fn abandon(&self, job: Submission, fault: &Error) {
        if let Err(job) = self.keep(job) {
            job.job.fail(self.condition.fault().as_ref().unwrap_or(fault));
        }
    }

    /// Keeps a job after a fault for a retry, if it can be retried.
    fn keep(&self, job: Submission) -> std::result::Result<(), Submission> {
        match &self.elastic {
            Some(elastic) if self.condition.is_renewing() => elastic.adopt(job),
            _ => Err(job),
        }
    }

    /// Calls an operation. `job` runs when every rank has called the operation. Returns an error if this rank
    /// has joined.
    pub(super) fn submit(&self, topic: Topic, operation: Operation, terms: Terms, mut job: Submission) -> Result<()> {
        let transfer = job.job.transfer();
        {
            let mut calls = self.calls.lock();
            if calls.has_joined() {
                return Err(Error::argument(
                    format!("{operation} of key {} on rank {} after it has joined", topic.key(), self.rank),
                    "call nothing on this rank until `join` has returned",
                ));
            }
            if self.loans.all_returned.swap(false, Ordering::AcqRel) {
                calls.all_returned();
            }
            job.call = self.elastic.as_ref().map(|elastic| elastic.call(&topic, &operation, &terms));
            self.waiting.lock().insert((topic.clone(), calls.ordinal(&topic)), job);
            self.act(calls.call(topic, operation, terms, transfer));
        }
        if !self.condition.is_well() {
            // The fault may have come before the job was in `waiting`, so that nothing has failed the job.
            self.fail_waiting();
        }
        Ok(())
    }

    /// Returns true if this rank has called an operation that has not begun.
    pub(super) fn has_calls(&self) -> bool {
        self.condition.is_renewing() || !self.waiting.lock().is_empty()
    }

    /// Reports that this rank calls nothing more. Sent once in each generation.
    pub(super) fn say_goodbye(&self) {
        if !self.condition.leave() {
            return;
        }
        if self.condition.is_well() && self.ranks() > 1 && !self.is_helper() {
            let begun = self.calls.lock().begun();
            self.send_to_peers(&ControlMessage::Leaving(begun.clone()));
            if self.rank == 0 {
                drop(self.own_notes.send(ControlMessage::Leaving(begun)));
            }
        }
        drop(self.commands.send(Command::Stop));
    }

    pub(super) fn fail_waiting(&self) {
        let Some(fault) = &self.condition.fault() else { return };
        let mut waiting = self.waiting.lock();
        // The lock is held until the last job is kept. A thread that then finds no waiting job finds all of
        // them kept.
        let all = std::mem::take(&mut *waiting).into_values();
        let failed: Vec<_> = all.filter_map(|job| self.keep(job).err()).collect();
        drop(waiting);
        failed.into_iter().for_each(|job| job.job.fail(fault));
        self.condition.changes.notify();
        self.callers.joining.lock().take().into_iter().for_each(|result| result.send(Err(fault.clone())));
        self.callers.serving.lock().take().into_iter().for_each(|result| result.send(Err(fault.clone())));
    }
}

impl Shared {
    fn present(&self) -> Option<Topic> {
        let running = self.running.lock().iter().next().map(|(_, topic)| topic.clone());
        running.or_else(|| self.waiting.lock().keys().next().map(|(topic, _)| topic.clone()))
    }

    /// Returns true if this rank's current operation is of a process set.
    pub(super) fn is_at_a_set(&self) -> bool {
        self.present().is_some_and(|topic| topic.set().is_some())
    }

    /// Returns this rank's current operation: the one that runs, or one that the rank has called and that
    /// waits for other ranks.
    pub(super) fn doing(&self) -> Option<String> {
        let joins = || self.callers.joining.lock().as_ref().map(|_| "join".to_owned());
        self.present().map(|topic| in_words(&topic)).or_else(joins)
    }

    /// Returns true if this rank waits for calls of its peers, and not only for data that is on its way.
    pub(super) fn awaits_calls(&self) -> bool {
        !self.waiting.lock().is_empty() || self.callers.joining.lock().is_some()
    }

    /// Returns a number that changes while anything progresses. It counts payload within a host and messages
    /// between hosts.
    pub(super) fn moved(&self) -> u64 {
        let moved =
            [&self.counters.sent_bytes, &self.counters.received_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
        moved[0].wrapping_add(moved[1]).wrapping_add(messages())
    }

    /// Returns the current operation as `doing` does or, between two operations, the previous one.
    pub(super) fn doing_or_done(&self) -> String {
        let done = || self.running.lock().last().map(|topic| format!("the pause after {}", in_words(topic)));
        self.doing().or_else(done).unwrap_or_else(|| "no operation".to_owned())
    }
}

impl Waiter for Shared {
    fn wait(&self) {
        let mut calls = self.calls.lock();
        self.act(calls.wait());
    }

    fn watched(&self) {
        self.loans.watched.fetch_add(1, Ordering::AcqRel);
    }

    fn returned(&self) {
        if self.loans.watched.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.loans.all_returned.store(true, Ordering::Release);
        }
    }
}

/// Returns the error for a call for which a joined rank cannot make a job.
fn impossible(rank: usize, call: &Call, reason: &str) -> Error {
    Error::argument(
        format!("{} of key {} after rank {rank} has joined: {reason}", call.operation, call.topic.key()),
        "call only push, push_pull, push_rows, pull and barrier until every rank has joined",
    )
}

fn in_words(topic: &Topic) -> String {
    match topic {
        Topic::Key { key, .. } => format!("an operation on key {}", key.key()),
        Topic::Barrier => "barrier".to_owned(),
        Topic::Direct | Topic::Collective { set: None, name: None, .. } => "a collective".to_owned(),
        Topic::Collective { set: Some(set), name: None, .. } => format!("a collective of ranks {set:?}"),
        Topic::Collective { name: Some(name), .. } => format!("the collective {name}"),
        Topic::Message(_) => format!("the message {}", topic.key()),
    }
}
