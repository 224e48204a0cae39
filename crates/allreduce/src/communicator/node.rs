//! Collectives among the ranks of one host, through shared memory.
//!
//! If every rank's buffer is in its arena (`buffer::arena`), nothing is copied: each rank takes an equal
//! share of the elements, reads these elements from all buffers, sums them in the order of the local ranks
//! and stores the sums to all buffers. Every byte is read once and written once, and there are two meetings
//! of the ranks. A rank that is done helps ranks that wait for a core.
//!
//! A buffer elsewhere, such as an array of `NumPy`'s, goes through the window in pieces. While piece `t` is
//! copied in, each rank sums its share of piece `t-1`, and the sums of piece `t-2` are copied out:
//!
//! ```text
//!   between two meetings:    copy in 0 | copy in 1, sum 0 | copy in 2, sum 1, copy out 0 | ... | copy out n-1
//! ```
//!
//! Slots and sums stay in the cache, so memory is still read once and written once. One operation may have
//! buffers of both sorts: those in an arena are read and written in place. The shortest buffers are copied to
//! memory that all ranks see, and every rank takes the bytes that it needs from all of them. This needs only
//! one meeting.
//!
//! If ranks read the memory of each other's processes ([`reached`](super::reached)), a buffer outside the
//! arenas is as good as one in an arena, except for a copy by the kernel. Two meetings are then enough for a
//! buffer of any length.
//!
//! In an alltoall every rank first shows the lengths of its blocks. In the window a slot has room for a block
//! to every other local rank, and each rank takes its blocks out of all slots.
//!
//! All ranks of a host make the same calls, in any order: each operation has a lane of the window, which its
//! stamp identifies. Elements are summed in the order of the local ranks, whichever rank sums them. So the
//! bits depend only on the placement of the ranks.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ringpull_base::{Error, Result};
use ringpull_kernels::reduce::{self, Arithmetic};
use ringpull_plan::Parts;

use super::reached::{MemoryReach, ReachedBuffers};
use crate::interpreter::{HostStep, Memory, PartUpdate, StepProgress};
use crate::transport::Stamp;
use crate::transport::window::{LANES, SHORT_BYTES, Window, WindowLane, WindowWait};

/// Shares of a piece begin on a line of the cache. Shares of a whole buffer begin on a page.
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// The most bytes of short buffers that all ranks of a host read in total. With more it is quicker to share
/// the work.
const SHORT_TOTAL_BYTES: usize = 64 << 10;

/// The ranks that need the sum of a byte.
#[derive(Clone, Copy)]
enum Keepers<'a> {
    All,
    /// Local rank `s` needs part `s`, bounded in bytes.
    Owners(&'a Parts),
}

/// A rank's input to a reduction, and the address of the result.
struct NodeInput {
    from: *const u8,
    len_bytes: usize,
    /// The address of the first byte of the result that this rank keeps. It is in the input's buffer or in
    /// another.
    to: *mut u8,
    is_in_place: bool,
}

/// The local rank whose memory could not be used, and the error.
type Unreachable = (usize, std::io::Error);
type MoveResult = std::result::Result<(), Unreachable>;

/// This rank among the ranks of its host.
pub(super) struct Node {
    window: Window,
    reach: MemoryReach,
    rank: usize,
    moved_bytes: Cell<u64>,
    /// This rank's record of the lanes that it has entered.
    entered: RefCell<[u32; LANES]>,
}

impl Node {
    /// Returns the node of the ranks that see `window` and reach each other's memory by `reach`.
    pub(super) fn new(window: Window, reach: MemoryReach, rank: usize) -> Self {
        Node { window, reach, rank, moved_bytes: Cell::new(0), entered: RefCell::new([0; LANES]) }
    }

    /// This rank's local rank.
    pub(super) fn local_rank(&self) -> usize {
        self.window.local_rank()
    }

