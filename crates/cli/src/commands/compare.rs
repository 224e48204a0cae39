//! `ringpull compare`: modes and peers in rotating rounds; a table, a verdict, `results.json`,
//! `report.html` and its first chart, `chart.svg`.

use std::path::{Path, PathBuf};

use clap::Args;

use ringpull_base::{DType, Error, Result, config};
use ringpull_workload::models::{self, ModelKey};
use ringpull_workload::sparse::SparseSetup;

use super::lab::RackArgs;
use super::measured::SparseArgs;
use super::{FAILURE, SUCCESS, Status};
use super::{Format, print, sizes, to_json, write};
use crate::launch::host::quote;
use crate::launch::hostfile::HostList;
use crate::launched::{Launched, Testbed};
use ringpull_harness::compare::results::ScaledRows;
use ringpull_harness::compare::rows::{measurements, rows};
use ringpull_harness::compare::{Comparison, Environment, Setup, published, report, results, table, training, verdict};
use ringpull_harness::layers;
use ringpull_harness::link::LinkRate;
use ringpull_harness::mode::{Mode, ServerPlacement};
use ringpull_harness::progress::Progress;
use ringpull_harness::rounds::{self, Job, Measurement, RoundsOutcome, TrainSetup, Work};
use ringpull_harness::shape::{HostRate, RackShape, Shape};
use ringpull_harness::size::{elements, format_size, parse_size};
use ringpull_harness::text::several;
use ringpull_harness::variant::{Peer, Variant};

