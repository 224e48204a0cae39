//! The sweep: our allreduce against others' for every number of ranks and every size, in rotating rounds.
//!
//! A job measures many sizes at once, since starting one takes longer than most of them. In each round every contender
//! runs once for each number of ranks, and each round begins with another contender. Short payloads have more rounds: what they take hangs on where
//! the scheduler has put a job's ranks more than on anything within the job. For the same reason a time is the median of the jobs' medians,
//! and noise is what lies between jobs. [`page`] puts the results of one or more sweeps into one Markdown page.

pub mod contender;
pub mod page;

use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use self::contender::Contender;
use ringpull_base::{Error, Result};

use crate::compare::Environment;
use crate::compare::rounds::order;
use crate::link::LinkRate;
use crate::record::{Measured, Record};
use crate::size::format_payload;
use crate::statistics::Summary;

/// Payloads up to here are measured many times in a job, longer ones a few times.
pub const SHORT_BYTES: usize = 1 << 20;

/// Milliseconds without traffic before each iteration, the same for everybody: a shaped link lets a burst through that it has saved up, so whoever
/// has the slower barrier would seem to have the faster sum.
pub const REST_MS: f64 = 2.0;

/// What is swept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Where the jobs run, in words.
    pub place: String,
    /// The links' rate.
    pub link: LinkRate,
    /// Numbers of ranks.
    pub ranks: Vec<usize>,
    /// Payload bytes.
    pub sizes: Vec<usize>,
    /// Rounds.
    pub rounds: usize,
    /// Rounds of payloads of up to [`SHORT_BYTES`], if those are more.
    #[serde(default)]
    pub short_rounds: usize,
    /// Measured iterations of a payload of up to [`SHORT_BYTES`], in one job.
    pub short_iters: usize,
    /// Measured iterations of a longer payload, in one job.
    pub long_iters: usize,
    /// Milliseconds without traffic before each iteration.
    #[serde(default)]
    pub rest_ms: f64,
}

impl Plan {
    /// Rounds in which payloads of so many bytes are measured.
    pub fn rounds_of(&self, bytes: usize) -> usize {
        if bytes <= SHORT_BYTES { self.rounds.max(self.short_rounds) } else { self.rounds }
    }

    /// Their measured iterations in each job.
    pub fn iters_of(&self, bytes: usize) -> usize {
        if bytes <= SHORT_BYTES { self.short_iters } else { self.long_iters }
    }

    /// What the jobs of a contender took in the median: one figure for each job of the record.
    pub fn of_jobs(&self, record: &Record) -> Option<Summary> {
        let jobs = record.seconds.chunks(self.iters_of(record.bytes as usize).max(1));
        Summary::of(&jobs.filter_map(|seconds| Some(Summary::of(seconds)?.median)).collect::<Vec<_>>())
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The machine and the date.
    pub environment: Environment,
    /// The command that does it again.
    pub command: String,
    /// What was asked for.
    pub plan: Plan,
    /// How long it took.
    pub took_s: f64,
    /// One record for each contender, number of ranks and size; its `mode` is the contender.
    pub records: Vec<Record>,
    /// Who is missing and why.
    pub missing: Vec<String>,
}

/// One job: some sizes, on some ranks, by one contender.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Ranks.
    pub ranks: usize,
    /// Payload bytes, measured one after the other.
    pub sizes: Vec<usize>,
    /// Measured iterations of each.
    pub iters: usize,
    /// Iterations before them.
    pub warmup: usize,
    /// Milliseconds without traffic before each.
    pub rest_ms: f64,
}

impl Job {
    fn words(&self) -> String {
        let ends = [self.sizes.first(), self.sizes.last()].map(|bytes| format_payload(bytes.map_or(0, |b| *b as u64)));
        format!("{} to {}", ends[0], ends[1])
    }
}

/// Starts jobs. One implementation starts processes; the tests have another.
pub trait Runner {
    /// How to install what the contender needs, if it is not there.
    fn missing(&mut self, contender: &Contender) -> Option<String>;

    /// Runs one job to its end and gives the records that its rank 0 printed, one for each size.
    fn run(&mut self, contender: &Contender, job: &Job) -> Result<Vec<Record>>;
}

