//! Connections to rank 0 that have not proved the job's secret yet.
//!
//! Rank 0 listens on every interface at first, since it cannot know which of them the other ranks reach.
//! After all of them have come, it listens only on the interfaces at which they came.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use ringpull_base::secret::random;
use ringpull_base::strangers::{GREETING, QUEUE, Refusals, SPARED};
use ringpull_base::{Error, Result, Secret, forked};

use crate::transport::greeting::{HELLO_BYTES, Hello, Nonce};

/// The number of connections that have not greeted yet and are kept beside those of the ranks that are
/// missing. At this number the oldest is closed if it has had its time; otherwise the new connection is
/// closed, and may try again.
const MOST_PENDING: usize = 64;
/// The number of connections that are taken before those that are there have their turn.
const TURN: usize = 256;

/// The sockets that rank 0 listens on, and the connections made there.
pub(super) struct PendingConnections {
    listeners: Vec<TcpListener>,
    waiting: Vec<PendingConnection>,
    refusals: Refusals,
}

/// A connection that has not proved the secret.
struct PendingConnection {
    stream: TcpStream,
    from: SocketAddr,
    since: Instant,
    challenge: Nonce,
    said: Vec<u8>,
}

/// A connection of a rank of the job, which has proved the secret.
pub(super) struct ProvedConnection {
    pub(super) stream: TcpStream,
    pub(super) from: SocketAddr,
    pub(super) hello: Hello,
    pub(super) challenge: Nonce,
    pub(super) nonce: Nonce,
}

impl PendingConnections {
    /// Listens on ports that the system chooses: on loopback alone if all ranks are on this host.
    pub(super) fn listen(is_local: bool) -> Result<Self> {
        let listen = |ip: &IpAddr| {
            let listener = TcpListener::bind((*ip, 0))?;
            rustix::net::listen(&listener, QUEUE)?;
            forked::close_in_child(listener.as_raw_fd());
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let addresses = if is_local { vec![Ipv4Addr::LOCALHOST.into()] } else { interfaces()? };
        let (mut listeners, mut failure) = (Vec::new(), std::io::Error::from(ErrorKind::AddrNotAvailable));
        for ip in &addresses {
            match listen(ip) {
                Ok(listener) => listeners.push(listener),
                // An address may be gone, or not yet usable.
                Err(cause) => failure = cause,
            }
        }
        if listeners.is_empty() {
            return Err(Error::io("listen for", "control connections", &failure));
        }
        Ok(PendingConnections { listeners, waiting: Vec::new(), refusals: Refusals::default() })
    }

    /// The addresses on which it listens, loopback last: on another host that leads to a stranger.
    pub(super) fn addresses(&self) -> std::io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Listens on these interfaces alone.
    pub(super) fn keep(&mut self, interfaces: &[IpAddr]) {
        let is_used = |listener: &TcpListener| listener.local_addr().is_ok_and(|at| interfaces.contains(&at.ip()));
        self.listeners.retain(is_used);
    }

    /// Returns true if a process is connected and has not sent its whole greeting.
    pub(super) fn are_there(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The descriptors to wait for.
    pub(super) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listening = self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
        listening.chain(self.waiting.iter().map(|connection| PollFd::new(&connection.stream, PollFlags::IN)))
    }

    /// Takes the connections that came, and gives those that have proved the secret. `size` is that of the
    /// job.
    pub(super) fn welcome(&mut self, secret: &Secret, size: usize) -> Vec<ProvedConnection> {
        let most = MOST_PENDING + size;
        let mut strangers: Vec<(SocketAddr, &str)> = Vec::new();
        for listener in &self.listeners {
            let crowded_out = accept(listener, &mut self.waiting, most);
            strangers.extend(crowded_out.into_iter().map(|from| (from, "too many were there at once")));
        }
        let mut come = Vec::new();
        for mut connection in std::mem::take(&mut self.waiting) {
            match connection.listen(secret) {
                Ok(Some((hello, nonce))) if (1..size).contains(&(hello.rank as usize)) => {
                    let PendingConnection { stream, from, challenge, .. } = connection;
                    come.push(ProvedConnection { stream, from, hello, challenge, nonce });
                }
                Ok(None) if connection.since.elapsed() < GREETING => self.waiting.push(connection),
                Ok(None) => strangers.push((connection.from, "it said nothing for too long")),
                _ => strangers.push((connection.from, "it is not of this job")),
            }
        }
        for (from, why) in strangers {
            self.refuse(from, why);
        }
        come
    }

    fn refuse(&mut self, from: SocketAddr, why: &str) {
        if let Some(count) = self.refusals.count() {
            tracing::warn!(%from, why, count, "refused connections to the control port (logged once a minute)");
        }
    }
}

/// The addresses of this host, loopback last, without those that need the name of a link.
fn interfaces() -> Result<Vec<IpAddr>> {
    let found = if_addrs::get_if_addrs().map_err(|cause| Error::io("list", "network interfaces", &cause))?;
    let mut found: Vec<IpAddr> = found.into_iter().map(|interface| interface.ip()).collect();
    found.retain(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    found.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    Ok(found)
}

/// Takes connections that came, and sends each its challenge. Returns the addresses of those for which there
/// was no room among the `most` that are kept.
fn accept(listener: &TcpListener, pending: &mut Vec<PendingConnection>, most: usize) -> Vec<SocketAddr> {
    let mut crowded_out = Vec::new();
    for _ in 0..TURN {
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => break,
            Err(cause) => {
                // There may be no descriptor left; the connection stays in the queue, and is not asked for
                // all the time.
                tracing::debug!(%cause, "a control connection could not be accepted");
                std::thread::sleep(Duration::from_millis(20));
                break;
            }
        };
        if pending.len() >= most {
            // Those of several interfaces came one interface after another.
            let oldest = (0..pending.len()).min_by_key(|at| pending[*at].since);
            let oldest = oldest.filter(|at| pending[*at].since.elapsed() >= SPARED);
            crowded_out.push(oldest.map_or(from, |at| pending.remove(at).from));
            if oldest.is_none() {
                continue;
            }
        }
        let challenged = random().map_err(std::io::Error::other).and_then(|challenge: Nonce| {
            stream.set_nonblocking(true)?;
            // An empty connection takes so little at once.
            (&stream).write_all(&challenge).map(|()| challenge)
        });
        if let Ok(challenge) = challenged {
            pending.push(PendingConnection { stream, from, since: Instant::now(), challenge, said: Vec::new() });
        }
    }
    crowded_out
}

impl PendingConnection {
    /// Reads the greeting. Returns it if it proves the secret, and `None` if it is not complete.
    fn listen(&mut self, secret: &Secret) -> std::io::Result<Option<(Hello, Nonce)>> {
        let mut piece = [0; HELLO_BYTES];
        loop {
            match self.stream.read(&mut piece[..HELLO_BYTES - self.said.len()]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.said.extend_from_slice(&piece[..count]),
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
            if let Ok(said) = <&[u8; HELLO_BYTES]>::try_from(&self.said[..]) {
                let proved = Hello::decode(said, secret, &self.challenge);
                return proved.map(Some).ok_or_else(|| ErrorKind::PermissionDenied.into());
            }
        }
    }
}
