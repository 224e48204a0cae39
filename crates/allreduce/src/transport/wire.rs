//! One control connection between two ranks: whole frames, in order, each once, over any number of TCP
//! connections.
//!
//! A frame is its length (`u32`), the number of frames that its sender has received (`u64`), and its bytes.
//! Frames are kept until the other end confirms that it has them. After a connection breaks, the ends greet
//! each other again with these numbers, and each sends the frames that the other lacks. Sending never blocks:
//! bytes that the system does not take now are sent by the star's thread.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use ringpull_base::{Error, Result, forked};

/// The longest frame; a longer one is a protocol error.
pub(crate) const MAX_FRAME_BYTES: usize = 64 << 20;
/// The bytes that may be on their way to one peer; more accumulate only if that peer takes nothing.
const MAX_QUEUED_BYTES: usize = 4 * MAX_FRAME_BYTES;
const HEADER_BYTES: usize = 4 + 8;
/// The bytes that are handed to the system, or taken from it, at once.
const PIECE_BYTES: usize = 64 << 10;
/// The bytes that are read before another connection has its turn.
const TURN_BYTES: usize = 16 * PIECE_BYTES;

/// One end.
pub(super) struct Wire {
    peer: usize,
    state: Mutex<WireState>,
}

#[derive(Default)]
struct WireState {
    stream: Option<Arc<TcpStream>>,
    /// Frames that the peer has not confirmed. The first of them has the number `acknowledged`.
    kept: VecDeque<Vec<u8>>,
    acknowledged: u64,
    queued_bytes: usize,
    /// The number of those that went into `out` on this connection.
    composed: usize,
    /// Bytes for the system, from `out_at`.
    out: Vec<u8>,
    out_at: usize,
    /// Bytes from the system that are not a whole frame yet.
    input: Vec<u8>,
    received: u64,
    /// The error for which a sender could not write. The system reports it once, and then tells a reader that
    /// the peer has closed.
    failed: Option<std::io::Error>,
    is_closed: bool,
}

/// The reason for which nothing more comes over a connection.
#[derive(Debug)]
pub(super) enum ConnectionFailure {
    /// The peer has closed it, which its process does or the end of its process.
    Closed,
    /// It failed; the peer may live.
    Failed(std::io::Error),
    /// The peer breaks the protocol.
    Wrong(String),
}

impl Wire {
    pub(super) fn new(peer: usize) -> Self {
        Wire { peer, state: Mutex::default() }
    }

