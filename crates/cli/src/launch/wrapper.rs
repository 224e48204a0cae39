//! The program above each process of a job: `ringpull rank`. `ringpull launch` puts it before the words of
//! each rank that `mpirun` starts, and of each process that it starts itself.
//!
//! The rank is its child in the same process group. So signals that `mpirun` sends to the group reach the
//! rank; this program itself ignores them. It ends with the rank's exit code when the output of the rank has
//! ended. If the rank has failed, it ends as soon as it has passed on the output that exists, and ends the
//! processes that the rank has left. On a connection to the launcher it sends the output and takes orders.
//! Without a connection it writes the output itself, with the name before each line.
//!
//! An order to end goes to the rank's process, but not to its children, such as data loaders: the rank may
//! need them to save its state. A shell that waits for a program does not pass signals on. So the program
//! gets the signal first, and the shell when the program has ended. From then on this program waits until the
//! launcher allows it to end, because `mpirun` would kill the other ranks when the first one ends. If the
//! launcher has ended, or if this program is killed, the rank is killed too.
//!
//! Above a process that the launcher has started itself, this program leads a session, takes orders from its
//! input, and does not touch the output. After the process it ends the rest of the session, and then ends at
//! once.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringpull_base::config;
use ringpull_base::{Error, Result};
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, kill_process, setrlimit};
use signal_hook::consts;

use super::connection::{self, LEAVE, RECEIVED, RankFrame, Stream};
use super::lines::Lines;
use super::memory_limit::MemoryLimit;
use super::output::{Pieces, Pipe, Sink};
use ringpull_harness::interrupt::is_ignored;
use ringpull_lab::ends::code_of;

/// The script that runs on a rank's host. It starts this program if it works on the host, at the same path or
/// on the `PATH`, and otherwise the rank itself.
const START: &str = r#"for own in "$0" ringpull; do
  ! "$own" rank --help >/dev/null 2>&1 || exec "$own" rank "$@"
done
while [ "$1" != -- ]; do shift; done
shift
echo "warning: $(hostname) has no $0 that runs: the lines of ranks there have no names, and ranks have no time after SIGTERM
  hint: install the same ringpull on every host" >&2
exec "$@""#;

/// The words to put before those of a program to run it below this program. `name` is the name of the
/// process, or an argument of [`name_of`]. `to` are the launcher's addresses.
pub(super) fn words_before(name: &str, to: &[String], sink: Sink) -> Result<Vec<OsString>> {
    let own = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
    let mut words: Vec<OsString> = vec!["/bin/sh".into(), "-c".into(), START.into(), own.into()];
    words.extend(["--name", name].map(OsString::from));
    words.extend(to.iter().flat_map(|address| ["--to", address].map(OsString::from)));
    words.extend((sink == Sink::Tagged).then(|| OsString::from("--tagged")));
    words.push("--".into());
    Ok(words)
}

/// The words to put between this program and a program that the launcher starts itself, on any host.
pub(super) fn words_of_supervised(name: &str) -> Vec<OsString> {
    ["rank", "--supervised", "--name", name, "--"].map(OsString::from).to_vec()
}

/// The time that a rank has to end after its launcher has ended.
const ALONE: Duration = Duration::from_secs(5);
/// The time after which the launcher is informed that a process outlives the rank. If the rank has failed, a
/// process that writes without end is not awaited longer than this.
const OUTLIVES: Duration = Duration::from_secs(5);
/// If a failed rank's output is silent for this time, all existing output has arrived.
const QUIET: Duration = Duration::from_secs(1);
/// The interval at which a shell that was ordered to end is checked, and the output of a rank that has ended.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(crate) struct WrapperArgs {
    /// An address of the launcher; the first one that answers is used.
    #[arg(long)]
    to: Vec<String>,
    /// The name of the process. For `rank`, `helper:WORKERS` and `role:SERVERS` it is made from the process's
    /// number.
    #[arg(long)]
    name: String,
    /// Put the name before each line.
    #[arg(long)]
    tagged: bool,
    /// The launcher has started this process itself; its orders are on the input.
    #[arg(long)]
    supervised: bool,
    /// Becomes the rank, as the child of this process.
    #[arg(long, value_name = "PID")]
    below: Option<i32>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the rank to its end. Returns its exit code, unless this process ends by the same signal as the rank.
