//! A backend that records the gradients that it gets, and the values that come back: `RINGPULL_RECORD`.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use ringpull_base::recording::{RecordedLine, Recording, RecordingOptions, hash};
use ringpull_base::{Buffer, Error, Key, Kind, Result, Tensor, TensorMut, Waiter};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::contract::Change;
use crate::{Backend, Contribution, Entry, MergedRows, SavedStates, Updater};

/// A backend that passes every call to `inner`, and records its gradients and values.
pub(super) struct RecordedBackend {
    inner: Box<dyn Backend>,
    recording: Arc<Recording>,
    /// The number of pushes of each key by this worker.
    updates: Mutex<BTreeMap<Key, u64>>,
}

impl RecordedBackend {
    pub(super) fn new(inner: Box<dyn Backend>, kind: Kind, options: &RecordingOptions) -> Result<Self> {
        #[cfg(feature = "devices")]
        if inner.devices().is_some() {
            return Err(Error::Unsupported {
                kind: kind.to_string(),
                operation: "recording (RINGPULL_RECORD)".to_owned(),
                reason: "values on devices are not recorded; unset RINGPULL_DEVICES, or use a kind in host memory"
                    .to_owned(),
            });
        }
        let recording = Recording::create(options, kind, inner.rank(), inner.num_workers())?;
        Ok(RecordedBackend { inner, recording: Arc::new(recording), updates: Mutex::default() })
    }

    /// The number of the key's next update.
    fn next_update(&self, key: &Key) -> u64 {
        let mut updates = self.updates.lock();
        let count = updates.entry(key.clone()).or_default();
        *count += 1;
        *count
    }

    fn update(&self, key: &Key) -> u64 {
        self.updates.lock().get(key).copied().unwrap_or(0)
    }

    /// Returns the outputs. The first one is recorded when its value has come.
    fn watched(&self, entry: &Entry, update: u64, mut outs: Vec<TensorMut>) -> Vec<TensorMut> {
        if !outs.is_empty() {
            let (key, recording) = (entry.key.clone(), Arc::clone(&self.recording));
            let first = outs.remove(0).then(move |value| {
                if let Ok(bytes) = value {
                    recording.value(&key, update, None, bytes);
                }
            });
            outs.insert(0, first);
        }
        outs
    }
}

impl Backend for RecordedBackend {
    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()> {
        self.recording.write(&RecordedLine::Init { key: entry.key.clone(), dtype: entry.dtype });
        self.inner.init(entry, value)
    }

    fn push(&self, entry: &Entry, gradient: Vec<Contribution>, outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        let update = self.next_update(&entry.key);
        if let Some(first) = gradient.first() {
            let hash = hash(&[first.bytes(&outs)]);
            self.recording.write(&RecordedLine::Push { key: entry.key.clone(), update, hash });
        }
        let outs = self.watched(entry, update, outs);
        self.inner.push(entry, gradient, outs, priority)
    }

    fn push_rows(&self, entry: &Entry, gradient: MergedRows, priority: i32) -> Result<()> {
        self.recording.write(&RecordedLine::Push {
            key: entry.key.clone(),
            update: self.next_update(&entry.key),
            hash: hash(&[bytemuck::cast_slice(&gradient.ids), gradient.rows.bytes()]),
        });
        self.inner.push_rows(entry, gradient, priority)
    }

    fn pull(&self, entry: &Entry, outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        let outs = self.watched(entry, self.update(&entry.key), outs);
        self.inner.pull(entry, outs, priority)
    }

    fn pull_rows(&self, entry: &Entry, ids: &[i64], priority: i32) -> Result<Vec<u8>> {
        let update = self.update(&entry.key);
        let rows = self.inner.pull_rows(entry, ids, priority)?;
        self.recording.value(&entry.key, update, Some(hash(&[bytemuck::cast_slice(ids)])), &rows);
        Ok(rows)
    }

    // The rest is not recorded.

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn num_workers(&self) -> usize {
        self.inner.num_workers()
    }

    fn fault(&self) -> Option<Error> {
        self.inner.fault()
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    fn changes(&self, seen: usize) -> Vec<Change> {
        self.inner.changes(seen)
    }

    #[cfg(feature = "devices")]
    fn devices(&self) -> Option<&Arc<ringpull_device::Devices>> {
        self.inner.devices()
    }

    fn failing(&self, why: Option<&str>) {
        self.inner.failing(why);
    }

    fn make_room(&self, entry: &Entry, priority: i32) -> Result<()> {
        self.inner.make_room(entry, priority)
    }

    fn value(&self, entry: &Entry, operation: &str, priority: i32) -> Result<Arc<Buffer>> {
        self.inner.value(entry, operation, priority)
    }

    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.recording.write(&RecordedLine::Updates);
        self.inner.set_optimizer(optimizer)
    }

    fn set_sharded_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.recording.write(&RecordedLine::Updates);
        self.inner.set_sharded_optimizer(optimizer)
    }

    fn set_updater(&self, updater: Updater) -> Result<()> {
        self.recording.write(&RecordedLine::Updates);
        self.inner.set_updater(updater)
    }

    fn set_compression(&self, compression: Option<&Compression>) -> Result<()> {
        self.inner.set_compression(compression)
    }

    fn states(&self) -> Result<SavedStates> {
        self.inner.states()
    }

    fn state_bytes(&self) -> u64 {
        self.inner.state_bytes()
    }

    fn set_states(&self, states: SavedStates) -> Result<()> {
        self.inner.set_states(states)
    }

    fn barrier(&self) -> Result<()> {
        self.inner.barrier()
    }

    fn join(&self) -> Result<usize> {
        self.inner.join()
    }

    fn wait_all(&self) -> Result<()> {
        self.inner.wait_all()
    }

    fn leave(&self) {
        self.inner.leave();
    }

    fn traffic(&self) -> (u64, u64, u64) {
        self.inner.traffic()
    }

    fn waiter(&self) -> Option<Weak<dyn Waiter>> {
        self.inner.waiter()
    }
}