/// Processes of one machine, if nothing says where jobs run.
const LOCAL_WORKERS: usize = 4;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ringpull compare --hosts 8 --link 200mbit --bytes 25MB --modes dist_sync_mpi,dist_sync:8shared,dist_sync:8 --peers mpi,mxnet --out out\n  \
    ringpull compare --local 4 --model resnet50 --scale 0.1 --out out --open\n  \
    ringpull compare --hosts 8 --link 200mbit --scaling 2,4 --out out\n  \
    ringpull compare --train --scaling 1,2,4,8 --link 200mbit --model vgg16 --scale 0.02 --modes dist_sync_mpi,dist_sync:8shared --out out\n  \
    ringpull compare --hosts 8 --link 1gbit --bytes 100MB --modes dist_sync_mpi,dist_sync_mpi+2bit --out out\n  \
    ringpull compare --hosts 8 --link 1gbit --uplink 500mbit --bytes 100MB --modes dist_sync_mpi --peers mpi --out out\n  \
    ringpull compare --hosts 8 --link 1gbit --slow-host 3=500mbit --bytes 100MB --modes dist_sync_mpi --out out\n  \
    ringpull compare --hosts 8 --link 200mbit --bytes 25MB --sparse 0.01 --modes dist_sync_mpi,dist_sync:8shared,dist_hybrid:8shared --peers mxnet --out out\n  \
    ringpull compare -H hosts --link 10gbit --model vgg16 --peers mpi --out out\n  \
    ringpull compare --hosts 8 --link 1gbit --sizes 4,64KiB,1MiB,100MB --scaling 2,4,8 --rounds 2 --out out\n  \
    ringpull compare --train --hosts 8 --link 1gbit --model vgg16 --scale 0.1 --modes dist_sync_mpi,dist_sync:8shared,dist_sync:8,dist_sync:4,dist_sync:2 --out out\n\n\
    Modes: dist_sync_mpi, dist_sync_mpi:Khelpers (K more hosts that only reduce),\n\
    dist_sync_mpi:ALGORITHM (such as ring), dist_sync:K (K dedicated servers),\n\
    dist_sync:Kshared (on the workers' hosts), and the same for dist_async and dist_hybrid, whose\n\
    servers have row-sparse keys alone. Append +COMPRESSION to compress\n\
    gradients: fp16, bf16, 2bit:THRESHOLD, 1bit:THRESHOLD or topk:RATIO.\n\
    On a virtual machine a job starts once the hypervisor has taken no processor time for 3 s. It waits\n\
    at most 15 s, and at most as long as the last job took; with a hostfile it does not wait. While\n\
    emulated hosts are up, Linux does not divide processors by session (kernel.sched_autogroup_enabled\n\
    is 0, and restored afterwards).\n\
    Ctrl-C ends the comparison early; the report has the rounds that were measured, and --resume runs\n\
    the others. The exit code is 1 if a variant failed, and 130 after Ctrl-C. An absent peer is\n\
    reported, but is not a failure.")]
pub(crate) struct CompareArgs {
    /// Emulate this many hosts on this machine, joined by links of --link (root, Linux).
    #[arg(long, conflicts_with_all = ["hostfile", "local"])]
    hosts: Option<usize>,
    /// The rate of each host's link, such as 200mbit or 10gbit. --hosts shapes links to it; -H uses it for
    /// the bound.
    #[arg(long, default_value = "none")]
    pub(super) link: LinkRate,
    /// A worker's host, counted from 1, whose link has a rate of its own: 3=500mbit, or 3=SENDS/RECEIVES. May
    /// be repeated. --hosts shapes this link; -H uses its rate for the bound.
    #[arg(long, value_name = "HOST=RATE", value_delimiter = ',')]
    slow_host: Vec<HostRate>,
    #[command(flatten)]
    racks: RackArgs,
    /// Run on the hosts of this file, one per line.
    #[arg(short = 'H', long, conflicts_with = "local")]
    hostfile: Option<PathBuf>,
    /// Run this many workers as processes of this machine [default: 4, without --hosts and -H].
    #[arg(long)]
    local: Option<usize>,
    /// The payload as one key, such as 25MB.
    #[arg(long, conflicts_with = "model", default_value = "25MB")]
    bytes: String,
    /// Measure plain allreduces of these sizes instead of a store: ours against --peers [default: all that
    /// are installed], on all numbers of ranks from 2 on, or on those of --scaling. The folder gets a JSON
    /// file of this sweep, and README.md, the page of all sweeps in the folder. Sizes up to 1 MiB have twice
    /// the number of --rounds, and ten times the number of --iters.
    #[arg(long, value_name = "SIZES", conflicts_with_all = ["bytes", "model", "modes", "sparse", "train", "resume", "hostfile", "slow_host", "uplink", "open"])]
    sizes: Option<String>,
    /// The key list of vgg16, resnet50 or bert-large, or a file of `name shape` lines.
    #[arg(long)]
    model: Option<String>,
    /// Scale every tensor of the model to this fraction of its elements. Unless
    /// `MXNET_KVSTORE_BIGARRAY_BOUND` is set, the number of elements from which on servers divide a key is
    /// scaled too.
    #[arg(long, default_value_t = 1.0, requires = "model")]
    scale: f64,
    #[command(flatten)]
    sparse: SparseArgs,
    /// Compare training steps of the model: replayed computing, real communication.
    #[arg(long, requires = "model")]
    train: bool,
    /// Seconds that a step computes [default: the published ratio of computing to traffic].
    #[arg(long, value_name = "SECONDS", requires = "train")]
    compute: Option<f64>,
    /// Images of one host in a step [default: 64 for vgg16, as published].
    #[arg(long, requires = "train")]
    batch: Option<usize>,
    /// Modes of our store, separated by commas; `MODE+COMPRESSION` compresses gradients, as in
    /// `dist_sync_mpi+2bit:0.5` [default: allreduce, one server, and a server on every worker's host].
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Variant>,
    /// Other programs to compare with, on the same hosts.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) peers: Vec<Peer>,
    /// Rounds: in each, every variant runs once, in rotating order.
    /// Fewer than 4 cannot tell a difference from noise.
    #[arg(long, default_value_t = 5)]
    pub(super) rounds: usize,
    /// Measured iterations of a job.
    #[arg(long, default_value_t = 2)]
    pub(super) iters: usize,
    /// Iterations before the measured ones. After two, our jobs send no control message, as in training.
    #[arg(long, default_value_t = 2)]
    warmup: usize,
    /// Measure with these numbers of workers too, for a chart and a table of scaling. They show times, or
    /// with --train efficiencies beside the published ones. If only --link is given, the largest of these is
    /// the number of emulated hosts.
    #[arg(long, value_name = "WORKERS", value_delimiter = ',')]
    pub(super) scaling: Vec<usize>,
    /// The folder for results.json, report.html and its first chart, chart.svg.
    #[arg(long, default_value = "compare-out")]
    pub(super) out: PathBuf,
    /// Open the report with the desktop's browser.
    #[arg(long)]
    open: bool,
    /// Continue an interrupted comparison: keep the rounds in --out, and run the others.
    #[arg(long)]
    resume: bool,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs the comparison, prints it and writes the report.
pub(crate) fn run(args: &CompareArgs) -> Result<Status> {
    if args.rounds == 0 || args.iters == 0 {
        return Err(Error::argument("invalid --rounds or --iters 0: expected at least 1", "give larger numbers"));
    }
    if emulated(args).is_none() && args.hostfile.is_none() && args.link.bytes_per_s().is_some() {
        return Err(Error::argument(
            "--link needs hosts: processes of one machine have no link between them",
            "give --hosts N to emulate hosts with that link (root), or -H HOSTFILE, or omit --link",
        ));
    }
    if let Some(sizes) = &args.sizes {
        create(&args.out)?;
        return sizes::run(args, sizes, testbed(args, None));
    }
    let variants = Variant::list(&modes(args)?, &args.peers);
    check_variants(args, &variants)?;
    let payload = Payload::of(args)?;
    create(&args.out)?;
    let extra = variants.iter().map(|variant| variant.mode.extra_hosts()).max().unwrap_or(0);
    let racks = racks(args, extra)?;
    let mut runner = Launched::start(testbed(args, racks), extra)?.scaled(args.scale)?;
    let (ranks, bytes, words) = (runner.workers(), payload.bytes, payload.words.clone());
    check_slow_hosts(args, ranks)?;
    let fewer = fewer_workers(args, ranks)?;
    let train = if args.train { Some(replay(args, ranks, bytes)?) } else { None };
    let sparse = payload.table;
    let job = Job { ranks, work: payload.work(args, train.clone())?, iters: args.iters, warmup: args.warmup };
    let setup = Setup {
        place: runner.words(),
        own_hosts: runner.has_own_hosts(),
        workers: ranks,
        link: args.link,
        slow_hosts: args.slow_host.clone(),
        racks,
        payload: words,
        bytes,
        rounds: args.rounds,
        iters: args.iters,
        warmup: args.warmup,
        bigarray_bound: (args.scale < 1.0).then(|| layers::bigarray_bound(args.scale)).transpose()?,
        train,
        sparse,
    };
    let known = if args.resume { known(args, &setup, &variants)? } else { Vec::new() };
    let has_remote_hosts = runner.has_remote_hosts();
    let survey = Environment::survey();
    let counts = fewer.iter().copied().chain([ranks]);
    let jobs: Vec<Job> = counts.map(|ranks| Job { ranks, ..job.clone() }).collect();
    let compared = |found: &RoundsOutcome, rounds: usize| {
        let of = |workers: usize| {
            let (job, setup) = (Job { ranks: workers, ..job.clone() }, Setup { workers, ..setup.clone() });
            rows(found, &variants, &job, &setup)
        };
        let scaling = fewer.iter().map(|workers| ScaledRows { workers: *workers, rows: of(*workers) }).collect();
        let (rows, setup) = (of(ranks), Setup { rounds, ..setup.clone() });
        let mut environment = survey.clone();
        if has_remote_hosts {
            environment.hosts = found.machines(ranks);
        }
        let (stolen, verdict, command) = (results::stolen(&rows), Vec::new(), command());
        let mut results = Comparison { environment, setup, rows, scaling, stolen, verdict, command };
        results.verdict = verdict::sentences(&results);
        results
    };
    let (progress, is_resumed) = (Progress::start("looking for what is to be compared"), !known.is_empty());
    let found = rounds::run(&mut runner, &variants, &vec![jobs; args.rounds], known, &mut |found, step| {
        if step.begins == Some(2) && !is_resumed {
            let first = table::render(&compared(found, 1));
            progress.result(format!("after round 1 of {}:\n\n{first}", args.rounds));
        }
        progress.part(step.done, step.planned, step.words);
    });
    progress.at("removing the hosts");
    drop(runner);
    drop(progress);
    let results = compared(&found, args.rounds);
    let status = finish(&results, args)?;
    Ok(found.interrupted.map_or(status, super::status_of_signal))
}

fn create(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|cause| Error::io("create", folder.display(), &cause))
}

/// The number of emulated hosts, if hosts are emulated.
fn emulated(args: &CompareArgs) -> Option<usize> {
    let is_open = args.hostfile.is_none() && args.local.is_none() && args.link.bytes_per_s().is_some();
    args.hosts.or_else(|| args.scaling.iter().copied().max().filter(|most| is_open && *most > 0))
}

/// The hosts of the jobs.
fn testbed(args: &CompareArgs, racks: Option<RackShape>) -> Testbed {
    match (emulated(args), &args.hostfile) {
        (Some(hosts), _) => Testbed::Lab(Shape { hosts, rate: args.link, own: args.slow_host.clone(), racks }),
        (None, Some(file)) => Testbed::Hostfile(file.clone()),
        (None, None) => Testbed::Local(args.local.unwrap_or(LOCAL_WORKERS)),
    }
}

/// The modes to compare: one server, and the number of servers that serves the workers best on the same
/// hosts.
fn modes(args: &CompareArgs) -> Result<Vec<Variant>> {
    if !args.modes.is_empty() {
        return Ok(args.modes.clone());
    }
    let workers = match (emulated(args), &args.hostfile) {
        (Some(hosts), _) => hosts,
        (None, Some(file)) => HostList::of(file).read()?.len(),
        (None, None) => args.local.unwrap_or(LOCAL_WORKERS),
    };
    let shared = |servers| Mode::Servers { sync: true, servers, placement: ServerPlacement::Shared };
    let all = [Mode::Allreduce, shared(1), shared(workers)];
    let count = if workers > 1 { all.len() } else { 2 };
    Ok(all[..count].iter().copied().map(Variant::ours).collect())
}

/// The numbers of workers for the chart of scaling besides `most`, the fewest first.
pub(super) fn fewer_workers(args: &CompareArgs, most: usize) -> Result<Vec<usize>> {
    if let Some(wrong) = args.scaling.iter().find(|count| !(1..=most).contains(*count)) {
        return Err(Error::argument(
            format!("invalid --scaling {wrong}: expected numbers from 1 to {most}, the workers of this comparison"),
            "leave it out, or give more --hosts, --local or lines of the hostfile",
        ));
    }
    let mut fewer: Vec<usize> = args.scaling.iter().copied().filter(|count| *count < most).collect();
    fewer.sort_unstable();
    fewer.dedup();
    Ok(fewer)
}

/// The measurements of an earlier comparison in --out, which must have the same setup, except for its rounds.
fn known(args: &CompareArgs, setup: &Setup, variants: &[Variant]) -> Result<Vec<Measurement>> {
    let path = args.out.join("results.json");
    let failed = |cause: std::io::Error| Error::io("read", path.display(), &cause);
    let bytes = std::fs::read(&path).map_err(failed)?;
    let earlier: Comparison = serde_json::from_slice(&bytes).map_err(|cause| failed(std::io::Error::other(cause)))?;
    if (Setup { rounds: setup.rounds, ..earlier.setup.clone() }) != *setup {
        return Err(Error::argument(
            format!("{} belongs to another comparison: {}", path.display(), earlier.command),
            "repeat its options with --resume, or choose another --out",
        ));
    }
    let fewer = earlier.scaling.iter().flat_map(|scaled| measurements(&scaled.rows, variants));
    Ok(fewer.chain(measurements(&earlier.rows, variants)).collect())
}

fn finish(results: &Comparison, args: &CompareArgs) -> Result<Status> {
    write(&args.out.join("results.json"), &to_json(results)?)?;
    let page = args.out.join("report.html");
    write(&page, &report::render(results)?)?;
    if let Some(picture) = report::picture(results)? {
        write(&args.out.join("chart.svg"), &picture)?;
    }
    print(args.format, &results.records(), || table::render(results))?;
    eprintln!("report: {}", page.display());
    if args.open {
        open_page(&page);
    }
    Ok(if results.any_failed() { FAILURE } else { SUCCESS })
}

/// The racks that the options give. It is an error if there are dedicated servers: they would fill one of the
/// racks, and no ratio would mean anything.
fn racks(args: &CompareArgs, extra: usize) -> Result<Option<RackShape>> {
    let racks = args.racks.racks();
    if racks.is_some() && emulated(args).is_none() {
        return Err(Error::argument(
            "--uplink needs --hosts: only emulated hosts have racks",
            "give --hosts N (root), or omit --uplink",
        ));
    }
    if racks.is_some() && extra > 0 {
        return Err(Error::argument(
            "--uplink excludes dedicated servers: they would fill one of the racks",
            "choose modes with shared servers, such as dist_sync:2shared",
        ));
    }
    Ok(racks)
}

/// Returns an error if a host of --slow-host is not a worker's, or if neither --hosts nor -H gives hosts.
fn check_slow_hosts(args: &CompareArgs, workers: usize) -> Result<()> {
    let has_hosts = emulated(args).is_some() || args.hostfile.is_some();
    let Some(slow) = args.slow_host.iter().find(|slow| !has_hosts || !(1..=workers).contains(&slow.host)) else {
        return Ok(());
    };
    Err(Error::argument(
        format!("invalid --slow-host {slow}: expected a host from 1 to {workers}, of --hosts or -H"),
        "name a worker's host, and give --link for the others",
    ))
}

/// The payload that every variant pushes and pulls.
struct Payload {
    /// The payload in words, such as `25 MB` or `vgg16, 32 tensors, 553 MB`.
    words: String,
    /// Bytes of one worker.
    bytes: u64,
    keys: Vec<ModelKey>,
    /// The arguments of `ringpull bench` that name the payload.
    named: Vec<String>,
    /// The table, if rows of a table are the payload.
    table: Option<SparseSetup>,
}

impl Payload {
    fn of(args: &CompareArgs) -> Result<Self> {
        let whole = parse_size(&args.bytes)?;
        if let Some(table) = args.sparse.table(whole)? {
            let words = format!(
                "{:.4} % of the rows of a table of {}",
                100.0 * table.touched as f64 / table.rows as f64,
                format_size((table.rows * table.row_bytes()) as f64)
            );
            let named = std::iter::once(format!("--sizes={whole}")).chain(args.sparse.words()).collect();
            let bytes = table.touched_bytes() as u64;
            return Ok(Payload { words, bytes, keys: Vec::new(), named, table: Some(table) });
        }
        let (keys, named) = if let Some(model) = &args.model {
            (models::load(model, args.scale)?, layers::named(model, args.scale)?)
        } else {
            let key = ModelKey { name: "payload".to_owned(), shape: vec![elements(whole, DType::F32)?] };
            (vec![key], vec![format!("--sizes={whole}")])
        };
        let bytes = 4 * keys.iter().map(ModelKey::len).sum::<usize>() as u64;
        let size = format_size(bytes as f64);
        let words = match &args.model {
            Some(model) => format!("{model}, {}, {size}", several(keys.len(), "tensor")),
            None => size,
        };
        Ok(Payload { words, bytes, keys, named, table: None })
    }

    fn work(self, args: &CompareArgs, train: Option<TrainSetup>) -> Result<Work> {
        let Payload { keys, named, table, .. } = self;
        if let Some(table) = table {
            return Ok(Work::Rows { table, named });
        }
        Ok(match train {
            Some(train) => Work::Steps { network: layers::load(&train.model, args.scale)?, named, train },
            None => Work::Keys { keys, named },
        })
    }
}

/// Returns an error if a variant cannot be run at all, because its row would be missing.
fn check_variants(args: &CompareArgs, variants: &[Variant]) -> Result<()> {
    let peers = variants.iter().filter_map(|variant| variant.peer);
    if args.train && peers.clone().any(Peer::is_mpi) {
        return Err(Error::argument(
            "--train excludes MPI_Allreduce: it blocks, so nothing is computed meanwhile",
            "compare it without --train; the peers that replay training are mxnet, horovod, gloo, ringpull-horovod and ringpull-torch",
        ));
    }
    if args.sparse.is_given() {
        let is_other = |peer: &Peer| *peer != Peer::Mxnet;
        if let Some(peer) = args.peers.iter().find(|peer| is_other(peer)) {
            return Err(Error::argument(
                format!("--sparse excludes the peer {peer}: it has no rows"),
                "compare with --peers mxnet, the real MXNet's servers",
            ));
        }
        if let Some(variant) = variants.iter().find(|variant| variant.compression.is_some()) {
            return Err(Error::argument(
                format!("--sparse excludes {variant}: rows are not compressed"),
                "name the mode without its compression",
            ));
        }
    }
    if args.peers.contains(&Peer::Mxnet) && !variants.iter().any(|variant| variant.peer == Some(Peer::Mxnet)) {
        return Err(Error::argument(
            "--peers mxnet needs a dist_sync mode, whose servers MXNet uses",
            "add one to --modes, such as dist_sync:1shared or dist_sync:2",
        ));
    }
    Ok(())
}

/// The way in which `workers` workers with gradients of `bytes` bytes replay training steps.
fn replay(args: &CompareArgs, workers: usize, bytes: u64) -> Result<TrainSetup> {
    let model = args.model.clone().unwrap_or_default();
    let scaled = args.link.bytes_per_s().map(|rate| training::published_compute_s(workers, bytes as f64, rate));
    let compute_s = args.compute.or(scaled.filter(|seconds| *seconds > 0.0)).ok_or_else(|| {
        Error::argument(
            "--train without a link needs --compute",
            "give --compute SECONDS, the time that one host alone computes in a step",
        )
    })?;
    let batch = args.batch.or_else(|| (model == "vgg16").then_some(published::BATCH));
    Ok(TrainSetup { model, compute_s, batch })
}

/// This program's command line, quoted for a shell.
pub(super) fn command() -> String {
    let quoted = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:,/=+".contains(c);
        if !word.is_empty() && word.chars().all(plain) { word } else { quote(word.as_ref()) }
    };
    let words: Vec<String> = std::env::args().skip(1).map(quoted).collect();
    format!("ringpull {}", words.join(" "))
}

