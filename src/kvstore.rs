//! The KVStore that users call: MXNet's contract, the same for every kind.
//!
//! [`KvStore`] checks arguments, keeps the key table and sums the values of one process. A [`Backend`] does
//! the work between processes: `local`, `allreduce` (`dist_sync_mpi`) or `servers` (`dist_sync`,
//! `dist_async`). A wrong argument changes nothing. After a lost peer, a timeout or a protocol error, every
//! later call returns this first error.

use std::cell::Cell;
use std::path::Path;
#[cfg(feature = "devices")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use ringpull_base::forked::OfProcess;
use ringpull_base::timeline::{self, Phase};
use ringpull_base::{
    DType, Error, Key, Kind, Result, RowSparse, Tensor, TensorMut, check_row_ids, last_words, shares, unshare, waits,
};
#[cfg(feature = "devices")]
use ringpull_device::Devices;
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;
use ringpull_kernels::reduce;

use crate::contract::{OnChange, Updater};
use crate::table::Table;
use crate::{Backend, Contribution, Entry, MergedRows, SavedStates, contribution, update};

/// A feature for [`KvStore::is_capable`].
///
/// ```
/// let store = ringpull::create("local")?;
/// assert!(store.is_capable(ringpull::Capability::Optimizer));
/// # Ok::<(), ringpull::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// The store can run the optimizer itself.
    Optimizer,
}

/// Counts of a store's work since it was created; see [`KvStore::stats`].
///
/// ```
/// let store = ringpull::create("local")?;
/// store.init("w", &ringpull::Tensor::zeros(ringpull::DType::F32, &[3]))?;
/// store.push("w", &[ringpull::Tensor::zeros(ringpull::DType::F32, &[3])], 0)?;
/// assert_eq!(store.stats().pushes, 1);
/// # Ok::<(), ringpull::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// The number of calls of push and `push_pull`, counted for each key.
    pub pushes: u64,
    /// The number of calls of pull and `push_pull`, counted for each key.
    pub pulls: u64,
    /// Payload bytes this process sent.
    pub sent_bytes: u64,
    /// Payload bytes this process received.
    pub received_bytes: u64,
    /// Messages that carried no payload.
    pub control_messages: u64,
    /// The optimizer's states of this process in host memory, in bytes; 0 for kinds with servers.
    pub state_bytes: u64,
}

/// A key-value store of tensors, shared by the workers of a job.
///
/// Values pushed for a key are summed, over the given list and over all workers. An updater or optimizer then
/// updates the store's value with this sum. Without an updater or optimizer, the sum overwrites the value.
///
/// `push` and `push_pull` return before communication ends. `pull`, `barrier`, `wait_all` and reading an
/// output block. Every worker must push every key of a step once. The order of keys may differ between
/// workers.
///
/// ```
/// # fn main() -> ringpull::Result<()> {
/// let store = ringpull::create("local")?;
/// let weight = ringpull::Tensor::zeros(ringpull::DType::F32, &[2]);
/// store.init("fc1_weight", &weight)?;
/// // Two devices' gradients: the value becomes their sum.
/// let gradients = [[1.0f32, 2.0], [3.0, 4.0]].map(|gradient| ringpull::Tensor::from_slice(&[2], &gradient));
/// store.push_pull("fc1_weight", &gradients, std::slice::from_ref(&weight), 0)?;
/// // Reading waits for the sum.
/// assert_eq!(weight.to_vec::<f32>()?, [4.0, 6.0]);
/// # Ok(())
/// # }
/// ```
///
/// After a lost peer, a timeout or a disagreement between workers, every call returns the first such error. A
/// wrong argument changes nothing.
///
/// A store belongs to the process that created it. In a forked child every call is an error, except those
/// that only describe the store. Dropping it there does nothing, and the parent's job goes on.
pub struct KvStore {
    kind: Kind,
    backend: OfProcess<Box<dyn Backend>>,
    table: Table,
    check_nan: bool,
    /// The factor of this worker's values, as the bits of an f64.
    factor: AtomicU64,
    /// The time for which an output tensor may stay locked by the caller before that is an error.
    output_limit: Duration,
    /// The number of reported failures. A call withdraws only failures that were reported before the call was
    /// made.
    reports: AtomicU64,
    /// Held while a failure is reported or withdrawn.
    reporting: Mutex<()>,
    /// The number of losses of which the program knows, and its function for them.
    seen: AtomicUsize,
    on_change: Mutex<Option<OnChange>>,
}

