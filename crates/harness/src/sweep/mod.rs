//! The sweep: our allreduce compared with others for every number of ranks and size, in rotating rounds.
//!
//! A job measures many sizes, because its start takes longer than most of the measurements. Short payloads
//! have more rounds, because their times depend mostly on where the operating system places a job's ranks.
//! For the same reason a time is the median of the jobs' medians, and the noise is the difference between
//! jobs. [`page`] writes the results of sweeps as one Markdown page.

pub mod page;

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::compare::Environment;
use crate::cost::Links;
use crate::link::LinkRate;
use crate::record::Record;
use crate::rounds::{self, Job, JobRunner, NextJob, RoundsOutcome, Work};
use crate::statistics::Summary;
use crate::text::several;
use crate::variant::Variant;

/// The largest payload that is measured many times in a job. Longer payloads are measured a few times.
pub const SHORT_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepPlan {
    /// The hosts of the jobs.
    pub place: String,
    pub link: LinkRate,
    pub ranks: Vec<usize>,
    pub sizes: Vec<usize>,
    /// Rounds of payloads longer than [`SHORT_BYTES`].
    pub rounds: usize,
    /// Measured iterations of these longer payloads in one job.
    #[serde(alias = "long_iters")]
    pub iters: usize,
}

impl SweepPlan {
    /// Rounds in which payloads of `bytes` bytes are measured.
    pub fn rounds_of(&self, bytes: usize) -> usize {
        if bytes <= SHORT_BYTES { 2 * self.rounds } else { self.rounds }
    }

    /// Measured iterations of payloads of `bytes` bytes in each job.
    pub fn iters_of(&self, bytes: usize) -> usize {
        if bytes <= SHORT_BYTES { 10 * self.iters } else { self.iters }
    }

    /// Makes the times of a record, with the median of each job in place of its samples.
    fn of_jobs(&self, record: Record) -> JobTimes {
        let Record { mode, ranks, bytes, bound_s, .. } = record;
        let seconds = medians(&record.seconds, self.iters_of(bytes as usize).max(1));
        JobTimes { mode, ranks, bytes, seconds, bound_s }
    }

    /// The jobs of round `round`, from 0: one of the short payloads and one of the long ones, if it has any.
    fn jobs(&self, round: usize) -> Vec<Job> {
        let sizes = self.sizes.iter().copied().filter(|bytes| round < self.rounds_of(*bytes));
        let (short, long): (Vec<usize>, Vec<usize>) = sizes.partition(|bytes| *bytes <= SHORT_BYTES);
        let of = |ranks: usize| {
            let job =
                |sizes: &[usize], iters, warmup| Job { ranks, work: Work::Buffers(sizes.to_vec()), iters, warmup };
            [job(&short, 10 * self.iters, 2 + 5 * self.iters), job(&long, self.iters, 1)]
        };
        self.ranks.iter().flat_map(|ranks| of(*ranks)).filter(|job| !job.payloads().is_empty()).collect()
    }
}

/// The median of each job, where `seconds` holds `of_job` samples for each job in turn.
fn medians(seconds: &[f64], of_job: usize) -> Vec<f64> {
    seconds.chunks(of_job).filter_map(|seconds| Some(Summary::of(seconds)?.median)).collect()
}

/// The times of a contender for one number of ranks and one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobTimes {
    /// The contender.
    pub mode: String,
    pub ranks: usize,
    pub bytes: u64,
    /// The median of each job.
    pub seconds: Vec<f64>,
    pub bound_s: Option<f64>,
}

