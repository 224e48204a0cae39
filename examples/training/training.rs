//! The parts of every training program: its options, the first weights, and a hash that shows equal weights.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use ringpull::{Codec, Compression, Error, KvStore, Optimizer, Result, Tensor};
use ringpull_base::config::{self, fashion_mnist};

use crate::checkpoint::Checkpoint;
use crate::resume;
use crate::shard::Batches;

/// The options of a training program.
#[derive(Debug, Clone, clap::Parser)]
pub struct Options {
    /// The kind of store
    #[arg(long, default_value = "local")]
    pub kv_store: String,
    /// Passes over the training images
    #[arg(long, default_value_t = 2)]
    pub epochs: usize,
    /// Stop after this many steps [default: all of the epochs]
    #[arg(long)]
    pub steps: Option<u64>,
    /// Images in a batch, over all workers
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: u64,
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    pub lr: f64,
    /// Lower the learning rate linearly, to zero at the run's end; a resumed run needs the same last step
    #[arg(long)]
    pub lr_decay: bool,
    /// Gradient compression: none, fp16, bf16, 2bit:THRESHOLD, 1bit:THRESHOLD or topk:RATIO
    #[arg(long, default_value = "none")]
    pub compression: String,
    /// Compress from this step on: the first gradients are the largest
    #[arg(long, value_name = "STEP", default_value_t = 0)]
    pub compress_from: u64,
    /// Multiply gradients by this before they are pushed; the optimizer divides by it. Per step, 2bit can
    /// transmit at most the threshold per element and 1bit at most 1, so most elements must be smaller
    /// [default: 1; for 2bit and 1bit a value that suits the networks of the examples]
    #[arg(long, value_name = "FACTOR")]
    pub gradient_scale: Option<f64>,
    /// Seed of the first weights and of the order of images [default: 1, or the checkpoint's]
    #[arg(long)]
    pub seed: Option<u64>,
    /// The folder of the IDX files
    #[arg(long, default_value = fashion_mnist())]
    pub data: PathBuf,
    /// Save to FILE at every epoch's end and at the last step
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// Resume from the checkpoint
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
    /// Resume from the checkpoint if it exists, otherwise start
    #[arg(long, requires = "checkpoint", conflicts_with = "resume")]
    pub resume_if_any: bool,
    /// The device that computes the model: cpu, or cuda if the program was built for it
    #[arg(long, default_value = "cpu", value_parser = ["cpu", "cuda"])]
    pub device: String,
    /// Train on the first N images only
    #[arg(long, value_name = "N")]
    pub limit_train: Option<usize>,
    /// Let the last worker sleep in a step, counted from 1, to see the effect on the others
    #[arg(long, value_name = "STEP:SECONDS")]
    pub late: Option<LateWorker>,
}

/// The sleep of a late worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LateWorker {
    /// The step, from 1.
    pub step: u64,
    /// The time of the sleep.
    pub sleeps: Duration,
}

impl FromStr for LateWorker {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(step, seconds)| {
            let sleeps = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
            Some(LateWorker { step: step.parse().ok().filter(|step| *step > 0)?, sleeps })
        });
        parsed.ok_or_else(|| "expected a step from 1 and seconds, such as 5:60".to_owned())
    }
}

/// The number of steps in which a learning rate falls. Few, because each invalidates the frozen cycle.
const STAIRS: u64 = 32;

/// The beginning of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The number of steps that were done before.
    pub step: u64,
    /// The batches, which follow from the seed with which the run began.
    pub batches: Batches,
}

impl Options {
    /// The seed of a new run.
    pub fn first_seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// The batches of `samples` images, at least one.
    pub fn batches(&self, samples: usize) -> Result<Batches> {
        let samples = self.limit_train.map_or(samples, |limit| limit.min(samples));
        let batches = Batches { samples, batch: self.batch as usize, seed: self.first_seed() };
        if batches.per_epoch() == 0 {
            let what = format!("{samples} images make no batch of {}", self.batch);
            return Err(Error::argument(what, "give a smaller --batch"));
        }
        Ok(batches)
    }

    /// The step after the last.
    pub fn last_step(&self, batches: &Batches) -> u64 {
        self.steps.unwrap_or((self.epochs * batches.per_epoch()) as u64)
    }

    /// The learning rate of `step`. `last` is the number of the step after the last one.
    fn rate_at(&self, step: u64, last: u64) -> f64 {
        if !self.lr_decay {
            return self.lr;
        }
        let stair = (u128::from(step) * u128::from(STAIRS) / u128::from(last.max(1))) as u64;
        self.lr * (STAIRS - stair.min(STAIRS - 1)) as f64 / STAIRS as f64
    }

