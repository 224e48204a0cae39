//! What `dist_sync_mpi` asks of its engine: init, dense pushes as they are and compressed, row-sparse pushes.
#![allow(unsafe_code)]

use std::sync::Arc;

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::communicator::Parts;
use ringpull_allreduce::progress::{Job, Launch, Transfer};
use ringpull_base::{Buffer, Error, Reduction, Result, TensorMut, unshare};

use crate::compressed::Coding;
use crate::slot::Slot;
use crate::update::{Update, Updates};
use crate::{Contribution, Entry, MergedRows};

/// Rank 0's value becomes everybody's.
pub(super) struct Init {
    slot: Arc<Slot>,
    value: Arc<Buffer>,
}

impl Init {
    pub(super) fn new(slot: &Arc<Slot>, value: Arc<Buffer>) -> Self {
        Init { slot: Arc::clone(slot), value }
    }
}

impl Job for Init {
    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        if comm.rank() == 0 {
            // It may be the caller's tensor, which is only read.
            // SAFETY: `fail` never frees the memory.
            return unsafe { comm.broadcast_own(self.value.bytes(), launch.number) };
        }
        self.value = Arc::new(Buffer::zeroed(self.slot.entry.len_bytes()));
        // SAFETY: as above.
        unsafe { comm.broadcast(0, unshare(&mut self.value).bytes_mut(), launch.number) }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.slot.settle(self.value);
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.slot.fail(fault);
        std::mem::forget(self.value);
    }
}

/// A dense gradient on its way: summed in an output if there is one, so that nothing is copied that need not
/// be.
pub(super) struct Push {
    slot: Arc<Slot>,
    gradient: Option<Contribution>,
    place: Place,
    outs: Vec<TensorMut>,
    update: Update,
    updates: Arc<Updates>,
    priority: i32,
    keeps: bool,
}

/// Where the sum stands.
enum Place {
    /// Nowhere yet.
    Open,
    /// In an output.
    Output(usize),
    /// In memory of the store's own.
    Own(Buffer),
}

impl Push {
    pub(super) fn new(
        slot: &Arc<Slot>,
        gradient: Contribution,
        outs: Vec<TensorMut>,
        update: Update,
        updates: &Arc<Updates>,
        priority: i32,
    ) -> Self {
        let output = match &gradient {
            Contribution::InPlace(index) => outs.get(*index),
            Contribution::Held(_) => outs.first(),
            Contribution::Summed(_) => None,
        };
        let keeps = !matches!(update, Update::Overwrite) || output.is_none_or(|out| !out.is_unkept());
        let (slot, updates, gradient) = (Arc::clone(slot), Arc::clone(updates), Some(gradient));
        Push { slot, gradient, place: Place::Open, outs, update, updates, priority, keeps }
    }

    /// Whether the key has a value afterwards.
    pub(super) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Puts the gradient where it will be summed.
    fn put(&mut self) -> Place {
        // An overwritten value is not needed any more: with it gone, memory that it shares with an output is
        // written in place.
        let old = if matches!(self.update, Update::Overwrite) { self.slot.take_value() } else { None };
        match self.gradient.take() {
            Some(Contribution::InPlace(index)) => {
                self.recycle(old, index);
                Place::Output(index)
            }
            Some(Contribution::Summed(sum)) => Place::Own(sum),
            Some(Contribution::Held(value)) if self.outs.is_empty() => {
                let free = old.and_then(Arc::into_inner).filter(|old| !old.is_foreign());
                let own = match free.or_else(|| self.slot.take_scratch()) {
                    Some(mut own) => {
                        own.bytes_mut().copy_from_slice(value.bytes());
                        own
                    }
                    None => Buffer::copy_of(value.bytes()),
                };
                Place::Own(own)
            }
            Some(Contribution::Held(value)) => {
                self.recycle(old, 0);
                self.outs[0].copy_from(value.bytes());
                Place::Output(0)
            }
            None => unreachable!("a gradient is put into its place once"),
        }
    }
}

impl Push {
    /// Keeps the memory of an overwritten value for the copy that a sum in foreign memory will need; any
    /// other may share it.
    fn recycle(&self, old: Option<Arc<Buffer>>, index: usize) {
        if self.keeps
            && self.outs[index].is_foreign()
            && let Some(own) = old.and_then(Arc::into_inner)
        {
            self.slot.keep_scratch(own);
        }
    }

