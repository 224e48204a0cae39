//! The store with values on devices: kind `device`, and `dist_sync_mpi` over the devices of every rank.
//!
//! A key's value is spread over the devices of the process, a part on each (`device::Layout`), and so are the
//! gradient's sum and the optimizer's slots: each device updates its part, and outputs are gathered from all.
//! Between ranks the parts are summed through pinned memory of the host by an allreduce over MPI, or by NCCL
//! (`routes`).
//!
//! Compressed gradients are encoded on the devices if these have the codec. Otherwise the whole gradient
//! passes through host memory (`coded`). In both cases the bits are those of `dist_sync_mpi` without devices.
//!
//! A push queues its work and returns. The guard of an output on a device is free when the work is queued;
//! the output is ready in the order of its stream. An output in host memory is copied before its guard is
//! free. With kind `device` that is before the push returns. Updaters and row-sparse gradients need the host:
//! the value is copied there and back, and the thread that applies them waits for that.

mod coded;
mod detour;
mod joined;
mod push;
mod routes;
mod slot;
mod staged;
mod step;
mod sum;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use push::DevicePush;
use slot::DeviceSlot;
use step::{DeviceInit, OverRanks, Step};

use ringpull_allreduce::progress::{Engine, Operation, Submission, Terms, Topic};
use ringpull_base::{Buffer, Error, Key, Kind, Result, Tensor, TensorMut, Waiter};
use ringpull_device::Devices;
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::{Optimizer, State};

use crate::compressed::Compressor;
use crate::contribution::remotes;
use crate::on_devices::routes::Route;
use crate::replica::terms;
use crate::update::{Update, Updates};
use crate::{Backend, Contribution, Entry, MergedRows, SavedStates, Updater};

/// The backend of stores on devices.
pub struct OnDevices {
    devices: Arc<Devices>,
    ranks: Option<OtherRanks>,
    slots: RwLock<BTreeMap<Key, Arc<DeviceSlot>>>,
    updates: Arc<Updates>,
    loaded: Arc<Mutex<SavedStates>>,
    route: Arc<Route>,
    compressor: Compressor,
    limit: Duration,
}

/// The other ranks of the job.
struct OtherRanks {
    engine: Arc<Engine>,
    store: u32,
}

impl OnDevices {
    /// Returns a store of one process.
    pub fn alone(devices: Arc<Devices>, limit: Duration) -> Self {
        Self::new(devices, None, limit)
    }

    /// Returns a store over the engine's ranks. Each rank has its own devices, and their number may differ
    /// between ranks.
    pub fn over_ranks(devices: Arc<Devices>, engine: Arc<Engine>, limit: Duration) -> Self {
        let store = engine.next_store();
        Self::new(devices, Some(OtherRanks { engine, store }), limit)
    }

    fn new(devices: Arc<Devices>, ranks: Option<OtherRanks>, limit: Duration) -> Self {
        OnDevices {
            devices,
            ranks,
            slots: RwLock::default(),
            updates: Arc::default(),
            loaded: Arc::default(),
            route: Arc::default(),
            compressor: Compressor::default(),
            limit,
        }
    }

    fn slot(&self, entry: &Entry, operation: &str) -> Result<Arc<DeviceSlot>> {
        let slot = self.slots.read().get(&entry.key).cloned();
        slot.ok_or_else(|| entry.not_initialized(operation, self.rank()))
    }

    /// Takes a step, as an operation of all ranks, or at once if there are no other ranks.
    fn run(&self, slot: &DeviceSlot, operation: Operation, terms: Terms, step: impl Step + 'static) -> Result<()> {
        slot.call();
        if let Some(ranks) = &self.ranks {
            let topic = Topic::Key { store: ranks.store, key: slot.entry.key.clone().into() };
            return ranks
                .engine
                .submit(topic, operation, terms, Submission::new(OverRanks { step }))
                .inspect_err(|_| slot.cancel());
        }
        let mut step = step;
        match step.queue(None) {
            Ok(()) => step.finish(),
            Err(fault) => {
                step.fail(&fault);
                Err(fault)
            }
        }
    }

