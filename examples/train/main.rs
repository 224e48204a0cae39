//! Trains a small convolutional network on Fashion-MNIST through a store of any kind:
//!
//!     train                                            one process
//!     mpirun -n 4 train --kv-store dist_sync_mpi       allreduce
//!     ringpull launch -n 4 -s 2 --launcher local -- train --kv-store dist_sync
//!
//! The weights live in the store, which updates them with SGD; every worker pushes the gradient of its share of each batch.

mod net;

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use net::Net;
use ringpull::harness::{checkpoint::Checkpoint, dataset, dataset::Dataset, shard, shard::Batches, total::total};
use ringpull::optim::{Optimizer, Rule};
use ringpull::store::create;
use ringpull::{Error, config};
use xxhash_rust::xxh3::Xxh3;

#[derive(Parser)]
struct Options {
    /// The kind of store
    #[arg(long, default_value = "local")]
    kv_store: String,
    /// Passes over the training images
    #[arg(long, default_value_t = 2)]
    epochs: usize,
    /// Stop after this many steps [default: all of the epochs]
    #[arg(long)]
    steps: Option<u64>,
    /// Images in a batch, over all workers
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    lr: f64,
    /// What first weights and the order of images follow from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The folder of the IDX files
    #[arg(long, default_value = dataset::FASHION_MNIST)]
    data: PathBuf,
    /// Save to FILE at every epoch's end and at the last step
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Go on from the checkpoint
    #[arg(long, requires = "checkpoint")]
    resume: bool,
    /// Train on the first N images only
    #[arg(long, value_name = "N")]
    limit_train: Option<usize>,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> std::process::ExitCode {
    match train(&Options::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn train(options: &Options) -> Outcome<()> {
    // First: in a server's or the scheduler's process this call is all there is.
    let store = create(&options.kv_store)?;
    let [train, test] = [Dataset::read(&options.data, "train")?, Dataset::read(&options.data, "t10k")?];
    let samples = options.limit_train.map_or(train.len(), |limit| limit.min(train.len()));
    let batches = Batches { samples, batch: options.batch as usize, seed: options.seed };
    if batches.per_epoch() == 0 {
        return Err(Error::argument(
            format!("{samples} images make no batch of {}", options.batch),
            "give a smaller --batch",
        )
        .into());
    }
    let (rank, workers) = (store.rank(), store.num_workers());
    let cores = std::thread::available_parallelism()?.get();
    rayon::ThreadPoolBuilder::new()
        .num_threads((cores / config::launcher_local_size().unwrap_or(1)).max(1))
        .build_global()?;

    let net = Net::new(options.seed)?;
    let resumed =
        options.checkpoint.as_ref().filter(|_| options.resume).map(|path| Checkpoint::read(path)).transpose()?;
    let weights = net.export()?;
    for (name, weight) in &weights {
        let first = match &resumed {
            Some(saved) => saved.weights.get(*name).ok_or("the checkpoint is of another network")?,
            None => weight,
        };
        store.broadcast(*name, first, std::slice::from_ref(weight), 0)?;
    }
    net.import(&weights)?;
    let optimizer = Optimizer {
        rule: Rule::Sgd { momentum: 0.9, nesterov: false },
        rescale_grad: 1.0 / options.batch as f64,
        ..Optimizer::sgd(options.lr)
    };
    if let Some(saved) = &resumed {
        saved.restore_states(&store)?;
    }
    store.set_optimizer(&optimizer)?;

    let first_step = resumed.as_ref().map_or(0, |saved| saved.step);
    let seed = resumed.as_ref().map_or(options.seed, |saved| saved.seed);
    let batches = Batches { seed, ..batches };
    let last_step = options.steps.unwrap_or((options.epochs * batches.per_epoch()) as u64);
    let (mut order, mut begun, mut begun_step) = (Vec::new(), Instant::now(), first_step);
    for step in first_step..last_step {
        let (epoch, number) = (step as usize / batches.per_epoch(), step as usize % batches.per_epoch());
        if number == 0 || order.is_empty() {
            order = batches.order(epoch);
        }
        let (_, gradients) = net.gradients(&train, batches.of(&order, number, rank, workers))?;
        for (index, ((name, weight), gradient)) in weights.iter().zip(&gradients).enumerate().rev() {
            store.push_pull(*name, std::slice::from_ref(gradient), std::slice::from_ref(weight), -(index as i32))?;
        }
        net.import(&weights)?;
        if number + 1 < batches.per_epoch() && step + 1 < last_step {
            continue;
        }
        let images_per_second = ((step + 1 - begun_step) * options.batch) as f64 / begun.elapsed().as_secs_f64();
        if let (Some(path), 0) = (&options.checkpoint, rank) {
            let weights = weights.iter().map(|(name, weight)| ((*name).to_owned(), weight.clone())).collect();
            Checkpoint::take(&store, step + 1, seed, weights)?.write(path)?;
        }
        let figures = net.evaluate(&test, shard::share(test.len(), rank, workers))?;
        let sums = total(&store, &optimizer, &format!("evaluation {}", step + 1), &figures)?;
        if rank == 0 {
            let (accuracy, loss) = (100.0 * sums[0] / sums[1], sums[2] / sums[1]);
            println!(
                "step {} epoch {} accuracy {accuracy:.2} % loss {loss:.4} images/s {images_per_second:.0}",
                step + 1,
                epoch + 1
            );
        }
        (begun, begun_step) = (Instant::now(), step + 1);
    }
    store.wait_all()?;
    store.barrier()?;
    let mut hash = Xxh3::new();
    for (name, weight) in &weights {
        store.pull(*name, std::slice::from_ref(weight), 0)?;
        hash.update(weight.read()?.bytes());
    }
    println!("rank {rank} of {workers} weights {:016x}", hash.digest());
    Ok(())
}
