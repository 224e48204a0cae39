//! The jobs that `dist_sync_mpi` gives its engine: init, dense pushes as they are and compressed, row-sparse
//! pushes.

use std::ops::Range;
use std::sync::Arc;

use ringpull_allreduce::communicator::{BegunOperation, Communicator, PartUpdate, Parts, Passage};
use ringpull_allreduce::interpreter::Memory;
use ringpull_allreduce::progress::{Job, Launch, Transfer};
use ringpull_base::timeline::{self, Phase};
use ringpull_base::{Buffer, Error, Reduction, Result, TensorMut, unshare};
use ringpull_kernels::compress::Feedback;
use ringpull_kernels::optim::{Optimizer, slot_element_bytes};

use crate::compressed::Coding;
use crate::slot::{LastSum, Slot};
use crate::sum_rows::sum_rows;
use crate::update::{Update, Updates};
use crate::{Contribution, Entry, MergedRows, SavedStates};

/// Rank 0's value becomes everybody's.
pub(super) struct Init {
    slot: Arc<Slot>,
    value: Arc<Buffer>,
    /// This rank's value, in a job in which it may become everybody's when rank 0 is lost.
    own: Option<Arc<Buffer>>,
    is_begun: bool,
    is_sent: bool,
}

impl Init {
    pub(super) fn new(slot: &Arc<Slot>, value: Arc<Buffer>, is_elastic: bool) -> Self {
        let own = is_elastic.then(|| Arc::new(Buffer::copy_of(value.bytes())));
        Init { slot: Arc::clone(slot), value, own, is_begun: false, is_sent: false }
    }
}

