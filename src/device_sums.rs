//! `dist_sync_device` and `dist_async_device`: the values of a process are summed on its devices, and the sum
//! goes to the servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use ringpull_base::{Buffer, Error, Key, Result, Tensor, TensorMut};
use ringpull_device::{Devices, Layout, Memory, Slice, SumScratch};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::contract::Change;
use crate::contribution::remotes;
use crate::servers::Servers;
use crate::{Backend, Contribution, Entry, MergedRows, SavedStates, Updater};

/// A worker of a job with servers, and its devices.
///
/// A push of several values, or of one value on a device, waits until the sum is in host memory, and returns
/// before the sum is sent. Outputs on devices are copied up when the servers' value has come.
pub struct DeviceSums {
    servers: Servers,
    devices: Arc<Devices>,
    slots: Mutex<BTreeMap<Key, Arc<Mutex<SumSlot>>>>,
    limit: Duration,
}

/// Memory for a key's sums.
struct SumSlot {
    layout: Layout,
    sum: Vec<Slice>,
    scratch: SumScratch,
}

impl DeviceSums {
    /// Returns a backend that sums on `devices` before it pushes to `servers`.
    pub fn new(servers: Servers, devices: Arc<Devices>, limit: Duration) -> Self {
        DeviceSums { servers, devices, slots: Mutex::default(), limit }
    }

    fn slot(&self, entry: &Entry) -> Result<Arc<Mutex<SumSlot>>> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(&entry.key) {
            return Ok(Arc::clone(slot));
        }
        let layout = Layout::new(entry.len(), entry.dtype.size_bytes(), self.devices.count());
        let slot = SumSlot { layout, sum: self.devices.parts(&layout)?, scratch: SumScratch::default() };
        Ok(Arc::clone(slots.entry(entry.key.clone()).or_insert(Arc::new(Mutex::new(slot)))))
    }

    /// Returns the sum in host memory. The values' streams wait for the work that reads the values.
    fn sum(&self, entry: &Entry, gradient: &[Contribution], outs: &[TensorMut]) -> Result<Buffer> {
        let (devices, slot) = (&self.devices, self.slot(entry)?);
        let mut slot = slot.lock();
        let SumSlot { layout, sum, scratch } = &mut *slot;
        let arrays = remotes(gradient, outs).map(|remote| devices.array(Some(remote))).collect::<Result<Vec<_>>>()?;
        arrays.iter().try_for_each(|array| devices.lane(array.device()).follow(array.stream()))?;
        let input = |value: &Contribution| match value.remote(outs) {
            Some(remote) => Ok(devices.array(Some(remote))?.slice().clone()),
            None => self.pinned(value.bytes(outs)),
        };
        let inputs = gradient.iter().map(input).collect::<Result<Vec<_>>>()?;
        devices.join()?;
        devices.sum_parts(entry.dtype, layout, &inputs, sum, scratch)?;
        devices.join()?;
        arrays.iter().try_for_each(|array| array.stream().follow(devices.lane(array.device())))?;
        devices.fetch(layout, sum, self.limit)
    }

    fn pinned(&self, bytes: &[u8]) -> Result<Slice> {
        let staging = Slice::all(&Memory::pinned(self.devices.platform(), bytes.len())?).part(0..bytes.len());
        staging.host_bytes_mut()?.copy_from_slice(bytes);
        Ok(staging)
    }

    /// Returns outputs into which the servers' value can be written. For an output on a device it is host
    /// memory, which is copied up when the value has been written.
    fn on_host(&self, entry: &Entry, outs: Vec<TensorMut>) -> Vec<TensorMut> {
        let staged = |out: TensorMut| {
            if out.remote().is_none() {
                return out;
            }
            let (devices, limit, rank) = (Arc::clone(&self.devices), self.limit, self.rank());
            Tensor::zeros(entry.dtype, &entry.shape).write().then(move |written| {
                match written.and_then(|bytes| copy_up(&devices, &out, bytes, limit)) {
                    Ok(()) => drop(out),
                    Err(fault) => out.fail(fault.met_by(rank)),
                }
            })
        };
        outs.into_iter().map(staged).collect()
    }
}

