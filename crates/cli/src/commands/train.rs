//! `ringpull bench train`: the steps of a model, replayed with real communication.

use clap::Args;

use ringpull_base::Result;

use super::measured::{StoreArgs, progress};
use ringpull_harness::record::Record;
use ringpull_harness::size::format_size;
use ringpull_harness::statistics::{self, Summary};
use ringpull_harness::text::{format_seconds, several};
use ringpull_harness::{layers, train};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    mpirun -n 4 --oversubscribe ringpull bench train --model vgg16 --scale 0.1 --compute 2.184 --batch 64\n  \
    mpirun -n 2 ringpull bench train --model resnet50 --compute 1.5 --format json\n  \
    ringpull launch -n 4 -s 2 --launcher local -- ringpull bench train --kv-store dist_sync --model vgg16 --scale 0.1 --compute 2.184\n\n\
    A step has two passes. The backward pass takes two thirds of --compute, and pushes each layer's\n\
    gradients when it has them. The forward pass takes one third, and waits for each layer's sums. A\n\
    layer's share of the time is its share of the FLOPs. Every sum of every step is checked.")]
pub(crate) struct TrainArgs {
    /// vgg16, resnet50 or bert-large, or a file of `name shape` or `name shape FLOPs` lines.
    #[arg(long)]
    model: String,
    /// Scale every tensor of the model to this fraction of its elements.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Seconds of computing in a step on one host.
    #[arg(long, value_name = "SECONDS")]
    compute: f64,
    /// Images of one host in a step, to print images/s.
    #[arg(long)]
    batch: Option<usize>,
    /// Measured steps.
    #[arg(long, default_value_t = 5)]
    iters: usize,
    #[command(flatten)]
    pub(super) store: StoreArgs,
}

/// Replays the model, and returns the record on rank 0.
pub(super) fn measure(args: &TrainArgs) -> Result<Option<Vec<Record>>> {
    let network = layers::load(&args.model, args.scale)?;
    let keys = args.store.plan(args.iters)?;
    let store = super::store(args.store.kv_store)?;
    let plan = train::ReplayOptions { keys, compute_s: args.compute, batch: args.batch };
    let progress = progress(args.store.format);
    Ok(train::run(&store, &network, &plan, progress.as_ref())?.map(|record| vec![record]))
}

/// The record of training in lines.
pub(super) fn words(records: &[Record]) -> String {
    let mut lines = Vec::new();
    for record in records {
        let (Some(train), Some(summary)) = (&record.train, Summary::of(&record.seconds)) else { continue };
        lines.extend([
            format!(
                "{} of {} by {} on {}, gradients of {}",
                several(summary.count, "step"),
                record.mode,
                several(record.ranks, "rank"),
                several(record.hosts, "host"),
                format_size(record.bytes as f64)
            ),
            format!("step         {} +-{:.1} %", format_seconds(summary.median), 100.0 * summary.relative_spread()),
            format!("compute      {}, by the clock", format_seconds(train.compute_s)),
            format!("exposed      {}", format_seconds(train.exposed_s)),
            format!("efficiency   {:.2} %", 100.0 * train.efficiency),
        ]);
        lines.extend(train.images_per_s.map(|rate| format!("images/s     {rate:.2} of each rank")));
        lines.push(
            "every sum of every step was checked; times are from the last rank's end of a step to that of the next"
                .to_owned(),
        );
        lines.extend(statistics::warnings(&record.seconds).into_iter().map(|doubt| format!("warning: {doubt}")));
    }
    lines.join("\n") + "\n"
}
