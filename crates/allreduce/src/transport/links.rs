//! The sessions of the control star, and the events that arrive over them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use ringpull_base::{Error, Result};
use ringpull_session::{Endpoint, Frame, Limits, Session, Settings, Sink};

/// The greatest length of a frame. A longer frame is a protocol error.
const MAX_FRAME_BYTES: usize = 64 << 20;
/// The most bytes that may be on their way to one peer. More accumulate only if the peer takes nothing.
const MAX_QUEUED_BYTES: usize = 4 * MAX_FRAME_BYTES;

/// An event of the star.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A frame from a peer, whole and in order.
    Frame {
        /// The sender.
        from: usize,
        /// The frame's bytes.
        bytes: Vec<u8>,
    },
    /// A peer is gone. No more frames will come from it.
    Gone {
        /// The rank that is gone.
        rank: usize,
        /// The sign by which the loss was noticed.
        cause: String,
    },
}

/// Returns the settings of the star's sessions. `silence` is the time after which a rank that could not be
/// reached is lost.
pub(super) fn settings(silence: Duration) -> Settings {
    Settings {
        limits: Limits {
            header: MAX_FRAME_BYTES,
            payload: 0,
            // No limit is needed, because the reader of the events takes frames all the time.
            waiting_bytes: usize::MAX,
            waiting: usize::MAX,
            unwritten_bytes: usize::MAX,
        },
        unconfirmed: (silence / 4).max(Duration::from_secs(1)),
        attempt: Duration::from_secs(1),
        resume: Duration::ZERO,
        linger: Duration::from_millis(500),
        at_once_bytes: 0,
    }
}

/// Returns the name by which a rank introduces itself.
pub(super) fn identity(rank: usize) -> Vec<u8> {
    format!("rank {rank}").into_bytes()
}

/// Returns the rank with this name.
pub(super) fn rank_of(identity: &[u8]) -> Option<usize> {
    std::str::from_utf8(identity).ok()?.strip_prefix("rank ")?.parse().ok()
}

/// The arrival of a rank at an address of this host, or the reason that none will come.
pub(super) type Arrival = Result<(usize, IpAddr)>;

/// Hands on what arrives.
pub(super) struct StarSink {
    rank: usize,
    news: Sender<Event>,
    arrivals: Sender<Arrival>,
    losses: Mutex<Losses>,
}

/// The first lost peer, for ranks that cannot read the star's events yet.
#[derive(Default)]
struct Losses {
    /// The first peer that is gone, and the sign by which the loss was noticed.
    first: Option<(usize, String)>,
    /// The flag that is set when a peer is gone.
    stop: Option<Arc<AtomicBool>>,
}

impl StarSink {
    pub(super) fn new(rank: usize) -> (Arc<Self>, Receiver<Event>, Receiver<Arrival>) {
        let ((news, events), (arrivals, come)) = (unbounded(), unbounded());
        (Arc::new(StarSink { rank, news, arrivals, losses: Mutex::default() }), events, come)
    }

    fn peer(&self, session: &Session) -> usize {
        // Every rank except 0 has only one connection, to rank 0.
        if self.rank == 0 { rank_of(session.identity()).expect("others are not admitted") } else { 0 }
    }
}

impl Sink for StarSink {
    fn frame(&self, from: &Arc<Session>, frame: Frame<Vec<u8>>) {
        // If this end has closed, nobody reads the events.
        self.news.send(Event::Frame { from: self.peer(from), bytes: frame.header }).ok();
    }

    fn event(&self, of: &Arc<Session>, event: ringpull_session::Event) {
        let rank = self.peer(of);
        match event {
            // When all ranks have arrived, nobody waits for arrivals.
            ringpull_session::Event::Connected(here) => drop(self.arrivals.send(Ok((rank, here)))),
            ringpull_session::Event::Refused(error) => drop(self.arrivals.send(Err(error))),
            ringpull_session::Event::Gone(cause) => {
                let mut losses = self.losses.lock();
                losses.first.get_or_insert_with(|| (rank, cause.clone()));
                losses.stop.iter().for_each(|stop| stop.store(true, Ordering::Release));
                self.news.send(Event::Gone { rank, cause }).ok();
            }
        }
    }

    fn failed(&self, error: Error) {
        // When all ranks have arrived, nobody waits for arrivals. The peers are reported as gone.
        self.arrivals.send(Err(error)).ok();
    }
}

/// The sessions of one rank: rank 0 has one with each other rank, the others have one with rank 0.
pub(super) struct Links {
    pub(super) endpoint: Endpoint,
    pub(super) sink: Arc<StarSink>,
}

impl Links {
    fn session(&self, peer: usize) -> Option<Arc<Session>> {
        // The session has the name of the rank that connects.
        self.endpoint.session(&identity(self.sink.rank.max(peer)))
    }

    /// Queues a frame. Never blocks.
    pub(super) fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        if bytes.len() > MAX_FRAME_BYTES {
            let what = format!("a control message of {} bytes, of at most {MAX_FRAME_BYTES}", bytes.len());
            return Err(Error::limit(what, "use fewer or shorter keys in one step"));
        }
        // A rank that is gone takes nothing.
        let Some(session) = self.session(to) else { return Ok(()) };
        let kept = session.kept_bytes();
        if kept + bytes.len() > MAX_QUEUED_BYTES {
            let what = format!("{kept} bytes of control messages that rank {to} has not taken");
            return Err(Error::limit(what, "look at what that rank's process and its host are doing"));
        }
        session.send(bytes.to_vec());
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn break_connection(&self, peer: usize) -> bool {
        self.session(peer).is_some_and(|session| session.break_connection())
    }

    /// The first peer that is gone, and the sign by which the loss was noticed.
    pub(super) fn first_loss(&self) -> Option<(usize, String)> {
        self.sink.losses.lock().first.clone()
    }

    /// From now on sets `stop` when a peer is gone, and at once if a peer is already gone. The next call
    /// replaces `stop`.
    pub(super) fn stop_on_loss(&self, stop: Option<&Arc<AtomicBool>>) {
        let mut losses = self.sink.losses.lock();
        losses.stop = stop.cloned();
        if losses.first.is_some() {
            losses.stop.iter().for_each(|stop| stop.store(true, Ordering::Release));
        }
    }
}