/// Runs every contender in every round. A contender that fails with some number of ranks is not asked for it again.
pub fn run(
    runner: &mut dyn Runner,
    contenders: &[Contender],
    plan: &Plan,
    environment: Environment,
    command: String,
    progress: &mut dyn FnMut(String),
) -> Results {
    let start = Instant::now();
    let mut missing = Vec::new();
    let mut present = Vec::new();
    for contender in contenders {
        match runner.missing(contender) {
            Some(install) => missing.push(format!("{contender} is not installed: {install}")),
            None => present.push(contender),
        }
    }
    let mut samples: Vec<Record> = Vec::new();
    let mut failed: Vec<(String, usize)> = Vec::new();
    let rounds = plan.sizes.iter().map(|bytes| plan.rounds_of(*bytes)).max().unwrap_or(0);
    for round in 0..rounds {
        for job in plan.ranks.iter().flat_map(|ranks| jobs(plan, *ranks, round)) {
            for index in order(present.len(), round) {
                let (contender, name) = (present[index], present[index].to_string());
                if failed.contains(&(name.clone(), job.ranks)) {
                    continue;
                }
                progress(format!("round {} of {rounds}: {name} on {} ranks, {}", round + 1, job.ranks, job.words()));
                match runner.run(contender, &job).and_then(|records| expected(&name, &job, records)) {
                    Ok(records) => records.into_iter().for_each(|record| add(&mut samples, &name, record)),
                    Err(error) => {
                        missing.push(format!("{name} on {} ranks failed: {error}", job.ranks));
                        failed.push((name, job.ranks));
                    }
                }
            }
        }
    }
    let records = samples.into_iter().filter_map(|record| merged(record, plan.link).ok()).collect();
    Results { environment, command, plan: plan.clone(), took_s: start.elapsed().as_secs_f64(), records, missing }
}

/// The short payloads in one job, the long ones in another, as far as this round has them.
fn jobs(plan: &Plan, ranks: usize, round: usize) -> Vec<Job> {
    let (short, long): (Vec<usize>, Vec<usize>) =
        plan.sizes.iter().filter(|bytes| round < plan.rounds_of(**bytes)).partition(|bytes| **bytes <= SHORT_BYTES);
    let rest_ms = plan.rest_ms;
    let short = Job { ranks, sizes: short, iters: plan.short_iters, warmup: 2 + plan.short_iters / 2, rest_ms };
    let long = Job { ranks, sizes: long, iters: plan.long_iters, warmup: 1, rest_ms };
    [short, long].into_iter().filter(|job| !job.sizes.is_empty()).collect()
}

/// The records, if they are those of the job.
fn expected(name: &str, job: &Job, records: Vec<Record>) -> Result<Vec<Record>> {
    let sizes: Vec<usize> = records.iter().map(|record| record.bytes as usize).collect();
    if sizes == job.sizes && records.iter().all(|record| record.ranks == job.ranks) {
        return Ok(records);
    }
    Err(Error::Protocol {
        rank: 0,
        peer: format!("the job of {name}"),
        what: format!("records of {sizes:?} bytes where {:?} on {} ranks were asked for", job.sizes, job.ranks),
        remedy: "run the job by hand to see its output".to_owned(),
    })
}

fn add(samples: &mut Vec<Record>, name: &str, mut record: Record) {
    name.clone_into(&mut record.mode);
    let same =
        |other: &&mut Record| (&other.mode, other.ranks, other.bytes) == (&record.mode, record.ranks, record.bytes);
    match samples.iter_mut().find(same) {
        Some(known) => known.seconds.append(&mut record.seconds),
        None => samples.push(record),
    }
}

