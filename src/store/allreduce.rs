//! `dist_sync_mpi`: every rank holds every key's value; gradients are summed by allreduce; the update runs on every rank alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, RwLock};

use crate::buffer::Buffer;
use crate::collective::Parts;
use crate::communicator::Host;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::optim::Optimizer;
use crate::progress::{Engine, Job, Launch, Topic};
use crate::store::update::{Update, Updates};
use crate::store::{Backend, Contribution, Entry, MergedRows, SavedStates, Stats, Updater};
use crate::tensor::{Tensor, TensorMut};
use crate::timeline::{self, Phase};

/// The backend of `dist_sync_mpi`, over the ranks of an [`Engine`].
pub struct Allreduce {
    engine: Arc<Engine>,
    store: u32,
    slots: RwLock<BTreeMap<Key, Arc<Slot>>>,
    updates: Arc<Updates>,
}

/// A key's value on this rank.
struct Slot {
    entry: Entry,
    state: Mutex<SlotState>,
    changed: Condvar,
}

#[derive(Default)]
struct SlotState {
    /// `None` while it is being overwritten.
    value: Option<Arc<Buffer>>,
    /// Operations called, and those of them that are done.
    called: u64,
    done: u64,
    fault: Option<Error>,
}

impl Allreduce {
    /// A new store over the engine's ranks. Ranks must create their stores in one order.
    pub fn new(engine: Arc<Engine>) -> Self {
        let store = engine.next_store();
        Allreduce { engine, store, slots: RwLock::default(), updates: Arc::default() }
    }

    fn slot(&self, entry: &Entry) -> Result<Arc<Slot>> {
        self.slots.read().get(&entry.key).cloned().ok_or_else(|| Error::NotInitialized {
            key: entry.key.clone(),
            operation: "use".to_owned(),
            rank: self.rank(),
        })
    }

    fn submit(&self, slot: &Slot, operation: &str, terms: String, rows: u64, job: Box<dyn Job>) -> Result<()> {
        slot.state.lock().called += 1;
        let topic = Topic::Key { store: self.store, key: slot.entry.key.clone() };
        self.engine.submit(topic, operation, terms, rows, job)
    }

    /// What is wrong with the job, in preference to what was wrong with one key.
    fn blame(&self, fault: Error) -> Error {
        self.engine.fault().unwrap_or(fault)
    }
}

impl Slot {
    /// The value, when everything called so far is done.
    fn settled(&self) -> Result<Arc<Buffer>> {
        let mut state = self.state.lock();
        let called = state.called;
        loop {
            if let Some(fault) = &state.fault {
                return Err(fault.clone());
            }
            match &state.value {
                Some(value) if state.done >= called => return Ok(Arc::clone(value)),
                _ => self.changed.wait(&mut state),
            }
        }
    }

    fn settle(&self, value: Arc<Buffer>) {
        let mut state = self.state.lock();
        state.value = Some(value);
        state.done += 1;
        drop(state);
        self.changed.notify_all();
    }

    fn fail(&self, fault: &Error) {
        self.state.lock().fault.get_or_insert_with(|| fault.clone());
        self.changed.notify_all();
    }

    fn take_value(&self) -> Option<Arc<Buffer>> {
        self.state.lock().value.take()
    }
}

/// What must be the same on every rank for a push.
fn terms(entry: &Entry, update: &Update) -> String {
    let Entry { dtype, shape, .. } = entry;
    match update {
        Update::Overwrite => format!("{dtype} {shape:?}"),
        Update::Optimize(optimizer) => format!("{dtype} {shape:?} with {optimizer:?}"),
        Update::Call(_) => format!("{dtype} {shape:?} with an updater"),
    }
}

impl Backend for Allreduce {
    fn rank(&self) -> usize {
        self.engine.rank()
    }

    fn num_workers(&self) -> usize {
        self.engine.size()
    }

    fn fault(&self) -> Option<Error> {
        self.engine.fault()
    }

    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()> {
        let value = value.read()?.snapshot();
        let slot = Arc::new(Slot { entry: entry.clone(), state: Mutex::default(), changed: Condvar::new() });
        self.slots.write().insert(entry.key.clone(), Arc::clone(&slot));
        let terms = format!("{} {}", terms(entry, &Update::Overwrite), self.engine.settings());
        self.submit(&slot, "init", terms, 0, Box::new(Init { slot: Arc::clone(&slot), value }))
    }