pub(crate) fn run(args: &WrapperArgs) -> Result<u8> {
    if let Some(parent) = args.below {
        return become_rank(parent, &args.command);
    }
    if args.supervised
        && let Err(cause) = rustix::process::setsid()
    {
        tracing::debug!(%cause, "this process leads a session");
    }
    // Either the rank gets these signals too, or it is not to get them.
    let passed = Arc::new(AtomicBool::new(false));
    let hangup = (!is_ignored(consts::SIGHUP)).then_some(consts::SIGHUP);
    let others = [
        consts::SIGINT,
        consts::SIGQUIT,
        consts::SIGTERM,
        consts::SIGUSR1,
        consts::SIGUSR2,
        consts::SIGALRM,
        consts::SIGVTALRM,
        consts::SIGPROF,
        consts::SIGXCPU,
        consts::SIGIO,
    ];
    for signal in others.into_iter().chain(hangup) {
        signal_hook::flag::register(signal, Arc::clone(&passed))
            .map_err(|cause| Error::io("handle", format!("signal {signal}"), &cause))?;
    }
    let name = name_of(&args.name);
    let link = connect(&args.to, &name);
    let memory = MemoryLimit::of_this_process();
    let own = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
    let mut command = Command::new(own);
    command.envs(torch_variables());
    command.args(["rank", "--name", "", "--below", &getpid().as_raw_pid().to_string(), "--"]).args(&args.command);
    if args.tagged {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    if args.supervised {
        command.stdin(Stdio::null());
    }
    let mut child = command.spawn().map_err(|cause| Error::io("start", &name, &cause))?;
    let rank = Arc::new(RankProcess { pid: Pid::from_child(&child), state: Mutex::default(), changed: Condvar::new() });
    if let Some(link) = &link {
        let (rank, link) = (Arc::clone(&rank), Arc::clone(link));
        std::thread::spawn(move || rank.take_orders(&link.stream));
    }
    if args.supervised {
        let rank = Arc::clone(&rank);
        std::thread::spawn(move || rank.take_orders(std::io::stdin()));
    }
    let (until_end, ends) = channel();
    let relayed = Arc::new(RelayProgress::default());
    let out = child.stdout.take().map(|from| (Box::new(from) as Box<dyn Pipe>, true));
    let err = child.stderr.take().map(|from| (Box::new(from) as Box<dyn Pipe>, false));
    for (from, is_out) in out.into_iter().chain(err) {
        let (link, name, relayed) = (link.clone(), name.clone(), Arc::clone(&relayed));
        let until_end = until_end.clone();
        std::thread::spawn(move || {
            relay(from, is_out, link.as_deref(), &name, &relayed);
            drop(until_end);
        });
    }
    drop(until_end);
    let status = child.wait().map_err(|cause| Error::io("wait for", &name, &cause))?;
    rank.change(|state| state.has_ended = true);
    let killed_for_memory = memory.filter(|_| status.signal() == Some(consts::SIGKILL)).and_then(|it| it.kills());
    if let Some(said) = killed_for_memory.map(|said| format!("{name} {said}\n")) {
        // Sent after the rank's output, in the same way.
        let is_sent = link.as_ref().is_some_and(|link| link.send(&RankFrame::Err(said.clone().into_bytes())));
        if !is_sent && let Err(cause) = write_here(false, said.as_bytes()) {
            tracing::debug!(%cause, "nobody hears that memory was short");
        }
    }
    if args.supervised {
        rank.kill_others();
        // This process does not end by the rank's signal, because ssh would treat it as an end of ssh itself.
        return Ok(u8::try_from(code_of(status)).unwrap_or(1));
    }
    rank.await_output(&ends, &relayed, code_of(status) != 0, link.as_deref());
    let is_sent = link.is_some_and(|link| link.send(&RankFrame::Ended(code_of(status))));
    // The launcher knows the rank's exit code, and `mpirun` would only print a complaint.
    Ok(if rank.await_leave(is_sent) { 0 } else { end_as(status) })
}

/// Replaces this process by the rank's program. The program ends if `parent` ends.
fn become_rank(parent: i32, words: &[OsString]) -> Result<u8> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|cause| Error::io("follow", "the parent process", &cause.into()))?;
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Ok(1);
    }
    let cause = Command::new(&words[0]).args(&words[1..]).exec();
    eprintln!("error: {} cannot be run: {cause}", words[0].display());
    Ok(if cause.kind() == ErrorKind::NotFound { 127 } else { 126 })
}