fn copy_up(devices: &Devices, out: &TensorMut, bytes: &[u8], limit: Duration) -> Result<()> {
    devices.fill(devices.array(out.remote())?, bytes, limit)
}

impl Backend for DeviceSums {
    fn devices(&self) -> Option<&Arc<Devices>> {
        Some(&self.devices)
    }

    fn rank(&self) -> usize {
        self.servers.rank()
    }

    fn num_workers(&self) -> usize {
        self.servers.num_workers()
    }

    fn generation(&self) -> u64 {
        self.servers.generation()
    }

    fn changes(&self, seen: usize) -> Vec<Change> {
        self.servers.changes(seen)
    }

    fn failing(&self, why: Option<&str>) {
        self.servers.failing(why);
    }

    fn fault(&self) -> Option<Error> {
        let devices = || self.devices.platform().check().err().map(|fault| fault.met_by(self.rank()));
        self.servers.fault().or_else(devices)
    }

    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()> {
        let download = || self.devices.download(value).map_err(|fault| fault.met_by(self.rank()));
        let host = if value.remote().is_some() { download()? } else { value.clone() };
        self.servers.init(entry, &host)
    }

    fn make_room(&self, entry: &Entry, priority: i32) -> Result<()> {
        self.servers.make_room(entry, priority)
    }

    fn push(&self, entry: &Entry, mut gradient: Vec<Contribution>, outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        let arrays = remotes(&gradient, &outs).chain(outs.iter().filter_map(TensorMut::remote));
        arrays.into_iter().try_for_each(|remote| self.devices.array(Some(remote)).map(drop))?;
        if gradient.len() > 1 || remotes(&gradient, &outs).next().is_some() {
            let sum = self.sum(entry, &gradient, &outs).map_err(|fault| fault.met_by(self.rank()))?;
            gradient = vec![Contribution::Summed(sum)];
        }
        self.servers.push(entry, gradient, self.on_host(entry, outs), priority)
    }

    fn push_rows(&self, entry: &Entry, gradient: MergedRows, priority: i32) -> Result<()> {
        self.servers.push_rows(entry, gradient, priority)
    }

    fn value(&self, entry: &Entry, operation: &str, priority: i32) -> Result<Arc<Buffer>> {
        self.servers.value(entry, operation, priority)
    }

    fn pull(&self, entry: &Entry, outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        let value = self.servers.value(entry, "pull", priority)?;
        for mut out in outs {
            if out.remote().is_none() {
                out.copy_from(value.bytes());
            } else {
                copy_up(&self.devices, &out, value.bytes(), self.limit).map_err(|fault| fault.met_by(self.rank()))?;
            }
        }
        Ok(())
    }

    fn pull_rows(&self, entry: &Entry, ids: &[i64], priority: i32) -> Result<Vec<u8>> {
        self.servers.pull_rows(entry, ids, priority)
    }

    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.servers.set_optimizer(optimizer)
    }

    fn set_updater(&self, updater: Updater) -> Result<()> {
        self.servers.set_updater(updater)
    }

    fn set_compression(&self, compression: Option<&Compression>) -> Result<()> {
        self.servers.set_compression(compression)
    }

    fn states(&self) -> Result<SavedStates> {
        self.servers.states()
    }

    fn set_states(&self, states: SavedStates) -> Result<()> {
        self.servers.set_states(states)
    }

    fn barrier(&self) -> Result<()> {
        self.servers.barrier()
    }

    fn join(&self) -> Result<usize> {
        self.servers.join()
    }

    fn wait_all(&self) -> Result<()> {
        self.servers.wait_all()
    }

    fn leave(&self) {
        self.servers.leave();
    }

    fn traffic(&self) -> (u64, u64, u64) {
        self.servers.traffic()
    }
}

impl Drop for DeviceSums {
    fn drop(&mut self) {
        // Memory must not be freed while work on it is queued. After a fault there is nothing to wait for.
        drop(self.devices.drain(self.limit));
    }
}
