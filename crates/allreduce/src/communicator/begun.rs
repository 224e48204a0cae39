//! Collectives of all ranks or of some, begun to be advanced beside others.
//!
//! The ranks of a process set are numbered as they stand in its list. Its plan is made for as many ranks as
//! the list has, and then names theirs (`Plan::among`). A set's collectives always go by messages and never
//! block, so that those of other sets, and of the whole job, progress beside them. If all ranks of the job
//! share memory, the job's own collectives go through that and are done at once; no other collective of all
//! ranks may then be under way.
//!
//! All of them are unsafe to begin: the memory stays valid, and nobody else touches it, until the ticket is
//! reported by [`take_finished`](super::Executor::take_finished). After an error, of this or of any later
//! call, that holds for ever. Memory that is only read may be read by others.
#![allow(unsafe_code)]

use std::sync::Arc;

use ringpull_base::{DType, Reduction, Result, Tensor};
use ringpull_kernels::reduce::Arithmetic;
use ringpull_plan::{ALLTOALL_SEGMENT_BYTES, Parts, Plan, Schedule, Segments, choose_reduce_scatter};

use crate::communicator::Communicator;
use crate::communicator::node::WaitLimits;
use crate::communicator::placement::Placement;
use crate::communicator::schedules::Sum;
use crate::communicator::two_buffers::{BlockExchange, ReduceScatterEnd};
use crate::interpreter::Ticket;
use crate::transport::{BlockCollective, Stamp};

/// The ranks of the job that take part, in their order; `None` for all.
pub type ProcessSet<'a> = Option<&'a [usize]>;

/// The identity of an operation under way.
#[derive(Debug, Clone, Copy)]
pub struct Passage {
    /// The stamp of its messages.
    pub stamp: Stamp,
    /// A higher one goes first.
    pub priority: i32,
}

impl Communicator {
    /// Returns when what was begun is finished, if it is not yet.
    pub(super) fn complete(&mut self, begun: Option<Ticket>) -> Result<()> {
        let Some(ticket) = begun else { return Ok(()) };
        while !self.executor.take_finished().any(|finished| finished == ticket) {
            if !self.executor.advance()? {
                self.executor.pause()?;
            }
        }
        Ok(())
    }

    /// Does the collective `which` from `input` into `out`, by plans or by the library's own collective. All
    /// ranks call it, and it blocks. After an error both tensors stay locked for ever, as the transport may
    /// still use them.
    pub fn collect(
        &mut self,
        (which, is_native): (BlockCollective, bool),
        input: &Tensor,
        out: &Tensor,
        stamp: Stamp,
    ) -> Result<()> {
        let (given, mut taken) = (input.read()?, out.write());
        let outcome = if is_native {
            self.executor.transport.native_collective(which, given.bytes(), taken.bytes_mut())
        } else {
            // SAFETY: after an error neither the locks nor the memory behind them are ever given back.
            unsafe { self.collect_by_plan(which, given.bytes(), taken.bytes_mut(), stamp) }
        };
        if outcome.is_err() {
            std::mem::forget((given, taken, input.clone(), out.clone()));
        }
        outcome
    }

    /// # Safety
    /// After an error both stay valid, and nobody else touches them, until the transport is gone.
    unsafe fn collect_by_plan(
        &mut self,
        which: BlockCollective,
        input: &[u8],
        out: &mut [u8],
        stamp: Stamp,
    ) -> Result<()> {
        let (size, passage) = (self.size(), Passage { stamp, priority: 0 });
        // SAFETY: both are borrowed until it is done; for an error the caller promises the rest.
        let begun = unsafe {
            match which {
                BlockCollective::Allgather => {
                    let parts = Parts::even(out.len(), size);
                    let own = parts.range(self.rank()..self.rank() + 1);
                    out[own].copy_from_slice(input);
                    self.begin_allgather(None, parts, out, passage)?
                }
                BlockCollective::Alltoall => {
                    let lens = vec![input.len() / size; size];
                    self.begin_alltoall(None, (&lens, &lens), true, (input, out), passage)?
                }
                BlockCollective::ReduceScatter(dtype) => {
                    let parts = Parts::even(input.len() / dtype.size_bytes(), size);
                    self.begin_reduce_scatter(None, (Reduction::Sum, dtype), parts, (input, out), passage)?
                }
            }
        };
        self.complete(begun)
    }

