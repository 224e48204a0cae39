//! The processes of a rehearsed job, found by the mark in their environment.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit, test_kill_process};

use ringpull_base::config::Role;

use super::fault::Member;

/// The variable that every process of the job inherits.
pub(super) const MARK: &str = "REHEARSED_JOB";

/// Programs that start other programs or bring their output to the terminal. None of them is the rank itself.
const HELPERS: [&str; 6] = ["sh", "bash", "cat", "env", "nsenter", "ip"];

/// A process of the job, as the kernel shows it.
struct ObservedProcess {
    pid: Pid,
    parent: i32,
    name: String,
    /// Ticks since the machine's start.
    begun: u64,
    environment: String,
}

/// Every process with this mark that is alive.
fn all(mark: &str) -> Vec<ObservedProcess> {
    let wanted = format!("{MARK}={mark}");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let seen = pids.filter_map(|pid| {
        let folder = format!("/proc/{}", pid.as_raw_nonzero());
        // A process that has ended and was not waited for has no environment.
        let environment = String::from_utf8_lossy(&fs::read(format!("{folder}/environ")).ok()?).into_owned();
        let stat = fs::read_to_string(format!("{folder}/stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        // Fields 4 and 22 of `stat`. The name is field 2.
        let mut fields = rest.split_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let begun = fields.nth(17)?.parse().ok()?;
        Some(ObservedProcess { pid, parent, name: name.to_owned(), begun, environment })
    });
    seen.filter(|seen| seen.has(&wanted)).collect()
}

impl ObservedProcess {
    fn has(&self, variable: &str) -> bool {
        self.environment.split('\0').any(|other| other == variable)
    }

    fn is_helper(&self) -> bool {
        HELPERS.contains(&self.name.as_str()) || is_wrapper(self.pid)
    }

    fn is(&self, member: Member, workers: usize) -> bool {
        let has_role = |role: Role| self.has(&format!("DMLC_ROLE={role}"));
        let numbered = |name: &str, number: usize| self.has(&format!("{name}={number}"));
        let is_rank = |number| ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().any(|name| numbered(name, number));
        match member.role {
            Role::Scheduler => has_role(Role::Scheduler),
            Role::Helper => is_rank(workers + member.index),
            Role::Server => has_role(Role::Server) && numbered("DMLC_SERVER_ID", member.index),
            // In a hybrid job the variables of a rank have no number of a worker.
            Role::Worker if has_role(Role::Worker) && !is_rank(member.index) => {
                numbered("DMLC_WORKER_ID", member.index)
            }
            Role::Worker => is_rank(member.index),
        }
    }
}

/// Returns the process that runs the program as `member` of a job of `workers` workers: the oldest process
/// below the launcher's wrapper that is not one of [`HELPERS`]. The flag is true if it is a rank of MPI, and
/// false in a job with servers. Before the wrapper starts, other programs with the same environment pass its
/// words on.
pub(super) fn find(mark: &str, member: Member, workers: usize) -> Option<(Pid, bool)> {
    let all = all(mark);
    let wrappers: Vec<i32> = all.iter().filter(|seen| is_wrapper(seen.pid)).map(|seen| seen.pid.as_raw_pid()).collect();
    let parent_of = |pid: i32| all.iter().find(|seen| seen.pid.as_raw_pid() == pid).map(|seen| seen.parent);
    let is_below_one = |seen: &&ObservedProcess| {
        std::iter::successors(Some(seen.parent), |pid| parent_of(*pid)).any(|pid| wrappers.contains(&pid))
    };
    let is_meant = |seen: &&ObservedProcess| seen.is(member, workers) && !seen.is_helper();
    let found = all.iter().filter(is_meant).filter(is_below_one).min_by_key(|seen| seen.begun)?;
    Some((found.pid, !found.environment.contains("DMLC_ROLE=")))
}

/// Returns true if the process is the wrapper above a rank, which runs this program's own file, whatever the
/// file's name is.
fn is_wrapper(pid: Pid) -> bool {
    let file = |folder: &str| fs::metadata(format!("{folder}/exe")).ok().map(|file| (file.dev(), file.ino()));
    let folder = format!("/proc/{}", pid.as_raw_pid());
    let words = fs::read(format!("{folder}/cmdline")).unwrap_or_default();
    let is_rank = words.split(|byte| *byte == 0).nth(1) == Some(b"rank");
    is_rank && file(&folder).is_some_and(|program| Some(program) == file("/proc/self"))
}

/// Limits the process to the address space that it has now; if `is_limited` is false, gives it this program's
/// own limit again. The process may have ended.
pub(super) fn limit(pid: Pid, is_limited: bool) {
    let sizes = fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_pid())).unwrap_or_default();
    let Some(pages) = sizes.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok()) else { return };
    let own = getrlimit(Resource::As);
    let present = Rlimit { current: Some(pages * rustix::param::page_size() as u64), ..own };
    if let Err(cause) = prlimit(Some(pid), Resource::As, if is_limited { present } else { own }) {
        tracing::debug!(?pid, %cause, "a limit was not set");
    }
}

/// Returns true if the process is alive.
pub(super) fn is_alive(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}

/// The number of the job's processes, without [`HELPERS`].
pub(super) fn count(mark: &str) -> usize {
    all(mark).iter().filter(|seen| !seen.is_helper()).count()
}

/// Ends every process of the job.
pub(super) fn kill_all(mark: &str) {
    for seen in all(mark) {
        signal(seen.pid, Signal::KILL);
    }
}

/// Sends a signal. The process may have ended.
pub(super) fn signal(pid: Pid, signal: Signal) {
    if let Err(cause) = kill_process(pid, signal) {
        tracing::debug!(?pid, ?signal, %cause, "a signal was not sent");
    }
}
