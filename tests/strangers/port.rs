//! A port of a job as strangers see it, with checks of how their connections end.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use crate::greetings::Speaks;
use crate::overheard::Overheard;

/// The time limit for a connection to prove that it belongs to the job. It is the same in both protocols.
const GREETING: Duration = Duration::from_secs(5);
/// The additional time in which a busy machine must notice the end of a connection.
const MARGIN: Duration = Duration::from_secs(2);
/// The time limit for connecting to a port. The kernel tries again after a second.
const CONNECT: Duration = Duration::from_secs(4);
/// The time limit for connecting to a port that accepts no connection. The kernel does not answer when the
/// port's queue is full.
const CONNECT_TO_QUEUE: Duration = Duration::from_millis(50);

/// A port on which a process of a job listens.
pub(crate) struct OpenPort {
    /// The process's name and its id.
    pub(crate) owner: String,
    pub(crate) pid: u32,
    pub(crate) at: SocketAddr,
    pub(crate) speaks: Speaks,
    /// The processes of the job that are connected to the port.
    pub(crate) clients: Vec<u32>,
    /// The recorded greeting of one client. `None` if it could not be recorded.
    pub(crate) overheard: Option<Overheard>,
}

/// The result of an attack. Its error describes the fault.
pub(crate) type Outcome<T = ()> = Result<T, String>;

impl OpenPort {
    /// Connects to the port. Returns `None` if the port accepts no connection and its queue is full.
    pub(crate) fn connect(&self) -> Outcome<Option<TcpStream>> {
        let limit = if self.speaks == Speaks::Nothing { CONNECT_TO_QUEUE } else { CONNECT };
        let stream = loop {
            match TcpStream::connect_timeout(&self.at, limit) {
                Ok(stream) => break stream,
                Err(_) if self.speaks == Speaks::Nothing => return Ok(None),
                // The port accepted the connection and closed it before this end knew.
                Err(cause) if cause.kind() == ErrorKind::ConnectionReset => {}
                Err(cause) => return Err(format!("it does not take a connection within {limit:?}: {cause}")),
            }
        };
        let set = stream.set_read_timeout(Some(MARGIN)).and_then(|()| stream.set_write_timeout(Some(MARGIN / 10)));
        set.map(|()| Some(stream)).map_err(|cause| format!("a connection cannot be used: {cause}"))
    }

    /// Waits until the other end has closed all of `strangers`, and checks all that it sent. It must close
    /// them within the time limit of a greeting.
    pub(crate) fn sees_off(&self, strangers: Vec<TcpStream>) -> Outcome {
        self.sees_off_within(strangers, GREETING + MARGIN)
    }

    /// Does the same as [`sees_off`](Self::sees_off) for strangers who have sent bytes that no node of the
    /// job sends. The other end must close them at once.
    pub(crate) fn sees_off_at_once(&self, strangers: Vec<TcpStream>) -> Outcome {
        self.sees_off_within(strangers, MARGIN)
    }

    fn sees_off_within(&self, strangers: Vec<TcpStream>, limit: Duration) -> Outcome {
        let end = Instant::now() + limit;
        strangers.into_iter().try_for_each(|stranger| self.hears_nothing(&stranger, end))
    }

    /// Reads until the other end has closed the connection, which must happen before `end`.
    fn hears_nothing(&self, stranger: &TcpStream, end: Instant) -> Outcome {
        let mut said = Vec::new();
        let mut buffer = [0; 4096];
        let is_accepted = self.speaks != Speaks::Nothing;
        loop {
            let left = if is_accepted { end.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            let limit = left.max(Duration::from_millis(1));
            stranger.set_read_timeout(Some(limit)).map_err(|cause| format!("a limit cannot be set: {cause}"))?;
            match (&*stranger).read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => said.extend_from_slice(&buffer[..count]),
                Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if !is_accepted {
                        break;
                    }
                    if left.is_zero() {
                        return Err(format!(
                            "a stranger's connection was still open when it had to be closed; it heard {said:?}"
                        ));
                    }
                }
                // A reset.
                Err(_) => break,
            }
            if !self.speaks.tells_nothing(&said) {
                break;
            }
        }
        if self.speaks.tells_nothing(&said) { Ok(()) } else { Err(format!("a stranger received {said:?}")) }
    }
}

/// Ends a connection by a reset.
pub(crate) fn reset(stream: TcpStream) {
    // If the option cannot be set, the connection has ended.
    set_socket_linger(&stream, Some(Duration::ZERO)).ok();
    drop(stream);
}

/// Waits until the other end has closed a connection that it has answered. It must close the connection at
/// once.
pub(crate) fn is_closed(mut stream: &TcpStream) -> Outcome {
    let end = Instant::now() + MARGIN;
    while Instant::now() < end {
        match stream.read(&mut [0; 4096]) {
            Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(0) | Err(_) => return Ok(()),
            Ok(_) => {}
        }
    }
    Err(format!("the connection is still open after {MARGIN:?}"))
}

/// Closes the sending side of the connection.
pub(crate) fn finish(stream: &TcpStream) {
    // The other end may have closed it already.
    stream.shutdown(Shutdown::Write).ok();
}
