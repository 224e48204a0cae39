//! The control star over TCP: rank 0 listens, the others connect. One thread in each process reads, writes and connects anew.
//!
//! | what happens to a connection | what follows |
//! | --- | --- |
//! | its other end closes it, as the end of a process does | the peer is gone |
//! | it fails (a reset, nothing confirmed for `RINGPULL_SILENCE`) | the other ranks connect to rank 0 again, and frames go on where they stopped |
//! | it fails, and the port that the peer's process keeps open is closed | the peer is gone |
//! | nothing is heard over it for `RINGPULL_SILENCE` | the peer is lost, which `progress::watcher` finds |
//!
//! Who connects has to prove the job's secret first (`greeting`), within `GREETING`; strangers keep nobody waiting.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;

use ringpull_base::{Error, Result, forked, notice};

use crate::transport::control::{Control, Event};
use crate::transport::greeting::{self, CHALLENGE_BYTES, HELLO_BYTES, Hello, Nonce, Secret, WELCOME_BYTES};
use crate::transport::wire::{Broken, Wire};

/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(5);
/// How many connections that have not greeted yet are kept beside those of the ranks that are missing; the oldest of more is closed.
const MOST_GUESTS: usize = 64;
/// How long one attempt to connect may take, and how long until the next.
const ATTEMPT: Duration = Duration::from_secs(1);
const NEXT_ATTEMPT: Duration = Duration::from_millis(100);
/// How often the port of a peer is tried whose connection failed and that has not come back.
const LOOK: Duration = Duration::from_millis(500);
/// How long what was sent last may take to leave when the star ends.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// A refused stranger is told of once in this time.
const REFUSALS: Duration = Duration::from_secs(60);

/// How long to wait for what.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// A rank that does not come is named after this time, and each time it has doubled.
    pub warn: Duration,
    /// A rank that could not be reached for so long is lost.
    pub silence: Duration,
}

/// Rank 0's listening end, before the others are there.
pub struct Hub {
    listener: TcpListener,
    secret: Secret,
    is_local: bool,
}

/// The connections of one rank; `None` where there is no wire.
pub(super) struct Links {
    wires: Arc<Vec<Option<Wire>>>,
    wake: Arc<OwnedFd>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn failed(action: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |cause| Error::io(action, "a control connection", &cause)
}

impl Hub {
    /// Listens on a port that the system chooses: on loopback alone if all ranks are on this host.
    pub fn listen(is_local: bool) -> Result<Self> {
        let bound = if is_local {
            TcpListener::bind(("127.0.0.1", 0))
        } else {
            // IPv4 too, where the system does both on one socket, as it does by default.
            TcpListener::bind(("::", 0)).or_else(|_| TcpListener::bind(("0.0.0.0", 0)))
        };
        let listener = bound.map_err(failed("listen for"))?;
        forked::close_in_child(listener.as_raw_fd());
        Ok(Hub { listener, secret: Secret::random()?, is_local })
    }

    /// What the other ranks need to find this hub and to prove that they are of its job: the secret, then addresses, separated by
    /// blanks. It goes through MPI, to the ranks of the job alone.
    pub fn invitation(&self) -> Result<String> {
        let bound = self.listener.local_addr().map_err(failed("name"))?;
        let addresses = if self.is_local {
            vec![bound.ip()]
        } else {
            let mut found: Vec<IpAddr> = if_addrs::get_if_addrs()
                .map_err(|cause| Error::io("list", "network interfaces", &cause))?
                .into_iter()
                .map(|interface| interface.ip())
                // An address of one link says nothing without the link's name there.
                .filter(|ip| {
                    ip.is_ipv4() || (bound.is_ipv6() && !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()))
                })
                .collect();
            // Loopback last: on another host it leads to a stranger.
            found.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
            found
        };
        let addresses: Vec<String> =
            addresses.into_iter().map(|ip| SocketAddr::new(ip, bound.port()).to_string()).collect();
        Ok(format!("{} {}", self.secret.to_hex(), addresses.join(" ")))
    }