thread_local! {
    /// The number of reports at the time when the program made the call that this thread runs for it.
    static MADE_AT: Cell<Option<u64>> = const { Cell::new(None) };
}

impl KvStore {
    /// Makes a store of `kind` over `backend`. For `create`, which has connected the backend.
    pub(crate) fn over(kind: Kind, backend: Box<dyn Backend>, config: &ringpull_base::config::Config) -> Self {
        last_words::introduce(backend.rank(), backend.num_workers());
        KvStore {
            kind,
            seen: AtomicUsize::new(backend.changes(0).len()),
            backend: OfProcess::new(backend),
            table: Table::default(),
            check_nan: config.check_nan,
            factor: AtomicU64::new(1f64.to_bits()),
            output_limit: config.timeout,
            on_change: Mutex::new(None),
            reports: AtomicU64::new(0),
            reporting: Mutex::new(()),
        }
    }

    /// The store's kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// This worker's rank, from 0.
    pub fn rank(&self) -> usize {
        self.backend.rank()
    }

    /// The number of workers.
    pub fn num_workers(&self) -> usize {
        self.backend.num_workers()
    }

    /// Returns the number of losses of workers after which the job has gone on. It is 0 without
    /// [`create_elastic`](crate::create_elastic). With servers it also counts the times that workers have
    /// come. The ranks and the number of workers are those of this generation.
    pub fn generation(&self) -> u64 {
        self.backend.generation()
    }

    /// Calls `callback` after workers were lost and the job goes on without them. With servers, also calls it
    /// after workers have come; then the list of lost workers is empty. It is called on the program's thread,
    /// at the start of the next call of the store, and that call returns the callback's error. It may call
    /// the store. Without a callback the job goes on silently.
    ///
    /// Sums have fewer contributions from then on. In the callback, a program that divides by a fixed number
    /// changes this number, and perhaps its learning rate. A program that has given shares changes them
    /// ([`set_shares`](Self::set_shares)) there.
    ///
    /// ```
    /// let store = ringpull::create("local")?;
    /// store.on_change(Box::new(|change| {
    ///     println!("{} workers are left", change.num_workers);
    ///     Ok(())
    /// }));
    /// assert_eq!(store.generation(), 0);
    /// # Ok::<(), ringpull::Error>(())
    /// ```
    pub fn on_change(&self, callback: OnChange) {
        *self.on_change.lock() = Some(callback);
    }

    /// Calls the program's callback for losses of which it does not know.
    fn tell_changes(&self) -> Result<()> {
        if self.backend.generation() == 0 {
            return Ok(());
        }
        // The callback is called without the lock, because it may call the store.
        let Some(mut callback) = self.on_change.lock().take() else { return Ok(()) };
        let changes = self.backend.changes(self.seen.load(Ordering::Acquire));
        let outcome = changes.iter().try_for_each(|change| {
            // The change is counted even if the callback fails, so that later changes are delivered at the
            // next call.
            self.seen.fetch_add(1, Ordering::AcqRel);
            callback(change)
        });
        self.on_change.lock().get_or_insert(callback);
        outcome
    }

    /// Returns true if the store has the feature.
    pub fn is_capable(&self, capability: Capability) -> bool {
        match capability {
            Capability::Optimizer => true,
        }
    }

    /// Gives `key` its first value, shape and dtype. The value of rank 0 counts. Every worker must init a key
    /// once, in any order. If ranks disagree on shape or dtype, a later call returns the error, the same on
    /// every rank, soon after two of them have called.
    pub fn init(&self, key: impl Into<Key>, value: &Tensor) -> Result<()> {
        self.init_as(&key.into(), value, false)
    }

