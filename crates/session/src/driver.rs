//! The thread of a listener with all its sessions, or of one connection that this process has opened. It
//! reads, writes, and reconnects after a connection breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::set_tcp_user_timeout;

use ringpull_base::secret::random;
use ringpull_base::strangers::Refusals;
use ringpull_base::{Error, Result};

use crate::acceptor::{Acceptor, Door, ProvedConnection, reason, reset};
use crate::dialer::{DialOutcome, DialTarget, Dialer, gone};
use crate::frames::{End, Incoming};
use crate::handshake::{HandshakeFailure, ProvedClient, Verdict};
use crate::session::{Session, TURN_BYTES, Waker};
use crate::{Event, Frame, Settings, Sink};

/// The longest time after which received frames are confirmed.
const CONFIRM_AFTER: Duration = Duration::from_millis(500);

/// The interval between attempts to reach the port of a peer whose connection has failed.
const LOOK: Duration = Duration::from_millis(500);

/// The state that the owner and the thread share.
struct DriverState {
    name: String,
    waker: Arc<Waker>,
    sessions: Mutex<OwnedSessions>,
    /// The addresses of this host on which the listener is to go on listening, or `None` if nothing changes.
    interfaces: Mutex<Option<Vec<IpAddr>>>,
    refusals: Mutex<Refusals>,
    /// True if no new session begins, and the thread ends when the last session has ended.
    is_closing: AtomicBool,
    /// True if the thread is to end now.
    is_over: AtomicBool,
}

/// The sessions that the owner can use, and the number of frames that closed sessions have lost.
#[derive(Default)]
struct OwnedSessions {
    by_name: BTreeMap<Vec<u8>, Arc<Session>>,
    /// The number of frames that the peer had not confirmed when their closed session ended.
    lost: usize,
}

impl OwnedSessions {
    /// Ends the session. Returns true if the owner still had it and had not closed it.
    fn end(&mut self, session: &Arc<Session>) -> bool {
        let name = session.identity();
        let is_known = self.by_name.get(name).is_some_and(|known| Arc::ptr_eq(known, session));
        let is_known = is_known && self.by_name.remove(name).is_some_and(|session| !session.is_closing());
        self.lost += session.end();
        is_known
    }
}

impl DriverState {
    /// Logs a connection that is not of the job, at most once a minute.
    fn refuse(&self, from: IpAddr, why: &str) {
        let name = &self.name;
        if let Some(count) = self.refusals.lock().count() {
            let plural = if count == 1 { "a connection".to_owned() } else { format!("{count} connections") };
            tracing::warn!("{name} refused {plural}, this from {from}: {why} (logged once a minute)");
        } else {
            tracing::debug!("{name} refused a connection from {from}: {why}");
        }
    }

    /// Ends a session whose peer is gone. The sink gets the event, unless the owner has ended the session
    /// itself.
    fn release(&self, session: &Arc<Session>, event: Event) {
        let is_news = self.sessions.lock().end(session);
        if is_news {
            session.sink.event(session, event);
        }
    }
}

/// The owner's handle of all sessions of one thread. The thread listens or has connected. Dropping the handle
/// ends the sessions.
pub struct Endpoint {
    shared: Arc<DriverState>,
    /// A channel that is disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
    /// True if the thread may be in a call of `connect`, which can block.
    may_block: bool,
    linger: Duration,
}

impl Endpoint {
    /// Accepts connections at these sockets, which [`crate::listen`] has made.
    pub fn listen(sockets: Vec<TcpListener>, door: Door, sink: Arc<dyn Sink>) -> Result<Self> {
        let (name, settings) = (door.name.clone(), door.settings);
        Ok(Self::start(name, settings, sink, Some(Acceptor::new(sockets, door)), None)?.0)
    }

    /// Begins to connect, and goes on trying.
    pub fn connect(target: DialTarget, sink: Arc<dyn Sink>) -> Result<(Self, Arc<Session>)> {
        let (name, settings) = (target.name.clone(), target.settings);
        let (endpoint, session) = Self::start(name, settings, sink, None, Some(Dialer::new(target, random()?)))?;
        Ok((endpoint, session.expect("a dialer begins with its session")))
    }

