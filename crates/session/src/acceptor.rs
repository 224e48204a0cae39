//! The end that listens, and the connections that have not proved the job's secret yet.
//!
//! At the limit of such connections, the oldest is closed if its time is over. Otherwise the new one is
//! closed, and may try again. So silent or slow strangers delay nobody, a crowd keeps no process of the job
//! out, and the cost is bounded. A refused connection is reset, since a clean close would look like the end
//! of this process.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use ringpull_base::secret::random;
use ringpull_base::strangers::{GREETING, QUEUE, SPARED};
use ringpull_base::{Secret, forked};

use crate::Settings;
use crate::handshake::{Examination, HandshakeFailure, ProvedClient, Verdict};

/// The most connections that have not proved the secret, in addition to those of the job.
const MOST_PENDING: usize = 64;

/// The number of connections that are accepted before open connections are served.
const TURN: usize = 256;

/// The pause in accepting after the system has run out of descriptors or memory.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Listens on `address`, where port 0 lets the system choose.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpListener::bind(address)?;
    rustix::net::listen(&socket, QUEUE)?;
    forked::close_in_child(socket.as_raw_fd());
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Returns true if a process of the job has this identity.
pub type Admits = Box<dyn Fn(&[u8]) -> bool + Send>;

/// The processes that may connect, and the settings for them.
pub struct Door {
    /// `the scheduler`, `server 1`, `rank 0`: the name that a connecting process must ask for.
    pub name: String,
    /// The job's secret.
    pub secret: Option<Secret>,
    /// Decides by its identity if a process may connect.
    pub admits: Admits,
    /// The most processes that may be connected at a time.
    pub most: usize,
    /// The limits of time and memory.
    pub settings: Settings,
}

/// The listening sockets, and their connections that have not proved the secret.
pub(crate) struct Acceptor {
    pub(crate) door: Door,
    listeners: Vec<TcpListener>,
    pending: Vec<Pending>,
    exhausted: Option<Instant>,
}

struct Pending {
    stream: TcpStream,
    from: SocketAddr,
    since: Instant,
    examination: Examination,
}

/// A connection that has proved the secret.
pub(crate) struct ProvedConnection {
    pub(crate) stream: TcpStream,
    pub(crate) from: SocketAddr,
    pub(crate) proved: ProvedClient,
}

impl Acceptor {
    pub(crate) fn new(listeners: Vec<TcpListener>, door: Door) -> Self {
        Acceptor { door, listeners, pending: Vec::new(), exhausted: None }
    }

    /// Listens on these addresses only.
    pub(crate) fn keep(&mut self, interfaces: &[IpAddr]) {
        let is_kept = |listener: &TcpListener| listener.local_addr().is_ok_and(|at| interfaces.contains(&at.ip()));
        self.listeners.retain(is_kept);
    }

    /// Refuses all waiting and future connections.
    pub(crate) fn close(&mut self) {
        self.listeners.clear();
        self.pending.drain(..).for_each(|pending| reset(&pending.stream));
    }

    /// The descriptors to wait for.
    pub(crate) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listening = self.listeners.iter().filter(|_| self.exhausted.is_none());
        let pending = self.pending.iter().map(|pending| PollFd::new(&pending.stream, PollFlags::IN));
        listening.map(|listener| PollFd::new(listener, PollFlags::IN)).chain(pending)
    }

    /// Returns the time of the next check that is needed without an event.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.since + GREETING).chain(self.exhausted).min()
    }

    /// Accepts new connections, and returns those that have proved the secret. Calls `refuse` for connections
    /// that have failed to.
    pub(crate) fn accept(&mut self, mut refuse: impl FnMut(IpAddr, &str)) -> Vec<ProvedConnection> {
        if self.exhausted.is_none_or(|until| until <= Instant::now()) {
            self.exhausted = None;
            for at in 0..self.listeners.len() {
                self.accept_at(at, &mut refuse);
            }
        }
        let mut arrivals = Vec::new();
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.read(self.door.secret.as_ref()) {
                Ok(Some(proved)) => {
                    arrivals.push(ProvedConnection { stream: pending.stream, from: pending.from, proved });
                }
                Ok(None) if pending.since.elapsed() < GREETING => self.pending.push(pending),
                outcome => {
                    let failure = outcome.err().unwrap_or_else(|| HandshakeFailure::Io(ErrorKind::TimedOut.into()));
                    if matches!(failure, HandshakeFailure::Io(_)) {
                        reset(&pending.stream);
                    }
                    refuse(pending.from.ip(), &reason(&failure));
                }
            }
        }
        arrivals
    }

    fn accept_at(&mut self, at: usize, refuse: &mut impl FnMut(IpAddr, &str)) {
        for _ in 0..TURN {
            let accepted = self.listeners[at].accept().and_then(|(stream, from)| {
                stream.set_nonblocking(true)?;
                forked::close_in_child(stream.as_raw_fd());
                let random = random().map_err(io::Error::other)?;
                Ok(Pending { stream, from, since: Instant::now(), examination: Examination::new(random) })
            });
            let new = match accepted {
                Ok(new) => new,
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => break,
                Err(cause) => {
                    // There may be no descriptor left. The connection stays in the queue, and the acceptor
                    // pauses before it tries again.
                    tracing::debug!(%cause, "a connection to {} could not be accepted", self.door.name);
                    self.exhausted = Some(Instant::now() + EXHAUSTED);
                    break;
                }
            };
            let since = |pending: &Pending| pending.since;
            let turned_away = match room(self.pending.iter().map(since), MOST_PENDING + self.door.most, new.since) {
                Room::Free => {
                    self.pending.push(new);
                    continue;
                }
                Room::InsteadOf(oldest) => std::mem::replace(&mut self.pending[oldest], new),
                Room::None => new,
            };
            reset(&turned_away.stream);
            refuse(turned_away.from.ip(), "too many connect at once");
        }
    }
}