    /// The bytes of the buffers that were reduced or gathered here.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes.get()
    }

    /// Begins `work` as the operation `stamp`.
    fn begin(
        self: &Rc<Self>,
        stamp: Stamp,
        work: impl AsyncFnOnce(&NodeOperation) -> Result<()> + 'static,
    ) -> Box<dyn HostStep> {
        let (lane, meeting) = (Cell::new(None), Cell::new(None));
        let operation = Rc::new(NodeOperation { node: Rc::clone(self), stamp, lane, meeting });
        let own = Rc::clone(&operation);
        Box::new(NodeStep { operation, work: Box::pin(async move { work(&own).await }), rings: 0, wait: None })
    }

    /// Sums `data` over all local ranks in place.
    pub(super) fn allreduce(
        self: &Rc<Self>,
        arithmetic: Arithmetic,
        data: &mut Memory,
        stamp: Stamp,
    ) -> Box<dyn HostStep> {
        let data = Bytes::of(data);
        self.begin(stamp, async move |operation| operation.allreduce(arithmetic, data).await)
    }

    /// Sums part `s` of `data`, bounded in bytes, over all local ranks at local rank `s`. The rest of `data`
    /// has no meaning afterwards.
    pub(super) fn reduce_scatter(
        self: &Rc<Self>,
        arithmetic: Arithmetic,
        data: &mut Memory,
        parts: Parts,
        stamp: Stamp,
    ) -> Box<dyn HostStep> {
        let data = Bytes::of(data);
        self.begin(stamp, async move |operation| {
            operation.reduce_for_owners(arithmetic, data, &parts, None).await.map(drop)
        })
    }

    /// Sums part `s` of `data`, bounded in bytes, over all local ranks. Local rank `s` updates the sum, and
    /// every local rank gets the result.
    pub(super) fn allreduce_updating(
        self: &Rc<Self>,
        arithmetic: Arithmetic,
        data: &mut Memory,
        parts: Parts,
        mut update: PartUpdate,
        stamp: Stamp,
    ) -> Box<dyn HostStep> {
        let data = Bytes::of(data);
        let work = async move |operation: &NodeOperation| {
            operation.allreduce_updating(arithmetic, data, &parts, &mut update).await
        };
        self.begin(stamp, work)
    }

    /// Reduces all local ranks' parts `s` of the input into the output at local rank `s`.
    pub(super) fn reduce_scatter_into(
        self: &Rc<Self>,
        arithmetic: Arithmetic,
        pair: &mut Memory,
        parts: Parts,
        stamp: Stamp,
    ) -> Box<dyn HostStep> {
        let (input, out) = Bytes::of_pair(pair);
        self.begin(stamp, async move |operation| operation.reduce_scatter_into(arithmetic, (input, out), &parts).await)
    }

    /// Copies block `l` of each local rank `s` to block `s` of the output, where `l` is this local rank.
    /// `given` and `taken` are the blocks of the input and of the output, one for each local rank.
    pub(super) fn alltoall(
        self: &Rc<Self>,
        pair: &mut Memory,
        (given, taken): (Parts, Parts),
        stamp: Stamp,
    ) -> Box<dyn HostStep> {
        let (input, out) = Bytes::of_pair(pair);
        self.begin(stamp, async move |operation| operation.alltoall((input, &given), (out, &taken)).await)
    }

    /// Gathers `data` on every local rank: part `s`, with bounds in bytes, comes from local rank `s`.
    pub(super) fn allgather(self: &Rc<Self>, data: &mut Memory, parts: Parts, stamp: Stamp) -> Box<dyn HostStep> {
        let data = Bytes::of(data);
        self.begin(stamp, async move |operation| operation.allgather(data, &parts, data.len).await)
    }

    /// Gives every local rank the `data` of local rank `root`. The root's own data is only read.
    ///
    /// # Panics
    /// If others may read the data of a rank that is not the root.
    pub(super) fn broadcast(self: &Rc<Self>, root: usize, data: &mut Memory, stamp: Stamp) -> Box<dyn HostStep> {
        assert!(data.is_exclusive() || self.local_rank() == root, "a rank that receives has its memory for itself");
        let data = Bytes::of(data);
        let bound = |local_rank: usize| if local_rank <= root { 0 } else { data.len };
        let parts = Parts::of((0..=self.window.local_size()).map(bound).collect());
        self.begin(stamp, async move |operation| operation.allgather(data, &parts, data.len).await)
    }
}

/// The bytes of memory that an operation owns until it has ended.
#[derive(Clone, Copy)]
struct Bytes {
    start: *mut u8,
    len: usize,
}

impl Bytes {
    fn of(memory: &mut Memory) -> Self {
        Bytes { start: memory.start(), len: memory.bytes().len() }
    }

    fn of_pair(memory: &mut Memory) -> (Self, Self) {
        let (input, out) = memory.pair_mut();
        let input = Bytes { start: input.as_ptr().cast_mut(), len: input.len() };
        (input, Bytes { start: out.as_mut_ptr(), len: out.len() })
    }

    /// The address of the byte at an offset.
    fn at(self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(offset)
    }
}

/// A collective under way.
struct NodeStep {
    operation: Rc<NodeOperation>,
    work: Pin<Box<dyn Future<Output = Result<()>>>>,
    /// The number of times that the window's bell had rung at the last look.
    rings: u32,
    /// The current wait, and the meeting that it waits for.
    wait: Option<(Option<u32>, WindowWait)>,
}

