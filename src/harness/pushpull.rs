//! One rank's part in measuring push and pull of a list of keys, through the public API alone.
//!
//! An iteration: fill the inputs, barrier, start the clock, `push_pull` every key, read every output, stop the clock,
//! barrier, verify every sum. Without the second barrier the first ranks to finish would take the processor from the last. Any kind of store can be measured this way. The ranks' times meet in the store itself: every rank
//! pushes its own row of a matrix of zeros, and the sum is the matrix of all rows.

use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64;

use crate::compress::Compression;
use crate::config::{self, Dmlc};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::harness::expected::Expected;
use crate::harness::models::ModelKey;
use crate::harness::record::{Measured, Record};
use crate::harness::usage::{Memory, Usage, cpu_s};
use crate::kind::Kind;
use crate::optim::{Optimizer, Rule};
use crate::sparse::RowSparse;
use crate::store::KvStore;
use crate::tensor::Tensor;
use crate::topology::host_name;

/// How the keys are measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The element type of every key.
    pub dtype: DType,
    /// Measured iterations, at least 1.
    pub iters: usize,
    /// Iterations before them, verified but not timed.
    pub warmup: usize,
    /// How gradients are compressed, if they are.
    pub compression: Option<Compression>,
}

/// One iteration on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    seconds: f64,
    sent: f64,
    received: f64,
    cpu_s: f64,
}

/// The values that one rank contributes besides its samples, and the numbers of one sample.
const ROW_HEAD: usize = 2;
const SAMPLE_LEN: usize = 4;

/// Measures each list of `payloads` on its own and gives rank 0 one record for each. Collective.
pub fn run(store: &KvStore, algorithm: &str, payloads: &[Vec<ModelKey>], plan: &Plan) -> Result<Option<Vec<Record>>> {
    if plan.iters == 0 {
        return Err(Error::argument("--iters 0 measures nothing", "give at least 1"));
    }
    if let Some(compression) = &plan.compression {
        store.set_gradient_compression(compression)?;
    }
    let accumulates = store.kind() == Kind::DistAsync;
    if accumulates {
        // Without an optimizer an asynchronous server keeps whichever push came last; with this one it adds them up.
        store.set_optimizer(&adding())?;
    }
    let mut records = Vec::with_capacity(payloads.len());
    for (index, keys) in payloads.iter().enumerate() {
        let (samples, extra_rss) = measure(store, keys, index, plan, accumulates)?;
        let rows = gather(store, &format!("ringpull.samples.{index}"), &samples, extra_rss)?;
        records.push(record(store, algorithm, keys, plan, &rows)?);
    }
    Ok((store.rank() == 0).then_some(records))
}

pub(super) fn adding() -> Optimizer {
    Optimizer {
        rule: Rule::Test,
        learning_rate: 1.0,
        weight_decay: 0.0,
        rescale_grad: 1.0,
        clip_gradient: None,
        multi_precision: false,
    }
}

fn measure(
    store: &KvStore,
    keys: &[ModelKey],
    index: usize,
    plan: &Plan,
    accumulates: bool,
) -> Result<(Vec<Sample>, Option<u64>)> {
    let mut iterations = Iterations::start(store, keys, &index.to_string(), plan, accumulates)?;
    let mut memory = Memory::watch();
    let mut samples = Vec::with_capacity(plan.iters);
    for iteration in 0..plan.warmup + plan.iters {
        if iteration == plan.warmup {
            memory.look_away();
        }
        let sample = iterations.take(store, iteration)?;
        if iteration >= plan.warmup {
            samples.push(sample);
        }
    }
    Ok((samples, memory.grown_bytes()))
}

/// The iterations over one list of keys, taken one by one, so that something else may be measured between them.
pub struct Iterations {
    tensors: Vec<(String, Tensor)>,
    expected: Expected,
    accumulates: bool,
}

