//! The comparison: every variant is a job of its own, started again in every round, and the order rotates.
//!
//! [`rounds`] runs the plan over a [`Runner`] and gives [`Results`]; [`table`] and [`verdict`] put them into
//! words for a terminal, [`report`] into one HTML file; [`training`] and `training_page` do so for them where
//! steps of training are compared. Below these [`numbers`] writes times, `notes` what stands under a table,
//! and [`charts`] draws. All but the real runner in [`launched`] is pure.

pub mod charts;
pub mod environment;
pub mod launched;
mod notes;
pub mod numbers;
pub mod peers;
pub mod published;
pub mod report;
pub mod results;
pub mod rounds;
pub mod table;
pub mod training;
mod training_page;
pub mod verdict;

use std::time::Duration;

use ringpull_base::Result;
use ringpull_workload::models::ModelKey;

use crate::compare::results::TrainSetup;
use crate::layers::Network;
use crate::machine::ProcessorTime;
use crate::mode::Variant;
use crate::record::Record;

pub use environment::Environment;
pub use results::{Outcome, Results, Round, Row, Setup};

/// What every variant pushes and pulls.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The payload in words, such as `25 MB` or `vgg16, 32 tensors, 553 MB`.
    pub words: String,
    /// What `ringpull bench` is asked for: `pushpull` or `train`.
    pub bench: &'static str,
    /// The payload's arguments of it, such as `--sizes 25000000`.
    pub bench_args: Vec<String>,
    /// The keys, in forward order.
    pub keys: Vec<ModelKey>,
    /// The layers and how a step computes, if steps of training are replayed.
    pub network: Option<(Network, TrainSetup)>,
    /// Measured iterations of a job.
    pub iters: usize,
    /// Iterations before them.
    pub warmup: usize,
}

impl Workload {
    /// Payload bytes of one worker: every key is f32.
    pub fn bytes(&self) -> u64 {
        4 * self.keys.iter().map(ModelKey::len).sum::<usize>() as u64
    }
}

/// Starts jobs. One implementation starts processes; the tests have another.
pub trait Runner {
    /// How to install what the variant needs, if it is not there.
    fn missing(&mut self, variant: Variant) -> Option<String>;

    /// What this machine's processors have done so far, where it is known.
    fn processor_time(&mut self) -> Option<ProcessorTime> {
        None
    }

    /// Waits until what the last job, which took so long, has left behind is no burden to the next, if that is known.
    fn settle(&mut self, _last_job: Duration) {}

    /// Runs one job to its end and gives the records that its rank 0 printed.
    fn run(&mut self, variant: Variant, workload: &Workload) -> Result<Vec<Record>>;
}