    /// The sum in that output as the key's value: shared with it, or a copy of foreign memory.
    fn kept(&self, index: usize) -> Arc<Buffer> {
        let out = &self.outs[index];
        match if out.is_foreign() { self.slot.take_scratch() } else { None } {
            Some(mut own) => {
                own.bytes_mut().copy_from_slice(out.bytes());
                Arc::new(own)
            }
            None => out.snapshot(),
        }
    }
}

impl Job for Push {
    fn transfer(&self) -> Transfer {
        let entry = &self.slot.entry;
        let (reduction, len_bytes) = (Reduction::Sum, entry.len_bytes());
        Transfer::Sum { dtype: entry.dtype, reduction, len_bytes, priority: self.priority }
    }

    fn addend(&mut self) -> &mut [u8] {
        if matches!(self.place, Place::Open) {
            self.place = self.put();
        }
        match &mut self.place {
            Place::Output(index) => self.outs[*index].bytes_mut(),
            Place::Own(sum) => sum.bytes_mut(),
            Place::Open => unreachable!("the gradient has just been put into its place"),
        }
    }

    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        let dtype = self.slot.entry.dtype;
        // SAFETY: `fail` never frees the memory.
        unsafe { comm.allreduce(dtype, self.addend(), launch.number) }
    }

    fn is_soon_finished(&self) -> bool {
        const SHORT_BYTES: usize = 64 << 10;
        let is_short = self.slot.entry.len_bytes() * self.outs.len().max(1) <= SHORT_BYTES;
        is_short && matches!(self.update, Update::Overwrite) && self.outs.iter().all(TensorMut::is_simply_dropped)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let overwrites = matches!(self.update, Update::Overwrite);
        let value = match std::mem::replace(&mut self.place, Place::Open) {
            Place::Open => return Ok(()),
            Place::Output(index) if !self.keeps => {
                self.slot.settle_in(index, self.outs);
                return Ok(());
            }
            Place::Output(index) if overwrites => self.kept(index),
            Place::Own(sum) if overwrites => Arc::new(sum),
            place => {
                let sum = match &place {
                    Place::Output(index) => self.outs[*index].bytes(),
                    Place::Own(sum) => sum.bytes(),
                    Place::Open => &[],
                };
                let updated = self.slot.updated(&self.updates, &self.update, sum);
                if let Place::Own(sum) = place {
                    self.slot.keep_scratch(sum);
                }
                match updated {
                    Ok(value) => value,
                    Err(fault) => {
                        self.fail(&fault);
                        return Err(fault);
                    }
                }
            }
        };
        self.slot.settle_with(value, self.outs);
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.slot.fail(fault);
        self.outs.into_iter().for_each(|out| out.abandon(fault.clone()));
        std::mem::forget(self.place);
    }
}

/// A row-sparse gradient on its way: every rank gets every rank's rows and sums them in the order of the
/// ranks.
pub(super) struct PushRows {
    slot: Arc<Slot>,
    gradient: MergedRows,
    update: Update,
    updates: Arc<Updates>,
}

impl PushRows {
    pub(super) fn new(slot: &Arc<Slot>, gradient: MergedRows, update: Update, updates: &Arc<Updates>) -> Self {
        PushRows { slot: Arc::clone(slot), gradient, update, updates: Arc::clone(updates) }
    }
}

