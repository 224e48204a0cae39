//! Which ranks there are, which host each runs on, and which of its ports are free.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
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

/// A port of this host that nobody else is given while this lives. A program that sets `SO_REUSEADDR`, as
/// ZeroMQ does and most servers do, can listen on it meanwhile.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Bound, and not listening.
    _claim: OwnedFd,
}

impl Port {
    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Claims a port of `root`, which several programs may do at once. On an emulated host, or another one, which
/// has its own ports, it is as good as any; what is claimed is the number on this host, so that jobs that
/// start here differ.
pub fn claim_port(root: IpAddr) -> Result<Port> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    claim_port_from(root, std::process::id().wrapping_mul(97).wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed)))
}

fn claim_port_from(root: IpAddr, first: u32) -> Result<Port> {
    let mut outcome = Err(Error::argument("no port is free", "end some of the programs that listen on this host"));
    for place in (0..PORTS.len() as u32).map(|further| first.wrapping_add(further)) {
        let number = PORTS.start + (place % PORTS.len() as u32) as u16;
        match claim(root, number) {
            Ok(claim) => return Ok(Port { number, _claim: claim }),
            Err(cause) => outcome = Err(Error::io("bind", root, &cause.into())),
        }
    }
    outcome
}

fn claim(root: IpAddr, number: u16) -> rustix::io::Result<OwnedFd> {
    let bound_to = |address: IpAddr| {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddr::new(address, number))?;
        Ok(socket)
    };
    let bound = bound_to(root);
    let socket = match bound {
        Ok(_) | Err(Errno::ADDRINUSE) => bound,
        // No address of this host.
        Err(_) => bound_to(Ipv4Addr::UNSPECIFIED.into()),
    }?;
    // Two sockets have an address only if both say that they may. This one does so when it has it: who claims
    // the port as it did is refused, who is to listen there is not.
    set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_is_given_to_one_only_who_can_listen_there() {
        for root in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv4Addr::UNSPECIFIED.into(), "10.255.255.1".parse().unwrap()] {
            let first = std::process::id();
            let one = claim_port_from(root, first).unwrap();
            let other = claim_port_from(root, first).unwrap();
            assert_ne!(one.number(), other.number());
            let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, one.number())).unwrap();
            drop(one);
            let third = claim_port_from(root, first).unwrap();
            assert_ne!(listening.local_addr().unwrap().port(), third.number());
        }
    }
}
