//! `ringpull bench`: the measuring ranks of one job, which `mpirun` or `ringpull launch` starts.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Subcommand};

use ringpull_base::config::Config;
use ringpull_base::{AlgorithmChoice, DType, Error, Result};
use ringpull_kernels::optim::Optimizer;
use ringpull_workload::models::{self, ModelKey};

use super::measured::{SparseArgs, StoreArgs, progress};
use super::{Format, print, train};
use super::{SUCCESS, Status};
use ringpull_harness::collectives::{self, Collective, CollectiveOptions, Way};
use ringpull_harness::cost::rows_words;
use ringpull_harness::link::LinkRate;
use ringpull_harness::pushpull::StoreOptions;
use ringpull_harness::record::Record;
use ringpull_harness::size::{elements, format_size, parse_sizes};
use ringpull_harness::statistics::{self, Summary};
use ringpull_harness::text::grid;
use ringpull_harness::{allreduce, explain, pushpull};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    mpirun -n 4 --oversubscribe ringpull bench allreduce --sizes 4,64KiB,25MB\n  \
    mpirun -n 4 --oversubscribe ringpull bench pushpull --model resnet50 --scale 0.1\n  \
    mpirun -n 4 --oversubscribe ringpull bench train --model vgg16 --scale 0.1 --compute 2.184 --batch 64\n  \
    ringpull launch -n 4 -s 2 --launcher local -- ringpull bench pushpull --kv-store dist_sync --sizes 25MB")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Sum plain buffers over all ranks, without the store.
    Allreduce(AllreduceArgs),
    /// Sum buffers and give each rank its part of the sum, without the store.
    #[command(name = "reduce_scatter")]
    ReduceScatter(CollectiveArgs),
    /// Give every rank the buffers of all ranks, without the store.
    Allgather(CollectiveArgs),
    /// Exchange a block between every two ranks, without the store.
    Alltoall(CollectiveArgs),
    /// Push and pull keys through the store, of any kind.
    Pushpull(PushpullArgs),
    /// Replay the training steps of a model: computing by the clock or on the processor, real communication.
    Train(train::TrainArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    mpirun -n 4 --oversubscribe ringpull bench allreduce --sizes 4,64KiB,25MB\n  \
    mpirun -n 4 --oversubscribe ringpull bench allreduce --sizes 25MB --algorithm native --format json\n  \
    mpirun -n 4 --oversubscribe ringpull bench allreduce --sizes 4,64KiB,25MB --explain\n  \
    mpirun -n 4 --oversubscribe ringpull bench allreduce --sizes 25MB --algorithm ring --explain")]
pub(crate) struct AllreduceArgs {
    /// Payloads, separated by commas; MB is 10^6 bytes, MiB is 2^20.
    #[arg(long, visible_alias = "bytes", default_value = "4,64KiB,25MB")]
    pub sizes: String,
    /// How buffers are summed. auto chooses by the cluster's model; ordered gives the same bits wherever the
    /// ranks run; native is the MPI library's own `MPI_Allreduce`; the others are plans. halving is another
    /// name for circulant; nccl works only for stores on GPUs [default: `RINGPULL_ALGORITHM`, or auto].
    #[arg(long, value_parser = Algorithms)]
    pub algorithm: Option<AlgorithmChoice>,
    /// Measured iterations of each size.
    #[arg(long, default_value_t = 10)]
    pub iters: usize,
    /// Iterations before the measured ones.
    #[arg(long, default_value_t = 2)]
    pub warmup: usize,
    /// Milliseconds without traffic before each iteration, in which shapers save up a burst.
    #[arg(long, default_value_t = allreduce::REST_MS, allow_negative_numbers = true)]
    pub rest: f64,
    /// Element type.
    #[arg(long, default_value = "f32", value_parser = super::dtypes())]
    pub dtype: DType,
    /// Seconds by which rank 0 is late in one more iteration. This iteration measures the processor time of
    /// the other ranks while they wait; 0 omits it.
    #[arg(long, default_value_t = 0.25, allow_negative_numbers = true)]
    pub waiting: f64,
    /// Do not measure, but print what the algorithm would do for each size, by the cluster's model.
    #[arg(long)]
    pub explain: bool,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    mpirun -n 4 --oversubscribe ringpull bench allgather --sizes 4,64KiB,25MB\n  \
    mpirun -n 4 --oversubscribe ringpull bench alltoall --sizes 25MB --algorithms auto,native\n  \
    mpirun -n 4 --oversubscribe ringpull bench reduce_scatter --sizes 25MB --link 1gbit --format json")]
pub(crate) struct CollectiveArgs {
    /// A rank's input of a `reduce_scatter` or an alltoall, or output of an allgather. Sizes are separated by
    /// commas and rounded down to equal blocks; MB is 10^6 bytes, MiB is 2^20.
    #[arg(long, visible_alias = "bytes", default_value = "4,64KiB,25MB")]
    sizes: String,
    /// The ways to do it, separated by commas. Several ways take turns, iteration by iteration.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    algorithms: Vec<Way>,
    /// Measured iterations of each size.
    #[arg(long, default_value_t = 10)]
    iters: usize,
    /// Iterations before the measured ones.
    #[arg(long, default_value_t = 2)]
    warmup: usize,
    /// Milliseconds without traffic before each iteration, in which shapers save up a burst.
    #[arg(long, default_value_t = allreduce::REST_MS, allow_negative_numbers = true)]
    rest: f64,
    /// Element type.
    #[arg(long, default_value = "f32", value_parser = super::dtypes())]
    dtype: DType,
    /// The rate of each host's link, such as 1gbit, to compute the least possible time.
    #[arg(long, default_value = "none")]
    link: LinkRate,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    mpirun -n 4 --oversubscribe ringpull bench pushpull --sizes 25MB\n  \
    mpirun -n 4 --oversubscribe ringpull bench pushpull --sizes 25MB --compression 2bit:0.5\n  \
    mpirun -n 4 --oversubscribe ringpull bench pushpull --model resnet50 --scale 0.1 --format json\n  \
    mpirun -n 4 --oversubscribe ringpull bench pushpull --model bert-large --scale 0.1 --optimizer adam --sharded\n  \
    mpirun -n 4 --oversubscribe ringpull bench pushpull --sizes 25MB --sparse 0.01\n  \
    ringpull launch -n 4 -s 2 --launcher local -- ringpull bench pushpull --kv-store dist_sync --sizes 25MB")]
pub(crate) struct PushpullArgs {
    /// Payloads, one key each, separated by commas; MB is 10^6 bytes, MiB is 2^20.
    #[arg(long, visible_alias = "bytes", conflicts_with = "model", default_value = "25MB")]
    sizes: String,
    /// The key list of vgg16, resnet50 or bert-large, or a file of `name shape` lines, pushed in backward
    /// order.
    #[arg(long)]
    model: Option<String>,
    /// Scale every tensor of the model to this fraction of its elements.
    #[arg(long, default_value_t = 1.0, requires = "model")]
    scale: f64,
    /// Measured iterations of each payload.
    #[arg(long, default_value_t = 10)]
    iters: usize,
    /// The optimizer that updates values by the sums, such as adam or sgd,momentum=0.9. Then ranks read
    /// weights instead of sums.
    #[arg(long)]
    optimizer: Option<Optimizer>,
    /// Divide the optimizer's states over the ranks of `dist_sync_mpi`.
    #[arg(long, requires = "optimizer")]
    sharded: bool,
    #[command(flatten)]
    sparse: SparseArgs,
    #[command(flatten)]
    store: StoreArgs,
}

/// Measures, and prints the records on rank 0.
pub(crate) fn run(args: &BenchArgs) -> Result<Status> {
    let format = match &args.what {
        BenchCommand::Allreduce(args) => args.format,
        BenchCommand::ReduceScatter(args) | BenchCommand::Allgather(args) | BenchCommand::Alltoall(args) => args.format,
        BenchCommand::Pushpull(args) => args.store.format,
        BenchCommand::Train(args) => args.store.format,
    };
    let measured = match &args.what {
        BenchCommand::Allreduce(args) if args.explain => return run_explain(args),
        BenchCommand::Allreduce(args) => run_allreduce(args),
        BenchCommand::ReduceScatter(args) => run_collective(Collective::ReduceScatter, args),
        BenchCommand::Allgather(args) => run_collective(Collective::Allgather, args),
        BenchCommand::Alltoall(args) => run_collective(Collective::Alltoall, args),
        BenchCommand::Pushpull(args) => run_pushpull(args),
        BenchCommand::Train(args) => train::measure(args),
    };
    if let Some(records) = measured? {
        let is_train = matches!(args.what, BenchCommand::Train(_));
        print(format, &records, || if is_train { train::words(&records) } else { table(&records) })?;
    }
    Ok(SUCCESS)
}

impl AllreduceArgs {
    /// The algorithm that the option gives, or else the environment.
    fn algorithm(&self) -> Result<AlgorithmChoice> {
        self.algorithm.map_or_else(|| Ok(Config::from_env()?.algorithm), Ok)
    }
}

/// Reads the name of an algorithm. One name ends with a number.
#[derive(Clone)]
pub(super) struct Algorithms;

impl Algorithms {
    fn listed() -> PossibleValuesParser {
        let value = |name| PossibleValue::new(name).aliases(AlgorithmChoice::alias(name));
        PossibleValuesParser::new(AlgorithmChoice::names().into_iter().map(value))
    }
}

impl TypedValueParser for Algorithms {
    type Value = AlgorithmChoice;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&Arg>, value: &OsStr) -> Result<Self::Value, clap::Error> {
        let parse = |name: &str| name.parse::<AlgorithmChoice>();
        if value.to_str().is_some_and(|name| parse(name).is_ok()) {
            return parse.parse_ref(command, arg, value);
        }
        Self::listed().try_map(|name| name.parse::<AlgorithmChoice>()).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names: Vec<PossibleValue> = Self::listed().possible_values()?.collect();
        Some(Box::new(names.into_iter()))
    }
}

fn run_collective(which: Collective, args: &CollectiveArgs) -> Result<Option<Vec<Record>>> {
    let CollectiveArgs { dtype, iters, warmup, link, .. } = *args;
    let rest = time("--rest", args.rest, "milliseconds", 1e-3)?;
    let options = CollectiveOptions { dtype, iters, warmup, rest, link };
    collectives::run(which, &parse_sizes(&args.sizes)?, &args.algorithms, options)
}

/// Reads the time of an option, in units of `factor` seconds.
fn time(option: &str, given: f64, unit: &str, factor: f64) -> Result<Duration> {
    let invalid = || format!("invalid {option} {given}: expected non-negative {unit}");
    let wrong = |_| Error::argument(invalid(), format!("give {unit}, such as {}", 0.25 / factor));
    Duration::try_from_secs_f64(given * factor).map_err(wrong)
}

fn run_allreduce(args: &AllreduceArgs) -> Result<Option<Vec<Record>>> {
    let sizes = parse_sizes(&args.sizes)?;
    sizes.iter().try_for_each(|bytes| elements(*bytes, args.dtype).map(drop))?;
    let waiting = time("--waiting", args.waiting, "seconds", 1.0)?;
    let rest = time("--rest", args.rest, "milliseconds", 1e-3)?;
    let AllreduceArgs { dtype, iters, warmup, .. } = *args;
    let plan = allreduce::AllreduceOptions { dtype, iters, warmup, rest, waiting };
    allreduce::run(&sizes, args.algorithm, &plan, progress(args.format).as_ref())
}

fn run_explain(args: &AllreduceArgs) -> Result<Status> {
    if let Some(explanation) = explain::run(&parse_sizes(&args.sizes)?, args.algorithm()?)? {
        print(args.format, &explanation, || explanation.table())?;
    }
    Ok(SUCCESS)
}

fn run_pushpull(args: &PushpullArgs) -> Result<Option<Vec<Record>>> {
    let tables = parse_sizes(&args.sizes)?.into_iter().map(|bytes| args.sparse.table(bytes));
    let tables = tables.collect::<Result<Option<Vec<_>>>>()?;
    if let Some(tables) = tables {
        let plan = args.store.plan(args.iters)?;
        if plan.compression.is_some() || plan.dtype != DType::F32 || args.optimizer.is_some() {
            return Err(Error::argument(
                "--sparse measures f32 rows without --compression and --optimizer",
                "leave these out, or --sparse",
            ));
        }
        let progress = progress(args.store.format);
        return pushpull::run_sparse(&super::store(args.store.kv_store)?, &tables, &plan, progress.as_ref());
    }
    let payloads = match &args.model {
        Some(model) => vec![models::load(model, args.scale)?],
        None => parse_sizes(&args.sizes)?
            .into_iter()
            .map(|bytes| {
                Ok(vec![ModelKey { name: "payload".to_owned(), shape: vec![elements(bytes, args.store.dtype)?] }])
            })
            .collect::<Result<_>>()?,
    };
    let (optimizer, is_sharded) = (args.optimizer.clone(), args.sharded);
    let plan = StoreOptions { optimizer, is_sharded, ..args.store.plan(args.iters)? };
    let progress = progress(args.store.format);
    pushpull::run(&super::store(args.store.kv_store)?, &payloads, &plan, progress.as_ref())
}

const HEAD: &str =
    "op,mode,algorithm,ranks,hosts,servers,payload,dtype,median,min,max,algbw,busbw,cpu s/GB,waiting,memory";

/// One line for each record, then warnings about the records' samples.
fn table(records: &[Record]) -> String {
    let mut rows = Vec::new();
    let (mut doubts, mut states) = (Vec::new(), Vec::new());
    for record in records {
        let Some(summary) = Summary::of(&record.seconds) else { continue };
        let ms = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
        let rate = |bytes_per_s: f64| format!("{}/s", format_size(bytes_per_s));
        let payload = format_size(record.bytes as f64);
        for doubt in statistics::warnings(&record.seconds) {
            doubts.push(format!("warning: {payload}: {doubt}\n"));
        }
        if let Some(rows) = &record.sparse {
            states.push(rows_words(rows, record.ranks) + "\n");
        }
        if let Some(bytes) = record.usage.state_bytes {
            states.push(format!("{payload}: the optimizer's states take {} of a rank\n", format_size(bytes as f64)));
        }
        rows.push(vec![
            record.op.clone(),
            record.mode.clone(),
            record.algorithm.clone(),
            record.ranks.to_string(),
            record.hosts.to_string(),
            record.servers.to_string(),
            payload,
            record.dtype.to_string(),
            ms(summary.median),
            ms(summary.min),
            ms(summary.max),
            rate(record.algbw_bytes_per_s),
            // A single rank sends nothing.
            if record.ranks > 1 { rate(record.busbw_bytes_per_s) } else { "-".to_owned() },
            or_dash(record.usage.cpu_s_per_gb.map(|cpu| format!("{cpu:.2}"))),
            or_dash(record.usage.waiting_cpu.map(|part| format!("{:.1} %", 100.0 * part))),
            or_dash(record.usage.extra_rss_bytes.map(|bytes| format!("+{}", format_size(bytes as f64)))),
        ]);
    }
    format!(
        "{}\nevery sum was checked; times are the slowest rank's; algbw: payload / time; busbw: algbw x 2(n-1)/n, of reduce_scatter, allgather and alltoall half of it; waiting: part of a core, for a late rank; memory: beyond the payload\n{}{}",
        grid(HEAD.split(','), rows, 3),
        states.concat(),
        doubts.concat()
    )
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}
