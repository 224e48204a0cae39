//! Waits for the processes of a job and ends them together.
//!
//! When one fails, the others get the job's grace, so that they can say themselves whom they lost; then
//! SIGTERM, and after `PATIENCE` SIGKILL. An interrupt skips the grace, a second one the patience. Servers
//! and scheduler get the same grace after the last worker's success.

use std::io::Read;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use ringpull_base::config::Role;
use ringpull_base::{Error, Result};

use super::output::{Stream, carry};
use super::{Launch, Process};
use crate::child::code_of;
use crate::interrupt::Interrupt;

/// How long a process has between SIGTERM and SIGKILL.
const PATIENCE: Duration = Duration::from_secs(3);
/// How soon an interrupt is noticed.
const GLANCE: Duration = Duration::from_millis(50);

/// How one process ended and what it wrote, if that was kept.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub role: Role,
    /// Its exit code; 128 and the signal's number if a signal ended it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// How a job ended.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// The first failure's exit code, 128 and the signal's number after an interrupt, 124 past the limit,
    /// else 0.
    pub code: i32,
    /// What failed first, in words; empty after success.
    pub failure: String,
    /// Every process: scheduler, servers, workers.
    pub processes: Vec<Ended>,
}

struct Running {
    name: String,
    role: Role,
    pid: Pid,
    orders: Option<Sender<&'static str>>,
    readers: Vec<(Stream, JoinHandle<Vec<u8>>)>,
    code: Option<i32>,
}

struct Job {
    running: Vec<Running>,
    exits: Receiver<(usize, i32)>,
    failure: Option<(i32, String)>,
    /// When SIGTERM is due, then when SIGKILL is, then when the supervisors themselves are killed.
    due: Option<Instant>,
    stage: usize,
}

pub(super) fn run(launch: &Launch, processes: &[Process]) -> Result<Outcome> {
    let interrupt = Interrupt::watch()?;
    let before = interrupt.count();
    let (sender, exits) = channel();
    let mut job = Job { running: Vec::new(), exits, failure: None, due: None, stage: 0 };
    let started = Instant::now();
    let mut broken = None;
    for (number, process) in processes.iter().enumerate() {
        match start(launch, process, number, &sender) {
            Ok(running) => job.running.push(running),
            Err(error) => {
                broken = Some(error);
                job.fail(1, String::new(), Duration::ZERO);
                break;
            }
        }
    }
    let mut seen = before;
    while job.running.iter().any(|one| one.code.is_none()) {
        job.wait(launch.grace);
        if interrupt.count() > seen {
            // The second interrupt does not wait for what the first one asked.
            let signal = interrupt.signal().unwrap_or(2);
            job.fail(128 + signal, format!("interrupted by signal {signal}"), Duration::ZERO);
            job.due = Some(Instant::now());
            seen = interrupt.count();
        }
        if launch.limit.is_some_and(|limit| started.elapsed() > limit) {
            job.fail(124, format!("not finished after {} s", started.elapsed().as_secs()), Duration::ZERO);
        }
        job.escalate();
    }
    let (code, failure) = job.failure.unwrap_or_default();
    let processes = job.running.into_iter().map(Running::ended).collect();
    broken.map_or(Ok(Outcome { code, failure, processes }), Err)
}

