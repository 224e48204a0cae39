//! `ringpull timeline`: merges the ranks' timelines, and shows where a step's time went.

use std::path::PathBuf;

use clap::Args;

use ringpull_base::timeline::trace::Trace;
use ringpull_base::{Error, Result};

use super::{Format, print, to_json_line, write};
use super::{SUCCESS, Status};
use crate::timeline::account::account;
use crate::timeline::{merge, words};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    RINGPULL_TIMELINE=trace.json mpirun -n 4 --oversubscribe ringpull bench train --model vgg16 --scale 0.01 --compute 0.2\n  \
    ringpull timeline trace.*.json --out merged.json\n  \
    ringpull timeline trace.*.json --format json | jq .mean\n\n\
    If RINGPULL_TIMELINE=FILE is set, every process writes FILE with its rank before the extension, or\n\
    in place of {rank}. chrome://tracing and https://ui.perfetto.dev open each of them, and the merged\n\
    one.")]
pub(crate) struct TimelineArgs {
    /// The files of all ranks of one run.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write the events of all ranks, on rank 0's clock, to this file.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The number of keys to list.
    #[arg(long, default_value_t = 10)]
    keys: usize,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Merges, and prints the account.
pub(crate) fn run(args: &TimelineArgs) -> Result<Status> {
    let traces = args.files.iter().map(|file| Trace::read(file)).collect::<Result<Vec<_>>>()?;
    let merged = merge::merge(traces)?;
    if let Some(path) = &args.out {
        write(path, &to_json_line(&merged.to_value())?)?;
        eprintln!("merged: {}", path.display());
    }
    for doubt in merged.warnings() {
        eprintln!("warning: {doubt}");
    }
    let mut found = account(&merged);
    if found.ranks.iter().all(|rank| rank.steps == 0) {
        return Err(Error::argument(
            "these files have no step: no rank pushed anything",
            "give the files of the workers",
        ));
    }
    found.keys.truncate(args.keys);
    print(args.format, &found, || words::render(&found))?;
    Ok(SUCCESS)
}
