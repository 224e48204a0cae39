//! `ringpull rehearse`: shows what happens to a command when processes, links and disks fail.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use ringpull_base::config::Config;
use ringpull_base::{Error, Result};

use super::{FAILURE, Format, SUCCESS, Status, launch::servers, status_of_signal};
use ringpull_harness::link::LinkRate;
use ringpull_harness::shape::Shape;
use ringpull_lab::hosts::Lab;
use ringpull_lab::rehearse::fault::{self, Fault};
use ringpull_lab::rehearse::job::Rehearsal;
use ringpull_lab::rehearse::random;
use ringpull_lab::rehearse::rehearse;
use ringpull_lab::rehearse::shape::JobShape;

#[derive(Debug, Args)]
#[command(after_help = "\
Runs the command as a job without a fault, and once more for each fault. Without --faults it kills the first and
the last rank, stops a rank for 8 s, sends SIGTERM to one with 30 s of grace, kills a server if there are any, and
on emulated hosts takes a link down for 5 s and for ever. A job that takes longer than three times the undisturbed
one, its fault, 60 s and three limits of silence (that one: an hour), leaves processes, fails without an error of any rank, or ends otherwise
than its fault expects, is wrong: exit code 1.

FILE is a YAML list. Each entry has one of
  kill, stop, terminate   a process: rank N, server N, helper N or scheduler
  limit                   it gets no more memory (address space) than it has
  fail, delay             it ends with 3 before its program begins, once, or begins later
  cut, block, slow, reset a host: its link is down, takes nothing of it, has another rate; its connections
  fill, forbid            a folder, which is full meanwhile, or cannot be written; needs root
  plant                   a name, at which somebody else has made a link, a file or a folder (`as`)
`at` is when: a time after the processes have started [default with servers: 3s, or half the time of a shorter
job], or a step of rank 0 in a job of dist_sync_mpi [default: step 2]. At 0s the program has no store yet.
`for` is how long: the grace of terminate [default: 30s]; of cut, block and slow [default: to the end]; of others
[default: 10s]. `expect` is goes-on or ends. Each job has a folder of its own as TMPDIR, and a path may begin
with that word. A job that leaves files of ringpull there, or changes what is planted, is wrong.

  - {kill: rank 2, at: step 5, expect: ends}
  - {stop: rank 1, for: 14s, expect: goes-on}
  - {terminate: rank 0, for: 30s}
  - {cut: h3, for: 20s, expect: goes-on}
  - {slow: h4, to: 10mbit}
  - {fill: /tmp/checkpoints, for: 45s}
  - {fail: rank 1}
  - {plant: /dev/shm/x, as: link}

Examples:
  ringpull rehearse -n 4 -- python train.py                     4 ranks on this host
  ringpull rehearse -n 4 --hosts 4 -- python train.py           each on an emulated host (root)
  ringpull rehearse -n 2 -s 2 -- ./train --kv-store dist_sync   with servers
  ringpull rehearse -n 4 --elastic --min-workers 2 -- python elastic.py
  ringpull rehearse -n 2 -s 2 --random 20 --seed 7 -- ./train --kv-store dist_sync
  ringpull rehearse -n 4 --hosts 4 --random 200 --together -- python train.py    all in one long job
  ringpull rehearse -n 4 --faults faults.yaml -- python train.py --checkpoint /tmp/checkpoints/a")]