fn start(launch: &Launch, process: &Process, number: usize, exits: &Sender<(usize, i32)>) -> Result<Running> {
    let name = process.name();
    let (mut command, first) = process.place.command(&launch.spec.command, &process.env)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Away from the terminal's group, Ctrl-C reaches the launcher alone, which then ends all in order.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child =
        command.spawn().map_err(|cause| Error::io("start", format!("{name} on {}", process.place), &cause))?;
    let pid = Pid::from_child(&child);
    let orders = child.stdin.take().map(|input| pass_on(input, first, name.clone()));
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = out.map(|from| (Stream::Out, Box::new(from) as Box<dyn Read + Send>));
    let err = err.map(|from| (Stream::Err, Box::new(from) as Box<dyn Read + Send>));
    let read = |(stream, from)| {
        let (name, sink) = (name.clone(), launch.sink);
        (stream, std::thread::spawn(move || carry(from, stream, &name, sink)))
    };
    let readers = out.into_iter().chain(err).map(read).collect();
    let exits = exits.clone();
    std::thread::spawn(move || {
        let code = child.wait().map_or(1, code_of);
        // Nobody listens any more only if the launcher itself is unwinding.
        if exits.send((number, code)).is_err() {
            tracing::debug!("process {number} ended after the launcher");
        }
    });
    tracing::info!("started {name} on {}", process.place);
    Ok(Running { name, role: process.role, pid, orders, readers, code: None })
}

/// Writes `first` to the input and then each order, in a thread, as a connection may take nothing for a
/// while. The input is closed when the sender is dropped.
fn pass_on(mut input: ChildStdin, first: Vec<u8>, name: String) -> Sender<&'static str> {
    use std::io::Write;
    let (sender, orders) = channel::<&'static str>();
    std::thread::spawn(move || {
        let written = input.write_all(&first);
        let written = written.and_then(|()| orders.iter().try_for_each(|order| input.write_all(order.as_bytes())));
        if let Err(cause) = written {
            tracing::debug!(%cause, "{name} takes no orders");
        }
    });
    sender
}

impl Job {
    fn wait(&mut self, grace: Duration) {
        let (number, code) = match self.exits.recv_timeout(GLANCE) {
            Ok(exit) => exit,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        };
        let one = &mut self.running[number];
        one.code = Some(code);
        one.orders = None;
        if code != 0 {
            let how = if code > 128 { format!("signal {}", code - 128) } else { format!("exit code {code}") };
            let failure = format!("{} ended with {how}", one.name);
            self.fail(code, failure, grace);
        }
        let workers_done = self.running.iter().all(|one| one.role != Role::Worker || one.code.is_some());
        if workers_done && self.due.is_none() {
            self.due = Some(Instant::now() + grace);
        }
    }

    fn fail(&mut self, code: i32, failure: String, grace: Duration) {
        if self.failure.is_none() {
            if !failure.is_empty() {
                let left = self.running.iter().filter(|one| one.code.is_none()).count();
                eprintln!("ringpull: {failure}; the other {left} end within {} s", (grace + PATIENCE).as_secs());
            }
            self.failure = Some((code, failure));
            let due = Instant::now() + grace;
            self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
        }
    }

    fn escalate(&mut self) {
        let Some(due) = self.due.filter(|due| Instant::now() >= *due) else { return };
        tracing::debug!(late_s = due.elapsed().as_secs_f64(), stage = self.stage, "ending what still runs");
        for one in self.running.iter_mut().filter(|one| one.code.is_none()) {
            match self.stage {
                0 => one.order("term\n"),
                1 => one.order("kill\n"),
                _ => {
                    if let Err(cause) = kill_process(one.pid, Signal::KILL) {
                        tracing::debug!(%cause, "{} could not be killed", one.name);
                    }
                }
            }
        }
        self.stage += 1;
        self.due = Some(Instant::now() + PATIENCE);
    }
}

impl Running {
    fn order(&mut self, order: &'static str) {
        if let Some(orders) = &self.orders
            && orders.send(order).is_err()
        {
            tracing::debug!("{} takes no orders", self.name);
        }
    }

    fn ended(self) -> Ended {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let deadline = Instant::now() + PATIENCE;
        for (stream, reader) in self.readers {
            // Something that left the process's session may hold the pipe open for as long as it likes.
            while !reader.is_finished() && Instant::now() < deadline {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            if !reader.is_finished() {
                continue;
            }
            let text = String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned();
            match stream {
                Stream::Out => stdout = text,
                Stream::Err => stderr = text,
            }
        }
        Ended { role: self.role, code: self.code.unwrap_or(1), stdout, stderr }
    }
}