impl JobTimes {
    pub fn summary(&self) -> Option<Summary> {
        Summary::of(&self.seconds)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    pub environment: Environment,
    pub command: String,
    pub plan: SweepPlan,
    pub took_s: f64,
    pub records: Vec<JobTimes>,
    /// Contenders that are not installed or failed, with the reason.
    pub missing: Vec<String>,
}

/// Runs every contender in every round. Ranks have hosts of their own, or are processes of one machine.
pub fn run(
    runner: &mut dyn JobRunner,
    contenders: &[Variant],
    plan: &SweepPlan,
    own_hosts: bool,
    (environment, command): (Environment, String),
    progress: &mut dyn FnMut(&RoundsOutcome, NextJob),
) -> Sweep {
    let start = Instant::now();
    let rounds: Vec<Vec<Job>> = (0..plan.rounds_of(SHORT_BYTES)).map(|round| plan.jobs(round)).collect();
    let found = rounds::run(runner, contenders, &rounds, Vec::new(), progress);
    let mut records = Vec::new();
    let links = plan.link.bytes_per_s().map(Links::from);
    for variant in contenders {
        for ranks in &plan.ranks {
            let of = |bytes: &usize| found.of(*variant, *ranks, *bytes as u64);
            // A contender that failed at once has no record.
            let merged = |bytes| rounds::merged(*variant, &of(bytes), own_hosts, links, LinkRate::default()).ok();
            records.extend(plan.sizes.iter().filter_map(merged).map(|record| plan.of_jobs(record)));
        }
    }
    let absent = found.absent.iter().map(|(variant, install)| format!("{variant} is not installed: {install}"));
    let failed = found
        .failed
        .iter()
        .map(|(variant, ranks, error)| format!("{variant} on {} failed: {error}", several(*ranks, "rank")));
    let missing = absent.chain(failed).collect();
    Sweep { environment, command, plan: plan.clone(), took_s: start.elapsed().as_secs_f64(), records, missing }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::rounds::fake::Fake;

    pub fn swept() -> (Sweep, Vec<(String, usize)>) {
        let plan = SweepPlan {
            place: "3 emulated hosts".to_owned(),
            link: "1gbit".parse().unwrap(),
            ranks: vec![2, 3],
            sizes: vec![4, 1 << 20, 10_000_000],
            rounds: 2,
            iters: 1,
        };
        let contenders = ["ours", "ours:mpich", "openmpi:default", "openmpi:4", "horovod"];
        let contenders = contenders.map(|name| name.parse().unwrap());
        let mut fake = Fake::default();
        let told = (Environment::default(), "ringpull compare --hosts 3".to_owned());
        (run(&mut fake, &contenders, &plan, true, told, &mut |_, _| ()), fake.jobs)
    }

    #[test]
    fn every_contender_is_measured_with_every_number_of_ranks_and_size() {
        let (results, jobs) = swept();
        let names: Vec<&str> = jobs.iter().filter(|(_, ranks)| *ranks == 2).map(|(name, _)| name.as_str()).collect();
        let all = ["dist_sync_mpi", "dist_sync_mpi:mpich", "mpi", "openmpi:4"];
        assert_eq!([&names[..4], &names[4..8]], [all, all], "the short payloads of all, then the long ones");
        assert_eq!(names.len(), 24, "the third and fourth round have the short payloads alone");
        let of = |mode: &str, ranks: usize| {
            results.records.iter().filter(|record| record.mode == mode && record.ranks == ranks).collect::<Vec<_>>()
        };
        let ours = of("dist_sync_mpi", 2);
        assert_eq!(ours.iter().map(|record| record.seconds.len()).collect::<Vec<_>>(), [4, 4, 2], "one for each job");
        assert!(of("dist_sync_mpi", 3).iter().all(|record| record.bound_s.is_some()));
        assert!(of("openmpi:4", 3).is_empty());
        assert!(results.missing[0].contains("horovod is not installed"), "{:?}", results.missing);
        assert!(results.missing[1].contains("openmpi:4 on 3 ranks failed: rank 2 is lost"), "{:?}", results.missing);
    }

    #[test]
    fn a_time_is_the_median_of_the_jobs_medians() {
        let seconds = medians(&[1.0, 1.0, 1.0, 9.0, 8.0, 8.0, 8.0, 1.0, 3.0, 3.0, 3.0, 3.0], 4);
        assert_eq!(seconds, [1.0, 8.0, 3.0]);
        let times = JobTimes { mode: "mpi".to_owned(), ranks: 2, bytes: 4, seconds, bound_s: None };
        let summary = times.summary().unwrap();
        assert_eq!((summary.count, summary.min, summary.median, summary.max), (3, 1.0, 3.0, 8.0));
    }
}