#[allow(clippy::struct_excessive_bools, reason = "each is an option")]
pub(crate) struct RehearseArgs {
    /// The number of workers.
    #[arg(short = 'n', visible_alias = "num-workers", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    num_workers: u32,
    /// The number of servers, as for `ringpull launch`.
    #[arg(short = 's', long)]
    num_servers: Option<u32>,
    /// Run an elastic job, as `ringpull launch` does: the job goes on when workers are lost.
    #[arg(long)]
    elastic: bool,
    /// The fewest workers with which an elastic job goes on.
    #[arg(long, value_name = "A", requires = "elastic", value_parser = clap::value_parser!(u32).range(1..))]
    min_workers: Option<u32>,
    /// Run on this number of emulated hosts instead of on this host. Needs root.
    #[arg(long)]
    hosts: Option<usize>,
    /// The rate of the links of emulated hosts.
    #[arg(long, default_value = "1gbit", requires = "hosts")]
    link: LinkRate,
    /// Start workers that are MPI ranks and also have servers, as for `ringpull launch`.
    #[arg(long, conflicts_with_all = ["elastic", "helpers"])]
    hybrid: bool,
    /// The number of helpers, as for `ringpull launch`.
    #[arg(long, value_name = "K", default_value_t = 0, hide_default_value = true, conflicts_with = "elastic")]
    helpers: u32,
    /// Let an elastic job go on in the surviving processes, as for `ringpull launch`.
    #[arg(long, requires = "elastic")]
    in_place: bool,
    /// Draw this number of faults, of any process at any time, instead of the usual ones. The required exit
    /// code of the job follows from the process and the fault.
    #[arg(long, value_name = "N", conflicts_with = "faults", value_parser = clap::value_parser!(u32).range(1..))]
    random: Option<u32>,
    /// The seed of --random: the same one draws the same faults.
    #[arg(long, default_value_t = 1, requires = "random")]
    seed: u64,
    /// Let all faults come to one job, one after another: stopped processes, and on emulated hosts links that
    /// are down. Each fault comes when the previous one is over, and `at` counts from then. The job must go
    /// on.
    #[arg(long)]
    together: bool,
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
    let shape = args.shape();
    let faults = faults(args, &shape)?;
    let lab = args.hosts.map(|hosts| Lab::up(Shape { hosts, rate: args.link, own: Vec::new(), racks: None }));
    let lab = lab.transpose()?;
    let mut options: Vec<OsString> = Vec::new();
    let helpers = (args.helpers > 0).then_some(args.helpers);
    let numbers = [
        ("-n", Some(args.num_workers)),
        ("-s", args.num_servers),
        ("--min-workers", args.min_workers),
        ("--helpers", helpers),
    ];
    for (option, number) in numbers {
        options.extend(number.into_iter().flat_map(|number| [option.into(), number.to_string().into()]));
    }
    let flags = [("--elastic", args.elastic), ("--in-place", args.in_place), ("--hybrid", args.hybrid)];
    options.extend(flags.into_iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| flag.into()));
    options.extend(lab.iter().flat_map(|_| ["--launcher".into(), "lab".into()]));
    std::fs::create_dir_all(&args.out).map_err(|cause| Error::io("create", args.out.display(), &cause))?;
    let ranks = shape.workers;
    let rehearsal = Rehearsal { options, command: args.command.clone(), lab: lab.as_ref(), out: &args.out, shape };
    let rehearsed = rehearse(&rehearsal, &faults, args.together)?;
    super::print(args.format, &rehearsed, || rehearsed.table(ranks))?;
    Ok(match (rehearsed.interrupted, rehearsed.is_well()) {
        (Some(signal), _) => status_of_signal(signal),
        (None, true) => SUCCESS,
        (None, false) => FAILURE,
    })
}

impl RehearseArgs {
    fn shape(&self) -> JobShape {
        let given = |number: Option<u32>| number.map(|number| number as usize);
        let servers = servers(self.num_workers, self.num_servers, &self.command) as usize;
        // The same defaults as in `ringpull launch`.
        let least = given(self.min_workers).unwrap_or(if servers > 0 { 1 } else { self.num_workers as usize });
        JobShape {
            workers: self.num_workers as usize,
            servers,
            helpers: self.helpers as usize,
            hosts: self.hosts.unwrap_or(0),
            is_hybrid: self.hybrid,
            least: self.elastic.then_some(least),
        }
    }
}

fn faults(args: &RehearseArgs, shape: &JobShape) -> Result<Vec<Fault>> {
    let JobShape { workers, servers, hosts, .. } = *shape;
    if let Some(count) = args.random {
        let silence = Config::from_env()?.silence();
        if args.together {
            return Ok(random::draw_together(count as usize, args.seed, shape, silence));
        }
        let may_mount = rustix::process::geteuid().is_root();
        return Ok(random::draw(count as usize, args.seed, shape, silence, may_mount));
    }
    let Some(path) = &args.faults else {
        return Ok(fault::usual(workers, servers, hosts, args.elastic));
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
            format!("give emulated hosts with --hosts {}", host.max(workers)),
        ));
    }
    Ok(faults)
}