    /// Starts the thread. Returns a dialer's session too, which may have ended by now.
    fn start(
        name: String,
        settings: Settings,
        sink: Arc<dyn Sink>,
        acceptor: Option<Acceptor>,
        dialer: Option<Dialer>,
    ) -> Result<(Self, Option<Arc<Session>>)> {
        let waker = Waker::new().map_err(|cause| Error::io("watch", "connections", &cause))?;
        let shared = Arc::new(DriverState {
            name,
            waker,
            sessions: Mutex::default(),
            interfaces: Mutex::default(),
            refusals: Mutex::default(),
            is_closing: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let may_block = dialer.is_some();
        let (peers, tried) = (BTreeMap::new(), mpsc::channel());
        let mut driver = Driver { shared: Arc::clone(&shared), sink, acceptor, dialer, peers, tried };
        let first =
            driver.dialer.as_ref().map(|dialer| (dialer.target.identity.clone(), dialer.id, dialer.target.to[0].ip()));
        let session = first.map(|(identity, id, from)| driver.begin(identity, id, from, settings));
        let (alive, ended) = mpsc::channel();
        std::thread::Builder::new()
            .name("ringpull-session".to_owned())
            .spawn(move || {
                let run = catch_unwind(AssertUnwindSafe(|| driver.run()));
                if let Ok(Err(cause)) = &run {
                    tracing::error!(%cause, "the connections of {} are not looked at any more", driver.shared.name);
                }
                driver.finish_all(!matches!(run, Ok(Ok(()))));
                // The thread's ports are closed before the owner is told of its end.
                drop(driver);
                drop(alive);
            })
            .map_err(|cause| Error::io("start", "a thread that talks to other processes", &cause))?;
        Ok((Endpoint { shared, ended: Mutex::new(ended), may_block, linger: settings.linger }, session))
    }

    /// Returns the session with the process of this identity, if there is one.
    pub fn session(&self, identity: &[u8]) -> Option<Arc<Session>> {
        self.shared.sessions.lock().by_name.get(identity).cloned()
    }

    /// Listens only on these addresses of this host.
    pub fn keep(&self, interfaces: Vec<IpAddr>) {
        *self.shared.interfaces.lock() = Some(interfaces);
        self.shared.waker.wake();
    }

    /// Logs that a peer does not belong to the job, at most once a minute.
    pub fn report_stranger(&self, identity: &[u8], why: &str) {
        if let Some(session) = self.session(identity) {
            self.shared.refuse(session.peer, why);
        }
    }

    /// Ends the session with the process of this identity.
    pub fn dismiss(&self, identity: &[u8]) {
        let mut sessions = self.shared.sessions.lock();
        if let Some(session) = sessions.by_name.get(identity).cloned() {
            sessions.end(&session);
        }
    }

    /// Closes all sessions. Frames that are still to be sent have at most `limit`. Returns the number of
    /// frames that their peers have not confirmed, without those of peers that have said goodbye: these
    /// frames may be lost.
    pub fn close(mut self, limit: Duration) -> usize {
        self.linger = Duration::ZERO;
        self.end(limit)
    }

    /// Sends the queued frames and a goodbye. Waits until the peers have confirmed them, for at most `limit`,
    /// and then ends the thread.
    fn end(&mut self, limit: Duration) -> usize {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        // A session that begins later sees `is_closing`.
        self.shared.sessions.lock().by_name.values().for_each(|session| session.begin_close());
        self.shared.waker.wake();
        self.ended.get_mut().recv_timeout(limit).ok();
        let mut sessions = self.shared.sessions.lock();
        for session in sessions.by_name.values().cloned().collect::<Vec<_>>() {
            sessions.end(&session);
        }
        drop(sessions);
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        if !self.may_block {
            self.ended.get_mut().recv().ok();
        }
        std::mem::take(&mut self.shared.sessions.lock().lost)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let lost = self.end(self.linger);
        if lost > 0 {
            tracing::debug!("{lost} frames at {} were not confirmed when it was closed", self.shared.name);
        }
    }
}

/// A peer, and true if its port is open.
type PortCheck = (Vec<u8>, bool);

/// The state of the thread.
struct Driver {
    shared: Arc<DriverState>,
    sink: Arc<dyn Sink>,
    acceptor: Option<Acceptor>,
    dialer: Option<Dialer>,
    peers: BTreeMap<Vec<u8>, Peer>,
    /// The channel for the results of attempts to reach ports.
    tried: (Sender<PortCheck>, Receiver<PortCheck>),
}

/// A session, and its connection if it has one.
struct Peer {
    session: Arc<Session>,
    connection: Option<ConnectedPeer>,
    /// The number of its latest connection. A connection with a lower number that is read later does not
    /// replace it.
    attempt: u32,
    /// The address of a port that the peer's process keeps open.
    port: Option<SocketAddr>,
    /// True if this port was reached before. Only then does a closed port show that the process is gone.
    /// Otherwise a firewall may be the reason.
    was_reached: bool,
    /// The time of the next attempt at the port, while there is no connection. Without a port it is the time
    /// at which the peer counts as gone.
    due: Option<Instant>,
}

struct ConnectedPeer {
    stream: Arc<TcpStream>,
    incoming: Incoming,
    /// A frame for which there is no room. Nothing more is read until there is room.
    held: Option<Frame<Vec<u8>>>,
    has_more: bool,
    confirm_at: Option<Instant>,
    /// True from the peer's goodbye until it has been answered.
    has_goodbye: bool,
}

impl Driver {
    /// Begins a session.
    fn begin(&mut self, identity: Vec<u8>, id: [u8; 16], from: IpAddr, settings: Settings) -> Arc<Session> {
        let (sink, waker) = (Arc::clone(&self.sink), Arc::clone(&self.shared.waker));
        let session = Session::new(identity.clone(), id, from, settings, sink, waker);
        let peer = Peer {
            session: Arc::clone(&session),
            connection: None,
            attempt: 0,
            port: None,
            was_reached: false,
            due: None,
        };
        if let Some(before) = self.peers.insert(identity.clone(), peer) {
            before.session.detach();
        }
        self.shared.sessions.lock().by_name.insert(identity, Arc::clone(&session));
        session
    }

    fn run(&mut self) -> io::Result<()> {
        while !self.is_over() {
            self.turn()?;
        }
        Ok(())
    }

    /// Ends all sessions. Tells the sink if this thread has failed.
    fn finish_all(&mut self, has_failed: bool) {
        let thread = format!("the thread of the connections of {}", self.shared.name);
        for name in self.peers.keys().cloned().collect::<Vec<_>>() {
            drop(self.peers[&name].session.detach());
            let gone = Event::Gone(format!("{thread} has ended"));
            // The sink itself may have failed.
            drop(catch_unwind(AssertUnwindSafe(|| self.finish(&name, gone))));
        }
        if has_failed {
            self.sink.failed(Error::ThreadEnded { thread, rank: None });
        }
    }

    fn is_over(&self) -> bool {
        let is_closing = self.acceptor.is_none() || self.shared.is_closing.load(Ordering::SeqCst);
        self.shared.is_over.load(Ordering::SeqCst) || is_closing && self.peers.is_empty()
    }

    /// Waits for the next event or due time, and handles all that has happened.
    fn turn(&mut self) -> io::Result<()> {
        self.dial();
        let connected = self.peers.iter().filter_map(|(name, peer)| Some((name, peer.connection.as_ref()?)));
        let mut names = Vec::new();
        let mut fds = vec![PollFd::new(&self.shared.waker.fd, PollFlags::IN)];
        for (name, connection) in connected {
            let reads = connection.held.is_none() && !connection.has_goodbye;
            let reads = if reads { PollFlags::IN } else { PollFlags::empty() };
            let writes = if connection.has_more { PollFlags::OUT } else { PollFlags::empty() };
            // A connection that is neither read nor written is left out: `poll` would return at once if its
            // peer has closed it.
            if !(reads | writes).is_empty() {
                names.push(name.clone());
                fds.push(PollFd::new(&*connection.stream, reads | writes));
            }
        }
        fds.extend(self.acceptor.iter().flat_map(Acceptor::fds));
        let limit = self.next_time().map(|time| time.saturating_duration_since(Instant::now()));
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
        let events: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if events[0] {
            self.shared.waker.rest();
        }
        let is_due = |time: Option<Instant>| time.is_some_and(|time| time <= Instant::now());
        let ready = names.iter().zip(&events[1..]).filter(|(_, happened)| **happened).map(|(name, _)| name);
        let ready: BTreeSet<&Vec<u8>> = ready.collect();
        let has_cause = |name: &Vec<u8>, peer: &Peer| events[0] || ready.contains(name) || is_due(peer.next_time());
        let causes = self.peers.iter().filter(|(name, peer)| has_cause(name, peer)).map(|(name, _)| name.clone());
        for name in causes.collect::<Vec<_>>() {
            self.attend(&name, ready.contains(&name));
        }
        while let Ok((name, is_there)) = self.tried.1.try_recv() {
            self.port_was_tried(&name, is_there);
        }
        let next_look = self.acceptor.as_ref().and_then(Acceptor::next_look);
        if events[0] || events[1 + names.len()..].contains(&true) || is_due(next_look) {
            self.accept();
        }
        Ok(())
    }

    /// Returns the time of the next work that needs no event.
    fn next_time(&self) -> Option<Instant> {
        let of_peers = self.peers.values().filter_map(Peer::next_time);
        let dials = self.dialer.as_ref().filter(|_| self.peers.values().any(|peer| peer.connection.is_none()));
        let acceptor = self.acceptor.as_ref().and_then(Acceptor::next_look);
        of_peers.chain(dials.map(|dialer| dialer.next)).chain(acceptor).min()
    }

    /// Connects, if there is no connection and an attempt is due.
    fn dial(&mut self) {
        let Some(dialer) = &mut self.dialer else { return };
        let waiting = self.peers.iter().find(|(_, peer)| peer.connection.is_none());
        let Some((name, session)) = waiting.map(|(name, peer)| (name.clone(), Arc::clone(&peer.session))) else {
            return;
        };
        if dialer.next > Instant::now() {
            return;
        }
        match dialer.dial(session.received()) {
            DialOutcome::Connected(stream, theirs) => {
                if let Err(cause) = self.attach(&name, stream, theirs) {
                    self.end(&name, cause);
                }
            }
            DialOutcome::Again => {}
            DialOutcome::Never(event) => self.finish(&name, event),
        }
    }

    /// Gives a session a connection. The other end has received the frames up to `theirs`.
    fn attach(&mut self, name: &[u8], stream: TcpStream, theirs: u64) -> std::result::Result<(), End> {
        let Some(peer) = self.peers.get_mut(name) else { return Ok(()) };
        let prepared = stream.local_addr().and_then(|here| {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let limit = peer.session.settings.unconfirmed.as_millis();
            set_tcp_user_timeout(&stream, u32::try_from(limit).unwrap_or(u32::MAX))?;
            Ok(here.ip())
        });
        let here = prepared.map_err(End::Broken)?;
        let stream = Arc::new(stream);
        peer.session.attach(&stream, theirs)?;
        peer.due = None;
        let incoming = Incoming::default();
        let connection =
            ConnectedPeer { stream, incoming, held: None, has_more: true, confirm_at: None, has_goodbye: false };
        peer.connection = Some(connection);
        peer.session.sink.event(&peer.session, Event::Connected(here));
        self.attend(name, false);
        Ok(())
    }

    /// Serves one peer: receives if there is something to read, and sends.
    fn attend(&mut self, name: &[u8], reads: bool) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        let is_over = peer.session.is_over();
        match &mut peer.connection {
            Some(connection) if connection.has_goodbye || !is_over => {
                if let Err(end) = connection.exchange(&peer.session, reads) {
                    self.end(name, end);
                }
            }
            _ if is_over => {
                // This process has dismissed the peer.
                peer.session.detach();
                self.peers.remove(name);
            }
            None if self.acceptor.is_some() && peer.session.is_closing() && peer.session.kept() == 0 => {
                self.finish(name, gone());
            }
            None if self.acceptor.is_some() && peer.session.is_closing() && peer.due.is_none() => {
                // This end is closing. The peer connects again within this time, or not at all.
                peer.due = Some(Instant::now() + peer.session.settings.resume);
            }
            None if peer.due.is_none_or(|due| due > Instant::now()) => {}
            None if peer.port.is_some() => {
                peer.due = Some(Instant::now() + LOOK);
                self.look(name);
            }
            _ => self.finish(name, gone()),
        }
    }

    /// Decides what follows from the end of a connection.
    fn end(&mut self, name: &[u8], mut end: End) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        if let (End::Goodbye, Some(connection)) = (&end, &mut peer.connection)
            && peer.session.answer_goodbye()
        {
            (connection.has_goodbye, connection.has_more, connection.confirm_at) = (true, true, None);
            let session = Arc::clone(&peer.session);
            return self.shared.release(&session, gone());
        }
        let has_parted = peer.session.has_parted();
        let failed = peer.session.detach();
        peer.connection = None;
        let now = Instant::now();
        let resume = peer.session.settings.resume;
        // The system reports a failure only once. After a writer has got the error, a reader sees a closed
        // connection.
        if let (End::Closed, Some(cause)) = (&end, failed)
            && (cause.kind() != ErrorKind::BrokenPipe || resume.is_zero())
        {
            end = End::Broken(cause);
        }
        let is_settled = peer.session.is_closing() && peer.session.kept() == 0;
        match end {
            End::Goodbye => self.finish(name, gone()),
            _ if is_settled && (self.acceptor.is_some() || has_parted) => self.finish(name, gone()),
            End::Violation(what) => {
                if self.dialer.is_some() {
                    tracing::warn!("ended the connection to {}, which sent {what}", self.shared.name);
                } else {
                    self.shared.refuse(peer.session.peer, &format!("it sent {what}"));
                }
                self.finish(name, Event::Gone(format!("it sent {what}")));
            }
            End::Closed if resume.is_zero() => self.finish(name, gone()),
            End::Closed => match &mut self.dialer {
                Some(dialer) => drop(dialer.has_closed(true)),
                None => peer.due = Some(now + resume),
            },
            End::Broken(cause) => {
                tracing::info!(%cause, "a connection at {} broke; it is made again", self.shared.name);
                peer.due = peer.port.map(|_| now);
                if let Some(dialer) = &mut self.dialer {
                    dialer.has_closed(false);
                }
            }
        }
    }

