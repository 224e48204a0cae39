//! The ranks of a job, and their hosts.

use serde::{Deserialize, Serialize};

use crate::config::Role;

/// A process as its peers name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its rank among the processes of its role.
    pub rank: usize,
    /// The role of the process.
    pub role: Role,
    /// Its host's name.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
}

impl Peer {
    /// Returns this process, with this role and rank.
    pub fn this(role: Role, rank: usize) -> Self {
        Peer { rank, role, host: host_name(), pid: std::process::id() }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {} (pid {} on {})", self.role.label(), self.rank, self.pid, self.host)
    }
}

/// This host's name.
pub fn host_name() -> String {
    // The name is the one that `uname` prints.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// The memory of this host.
pub fn memory_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    kib.map(|kib: usize| kib.saturating_mul(1024))
}
