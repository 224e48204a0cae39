//! One end of a session: its queue, its limits and its current connection. All threads may use it.
//!
//! A sender queues frames. It passes them to the system itself, or leaves that to the driver. The driver
//! always sends the bytes that the system does not take at once.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::frames::{End, Frames, Outgoing, Prefix};
use crate::{Frame, Settings, Sink};

/// The bytes that one connection may move per turn, in each direction.
pub(crate) const TURN_BYTES: usize = 1 << 20;

/// Ends the wait of a driver's thread.
pub(crate) struct Waker {
    pub(crate) fd: OwnedFd,
    is_due: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Waker { fd, is_due: AtomicBool::new(false) }))
    }

    /// Ends the current wait, or the next one if there is none.
    pub(crate) fn wake(&self) {
        if !self.is_due.swap(true, Ordering::SeqCst) {
            // A full counter wakes the thread too.
            rustix::io::write(&self.fd, &1u64.to_ne_bytes()).ok();
        }
    }

    /// Begins another wait. Changes that were made before a wake-up are visible after this.
    pub(crate) fn rest(&self) {
        rustix::io::read(&self.fd, &mut [0; 8]).ok();
        self.is_due.store(false, Ordering::SeqCst);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionPhase {
    Open,
    /// Queued frames are still sent, and then a goodbye. Arriving frames are dropped.
    Closing,
    Over,
}

/// One end of a session.
pub struct Session {
    identity: Vec<u8>,
    pub(crate) id: [u8; 16],
    pub(crate) peer: IpAddr,
    pub(crate) settings: Settings,
    pub(crate) sink: Arc<dyn Sink>,
    waker: Arc<Waker>,
    state: Mutex<SessionState>,
    output: Mutex<Output>,
}

struct SessionState {
    phase: SessionPhase,
    frames: Frames,
    /// True if the process waits for room in the queue.
    wants_room: bool,
    /// The received frames that wait for the process.
    waiting: usize,
    waiting_bytes: usize,
    /// True if nothing is read until there is room for more frames.
    is_blocked: bool,
    goodbye: Goodbye,
}

/// The state of this end's goodbye on the current connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goodbye {
    Unsaid,
    /// The peer has sent its goodbye, and waits for this end's.
    Owed,
    OnItsWay,
}

/// The current connection, for threads that write. A thread that locks both this and the state locks this
/// first.
#[derive(Default)]
struct Output {
    stream: Option<Arc<TcpStream>>,
    bytes: Outgoing,
    /// The error that a sender has got. The system reports it only once, and afterwards tells a reader that
    /// the peer has closed.
    failed: Option<io::Error>,
}

impl Session {
    pub(crate) fn new(
        identity: Vec<u8>,
        id: [u8; 16],
        peer: IpAddr,
        settings: Settings,
        sink: Arc<dyn Sink>,
        waker: Arc<Waker>,
    ) -> Arc<Self> {
        let state = SessionState {
            phase: SessionPhase::Open,
            frames: Frames::default(),
            wants_room: false,
            waiting: 0,
            waiting_bytes: 0,
            is_blocked: false,
            goodbye: Goodbye::Unsaid,
        };
        let (state, output) = (Mutex::new(state), Mutex::default());
        Arc::new(Session { identity, id, peer, settings, sink, waker, state, output })
    }

    /// The name of the process that connects.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Queues a frame, without blocking. Returns false if the session is over, so that the frame will never
    /// be sent.
    pub fn send(&self, frame: impl Into<Frame>) -> bool {
        let mut state = self.state.lock();
        if state.phase != SessionPhase::Open {
            return false;
        }
        let frame = frame.into();
        let is_for_sender = frame.size() >= self.settings.at_once_bytes;
        state.frames.push(frame);
        drop(state);
        if is_for_sender
            && let Some(mut output) = self.output.try_lock()
            && !self.write(&mut output, false)
        {
            return true;
        }
        self.waker.wake();
        true
    }

    /// Returns true if fewer than `limit` frames wait to be sent. Otherwise [`Sink::has_room`] is called
    /// after a frame has been sent.
    pub fn has_room(&self, limit: usize) -> bool {
        let mut state = self.state.lock();
        let has_room = state.frames.uncomposed() < limit;
        state.wants_room |= !has_room;
        has_room
    }

    /// The bytes of frames that were sent and that the peer has not confirmed.
    pub fn kept_bytes(&self) -> usize {
        self.state.lock().frames.kept_bytes
    }

    /// Records that a frame of `bytes` bytes no longer waits in this process.
    pub fn taken(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.waiting -= 1;
        state.waiting_bytes -= bytes;
        if std::mem::take(&mut state.is_blocked) {
            self.waker.wake();
        }
    }

    /// Breaks the connection, as a network may.
    #[doc(hidden)]
    pub fn break_connection(&self) -> bool {
        let output = self.output.lock();
        output.stream.as_ref().is_some_and(|stream| rustix::net::connect_unspec(&**stream).is_ok())
    }

    /// Ends the session at once. If this end was closing, returns the number of frames that the peer has not
    /// confirmed. A later call does not count them again.
    pub(crate) fn end(&self) -> usize {
        let mut state = self.state.lock();
        let phase = std::mem::replace(&mut state.phase, SessionPhase::Over);
        let lost = if phase == SessionPhase::Closing { state.frames.kept() } else { 0 };
        state.frames.clear();
        self.waker.wake();
        lost
    }

