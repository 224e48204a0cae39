//! The threads of a store that sums by allreduce.
//!
//! `submit` names an operation and returns. The control thread of rank 0 launches the operation when every
//! rank has called it. The comm thread, which alone uses the transport, runs launched jobs in the order of
//! their numbers. The finishing thread applies updates and returns results. Short results are returned by the
//! comm thread. The first fault ends the engine's work: it is sent to every rank, running collectives stop,
//! and every waiting job and every later call fails with it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;

use ringpull_base::config::Config;
use ringpull_base::forked::Process;
use ringpull_base::status::JobStatus;
use ringpull_base::{Error, OnFault, Result, Waiter, last_words, notice, waits};

use crate::communicator::Communicator;
use crate::progress::answer::{Answer, Outcome, answer};
use crate::progress::changes::Changes;
use crate::progress::connected::{Connect, ReadyTransport};
use crate::progress::generation::{Change, CurrentGeneration};
use crate::progress::job::{Barrier, CollectiveWork, DirectCollective, StandIn, Submission};
use crate::progress::messages::{ControlMessage, Operation, Sums, Terms, Topic};
use crate::progress::renewal::{self, Generation, spawn};
use crate::progress::shared::{InheritedState, Shared};
use crate::progress::status;
use crate::transport::control::Control;
use crate::transport::inproc;

/// The time for which a process stays alive after a fault, so that its peers can report the fault before a
/// launcher ends them.
const STAY_AFTER_FAULT: Duration = Duration::from_millis(300);

/// One rank's engine. Ends in order when dropped.
pub struct Engine {
    pub(super) current: Arc<CurrentGeneration>,
    /// The comm thread, until it has been joined.
    comm: Mutex<Option<JoinHandle<()>>>,
    /// True if the comm thread has nothing left to do.
    has_ended: Arc<AtomicBool>,
    changes: Arc<Changes>,
    limit: Duration,
    sums: Sums,
    stores: AtomicU64,
    sets: Mutex<BTreeMap<(u64, Vec<usize>), u32>>,
    process: Process,
    files: Mutex<Vec<PathBuf>>,
    /// The path of the file that is written when this rank has ended in order.
    ended: Mutex<Option<PathBuf>>,
}

impl Engine {
    /// Starts the threads. Returns when every rank is connected.
    pub fn start(config: &Config, connect: Connect) -> Result<Arc<Engine>> {
        let (ready, started) = crossbeam_channel::bounded(1);
        let has_ended = Arc::new(AtomicBool::new(false));
        let comm = {
            let (config, has_ended) = (config.clone(), Arc::clone(&has_ended));
            spawn(renewal::COMM, move || {
                let begun = connect()
                    .and_then(|connected| renewal::ready(connected, &config, None))
                    .and_then(|(ready, _)| Generation::begin(ready, &config, InheritedState::default()));
                let generation = match begun {
                    Ok(generation) => generation,
                    Err(cause) => return drop(ready.send(Err(cause))),
                };
                let current = Arc::new(CurrentGeneration::new(Arc::clone(&generation.shared)));
                if ready.send(Ok(Arc::clone(&current))).is_ok() {
                    let changes = Arc::clone(&generation.shared.condition.changes);
                    generation.run(&config, &current);
                    has_ended.store(true, Ordering::Release);
                    changes.notify();
                }
            })?
        };
        let current = wait_for_all(config, &started)?;
        let (limit, sums) = (config.silence(), Sums::from(config));
        let stores = AtomicU64::new(0);
        let (comm, process) = (Mutex::new(Some(comm)), Process::this());
        let changes = Arc::clone(&current.get().condition.changes);
        let (sets, files) = (Mutex::default(), Mutex::default());
        let ended = Mutex::default();
        let engine = Engine { current, comm, has_ended, changes, limit, sums, stores, sets, process, files, ended };
        Ok(Arc::new(engine))
    }

    /// Returns the engines of `size` ranks in this process, over threads and channels, as if each rank were
    /// on a host of its own.
    pub fn in_process(size: usize, config: &Config) -> Result<Vec<Arc<Engine>>> {
        Engine::in_process_with_helpers(size, 0, config)
    }

