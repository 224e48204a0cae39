//! Framed, authenticated, resumable connections between the processes of a job: one protocol, for the control
//! star and for parameter servers.
//!
//! A process has an [`Endpoint`], with which it listens (rank 0, the scheduler, servers) or connects. Each
//! pair of processes has a [`Session`], which outlives its TCP connections. Frames are numbered and kept
//! until the peer has confirmed them, so after a connection breaks, the next one continues where it stopped.
//!
//! ```text
//!   handshake  pure: both ends prove the job's secret, in messages of a fixed size
//!   frames     pure: frames in order, each once, over several connections
//!   session    one end of a session: its queue, its limits, its present connection
//!   acceptor   connections that have not proved the secret, and their limits
//!   dialer     connects, and connects again
//!   driver     one thread for a listener with all its sessions, or for a connection
//! ```
//!
//! | event of a connection | effect |
//! | --- | --- |
//! | its other end sends a goodbye | the peer is gone; behind a frame that is half written it is told which have come, so that it can end |
//! | its other end closes it, as the end of a process does | the peer is gone if it makes no other within [`Settings::resume`] |
//! | it fails (a reset, nothing confirmed for [`Settings::unconfirmed`]) | it is made again, and frames continue where they stopped |
//! | it fails, and the port that the peer's process keeps open is closed | the peer is gone |
//!
//! Nothing here blocks the caller: [`Session::send`] queues, and what arrives is handed to a [`Sink`].
#![forbid(unsafe_code)]

mod acceptor;
mod dialer;
mod driver;
mod frames;
mod handshake;
mod session;
#[cfg(any(test, fuzzing))]
pub mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use ringpull_base::Error;

pub use acceptor::{Admits, Door, listen};
pub use dialer::DialTarget;
pub use driver::Endpoint;
pub use session::Session;

/// One message. The payload of a sent frame is shared, and the payload of a received frame belongs to the
/// receiver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame<P = Bytes> {
    /// An encoded message.
    pub header: Vec<u8>,
    /// The raw bytes of a segment, if there are any.
    pub payload: P,
}

impl<P: AsRef<[u8]>> Frame<P> {
    /// The length of both parts, in bytes.
    pub fn size(&self) -> usize {
        self.header.len() + self.payload.as_ref().len()
    }
}

impl From<Vec<u8>> for Frame {
    fn from(header: Vec<u8>) -> Self {
        Frame { header, payload: Bytes::new() }
    }
}

/// The limits on the data that a process takes from one peer and keeps for it.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest header, in bytes.
    pub header: usize,
    /// The longest payload, in bytes.
    pub payload: usize,
    /// The most bytes that may wait in this process before no more is read.
    pub waiting_bytes: usize,
    /// The most frames that may wait in this process before no more is read.
    pub waiting: usize,
    /// The most bytes that may wait for a peer that reads too slowly, before nothing more is read from it.
    /// Only one of the two ends may have this limit: otherwise each may wait for the other.
    pub unwritten_bytes: usize,
}

/// The settings of one end.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The limits of each session.
    pub limits: Limits,
    /// The time after which a connection counts as broken if sent frames are not confirmed. TCP repeats them
    /// more and more rarely, so a new connection is quicker, and nothing is lost by it.
    pub unconfirmed: Duration,
    /// The time limit of one attempt to connect.
    pub attempt: Duration,
    /// The time after which a peer counts as gone, if its system has closed or refused connections and no new
    /// connection comes.
    pub resume: Duration,
    /// The time for which an end that is dropped tries to send its remaining frames.
    pub linger: Duration,
    /// A sender passes a frame of at least this number of bytes to the system itself, as far as the system
    /// takes it at once. So fewer threads are woken, or two share the work. Short frames are left to the
    /// driver, which writes several together.
    pub at_once_bytes: usize,
}

/// An event of a session, beside its frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The session has a connection, its first or a later one, over this address of this host.
    Connected(IpAddr),
    /// The peer is gone or has ended the session, for this reason.
    Gone(String),
    /// There will be no connection, because the peer refuses this process or is not of the job.
    Refused(Error),
}

/// The receiver of what arrives. It is called on the driver's thread, and must not block.
pub trait Sink: Send + Sync + 'static {
    /// Takes a frame. [`Session::taken`] makes room for more.
    fn frame(&self, from: &Arc<Session>, frame: Frame<Vec<u8>>);
    /// Takes an event.
    fn event(&self, of: &Arc<Session>, event: Event);
    /// Takes the error of a driver's thread that has failed. Called after [`Event::Gone`] for each of its
    /// sessions.
    fn failed(&self, error: Error);
    /// Called when fewer frames wait to be sent, after [`Session::has_room`] has returned false.
    fn has_room(&self) {}
}
