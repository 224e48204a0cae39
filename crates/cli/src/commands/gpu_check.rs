//! `ringpull gpu-check`: whether this machine's GPUs compute what they must, and how fast.

use std::path::PathBuf;

use clap::Args;

use ringpull_base::{Error, Result};

use super::{FAILURE, SUCCESS, Status};
use super::{to_json, write};
use crate::gpu_check::{Findings, UNIT, rank_of_a_job};
use crate::size::parse_size;

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  ringpull gpu-check\n  ringpull gpu-check --devices cuda:0 --out results\n  ringpull gpu-check --devices sim:2\n  mpirun -n 2 ringpull gpu-check --rank --devices cuda:0"
)]
pub(crate) struct GpuCheckArgs {
    /// Which devices: `cuda` (all), `cuda:0,2`, or simulated ones such as `sim:2`.
    #[arg(long, default_value = "cuda")]
    devices: String,
    /// Run as one rank of an MPI job whose ranks share the devices, and check a store over all ranks.
    #[arg(long, conflicts_with = "out")]
    rank: bool,
    /// Bytes of each buffer that is measured; by default far more than any cache holds. 4KiB or a multiple of
    /// that.
    #[arg(long, default_value = "256MiB")]
    bytes: String,
    /// A folder for the findings as JSON and as a table.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Checks, prints a table, and writes both forms.
pub(crate) fn run(args: &GpuCheckArgs) -> Result<Status> {
    if args.rank {
        println!("{}", rank_of_a_job(&args.devices)?);
        return Ok(SUCCESS);
    }
    let bytes = parse_size(&args.bytes)?;
    if bytes == 0 || !bytes.is_multiple_of(UNIT) {
        let what = format!("invalid --bytes {}: expected a multiple of {UNIT} bytes", args.bytes);
        return Err(Error::argument(what, "give 256MiB, as by default, or 64KiB where speed does not matter"));
    }
    let findings = Findings::gather(&args.devices, bytes)?;
    let table = findings.table();
    print!("{table}");
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out).map_err(|cause| Error::io("create", out.display(), &cause))?;
        write(&out.join("gpu-check.json"), &to_json(&findings)?)?;
        write(&out.join("gpu-check.txt"), &table)?;
    }
    Ok(if findings.passed() { SUCCESS } else { FAILURE })
}
