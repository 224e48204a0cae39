//! Frames between two nodes, in order and each once, over one TCP connection after another.
//!
//! Each direction numbers its frames from 1. What was sent is kept until the peer has confirmed it; the
//! handshake of a new connection says which number came last, and everything after it is sent again. So a
//! connection that is reset costs time and no frame.
//!
//! On the wire a frame is a prefix of 24 bytes, its header and its payload. A prefix without a number carries
//! nothing but a confirmation; the last prefix is a goodbye, after which there is no other connection.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Bell, Event, Frame, Limits, is_closed};

const PREFIX: usize = 24;

/// The number of a prefix that only confirms.
const CONFIRMATION: u64 = 0;

/// The number of a goodbye.
const GOODBYE: u64 = u64::MAX;

/// What is received is confirmed at the latest after this many frames or bytes, ...
const CONFIRM_FRAMES: u64 = 64;
const CONFIRM_BYTES: usize = 1 << 20;

/// ... or when nothing has been sent for this long.
const CONFIRM_AFTER: Duration = Duration::from_millis(500);

/// Short frames are written together, this many bytes at a time.
const BATCH_BYTES: usize = 32 << 10;

/// How long a peer whose system has closed or refused connections has to make another, before it is taken for
/// gone. One whose connection was reset, or that nothing reaches, has as long as heartbeats may be missing.
pub(super) const RESUME: Duration = Duration::from_millis(1500);

/// What waits for the node's thread.
pub(super) struct Mail {
    frames: Mutex<VecDeque<(Arc<Session>, Frame)>>,
    events: Mutex<VecDeque<Event>>,
    bell: Bell,
}

impl Mail {
    pub(super) fn new(bell: Bell) -> Arc<Self> {
        Arc::new(Mail { frames: Mutex::default(), events: Mutex::default(), bell })
    }

    /// The next frame that is there.
    pub(super) fn frame(&self) -> Option<(Arc<Session>, Frame)> {
        let (session, frame) = self.frames.lock().pop_front()?;
        session.taken(frame.size());
        Some((session, frame))
    }

    pub(super) fn event(&self) -> Option<Event> {
        self.events.lock().pop_front()
    }

    pub(super) fn report(&self, event: Event) {
        self.events.lock().push_back(event);
        self.bell.ring();
    }
}

impl Frame {
    pub(super) fn size(&self) -> usize {
        self.header.len() + self.payload.len()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionPhase {
    Open,
    /// What is queued is still sent, and then a goodbye.
    Closing,
    Over,
}

/// How a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer or this node has said goodbye.
    Goodbye,
    /// There is a newer connection.
    Replaced,
    /// The peer's system closed it, as the end of a process does.
    Closed,
    /// It failed (a reset, or nothing was confirmed), whatever became of the peer.
    Broken,
    /// The peer sent what no peer sends.
    Violation(String),
}

impl From<io::Error> for End {
    fn from(cause: io::Error) -> Self {
        if is_closed(&cause) { End::Closed } else { End::Broken }
    }
}

/// One end of what two nodes say to each other.
pub(super) struct Session {
    /// The name of the node that connects.
    pub(super) identity: Vec<u8>,
    /// Random, the same for every connection.
    pub(super) id: [u8; 16],
    /// The address of the other end of the first.
    pub(super) peer: IpAddr,
    limits: Limits,
    mail: Arc<Mail>,
    state: Mutex<State>,
    /// Signals every change of `state`, except that there is room for what was received.
    changed: Condvar,
    room: Condvar,
}

struct State {
    phase: SessionPhase,
    /// Frames that the peer has not confirmed.
    unconfirmed: VecDeque<Arc<Frame>>,
    /// The number of the first of them.
    first: u64,
    /// How many of them have been taken for the present connection, and the bytes of the others.
    written: usize,
    unwritten_bytes: usize,
    /// Whether the node waits until more of them have been.
    wants_room: bool,
    /// The last frame received, the last one that the peer knows to be, and the bytes in between.
    received: u64,
    confirmed: u64,
    bytes: usize,
    /// What was received and waits for the node.
    waiting: usize,
    waiting_bytes: usize,
    /// The present connection's number, and the connection.
    connection: u64,
    stream: Option<Arc<TcpStream>>,
    /// Whether threads still serve a connection.
    is_carried: bool,
    /// Whether the peer has been sent a goodbye.
    has_parted: bool,
}

impl Session {
    pub(super) fn new(identity: Vec<u8>, id: [u8; 16], peer: IpAddr, limits: Limits, mail: Arc<Mail>) -> Arc<Self> {
        let state = State {
            phase: SessionPhase::Open,
            unconfirmed: VecDeque::new(),
            first: 1,
            written: 0,
            unwritten_bytes: 0,
            wants_room: false,
            received: 0,
            confirmed: 0,
            bytes: 0,
            waiting: 0,
            waiting_bytes: 0,
            connection: 0,
            stream: None,
            is_carried: false,
            has_parted: false,
        };
        Arc::new(Session {
            identity,
            id,
            peer,
            limits,
            mail,
            state: Mutex::new(state),
            changed: Condvar::new(),
            room: Condvar::new(),
        })
    }

