//! One rank's part in measuring push and pull of a list of keys, through the public API.
//!
//! An iteration: fill the inputs, barrier, start the clock, `push_pull` every key, read every output, stop
//! the clock, barrier, verify every sum. Without the second barrier the first ranks to finish would take
//! processor time from the last. Any kind of store can be measured this way. The store itself gathers the
//! ranks' times ([`ranks`](crate::ranks)).

use ringpull::KvStore;
use ringpull_base::config::{self, Dmlc};
use ringpull_base::{AlgorithmChoice, DType, Error, Kind, Result};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;
use ringpull_workload::expected::ExpectedSums;
use ringpull_workload::iterations::Iterations;
use ringpull_workload::models::ModelKey;
use ringpull_workload::sparse::{SparseIterations, SparseSetup, adding};

use crate::cost::SparseRows;
use crate::progress::Progress;
use crate::ranks::{RankReport, ResourceUse, gather, record_of};
use crate::record::Record;
use crate::usage::Memory;

/// The settings by which the keys are measured.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    pub dtype: DType,
    /// Measured iterations, at least 1.
    pub iters: usize,
    /// Iterations before the measured ones, verified but not timed.
    pub warmup: usize,
    /// The compression of gradients, if any.
    pub compression: Option<Compression>,
    /// The allreduce of `dist_sync_mpi`.
    pub algorithm: AlgorithmChoice,
    /// The optimizer that updates values by the sums, if there is one.
    pub optimizer: Option<Optimizer>,
    /// True if the optimizer's states are divided over the ranks.
    pub is_sharded: bool,
}

/// Measures each list of `payloads` separately and gives rank 0 one record for each. Collective.
pub fn run(
    store: &KvStore,
    payloads: &[Vec<ModelKey>],
    plan: &StoreOptions,
    progress: Option<&Progress>,
) -> Result<Option<Vec<Record>>> {
    plan.prepare(store)?;
    if let Some(optimizer) = &plan.optimizer {
        optimizer.check()?;
        plan.check_optimized(store)?;
    }
    let mut records = Vec::with_capacity(payloads.len());
    let each = plan.warmup + plan.iters;
    for (index, keys) in payloads.iter().enumerate() {
        let begun = |iteration: usize| {
            if let Some(progress) = progress {
                let words = format!("payload {} of {}", index + 1, payloads.len());
                progress.part(index * each + iteration, payloads.len() * each, words);
            }
        };
        let found = measure(store, keys, index, plan, begun)?;
        if plan.optimizer.is_some() {
            // The plan's optimizer must not change the ranks' reports, so they are gathered with `adding`.
            plan.optimize(store, &adding())?;
        }
        let ranks = gather(store, &format!("ringpull.samples.{index}"), &found)?;
        records.push(plan.record("pushpull", store, keys, &ranks)?);
    }
    Ok((store.rank() == 0).then_some(records))
}

/// As [`run`], but pushes and pulls rows of each of `tables`.
pub fn run_sparse(
    store: &KvStore,
    tables: &[SparseSetup],
    plan: &StoreOptions,
    progress: Option<&Progress>,
) -> Result<Option<Vec<Record>>> {
    plan.prepare(store)?;
    let mut records = Vec::with_capacity(tables.len());
    for (index, table) in tables.iter().enumerate() {
        let mut iterations = SparseIterations::new(store, &format!("{index}.table"), *table)?;
        let mut found = RankReport::default();
        for iteration in 0..plan.warmup + plan.iters {
            if let Some(progress) = progress {
                let each = plan.warmup + plan.iters;
                let words = format!("payload {} of {}", index + 1, tables.len());
                progress.part(index * each + iteration, tables.len() * each, words);
            }
            let (seconds, before, after) = iterations.take(store, iteration, ResourceUse::now)?;
            if iteration >= plan.warmup {
                found.seconds.push(seconds);
                found.spent.add(before, after);
            }
        }
        let ranks = gather(store, &format!("ringpull.samples.{index}"), &found)?;
        let sparse = Some(SparseRows { table: *table, union: iterations.union() });
        let blank = Record { sparse, ..plan.blank("pushpull", store)? };
        records.push(record_of(&ranks, table.touched_bytes(), blank)?);
    }
    Ok((store.rank() == 0).then_some(records))
}

