//! The one thread of a process that looks after its control connections.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};

use ringpull_base::{Result, Secret};

use crate::transport::control::Event;
use crate::transport::greeting::{self, Hello};
use crate::transport::star::pending::{PendingConnections, ProvedConnection};
use crate::transport::star::{ATTEMPT, NEXT_ATTEMPT, StartLimits, failed, greet};
use crate::transport::wire::{ConnectionFailure, Wire};

/// The interval at which the port of a peer is tried whose connection failed and that has not come back.
const LOOK: Duration = Duration::from_millis(500);
/// The time that the last frames may take to leave when the star ends.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The connections of one rank: rank 0 has one to each other rank, the others have one to rank 0.
pub(in crate::transport) struct Links {
    wires: Arc<Vec<Option<Wire>>>,
    wake: Arc<OwnedFd>,
    ends: Arc<AtomicBool>,
    losses: Arc<Mutex<Losses>>,
    thread: Option<JoinHandle<()>>,
}

/// The first loss, for ranks that cannot read the star's events yet.
#[derive(Default)]
struct Losses {
    /// The first peer that is gone, and the sign by which that was noticed.
    first: Option<(usize, String)>,
    /// Is set when a peer is gone.
    stop: Option<Arc<AtomicBool>>,
}

/// The part of this end in making connections.
pub(super) enum LinkRole {
    Hub(PendingConnections),
    Leaf {
        address: SocketAddr,
        port: u16,
        /// The number of times that it has connected.
        attempt: u32,
        /// Never accepts: that it listens says that the process lives.
        _presence: TcpListener,
    },
}

/// The state of a peer beside its wire.
#[derive(Default)]
struct PeerState {
    /// The address at which its process listens, of those that connect to rank 0.
    presence: Option<SocketAddr>,
    /// True if it was reached there. Only then does a closed port show that the process is gone, and not that
    /// there is a firewall.
    was_reached: bool,
    /// Over which of this host's addresses it has connected.
    way: Option<IpAddr>,
    /// The number of its last connection: an earlier one that is read later is not to replace it.
    attempt: u32,
    /// The time of the next attempt, while its connection is broken.
    broken: Option<Instant>,
    is_gone: bool,
}

/// A peer, and whether its process listens.
type PortCheck = (usize, bool);

struct Star {
    rank: usize,
    limits: StartLimits,
    secret: Secret,
    role: LinkRole,
    wires: Arc<Vec<Option<Wire>>>,
    standings: Vec<PeerState>,
    news: Sender<Event>,
    come: Option<Sender<usize>>,
    wake: Arc<OwnedFd>,
    ends: Arc<AtomicBool>,
    losses: Arc<Mutex<Losses>>,
    /// The state of peers' ports, found by threads that tried them.
    tried: (Sender<PortCheck>, Receiver<PortCheck>),
}

