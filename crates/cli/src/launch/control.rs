//! The launcher's side of the connections to ranks: it prints the ranks' output, and orders ranks to end.
//!
//! After an interrupt each rank gets SIGTERM, and [`GRACE`] to end by itself, for a checkpoint. A second
//! interrupt, or the end of the grace period, kills the remaining ranks. `mpirun` gets the signal last,
//! because it would kill every rank within a second.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringpull_base::{Error, Result, Secret, config};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::connection::{LEAVE, RECEIVED, RankFrame, RankListener, Stream, answer};
use super::host::temporary_folder;
use super::output::{Feed, OutputStream, Printer, Sink, WholeLines};
use super::{Host, SshHost, address_towards, wrapper};
use ringpull_harness::interrupt::Interrupt;

/// The time for which processes may run after the order to end. It is less than the 30 s for which Kubernetes
/// and Slurm wait.
pub(super) const GRACE: Duration = Duration::from_secs(25);
/// The time between SIGKILL, or the last rank's end, and a signal to `mpirun`.
const KILL_AFTER: Duration = Duration::from_secs(3);
/// After the job's end, the time without output after which no more output is awaited.
const LAST_LINES: Duration = Duration::from_secs(2);
/// The time between two attempts to take a connection.
const RETRY: Duration = Duration::from_millis(50);
const LOOPBACK: &str = "127.0.0.1";
/// Variables of batch systems. If one is set, `mpirun` has hosts of its own.
const ALLOCATIONS: [&str; 4] = ["SLURM_JOB_ID", "PBS_NODEFILE", "LSB_JOBID", "PE_HOSTFILE"];

/// A function that gets each line of the ranks' stderr.
pub(super) type OnLine = Box<dyn FnMut(&str) + Send>;

/// The place of a job's ranks. The launcher's address depends on it.
#[derive(Debug, Clone, Copy)]
pub(super) enum RankHosts<'a> {
    /// On hosts that this program knows, or on this host.
    Hosts(&'a [Host]),
    /// On hosts that somebody else chooses.
    Anywhere,
}

/// The ranks of a job that have connected.
pub(super) struct RankControl {
    pub(super) secret: Secret,
    pub(super) printer: Printer,
    pub(super) sink: Sink,
    addresses: Vec<String>,
    state: Arc<RankConnections>,
    /// Dropping it ends the thread `accepts`.
    ends: Option<UnixStream>,
    accepts: Option<JoinHandle<()>>,
    _folder: Option<TempDir>,
}

struct RankConnections {
    ranks: Mutex<ConnectedRanks>,
    on_line: Mutex<OnLine>,
}

#[derive(Default)]
struct ConnectedRanks {
    all: Vec<ConnectedRank>,
    readers: Vec<JoinHandle<()>>,
    /// The orders so far, for ranks that connect later.
    told: Vec<(u8, Addressees)>,
    failure: Option<i32>,
    are_dismissed: bool,
}

/// The processes that get an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Addressees {
    All,
    Workers,
}

struct ConnectedRank {
    name: String,
    orders: Arc<Stream>,
    /// True if the process is neither a server nor the scheduler, which outlive the workers.
    is_worker: bool,
    code: Option<i32>,
    /// True if the process's connection has ended.
    is_gone: bool,
    /// True if [`RankControl::take_ended`] has returned the process.
    is_taken: bool,
}