/// Measures the keys on this rank. `begun` is called before each iteration.
fn measure(
    store: &KvStore,
    keys: &[ModelKey],
    index: usize,
    plan: &StoreOptions,
    begun: impl Fn(usize),
) -> Result<RankReport> {
    let mut expected = ExpectedSums::new(store.num_workers(), plan.dtype, store.kind(), plan.compression)?;
    if let Some(optimizer) = &plan.optimizer {
        plan.optimize(store, optimizer)?;
        expected = expected.updated_by(optimizer);
    }
    let held_before = store.stats().state_bytes;
    let mut iterations = Iterations::expecting(store, keys, &index.to_string(), plan.dtype, expected)?;
    let mut memory = Memory::watch();
    let mut found = RankReport::default();
    for iteration in 0..plan.warmup + plan.iters {
        begun(iteration);
        if iteration == plan.warmup {
            memory.stop();
        }
        let (seconds, before, after) = iterations.take(store, iteration, ResourceUse::now)?;
        if iteration >= plan.warmup {
            found.seconds.push(seconds);
            found.spent.add(before, after);
        }
    }
    let state_bytes = plan.optimizer.is_some().then(|| store.stats().state_bytes - held_before);
    Ok(RankReport { extra_rss_bytes: memory.grown_bytes(), state_bytes, ..found })
}

impl StoreOptions {
    /// Makes a new `store` ready to be measured. Collective.
    pub fn prepare(&self, store: &KvStore) -> Result<()> {
        if self.iters == 0 {
            return Err(Error::argument("invalid --iters 0: expected at least 1", "give a larger number"));
        }
        if let Some(compression) = &self.compression {
            store.set_gradient_compression(compression)?;
        }
        if store.kind() == Kind::DistAsync {
            // Without an optimizer an asynchronous server keeps only the last push. With this optimizer it
            // adds all pushes.
            store.set_optimizer(&adding())?;
        }
        Ok(())
    }

    /// Returns an error if values that an optimizer has updated cannot be checked.
    fn check_optimized(&self, store: &KvStore) -> Result<()> {
        if store.kind() == Kind::DistAsync || self.dtype != DType::F32 {
            return Err(Error::argument(
                format!("--optimizer with {} and {}: weights cannot be checked", store.kind(), self.dtype),
                "measure f32, and a kind that sums in rounds",
            ));
        }
        Ok(())
    }

    fn optimize(&self, store: &KvStore, optimizer: &Optimizer) -> Result<()> {
        if self.is_sharded { store.set_sharded_optimizer(optimizer) } else { store.set_optimizer(optimizer) }
    }

    /// Makes the record of the ranks' measurements of `keys`.
    pub fn record(&self, op: &str, store: &KvStore, keys: &[ModelKey], ranks: &[RankReport]) -> Result<Record> {
        let bytes = self.dtype.size_bytes() * keys.iter().map(ModelKey::len).sum::<usize>();
        record_of(ranks, bytes, self.blank(op, store)?)
    }

    /// Makes the record of a measurement of `store`, with the fields that are known before it.
    fn blank(&self, op: &str, store: &KvStore) -> Result<Record> {
        let algorithm = match (&self.compression, store.kind()) {
            // NCCL sums only on GPUs; host memory is summed by `auto`.
            (None, Kind::DistSyncMpi) if self.algorithm.is_auto() && config::devices().is_none() => "auto".to_owned(),
            (None, Kind::DistSyncMpi) => self.algorithm.to_string(),
            (Some(compression), Kind::DistSyncMpi) => compression.to_string(),
            (None, Kind::Local | Kind::Device) => "local".to_owned(),
            (None, _) => "servers".to_owned(),
            (Some(compression), _) => format!("servers {compression}"),
        };
        let algorithm = match (&self.optimizer, self.is_sharded) {
            (None, _) => algorithm,
            (Some(optimizer), false) => format!("{algorithm} {optimizer}"),
            (Some(optimizer), true) => format!("{algorithm} {optimizer} sharded"),
        };
        let servers = if store.kind().has_servers() { Dmlc::from_env()?.map_or(0, |job| job.num_servers) } else { 0 };
        let mode = store.kind().to_string();
        Ok(Record { mode, algorithm, servers, ..Record::blank(op, self.dtype) })
    }
}