impl HostStep for NodeStep {
    fn poll(&mut self) -> Result<StepProgress> {
        let NodeOperation { node, lane, meeting, .. } = &*self.operation;
        self.rings = node.window.rings();
        let before = (lane.get(), meeting.get());
        match self.work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => {
                outcome?;
                self.operation.leave();
                Ok(StepProgress::Ended)
            }
            Poll::Pending if before == (lane.get(), meeting.get()) => Ok(StepProgress::Waits),
            Poll::Pending => Ok(StepProgress::Moved),
        }
    }

    fn wait(&mut self, limit: Duration) -> Result<bool> {
        let NodeOperation { node, lane, meeting, .. } = &*self.operation;
        let meeting = meeting.get();
        if self.wait.as_ref().is_none_or(|(before, _)| *before != meeting) {
            self.wait = Some((meeting, WindowWait::begin()));
        }
        let (_, wait) = self.wait.as_mut().expect("it was set");
        wait.wait(&node.window, self.rings, lane.get().zip(meeting), limit).map_err(|absence| Error::PeerLost {
            peer: format!("local rank(s) {:?} of this host", absence.local_ranks),
            ranks: Vec::new(),
            cause: format!("nothing moved for {} s", absence.waited.as_secs()),
            operation: "a collective in shared memory".to_owned(),
            rank: Some(node.rank),
        })
    }

    fn beat(&self) {
        self.operation.node.window.beat();
    }
}

/// An operation of the ranks of a host. Wherever it would wait, the rank works on other operations.
struct NodeOperation {
    node: Rc<Node>,
    /// Identifies the operation, as in messages.
    stamp: Stamp,
    lane: Cell<Option<usize>>,
    /// The meeting that this rank waits for.
    meeting: Cell<Option<u32>>,
}

impl NodeOperation {
    fn local_rank(&self) -> usize {
        self.node.local_rank()
    }

    fn local_size(&self) -> usize {
        self.node.window.local_size()
    }