    /// Takes a connection whose other end has received `theirs` frames.
    pub(super) fn attach(&self, stream: TcpStream, theirs: u64, silence: Duration) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // Otherwise the peer would not notice the end of this process.
        forked::close_in_child(stream.as_raw_fd());
        // Bytes that are not confirmed for this time break the connection. TCP repeats them ever more rarely,
        // and another connection comes sooner; nothing is lost by it.
        let limit = (silence / 4).as_millis().max(1000);
        rustix::net::sockopt::set_tcp_user_timeout(&stream, u32::try_from(limit).unwrap_or(u32::MAX))?;
        let mut state = self.state.lock();
        state.begin(theirs)?;
        state.stream = Some(Arc::new(stream));
        Ok(())
    }

    /// The connection, if there is one, and true if it has bytes to send that the system has not taken.
    pub(super) fn stream(&self) -> Option<(Arc<TcpStream>, bool)> {
        let state = self.state.lock();
        Some((Arc::clone(state.stream.as_ref()?), state.has_more()))
    }

    /// The number of frames that have come.
    pub(super) fn received(&self) -> u64 {
        self.state.lock().received
    }

    /// Gives the broken connection up. Frames are kept for the next.
    pub(super) fn detach(&self) {
        self.state.lock().stream = None;
    }

    /// Queues a frame, and hands the system the bytes that it takes at once. Returns true if the star's
    /// thread has to send the rest.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<bool> {
        if bytes.len() > MAX_FRAME_BYTES {
            let what = format!("a control message of {} bytes, of at most {MAX_FRAME_BYTES}", bytes.len());
            return Err(Error::limit(what, "use fewer or shorter keys in one step"));
        }
        let mut state = self.state.lock();
        if state.is_closed {
            return Ok(false);
        }
        if state.queued_bytes + bytes.len() > MAX_QUEUED_BYTES {
            let what =
                format!("{} bytes of control messages that rank {} has not taken", state.queued_bytes, self.peer);
            return Err(Error::limit(what, "look at what that rank's process and its host are doing"));
        }
        state.queued_bytes += bytes.len();
        state.kept.push_back(bytes.to_vec());
        if state.stream.is_none() {
            return Ok(false);
        }
        if let Err(cause) = state.flush() {
            // The thread finds out when it reads.
            state.failed = Some(cause);
            return Ok(true);
        }
        Ok(state.has_more())
    }

    /// Hands the system the bytes that it takes.
    pub(super) fn flush(&self) -> std::result::Result<(), ConnectionFailure> {
        self.state.lock().flush().map_err(ConnectionFailure::Failed)
    }

    /// Returns true if everything was handed to the system, or if there is no connection.
    pub(super) fn is_flushed(&self) -> bool {
        let state = self.state.lock();
        state.stream.is_none() || !state.has_more()
    }

    /// Hands `take` every frame that has come, without blocking.
    pub(super) fn receive(&self, mut take: impl FnMut(Vec<u8>)) -> std::result::Result<(), ConnectionFailure> {
        let mut state = self.state.lock();
        let Some(stream) = state.stream.clone() else { return Ok(()) };
        let mut piece = vec![0; PIECE_BYTES];
        let mut turn = 0;
        while turn < TURN_BYTES {
            match (&*stream).read(&mut piece) {
                Ok(0) => return Err(state.failed.take().map_or(ConnectionFailure::Closed, ConnectionFailure::Failed)),
                Ok(count) => {
                    turn += count;
                    state.input.extend_from_slice(&piece[..count]);
                    state.frames(&mut take)?;
                }
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => break,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(ConnectionFailure::Failed(cause)),
            }
        }
        Ok(())
    }

    /// Takes no more frames to send, and ends the stream once all were sent.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        if let Some(stream) = &state.stream {
            // If it is broken it is closed already.
            drop(stream.shutdown(Shutdown::Write));
        }
    }
}

impl WireState {
    fn has_more(&self) -> bool {
        self.out_at < self.out.len() || self.composed < self.kept.len()
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let Some(stream) = self.stream.clone() else { return Ok(()) };
        self.write(&*stream)
    }

    /// Begins a connection whose other end has received `theirs` frames.
    fn begin(&mut self, theirs: u64) -> std::io::Result<()> {
        self.acknowledge(theirs)?;
        (self.composed, self.out_at) = (0, 0);
        self.out.clear();
        self.input.clear();
        self.failed = None;
        Ok(())
    }

    fn write(&mut self, mut to: impl Write) -> std::io::Result<()> {
        loop {
            if self.out_at == self.out.len() {
                self.compose();
            }
            if self.out.is_empty() {
                return Ok(());
            }
            match to.write(&self.out[self.out_at..]) {
                Ok(count) => self.out_at += count,
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
    }

    fn compose(&mut self) {
        self.out.clear();
        self.out_at = 0;
        while self.composed < self.kept.len() && self.out.len() < PIECE_BYTES {
            let frame = &self.kept[self.composed];
            self.out.extend_from_slice(&(frame.len() as u32).to_le_bytes());
            self.out.extend_from_slice(&self.received.to_le_bytes());
            self.out.extend_from_slice(frame);
            self.composed += 1;
        }
    }

    fn frames(&mut self, take: &mut impl FnMut(Vec<u8>)) -> std::result::Result<(), ConnectionFailure> {
        let mut at = 0;
        while let Some((header, rest)) = self.input[at..].split_at_checked(HEADER_BYTES) {
            let len = u32::from_le_bytes(header[..4].try_into().expect("four bytes")) as usize;
            if len > MAX_FRAME_BYTES {
                return Err(ConnectionFailure::Wrong(format!("a frame of {len} bytes")));
            }
            let Some(frame) = rest.get(..len) else { break };
            let frame = frame.to_vec();
            let theirs = u64::from_le_bytes(header[4..].try_into().expect("eight bytes"));
            self.acknowledge(theirs).map_err(|cause| ConnectionFailure::Wrong(cause.to_string()))?;
            at += HEADER_BYTES + len;
            self.received += 1;
            take(frame);
        }
        self.input.drain(..at);
        Ok(())
    }

    /// Drops the frames that the peer has: the first `theirs`.
    fn acknowledge(&mut self, theirs: u64) -> std::io::Result<()> {
        let sent = self.acknowledged + self.kept.len() as u64;
        if theirs > sent || theirs < self.acknowledged {
            let what = format!("{theirs} frames received, of {} to {sent}", self.acknowledged);
            return Err(std::io::Error::other(what));
        }
        while self.acknowledged < theirs {
            let frame = self.kept.pop_front().expect("as many are kept as were sent and not confirmed");
            self.queued_bytes -= frame.len();
            self.acknowledged += 1;
            self.composed = self.composed.saturating_sub(1);
        }
        Ok(())
    }
}

#[cfg(any(test, fuzzing))]
pub(super) mod link;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const SILENCE: Duration = Duration::from_secs(5);

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn connect(near: &Wire, far: &Wire) {
        let (here, there) = pair();
        near.attach(here, far.received(), SILENCE).unwrap();
        far.attach(there, near.received(), SILENCE).unwrap();
    }

    /// Returns the frames that arrive at `to` until it has been quiet for a moment, while `from` sends the
    /// bytes that it still has.
    fn drain(from: &Wire, to: &Wire) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut quiet = 0;
        while quiet < 20 {
            let before = frames.len();
            drop(from.flush());
            drop(to.receive(|frame| frames.push(frame)));
            if frames.len() == before {
                quiet += 1;
                std::thread::sleep(Duration::from_millis(1));
            } else {
                quiet = 0;
            }
        }
        frames
    }

