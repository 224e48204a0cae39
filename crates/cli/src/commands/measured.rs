//! The options of the benches that measure a store.

use clap::Args;

use ringpull_workload::sparse::SparseSetup;

use ringpull_base::config::{self, Config, Dmlc};
use ringpull_base::{DType, Kind, Result};
use ringpull_kernels::compress::Compression;

use super::Format;
use ringpull_harness::progress::Progress;
use ringpull_harness::pushpull;

/// The options of a measurement of a store.
#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    /// The kind of store.
    #[arg(long, default_value = "dist_sync_mpi")]
    pub(super) kv_store: Kind,
    /// Gradient compression: none, fp16, bf16, 2bit:THRESHOLD, 1bit:THRESHOLD or topk:RATIO.
    #[arg(long, default_value = "none")]
    compression: String,
    /// Iterations before the measured ones, verified but not timed.
    #[arg(long, default_value_t = 2)]
    warmup: usize,
    /// Element type.
    #[arg(long, default_value = "f32", value_parser = super::dtypes())]
    pub(super) dtype: DType,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

/// Rows of a table as the payload.
#[derive(Debug, Clone, Args)]
pub(super) struct SparseArgs {
    /// Push and pull rows of a table, as a step with an embedding does. The value is the fraction of the rows
    /// that each rank touches, such as 0.01. The payload's size is the size of the table.
    #[arg(long, value_name = "PART", conflicts_with = "model", allow_negative_numbers = true)]
    sparse: Option<f64>,
}

impl SparseArgs {
    /// The table of `bytes` bytes, if rows are the payload.
    pub(super) fn table(&self, bytes: usize) -> Result<Option<SparseSetup>> {
        self.sparse.map(|touched| SparseSetup::new(bytes, touched)).transpose()
    }

    /// Returns true if rows are the payload.
    pub(super) fn is_given(&self) -> bool {
        self.sparse.is_some()
    }

    /// The options as words, for another command.
    pub(super) fn words(&self) -> Vec<String> {
        self.sparse.iter().map(|part| format!("--sparse={part}")).collect()
    }
}

impl StoreArgs {
    /// The plan of `iters` iterations with these options.
    pub(super) fn plan(&self, iters: usize) -> Result<pushpull::StoreOptions> {
        let compression = Compression::choice(&self.compression)?;
        let algorithm = Config::from_env()?.algorithm;
        Ok(pushpull::StoreOptions {
            dtype: self.dtype,
            iters,
            warmup: self.warmup,
            compression,
            algorithm,
            optimizer: None,
            is_sharded: false,
        })
    }
}

/// The progress of a bench. Only one rank shows it, and only if the output is a table.
pub(super) fn progress(format: Format) -> Option<Progress> {
    let job = Dmlc::from_env().ok().flatten();
    let speaks = format == Format::Table && config::speaks_for_the_job(job.as_ref());
    speaks.then(|| Progress::start("waiting for all ranks"))
}
