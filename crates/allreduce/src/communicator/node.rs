//! Collectives among the ranks of one host, through shared memory.
//!
//! Where every rank's buffer lies in its arena (`buffer::arena`), nothing is copied: each rank takes an equal share of
//! the elements, reads them from all buffers, sums them in the order of the seats and stores the sum to all buffers. Every byte
//! is read once and written once, and ranks meet twice. Who is done helps those who wait for a core.
//!
//! A buffer elsewhere, such as an array of `NumPy`'s, goes through the window in pieces. While piece `t` is copied in,
//! piece `t-1` is summed, each rank its share, and the sums of piece `t-2` are copied out:
//!
//! ```text
//!   between two meetings:    copy in 0 | copy in 1, sum 0 | copy in 2, sum 1, copy out 0 | ... | copy out n-1
//! ```
//!
//! Slots and sums stay in the cache, so memory is still read once and written once. Buffers of both sorts may meet: those
//! in an arena are read and written where they are. The shortest buffers are shown to all, and every rank sums all of
//! them by itself: one meeting.
//!
//! All ranks of a host make the same calls in the same order. Elements are summed in the order of the seats whoever
//! does it, so that the bits depend on the placement of the ranks and on nothing else.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringpull_base::buffer::arena;
use ringpull_base::buffer::region::Region;
use ringpull_base::{DType, Error, Result};
use ringpull_kernels::reduce;
use ringpull_plan::Parts;

use crate::transport::Stamp;
use crate::transport::window::{Absence, SHORT_BYTES, Window};

/// Shares of a piece begin on a line of the cache, those of a whole buffer on a page.
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// A share is taken in pieces of so many bytes.
const TAKEN_BYTES: usize = 512 << 10;
/// What all ranks of a host together read of a short buffer before it is quicker to share the work.
const SHORT_TOTAL_BYTES: usize = 64 << 10;

/// An operation's stamp, and what ends its waits.
#[derive(Clone, Copy)]
pub(super) struct Patience<'a> {
    /// Names the operation, as in messages.
    pub(super) stamp: Stamp,
    /// Set when the job has failed.
    pub(super) stop: &'a AtomicBool,
    /// How long nothing may happen.
    pub(super) limit: Duration,
}

/// Who needs the sum of a byte.
#[derive(Clone, Copy)]
enum Keepers<'a> {
    All,
    /// Seat `s` needs part `s`, bounded in bytes.
    Owners(&'a Parts),
}

/// This rank among the ranks of its host.
pub(super) struct Node {
    window: Window,
    /// Each seat's arena as it is mapped here; none if arenas cannot be shared.
    arenas: Vec<Region>,
    rank: usize,
    turn: usize,
    moved_bytes: u64,
}

/// The buffers of one operation.
struct Buffers {
    own: *mut u8,
    len_bytes: usize,
    /// What goes through the window at once.
    piece_bytes: usize,
    /// Each seat's buffer, if it lies in an arena.
    places: Vec<Option<*mut u8>>,
}

impl Buffers {
    fn is_shared(&self, seat: usize) -> bool {
        self.places[seat].is_some()
    }

    fn all_shared(&self) -> bool {
        self.places.iter().all(Option::is_some)
    }

    fn pieces(&self) -> usize {
        self.len_bytes.div_ceil(self.piece_bytes)
    }

    fn piece(&self, index: usize) -> Range<usize> {
        index * self.piece_bytes..((index + 1) * self.piece_bytes).min(self.len_bytes)
    }
}

impl Node {
    /// The ranks that see `window`; `arenas` holds one for each seat, or none.
    pub(super) fn new(window: Window, arenas: Vec<Region>, rank: usize) -> Self {
        Node { window, arenas, rank, turn: 0, moved_bytes: 0 }
    }

    /// This rank's seat.
    pub(super) fn seat(&self) -> usize {
        self.window.seat()
    }

