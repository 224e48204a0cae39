//! Waits for the processes of a job and ends them together. [`ends`](super::ends) has the effect of each
//! process's end.
//!
//! When a process fails, the others get the job's grace period, in which they report which process they lost.
//! Then they get SIGTERM, and after `KILL_AFTER` SIGKILL. After an interrupt the workers get SIGTERM at once,
//! and `GRACE` for a checkpoint. A checkpoint may need the servers, so servers get SIGTERM when the workers
//! have ended. A second interrupt skips the wait. After the last worker has succeeded, servers and scheduler
//! get the job's grace period too. If the job has failed, they get only `REPORT_TIME` after the last worker's
//! end, because they wait for nobody any more.
//!
//! An elastic job goes on without a worker that a signal has ended, and another worker is started in its
//! place: at once, or after a pause if that worker is lost too. If a worker is silent and the job's scheduler
//! has gone on without it, it is killed.

use std::collections::VecDeque;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use ringpull_base::config::{Config, Role};
use ringpull_base::{Error, Result};

use super::control::{Addressees, GRACE, RankControl, is_enough};
use super::output::{Feed, OutputStream, PIPE, Pieces, Pipe, Printer, WholeLines};
use super::stuck::{MpirunWatch, Writing};
use super::wrapper::parent_of;
use super::{Host, Launch, Process, Sink, process_name};
use crate::child::Childless;
use ringpull_harness::interrupt::Interrupt;
use ringpull_lab::ends::{
    EndEffect, EndOfProcess, ExitCodes, JobState, MpirunEnd, RemainingTime, awaited, beside_ranks, code_of,
    is_of_signal, meaning,
};

/// The time between SIGTERM and SIGKILL.
const KILL_AFTER: Duration = Duration::from_secs(3);
/// The time in which servers and scheduler of a failed job report which process they lost, when no worker is
/// left.
const REPORT_TIME: Duration = Duration::from_secs(2);
/// The time to wait for the first success of another worker, after a later worker has failed.
const FIRST_SUCCESS: Duration = Duration::from_secs(2);
/// The exit code of ssh if its connection broke.
const LOST_HOST: i32 = 255;
/// The pause before a worker is started again after its second loss. It doubles with each further loss.
const SECOND_RESTART: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The time for which a replacement worker may go on when the job is over without it.
const LATECOMER: Duration = Duration::from_secs(60);
/// The interval at which interrupts are polled.
const POLL: Duration = Duration::from_millis(50);

/// The end of one process, and its output if the sink keeps output.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub role: Role,
    /// Its exit code; if a signal ended it, 128 plus the signal's number.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// The end of a job.
#[derive(Debug, Clone)]
pub(crate) struct JobEnd {
    /// The exit code of the first failure; after an interrupt 128 plus the signal's number; past the limit
    /// 124; else 0.
    pub code: i32,
    /// The first failure, in words; empty after success.
    pub failure: String,
    /// Every process: scheduler, servers, workers.
    pub processes: Vec<Ended>,
}

struct Running {
    name: String,
    role: Role,
    pid: Pid,
    orders: Option<Sender<u8>>,
    readers: Vec<(OutputStream, JoinHandle<Vec<u8>>)>,
    code: Option<i32>,
    is_by_ssh: bool,
    /// True if the process was silent and the job's scheduler has gone on without it.
    is_silent: bool,
    /// The index of the process in the job. The same process of the job may be started several times.
    process: usize,
}

/// An event for the supervisor.
#[derive(Debug, Clone, Copy)]
enum SupervisorEvent {
    /// A process has ended with this exit code.
    Ended(usize, i32),
    /// The scheduler has gone on without this worker, which may still run.
    Silent(SilentWorker),
}

/// A worker that has sent no heartbeat to the job's scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SilentWorker {
    rank: usize,
    pid: Pid,
}

/// The progress of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Interruption {
    None,
    Begun,
    /// The workers were ordered to end before the other processes.
    WorkersTold,
}