    fn push(&self, entry: &Entry, gradient: Contribution, outs: Vec<TensorMut>, _priority: i32) -> Result<()> {
        let slot = self.slot(entry)?;
        let update = self.updates.present();
        update.check(entry)?;
        let terms = terms(entry, &update);
        let job = Push {
            slot: Arc::clone(&slot),
            gradient: Some(gradient),
            sum: None,
            outs,
            update,
            updates: self.updates.clone(),
        };
        self.submit(&slot, "push", terms, 0, Box::new(job))
    }

    fn push_rows(&self, entry: &Entry, gradient: MergedRows, _priority: i32) -> Result<()> {
        let slot = self.slot(entry)?;
        let update = self.updates.present();
        update.check(entry)?;
        let (terms, rows) = (terms(entry, &update), gradient.ids.len() as u64);
        let job = PushRows { slot: Arc::clone(&slot), gradient, update, updates: self.updates.clone() };
        self.submit(&slot, "push_rows", terms, rows, Box::new(job))
    }

    fn pull(&self, entry: &Entry, outs: &mut [TensorMut], _priority: i32) -> Result<()> {
        let value = self.slot(entry)?.settled().map_err(|fault| self.blame(fault))?;
        outs.iter_mut().for_each(|out| out.copy_from(value.bytes()));
        Ok(())
    }

    fn pull_rows(&self, entry: &Entry, ids: &[i64], _priority: i32) -> Result<Vec<u8>> {
        let value = self.slot(entry)?.settled().map_err(|fault| self.blame(fault))?;
        let row_bytes = entry.row_bytes();
        let row = |id: &i64| &value.bytes()[*id as usize * row_bytes..][..row_bytes];
        Ok(ids.iter().flat_map(row).copied().collect())
    }

    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.updates.set_optimizer(optimizer);
        Ok(())
    }

    fn set_updater(&self, updater: Updater) -> Result<()> {
        self.updates.set_updater(updater);
        Ok(())
    }

    fn states(&self) -> Result<SavedStates> {
        self.wait_all()?;
        self.updates.states()
    }

    fn set_states(&self, states: SavedStates) -> Result<()> {
        self.wait_all()?;
        self.updates.set_states(states)
    }

    fn barrier(&self) -> Result<()> {
        self.engine.barrier()
    }

    fn wait_all(&self) -> Result<()> {
        let slots: Vec<Arc<Slot>> = self.slots.read().values().cloned().collect();
        slots.iter().try_for_each(|slot| slot.settled().map(drop)).map_err(|fault| self.blame(fault))
    }

    fn stats(&self) -> Stats {
        let (sent_bytes, received_bytes, control_messages) = self.engine.traffic();
        Stats { sent_bytes, received_bytes, control_messages, ..Stats::default() }
    }
}

impl Drop for Allreduce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.engine.give_up();
        }
    }
}

/// Rank 0's value becomes everybody's.
struct Init {
    slot: Arc<Slot>,
    value: Arc<Buffer>,
}