/// The name of this process, made from the number that its launcher has set. `rank` gives names such as
/// `rank 3`. With `helper:WORKERS` the numbers from WORKERS on are helpers. With `role:SERVERS` the first
/// number is the scheduler, the next are the servers, and the others are the workers.
fn name_of(name: &str) -> String {
    let variables = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];
    let rank = variables.into_iter().find_map(config::text);
    let number = rank.as_deref().and_then(|rank| rank.parse::<usize>().ok());
    let (kind, count) = name.split_once(':').unwrap_or((name, "0"));
    let (Some(number), Ok(count)) = (number, count.parse::<usize>()) else { return kind.to_owned() };
    match kind {
        "rank" => format!("rank {number}"),
        "helper" => format!("helper {}", number.saturating_sub(count)),
        "role" if number == 0 => "scheduler".to_owned(),
        "role" if number <= count => format!("server {}", number - 1),
        "role" => format!("worker {}", number - 1 - count),
        _ => name.to_owned(),
    }
}

/// The variables with a rank's number among all ranks and among the ranks of its host.
pub(super) const TORCH_PLACE: [&str; 4] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];

/// The variables by which `torchrun` gives a process its number, which PyTorch and frameworks on it read. A
/// rank of MPI gets them if its launcher has set the address of rank 0 too ([`config::MEETING`]), unless the
/// user has set one of them.
fn torch_variables() -> Vec<(&'static str, String)> {
    let is_given = TORCH_PLACE.iter().any(|name| config::text(name).is_some());
    let size = config::launcher_world_size().filter(|_| config::text(config::MEETING).is_some() && !is_given);
    let Some((_, size)) = size else { return Vec::new() };
    let rank = if size == 1 { Some(0) } else { config::launcher_rank() };
    let values = [rank, Some(size), config::launcher_local_rank(), config::launcher_local_size()];
    TORCH_PLACE.into_iter().zip(values).filter_map(|(name, value)| Some((name, value?.to_string()))).collect()
}

/// The connection to the launcher.
struct Link {
    stream: Stream,
    /// The lock for sending a frame. The flag is true if all frames so far were sent.
    sending: Mutex<bool>,
}

impl Link {
    /// Sends a frame as a whole. Returns true if the launcher has not ended.
    fn send(&self, frame: &RankFrame) -> bool {
        let mut is_well = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        *is_well = *is_well && frame.send(&self.stream).is_ok();
        *is_well
    }
}

fn connect(to: &[String], name: &str) -> Option<Arc<Link>> {
    if to.is_empty() {
        return None;
    }
    let connected = match config::secret() {
        Ok(Some(secret)) => connection::connect(to, &secret).map_err(|cause| cause.to_string()),
        Ok(None) => Err(format!("{} is not set", config::SECRET)),
        Err(cause) => Err(cause.to_string()),
    };
    match connected {
        Ok(stream) => {
            let link = Arc::new(Link { stream, sending: Mutex::new(true) });
            link.send(&RankFrame::Name(name.to_owned())).then_some(link)
        }
        Err(cause) => {
            eprintln!(
                "warning: {name} cannot reach its launcher at {}: {cause}\n  hint: its output takes the way through \
                 mpirun, and it has no time after SIGTERM",
                to.join(", ")
            );
            None
        }
    }
}