    /// Initialises a key as [`init`](Self::init) does, if gradients touch few of its rows, as in an
    /// embedding. `dist_hybrid` keeps such a key on the servers. Other kinds treat it like any key. If one
    /// worker calls this for a key, every worker must. Like every key, it takes row-sparse and dense
    /// gradients.
    ///
    /// ```
    /// use ringpull::{DType, RowSparse, Tensor};
    ///
    /// let store = ringpull::create("local")?;
    /// store.init_row_sparse("embedding", &Tensor::zeros(DType::F32, &[1000, 2]))?;
    /// let rows = Tensor::from_slice(&[1, 2], &[1.0f32, 2.0]);
    /// store.push_rows("embedding", &[RowSparse::new(&[1000, 2], &[7], rows)?], 0)?;
    /// assert_eq!(store.pull_rows("embedding", &[7], 0)?.rows().to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), ringpull::Error>(())
    /// ```
    pub fn init_row_sparse(&self, key: impl Into<Key>, value: &Tensor) -> Result<()> {
        self.init_as(&key.into(), value, true)
    }

    fn init_as(&self, key: &Key, value: &Tensor, is_row_sparse: bool) -> Result<()> {
        self.call(|| {
            let entry = self.table.add(key, value, self.rank(), is_row_sparse)?;
            if is_row_sparse {
                entry.rows().inspect_err(|_| self.table.remove(key))?;
            }
            self.backend.init(&entry, value).inspect_err(|_| self.table.remove(key))
        })
    }

    /// Returns the error that `operation` on `key` would return for a value of this shape and dtype. Does not
    /// run the operation.
    pub fn check(&self, key: impl Into<Key>, operation: &str, shape: &[usize], dtype: DType) -> Result<()> {
        self.healthy()?;
        self.table.checked(&key.into(), operation, self.rank(), std::iter::empty())?.check(
            operation,
            self.rank(),
            shape,
            dtype,
        )
    }

    /// Adds the sum of `values` to this step's gradient of `key`. Returns at once. Each value stays locked
    /// for writers until it has been used. An empty list does nothing. A gradient of higher `priority` may
    /// leave earlier.
    ///
    /// If 4 pushes of the key are unfinished, it first waits for some of them, for at most a minute. It also
    /// waits if one push of the key and 1 GiB of the store's pushes are unfinished. Otherwise a fast worker
    /// would fill the memory.
    pub fn push(&self, key: impl Into<Key>, values: &[Tensor], priority: i32) -> Result<()> {
        self.push_into(&key.into(), "push", values, &[], priority)
    }

    /// Copies the value of `key` into each of `outs`, after every push of the key that this worker has made
    /// was applied. Blocks.
    pub fn pull(&self, key: impl Into<Key>, outs: &[Tensor], priority: i32) -> Result<()> {
        self.call(|| {
            let entry = self.table.checked(&key.into(), "pull", self.rank(), outs.iter())?;
            if outs.is_empty() {
                return Ok(());
            }
            self.take(&entry.key, "pull", &[], outs)?;
            let _span = timeline::span(Phase::Wait, || &entry.key);
            let guards = self.lock_outputs(&entry.key, outs)?;
            self.table.count_pull();
            self.backend.pull(&entry, guards, priority)
        })
    }

    /// Pushes `values` and pulls into `outs` in one call. Returns at once, and reading an output blocks until
    /// its value is there. `outs` may be the `values` themselves.
    pub fn push_pull(&self, key: impl Into<Key>, values: &[Tensor], outs: &[Tensor], priority: i32) -> Result<()> {
        self.push_into(&key.into(), "push_pull", values, outs, priority)
    }

    /// Calls `init` with `value`, and then `pull` into `outs`. Blocks.
    pub fn broadcast(&self, key: impl Into<Key>, value: &Tensor, outs: &[Tensor], priority: i32) -> Result<()> {
        let key = key.into();
        self.init(key.clone(), value)?;
        self.pull(key, outs, priority)
    }

