//! The jobs that `dist_sync_mpi` gives its engine: init, dense pushes (uncompressed and compressed) and
//! row-sparse pushes.

use std::ops::Range;
use std::sync::Arc;

use ringpull_allreduce::communicator::{BegunOperation, Communicator, PartUpdate, Parts, Passage};
use ringpull_allreduce::interpreter::Memory;
use ringpull_allreduce::progress::{Collectives, Job, Launch, Script, ScriptStep, Transfer};
use ringpull_base::timeline::{self, Phase};
use ringpull_base::{Buffer, Error, Reduction, Result, TensorMut, unshare};
use ringpull_kernels::compress::{Compression, Feedback};
use ringpull_kernels::optim::{Optimizer, slot_element_bytes};

use crate::compressed::Coding;
use crate::slot::{LastSum, Slot};
use crate::sum_rows::sum_rows;
use crate::update::{ShardStep, Update, Updates};
use crate::{Contribution, Entry, MergedRows, SavedStates};

/// The job of `init`. Every rank gets rank 0's value.
pub(super) struct Init {
    slot: Arc<Slot>,
    value: Arc<Buffer>,
    /// This rank's value, in a job that goes on without lost ranks: if rank 0 is lost, all ranks may get this
    /// value.
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
        // On rank 0 the value may be the caller's tensor, which is only read.
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

/// The push of a dense gradient. The gradient is summed in an output if there is one, which saves a copy.
pub(super) struct Push {
    slot: Arc<Slot>,
    gradient: Option<Contribution>,
    /// The key's value when a sharded update began.
    old: Option<Arc<Buffer>>,
    place: Place,
    outs: Vec<TensorMut>,
    update: Update,
    updates: Arc<Updates>,
    priority: i32,
    keeps: bool,
    /// True if the push can be repeated, in a job that goes on without lost ranks. The store then changes
    /// nothing before the sum is there. The sum has separate memory from the gradient, because MPI may still
    /// write into the memory of a sum that was given up.
    is_elastic: bool,
    is_begun: bool,
}

/// The place of the sum.
enum Place {
    /// The sum has no place yet.
    Open,
    /// The output with this index.
    Output(usize),
    /// Memory of the store.
    Own(Buffer),
    /// The transport has the memory. It is the output with this index, or memory of the store.
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