impl Job for Init {
    fn transfer(&self) -> Transfer {
        Transfer::Messages { priority: 0 }
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<BegunOperation>> {
        if std::mem::replace(&mut self.is_sent, true) {
            return Ok(None);
        }
        self.slot.begin_once(&mut self.is_begun);
        // Rank 0's may be the caller's tensor, which is only read.
        let data = if comm.rank() == 0 {
            Memory::Shared(Arc::clone(&self.value))
        } else {
            Memory::Own(Buffer::zeroed(self.slot.entry.len_bytes()))
        };
        Ok(Some(comm.begin_broadcast(None, 0, data, Passage { stamp: launch.number, priority: 0 })))
    }

    fn receive(&mut self, memory: Memory) {
        if let Memory::Own(value) = memory {
            self.value = Arc::new(value);
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        if self.own.is_some() {
            self.slot.keep_last(LastSum::Dense(Arc::clone(&self.value)));
        }
        self.slot.settle(self.value);
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.slot.fail(fault);
    }

    fn again(&mut self) -> bool {
        let Some(own) = &self.own else { return false };
        (self.value, self.is_sent) = (Arc::new(Buffer::copy_of(own.bytes())), false);
        true
    }

    fn given(mut self: Box<Self>, value: &[u8]) -> Result<()> {
        self.slot.begin_once(&mut self.is_begun);
        self.value = Arc::new(Buffer::copy_of(value));
        self.finish()
    }
}

/// A dense gradient on its way: summed in an output if there is one, so that nothing is copied that need not
/// be.
pub(super) struct Push {
    slot: Arc<Slot>,
    gradient: Option<Contribution>,
    /// The value that a sharded update has begun with.
    old: Option<Arc<Buffer>>,
    place: Place,
    outs: Vec<TensorMut>,
    update: Update,
    updates: Arc<Updates>,
    priority: i32,
    keeps: bool,
    /// True if it can be done again, in a job that goes on without lost ranks. Nothing that the store has is
    /// changed before the sum is there. The sum is made in memory of its own, beside the gradient, because
    /// MPI may still write into the memory of a sum that was given up.
    is_elastic: bool,
    is_begun: bool,
}

/// The place of the sum.
enum Place {
    /// Nowhere yet.
    Open,
    /// In an output.
    Output(usize),
    /// In memory of the store's own.
    Own(Buffer),
    /// At the transport, in that output or in the store's own memory.
    Lent(Option<usize>),
}

impl Push {
    pub(super) fn new(
        slot: &Arc<Slot>,
        gradient: Contribution,
        outs: Vec<TensorMut>,
        update: Update,
        updates: &Arc<Updates>,
        (priority, is_elastic): (i32, bool),
    ) -> Self {
        let is_elastic = is_elastic && !matches!(update, Update::Shard(_));
        let output = match &gradient {
            Contribution::InPlace(index) => outs.get(*index),
            Contribution::Held(_) => outs.first(),
            Contribution::Summed(_) => None,
        };
        let overwrites = matches!(update, Update::Overwrite);
        let keeps = is_elastic || !overwrites || output.is_none_or(|out| !out.is_unkept());
        let (slot, updates, gradient) = (Arc::clone(slot), Arc::clone(updates), Some(gradient));
        let (old, place, is_begun) = (None, Place::Open, false);
        Push { slot, gradient, old, place, outs, update, updates, priority, keeps, is_elastic, is_begun }
    }

    /// Returns true if the key has a value afterwards.
    pub(super) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Puts the gradient where it will be summed.
    fn put(&mut self) -> Place {
        // An overwritten value is not needed any more: with it gone, memory that it shares with an output is
        // written in place.
        let old = if self.update.overwrites() { self.old.take().or_else(|| self.slot.take_value()) } else { None };
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

    /// Copies the gradient for one sum of several.
    fn copy(&mut self) -> Buffer {
        let gradient = self.gradient.as_mut().expect("a gradient is kept until its sum is done");
        gradient.take_over();
        Buffer::copy_of(gradient.bytes(&self.outs))
    }

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
        let is_divided = matches!(self.update, Update::Shard(_));
        Transfer::Sum { dtype: entry.dtype, reduction, len_bytes, priority: self.priority, is_divided }
    }

    fn part_update(&mut self, part: Range<usize>) -> Result<PartUpdate> {
        let Update::Shard(optimizer) = &self.update else { return Err(Error::bug("a whole update has no part")) };
        let value = self.slot.begin_with_value()?;
        let mut step = self.updates.begin_shard(optimizer, &self.slot.entry, part, value.bytes())?;
        self.old = Some(value);
        let key = self.slot.entry.key.clone();
        Ok(Box::new(move |start, sums| {
            let _span = timeline::span(Phase::Update, || &key).bytes(sums.len());
            let weights = step.apply(start, sums);
            sums.copy_from_slice(weights);
            Ok(())
        }))
    }

    fn lend(&mut self) -> Memory {
        if !matches!(self.update, Update::Shard(_)) {
            self.slot.begin_once(&mut self.is_begun);
        }
        let place = if self.is_elastic { Place::Own(self.copy()) } else { self.put() };
        let (memory, output) = match place {
            Place::Output(index) => (Memory::Written(self.outs.remove(index)), Some(index)),
            Place::Own(sum) => (Memory::Own(sum), None),
            Place::Open | Place::Lent(_) => unreachable!("the gradient has just been put into its place"),
        };
        self.place = Place::Lent(output);
        memory
    }

    fn receive(&mut self, memory: Memory) {
        self.place = match self.place {
            Place::Lent(Some(index)) => {
                self.outs.insert(index, memory.into_tensor());
                Place::Output(index)
            }
            _ => Place::Own(memory.into_buffer()),
        };
    }

    fn is_soon_finished(&self) -> bool {
        const SHORT_BYTES: usize = 64 << 10;
        let is_short = self.slot.entry.len_bytes() * self.outs.len().max(1) <= SHORT_BYTES;
        is_short && !self.is_elastic && self.update.overwrites() && self.outs.iter().all(TensorMut::is_simply_dropped)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let overwrites = self.update.overwrites();
        let value = match std::mem::replace(&mut self.place, Place::Open) {
            Place::Open | Place::Lent(_) => return Ok(()),
            Place::Output(index) if !self.keeps => {
                self.slot.settle_in(index, self.outs);
                return Ok(());
            }
            Place::Output(index) if overwrites => Ok(self.kept(index)),
            Place::Output(index) => self.slot.updated(&self.updates, &self.update, self.outs[index].bytes()),
            Place::Own(sum) if self.is_elastic => {
                let sum = Arc::new(sum);
                self.slot.keep_last(LastSum::Dense(Arc::clone(&sum)));
                self.slot.value_after(&self.updates, &self.update, sum)
            }
            Place::Own(sum) if overwrites => Ok(Arc::new(sum)),
            Place::Own(sum) => {
                let updated = self.slot.updated(&self.updates, &self.update, sum.bytes());
                self.slot.keep_scratch(sum);
                updated
            }
        };
        self.slot.settle_with(value, self.outs)
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.slot.fail_with(fault, self.outs);
    }

    fn again(&mut self) -> bool {
        if self.is_elastic {
            self.place = Place::Open;
        }
        self.is_elastic
    }

    fn given(mut self: Box<Self>, sum: &[u8]) -> Result<()> {
        self.slot.begin_once(&mut self.is_begun);
        self.place = Place::Own(Buffer::copy_of(sum));
        self.finish()
    }
}

/// A row-sparse gradient on its way: every rank gets the sum of all ranks' rows.
pub(super) struct PushRows {
    slot: Arc<Slot>,
    gradient: MergedRows,
    /// The value that a sharded optimizer has made.
    value: Option<Arc<Buffer>>,
    update: Update,
    updates: Arc<Updates>,
    is_elastic: bool,
    is_begun: bool,
}

impl PushRows {
    pub(super) fn new(
        slot: &Arc<Slot>,
        gradient: MergedRows,
        update: Update,
        updates: &Arc<Updates>,
        is_elastic: bool,
    ) -> Self {
        let (slot, updates) = (Arc::clone(slot), Arc::clone(updates));
        PushRows { slot, gradient, value: None, update, updates, is_elastic, is_begun: false }
    }
}

/// This rank's step of the rows of a key, and then those of all ranks. Collective.
fn shard_rows(
    comm: &mut Communicator,
    launch: &Launch,
    (updates, optimizer): (&Updates, &Arc<Optimizer>),
    entry: &Entry,
    gradient: &MergedRows,
    value: &mut Arc<Buffer>,
) -> Result<()> {
    let (row_bytes, parts) = (entry.row_bytes(), parts_of(entry, comm.size()));
    let part = |rank: usize| parts.range(rank..rank + 1);
    // What a rank owns of the rows, each piece with its place in the key and its row among those of
    // `gradient`.
    let pieces = |rank: usize| {
        let (part, ids) = (part(rank), gradient.ids.iter().enumerate());
        ids.filter_map(move |(at, id)| {
            let row = *id as usize * row_bytes;
            let (start, end) = (row.max(part.start), (row + row_bytes).min(part.end));
            (start < end).then(|| (start..end, at * row_bytes + start - row))
        })
    };
    let mut step = updates.begin_shard(optimizer, entry, part(comm.rank()), value.bytes())?;
    let lens = (0..comm.size()).map(|rank| pieces(rank).map(|(place, _)| place.len()).sum());
    let own = comm.rank();
    let all = comm.gather(Parts::of_lens(lens), launch.number, |mut rest| {
        for (place, from) in pieces(own) {
            let (piece, behind) = std::mem::take(&mut rest).split_at_mut(place.len());
            piece.copy_from_slice(step.apply(place.start, &gradient.rows.bytes()[from..from + place.len()]));
            rest = behind;
        }
    })?;
    let (mut rest, value) = (all.bytes(), unshare(value).bytes_mut());
    for (place, _) in (0..comm.size()).flat_map(pieces) {
        let (piece, behind) = rest.split_at(place.len());
        value[place].copy_from_slice(piece);
        rest = behind;
    }
    Ok(())
}

/// Returns the parts of a key that the ranks of a sharded optimizer own, in bytes.
pub(super) fn parts_of(entry: &Entry, ranks: usize) -> Parts {
    let (parts, element) = (Parts::even(entry.len(), ranks), entry.dtype.size_bytes());
    Parts::of((0..=ranks).map(|rank| parts.range(0..rank).end * element).collect())
}

/// Every rank's part of the states of these keys, made whole in `states`. Collective.
pub(super) fn join_shards(
    comm: &mut Communicator,
    stamp: u32,
    entries: &[Entry],
    mut states: SavedStates,
) -> Result<SavedStates> {
    for entry in entries {
        let (parts, element) = (Parts::even(entry.len(), comm.size()), slot_element_bytes(entry.dtype));
        let bounds: Vec<usize> = (0..=comm.size()).map(|rank| parts.range(0..rank).end * element).collect();
        for slot in states.states.get_mut(&entry.key).into_iter().flat_map(|state| &mut state.slots) {
            let whole = comm.gather(Parts::of(bounds.clone()), stamp, |part| part.copy_from_slice(slot))?;
            *slot = whole.bytes().to_vec();
        }
    }
    Ok(states)
}

impl Job for PushRows {
    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        let Update::Shard(optimizer) = &self.update else {
            self.slot.begin_once(&mut self.is_begun);
            self.gradient = sum_rows(comm, launch, &self.slot.entry, &self.gradient)?;
            return Ok(());
        };
        let mut value = self.slot.begin_with_value()?;
        self.gradient = sum_rows(comm, launch, &self.slot.entry, &self.gradient)?;
        let entry = &self.slot.entry;
        shard_rows(comm, launch, (&self.updates, optimizer), entry, &self.gradient, &mut value)?;
        self.value = Some(value);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        if let Some(value) = self.value {
            self.slot.settle(value);
            return Ok(());
        }
        let entry = &self.slot.entry;
        if self.is_elastic {
            self.slot.keep_last(LastSum::Rows(rows_to_bytes(&self.gradient)));
        }
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
    }

    fn again(&mut self) -> bool {
        self.is_elastic && !matches!(self.update, Update::Shard(_))
    }

    fn given(mut self: Box<Self>, rows: &[u8]) -> Result<()> {
        self.slot.begin_once(&mut self.is_begun);
        self.gradient = rows_of_bytes(rows)?;
        self.finish()
    }
}

fn rows_to_bytes(rows: &MergedRows) -> Vec<u8> {
    let mut bytes = (rows.ids.len() as u64).to_ne_bytes().to_vec();
    bytes.extend_from_slice(bytemuck::cast_slice(&rows.ids));
    bytes.extend_from_slice(rows.rows.bytes());
    bytes
}

fn rows_of_bytes(bytes: &[u8]) -> Result<MergedRows> {
    let count = bytes.get(..8).map(bytemuck::pod_read_unaligned::<u64>);
    let ids_bytes = count.and_then(|count| usize::try_from(count).ok()?.checked_mul(size_of::<i64>()));
    let parts = ids_bytes.and_then(|ids_bytes| bytes[8..].split_at_checked(ids_bytes));
    let (ids, rows) = parts.ok_or_else(|| Error::bug("rows that other ranks have cannot be read"))?;
    let ids = ids.chunks_exact(size_of::<i64>()).map(bytemuck::pod_read_unaligned).collect();
    Ok(MergedRows { ids, rows: Arc::new(Buffer::copy_of(rows)) })
}

/// A dense gradient that travels compressed. The sum is decoded into an output if there is one.
pub(super) struct CompressedPush {
    slot: Arc<Slot>,
    gradient: Option<Contribution>,
    /// The memory of the sum, if it is not an output.
    own: Option<Buffer>,
    /// The sum, or the value that a sharded optimizer has made of it.
    sum: Option<Arc<Buffer>>,
    outs: Vec<TensorMut>,
    update: Update,
    updates: Arc<Updates>,
    coding: Coding,
    /// As of a [`Push`].
    is_elastic: bool,
    is_begun: bool,
    /// The feedback before the push, for another sum after a loss.
    before: Option<Feedback>,
}

impl CompressedPush {
    pub(super) fn new(
        slot: &Arc<Slot>,
        gradient: Contribution,
        outs: Vec<TensorMut>,
        update: Update,
        updates: &Arc<Updates>,
        (coding, is_elastic): (Coding, bool),
    ) -> Self {
        let is_elastic = is_elastic && !matches!(update, Update::Shard(_));
        let (slot, updates, gradient) = (Arc::clone(slot), Arc::clone(updates), Some(gradient));
        let (own, sum, before, is_begun) = (None, None, None, false);
        CompressedPush { slot, gradient, own, sum, outs, update, updates, coding, is_elastic, is_begun, before }
    }

