//! A sleep that ends when data arrives. It waits on the TCP connections of the process.
//!
//! MPI has no call that waits without using a core. Over TCP the kernel can wait: the messages of a rank
//! arrive on its sockets, and these can be found without asking the library. If a wait ends because of
//! another socket, or of part of a message, it costs one unneeded call of the library. So this is only a
//! better sleep. If there is no socket, or the last wait ended in vain, it just sleeps.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, SocketAddrAny, getpeername, getsockname, shutdown};

/// The time between two looks for sockets. Connections are made late, and then stay.
const SOON: Duration = Duration::from_millis(2);
const LATE: Duration = Duration::from_millis(500);
/// The shortest sleep. Waking up from a shorter one would take longer than the sleep. On a fast network it is
/// better to look for each arrival.
const SHORTEST_NAP: Duration = Duration::from_micros(20);

/// The known connections.
#[derive(Default)]
pub(super) struct Sockets {
    polled: Vec<libc::pollfd>,
    looked: Option<Instant>,
    interval: Duration,
    /// True if the last wait ended by data that finished no message. The next wait then sleeps, while more
    /// data comes.
    was_fruitless: bool,
}

impl Sockets {
    /// To be called when something has finished.
    pub(super) fn moved(&mut self) {
        self.was_fruitless = false;
    }

    /// Waits until there may be data, for at most `longest`.
    pub(super) fn wait(&mut self, longest: Duration) {
        if self.looked.is_none_or(|looked| looked.elapsed() > self.interval) {
            self.look();
        }
        if self.polled.is_empty() || (self.was_fruitless && longest > SHORTEST_NAP) {
            self.was_fruitless = false;
            std::thread::sleep(longest);
            return;
        }
        let limit =
            libc::timespec { tv_sec: longest.as_secs() as libc::time_t, tv_nsec: longest.subsec_nanos().into() };
        let count = self.polled.len() as libc::nfds_t;
        // SAFETY: `polled` holds `count` elements and `limit` lives through the call. A descriptor that was
        // closed meanwhile is reported as closed. A descriptor that is another file by now at worst ends the
        // wait early.
        let ready = unsafe { libc::ppoll(self.polled.as_mut_ptr(), count, &raw const limit, std::ptr::null()) };
        if ready > 0 {
            self.was_fruitless = true;
            if self.polled.iter().any(|socket| socket.revents & !libc::POLLIN != 0) {
                // A connection is gone, so look for the current ones.
                self.look();
            }
        }
    }

    fn look(&mut self) {
        let found = connections();
        let known = self.polled.len();
        self.polled = found.into_iter().map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        self.interval = if self.polled.len() == known { (2 * self.interval).clamp(SOON, LATE) } else { SOON };
        self.looked = Some(Instant::now());
    }
}

/// Returns the connected TCP sockets among the open files, or none if the system does not list them.
fn connections() -> Vec<RawFd> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let open = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    open.filter(|fd| is_connected_tcp(*fd)).collect()
}

fn is_connected_tcp(fd: RawFd) -> bool {
    let mut kind: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `kind` and `len` describe one int. A descriptor that is no socket is an error, not a fault.
    let code = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, (&raw mut kind).cast::<libc::c_void>(), &raw mut len)
    };
    if code != 0 || kind != libc::IPPROTO_TCP {
        return false;
    }
    let mut peer = std::mem::MaybeUninit::<libc::sockaddr_storage>::uninit();
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: `peer` has room for the address of every family.
    unsafe { libc::getpeername(fd, peer.as_mut_ptr().cast::<libc::sockaddr>(), &raw mut len) == 0 }
}

/// Returns this process's ends of its connections.
pub(super) fn own_ends() -> BTreeSet<SocketAddr> {
    connections().into_iter().filter_map(|fd| address(getsockname(borrowed(fd)).ok()?)).collect()
}

/// Ends this process's connections to these addresses, as if the peers had closed them. Returns their number.
pub(super) fn sever(others: &BTreeSet<SocketAddr>) -> usize {
    let is_to = |fd: &RawFd| getpeername(borrowed(*fd)).ok().flatten().and_then(address);
    let found = connections().into_iter().filter(|fd| is_to(fd).is_some_and(|other| others.contains(&other)));
    found.filter(|fd| shutdown(borrowed(*fd), Shutdown::Both).is_ok()).count()
}

fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: a descriptor that was closed meanwhile is an error of the call, and a descriptor that is
    // another file by now has another address.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn address(address: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(address).ok()?;
    let ip = match address.ip() {
        IpAddr::V6(ip) => ip.to_canonical(),
        ip @ IpAddr::V4(_) => ip,
    };
    Some(SocketAddr::new(ip, address.port()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_wait_ends_when_data_comes_on_any_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_into, _) = listener.accept().unwrap();
        let start = Instant::now();
        out.write_all(b"x").unwrap();
        Sockets::default().wait(LONG);
        assert!(start.elapsed() < LONG);
    }

    #[test]
    fn a_look_at_connections_changes_none_of_their_settings() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let options = [
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            (libc::SOL_SOCKET, libc::SO_SNDBUF),
            (libc::SOL_SOCKET, libc::SO_RCVBUF),
        ];
        let settings = || {
            options.map(|(level, name)| {
                let (mut value, mut len): (libc::c_int, _) = (0, size_of::<libc::c_int>() as libc::socklen_t);
                let place = (&raw mut value).cast::<libc::c_void>();
                // SAFETY: `value` and `len` describe one int.
                assert_eq!(unsafe { libc::getsockopt(out.as_raw_fd(), level, name, place, &raw mut len) }, 0);
                value
            })
        };
        let before = settings();
        let mut sockets = Sockets::default();
        sockets.wait(Duration::from_millis(1));
        assert!(!sockets.polled.is_empty());
        assert_eq!(settings(), before);
    }

    #[test]
    fn connections_to_a_process_are_found_by_its_ends_and_severed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut into, _) = listener.accept().unwrap();
        let theirs = into.local_addr().unwrap();
        assert!(own_ends().contains(&theirs) && own_ends().contains(&out.local_addr().unwrap()));
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(sever(&[other.local_addr().unwrap()].into()), 0, "nothing has accepted it yet");
        assert_eq!(sever(&[theirs].into()), 2, "both are to that address");
        assert_eq!(into.read(&mut [0]).unwrap(), 0);
        assert!(out.write_all(b"x").is_err());
    }

    #[test]
    fn data_that_nobody_reads_makes_no_busy_loop() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_into, _) = listener.accept().unwrap();
        out.write_all(b"x").unwrap();
        let mut sockets = Sockets::default();
        let start = Instant::now();
        let rest = Duration::from_millis(20);
        sockets.wait(rest);
        sockets.wait(rest);
        assert!(start.elapsed() >= rest, "the second wait slept");
    }
}
