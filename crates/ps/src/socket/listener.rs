//! The end that accepts: it finds out who connects, and gives each node of the job its session.
//!
//! Each connection has a thread of its own for a handshake of at most a few seconds, and there are few of
//! these: when they are all busy, the oldest connection is closed if it has had its time; otherwise the new
//! one is closed, and may try again. So silent or slow strangers delay nobody, a crowd does not keep a node
//! out, and what they cost is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::sockopt::set_tcp_user_timeout;

use ringpull_base::secret::random;
use ringpull_base::strangers::{QUEUE, Refusals, SPARED};
use ringpull_base::{Error, Result, Secret, forked};

use super::handshake::{self, Client, Failure, Verdict};
use super::session::{End, Mail, RESUME, Session};
use super::{Bell, Event, Frame, Limits, UNCONFIRMED_MS, cannot_listen};

/// Connections whose handshakes are under way.
const HANDSHAKES: usize = 64;

/// How long it waits when the system has nothing left for a connection.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// The stack of a thread that reads from one node.
const STACK: usize = 256 << 10;

/// A port that is listened on and not yet answered.
pub(crate) struct Bound {
    socket: TcpListener,
    address: SocketAddr,
}

/// Whether there is a node of this name.
pub(crate) type Admits = Box<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// Who may connect, and what is taken from them.
pub(crate) struct Door {
    /// `the scheduler`, `server 1`.
    pub(crate) name: String,
    /// The job's secret.
    pub(crate) secret: Option<Secret>,
    /// Whether a node has this identity.
    pub(crate) admits: Admits,
    /// The most nodes at a time.
    pub(crate) most: usize,
    /// What is taken from each.
    pub(crate) limits: Limits,
}

/// Sessions with those that have connected. Dropping it ends them.
pub(crate) struct Listener {
    shared: Arc<ListenerState>,
    acceptor: Option<JoinHandle<()>>,
}

struct ListenerState {
    socket: TcpListener,
    door: Door,
    mail: Arc<Mail>,
    sessions: Mutex<BTreeMap<Vec<u8>, Arc<Session>>>,
    handshakes: Mutex<Handshakes>,
    is_closed: AtomicBool,
    refusals: Mutex<Refusals>,
}

/// Connections that have not proved that they are of the job.
#[derive(Default)]
struct Handshakes {
    under_way: VecDeque<Handshake>,
    /// Threads of those that have failed, which take no lock any more. A busy host may let them live on for a
    /// while.
    over: Vec<JoinHandle<()>>,
}

struct Handshake {
    number: u64,
    since: Instant,
    /// It has made room for another.
    is_ended: bool,
    stream: Arc<TcpStream>,
    thread: JoinHandle<()>,
}

impl Bound {
    /// Listens on `address`, where port 0 lets the system choose, or on `otherwise` if this host does not
    /// have it.
    pub(crate) fn to(address: SocketAddr, otherwise: Option<IpAddr>) -> Result<Self> {
        let socket = match (TcpListener::bind(address), otherwise) {
            // The name may be that of a service in front of this host.
            (Err(cause), Some(ip)) if cause.kind() == io::ErrorKind::AddrNotAvailable => {
                TcpListener::bind(SocketAddr::new(ip, address.port()))
            }
            (bound, _) => bound,
        };
        let socket = socket.map_err(|cause| cannot_listen(address, &cause))?;
        rustix::net::listen(&socket, QUEUE).map_err(|cause| cannot_listen(address, &cause.into()))?;
        forked::close_in_child(socket.as_raw_fd());
        let address = socket.local_addr().map_err(|cause| cannot_listen(address, &cause))?;
        Ok(Bound { socket, address })
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Answers all connections, present and future.
    pub(crate) fn open(self, door: Door, bell: &Bell) -> Result<Listener> {
        let shared = Arc::new(ListenerState {
            socket: self.socket,
            door,
            mail: Mail::new(bell.clone()),
            sessions: Mutex::default(),
            handshakes: Mutex::default(),
            is_closed: AtomicBool::new(false),
            refusals: Mutex::default(),
        });
        let accepts = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("ringpull-ps-door".to_owned())
            .spawn(move || accepts.accept())
            .map_err(|cause| Error::io("start", "a thread that accepts connections", &cause))?;
        Ok(Listener { shared, acceptor: Some(acceptor) })
    }
}

impl Listener {
    /// Sends to the node of that name; `false` if it is not there.
    pub(crate) fn send(&self, identity: &[u8], frame: Frame) -> bool {
        let session = self.shared.sessions.lock().get(identity).cloned();
        session.is_some_and(|session| session.send(frame))
    }

    /// The next frame that is there, and who sent it.
    pub(crate) fn receive(&self) -> Option<(Vec<u8>, Frame)> {
        self.shared.mail.frame().map(|(session, frame)| (session.identity.clone(), frame))
    }

    /// What happened to a session, if something has.
    pub(crate) fn event(&self) -> Option<Event> {
        self.shared.mail.event()
    }