impl Iterations {
    /// For keys of `lens` f32 elements, named after `prefix`. Collective.
    pub fn new(store: &KvStore, lens: &[usize], prefix: &str) -> Result<Self> {
        let key = |(place, len): (usize, &usize)| ModelKey { name: place.to_string(), shape: vec![*len] };
        let keys: Vec<ModelKey> = lens.iter().enumerate().map(key).collect();
        let plan = Plan { dtype: DType::F32, iters: 1, warmup: 0, compression: None };
        Self::start(store, &keys, prefix, &plan, false)
    }

    fn start(store: &KvStore, keys: &[ModelKey], prefix: &str, plan: &Plan, accumulates: bool) -> Result<Self> {
        let expected = Expected::new(store.num_workers(), plan.dtype, store.kind(), plan.compression)?;
        // Nobody pulls these keys again, as nobody pulls a gradient.
        let tensor = |key: &ModelKey| Tensor::zeros(plan.dtype, &key.shape).unkept();
        let tensors: Vec<(String, Tensor)> =
            keys.iter().map(|key| (format!("{prefix}.{}", key.name), tensor(key))).collect();
        for (key, tensor) in &tensors {
            store.init(key.as_str(), tensor)?;
        }
        tensors.iter().for_each(|(_, tensor)| expected.fill(tensor, store.rank(), 0));
        store.wait_all()?;
        Ok(Iterations { tensors, expected, accumulates })
    }

    /// The seconds of one iteration, whose sums have been verified. Iterations count from 0. Collective.
    pub fn seconds(&mut self, store: &KvStore, iteration: usize) -> Result<f64> {
        Ok(self.take(store, iteration)?.seconds)
    }

    fn take(&mut self, store: &KvStore, iteration: usize) -> Result<Sample> {
        let Iterations { tensors, expected, accumulates } = self;
        tensors.iter().for_each(|(_, tensor)| expected.fill(tensor, store.rank(), iteration));
        store.barrier()?;
        let before = traffic();
        let (start, cpu) = (Instant::now(), cpu_s());
        // The backward pass gives the last layer's gradient first, and the next forward pass needs the first layer's first.
        for (layer, (key, tensor)) in tensors.iter().enumerate().rev() {
            let pair = std::slice::from_ref(tensor);
            store.push_pull(key.as_str(), pair, pair, -(layer as i32))?;
        }
        for (_, tensor) in tensors.iter() {
            drop(tensor.read()?);
        }
        let (seconds, cpu_s) = (start.elapsed().as_secs_f64(), cpu_s() - cpu);
        let after = traffic();
        store.barrier()?;
        if *accumulates {
            for (key, tensor) in tensors.iter() {
                store.pull(key.as_str(), std::slice::from_ref(tensor), 0)?;
            }
        }
        let first = if *accumulates { 0 } else { iteration };
        expected.advance(iteration);
        for (key, tensor) in tensors.iter() {
            expected.check(tensor, key, store.rank(), first..=iteration)?;
        }
        Ok(Sample { seconds, sent: after.0 - before.0, received: after.1 - before.1, cpu_s })
    }
}

/// Every rank's row: a hash of its host's name, how its memory grew, then its samples.
fn gather(store: &KvStore, key: &str, samples: &[Sample], extra_rss: Option<u64>) -> Result<Vec<Vec<f64>>> {
    let mut row = vec![host_number(), extra_rss.map_or(-1.0, |bytes| bytes as f64)];
    row.extend(samples.iter().flat_map(|sample| [sample.seconds, sample.sent, sample.received, sample.cpu_s]));
    rows(store, key, &row)
}

/// This host's name as a number: 32 bits of its hash, which an f64 holds exactly.
pub(super) fn host_number() -> f64 {
    (xxh3_64(host_name().as_bytes()) >> 32) as f64
}

/// Every rank's `own`, in the order of the ranks: the sum of matrices that are zero but for one row. `key` must be new. Collective.
pub(super) fn rows(store: &KvStore, key: &str, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let (ranks, width) = (store.num_workers(), own.len());
    let matrix = Tensor::zeros(DType::F64, &[ranks, width]);
    store.init(key, &matrix)?;
    // Rows are never compressed.
    let row = RowSparse::new(&[ranks, width], &[store.rank() as i64], Tensor::from_slice(&[1, width], own))?;
    store.push_rows(key, &[row], 0)?;
    store.barrier()?;
    store.pull(key, std::slice::from_ref(&matrix), 0)?;
    let rows = matrix.to_vec::<f64>()?.chunks_exact(width).map(<[f64]>::to_vec).collect();
    store.barrier()?;
    Ok(rows)
}

