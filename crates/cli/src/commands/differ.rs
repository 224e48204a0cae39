//! `ringpull differ`: compares the values of two kinds of store, and finds the place and the cause of a
//! difference.

use std::path::PathBuf;

use clap::Args;

use ringpull_base::{Error, Kind, Result};

use super::{FAILURE, Format, SUCCESS, Status, print, status_of_signal};
use ringpull_harness::interrupt::Interrupt;
use ringpull_lab::differ::{Cause, DifferPlan, KIND, differ};

/// The bytes of values that each worker writes, to compute the size of a difference. All values are compared
/// by their hashes.
const VALUE_BYTES: u64 = 1_000_000_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Runs the command as a job with each of the two kinds, which take the place of {kind} in it, and compares every
gradient that a worker pushed and every value that it got, bit by bit. It prints the first update and key whose
values differ, and how the differences grow. If sums differ, the jobs of dist_sync_mpi run once more with
RINGPULL_ALGORITHM=ordered, which adds in the order of the ranks, as servers do: if all bits are then the same,
the order of addition explains the difference.

The command must do the same in every run: fix its seeds, and the order of its data. The sum of two workers has
no order, so use three or more.

With MXNet's own optimizers one kind may update the weights in the store and the other in the program. Then
values differ, and it compares the gradients alone.

Exit code: 0 if the bits are the same or the order of addition explains the difference, otherwise 1.

Examples:
  ringpull differ -n 4 -- python train.py --kv-store {kind}
  ringpull differ -n 4 --kinds dist_sync_mpi,dist_sync_mpi -- python train.py --kv-store {kind}    the same each time?
  ringpull differ -n 3 -s 1 --format json -- ./train --kv-store {kind}")]
pub(crate) struct DifferArgs {
    /// The number of workers.
    #[arg(short = 'n', visible_alias = "num-workers", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    num_workers: u32,
    /// The number of servers, for kinds that have them [default: the number of workers].
    #[arg(short = 's', long, value_parser = clap::value_parser!(u32).range(1..))]
    num_servers: Option<u32>,
    /// The two kinds.
    #[arg(long, value_name = "KIND,KIND", value_delimiter = ',', default_value = "dist_sync,dist_sync_mpi")]
    kinds: Vec<Kind>,
    /// The folder for the jobs' output and recordings.
    #[arg(long, default_value = "differ-out")]
    out: PathBuf,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The command that every process runs, with {kind} where the kind belongs.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn run(args: DifferArgs) -> Result<Status> {
    let kinds = kinds(&args.kinds)?;
    if !args.command.iter().any(|word| word.contains(KIND)) {
        return Err(Error::argument(
            format!("the command has no {KIND}, so both jobs would be the same"),
            format!("write {KIND} where it takes the kind, as in --kv-store {KIND}"),
        ));
    }
    std::fs::create_dir_all(&args.out).map_err(|cause| Error::io("create", args.out.display(), &cause))?;
    let plan = DifferPlan {
        kinds,
        workers: args.num_workers as usize,
        servers: args.num_servers.unwrap_or(args.num_workers) as usize,
        value_bytes: VALUE_BYTES,
        out: std::path::absolute(&args.out).map_err(|cause| Error::io("find", args.out.display(), &cause))?,
        command: args.command,
    };
    let interrupt = Interrupt::watch()?;
    let Some(differed) = differ(&plan, &interrupt)? else {
        return Ok(interrupt.signal().map_or(FAILURE, status_of_signal));
    };
    print(args.format, &differed, || differed.table())?;
    Ok(if matches!(differed.cause, Cause::Same | Cause::OtherValues | Cause::OrderOfAddition) {
        SUCCESS
    } else {
        FAILURE
    })
}

/// Returns the two kinds. Each must have steps, and several workers.
fn kinds(given: &[Kind]) -> Result<[Kind; 2]> {
    let &[one, other] = given else {
        return Err(Error::argument("--kinds names two kinds", "give two, such as --kinds dist_sync,dist_sync_mpi"));
    };
    match [one, other].into_iter().find(|kind| !matches!(kind, Kind::DistSync | Kind::DistSyncMpi)) {
        Some(kind) if kind.is_async() => Err(Error::argument(
            "a value of dist_async depends on the order in which workers push, so no two runs are alike",
            "compare dist_sync or dist_sync_mpi",
        )),
        Some(kind) => Err(Error::argument(
            format!("{kind} has no values that several processes share in host memory"),
            "compare dist_sync and dist_sync_mpi",
        )),
        None => Ok([one, other]),
    }
}