    /// The factor by which each of the `workers` multiplies its gradients before it pushes them.
    ///
    /// A gradient is a sum over a worker's images, and grows with about the square root of their number. For
    /// codes of a fixed size the factor makes gradients so small that few elements exceed a code: a residual
    /// that grows faster than it is sent arrives much too late. The factor is a power of two, so that nothing
    /// is rounded.
    pub fn scale(&self, workers: usize) -> Result<f64> {
        let said = match Compression::choice(&self.compression)? {
            Some(Compression::Codec(Codec::TwoBit { threshold })) => f64::from(threshold),
            Some(Compression::Codec(Codec::OneBit { .. })) => 1.0,
            _ => return Ok(self.gradient_scale.unwrap_or(1.0)),
        };
        let images = (self.batch as f64 / workers as f64).max(1.0);
        Ok(self.gradient_scale.unwrap_or_else(|| (2.0 * said / images.sqrt()).log2().floor().exp2()))
    }

    /// Gives every worker the same first `weights` (with `--resume` those of the checkpoint), and gives the
    /// store its optimizer. Rank 0 prints to stderr from which step it resumes.
    pub fn begin(
        &self,
        store: &KvStore,
        optimizer: &Optimizer,
        weights: &[(&str, Tensor)],
        batches: Batches,
    ) -> Result<Start> {
        if let (Some(path), 0) = (&self.checkpoint, store.rank()) {
            Checkpoint::check_place(path)?;
        }
        let resumed = match &self.checkpoint {
            Some(path) if self.resume || self.resume_if_any => resume::agreed(store, path, self.resume)?,
            _ => None,
        };
        resumed.as_ref().map_or(Ok(()), |saved| self.check_seed(saved))?;
        for (name, weight) in weights {
            let first = resumed.as_ref().map_or(Some(weight), |saved| saved.weights.get(*name));
            let other = || Error::argument("the checkpoint is of another network", "give --checkpoint the right file");
            store.broadcast(*name, first.ok_or_else(other)?, std::slice::from_ref(weight), 0)?;
        }
        if let Some(saved) = &resumed {
            saved.restore_states(store)?;
        }
        store.set_optimizer(optimizer)?;
        if let (Some(saved), Some(path), 0) = (&resumed, &self.checkpoint, store.rank()) {
            let from = goes_on_from(saved, batches.per_epoch() as u64, store.num_workers());
            eprintln!("goes on from {}: {from}", path.display());
        }
        let begun = |saved: &Checkpoint| Start { step: saved.step, batches: Batches { seed: saved.seed, ..batches } };
        Ok(resumed.as_ref().map_or(Start { step: 0, batches }, begun))
    }

    /// Returns an error if `--seed` is not the seed of the checkpoint, which determines the order of images.
    fn check_seed(&self, saved: &Checkpoint) -> Result<()> {
        match self.seed {
            Some(seed) if seed != saved.seed => Err(Error::argument(
                format!("--seed {seed} with a checkpoint of a run that began with --seed {}", saved.seed),
                "leave out --seed to go on with that run, or begin another without --resume, with a --checkpoint of its own",
            )),
            _ => Ok(()),
        }
    }

    /// Must be called before each of the `steps` of this run. It gives `optimizer` and the store the step's
    /// learning rate, switches compression on at its step, and lets a `--late` worker sleep.
    pub fn before(&self, store: &KvStore, optimizer: &mut Optimizer, step: u64, steps: &Range<u64>) -> Result<()> {
        match self.late {
            Some(late) if late.step == step + 1 && store.rank() + 1 == store.num_workers() => {
                std::thread::sleep(late.sleeps);
            }
            _ => {}
        }
        let rate = self.rate_at(step, steps.end);
        if optimizer.learning_rate != rate {
            optimizer.learning_rate = rate;
            store.set_optimizer(optimizer)?;
        }
        match Compression::choice(&self.compression)? {
            Some(compression) if step == self.compress_from.max(steps.start) => {
                store.set_gradient_compression(&compression)
            }
            _ => Ok(()),
        }
    }

    /// With `--checkpoint`, rank 0 saves `weights` after `step`.
    pub fn save(&self, store: &KvStore, step: u64, seed: u64, weights: &[(&str, Tensor)]) -> Result<()> {
        let Some(path) = self.checkpoint.as_ref().filter(|_| store.rank() == 0) else { return Ok(()) };
        let on_host = |weight: &Tensor| match store.devices().filter(|_| weight.remote().is_some()) {
            Some(devices) => devices.download(weight),
            None => Ok(weight.clone()),
        };
        let weights = weights.iter().map(|(name, weight)| Ok(((*name).to_owned(), on_host(weight)?)));
        Checkpoint::take(store, step, seed, weights.collect::<Result<_>>()?)?.write(path)
    }
}

