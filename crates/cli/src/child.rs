//! Runs a child process to its end, and detects an `mpirun` on this host that outlives its ranks.
//!
//! Open MPI 4.1's `mpirun` can hang for ever, without any children, if ranks end while it ends the job. Only
//! the ranks of this host stay its children; the agents that start ranks on other hosts do not. If the kernel
//! does not list a process's children, no hang is detected.

use std::io::ErrorKind;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ringpull_base::{Error, Result};

use super::launch::Host;

/// The end of a child process, and its output.
#[derive(Debug)]
pub(crate) struct ChildEnd {
    pub(crate) status: ExitStatus,
    pub(crate) was_killed: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `command`, named `what` in errors, to its end, or until `is_over` returns true. `is_over` gets the
/// process id.
pub(crate) fn run(command: &mut Command, what: &str, mut is_over: impl FnMut(u32) -> bool) -> Result<ChildEnd> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|cause| Error::io("run", what, &cause))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = std::thread::spawn(move || out.map(read_all).unwrap_or_default());
    let err = std::thread::spawn(move || err.map(read_all).unwrap_or_default());
    let pid = child.id();
    let (status, was_killed) = wait(&mut child, what, || is_over(pid))?;
    let (stdout, stderr) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    Ok(ChildEnd { status, was_killed, stdout, stderr })
}

fn read_all(mut from: impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    if let Err(cause) = from.read_to_end(&mut bytes) {
        tracing::warn!(%cause, "a job's output was cut short");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for `child`, named `what` in errors, and kills it when `is_over` returns true. Returns its exit
/// status, and true if it was killed.
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

/// The time for which a process may have no children before it counts as one that will not end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The interval at which the `mpirun`'s children are listed.
const INTERVAL: Duration = Duration::from_millis(500);

/// Detects that an `mpirun` has outlived its ranks.
#[derive(Debug)]
pub(crate) struct Childless {
    /// The process to watch. `None` if its children do not show whether it hangs.
    pid: Option<u32>,
    /// True if the process is not the `mpirun`, but has started it.
    is_above: bool,
    asked: Option<Instant>,
    had_children: bool,
    since: Option<Instant>,
}

impl Childless {
    /// Watches process `pid`, an `mpirun` of ranks on `hosts`.
    pub(crate) fn watch(pid: u32, hosts: &[Host]) -> Self {
        let pid = hosts.iter().all(|host| *host == Host::Local).then_some(pid);
        Childless { pid, is_above: false, asked: None, had_children: false, since: None }
    }

    /// Watches the `mpirun` that process `pid` has started.
    pub(crate) fn watch_below(pid: u32, hosts: &[Host]) -> Self {
        Childless { is_above: true, ..Childless::watch(pid, hosts) }
    }

    /// Returns true if the process has had children, and then none for [`PATIENCE`]. It must be polled, and
    /// does not block.
    pub(crate) fn is_stuck(&mut self) -> bool {
        let Some(pid) = self.pid else { return false };
        let now = Instant::now();
        if self.asked.is_some_and(|asked| now - asked < INTERVAL) {
            return false;
        }
        self.asked = Some(now);
        let has_children = match children(pid) {
            // The process has not started the `mpirun` yet.
            Some(below) if self.is_above && below.is_empty() => return false,
            Some(below) if self.is_above => below.into_iter().any(|mpirun| has_children(mpirun) != Some(false)),
            found => found.is_none_or(|found| !found.is_empty()),
        };
        self.observe(now, has_children)
    }

    fn observe(&mut self, now: Instant, has_children: bool) -> bool {
        self.had_children |= has_children;
        self.since = if has_children { None } else { self.since.or(Some(now)) };
        self.had_children && self.since.is_some_and(|since| now - since >= PATIENCE)
    }
}

/// Returns true if any child of the process still runs. Returns `None` if the kernel does not list children.
fn has_children(pid: u32) -> Option<bool> {
    children(pid).map(|found| !found.is_empty())
}

/// The children of the process that still run. `None` if the kernel does not list children.
fn children(pid: u32) -> Option<Vec<u32>> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut found = Vec::new();
    for thread in threads.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).ok()?;
        found.extend(children.split_whitespace().filter_map(|child| child.parse().ok()).filter(|child| runs(*child)));
    }
    Some(found)
}

/// Returns true if a process still runs, and is not a zombie.
fn runs(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The name before the state may contain anything, also parentheses.
        Ok(stat) => stat.rsplit_once(')').is_none_or(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X'])),
        Err(cause) => cause.kind() != ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_process_is_stuck_if_it_had_children_and_has_none_for_five_seconds() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut watched = Childless::watch(1, &[]);
        for second in 0..20 {
            assert!(!watched.observe(after(second), false), "it has started nothing yet");
        }
        assert!(!watched.observe(after(20), true));
        assert!(!watched.observe(after(21), false));
        assert!(!watched.observe(after(25), false));
        assert!(!watched.observe(after(26), true), "it has another child");
        assert!(!watched.observe(after(27), false));
        assert!(watched.observe(after(27) + PATIENCE, false));
        assert!(!Childless::watch(u32::MAX, &[Host::Lab(1), Host::Lab(2)]).is_stuck());
    }

    #[test]
    fn a_process_has_children_until_they_have_ended() {
        if !Path::new("/proc/thread-self/children").exists() {
            println!("skipped: this kernel does not list a process's children");
            return;
        }
        // A shell with one child, which ends when its input ends.
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