    /// Waits until every other rank has connected.
    pub fn gather(self, size: usize, patience: Patience) -> Result<Control> {
        self.listener.set_nonblocking(true).map_err(failed("use"))?;
        let role = Role::Hub { listener: self.listener, guests: Vec::new(), refused: None };
        let (come, arrivals) = unbounded();
        let (links, events) = start(0, size, patience, self.secret, role, Some(come))?;
        let begun = Instant::now();
        let (mut missing, mut warning) = ((1..size).collect::<Vec<usize>>(), patience.warn);
        while !missing.is_empty() {
            match arrivals.recv_timeout(Duration::from_millis(100).min(patience.silence)) {
                Ok(rank) => missing.retain(|missing| *missing != rank),
                Err(_) if begun.elapsed() >= patience.silence => {
                    return Err(Error::PeerLost {
                        peer: format!("rank(s) {missing:?}"),
                        cause: format!("no control connection within {} s", patience.silence.as_secs()),
                        operation: "start".to_owned(),
                        rank: 0,
                    });
                }
                Err(_) if begun.elapsed() >= warning => {
                    notice(&format!(
                        "warning: rank 0 has waited {} s for the control connections of rank(s) {missing:?}",
                        begun.elapsed().as_secs()
                    ));
                    warning *= 2;
                }
                Err(_) => {}
            }
        }
        Ok(Control::over(0, size, links, events))
    }
}

/// Connects rank `rank` to the hub that wrote `invitation`.
pub fn join(rank: usize, size: usize, invitation: &str, patience: Patience) -> Result<Control> {
    let mut words = invitation.split(' ');
    let secret = words.next().and_then(Secret::from_hex).ok_or_else(|| Error::Protocol {
        rank,
        peer: "rank 0".to_owned(),
        what: "an invitation that cannot be read".to_owned(),
        remedy: "every rank must run the same version of ringpull".to_owned(),
    })?;
    let addresses: Vec<SocketAddr> = words.filter_map(|word| word.parse().ok()).collect();
    let begun = Instant::now();
    let (mut last, mut attempt) = ("no address was given".to_owned(), 0);
    while begun.elapsed() < patience.silence {
        for address in &addresses {
            // The process is there as long as this port is.
            let dialled = TcpStream::connect_timeout(address, ATTEMPT).and_then(|stream| {
                let presence = TcpListener::bind((stream.local_addr()?.ip(), 0))?;
                forked::close_in_child(presence.as_raw_fd());
                attempt += 1;
                let port = presence.local_addr()?.port();
                let hello = Hello { rank: rank as u32, attempt, received: 0, port };
                let theirs = greet(&stream, &secret, hello, GREETING)?;
                Ok((stream, theirs, presence, hello.port))
            });
            match dialled {
                Ok((stream, theirs, presence, port)) => {
                    let role = Role::Leaf { address: *address, port, attempt, _presence: presence };
                    let (links, events) = start(rank, size, patience, secret, role, None)?;
                    let wire = links.wires[0].as_ref().expect("every other rank has a wire to rank 0");
                    wire.attach(stream, theirs, patience.silence).map_err(failed("use"))?;
                    links.wake();
                    return Ok(Control::over(rank, size, links, events));
                }
                Err(cause) => last = format!("{address}: {cause}"),
            }
        }
        std::thread::sleep(NEXT_ATTEMPT);
    }
    Err(Error::PeerLost {
        peer: "rank 0".to_owned(),
        cause: format!("its control port could not be reached ({last})"),
        operation: "start".to_owned(),
        rank,
    })
}

/// Proves the secret to rank 0, and is shown that it knows it; how many frames it has received.
fn greet(stream: &TcpStream, secret: &Secret, hello: Hello, limit: Duration) -> std::io::Result<u64> {
    let mut stream = stream;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    // Where this end gives up, rank 0 is not to take that for the end of the process.
    sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
    let mut challenge: Nonce = [0; CHALLENGE_BYTES];
    stream.read_exact(&mut challenge)?;
    let nonce = greeting::nonce().map_err(std::io::Error::other)?;
    stream.write_all(&secret.hello(hello, &challenge, &nonce))?;
    let mut welcome = [0; WELCOME_BYTES];
    stream.read_exact(&mut welcome)?;
    let theirs = secret.read_welcome(&welcome, &challenge, &nonce);
    let theirs = theirs.ok_or_else(|| std::io::Error::other("a stranger answered"))?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    sockopt::set_socket_linger(stream, None)?;
    Ok(theirs)
}

/// A connection to rank 0 that has not proved the secret yet.
struct Guest {
    stream: TcpStream,
    from: SocketAddr,
    since: Instant,
    challenge: Nonce,
    said: Vec<u8>,
}

