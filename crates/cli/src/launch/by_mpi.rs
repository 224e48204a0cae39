//! The processes of a job as one `mpirun`: rank 0 is the scheduler, then come the servers, then the workers.
//! A job without servers is plain MPI ranks.
//!
//! Each process gets two filters that put its name before its lines. A launcher's own tags cut lines that are
//! written in pieces.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::IpAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringpull_base::config::{self, Config, Role};
use ringpull_base::{Error, Result};
use rustix::process::Pid;

use super::{Host, Port, Sink, Spec, address_towards, claim_port, own_address, process_name};
use crate::child::{self, Childless, PATIENCE, code_of, output_is_read};
use crate::interrupt::Interrupt;
use crate::lab;
use crate::mpirun::{MpiCommand, Mpirun, Ranks};

/// Runs a program, as the shell's own process, with a name before each line of its output: `$0`, or its rank
/// if that is `rank`, or its place after the workers if that is `helper:` and their number. The filters are
/// no children of the program, so that it can wait for its own children; they end when its output ends.
pub(super) const TAG: &str = r#"name=$0
[ "$name" != rank ] || name="rank ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-?}}"
case $name in helper:*)
  name="helper $((${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}} - ${name#helper:}))" ;;
esac
pipes=$(mktemp -d) || exec "$@"
mkfifo "$pipes/1" "$pipes/2"
(trap '' INT TERM HUP; sed -u "s/^/[$name] /" <"$pipes/1" &)
(trap '' INT TERM HUP; sed -u "s/^/[$name] /" <"$pipes/2" >&2 &)
exec >"$pipes/1" 2>"$pipes/2"
rm -r "$pipes"
exec "$@"
"#;

/// Runs the job on `hosts` to its end; its exit code. `mpirun` itself ends all processes when one fails. An
/// error if it does not end after its ranks on this host have ended.
pub(crate) fn run(spec: &Spec, hosts: &[Host], sink: Sink) -> Result<i32> {
    let interrupt = Interrupt::watch()?;
    let (parts, _port) = parts(spec, hosts, sink)?;
    follow(Mpirun::find()?.command_of_parts(hosts, &parts)?, &interrupt, Some(hosts), sink, |_| ())
}

/// Runs `mpirun` to its end; its exit code. `hosts` are where its ranks are, if they are on hosts that this
/// program knows. `on_line` gets each line that it and its processes write to stderr.
pub(super) fn follow(
    mut ready: MpiCommand,
    interrupt: &Interrupt,
    hosts: Option<&[Host]>,
    sink: Sink,
    on_line: impl FnMut(&str) + Send + 'static,
) -> Result<i32> {
    ready.command.stderr(Stdio::piped());
    let mut child = ready.command.spawn().map_err(|cause| Error::io("run", "mpirun", &cause))?;
    let aborts = Arc::new(AtomicBool::new(false));
    let stderr = child.stderr.take().map(|from| {
        let aborts = Arc::clone(&aborts);
        std::thread::spawn(move || pass_on(from, &aborts, on_line))
    });
    let mut forward = interrupt.forward_to(Pid::from_child(&child));
    let mut childless = hosts.map(|hosts| Childless::watch(child.id(), hosts));
    // Survivors have said what they lost after 1.5 times the silence, or mpirun has ended them.
    let patience = Config::from_env()?.silence() * 3 / 2 + PATIENCE;
    let (mut aborts_since, mut hangs) = (None, false);
    let (status, killed) = child::wait(&mut child, "mpirun", || {
        forward();
        if sink == Sink::Tagged && aborts.load(Ordering::Relaxed) {
            hangs = aborts_since.get_or_insert_with(Instant::now).elapsed() > patience;
        }
        (hangs || childless.as_mut().is_some_and(Childless::is_stuck)) && output_is_read()
    })?;
    if killed {
        return status.code().ok_or_else(|| if hangs { aborts_for_ever(patience) } else { outlived() });
    }
    // What is left of it. A process that the job has left behind may hold the pipe for ever.
    let ended = Instant::now();
    while stderr.as_ref().is_some_and(|reader| !reader.is_finished()) && ended.elapsed() < LAST_LINES {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let code = code_of(status);
    // MPICH's mpiexec exits with 0 after a signal.
    Ok(interrupt.signal().filter(|_| code == 0).map_or(code, |signal| 128 + signal))
}

/// How long the last lines of a job that has ended are waited for.
const LAST_LINES: Duration = Duration::from_secs(2);

/// How `mpirun` says that it ends a job because a process has failed: Open MPI 4, 5, and MPICH.
const ABORTS: [&str; 4] =
    ["the job has been aborted", "the job to be terminated", "exited on signal", "BAD TERMINATION OF ONE"];

/// Prints what `mpirun` and its processes write to stderr, and notes when `mpirun` begins to end the job.
/// Lines of processes begin with their name.
fn pass_on(from: impl Read, aborts: &AtomicBool, mut on_line: impl FnMut(&str)) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while matches!(from.read_until(b'\n', &mut line), Ok(1..)) {
        let text = String::from_utf8_lossy(&line);
        if !text.starts_with('[') && ABORTS.iter().any(|words| text.contains(words)) {
            aborts.store(true, Ordering::Relaxed);
        }
        on_line(&text);
        if let Err(cause) = std::io::stderr().lock().write_all(&line) {
            tracing::debug!(%cause, "a line of mpirun's is lost");
        }
        line.clear();
    }
}