/// The progress of the rank's output.
#[derive(Debug, Default)]
struct RelayProgress {
    pieces: AtomicUsize,
    /// The number of pieces on their way. A slow reader makes them wait.
    sending: AtomicUsize,
}

impl RelayProgress {
    fn pass<T>(&self, send: impl FnOnce() -> T) -> T {
        self.sending.fetch_add(1, Ordering::SeqCst);
        let sent = send();
        self.pieces.fetch_add(1, Ordering::SeqCst);
        self.sending.fetch_sub(1, Ordering::SeqCst);
        sent
    }
}

/// Sends a stream of the rank to the launcher until the stream ends, or writes it here.
fn relay(from: impl Pipe, is_out: bool, link: Option<&Link>, name: &str, relayed: &RelayProgress) {
    let mut lines = Lines::default();
    lines.add(Some(name));
    let mut link = link;
    for piece in Pieces::of(from) {
        let frame = if is_out { RankFrame::Out(piece) } else { RankFrame::Err(piece) };
        if link.is_some_and(|link| relayed.pass(|| link.send(&frame))) {
            continue;
        }
        link = None;
        let (RankFrame::Out(piece) | RankFrame::Err(piece)) = frame else { return };
        let mut text = Vec::new();
        lines.push(0, &piece, Instant::now(), &mut text);
        if relayed.pass(|| write_here(is_out, &text)).is_err() {
            return;
        }
    }
    let mut text = Vec::new();
    lines.end(0, Instant::now(), &mut text);
    if let Err(cause) = write_here(is_out, &text) {
        tracing::debug!(%cause, "the end of a line is lost");
    }
}

fn write_here(is_out: bool, text: &[u8]) -> std::io::Result<()> {
    if !is_out {
        return std::io::stderr().lock().write_all(text);
    }
    let mut out = std::io::stdout().lock();
    out.write_all(text)?;
    out.flush()
}

/// The rank's process.
struct RankProcess {
    pid: Pid,
    state: Mutex<RankState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RankState {
    has_ended: bool,
    end: Termination,
    /// True if the launcher has everything that was sent.
    is_received: bool,
    may_leave: bool,
}

/// The way in which the rank was ordered to end. After that this program waits for the launcher.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd)]
enum Termination {
    #[default]
    Own,
    Told,
    Killed,
}

/// The processes that were ordered to end.
#[derive(Debug, Default)]
struct TerminatedProcesses {
    processes: HashSet<Pid>,
    /// The children of a shell when it was first checked.
    children: HashMap<Pid, Vec<Pid>>,
}

impl RankProcess {
    fn lock(&self) -> MutexGuard<'_, RankState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut RankState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits for the end of the rank's output, which ends with the last process that holds it. If the rank
    /// has failed, its job is to end: then it waits only for existing output, and kills the processes that
    /// hold the output.
    fn await_output(&self, ends: &Receiver<()>, relayed: &RelayProgress, has_failed: bool, link: Option<&Link>) {
        let (mut waited, mut quiet, mut idle) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (mut before, mut is_said) = (0, false);
        while ends.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            waited += LOOK;
            let end = self.lock().end;
            if has_failed && end == Termination::Own {
                let is_sending = relayed.sending.load(Ordering::SeqCst) > 0;
                let pieces = relayed.pieces.load(Ordering::SeqCst);
                quiet = if is_sending || pieces != before { Duration::ZERO } else { quiet + LOOK };
                idle += if is_sending { Duration::ZERO } else { LOOK };
                before = pieces;
                if quiet >= QUIET || idle >= OUTLIVES {
                    self.kill_others();
                    return;
                }
            } else if waited >= OUTLIVES {
                if end == Termination::Killed {
                    return;
                }
                if let Some(link) = link.filter(|_| !is_said) {
                    is_said = true;
                    link.send(&RankFrame::Outlived);
                }
            }
        }
    }