    /// Puts a frame into the queue; `false` if the session is over.
    pub(super) fn send(&self, frame: Frame) -> bool {
        let mut state = self.state.lock();
        if state.phase != SessionPhase::Open {
            return false;
        }
        state.unwritten_bytes += frame.size();
        state.unconfirmed.push_back(Arc::new(frame));
        self.changed.notify_all();
        true
    }

    /// Whether fewer than `limit` frames wait to be written; if not, the bell rings when one has been.
    pub(super) fn has_room(&self, limit: usize) -> bool {
        let mut state = self.state.lock();
        let has_room = state.unconfirmed.len() - state.written < limit;
        state.wants_room |= !has_room;
        has_room
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.lock().phase == SessionPhase::Over
    }

    /// Ends it at once. Whether it had not ended before.
    pub(super) fn end(&self) -> bool {
        let mut state = self.state.lock();
        let was_open = state.phase != SessionPhase::Over;
        state.phase = SessionPhase::Over;
        state.unconfirmed.clear();
        (state.written, state.unwritten_bytes) = (0, 0);
        self.detach(&mut state);
        was_open
    }

    /// Sends what there is, and then a goodbye. Returns at once.
    pub(super) fn begin_close(&self) {
        let mut state = self.state.lock();
        if state.phase == SessionPhase::Open {
            state.phase = SessionPhase::Closing;
            self.changed.notify_all();
        }
    }

    /// Waits until the peer has everything, or `deadline`, and ends it.
    pub(super) fn finish_close(&self, deadline: Instant) {
        let mut state = self.state.lock();
        while state.phase != SessionPhase::Over && !self.changed.wait_until(&mut state, deadline).timed_out() {}
        drop(state);
        self.end();
    }

