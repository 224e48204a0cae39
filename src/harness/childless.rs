//! Notices an `mpirun` that outlives its ranks.
//!
//! Open MPI 4.1's can wait for itself for ever when ranks end while it ends the job: every child has gone, and `mpirun` stays.
//! Where the kernel does not tell a process's children nothing is noticed.

use std::path::Path;
use std::time::{Duration, Instant};

/// How long a process may go on without children before it is taken for one that will not end.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How often the kernel is asked.
const INTERVAL: Duration = Duration::from_millis(500);

/// Watches one process.
#[derive(Debug)]
pub struct Childless {
    pid: u32,
    asked: Instant,
    had_children: bool,
    since: Option<Instant>,
}

impl Childless {
    /// Begins to watch process `pid`.
    pub fn watch(pid: u32) -> Self {
        Childless { pid, asked: Instant::now(), had_children: false, since: None }
    }

    /// Whether the process has had children, and has had none for [`PATIENCE`]. To be asked again and again; does not block.
    pub fn is_stuck(&mut self) -> bool {
        if self.asked.elapsed() >= INTERVAL {
            self.asked = Instant::now();
            let has_children = has_children(self.pid).unwrap_or(true);
            self.had_children |= has_children;
            self.since = if has_children { None } else { self.since.or(Some(self.asked)) };
        }
        self.had_children && self.since.is_some_and(|since| since.elapsed() >= PATIENCE)
    }
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
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    // The name before the state may hold anything, parentheses too.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_has_children_until_they_have_ended_taken_leave_of_or_not() {
        let own = std::process::id();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(has_children(own).map(|_| true), Some(true), "this kernel does not tell children");
        assert!(runs(&child.id().to_string()));
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while runs(&child.id().to_string()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!runs(&child.id().to_string()), "a zombie does not run");
        child.wait().unwrap();
        assert!(!runs(&child.id().to_string()));
        assert_eq!(has_children(u32::MAX), None);
    }
}