/// Shows the page in the desktop's browser. Its path has been printed for readers without a desktop.
fn open_page(page: &Path) {
    if ["DISPLAY", "WAYLAND_DISPLAY"].into_iter().all(|name| config::text(name).is_none()) {
        eprintln!("warning: --open has no effect: there is no desktop here (DISPLAY, WAYLAND_DISPLAY)");
    } else if let Err(cause) = open::that_detached(page) {
        eprintln!("warning: --open has no effect: no program opens {}: {cause}", page.display());
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::commands::{Cli, Command};

    fn given(options: &str) -> CompareArgs {
        let line = format!("ringpull compare {options}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Compare(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn emulated_hosts_have_the_links_and_racks_of_the_options() {
        let shape = |options: &str| {
            let args = given(&format!("--hosts 4 --link 1gbit {options}"));
            match testbed(&args, racks(&args, 0).unwrap()) {
                Testbed::Lab(shape) => shape,
                other => panic!("{other:?}"),
            }
        };
        let plain = Shape { hosts: 4, rate: "1gbit".parse().unwrap(), own: Vec::new(), racks: None };
        assert_eq!(shape(""), plain);
        let own: Vec<HostRate> = ["2=500mbit", "3=1gbit/100mbit"].map(|own| own.parse().unwrap()).to_vec();
        assert_eq!(shape("--slow-host 2=500mbit,3=1gbit/100mbit"), Shape { own, ..plain.clone() });
        let racks = |alternate| Some(RackShape { uplink: "250mbit".parse().unwrap(), alternate });
        assert_eq!(shape("--uplink 250mbit"), Shape { racks: racks(false), ..plain.clone() });
        assert_eq!(shape("--uplink 250mbit --alternate"), Shape { racks: racks(true), ..plain });
        let error = super::racks(&given("--hosts 4 --link 1gbit --uplink 250mbit"), 2).unwrap_err().to_string();
        assert!(error.contains("dedicated servers"), "{error}");
        let error = check_slow_hosts(&given("--hosts 4 --link 1gbit --slow-host 5=1mbit"), 4).unwrap_err().to_string();
        assert!(error.contains("h5=1mbit: expected a host from 1 to 4"), "{error}");
    }

    fn modes_of(options: &str) -> String {
        modes(&given(options)).unwrap().iter().map(Variant::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn without_modes_as_many_servers_as_workers_are_compared_too() {
        assert_eq!(modes_of("--hosts 8 --link 1gbit"), "dist_sync_mpi dist_sync:1shared dist_sync:8shared");
        assert_eq!(modes_of("--scaling 2,16 --link 1gbit"), "dist_sync_mpi dist_sync:1shared dist_sync:16shared");
        assert_eq!(modes_of(""), "dist_sync_mpi dist_sync:1shared dist_sync:4shared");
        assert_eq!(modes_of("--local 1"), "dist_sync_mpi dist_sync:1shared");
        assert_eq!(modes_of("--hosts 8 --modes dist_sync:2"), "dist_sync:2");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        std::fs::write(&file, "one\ntwo\nthree\n").unwrap();
        assert!(modes_of(&format!("-H {}", file.display())).ends_with("dist_sync:3shared"));
    }
}
