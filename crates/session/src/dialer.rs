//! The end that connects, and connects again when a connection breaks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use ringpull_base::secret::random;
use ringpull_base::strangers::GREETING;
use ringpull_base::{Error, Secret, forked};

use crate::handshake::{Client, HandshakeFailure, Hello, Resumption, Verdict};
use crate::{Event, Settings};

/// The time between a failure and the next attempt.
pub(crate) const RECONNECT: Duration = Duration::from_millis(50);

/// The process to which to connect, and this process's introduction.
#[derive(Debug, Clone)]
pub struct DialTarget {
    /// The process's addresses, which are tried in turn.
    pub to: Vec<SocketAddr>,
    /// `the scheduler`, `server 1`, `rank 0`: the name by which it listens, of at most 32 bytes.
    pub name: String,
    /// The identity that this process gives.
    pub identity: Vec<u8>,
    /// The job's secret.
    pub secret: Option<Secret>,
    /// The limits of time and memory.
    pub settings: Settings,
    /// True if this process keeps a port open as long as it lives. After a connection has failed, the other
    /// end tries this port to find out at once if the process is gone.
    pub has_port: bool,
}

/// The making of connections.
pub(crate) struct Dialer {
    pub(crate) target: DialTarget,
    pub(crate) id: [u8; 16],
    goes_on: bool,
    attempt: u32,
    /// The time since which the peer's system has refused or closed every connection.
    closed: Option<Instant>,
    /// A listener that never accepts. It only shows that the process is alive.
    port: Option<TcpListener>,
    pub(crate) next: Instant,
}

/// The outcome of an attempt.
pub(crate) enum DialOutcome {
    /// A connection, and the number of the last frame that the peer has received.
    Connected(TcpStream, u64),
    /// There is no connection yet.
    Again,
    /// There will be no connection.
    Never(Event),
}

impl Dialer {
    pub(crate) fn new(target: DialTarget, id: [u8; 16]) -> Self {
        Dialer { target, id, goes_on: false, attempt: 0, closed: None, port: None, next: Instant::now() }
    }

    /// Tries once. Blocks for the time limits of an attempt and of a handshake at most.
    pub(crate) fn dial(&mut self, received: u64) -> DialOutcome {
        let outcome = self.connect(received);
        self.next = Instant::now() + RECONNECT;
        let is_only = self.target.to.len() == 1;
        let is_closing = match outcome {
            Ok((stream, theirs)) => {
                (self.goes_on, self.closed) = (true, None);
                return DialOutcome::Connected(stream, theirs);
            }
            Err(HandshakeFailure::Io(cause)) => {
                tracing::debug!(%cause, "{} is not reached yet at {}", self.target.name, self.target.to[0]);
                is_closed(&cause, self.target.settings.resume)
            }
            // It has ended the session.
            Err(HandshakeFailure::Refused(Verdict::Forgotten)) => return DialOutcome::Never(gone()),
            // Another process may have the peer's port by now, or a stranger answers in its place. If a
            // closed connection does not count as the peer's end at once, there is time to find out.
            Err(refusal) if self.goes_on => {
                tracing::debug!(?refusal, "{} does not answer as it did", self.target.name);
                !self.target.settings.resume.is_zero()
            }
            Err(refusal) if is_only => return DialOutcome::Never(Event::Refused(explain(&refusal, &self.target))),
            Err(_) => false,
        };
        if !self.goes_on {
            // Another of its addresses may lead to the process.
            self.target.to.rotate_left(1);
        }
        self.has_closed(is_closing)
    }

    /// Decides if the peer is gone, after its system has closed a connection (`is_closing`) or not.
    pub(crate) fn has_closed(&mut self, is_closing: bool) -> DialOutcome {
        self.closed = self.closed.or_else(|| Some(Instant::now())).filter(|_| is_closing);
        let is_gone = self.closed.is_some_and(|since| since.elapsed() >= self.target.settings.resume);
        if self.goes_on && is_gone { DialOutcome::Never(gone()) } else { DialOutcome::Again }
    }

