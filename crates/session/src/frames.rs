//! Frames between two processes, in order and each once, over one connection after another. This module does
//! no I/O.
//!
//! Each direction numbers its frames from 1. A frame is kept until the peer has confirmed it. In the
//! handshake of a new connection each end reports the number of the last frame that came, and all later
//! frames are sent again.
//!
//! A frame is a prefix of 24 bytes (its number, the number of the last frame received, the lengths), its
//! header and its payload. A prefix without a number only carries a confirmation. The last prefix is a
//! goodbye, which the peer answers with a goodbye that confirms all frames before it. If a goodbye was lost
//! with its connection, it is sent again over the next connection.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};

use bytes::Bytes;

use crate::{Frame, Limits};

const PREFIX: usize = 24;

/// The number of a prefix that only confirms.
const CONFIRMATION: u64 = 0;

/// The number of a goodbye.
const GOODBYE: u64 = u64::MAX;

/// The number of received frames, and the number of their bytes, after which they are confirmed at the
/// latest.
const CONFIRM_FRAMES: u64 = 64;
const CONFIRM_BYTES: usize = 1 << 20;

/// Short frames are written together, in batches of this number of bytes.
const BATCH_BYTES: usize = 32 << 10;

/// The bytes that are read at once, unless a longer frame is known to come.
const PIECE_BYTES: usize = 64 << 10;

/// The numbers of both directions, and the frames that the peer has not confirmed.
#[derive(Debug)]
pub(crate) struct Frames {
    kept: VecDeque<Frame>,
    pub(crate) kept_bytes: usize,
    /// The number of the first kept frame.
    first: u64,
    /// The number of kept frames that were composed for the current connection, and the bytes of the others.
    composed: usize,
    pub(crate) uncomposed_bytes: usize,
    /// The number of the last frame received, the number of the last frame confirmed to the peer, and the
    /// bytes in between.
    pub(crate) received: u64,
    confirmed: u64,
    unconfirmed_bytes: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Frames {
            kept: VecDeque::new(),
            kept_bytes: 0,
            first: 1,
            composed: 0,
            uncomposed_bytes: 0,
            received: 0,
            confirmed: 0,
            unconfirmed_bytes: 0,
        }
    }
}

impl Frames {
    /// Queues a frame.
    pub(crate) fn push(&mut self, frame: Frame) {
        self.kept_bytes += frame.size();
        self.uncomposed_bytes += frame.size();
        self.kept.push_back(frame);
    }

    /// Forgets the queue.
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        (self.kept_bytes, self.composed, self.uncomposed_bytes) = (0, 0, 0);
    }

    /// The number of frames that the peer has not confirmed.
    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// The number of frames that wait for a connection that takes them.
    pub(crate) fn uncomposed(&self) -> usize {
        self.kept.len() - self.composed
    }

    /// Begins a connection. The other end has received the frames up to `theirs`, and knows the frames that
    /// this end has received.
    pub(crate) fn begin(&mut self, theirs: u64) -> Result<(), End> {
        self.confirm(theirs)?;
        (self.composed, self.uncomposed_bytes) = (0, self.kept_bytes);
        (self.confirmed, self.unconfirmed_bytes) = (self.received, 0);
        Ok(())
    }

    /// Takes the next frame for the connection, and the following frames while they are short. Returns false
    /// if there is none.
    pub(crate) fn compose(&mut self, to: &mut Outgoing) -> bool {
        to.clear();
        while let Some(frame) = self.kept.get(self.composed) {
            let len = PREFIX + frame.size();
            if !to.head.is_empty() && to.head.len() + len > BATCH_BYTES {
                break;
            }
            let number = self.first + self.composed as u64;
            let (header, payload) = (frame.header.len(), frame.payload.len());
            to.head.extend_from_slice(&Prefix { number, confirmed: self.received, header, payload }.encode());
            to.head.extend_from_slice(&frame.header);
            self.composed += 1;
            self.uncomposed_bytes -= frame.size();
            if len > BATCH_BYTES {
                to.tail = frame.payload.clone();
                break;
            }
            to.head.extend_from_slice(&frame.payload);
        }
        if to.head.is_empty() {
            return false;
        }
        (self.confirmed, self.unconfirmed_bytes) = (self.received, 0);
        true
    }

    /// Composes a goodbye if `is_goodbye`, and a confirmation otherwise.
    pub(crate) fn compose_control(&mut self, is_goodbye: bool, to: &mut Outgoing) {
        to.clear();
        let number = if is_goodbye { GOODBYE } else { CONFIRMATION };
        let prefix = Prefix { number, confirmed: self.received, header: 0, payload: 0 };
        to.head.extend_from_slice(&prefix.encode());
        (self.confirmed, self.unconfirmed_bytes) = (self.received, 0);
    }

    /// Returns true if received frames have not been confirmed to the peer.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.received != self.confirmed
    }

    /// Returns true if there are enough unconfirmed frames to confirm them now.
    pub(crate) fn is_confirmation_due(&self) -> bool {
        self.received - self.confirmed >= CONFIRM_FRAMES || self.unconfirmed_bytes >= CONFIRM_BYTES
    }

    /// Reads a received prefix. Returns true if it belongs to the next frame, and false if it only confirms.
    /// Does not count the frame as received.
    pub(crate) fn look_at(&mut self, prefix: Prefix) -> Result<bool, End> {
        self.confirm(prefix.confirmed)?;
        if prefix.number == GOODBYE {
            return Err(End::Goodbye);
        }
        match prefix.number {
            CONFIRMATION => Ok(false),
            number if number == self.received + 1 => Ok(true),
            number => Err(End::Violation(format!("frame {number} after frame {}", self.received))),
        }
    }

    /// Receives the next frame, of `bytes` bytes.
    pub(crate) fn receive(&mut self, bytes: usize) {
        self.received += 1;
        self.unconfirmed_bytes += bytes;
    }

    /// Records that the peer has received the frames up to `number`.
    fn confirm(&mut self, number: u64) -> Result<(), End> {
        let count = number.checked_add(1).and_then(|next| next.checked_sub(self.first)).map(|count| count as usize);
        let count = count.filter(|count| *count <= self.composed);
        let count = count.ok_or_else(|| End::Violation(format!("that it has frame {number}, which it has not got")))?;
        self.kept_bytes -= self.kept.drain(..count).map(|frame| frame.size()).sum::<usize>();
        self.composed -= count;
        self.first += count as u64;
        Ok(())
    }
}

