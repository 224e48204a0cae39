//! Collectives among the ranks of one host, through shared memory.
//!
//! If every rank's buffer is in its arena (`buffer::arena`), nothing is copied: each rank takes an equal
//! share of the elements, reads them from all buffers, sums them in the order of the local ranks and stores
//! the sum to all buffers. Every byte is read once and written once, and ranks meet twice. A rank that is
//! done helps ranks that wait for a core.
//!
//! A buffer elsewhere, such as an array of `NumPy`'s, goes through the window in pieces. While piece `t` is
//! copied in, piece `t-1` is summed, each rank its share, and the sums of piece `t-2` are copied out:
//!
//! ```text
//!   between two meetings:    copy in 0 | copy in 1, sum 0 | copy in 2, sum 1, copy out 0 | ... | copy out n-1
//! ```
//!
//! Slots and sums stay in the cache, so memory is still read once and written once. Buffers of both sorts may
//! meet: those in an arena are read and written where they are. The shortest buffers are shown to all, and
//! every rank takes from all of them what it needs by itself: one meeting.
//!
//! In an alltoall a slot has room for every other local rank, and each takes its own out of all slots.
//!
//! All ranks of a host make the same calls in the same order. Elements are summed in the order of the local
//! ranks, whichever rank sums them. So the bits depend only on the placement of the ranks.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringpull_base::buffer::arena;
use ringpull_base::buffer::region::Region;
use ringpull_base::{Error, Result};
use ringpull_kernels::reduce::{self, Arithmetic};
use ringpull_plan::Parts;

use crate::interpreter::PartUpdate;
use crate::transport::Stamp;
use crate::transport::window::{Absence, SHORT_BYTES, Window};

/// Shares of a piece begin on a line of the cache, those of a whole buffer on a page.
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// A share is taken in pieces of this many bytes.
const TAKEN_BYTES: usize = 512 << 10;
/// What all ranks of a host together read of a short buffer before it is quicker to share the work.
const SHORT_TOTAL_BYTES: usize = 64 << 10;

/// An operation's stamp, and what ends its waits.
#[derive(Clone, Copy)]
pub(super) struct WaitLimits<'a> {
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
    /// Local rank `s` needs part `s`, bounded in bytes.
    Owners(&'a Parts),
}

/// What a rank gives to a reduction, and where its result goes.
struct NodeInput {
    from: *const u8,
    len_bytes: usize,
    /// Where the first byte that this rank keeps of the result goes: into the same buffer, or another.
    to: *mut u8,
    is_in_place: bool,
}

/// This rank among the ranks of its host.
pub(super) struct Node {
    window: Window,
    /// Each local rank's arena as it is mapped here; none if arenas cannot be shared.
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
    /// Each local rank's buffer, if it lies in an arena.
    places: Vec<Option<*mut u8>>,
}

