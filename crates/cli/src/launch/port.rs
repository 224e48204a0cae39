//! A port for the scheduler of a job. No other job that starts at the same time gets the same port.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use ringpull_base::{Error, Result};

/// The ports to choose from. They are below Linux's default ports for outgoing connections: a process that
/// connects to such a port before anybody listens could get the port itself, because TCP allows a connection
/// to itself.
const PORTS: Range<u16> = 10_000..32_000;

/// A port of this host that no other launcher gets while this value lives. A program that sets
/// `SO_REUSEADDR`, as most servers do, can listen on it.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// A socket that is bound, but does not listen.
    _claim: OwnedFd,
}

impl Port {
    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// Claims a port of `root`. Several programs may claim ports at the same time. If `root` is another or an
/// emulated host, which has ports of its own, the same number is claimed on this host, so jobs that start on
/// this host get different numbers.
pub(crate) fn claim_port(root: IpAddr) -> Result<Port> {
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
        // The address does not belong to this host.
        Err(_) => bound_to(Ipv4Addr::UNSPECIFIED.into()),
    }?;
    // Two sockets share an address only if both allow it. This one allows it only after its bind: another
    // claim is refused, but a server can listen.
    set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_is_claimed_once_and_its_owner_can_listen_there() {
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
