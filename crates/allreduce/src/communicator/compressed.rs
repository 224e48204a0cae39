//! Allreduce of compressed gradients: codes out, sums back.
//!
//! The gradient has `n` parts, one for each rank, and a part has segments. *Codes out:* rank `r` encodes, for every other rank `p`, its own
//! gradient's segments of part `p` and sends them to `p`. *Sums back:* when the codes of a segment of part `r` have come from every rank, `r` adds
//! them up, in the order of the ranks where order matters, and sends the sum to every other rank, in the fewest bits that hold it.
//! Everybody, the owner too, decodes that one message: the same bits on every rank.
//!
//! ```text
//!   rank 0  encode part 1 ---codes---> rank 1: 0 + 1 + 2, pack ---sums of part 1---> ranks 0 and 2, decode
//! ```
//!
//! Between two ranks messages go in one order, which `interleave` tells. Segments are encoded when there is room for them on
//! the wire and decoded as they come, so that encoding, the wire, adding up and decoding overlap. In flight are a few segments for each peer, and
//! besides them only the sums of this rank's own part are kept, compressed. A code leaves before the sum of its segment can come back, so the
//! result may take the gradient's place.
//!
//! With `c` bits for a code and `s` for a sum a rank sends `(c + s)/32 (n-1)/n S` bytes where an allreduce of floats sends `2 (n-1)/n S`.
//!
//! It is no plan of `collective`: a plan moves elements that are summed as they arrive, whereas codes are added up all at once, and
//! what comes back has another length than what went out.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringpull_base::{Buffer, Error, Result};
use ringpull_kernels::compress::Codec;
use ringpull_plan::Parts;

use super::ends::Ends;
use super::interleave::{self, Item};
use crate::interpreter::Idle;
use crate::transport::{Mode, Stamp, Transport};

/// Messages in flight to one peer.
const SEND_WINDOW: usize = 4;
/// Receives posted for one peer, and segments of the own part that are being gathered.
const RECV_WINDOW: usize = 8;
/// The shortest and the longest segment, in elements. The longest is 32 KiB of 2-bit codes.
const SEGMENT_LEN: (usize, usize) = (16 << 10, 128 << 10);
/// A part has about this many segments, so that filling and draining the pipeline costs little.
const SEGMENTS_PER_PART: usize = 16;

/// What an exchange works on: a gradient of `len` elements.
pub(super) struct Work<'a> {
    pub(super) codec: Codec,
    pub(super) len: usize,
    pub(super) ends: &'a mut dyn Ends,
}

/// The wire as an exchange uses it.
pub(super) struct Wire<'a> {
    pub(super) transport: &'a mut dyn Transport,
    pub(super) stamp: Stamp,
    pub(super) stop: &'a AtomicBool,
    pub(super) limit: Duration,
}

/// `work.ends` are given the sum over all ranks of what their codes say. Blocks; collective. Gives the bytes sent and received.
///
/// After an error the transport may still use memory of `pool`'s buffers, which is therefore never freed.
pub(super) fn allreduce(work: Work<'_>, wire: &mut Wire<'_>, pool: &mut Vec<Buffer>) -> Result<(u64, u64)> {
    let (rank, size) = (wire.transport.rank(), wire.transport.size());
    let geometry = Geometry::new(work.len, size);
    let own_segments = geometry.segments(rank);
    let messages = (0..size).filter(|peer| *peer != rank).map(|peer| 2 * (own_segments + geometry.segments(peer)));
    let mut exchange = Exchange {
        rank,
        unfinished: messages.sum(),
        sums: Buffer::zeroed(work.codec.sum_bytes(geometry.part(rank).len(), size)),
        summed: 0,
        gathered: VecDeque::new(),
        lanes: (0..size).map(|_| Lane::default()).collect(),
        flights: Vec::new(),
        free: Vec::new(),
        traffic: (0, 0),
        pool: std::mem::take(pool),
        geometry,
        work,
    };
    let outcome = exchange.drive(wire);
    if outcome.is_err() {
        std::mem::forget(exchange.sums);
        std::mem::forget(exchange.flights);
        std::mem::forget(exchange.gathered);
        return outcome.map(|()| (0, 0));
    }
    *pool = exchange.pool;
    Ok(exchange.traffic)
}

