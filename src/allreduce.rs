//! `dist_sync_mpi`: every rank holds the values of all keys, gradients are summed by allreduce, and every
//! rank runs the same update.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ringpull_allreduce::progress::{Change, Engine, Job, Operation, Submission, Terms};
use ringpull_base::{Buffer, Error, Result, Tensor, TensorMut, Waiter, waits};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::check;
use crate::jobs::{CompressedPush, Init, Push, PushRows, join_shards};
use crate::replica::{Replica, terms};
use crate::slot::Slot;
use crate::update::Update;
use crate::{Backend, Contribution, Entry, MergedRows, SavedStates, Updater, contribution};

/// The backend of `dist_sync_mpi`, over the ranks of an [`Engine`].
pub struct Allreduce {
    engine: Arc<Engine>,
    store: u32,
    replica: Arc<Replica>,
}

impl Allreduce {
    /// Returns a new store over the engine's ranks. All ranks must create their stores in one order.
    pub fn new(engine: Arc<Engine>) -> Self {
        let store = engine.next_store();
        let replica = Arc::new(Replica::new(engine.rank()));
        // The annotation is needed to turn a `Weak` of a sized type into a `Weak` of a trait object.
        let stand_in: Weak<Replica> = Arc::downgrade(&replica);
        engine.introduce(store, stand_in);
        Allreduce { engine, store, replica }
    }

    /// Reports a fault of the ranks to the servers, and a fault of the servers to the ranks.
    #[cfg(feature = "ps")]
    pub(crate) fn share_faults(&self, servers: &crate::servers::Servers) {
        let engine = Arc::clone(&self.engine);
        servers.on_fault(Box::new(move |fault| engine.fail(fault)));
        self.engine.on_fault(servers.fail_with());
    }

    fn slot(&self, entry: &Entry) -> Result<Arc<Slot>> {
        let slot = self.replica.slots.read().get(&entry.key).cloned();
        slot.ok_or_else(|| entry.not_initialized("use", self.rank()))
    }

    /// Calls an operation on a key. The key has a value afterwards if the operation `keeps` one.
    fn submit(
        &self,
        slot: &Arc<Slot>,
        operation: Operation,
        terms: Terms,
        job: impl Job + 'static,
        keeps: bool,
    ) -> Result<()> {
        let _order = slot.in_order();
        let kept = slot.call(keeps);
        let job = Submission::new(job).after(check::before(slot));
        self.engine.submit(slot.topic.clone(), operation, terms, job).inspect_err(|_| slot.cancel(kept))
    }

    /// Returns the update for a push that is called now, if the key's value can be updated in this way.
    fn update(&self, slot: &Slot, operation: &str) -> Result<Update> {
        let update = self.replica.updates.present(&slot.entry)?;
        if !matches!(update, Update::Overwrite) {
            slot.check_kept(operation, self.rank())?;
        }
        Ok(update)
    }

    /// Returns the fault of the job, in preference to that of one key.
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

    fn generation(&self) -> u64 {
        self.engine.generation()
    }

    fn changes(&self, seen: usize) -> Vec<Change> {
        self.engine.changes(seen)
    }

    fn failing(&self, why: Option<&str>) {
        self.engine.failing(why);
    }

    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()> {
        let value = value.read()?.snapshot();
        let (unfinished, check_every) = (&self.replica.unfinished_bytes, self.engine.sums().check_replicas);
        let slot = Arc::new(Slot::new(entry.clone(), self.store, unfinished, check_every));
        self.replica.slots.write().insert(entry.key.clone(), Arc::clone(&slot));
        let terms = Terms { sums: Some(self.engine.sums().clone()), ..terms(entry, &Update::Overwrite, None) };
        self.submit(&slot, Operation::Init, terms, Init::new(&slot, value, self.engine.is_elastic()), true)
    }

    fn make_room(&self, entry: &Entry, _priority: i32) -> Result<()> {
        /// Most waits are short, and operations of a frozen cycle end without further messages.
        const MOMENT: Duration = Duration::from_millis(50);
        let slot = self.slot(entry)?;
        self.replica.backlog.wait(&entry.key, |limit| {
            let is_soon = slot.has_room_within(limit.min(MOMENT));
            if is_soon || limit.is_zero() {
                return Ok(is_soon);
            }
            // The operations called so far must be able to begin without another call.
            self.engine.wait();
            let room = |piece: Option<Duration>| Ok(slot.has_room_within(piece.unwrap_or(limit)).then_some(()));
            Ok(waits::in_pieces(Some(limit), room)?.is_some())
        })
    }

    fn push(&self, entry: &Entry, gradient: Vec<Contribution>, outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        let (slot, updates, gradient) = (self.slot(entry)?, &self.replica.updates, contribution::only(gradient));
        let update = self.update(&slot, "push")?;
        if let Some(coding) = self.replica.compressor.coding(entry, self.rank())? {
            let terms = terms(entry, &update, Some(coding.compression));
            let coding = (coding, priority, self.engine.is_elastic());
            let job = CompressedPush::new(&slot, gradient, outs, update, updates, coding);
            return self.submit(&slot, Operation::Push, terms, job, true);
        }
        let terms = terms(entry, &update, None);
        let job = Push::new(&slot, gradient, outs, update, updates, (priority, self.engine.is_elastic()));
        let keeps = job.keeps();
        self.submit(&slot, Operation::Push, terms, job, keeps)
    }

    fn push_rows(&self, entry: &Entry, gradient: MergedRows, priority: i32) -> Result<()> {
        let (slot, updates) = (self.slot(entry)?, &self.replica.updates);
        let update = self.update(&slot, "push_rows")?;
        let terms = terms(entry, &update, None);
        let job = PushRows::new(&slot, gradient, update, updates, (priority, self.engine.is_elastic()));
        self.submit(&slot, Operation::PushRows, terms, job, true)
    }

    fn value(&self, entry: &Entry, operation: &str, _priority: i32) -> Result<Arc<Buffer>> {
        self.engine.wait();
        let slot = self.slot(entry)?;
        let value = slot.settled().map_err(|fault| self.blame(fault))?;
        value.ok_or_else(|| slot.not_kept(operation, self.rank()))
    }

    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        if self.replica.updates.are_shards() {
            return Err(Error::argument(
                "set_optimizer after a sharded optimizer: each rank has a part of the states".to_owned(),
                "set it as sharded, or save the states and load them into a new store",
            ));
        }
        self.replica.updates.set_optimizer(optimizer);
        Ok(())
    }

    fn set_sharded_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.replica.updates.set_sharded_optimizer(optimizer);
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
        let (states, shards) = self.replica.updates.states()?;
        if shards.is_empty() || self.num_workers() == 1 {
            return Ok(states);
        }
        let slots = self.replica.slots.read();
        let entries: Vec<Entry> = shards.iter().filter_map(|key| Some(slots.get(key)?.entry.clone())).collect();
        drop(slots);
        self.engine.collective("save_optimizer_states", move |comm, number| join_shards(comm, number, &entries, states))
    }

    fn state_bytes(&self) -> u64 {
        self.replica.updates.state_bytes()
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

    fn traffic(&self) -> (u64, u64, u64) {
        self.engine.traffic()
    }
}

impl Drop for Allreduce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.engine.give_up();
        }
    }
}