/// Describes the place at which a run resumes.
fn goes_on_from(saved: &Checkpoint, per_epoch: u64, workers: usize) -> String {
    let (step, seed) = (saved.step, saved.seed);
    let count = |workers: usize| format!("{workers} worker{}", if workers == 1 { "" } else { "s" });
    let by = match saved.workers {
        Some(before) if before != workers => format!("{}, saved by {before}", count(workers)),
        _ => count(workers),
    };
    format!("step {step} (epoch {}), seed {seed}, {by}", step / per_epoch.max(1) + 1)
}

/// Waits for every worker, then hashes the store's `weights`. Weights with the same bits have the same hash.
pub fn hash(store: &KvStore, weights: &[(&str, Tensor)]) -> Result<u64> {
    store.wait_all()?;
    store.barrier()?;
    let mut hash = Xxh3::new();
    for (name, weight) in weights {
        // The value is read into host memory, because the weight itself may be on a device.
        let value = Tensor::zeros(weight.dtype(), weight.shape());
        store.pull(*name, std::slice::from_ref(&value), 0)?;
        hash.update(value.read()?.bytes());
    }
    Ok(hash.digest())
}

/// Lets this process compute on its share of the cores. Without this call each worker of a host would use all
/// cores. `RAYON_NUM_THREADS` overrides it.
pub fn share_cores() -> Result<()> {
    let built = rayon::ThreadPoolBuilder::new().num_threads(config::threads()).build_global();
    built.map_err(|cause| {
        Error::argument(format!("threads cannot be shared out: {cause}"), "call share_cores before anything computes")
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn saved(step: u64, workers: Option<usize>) -> Checkpoint {
        Checkpoint { step, seed: 7, workers, weights: [].into(), states: Vec::new(), contents: 0 }
    }

    #[test]
    fn a_resumed_run_reports_where_it_resumes() {
        assert_eq!(goes_on_from(&saved(4, Some(1)), 6, 1), "step 4 (epoch 1), seed 7, 1 worker");
        assert_eq!(goes_on_from(&saved(6, Some(4)), 6, 2), "step 6 (epoch 2), seed 7, 2 workers, saved by 4");
        assert_eq!(goes_on_from(&saved(6, None), 6, 2), "step 6 (epoch 2), seed 7, 2 workers");
    }

    #[test]
    fn a_learning_rate_falls_in_steps_to_nearly_zero_or_stays() {
        let of = |words: &[&str]| Options::parse_from([&["train", "--lr", "0.5"], words].concat());
        let (stays, falls) = (of(&[]), of(&["--lr-decay"]));
        let rates: Vec<f64> = (0..640).map(|step| falls.rate_at(step, 640)).collect();
        assert_eq!((rates[0], rates[19], rates[20], rates[639]), (0.5, 0.5, 0.5 * 31.0 / 32.0, 0.5 / 32.0));
        assert_eq!(rates.windows(2).filter(|pair| pair[0] > pair[1]).count(), 31);
        assert!((0..3).all(|step| stays.rate_at(step, 3) == 0.5 && falls.rate_at(step, 3) > 0.0));
        // In a run that goes on beyond its last step, the rate is not negative.
        assert_eq!(falls.rate_at(700, 640), 0.5 / 32.0);
    }

    #[test]
    fn gradients_are_scaled_for_codes_of_a_fixed_size() {
        let scale = |words: &[&str], workers| Options::parse_from([&["train"], words].concat()).scale(workers).unwrap();
        assert_eq!(scale(&["--compression", "2bit:0.5"], 4), 0.25);
        assert_eq!(scale(&["--compression", "2bit:2"], 4), 1.0);
        assert_eq!(scale(&["--compression", "1bit:0.1"], 4), 0.5);
        assert_eq!(scale(&["--compression", "2bit", "--batch", "1024"], 4), 0.0625);
        assert_eq!(scale(&["--compression", "2bit", "--gradient-scale", "3"], 4), 3.0);
        assert_eq!([scale(&[], 4), scale(&["--compression", "fp16"], 4)], [1.0, 1.0]);
    }

    #[test]
    fn another_seed_than_the_checkpoints_is_an_error() {
        let check = |words: &[&str]| Options::parse_from([&["train"], words].concat()).check_seed(&saved(4, None));
        check(&[]).unwrap();
        check(&["--seed", "7"]).unwrap();
        let error = check(&["--seed", "1"]).unwrap_err().to_string();
        assert!(error.contains("--seed 1") && error.contains("--seed 7") && error.contains("hint:"), "{error}");
    }
}