    /// Adds row-sparse gradients. Rows with one id, in one value or in several, are added up. Returns at
    /// once.
    pub fn push_rows(&self, key: impl Into<Key>, values: &[RowSparse], priority: i32) -> Result<()> {
        self.call(|| {
            let key = key.into();
            let entry = self.table.checked_rows(&key, "push_rows", self.rank(), values)?;
            if values.is_empty() {
                return Ok(());
            }
            self.backend.make_room(&entry, priority)?;
            let _span = timeline::span(Phase::Push, || &entry.key);
            let mut merged = MergedRows::sum(&entry, values)?;
            if let Some(factor) = self.factor_of(&entry) {
                reduce::scale(entry.dtype, unshare(&mut merged.rows).bytes_mut(), factor);
            }
            if self.check_nan {
                contribution::check_finite(&entry, self.rank(), merged.rows.bytes())?;
            }
            self.table.count_push();
            self.backend.push_rows(&entry, merged, priority)
        })
    }

    /// Returns the rows of `key` that `row_ids` names, in ascending order and each once. Blocks, as `pull`
    /// does.
    pub fn pull_rows(&self, key: impl Into<Key>, row_ids: &[i64], priority: i32) -> Result<RowSparse> {
        self.call(|| {
            let entry = self.table.checked(&key.into(), "pull_rows", self.rank(), std::iter::empty())?;
            check_row_ids(row_ids, entry.rows()?)?;
            let mut ids = row_ids.to_vec();
            ids.sort_unstable();
            ids.dedup();
            self.table.count_pull();
            let _span = timeline::span(Phase::Wait, || &entry.key);
            let bytes = self.backend.pull_rows(&entry, &ids, priority)?;
            let mut shape = entry.shape.to_vec();
            shape[0] = ids.len();
            let rows = Tensor::from_buffer(entry.dtype, &shape, ringpull_base::Buffer::copy_of(&bytes));
            RowSparse::new(&entry.shape, &ids, rows)
        })
    }

