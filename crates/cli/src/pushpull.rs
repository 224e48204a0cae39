//! One rank's part in measuring push and pull of a list of keys, through the public API alone.
//!
//! An iteration: fill the inputs, barrier, start the clock, `push_pull` every key, read every output, stop the clock,
//! barrier, verify every sum. Without the second barrier the first ranks to finish would take the processor from the last. Any kind of store can be measured this way. The ranks' times meet in the store itself: every rank
//! pushes its own row of a matrix of zeros, and the sum is the matrix of all rows.

use xxhash_rust::xxh3::xxh3_64;

use ringpull::KvStore;
use ringpull_base::config::{self, Dmlc};
use ringpull_base::topology::host_name;
use ringpull_base::{DType, Error, Kind, Result, RowSparse, Tensor};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::{Optimizer, Rule};
use ringpull_workload::iterations::Iterations;
use ringpull_workload::models::ModelKey;

use crate::record::{Measured, Record};
use crate::usage::{Memory, Usage, cpu_s};

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
    if store.kind() == Kind::DistAsync {
        // Without an optimizer an asynchronous server keeps whichever push came last; with this one it adds them up.
        store.set_optimizer(&adding())?;
    }
    let mut records = Vec::with_capacity(payloads.len());
    for (index, keys) in payloads.iter().enumerate() {
        let (samples, extra_rss) = measure(store, keys, index, plan)?;
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

fn measure(store: &KvStore, keys: &[ModelKey], index: usize, plan: &Plan) -> Result<(Vec<Sample>, Option<u64>)> {
    let mut iterations = Iterations::start(store, keys, &index.to_string(), plan.dtype, plan.compression)?;
    let mut memory = Memory::watch();
    let mut samples = Vec::with_capacity(plan.iters);
    for iteration in 0..plan.warmup + plan.iters {
        if iteration == plan.warmup {
            memory.look_away();
        }
        let sample = take(&mut iterations, store, iteration)?;
        if iteration >= plan.warmup {
            samples.push(sample);
        }
    }
    Ok((samples, memory.grown_bytes()))
}

fn take(iterations: &mut Iterations, store: &KvStore, iteration: usize) -> Result<Sample> {
    let (seconds, before, after) = iterations.take(store, iteration, || (traffic(), cpu_s()))?;
    let ((sent, received), cpu) = before;
    Ok(Sample { seconds, sent: after.0.0 - sent, received: after.0.1 - received, cpu_s: after.1 - cpu })
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
