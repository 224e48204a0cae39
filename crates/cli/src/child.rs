//! Waits for a child process, and notices an `mpirun` on this host that outlives its ranks.
//!
//! Open MPI 4.1's can wait for itself for ever when ranks end while it ends the job: every child has gone,
//! and `mpirun` stays. Only ranks of this host are its children all the time; of other hosts it knows by
//! agents that leave it. Where the kernel does not tell a process's children, nothing is noticed.

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use ringpull_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::mpirun::Hosts;

/// Waits for `child`, named `what` in errors, and kills it once `is_over` says so. How it ended, and whether
/// it was killed.
pub(crate) fn wait(child: &mut Child, what: &str, mut is_over: impl FnMut() -> bool) -> Result<(ExitStatus, bool)> {
    let failed = |cause: std::io::Error| Error::io("wait for", what, &cause);
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok((status, false));
        }
        if is_over() {
            child.kill().map_err(failed)?;
            return Ok((child.wait().map_err(failed)?, true));
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// A process's exit code; 128 and the signal's number if a signal ended it.
pub(crate) fn code_of(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// How long a process may go on without children before it is taken for one that will not end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How often the kernel is asked.
const INTERVAL: Duration = Duration::from_millis(500);

/// Watches one process.
#[derive(Debug)]
pub(crate) struct Childless {
    /// `None`: its children do not tell.
    pid: Option<u32>,
    asked: Option<Instant>,
    had_children: bool,
    since: Option<Instant>,
}

impl Childless {
    /// Begins to watch process `pid`, an `mpirun` of ranks on `hosts`.
    pub(crate) fn watch(pid: u32, hosts: &Hosts) -> Self {
        let pid = matches!(hosts, Hosts::Local).then_some(pid);
        Childless { pid, asked: None, had_children: false, since: None }
    }

    /// Whether the process has had children, and has had none for [`PATIENCE`]. To be asked again and again;
    /// does not block.
    pub(crate) fn is_stuck(&mut self) -> bool {
        let Some(pid) = self.pid else { return false };
        let now = Instant::now();
        if self.asked.is_some_and(|asked| now - asked < INTERVAL) {
            return false;
        }
        self.asked = Some(now);
        self.observe(now, has_children(pid) != Some(false))
    }

    fn observe(&mut self, now: Instant, has_children: bool) -> bool {
        self.had_children |= has_children;
        self.since = if has_children { None } else { self.since.or(Some(now)) };
        self.had_children && self.since.is_some_and(|since| now - since >= PATIENCE)
    }
}

/// Whether what this process writes, and what its children write in its place, is taken: who is held up by a
/// full pipe is not stuck.
pub(crate) fn output_is_taken() -> bool {
    let (out, err) = (std::io::stdout(), std::io::stderr());
    let mut both = [PollFd::new(&out, PollFlags::OUT), PollFd::new(&err, PollFlags::OUT)];
    poll(&mut both, Some(&Timespec::default())).is_ok_and(|ready| ready == both.len())
}

/// Whether any child of the process's threads still runs; `None` where the kernel does not say.
fn has_children(pid: u32) -> Option<bool> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut found = false;
    for thread in threads.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).ok()?;
        found |= children.split_whitespace().any(runs);
    }
    Some(found)
}

/// Whether a process is more than its exit code, which waits for its parent.
fn runs(pid: &str) -> bool {
    match std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")) {
        // The name before the state may hold anything, parentheses too.
        Ok(stat) => stat.rsplit_once(')').is_none_or(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X'])),
        Err(cause) => cause.kind() != ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_who_has_had_children_and_has_none_for_long_is_stuck() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut watched = Childless::watch(1, &Hosts::Local);
        for second in 0..20 {
            assert!(!watched.observe(after(second), false), "it has started nothing yet");
        }
        assert!(!watched.observe(after(20), true));
        assert!(!watched.observe(after(21), false));
        assert!(!watched.observe(after(25), false));
        assert!(!watched.observe(after(26), true), "it has another child");
        assert!(!watched.observe(after(27), false));
        assert!(watched.observe(after(27) + PATIENCE, false));
        assert!(!Childless::watch(u32::MAX, &Hosts::Lab(vec![1, 2])).is_stuck());
    }

    #[test]
    fn a_process_has_children_until_they_have_ended() {
        if !Path::new("/proc/thread-self/children").exists() {
            println!("skipped: this kernel does not tell children");
            return;
        }
        // A shell with one child, which ends when its input does.
        let mut shell =
            Command::new("sh").args(["-c", "cat; read _ < /dev/zero"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = shell.id();
        let becomes = |what: bool| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while has_children(pid) != Some(what) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            has_children(pid)
        };
        assert_eq!(becomes(true), Some(true));
        drop(shell.stdin.take());
        assert_eq!(becomes(false), Some(false));
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert_eq!(has_children(pid), None);
    }
}