/// How a gradient is divided: the same on every rank, since it follows from its length and the number of ranks.
struct Geometry {
    len: usize,
    parts: Parts,
    segment_len: usize,
}

impl Geometry {
    fn new(len: usize, size: usize) -> Self {
        let parts = Parts::even(len.div_ceil(Codec::BLOCK), size);
        let longest = parts.range(0..1).len() * Codec::BLOCK;
        let segment_len =
            (longest / SEGMENTS_PER_PART).clamp(SEGMENT_LEN.0, SEGMENT_LEN.1) / Codec::BLOCK * Codec::BLOCK;
        Geometry { len, parts, segment_len }
    }

    /// The elements of a part.
    fn part(&self, part: usize) -> Range<usize> {
        let blocks = self.parts.range(part..part + 1);
        (blocks.start * Codec::BLOCK).min(self.len)..(blocks.end * Codec::BLOCK).min(self.len)
    }

    fn segments(&self, part: usize) -> usize {
        self.part(part).len().div_ceil(self.segment_len)
    }

    /// The elements of a segment of a part.
    fn segment(&self, part: usize, segment: usize) -> Range<usize> {
        let part = self.part(part);
        let start = part.start + segment * self.segment_len;
        start..part.end.min(start + self.segment_len)
    }
}

/// How many messages to and from one peer have been posted, in their order, and how many of them are under way.
#[derive(Default)]
struct Lane {
    sent: usize,
    sending: usize,
    posted: usize,
    receiving: usize,
}

/// A message that the transport is busy with.
enum Flight {
    /// Codes leave from a buffer of their own, sums from the part's.
    Send { peer: usize, len_bytes: usize, codes: Option<Buffer> },
    /// Codes of a segment of the own part.
    Codes { peer: usize, segment: usize, codes: Buffer },
    /// The sum of a segment of the peer's part.
    Sum { peer: usize, segment: usize, sums: Buffer },
}

struct Exchange<'a> {
    work: Work<'a>,
    rank: usize,
    geometry: Geometry,
    lanes: Vec<Lane>,
    /// By token.
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    /// The sums of the own part, and how many of its segments are done.
    sums: Buffer,
    summed: usize,
    /// For each segment from `summed` on, each rank's codes.
    gathered: VecDeque<Vec<Option<Buffer>>>,
    pool: Vec<Buffer>,
    unfinished: usize,
    traffic: (u64, u64),
}

