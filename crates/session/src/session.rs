//! One end of a session: its queue, its limits and its present connection, for all threads.
//!
//! A sender queues frames, and hands them to the system itself or leaves that to the driver. Bytes that the
//! system does not take now are always sent by the driver.

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

    /// Ends the present wait, or else the next.
    pub(crate) fn wake(&self) {
        if !self.is_due.swap(true, Ordering::SeqCst) {
            // A counter that is full wakes the thread as well.
            rustix::io::write(&self.fd, &1u64.to_ne_bytes()).ok();
        }
    }

    /// Begins another wait. What was changed before a wake is seen after this.
    pub(crate) fn rest(&self) {
        rustix::io::read(&self.fd, &mut [0; 8]).ok();
        self.is_due.store(false, Ordering::SeqCst);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionPhase {
    Open,
    /// Queued frames are still sent, and then a goodbye. Frames that come are dropped.
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
    /// True if the node waits until more frames are on their way.
    wants_room: bool,
    /// Frames that have come and wait for the process.
    waiting: usize,
    waiting_bytes: usize,
    /// True if nothing is read until there is room for more of them.
    is_blocked: bool,
    goodbye: Goodbye,
}

/// This end's goodbye over the present connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goodbye {
    Unsaid,
    /// The peer has said its own, and waits for this one.
    Owed,
    OnItsWay,
}

/// The present connection, for those who write. It is locked before the state.
#[derive(Default)]
struct Output {
    stream: Option<Arc<TcpStream>>,
    bytes: Outgoing,
    /// The error that a sender has met. The system reports it once, and then tells a reader that the peer has
    /// closed.
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

    /// Queues a frame, without blocking. Returns false if it will never be sent, since the session is over.
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

    /// Returns true if fewer than `limit` frames wait to be sent; if not, [`Sink::has_room`] is called when
    /// one has been.
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

    /// A frame of `bytes` bytes waits in this process no longer.
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

    /// Ends it at once. Returns the number of frames that the peer has not confirmed, if this end was closing:
    /// no later end counts them again.
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

    /// Answers the peer's goodbye by one that confirms its frames, behind a frame that is half written. Returns
    /// true if the system has yet to take some of that. Other frames are dropped: what the peer has not
    /// confirmed it does not want.
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

    /// Takes a connection whose other end has received the frames up to `theirs`.
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
            // If it is broken it is closed already.
            drop(stream.shutdown(Shutdown::Both));
        }
        output.failed
    }

    /// Hands the system the bytes that it takes. Returns true if there are more, or if it has failed.
    /// `confirms` asks for a confirmation.
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

    /// Reads the prefix of what has come. Returns true if it is the next frame's.
    pub(crate) fn look_at(&self, prefix: Prefix) -> Result<bool, End> {
        self.state.lock().frames.look_at(prefix)
    }

    /// Hands the next frame to the process. Gives it back if there is no room for it, and wakes the driver
    /// when there may be.
    pub(crate) fn receive(self: &Arc<Self>, frame: Frame<Vec<u8>>) -> Option<Frame<Vec<u8>>> {
        let (size, limits) = (frame.size(), &self.settings.limits);
        let mut state = self.state.lock();
        if state.phase != SessionPhase::Open {
            // This end takes no more, and the peer's goodbye may be behind it.
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

    /// Returns true if frames have come that the peer does not know to be here.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.state.lock().frames.is_unconfirmed()
    }
}