/// The record with the figures of all its samples.
fn merged(record: Record, link: LinkRate) -> Result<Record> {
    let merged = Record::of_verified(Measured {
        op: "allreduce",
        mode: record.mode,
        algorithm: record.algorithm,
        ranks: record.ranks,
        hosts: record.hosts,
        servers: 0,
        bytes: record.bytes,
        dtype: record.dtype,
        seconds: record.seconds,
        host_bytes: None,
        usage: record.usage,
    })?;
    Ok(match link.bytes_per_s() {
        Some(rate) => merged.with_link(rate, None),
        None => merged,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::usage::Usage;
    use ringpull_base::DType;

    /// Ours takes a nanosecond a byte and a microsecond, on MPICH half of that; others twice that; `openmpi:4` fails on 3 ranks.
    struct Fake {
        jobs: Vec<(String, usize)>,
    }

    impl Runner for Fake {
        fn missing(&mut self, contender: &Contender) -> Option<String> {
            (*contender == Contender::Horovod).then(|| "scripts/peers/setup --horovod".to_owned())
        }

        fn run(&mut self, contender: &Contender, job: &Job) -> Result<Vec<Record>> {
            self.jobs.push((contender.to_string(), job.ranks));
            if contender.to_string() == "openmpi:4" && job.ranks == 3 {
                return Err(Error::argument("rank 2 is lost", "look at its host"));
            }
            let factor = match contender {
                Contender::Ours => 1.0,
                Contender::OursOnMpich => 0.5,
                _ => 2.0,
            };
            let record = |bytes: &usize| {
                Record::of_verified(Measured {
                    op: "allreduce",
                    mode: "dist_sync_mpi".to_owned(),
                    algorithm: "auto".to_owned(),
                    ranks: job.ranks,
                    hosts: job.ranks,
                    servers: 0,
                    bytes: *bytes as u64,
                    dtype: DType::F32,
                    seconds: vec![factor * (1e-6 + *bytes as f64 * 1e-9); job.iters],
                    host_bytes: None,
                    usage: Usage::default(),
                })
            };
            job.sizes.iter().map(record).collect()
        }
    }

    pub(crate) fn swept() -> (Results, Vec<(String, usize)>) {
        let plan = Plan {
            place: "3 emulated hosts".to_owned(),
            link: "1gbit".parse().unwrap(),
            ranks: vec![2, 3],
            sizes: vec![4, 1 << 20, 10_000_000],
            rounds: 2,
            short_rounds: 3,
            short_iters: 4,
            long_iters: 1,
            rest_ms: REST_MS,
        };
        let contenders = ["ours", "ours:mpich", "openmpi:default", "openmpi:4", "horovod"]
            .map(|name| name.parse::<Contender>().unwrap());
        let environment = Environment {
            date: "2026-01-31 12:00 UTC".to_owned(),
            cores: 2,
            kernel: "Linux 6".to_owned(),
            ringpull: "0.1.0".to_owned(),
            mpi: "mpirun (Open MPI) 4.1.4".to_owned(),
        };
        let mut fake = Fake { jobs: Vec::new() };
        let command = "ringpull sweep --hosts 3".to_owned();
        let results = run(&mut fake, &contenders, &plan, environment, command, &mut |_| ());
        (results, fake.jobs)
    }

    #[test]
    fn every_contender_is_measured_with_every_number_of_ranks_and_size_in_rotating_rounds() {
        let (results, jobs) = swept();
        let names: Vec<&str> = jobs.iter().filter(|(_, ranks)| *ranks == 2).map(|(name, _)| name.as_str()).collect();
        let all = ["ours", "ours:mpich", "openmpi:default", "openmpi:4"];
        assert_eq!([&names[..4], &names[4..8]], [all, all], "the short payloads of all, then the long ones");
        assert_eq!([names[8], names[16]], [all[1], all[2]], "each round begins with another");
        assert_eq!(names.len(), 20, "the third round has the short payloads alone");
        let of = |mode: &str, ranks: usize| {
            results.records.iter().filter(|record| record.mode == mode && record.ranks == ranks).collect::<Vec<_>>()
        };
        assert_eq!(of("ours", 2).iter().map(|record| record.seconds.len()).collect::<Vec<_>>(), [12, 12, 2]);
        assert!(of("ours", 3).iter().all(|record| record.ratio_to_bound.is_some()));
        assert!(of("openmpi:4", 3).is_empty());
        assert_eq!(jobs.iter().filter(|job| **job == ("openmpi:4".to_owned(), 3)).count(), 1, "not asked again");
        assert!(results.missing[0].contains("horovod is not installed"), "{:?}", results.missing);
        assert!(results.missing[1].contains("openmpi:4 on 3 ranks failed: rank 2 is lost"), "{:?}", results.missing);
    }

    #[test]
    fn a_time_is_the_median_of_the_jobs_medians() {
        let (mut results, _) = swept();
        let record = results.records.iter_mut().find(|record| record.bytes == 4).unwrap();
        record.seconds = [[1.0, 1.0, 1.0, 9.0], [8.0, 8.0, 8.0, 1.0], [3.0, 3.0, 3.0, 3.0]].concat();
        let summary = results.plan.of_jobs(record).unwrap();
        assert_eq!((summary.count, summary.min, summary.median, summary.max), (3, 1.0, 3.0, 8.0));
    }

    #[test]
    fn a_plan_of_a_version_without_rounds_of_their_own_for_short_payloads_and_rests_is_read() {
        let plan = serde_json::to_string(&swept().0.plan).unwrap();
        let plan = plan.replace("\"short_rounds\":3,", "").replace(",\"rest_ms\":2.0", "");
        let plan: Plan = serde_json::from_str(&plan).unwrap();
        assert_eq!(plan.rest_ms, 0.0);
        assert_eq!((plan.short_rounds, plan.rounds_of(4), plan.rounds_of(10_000_000)), (0, 2, 2));
    }

    #[test]
    fn a_job_that_measured_something_else_is_a_failure() {
        let job = Job { ranks: 2, sizes: vec![4, 8], iters: 1, warmup: 0, rest_ms: 0.0 };
        let error = expected("ours", &job, Vec::new()).unwrap_err().to_string();
        assert!(error.contains("[4, 8] on 2 ranks"), "{error}");
    }
}