impl Exchange<'_> {
    fn size(&self) -> usize {
        self.lanes.len()
    }

    fn drive(&mut self, wire: &mut Wire<'_>) -> Result<()> {
        self.add_up();
        let (mut idle, mut done) = (Idle::default(), Vec::new());
        let segment_bytes = self.work.codec.code_bytes(self.geometry.segment_len);
        loop {
            self.post(wire)?;
            if self.unfinished == 0 {
                return Ok(());
            }
            wire.transport.poll(&mut done)?;
            if done.is_empty() {
                if wire.stop.load(Ordering::Acquire) {
                    return Err(self.lost("the job".to_owned(), "it was stopped".to_owned()));
                }
                let bytes = self.unfinished * segment_bytes;
                idle.wait(wire.limit, bytes, &mut *wire.transport).map_err(|waited| self.stuck(waited))?;
                continue;
            }
            idle = Idle::default();
            done.drain(..).for_each(|token| self.complete(token));
        }
    }

    /// Posts what there is room for, one message for each peer in turn.
    fn post(&mut self, wire: &mut Wire<'_>) -> Result<()> {
        let size = self.size();
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for distance in 1..size {
                let (to, from) = ((self.rank + distance) % size, (self.rank + size - distance) % size);
                moved |= self.post_receive(from, wire)?;
                moved |= self.post_send(to, wire)?;
            }
        }
        Ok(())
    }

    fn post_receive(&mut self, peer: usize, wire: &mut Wire<'_>) -> Result<bool> {
        let (own, theirs) = (self.geometry.segments(self.rank), self.geometry.segments(peer));
        let lane = &self.lanes[peer];
        let item = match interleave::item(lane.posted, own, theirs) {
            Some(Item::Codes(segment)) if segment >= self.summed + RECV_WINDOW => return Ok(false),
            Some(item) if lane.receiving < RECV_WINDOW => item,
            _ => return Ok(false),
        };
        let (codec, size) = (self.work.codec, self.size());
        let len_bytes = match item {
            Item::Codes(segment) => codec.code_bytes(self.geometry.segment(self.rank, segment).len()),
            Item::Sum(segment) => codec.sum_bytes(self.geometry.segment(peer, segment).len(), size),
        };
        let mut buffer = self.buffer(len_bytes);
        let into = std::ptr::from_mut(&mut buffer.bytes_mut()[..len_bytes]);
        let flight = match item {
            Item::Codes(segment) => Flight::Codes { peer, segment, codes: buffer },
            Item::Sum(segment) => Flight::Sum { peer, segment, sums: buffer },
        };
        let token = self.board(flight);
        // SAFETY: the buffer's memory does not move with it, and is touched again when the token has come back; after an error it is kept
        // for ever.
        unsafe { wire.transport.recv(peer, wire.stamp, into, token)? };
        let lane = &mut self.lanes[peer];
        (lane.posted, lane.receiving) = (lane.posted + 1, lane.receiving + 1);
        Ok(true)
    }

    fn post_send(&mut self, peer: usize, wire: &mut Wire<'_>) -> Result<bool> {
        let (theirs, own) = (self.geometry.segments(peer), self.geometry.segments(self.rank));
        let lane = &self.lanes[peer];
        let item = match interleave::item(lane.sent, theirs, own) {
            Some(Item::Sum(segment)) if segment >= self.summed => return Ok(false),
            Some(item) if lane.sending < SEND_WINDOW => item,
            _ => return Ok(false),
        };
        let (data, len_bytes, codes) = match item {
            Item::Codes(segment) => {
                let range = self.geometry.segment(peer, segment);
                let codes = self.encode(range.clone());
                let len_bytes = self.work.codec.code_bytes(range.len());
                (std::ptr::from_ref(&codes.bytes()[..len_bytes]), len_bytes, Some(codes))
            }
            Item::Sum(segment) => {
                let range = self.sums_of(segment);
                (std::ptr::from_ref(&self.sums.bytes()[range.clone()]), range.len(), None)
            }
        };
        let token = self.board(Flight::Send { peer, len_bytes, codes });
        // SAFETY: codes do not move with their buffer, which changes hands when the token has come back; the sums of a segment are written once,
        // before they are sent. After an error both are kept for ever. Nothing has to hold a rank back from one that lags: without that
        // one's codes there are no sums, and codes are sent in turn with sums.
        unsafe { wire.transport.send(peer, wire.stamp, data, Mode::Standard, token)? };
        let lane = &mut self.lanes[peer];
        (lane.sent, lane.sending) = (lane.sent + 1, lane.sending + 1);
        Ok(true)
    }

    fn complete(&mut self, token: u32) {
        let flight = self.flights[token as usize].take().expect("a token comes back once");
        self.free.push(token);
        self.unfinished -= 1;
        match flight {
            Flight::Send { peer, len_bytes, codes } => {
                self.lanes[peer].sending -= 1;
                self.traffic.0 += len_bytes as u64;
                self.pool.extend(codes);
            }
            Flight::Codes { peer, segment, codes } => {
                self.lanes[peer].receiving -= 1;
                self.traffic.1 += self.work.codec.code_bytes(self.geometry.segment(self.rank, segment).len()) as u64;
                let size = self.size();
                while self.gathered.len() <= segment - self.summed {
                    self.gathered.push_back((0..size).map(|_| None).collect());
                }
                self.gathered[segment - self.summed][peer] = Some(codes);
                self.add_up();
            }
            Flight::Sum { peer, segment, sums } => {
                self.lanes[peer].receiving -= 1;
                let (range, size) = (self.geometry.segment(peer, segment), self.size());
                let len_bytes = self.work.codec.sum_bytes(range.len(), size);
                self.traffic.1 += len_bytes as u64;
                self.work.ends.decode(range, &sums.bytes()[..len_bytes], size);
                self.pool.push(sums);
            }
        }
    }

    /// Adds up every segment of the own part whose codes are there.
    fn add_up(&mut self) {
        let (rank, size) = (self.rank, self.size());
        while self.summed < self.geometry.segments(rank) {
            let is_whole =
                |codes: &Vec<Option<Buffer>>| codes.iter().filter(|codes| codes.is_some()).count() == size - 1;
            let mut gathered = match self.gathered.front() {
                Some(codes) if is_whole(codes) => self.gathered.pop_front().unwrap_or_default(),
                None if size == 1 => vec![None],
                _ => return,
            };
            let range = self.geometry.segment(rank, self.summed);
            gathered[rank] = Some(self.encode(range.clone()));
            let code_bytes = self.work.codec.code_bytes(range.len());
            let codes: Vec<&[u8]> = gathered.iter().flatten().map(|codes| &codes.bytes()[..code_bytes]).collect();
            let place = self.sums_of(self.summed);
            let sums = &mut self.sums.bytes_mut()[place];
            self.work.codec.sum(&codes, range.len(), sums);
            self.work.ends.decode(range, sums, size);
            self.pool.extend(gathered.into_iter().flatten());
            self.summed += 1;
        }
    }

    fn encode(&mut self, range: Range<usize>) -> Buffer {
        let len_bytes = self.work.codec.code_bytes(range.len());
        let mut codes = self.buffer(len_bytes);
        self.work.ends.encode(range, &mut codes.bytes_mut()[..len_bytes]);
        codes
    }

    /// Where the sums of a segment of the own part stand.
    fn sums_of(&self, segment: usize) -> Range<usize> {
        let (codec, size) = (self.work.codec, self.size());
        let start = segment * codec.sum_bytes(self.geometry.segment_len, size);
        start..start + codec.sum_bytes(self.geometry.segment(self.rank, segment).len(), size)
    }

    fn buffer(&mut self, len_bytes: usize) -> Buffer {
        let pooled = self.pool.pop().filter(|buffer| buffer.bytes().len() >= len_bytes);
        pooled.unwrap_or_else(|| {
            let (codec, longest) = (self.work.codec, self.geometry.segment_len.min(self.geometry.part(0).len()));
            Buffer::zeroed(len_bytes.max(codec.code_bytes(longest)).max(codec.sum_bytes(longest, self.size())))
        })
    }

    fn board(&mut self, flight: Flight) -> u32 {
        if let Some(token) = self.free.pop() {
            self.flights[token as usize] = Some(flight);
            return token;
        }
        self.flights.push(Some(flight));
        self.flights.len() as u32 - 1
    }

    /// Whom this rank waits for, when nothing has moved for too long.
    fn stuck(&self, waited: Duration) -> Error {
        let peers: Vec<usize> =
            (0..self.size()).filter(|peer| self.lanes[*peer].receiving + self.lanes[*peer].sending > 0).collect();
        self.lost(format!("one of rank(s) {peers:?}"), format!("nothing moved for {} s", waited.as_secs()))
    }

    fn lost(&self, peer: String, cause: String) -> Error {
        Error::PeerLost { peer, cause, operation: "a compressed allreduce".to_owned(), rank: self.rank }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn segments_tile_every_gradient_and_begin_at_whole_words(len in 0usize..5_000_000, size in 1usize..40) {
            let geometry = Geometry::new(len, size);
            let mut next = 0;
            for part in 0..size {
                for segment in 0..geometry.segments(part) {
                    let range = geometry.segment(part, segment);
                    prop_assert_eq!(range.start, next);
                    prop_assert!(range.start.is_multiple_of(Codec::BLOCK) && !range.is_empty());
                    next = range.end;
                }
            }
            prop_assert_eq!(next, len);
        }
    }
}