    /// Sends the frames that are queued, and then a goodbye. Returns at once.
    pub(crate) fn begin_close(&self) {
        let mut state = self.state.lock();
        if state.phase == SessionPhase::Open {
            state.phase = SessionPhase::Closing;
            self.waker.wake();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().phase == SessionPhase::Over
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().phase == SessionPhase::Closing
    }

    pub(crate) fn has_parted(&self) -> bool {
        self.state.lock().goodbye == Goodbye::OnItsWay
    }

    /// The number of frames that the peer has not confirmed.
    pub(crate) fn kept(&self) -> usize {
        self.state.lock().frames.kept()
    }

    /// Answers the peer's goodbye with a goodbye that confirms the peer's frames. It is sent after a frame
    /// that is partly written. Returns true if the system has not taken all of it yet. Other frames are
    /// dropped, because the peer wants no more frames.
    pub(crate) fn answer_goodbye(&self) -> bool {
        let mut output = self.output.lock();
        let mut state = self.state.lock();
        state.frames.clear();
        if state.goodbye == Goodbye::Unsaid {
            state.goodbye = Goodbye::Owed;
        }
        drop(state);
        self.write(&mut output, false) && output.failed.is_none()
    }

    /// The number of the last frame received.
    pub(crate) fn received(&self) -> u64 {
        self.state.lock().frames.received
    }

    /// Takes a connection. Its other end has received the frames up to `theirs`.
    pub(crate) fn attach(&self, stream: &Arc<TcpStream>, theirs: u64) -> Result<(), End> {
        let mut output = self.output.lock();
        let mut state = self.state.lock();
        state.frames.begin(theirs)?;
        state.goodbye = Goodbye::Unsaid;
        drop(state);
        *output = Output { stream: Some(Arc::clone(stream)), ..Output::default() };
        Ok(())
    }

    /// Gives the connection up. Returns the error that a sender has met.
    pub(crate) fn detach(&self) -> Option<io::Error> {
        let output = std::mem::take(&mut *self.output.lock());
        if let Some(stream) = output.stream {
            // A broken connection is closed already.
            drop(stream.shutdown(Shutdown::Both));
        }
        output.failed
    }

    /// Passes the system the bytes that it takes. Returns true if more bytes are left or the connection has
    /// failed. `confirms` asks for a confirmation.
    pub(crate) fn flush(&self, confirms: bool) -> bool {
        self.write(&mut self.output.lock(), confirms)
    }

    /// Returns true if a writer has met an error.
    pub(crate) fn has_failed(&self) -> bool {
        self.output.lock().failed.is_some()
    }

    fn write(&self, output: &mut Output, confirms: bool) -> bool {
        let Some(stream) = &output.stream else { return false };
        if output.failed.is_some() {
            return true;
        }
        let mut left = TURN_BYTES;
        while left > 0 {
            if output.bytes.is_empty() && !self.compose(&mut output.bytes, confirms) {
                return false;
            }
            match output.bytes.write(&**stream) {
                Ok(count) => left = left.saturating_sub(count),
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return true,
                Err(cause) => {
                    output.failed = Some(cause);
                    return true;
                }
            }
        }
        true
    }

    fn compose(&self, bytes: &mut Outgoing, confirms: bool) -> bool {
        let mut state = self.state.lock();
        if !state.frames.compose(bytes) {
            let is_due = state.frames.is_confirmation_due() || confirms && state.frames.is_unconfirmed();
            match state.goodbye {
                Goodbye::Unsaid if state.phase != SessionPhase::Closing => {
                    if !is_due {
                        return false;
                    }
                    state.frames.compose_control(false, bytes);
                }
                Goodbye::Unsaid | Goodbye::Owed => {
                    state.frames.compose_control(true, bytes);
                    state.goodbye = Goodbye::OnItsWay;
                }
                Goodbye::OnItsWay => return false,
            }
        }
        let wanted = std::mem::take(&mut state.wants_room);
        drop(state);
        if wanted {
            self.sink.has_room();
        }
        true
    }

    /// Reads a received prefix. Returns true if it belongs to the next frame.
    pub(crate) fn look_at(&self, prefix: Prefix) -> Result<bool, End> {
        self.state.lock().frames.look_at(prefix)
    }

    /// Passes the next frame to the process. If there is no room for it, returns it, and wakes the driver
    /// when there may be room.
    pub(crate) fn receive(self: &Arc<Self>, frame: Frame<Vec<u8>>) -> Option<Frame<Vec<u8>>> {
        let (size, limits) = (frame.size(), &self.settings.limits);
        let mut state = self.state.lock();
        if state.phase != SessionPhase::Open {
            // This end drops the frame, but the peer's goodbye may follow it.
            state.frames.receive(size);
            return None;
        }
        let fits = state.waiting < limits.waiting && state.waiting_bytes + size <= limits.waiting_bytes;
        let is_read = state.frames.uncomposed_bytes <= limits.unwritten_bytes;
        if !(fits || state.waiting == 0) || !is_read {
            state.is_blocked = true;
            return Some(frame);
        }
        state.frames.receive(size);
        state.waiting += 1;
        state.waiting_bytes += size;
        drop(state);
        self.sink.frame(self, frame);
        None
    }

    /// Returns true if received frames have not been confirmed to the peer.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.state.lock().frames.is_unconfirmed()
    }
}
