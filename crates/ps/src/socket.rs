//! Messages between the nodes of a job, over sessions (`ringpull-session`).
//!
//! The thread that owns a node never blocks on a socket. It sends into queues, takes from queues, and waits
//! for its `Bell`.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use ringpull_base::{Error, Result};
use ringpull_session::{DialTarget, Door, Endpoint, Event, Frame, Limits, Session, Settings, Sink, listen};

const LIMITS: Limits =
    Limits { header: 16 << 20, payload: 16 << 20, waiting_bytes: 16 << 20, waiting: 1024, unwritten_bytes: usize::MAX };

/// A worker's settings for a server, which sends segments, and states of optimizers in headers.
pub(crate) const WORKER: Settings = with(LIMITS);
/// A server's settings for a worker.
pub(crate) const SERVER: Settings = Settings {
    linger: Duration::ZERO,
    // The limit is low, because the thread that reads from all workers is busy enough.
    at_once_bytes: 64 << 10,
    ..with(Limits { unwritten_bytes: 64 << 20, ..LIMITS })
};
/// A node's settings for the scheduler.
pub(crate) const NODE: Settings = with(Limits { payload: 0, ..LIMITS });
/// The scheduler's settings for a node.
pub(crate) const SCHEDULER: Settings = Settings {
    limits: Limits { header: 256 << 10, payload: 0, waiting_bytes: 256 << 10, waiting: 64, unwritten_bytes: 1 << 20 },
    ..SERVER
};
/// The scheduler's settings in an elastic job, in which nodes send lists of keys.
pub(crate) const ELASTIC_SCHEDULER: Settings =
    Settings { limits: Limits { payload: 0, waiting: 64, ..SERVER.limits }, ..SERVER };

const fn with(limits: Limits) -> Settings {
    Settings {
        limits,
        unconfirmed: Duration::from_secs(8),
        attempt: Duration::from_secs(5),
        // A node with a broken connection, or that cannot be reached, has the time for which heartbeats may
        // be missing.
        resume: Duration::from_millis(1500),
        linger: Duration::from_secs(1),
        at_once_bytes: usize::MAX,
    }
}

/// Ends the wait of a node's thread, because a message has come, there is room again, or there is a command.
#[derive(Clone, Default)]
pub(crate) struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    /// Ends the current wait, or the next one if there is none.
    pub(crate) fn ring(&self) {
        let (rung, waits) = &*self.0;
        if !std::mem::replace(&mut *rung.lock(), true) {
            waits.notify_one();
        }
    }

    /// Waits until the bell rings, for at most `limit`. Only one thread may wait.
    pub(crate) fn wait(&self, limit: Duration) {
        let (rung, waits) = &*self.0;
        let mut rung = rung.lock();
        if !*rung {
            waits.wait_for(&mut rung, limit);
        }
        *rung = false;
    }
}

/// A frame, and the session over which it came.
pub(crate) type ReceivedFrame = (Arc<Session>, Frame<Vec<u8>>);

/// Frames and events that wait for the node's thread.
struct Mail {
    frames: Mutex<VecDeque<ReceivedFrame>>,
    events: Mutex<VecDeque<Event>>,
    bell: Bell,
}

impl Mail {
    fn new(bell: &Bell) -> Arc<Self> {
        Arc::new(Mail { frames: Mutex::default(), events: Mutex::default(), bell: bell.clone() })
    }

    /// Returns the next frame that has arrived, and the session over which it came.
    fn frame(&self) -> Option<ReceivedFrame> {
        let (session, frame) = self.frames.lock().pop_front()?;
        session.taken(frame.size());
        Some((session, frame))
    }

    fn event(&self) -> Option<Event> {
        self.events.lock().pop_front()
    }
}

impl Sink for Mail {
    fn frame(&self, from: &Arc<Session>, frame: Frame<Vec<u8>>) {
        self.frames.lock().push_back((Arc::clone(from), frame));
        self.bell.ring();
    }

    fn event(&self, _: &Arc<Session>, event: Event) {
        if !matches!(event, Event::Connected(_)) {
            self.events.lock().push_back(event);
            self.bell.ring();
        }
    }

    fn failed(&self, error: Error) {
        self.events.lock().push_back(Event::Refused(error));
        self.bell.ring();
    }

    fn has_room(&self) {
        self.bell.ring();
    }
}

/// A node's end of its session with a node that listens. Dropping it closes the session.
pub(crate) struct Connection {
    endpoint: Endpoint,
    session: Arc<Session>,
    mail: Arc<Mail>,
}