    /// Connection `number` has ended: waits for at most `limit`, less if the session is being closed, for
    /// another. Whether there is one, or the session is over.
    pub(super) fn await_connection_after(&self, number: u64, limit: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        let deadline = limit.map(|limit| Instant::now() + limit);
        while state.connection == number + 1 && state.phase == SessionPhase::Open {
            match deadline {
                Some(deadline) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        break;
                    }
                }
                None => self.changed.wait(&mut state),
            }
        }
        state.connection != number + 1 || state.phase == SessionPhase::Over
    }

    /// Sleeps for `limit`, or until it is over.
    pub(super) fn rest(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        while state.phase != SessionPhase::Over && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }

    /// Ends the present connection, for there is another. Its number, and that of the last frame received.
    pub(super) fn replace_connection(&self) -> (u64, u64) {
        let mut state = self.state.lock();
        self.detach(&mut state);
        let connection = state.connection;
        while state.is_carried {
            self.changed.wait(&mut state);
        }
        state.confirmed = state.received;
        state.bytes = 0;
        (connection, state.received)
    }

    /// The number of the last frame received.
    pub(super) fn received(&self) -> u64 {
        self.state.lock().received
    }

    /// Drops connection `number`, which no thread serves.
    pub(super) fn release(&self, number: u64) {
        let mut state = self.state.lock();
        if state.connection == number {
            self.detach(&mut state);
        }
    }

    fn detach(&self, state: &mut MutexGuard<'_, State>) {
        state.connection += 1;
        if let Some(stream) = state.stream.take() {
            shut(&stream);
        }
        self.changed.notify_all();
        self.room.notify_all();
    }

    /// Serves the connection `number` until it ends; the peer has received the frames up to `confirmed`.
    pub(super) fn carry(self: &Arc<Self>, stream: &Arc<TcpStream>, number: u64, confirmed: u64) -> End {
        let started = (|| {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
            let mut state = self.state.lock();
            if state.connection != number || state.phase == SessionPhase::Over {
                return Err(End::Replaced);
            }
            state.confirm(confirmed)?;
            state.written = 0;
            state.unwritten_bytes = state.unconfirmed.iter().map(|frame| frame.size()).sum();
            state.stream = Some(Arc::clone(stream));
            state.is_carried = true;
            Ok(())
        })();
        if let Err(end) = started {
            self.release(number);
            return end;
        }
        let writer = {
            // One descriptor for all: those that a forked child closes are known by their numbers.
            let (session, stream) = (Arc::clone(self), Arc::clone(stream));
            std::thread::Builder::new().name("ringpull-ps-out".to_owned()).spawn(move || {
                let written = session.write(&stream, number);
                if let Err(cause) = &written {
                    tracing::debug!(%cause, "a connection ended while it was written to");
                    shut(&stream);
                }
                written
            })
        };
        let mut end = match &writer {
            Ok(_) => self.read(stream, number),
            Err(cause) => End::Violation(format!("no thread can be started: {cause}")),
        };
        shut(stream);
        let mut state = self.state.lock();
        if state.connection == number {
            if state.has_parted {
                end = End::Goodbye;
            }
            self.detach(&mut state);
        } else {
            end = End::Replaced;
        }
        drop(state);
        match writer.map(std::thread::JoinHandle::join) {
            // The system reports a failure once: after the writer has met it the reader sees a connection
            // that was closed.
            Ok(Ok(Err(cause))) if matches!(end, End::Closed) => end = cause.into(),
            Ok(Err(_)) => tracing::error!("a thread that writes to a node panicked"),
            _ => {}
        }
        self.state.lock().is_carried = false;
        self.changed.notify_all();
        end
    }

    /// Reads frames until the connection ends.
    fn read(self: &Arc<Self>, stream: &TcpStream, connection: u64) -> End {
        let mut reader = BufReader::with_capacity(64 << 10, stream);
        loop {
            if let Err(end) = self.read_one(&mut reader, connection) {
                return end;
            }
        }
    }

    fn read_one(self: &Arc<Self>, reader: &mut BufReader<&TcpStream>, connection: u64) -> Result<(), End> {
        let mut prefix = [0; PREFIX];
        reader.read_exact(&mut prefix)?;
        let Prefix { number, confirmed, header, payload } = Prefix::decode(&prefix);
        if number == GOODBYE {
            return Err(End::Goodbye);
        }
        if header > self.limits.header || payload > self.limits.payload {
            let limits = format!("{} and {}", self.limits.header, self.limits.payload);
            return Err(End::Violation(format!(
                "a frame of {header} and {payload} bytes, above the limits of {limits}"
            )));
        }
        let frame = Frame { header: read_bytes(reader, header)?, payload: read_bytes(reader, payload)? };
        let mut state = self.state.lock();
        if state.connection != connection {
            return Err(End::Replaced);
        }
        state.confirm(confirmed)?;
        if number == CONFIRMATION { Ok(()) } else { self.take(state, number, frame, connection) }
    }

    /// Hands a frame to the node, when there is room.
    fn take(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        number: u64,
        frame: Frame,
        connection: u64,
    ) -> Result<(), End> {
        if number != state.received + 1 {
            return Err(End::Violation(format!("frame {number} after frame {}", state.received)));
        }
        while !state.has_room_for(&frame, &self.limits) {
            self.room.wait(&mut state);
            if state.connection != connection {
                return Err(End::Replaced);
            }
        }
        // Not counted if there was another connection meanwhile: then it is sent again.
        state.received = number;
        state.waiting += 1;
        state.waiting_bytes += frame.size();
        state.bytes += frame.size();
        if state.is_confirmation_due() {
            self.changed.notify_all();
        }
        // Before the lock is let go: the next connection's first frame comes behind this one.
        self.mail.frames.lock().push_back((Arc::clone(self), frame));
        drop(state);
        self.mail.bell.ring();
        Ok(())
    }

    /// The node has taken a frame of `bytes` bytes.
    fn taken(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.waiting -= 1;
        state.waiting_bytes -= bytes;
        self.room.notify_one();
    }

    fn write(&self, stream: &TcpStream, connection: u64) -> io::Result<()> {
        let mut short = Vec::new();
        let mut frames = Vec::new();
        loop {
            let mut state = self.state.lock();
            let control = loop {
                if state.connection != connection {
                    return Ok(());
                }
                state.take_batch(&mut frames);
                if !frames.is_empty() {
                    break None;
                }
                if state.phase == SessionPhase::Closing {
                    break Some(GOODBYE);
                }
                if state.is_confirmation_due() {
                    break Some(CONFIRMATION);
                }
                let is_idle = self.changed.wait_for(&mut state, CONFIRM_AFTER).timed_out();
                if is_idle && state.received != state.confirmed {
                    break Some(CONFIRMATION);
                }
            };
            if state.unwritten_bytes <= self.limits.unwritten_bytes {
                self.room.notify_one();
            }
            let confirmed = state.received;
            (state.confirmed, state.bytes) = (confirmed, 0);
            state.has_parted |= control == Some(GOODBYE);
            let wanted = std::mem::take(&mut state.wants_room);
            drop(state);
            if wanted {
                self.mail.bell.ring();
            }
            let prefix = |number, frame: &Frame| {
                Prefix { number, confirmed, header: frame.header.len(), payload: frame.payload.len() }.encode()
            };
            match (&frames[..], control) {
                (_, Some(number)) => write_all(stream, [&prefix(number, &Frame::default()), &[], &[]])?,
                ([(number, frame)], None) => {
                    write_all(stream, [&prefix(*number, frame), &frame.header, &frame.payload])?;
                }
                (several, None) => {
                    short.clear();
                    for (number, frame) in several {
                        short.extend_from_slice(&prefix(*number, frame));
                        short.extend_from_slice(&frame.header);
                        short.extend_from_slice(&frame.payload);
                    }
                    write_all(stream, [&short, &[], &[]])?;
                }
            }
            frames.clear();
            if control == Some(GOODBYE) {
                stream.shutdown(Shutdown::Write)?;
                return Ok(());
            }
        }
    }
}

