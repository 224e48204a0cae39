//! Messages between the nodes of a job, over TCP.
//!
//! A node listens (`Listener`: the scheduler, servers) or connects (`Connection`: a node to the scheduler, a
//! worker to each server). A message is a `Frame`: a header and a payload. Each pair of nodes has a session,
//! which outlives its TCP connections: frames are numbered and kept until the peer has confirmed them, so a
//! connection that breaks is made again and goes on where the old one stopped.
//!
//! ```text
//!   handshake  who may speak: both prove the job's secret, in messages of a fixed size
//!   session    frames in order, each once, over several connections; one thread reads, one writes
//!   dialer     the end that connects, and connects again
//!   listener   the end that accepts; strangers cost it a few kilobytes each, and not for long
//! ```
//!
//! Nothing blocks the thread that owns a node: it sends into queues, takes from queues, and waits for its
//! `Bell`.

mod dialer;
mod handshake;
mod listener;
mod session;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use ringpull_base::Error;

pub(crate) use self::dialer::{Connection, Target};
pub(crate) use self::listener::{Bound, Door, Listener};

/// A connection breaks if what was sent is not confirmed for this long, in milliseconds. TCP repeats it ever
/// more rarely, and another connection comes sooner; nothing is lost by it.
const UNCONFIRMED_MS: u32 = 8000;

/// One message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    /// An encoded message.
    pub(crate) header: Vec<u8>,
    /// The raw bytes of a segment, if there are any.
    pub(crate) payload: Vec<u8>,
}

impl From<Vec<u8>> for Frame {
    fn from(header: Vec<u8>) -> Self {
        Frame { header, payload: Vec::new() }
    }
}

/// What a node takes from one peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The longest header, in bytes.
    pub(crate) header: usize,
    /// The longest payload, in bytes.
    pub(crate) payload: usize,
    /// Bytes that wait in this process before more is read.
    pub(crate) waiting_bytes: usize,
    /// Frames that wait in this process before more is read.
    pub(crate) waiting: usize,
    /// Bytes for a peer that reads too slowly, before no more of it is read. At one end of the two only: else
    /// each may wait for the other.
    pub(crate) unwritten_bytes: usize,
}

impl Limits {
    /// What a worker takes from a server: segments, and states of optimizers in headers.
    pub(crate) const WORKER: Limits = Limits {
        header: 16 << 20,
        payload: 16 << 20,
        waiting_bytes: 16 << 20,
        waiting: 1024,
        unwritten_bytes: usize::MAX,
    };
    /// What a server takes from a worker.
    pub(crate) const SERVER: Limits = Limits { unwritten_bytes: 64 << 20, ..Limits::WORKER };
    /// What a node takes from the scheduler.
    pub(crate) const NODE: Limits = Limits { payload: 0, ..Limits::WORKER };
    /// What the scheduler takes from a node.
    pub(crate) const SCHEDULER: Limits =
        Limits { header: 256 << 10, payload: 0, waiting_bytes: 256 << 10, waiting: 64, unwritten_bytes: 1 << 20 };
    /// The same in an elastic job, where nodes list the keys.
    pub(crate) const ELASTIC_SCHEDULER: Limits =
        Limits { header: 16 << 20, waiting_bytes: 16 << 20, unwritten_bytes: 64 << 20, ..Limits::SCHEDULER };
}

/// What happened to a session, beside its frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The peer has said goodbye, or is gone.
    Disconnected,
    /// The peer is there and does not want this node, or is not one of the job.
    Refused(Error),
}

/// Ends the wait of a node's thread: something came, there is room again, or somebody has a command.
#[derive(Clone, Default)]
pub(crate) struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    /// Ends the present wait, or else the next.
    pub(crate) fn ring(&self) {
        let (rung, waits) = &*self.0;
        if !std::mem::replace(&mut *rung.lock(), true) {
            waits.notify_one();
        }
    }

    /// Waits until it rings, for at most `limit`. One thread waits.
    pub(crate) fn wait(&self, limit: Duration) {
        let (rung, waits) = &*self.0;
        let mut rung = rung.lock();
        if !*rung {
            waits.wait_for(&mut rung, limit);
        }
        *rung = false;
    }
}

/// Whether the error says that the peer's system closed the connection or listens no more, as it does when a
/// process ends; else the network may have broken it. A reset is of either.
fn is_closed(cause: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, UnexpectedEof, WriteZero};
    matches!(cause.kind(), UnexpectedEof | ConnectionRefused | BrokenPipe | WriteZero)
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

#[cfg(test)]
mod tests;