struct Supervisor {
    /// The fewest workers with which an elastic job goes on.
    least: Option<usize>,
    feed: Feed,
    running: Vec<Running>,
    events: Receiver<SupervisorEvent>,
    /// Events that were taken from `events` before their turn.
    early: VecDeque<SupervisorEvent>,
    failure: Option<(i32, String)>,
    /// The time of the next stage: first SIGTERM, then SIGKILL, then the end of the supervisors themselves.
    due: Option<Instant>,
    stage: usize,
    interruption: Interruption,
    /// The number of replacement workers that may still be started.
    restarts: u32,
    /// The processes to start again, each with its time.
    restarts_due: Vec<(Instant, usize)>,
    /// Detects that the `mpirun` of the workers will not end.
    watch: Option<MpirunWatch>,
    /// True if the `mpirun` was killed for this reason.
    has_hung: bool,
    /// True if the workers are ranks and have all ended well, whatever their `mpirun` does.
    are_ranks_done: bool,
}

/// Runs the processes to their end. `control` has the processes that are ranks of an `mpirun`.
pub(super) fn run(launch: &Launch, processes: &[Process], control: Option<&RankControl>) -> Result<JobEnd> {
    // Dropping it prints the remaining output.
    let own = control.is_none().then(Printer::start);
    let printer = own.as_ref().or(control.map(|control| &control.printer)).expect("one of the two is there");
    let feed = printer.feed();
    let interrupt = Interrupt::watch()?;
    interrupt.watch_for_job()?;
    let (before, silence) = (interrupt.count(), Config::from_env()?.silence());
    let (sender, events) = channel();
    let mut job = Supervisor {
        least: launch.elastic.map(|elastic| elastic.least),
        feed: feed.clone(),
        running: Vec::new(),
        events,
        early: VecDeque::new(),
        failure: None,
        due: None,
        stage: 0,
        interruption: Interruption::None,
        restarts: launch.elastic.map_or(0, |elastic| elastic.restarts),
        restarts_due: Vec::new(),
        watch: None,
        has_hung: false,
        are_ranks_done: false,
    };
    let started = Instant::now();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut broken = None;
    for (number, process) in processes.iter().enumerate() {
        let writing = process.mpirun.as_ref().map(|_| Writing::new());
        match start(launch, (number, process), number, (&sender, &feed, &is_over), writing.as_ref()) {
            Ok(running) => {
                if let Some(writing) = writing {
                    let childless = Childless::watch_below(running.pid.as_raw_pid() as u32, &launch.workers);
                    job.watch = Some(MpirunWatch::new(childless, writing, silence));
                }
                job.running.push(running);
            }
            Err(error) => {
                broken = Some(error);
                job.fail(1, String::new(), Duration::ZERO);
                break;
            }
        }
    }
    let mut seen = before;
    while job.running.iter().any(|one| one.code.is_none()) {
        job.wait(launch, control);
        for lost in job.take_due_restarts() {
            let Some(process) = processes.get(lost) else { continue };
            let number = job.running.len();
            match start(launch, (lost, process), number, (&sender, &feed, &is_over), None) {
                Ok(running) => job.running.push(running),
                Err(error) => job.feed.say(&format!("ringpull: elastic: {error}")),
            }
        }
        interrupt.for_job().for_each(|signal| job.pass_on(signal, control));
        if interrupt.count() > seen {
            // A second interrupt does not wait for the effect of the first.
            let signal = interrupt.signal().unwrap_or(2);
            job.fail(128 + signal, format!("interrupted by signal {signal}"), GRACE);
            job.due = Some(Instant::now());
            job.interruption = job.interruption.max(Interruption::Begun);
            seen = interrupt.count();
        }
        if launch.limit.is_some_and(|limit| started.elapsed() > limit) {
            job.fail(124, format!("not finished after {} s", started.elapsed().as_secs()), Duration::ZERO);
        }
        control.into_iter().for_each(|control| job.end_stuck_mpirun(control, launch));
        job.escalate(control);
    }
    control.into_iter().for_each(|control| control.finish(&interrupt));
    let (code, failure) = job.failure.unwrap_or_default();
    is_over.store(true, Ordering::Relaxed);
    if !await_output(&job.running, printer, &interrupt) {
        printer.give_up();
    }
    let processes = job.running.into_iter().map(Running::ended).collect();
    broken.map_or(Ok(JobEnd { code, failure, processes }), Err)
}

