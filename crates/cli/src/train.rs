//! One rank's part in replaying a model's training steps: its computing by the clock or on the processor, its
//! communication real.
//!
//! A step begins with the backward pass: layer by layer from the last, the device computes and then the layer's gradients are
//! pushed, to be summed in place. The forward pass follows: layer by layer from the first, the layer's sums are awaited and
//! verified, and the device computes. The forward pass takes a third of the computing. Nothing else joins the ranks, so that
//! a rank may be as far ahead as its data allow, as in real training.
//!
//! Filling gradients and checking sums stand for the device's own reading and writing: they happen in its time.

use std::slice::from_ref;
use std::time::Instant;

use ringpull::KvStore;
use ringpull_base::config::Dmlc;
use ringpull_base::timeline::{self, Phase};
use ringpull_base::{DType, Error, Kind, Result, Tensor};
use ringpull_kernels::compress::Compression;
use ringpull_workload::expected::Expected;
use ringpull_workload::pattern::Pattern;

use crate::compute::Compute;
use crate::layers::{Layer, Network};
use crate::pushpull::{adding, count_hosts, host_number, rows, traffic};
use crate::record::{Measured, Record};
use crate::schedule::BACKWARD;
use crate::statistics::Summary;
use crate::timeline::account::WARMUP;
use crate::usage::Usage;

/// How a model is replayed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The element type of every key.
    pub dtype: DType,
    /// Measured steps, at least 1.
    pub iters: usize,
    /// Steps before them, verified but not timed.
    pub warmup: usize,
    /// Computing in a step.
    pub compute_s: f64,
    /// The part of it that is spent on the processor; `None` waits by the clock.
    pub burn: Option<f64>,
    /// Images or other samples of one rank in a step.
    pub batch: Option<usize>,
    /// How gradients are compressed, if they are.
    pub compression: Option<Compression>,
    /// Whether a layer's priority is the higher the sooner the forward pass needs it.
    pub priorities: bool,
}

/// Steps without communication that tell how long computing on the processor takes here.
const STEPS_ALONE: usize = 3;
/// The values of a rank's row before its steps: host, bytes sent, bytes received, computing alone.
const ROW_HEAD: usize = 4;

/// Replays `network` and gives rank 0 the record. Collective; `store` must be new.
pub fn run(store: &KvStore, algorithm: &str, network: &Network, plan: &Plan) -> Result<Option<Record>> {
    check(plan)?;
    if let Some(compression) = &plan.compression {
        store.set_gradient_compression(compression)?;
    }
    let accumulates = store.kind() == Kind::DistAsync;
    if accumulates {
        store.set_optimizer(&adding())?;
    }
    let mut replay = Replay::start(store, network, plan, accumulates)?;
    let mut row = vec![host_number(), 0.0, 0.0, plan.compute_s];
    store.barrier()?;
    if plan.burn.is_some() {
        let mut device = Compute::start(plan.burn);
        let alone = (0..STEPS_ALONE).map(|step| replay.alone(&mut device, step)).collect::<Result<Vec<f64>>>()?;
        row[3] = Summary::of(&alone).map_or(plan.compute_s, |summary| summary.median);
        store.barrier()?;
    }
    let mut before = (0.0, 0.0);
    // One device for all steps: what it is behind at the end of one, it makes up for in the next.
    let mut device = Compute::start(plan.burn);
    for number in 0..plan.warmup + plan.iters {
        if number == plan.warmup {
            before = traffic();
        }
        let _span = timeline::span(Phase::Step, || if number < plan.warmup { WARMUP } else { "step" });
        let seconds = replay.step(&mut device, number)?;
        if number >= plan.warmup {
            row.push(seconds);
        }
    }
    let after = traffic();
    (row[1], row[2]) = ((after.0 - before.0) / plan.iters as f64, (after.1 - before.1) / plan.iters as f64);
    replay.check_total(plan.warmup + plan.iters - 1)?;
    let rows = rows(store, "ringpull.steps", &row)?;
    let record = record(store, algorithm, network, plan, &rows)?;
    Ok((store.rank() == 0).then_some(record))
}

