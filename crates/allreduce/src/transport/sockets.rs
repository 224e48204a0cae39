//! A sleep that ends when data comes: waits on the TCP connections that the process has.
//!
//! MPI has no call that waits without using a core. Over TCP the kernel knows better: what a rank waits for
//! arrives on one of its sockets, and they can be found without asking the library. A wait that ends for
//! another socket's sake, or for part of a message, costs one look at the library. So it is only a better
//! sleep: if it finds no socket, or woke for nothing, it sleeps.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long after a look for sockets comes the next: connections are made late, and then stay.
const SOON: Duration = Duration::from_millis(2);
const LATE: Duration = Duration::from_millis(500);
/// A sleep for less would take longer than that to wake from: on a fast network each arrival is worth a look.
const SHORTEST_NAP: Duration = Duration::from_micros(20);

/// The connections, as far as they are known.
#[derive(Default)]
pub(super) struct Sockets {
    polled: Vec<libc::pollfd>,
    looked: Option<Instant>,
    interval: Duration,
    /// Whether the last wait ended by data that finished nothing: the next one sleeps, while more of it
    /// comes.
    was_fruitless: bool,
}

impl Sockets {
    /// To be called when something has finished.
    pub(super) fn moved(&mut self) {
        self.was_fruitless = false;
    }

    /// Returns when there may be data, at the latest after `longest`.
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
        // closed since is reported as such, and one that is another file by now ends the wait early at worst.
        let ready = unsafe { libc::ppoll(self.polled.as_mut_ptr(), count, &raw const limit, std::ptr::null()) };
        if ready > 0 {
            self.was_fruitless = true;
            if self.polled.iter().any(|socket| socket.revents & !libc::POLLIN != 0) {
                // A connection is gone; what is left is another matter.
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

/// The connected TCP sockets among the open files; none where the system does not list them.
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

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