    /// Returns true if the key has a value after the push.
    pub(super) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Puts the gradient where it will be summed.
    fn put(&mut self) -> Place {
        // An overwritten value is not needed any more. Without it, memory that it shares with an output is
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

    /// Copies the gradient. The gradient is kept for another sum after a loss.
    fn copy(&mut self) -> Buffer {
        let gradient = self.gradient.as_mut().expect("a gradient is kept until its sum is done");
        gradient.take_over();
        Buffer::copy_of(gradient.bytes(&self.outs))
    }

    /// Keeps the memory of an overwritten value for the copy of a sum in foreign memory. A sum in our own
    /// memory needs no copy, because the key's value shares the memory.
    fn recycle(&self, old: Option<Arc<Buffer>>, index: usize) {
        if self.keeps
            && self.outs[index].is_foreign()
            && let Some(own) = old.and_then(Arc::into_inner)
        {
            self.slot.keep_scratch(own);
        }
    }

    /// Returns the key's value, which is the sum in an output. It shares the output's memory, or is a copy if
    /// the memory is foreign.
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
        let Update::Shard(optimizer) = &self.update else {
            return Err(Error::bug("a part of an update that is not sharded"));
        };
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

/// The push of a row-sparse gradient. Every rank gets the sum of all ranks' rows.
pub(super) struct PushRows {
    slot: Arc<Slot>,
    gradient: MergedRows,
    /// The script that makes the sum, while it is under way.
    script: Option<Script<RowSum>>,
    sum: Option<RowSum>,
    update: Update,
    updates: Arc<Updates>,
    priority: i32,
    is_elastic: bool,
    is_begun: bool,
}

/// The sum of all ranks' rows, and the value that a sharded optimizer has computed from it.
struct RowSum {
    rows: MergedRows,
    value: Option<Arc<Buffer>>,
}

impl PushRows {
    pub(super) fn new(
        slot: &Arc<Slot>,
        gradient: MergedRows,
        update: Update,
        updates: &Arc<Updates>,
        (priority, is_elastic): (i32, bool),
    ) -> Self {
        let (slot, updates) = (Arc::clone(slot), Arc::clone(updates));
        let (script, sum, is_begun) = (None, None, false);
        PushRows { slot, gradient, script, sum, update, updates, priority, is_elastic, is_begun }
    }

    fn begin(&mut self, comm: &Communicator, launch: &Launch) -> Result<Script<RowSum>> {
        let shard = if let Update::Shard(optimizer) = &self.update {
            Some((self.slot.begin_with_value()?, Arc::clone(optimizer), Arc::clone(&self.updates)))
        } else {
            self.slot.begin_once(&mut self.is_begun);
            None
        };
        let (entry, own) = (self.slot.entry.clone(), self.gradient.clone());
        let passage = Passage { stamp: launch.number, priority: self.priority };
        Ok(Script::new(comm, passage, |all| async move {
            let rows = sum_rows(&all, &entry, &own).await?;
            let Some((mut value, optimizer, updates)) = shard else { return Ok(RowSum { rows, value: None }) };
            shard_rows(&all, (&updates, &optimizer), &entry, &rows, &mut value).await?;
            Ok(RowSum { rows, value: Some(value) })
        }))
    }
}

/// Updates this rank's part of the rows, and gathers the parts of all ranks into `value`. Collective.
async fn shard_rows(
    all: &Collectives,
    (updates, optimizer): (&Updates, &Arc<Optimizer>),
    entry: &Entry,
    gradient: &MergedRows,
    value: &mut Arc<Buffer>,
) -> Result<()> {
    let (row_bytes, parts) = (entry.row_bytes(), parts_of(entry, all.size));
    let part = |rank: usize| parts.range(rank..rank + 1);
    // The pieces of the rows that a rank owns, each with its offset in the key and in `gradient`.
    let pieces = |rank: usize| {
        let (part, ids) = (part(rank), gradient.ids.iter().enumerate());
        ids.filter_map(move |(at, id)| {
            let row = *id as usize * row_bytes;
            let (start, end) = (row.max(part.start), (row + row_bytes).min(part.end));
            (start < end).then(|| (start..end, at * row_bytes + start - row))
        })
    };
    let mut step = updates.begin_shard(optimizer, entry, part(all.rank), value.bytes())?;
    let lens = (0..all.size).map(|rank| pieces(rank).map(|(place, _)| place.len()).sum());
    let fill = |mut rest: &mut [u8]| {
        for (place, from) in pieces(all.rank) {
            let (piece, behind) = std::mem::take(&mut rest).split_at_mut(place.len());
            piece.copy_from_slice(step.apply(place.start, &gradient.rows.bytes()[from..from + place.len()]));
            rest = behind;
        }
    };
    let weights = all.gather(Parts::of_lens(lens), fill).await?;
    let (mut rest, value) = (weights.bytes(), unshare(value).bytes_mut());
    for (place, _) in (0..all.size).flat_map(pieces) {
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

/// Gathers every rank's part of the optimizer states of these keys into `states`. Collective.
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
    fn transfer(&self) -> Transfer {
        Transfer::Messages { priority: self.priority }
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<BegunOperation>> {
        if self.sum.is_some() {
            return Ok(None);
        }
        let mut script = match self.script.take() {
            Some(script) => script,
            None => self.begin(comm, launch)?,
        };
        match script.advance(comm)? {
            ScriptStep::Begun(begun) => {
                self.script = Some(script);
                Ok(Some(begun))
            }
            ScriptStep::Ended(sum) => {
                self.sum = Some(sum);
                Ok(None)
            }
        }
    }

    fn receive(&mut self, memory: Memory) {
        if let Some(script) = &mut self.script {
            script.receive(memory);
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Some(RowSum { rows, value }) = self.sum else { return Err(Error::bug("rows have ended without a sum")) };
        if let Some(value) = value {
            self.slot.settle(value);
            return Ok(());
        }
        let entry = &self.slot.entry;
        if self.is_elastic {
            self.slot.keep_last(LastSum::Rows(rows_to_bytes(&rows)));
        }
        let mut value = self.slot.take_value().unwrap_or_else(|| Arc::new(Buffer::zeroed(entry.len_bytes())));
        if let Err(fault) = self.updates.apply_rows(&self.update, entry, &rows, &mut value) {
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
        (self.script, self.sum) = (None, None);
        self.is_elastic && !matches!(self.update, Update::Shard(_))
    }

    fn given(mut self: Box<Self>, rows: &[u8]) -> Result<()> {
        self.slot.begin_once(&mut self.is_begun);
        self.sum = Some(RowSum { rows: rows_of_bytes(rows)?, value: None });
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

/// The push of a compressed dense gradient. The sum is decoded into an output if there is one.
pub(super) struct CompressedPush {
    slot: Arc<Slot>,
    /// The gradient, until it is sent.
    gradient: Option<Contribution>,
    /// The memory of the sum. It is the output with the number `index`, or memory of the store if `index` is
    /// `None`.
    out: Memory,
    index: Option<usize>,
    /// The codes of all ranks, if the transport gathers them without adding them.
    codes: Option<Buffer>,
    stage: CodedStage,
    /// The sum, or the value that a sharded optimizer has computed from it.
    sum: Option<Arc<Buffer>>,
    outs: Vec<TensorMut>,
    update: Update,
    /// The step of a sharded optimizer.
    step: Option<ShardStep>,
    updates: Arc<Updates>,
    coding: Coding,
    priority: i32,
    is_begun: bool,
    /// The data for another sum after a loss, in a job that goes on without lost ranks.
    retry: Option<Retry>,
}

/// The progress of a compressed push.
#[derive(Clone, Copy, PartialEq)]
enum CodedStage {
    Open,
    Summing,
    Sharing,
    Done,
}

/// The gradient of a push that may be repeated, and the residuals from before the push. `None` until the push
/// has begun.
#[derive(Default)]
struct Retry(Option<(Arc<Buffer>, Feedback)>);

impl CompressedPush {
    pub(super) fn new(
        slot: &Arc<Slot>,
        gradient: Contribution,
        outs: Vec<TensorMut>,
        update: Update,
        updates: &Arc<Updates>,
        (coding, priority, is_elastic): (Coding, i32, bool),
    ) -> Self {
        let is_elastic = is_elastic && !matches!(update, Update::Shard(_));
        CompressedPush {
            slot: Arc::clone(slot),
            gradient: Some(gradient),
            out: Memory::Nothing,
            index: None,
            codes: None,
            stage: CodedStage::Open,
            sum: None,
            outs,
            update,
            step: None,
            updates: Arc::clone(updates),
            coding,
            priority,
            is_begun: false,
            retry: is_elastic.then(Retry::default),
        }
    }

    /// Returns the gradient and the memory of the sum. The gradient is `Memory::Nothing` if it is in the
    /// memory of the sum.
    fn lend(&mut self, own: Range<usize>) -> Result<(Memory, Memory)> {
        if let Some(Retry(kept)) = &mut self.retry {
            self.slot.begin_once(&mut self.is_begun);
            let mut feedback = self.coding.feedback.lock();
            let (gradient, before) = kept.get_or_insert_with(|| {
                let gradient = self.gradient.take().expect("a gradient is kept until its sum is begun");
                let gradient = match gradient {
                    Contribution::Summed(sum) => sum,
                    other => Buffer::copy_of(other.bytes(&self.outs)),
                };
                (Arc::new(gradient), feedback.clone())
            });
            *feedback = before.clone();
            // The sum gets memory beside the gradient, since the transport may still write into the memory of
            // an earlier sum.
            return Ok((
                Memory::Shared(Arc::clone(gradient)),
                Memory::Own(Buffer::zeroed(self.slot.entry.len_bytes())),
            ));
        }
        // An overwritten value is not needed any more. Without it, memory that it shares with an output is
        // written in place.
        let old = if let Update::Shard(optimizer) = &self.update {
            let value = self.slot.begin_with_value()?;
            self.step = Some(self.updates.begin_shard(optimizer, &self.slot.entry, own, value.bytes())?);
            Some(value)
        } else {
            self.slot.begin();
            if self.update.overwrites() { self.slot.take_value() } else { None }
        };
        let gradient = self.gradient.take().ok_or_else(|| Error::bug("a compressed push has no gradient"))?;
        match gradient {
            Contribution::InPlace(index) => self.index = Some(index),
            Contribution::Held(_) if !self.outs.is_empty() => self.index = Some(0),
            _ => {}
        }
        if let Some(index) = self.index {
            let out = Memory::Written(self.outs.remove(index));
            let held = if let Contribution::Held(held) = gradient { Memory::Read(held) } else { Memory::Nothing };
            return Ok((held, out));
        }
        match gradient {
            Contribution::Summed(sum) => Ok((Memory::Nothing, Memory::Own(sum))),
            Contribution::Held(held) => {
                let recycled = old.and_then(Arc::into_inner).filter(|buffer| !buffer.is_foreign());
                let out = recycled.unwrap_or_else(|| Buffer::zeroed(held.bytes().len()));
                Ok((Memory::Read(held), Memory::Own(out)))
            }
            Contribution::InPlace(_) => Err(Error::bug("a compressed sum has no place")),
        }
    }

    /// Takes the sum out of the memory that was lent.
    fn settle(&mut self) {
        self.stage = CodedStage::Done;
        self.sum = Some(match (std::mem::take(&mut self.out), self.index) {
            (out, Some(index)) => {
                self.outs.insert(index, out.into_tensor());
                self.outs[index].snapshot()
            }
            (out, None) => Arc::new(out.into_buffer()),
        });
    }
}

impl Job for CompressedPush {
    fn transfer(&self) -> Transfer {
        Transfer::Messages { priority: self.priority }
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<BegunOperation>> {
        let passage = Passage { stamp: launch.number, priority: self.priority };
        let parts = parts_of(&self.slot.entry, comm.size());
        let own = parts.range(comm.rank()..comm.rank() + 1);
        let compression = self.coding.compression;
        match self.stage {
            CodedStage::Open => {
                let (gradient, out) = self.lend(own)?;
                self.stage = CodedStage::Summing;
                if let Compression::Codec(codec) = compression {
                    return Ok(Some(comm.begin_codes(codec, &self.coding.feedback, (gradient, out), passage)));
                }
                let source = if matches!(gradient, Memory::Nothing) { &out } else { &gradient };
                let source = bytemuck::cast_slice(source.bytes());
                let begun = comm.begin_gather_codes(&compression, &self.coding.feedback, source, passage);
                self.out = out;
                Ok(Some(begun))
            }
            CodedStage::Summing => {
                if let Some(codes) = self.codes.take() {
                    comm.add_codes(&compression, codes.bytes(), bytemuck::cast_slice_mut(self.out.bytes_mut()))?;
                }
                if let Some(mut step) = self.step.take() {
                    // The weights are sent uncompressed.
                    let sums = &mut self.out.bytes_mut()[own.clone()];
                    let weights = step.apply(own.start, sums);
                    sums.copy_from_slice(weights);
                    self.stage = CodedStage::Sharing;
                    return Ok(Some(comm.begin_allgather(None, parts, std::mem::take(&mut self.out), passage)));
                }
                self.settle();
                Ok(None)
            }
            CodedStage::Sharing => {
                self.settle();
                Ok(None)
            }
            CodedStage::Done => Ok(None),
        }
    }

    fn receive(&mut self, memory: Memory) {
        match memory {
            Memory::Pair(pair) => self.out = pair.1,
            Memory::Own(codes) if self.stage == CodedStage::Summing => self.codes = Some(codes),
            out => self.out = out,
        }
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let Some(sum) = self.sum.take() else { return Ok(()) };
        if self.retry.is_some() {
            self.slot.keep_last(LastSum::Dense(Arc::clone(&sum)));
        }
        let value = self.slot.value_after(&self.updates, &self.update, sum);
        self.slot.settle_with(value, self.outs)
    }

    fn fail(mut self: Box<Self>, fault: &Error) {
        if let Memory::Written(out) = self.out {
            self.outs.push(out);
        }
        self.slot.fail_with(fault, self.outs);
    }

    fn again(&mut self) -> bool {
        if self.retry.is_none() {
            // If the push has an output, the output fails with the push.
            return false;
        }
        (self.sum, self.codes, self.stage, self.out) = (None, None, CodedStage::Open, Memory::Nothing);
        true
    }

    fn given(mut self: Box<Self>, sum: &[u8]) -> Result<()> {
        self.slot.begin_once(&mut self.is_begun);
        self.sum = Some(Arc::new(Buffer::copy_of(sum)));
        self.finish()
    }
}
