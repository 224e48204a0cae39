//! The end of a session that connects, and connects again when a connection breaks.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_tcp_user_timeout;

use ringpull_base::secret::random;
use ringpull_base::{Error, Result, Secret, forked};

use super::handshake::{self, Failure, Hello, Resumption, Verdict};
use super::session::{End, Mail, RESUME, Session};
use super::{Bell, Event, Frame, Limits, UNCONFIRMED_MS, is_closed};

/// How long after a failure it is tried again.
const RECONNECT: Duration = Duration::from_millis(50);

/// How long one connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a connection that is dropped tries to send what it still has.
const LINGER: Duration = Duration::from_secs(1);

/// A node's end of its session with another that listens. Dropping it closes it.
pub(crate) struct Connection {
    session: Arc<Session>,
    mail: Arc<Mail>,
    linger: Duration,
}

/// Where a node connects to, and as whom.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The address.
    pub(crate) to: SocketAddr,
    /// `the scheduler`, `server 1`.
    pub(crate) name: String,
    /// What this node calls itself.
    pub(crate) identity: Vec<u8>,
    /// The job's secret.
    pub(crate) secret: Option<Secret>,
    /// What is taken from there.
    pub(crate) limits: Limits,
}

impl Connection {
    /// Begins to connect, and goes on trying.
    pub(crate) fn open(target: Target, bell: &Bell) -> Result<Self> {
        let mail = Mail::new(bell.clone());
        let session =
            Session::new(target.identity.clone(), random()?, target.to.ip(), target.limits, Arc::clone(&mail));
        let (served, events) = (Arc::clone(&session), Arc::clone(&mail));
        std::thread::Builder::new()
            .name("ringpull-ps-in".to_owned())
            .spawn(move || {
                let event = dial(&served, &target);
                served.end();
                events.report(event);
            })
            .map_err(|cause| Error::io("start", "a thread that talks to another node", &cause))?;
        Ok(Connection { session, mail, linger: LINGER })
    }

    /// Sends `frame` when its turn has come; `false` if it never will.
    pub(crate) fn send(&self, frame: impl Into<Frame>) -> bool {
        self.session.send(frame.into())
    }

    /// Whether fewer than `limit` frames wait to be sent; if not, the bell rings once there is room.
    pub(crate) fn has_room(&self, limit: usize) -> bool {
        self.session.has_room(limit)
    }

    /// The next frame that is there.
    pub(crate) fn receive(&self) -> Option<Frame> {
        self.mail.frame().map(|(_, frame)| frame)
    }

    /// What happened to it, if something has.
    pub(crate) fn event(&self) -> Option<Event> {
        self.mail.event()
    }

    /// Closes it, giving what is still to be sent at most `limit`.
    pub(crate) fn close(mut self, limit: Duration) {
        self.linger = limit;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.session.begin_close();
        self.session.finish_close(Instant::now() + self.linger);
    }
}

/// Serves the session over one connection after another, until it has ended.
fn dial(session: &Arc<Session>, target: &Target) -> Event {
    let mut goes_on = false;
    // Since when the peer's system has refused or closed every connection.
    let mut closed: Option<Instant> = None;
    while !session.is_over() {
        let is_closing = match connect(session, target, goes_on) {
            Ok((stream, number, confirmed)) => {
                (goes_on, closed) = (true, None);
                match session.carry(&stream, number, confirmed) {
                    End::Goodbye | End::Replaced => return Event::Disconnected,
                    End::Violation(what) => {
                        tracing::warn!("ended the connection to {}, which sent {what}", target.name);
                        return Event::Disconnected;
                    }
                    End::Broken => false,
                    End::Closed => true,
                }
            }
            Err(Failure::Io(cause)) => is_closed(&cause),
            // It has ended the session, and another process may have its port by now.
            Err(Failure::Refused(Verdict::Forgotten)) => return Event::Disconnected,
            Err(_) if goes_on => return Event::Disconnected,
            Err(refusal) => return Event::Refused(explain(&refusal, target)),
        };
        closed = closed.or_else(|| Some(Instant::now())).filter(|_| is_closing);
        if goes_on && closed.is_some_and(|since| since.elapsed() > RESUME) {
            return Event::Disconnected;
        }
        session.rest(RECONNECT);
    }
    Event::Disconnected
}

fn connect(session: &Arc<Session>, target: &Target, goes_on: bool) -> Result<(Arc<TcpStream>, u64, u64), Failure> {
    let (number, received) = session.replace_connection();
    let stream = TcpStream::connect_timeout(&target.to, CONNECT)?;
    stream.set_nodelay(true)?;
    forked::close_in_child(stream.as_raw_fd());
    set_tcp_user_timeout(&stream, UNCONFIRMED_MS).map_err(std::io::Error::from)?;
    let hello = Hello::new(session.id, &session.identity);
    let random = random().map_err(|cause| Failure::Io(std::io::Error::other(cause)))?;
    let resumption = Resumption { goes_on, received };
    let confirmed = handshake::ask(&stream, &hello, resumption, target.secret.as_ref(), random)?;
    Ok((Arc::new(stream), number, confirmed))
}

fn explain(refusal: &Failure, target: &Target) -> Error {
    let (text, remedy) = match refusal {
        Failure::WantsSecret => (
            "it asks for the job's secret, and this node has none",
            "set RINGPULL_SECRET or RINGPULL_SECRET_FILE to the same secret on every node of the job",
        ),
        Failure::HasNoSecret => (
            "it has no secret, and this node has one",
            "set RINGPULL_SECRET or RINGPULL_SECRET_FILE to the same secret on every node of the job, or on none",
        ),
        Failure::WrongSecret => (
            "it has another secret than this node",
            "set RINGPULL_SECRET or RINGPULL_SECRET_FILE to the same secret on every node of the job",
        ),
        Failure::Refused(Verdict::Full) => (
            "more nodes than the job has are connected to it",
            "give each job a DMLC_PS_ROOT_PORT of its own; strangers are kept out by RINGPULL_SECRET",
        ),
        _ => (
            "it does not answer as a node of this job",
            "look at what listens there, and run the same version of ringpull on every node",
        ),
    };
    let (action, path) = (format!("join {} at", target.name), target.to.to_string());
    Error::Io { action, path, text: text.to_owned(), remedy: remedy.to_owned() }
}