    /// Returns engines as [`in_process`](Self::in_process) does, with helpers. The helpers' engines come
    /// last, and a thread must [serve](Self::serve) each of them.
    pub fn in_process_with_helpers(workers: usize, helpers: usize, config: &Config) -> Result<Vec<Arc<Engine>>> {
        let hosts: Vec<usize> = (0..workers + helpers).collect();
        Engine::in_process_on(&hosts, helpers, config)
    }

    /// Returns engines as [`in_process_with_helpers`](Self::in_process_with_helpers) does. Ranks with the
    /// same number in `hosts` are on the same host, and share memory.
    pub fn in_process_on(hosts: &[usize], helpers: usize, config: &Config) -> Result<Vec<Arc<Engine>>> {
        let ends = inproc::world_on(hosts).into_iter().zip(Control::in_process(hosts.len()));
        let start = |transport: inproc::Inproc, control| {
            let connected = move || {
                Ok(ReadyTransport {
                    transport: Box::new(transport),
                    control,
                    helpers,
                    finalise: Box::new(|| ()),
                    succession: None,
                })
            };
            Engine::start(config, Box::new(connected))
        };
        // All ranks start at once, because their first action is collective.
        std::thread::scope(|scope| {
            let ranks: Vec<_> =
                ends.map(|(transport, control)| scope.spawn(move || start(transport, control))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("an engine starts or says why not")).collect()
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.current.rank()
    }

    /// The number of ranks, without helpers.
    pub fn size(&self) -> usize {
        self.current.get().size
    }

    /// The number of losses of ranks after which the job has gone on.
    pub fn generation(&self) -> u64 {
        self.current.generation()
    }

    /// Returns the changes by these losses, without the first `seen`.
    pub fn changes(&self, seen: usize) -> Vec<Change> {
        self.current.changes(seen)
    }

    /// Returns true if the job goes on when it loses a rank.
    pub fn is_elastic(&self) -> bool {
        self.current.is_elastic()
    }

    /// Returns true if this rank only reduces: it is [served](Self::serve), and calls nothing.
    pub fn is_helper(&self) -> bool {
        self.current.get().is_helper()
    }

    /// Takes part in the sums of the others, if this rank is a helper, until all other ranks are done, and
    /// then leaves. Blocks. Returns an error if the job fails.
    pub fn serve(&self) -> Result<()> {
        let (result, answer) = answer();
        let shared = self.current.get();
        *shared.callers.serving.lock() = Some(result);
        if !shared.condition.is_well() {
            shared.fail_waiting();
        } else if shared.condition.is_closing() {
            shared.served();
        }
        drop(shared);
        // This does not count as a wait for another rank, because a helper's wait shows nothing about the
        // job.
        let outcome = waits::until(|limit| self.answer(&answer, limit));
        if outcome.is_err() {
            // The caller reports the fault.
            self.current.get().condition.report();
        }
        self.leave();
        outcome
    }

    /// The settings that must be equal on all ranks, because plans fit together only if they are of one kind
    /// and have segments of one size.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// The name of the library under the transport.
    pub fn library(&self) -> String {
        self.current.get().info.library.clone()
    }

    /// The placement of the ranks, as text: `8 ranks on 2 hosts, shared memory within each`.
    pub fn placement(&self) -> String {
        self.current.get().info.placement.clone()
    }

    /// Returns the number of the next store on this engine. It is the same on every rank if all ranks create
    /// their stores in one order.
    pub fn next_store(&self) -> u32 {
        self.stores.fetch_add(1, Ordering::Relaxed) as u32
    }

    /// Returns the number of stores that this rank has made. The numbers differ between ranks if a loss has
    /// kept a rank from making a store.
    pub fn stores(&self) -> u64 {
        self.stores.load(Ordering::Relaxed)
    }

    /// Returns a number for the next store that is the same on every rank. `others` is the number of stores
    /// that other ranks have made.
    pub fn store_after(&self, others: u64) -> u32 {
        self.stores.fetch_max(others + 1, Ordering::Relaxed);
        others as u32
    }

    /// Blocks until no loss is being handled, or there was a fault.
    pub fn settle(&self) {
        self.changes.until(|_| !self.current.get().condition.is_renewing());
    }

    /// Sets the object that makes jobs for `store` while this rank has joined.
    pub fn introduce(&self, store: u32, stand_in: Weak<dyn StandIn>) {
        self.current.get().stand_ins.lock().insert(store, stand_in);
    }

    /// The first fault.
    pub fn fault(&self) -> Option<Error> {
        let shared = self.current.get();
        let fault = shared.condition.fatal();
        if fault.is_some() {
            shared.condition.report();
        }
        fault
    }

    /// Returns the first fault, without recording that a caller has received it.
    pub fn first_fault(&self) -> Option<Error> {
        self.current.get().condition.fatal()
    }

    /// Calls `hook` with the first fault, at once if it has come already. To be called once, in a job that
    /// does not go on without lost ranks.
    pub fn on_fault(&self, hook: OnFault) {
        self.current.get().condition.set_hook(hook);
    }

    /// Ends the job with a fault that occurred outside the engine.
    pub fn fail(&self, fault: &Error) {
        self.current.get().end(fault);
    }

    /// Returns true if the engine ends, as it does when the process exits.
    pub fn is_leaving(&self) -> bool {
        self.current.get().condition.is_leaving()
    }

    /// Returns true if a caller has received the first fault.
    pub fn is_reported(&self) -> bool {
        self.current.get().condition.is_reported()
    }

    /// Payload bytes sent and received, and control messages sent.
    pub fn traffic(&self) -> (u64, u64, u64) {
        let shared = self.current.get();
        let counters =
            [&shared.counters.sent_bytes, &shared.counters.received_bytes, &shared.counters.control_messages];
        let [sent, received, control] = counters.map(|counter| counter.load(Ordering::Relaxed));
        (sent, received, control)
    }

    /// Does `work` on rank 0: now, if this rank is rank 0, or later on the comm thread, if a loss makes it
    /// rank 0.
    pub fn when_first(&self, work: Box<dyn FnOnce() + Send>) {
        self.current.when_first(work);
    }

    /// Returns the state of every rank. To be called on rank 0, which asks the others. Blocks for about 1 s
    /// at most, and leaves out a rank that has not answered by then.
    pub fn status(&self) -> JobStatus {
        status::ask_everybody(&self.current.get())
    }

    /// Prints the state of the ranks. Rank 0 prints it at once, and another rank when rank 0 has answered.
    pub(super) fn describe(&self) {
        let shared = self.current.get();
        if shared.rank == 0 {
            notice(&(status::heading(0) + &self.status().lines()));
        } else {
            shared.send(0, &ControlMessage::Describe(0));
        }
    }

    /// Removes a file when this rank ends in order.
    pub fn remove_at_end(&self, file: PathBuf) {
        self.files.lock().push(file);
    }

    /// Writes an empty file when this rank and all survivors have ended in order. Writes nothing if a rank is
    /// lost after this rank has ended its work.
    pub fn write_at_end(&self, file: PathBuf) {
        *self.ended.lock() = Some(file);
    }

    /// Calls an operation on `topic`: `job` runs when every rank has called it with the same `operation` and
    /// `terms`. Returns at once, with an error if this rank has joined.
    pub fn submit(&self, topic: Topic, operation: Operation, terms: Terms, job: Submission) -> Result<()> {
        self.current.get().submit(topic, operation, terms, job)
    }

    /// Submits as [`submit`](Self::submit) does, among the ranks of `generation` only. Returns an error if
    /// the job has lost a rank since.
    pub fn submit_in(
        &self,
        generation: u64,
        topic: Topic,
        operation: Operation,
        terms: Terms,
        job: Submission,
    ) -> Result<()> {
        let shared = self.current.get();
        check_generation(&shared, generation)?;
        shared.submit(topic, operation, terms, job)
    }

    /// Returns an error if the job has lost a rank since `generation`.
    pub fn check_generation(&self, generation: u64) -> Result<()> {
        check_generation(&self.current.get(), generation)
    }

    /// Records that a caller waits for the result of a call, or reads it. No bucket has operations from both
    /// before and after such a wait.
    pub fn wait(&self) {
        self.current.wait();
    }

    /// Returns the waiter by which a tensor reports such a wait.
    pub fn waiter(&self) -> Weak<dyn Waiter> {
        // The annotation is needed to turn a `Weak` of a sized type into a `Weak` of a trait object.
        let current: Weak<CurrentGeneration> = Arc::downgrade(&self.current);
        current
    }

    /// Runs `work` on the comm thread of every rank at once, and returns its result. Blocks; collective.
    pub fn collective<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&mut Communicator, u32) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.direct(&self.current.get(), name, Box::new(work))
    }