impl Connection {
    /// Begins to connect, and goes on trying.
    pub(crate) fn open(target: DialTarget, bell: &Bell) -> Result<Self> {
        let mail = Mail::new(bell);
        let (endpoint, session) = Endpoint::connect(target, mail.clone())?;
        Ok(Connection { endpoint, session, mail })
    }

    /// Returns the next frame that has arrived.
    pub(crate) fn receive(&self) -> Option<Frame<Vec<u8>>> {
        self.mail.frame().map(|(_, frame)| frame)
    }

    /// Takes the next event of the session, if there is one.
    pub(crate) fn event(&self) -> Option<Event> {
        self.mail.event()
    }

    /// Closes the session. Frames that are still to be sent get at most `limit`.
    pub(crate) fn close(self, limit: Duration) {
        close(self.endpoint, limit, false);
    }

    /// Closes the session in a job that has failed.
    #[cfg(test)]
    pub(crate) fn close_after_failure(self, limit: Duration) {
        close(self.endpoint, limit, true);
    }

    /// Simulates a failure of the session's thread.
    #[cfg(test)]
    pub(crate) fn fail(&self, error: Error) {
        Sink::event(&*self.mail, &self.session, Event::Gone("its thread has ended".to_owned()));
        self.mail.failed(error);
    }
}

impl Deref for Connection {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

/// The time limit for the last messages of a job that has failed. It is short because lost peers confirm
/// nothing, and this process reports its error only afterwards.
const CLOSE_AFTER_FAILURE: Duration = Duration::from_millis(300);

/// Closes the endpoint. Frames that are still to be sent get at most `limit`, and less if the job has failed.
/// If it has not failed, warns about frames that may not have arrived.
pub(crate) fn close(endpoint: Endpoint, limit: Duration, has_failed: bool) {
    let lost = endpoint.close(if has_failed { limit.min(CLOSE_AFTER_FAILURE) } else { limit });
    if lost > 0 && !has_failed && !limit.is_zero() {
        tracing::warn!("{lost} messages of the end of the job were not confirmed");
    }
}

/// A port on which the process listens, but accepts no connections yet.
pub(crate) struct Bound {
    socket: TcpListener,
    port: u16,
}

impl Bound {
    /// Listens on `address`, where port 0 lets the system choose, or on `otherwise` if this host does not
    /// have it.
    pub(crate) fn to(address: SocketAddr, otherwise: Option<IpAddr>) -> Result<Self> {
        let socket = match (listen(address), otherwise) {
            // The name may belong to a service in front of this host.
            (Err(cause), Some(ip)) if cause.kind() == io::ErrorKind::AddrNotAvailable => {
                listen(SocketAddr::new(ip, address.port()))
            }
            (bound, _) => bound,
        };
        let bound = socket.and_then(|socket| Ok(Bound { port: socket.local_addr()?.port(), socket }));
        bound.map_err(|cause| cannot_listen(address, &cause))
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Accepts all connections, waiting and future.
    pub(crate) fn open(self, door: Door, bell: &Bell) -> Result<Listener> {
        let mail = Mail::new(bell);
        Ok(Listener { endpoint: Endpoint::listen(vec![self.socket], door, mail.clone())?, mail })
    }
}

/// The sessions with the peers that have connected. Dropping it ends them.
pub(crate) struct Listener {
    pub(crate) endpoint: Endpoint,
    mail: Arc<Mail>,
}

impl Listener {
    /// Sends a frame to the node of this name. Returns false if it is not connected.
    pub(crate) fn send(&self, identity: &[u8], frame: Frame) -> bool {
        self.endpoint.session(identity).is_some_and(|session| session.send(frame))
    }

    /// Returns the next frame that has arrived, and the session over which it came.
    pub(crate) fn receive(&self) -> Option<ReceivedFrame> {
        self.mail.frame()
    }

    /// Takes the next event of a session, if there is one.
    pub(crate) fn event(&self) -> Option<Event> {
        self.mail.event()
    }
}

fn cannot_listen(address: SocketAddr, cause: &io::Error) -> Error {
    let remedy = if cause.kind() == io::ErrorKind::AddrInUse {
        "another process has this port; end it, or set DMLC_PS_ROOT_PORT to a free port on every node"
    } else {
        "DMLC_PS_ROOT_URI must be an address of the scheduler's host, DMLC_NODE_HOST one of this host"
    };
    let (path, text) = (address.to_string(), cause.to_string());
    Error::Io { action: "listen on".to_owned(), path, text, remedy: remedy.to_owned() }
}