    /// Ends a session.
    fn finish(&mut self, name: &[u8], event: Event) {
        if let Some(peer) = self.peers.remove(name) {
            self.shared.release(&peer.session, event);
        }
    }

    /// Admits the connections that have proved that they belong to the job.
    fn accept(&mut self) {
        let Some(acceptor) = &mut self.acceptor else { return };
        // A peer that has not confirmed all frames may still connect again.
        if self.shared.is_closing.load(Ordering::SeqCst) && self.peers.values().all(|peer| peer.session.kept() == 0) {
            acceptor.close();
            return;
        }
        if let Some(interfaces) = self.shared.interfaces.lock().take() {
            acceptor.keep(&interfaces);
        }
        let shared = Arc::clone(&self.shared);
        for arrival in acceptor.accept(|from, why| shared.refuse(from, why)) {
            self.admit(arrival);
        }
    }

    /// Begins a session for the process if it has none, and gives the session the new connection.
    fn admit(&mut self, arrival: ProvedConnection) {
        let ProvedConnection { stream, from, proved } = arrival;
        let is_new = !proved.resumption.goes_on && !self.peers.contains_key(&proved.hello.identity);
        if is_new && self.shared.is_closing.load(Ordering::SeqCst) {
            return reset(&stream);
        }
        let verdict = self.judge(&proved, from);
        let Some(door) = self.acceptor.as_ref().map(|acceptor| &acceptor.door) else { return };
        let answer = proved.answer(verdict, door.secret.as_ref());
        let answered = io::Write::write_all(&mut &stream, &answer);
        let name = &proved.hello.identity;
        if !matches!(verdict, Verdict::Admitted(_)) {
            return self.shared.refuse(from.ip(), &reason(&HandshakeFailure::Refused(verdict)));
        }
        let Some(peer) = self.peers.get_mut(name) else { return };
        if proved.resumption.attempt <= peer.attempt {
            // The peer has made a later connection.
            return reset(&stream);
        }
        peer.attempt = proved.resumption.attempt;
        peer.session.detach();
        peer.connection = None;
        peer.port = (proved.hello.port != 0).then(|| SocketAddr::new(from.ip(), proved.hello.port));
        let is_tried = peer.port.is_some() && !peer.was_reached;
        let attached = match answered {
            Ok(()) => self.attach(name, stream, proved.resumption.received),
            Err(cause) => Err(End::Broken(cause)),
        };
        match attached {
            Ok(()) if is_tried => self.look(name),
            Ok(()) => {}
            Err(end) => self.end(name, end),
        }
    }