/// What the ranks run, and the scheduler's port, which is claimed until the job has ended.
pub(super) fn parts(spec: &Spec, hosts: &[Host], sink: Sink) -> Result<(Vec<Ranks>, Option<Port>)> {
    let ranks = |count, name: &str, env: Vec<(String, String)>| tagged(spec, count, sink, name, env);
    if spec.servers == 0 {
        let workers = ranks(spec.workers, "rank", spec.variables.of(Role::Worker));
        let role = (config::ROLE.to_owned(), "helper".to_owned());
        let env = [spec.variables.of(Role::Helper), vec![role]].concat();
        let helpers = (spec.helpers > 0).then(|| ranks(spec.helpers, &format!("helper:{}", spec.workers), env));
        return Ok(([workers].into_iter().chain(helpers).collect(), None));
    }
    // Rank 0 is the scheduler and runs on the first host.
    let root = match hosts.first() {
        Some(Host::Ssh(host)) => resolve(&host.name)?,
        Some(Host::Lab(host)) => IpAddr::V4(lab::address(*host)),
        _ => own_address(hosts.iter())?,
    };
    let port = claim_port(root)?;
    let one = |(role, index)| ranks(1, &process_name(role, index), spec.env_of(role, index, root, port.number()));
    Ok((spec.roles().map(one).collect(), Some(port)))
}

/// The `mpirun` whose ranks are the workers alone.
pub(super) fn workers_alone(spec: &Spec, hosts: &[Host], sink: Sink, env: &[(String, String)]) -> Result<MpiCommand> {
    let ranks = tagged(spec, spec.workers, sink, "rank", env.to_vec());
    Mpirun::find()?.command_of_parts(hosts, &[ranks])
}

/// Ranks of the job's program whose lines begin with their `name`, if the sink wants that.
fn tagged(spec: &Spec, count: usize, sink: Sink, name: &str, mut env: Vec<(String, String)>) -> Ranks {
    let mut command = spec.command.clone();
    if sink == Sink::Tagged {
        command.splice(..0, ["sh", "-c", TAG, name].map(OsString::from));
        env.splice(..0, unbuffered());
    }
    Ranks { count, command, env }
}

/// The variable by which Python does not hold back lines that go into a pipe, unless it is set.
pub(super) fn unbuffered() -> Option<(String, String)> {
    config::text("PYTHONUNBUFFERED").is_none().then(|| ("PYTHONUNBUFFERED".to_owned(), "1".to_owned()))
}

/// The error of an `mpirun` that was killed because it did not end.
fn outlived() -> Error {
    let what = format!(
        "its processes ended and it did not within {} s, so it was killed and their exit codes are lost: see their \
         own output (Open MPI 4.1 sometimes hangs after ranks fail)",
        PATIENCE.as_secs()
    );
    Error::io("wait for", "mpirun", &std::io::Error::other(what))
}

/// The error of an `mpirun` that waits for a host for ever.
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