impl RankControl {
    /// Listens for the ranks of a job.
    pub(super) fn listen(reach: RankHosts, secret: Secret, sink: Sink, on_line: OnLine) -> Result<Self> {
        let failed = |cause: std::io::Error| Error::io("listen", "for the job's ranks", &cause);
        let (listener, addresses, folder) = match reach {
            RankHosts::Hosts(hosts) if hosts.iter().any(|host| matches!(host, Host::Lab(_))) => {
                // Emulated hosts have a network of their own, but share this host's files.
                let folder = temporary_folder("ringpull-", &std::env::temp_dir()).map_err(failed)?;
                let path = folder.path().join("launcher");
                let listener = RankListener::at(&path).map_err(failed)?;
                (listener, vec![path.display().to_string()], Some(folder))
            }
            reach => {
                let names = names(reach);
                let listener = if names.iter().all(|name| name == LOOPBACK) {
                    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                } else {
                    let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0));
                    both.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
                };
                let listener = listener.map_err(failed)?;
                let port = listener.local_addr().map_err(failed)?.port();
                listener.set_nonblocking(true).map_err(failed)?;
                let addresses = names
                    .iter()
                    .map(|name| if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") });
                (RankListener::Tcp(listener), addresses.collect(), None)
            }
        };
        let state = Arc::new(RankConnections { ranks: Mutex::default(), on_line: Mutex::new(on_line) });
        let (ends, over) = UnixStream::pair().map_err(failed)?;
        let printer = Printer::start();
        let mut control =
            RankControl { secret, printer, sink, addresses, state, ends: Some(ends), accepts: None, _folder: folder };
        let (state, secret, feed) = (Arc::clone(&control.state), control.secret.clone(), control.printer.feed());
        control.accepts = Some(std::thread::spawn(move || {
            while is_next(&listener, &over) {
                let Ok(stream) = listener.accept() else {
                    // For example, this process has as many open files as it may have.
                    std::thread::park_timeout(RETRY);
                    continue;
                };
                let stream = Arc::new(stream);
                let (secret, of_reader, feed) = (secret.clone(), Arc::clone(&state), feed.clone());
                let reader = std::thread::spawn(move || of_reader.read(&stream, &secret, &feed));
                state.lock().readers.push(reader);
            }
        }));
        Ok(control)
    }

    /// The words before those of a process's program.
    pub(super) fn words_before(&self, name: &str) -> Result<Vec<OsString>> {
        wrapper::words_before(name, &self.addresses, self.sink)
    }

    /// Returns a function for lines of stderr that do not arrive by a connection.
    pub(super) fn on_line(&self) -> impl Fn(&str) + Send + use<> {
        let state = Arc::clone(&self.state);
        move |line| state.on_line(line)
    }

    /// Gives an order to all ranks or to all workers, including those that connect later.
    fn order(&self, order: u8, to: Addressees) {
        let mut ranks = self.state.lock();
        ranks.told.push((order, to));
        for rank in ranks.all.iter().filter(|rank| !rank.is_gone) {
            rank.order(order, to);
        }
    }

    pub(super) fn signal(&self, signal: Signal, to: Addressees) {
        self.order(u8::try_from(signal.as_raw()).unwrap_or(LEAVE), to);
    }

    /// Passes on a signal to the workers that have connected, but not to later ones.
    pub(super) fn pass_on(&self, signal: Signal) {
        let ranks = self.state.lock();
        for rank in ranks.all.iter().filter(|rank| !rank.is_gone) {
            rank.order(u8::try_from(signal.as_raw()).unwrap_or(LEAVE), Addressees::Workers);
        }
    }

    /// Returns true if a connected worker is running.
    fn is_worker_running(&self) -> bool {
        self.state.lock().all.iter().any(|rank| rank.is_worker && rank.code.is_none() && !rank.is_gone)
    }

    /// Returns true if a rank has connected.
    pub(super) fn has_ranks(&self) -> bool {
        !self.state.lock().all.is_empty()
    }

    /// Returns true if a connected rank is running.
    pub(super) fn is_any_running(&self) -> bool {
        self.state.lock().all.iter().any(|rank| rank.code.is_none() && !rank.is_gone)
    }

    /// If all ranks have ended, allows the ranks' side of the connections to end.
    pub(super) fn let_go(&self) {
        if self.has_ranks() && !self.is_any_running() {
            self.dismiss();
        }
    }

    /// Allows the ranks' side of the connections to end. Messages of `mpirun` about that are ignored.
    fn dismiss(&self) {
        self.state.lock().are_dismissed = true;
        self.order(LEAVE, Addressees::All);
    }

    /// Returns a function. The function returns true if the ranks' side was allowed to end before `mpirun`
    /// had ended.
    pub(super) fn are_dismissed(&self) -> impl Fn() -> bool + Send + use<> {
        let state = Arc::clone(&self.state);
        move || state.lock().are_dismissed
    }

    /// Returns true if all of `count` ranks have ended.
    pub(super) fn have_all_ended(&self, count: usize) -> bool {
        self.state.lock().all.iter().filter(|rank| rank.code.is_some()).count() == count
    }

    /// Returns true if all of `count` workers have ended well.
    pub(super) fn have_workers_succeeded(&self, count: usize) -> bool {
        self.state.lock().all.iter().filter(|rank| rank.is_worker && rank.code == Some(0)).count() == count
    }

    /// Returns the number of ranks that have ended, and true if one of them has failed or was lost.
    pub(super) fn count_ended(&self) -> (usize, bool) {
        let ranks = self.state.lock();
        let ended = ranks.all.iter().filter(|rank| rank.has_ended());
        (ended.clone().count(), ended.clone().any(|rank| rank.code != Some(0)))
    }

    /// The ranks that have ended since the last call, with their exit codes if these are known.
    pub(super) fn take_ended(&self) -> Vec<(String, Option<i32>)> {
        let mut ranks = self.state.lock();
        let ended = ranks.all.iter_mut().filter(|rank| rank.has_ended() && !rank.is_taken);
        let take = |rank: &mut ConnectedRank| {
            rank.is_taken = true;
            (rank.name.clone(), rank.code)
        };
        ended.map(take).collect()
    }

    /// The exit code of the first process that has failed.
    pub(super) fn first_failure(&self) -> Option<i32> {
        self.state.lock().failure
    }

    /// Waits for the output of a job after its `mpirun` has ended, then ends the job's remaining processes.
    /// After an interrupt it waits at most the grace period for a reader of the output.
    pub(super) fn finish(&self, interrupt: &Interrupt) {
        let ended = Instant::now();
        let mut until = ended + LAST_LINES;
        let mut is_killed = false;
        // If something were sent to an end that is closed, the data that is still on its way from this end
        // would be lost.
        while !self.state.lock().readers.iter().all(JoinHandle::is_finished) || self.printer.is_busy() {
            let is_over = is_enough(interrupt, ended);
            if !is_killed && (is_over || ended.elapsed() > LAST_LINES) {
                self.signal(Signal::KILL, Addressees::All);
                self.order(LEAVE, Addressees::All);
                (is_killed, until) = (true, Instant::now() + LAST_LINES);
            }
            if is_over {
                self.printer.give_up();
                return;
            }
            if self.printer.is_busy() {
                until = Instant::now() + LAST_LINES;
            } else if Instant::now() > until {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

/// Returns true if an interrupted job has waited long enough for a reader of its output since its end. After
/// a second interrupt it does not wait at all.
pub(super) fn is_enough(interrupt: &Interrupt, ended: Instant) -> bool {
    interrupt.count() > 1 || (interrupt.count() == 1 && ended.elapsed() > GRACE)
}

impl Drop for RankControl {
    fn drop(&mut self) {
        self.ends = None;
        if self.accepts.take().is_some_and(|accepts| accepts.join().is_err()) {
            tracing::debug!("connections of ranks have failed");
        }
        self.state.lock().all.iter().for_each(|rank| rank.orders.shutdown());
    }
}

impl ConnectedRank {
    fn has_ended(&self) -> bool {
        self.code.is_some() || self.is_gone
    }

    fn order(&self, order: u8, to: Addressees) {
        if to == Addressees::Workers && !self.is_worker {
            return;
        }
        self.send(order);
    }

    fn send(&self, byte: u8) {
        if let Err(cause) = (&mut &*self.orders).write_all(&[byte]) {
            tracing::debug!(%cause, "a rank takes no orders");
        }
    }
}

impl RankConnections {
    fn lock(&self) -> MutexGuard<'_, ConnectedRanks> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the frames of one rank to their end.
    fn read(&self, stream: &Arc<Stream>, secret: &Secret, feed: &Feed) {
        if let Err(cause) = answer(stream, secret) {
            tracing::debug!(%cause, "a stranger has connected in place of a rank");
            return;
        }
        let Ok(RankFrame::Name(name)) = RankFrame::receive(&**stream) else { return };
        let number = {
            let mut ranks = self.lock();
            let is_worker = ["rank", "worker"].iter().any(|role| name.starts_with(role));
            let orders = Arc::clone(stream);
            let rank =
                ConnectedRank { name: name.clone(), orders, is_worker, code: None, is_gone: false, is_taken: false };
            for (order, to) in &ranks.told {
                rank.order(*order, *to);
            }
            ranks.all.push(rank);
            ranks.all.len() - 1
        };
        let [out, err] = [OutputStream::Out, OutputStream::Err].map(|stream| feed.source(stream, Some(&name)));
        let mut lines = WholeLines::default();
        let mut from = std::io::BufReader::with_capacity(1 << 16, &**stream);
        while let Ok(frame) = RankFrame::receive(&mut from) {
            match frame {
                RankFrame::Out(bytes) => out.write(bytes),
                RankFrame::Err(bytes) => {
                    lines.push(&bytes, |line| self.on_line(&format!("[{name}] {line}")));
                    err.write(bytes);
                }
                RankFrame::Ended(code) => {
                    let mut ranks = self.lock();
                    ranks.all[number].code = Some(code);
                    ranks.failure = ranks.failure.or(Some(code).filter(|code| *code != 0));
                    ranks.all[number].send(RECEIVED);
                }
                RankFrame::Outlived => feed.say(&format!(
                    "ringpull: {name} has ended, and a process that it has started still holds its output: the job \
                     ends when that does"
                )),
                RankFrame::Name(_) => {}
            }
        }
        self.lock().all[number].is_gone = true;
    }

    fn on_line(&self, line: &str) {
        self.on_line.lock().unwrap_or_else(PoisonError::into_inner)(line);
    }
}

/// Waits for a connection. Returns true if there may be one, false if the job is over.
fn is_next(listener: &RankListener, over: &UnixStream) -> bool {
    let mut both = [PollFd::new(listener, PollFlags::IN), PollFd::new(over, PollFlags::IN)];
    match poll(&mut both, None) {
        Ok(_) => both[1].revents().is_empty(),
        Err(cause) => cause == rustix::io::Errno::INTR,
    }
}

/// The names by which ranks may reach this host.
fn names(reach: RankHosts) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    if let RankHosts::Hosts(hosts) = reach {
        let far: Vec<&SshHost> =
            hosts.iter().filter_map(|host| if let Host::Ssh(host) = host { Some(host) } else { None }).collect();
        let mut asked: Vec<&str> = far.iter().map(|host| &host.name[..]).collect();
        asked.sort_unstable();
        asked.dedup();
        for address in asked.into_iter().filter_map(|name| address_towards(name).ok()) {
            let address = address.to_string();
            if !names.contains(&address) {
                names.push(address);
            }
        }
        if far.is_empty() && ALLOCATIONS.into_iter().all(|name| config::text(name).is_none()) {
            return vec![LOOPBACK.to_owned()];
        }
    }
    if names.is_empty() {
        names.push(rustix::system::uname().nodename().to_string_lossy().into_owned());
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        let far = interfaces.iter().filter(|one| !one.is_loopback() && !one.is_link_local());
        names.extend(far.map(|one| one.ip().to_string()));
        names.push(LOOPBACK.to_owned());
    }
    names
}

/// The stages in which an interrupted job is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The job runs.
    Running,
    /// The workers were ordered to end.
    Told,
    /// The workers have ended, and servers and helpers were ordered to end.
    Served,
    /// All processes were killed.
    Killed,
    /// All processes have ended, and the wrappers between them and `mpirun` may end too.
    Left,
    /// `mpirun` was ordered to end.
    Terminated,
}

/// Ends an interrupted job: first its ranks, then its `mpirun`. It also passes signals on to the ranks. It
/// must be polled.
pub(super) struct Ending<'a> {
    control: &'a RankControl,
    interrupt: &'a Interrupt,
    mpirun: Pid,
    seen: usize,
    stage: Stage,
    due: Instant,
    /// The time at which a failed job is ended.
    until: Option<Instant>,
}