/// The end of a connection.
#[derive(Debug)]
pub(crate) enum End {
    /// The peer or this end has said goodbye.
    Goodbye,
    /// The peer's system has closed the connection, as at the end of a process.
    Closed,
    /// The connection has failed (a reset, or nothing was confirmed). That shows nothing about the peer.
    Broken(io::Error),
    /// The peer has violated the protocol.
    Violation(String),
}

/// Bytes on their way to the system.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    head: Vec<u8>,
    tail: Bytes,
    at: usize,
}

impl Outgoing {
    /// Returns true if all has been written.
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.head.len() + self.tail.len()
    }

    pub(crate) fn clear(&mut self) {
        if self.head.capacity() > 4 * BATCH_BYTES {
            self.head = Vec::new();
        }
        self.head.clear();
        self.tail = Bytes::new();
        self.at = 0;
    }

    /// Writes until all bytes have been written, or until an error. The system taking no more bytes now is
    /// such an error. Returns the number of bytes.
    pub(crate) fn write(&mut self, mut to: impl Write) -> io::Result<usize> {
        let begun = self.at;
        while !self.is_empty() {
            let head = &self.head[self.at.min(self.head.len())..];
            let tail = &self.tail[self.at.saturating_sub(self.head.len())..];
            match to.write_vectored(&[IoSlice::new(head), IoSlice::new(tail)]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.at += count,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(self.at - begun)
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn left(&self) -> Vec<u8> {
        [&self.head[..], &self.tail].concat().split_off(self.at)
    }
}

/// The first bytes of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefix {
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
        let [header, payload] = if long(0) == GOODBYE { [0; 2] } else { [short(16), short(20)] };
        Prefix { number: long(0), confirmed: long(8), header, payload }
    }
}

/// A frame and its prefix.
type Received = (Prefix, Frame<Vec<u8>>);

/// Received bytes that are not a whole frame yet.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    input: Vec<u8>,
    at: usize,
    begun: Option<Received>,
}