    /// Decides on a client, and begins its session if it is admitted and has none.
    fn judge(&mut self, proved: &ProvedClient, from: SocketAddr) -> Verdict {
        let (hello, goes_on) = (&proved.hello, proved.resumption.goes_on);
        let Some(door) = self.acceptor.as_ref().map(|acceptor| &acceptor.door) else { return Verdict::Forgotten };
        let (known, count) = {
            let sessions = self.shared.sessions.lock();
            (sessions.by_name.get(&hello.identity).cloned(), sessions.by_name.len())
        };
        match known {
            _ if hello.wanted != door.name.as_bytes() => Verdict::Elsewhere,
            // The client may not have received the answer that it was admitted.
            Some(known) if known.id == hello.session && (goes_on || known.received() == 0) => {
                Verdict::Admitted(known.received())
            }
            Some(_) => Verdict::Unknown,
            None if goes_on => Verdict::Forgotten,
            None if !(door.admits)(&hello.identity) => Verdict::Unknown,
            None if count >= door.most => Verdict::Full,
            None => {
                let settings = door.settings;
                let session = self.begin(hello.identity.clone(), hello.session, from.ip(), settings);
                if self.shared.is_closing.load(Ordering::SeqCst) {
                    session.begin_close();
                }
                Verdict::Admitted(0)
            }
        }
    }