/// Starts the thread of rank `rank`.
pub(super) fn start(
    rank: usize,
    size: usize,
    limits: StartLimits,
    secret: Secret,
    role: LinkRole,
    come: Option<Sender<usize>>,
) -> Result<(Links, Receiver<Event>)> {
    let (news, events) = unbounded();
    let has_wire = |peer: usize| peer != rank && (rank == 0 || peer == 0);
    let wires: Arc<Vec<Option<Wire>>> =
        Arc::new((0..size).map(|peer| has_wire(peer).then(|| Wire::new(peer))).collect());
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    let wake = Arc::new(rustix::event::eventfd(0, flags).map_err(|cause| failed("watch")(cause.into()))?);
    let ends = Arc::new(AtomicBool::new(false));
    let losses = Arc::new(Mutex::new(Losses::default()));
    let star = Star {
        rank,
        limits,
        secret,
        role,
        wires: Arc::clone(&wires),
        standings: (0..size).map(|_| PeerState::default()).collect(),
        news,
        come,
        wake: Arc::clone(&wake),
        ends: Arc::clone(&ends),
        losses: Arc::clone(&losses),
        tried: unbounded(),
    };
    let builder = std::thread::Builder::new().name("ringpull-star".to_owned());
    let thread = builder.spawn(move || star.run()).map_err(failed("start the thread of"))?;
    Ok((Links { wires, wake, ends, losses, thread: Some(thread) }, events))
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
        if let LinkRole::Hub(pending) = &self.role {
            fds.extend(pending.fds());
        }
        let is_waiting = self.standings.iter().any(|standing| standing.broken.is_some())
            || matches!(&self.role, LinkRole::Hub(pending) if pending.are_there());
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
            // A later wake writes to it anew.
            rustix::io::read(&*self.wake, &mut count).ok();
        }
        for ((peer, _), _) in streams.iter().zip(&events[1..]).filter(|(_, happened)| **happened) {
            self.exchange(*peer);
        }
        self.take_pending();
        self.mend();
        Ok(())
    }

    /// Sends and receives over one wire.
    fn exchange(&mut self, peer: usize) {
        let Some(wire) = &self.wires[peer] else { return };
        let news = &self.news;
        // Nobody listens any more once this end has closed.
        let take = |bytes| drop(news.send(Event::Frame { from: peer, bytes }));
        // Bytes that have come are read before anything is sent: after a failed write the system reports that
        // the peer has closed.
        let outcome = wire.receive(take).and_then(|()| wire.flush());
        match outcome {
            Ok(()) => {}
            Err(ConnectionFailure::Closed) => self.gone(peer, "its process ended"),
            Err(ConnectionFailure::Wrong(what)) => self.gone(peer, &format!("it sent {what}")),
            Err(ConnectionFailure::Failed(cause)) => {
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
            let mut losses = self.losses.lock();
            losses.first.get_or_insert_with(|| (peer, cause.to_owned()));
            losses.stop.iter().for_each(|stop| stop.store(true, Ordering::Release));
            drop(self.news.send(Event::Gone { rank: peer, cause: cause.to_owned() }));
        }
    }

    /// Takes the ranks that came.
    fn take_pending(&mut self) {
        let LinkRole::Hub(pending) = &mut self.role else { return };
        let come = pending.welcome(&self.secret, self.wires.len());
        if come.is_empty() {
            return;
        }
        come.into_iter().for_each(|arrival| self.admit(arrival));
        let ways: Option<Vec<IpAddr>> = self.standings[1..].iter().map(|standing| standing.way).collect();
        if let (Some(ways), LinkRole::Hub(pending)) = (ways, &mut self.role) {
            pending.keep(&ways);
        }
    }

    /// Gives a rank its connection, its first or another.
    fn admit(&mut self, arrival: ProvedConnection) {
        let ProvedConnection { stream, from, hello, challenge, nonce } = arrival;
        let rank = hello.rank as usize;
        let standing = &mut self.standings[rank];
        let Some(wire) = self.wires[rank].as_ref().filter(|_| !standing.is_gone) else { return };
        if hello.attempt <= standing.attempt {
            return;
        }
        standing.attempt = hello.attempt;
        let welcome = greeting::welcome(&self.secret, wire.received(), &challenge, &nonce);
        let attached = stream.local_addr().and_then(|here| {
            (&stream).write_all(&welcome)?;
            wire.attach(stream, hello.received, self.limits.silence).map(|()| here.ip())
        });
        match attached {
            Ok(way) => {
                standing.broken = None;
                standing.way = Some(way);
                standing.presence = Some(SocketAddr::new(from.ip(), hello.port));
                if !standing.was_reached {
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
                    LinkRole::Leaf { .. } => self.redial(),
                    LinkRole::Hub(_) => {
                        self.standings[peer].broken = Some(Instant::now() + LOOK);
                        self.look(peer);
                    }
                }
            }
        }
    }

    /// Finds out whether a peer's process listens. A host that does not answer keeps a thread of its own for
    /// a second.
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
        let LinkRole::Leaf { address, port, attempt, .. } = &mut self.role else { return };
        let Some(wire) = &self.wires[0] else { return };
        *attempt += 1;
        let hello = Hello { rank: self.rank as u32, attempt: *attempt, received: wire.received(), port: *port };
        let dialled = TcpStream::connect_timeout(address, ATTEMPT).and_then(|stream| {
            let theirs = greet(&stream, &self.secret, hello, ATTEMPT)?;
            wire.attach(stream, theirs, self.limits.silence)
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

    /// Sends the frames that are left, and then the end of the stream. Frames that still come are read, for a
    /// caller who still listens. If they were not, the system would answer them with a reset, which could
    /// overtake the last frames sent.
    fn part(&mut self) {
        let end = Instant::now() + LAST_WORDS;
        let peers: Vec<(usize, &Wire)> =
            self.wires.iter().enumerate().filter_map(|(peer, wire)| Some((peer, wire.as_ref()?))).collect();
        let wires: Vec<&Wire> = peers.iter().map(|(_, wire)| *wire).collect();
        while Instant::now() < end && wires.iter().any(|wire| wire.flush().is_ok() && !wire.is_flushed()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        wires.iter().for_each(|wire| wire.close());
        let ended = |(peer, wire): &(usize, &Wire)| {
            let take = |bytes| drop(self.news.send(Event::Frame { from: *peer, bytes }));
            wire.receive(take).is_err() || wire.stream().is_none()
        };
        let end = Instant::now() + LAST_WORDS / 5;
        while Instant::now() < end && !peers.iter().all(ended) {
            std::thread::sleep(Duration::from_millis(1));
        }
        wires.iter().for_each(|wire| wire.detach());
    }
}

fn wake_up(wake: &OwnedFd) {
    // A counter that is full wakes the thread as well.
    rustix::io::write(wake, &1u64.to_ne_bytes()).ok();
}

impl Links {
    /// Takes a connection to `peer`, whose other end has received `theirs` frames.
    pub(super) fn attach(&self, peer: usize, stream: TcpStream, theirs: u64, silence: Duration) -> std::io::Result<()> {
        if let Some(wire) = &self.wires[peer] {
            wire.attach(stream, theirs, silence)?;
            self.wake();
        }
        Ok(())
    }

    /// Queues a frame. Never blocks.
    pub(in crate::transport) fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        let Some(wire) = self.wires.get(to).and_then(Option::as_ref) else {
            return Ok(());
        };
        if wire.send(bytes)? {
            self.wake();
        }
        Ok(())
    }

    #[cfg(test)]
    pub(in crate::transport) fn stream(&self, peer: usize) -> Option<Arc<TcpStream>> {
        self.wires[peer].as_ref()?.stream().map(|(stream, _)| stream)
    }

    /// The first peer that is gone, and the sign by which that was noticed.
    pub(super) fn first_loss(&self) -> Option<(usize, String)> {
        self.losses.lock().first.clone()
    }

    /// Sets `stop` when a peer is gone, or at once if one is, until this is called with another.
    pub(in crate::transport) fn stop_on_loss(&self, stop: Option<&Arc<AtomicBool>>) {
        let mut losses = self.losses.lock();
        losses.stop = stop.cloned();
        if losses.first.is_some() {
            losses.stop.iter().for_each(|stop| stop.store(true, Ordering::Release));
        }
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
