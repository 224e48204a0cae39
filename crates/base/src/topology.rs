//! Which ranks there are, which host each runs on, and which of its ports are free.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

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

/// Below the ports that Linux by default gives to outgoing connections. One of those could be taken by a
/// process that connects to it before anybody listens: TCP lets it connect to itself.
const PORTS: Range<u16> = 10_000..32_000;

/// A port that nobody on this host listens on now. On an emulated host, which has its own ports, it is as
/// good as any.
pub fn free_port(root: IpAddr) -> Result<u16> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let mut outcome = Err(Error::argument("no port is free", "end some of the programs that listen on this host"));
    for _ in 0..PORTS.len() {
        let place = std::process::id().wrapping_mul(97).wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + (place % PORTS.len() as u32) as u16;
        let here = TcpListener::bind((root, port)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
        match here {
            Ok(_) => return Ok(port),
            Err(cause) => outcome = Err(Error::io("bind", root, &cause)),
        }
    }
    outcome
}