    /// Returns this rank's place in a process set, and the number of the set's ranks.
    ///
    /// # Panics
    /// If this rank is not in it.
    pub fn place_in(&self, set: ProcessSet) -> (usize, usize) {
        let Some(members) = set else { return (self.rank(), self.size()) };
        let place = members.iter().position(|member| *member == self.rank());
        (place.expect("a rank takes part in collectives of its own sets"), members.len())
    }

    fn cut(plan: Plan, set: ProcessSet, dtype: DType, segment_bytes: usize) -> Schedule {
        let plan = if let Some(members) = set { plan.among(members) } else { plan };
        Schedule::of(&plan, dtype, segment_bytes)
    }

    fn cut_bytes(&self, plan: Plan, set: ProcessSet) -> Arc<Schedule> {
        Arc::new(Self::cut(plan, set, DType::U8, self.executor.runner.segment_bytes()))
    }

    fn is_in_memory(&self, set: ProcessSet) -> bool {
        set.is_none() && self.is_in_one_memory()
    }

    /// Begins to reduce `data` over the ranks of a set, which all of them get.
    ///
    /// # Safety
    /// As the module's text says.
    pub unsafe fn begin_allreduce_among(
        &mut self,
        set: &[usize],
        (reduction, dtype): Arithmetic,
        data: *mut [u8],
        passage: Passage,
    ) -> Ticket {
        let (place, size) = self.place_in(Some(set));
        let sum = Sum { reduction, ..Sum::of(self.choice, dtype, data.len()) };
        let (plan, segment_bytes) =
            sum.plan((place, size), &Placement::apart(size), (&self.learned.model, None), self.cuts);
        let schedule = Arc::new(Self::cut(plan, Some(set), dtype, segment_bytes).by(reduction));
        // SAFETY: as the caller promises.
        unsafe { self.executor.begin(&schedule, data, passage.stamp, passage.priority) }
    }

    /// Begins to make `data` that of the `root` of the set, whose own is only read. `None` if it is done.
    ///
    /// # Safety
    /// As the module's text says.
    pub unsafe fn begin_broadcast(
        &mut self,
        set: ProcessSet,
        root: usize,
        data: *mut [u8],
        passage: Passage,
    ) -> Result<Option<Ticket>> {
        if self.is_in_memory(set) {
            // SAFETY: as the caller promises; the root's data are only read.
            return unsafe { self.broadcast_in_memory(root, data, passage.stamp) }.map(|()| None);
        }
        let (place, size) = self.place_in(set);
        let schedule = self.cut_bytes(ringpull_plan::broadcast(root, place, size, data.len()), set);
        // SAFETY: as the caller promises; the root's schedule only sends.
        Ok(Some(unsafe { self.executor.begin(&schedule, data, passage.stamp, passage.priority) }))
    }

    /// Begins to give every rank of the set all parts of `data`, bounded in bytes, of which each has brought
    /// its own. `None` if it is done.
    ///
    /// # Safety
    /// As the module's text says.
    pub unsafe fn begin_allgather(
        &mut self,
        set: ProcessSet,
        parts: Parts,
        data: *mut [u8],
        passage: Passage,
    ) -> Result<Option<Ticket>> {
        if self.is_in_memory(set)
            && let Some(node) = &mut self.placement.node
        {
            let (stop, limit) = (Arc::clone(&self.executor.stop), self.executor.runner.limit);
            let limits = WaitLimits { stamp: passage.stamp, stop: &stop, limit };
            // SAFETY: the caller gives the memory away until this is done.
            return node.allgather(unsafe { &mut *data }, &parts, limits).map(|()| None);
        }
        let (place, size) = self.place_in(set);
        let schedule = self.cut_bytes(ringpull_plan::allgather(place, size, parts), set);
        // SAFETY: as the caller promises.
        Ok(Some(unsafe { self.executor.begin(&schedule, data, passage.stamp, passage.priority) }))
    }