    /// Takes the result of an attempt at a peer's port.
    fn port_was_tried(&mut self, name: &[u8], is_there: bool) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        peer.was_reached |= is_there;
        if !is_there && peer.was_reached && peer.connection.is_none() {
            self.finish(name, gone());
        }
    }

    /// Finds out on a separate thread if a peer's process listens. If the host does not answer, the thread
    /// lasts for the time limit of an attempt.
    fn look(&self, name: &[u8]) {
        let Some((peer, port)) = self.peers.get(name).and_then(|peer| Some((peer, peer.port?))) else { return };
        let (name, attempt) = (name.to_vec(), peer.session.settings.attempt);
        let (tried, waker) = (self.tried.0.clone(), Arc::clone(&self.shared.waker));
        let look = move || {
            let found = TcpStream::connect_timeout(&port, attempt);
            let is_refused = matches!(&found, Err(cause) if cause.kind() == ErrorKind::ConnectionRefused);
            if found.is_ok() || is_refused {
                tried.send((name, found.is_ok())).ok();
                waker.wake();
            }
        };
        if let Err(cause) = std::thread::Builder::new().name("ringpull-look".to_owned()).spawn(look) {
            tracing::debug!(%cause, "a peer's port is not tried");
        }
    }
}

impl Peer {
    /// Returns the time of the next work that needs no event.
    fn next_time(&self) -> Option<Instant> {
        self.connection.as_ref().map_or(self.due, |connection| connection.confirm_at)
    }
}