/// How many different hosts the rows begin with.
pub(super) fn count_hosts(rows: &[Vec<f64>]) -> usize {
    let mut hosts: Vec<u64> = rows.iter().map(|row| row[0] as u64).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts.len()
}

fn record(store: &KvStore, algorithm: &str, keys: &[ModelKey], plan: &Plan, rows: &[Vec<f64>]) -> Result<Record> {
    let dtype = plan.dtype;
    let way = match (&plan.compression, store.kind()) {
        // NCCL sums on GPUs; what is not there goes by `auto`.
        (None, Kind::DistSyncMpi) if algorithm == "nccl" && config::devices().is_none() => "auto".to_owned(),
        (None, Kind::DistSyncMpi) => algorithm.to_owned(),
        (Some(compression), Kind::DistSyncMpi) => compression.to_string(),
        (None, Kind::Local | Kind::Device) => "local".to_owned(),
        (None, _) => "servers".to_owned(),
        (Some(compression), _) => format!("servers {compression}"),
    };
    let iters = (rows[0].len() - ROW_HEAD) / SAMPLE_LEN;
    let largest = |iteration: usize, field: usize| {
        rows.iter().map(|row| row[ROW_HEAD + SAMPLE_LEN * iteration + field]).fold(0.0, f64::max)
    };
    let traffic: f64 = (0..iters).map(|iteration| largest(iteration, 1).max(largest(iteration, 2))).sum();
    let elements: usize = keys.iter().map(ModelKey::len).sum();
    let samples =
        |field: usize| rows.iter().flat_map(move |row| row[ROW_HEAD..].iter().skip(field).step_by(SAMPLE_LEN).copied());
    let payload_gb = (elements * dtype.size_bytes()) as f64 / 1e9;
    let usage = Usage {
        cpu_s_per_gb: Some(samples(3).sum::<f64>() / (rows.len() * iters) as f64 / payload_gb),
        waiting_cpu: None,
        extra_rss_bytes: rows
            .iter()
            .all(|row| row[1] >= 0.0)
            .then(|| rows.iter().map(|row| row[1]).fold(0.0, f64::max) as u64),
    };
    let servers = if store.kind().has_servers() { Dmlc::from_env()?.map_or(0, |job| job.num_servers) } else { 0 };
    Record::of_verified(Measured {
        op: "pushpull",
        mode: store.kind().to_string(),
        algorithm: way,
        ranks: rows.len(),
        hosts: count_hosts(rows),
        servers,
        bytes: (elements * dtype.size_bytes()) as u64,
        dtype,
        seconds: (0..iters).map(|iteration| largest(iteration, 0)).collect(),
        host_bytes: Some((traffic / iters as f64).round() as u64).filter(|bytes| *bytes > 0),
        usage,
    })
}

/// Bytes sent and received so far by this host's network interfaces, the loopback apart; zeros where the system does not say.
pub(super) fn traffic() -> (f64, f64) {
    std::fs::read_to_string("/proc/self/net/dev").map_or((0.0, 0.0), |text| sum_traffic(&text))
}

fn sum_traffic(table: &str) -> (f64, f64) {
    table.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo").fold(
        (0.0, 0.0),
        |(sent, received), (_, counters)| {
            let counters: Vec<f64> = counters.split_whitespace().filter_map(|field| field.parse().ok()).collect();
            let at = |index: usize| counters.get(index).copied().unwrap_or(0.0);
            (sent + at(8), received + at(0))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_adds_up_every_interface_but_the_loopback() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth0: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n  eth1: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n";
        assert_eq!(sum_traffic(table), (202.0, 101.0));
    }
}