enum Role {
    Hub {
        listener: TcpListener,
        guests: Vec<Guest>,
        /// When a refusal was last told of, and how many since.
        refused: Option<(Instant, usize)>,
    },
    Leaf {
        address: SocketAddr,
        port: u16,
        /// How often it has connected.
        attempt: u32,
        /// Never accepts: that it listens says that the process lives.
        _presence: TcpListener,
    },
}

/// What is known of a peer beside its wire.
#[derive(Default)]
struct Standing {
    /// Where its process listens, of those that connect to rank 0.
    presence: Option<SocketAddr>,
    /// Whether it was reached there: only then does a closed port say that the process is gone, and no firewall.
    was_reached: bool,
    /// The number of its last connection: an earlier one that is read later is not to replace it.
    attempt: u32,
    /// When to try something next, while its connection is broken.
    broken: Option<Instant>,
    is_gone: bool,
}

/// A peer, and whether its process listens.
type Tried = (usize, bool);

struct Star {
    rank: usize,
    patience: Patience,
    secret: Secret,
    role: Role,
    wires: Arc<Vec<Option<Wire>>>,
    standings: Vec<Standing>,
    news: Sender<Event>,
    come: Option<Sender<usize>>,
    wake: Arc<OwnedFd>,
    ends: Arc<AtomicBool>,
    /// What was found of a peer's port by a thread that tried it.
    tried: (Sender<Tried>, Receiver<Tried>),
}

fn start(
    rank: usize,
    size: usize,
    patience: Patience,
    secret: Secret,
    role: Role,
    come: Option<Sender<usize>>,
) -> Result<(Links, Receiver<Event>)> {
    let (news, events) = unbounded();
    let has_wire = |peer: usize| peer != rank && (rank == 0 || peer == 0);
    let wires: Arc<Vec<Option<Wire>>> =
        Arc::new((0..size).map(|peer| has_wire(peer).then(|| Wire::new(peer))).collect());
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    let wake = Arc::new(rustix::event::eventfd(0, flags).map_err(|cause| failed("watch")(cause.into()))?);
    let ends = Arc::new(AtomicBool::new(false));
    let star = Star {
        rank,
        patience,
        secret,
        role,
        wires: Arc::clone(&wires),
        standings: (0..size).map(|_| Standing::default()).collect(),
        news,
        come,
        wake: Arc::clone(&wake),
        ends: Arc::clone(&ends),
        tried: unbounded(),
    };
    let builder = std::thread::Builder::new().name("ringpull-star".to_owned());
    let thread = builder.spawn(move || star.run()).map_err(failed("start the thread of"))?;
    Ok((Links { wires, wake, ends, thread: Some(thread) }, events))
}

impl Star {
    fn run(mut self) {
        while !self.ends.load(Ordering::Acquire) {
            if let Err(cause) = self.turn() {
                // The watcher finds every peer silent then.
                tracing::error!(%cause, "the control connections are not looked at any more");
                return;
            }
        }
        self.part();
    }

