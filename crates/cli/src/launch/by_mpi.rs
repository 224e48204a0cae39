//! The processes of a job as one `mpirun`: rank 0 is the scheduler, the next ranks are the servers, and the
//! others are the workers. A job without servers consists of plain MPI ranks.
//!
//! Each process runs below a [`wrapper`](super::wrapper), which connects to the launcher. So the process's
//! lines do not pass through `mpirun`, and the launcher can order the process to end.

use std::io::{IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringpull_base::config::{self, Config, Role};
use ringpull_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use super::control::{Ending, OnLine, RankControl, RankHosts, is_enough};
use super::output::{Feed, OutputStream, Pieces, Pipe, WholeLines};
use super::stuck::{MpirunWatch, Stuck, Writing};
use super::wrapper::TORCH_PLACE;
use super::{Host, Port, Sink, Spec, address_towards, claim_port, own_address, process_name};
use crate::child::{self, Childless, PATIENCE};
use crate::lab;
use crate::mpirun::{MpiCommand, Mpirun, Ranks};
use ringpull_harness::interrupt::Interrupt;
use ringpull_lab::ends::{MpirunEnd, code_of, of_mpirun};

/// Runs the job on `hosts` to its end and returns its exit code. `mpirun` itself ends all processes when one
/// fails. It is an error if `mpirun` does not end after its ranks on this host have ended.
pub(crate) fn run(spec: &Spec, hosts: &[Host], sink: Sink) -> Result<i32> {
    let interrupt = Interrupt::watch()?;
    let job = MpiJob::new(spec, hosts, sink, Box::new(|_| ()))?;
    let ready = Mpirun::find()?.command_of_parts(hosts, &job.parts)?;
    job.run(ready, &interrupt, hosts, |_, _| None)
}

/// The processes of a job, and the connections that they will make.
pub(super) struct MpiJob {
    pub(super) parts: Vec<Ranks>,
    workers: usize,
    control: RankControl,
    /// The port of the scheduler or of PyTorch's rank 0. It is claimed until the job has ended.
    _port: Option<Port>,
}

impl MpiJob {
    /// Prepares a job on these hosts. `on_line` gets each line that `mpirun` and its processes write to
    /// stderr.
    pub(super) fn new(spec: &Spec, hosts: &[Host], sink: Sink, on_line: OnLine) -> Result<Self> {
        let control = RankControl::listen(RankHosts::Hosts(hosts), config::secret_or_new()?, sink, on_line)?;
        let (parts, port) = parts(spec, hosts, &control)?;
        Ok(MpiJob { parts, workers: spec.workers, control, _port: port })
    }

    /// Runs `mpirun` to its end and returns its exit code. Its ranks are on `hosts`. `must_end` is called for
    /// each rank that has ended, with its exit code. If the job must then end, `must_end` returns how long it
    /// may still run. That is needed only if ranks survive losses; otherwise `mpirun` itself ends the job.
    pub(super) fn run(
        self,
        mut ready: MpiCommand,
        interrupt: &Interrupt,
        hosts: &[Host],
        mut must_end: impl FnMut(&str, Option<i32>) -> Option<Duration>,
    ) -> Result<i32> {
        interrupt.watch_for_job()?;
        let silence = Config::from_env()?.silence();
        let MpiJob { parts, workers, control, _port } = self;
        // `mpirun` has its own process group, so it gets no Ctrl-C. The launcher gets it, and orders the
        // ranks to end first.
        ready.command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        ready.command.env(config::SECRET, control.secret.reveal());
        let is_terminal = std::io::stdin().is_terminal();
        if is_terminal {
            // Outside the terminal's process group `mpirun` may not read from the terminal.
            ready.command.stdin(Stdio::piped());
        }
        let mut child = ready.command.spawn().map_err(|cause| Error::io("run", "mpirun", &cause))?;
        if let Some(input) = child.stdin.take() {
            std::thread::spawn(move || pass_terminal(input));
        }
        let writing = Writing::new();
        let output = Output::of(&mut child, &control, &writing);
        let mut ending = Ending::new(&control, interrupt, Pid::from_child(&child));
        let mut watch = MpirunWatch::new(Childless::watch(child.id(), hosts), writing, silence);
        // By then the survivors have reported which process they lost.
        let (ranks, grace) = (parts.iter().map(|part| part.count).sum(), silence * 3 / 2);
        let (mut within, mut stuck) = (grace, None);
        let mut ends = false;
        let (status, killed) = child::wait(&mut child, "mpirun", || {
            ending.poll();
            let ended = if ending.has_begun() { Vec::new() } else { control.take_ended() };
            for (name, code) in ended {
                if let Some(grace) = must_end(&name, code) {
                    (ends, within) = (true, within.min(grace));
                }
            }
            if ends {
                ending.end_within(within);
            } else if control.have_workers_succeeded(workers) {
                // Servers and helpers have nothing left to do. Without a limit the job would wait for one
                // that is stopped.
                ending.end_within(grace);
            }
            stuck = watch.look(&control, ranks);
            stuck.is_some()
        })?;
        control.finish(interrupt);
        output.finish(&control, interrupt);
        let code = of_mpirun(MpirunEnd {
            code: (!killed).then(|| code_of(status)),
            interrupted: interrupt.signal(),
            was_ended: ends,
            have_all_ended: control.have_all_ended(ranks),
            have_workers_succeeded: control.have_workers_succeeded(workers),
            first_failure: control.first_failure(),
        });
        code.ok_or_else(|| if stuck == Some(Stuck::Aborts) { aborts_for_ever(watch.patience) } else { outlived() })
    }
}

/// Passes on the terminal's input while this program is in the terminal's foreground. In the background the
/// kernel would stop it for reading.
fn pass_terminal(mut to: ChildStdin) {
    const LOOK: Duration = Duration::from_millis(200);
    let mut typed = [0; 4096];
    loop {
        let stdin = std::io::stdin();
        let mut input = [PollFd::new(&stdin, PollFlags::IN)];
        let until = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        if !poll(&mut input, Some(&until)).is_ok_and(|ready| ready > 0) {
            continue;
        }
        if !is_foreground() {
            std::thread::park_timeout(LOOK);
            continue;
        }
        // Read without a buffer, because `poll` does not see a buffer's content.
        match rustix::io::read(&stdin, &mut typed) {
            Ok(count @ 1..) if to.write_all(&typed[..count]).is_ok() => {}
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Returns true if this process's group is in its terminal's foreground.
fn is_foreground() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process's name may contain any characters. The fields behind it are: state, parent, group, session,
    // terminal, foreground group.
    let words: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    words.len() > 5 && words[2] == words[5]
}

/// The output of `mpirun` itself, and of processes that have no connection.
struct Output {
    readers: Vec<JoinHandle<()>>,
}

impl Output {
    fn of(child: &mut Child, control: &RankControl, writing: &Arc<Writing>) -> Self {
        let out = child.stdout.take().map(|from| (Box::new(from) as Box<dyn Pipe>, OutputStream::Out));
        let err = child.stderr.take().map(|from| (Box::new(from) as Box<dyn Pipe>, OutputStream::Err));
        let read = |(from, stream)| {
            let (writing, feed) = (Arc::clone(writing), control.printer.feed());
            let on_line = control.on_line();
            let (are_dismissed, is_tagged) = (control.are_dismissed(), control.sink == Sink::Tagged);
            // After an interrupt `mpirun` prints long messages about the end of its processes.
            let is_noise = move |piece: &[u8]| {
                stream == OutputStream::Err && is_tagged && !piece.starts_with(b"[") && are_dismissed()
            };
            std::thread::spawn(move || pass_on((from, stream), &feed, &writing, on_line, is_noise))
        };
        let readers = out.into_iter().chain(err).map(read).collect();
        Output { readers }
    }

    /// Waits for the rest of the output. A process that the job has left behind may hold the pipes for ever.
    fn finish(&self, control: &RankControl, interrupt: &Interrupt) {
        let ended = Instant::now();
        let mut until = Instant::now() + LAST_LINES;
        while !self.readers.iter().all(JoinHandle::is_finished)
            && Instant::now() < until
            && !is_enough(interrupt, ended)
        {
            if control.printer.is_busy() {
                until = Instant::now() + LAST_LINES;
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

/// The time to wait for the last lines of a job that has ended.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Prints a stream, and calls `on_line` for each line of stderr. Pieces that are noise are left out.
fn pass_on(
    (from, stream): (impl Pipe, OutputStream),
    feed: &Feed,
    writing: &Writing,
    mut on_line: impl FnMut(&str),
    is_noise: impl Fn(&[u8]) -> bool,
) {
    let to = feed.source(stream, None);
    let mut lines = WholeLines::default();
    for piece in Pieces::of(from) {
        writing.passes(|| {
            if stream == OutputStream::Err {
                lines.push(&piece, |line| {
                    writing.line(line);
                    on_line(line);
                });
            }
            if !is_noise(&piece) {
                to.write(piece);
            }
        });
    }
}

/// The words and variables of the ranks, and the port of the scheduler or of PyTorch's rank 0.
fn parts(spec: &Spec, hosts: &[Host], control: &RankControl) -> Result<(Vec<Ranks>, Option<Port>)> {
    let ranks = |count, name: &str, env: Vec<(String, String)>| wrapped(spec, count, control, name, env);
    if spec.servers == 0 {
        // For MPI, helpers are ranks too.
        let (port, meeting) = meeting_of_torch(Some(hosts).filter(|_| spec.helpers == 0))?;
        let workers = ranks(spec.workers, "rank", [meeting, spec.variables.of(Role::Worker)].concat())?;
        let role = (config::ROLE.to_owned(), "helper".to_owned());
        let env = [spec.variables.of(Role::Helper), vec![role]].concat();
        let name = format!("helper:{}", spec.workers);
        let helpers = if spec.helpers > 0 { Some(ranks(spec.helpers, &name, env)?) } else { None };
        return Ok(([workers].into_iter().chain(helpers).collect(), port));
    }
    // Rank 0 is the scheduler.
    let root = address_of_first(hosts)?;
    let port = claim_port(root)?;
    let one = |(role, index)| ranks(1, &process_name(role, index), spec.env_of(role, index, root, port.number()));
    Ok((spec.roles().map(one).collect::<Result<_>>()?, Some(port)))
}

/// The address of the host of rank 0.
fn address_of_first(hosts: &[Host]) -> Result<IpAddr> {
    match hosts.first() {
        Some(Host::Ssh(host)) => resolve(&host.name),
        Some(Host::Lab(host)) => Ok(IpAddr::V4(lab::address(*host))),
        _ => own_address(hosts.iter()),
    }
}

/// The names of variables, and their values.
type NamesAndValues = Vec<(String, String)>;

/// The variables by which the ranks of PyTorch's own backends find rank 0, and the claim of rank 0's port.
/// There are none if the user has set one of the variables, or if only ssh knows the first host's name. If a
/// rank of a job starts another job, the new job gets variables of its own.
fn meeting_of_torch(hosts: Option<&[Host]>) -> Result<(Option<Port>, NamesAndValues)> {
    let (names, is_inner) = (["MASTER_ADDR", "MASTER_PORT"], config::text(config::MEETING).is_some());
    let is_free = is_inner || names.iter().chain(&TORCH_PLACE).all(|name| config::text(name).is_none());
    let Some(hosts) = hosts.filter(|_| is_free) else { return Ok((None, Vec::new())) };
    let Ok(root) = address_of_first(hosts) else { return Ok((None, Vec::new())) };
    let port = claim_port(root)?;
    let number = port.number();
    let own =
        [(names[0], root.to_string()), (names[1], number.to_string()), (config::MEETING, format!("{root}:{number}"))];
    let of_outer = is_inner.then_some(TORCH_PLACE).into_iter().flatten().map(|name| (name, String::new()));
    Ok((Some(port), own.into_iter().chain(of_outer).map(|(name, value)| (name.to_owned(), value)).collect()))
}

/// The `mpirun` that starts only the workers as ranks.
pub(super) fn workers_alone(
    spec: &Spec,
    hosts: &[Host],
    control: &RankControl,
    env: &[(String, String)],
) -> Result<MpiCommand> {
    let ranks = wrapped(spec, spec.workers, control, "rank", env.to_vec())?;
    Mpirun::find()?.command_of_parts(hosts, &[ranks])
}

/// Ranks of the job's program, which are connected to the launcher.
fn wrapped(spec: &Spec, count: usize, control: &RankControl, name: &str, env: Vec<(String, String)>) -> Result<Ranks> {
    let command = [control.words_before(name)?, spec.command.clone()].concat();
    Ok(Ranks { count, command, env })
}

/// The error if an `mpirun` did not end and was killed.
fn outlived() -> Error {
    let what = format!(
        "its processes ended and it did not within {} s, so it was killed and their exit codes are lost: see their \
         own output (Open MPI 4.1 sometimes hangs after ranks fail)",
        PATIENCE.as_secs()
    );
    Error::io("wait for", "mpirun", &std::io::Error::other(what))
}

/// The error if an `mpirun` waits for a host for ever.
fn aborts_for_ever(patience: Duration) -> Error {
    let what = format!(
        "a process failed, and it did not end within {:.0} s after that, so it was killed: it waits for a host that \
         cannot be reached, where processes may be left (see the ranks' own errors)",
        patience.as_secs_f64()
    );
    Error::io("wait for", "mpirun", &std::io::Error::other(what))
}

fn resolve(host: &str) -> Result<IpAddr> {
    use std::net::ToSocketAddrs;
    let found = (host, 0).to_socket_addrs().map_err(|cause| Error::io("resolve", host, &cause))?.next();
    match found.map(|address| address.ip()) {
        // This host's own name often resolves to the loopback address, which other hosts cannot reach.
        Some(address) if !address.is_loopback() || host == "localhost" || host == address.to_string() => Ok(address),
        _ => address_towards(host),
    }
}
