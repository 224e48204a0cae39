//! `dist_hybrid`: dense keys by allreduce, as `dist_sync_mpi`, and row-sparse keys on servers, as
//! `dist_sync`.
//!
//! A key is row-sparse if it was initialised by `init_row_sparse`, and stays row-sparse. Any key takes dense
//! and row-sparse gradients. The ranks of MPI are the workers of the servers, with equal numbers. A fault of
//! either backend is also a fault of the other, on every rank.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use ringpull_base::{Buffer, Error, Key, Result, Tensor, TensorMut, Waiter};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::allreduce::Allreduce;
use crate::servers::Servers;
use crate::{Backend, Contribution, Entry, MergedRows, SavedStates, Updater};

/// A rank of a job whose ranks are workers of servers too.
pub(crate) struct Hybrid {
    dense: Allreduce,
    sparse: Servers,
    sparse_keys: Mutex<BTreeSet<Key>>,
}

impl Hybrid {
    /// Returns a store over both backends. Their rank and number of workers must be equal.
    pub(crate) fn new(dense: Allreduce, sparse: Servers) -> Result<Self> {
        let place = |half: &dyn Backend| (half.rank(), half.num_workers());
        let (of_mpi, of_servers) = (place(&dense), place(&sparse));
        if of_mpi != of_servers {
            return Err(Error::job_mismatch(
                format!(
                    "this process is rank {} of {} of MPI, but worker {} of {} of the servers",
                    of_mpi.0, of_mpi.1, of_servers.0, of_servers.1
                ),
                "start it by `ringpull launch --hybrid`, or with as many ranks as DMLC_NUM_WORKER and no DMLC_WORKER_ID",
            ));
        }
        dense.share_faults(&sparse);
        Ok(Hybrid { dense, sparse, sparse_keys: Mutex::default() })
    }

    fn half(&self, entry: &Entry) -> &dyn Backend {
        if entry.is_row_sparse { &self.sparse } else { &self.dense }
    }
}

impl Backend for Hybrid {
    fn rank(&self) -> usize {
        self.dense.rank()
    }

    fn num_workers(&self) -> usize {
        self.dense.num_workers()
    }

    fn fault(&self) -> Option<Error> {
        self.dense.fault().or_else(|| self.sparse.fault())
    }

    fn failing(&self, why: Option<&str>) {
        self.dense.failing(why);
        self.sparse.failing(why);
    }

    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()> {
        if !entry.is_row_sparse {
            return self.dense.init(entry, value);
        }
        // The ranks agree on every key, so that no rank waits for a key that the others have on servers.
        let shape: Vec<usize> = std::iter::once(0).chain(entry.shape.iter().copied()).collect();
        let marker = Entry { shape: shape.as_slice().into(), is_row_sparse: false, ..entry.clone() };
        self.dense.init(&marker, &Tensor::zeros(entry.dtype, &shape))?;
        self.sparse.init(entry, value)?;
        self.sparse_keys.lock().insert(entry.key.clone());
        Ok(())
    }

    fn make_room(&self, entry: &Entry, priority: i32) -> Result<()> {
        self.half(entry).make_room(entry, priority)
    }

    fn push(&self, entry: &Entry, gradient: Vec<Contribution>, outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        self.half(entry).push(entry, gradient, outs, priority)
    }

    fn push_rows(&self, entry: &Entry, gradient: MergedRows, priority: i32) -> Result<()> {
        self.half(entry).push_rows(entry, gradient, priority)
    }

    fn value(&self, entry: &Entry, operation: &str, priority: i32) -> Result<Arc<Buffer>> {
        self.half(entry).value(entry, operation, priority)
    }

    fn pull(&self, entry: &Entry, outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        self.half(entry).pull(entry, outs, priority)
    }

    fn pull_rows(&self, entry: &Entry, ids: &[i64], priority: i32) -> Result<Vec<u8>> {
        self.half(entry).pull_rows(entry, ids, priority)
    }

    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.dense.set_optimizer(optimizer)?;
        self.sparse.set_optimizer(optimizer)
    }

    fn set_sharded_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.dense.set_sharded_optimizer(optimizer)?;
        self.sparse.set_sharded_optimizer(optimizer)
    }

    fn set_updater(&self, updater: Updater) -> Result<()> {
        self.sparse.set_updater(updater)
    }

    fn set_compression(&self, compression: Option<&Compression>) -> Result<()> {
        self.dense.set_compression(compression)?;
        self.sparse.set_compression(compression)
    }

    fn states(&self) -> Result<SavedStates> {
        let mut saved = self.dense.states()?;
        saved.states.extend(self.sparse.states()?.states);
        Ok(saved)
    }

    fn state_bytes(&self) -> u64 {
        self.dense.state_bytes()
    }

    fn set_states(&self, states: SavedStates) -> Result<()> {
        let keys = self.sparse_keys.lock().clone();
        let SavedStates { optimizer, states } = states;
        let (of_servers, of_ranks) = states.into_iter().partition(|(key, _)| keys.contains(key));
        self.dense.set_states(SavedStates { optimizer: optimizer.clone(), states: of_ranks })?;
        self.sparse.set_states(SavedStates { optimizer, states: of_servers })
    }

    fn barrier(&self) -> Result<()> {
        self.dense.barrier()
    }

    fn join(&self) -> Result<usize> {
        self.sparse.join()
    }

    fn wait_all(&self) -> Result<()> {
        self.dense.wait_all()?;
        self.sparse.wait_all()
    }

    fn leave(&self) {
        self.sparse.leave();
    }

    fn traffic(&self) -> (u64, u64, u64) {
        let (one, other) = (self.dense.traffic(), self.sparse.traffic());
        (one.0 + other.0, one.1 + other.1, one.2 + other.2)
    }

    fn waiter(&self) -> Option<Weak<dyn Waiter>> {
        self.dense.waiter()
    }
}