    fn lane(&self) -> WindowLane<'_> {
        self.node.window.lane(self.lane.get().expect("an operation that has begun has a lane"))
    }

    async fn allreduce(&self, arithmetic: Arithmetic, data: Bytes) -> Result<()> {
        if data.len <= SHORT_BYTES && data.len * self.local_size() <= SHORT_TOTAL_BYTES {
            let sum = |slots: &[*const u8]| {
                // SAFETY: every local rank has filled its slot before the meeting. The data are in no slot,
                // and are this operation's.
                unsafe { reduce::reduce_shared(arithmetic, slots, &[data.start], data.len) };
            };
            self.count(data.len);
            return self.show_short(data, data.len, sum).await;
        }
        let given = NodeInput { from: data.start, len_bytes: data.len, to: data.start, is_in_place: true };
        self.reduce(arithmetic, &given, Keepers::All, None).await.map(drop)
    }

    async fn reduce_for_owners(
        &self,
        arithmetic: Arithmetic,
        data: Bytes,
        parts: &Parts,
        update: Option<&mut PartUpdate>,
    ) -> Result<bool> {
        let to = data.at(self.part_of(parts).start);
        let given = NodeInput { from: data.start, len_bytes: data.len, to, is_in_place: true };
        self.reduce(arithmetic, &given, Keepers::Owners(parts), update).await
    }

    async fn allreduce_updating(
        &self,
        arithmetic: Arithmetic,
        data: Bytes,
        parts: &Parts,
        update: &mut PartUpdate,
    ) -> Result<()> {
        if self.reduce_for_owners(arithmetic, data, parts, Some(update)).await? {
            return Ok(());
        }
        let own = self.part_of(parts);
        if !own.is_empty() {
            // SAFETY: the part lies in the data, which are this operation's; no rank touches them between two
            // collectives.
            update(own.start, unsafe { std::slice::from_raw_parts_mut(data.at(own.start), own.len()) })?;
        }
        // The bytes of the buffer are counted already.
        self.allgather(data, parts, 0).await
    }

    async fn reduce_scatter_into(
        &self,
        arithmetic: Arithmetic,
        (input, out): (Bytes, Bytes),
        parts: &Parts,
    ) -> Result<()> {
        if input.len <= SHORT_BYTES {
            let own = self.part_of(parts);
            let take = |slots: &[*const u8]| {
                let inputs: Vec<*const u8> = slots.iter().map(|slot| slot.wrapping_add(own.start)).collect();
                // SAFETY: every slot holds as many bytes as the parts have, and is filled; `out` is in no
                // slot.
                unsafe { reduce::reduce_shared(arithmetic, &inputs, &[out.start], own.len()) };
            };
            self.count(input.len);
            return self.show_short(input, input.len, take).await;
        }
        let given = NodeInput { from: input.start, len_bytes: input.len, to: out.start, is_in_place: false };
        self.reduce(arithmetic, &given, Keepers::Owners(parts), None).await.map(drop)
    }

    async fn alltoall(&self, (input, given): (Bytes, &Parts), (out, taken): (Bytes, &Parts)) -> Result<()> {
        let (local_rank, local_size) = (self.local_rank(), self.local_size());
        let block = |parts: &Parts, at: usize| parts.range(at..at + 1);
        // All ranks see the lengths of the blocks of `input` and of `out`, and a short input itself.
        let lens_bytes = 2 * local_size * size_of::<u64>();
        assert!(lens_bytes <= SHORT_BYTES, "{local_size} local ranks have no room for the lengths of their blocks");
        let is_short = |parts: &Parts| parts.len() + lens_bytes <= SHORT_BYTES;
        self.begin(0).await;
        self.count(input.len);
        let own = [given, taken].into_iter().flat_map(|parts| (0..local_size).map(|at| block(parts, at).len() as u64));
        let own: Vec<u64> = own.collect();
        let slot = self.lane().short_slot(local_rank);
        // SAFETY: the slot is this local rank's and long enough, and nobody reads it before the meeting.
        unsafe {
            copy(own.as_ptr().cast(), slot, lens_bytes);
            copy(input.start, slot.add(lens_bytes), if is_short(given) { input.len } else { 0 });
        }
        self.lane().show(self.node.reach.shown(input.start, input.len));
        self.meet_first(0).await?;
        let slots = self.short_slots();
        let lens_at = |slot: *const u8| {
            let mut lens = vec![0_u64; 2 * local_size];
            // SAFETY: every slot begins with `2 * local_size` numbers, and is filled.
            unsafe { copy(slot, lens.as_mut_ptr().cast(), lens_bytes) };
            let (given, taken) = lens.split_at(local_size);
            (Parts::of_lens(given.iter().map(|len| *len as usize)), taken.to_vec())
        };
        let (all, all_taken): (Vec<Parts>, Vec<Vec<u64>>) = slots.iter().map(|slot| lens_at(*slot)).unzip();
        // Every rank looks at all pairs, so all ranks come to the same answer.
        let pairs = (0..local_size).flat_map(|from| (0..local_size).map(move |to| (from, to)));
        for (from, to) in pairs {
            let (sent, expected) = (block(&all[from], to).len(), all_taken[to][from] as usize);
            if sent != expected {
                return Err(Error::protocol(
                    self.node.rank,
                    format!("local rank {from} of this host"),
                    format!("a block of {sent} bytes instead of {expected} for local rank {to} in an alltoall"),
                ));
            }
        }
        // The range of the block from rank `other` in that rank's input, and in this rank's output.
        let places = |other: usize| (block(&all[other], local_rank), block(taken, other));
        let (from, to) = places(local_rank);
        // SAFETY: both blocks lie in their memory, which is this operation's.
        unsafe { copy(input.at(from.start), out.at(to.start), from.len()) };
        let mut others = (0..local_size).filter(|other| *other != local_rank);
        // Every rank comes to the same answer here.
        if all.iter().all(is_short) {
            others.for_each(|other| {
                let (from, to) = places(other);
                // SAFETY: the input is in the slot, behind the lengths; `out` is this operation's.
                unsafe { copy(slots[other].add(lens_bytes + from.start), out.at(to.start), from.len()) };
            });
            return Ok(());
        }
        let least_bytes = all.iter().map(Parts::len).min().unwrap_or(0);
        let buffers = self.buffers(input.start, least_bytes);
        if buffers.all_reached() {
            let taken = others.try_for_each(|other| {
                let (from, to) = places(other);
                // SAFETY: inputs do not change before the next meeting. `out` is this operation's, and is no
                // input.
                unsafe { buffers.read(other, from, out.at(to.start)) }.map_err(|cause| (other, cause))
            });
            return self.end(taken).await;
        }
        // The bytes of one slot for each local rank.
        let room_bytes = (self.lane().slot_bytes() / local_size / LINE_BYTES).max(1) * LINE_BYTES;
        let blocks = all.iter().flat_map(|parts| (0..local_size).map(|to| block(parts, to).len()));
        let rounds = blocks.max().unwrap_or(0).div_ceil(room_bytes);
        let piece = |block: &Range<usize>, round: usize| {
            overlap(block, &(block.start + round * room_bytes..block.start + (round + 1) * room_bytes))
        };
        for round in 0..=rounds {
            if round < rounds {
                for other in others.clone() {
                    let from = piece(&block(given, other), round);
                    let to = self.lane().slot(round, local_rank).wrapping_add(other * room_bytes);
                    // SAFETY: the slot is this local rank's, has room for each block, and was last read
                    // before the last meeting.
                    unsafe { copy(input.at(from.start), to, from.len()) };
                }
            }
            if round > 0 {
                for other in others.clone() {
                    let room = self.lane().slot(round - 1, other).wrapping_add(local_rank * room_bytes);
                    let to = piece(&block(taken, other), round - 1);
                    // SAFETY: the owner of the slot has filled it before the last meeting; `out` is this
                    // operation's.
                    unsafe { copy(room, out.at(to.start), to.len()) };
                }
            }
            if round < rounds {
                self.meet().await;
            }
        }
        Ok(())
    }

    /// Shows at most `SHORT_BYTES` to all local ranks, and passes the bytes of all ranks to `take`. All ranks
    /// have the same `name_bytes`.
    async fn show_short(&self, own: Bytes, name_bytes: usize, take: impl FnOnce(&[*const u8])) -> Result<()> {
        self.begin(name_bytes).await;
        // SAFETY: the slot is this local rank's and long enough, and nobody reads it before the meeting.
        unsafe { copy(own.start, self.lane().short_slot(self.local_rank()), own.len) };
        self.meet_first(name_bytes).await?;
        take(&self.short_slots());
        Ok(())
    }

    fn short_slots(&self) -> Vec<*const u8> {
        let slot = |local_rank: usize| self.lane().short_slot(local_rank).cast_const();
        (0..self.local_size()).map(slot).collect()
    }

    /// Gathers `data` on every local rank: part `s` comes from local rank `s`. This rank's part is only read.
    /// Counts the bytes.
    async fn allgather(&self, data: Bytes, parts: &Parts, counted_bytes: usize) -> Result<()> {
        let (len_bytes, local_rank, start) = (parts.len(), self.local_rank(), data.start);
        self.count(counted_bytes);
        if len_bytes == 0 {
            return Ok(());
        }
        let all = || (0..parts.count()).map(|owner| parts.range(owner..owner + 1));
        if all().all(|part| part.len() <= SHORT_BYTES) {
            let own = self.part_of(parts);
            let own = Bytes { start: data.at(own.start), len: own.len() };
            let take = |slots: &[*const u8]| {
                for (owner, (slot, part)) in slots.iter().zip(all()).enumerate() {
                    if owner != local_rank {
                        // SAFETY: every slot holds the part of its local rank, and is filled.
                        unsafe { copy(*slot, start.add(part.start), part.len()) };
                    }
                }
            };
            return self.show_short(own, len_bytes, take).await;
        }
        self.begin(len_bytes).await;
        self.lane().show(self.node.reach.shown(start, len_bytes));
        self.meet_first(len_bytes).await?;
        let buffers = self.buffers(start, len_bytes);
        let owners = 0..parts.count();
        if owners.clone().all(|owner| buffers.is_reached(owner) || parts.range(owner..owner + 1).is_empty()) {
            let mut others = owners.filter(|owner| *owner != local_rank);
            let taken = others.try_for_each(|owner| {
                let part = parts.range(owner..owner + 1);
                if part.is_empty() {
                    return Ok(());
                }
                // SAFETY: the part is within both buffers, and its owner does not change it before the next
                // meeting.
                unsafe { buffers.read(owner, part.clone(), buffers.own.add(part.start)) }
                    .map_err(|cause| (owner, cause))
            });
            return self.end(taken).await;
        }
        let part = self.part_of(parts);
        let count = buffers.pieces();
        for round in 0..=count {
            if round < count {
                let piece = buffers.piece(round);
                let given = overlap(&piece, &part);
                let to = self.lane().sums(round);
                // SAFETY: only this local rank writes this range, and nobody has read it since the last
                // meeting.
                unsafe { copy(buffers.own.add(given.start), to.add(given.start - piece.start), given.len()) };
            }
            if round > 0 {
                let piece = buffers.piece(round - 1);
                let from = self.lane().sums(round - 1);
                for taken in [piece.start..part.start.min(piece.end), part.end.max(piece.start)..piece.end] {
                    if taken.is_empty() {
                        continue;
                    }
                    // SAFETY: the owners have filled the piece before the last meeting.
                    unsafe { copy(from.add(taken.start - piece.start), buffers.own.add(taken.start), taken.len()) };
                }
            }
            if round < count {
                self.meet().await;
            }
        }
        Ok(())
    }

    fn part_of(&self, parts: &Parts) -> Range<usize> {
        if self.local_rank() < parts.count() { parts.range(self.local_rank()..self.local_rank() + 1) } else { 0..0 }
    }

    /// Sums the ranks' inputs for `keepers`. Returns true if every local rank already has the values that the
    /// owners' `update` has computed from the sums. That is so if all buffers are reached.
    async fn reduce(
        &self,
        arithmetic: Arithmetic,
        given: &NodeInput,
        keepers: Keepers<'_>,
        update: Option<&mut PartUpdate>,
    ) -> Result<bool> {
        let (from, len_bytes) = (given.from, given.len_bytes);
        if len_bytes == 0 {
            return Ok(true);
        }
        self.count(len_bytes);
        self.begin(len_bytes).await;
        // A sum may be written to the buffer only if the buffer is also the output.
        let may_be_reached = given.is_in_place || self.node.reach.reads_processes();
        let shown = if may_be_reached { self.node.reach.shown(from, len_bytes) } else { 0 };
        self.lane().show(shown);
        self.lane().offer();
        let copy_first = || self.copy_in(from, 0..len_bytes.min(self.lane().slot_bytes()), 0);
        if shown == 0 {
            copy_first();
        }
        self.meet_first(len_bytes).await?;
        let (local_rank, local_size) = (self.local_rank(), self.local_size());
        let mut buffers = self.buffers(from.cast_mut(), len_bytes);
        if buffers.all_reached() {
            let (is_updated, summed) = match (keepers, update) {
                (Keepers::Owners(parts), Some(update)) => {
                    (true, self.update_where_they_are(arithmetic, &buffers, parts, update)?)
                }
                (Keepers::Owners(parts), None) if !given.is_in_place => {
                    (false, self.sum_own_part(arithmetic, &buffers, parts, given.to))
                }
                (keepers, _) => (false, self.sum_where_they_are(arithmetic, &buffers, keepers)),
            };
            return self.end(summed).await.map(|()| is_updated);
        }
        if !given.is_in_place || buffers.reads_processes() {
            // If a rank cannot lend its memory, such as a device's, all buffers go through the window.
            if shown != 0 && (!given.is_in_place || buffers.is_in_process(local_rank)) {
                copy_first();
            }
            self.meet().await;
            if given.is_in_place { buffers.hide_processes() } else { buffers.hide_all() }
        }
        let is_shared = buffers.is_mapped(local_rank);
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
                self.sum(arithmetic, &buffers, &share, round - 1, keepers);
            }
            if round >= 2 && !is_shared {
                let piece = buffers.piece(round - 2);
                let taken = overlap(&piece, &kept);
                let from = self.lane().sums(round - 2);
                if !taken.is_empty() {
                    // SAFETY: the piece was summed before the last meeting, and is overwritten after the next
                    // one.
                    unsafe {
                        copy(from.add(taken.start - piece.start), given.to.add(taken.start - kept.start), taken.len());
                    }
                }
            }
            if round <= count {
                self.meet().await;
            }
        }
        Ok(false)
    }

    /// Sums this rank's part of buffers that are all reached, updates it, and writes it to all of them. No
    /// other rank touches the part.
    fn update_where_they_are(
        &self,
        arithmetic: Arithmetic,
        buffers: &ReachedBuffers,
        parts: &Parts,
        update: &mut PartUpdate,
    ) -> Result<MoveResult> {
        let own = self.part_of(parts);
        let local_rank = self.local_rank();
        for piece in pieces(own, buffers.taken_bytes) {
            if let Err(failed) = self.sum_reached(arithmetic, buffers, &piece, local_rank..local_rank + 1) {
                return Ok(Err(failed));
            }
            // SAFETY: the piece lies in the own buffer, which the caller has borrowed; between two meetings
            // this local rank alone touches its part of any buffer.
            let sums = unsafe { std::slice::from_raw_parts_mut(buffers.own.add(piece.start), piece.len()) };
            update(piece.start, sums)?;
            for other in (0..self.local_size()).filter(|other| *other != local_rank) {
                // SAFETY: as above; the piece lies in every buffer.
                if let Err(cause) = unsafe { buffers.write(other, piece.clone(), sums.as_ptr()) } {
                    return Ok(Err((other, cause)));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Sums this rank's part of buffers that are all reached. The sums go to `to`, which is in none of the
    /// buffers.
    fn sum_own_part(&self, arithmetic: Arithmetic, buffers: &ReachedBuffers, parts: &Parts, to: *mut u8) -> MoveResult {
        let own = self.part_of(parts);
        for piece in pieces(own.clone(), buffers.taken_bytes) {
            let inputs = self.inputs(buffers, &piece)?;
            // SAFETY: nobody writes an input before the next meeting; `to` has room for the part.
            unsafe {
                reduce::reduce_shared(arithmetic, &inputs, &[to.add(piece.start - own.start)], piece.len());
            }
        }
        Ok(())
    }

    /// Sums this rank's share of buffers that are all reached. Then sums the rest of the shares of ranks that
    /// did not get a core.
    fn sum_where_they_are(&self, arithmetic: Arithmetic, buffers: &ReachedBuffers, keepers: Keepers) -> MoveResult {
        let (local_rank, local_size) = (self.local_rank(), self.local_size());
        for owner in (local_rank..local_size).chain(0..local_rank) {
            let share = share_of(0..buffers.len_bytes, PAGE_BYTES, owner, local_size);
            let count = share.len().div_ceil(buffers.taken_bytes);
            while let Some(index) = self.lane().take(owner, count) {
                let start = share.start + index * buffers.taken_bytes;
                let piece = start..(start + buffers.taken_bytes).min(share.end);
                match keepers {
                    Keepers::All => self.sum_reached(arithmetic, buffers, &piece, 0..local_size)?,
                    Keepers::Owners(parts) => (0..parts.count()).try_for_each(|owner| {
                        let kept = overlap(&piece, &parts.range(owner..owner + 1));
                        self.sum_reached(arithmetic, buffers, &kept, owner..owner + 1)
                    })?,
                }
            }
        }
        Ok(())
    }

    /// Sums `range` of buffers that are all reached, for the ranks that keep the range.
    fn sum_reached(
        &self,
        arithmetic: Arithmetic,
        buffers: &ReachedBuffers,
        range: &Range<usize>,
        mut keepers: Range<usize>,
    ) -> MoveResult {
        if range.is_empty() {
            return Ok(());
        }
        let inputs = self.inputs(buffers, range)?;
        let place = |local_rank: usize| buffers.mapped(local_rank).map(|place| place.wrapping_add(range.start));
        let mut outputs: Vec<*mut u8> = keepers.clone().filter_map(place).collect();
        if outputs.is_empty() {
            outputs.push(buffers.room_of_sum());
        }
        // SAFETY: this local rank alone has taken the range: nobody else touches it between two meetings. It
        // is within every buffer and room; outputs are inputs, or the room for sums, which is no input.
        unsafe { reduce::reduce_shared(arithmetic, &inputs, &outputs, range.len()) };
        keepers.try_for_each(|keeper| match buffers.mapped(keeper) {
            Some(_) => Ok(()),
            // SAFETY: as above.
            None => unsafe { buffers.write(keeper, range.clone(), outputs[0]) }.map_err(|cause| (keeper, cause)),
        })
    }

    /// Returns the address of the range in every buffer, or of a copy of it. All buffers are reached.
    fn inputs(
        &self,
        buffers: &ReachedBuffers,
        range: &Range<usize>,
    ) -> std::result::Result<Vec<*const u8>, Unreachable> {
        let input = |other: usize| buffers.input(other, range.clone()).map_err(|cause| (other, cause));
        (0..self.local_size()).map(input).collect()
    }

    /// Sums `share` of the piece `turn` of all buffers, for the ranks that keep the share. Buffers in no
    /// arena are in the slots of the piece.
    fn sum(
        &self,
        arithmetic: Arithmetic,
        buffers: &ReachedBuffers,
        share: &Range<usize>,
        turn: usize,
        keepers: Keepers,
    ) {
        let local_size = self.local_size();
        let slot_start = buffers.piece(turn).start;
        let sum = |range: Range<usize>, mut keepers: Range<usize>| {
            if range.is_empty() {
                return;
            }
            let input = |local_rank: usize| match buffers.mapped(local_rank) {
                Some(place) => place.wrapping_add(range.start),
                None => self.lane().slot(turn, local_rank).wrapping_add(range.start - slot_start),
            };
            let inputs: Vec<*const u8> = (0..local_size).map(|local_rank| input(local_rank).cast_const()).collect();
            let mut outputs: Vec<*mut u8> =
                keepers.clone().filter(|local_rank| buffers.is_mapped(*local_rank)).map(input).collect();
            if keepers.any(|local_rank| !buffers.is_mapped(local_rank)) {
                outputs.push(self.lane().sums(turn).wrapping_add(range.start - slot_start));
            }
            // SAFETY: this local rank alone has this share: nobody else touches it between two meetings. It
            // is within every buffer, slot and place; outputs are inputs, or the place for sums, which is no
            // input.
            unsafe { reduce::reduce_shared(arithmetic, &inputs, &outputs, range.len()) };
        };
        match keepers {
            Keepers::All => sum(share.clone(), 0..local_size),
            Keepers::Owners(parts) => (0..parts.count())
                .for_each(|owner| sum(overlap(share, &parts.range(owner..owner + 1)), owner..owner + 1)),
        }
    }

    fn copy_in(&self, own: *const u8, piece: Range<usize>, turn: usize) {
        let to = self.lane().slot(turn, self.local_rank());
        // SAFETY: the piece is within the own buffer and no longer than the slot, which is this local rank's
        // and was last read before the last meeting.
        unsafe { copy(own.add(piece.start), to, piece.len()) };
    }

    /// Returns the buffers that the local ranks have shown.
    fn buffers(&self, own: *mut u8, len_bytes: usize) -> ReachedBuffers {
        let shown = (0..self.local_size()).map(|local_rank| self.lane().see(local_rank));
        self.node.reach.buffers((own, len_bytes), (self.local_rank(), self.lane().slot_bytes()), shown)
    }

    /// Ends an operation by its last meeting. If a rank has died, the meeting returns an error that names it,
    /// which is better than the error of `moved`. If one rank could not do its part, no rank has the result.
    async fn end(&self, moved: MoveResult) -> Result<()> {
        if let Err((local_rank, _)) = &moved {
            self.node.window.fail(*local_rank);
        }
        self.meet().await;
        let lost = |local_rank: usize, cause: String| Error::PeerLost {
            peer: format!("local rank(s) {:?} of this host", [local_rank]),
            ranks: Vec::new(),
            cause,
            operation: "a collective in shared memory".to_owned(),
            rank: Some(self.node.rank),
        };
        moved.map_err(|(local_rank, cause)| {
            lost(local_rank, format!("the memory of its process cannot be used: {cause}"))
        })?;
        match self.node.window.failed() {
            None => Ok(()),
            Some(local_rank) => Err(lost(local_rank, "another rank cannot use the memory of its process".to_owned())),
        }
    }

    /// Enters a lane and names the collective there. If the operation has done a collective before, it leaves
    /// that collective's lane.
    async fn begin(&self, len_bytes: usize) {
        self.leave();
        let entered = &self.node.entered;
        let lane = poll_fn(|_| match self.node.window.enter(self.stamp, &mut entered.borrow_mut()) {
            Some(lane) => Poll::Ready(lane),
            None => Poll::Pending,
        });
        self.lane.set(Some(lane.await));
        self.lane().name(name(len_bytes, self.stamp));
    }

    fn leave(&self) {
        self.lane.take().into_iter().for_each(|lane| self.node.window.leave(lane));
    }

    fn count(&self, len_bytes: usize) {
        self.node.moved_bytes.update(|moved_bytes| moved_bytes + len_bytes as u64);
    }

    /// Takes part in the first meeting of an operation. Returns an error if the ranks have brought different
    /// lengths.
    async fn meet_first(&self, len_bytes: usize) -> Result<()> {
        self.meet().await;
        match self.lane().differs(name(len_bytes, self.stamp)) {
            None => Ok(()),
            Some(local_rank) => Err(Error::protocol(
                self.node.rank,
                format!("local rank {local_rank} of this host"),
                format!("another operation instead of {len_bytes} bytes of operation {}", self.stamp),
            )),
        }
    }

    /// Takes part in the next meeting, and is done when all local ranks do.
    async fn meet(&self) {
        if let Some(meeting) = self.lane().come() {
            self.meeting.set(Some(meeting));
            poll_fn(|_| if self.lane().has_met(meeting) { Poll::Ready(()) } else { Poll::Pending }).await;
            self.meeting.set(None);
        }
    }
}

/// Divides `range` into pieces of at most `len_bytes`.
fn pieces(range: Range<usize>, len_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len_bytes).map(move |start| start..(start + len_bytes).min(range.end))
}

/// The name of an operation in the window.
fn name(len_bytes: usize, stamp: Stamp) -> u64 {
    (len_bytes as u64) << 32 ^ u64::from(stamp)
}

/// An equal share of `range` that begins and ends at multiples of `grain` from its start.
fn share_of(range: Range<usize>, grain: usize, local_rank: usize, local_size: usize) -> Range<usize> {
    let grains = Parts::even(range.len().div_ceil(grain), local_size).range(local_rank..local_rank + 1);
    let at = |grains: usize| (range.start + grains * grain).min(range.end);
    at(grains.start)..at(grains.end)
}

/// Returns the common part of both ranges, or an empty range within `one` if they have none.
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