    /// Runs `work` as [`collective`](Self::collective) does, among the ranks of `generation` only.
    pub fn collective_in<T: Send + 'static>(
        &self,
        generation: u64,
        name: &str,
        work: impl FnOnce(&mut Communicator, u32) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.current.get();
        check_generation(&shared, generation)?;
        self.direct(&shared, name, Box::new(work))
    }

    fn direct<T: Send + 'static>(&self, shared: &Shared, name: &str, work: CollectiveWork<T>) -> Result<T> {
        let (result, answer) = answer();
        let job = Submission::new(DirectCollective::new(work, result));
        shared.submit(Topic::Direct, Operation::Collective(name.to_owned()), Terms::default(), job)?;
        self.wait();
        self.answered(&answer)
    }

    /// Joins, because this rank has no data left. Until every rank has joined, this rank adds zeros to the
    /// sums of the others. Returns the last rank to join. Blocks.
    pub fn join(&self) -> Result<usize> {
        let shared = self.current.get();
        if shared.elastic.is_some() {
            return Err(Error::Unsupported {
                kind: "dist_sync_mpi".to_owned(),
                operation: "join".to_owned(),
                reason: "the work of others for a rank that has joined cannot be repeated after a loss \
                         (RINGPULL_ELASTIC); give each rank the same number of steps"
                    .to_owned(),
            });
        }
        if shared.size == 1 {
            return Ok(shared.rank);
        }
        let (result, answer) = answer();
        {
            let mut calls = shared.calls.lock();
            if calls.has_joined() {
                return Err(Error::argument(
                    format!("join on rank {} after it has joined", shared.rank),
                    "let one thread join, once",
                ));
            }
            *shared.callers.joining.lock() = Some(result);
            shared.act(calls.join());
        }
        if !shared.condition.is_well() {
            shared.fail_waiting();
        }
        self.answered(&answer)
    }

    /// Blocks until every rank has called `barrier`.
    pub fn barrier(&self) -> Result<()> {
        let (result, answer) = answer();
        self.submit(Topic::Barrier, Operation::Barrier, Terms::default(), Submission::new(Barrier::new(result)))?;
        self.wait();
        self.answered(&answer)
    }

    /// Returns true from the call on at which all ranks stop. This is the first call that no rank has passed
    /// when one rank `wants` to stop. Every rank makes one call per step. Before a rank wants to stop, this
    /// sends nothing and does not block. Then it blocks until the control threads have answered. Not for a
    /// job that goes on without lost ranks, because its ranks may be at different calls after a loss.
    pub fn should_stop(&self, wants: bool) -> Result<bool> {
        let shared = self.current.get();
        let (call, report) = shared.stopping.begin(wants);
        report.into_iter().for_each(|call| shared.send_to_rank_0(ControlMessage::StopFrom(call)));
        let answer = || shared.condition.is_well().then(|| shared.stopping.answer(call)).flatten();
        if answer().is_none() {
            let _wait = waits::wait();
            let mut interrupted = Ok(());
            self.changes.until(|_| {
                interrupted = waits::check();
                interrupted.is_err() || answer().is_some() || !shared.condition.is_well()
            });
            interrupted?;
        }
        answer().ok_or_else(|| self.fault().unwrap_or_else(|| lost_thread(Some(shared.rank))))
    }

    /// Returns the number of the next process set of these ranks of a generation. It is the same on each of
    /// them if all make their sets in one order.
    pub fn next_set(&self, generation: u64, set: &[usize]) -> u32 {
        let mut sets = self.sets.lock();
        let next = sets.entry((generation, set.to_vec())).or_default();
        *next += 1;
        *next
    }

    /// Waits for a job, and returns its answer or a fault. Blocks.
    pub fn wait_for<T>(&self, answer: &Answer<T>) -> Result<T> {
        self.wait();
        self.answered(answer)
    }

    /// Waits as [`wait_for`](Self::wait_for) does. Returns `None` after `limit`.
    pub fn wait_within<T>(&self, answer: &Answer<T>, limit: Duration) -> Result<Option<T>> {
        self.wait();
        waits::in_pieces(Some(limit), |limit| self.answer(answer, limit))
    }

    /// Returns a job's answer if the job is done. Does not count as a wait, so it does not change how earlier
    /// calls are fused.
    pub fn take<T>(&self, answer: &Answer<T>) -> Result<Option<T>> {
        self.answer(answer, Some(Duration::ZERO))
    }

    fn answered<T>(&self, answer: &Answer<T>) -> Result<T> {
        let _wait = waits::wait();
        waits::until(|limit| self.answer(answer, limit))
    }

    fn answer<T>(&self, answer: &Answer<T>, limit: Option<Duration>) -> Result<Option<T>> {
        match answer.within(limit) {
            Outcome::There(outcome) => outcome.map(Some),
            Outcome::Open => Ok(None),
            Outcome::Gone => Err(self.fault().unwrap_or_else(|| lost_thread(Some(self.rank())))),
        }
    }

    /// Tells the other ranks the error with which this rank would end, because the rank may have no time for
    /// that when it ends. `None` withdraws the error.
    pub fn failing(&self, why: Option<&str>) {
        let shared = self.current.get();
        let had_told = shared.condition.set_failing(why.is_some());
        if !(had_told || why.is_some()) || shared.ranks() == 1 || !shared.condition.is_well() {
            return;
        }
        let note = || ControlMessage::Failing(why.map(str::to_owned));
        shared.send_to_peers(&note());
        if shared.rank == 0 {
            drop(shared.own_notes.send(note()));
        }
    }

    /// Tells every rank that this rank unwinds and will call nothing more, so that no rank waits for it.
    pub fn give_up(&self) {
        let shared = self.current.get();
        let (peer, ranks) = (shared.peer().to_string(), vec![shared.rank]);
        let cause = "it panicked".to_owned();
        if shared.elastic.is_some() && shared.size > 1 {
            // This is no loss: the program is wrong, and the others must not go on.
            let (operation, waiting) = ("the next operation".to_owned(), usize::from(shared.rank == 0));
            return shared.end(&Error::Finished { peer, ranks, operation, rank: waiting, why: cause });
        }
        let operation = shared.doing_or_done();
        let fault = Error::PeerLost { peer, ranks, cause, operation, rank: Some(shared.rank) };
        shared.end(&fault);
    }

    /// The process of the engine. In a forked child it is not the caller's process.
    pub fn process(&self) -> Process {
        self.process
    }

    /// Ends the engine: waits for the calls made, informs the peers, ends the library. After a fault it ends
    /// at once. Does nothing in a forked child, whose parent goes on.
    pub fn leave(&self) {
        if !self.process.is_here() || !self.current.get().condition.begin_to_leave() {
            return;
        }
        self.files.lock().drain(..).for_each(|file| drop(std::fs::remove_file(file)));
        // A thread that receives the fault from now on may have no time to report it.
        let shared = self.current.get();
        let is_reported = shared.condition.is_reported() || shared.condition.is_failing();
        drop(shared);
        let before = self.current.generation();
        // True if this rank had called an operation that was not done, at the last look before a fault.
        let mut was_open = true;
        let mut is_well = || {
            let shared = self.current.get();
            let is_open = shared.has_calls() || !shared.running.lock().is_empty();
            let is_well = shared.condition.fatal().is_none();
            was_open = if is_well { is_open } else { was_open };
            is_well
        };
        self.wait();
        self.changes.until(|_| !is_well() || !self.current.get().has_calls());
        // A job that is being finished may fail, and the caller learns of the failure before the engine does.
        // The other ranks hear of the error only if this rank has not left by then. An updater that never
        // returns delays the end by at most the limit.
        let mut left = self.limit;
        self.changes.until(|waited| {
            left = left.saturating_sub(waited);
            !is_well() || self.current.get().unfinished.is_empty() || left.is_zero() || is_own_thread()
        });
        // After a loss the saved operations must be done first.
        let say_goodbye = || {
            let shared = self.current.get();
            if shared.elastic.is_none() || shared.condition.fatal().is_some() || !shared.has_calls() {
                shared.say_goodbye();
            }
        };
        say_goodbye();
        // Finalising waits for the slowest rank, however long that takes. The limit begins when all ranks are
        // done, or when one has gone.
        let (mut left, mut is_stuck) = (self.limit, false);
        if let Some(comm) = self.comm.lock().take() {
            let has_ended = || self.has_ended.load(Ordering::Acquire) || comm.is_finished();
            self.changes.until(|waited| {
                if self.current.get().condition.is_closing() {
                    left = left.saturating_sub(waited);
                }
                say_goodbye();
                has_ended() || !is_well() || left.is_zero()
            });
            is_stuck = !has_ended();
            if !is_stuck {
                drop(comm.join());
            }
        }
        let shared = self.current.get();
        if is_stuck && shared.condition.is_well() {
            // The log may no longer exist when a process exits.
            notice(&format!(
                "ringpull: rank {}: {} has not ended {:?} after the other ranks were done or gone: this process ends without it\n  hint: the results are complete, but mpirun may report a failed job; this happens with MPICH 4.0 over TCP, not with Open MPI",
                shared.rank,
                self.library(),
                self.limit
            ));
        }
        // A rank that was lost only now had not ended its work.
        let is_whole = shared.condition.fatal().is_none() && self.current.generation() == before;
        if let Some(file) = self.ended.lock().take().filter(|_| is_whole)
            && let Err(cause) = std::fs::write(&file, "")
        {
            notice(&format!(
                "ringpull: rank {}: {} cannot be written ({cause}): the launcher will report a failed job",
                shared.rank,
                file.display()
            ));
        }
        if let Some(fault) = shared.condition.fatal().filter(|_| shared.ranks() > 1) {
            if was_open && !is_reported && !last_words::has_spoken() {
                notice(&fault.report());
            }
            // A launcher that sees this process end may kill the others, and they must report the fault
            // before.
            std::thread::sleep(STAY_AFTER_FAULT);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Waits until all ranks have started the engine, as the start of MPI does. Warns when it takes long.
fn wait_for_all<T>(config: &Config, started: &Receiver<Result<T>>) -> Result<T> {
    // A short limit is meant for steps, and processes take longer to start.
    const LEAST: Duration = Duration::from_secs(60);
    let (begun, mut warning, limit) = (Instant::now(), config.warn, config.timeout.max(LEAST));
    loop {
        let left = warning.min(limit).saturating_sub(begun.elapsed());
        let outcome = waits::in_pieces(Some(left), |left| match started.recv_timeout(left.unwrap_or(limit)) {
            Ok(outcome) => outcome.map(Some),
            Err(RecvTimeoutError::Disconnected) => Err(lost_thread(None)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        })?;
        if let Some(started) = outcome {
            return Ok(started);
        }
        let waited_s = begun.elapsed().as_secs();
        let missing = format!("a process of this job has waited {waited_s} s for others to create their store");
        let remedy = "every process that mpirun starts has to create the store; look at what the other processes do";
        if begun.elapsed() >= limit {
            return Err(Error::Incomplete { what: missing, remedy: remedy.to_owned() });
        }
        notice(&format!("warning: {missing}\n  hint: {remedy}"));
        warning *= 2;
    }
}

/// Returns true if the caller is a thread of an engine. Such a thread runs a callback of the program and must
/// not wait for itself.
fn is_own_thread() -> bool {
    std::thread::current().name().is_some_and(|name| [renewal::COMM, renewal::FINISH].contains(&name))
}

fn check_generation(shared: &Shared, generation: u64) -> Result<()> {
    if shared.info.number == generation {
        return Ok(());
    }
    Err(Error::argument(
        "a communicator ends when the job has lost some of its ranks",
        "make another one: ringpull::communicator() has the ranks that are left",
    ))
}

fn lost_thread(rank: Option<usize>) -> Error {
    Error::ThreadEnded { thread: "the comm thread".to_owned(), rank }
}