    fn unsupported(&self, operation: &str, reason: &str) -> Error {
        let kind = if self.ranks.is_some() { Kind::DistSyncMpi } else { Kind::Device };
        Error::Unsupported { kind: kind.to_string(), operation: operation.to_owned(), reason: reason.to_owned() }
    }

    /// Returns the fault of the job, in preference to that of one key.
    fn blame(&self, fault: Error) -> Error {
        self.fault().unwrap_or(fault)
    }

    /// Tells the engine that the caller is about to wait.
    fn wait(&self) {
        self.ranks.iter().for_each(|ranks| ranks.engine.wait());
    }
}

impl Backend for OnDevices {
    fn devices(&self) -> Option<&Arc<Devices>> {
        Some(&self.devices)
    }

    fn rank(&self) -> usize {
        self.ranks.as_ref().map_or(0, |ranks| ranks.engine.rank())
    }

    fn num_workers(&self) -> usize {
        self.ranks.as_ref().map_or(1, |ranks| ranks.engine.size())
    }

    fn fault(&self) -> Option<Error> {
        match &self.ranks {
            Some(ranks) => ranks.engine.fault(),
            None => self.devices.platform().check().err(),
        }
    }

    fn failing(&self, why: Option<&str>) {
        self.ranks.iter().for_each(|ranks| ranks.engine.failing(why));
    }

    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()> {
        let host = if value.remote().is_some() { self.devices.download(value)? } else { value.clone() };
        let value = host.read()?.snapshot();
        let slot = Arc::new(DeviceSlot::new(entry, &self.devices)?);
        self.slots.write().insert(entry.key.clone(), Arc::clone(&slot));
        let mut sums = self.ranks.as_ref().map(|ranks| ranks.engine.sums().clone());
        sums.iter_mut().for_each(|sums| sums.on_devices = true);
        let terms = Terms { sums, ..terms(entry, &Update::Overwrite, None) };
        let job = DeviceInit { slot: Arc::clone(&slot), devices: Arc::clone(&self.devices), value, limit: self.limit };
        self.run(&slot, Operation::Init, terms, job)
    }

    fn push(&self, entry: &Entry, gradient: Vec<Contribution>, outs: Vec<TensorMut>, _priority: i32) -> Result<()> {
        let slot = self.slot(entry, "push")?;
        let update = self.updates.present(entry)?;
        // Check everything that can be wrong with an argument before anything is queued.
        let arrays = remotes(&gradient, &outs).chain(outs.iter().filter_map(TensorMut::remote));
        arrays.into_iter().try_for_each(|remote| self.devices.array(Some(remote)).map(drop))?;
        let coding = self.compressor.coding(entry, self.rank())?;
        let terms = terms(entry, &update, coding.as_ref().map(|coding| coding.compression));
        let job = DevicePush::new(self, &slot, gradient, outs, (update, coding))?;
        self.run(&slot, Operation::Push, terms, job)
    }

    fn push_rows(&self, entry: &Entry, gradient: MergedRows, _priority: i32) -> Result<()> {
        let slot = self.slot(entry, "push_rows")?;
        let update = self.updates.present(entry)?;
        let terms = terms(entry, &update, None);
        let job = detour::DevicePushRows::new(self, &slot, gradient, update);
        self.run(&slot, Operation::PushRows, terms, job)
    }

    fn value(&self, entry: &Entry, operation: &str, _priority: i32) -> Result<Arc<Buffer>> {
        let slot = self.slot(entry, operation)?;
        self.wait();
        let value = slot.settled().and_then(|()| slot.fetch(&self.devices, self.limit));
        value.map(Arc::new).map_err(|fault| self.blame(fault))
    }