/// Waits for the output of a job after its processes have ended, and for a slow reader of this output.
/// Returns true if all output is written. A process that has left the session may hold a pipe open for ever.
/// After an interrupt it waits at most the grace period.
fn await_output(processes: &[Running], printer: &Printer, interrupt: &Interrupt) -> bool {
    let ended = Instant::now();
    let mut until = ended + KILL_AFTER;
    while !processes.iter().all(Running::is_read) || printer.is_busy() {
        if is_enough(interrupt, ended) {
            return false;
        }
        if printer.is_busy() {
            until = Instant::now() + KILL_AFTER;
        } else if Instant::now() > until {
            return true;
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    true
}

/// Starts the `index`th process of the job, which reports its end under `number`.
fn start(
    launch: &Launch,
    (index, process): (usize, &Process),
    number: usize,
    (events, feed, is_over): (&Sender<SupervisorEvent>, &Feed, &Arc<AtomicBool>),
    writing: Option<&Arc<Writing>>,
) -> Result<Running> {
    let name = process.name();
    let words = process.mpirun.as_ref().unwrap_or(&launch.spec.command);
    let (mut command, first) = process.host.command(&name, words, &process.env)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().map_err(|cause| Error::io("start", format!("{name} on {}", process.host), &cause))?;
    let pid = Pid::from_child(&child);
    let is_by_ssh = matches!(process.host, Host::Ssh(_));
    let orders = child.stdin.take().map(|input| pass_on(input, first, name.clone()));
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = out.map(|from| (OutputStream::Out, Box::new(from) as Box<dyn Pipe>));
    let err = err.map(|from| (OutputStream::Err, Box::new(from) as Box<dyn Pipe>));
    let read = |(stream, from): (OutputStream, Box<dyn Pipe>)| {
        // Ranks have connections of their own.
        let is_tagged = launch.sink == Sink::Tagged && process.mpirun.is_none();
        let source = feed.source(stream, is_tagged.then_some(&name[..]));
        let is_kept = launch.sink == Sink::Kept;
        let hears = process.role == Role::Scheduler && stream == OutputStream::Err && launch.elastic.is_some();
        let (events, is_over, writing) = (hears.then(|| events.clone()), Arc::clone(is_over), writing.cloned());
        let read = move || {
            let (mut kept, mut lines, mut late) = (Vec::new(), WholeLines::default(), 0);
            for piece in Pieces::of(from) {
                // A process that has left the session may write without end.
                late += if is_over.load(Ordering::Relaxed) { piece.len() } else { 0 };
                if late > PIPE {
                    break;
                }
                if let Some(events) = &events {
                    lines.push(&piece, |line| {
                        if let Some(worker) = silent_worker(line)
                            && events.send(SupervisorEvent::Silent(worker)).is_err()
                        {
                            tracing::debug!(?worker, "a worker was silent when the job had ended");
                        }
                    });
                }
                if let (Some(writing), OutputStream::Err) = (&writing, stream) {
                    lines.push(&piece, |line| writing.line(line));
                }
                let pass_on = || if is_kept { kept.extend(piece) } else { source.write(piece) };
                match &writing {
                    Some(writing) => writing.passes(pass_on),
                    None => pass_on(),
                }
            }
            kept
        };
        (stream, std::thread::spawn(read))
    };
    let readers = out.into_iter().chain(err).map(read).collect();
    let events = events.clone();
    std::thread::spawn(move || {
        // Before `wait` is called for the process, no other process and no other group gets its number.
        let seen = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let is_killed = seen.is_ok_and(|seen| seen.is_some_and(|seen| seen.killed() || seen.dumped()));
        if !is_by_ssh && is_killed {
            // Otherwise the process itself has ended the rest of its session.
            if let Err(cause) = kill_process_group(pid, Signal::KILL) {
                tracing::debug!(%cause, "process {number} has left nothing");
            }
        }
        let code = child.wait().map_or(1, code_of);
        // The receiver is gone only if the launcher itself is unwinding.
        if events.send(SupervisorEvent::Ended(number, code)).is_err() {
            tracing::debug!("process {number} ended after the launcher");
        }
    });
    tracing::info!("started {name} on {}", process.host);
    Ok(Running {
        name,
        role: process.role,
        pid,
        orders,
        readers,
        code: None,
        is_by_ssh,
        is_silent: false,
        process: index,
    })
}

/// Writes `first` and then each order to the input. A thread does that, because a connection may block.
/// Dropping the sender closes the input.
fn pass_on(mut input: ChildStdin, first: Vec<u8>, name: String) -> Sender<u8> {
    use std::io::Write;
    let (sender, orders) = channel::<u8>();
    std::thread::spawn(move || {
        let written = input.write_all(&first);
        let written = written.and_then(|()| orders.iter().try_for_each(|order| input.write_all(&[order])));
        if let Err(cause) = written {
            tracing::debug!(%cause, "{name} reads no orders");
        }
    });
    sender
}

impl Supervisor {
    /// Waits for the end of a process, for a limited time.
    fn wait(&mut self, launch: &Launch, control: Option<&RankControl>) {
        let next = self.early.pop_front().map_or_else(|| self.events.recv_timeout(POLL), Ok);
        let (number, code) = match next {
            Ok(SupervisorEvent::Ended(number, code)) => (number, code),
            Ok(SupervisorEvent::Silent(worker)) => {
                self.kill_silent(worker);
                return self.limit_the_rest(launch.grace);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        };
        if code != 0 && self.came_later(number) {
            self.look_ahead();
        }
        let codes =
            control.map_or(ExitCodes::of(code), |control| self.codes_beside_ranks(number, code, control, launch));
        let code = codes.own;
        let one = &mut self.running[number];
        one.code = Some(code);
        one.orders = None;
        let how = if is_of_signal(code) { format!("signal {}", code - 128) } else { format!("exit code {code}") };
        let (role, end, ended) = (one.role, one.end(code), format!("{} ended with {how}", one.name));
        let meaning = meaning(self.least, role, end, self.state(number));
        match meaning {
            EndEffect::Nothing => {}
            EndEffect::Failure => self.fail(codes.of_job, ended, launch.grace),
            EndEffect::Unneeded | EndEffect::Without | EndEffect::Replaced => self.report(number, &ended, meaning),
        }
        self.limit_the_rest(launch.grace);
    }

    /// The exit codes of a process that has ended in a job whose workers are ranks.
    fn codes_beside_ranks(&mut self, number: usize, code: i32, control: &RankControl, launch: &Launch) -> ExitCodes {
        self.are_ranks_done = control.have_workers_succeeded(launch.spec.workers);
        let ranks = MpirunEnd {
            code: (!self.has_hung).then_some(code),
            interrupted: None,
            was_ended: false,
            have_all_ended: true,
            have_workers_succeeded: self.are_ranks_done,
            first_failure: control.first_failure(),
        };
        beside_ranks(self.running[number].role, code, ranks)
    }

    /// Kills an `mpirun` that does not end although its ranks have ended or failed.
    fn end_stuck_mpirun(&mut self, control: &RankControl, launch: &Launch) {
        let stuck = self.watch.as_mut().and_then(|watch| watch.look(control, launch.spec.workers));
        if self.has_hung || stuck.is_none() {
            return;
        }
        self.has_hung = true;
        if !control.have_workers_succeeded(launch.spec.workers) {
            self.feed.say("ringpull: mpirun does not end although its ranks have ended, or although it has reported the job's end: it is killed");
        }
        let mpirun = self.running.iter_mut().filter(|one| one.role == Role::Worker && one.code.is_none());
        mpirun.for_each(|one| one.order(Signal::KILL));
    }

    /// Sets the time by which the remaining processes must end, if there is a limit.
    fn limit_the_rest(&mut self, grace: Duration) {
        let mut left = self.running.iter().enumerate().filter(|(_, one)| one.code.is_none());
        let only_surplus = left.all(|(number, one)| one.role == Role::Server || self.is_surplus(number));
        let left = match awaited(self.interruption > Interruption::None, self.state(0), only_surplus) {
            _ if self.stage > 0 => None,
            RemainingTime::Unlimited => None,
            RemainingTime::Grace => Some(grace),
            RemainingTime::LastWords => Some(grace.min(REPORT_TIME)),
            RemainingTime::Latecomer => Some(LATECOMER).filter(|_| self.due.is_none()),
            RemainingTime::Ends => Some(Duration::ZERO),
        };
        if let Some(left) = left {
            self.end_by(Instant::now() + left);
        }
    }

    /// Returns true if the process was started in the place of another.
    fn came_later(&self, number: usize) -> bool {
        number != self.running[number].process
    }

    /// Returns true if the process was started in the place of another, or if the job has gone on without it.
    fn is_surplus(&self, number: usize) -> bool {
        self.came_later(number) || self.running[number].is_silent
    }

    fn has_succeeded(&self) -> bool {
        let codes = self.running.iter().enumerate().map(|(number, one)| (number, one.code));
        let early = self.early.iter().filter_map(|event| match event {
            SupervisorEvent::Ended(number, code) => Some((*number, Some(*code))),
            SupervisorEvent::Silent(_) => None,
        });
        let has_succeeded = |(number, code): (usize, _)| self.running[number].role == Role::Worker && code == Some(0);
        self.are_ranks_done || codes.chain(early).any(has_succeeded)
    }

    /// A worker that starts when the job ends may learn of the end before this launcher does. So this waits
    /// for the first success of another worker, but only for a short time.
    fn look_ahead(&mut self) {
        let until = Instant::now() + FIRST_SUCCESS;
        while !self.has_succeeded() {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => self.early.push_back(event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// The state of the job after the end of this process.
    fn state(&self, number: usize) -> JobState {
        let runs =
            |one: &&Running| one.role == Role::Worker && one.code.is_none() && !one.is_silent && !self.are_ranks_done;
        JobState {
            has_failed: self.failure.is_some(),
            has_succeeded: self.has_succeeded(),
            workers: self.running.iter().filter(runs).count(),
            is_surplus: self.is_surplus(number),
            may_restart: self.restarts > 0,
        }
    }

    /// Kills a worker without which the job has gone on. If it is stopped, the launcher would wait for it
    /// without end.
    fn kill_silent(&mut self, worker: SilentWorker) {
        let SilentWorker { rank, pid } = worker;
        let own = process_name(Role::Worker, rank);
        // A replacement worker may have the rank of a third worker. And the number of a process on another
        // host is not known here.
        let is_as_at_first =
            self.running.iter().filter(|one| one.role == Role::Worker).all(|one| one.code.is_none() && !one.is_silent);
        let is_it = |one: &&mut Running| {
            let is_known = if one.is_by_ssh { is_as_at_first && one.name == own } else { is_below(pid, one.pid) };
            is_known && one.role == Role::Worker && one.code.is_none()
        };
        match self.running.iter_mut().find(is_it) {
            Some(one) if one.is_silent => {}
            Some(one) => {
                one.is_silent = true;
                one.order(Signal::KILL);
                self.feed.say(&format!(
                    "ringpull: elastic: {} is silent, and the job has gone on without it: it is killed",
                    one.name
                ));
            }
            None => self.feed.say(&format!(
                "ringpull: elastic: rank {rank} (pid {}) is silent, and the job has gone on without it; if the process \
                 still runs, kill it",
                pid.as_raw_pid()
            )),
        }
    }

    /// The pause before this lost process is started again.
    fn pause_of(&self, number: usize) -> Duration {
        let process = self.running[number].process;
        pause_after(self.running.iter().filter(|one| one.process == process).count())
    }

    /// Reports a process without which the job goes on. If it is to be replaced, plans the start of another
    /// one.
    fn report(&mut self, number: usize, ended: &str, meaning: EndEffect) {
        let Running { role, process, .. } = self.running[number];
        if role != Role::Worker {
            return self.feed.say(&format!("ringpull: {ended} when the workers were done"));
        }
        let then = if meaning == EndEffect::Replaced {
            let pause = self.pause_of(number);
            self.restarts -= 1;
            self.restarts_due.push((Instant::now() + pause, process));
            &comes_after(pause)
        } else {
            "no other one is started in its place"
        };
        let left = self.state(number).workers;
        self.feed.say(&format!("ringpull: elastic: {ended}; workers left: {left}; {then}"));
    }

    /// The processes to start again now. None if the job has failed or is ending.
    fn take_due_restarts(&mut self) -> Vec<usize> {
        if self.failure.is_some() || self.has_succeeded() {
            self.restarts_due.clear();
        }
        let now = Instant::now();
        self.restarts_due.extract_if(.., |(due, _)| *due <= now).map(|(_, process)| process).collect()
    }

    fn fail(&mut self, code: i32, failure: String, grace: Duration) {
        if self.failure.is_none() {
            if !failure.is_empty() {
                let left = self.running.iter().filter(|one| one.code.is_none()).count();
                let within = (grace + KILL_AFTER).as_secs();
                self.feed.say(&format!("ringpull: {failure}; the other {left} end within {within} s"));
            }
            self.failure = Some((code, failure));
            self.end_by(Instant::now() + grace);
        }
    }

    /// Sets the time at which running processes are ended, unless they are ended earlier.
    fn end_by(&mut self, due: Instant) {
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// Passes on a signal to the workers.
    fn pass_on(&mut self, signal: Signal, control: Option<&RankControl>) {
        if let Some(control) = control {
            // The processes started here are above the ranks, so the signal goes by the ranks' connections.
            return control.pass_on(signal);
        }
        let workers = self.running.iter_mut().filter(|one| one.code.is_none() && one.role == Role::Worker);
        workers.for_each(|one| one.order(signal));
    }

    fn escalate(&mut self, control: Option<&RankControl>) {
        if self.interruption > Interruption::None {
            control.into_iter().for_each(RankControl::let_go);
        }
        let Some(due) = self.due.filter(|due| Instant::now() >= *due) else { return };
        tracing::debug!(late_s = due.elapsed().as_secs_f64(), stage = self.stage, "ending what still runs");
        let mut left: Vec<&mut Running> = self.running.iter_mut().filter(|one| one.code.is_none()).collect();
        let is_worker = |one: &&mut Running| one.role == Role::Worker;
        if self.stage == 0 && self.interruption == Interruption::Begun && left.iter().any(is_worker) {
            self.interruption = Interruption::WorkersTold;
            match control.filter(|control| control.has_ranks()) {
                Some(control) => control.signal(Signal::TERM, Addressees::Workers),
                None => left.into_iter().filter(is_worker).for_each(|one| one.order(Signal::TERM)),
            }
            self.due = Some(Instant::now() + GRACE);
            return;
        }
        if self.interruption == Interruption::WorkersTold || self.stage > 0 {
            control.into_iter().for_each(|control| control.signal(Signal::KILL, Addressees::All));
        }
        for one in &mut left {
            match self.stage {
                0 if self.interruption == Interruption::WorkersTold && one.role == Role::Worker => {
                    one.order(Signal::KILL);
                }
                0 => one.order(Signal::TERM),
                1 => one.order(Signal::KILL),
                _ => {
                    if let Err(cause) = kill_process(one.pid, Signal::KILL) {
                        tracing::debug!(%cause, "{} could not be killed", one.name);
                    }
                }
            }
        }
        self.stage += 1;
        self.due = Some(Instant::now() + KILL_AFTER);
    }
}

/// The silent worker that a line of an elastic job's scheduler names: "ringpull: worker rank 1 (pid 7 on h2)
/// is lost: no heartbeat for 3.0 s". If a worker has ended, the line has another reason, and this returns
/// `None`.
fn silent_worker(line: &str) -> Option<SilentWorker> {
    let (rank, rest) = line.trim_end().strip_prefix("ringpull: worker rank ")?.split_once(" (pid ")?;
    let pid = rest.split([' ', ')']).next()?.parse().ok().and_then(Pid::from_raw)?;
    rest.contains(") is lost: no heartbeat for ").then_some(SilentWorker { rank: rank.parse().ok()?, pid })
}

/// Returns true if the process `pid` is `above` itself or runs below it.
fn is_below(pid: Pid, above: Pid) -> bool {
    std::iter::successors(Some(pid), |pid| parent_of(*pid)).any(|pid| pid == above)
}

fn comes_after(pause: Duration) -> String {
    let when = if pause.is_zero() { String::new() } else { format!(" in {} s", pause.as_secs()) };
    format!("another one starts in its place{when}")
}

/// The pause before the next start of a process that was started `starts` times.
fn pause_after(starts: usize) -> Duration {
    match u32::try_from(starts.saturating_sub(2)) {
        _ if starts < 2 => Duration::ZERO,
        Ok(doublings) => SECOND_RESTART.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST_PAUSE),
        Err(_) => LONGEST_PAUSE,
    }
}

impl Running {
    /// The end of the process, given its exit code. A silent process may wake up and end with an error of its
    /// own.
    fn end(&self, code: i32) -> EndOfProcess {
        match code {
            0 => EndOfProcess::Well,
            code if is_of_signal(code) || self.is_silent || (code == LOST_HOST && self.is_by_ssh) => EndOfProcess::Lost,
            _ => EndOfProcess::Failed,
        }
    }

    fn order(&mut self, signal: Signal) {
        if let Some(orders) = &self.orders
            && u8::try_from(signal.as_raw()).is_ok_and(|order| orders.send(order).is_err())
        {
            tracing::debug!("{} reads no orders", self.name);
        }
    }

    fn is_read(&self) -> bool {
        self.readers.iter().all(|(_, reader)| reader.is_finished())
    }

    fn ended(self) -> Ended {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        for (stream, reader) in self.readers.into_iter().filter(|(_, reader)| reader.is_finished()) {
            let text = String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned();
            match stream {
                OutputStream::Out => stdout = text,
                OutputStream::Err => stderr = text,
            }
        }
        Ended { role: self.role, code: self.code.unwrap_or(1), stdout, stderr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_silent_is_known_by_the_schedulers_words_and_one_that_has_ended_is_not() {
        let of = |cause: &str| silent_worker(&format!("ringpull: worker rank 12 (pid 7 on h2) is lost: {cause}"));
        let found = SilentWorker { rank: 12, pid: Pid::from_raw(7).unwrap() };
        assert_eq!(of("no heartbeat for 3.0 s (during heartbeat)\n"), Some(found));
        assert_eq!(of("its process ended"), None);
        assert_eq!(silent_worker("ringpull: server 0 (pid 7 on h2) is lost: no heartbeat for 3.0 s"), None);
    }

    #[test]
    fn a_process_is_below_itself_and_those_above_it() {
        let own = rustix::process::getpid();
        assert!(is_below(own, own) && is_below(own, rustix::process::getppid().unwrap()));
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(is_below(Pid::from_child(&child), own) && !is_below(own, Pid::from_child(&child)));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_worker_that_is_lost_again_and_again_stays_away_for_longer_each_time() {
        let seconds = [1, 2, 3, 4, 7, 8, 9, 1000].map(|starts| pause_after(starts).as_secs());
        assert_eq!(seconds, [0, 1, 2, 4, 32, 60, 60, 60]);
    }
}
