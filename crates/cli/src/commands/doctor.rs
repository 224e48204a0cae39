//! `ringpull doctor`: finds what would stop a job from running on this host, on the hosts of a hostfile, or
//! on the hosts of a job.

use std::path::PathBuf;

use clap::Args;

use ringpull_base::{Error, Result, config};

use super::{FAILURE, SUCCESS, Status};
use super::{Format, print, to_json, to_json_line, write};
use crate::doctor::{HostFinding, HostVerdict, gather, hosts, judge, probe};
use crate::gpu_check;
use crate::launch::SshHost;
use crate::launch::hostfile::HostList;
use ringpull_harness::progress::Progress;
use ringpull_harness::size::parse_size;
use ringpull_harness::text::{grid, several};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull doctor                              this host
  ringpull doctor -H hosts                     every host of the file over ssh, and the connections between them
  mpirun -n 8 --map-by node ringpull doctor    the hosts of a job
  ringpull doctor --format json | jq '.[] | select(.verdict != \"good\")'
  ringpull doctor --gpu --out results          whether this host's GPUs compute what they must, and how fast
  ringpull doctor --gpu=sim:2
  mpirun -n 2 ringpull doctor --gpu=cuda:0     a store of ranks that share a GPU

The exit code is 1 if a job would fail.")]
pub(crate) struct DoctorArgs {
    /// A file with the hosts to check, or the hosts themselves with their slots: `host1:2,host2:2`.
    #[arg(short = 'H', long, value_name = "HOSTFILE")]
    hostfile: Option<PathBuf>,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Check devices instead: kernels, collectives, stores, speed. `cuda` (all), `cuda:0,2`, or simulated
    /// devices such as `sim:2`. The ranks of a job check a store over all devices.
    #[arg(long, value_name = "DEVICES", num_args = 0..=1, require_equals = true, default_missing_value = "cuda", conflicts_with = "hostfile")]
    gpu: Option<String>,
    /// Bytes of each buffer that is measured on a GPU: a multiple of 4KiB. The default is far more than any
    /// cache holds.
    #[arg(long, default_value = "256MiB", requires = "gpu")]
    bytes: String,
    /// A folder for the findings on GPUs as JSON and as a table.
    #[arg(long, requires = "gpu")]
    out: Option<PathBuf>,
    /// Print this host's facts as one line of JSON.
    #[arg(long, hide = true)]
    facts: bool,
    /// This host's name in the hostfile.
    #[arg(long, hide = true)]
    called: Option<String>,
    /// The ranks that this host is to run.
    #[arg(long, hide = true)]
    slots: Option<usize>,
    /// A host to connect to, as name:port.
    #[arg(long, hide = true)]
    towards: Vec<String>,
    /// Be one of the ranks that report the properties of MPI.
    #[arg(long, hide = true)]
    probe: bool,
}

/// Gathers facts, judges them and prints the findings.
pub(crate) fn run(args: &DoctorArgs) -> Result<Status> {
    if args.probe {
        return probe::rank().map(|()| SUCCESS);
    }
    if args.facts {
        let facts = gather(args.called.clone(), args.slots, &args.towards, true);
        println!("{}", to_json_line(&facts)?);
        return Ok(SUCCESS);
    }
    let in_job = config::launcher_world_size().is_some_and(|(_, ranks)| ranks > 1);
    if let Some(devices) = &args.gpu {
        return if in_job { check_gpus_of_rank(devices) } else { check_gpus(devices, args) };
    }
    let progress = config::is_first_rank().then(|| Progress::start("looking at this host"));
    let hosts = args.hostfile.as_deref().map(|option| HostList::of(option).read()).transpose()?;
    let findings: Vec<HostFinding> = match hosts.filter(|hosts| !hosts.iter().all(SshHost::is_here)) {
        Some(hosts) => {
            if let Some(progress) = &progress {
                progress.at(format!("waiting for the facts of {}", several(hosts.len(), "host")));
            }
            let (facts, silent) = hosts::ask(&hosts)?;
            let silent = silent.into_iter().map(|(host, cause)| HostFinding::silent(&host, &cause));
            silent.chain([HostFinding::environment()]).chain(judge(&facts)).collect()
        }
        None if in_job => {
            let facts = hosts::of_ranks()?;
            // Every rank has all facts; one rank prints.
            if !config::is_first_rank() {
                return Ok(SUCCESS);
            }
            judge(&facts)
        }
        None => judge(&[gather(None, None, &[], true)]),
    };
    drop(progress);
    print(args.format, &findings, || table(&findings))?;
    let fails = findings.iter().any(|finding| finding.verdict == HostVerdict::Failure);
    Ok(if fails { FAILURE } else { SUCCESS })
}

fn check_gpus_of_rank(devices: &str) -> Result<Status> {
    println!("{}", gpu_check::rank_of_a_job(devices)?);
    Ok(SUCCESS)
}

/// Checks the devices of this host, prints a table, and writes both forms.
fn check_gpus(devices: &str, args: &DoctorArgs) -> Result<Status> {
    let bytes = parse_size(&args.bytes)?;
    if bytes == 0 || !bytes.is_multiple_of(gpu_check::UNIT) {
        let what = format!("invalid --bytes {}: expected a multiple of {} bytes", args.bytes, gpu_check::UNIT);
        return Err(Error::argument(what, "give 256MiB, as by default, or 64KiB where speed does not matter"));
    }
    let found = gpu_check::GpuFindings::gather(devices, bytes)?;
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out).map_err(|cause| Error::io("create", out.display(), &cause))?;
        write(&out.join("gpu-check.json"), &to_json(&found)?)?;
        write(&out.join("gpu-check.txt"), &found.table())?;
    }
    print(args.format, &found, || found.table())?;
    Ok(if found.passed() { SUCCESS } else { FAILURE })
}

fn table(findings: &[HostFinding]) -> String {
    let rows = findings.iter().map(|HostFinding { verdict, check, host, what, fix }| {
        let verdict = match verdict {
            HostVerdict::Good => "ok",
            HostVerdict::Warning => "warning",
            HostVerdict::Failure => "FAILS",
        };
        let fix = fix.as_ref().map_or(String::new(), |fix| format!("\nfix: {fix}"));
        [verdict, host, check, &format!("{what}{fix}")].map(str::to_owned).to_vec()
    });
    let table = grid(["verdict", "host", "check", "finding"], rows.collect(), 4);
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (warnings, failures) = (count(HostVerdict::Warning), count(HostVerdict::Failure));
    let counts = [(findings.len(), "check"), (warnings, "warning"), (failures, "failure")];
    format!("{table}\n{}\n", counts.map(|(count, what)| several(count, what)).join(", "))
}