impl Job for Init {
    fn run(&mut self, host: &mut Host, launch: &Launch) -> Result<()> {
        if host.rank() != 0 {
            self.value = Arc::new(Buffer::zeroed(self.slot.entry.len_bytes()));
        }
        if host.size() > 1 {
            let mut received = Buffer::zeroed(0);
            let data = if let Some(own) = Arc::get_mut(&mut self.value) {
                own
            } else {
                // Rank 0's value may be the caller's tensor; a broadcast only reads it, but runs on a buffer it may write.
                received = Buffer::copy_of(self.value.bytes());
                &mut received
            };
            if let Err(cause) = host.broadcast(0, data.bytes_mut(), launch.number) {
                // The transport may still read it.
                std::mem::forget(received);
                return Err(cause);
            }
            if !received.bytes().is_empty() {
                self.value = Arc::new(received);
            }
        }
        Ok(())
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

/// A dense gradient on its way: summed in an output if there is one, so that nothing is copied that need not be.
struct Push {
    slot: Arc<Slot>,
    gradient: Option<Contribution>,
    /// The sum, unless it stands in an output.
    sum: Option<Arc<Buffer>>,
    outs: Vec<TensorMut>,
    update: Update,
    updates: Arc<Updates>,
}

impl Push {
    /// Where the sum stands among the outputs, after the gradient was put where it will be summed.
    fn place(&mut self) -> Option<usize> {
        // An overwritten value is not needed any more: with it gone, memory that it shares with an output is written in place.
        let old = if matches!(self.update, Update::Overwrite) { self.slot.take_value() } else { None };
        match self.gradient.take() {
            Some(Contribution::InPlace(index)) => Some(index),
            Some(Contribution::Summed(sum)) => {
                self.sum = Some(Arc::new(sum));
                None
            }
            Some(Contribution::Held(value)) if self.outs.is_empty() => {
                let recycled = old.and_then(Arc::into_inner).map(|mut buffer| {
                    buffer.bytes_mut().copy_from_slice(value.bytes());
                    buffer
                });
                self.sum = Some(Arc::new(recycled.unwrap_or_else(|| Buffer::copy_of(value.bytes()))));
                None
            }
            Some(Contribution::Held(value)) => {
                drop(old);
                self.outs[0].copy_from(value.bytes());
                Some(0)
            }
            None => None,
        }
    }
}

impl Job for Push {
    fn run(&mut self, host: &mut Host, launch: &Launch) -> Result<()> {
        let span = timeline::span(Phase::Pack, || &self.slot.entry.key);
        let place = self.place();
        drop(span);
        let dtype = self.slot.entry.dtype;
        if let Some(index) = place {
            host.allreduce(dtype, self.outs[index].bytes_mut(), launch.number)?;
            self.sum = Some(self.outs[index].snapshot());
        } else if let Some(sum) = &mut self.sum {
            host.allreduce(dtype, crate::tensor::unshare(sum).bytes_mut(), launch.number)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let Some(sum) = self.sum.take() else { return Ok(()) };
        let value = if matches!(self.update, Update::Overwrite) {
            sum
        } else {
            let _span = timeline::span(Phase::Update, || &self.slot.entry.key);
            let mut value = self.slot.take_value().unwrap_or_else(|| Arc::new(Buffer::zeroed(sum.bytes().len())));
            let outcome = self.updates.apply(&self.update, &self.slot.entry, sum.bytes(), &mut value);
            drop(sum);
            if let Err(fault) = outcome {
                self.fail(&fault);
                return Err(fault);
            }
            value
        };
        let span = timeline::span(Phase::Unpack, || &self.slot.entry.key);
        for mut out in self.outs.drain(..) {
            if out.bytes().as_ptr() != value.bytes().as_ptr() {
                out.copy_from(value.bytes());
            }
        }
        drop(span);
        self.slot.settle(value);
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.slot.fail(fault);
        self.outs.into_iter().for_each(|out| out.abandon(fault.clone()));
        std::mem::forget(self.sum);
    }
}

/// A row-sparse gradient on its way: every rank gets every rank's rows and sums them in the order of the ranks.
struct PushRows {
    slot: Arc<Slot>,
    gradient: MergedRows,
    update: Update,
    updates: Arc<Updates>,
}

impl Job for PushRows {
    fn run(&mut self, host: &mut Host, launch: &Launch) -> Result<()> {
        let entry = &self.slot.entry;
        let row_bytes = entry.row_bytes();
        let gather = |host: &mut Host, own: &[u8], each: usize| -> Result<Buffer> {
            let mut bounds = vec![0];
            bounds.extend(launch.rows.iter().scan(0, |end, rows| {
                *end += *rows as usize * each;
                Some(*end)
            }));
            let mut all = Buffer::zeroed(bounds[bounds.len() - 1]);
            let (start, end) = (bounds[host.rank()], bounds[host.rank() + 1]);
            all.bytes_mut()[start..end].copy_from_slice(own);
            if let Err(cause) = host.allgather(Parts::of(bounds), all.bytes_mut(), launch.number) {
                // The transport may still write into it.
                std::mem::forget(all);
                return Err(cause);
            }
            Ok(all)
        };
        let ids = gather(host, bytemuck::cast_slice(&self.gradient.ids), size_of::<i64>())?;
        let rows = gather(host, self.gradient.rows.bytes(), row_bytes)?;
        let ids: &[i64] = bytemuck::cast_slice(ids.bytes());
        let mut parts = Vec::new();
        let mut start = 0;
        for count in &launch.rows {
            let end = start + *count as usize;
            parts.push((&ids[start..end], &rows.bytes()[start * row_bytes..end * row_bytes]));
            start = end;
        }
        self.gradient = MergedRows::sum_of(entry, parts.into_iter());
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