    /// Waits until the launcher has received all frames. If the rank was ordered to end, also waits until the
    /// launcher allows this program to end. Returns true if the rank was ordered to end.
    fn await_leave(&self, is_sent: bool) -> bool {
        let mut state = self.lock();
        while !state.may_leave && (state.end > Termination::Own || (is_sent && !state.is_received)) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.end > Termination::Own
    }

    /// Executes the launcher's orders until the connection ends, which means that the launcher has ended.
    fn take_orders(self: &Arc<Self>, mut from: impl Read) {
        let mut order = [0];
        while from.read_exact(&mut order).is_ok() {
            match i32::from(order[0]) {
                _ if order[0] == LEAVE => self.change(|state| state.may_leave = true),
                _ if order[0] == RECEIVED => self.change(|state| state.is_received = true),
                consts::SIGKILL => self.kill(),
                consts::SIGTERM => self.begin_to_end(),
                signal => self.pass_on(self.pid, signal),
            }
        }
        self.begin_to_end();
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, ALONE, |state| !state.has_ended);
        drop(waited);
        self.kill();
        self.change(|state| state.may_leave = true);
    }

    fn signal(&self, pid: Pid, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        // Before `wait` was called for a process, its number is not given to another.
        if pid == self.pid && self.lock().has_ended {
            return;
        }
        if let Err(cause) = kill_process(pid, signal) {
            tracing::debug!(%cause, "process {} had ended", pid.as_raw_pid());
        }
    }

    /// Sends the signal to the rank. A shell without a trap would end by it, so then the signal goes to the
    /// processes below the shell that handle it.
    fn pass_on(&self, pid: Pid, signal: i32) {
        if !is_shell(pid) || catches(pid, signal) {
            return self.signal(pid, signal);
        }
        let handles = |child: &Pid| is_shell(*child) || catches(*child, signal);
        children_of(pid).into_iter().filter(handles).for_each(|child| self.pass_on(child, signal));
    }

    /// Sends SIGTERM to the rank. If the rank is a shell, first to the program that it runs.
    fn begin_to_end(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.end > Termination::Own {
            return;
        }
        state.end = Termination::Told;
        drop(state);
        let rank = Arc::clone(self);
        std::thread::spawn(move || {
            let mut told = TerminatedProcesses::default();
            loop {
                rank.terminate(rank.pid, &mut told);
                let state = rank.lock();
                let (state, _) = rank
                    .changed
                    .wait_timeout_while(state, LOOK, |state| !state.has_ended)
                    .unwrap_or_else(PoisonError::into_inner);
                if state.has_ended {
                    break;
                }
            }
            // The processes that the rank has left behind.
            rank.others()
                .into_iter()
                .filter(|pid| told.processes.insert(*pid))
                .for_each(|pid| rank.signal(pid, consts::SIGTERM));
        });
    }

    /// Sends SIGTERM to a process, once. A shell with a trap gets it before the program that it runs:
    /// otherwise it could reach the end of its script without the trap. A shell without a trap gets it when
    /// its program has ended.
    fn terminate(&self, pid: Pid, told: &mut TerminatedProcesses) {
        if told.processes.contains(&pid) {
            return;
        }
        let (is_shell, has_trap) = (is_shell(pid), catches(pid, consts::SIGTERM));
        let children = told.children.entry(pid).or_insert_with(|| if is_shell { children_of(pid) } else { Vec::new() });
        let children = children.clone();
        let end = |told: &mut TerminatedProcesses| {
            told.processes.insert(pid);
            self.signal(pid, consts::SIGTERM);
            self.signal(pid, consts::SIGCONT);
        };
        if is_shell && has_trap {
            end(told);
        }
        for child in &children {
            self.terminate(*child, told);
        }
        if !told.processes.contains(&pid) && !children.iter().any(|child| group_of(*child).is_some()) {
            end(told);
        }
    }

    fn kill(&self) {
        self.change(|state| state.end = Termination::Killed);
        self.kill_others();
        self.signal(self.pid, consts::SIGKILL);
    }

    fn kill_others(&self) {
        self.others().into_iter().filter(|pid| *pid != self.pid).for_each(|pid| self.signal(pid, consts::SIGKILL));
    }

    /// The other processes of this program's group if it leads a group; otherwise the processes below the
    /// rank.
    fn others(&self) -> Vec<Pid> {
        let own = getpid();
        if group_of(own) != Some(own.as_raw_pid()) {
            let mut below = vec![self.pid];
            let mut at = 0;
            while let Some(pid) = below.get(at).copied() {
                below.extend(children_of(pid));
                at += 1;
            }
            return below.split_off(1);
        }
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
        numbers.filter(|pid| *pid != own && group_of(*pid) == Some(own.as_raw_pid())).collect()
    }
}