impl ConnectedPeer {
    /// Receives if there is something to read, and sends. Received bytes are read before anything is sent,
    /// because after a failed write the system only reports that the peer has closed.
    fn exchange(&mut self, session: &Arc<Session>, reads: bool) -> std::result::Result<(), End> {
        if self.has_goodbye {
            return Err(End::Goodbye);
        }
        if reads || self.held.is_some() {
            self.receive(session)?;
        }
        let confirms = self.confirm_at.is_some_and(|time| time <= Instant::now());
        self.has_more = session.flush(confirms);
        if self.has_more && session.has_failed() {
            self.receive(session)?;
            return Err(End::Closed);
        }
        if self.held.is_some() {
            // Sent frames make room for received ones.
            self.receive(session)?;
        }
        // While the socket takes nothing, and after a goodbye, nothing can be confirmed.
        let may_confirm = !self.has_more && !session.has_parted() && session.is_unconfirmed();
        self.confirm_at = may_confirm.then(|| self.confirm_at.unwrap_or_else(|| Instant::now() + CONFIRM_AFTER));
        if !self.has_more && session.has_parted() {
            // A broken connection is closed already.
            drop(self.stream.shutdown(Shutdown::Write));
        }
        Ok(())
    }

    /// Passes received frames to the session, while there is room for them.
    fn receive(&mut self, session: &Arc<Session>) -> std::result::Result<(), End> {
        let mut left = TURN_BYTES;
        let stream = Arc::clone(&self.stream);
        let mut read = |into: &mut Vec<u8>| {
            if left == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let count = rustix::io::read(&*stream, spare_capacity(into))?;
            left = left.saturating_sub(count);
            Ok(count)
        };
        loop {
            if let Some(frame) = self.held.take() {
                self.held = session.receive(frame);
                if self.held.is_some() {
                    return Ok(());
                }
            }
            let Some((prefix, frame)) = self.incoming.next(&session.settings.limits, &mut read)? else {
                return Ok(());
            };
            if session.look_at(prefix)? {
                self.held = Some(frame);
            }
        }
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    struct Deaf;

    impl Sink for Deaf {
        fn frame(&self, _: &Arc<Session>, _: Frame<Vec<u8>>) {}
        fn event(&self, _: &Arc<Session>, _: Event) {}
        fn failed(&self, _: Error) {}
    }

    /// The thread and the owner may end a session at the same time.
    #[test]
    fn a_frame_that_was_lost_is_counted_once_whoever_ends_its_session_and_only_if_that_was_closed() {
        let limits = crate::Limits { header: 9, payload: 9, waiting_bytes: 9, waiting: 9, unwritten_bytes: 9 };
        let (time, none) = (Duration::from_secs(1), Duration::ZERO);
        let settings =
            Settings { limits, unconfirmed: time, attempt: time, resume: time, linger: none, at_once_bytes: 9 };
        for is_closed in [false, true] {
            let mut sessions = OwnedSessions::default();
            let (from, sink, waker) = (IpAddr::from([127, 0, 0, 1]), Arc::new(Deaf), Waker::new().unwrap());
            let session = Session::new(b"node".to_vec(), [1; 16], from, settings, sink, waker);
            sessions.by_name.insert(b"node".to_vec(), Arc::clone(&session));
            assert!(session.send(vec![1]) && session.send(vec![2]));
            if is_closed {
                session.begin_close();
            }
            assert_eq!(sessions.end(&session), !is_closed, "the owner hears of it unless it has closed it");
            assert!(!sessions.end(&session), "once");
            assert_eq!(sessions.lost, if is_closed { 2 } else { 0 });
            assert!(!session.send(vec![3]) && sessions.by_name.is_empty());
        }
    }
}
