//! `ringpull rehearse`: what becomes of a command when processes, links and disks fail.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use ringpull_base::{Error, Result};

use super::{FAILURE, Format, SUCCESS, Status, launch::servers, status_of_signal};
use crate::lab::{Lab, Shape};
use crate::link::LinkRate;
use crate::rehearse::fault::{self, Fault};
use crate::rehearse::job::Rehearsal;
use crate::rehearse::rehearse;

#[derive(Debug, Args)]
#[command(after_help = "\
Runs the command as a job without a fault, and once more for each fault. Without --faults it kills the first and
the last rank, stops a rank for 8 s, sends SIGTERM to one with 30 s of grace, kills a server if there are any, and
on emulated hosts takes a link down for 5 s and for ever. A job that takes longer than three times the undisturbed
one, its fault and 60 s (that one: an hour), leaves processes, fails without an error of any rank, or ends otherwise
than its fault expects, is wrong: exit code 1.

FILE is a YAML list. Each entry has one of kill, stop, terminate (rank N, server N or scheduler), cut, slow (a
host) and fill (a folder, which gets a file system of 64 MB meanwhile). `at` is when: a time after the processes
have started [default with servers: 3s, or half the time of a shorter job], or a step of rank 0 in a job of
dist_sync_mpi [default: step 2].
`for` is how long: the grace of terminate [default: 30s]; of stop and fill [default: 10s]; of cut and slow
[default: to the end]. `expect` is goes-on or ends.

  - {kill: rank 2, at: step 5, expect: ends}
  - {stop: rank 1, for: 14s, expect: goes-on}
  - {terminate: rank 0, for: 30s}
  - {cut: h3, for: 20s, expect: goes-on}
  - {slow: h4, to: 10mbit}
  - {fill: /tmp/checkpoints, for: 45s}

Examples:
  ringpull rehearse -n 4 -- python train.py                     4 ranks on this host
  ringpull rehearse -n 4 --hosts 4 -- python train.py           each on an emulated host (root)
  ringpull rehearse -n 2 -s 2 -- ./train --kv-store dist_sync   with servers
  ringpull rehearse -n 4 --elastic --min-workers 2 -- python elastic.py
  ringpull rehearse -n 4 --faults faults.yaml -- python train.py --checkpoint /tmp/checkpoints/a")]
pub(crate) struct RehearseArgs {
    /// The number of workers.
    #[arg(short = 'n', visible_alias = "num-workers", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    num_workers: u32,
    /// The number of servers, as for `ringpull launch`.
    #[arg(short = 's', long)]
    num_servers: Option<u32>,
    /// Run an elastic job, as `ringpull launch` does: it goes on when workers are lost.
    #[arg(long)]
    elastic: bool,
    /// The fewest workers that an elastic job goes on with.
    #[arg(long, value_name = "A", requires = "elastic", value_parser = clap::value_parser!(u32).range(1..))]
    min_workers: Option<u32>,
    /// Run on that many emulated hosts instead of this one. Needs root.
    #[arg(long)]
    hosts: Option<usize>,
    /// The rate of the links of emulated hosts.
    #[arg(long, default_value = "1gbit", requires = "hosts")]
    link: LinkRate,
    /// A file with faults; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// The folder for the output of each job.
    #[arg(long, default_value = "rehearse-out")]
    out: PathBuf,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The command that every process runs.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &RehearseArgs) -> Result<Status> {
    let ranks = args.num_workers as usize;
    let faults = faults(args, ranks)?;
    let lab = args.hosts.map(|hosts| Lab::up(Shape { hosts, rate: args.link, own: Vec::new(), racks: None }));
    let lab = lab.transpose()?;
    let mut launch: Vec<OsString> = vec!["-n".into(), ranks.to_string().into()];
    let numbers = [("-s", args.num_servers), ("--min-workers", args.min_workers)];
    for (option, number) in numbers {
        launch.extend(number.into_iter().flat_map(|number| [option.into(), number.to_string().into()]));
    }
    launch.extend(args.elastic.then(|| "--elastic".into()));
    launch.extend(lab.iter().flat_map(|_| ["--launcher".into(), "lab".into()]));
    launch.push("--".into());
    launch.extend(args.command.iter().cloned());
    std::fs::create_dir_all(&args.out).map_err(|cause| Error::io("create", args.out.display(), &cause))?;
    let rehearsal = Rehearsal { launch, lab: lab.as_ref(), out: &args.out, ranks };
    let rehearsed = rehearse(&rehearsal, &faults)?;
    super::print(args.format, &rehearsed, || rehearsed.table(ranks))?;
    Ok(match (rehearsed.interrupted, rehearsed.is_well()) {
        (Some(signal), _) => status_of_signal(signal),
        (None, true) => SUCCESS,
        (None, false) => FAILURE,
    })
}

fn faults(args: &RehearseArgs, ranks: usize) -> Result<Vec<Fault>> {
    let hosts = args.hosts.unwrap_or(0);
    let Some(path) = &args.faults else {
        let servers = servers(args.num_workers, args.num_servers, &args.command);
        return Ok(fault::usual(ranks, servers as usize, hosts, args.elastic));
    };
    let read =
        if path.as_os_str() == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
    let text = read.map_err(|cause| Error::io("read", path.display(), &cause))?;
    let faults = fault::read(&text)?;
    if let Some(host) = faults.iter().filter_map(Fault::host).find(|host| *host > hosts) {
        return Err(Error::argument(
            format!(
                "a fault names h{host}, but the job runs on {}",
                if hosts == 0 { "this host".to_owned() } else { format!("h1 to h{hosts}") }
            ),
            format!("give emulated hosts with --hosts {}", host.max(ranks)),
        ));
    }
    Ok(faults)
}