impl Incoming {
    /// Returns the next whole frame, or `None` if more bytes have to come first. `read` appends bytes to a
    /// vector that has room.
    pub(crate) fn next(
        &mut self,
        limits: &Limits,
        mut read: impl FnMut(&mut Vec<u8>) -> io::Result<usize>,
    ) -> Result<Option<Received>, End> {
        loop {
            let mut missing = None;
            if let Some((prefix, frame)) = &mut self.begun {
                for (part, len) in [(&mut frame.header, prefix.header), (&mut frame.payload, prefix.payload)] {
                    let rest = len - part.len();
                    let there = rest.min(self.input.len() - self.at);
                    part.extend_from_slice(&self.input[self.at..self.at + there]);
                    self.at += there;
                    if there < rest {
                        missing = Some((part, len));
                        break;
                    }
                }
                if missing.is_none() {
                    return Ok(self.begun.take());
                }
            } else if let Some(bytes) = self.input[self.at..].first_chunk::<PREFIX>() {
                let prefix = Prefix::decode(bytes);
                let (header, payload) = (prefix.header, prefix.payload);
                if header > limits.header || payload > limits.payload {
                    let most = format!("{} and {}", limits.header, limits.payload);
                    let what = format!("a frame of {header} and {payload} bytes, above the limits of {most}");
                    return Err(End::Violation(what));
                }
                let frame = Frame { header: Vec::with_capacity(header), payload: Vec::with_capacity(payload) };
                self.at += PREFIX;
                self.begun = Some((prefix, frame));
                continue;
            }
            // A long rest of a frame is read directly into the frame.
            let into = missing.filter(|(part, len)| len - part.len() >= PIECE_BYTES);
            self.input.drain(..self.at);
            self.at = 0;
            let outcome = if let Some((part, len)) = into {
                let outcome = read(part);
                // If the vector had room for more, the surplus belongs to the next frame.
                self.input.extend(part.drain(len.min(part.len())..));
                outcome
            } else {
                self.input.reserve(PIECE_BYTES);
                read(&mut self.input)
            };
            match outcome {
                Ok(0) => return Err(End::Closed),
                Ok(_) => {}
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(End::Broken(cause)),
            }
        }
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    const LIMITS: Limits = Limits { header: 10, payload: 1 << 20, waiting_bytes: 0, waiting: 0, unwritten_bytes: 0 };

    fn read(incoming: &mut Incoming, bytes: &[u8]) -> Result<Vec<Received>, End> {
        let mut left = bytes;
        let mut read = |into: &mut Vec<u8>| {
            if left.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            // Read more than was asked for, as may happen if the vector has more room.
            let count = left.len().min(into.capacity() - into.len() + 100);
            into.extend_from_slice(&left[..count]);
            left = &left[count..];
            Ok(count)
        };
        std::iter::from_fn(|| incoming.next(&LIMITS, &mut read).transpose()).collect()
    }

    #[test]
    fn long_payloads_are_shared_and_read_into_place_and_what_follows_is_not_lost() {
        let (mut frames, mut outgoing, mut bytes) = (Frames::default(), Outgoing::default(), Vec::new());
        let payload = Bytes::from(vec![3; 200_000]);
        for header in 0..5 {
            frames.push(Frame { header: vec![header; 3], payload: payload.clone() });
            frames.push(Frame::from(vec![header]));
        }
        while frames.compose(&mut outgoing) {
            assert!(outgoing.tail.is_empty() || outgoing.tail.as_ptr() == payload.as_ptr());
            outgoing.write(&mut bytes).unwrap();
        }
        let came = read(&mut Incoming::default(), &bytes).unwrap();
        assert_eq!(came.len(), 10);
        for (index, (prefix, frame)) in came.iter().enumerate() {
            assert_eq!(prefix.number, index as u64 + 1);
            let (header, payload) = if index % 2 == 0 { (3, &payload[..]) } else { (1, &[][..]) };
            assert!(frame.header == vec![index as u8 / 2; header] && frame.payload == payload);
        }
    }

    #[test]
    fn a_peer_that_claims_what_was_not_sent_is_refused() {
        let mut frames = Frames::default();
        frames.push(Frame::from(vec![1]));
        assert!(frames.begin(1).is_err(), "it is not on its way yet");
        frames.compose(&mut Outgoing::default());
        assert!(frames.begin(2).is_err() && frames.begin(1).is_ok() && frames.begin(0).is_err());
        let prefix = |number, confirmed| Prefix { number, confirmed, header: 0, payload: 0 };
        assert!(frames.look_at(prefix(1, 1)).unwrap());
        assert!(frames.look_at(prefix(1, 2)).is_err() && frames.look_at(prefix(2, 1)).is_err());
        assert!(!frames.look_at(prefix(CONFIRMATION, 1)).unwrap());
        assert!(matches!(frames.look_at(prefix(GOODBYE, 1)), Err(End::Goodbye)));
        assert!(matches!(frames.look_at(prefix(GOODBYE, 2)), Err(End::Violation(_))));
        let long = Prefix { header: 11, ..prefix(1, 0) }.encode();
        assert!(matches!(read(&mut Incoming::default(), &long), Err(End::Violation(_))));
    }
}