/// Returns true if the process is a shell, which does not pass signals on.
fn is_shell(pid: Pid) -> bool {
    let program = std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_pid())).unwrap_or_default();
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ["sh", "dash", "bash", "ash", "zsh", "ksh", "mksh", "busybox", "time"].contains(&name)
}

/// Returns true if the process has a handler of the signal.
fn catches(pid: Pid, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok());
    caught.is_some_and(|caught| caught & (1 << (signal - 1)) != 0)
}

/// The child processes for which this process has not called `wait` yet.
fn children_of(pid: Pid) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid())).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let words: Vec<String> = texts.collect();
    let numbers = words.iter().flat_map(|text| text.split_whitespace()).filter_map(|word| word.parse().ok());
    numbers.filter_map(Pid::from_raw).filter(|pid| group_of(*pid).is_some()).collect()
}

/// The process's group, if it runs and is not a zombie.
fn group_of(pid: Pid) -> Option<i32> {
    running(pid).map(|(_, group)| group)
}

/// The process's parent, if it runs and is not a zombie.
pub(super) fn parent_of(pid: Pid) -> Option<Pid> {
    running(pid).and_then(|(parent, _)| Pid::from_raw(parent))
}

/// The parent and the group of a process that runs, and is not a zombie.
fn running(pid: Pid) -> Option<(i32, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The name before may contain anything, also parentheses. Behind it: state, parent, group.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    words.next().filter(|state| !state.starts_with(['Z', 'X']))?;
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// If a signal ended the rank, ends this process by the same signal, which `mpirun` reports. Otherwise
/// returns the exit code.
fn end_as(status: ExitStatus) -> u8 {
    if let Some(signal) = status.signal() {
        // Only the rank is to leave a core file.
        if let Err(cause) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }) {
            tracing::debug!(%cause, "this program may leave a core file");
        }
        let ended = match Signal::from_named_raw(signal) {
            Some(Signal::KILL) => kill_process(getpid(), Signal::KILL).map_err(std::io::Error::from),
            _ => signal_hook::low_level::emulate_default_handler(signal),
        };
        if let Err(cause) = ended {
            tracing::debug!(%cause, "signal {signal} does not end this program");
        }
    }
    u8::try_from(code_of(status)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_rank_that_has_ended_stays_until_its_launcher_has_received_everything() {
        let (near, far) = UnixStream::pair().unwrap();
        let link = Arc::new(Link { stream: Stream::Unix(near), sending: Mutex::new(true) });
        let state = Mutex::new(RankState { has_ended: true, ..RankState::default() });
        let rank = Arc::new(RankProcess { pid: getpid(), state, changed: Condvar::new() });
        let [of_orders, of_end] = [(), ()].map(|()| Arc::clone(&rank));
        std::thread::spawn(move || of_orders.take_orders(&link.stream));
        let stays = std::thread::spawn(move || of_end.await_leave(true));
        assert!(!rank.await_leave(false) && !stays.is_finished());
        (&far).write_all(&[RECEIVED]).unwrap();
        assert!(!stays.join().unwrap());
        rank.change(|state| state.end = Termination::Told);
        (&far).write_all(&[LEAVE]).unwrap();
        assert!(rank.await_leave(true));
        // If the connection ended, processes would be ended.
        std::mem::forget(far);
    }
}