/// Every rank's rows, summed in the order of the ranks. Collective.
pub(super) fn sum_rows(
    comm: &mut Communicator,
    launch: &Launch,
    entry: &Entry,
    own: &MergedRows,
) -> Result<MergedRows> {
    let (ranks, row_bytes) = (comm.size(), entry.row_bytes());
    let gather = |comm: &mut Communicator, own: &[u8], bounds: Vec<usize>| -> Result<Buffer> {
        comm.gather(Parts::of(bounds), launch.number, |part| part.copy_from_slice(own))
    };
    let own_rows = own.ids.len() as u64;
    let each = size_of_val(&own_rows);
    let counts = gather(comm, &own_rows.to_ne_bytes(), (0..=ranks).map(|rank| rank * each).collect())?;
    let counts: &[u64] = bytemuck::cast_slice(counts.bytes());
    let bounds_of = |row_bytes: usize| {
        let ends = counts.iter().scan(0, |end, rows| {
            *end += *rows as usize * row_bytes;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect::<Vec<usize>>()
    };
    let ids = gather(comm, bytemuck::cast_slice(&own.ids), bounds_of(size_of::<i64>()))?;
    let rows = gather(comm, own.rows.bytes(), bounds_of(row_bytes))?;
    let ids: &[i64] = bytemuck::cast_slice(ids.bytes());
    let bounds = bounds_of(1);
    let parts = bounds.windows(2).map(|part| {
        let (start, end) = (part[0], part[1]);
        (&ids[start..end], &rows.bytes()[start * row_bytes..end * row_bytes])
    });
    Ok(MergedRows::sum_of(entry, parts))
}

impl Job for PushRows {
    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        self.gradient = sum_rows(comm, launch, &self.slot.entry, &self.gradient)?;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let entry = &self.slot.entry;
        let mut value = self.slot.take_value().unwrap_or_else(|| Arc::new(Buffer::zeroed(entry.len_bytes())));
        if let Err(fault) = self.updates.apply_rows(&self.update, entry, &self.gradient, &mut value) {
            self.slot.fail(&fault);
            return Err(fault);
        }
        self.slot.settle(value);
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.slot.fail(fault);
        std::mem::forget(self.gradient);
    }
}

/// A dense gradient that travels compressed. The sum is decoded into an output if there is one.
pub(super) struct CompressedPush {
    slot: Arc<Slot>,
    gradient: Option<Contribution>,
    /// The sum.
    sum: Option<Arc<Buffer>>,
    outs: Vec<TensorMut>,
    update: Update,
    updates: Arc<Updates>,
    coding: Coding,
}

impl CompressedPush {
    pub(super) fn new(
        slot: &Arc<Slot>,
        gradient: Contribution,
        outs: Vec<TensorMut>,
        update: Update,
        updates: &Arc<Updates>,
        coding: Coding,
    ) -> Self {
        let (slot, updates, gradient) = (Arc::clone(slot), Arc::clone(updates), Some(gradient));
        CompressedPush { slot, gradient, sum: None, outs, update, updates, coding }
    }
}

impl Job for CompressedPush {
    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        // An overwritten value is not needed any more: with it gone, memory that it shares with an output is
        // written in place.
        let old = if matches!(self.update, Update::Overwrite) { self.slot.take_value() } else { None };
        let Coding { compression, feedback } = &self.coding;
        let mut feedback = feedback.lock();
        let mut reduce = |gradient: Option<&[u8]>, out: &mut [u8]| {
            let (gradient, out) = (gradient.map(bytemuck::cast_slice), bytemuck::cast_slice_mut(out));
            comm.allreduce_compressed(compression, &mut feedback, gradient, out, launch.number)
        };
        let sum = match self.gradient.take() {
            Some(Contribution::InPlace(index)) => {
                drop(old);
                reduce(None, self.outs[index].bytes_mut())?;
                self.outs[index].snapshot()
            }
            Some(Contribution::Held(value)) if !self.outs.is_empty() => {
                drop(old);
                reduce(Some(value.bytes()), self.outs[0].bytes_mut())?;
                self.outs[0].snapshot()
            }
            Some(Contribution::Held(value)) => {
                let recycled = old.and_then(Arc::into_inner).filter(|buffer| !buffer.is_foreign());
                let mut sum = recycled.unwrap_or_else(|| Buffer::zeroed(value.bytes().len()));
                reduce(Some(value.bytes()), sum.bytes_mut())?;
                Arc::new(sum)
            }
            Some(Contribution::Summed(mut sum)) => {
                reduce(None, sum.bytes_mut())?;
                Arc::new(sum)
            }
            None => return Ok(()),
        };
        self.sum = Some(sum);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let Some(sum) = self.sum.take() else { return Ok(()) };
        if matches!(self.update, Update::Overwrite) {
            self.slot.settle_with(sum, self.outs);
            return Ok(());
        }
        match self.slot.updated(&self.updates, &self.update, sum.bytes()) {
            Ok(value) => {
                self.slot.settle_with(value, self.outs);
                Ok(())
            }
            Err(fault) => {
                self.fail(&fault);
                Err(fault)
            }
        }
    }

    fn fail(self: Box<Self>, fault: &Error) {
        // The transport has only ever seen codes: the outputs may be freed.
        self.slot.fail(fault);
        self.outs.into_iter().for_each(|out| out.fail(fault.clone()));
    }
}