    #[test]
    fn every_frame_arrives_once_and_in_order_over_connections_that_break() {
        let (near, far) = (Wire::new(1), Wire::new(0));
        let frame = |number: u32| [number.to_le_bytes().to_vec(), vec![0; number as usize % 5000]].concat();
        let mut came = Vec::new();
        for round in 0..20u32 {
            for number in round * 50..round * 50 + 25 {
                assert!(!near.send(&frame(number)).unwrap(), "there is no connection yet");
            }
            connect(&near, &far);
            for number in round * 50 + 25..round * 50 + 50 {
                near.send(&frame(number)).unwrap();
            }
            if round % 3 == 0 {
                far.send(b"a frame back confirms what came").unwrap();
                drop(near.receive(|_| ()));
            }
            if round % 2 == 1 {
                came.extend(drain(&near, &far));
            } else {
                far.receive(|frame| came.push(frame)).unwrap();
            }
            // The bytes on their way are lost.
            near.detach();
            far.detach();
        }
        connect(&near, &far);
        came.extend(drain(&near, &far));
        assert_eq!(came, (0..1000).map(frame).collect::<Vec<_>>());
    }

    #[test]
    fn a_peer_that_takes_nothing_blocks_nobody_and_is_named() {
        let (near, far) = (Wire::new(1), Wire::new(0));
        connect(&near, &far);
        let frame = vec![0; MAX_FRAME_BYTES / 2];
        let error = (0..9).find_map(|_| near.send(&frame).err()).unwrap().to_string();
        assert!(error.contains("rank 1 has not taken"), "{error}");
        let error = near.send(&vec![0; MAX_FRAME_BYTES + 1]).unwrap_err().to_string();
        assert!(error.contains("67108865 bytes"), "{error}");
    }

    #[test]
    fn a_peer_that_claims_what_was_not_sent_is_refused() {
        let wire = Wire::new(1);
        wire.send(b"one").unwrap();
        assert!(wire.attach(pair().0, 2, SILENCE).is_err());
        let (near, far) = pair();
        wire.attach(near, 0, SILENCE).unwrap();
        (&far).write_all(&[&u32::MAX.to_le_bytes()[..], &[0; 8]].concat()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(matches!(wire.receive(|_| ()), Err(ConnectionFailure::Wrong(_))));
        drop(far);
    }

    #[test]
    fn a_reset_that_a_sender_meets_is_no_end_of_the_peer() {
        let (near, far) = pair();
        let wire = Wire::new(1);
        wire.attach(near, 0, SILENCE).unwrap();
        rustix::net::connect_unspec(&far).unwrap();
        let is_met = |wire: &Wire| wire.state.lock().failed.is_some();
        for _ in 0..1000 {
            wire.send(b"a call").unwrap();
            if is_met(&wire) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_met(&wire) && matches!(wire.receive(|_| ()), Err(ConnectionFailure::Failed(_))));
    }
}
