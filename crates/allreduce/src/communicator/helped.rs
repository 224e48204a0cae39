//! Helpers: ranks that only reduce. They bring no contribution, keep no sum, and make no call.
//!
//! A helper takes part only in sums between hosts that are faster with it, as `auto` predicts
//! (`ringpull_plan::Links`). Rank 0 asks all helpers over the control star when it begins such a sum. The
//! other ranks begin the sum without a message to the helpers, and a helper's library keeps data that comes
//! early. So only workers take part in the agreement, in frozen cycles and in ending them.
//!
//! A helper is of no use in sums within a host, which use shared memory. A helper that shares a host with a
//! worker has only a share of that worker's link. So helpers are idle unless every rank is on a host of its
//! own.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use ringpull_base::config::Config;
use ringpull_base::{Result, notice};
use ringpull_plan::Schedule;

use super::Communicator;
use super::begun::BegunOperation;
use super::executor::Executor;
use super::placement::Placement;
use super::schedules::Sum;
use crate::interpreter::Memory;
use crate::transport::Stamp;

/// The stamp of the messages by which ranks learn whether all of them choose plans by `auto`.
const FIRST: Stamp = 0;
/// The least number of workers for which helpers save time.
const WORKERS: usize = 3;

/// Rank 0's request to the helpers to take part in a sum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HelpRequest {
    sum: Sum,
    stamp: Stamp,
    priority: i32,
}

impl HelpRequest {
    /// The length of the buffer.
    pub fn len_bytes(&self) -> usize {
        self.sum.len_bytes
    }

    /// The number of the operation.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Operations of higher priority go first.
    pub fn priority(&self) -> i32 {
        self.priority
    }
}

/// A function that sends the request to every helper.
pub(super) type Ask = Box<dyn Fn(HelpRequest)>;

/// The helpers of a job.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    count: usize,
    /// The reason that the helpers are idle, if they are.
    idle: Option<&'static str>,
}

impl Helpers {
    /// Finds the helpers, which are the last `count` ranks, and checks if they can be of use. Later
    /// collectives are without them. All ranks must call it.
    pub(super) fn find(executor: &mut Executor, count: usize, config: &Config) -> Result<Self> {
        if count == 0 {
            return Ok(Helpers::default());
        }
        let (workers, rank) = (executor.size() - count, executor.rank());
        let everyone = Placement::find(executor, config.read_memory)?;
        let are_auto = executor.gather_rows(&[u64::from(config.algorithm.is_auto())], FIRST)?;
        let idle = if workers < WORKERS {
            Some("with fewer than three workers they save no time")
        } else if everyone.has_neighbours() {
            Some("some ranks share a host, and each helper and each worker needs a host of its own")
        } else if are_auto.contains(&[0]) {
            Some("RINGPULL_ALGORITHM is not `auto`, and only `auto` uses helpers")
        } else {
            None
        };
        drop(everyone);
        executor.narrow(workers)?;
        if let (Some(why), 0) = (idle, rank) {
            notice(&format!("warning: this job's helpers ({count}) are idle: {why}"));
        }
        Ok(Helpers { count, idle })
    }

    /// The number of helpers that take part in sums.
    pub(super) fn active(&self) -> usize {
        if self.idle.is_some() { 0 } else { self.count }
    }

    /// Returns the part about helpers for a sentence about the job's ranks.
    pub(super) fn description(&self) -> String {
        let plural = if self.count == 1 { "" } else { "s" };
        match (self.count, self.idle) {
            (0, _) => String::new(),
            (count, None) => format!(", and {count} helper{plural}"),
            (count, Some(_)) => format!(", and {count} idle helper{plural}"),
        }
    }
}

impl Communicator {
    /// Sets the function by which rank 0 asks the helpers.
    pub fn ask_helpers_by(&mut self, ask: Box<dyn Fn(HelpRequest)>) {
        self.ask = Some(ask);
    }

    /// Returns the schedule of a sum in which helpers may take part. Rank 0 asks them now if they do.
    pub(super) fn helped_schedule(&mut self, sum: Sum, stamp: Stamp, priority: i32) -> Arc<Schedule> {
        let sum = Sum { may_be_helped: self.helpers.active() > 0, ..sum };
        let schedule = self.schedule(sum);
        let workers = self.size();
        if let Some(ask) = &self.ask
            && sum.may_be_helped
            && schedule.into.iter().any(|lane| lane.peer >= workers)
        {
            ask(HelpRequest { sum, stamp, priority });
        }
        schedule
    }

    /// Begins a helper's part of a sum. The content of `data` has no meaning, neither before the sum nor
    /// after it.
    pub fn begin_help(&mut self, asked: &HelpRequest, data: Memory) -> BegunOperation {
        let schedule = self.schedule(asked.sum);
        BegunOperation::UnderWay(self.executor.runner.begin(&schedule, data, asked.stamp, asked.priority))
    }
}