    fn pull(&self, entry: &Entry, outs: Vec<TensorMut>, _priority: i32) -> Result<()> {
        let slot = self.slot(entry, "pull")?;
        outs.iter().filter_map(TensorMut::remote).try_for_each(|remote| self.devices.array(Some(remote)).map(drop))?;
        self.wait();
        slot.settled().map_err(|fault| self.blame(fault))?;
        let outcome = slot.give(&self.devices, outs, self.limit);
        outcome.map_err(|fault| self.blame(fault))
    }

    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.updates.set_optimizer(optimizer);
        Ok(())
    }

    fn set_sharded_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        if self.ranks.is_none() {
            return self.set_optimizer(optimizer);
        }
        Err(Error::Unsupported {
            kind: "dist_sync_mpi on devices".to_owned(),
            operation: "a sharded optimizer".to_owned(),
            reason:
                "values on devices are updated whole on every rank; unset RINGPULL_DEVICES to shard it in host memory"
                    .to_owned(),
        })
    }

    fn set_updater(&self, updater: Updater) -> Result<()> {
        self.updates.set_updater(updater);
        Ok(())
    }

    fn set_compression(&self, compression: Option<&Compression>) -> Result<()> {
        if let Some(compression) = compression
            && self.ranks.is_none()
        {
            let reason = "a store of one process sends no gradients";
            return Err(self.unsupported(&format!("set_gradient_compression({compression})"), reason));
        }
        if compression.is_none() {
            // Pushes that are under way still use their residuals on the devices.
            self.wait_all()?;
            self.slots.read().values().for_each(|slot| slot.forget_residual());
        }
        self.compressor.set(compression);
        Ok(())
    }

    fn states(&self) -> Result<SavedStates> {
        self.wait_all()?;
        let optimizer = self.updates.optimizer("save_optimizer_states")?;
        let loaded = self.loaded.lock();
        let carried = loaded.optimizer.as_ref().is_some_and(|earlier| optimizer.keeps_states_of(earlier));
        let states = if carried { loaded.states.clone() } else { BTreeMap::new() };
        drop(loaded);
        let mut saved = SavedStates { optimizer: Some((*optimizer).clone()), states };
        let slots: Vec<Arc<DeviceSlot>> = self.slots.read().values().cloned().collect();
        for slot in slots {
            if let Some(state) = slot.state(&optimizer, &self.devices, self.limit)? {
                saved.states.insert(slot.entry.key.clone(), state);
            }
        }
        Ok(saved)
    }

    fn set_states(&self, saved: SavedStates) -> Result<()> {
        self.wait_all()?;
        if let Some(optimizer) = &saved.optimizer {
            optimizer.check()?;
            self.updates.set_optimizer(optimizer);
        }
        let optimizer = self.updates.optimizer("load_optimizer_states")?;
        self.compressor.forget();
        self.slots.read().values().for_each(|slot| slot.forget_state());
        *self.loaded.lock() = SavedStates { optimizer: Some((*optimizer).clone()), states: saved.states };
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        self.ranks.as_ref().map_or(Ok(()), |ranks| ranks.engine.barrier())
    }

    fn join(&self) -> Result<usize> {
        if self.num_workers() == 1 {
            return Ok(0);
        }
        Err(self.unsupported(
            "join",
            "a rank that has joined cannot add zeros to pushes on devices: give each rank the same number of batches",
        ))
    }

    fn wait_all(&self) -> Result<()> {
        self.wait();
        let slots: Vec<Arc<DeviceSlot>> = self.slots.read().values().cloned().collect();
        let settled = slots.iter().try_for_each(|slot| slot.settled());
        settled.and_then(|()| self.devices.drain(self.limit)).map_err(|fault| self.blame(fault))
    }

    fn waiter(&self) -> Option<Weak<dyn Waiter>> {
        self.ranks.as_ref().map(|ranks| ranks.engine.waiter())
    }

    fn traffic(&self) -> (u64, u64, u64) {
        self.ranks.as_ref().map_or((0, 0, 0), |ranks| ranks.engine.traffic())
    }
}

impl Drop for OnDevices {
    fn drop(&mut self) {
        if let Some(ranks) = &self.ranks
            && std::thread::panicking()
        {
            ranks.engine.give_up();
        }
        // Memory must not be freed while work on it is queued. After a fault there is nothing to wait for.
        drop(self.devices.drain(self.limit));
    }
}

/// Takes the key's loaded state, if `optimizer` can continue with it. From then on the devices have the
/// state.
fn take_loaded(loaded: &Mutex<SavedStates>, key: &Key, optimizer: &Optimizer) -> Option<State> {
    let mut loaded = loaded.lock();
    let carried = loaded.optimizer.as_ref().is_some_and(|earlier| optimizer.keeps_states_of(earlier));
    loaded.states.remove(key).filter(|_| carried)
}