impl Buffers {
    fn is_shared(&self, local_rank: usize) -> bool {
        self.places[local_rank].is_some()
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
    /// The ranks that see `window`; `arenas` holds one for each local rank, or none.
    pub(super) fn new(window: Window, arenas: Vec<Region>, rank: usize) -> Self {
        Node { window, arenas, rank, turn: 0, moved_bytes: 0 }
    }

    /// This rank's local rank.
    pub(super) fn local_rank(&self) -> usize {
        self.window.local_rank()
    }

    /// Lets the waiting ranks know that this one gets on.
    pub(super) fn beat(&self) {
        self.window.beat();
    }

    /// The bytes of the buffers that were reduced or gathered here.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// `data` becomes the sum over all local ranks.
    pub(super) fn allreduce(&mut self, arithmetic: Arithmetic, data: &mut [u8], limits: WaitLimits) -> Result<()> {
        if data.len() <= SHORT_BYTES && data.len() * self.window.local_size() <= SHORT_TOTAL_BYTES {
            return self.allreduce_short(arithmetic, data, limits);
        }
        let (from, len_bytes, to) = (data.as_ptr(), data.len(), data.as_mut_ptr());
        let given = NodeInput { from, len_bytes, to, is_in_place: true };
        self.reduce(arithmetic, &given, Keepers::All, None, limits).map(drop)
    }

    /// Part `s` of `data`, bounded in bytes, becomes its sum over all local ranks at local rank `s`. The rest
    /// of `data` has no meaning afterwards.
    pub(super) fn reduce_scatter(
        &mut self,
        arithmetic: Arithmetic,
        data: &mut [u8],
        parts: &Parts,
        limits: WaitLimits,
    ) -> Result<()> {
        self.reduce_for_owners(arithmetic, data, parts, None, limits).map(drop)
    }

    fn reduce_for_owners(
        &mut self,
        arithmetic: Arithmetic,
        data: &mut [u8],
        parts: &Parts,
        update: Option<&mut PartUpdate>,
        limits: WaitLimits,
    ) -> Result<bool> {
        let (len_bytes, to) = (data.len(), data[self.part_of(parts)].as_mut_ptr());
        let given = NodeInput { from: data.as_ptr(), len_bytes, to, is_in_place: true };
        self.reduce(arithmetic, &given, Keepers::Owners(parts), update, limits)
    }

    /// Part `s` of `data`, bounded in bytes, becomes what local rank `s` makes of its sum over all local
    /// ranks, on every one of them.
    pub(super) fn allreduce_updating(
        &mut self,
        arithmetic: Arithmetic,
        data: &mut [u8],
        parts: &Parts,
        update: &mut PartUpdate,
        limits: WaitLimits,
    ) -> Result<()> {
        if self.reduce_for_owners(arithmetic, data, parts, Some(update), limits)? {
            return Ok(());
        }
        let own = self.part_of(parts);
        if !own.is_empty() {
            update(own.start, &mut data[own])?;
        }
        // The buffer counts once.
        let moved_bytes = self.moved_bytes;
        self.allgather(data, parts, limits)?;
        self.moved_bytes = moved_bytes;
        Ok(())
    }

    /// `out` becomes what the reduction makes of all local ranks' parts `s` at local rank `s`.
    pub(super) fn reduce_scatter_into(
        &mut self,
        arithmetic: Arithmetic,
        (input, out): (&[u8], &mut [u8]),
        parts: &Parts,
        limits: WaitLimits,
    ) -> Result<()> {
        if input.len() <= SHORT_BYTES {
            let own = self.part_of(parts);
            let take = |slots: &[*const u8]| {
                let inputs: Vec<*const u8> = slots.iter().map(|slot| slot.wrapping_add(own.start)).collect();
                // SAFETY: every slot holds as many bytes as the parts have, and is filled; `out` is none of
                // them.
                unsafe { reduce::reduce_shared(arithmetic, &inputs, &[out.as_mut_ptr()], own.len()) };
            };
            return self.show_short(input, input.len(), take, limits);
        }
        let given =
            NodeInput { from: input.as_ptr(), len_bytes: input.len(), to: out.as_mut_ptr(), is_in_place: false };
        self.reduce(arithmetic, &given, Keepers::Owners(parts), None, limits).map(drop)
    }

    /// Block `s` of `out` becomes block `l` of the local rank `s`, where `l` is this one. `input` and `out`
    /// have as many blocks of one length as there are local ranks.
    pub(super) fn alltoall(&mut self, input: &[u8], out: &mut [u8], limits: WaitLimits) -> Result<()> {
        let (local_rank, local_size) = (self.local_rank(), self.window.local_size());
        let block_bytes = input.len() / local_size;
        if input.len() <= SHORT_BYTES {
            let take = |slots: &[*const u8]| {
                for (slot, block) in slots.iter().zip(out.chunks_exact_mut(block_bytes.max(1))) {
                    // SAFETY: every slot holds as many blocks, and is filled.
                    unsafe { copy(slot.add(local_rank * block_bytes), block.as_mut_ptr(), block_bytes) };
                }
            };
            return self.show_short(input, input.len(), take, limits);
        }
        self.begin(input.len(), limits.stamp);
        self.meet_first(input.len(), limits)?;
        // What one slot holds for each local rank.
        let room_bytes = (self.window.slot_bytes() / local_size / LINE_BYTES).max(1) * LINE_BYTES;
        let rounds = block_bytes.div_ceil(room_bytes);
        let piece = |round: usize| round * room_bytes..((round + 1) * room_bytes).min(block_bytes);
        for round in 0..=rounds {
            if round < rounds {
                let piece = piece(round);
                for other in (0..local_size).filter(|other| *other != local_rank) {
                    let from = input[other * block_bytes..][piece.clone()].as_ptr();
                    let to = self.window.slot(round, local_rank).wrapping_add(other * room_bytes);
                    // SAFETY: the slot is this local rank's, has a room for each, and was last read before
                    // the last meeting.
                    unsafe { copy(from, to, piece.len()) };
                }
            }
            if round > 0 {
                let piece = piece(round - 1);
                for other in 0..local_size {
                    let room = self.window.slot(round - 1, other).wrapping_add(local_rank * room_bytes);
                    let own = input[local_rank * block_bytes..][piece.clone()].as_ptr();
                    let to = out[other * block_bytes..][piece.clone()].as_mut_ptr();
                    // SAFETY: the owner of the slot has filled it before the last meeting; `out` is borrowed.
                    unsafe { copy(if other == local_rank { own } else { room }, to, piece.len()) };
                }
            }
            if round < rounds {
                self.meet(limits)?;
            }
        }
        Ok(())
    }

    /// Shows at most `SHORT_BYTES` to all local ranks, and lets `take` have what each shows. `name_bytes` is
    /// the same on all.
    fn show_short(
        &mut self,
        own: &[u8],
        name_bytes: usize,
        take: impl FnOnce(&[*const u8]),
        limits: WaitLimits,
    ) -> Result<()> {
        self.begin(name_bytes, limits.stamp);
        let turn = self.turn;
        // SAFETY: the slot is this local rank's, long enough, and nobody has read it since the meeting before
        // the last.
        unsafe { copy(own.as_ptr(), self.window.short_slot(turn, self.local_rank()), own.len()) };
        self.meet_first(name_bytes, limits)?;
        let slots = (0..self.window.local_size()).map(|other| self.window.short_slot(turn, other).cast_const());
        take(&slots.collect::<Vec<_>>());
        Ok(())
    }

    /// Every local rank gets part `s` of `data`, bounded in bytes, from local rank `s`.
    pub(super) fn allgather(&mut self, data: &mut [u8], parts: &Parts, limits: WaitLimits) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let all = || (0..parts.count()).map(|owner| parts.range(owner..owner + 1));
        if all().all(|part| part.len() <= SHORT_BYTES) {
            let own = data[self.part_of(parts)].to_vec();
            let take = |slots: &[*const u8]| {
                for (slot, part) in slots.iter().zip(all()) {
                    // SAFETY: every slot holds the part of its local rank, and is filled.
                    unsafe { copy(*slot, data[part.clone()].as_mut_ptr(), part.len()) };
                }
            };
            return self.show_short(&own, parts.len(), take, limits);
        }
        self.begin(data.len(), limits.stamp);
        self.show(data);
        self.meet_first(data.len(), limits)?;
        let buffers = self.buffers(data.as_mut_ptr(), data.len());
        let owners = 0..parts.count();
        if owners.clone().all(|local_rank| buffers.is_shared(local_rank)) {
            for owner in owners.filter(|owner| *owner != self.local_rank()) {
                let part = parts.range(owner..owner + 1);
                let from = buffers.places[owner].expect("every owner's buffer is shared");
                // SAFETY: the part is within both buffers, and its owner changes it after the next meeting
                // only.
                unsafe { copy(from.add(part.start), buffers.own.add(part.start), part.len()) };
            }
            return self.meet(limits);
        }
        let part = self.part_of(parts);
        let count = buffers.pieces();
        for round in 0..=count {
            if round < count {
                let piece = buffers.piece(round);
                let given = overlap(&piece, &part);
                let to = self.window.sums(round);
                // SAFETY: only this local rank writes this range of the place, and nobody has read it since a
                // meeting ago.
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
                self.meet(limits)?;
            }
        }
        Ok(())
    }

