//! `dist_sync_mpi`: every rank holds every key's value; gradients are summed by allreduce; the update runs on
//! every rank alike.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ringpull_allreduce::progress::{Engine, Job, Operation, Terms, Topic};
use ringpull_base::{Buffer, Error, Result, Tensor, TensorMut, Waiter, waits};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::check;
use crate::jobs::{CompressedPush, Init, Push, PushRows};
use crate::replica::{Replica, terms};
use crate::slot::Slot;
use crate::update::Update;
use crate::{Backend, Contribution, Entry, MergedRows, SavedStates, Stats, Updater};

/// The backend of `dist_sync_mpi`, over the ranks of an [`Engine`].
pub struct Allreduce {
    engine: Arc<Engine>,
    store: u32,
    replica: Arc<Replica>,
}

impl Allreduce {
    /// A new store over the engine's ranks. Ranks must create their stores in one order.
    pub fn new(engine: Arc<Engine>) -> Self {
        let store = engine.next_store();
        let replica = Arc::new(Replica::new(engine.rank()));
        // The annotation makes the trait object out of a `Weak` of a sized type.
        let stand_in: Weak<Replica> = Arc::downgrade(&replica);
        engine.introduce(store, stand_in);
        Allreduce { engine, store, replica }
    }

    fn slot(&self, entry: &Entry) -> Result<Arc<Slot>> {
        self.replica.slots.read().get(&entry.key).cloned().ok_or_else(|| Error::NotInitialized {
            key: entry.key.clone(),
            operation: "use".to_owned(),
            rank: self.rank(),
        })
    }

    fn submit(&self, slot: &Arc<Slot>, operation: Operation, terms: Terms, job: Box<dyn Job>) -> Result<()> {
        self.submit_keeping(slot, operation, terms, job, true)
    }

    /// As [`submit`](Self::submit), when it has to be said whether the key has a value afterwards.
    fn submit_keeping(
        &self,
        slot: &Arc<Slot>,
        operation: Operation,
        terms: Terms,
        job: Box<dyn Job>,
        keeps: bool,
    ) -> Result<()> {
        let _order = slot.in_order();
        let kept = slot.call(keeps);
        let topic = Topic::Key { store: self.store, key: slot.entry.key.clone() };
        let job = check::before(slot, job);
        self.engine.submit(topic, operation, terms, job).inspect_err(|_| slot.cancel(kept))
    }

    /// The update of a push called now, if the key's value can be updated so.
    fn update(&self, slot: &Slot, operation: &str) -> Result<Update> {
        let update = self.replica.updates.present();
        update.check(&slot.entry)?;
        if !matches!(update, Update::Overwrite) {
            slot.check_kept(operation, self.rank())?;
        }
        Ok(update)
    }

    /// The key's value, when everything called so far is done.
    fn value(&self, entry: &Entry, operation: &str) -> Result<Arc<Buffer>> {
        self.engine.wait();
        let slot = self.slot(entry)?;
        let value = slot.settled().map_err(|fault| self.blame(fault))?;
        value.ok_or_else(|| slot.not_kept(operation, self.rank()))
    }

    /// What is wrong with the job, in preference to what was wrong with one key.
    fn blame(&self, fault: Error) -> Error {
        self.engine.fault().unwrap_or(fault)
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

    fn failing(&self, why: Option<&str>) {
        self.engine.failing(why);
    }

    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()> {
        let value = value.read()?.snapshot();
        let slot =
            Arc::new(Slot::new(entry.clone(), &self.replica.unfinished_bytes, self.engine.sums().check_replicas));
        self.replica.slots.write().insert(entry.key.clone(), Arc::clone(&slot));
        let terms = Terms { sums: Some(self.engine.sums().clone()), ..terms(entry, &Update::Overwrite, None) };
        self.submit(&slot, Operation::Init, terms, Box::new(Init::new(&slot, value)))
    }

    fn make_room(&self, entry: &Entry, _priority: i32) -> Result<()> {
        /// Most waits are short, and what runs in a cached schedule ends without another word.
        const MOMENT: Duration = Duration::from_millis(50);
        let slot = self.slot(entry)?;
        self.replica.backlog.wait(&entry.key, |limit| {
            let is_soon = slot.has_room_within(limit.min(MOMENT));
            if is_soon || limit.is_zero() {
                return Ok(is_soon);
            }
            // What was called must be able to begin without another call.
            self.engine.wait();
            let room = |piece: Option<Duration>| Ok(slot.has_room_within(piece.unwrap_or(limit)).then_some(()));
            Ok(waits::in_pieces(Some(limit), room)?.is_some())
        })
    }

    fn push(&self, entry: &Entry, gradient: Contribution, outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        let (slot, updates) = (self.slot(entry)?, &self.replica.updates);
        let update = self.update(&slot, "push")?;
        if let Some(coding) = self.replica.compressor.coding(entry, self.rank())? {
            let terms = terms(entry, &update, Some(coding.compression));
            let job = CompressedPush::new(&slot, gradient, outs, update, updates, coding);
            return self.submit(&slot, Operation::Push, terms, Box::new(job));
        }
        let terms = terms(entry, &update, None);
        let job = Push::new(&slot, gradient, outs, update, updates, priority);
        let keeps = job.keeps();
        self.submit_keeping(&slot, Operation::Push, terms, Box::new(job), keeps)
    }

    fn push_rows(&self, entry: &Entry, gradient: MergedRows, _priority: i32) -> Result<()> {
        let (slot, updates) = (self.slot(entry)?, &self.replica.updates);
        let update = self.update(&slot, "push_rows")?;
        let terms = terms(entry, &update, None);
        let job = PushRows::new(&slot, gradient, update, updates);
        self.submit(&slot, Operation::PushRows, terms, Box::new(job))
    }

    fn pull(&self, entry: &Entry, outs: &mut [TensorMut], _priority: i32) -> Result<()> {
        let value = self.value(entry, "pull")?;
        outs.iter_mut().for_each(|out| out.copy_from(value.bytes()));
        Ok(())
    }

    fn pull_rows(&self, entry: &Entry, ids: &[i64], _priority: i32) -> Result<Vec<u8>> {
        let value = self.value(entry, "pull_rows")?;
        let row_bytes = entry.row_bytes();
        let row = |id: &i64| &value.bytes()[*id as usize * row_bytes..][..row_bytes];
        Ok(ids.iter().flat_map(row).copied().collect())
    }

    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.replica.updates.set_optimizer(optimizer);
        Ok(())
    }

    fn set_updater(&self, updater: Updater) -> Result<()> {
        self.replica.updates.set_updater(updater);
        Ok(())
    }

    fn set_compression(&self, compression: Option<&Compression>) -> Result<()> {
        self.replica.compressor.set(compression);
        Ok(())
    }

    fn states(&self) -> Result<SavedStates> {
        self.wait_all()?;
        self.replica.updates.states()
    }

    fn set_states(&self, states: SavedStates) -> Result<()> {
        self.wait_all()?;
        self.replica.compressor.forget();
        self.replica.updates.set_states(states)
    }

    fn barrier(&self) -> Result<()> {
        self.engine.barrier()
    }

    fn join(&self) -> Result<usize> {
        self.engine.join()
    }

    fn wait_all(&self) -> Result<()> {
        self.engine.wait();
        let slots: Vec<Arc<Slot>> = self.replica.slots.read().values().cloned().collect();
        slots.iter().try_for_each(|slot| slot.settled().map(drop)).map_err(|fault| self.blame(fault))
    }

    fn waiter(&self) -> Option<Weak<dyn Waiter>> {
        Some(self.engine.waiter())
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