    /// Makes the sum in memory of its own, beside the gradient.
    fn sum_beside(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        self.slot.begin_once(&mut self.is_begun);
        let gradient = self.gradient.as_mut().expect("a gradient is kept until its sum is done");
        gradient.take_over();
        let Coding { compression, feedback } = &self.coding;
        let mut feedback = feedback.lock();
        match &self.before {
            Some(before) => *feedback = before.clone(),
            None => self.before = Some(feedback.clone()),
        }
        let (mut sum, gradient) = (Buffer::zeroed(self.slot.entry.len_bytes()), gradient.bytes(&self.outs));
        let (gradient, out) = (bytemuck::cast_slice(gradient), bytemuck::cast_slice_mut(sum.bytes_mut()));
        comm.allreduce_compressed(compression, &mut feedback, Some(gradient), out, launch.number)?;
        self.sum = Some(Arc::new(sum));
        Ok(())
    }
}

impl Job for CompressedPush {
    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        if self.is_elastic {
            return self.sum_beside(comm, launch);
        }
        let Some(gradient) = self.gradient.take() else { return Ok(()) };
        let (entry, parts) = (&self.slot.entry, parts_of(&self.slot.entry, comm.size()));
        let part = parts.range(comm.rank()..comm.rank() + 1);
        // An overwritten value is not needed any more: with it gone, memory that it shares with an output is
        // written in place.
        let (old, step) = if let Update::Shard(optimizer) = &self.update {
            let value = self.slot.begin_with_value()?;
            let step = self.updates.begin_shard(optimizer, entry, part.clone(), value.bytes())?;
            (Some(value), Some(step))
        } else {
            self.slot.begin();
            (if self.update.overwrites() { self.slot.take_value() } else { None }, None)
        };
        let (held, index) = match gradient {
            Contribution::InPlace(index) => (None, Some(index)),
            Contribution::Held(value) if !self.outs.is_empty() => (Some(value), Some(0)),
            Contribution::Held(value) => {
                let recycled = old.and_then(Arc::into_inner).filter(|buffer| !buffer.is_foreign());
                self.own = Some(recycled.unwrap_or_else(|| Buffer::zeroed(value.bytes().len())));
                (Some(value), None)
            }
            Contribution::Summed(sum) => {
                self.own = Some(sum);
                (None, None)
            }
        };
        // The transport gets codes, but the weights of a sharded update as they are.
        let mut out = match (index, self.own.take()) {
            (Some(index), _) => Memory::Written(self.outs.remove(index)),
            (None, Some(own)) => Memory::Own(own),
            (None, None) => return Err(Error::bug("a compressed sum has no place")),
        };
        let Coding { compression, feedback } = &self.coding;
        let gradient = held.as_ref().map(|held| bytemuck::cast_slice(held.bytes()));
        let sum = bytemuck::cast_slice_mut(out.bytes_mut());
        let outcome = comm.allreduce_compressed(compression, &mut feedback.lock(), gradient, sum, launch.number);
        if let (Ok(()), Some(mut step)) = (&outcome, step) {
            let sums = &mut out.bytes_mut()[part.clone()];
            let weights = step.apply(part.start, sums);
            sums.copy_from_slice(weights);
            out = comm.allgather(parts, out, launch.number)?;
        }
        match index {
            Some(index) => {
                self.outs.insert(index, out.into_tensor());
                self.sum = outcome.is_ok().then(|| self.outs[index].snapshot());
            }
            None => self.sum = Some(Arc::new(out.into_buffer())),
        }
        outcome
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let Some(sum) = self.sum.take() else { return Ok(()) };
        if self.is_elastic {
            self.slot.keep_last(LastSum::Dense(Arc::clone(&sum)));
        }
        let value = self.slot.value_after(&self.updates, &self.update, sum);
        self.slot.settle_with(value, self.outs)
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.slot.fail_with(fault, self.outs);
    }

    fn again(&mut self) -> bool {
        self.sum = None;
        self.is_elastic
    }

    fn given(mut self: Box<Self>, sum: &[u8]) -> Result<()> {
        self.slot.begin_once(&mut self.is_begun);
        self.sum = Some(Arc::new(Buffer::copy_of(sum)));
        self.finish()
    }
}