    /// Waits for something, and does what follows from it.
    fn turn(&mut self) -> std::io::Result<()> {
        let streams: Vec<_> =
            self.wires.iter().enumerate().filter_map(|(peer, wire)| Some((peer, wire.as_ref()?.stream()?))).collect();
        let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        for (_, (stream, has_more)) in &streams {
            fds.push(PollFd::new(&**stream, if *has_more { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }));
        }
        if let Role::Hub { listener, guests, .. } = &self.role {
            fds.push(PollFd::new(listener, PollFlags::IN));
            fds.extend(guests.iter().map(|guest| PollFd::new(&guest.stream, PollFlags::IN)));
        }
        let is_waiting = self.standings.iter().any(|standing| standing.broken.is_some())
            || matches!(&self.role, Role::Hub { guests, .. } if !guests.is_empty());
        let longest = if is_waiting { NEXT_ATTEMPT } else { Duration::from_secs(1) };
        let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        match rustix::event::poll(&mut fds, Some(&longest)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
        let events: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if events[0] {
            let mut count = [0; 8];
            // Whoever wakes the thread again does so anew.
            rustix::io::read(&*self.wake, &mut count).ok();
        }
        for ((peer, _), _) in streams.iter().zip(&events[1..]).filter(|(_, happened)| **happened) {
            self.exchange(*peer);
        }
        self.welcome_guests();
        self.mend();
        Ok(())
    }

    /// Sends and receives over one wire.
    fn exchange(&mut self, peer: usize) {
        let Some(wire) = &self.wires[peer] else { return };
        let news = &self.news;
        // Nobody listens any more once this end has closed.
        let take = |bytes| drop(news.send(Event::Frame { from: peer, bytes }));
        // What has come is read before anything is sent: after a failed write the system says that the peer has closed.
        let outcome = wire.receive(take).and_then(|()| wire.flush());
        match outcome {
            Ok(()) => {}
            Err(Broken::Closed) => self.gone(peer, "its process ended"),
            Err(Broken::Wrong(what)) => self.gone(peer, &format!("it sent {what}")),
            Err(Broken::Failed(cause)) => {
                wire.detach();
                tracing::info!(rank = self.rank, peer, %cause, "a control connection broke; it is made again");
                self.standings[peer].broken = Some(Instant::now());
            }
        }
    }

    fn gone(&mut self, peer: usize, cause: &str) {
        let Some(wire) = &self.wires[peer] else { return };
        wire.close();
        wire.detach();
        let standing = &mut self.standings[peer];
        standing.broken = None;
        if !std::mem::replace(&mut standing.is_gone, true) {
            drop(self.news.send(Event::Gone { rank: peer, cause: cause.to_owned() }));
        }
    }

    /// Takes the connections that came, and those that have proved the secret.
    fn welcome_guests(&mut self) {
        let Role::Hub { listener, guests, refused } = &mut self.role else { return };
        loop {
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => break,
                Err(cause) => {
                    // There may be no descriptor left; the connection stays in the queue, and is not asked for all the time.
                    tracing::debug!(%cause, "a control connection could not be accepted");
                    std::thread::sleep(Duration::from_millis(20));
                    break;
                }
            };
            let challenged = greeting::nonce().map_err(std::io::Error::other).and_then(|challenge| {
                stream.set_nonblocking(true)?;
                // An empty connection takes so little at once.
                (&stream).write_all(&challenge).map(|()| challenge)
            });
            if let Ok(challenge) = challenged {
                guests.push(Guest { stream, from, since: Instant::now(), challenge, said: Vec::new() });
            }
        }
        let most = MOST_GUESTS + self.wires.len();
        let mut strangers: Vec<(SocketAddr, &str)> = Vec::new();
        if guests.len() > most {
            let more = guests.len() - most;
            strangers.extend(guests.drain(..more).map(|guest| (guest.from, "too many were there at once")));
        }
        let mut come = Vec::new();
        let mut left = Vec::new();
        for mut guest in guests.drain(..) {
            let secret = &self.secret;
            match guest.listen(secret) {
                Ok(Some((hello, nonce))) if (hello.rank as usize) < self.wires.len() && hello.rank > 0 => {
                    come.push((guest, hello, nonce));
                }
                Ok(None) if guest.since.elapsed() < GREETING => left.push(guest),
                Ok(None) => strangers.push((guest.from, "it said nothing for too long")),
                _ => strangers.push((guest.from, "it is not of this job")),
            }
        }
        *guests = left;
        for (from, why) in strangers {
            match refused {
                Some((since, count)) if since.elapsed() < REFUSALS => *count += 1,
                _ => {
                    let before = refused.take().map_or(0, |(_, count)| count);
                    tracing::warn!(%from, why, before, "turned away a connection to the control port");
                    *refused = Some((Instant::now(), 0));
                }
            }
        }
        for (guest, hello, nonce) in come {
            self.admit(guest, hello, &nonce);
        }
    }

    /// Gives a rank its connection, its first or another.
    fn admit(&mut self, guest: Guest, hello: Hello, nonce: &Nonce) {
        let rank = hello.rank as usize;
        let standing = &mut self.standings[rank];
        let Some(wire) = self.wires[rank].as_ref().filter(|_| !standing.is_gone) else { return };
        if hello.attempt <= standing.attempt {
            return;
        }
        standing.attempt = hello.attempt;
        let welcome = self.secret.welcome(wire.received(), &guest.challenge, nonce);
        let attached = (&guest.stream)
            .write_all(&welcome)
            .and_then(|()| wire.attach(guest.stream, hello.received, self.patience.silence));
        match attached {
            Ok(()) => {
                self.standings[rank].broken = None;
                self.standings[rank].presence = Some(SocketAddr::new(guest.from.ip(), hello.port));
                if !self.standings[rank].was_reached {
                    self.look(rank);
                }
                if let Some(come) = &self.come {
                    // `gather` has ended once all were there.
                    come.send(rank).ok();
                }
                self.exchange(rank);
            }
            Err(cause) => tracing::info!(rank, %cause, "a control connection broke while it was made"),
        }
    }

