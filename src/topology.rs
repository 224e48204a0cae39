//! Which ranks there are and which host each runs on.

use serde::{Deserialize, Serialize};

/// A process as its peers name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its rank.
    pub rank: usize,
    /// Its host's name.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
}

impl Peer {
    /// This process, as `rank`.
    pub fn this(rank: usize) -> Self {
        Peer { rank, host: host_name(), pid: std::process::id() }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "rank {} (pid {} on {})", self.rank, self.pid, self.host)
    }
}

/// This host's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