fn check(plan: &Plan) -> Result<()> {
    if plan.iters == 0 {
        return Err(Error::argument("--iters 0 measures nothing", "give at least 1"));
    }
    if !(plan.compute_s > 0.0 && plan.compute_s <= 3600.0) {
        return Err(Error::argument(
            format!("--compute {} is no time of a step", plan.compute_s),
            "give the seconds that a step computes for on one host, such as 2.184",
        ));
    }
    match plan.burn {
        Some(part) if !(part > 0.0 && part <= 1.0) => Err(Error::argument(
            format!("--burn={part} is no part of a step's computing"),
            "give a number above 0 and up to 1, the part that is spent on the processor",
        )),
        _ => Ok(()),
    }
}

struct Replay<'a> {
    store: &'a KvStore,
    network: &'a Network,
    plan: &'a Plan,
    tensors: Vec<Tensor>,
    expected: Expected,
    /// What a rank without peers would sum.
    own_pattern: Pattern,
    /// Whether the store adds pushes up, so that only the total of all steps is known.
    accumulates: bool,
}

impl<'a> Replay<'a> {
    fn start(store: &'a KvStore, network: &'a Network, plan: &'a Plan, accumulates: bool) -> Result<Self> {
        // Nobody pulls a gradient again.
        let tensor = |shape: &[usize]| Tensor::zeros(plan.dtype, shape).unkept();
        let tensors: Vec<Tensor> = network.keys.iter().map(|key| tensor(&key.shape)).collect();
        for (key, tensor) in network.keys.iter().zip(&tensors) {
            store.init(key.name.as_str(), tensor)?;
        }
        let expected = Expected::new(store.num_workers(), plan.dtype, store.kind(), plan.compression)?;
        let own_pattern = Pattern::new(1, plan.dtype)?;
        Ok(Replay { store, network, plan, tensors, expected, own_pattern, accumulates })
    }