    /// Lets the waiting ranks know that this one gets on.
    pub(super) fn beat(&self) {
        self.window.beat();
    }

    /// The bytes of the buffers that were reduced or gathered here.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// `data` becomes the sum over all seats.
    pub(super) fn allreduce(&mut self, dtype: DType, data: &mut [u8], patience: Patience) -> Result<()> {
        if data.len() <= SHORT_BYTES && data.len() * self.window.seats() <= SHORT_TOTAL_BYTES {
            return self.allreduce_short(dtype, data, patience);
        }
        self.reduce(dtype, data, Keepers::All, patience)
    }

    /// Part `s` of `data`, bounded in bytes, becomes its sum over all seats at seat `s`. The rest of `data` has no meaning
    /// afterwards.
    pub(super) fn reduce_scatter(
        &mut self,
        dtype: DType,
        data: &mut [u8],
        parts: &Parts,
        patience: Patience,
    ) -> Result<()> {
        self.reduce(dtype, data, Keepers::Owners(parts), patience)
    }

    /// Every seat gets part `s` of `data`, bounded in bytes, from seat `s`.
    pub(super) fn allgather(&mut self, data: &mut [u8], parts: &Parts, patience: Patience) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.begin(data.len(), patience.stamp);
        self.show(data);
        self.meet_first(data.len(), patience)?;
        let buffers = self.buffers(data);
        let owners = 0..parts.count();
        if owners.clone().all(|seat| buffers.is_shared(seat)) {
            for owner in owners.filter(|owner| *owner != self.seat()) {
                let part = parts.range(owner..owner + 1);
                let from = buffers.places[owner].expect("every owner's buffer is shared");
                // SAFETY: the part is within both buffers, and its owner changes it after the next meeting only.
                unsafe { copy(from.add(part.start), buffers.own.add(part.start), part.len()) };
            }
            return self.meet(patience);
        }
        let part = self.part_of(parts);
        let count = buffers.pieces();
        for round in 0..=count {
            if round < count {
                let piece = buffers.piece(round);
                let given = overlap(&piece, &part);
                let to = self.window.sums(round);
                // SAFETY: only this seat writes this range of the place, and nobody has read it since a meeting ago.
                unsafe { copy(buffers.own.add(given.start), to.add(given.start - piece.start), given.len()) };
            }
            if round > 0 {
                let piece = buffers.piece(round - 1);
                let from = self.window.sums(round - 1);
                for taken in [piece.start..part.start.min(piece.end), part.end.max(piece.start)..piece.end] {
                    // SAFETY: the owners have filled the piece before the last meeting.
                    unsafe { copy(from.add(taken.start - piece.start), buffers.own.add(taken.start), taken.len()) };
                }
            }
            if round < count {
                self.meet(patience)?;
            }
        }
        Ok(())
    }

    fn part_of(&self, parts: &Parts) -> Range<usize> {
        if self.seat() < parts.count() { parts.range(self.seat()..self.seat() + 1) } else { 0..0 }
    }

    fn allreduce_short(&mut self, dtype: DType, data: &mut [u8], patience: Patience) -> Result<()> {
        self.begin(data.len(), patience.stamp);
        let turn = self.turn;
        // SAFETY: the slot is this seat's, long enough, and nobody has read it since the meeting before the last.
        unsafe { copy(data.as_ptr(), self.window.short_slot(turn, self.seat()), data.len()) };
        self.meet_first(data.len(), patience)?;
        let inputs: Vec<*const u8> =
            (0..self.window.seats()).map(|seat| self.window.short_slot(turn, seat).cast_const()).collect();
        // SAFETY: every seat has filled its slot before the meeting; `data` is none of them.
        unsafe { reduce::sum_shared(dtype, &inputs, &[data.as_mut_ptr()], data.len()) };
        Ok(())
    }

    fn reduce(&mut self, dtype: DType, data: &mut [u8], keepers: Keepers, patience: Patience) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.begin(data.len(), patience.stamp);
        let is_shared = self.show(data);
        self.window.offer();
        if !is_shared {
            self.copy_in(data.as_ptr(), 0..data.len().min(self.window.slot_bytes()), 0);
        }
        self.meet_first(data.len(), patience)?;
        let buffers = self.buffers(data);
        let (seat, seats) = (self.seat(), self.window.seats());
        if buffers.all_shared() {
            self.sum_where_they_are(dtype, &buffers, keepers);
            return self.meet(patience);
        }
        let kept = match keepers {
            Keepers::All => 0..buffers.len_bytes,
            Keepers::Owners(parts) => self.part_of(parts),
        };
        let count = buffers.pieces();
        for round in 1..count + 2 {
            if round < count && !is_shared {
                self.copy_in(buffers.own, buffers.piece(round), round);
            }
            if round <= count {
                let share = share_of(buffers.piece(round - 1), LINE_BYTES, seat, seats);
                self.sum(dtype, &buffers, share, Some(round - 1), keepers);
            }
            if round >= 2 && !is_shared {
                let piece = buffers.piece(round - 2);
                let taken = overlap(&piece, &kept);
                let from = self.window.sums(round - 2);
                // SAFETY: the piece was summed before the last meeting, and is overwritten after the next one.
                unsafe { copy(from.add(taken.start - piece.start), buffers.own.add(taken.start), taken.len()) };
            }
            if round <= count {
                self.meet(patience)?;
            }
        }
        Ok(())
    }

    /// Sums this rank's share of buffers that lie in arenas, then what ranks that did not get a core have left of theirs.
    fn sum_where_they_are(&self, dtype: DType, buffers: &Buffers, keepers: Keepers) {
        let (seat, seats) = (self.seat(), self.window.seats());
        for owner in (seat..seats).chain(0..seat) {
            let share = share_of(0..buffers.len_bytes, PAGE_BYTES, owner, seats);
            let pieces = share.len().div_ceil(TAKEN_BYTES);
            while let Some(piece) = self.window.take(owner, pieces) {
                let start = share.start + piece * TAKEN_BYTES;
                self.sum(dtype, buffers, start..(start + TAKEN_BYTES).min(share.end), None, keepers);
            }
        }
    }

    /// Sums `range` of all buffers for those who keep it; what is in no arena stands in the slots of piece `turn`.
    fn sum(&self, dtype: DType, buffers: &Buffers, range: Range<usize>, turn: Option<usize>, keepers: Keepers) {
        let seats = self.window.seats();
        let slot_start = turn.map_or(0, |turn| buffers.piece(turn).start);
        let sum = |range: Range<usize>, keepers: Range<usize>| {
            if range.is_empty() {
                return;
            }
            let input = |seat: usize| match (buffers.places[seat], turn) {
                (Some(place), _) => place.wrapping_add(range.start),
                (None, Some(turn)) => self.window.slot(turn, seat).wrapping_add(range.start - slot_start),
                (None, None) => unreachable!("without a turn every buffer is shared"),
            };
            let inputs: Vec<*const u8> = (0..seats).map(|seat| input(seat).cast_const()).collect();
            let mut outputs: Vec<*mut u8> =
                keepers.clone().filter(|seat| buffers.is_shared(*seat)).map(input).collect();
            if let Some(turn) = turn
                && keepers.into_iter().any(|seat| !buffers.is_shared(seat))
            {
                outputs.push(self.window.sums(turn).wrapping_add(range.start - slot_start));
            }
            // SAFETY: this seat alone has taken the range: nobody else touches it between two meetings. It is within every
            // buffer, slot and place; outputs are inputs, or the place for sums, which is no input.
            unsafe { reduce::sum_shared(dtype, &inputs, &outputs, range.len()) };
        };
        match keepers {
            Keepers::All => sum(range, 0..seats),
            Keepers::Owners(parts) => {
                (0..parts.count())
                    .for_each(|owner| sum(overlap(&range, &parts.range(owner..owner + 1)), owner..owner + 1));
            }
        }
    }

    fn copy_in(&self, own: *const u8, piece: Range<usize>, turn: usize) {
        let to = self.window.slot(turn, self.seat());
        // SAFETY: the piece is within the own buffer and no longer than the slot, which is this seat's and was last read
        // before the last meeting.
        unsafe { copy(own.add(piece.start), to, piece.len()) };
    }

    /// Shows where `data` lies in this rank's arena; whether it does.
    fn show(&self, data: &[u8]) -> bool {
        let arena = if self.arenas.is_empty() { None } else { arena::of_process() };
        let offset = arena.and_then(|arena| arena.offset_of(data));
        self.window.show(offset.map_or(0, |offset| offset as u64 + 1));
        offset.is_some()
    }

    /// What the seats have shown. An own buffer keeps its own address: it is the one the caller lent.
    fn buffers(&self, data: &mut [u8]) -> Buffers {
        let own = data.as_mut_ptr();
        let place = |seat: usize| {
            let offset = self.window.see(seat).checked_sub(1)? as usize;
            let peers = self.arenas.get(seat)?;
            assert!(offset + data.len() <= peers.len_bytes(), "a buffer lies within its rank's arena");
            Some(if seat == self.seat() { own } else { peers.start().as_ptr().wrapping_add(offset) })
        };
        let (len_bytes, piece_bytes) = (data.len(), self.window.slot_bytes());
        Buffers { own, len_bytes, piece_bytes, places: (0..self.window.seats()).map(place).collect() }
    }

    /// Names the next operation.
    fn begin(&mut self, len_bytes: usize, stamp: Stamp) {
        self.moved_bytes += len_bytes as u64;
        self.turn += 1;
        self.window.name(self.turn, name(len_bytes, stamp));
    }

    /// The first meeting of an operation: all must have come to the same one.
    fn meet_first(&self, len_bytes: usize, patience: Patience) -> Result<()> {
        self.meet(patience)?;
        match self.window.differs(self.turn, name(len_bytes, patience.stamp)) {
            None => Ok(()),
            Some(seat) => Err(Error::protocol(
                self.rank,
                format!("seat {seat} of this host"),
                format!("another operation where {len_bytes} bytes of operation {} were due", patience.stamp),
            )),
        }
    }

    fn meet(&self, patience: Patience) -> Result<()> {
        self.window.meet(patience.stop, patience.limit).map_err(|absence| match absence {
            Absence::Stopped => Error::Stopped {},
            Absence::Missing { seats, waited } => Error::PeerLost {
                peer: format!("seat(s) {seats:?} of this host"),
                ranks: Vec::new(),
                cause: format!("nothing moved for {} s", waited.as_secs()),
                operation: "a collective in shared memory".to_owned(),
                rank: Some(self.rank),
            },
        })
    }
}

/// What an operation is called in the window.
fn name(len_bytes: usize, stamp: Stamp) -> u64 {
    (len_bytes as u64) << 32 ^ u64::from(stamp)
}

/// An equal share of `range` that begins and ends at multiples of `grain` from its start.
fn share_of(range: Range<usize>, grain: usize, seat: usize, seats: usize) -> Range<usize> {
    let grains = Parts::even(range.len().div_ceil(grain), seats).range(seat..seat + 1);
    let at = |grains: usize| (range.start + grains * grain).min(range.end);
    at(grains.start)..at(grains.end)
}

/// What both ranges have; an empty range within `one` if they have nothing.
fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = other.start.clamp(one.start, one.end);
    start..other.end.clamp(start, one.end)
}

/// # Safety
/// Both are valid for `len_bytes` and do not overlap.
unsafe fn copy(from: *const u8, to: *mut u8, len_bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len_bytes) }
}
