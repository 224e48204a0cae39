//! Trains a small convolutional network on Fashion-MNIST through a store of any kind:
//!
//!     train                                            one process
//!     mpirun -n 4 train --kv-store dist_sync_mpi       allreduce
//!     ringpull launch -n 4 -s 2 --launcher local -- train --kv-store dist_sync
//!
//! The weights live in the store, which updates them with SGD; every worker pushes the gradient of its share
//! of each batch. With `--device cuda` and a store on GPUs the store reads and writes candle's own tensors.

mod lend;
mod net;

use std::time::Instant;

use clap::Parser;
use net::Net;

use ringpull::{AlgorithmChoice, Config, Kind, KvStore, Optimizer, Rule, create_with, run_node};
use ringpull_base::notice;
use ringpull_examples::dataset::Dataset;
use ringpull_examples::training::{self, Options};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> std::process::ExitCode {
    match train(&Options::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            // A rank that only learns of an error reports it in one line.
            let of_store = error.downcast_ref::<ringpull::Error>();
            eprintln!("{}", of_store.map_or_else(|| format!("error: {error}"), ringpull::Error::report));
            std::process::ExitCode::FAILURE
        }
    }
}

fn train(options: &Options) -> Outcome<()> {
    notice::to_stderr();
    // This comes first: a server's or the scheduler's process does nothing else.
    if options.kv_store.parse::<Kind>()?.has_servers() && run_node()? {
        return Ok(());
    }
    // Sums are ordered, so that the weights have the same bits wherever the ranks run. Without this setting a
    // job on several hosts is faster.
    let config = Config::from_env_or(Config { algorithm: AlgorithmChoice::Ordered, ..Config::default() })?;
    let store = create_with(&options.kv_store, &config)?;
    // The other ranks get the reason why this rank ends, whatever the error is.
    run(options, &store).inspect_err(|error| store.report_failure(&error.to_string()))
}

fn run(options: &Options, store: &KvStore) -> Outcome<()> {
    training::share_cores()?;
    let [train, test] = [Dataset::read(&options.data, "train")?, Dataset::read(&options.data, "t10k")?];
    let batches = options.batches(train.len())?;
    let (rank, workers) = (store.rank(), store.num_workers());

    let net = Net::new(options.first_seed(), &net::device(&options.device)?)?.over(store.devices());
    let weights = net.export()?;
    let scale = options.scale(workers)?;
    let mut optimizer = Optimizer {
        rule: Rule::Sgd { momentum: 0.9, nesterov: false },
        rescale_grad: 1.0 / (options.batch as f64 * scale),
        ..Optimizer::sgd(options.lr)
    };
    let training::Start { step: first_step, batches } = options.begin(store, &optimizer, &weights, batches)?;
    net.import(&weights)?;

    let steps = first_step..options.last_step(&batches);
    let (mut order, mut begun, mut begun_step) = (Vec::new(), Instant::now(), first_step);
    for step in steps.clone() {
        let (epoch, number) = (step as usize / batches.per_epoch(), step as usize % batches.per_epoch());
        if number == 0 || order.is_empty() {
            order = batches.order(epoch);
        }
        options.before(store, &mut optimizer, step, &steps)?;
        let samples = batches.of(&order, number, rank, workers);
        let (_, gradients) = net.gradients(&train, samples, scale)?;
        for (index, ((name, weight), gradient)) in weights.iter().zip(&gradients).enumerate().rev() {
            store.push_pull(*name, std::slice::from_ref(gradient), std::slice::from_ref(weight), -(index as i32))?;
        }
        net.import(&weights)?;
        if number + 1 < batches.per_epoch() && step + 1 < steps.end {
            continue;
        }
        let images_per_second = ((step + 1 - begun_step) * options.batch) as f64 / begun.elapsed().as_secs_f64();
        options.save(store, step + 1, batches.seed, &weights)?;
        if rank == 0 {
            let (accuracy, loss) = net.evaluate(&test)?;
            println!(
                "step {} epoch {} accuracy {accuracy:.2} % loss {loss:.4} images/s {images_per_second:.0}",
                step + 1,
                epoch + 1
            );
        }
        (begun, begun_step) = (Instant::now(), step + 1);
    }
    println!("rank {rank} of {workers} weights {:016x}", training::hash(store, &weights)?);
    Ok(())
}
