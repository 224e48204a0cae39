//! Which ranks there are, and which host each runs on.

use serde::{Deserialize, Serialize};

/// A process as its peers name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its rank; a helper's number among the helpers.
    pub rank: usize,
    /// Whether it is a helper: a rank that only reduces.
    #[serde(default)]
    pub is_helper: bool,
    /// Its host's name.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
}

impl Peer {
    /// This process, as `rank`.
    pub fn this(rank: usize) -> Self {
        Peer { rank, is_helper: false, host: host_name(), pid: std::process::id() }
    }

    /// This process, as the `index`-th helper.
    pub fn helper(index: usize) -> Self {
        Peer { is_helper: true, ..Peer::this(index) }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let role = if self.is_helper { "helper" } else { "rank" };
        write!(out, "{role} {} (pid {} on {})", self.rank, self.pid, self.host)
    }
}

/// This host's name.
pub fn host_name() -> String {
    // What `uname` says.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// The memory of this host.
pub fn memory_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    kib.map(|kib: usize| kib.saturating_mul(1024))
}