impl<'a> Ending<'a> {
    pub(super) fn new(control: &'a RankControl, interrupt: &'a Interrupt, mpirun: Pid) -> Self {
        let (seen, due) = (interrupt.count(), Instant::now());
        Ending { control, interrupt, mpirun, seen, stage: Stage::Running, due, until: None }
    }

    /// Ends the job as after an interrupt, if it still runs for the time `grace` after this call.
    pub(super) fn end_within(&mut self, grace: Duration) {
        let within = Instant::now() + grace;
        let until = self.until.map_or(within, |earlier| earlier.min(within));
        self.until = Some(until);
        if self.stage == Stage::Running && Instant::now() >= until {
            (self.stage, self.due) = (Stage::Told, Instant::now() + KILL_AFTER);
            self.control.signal(Signal::TERM, Addressees::All);
        }
    }

    /// Returns true if ranks were ordered to end.
    pub(super) fn has_begun(&self) -> bool {
        self.stage != Stage::Running
    }

    pub(super) fn poll(&mut self) {
        self.interrupt.for_job().for_each(|signal| self.control.pass_on(signal));
        let now = Instant::now();
        let is_interrupted = self.interrupt.count() > self.seen;
        self.seen = self.interrupt.count();
        let is_due = is_interrupted || now >= self.due;
        let is_over = !self.control.is_any_running();
        let (stage, time) = match self.stage {
            Stage::Running if !is_interrupted => return,
            // Without connected ranks only `mpirun` can end the job.
            Stage::Running if !self.control.has_ranks() => (Stage::Terminated, GRACE),
            Stage::Running => (Stage::Told, GRACE),
            Stage::Told | Stage::Served | Stage::Killed if is_over => (Stage::Left, KILL_AFTER),
            Stage::Told if !is_due && !self.control.is_worker_running() => (Stage::Served, KILL_AFTER),
            Stage::Told | Stage::Served if is_due => (Stage::Killed, KILL_AFTER),
            Stage::Killed if is_due => (Stage::Left, KILL_AFTER),
            Stage::Left if is_due => (Stage::Terminated, GRACE),
            Stage::Terminated if is_interrupted => (Stage::Terminated, GRACE),
            Stage::Terminated if is_due => return self.end_mpirun(Signal::KILL),
            Stage::Told | Stage::Served | Stage::Killed | Stage::Left | Stage::Terminated => return,
        };
        (self.stage, self.due) = (stage, now + time);
        match stage {
            Stage::Running => {}
            Stage::Told => self.control.signal(Signal::TERM, Addressees::Workers),
            Stage::Served => self.control.signal(Signal::TERM, Addressees::All),
            Stage::Killed => self.control.signal(Signal::KILL, Addressees::All),
            Stage::Left => self.control.dismiss(),
            Stage::Terminated => self.end_mpirun(Signal::TERM),
        }
    }

    fn end_mpirun(&self, signal: Signal) {
        if let Err(cause) = kill_process(self.mpirun, signal) {
            tracing::debug!(%cause, "the interrupted mpirun had ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::launch::connection::connect;

    #[test]
    fn a_rank_that_has_ended_hears_when_all_of_its_output_was_received() {
        let secret = Secret::new_random().unwrap();
        let control = RankControl::listen(RankHosts::Hosts(&[]), secret.clone(), Sink::Kept, Box::new(|_| ())).unwrap();
        let rank = connect(&control.addresses, &secret).unwrap();
        for frame in [RankFrame::Name("rank 0".to_owned()), RankFrame::Ended(3)] {
            frame.send(&rank).unwrap();
        }
        let mut heard = [0];
        (&mut &rank).read_exact(&mut heard).unwrap();
        assert!(control.have_all_ended(1) && !control.have_workers_succeeded(1));
        assert_eq!(control.count_ended(), (1, true));
        assert_eq!([(); 2].map(|()| control.take_ended()), [vec![("rank 0".to_owned(), Some(3))], Vec::new()]);
        assert_eq!((heard, control.first_failure()), ([RECEIVED], Some(3)));
    }
}
