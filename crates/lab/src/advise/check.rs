//! Predictions beside measurements: the same step on emulated hosts, scaled to their links.

use serde::Serialize;

use ringpull_base::{Error, Result};

use crate::advise::Choice;
use crate::advise::predict::Setting;
use ringpull_harness::layers;
use ringpull_harness::link::LinkRate;
use ringpull_harness::rounds::{self, Job, JobRunner, NextJob, TrainSetup, Work};
use ringpull_harness::shape::{HostRate, Shape, own_words};
use ringpull_harness::statistics::Summary;
use ringpull_harness::variant::Variant;

/// From one emulated host to another, while the processors are busy.
const LATENCY_S: f64 = 150e-6;
/// The largest allowed error.
const MOST: f64 = 0.1;

/// The way to check.
pub struct Plan {
    pub model: String,
    /// Of the model in the prediction.
    pub scale: f64,
    pub compute_s: f64,
    pub link_bytes_per_s: f64,
    /// The workers' hosts whose links have rates of their own.
    pub own: Vec<HostRate>,
    /// The rate of the emulated links.
    pub lab: LinkRate,
    pub hosts: Vec<usize>,
    pub rounds: usize,
}

#[derive(Debug, Serialize)]
pub struct Checked {
    /// The measurement.
    pub words: String,
    pub rows: Vec<CheckedRow>,
}

#[derive(Debug, Serialize)]
pub struct CheckedRow {
    pub hosts: usize,
    pub mode: String,
    pub predicted_s: f64,
    /// The median of all rounds; none if it failed.
    pub measured_s: Option<f64>,
    /// Of the prediction, as a part of what was measured.
    pub error: Option<f64>,
}

impl Checked {
    /// The number of predictions that are near enough.
    pub fn outcome(&self) -> String {
        let near = self.rows.iter().filter(|row| row.error.is_some_and(|error| error.abs() <= MOST)).count();
        format!("{near} of {} predictions are within {:.0} % of what was measured.", self.rows.len(), 100.0 * MOST)
    }
}

impl Plan {
    /// The bytes a second of an emulated link.
    fn lab_bytes_per_s(&self) -> Result<f64> {
        self.lab.bytes_per_s().ok_or_else(|| {
            Error::argument("--check none has no rate to scale to", "give a rate, such as --check=200mbit")
        })
    }

    /// The part of the model that is measured: with so much less to move on links that are so much slower,
    /// every time stays what it was.
    pub fn scale(&self) -> Result<f64> {
        Ok(self.scale * self.lab_bytes_per_s()? / self.link_bytes_per_s)
    }

    fn own(&self) -> Result<Vec<HostRate>> {
        let slower = self.lab_bytes_per_s()? / self.link_bytes_per_s;
        Ok(self.own.iter().map(|own| own.times(slower)).collect())
    }

    /// The variants on so many hosts, each once, and no more than there can be hosts for.
    fn variants(&self, choices: &[Choice], hosts: usize) -> Vec<Variant> {
        let most = self.hosts.iter().copied().max().unwrap_or(0);
        let mut variants: Vec<Variant> = Vec::new();
        for variant in choices.iter().map(|choice| choice.variant(hosts)) {
            if !variants.contains(&variant) && most + variant.mode.extra_hosts() <= Shape::MOST_HOSTS {
                variants.push(variant);
            }
        }
        variants
    }

    /// The emulated hosts of the workers, and how many more are needed for servers and helpers.
    pub fn testbed(&self, choices: &[Choice]) -> Result<(Shape, usize)> {
        let most = self.hosts.iter().copied().max().unwrap_or(0);
        let variants = self.hosts.iter().flat_map(|hosts| self.variants(choices, *hosts));
        let extra = variants.map(|variant| variant.mode.extra_hosts()).max().unwrap_or(0);
        Ok((Shape { hosts: most, rate: self.lab, own: self.own()?, racks: None }, extra))
    }
}

/// Measures every choice on each of these numbers of hosts, which are those of the plan's testbed.
pub fn run(
    plan: &Plan,
    choices: &[Choice],
    runner: &mut dyn JobRunner,
    progress: &mut dyn FnMut(NextJob),
) -> Result<Checked> {
    let (scale, own) = (plan.scale()?, plan.own()?);
    let network = layers::load(&plan.model, scale)?;
    let named = layers::named(&plan.model, scale)?;
    let train = TrainSetup { model: plan.model.clone(), compute_s: plan.compute_s, batch: None, late: None };
    let setting = Setting {
        network: network.clone(),
        compute_s: plan.compute_s,
        link_bytes_per_s: plan.lab_bytes_per_s()?,
        own,
        latency_s: LATENCY_S,
    };
    let mut rows = Vec::new();
    for hosts in &plan.hosts {
        let work = Work::Steps { network: network.clone(), named: named.clone(), train: train.clone() };
        let job = Job { ranks: *hosts, work, iters: 3, warmup: 3 };
        let variants: Vec<Variant> =
            plan.variants(choices, *hosts).into_iter().filter(|it| setting.reaches(*it, *hosts)).collect();
        let found = rounds::run(runner, &variants, &vec![vec![job]; plan.rounds], Vec::new(), progress);
        for variant in variants {
            let samples = found.done.iter().filter(|done| done.variant == variant);
            let samples: Vec<f64> = samples.flat_map(|done| done.record.seconds.iter().copied()).collect();
            let measured_s = Summary::of(&samples).map(|summary| summary.median);
            let predicted_s = setting.step_s(variant, *hosts)?;
            let error = measured_s.map(|measured| predicted_s / measured - 1.0);
            rows.push(CheckedRow { hosts: *hosts, mode: variant.to_string(), predicted_s, measured_s, error });
        }
        if runner.interrupted().is_some() {
            break;
        }
    }
    let words = format!(
        "check: the same step with {scale:.3} of the model on emulated hosts with links of {}{}, {}",
        plan.lab,
        own_words(&setting.own),
        ringpull_harness::text::several(plan.rounds, "round")
    );
    Ok(Checked { words, rows })
}