    fn part_of(&self, parts: &Parts) -> Range<usize> {
        if self.local_rank() < parts.count() { parts.range(self.local_rank()..self.local_rank() + 1) } else { 0..0 }
    }

    fn allreduce_short(&mut self, arithmetic: Arithmetic, data: &mut [u8], limits: WaitLimits) -> Result<()> {
        let own = data.as_mut_ptr();
        let sum = |slots: &[*const u8]| {
            // SAFETY: every local rank has filled its slot before the meeting; `data` is none of them, and is
            // borrowed until this returns.
            unsafe { reduce::reduce_shared(arithmetic, slots, &[own], data.len()) };
        };
        self.show_short(data, data.len(), sum, limits)
    }

    /// Whether every local rank has what the owners have made of their sums by `update`: that is so if all
    /// buffers are in arenas.
    fn reduce(
        &mut self,
        arithmetic: Arithmetic,
        given: &NodeInput,
        keepers: Keepers,
        update: Option<&mut PartUpdate>,
        limits: WaitLimits,
    ) -> Result<bool> {
        let (from, len_bytes) = (given.from, given.len_bytes);
        if len_bytes == 0 {
            return Ok(true);
        }
        self.begin(len_bytes, limits.stamp);
        let is_shared = if given.is_in_place {
            // SAFETY: the caller has borrowed it; only its address is looked at.
            self.show(unsafe { std::slice::from_raw_parts(from, len_bytes) })
        } else {
            self.window.show(0);
            false
        };
        self.window.offer();
        if !is_shared {
            self.copy_in(from, 0..len_bytes.min(self.window.slot_bytes()), 0);
        }
        self.meet_first(len_bytes, limits)?;
        let buffers = self.buffers(from.cast_mut(), len_bytes);
        let (local_rank, local_size) = (self.local_rank(), self.window.local_size());
        if buffers.all_shared() {
            let is_updated = match (keepers, update) {
                (Keepers::Owners(parts), Some(update)) => {
                    self.update_where_they_are(arithmetic, &buffers, parts, update)?;
                    true
                }
                (keepers, _) => {
                    self.sum_where_they_are(arithmetic, &buffers, keepers);
                    false
                }
            };
            return self.meet(limits).map(|()| is_updated);
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
                let share = share_of(buffers.piece(round - 1), LINE_BYTES, local_rank, local_size);
                self.sum(arithmetic, &buffers, share, Some(round - 1), keepers);
            }
            if round >= 2 && !is_shared {
                let piece = buffers.piece(round - 2);
                let taken = overlap(&piece, &kept);
                let from = self.window.sums(round - 2);
                if !taken.is_empty() {
                    // SAFETY: the piece was summed before the last meeting, and is overwritten after the next
                    // one.
                    unsafe {
                        copy(from.add(taken.start - piece.start), given.to.add(taken.start - kept.start), taken.len());
                    }
                }
            }
            if round <= count {
                self.meet(limits)?;
            }
        }
        Ok(false)
    }

    /// Sums this rank's part of buffers that lie in arenas, updates it, and gives it to all: nobody else
    /// touches the part.
    fn update_where_they_are(
        &self,
        arithmetic: Arithmetic,
        buffers: &Buffers,
        parts: &Parts,
        update: &mut PartUpdate,
    ) -> Result<()> {
        let own = self.part_of(parts);
        for start in own.clone().step_by(TAKEN_BYTES) {
            let piece = start..(start + TAKEN_BYTES).min(own.end);
            self.sum(arithmetic, buffers, piece.clone(), None, Keepers::Owners(parts));
            // SAFETY: the piece lies in the own buffer, which the caller has borrowed; between two meetings
            // this local rank alone touches its part of any buffer.
            let sums = unsafe { std::slice::from_raw_parts_mut(buffers.own.add(start), piece.len()) };
            update(start, sums)?;
            for (local_rank, place) in buffers.places.iter().enumerate() {
                let place = place.expect("every buffer is shared");
                if local_rank != self.local_rank() {
                    // SAFETY: as above; the piece lies in every buffer.
                    unsafe { copy(sums.as_ptr(), place.add(start), piece.len()) };
                }
            }
        }
        Ok(())
    }

    /// Sums this rank's share of buffers that lie in arenas, then what ranks that did not get a core have
    /// left of theirs.
    fn sum_where_they_are(&self, arithmetic: Arithmetic, buffers: &Buffers, keepers: Keepers) {
        let (local_rank, local_size) = (self.local_rank(), self.window.local_size());
        for owner in (local_rank..local_size).chain(0..local_rank) {
            let share = share_of(0..buffers.len_bytes, PAGE_BYTES, owner, local_size);
            let pieces = share.len().div_ceil(TAKEN_BYTES);
            while let Some(piece) = self.window.take(owner, pieces) {
                let start = share.start + piece * TAKEN_BYTES;
                self.sum(arithmetic, buffers, start..(start + TAKEN_BYTES).min(share.end), None, keepers);
            }
        }
    }

    /// Sums `range` of all buffers for those who keep it; what is in no arena stands in the slots of piece
    /// `turn`.
    fn sum(
        &self,
        arithmetic: Arithmetic,
        buffers: &Buffers,
        range: Range<usize>,
        turn: Option<usize>,
        keepers: Keepers,
    ) {
        let local_size = self.window.local_size();
        let slot_start = turn.map_or(0, |turn| buffers.piece(turn).start);
        let sum = |range: Range<usize>, keepers: Range<usize>| {
            if range.is_empty() {
                return;
            }
            let input = |local_rank: usize| match (buffers.places[local_rank], turn) {
                (Some(place), _) => place.wrapping_add(range.start),
                (None, Some(turn)) => self.window.slot(turn, local_rank).wrapping_add(range.start - slot_start),
                (None, None) => unreachable!("without a turn every buffer is shared"),
            };
            let inputs: Vec<*const u8> = (0..local_size).map(|local_rank| input(local_rank).cast_const()).collect();
            let mut outputs: Vec<*mut u8> =
                keepers.clone().filter(|local_rank| buffers.is_shared(*local_rank)).map(input).collect();
            if let Some(turn) = turn
                && keepers.into_iter().any(|local_rank| !buffers.is_shared(local_rank))
            {
                outputs.push(self.window.sums(turn).wrapping_add(range.start - slot_start));
            }
            // SAFETY: this local rank alone has taken the range: nobody else touches it between two meetings.
            // It is within every buffer, slot and place; outputs are inputs, or the place for sums, which is
            // no input.
            unsafe { reduce::reduce_shared(arithmetic, &inputs, &outputs, range.len()) };
        };
        match keepers {
            Keepers::All => sum(range, 0..local_size),
            Keepers::Owners(parts) => {
                (0..parts.count())
                    .for_each(|owner| sum(overlap(&range, &parts.range(owner..owner + 1)), owner..owner + 1));
            }
        }
    }

    fn copy_in(&self, own: *const u8, piece: Range<usize>, turn: usize) {
        let to = self.window.slot(turn, self.local_rank());
        // SAFETY: the piece is within the own buffer and no longer than the slot, which is this local rank's
        // and was last read before the last meeting.
        unsafe { copy(own.add(piece.start), to, piece.len()) };
    }

    /// Shows where `data` lies in this rank's arena; whether it does.
    fn show(&self, data: &[u8]) -> bool {
        let arena = if self.arenas.is_empty() { None } else { arena::of_process() };
        let offset = arena.and_then(|arena| arena.offset_of(data));
        self.window.show(offset.map_or(0, |offset| offset as u64 + 1));
        offset.is_some()
    }

    /// What the local ranks have shown. An own buffer keeps its own address: it is the one the caller lent.
    fn buffers(&self, own: *mut u8, len_bytes: usize) -> Buffers {
        let place = |local_rank: usize| {
            let offset = self.window.see(local_rank).checked_sub(1)? as usize;
            let peers = self.arenas.get(local_rank)?;
            assert!(offset + len_bytes <= peers.len_bytes(), "a buffer lies within its rank's arena");
            Some(if local_rank == self.local_rank() { own } else { peers.start().as_ptr().wrapping_add(offset) })
        };
        let piece_bytes = self.window.slot_bytes();
        Buffers { own, len_bytes, piece_bytes, places: (0..self.window.local_size()).map(place).collect() }
    }

    /// Names the next operation.
    fn begin(&mut self, len_bytes: usize, stamp: Stamp) {
        self.moved_bytes += len_bytes as u64;
        self.turn += 1;
        self.window.name(self.turn, name(len_bytes, stamp));
    }

    /// The first meeting of an operation: all must have come to the same one.
    fn meet_first(&self, len_bytes: usize, limits: WaitLimits) -> Result<()> {
        self.meet(limits)?;
        match self.window.differs(self.turn, name(len_bytes, limits.stamp)) {
            None => Ok(()),
            Some(local_rank) => Err(Error::protocol(
                self.rank,
                format!("local rank {local_rank} of this host"),
                format!("another operation instead of {len_bytes} bytes of operation {}", limits.stamp),
            )),
        }
    }

    fn meet(&self, limits: WaitLimits) -> Result<()> {
        self.window.meet(limits.stop, limits.limit).map_err(|absence| match absence {
            Absence::Stopped => Error::Stopped {},
            Absence::Missing { local_ranks, waited } => Error::PeerLost {
                peer: format!("local rank(s) {local_ranks:?} of this host"),
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
fn share_of(range: Range<usize>, grain: usize, local_rank: usize, local_size: usize) -> Range<usize> {
    let grains = Parts::even(range.len().div_ceil(grain), local_size).range(local_rank..local_rank + 1);
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
