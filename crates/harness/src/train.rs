//! One rank's part in replaying a model's training steps. Computing takes time by the clock; communication is
//! real.
//!
//! A step begins with the backward pass: layer by layer from the last, the device computes and then the
//! layer's gradients are pushed, to be summed in place. The forward pass follows: layer by layer from the
//! first, the layer's sums are awaited and verified, and the device computes. The forward pass takes a third
//! of the computing. Nothing else synchronizes the ranks, so a rank may be as far ahead as its data allow, as
//! in real training.
//!
//! Filling gradients and checking sums stand for the device's own reading and writing, so their time is part
//! of the device's time.

use std::slice::from_ref;
use std::time::Instant;

use ringpull::KvStore;
use ringpull_base::timeline::{self, Phase};
use ringpull_base::{Error, Kind, Result, Tensor};
use ringpull_workload::expected::ExpectedSums;

use crate::compute::Compute;
use crate::layers::{Layer, Network};
use crate::progress::Progress;
use crate::pushpull;
use crate::ranks::{RankReport, ResourceUse, gather};
use crate::record::Record;
use crate::usage::Usage;

/// How a model is replayed.
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// Element type, steps and compression.
    pub keys: pushpull::StoreOptions,
    pub compute_s: f64,
    /// Images or other samples of one rank in a step.
    pub batch: Option<usize>,
}

/// The name that a timeline has for a step that does not count.
pub const WARMUP: &str = "warm-up";
/// The part of a step's computing that is the backward pass.
pub const BACKWARD: f64 = 2.0 / 3.0;

/// Replays `network` and returns the record on rank 0. Collective; `store` must be new.
pub fn run(
    store: &KvStore,
    network: &Network,
    plan: &ReplayOptions,
    progress: Option<&Progress>,
) -> Result<Option<Record>> {
    check(plan)?;
    plan.keys.prepare(store)?;
    let mut replay = Replay::start(store, network, plan)?;
    let mut found = RankReport::default();
    store.barrier()?;
    let (iters, warmup) = (plan.keys.iters, plan.keys.warmup);
    let mut before = ResourceUse::default();
    // One device serves all steps, so it makes up for a delay in the next step.
    let mut device = Compute::start();
    for number in 0..warmup + iters {
        if let Some(progress) = progress {
            progress.part(number, warmup + iters, "training steps");
        }
        if number == warmup {
            before = ResourceUse::now();
        }
        let _span = timeline::span(Phase::Step, || if number < warmup { WARMUP } else { "step" });
        let seconds = replay.step(&mut device, number)?;
        if number >= warmup {
            found.seconds.push(seconds);
        } else {
            found.warmup_s += seconds;
        }
    }
    found.spent.add(before, ResourceUse::now());
    replay.check_total(warmup + iters - 1)?;
    let mut ranks = gather(store, "ringpull.steps", &found)?;
    count_to_the_last_end(&mut ranks);
    let record = plan.keys.record("train", store, &network.keys, &ranks)?;
    // A rank's processor time includes its computing.
    let record = Record { usage: Usage::default(), ..record }.with_train(plan.compute_s, plan.batch);
    Ok((store.rank() == 0).then_some(record))
}

/// No barrier joins the ranks between steps, and the last rank is not always the same one. So a step lasts
/// from the moment when the last rank ends the previous step to the moment when the last rank ends this step.
/// Both times count from the barrier before the first step, so the steps add up to their total time.
fn count_to_the_last_end(ranks: &mut [RankReport]) {
    let end = |steps: usize| {
        let of_rank = |rank: &RankReport| rank.warmup_s + rank.seconds[..steps].iter().sum::<f64>();
        ranks.iter().map(of_rank).fold(0.0, f64::max)
    };
    let ends: Vec<f64> = (0..=ranks[0].seconds.len()).map(end).collect();
    let seconds: Vec<f64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    ranks.iter_mut().for_each(|rank| rank.seconds.clone_from(&seconds));
}

fn check(plan: &ReplayOptions) -> Result<()> {
    if !(plan.compute_s > 0.0 && plan.compute_s <= 3600.0) {
        return Err(Error::argument(
            format!("invalid --compute {}: expected seconds above 0 and up to 3600", plan.compute_s),
            "give the seconds of computing in a step on one host, such as 2.184",
        ));
    }
    Ok(())
}

struct Replay<'a> {
    store: &'a KvStore,
    network: &'a Network,
    plan: &'a ReplayOptions,
    tensors: Vec<Tensor>,
    expected: ExpectedSums,
    /// True if the store adds pushes up, so that only the total of all steps can be checked.
    accumulates: bool,
}

impl<'a> Replay<'a> {
    fn start(store: &'a KvStore, network: &'a Network, plan: &'a ReplayOptions) -> Result<Self> {
        let pushpull::StoreOptions { dtype, compression, .. } = plan.keys;
        // Gradients are not pulled again.
        let tensor = |shape: &[usize]| Tensor::zeros(dtype, shape).unkept();
        let tensors: Vec<Tensor> = network.keys.iter().map(|key| tensor(&key.shape)).collect();
        for (key, tensor) in network.keys.iter().zip(&tensors) {
            store.init(key.name.as_str(), tensor)?;
        }
        let expected = ExpectedSums::new(store.num_workers(), dtype, store.kind(), compression)?;
        let accumulates = store.kind() == Kind::DistAsync;
        Ok(Replay { store, network, plan, tensors, expected, accumulates })
    }