    /// Begins to make `out` the reduction of this rank's part of every rank's `input`, which has `parts`, in
    /// elements. `None` if it is done.
    ///
    /// # Safety
    /// As the module's text says; the input is only read.
    pub unsafe fn begin_reduce_scatter(
        &mut self,
        set: ProcessSet,
        (reduction, dtype): Arithmetic,
        parts: Parts,
        (input, out): (*const [u8], *mut [u8]),
        passage: Passage,
    ) -> Result<Option<Ticket>> {
        let ((place, size), element) = (self.place_in(set), dtype.size_bytes());
        if self.is_in_memory(set)
            && let Some(node) = &mut self.placement.node
        {
            let (stop, limit) = (Arc::clone(&self.executor.stop), self.executor.runner.limit);
            let limits = WaitLimits { stamp: passage.stamp, stop: &stop, limit };
            let bounds = Parts::of((0..=size).map(|rank| parts.range(0..rank).end * element).collect());
            // SAFETY: the caller gives the memory away until this is done.
            let buffers = unsafe { (&*input, &mut *out) };
            return node.reduce_scatter_into((reduction, dtype), buffers, &bounds, limits).map(|()| None);
        }
        let own = parts.range(place..place + 1);
        let own = own.start * element..own.end * element;
        // SAFETY: the part lies in the input, and the output, which is another buffer, has its length.
        unsafe { copy(input.cast::<u8>().wrapping_add(own.start), out.cast(), own.len()) };
        let (way, segment_bytes) = choose_reduce_scatter(&self.learned.model, parts.len() * element, size, self.cuts);
        let plan = ringpull_plan::reduce_scatter(way, place, size, parts);
        let schedule = Arc::new(Self::cut(plan, set, dtype, segment_bytes).by(reduction));
        let endpoint = Box::new(ReduceScatterEnd::new((reduction, dtype), input.cast(), out.cast(), own));
        // SAFETY: as the caller promises; sums on their way stand in memory of the endpoint's.
        Ok(Some(unsafe { self.executor.begin_between(&schedule, endpoint, passage.stamp, passage.priority) }))
    }

    /// Begins to give each rank of the set its block of `input`, and to take its own out of theirs into
    /// `out`. Blocks have these lengths in bytes; `are_equal` is the same on every rank. `None` if it is
    /// done.
    ///
    /// # Safety
    /// As the module's text says; the input is only read.
    pub unsafe fn begin_alltoall(
        &mut self,
        set: ProcessSet,
        (given, taken): (&[usize], &[usize]),
        are_equal: bool,
        (input, out): (*const [u8], *mut [u8]),
        passage: Passage,
    ) -> Result<Option<Ticket>> {
        if are_equal
            && self.is_in_memory(set)
            && let Some(node) = &mut self.placement.node
        {
            let (stop, limit) = (Arc::clone(&self.executor.stop), self.executor.runner.limit);
            let limits = WaitLimits { stamp: passage.stamp, stop: &stop, limit };
            // SAFETY: the caller gives the memory away until this is done.
            let (input, out) = unsafe { (&*input, &mut *out) };
            return node.alltoall(input, out, limits).map(|()| None);
        }
        let (place, size) = self.place_in(set);
        let parts = Parts::of_lens(given.iter().chain(taken).copied());
        let (own, kept) = (parts.range(place..place + 1), parts.range(size + place..size + place + 1));
        let Segments { most_bytes, is_fixed } = self.cuts;
        let segment_bytes = if is_fixed { most_bytes } else { most_bytes.min(ALLTOALL_SEGMENT_BYTES) };
        let schedule = self.cut_bytes(ringpull_plan::alltoall(place, size, &parts, segment_bytes), set);
        let own = (own, kept.start - input.len());
        // SAFETY: as the caller promises; what a rank has for itself has one length in its two buffers.
        let endpoint = unsafe { BlockExchange::new((input.cast(), input.len()), out.cast(), own, schedule.arrivals()) };
        let endpoint = Box::new(endpoint);
        // SAFETY: as the caller promises.
        Ok(Some(unsafe { self.executor.begin_between(&schedule, endpoint, passage.stamp, passage.priority) }))
    }
}

/// # Safety
/// Both are valid for `len_bytes` and do not overlap.
unsafe fn copy(from: *const u8, to: *mut u8, len_bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len_bytes) }
}