    /// Connects anew, or finds out whether a peer is gone.
    fn mend(&mut self) {
        while let Ok((peer, is_there)) = self.tried.1.try_recv() {
            let standing = &mut self.standings[peer];
            standing.was_reached |= is_there;
            if !is_there && standing.was_reached && standing.broken.is_some() {
                self.gone(peer, "its process ended");
            }
        }
        for peer in 0..self.standings.len() {
            if self.standings[peer].broken.is_some_and(|next| Instant::now() >= next) {
                match &self.role {
                    Role::Leaf { .. } => self.redial(),
                    Role::Hub { .. } => {
                        self.standings[peer].broken = Some(Instant::now() + LOOK);
                        self.look(peer);
                    }
                }
            }
        }
    }

    /// Finds out whether a peer's process listens. A host that does not answer keeps a thread of its own for a second.
    fn look(&self, peer: usize) {
        let Some(presence) = self.standings[peer].presence else { return };
        let (tried, wake) = (self.tried.0.clone(), Arc::clone(&self.wake));
        let look = move || {
            let found = TcpStream::connect_timeout(&presence, ATTEMPT);
            let is_refused = matches!(&found, Err(cause) if cause.kind() == ErrorKind::ConnectionRefused);
            if found.is_ok() || is_refused {
                tried.send((peer, found.is_ok())).ok();
                wake_up(&wake);
            }
        };
        if let Err(cause) = std::thread::Builder::new().name("ringpull-look".to_owned()).spawn(look) {
            tracing::debug!(%cause, "a peer's port is not tried");
        }
    }

    /// Connects to rank 0 again.
    fn redial(&mut self) {
        let Role::Leaf { address, port, attempt, .. } = &mut self.role else { return };
        let Some(wire) = &self.wires[0] else { return };
        *attempt += 1;
        let hello = Hello { rank: self.rank as u32, attempt: *attempt, received: wire.received(), port: *port };
        let dialled = TcpStream::connect_timeout(address, ATTEMPT).and_then(|stream| {
            let theirs = greet(&stream, &self.secret, hello, ATTEMPT)?;
            wire.attach(stream, theirs, self.patience.silence)
        });
        match dialled {
            Ok(()) => {
                self.standings[0].broken = None;
                tracing::info!(rank = self.rank, "the control connection to rank 0 is there again");
                self.exchange(0);
            }
            Err(cause) if cause.kind() == ErrorKind::ConnectionRefused => self.gone(0, "its process ended"),
            Err(cause) => {
                tracing::debug!(rank = self.rank, %cause, "rank 0 is not reached yet");
                self.standings[0].broken = Some(Instant::now() + NEXT_ATTEMPT);
            }
        }
    }

    /// Sends what is left, and says that nothing follows. What still comes is read, as the system would answer it with a reset, which
    /// could overtake what was sent.
    fn part(&mut self) {
        let end = Instant::now() + LAST_WORDS;
        let wires: Vec<&Wire> = self.wires.iter().flatten().collect();
        while Instant::now() < end && wires.iter().any(|wire| wire.flush().is_ok() && !wire.is_flushed()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        wires.iter().for_each(|wire| wire.close());
        let ended = |wire: &Wire| wire.receive(|_| ()).is_err() || wire.stream().is_none();
        let end = Instant::now() + LAST_WORDS / 5;
        while Instant::now() < end && !wires.iter().all(|wire| ended(wire)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        wires.iter().for_each(|wire| wire.detach());
    }
}

impl Guest {
    /// What it has said, if that proves the secret; `None` if it is not all there.
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
                let proved = secret.read_hello(said, &self.challenge);
                return proved.map(Some).ok_or_else(|| ErrorKind::PermissionDenied.into());
            }
        }
    }
}

fn wake_up(wake: &OwnedFd) {
    // A counter that is full wakes the thread as well.
    rustix::io::write(wake, &1u64.to_ne_bytes()).ok();
}

impl Links {
    /// Queues a frame. Never blocks.
    pub(super) fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        let Some(wire) = self.wires.get(to).and_then(Option::as_ref) else {
            return Ok(());
        };
        if wire.send(bytes)? {
            self.wake();
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn stream(&self, peer: usize) -> Option<Arc<TcpStream>> {
        self.wires[peer].as_ref()?.stream().map(|(stream, _)| stream)
    }

    fn wake(&self) {
        wake_up(&self.wake);
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the control connections panicked");
        }
    }
}

#[cfg(test)]
mod tests;
