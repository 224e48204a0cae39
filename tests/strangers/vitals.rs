//! The resources that a process uses, read from `/proc`: sockets, descriptors, threads and memory.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

/// The states of a socket, as the kernel numbers them. A UDP socket that is open to all senders has the state
/// of a closed socket.
pub(crate) const ESTABLISHED: u8 = 1;
pub(crate) const CLOSED: u8 = 7;
pub(crate) const LISTENS: u8 = 10;

/// A socket that a process has open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Socket {
    pub(crate) fd: RawFd,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) state: u8,
}

/// The resources of a process that strangers could use up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Vitals {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) resident_bytes: usize,
}

impl Vitals {
    /// Reads the resource use of a process. Returns `None` if the process has ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        // A process that has ended and was not waited for has no memory.
        let resident_bytes = field("VmRSS:")?.parse::<usize>().ok()? << 10;
        let threads = field("Threads:")?.parse().ok()?;
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
        Some(Vitals { descriptors, threads, resident_bytes })
    }

    /// Returns the larger of each value.
    pub(crate) fn most(self, other: Self) -> Self {
        Vitals {
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
            resident_bytes: self.resident_bytes.max(other.resident_bytes),
        }
    }
}

/// Returns the open TCP sockets of the process, over IPv4 and IPv6.
pub(crate) fn tcp(pid: u32) -> Vec<Socket> {
    sockets(pid, ["tcp", "tcp6"])
}

/// Returns the open UDP sockets of the process.
pub(crate) fn udp(pid: u32) -> Vec<Socket> {
    sockets(pid, ["udp", "udp6"])
}

/// Returns true if every thread of the process is stopped.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The process's name before the state may contain blanks and parentheses.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

fn sockets(pid: u32, tables: [&str; 2]) -> Vec<Socket> {
    let mut by_inode = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        // A descriptor may have been closed since it was listed.
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
        if let (Some(inode), Some(fd)) = (inode, entry.file_name().to_str().and_then(|fd| fd.parse::<RawFd>().ok())) {
            by_inode.insert(inode.to_owned(), fd);
        }
    }
    let tables = tables.map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    lines
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let fd = *by_inode.get(*fields.get(9)?)?;
            let state = u8::from_str_radix(fields[3], 16).ok()?;
            Some(Socket { fd, local: address(fields[1])?, remote: address(fields[2])?, state })
        })
        .collect()
}

/// Parses an address and a port such as `0100007F:1F90`. The address is in groups of 32 bits in the
/// processor's byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let group = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = if ip.len() == 8 {
        Ipv4Addr::from(group(0)?).into()
    } else {
        let groups = [group(0)?, group(8)?, group(16)?, group(24)?].concat();
        Ipv6Addr::from(<[u8; 16]>::try_from(groups).ok()?).to_canonical()
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn every_socket_that_a_process_listens_on_is_found() {
        let mut wanted = Vec::new();
        let mut kept = Vec::new();
        for ip in ["127.0.0.1", "::1", "0.0.0.0", "::"] {
            // A host may have no IPv6.
            let Ok(listener) = TcpListener::bind((ip, 0)) else { continue };
            wanted.push(listener.local_addr().unwrap());
            kept.push(listener);
        }
        let stream = TcpStream::connect(wanted[0]).unwrap();
        let all = tcp(std::process::id());
        for address in wanted {
            let found = all.iter().filter(|socket| socket.state == LISTENS && socket.local == address);
            assert_eq!(found.count(), 1, "{address}: {all:?}");
        }
        let found = all.iter().filter(|socket| socket.remote == stream.peer_addr().unwrap());
        assert_eq!(found.map(|socket| socket.state).collect::<Vec<_>>(), [ESTABLISHED]);
        let open = UdpSocket::bind("127.0.0.1:0").unwrap();
        let all = udp(std::process::id());
        assert!(all.iter().any(|socket| socket.state == CLOSED && socket.local == open.local_addr().unwrap()));
    }
}