    /// Logs what came from a peer that is no node of the job, at most once a minute.
    pub(crate) fn report_stranger(&self, identity: &[u8], why: &str) {
        let session = self.shared.sessions.lock().get(identity).cloned();
        if let Some(session) = session {
            self.shared.refuse(session.peer, why);
        }
    }

    /// Ends the session with it.
    pub(crate) fn dismiss(&self, identity: &[u8]) {
        if let Some(session) = self.shared.sessions.lock().remove(identity) {
            session.end();
        }
    }

    /// Closes it, giving what is still to be sent at most `limit`.
    pub(crate) fn close(mut self, limit: Duration) {
        self.stop(limit);
    }

    fn stop(&mut self, limit: Duration) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.shared.is_closed.store(true, Ordering::SeqCst);
        if let Err(cause) = rustix::net::shutdown(&self.shared.socket, rustix::net::Shutdown::Both) {
            tracing::debug!(%cause, "a listening socket could not be shut down");
        }
        let deadline = Instant::now() + limit;
        let sessions: Vec<_> = self.shared.sessions.lock().values().cloned().collect();
        sessions.iter().for_each(|session| session.begin_close());
        sessions.iter().for_each(|session| session.finish_close(deadline));
        self.shared.handshakes.lock().under_way.drain(..).for_each(|handshake| shut(&handshake.stream));
        if acceptor.join().is_err() {
            tracing::error!("a thread that accepts connections panicked");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

impl ListenerState {
    fn accept(self: &Arc<Self>) {
        let mut number = 0;
        loop {
            let accepted = self.socket.accept();
            if self.is_closed.load(Ordering::SeqCst) {
                return;
            }
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(cause) => {
                    tracing::debug!(%cause, "a connection to {} could not be accepted", self.door.name);
                    std::thread::park_timeout(EXHAUSTED);
                    continue;
                }
            };
            number += 1;
            if let Err(cause) = self.welcome(number, stream, from) {
                self.refuse(from.ip(), &format!("there is nothing left for it: {cause}"));
                std::thread::park_timeout(EXHAUSTED);
            }
        }
    }

    /// Starts a thread for a connection. If there are too many handshakes, ends the oldest, or else this one.
    fn welcome(self: &Arc<Self>, number: u64, stream: TcpStream, from: SocketAddr) -> io::Result<()> {
        stream.set_nodelay(true)?;
        forked::close_in_child(stream.as_raw_fd());
        set_tcp_user_timeout(&stream, UNCONFIRMED_MS)?;
        self.join_threads_that_are_over();
        let mut handshakes = self.handshakes.lock();
        if handshakes.under_way.iter().filter(|handshake| !handshake.is_ended).count() >= HANDSHAKES {
            // Those that were ended are here until their threads have ended too.
            let has_room = handshakes.under_way.len() + handshakes.over.len() < 2 * HANDSHAKES;
            let oldest = handshakes.under_way.iter_mut().find(|handshake| !handshake.is_ended);
            let Some(oldest) = oldest.filter(|oldest| has_room && oldest.since.elapsed() >= SPARED) else {
                drop(handshakes);
                reset(&stream);
                self.refuse(from.ip(), "too many connect at once");
                return Ok(());
            };
            oldest.is_ended = true;
            reset(&oldest.stream);
        }
        let stream = Arc::new(stream);
        let (shared, served) = (Arc::clone(self), Arc::clone(&stream));
        // Under the lock, so that the thread finds its handshake.
        let thread = std::thread::Builder::new()
            .name("ringpull-ps-in".to_owned())
            .stack_size(STACK)
            .spawn(move || shared.serve(number, &served, from))?;
        handshakes.under_way.push_back(Handshake { number, since: Instant::now(), is_ended: false, stream, thread });
        Ok(())
    }

    /// Removes this thread's handshake, if the listener has not been closed meanwhile.
    fn end_handshake(&self, number: u64, has_failed: bool) {
        let mut handshakes = self.handshakes.lock();
        let at = handshakes.under_way.iter().position(|handshake| handshake.number == number);
        if let Some(ended) = at.and_then(|at| handshakes.under_way.remove(at))
            && has_failed
        {
            handshakes.over.push(ended.thread);
        }
    }

    /// Called by the acceptor, so that failed handshakes have no more threads than it counts.
    fn join_threads_that_are_over(&self) {
        let over = std::mem::take(&mut self.handshakes.lock().over);
        for thread in over {
            if thread.join().is_err() {
                tracing::error!("a thread that examines connections panicked");
            }
        }
    }

    /// The life of one connection.
    fn serve(self: &Arc<Self>, number: u64, stream: &Arc<TcpStream>, from: SocketAddr) {
        let random = random().map_err(|cause| Failure::Io(io::Error::other(cause)));
        let client = random.and_then(|random| handshake::examine(stream, self.door.secret.as_ref(), random));
        let client = match client {
            Ok(client) => client,
            Err(failure) => {
                shut(stream);
                self.refuse(from.ip(), &reason(&failure));
                // At last, so that threads are as few as handshakes.
                return self.end_handshake(number, true);
            }
        };
        self.end_handshake(number, false);
        let (verdict, session) = self.judge(&client, from);
        let Some(session) = session else {
            self.refuse(from.ip(), refused(verdict));
            if let Err(cause) = client.answer(stream, verdict, self.door.secret.as_ref()) {
                tracing::debug!(%cause, "cannot send a node the reason of its refusal");
            }
            return shut(stream);
        };
        let (connection, received) = session.replace_connection();
        let answered = client.answer(stream, Verdict::Admitted(received), self.door.secret.as_ref());
        let end = match answered {
            Ok(()) => session.carry(stream, connection, client.resumption.received),
            Err(cause) => {
                session.release(connection);
                cause.into()
            }
        };
        shut(stream);
        let goes_on = match end {
            End::Replaced => !session.is_over(),
            End::Closed => session.await_connection_after(connection, Some(RESUME)) && !session.is_over(),
            End::Broken => session.await_connection_after(connection, None) && !session.is_over(),
            End::Goodbye => false,
            End::Violation(what) => {
                self.refuse(from.ip(), &format!("it sent {what}"));
                false
            }
        };
        if !goes_on {
            session.end();
            let mut sessions = self.sessions.lock();
            if sessions.get(&session.identity).is_some_and(|known| Arc::ptr_eq(known, &session)) {
                sessions.remove(&session.identity);
            }
            drop(sessions);
            self.mail.report(Event::Disconnected);
        }
    }

    fn judge(&self, client: &Client, from: SocketAddr) -> (Verdict, Option<Arc<Session>>) {
        let identity = client.hello.identity();
        let mut sessions = self.sessions.lock();
        // Looked at under the lock: who closes the sessions finds this one, or this finds that they are
        // closed.
        if self.is_closed.load(Ordering::SeqCst) {
            return (Verdict::Forgotten, None);
        }
        match sessions.get(identity) {
            Some(known) if known.id == client.hello.session && client.resumption.goes_on => {
                (Verdict::Admitted(0), Some(Arc::clone(known)))
            }
            // The client does not know that it was admitted.
            Some(known) if known.id == client.hello.session && known.received() == 0 => {
                (Verdict::Admitted(0), Some(Arc::clone(known)))
            }
            Some(_) => (Verdict::Unknown, None),
            None if client.resumption.goes_on => (Verdict::Forgotten, None),
            None if !(self.door.admits)(identity) => (Verdict::Unknown, None),
            None if sessions.len() >= self.door.most => (Verdict::Full, None),
            None => {
                let mail = Arc::clone(&self.mail);
                let session = Session::new(identity.to_vec(), client.hello.session, from.ip(), self.door.limits, mail);
                sessions.insert(identity.to_vec(), Arc::clone(&session));
                (Verdict::Admitted(0), Some(session))
            }
        }
    }

    /// Writes a line about those refused, at most once a minute.
    fn refuse(&self, from: IpAddr, why: &str) {
        let count = self.refusals.lock().count();
        let name = &self.door.name;
        if let Some(count) = count {
            let plural = if count == 1 { "a connection".to_owned() } else { format!("{count} connections") };
            tracing::warn!("{name} refused {plural}, this from {from}: {why} (logged once a minute)");
        } else {
            tracing::debug!("{name} refused a connection from {from}: {why}");
        }
    }
}

fn reason(failure: &Failure) -> String {
    match failure {
        Failure::Io(cause) => format!("it did not say who it is ({cause})"),
        Failure::Foreign => "it does not speak this protocol, or another version of it".to_owned(),
        Failure::WantsSecret => {
            "it has a secret and this node has none; set RINGPULL_SECRET on every node of the job, or on none"
                .to_owned()
        }
        Failure::HasNoSecret => {
            "it does not know the job's secret; set RINGPULL_SECRET on every node of the job".to_owned()
        }
        Failure::WrongSecret => {
            "it has another secret; set RINGPULL_SECRET to the same on every node of the job".to_owned()
        }
        Failure::Refused(verdict) => refused(*verdict).to_owned(),
    }
}

fn refused(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Admitted(_) => "nothing is wrong with it",
        Verdict::WrongSecret => "it has another secret",
        Verdict::Unknown => "it has a name that no node of the job has, or another node's name",
        Verdict::Forgotten => "it goes on with a session that has ended",
        Verdict::Full => "every node of the job is there, and some more",
    }
}

/// Ends a connection because there is no room for it. A node counts that as a connection that broke, and not
/// as the end of this process: it tries again for as long as heartbeats may be missing.
fn reset(stream: &TcpStream) {
    if let Err(cause) = rustix::net::connect_unspec(stream) {
        tracing::debug!(%cause, "a connection had ended before it was reset");
    }
}

fn shut(stream: &TcpStream) {
    if let Err(cause) = stream.shutdown(Shutdown::Both) {
        tracing::debug!(%cause, "a connection had ended before it was shut down");
    }
}
