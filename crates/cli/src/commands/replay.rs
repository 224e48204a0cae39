//! `ringpull bench replay`: the calls of a recorded job, without its framework, on any kind of store.

use std::path::PathBuf;

use clap::Args;

use ringpull_base::{Kind, Result};

use super::measured::progress;
use super::{Format, SUCCESS, Status, print};
use ringpull_lab::replay;
use ringpull_lab::replay::recorded_job::RecordedJob;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    RINGPULL_RECORD=run ringpull launch -n 4 -- python train.py\n  \
    ringpull launch -n 4 -- ringpull bench replay run\n  \
    ringpull launch -n 4 -s 2 -- ringpull bench replay run --kv-store dist_sync\n  \
    ringpull lab up 4 200mbit && ringpull launch -n 4 --launcher lab -- ringpull bench replay run\n\n\
    RINGPULL_RECORD=FOLDER makes each worker of a job write what it calls of its store, and when. A replay\n\
    makes the same calls with the same computing between them (by the clock), on the hosts and with the kind\n\
    of store that this job has. It prints a step's time and what of it no computing hides, beside those that\n\
    were recorded. With another number of ranks, rank R replays worker R modulo the recorded workers. Every\n\
    sum is checked; an optimizer of the job is not applied. Values on devices are not recorded.")]
pub(crate) struct ReplayArgs {
    /// The folder that `RINGPULL_RECORD` named.
    folder: PathBuf,
    /// The kind of store.
    #[arg(long, default_value = "dist_sync_mpi")]
    kv_store: Kind,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

/// Replays, and prints on rank 0.
pub(crate) fn run(args: &ReplayArgs) -> Result<Status> {
    let store = super::store(args.kv_store)?;
    let job = RecordedJob::read(&args.folder, store.rank())?;
    let progress = progress(args.format);
    if let Some(replayed) = replay::run(&store, &job, progress.as_ref())? {
        drop(progress);
        print(args.format, &replayed, || replayed.table())?;
    }
    Ok(SUCCESS)
}
