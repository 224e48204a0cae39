//! The world of a promise, and the hash of the values that it has pulled.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use ringpull::KvStore;
use ringpull_base::{DType, Element, Result, Tensor};
use ringpull_kernels::optim::Optimizer;

/// A promise with its name.
pub(crate) type Promise = (&'static str, fn(&World));

/// The promises of a list, named as their functions are.
macro_rules! promises {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}
pub(crate) use promises;

/// One worker's view of a job.
pub(crate) struct World {
    pub(crate) store: KvStore,
    /// A folder that all workers of the job see.
    pub(crate) folder: PathBuf,
    /// True if optimizers' states are divided over the workers.
    is_sharded: bool,
    seen: RefCell<Xxh3>,
}

impl World {
    pub(crate) fn new(store: KvStore, folder: PathBuf, is_sharded: bool) -> Self {
        World { store, folder, is_sharded, seen: RefCell::new(Xxh3::new()) }
    }

    pub(crate) fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        if self.is_sharded { self.store.set_sharded_optimizer(optimizer) } else { self.store.set_optimizer(optimizer) }
    }

    pub(crate) fn rank(&self) -> usize {
        self.store.rank()
    }

    pub(crate) fn workers(&self) -> usize {
        self.store.num_workers()
    }

    /// 1 for rank 0, 2 for rank 1, ...
    pub(crate) fn mine(&self) -> f64 {
        (self.rank() + 1) as f64
    }

    /// The sum of `mine` over all workers: at most 15 for 5.
    pub(crate) fn total(&self) -> f64 {
        (self.workers() * (self.workers() + 1) / 2) as f64
    }

    pub(crate) fn init(&self, key: &str, dtype: DType, shape: &[usize], value: f64) {
        self.store.init(key, &Tensor::full(dtype, shape, value)).unwrap();
    }

    /// Inits `key` as one f32 vector of zeros.
    pub(crate) fn vector(&self, key: &str, len: usize) {
        self.init(key, DType::F32, &[len], 0.0);
    }

    pub(crate) fn push(&self, key: &str, values: &[f32]) {
        self.store.push(key, &[Tensor::from_slice(&[values.len()], values)], 0).unwrap();
    }

    /// Pulls the key's value, which all workers must see alike.
    pub(crate) fn pull<T: Element>(&self, key: &str, shape: &[usize]) -> Vec<T> {
        let out = Tensor::full(T::DTYPE, shape, 77.0);
        self.store.pull(key, std::slice::from_ref(&out), 0).unwrap();
        self.see(&out)
    }

    pub(crate) fn pull_f32(&self, key: &str, len: usize) -> Vec<f32> {
        self.pull::<f32>(key, &[len])
    }

    /// Adds a tensor to the hash.
    pub(crate) fn see<T: Element>(&self, tensor: &Tensor) -> Vec<T> {
        let guard = tensor.read().unwrap();
        self.seen.borrow_mut().update(guard.bytes());
        guard.as_slice::<T>().to_vec()
    }

    pub(crate) fn hash(&self) -> u64 {
        self.seen.borrow().digest()
    }

    /// Tells the other workers, without a call of the store, that this worker has come to `event`.
    pub(crate) fn announce(&self, event: &str) {
        std::fs::write(self.folder.join(format!("{event}-{}", self.rank())), "").unwrap();
    }

    pub(crate) fn has_announced(&self, event: &str, rank: usize) -> bool {
        self.folder.join(format!("{event}-{rank}")).exists()
    }

    /// Waits for `rank` to announce `event`.
    pub(crate) fn wait_for(&self, event: &str, rank: usize) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.has_announced(event, rank) {
            assert!(Instant::now() < deadline, "rank {rank} did not come to {event} in 10 s");
            std::thread::yield_now();
        }
    }
}