    /// Applies every push made from now on by `optimizer`. It runs in the process, alike on every rank, or on
    /// the servers. A second call changes the hyper-parameters at once, and keeps the states if the rule does
    /// not change. Every rank must make the same call.
    pub fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.call(|| {
            optimizer.check()?;
            self.backend.set_optimizer(optimizer)
        })
    }

    /// Sets an optimizer as [`set_optimizer`](Self::set_optimizer) does, with the states divided over the
    /// ranks of `dist_sync_mpi`. Each rank has the states of its part of every key, and updates this part for
    /// all ranks. As many bytes are sent as without sharding. Values have the same bits as without sharding
    /// if sums do (`RINGPULL_ALGORITHM=ordered`). If there are several hosts and some have several ranks,
    /// sums go by messages between all ranks.
    ///
    /// A store that has had a sharded optimizer takes only sharded optimizers.
    /// [`save_optimizer_states`](Self::save_optimizer_states) is then collective, and every rank gets the
    /// states of all ranks. The file has the usual format, and any number of ranks can load it, with a
    /// sharded optimizer or another.
    ///
    /// For kinds of one process and for kinds with servers, this is the same as `set_optimizer`. It is an
    /// error if `dist_sync_mpi` works on devices.
    pub fn set_sharded_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.call(|| {
            optimizer.check()?;
            self.backend.set_sharded_optimizer(optimizer)
        })
    }

    /// Sets each worker's share of a batch, for example its number of rows. The list must be the same on
    /// every worker. From now on floating-point values that this worker pushes are multiplied by its weight,
    /// divided by the mean weight. So if each worker pushes the mean gradient of its part, sums are the same
    /// as with equal parts of the batch. Integers are not changed. Not for kinds with devices.
    ///
    /// ```
    /// let store = ringpull::create("local")?;
    /// store.set_shares(&[1.0])?;
    /// # Ok::<(), ringpull::Error>(())
    /// ```
    pub fn set_shares(&self, work_load_list: &[f64]) -> Result<()> {
        self.call(|| {
            let (rank, workers) = (self.rank(), self.num_workers());
            if work_load_list.len() != workers {
                return Err(Error::argument(
                    format!("set_shares with {} weights for {workers} workers", work_load_list.len()),
                    "give one weight for each worker",
                ));
            }
            let factor = shares::factor(rank, work_load_list)?;
            #[cfg(feature = "devices")]
            if self.backend.devices().is_some() && work_load_list.iter().any(|weight| *weight != work_load_list[0]) {
                return Err(Error::Unsupported {
                    kind: self.kind.to_string(),
                    operation: "set_shares".to_owned(),
                    reason: "gradients on devices are not weighted; weight the loss".to_owned(),
                });
            }
            self.factor.store(factor.to_bits(), Ordering::Relaxed);
            shares::set_own(factor);
            Ok(())
        })
    }

    /// Returns the factor of values of `entry`.
    fn factor_of(&self, entry: &Entry) -> Option<f64> {
        let factor = f64::from_bits(self.factor.load(Ordering::Relaxed));
        (factor != 1.0 && entry.dtype.is_float()).then_some(factor)
    }

    /// Applies every push made from now on by `updater`. An error for kinds with servers, because code is
    /// never sent to a server.
    pub fn set_updater(&self, updater: Updater) -> Result<()> {
        self.call(|| self.backend.set_updater(updater))
    }

    /// Compresses every dense gradient pushed from now on. Every rank must make the same call. The part of a
    /// gradient that its codes cannot express, the residual, is kept and added to this worker's next gradient
    /// of the key.
    ///
    /// From then on only dense `f32` gradients can be pushed, and row-sparse gradients of any dtype, which
    /// are not compressed. Residuals are not saved with the optimizer's states: a run that starts from saved
    /// states has none, and `load_optimizer_states` drops them.
    ///
    /// An error for kind `local`, as in MXNet, and for invalid parameters.
    pub fn set_gradient_compression(&self, compression: &Compression) -> Result<()> {
        self.call(|| {
            compression.check()?;
            self.backend.set_compression(Some(compression))
        })
    }

    /// Sends gradients pushed from now on without compression, and drops the residuals. Every rank must make
    /// the same call. Every kind allows it, even if compression was not set. Kinds on devices first wait for
    /// this worker's pushes.
    pub fn unset_gradient_compression(&self) -> Result<()> {
        self.call(|| self.backend.set_compression(None))
    }

    /// Writes the optimizer's states, and the optimizer too if `dump_optimizer`, to `path`, atomically.
    /// Blocks until every push is applied. Collective with a sharded optimizer.
    pub fn save_optimizer_states(&self, path: &Path, dump_optimizer: bool) -> Result<()> {
        self.call(|| {
            let mut states = self.backend.states()?;
            if !dump_optimizer {
                states.optimizer = None;
            }
            states.write(path)
        })
    }

    /// Reads a file of `save_optimizer_states`. Every rank must load the same file.
    pub fn load_optimizer_states(&self, path: &Path) -> Result<()> {
        self.call(|| self.backend.set_states(SavedStates::read(path)?))
    }

    /// Waits until every worker has called `barrier`. Collective.
    pub fn barrier(&self) -> Result<()> {
        self.call(|| {
            let _span = timeline::span(Phase::Wait, || "barrier");
            self.backend.barrier()
        })
    }

    /// Joins. For a worker that has no data left, if the workers have different amounts of data. Until every
    /// worker has joined, this worker adds zeros to the pushes of the others, applies their updates as they
    /// do, and counts as present at their barriers. Returns the rank that joined last, the same on every
    /// worker. Collective.
    ///
    /// After some worker has joined, the others may push and pull in any form, wait at barriers and change
    /// the optimizer. Any other call that needs every worker, such as `init`, is an error on all workers. A
    /// joined worker adds its residuals to compressed gradients.
    ///
    /// It applies to every store of the process. With `local` it returns at once. It is an error with
    /// servers, and on devices.
    pub fn join(&self) -> Result<usize> {
        self.call(|| {
            let _span = timeline::span(Phase::Wait, || "join");
            self.backend.join()
        })
    }

    /// Waits until everything that this worker has called is done. Returns the first error of these calls, if
    /// there was one.
    pub fn wait_all(&self) -> Result<()> {
        self.call(|| {
            let _span = timeline::span(Phase::Wait, || "wait_all");
            self.backend.wait_all()
        })
    }

    /// Returns the counters since the store was created. They are zeros in a forked child.
    pub fn stats(&self) -> Stats {
        if !self.backend.process().is_here() {
            return Stats::default();
        }
        let (pushes, pulls) = self.table.counts();
        let (sent_bytes, received_bytes, control_messages) = self.backend.traffic();
        let state_bytes = self.backend.state_bytes();
        Stats { pushes, pulls, sent_bytes, received_bytes, control_messages, state_bytes }
    }

    /// Returns the devices on which the store works, so that tensors can be made on them. Returns `None` for
    /// kinds that work in host memory.
    #[cfg(feature = "devices")]
    pub fn devices(&self) -> Option<&Arc<Devices>> {
        self.backend.devices()
    }

    fn push_into(&self, key: &Key, operation: &str, values: &[Tensor], outs: &[Tensor], priority: i32) -> Result<()> {
        self.call(|| {
            let entry = self.table.checked(key, operation, self.rank(), values.iter().chain(outs))?;
            if values.is_empty() {
                return Ok(());
            }
            shares::begin_measuring();
            self.take(key, operation, values, outs)?;
            // This comes before a tensor is locked or copied.
            self.backend.make_room(&entry, priority)?;
            let _span = timeline::span(Phase::Push, || key).bytes(entry.len_bytes());
            let (gradient, guards) = self.lock(&entry, values, outs)?;
            self.table.count_push();
            if !outs.is_empty() {
                self.table.count_pull();
            }
            self.lend(values, outs);
            self.backend.push(&entry, gradient, guards, priority)
        })
    }

    /// Prepares tensors that are about to be locked for `key`. Returns an error if memory of another library
    /// would have to be locked twice: for an output, and for another of these tensors that is a view of that
    /// array.
    fn take(&self, key: &Key, operation: &str, values: &[Tensor], outs: &[Tensor]) -> Result<()> {
        let rank = self.rank();
        values.iter().chain(outs).for_each(|tensor| tensor.give(key, rank));
        let is_twice = |out: &Tensor, other: &Tensor| out.overlaps(other) && !out.is_same(other);
        let of_outs = outs.iter().enumerate().any(|(at, out)| outs[..at].iter().any(|other| is_twice(out, other)));
        let other = match of_outs {
            true => "another output",
            false if outs.iter().any(|out| values.iter().any(|value| is_twice(out, value))) => "a value",
            false => return Ok(()),
        };
        Err(Error::argument(
            format!(
                "{operation} of key {key} on rank {rank}: an output shares memory with {other}, which is another tensor"
            ),
            "give one tensor for both, or give each memory of its own",
        ))
    }

    /// Makes the tensors of a push notify the backend when the caller needs them.
    fn lend(&self, values: &[Tensor], outs: &[Tensor]) {
        if let Some(waiter) = self.backend.waiter() {
            values.iter().for_each(|value| value.lend(&waiter, false));
            outs.iter().for_each(|out| out.lend(&waiter, true));
        }
    }

    /// Locks the values of a push and its outputs. A store without devices gets the sum of the values.
    fn lock(&self, entry: &Entry, values: &[Tensor], outs: &[Tensor]) -> Result<(Vec<Contribution>, Vec<TensorMut>)> {
        let place = |value: &Tensor| outs.iter().position(|out| out.is_same(value));
        #[cfg(feature = "devices")]
        if let Some(devices) = self.backend.devices() {
            for value in values.iter().filter(|_| self.check_nan) {
                let host = if value.remote().is_some() { devices.download(value)? } else { value.clone() };
                contribution::check_finite(entry, self.rank(), host.read()?.bytes())?;
            }
            // If an earlier call could not write an output, a push that reads it returns that error.
            let mut read = outs.iter().filter(|out| values.iter().any(|value| value.is_same(out)));
            read.try_for_each(|out| out.read_anywhere().map(drop))?;
            let held = |value: &Tensor| match place(value) {
                Some(index) => Ok(Contribution::InPlace(index)),
                None => value.read_anywhere().map(Contribution::Held),
            };
            let gradient = values.iter().map(held).collect::<Result<_>>()?;
            return Ok((gradient, self.lock_outputs(&entry.key, outs)?));
        }
        let in_place = if let [value] = values { place(value) } else { None };
        // The values are read before the outputs are locked, because the outputs may be these values.
        let gradient = in_place.map_or_else(|| Contribution::sum(entry, values), |at| Ok(Contribution::InPlace(at)))?;
        let mut guards = self.lock_outputs(&entry.key, outs)?;
        let gradient = match self.factor_of(entry) {
            Some(factor) => gradient.scaled(entry, factor, &mut guards),
            None => gradient,
        };
        if self.check_nan {
            contribution::check_finite(entry, self.rank(), gradient.bytes(&guards))?;
        }
        Ok((vec![gradient], guards))
    }

    fn lock_outputs(&self, key: &Key, outs: &[Tensor]) -> Result<Vec<TensorMut>> {
        #[cfg(feature = "devices")]
        let on_host = self.backend.devices().is_none();
        #[cfg(not(feature = "devices"))]
        let on_host = true;
        let lock = if on_host { Tensor::write_within } else { Tensor::write_anywhere_within };
        let mut guards = outs.iter().map(|out| lock(out, self.output_limit)).collect::<Result<Vec<_>>>()?;
        if timeline::is_on() {
            guards.iter_mut().for_each(|guard| guard.write_of(key));
        }
        Ok(guards)
    }

    /// Reports to the other workers why this worker is about to end, if the reason is not an error of a call,
    /// such as data that cannot be read or a loss that is NaN. After this worker has ended, calls that wait
    /// for it fail with this text. A later call that succeeds withdraws the report. Does nothing for kinds of
    /// one process.
    pub fn report_failure(&self, why: &str) {
        if self.backend.process().is_here() {
            self.failed(why);
        }
    }

    fn failed(&self, why: &str) {
        let _reporting = self.reporting.lock();
        self.reports.fetch_add(1, Ordering::AcqRel);
        self.backend.failing(why.lines().next());
    }

    /// Returns the number of failures that this worker has reported.
    #[doc(hidden)]
    pub fn reports(&self) -> u64 {
        self.reports.load(Ordering::Acquire)
    }

    /// Runs on this thread an operation that the program called at a time when the number of
    /// [`reports`](Self::reports) was `reports`.
    #[doc(hidden)]
    pub fn made_at<T>(&self, reports: u64, work: impl FnOnce(&Self) -> T) -> T {
        struct Outer(Option<u64>);
        impl Drop for Outer {
            fn drop(&mut self) {
                MADE_AT.set(self.0);
            }
        }
        let _outer = Outer(MADE_AT.replace(Some(reports)));
        work(self)
    }

    /// Leaves the job, as dropping the last handle of the store does, even if other threads have handles or
    /// are in a call of the store.
    #[doc(hidden)]
    pub fn leave(&self) {
        if self.backend.process().is_here() {
            self.backend.leave();
        }
    }

    /// Runs a call. If it fails, reports the error to the other workers, in case this worker ends because of
    /// it. If it succeeds, withdraws the failures that were reported before the call was made.
    fn call<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        waits::call();
        self.healthy()?;
        if update::is_in_updater() {
            return Err(Error::argument(
                "an updater called a store, which may have to wait until the updater returns",
                "let the updater change only `stored`, and call stores from the program",
            ));
        }
        let made_at = MADE_AT.get().unwrap_or_else(|| self.reports());
        let outcome = self.tell_changes().and_then(|()| work());
        match &outcome {
            Ok(_) => {
                let _reporting = self.reporting.lock();
                if self.reports() == made_at {
                    self.backend.failing(None);
                }
            }
            Err(error) => self.failed(&error.to_string()),
        }
        outcome
    }

    fn healthy(&self) -> Result<()> {
        self.backend.process().check("this store")?;
        self.backend.fault().map_or(Ok(()), Err)
    }
}