    fn connect(&mut self, received: u64) -> Result<(TcpStream, u64), HandshakeFailure> {
        let target = &self.target;
        let stream = TcpStream::connect_timeout(&target.to[0], target.settings.attempt)?;
        forked::close_in_child(stream.as_raw_fd());
        if target.has_port && self.port.is_none() {
            let port = TcpListener::bind((stream.local_addr()?.ip(), 0))?;
            forked::close_in_child(port.as_raw_fd());
            self.port = Some(port);
        }
        let port = self.port.as_ref().map_or(Ok(0), |port| port.local_addr().map(|at| at.port()))?;
        self.attempt += 1;
        let resumption = Resumption { goes_on: self.goes_on, attempt: self.attempt, received };
        let (identity, wanted) = (target.identity.clone(), target.name.clone().into_bytes());
        let hello = Hello { session: self.id, port, identity, wanted };
        let random = random().map_err(io::Error::other)?;
        // If this end gives up, the peer must not take that for the end of the process.
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).map_err(io::Error::from)?;
        let mut talk = Talk { stream: &stream, deadline: Instant::now() + GREETING.min(target.settings.attempt) };
        let (mut client, hello) = Client::new(&hello, target.secret.as_ref(), random);
        talk.write(&hello)?;
        let proof = client.prove(&talk.read()?, resumption)?;
        talk.write(&proof)?;
        let theirs = client.conclude(&talk.read()?)?;
        sockopt::set_socket_linger(&stream, None).map_err(io::Error::from)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        Ok((stream, theirs))
    }
}

/// Returns the event for a peer that has closed its connections.
pub(crate) fn gone() -> Event {
    Event::Gone("its process ended".to_owned())
}

/// Returns true if the peer's system no longer listens, or has closed the connection, as at the end of a
/// process. A proxy that has lost the process also closes the connection, and a reset may come from either.
/// If a closed connection counts as the peer's end at once, only a closed port counts here, because a network
/// may break a handshake in any way.
fn is_closed(cause: &io::Error, resume: Duration) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionRefused, UnexpectedEof, WriteZero};
    let is_ended = matches!(cause.kind(), UnexpectedEof | BrokenPipe | WriteZero);
    cause.kind() == ConnectionRefused || is_ended && !resume.is_zero()
}

fn explain(refusal: &HandshakeFailure, target: &DialTarget) -> Error {
    let (text, remedy) = match refusal {
        HandshakeFailure::WantsSecret => (
            "it asks for the job's secret, and this node has none",
            "set RINGPULL_SECRET or RINGPULL_SECRET_FILE to the same secret on every node of the job",
        ),
        HandshakeFailure::HasNoSecret => (
            "it has no secret, and this node has one",
            "set RINGPULL_SECRET or RINGPULL_SECRET_FILE to the same secret on every node of the job, or on none",
        ),
        HandshakeFailure::WrongSecret => (
            "it has another secret than this node",
            "set RINGPULL_SECRET or RINGPULL_SECRET_FILE to the same secret on every node of the job",
        ),
        HandshakeFailure::Refused(Verdict::Full) => (
            "more nodes than the job has are connected to it",
            "give each job a DMLC_PS_ROOT_PORT of its own; strangers are kept out by RINGPULL_SECRET",
        ),
        HandshakeFailure::Refused(Verdict::Elsewhere) => (
            "another process of the job listens there",
            "look at what passes connections on between the hosts: each address has to lead to its own process",
        ),
        _ => (
            "it does not answer as a node of this job",
            "look at what listens there, and run the same version of ringpull on every node",
        ),
    };
    let (action, path) = (format!("join {} at", target.name), target.to[0].to_string());
    Error::Io { action, path, text: text.to_owned(), remedy: remedy.to_owned() }
}

/// A stream with one deadline for all its reads and writes.
struct Talk<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Talk<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        let mut filled = 0;
        while filled < N {
            self.stream.set_read_timeout(self.left()?)?;
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // This is less than any socket's buffer.
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write_all(bytes)
    }
}
