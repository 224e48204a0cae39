//! Push and pull of a list of keys, timed and verified.
//!
//! A store on devices is given one tensor on each device: the first holds this rank's input, the others hold
//! zeros. So no copy from host memory is timed.

use std::time::Instant;

use ringpull::KvStore;
use ringpull_base::{DType, Kind, Result, Tensor};
use ringpull_kernels::compress::Compression;

use crate::expected::ExpectedSums;
use crate::models::ModelKey;

/// The iterations over one list of keys, taken one by one, so that something else may be measured between
/// them.
pub struct Iterations {
    keys: Vec<KeyTensors>,
    expected: ExpectedSums,
    /// True if the store adds pushed values to its own.
    accumulates: bool,
}

/// A key and its tensors.
struct KeyTensors {
    name: String,
    /// The tensor in host memory, in which inputs are made and outputs verified.
    host: Tensor,
    /// The tensors that are pushed and pulled: one on each device of the store, or the one in host memory.
    given: Vec<Tensor>,
}

impl KeyTensors {
    /// Copies this rank's input from host memory to the device from which the store takes it.
    fn put(&self, store: &KvStore) -> Result<()> {
        let Some(devices) = store.devices() else { return Ok(()) };
        let (first, others) = self.given.split_first().expect("a store on devices has one");
        devices.overwrite(first, &self.host)?;
        let zeros = Tensor::zeros(self.host.dtype(), self.host.shape());
        others.iter().try_for_each(|other| devices.overwrite(other, &zeros))
    }

    /// Returns when the outputs are complete.
    fn wait(&self, store: &KvStore) -> Result<()> {
        match store.devices() {
            // The store holds an output's lock until the writes to it are queued on its stream.
            Some(devices) => self.given.iter().try_for_each(|output| {
                drop(output.read_anywhere()?);
                devices.settle(output)
            }),
            None => self.host.read().map(drop),
        }
    }

    /// The outputs, in host memory.
    fn outputs(&self, store: &KvStore) -> Result<Vec<Tensor>> {
        match store.devices() {
            Some(devices) => self.given.iter().map(|output| devices.download(output)).collect(),
            None => Ok(self.given.clone()),
        }
    }
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
        let expected = ExpectedSums::new(store.num_workers(), dtype, store.kind(), compression)?;
        Self::expecting(store, keys, prefix, dtype, expected)
    }

    /// Makes iterations over `keys`, named after `prefix`, each with its `expected` value. Collective.
    pub fn expecting(
        store: &KvStore,
        keys: &[ModelKey],
        prefix: &str,
        dtype: DType,
        expected: ExpectedSums,
    ) -> Result<Self> {
        // Nobody pulls these keys again, as nobody pulls a gradient.
        let tensor = |key: &ModelKey| Tensor::zeros(dtype, &key.shape).unkept();
        let made = |key: &ModelKey| {
            let (name, host) = (format!("{prefix}.{}", key.name), tensor(key));
            let given = match store.devices() {
                Some(devices) => (0..devices.count())
                    .map(|device| devices.zeros(device, dtype, &key.shape))
                    .collect::<Result<Vec<Tensor>>>()?,
                None => vec![host.clone()],
            };
            store.init(name.as_str(), &host)?;
            Ok(KeyTensors { name, host, given })
        };
        let keys = keys.iter().map(made).collect::<Result<Vec<KeyTensors>>>()?;
        keys.iter().for_each(|key| expected.fill(&key.host, store.rank(), 0));
        store.wait_all()?;
        Ok(Iterations { keys, expected, accumulates: store.kind() == Kind::DistAsync })
    }

    /// The seconds of one iteration, whose sums have been verified. Iterations count from 0. Collective.
    pub fn seconds(&mut self, store: &KvStore, iteration: usize) -> Result<f64> {
        self.take(store, iteration, || ()).map(|(seconds, (), ())| seconds)
    }

    /// As [`seconds`](Self::seconds), with the readings of `meter` right before and right after the
    /// iteration.
    pub fn take<M>(&mut self, store: &KvStore, iteration: usize, meter: impl Fn() -> M) -> Result<(f64, M, M)> {
        let Iterations { keys, expected, accumulates } = self;
        for key in keys.iter() {
            expected.fill(&key.host, store.rank(), iteration);
            key.put(store)?;
        }
        store.barrier()?;
        let before = meter();
        let start = Instant::now();
        // The backward pass gives the last layer's gradient first, and the next forward pass needs the first
        // layer's first.
        for (layer, key) in keys.iter().enumerate().rev() {
            store.push_pull(key.name.as_str(), &key.given, &key.given, -(layer as i32))?;
        }
        keys.iter().try_for_each(|key| key.wait(store))?;
        let seconds = start.elapsed().as_secs_f64();
        let after = meter();
        store.barrier()?;
        if *accumulates {
            for key in keys.iter() {
                store.pull(key.name.as_str(), &key.given, 0)?;
            }
        }
        let first = if *accumulates { 0 } else { iteration };
        expected.advance(iteration)?;
        for key in keys.iter() {
            for output in key.outputs(store)? {
                expected.check(&output, &key.name, store.rank(), first..=iteration)?;
            }
        }
        Ok((seconds, before, after))
    }
}