impl State {
    /// The next frame to be written, and those behind it while they are short.
    fn take_batch(&mut self, frames: &mut Vec<(u64, Arc<Frame>)>) {
        let mut bytes = 0;
        while let Some(frame) = self.unconfirmed.get(self.written) {
            bytes += PREFIX + frame.size();
            if !frames.is_empty() && bytes > BATCH_BYTES {
                break;
            }
            frames.push((self.first + self.written as u64, Arc::clone(frame)));
            self.unwritten_bytes -= frame.size();
            self.written += 1;
        }
    }

    /// Whether this may wait for the node too, and the peer reads what it asks for.
    fn has_room_for(&self, frame: &Frame, limits: &Limits) -> bool {
        let fits = self.waiting < limits.waiting && self.waiting_bytes + frame.size() <= limits.waiting_bytes;
        (fits || self.waiting == 0) && self.unwritten_bytes <= limits.unwritten_bytes
    }

    /// The peer has received the frames up to `number`.
    fn confirm(&mut self, number: u64) -> Result<(), End> {
        let count = number.checked_add(1).and_then(|next| next.checked_sub(self.first)).map(|count| count as usize);
        let count = count.filter(|count| *count <= self.written);
        let count = count.ok_or_else(|| End::Violation(format!("it confirms frame {number}, which it has not got")))?;
        self.unconfirmed.drain(..count);
        self.written -= count;
        self.first += count as u64;
        Ok(())
    }

    fn is_confirmation_due(&self) -> bool {
        self.received - self.confirmed >= CONFIRM_FRAMES || self.bytes >= CONFIRM_BYTES
    }
}

struct Prefix {
    number: u64,
    confirmed: u64,
    header: usize,
    payload: usize,
}

impl Prefix {
    fn encode(&self) -> [u8; PREFIX] {
        let mut bytes = [0; PREFIX];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.confirmed.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.header as u32).to_le_bytes());
        bytes[20..].copy_from_slice(&(self.payload as u32).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; PREFIX]) -> Self {
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
        Prefix { number: long(0), confirmed: long(8), header: short(16), payload: short(20) }
    }
}

/// `len` bytes, of which no more is in memory than has come.
fn read_bytes(reader: &mut BufReader<&TcpStream>, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len);
    let there = reader.buffer().len().min(len);
    bytes.extend_from_slice(&reader.buffer()[..there]);
    reader.consume(there);
    let rest = len - there;
    if rest > reader.capacity() {
        // Past the buffer, which is empty, into place.
        let stream: &TcpStream = reader.get_ref();
        stream.take(rest as u64).read_to_end(&mut bytes)?;
    } else if rest > 0 {
        reader.by_ref().take(rest as u64).read_to_end(&mut bytes)?;
    }
    if bytes.len() < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

fn write_all(mut stream: &TcpStream, parts: [&[u8]; 3]) -> io::Result<()> {
    let mut parts = parts.map(IoSlice::new);
    let mut parts = &mut parts[..];
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match stream.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut parts, count),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

fn shut(stream: &TcpStream) {
    if let Err(cause) = stream.shutdown(Shutdown::Both)
        && cause.kind() != io::ErrorKind::NotConnected
    {
        tracing::debug!(%cause, "a connection could not be shut down");
    }
}
