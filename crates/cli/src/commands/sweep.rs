//! `ringpull sweep`: our allreduce against others' over all sizes and numbers of ranks.

use std::path::{Path, PathBuf};

use clap::Args;

use ringpull_base::{DType, Error, Result};

use super::{MpichArgs, put, to_json_line, write};
use super::{SUCCESS, Status};
use crate::allreduce::REST_MS;
use crate::compare::Environment;
use crate::lab::Shape;
use crate::link::LinkRate;
use crate::progress::Progress;
use crate::rounds::Runner as _;
use crate::rounds::launched::{Launched, Testbed};
use crate::size::{elements, parse_sizes};
use crate::sweep::{self, Sweep, SweepPlan, page};
use crate::variant::Variant;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ringpull sweep --hosts 8 --link 1gbit --out benches/results\n  \
    ringpull sweep --local --ranks 2,4 --sizes 4,64KiB,1MiB --contenders ours,mpi,openmpi:4\n  \
    ringpull sweep --report --out benches/results\n\n\
    An absent contender is reported on the page, but is not a failure.")]
pub(crate) struct SweepArgs {
    /// Emulate this many hosts on this machine, one rank on each (root, Linux) [default: ranks are processes
    /// of this machine].
    #[arg(long, conflicts_with = "local")]
    hosts: Option<usize>,
    /// The rate of each host's link, such as 1gbit; none for no limit.
    #[arg(long, default_value = "none")]
    link: LinkRate,
    /// Run the ranks as processes of this machine.
    #[arg(long)]
    local: bool,
    /// Numbers of ranks.
    #[arg(long, value_delimiter = ',', default_value = "2,3,4,5,6,7,8")]
    ranks: Vec<usize>,
    /// Payloads, separated by commas; MB is 10^6 bytes, MiB is 2^20.
    #[arg(long, default_value = "4,1KiB,16KiB,64KiB,256KiB,1MiB,10MB,100MB")]
    sizes: String,
    /// What to measure [default: everything that is installed].
    #[arg(long, value_delimiter = ',', value_parser = super::contenders())]
    contenders: Vec<Variant>,
    #[command(flatten)]
    mpich: MpichArgs,
    /// Rounds: in each, every contender runs once for each number of ranks, in rotating order.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Rounds of payloads up to 1 MiB, if more than --rounds.
    #[arg(long, default_value_t = 4)]
    short_rounds: usize,
    /// Measured iterations of payloads up to 1 MiB in one job.
    #[arg(long, default_value_t = 20)]
    short_iters: usize,
    /// Measured iterations of longer payloads in one job.
    #[arg(long, default_value_t = 2)]
    long_iters: usize,
    /// Do not measure, but write the page again from the JSON files in --out.
    #[arg(long)]
    report: bool,
    /// The folder for the JSON file of this sweep and for README.md, the page of all sweeps in it.
    #[arg(long, default_value = "sweep-out")]
    out: PathBuf,
    /// The name of the JSON file [default: the hosts and the link].
    #[arg(long)]
    name: Option<String>,
}

/// Sweeps, and writes the results and the page.
pub(crate) fn run(args: &SweepArgs) -> Result<Status> {
    std::fs::create_dir_all(&args.out).map_err(|cause| Error::io("create", args.out.display(), &cause))?;
    let mut status = SUCCESS;
    if !args.report {
        let (results, interrupted) = measure(args)?;
        let name = args.name.clone().unwrap_or_else(|| match args.hosts {
            Some(hosts) => format!("hosts{hosts}-{}", args.link),
            None => "local".to_owned(),
        });
        write(&args.out.join(format!("{name}.json")), &to_json_line(&results)?)?;
        status = interrupted.map_or(SUCCESS, super::status_of_signal);
    }
    let page = page::render(&stored(&args.out)?);
    write(&args.out.join("README.md"), &page)?;
    put(&format!("{page}\n"));
    Ok(status)
}

/// The sweep, and the signal that ended it early.
fn measure(args: &SweepArgs) -> Result<(Sweep, Option<i32>)> {
    let most = args.ranks.iter().copied().max().unwrap_or(0);
    let least = args.ranks.iter().copied().min().unwrap_or(0);
    if least < 1 || args.rounds == 0 || args.short_iters == 0 || args.long_iters == 0 {
        return Err(Error::argument(
            "invalid 0: expected --ranks, --rounds and iterations of at least 1",
            "give larger numbers",
        ));
    }
    let sizes = parse_sizes(&args.sizes)?;
    sizes.iter().try_for_each(|bytes| elements(*bytes, DType::F32).map(drop))?;
    let testbed = match args.hosts {
        Some(hosts) if hosts < most => {
            return Err(Error::argument(
                format!("--hosts {hosts} are too few for {most} ranks"),
                "give --hosts at least the largest of --ranks: each rank has its own host",
            ));
        }
        Some(hosts) => Testbed::Lab(Shape { hosts, rate: args.link, own: Vec::new(), racks: None }),
        None => Testbed::Local(most),
    };
    let mut launched = Launched::start(testbed, 0, args.mpich.find()?)?;
    let plan = SweepPlan {
        place: launched.words(),
        link: args.link,
        ranks: args.ranks.clone(),
        sizes,
        rounds: args.rounds,
        short_rounds: args.short_rounds,
        short_iters: args.short_iters,
        long_iters: args.long_iters,
        rest_ms: REST_MS,
    };
    let contenders = if args.contenders.is_empty() { Variant::allreduces() } else { args.contenders.clone() };
    let (own_hosts, told) = (launched.has_own_hosts(), (Environment::survey(), super::compare::command()));
    let progress = Progress::start("looking for the contenders");
    let results = sweep::run(&mut launched, &contenders, &plan, own_hosts, told, &mut |step| {
        progress.part(step.done, step.planned, step.words);
    });
    Ok((results, launched.interrupted()))
}

/// The sweeps in the folder, by name.
fn stored(folder: &Path) -> Result<Vec<Sweep>> {
    let failed = |cause: std::io::Error| Error::io("read the results in", folder.display(), &cause);
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let read = |path: &PathBuf| {
        let failed = |cause: std::io::Error| Error::io("read", path.display(), &cause);
        serde_json::from_slice(&std::fs::read(path).map_err(failed)?)
            .map_err(|cause| failed(std::io::Error::other(cause)))
    };
    files.iter().map(read).collect()
}