/// The room for a new connection among those that have not proved the secret.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Free,
    InsteadOf(usize),
    None,
}

/// Finds room for a new connection, with at most `most` in all. `there` has the times at which the others
/// came.
fn room(there: impl ExactSizeIterator<Item = Instant>, most: usize, now: Instant) -> Room {
    if there.len() < most {
        return Room::Free;
    }
    let oldest = there.enumerate().min_by_key(|(_, since)| *since);
    oldest
        .filter(|(_, since)| now.saturating_duration_since(*since) >= SPARED)
        .map_or(Room::None, |(at, _)| Room::InsteadOf(at))
}

impl Pending {
    /// Reads and answers what has come. Returns the client when it has proved the secret.
    fn read(&mut self, secret: Option<&Secret>) -> Result<Option<ProvedClient>, HandshakeFailure> {
        let mut piece = [0; 256];
        loop {
            let most = self.examination.missing().min(piece.len());
            let count = match self.stream.read(&mut piece[..most]) {
                Ok(0) => return Err(HandshakeFailure::Io(ErrorKind::UnexpectedEof.into())),
                Ok(count) => count,
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => continue,
                Err(cause) => return Err(cause.into()),
            };
            let mut reply = Vec::new();
            let outcome = self.examination.take(&piece[..count], secret, &mut reply);
            // An empty connection takes such a short reply at once.
            self.stream.write_all(&reply)?;
            match outcome {
                Ok(None) => {}
                outcome => return outcome,
            }
        }
    }
}

/// The reason of a refusal, for the log.
pub(crate) fn reason(failure: &HandshakeFailure) -> String {
    let reason = match failure {
        HandshakeFailure::Io(cause) => return format!("it did not introduce itself ({cause})"),
        HandshakeFailure::Foreign => "it does not speak this protocol, or another version of it",
        HandshakeFailure::WantsSecret => {
            "it has a secret and this node has none; set RINGPULL_SECRET on every node of the job, or on none"
        }
        HandshakeFailure::HasNoSecret => {
            "it does not know the job's secret; set RINGPULL_SECRET on every node of the job"
        }
        HandshakeFailure::WrongSecret => {
            "it has another secret; set RINGPULL_SECRET to the same on every node of the job"
        }
        HandshakeFailure::Refused(Verdict::Forgotten) => "it goes on with a session that has ended",
        HandshakeFailure::Refused(Verdict::Elsewhere) => "it looks for another process of the job",
        HandshakeFailure::Refused(Verdict::Full) => "every node of the job is there, and some more",
        HandshakeFailure::Refused(_) => "it has a name that no node of the job has, or another node's name",
    };
    reason.to_owned()
}

/// Resets a connection, as a network may, so that it does not look like the end of a process.
pub(crate) fn reset(stream: &TcpStream) {
    if let Err(cause) = rustix::net::connect_unspec(stream) {
        tracing::debug!(%cause, "a connection had ended before it was reset");
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn at_the_limit_the_oldest_makes_room_once_it_has_had_its_time() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let room = |ages: &[u64]| room(ages.iter().map(|age| at(10_000 - age)), 3, at(10_000));
        assert_eq!(room(&[]), Room::Free);
        assert_eq!(room(&[500, 5000]), Room::Free);
        assert_eq!(room(&[120, 130, 110]), Room::InsteadOf(1));
        assert_eq!(room(&[20, 30, 10]), Room::None);
    }
}
