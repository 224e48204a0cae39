//! Push and pull of a list of keys, timed and verified.

use std::slice::from_ref;
use std::time::Instant;

use ringpull::KvStore;
use ringpull_base::{DType, Kind, Result, Tensor};
use ringpull_kernels::compress::Compression;

use crate::expected::Expected;
use crate::models::ModelKey;

/// The iterations over one list of keys, taken one by one, so that something else may be measured between
/// them.
pub struct Iterations {
    tensors: Vec<(String, Tensor)>,
    expected: Expected,
    /// Whether the store adds what is pushed to what it holds.
    accumulates: bool,
}

impl Iterations {
    /// For keys of `lens` f32 elements, named after `prefix`. Collective.
    pub fn new(store: &KvStore, lens: &[usize], prefix: &str) -> Result<Self> {
        let key = |(place, len): (usize, &usize)| ModelKey { name: place.to_string(), shape: vec![*len] };
        let keys: Vec<ModelKey> = lens.iter().enumerate().map(key).collect();
        Self::start(store, &keys, prefix, DType::F32, None)
    }

    /// For `keys`, named after `prefix`, on a store that compresses as `compression` says. Collective.
    pub fn start(
        store: &KvStore,
        keys: &[ModelKey],
        prefix: &str,
        dtype: DType,
        compression: Option<Compression>,
    ) -> Result<Self> {
        let expected = Expected::new(store.num_workers(), dtype, store.kind(), compression)?;
        Self::expecting(store, keys, prefix, dtype, expected)
    }

    /// For `keys`, named after `prefix`, of which is `expected` what it is. Collective.
    pub fn expecting(
        store: &KvStore,
        keys: &[ModelKey],
        prefix: &str,
        dtype: DType,
        expected: Expected,
    ) -> Result<Self> {
        // Nobody pulls these keys again, as nobody pulls a gradient.
        let tensor = |key: &ModelKey| Tensor::zeros(dtype, &key.shape).unkept();
        let tensors: Vec<(String, Tensor)> =
            keys.iter().map(|key| (format!("{prefix}.{}", key.name), tensor(key))).collect();
        for (key, tensor) in &tensors {
            store.init(key.as_str(), tensor)?;
        }
        tensors.iter().for_each(|(_, tensor)| expected.fill(tensor, store.rank(), 0));
        store.wait_all()?;
        Ok(Iterations { tensors, expected, accumulates: store.kind() == Kind::DistAsync })
    }

    /// The seconds of one iteration, whose sums have been verified. Iterations count from 0. Collective.
    pub fn seconds(&mut self, store: &KvStore, iteration: usize) -> Result<f64> {
        self.take(store, iteration, || ()).map(|(seconds, (), ())| seconds)
    }

    /// As [`seconds`](Self::seconds), with what `meter` says right before and right after.
    pub fn take<M>(&mut self, store: &KvStore, iteration: usize, meter: impl Fn() -> M) -> Result<(f64, M, M)> {
        let Iterations { tensors, expected, accumulates } = self;
        tensors.iter().for_each(|(_, tensor)| expected.fill(tensor, store.rank(), iteration));
        store.barrier()?;
        let before = meter();
        let start = Instant::now();
        // The backward pass gives the last layer's gradient first, and the next forward pass needs the first
        // layer's first.
        for (layer, (key, tensor)) in tensors.iter().enumerate().rev() {
            store.push_pull(key.as_str(), from_ref(tensor), from_ref(tensor), -(layer as i32))?;
        }
        for (_, tensor) in tensors.iter() {
            drop(tensor.read()?);
        }
        let seconds = start.elapsed().as_secs_f64();
        let after = meter();
        store.barrier()?;
        if *accumulates {
            for (key, tensor) in tensors.iter() {
                store.pull(key.as_str(), from_ref(tensor), 0)?;
            }
        }
        let first = if *accumulates { 0 } else { iteration };
        expected.advance(iteration)?;
        for (key, tensor) in tensors.iter() {
            expected.check(tensor, key, store.rank(), first..=iteration)?;
        }
        Ok((seconds, before, after))
    }
}