    /// One step, in seconds.
    fn step(&mut self, device: &mut Compute, number: usize) -> Result<f64> {
        let start = Instant::now();
        for (index, layer) in self.network.layers.iter().enumerate().rev() {
            self.compute(device, layer, BACKWARD, |tensor, _| {
                self.expected.fill(tensor, self.store.rank(), number);
                Ok(())
            })?;
            let priority = if self.plan.priorities { -(index as i32) } else { 0 };
            for key in layer.keys.clone().rev() {
                let tensor = from_ref(&self.tensors[key]);
                self.store.push_pull(self.network.keys[key].name.as_str(), tensor, tensor, priority)?;
            }
        }
        self.expected.advance(number);
        for layer in &self.network.layers {
            let asked = Instant::now();
            for key in layer.keys.clone() {
                drop(self.tensors[key].read()?);
            }
            device.stand_still(asked.elapsed());
            self.compute(device, layer, 1.0 - BACKWARD, |tensor, key| {
                if self.accumulates {
                    return Ok(());
                }
                self.expected.check(tensor, key, self.store.rank(), number..=number)
            })?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// One step as a rank would take it that has no peers, in seconds.
    fn alone(&self, device: &mut Compute, number: usize) -> Result<f64> {
        let start = Instant::now();
        for layer in self.network.layers.iter().rev() {
            self.compute(device, layer, BACKWARD, |tensor, _| {
                self.own_pattern.fill(tensor, 0, number);
                Ok(())
            })?;
        }
        for layer in &self.network.layers {
            self.compute(device, layer, 1.0 - BACKWARD, |tensor, key| {
                self.own_pattern.check(tensor, key, 0, number..=number)
            })?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Lets the device work on a layer, and do `its_own` with each of the layer's tensors in that time.
    fn compute(
        &self,
        device: &mut Compute,
        layer: &Layer,
        pass: f64,
        its_own: impl Fn(&Tensor, &str) -> Result<()>,
    ) -> Result<()> {
        let _span = timeline::span(Phase::Compute, || timeline::Name::Text(layer.name.clone()));
        for key in layer.keys.clone() {
            its_own(&self.tensors[key], &self.network.keys[key].name)?;
        }
        device.work(self.plan.compute_s * pass * layer.part);
        Ok(())
    }

    /// Where pushes add up: checks the total of all steps up to `last`, which is known once every rank has made them.
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

fn record(store: &KvStore, algorithm: &str, network: &Network, plan: &Plan, rows: &[Vec<f64>]) -> Result<Record> {
    let slowest = |at: usize| rows.iter().map(|row| row[at]).fold(0.0, f64::max);
    let elements: usize = network.keys.iter().map(ringpull_workload::models::ModelKey::len).sum();
    let servers = if store.kind().has_servers() { Dmlc::from_env()?.map_or(0, |job| job.num_servers) } else { 0 };
    let way = match (&plan.compression, store.kind()) {
        (_, Kind::Local) => "none".to_owned(),
        (None, Kind::DistSyncMpi) => algorithm.to_owned(),
        (Some(compression), Kind::DistSyncMpi) => compression.to_string(),
        (None, _) => "servers".to_owned(),
        (Some(compression), _) => format!("servers {compression}"),
    };
    let record = Record::of_verified(Measured {
        op: "train",
        mode: store.kind().to_string(),
        algorithm: way,
        ranks: rows.len(),
        hosts: count_hosts(rows),
        servers,
        bytes: (elements * plan.dtype.size_bytes()) as u64,
        dtype: plan.dtype,
        seconds: (ROW_HEAD..ROW_HEAD + plan.iters).map(slowest).collect(),
        host_bytes: Some(slowest(1).max(slowest(2)).round() as u64).filter(|bytes| *bytes > 0),
        usage: Usage::default(),
    })?;
    Ok(record.with_train(slowest(3), plan.burn, plan.batch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers;

    fn plan() -> Plan {
        Plan {
            dtype: DType::F32,
            iters: 2,
            warmup: 1,
            compute_s: 0.002,
            burn: None,
            batch: Some(64),
            compression: None,
            priorities: true,
        }
    }

    #[test]
    fn a_model_is_replayed_on_one_rank_and_its_record_is_of_steps() {
        let network = layers::load("resnet50", 0.0001).unwrap();
        for burn in [None, Some(0.5)] {
            let store = ringpull::create("local").unwrap();
            let record = run(&store, "auto", &network, &Plan { burn, ..plan() }).unwrap().unwrap();
            assert_eq!((record.op.as_str(), record.mode.as_str(), record.seconds.len()), ("train", "local", 2));
            let train = record.train.unwrap();
            assert!(record.median_s > 0.0 && train.compute_s > 0.0, "{record:?}");
            assert_eq!(train.images_per_s, Some(64.0 / record.median_s));
            assert_eq!((train.efficiency, train.burn), (train.compute_s / record.median_s, burn));
        }
    }

    #[test]
    fn a_plan_that_measures_nothing_is_an_error_that_names_the_option() {
        let network = layers::load("vgg16", 0.00001).unwrap();
        for (wrong, option) in [
            (Plan { iters: 0, ..plan() }, "--iters"),
            (Plan { compute_s: 0.0, ..plan() }, "--compute"),
            (Plan { compute_s: f64::NAN, ..plan() }, "--compute"),
            (Plan { burn: Some(1.5), ..plan() }, "--burn"),
        ] {
            let store = ringpull::create("local").unwrap();
            let error = run(&store, "auto", &network, &wrong).unwrap_err().to_string();
            assert!(error.contains(option), "{error}");
        }
    }
}