    /// Runs one step and returns its seconds.
    fn step(&mut self, device: &mut Compute, number: usize) -> Result<f64> {
        let start = Instant::now();
        for (index, layer) in self.network.layers.iter().enumerate().rev() {
            self.compute(device, layer, BACKWARD, |tensor, _| {
                self.expected.fill(tensor, self.store.rank(), number);
                Ok(())
            })?;
            // A layer that the forward pass needs sooner has a higher priority.
            let priority = -(index as i32);
            for key in layer.keys.clone().rev() {
                let tensor = from_ref(&self.tensors[key]);
                self.store.push_pull(self.network.keys[key].name.as_str(), tensor, tensor, priority)?;
            }
        }
        self.expected.advance(number)?;
        for layer in &self.network.layers {
            let asked = Instant::now();
            for key in layer.keys.clone() {
                drop(self.tensors[key].read()?);
            }
            device.idle(asked.elapsed());
            self.compute(device, layer, 1.0 - BACKWARD, |tensor, key| {
                if self.accumulates {
                    return Ok(());
                }
                self.expected.check(tensor, key, self.store.rank(), number..=number)
            })?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Lets the device compute a layer, and calls `access` with each of the layer's tensors in that time.
    fn compute(
        &self,
        device: &mut Compute,
        layer: &Layer,
        pass: f64,
        access: impl Fn(&Tensor, &str) -> Result<()>,
    ) -> Result<()> {
        let _span = timeline::span(Phase::Compute, || timeline::Name::Text(layer.name.clone()));
        for key in layer.keys.clone() {
            access(&self.tensors[key], &self.network.keys[key].name)?;
        }
        device.work(self.plan.compute_s * pass * layer.part);
        Ok(())
    }

    /// If pushes add up, checks the total of all steps up to `last`. Every rank must have made these steps.
    fn check_total(&self, last: usize) -> Result<()> {
        if !self.accumulates {
            return Ok(());
        }
        self.store.wait_all()?;
        self.store.barrier()?;
        for (key, tensor) in self.network.keys.iter().zip(&self.tensors) {
            self.store.pull(key.name.as_str(), from_ref(tensor), 0)?;
            self.expected.check(tensor, &key.name, self.store.rank(), 0..=last)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers;
    use ringpull_base::{AlgorithmChoice, DType};

    fn plan() -> ReplayOptions {
        let keys = pushpull::StoreOptions {
            dtype: DType::F32,
            iters: 2,
            warmup: 1,
            compression: None,
            algorithm: AlgorithmChoice::Auto,
            optimizer: None,
            is_sharded: false,
        };
        ReplayOptions { keys, compute_s: 0.002, batch: Some(64) }
    }

    #[test]
    fn a_model_is_replayed_on_one_rank_and_its_record_is_of_steps() {
        let network = layers::load("resnet50", 0.0001).unwrap();
        let store = ringpull::create("local").unwrap();
        let record = run(&store, &network, &plan(), None).unwrap().unwrap();
        assert_eq!((record.op.as_str(), record.mode.as_str(), record.seconds.len()), ("train", "local", 2));
        let train = record.train.unwrap();
        assert!(record.median_s > 0.0 && train.compute_s > 0.0, "{record:?}");
        assert_eq!(train.images_per_s, Some(64.0 / record.median_s));
        assert_eq!(train.efficiency, train.compute_s / record.median_s);
    }

    #[test]
    fn steps_of_ranks_that_take_turns_at_being_last_add_up_to_what_all_took() {
        let of =
            |warmup_s, seconds: [f64; 3]| RankReport { warmup_s, seconds: seconds.to_vec(), ..RankReport::default() };
        let mut ranks = [of(2.0, [3.0, 1.0, 3.0]), of(3.0, [1.0, 3.0, 1.5])];
        count_to_the_last_end(&mut ranks);
        assert!(ranks.iter().all(|rank| rank.seconds == [2.0, 2.0, 2.0]), "{ranks:?}");
    }

    #[test]
    fn invalid_options_are_errors_that_name_the_option() {
        let network = layers::load("vgg16", 0.00001).unwrap();
        for (wrong, option) in [
            (ReplayOptions { keys: pushpull::StoreOptions { iters: 0, ..plan().keys }, ..plan() }, "--iters"),
            (ReplayOptions { compute_s: 0.0, ..plan() }, "--compute"),
            (ReplayOptions { compute_s: f64::NAN, ..plan() }, "--compute"),
        ] {
            let store = ringpull::create("local").unwrap();
            let error = run(&store, &network, &wrong, None).unwrap_err().to_string();
            assert!(error.contains(option), "{error}");
        }
    }
}
