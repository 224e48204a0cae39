//! Jobs in rotating rounds, for `compare` and `sweep`.
//!
//! Every variant is a separate job, started again in every round. Round `r` begins with variant `r`, so that
//! drift on the machine affects all variants equally. Nearly every variant still follows the same other
//! variant in every round. So a wait before each job lets the effects of the last job end.
//!
//! [`job`] is the work that a job measures. A [`JobRunner`] starts it; [`peers`] are the programs of others.

#[cfg(test)]
pub mod fake;
pub mod job;
pub mod peers;

use std::time::{Duration, Instant};

use ringpull_base::{Error, Result};

pub use self::job::{Job, TrainSetup, Work};
use crate::cost::Links;
use crate::hardware::{Hosts, ProcessorTime};
use crate::link::LinkRate;
use crate::record::Record;
use crate::text::several;
use crate::usage::Usage;
use crate::variant::Variant;

/// Starts jobs. One implementation starts processes; the tests have another.
pub trait JobRunner {
    /// Returns the command that installs the variant's program, if the program is missing.
    fn missing(&mut self, variant: Variant) -> Option<String>;

    /// The work of this machine's processors so far, if it is known.
    fn processor_time(&mut self) -> Option<ProcessorTime>;

    /// Waits until the last job, which took `last_job`, no longer slows down the machine.
    fn settle(&mut self, last_job: Duration);

    /// The signal that asked for an end, if one came.
    fn interrupted(&self) -> Option<i32>;

    /// Runs one job to its end and returns the records that its rank 0 printed.
    fn run(&mut self, variant: Variant, job: &Job) -> Result<Vec<Record>>;
}

/// One record of a job that succeeded.
#[derive(Debug, Clone)]
pub struct Measurement {
    pub variant: Variant,
    /// The round, counted from 1.
    pub round: usize,
    /// The job's position in the round, from 1.
    pub place: usize,
    pub record: Record,
    /// The part of this machine's processor time that its hypervisor took during the job.
    pub stolen: Option<f64>,
}

/// The results of all rounds.
#[derive(Debug, Default)]
pub struct RoundsOutcome {
    pub done: Vec<Measurement>,
    /// Variants that are not installed, with the command that installs them.
    pub absent: Vec<(Variant, String)>,
    /// Variants that failed, with the number of ranks.
    pub failed: Vec<(Variant, usize, Error)>,
    /// The signal that ended the rounds early.
    pub interrupted: Option<i32>,
}

/// The job that is about to run.
#[derive(Debug)]
pub struct NextJob {
    /// The number of jobs before it.
    pub done: usize,
    /// The number of jobs of all rounds.
    pub planned: usize,
    /// The round, counted from 1, if the job is the first of it.
    pub begins: Option<usize>,
    pub words: String,
}

/// The order of `count` variants in round `round`, from 0.
pub fn order(count: usize, round: usize) -> Vec<usize> {
    (0..count).map(|place| (place + round) % count).collect()
}

/// Runs every variant with each job of every round, except for measurements that are `known` from an earlier
/// run. A variant that fails is not run again with the same number of ranks; the others go on. A signal ends
/// the rounds, and the measurements until then are kept.
pub fn run(
    runner: &mut dyn JobRunner,
    variants: &[Variant],
    rounds: &[Vec<Job>],
    known: Vec<Measurement>,
    progress: &mut dyn FnMut(&RoundsOutcome, NextJob),
) -> RoundsOutcome {
    let mut found = RoundsOutcome { done: known, ..RoundsOutcome::default() };
    let mut present = Vec::new();
    for variant in variants {
        match runner.missing(*variant) {
            Some(install) => found.absent.push((*variant, install)),
            None => present.push(*variant),
        }
    }
    let (mut done, planned) = (0, present.len() * rounds.iter().map(Vec::len).sum::<usize>());
    // Anything may have run before the first job: a build, or another comparison.
    let mut last_job = Duration::MAX;
    'rounds: for (round, jobs) in (1..).zip(rounds) {
        let mut begins = Some(round);
        for job in jobs {
            for (place, index) in (1..).zip(order(present.len(), round - 1)) {
                let variant = present[index];
                let words = format!("round {round} of {}: {variant} {}", rounds.len(), job.words());
                progress(&found, NextJob { done, planned, begins: begins.take(), words });
                done += 1;
                if found.failed.iter().any(|(other, ranks, _)| (*other, *ranks) == (variant, job.ranks))
                    || found.has(variant, round, job)
                {
                    continue;
                }
                runner.settle(last_job);
                let (start, before) = (Instant::now(), runner.processor_time());
                let outcome = runner.run(variant, job).and_then(|records| expected(variant, job, records));
                let stolen = runner.processor_time().zip(before).and_then(|(after, before)| after.stolen_since(before));
                last_job = start.elapsed();
                match outcome {
                    Ok(records) => {
                        let of = |record| Measurement { variant, round, place, record, stolen };
                        found.done.extend(records.into_iter().map(of));
                    }
                    // The job failed because the signal ended it.
                    Err(_) if runner.interrupted().is_some() => {}
                    Err(error) => found.failed.push((variant, job.ranks, error)),
                }
                found.interrupted = runner.interrupted();
                if found.interrupted.is_some() {
                    break 'rounds;
                }
            }
        }
    }
    found
}

/// Returns the records if they are the ones that the job was to give, else an error.
fn expected(variant: Variant, job: &Job, records: Vec<Record>) -> Result<Vec<Record>> {
    let sizes: Vec<usize> = records.iter().map(|record| record.bytes as usize).collect();
    let payloads = job.payloads();
    if sizes == payloads && records.iter().all(|record| record.ranks == job.ranks) {
        return Ok(records);
    }
    Err(Error::argument(
        format!(
            "the job of {variant} printed records of {sizes:?} bytes instead of {payloads:?} on {}",
            several(job.ranks, "rank")
        ),
        "run the job by hand to see its output",
    ))
}

impl RoundsOutcome {
    /// Returns true if the variant was measured with this job in this round.
    fn has(&self, variant: Variant, round: usize, job: &Job) -> bool {
        let sizes = job.payloads();
        self.done.iter().any(|done| {
            let record = &done.record;
            (done.variant, done.round, record.ranks) == (variant, round, job.ranks)
                && sizes.contains(&(record.bytes as usize))
        })
    }

    /// The hosts of a job of `ranks` ranks, as the ranks of our own variants describe them.
    pub fn machines(&self, ranks: usize) -> Vec<Hosts> {
        let mut records = self.done.iter().map(|done| &done.record).filter(|record| record.ranks == ranks);
        records.find(|record| !record.machines.is_empty()).map(|record| record.machines.clone()).unwrap_or_default()
    }

    /// The measurements of `variant` with `ranks` ranks and a payload of `bytes` bytes, round by round.
    pub fn of(&self, variant: Variant, ranks: usize, bytes: u64) -> Vec<&Measurement> {
        let alike =
            |done: &&Measurement| done.variant == variant && (done.record.ranks, done.record.bytes) == (ranks, bytes);
        self.done.iter().filter(alike).collect()
    }
}

/// One record with all samples of a variant for one payload. `links` join the hosts, `uplink` the racks.
pub fn merged(
    variant: Variant,
    done: &[&Measurement],
    own_hosts: bool,
    links: Option<Links<'_>>,
    uplink: LinkRate,
) -> Result<Record> {
    let records = || done.iter().map(|done| &done.record);
    let first = records().next().ok_or_else(|| Error::argument("no round was run", "give --rounds of at least 1"))?;
    let traffic: Vec<u64> = records().filter_map(|record| record.host_bytes).collect();
    let record = Record {
        mode: variant.to_string(),
        hosts: if own_hosts { first.ranks } else { 1 },
        servers: variant.mode.servers(),
        seconds: records().flat_map(|record| record.seconds.iter().copied()).collect(),
        usage: Usage::over_jobs(&records().map(|record| record.usage).collect::<Vec<_>>()),
        host_bytes: Some(traffic.iter().sum::<u64>() / traffic.len().max(1) as u64).filter(|bytes| *bytes > 0),
        ..first.clone()
    }
    .with_figures()?;
    // The bytes that a mode must send are known only without compression.
    let own = variant.compression.is_none().then_some(variant.mode);
    Ok(match links {
        Some(links) => record.with_links(links, uplink.bytes_per_s(), own),
        None => record,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::fake::Fake;

    #[test]
    fn in_as_many_rounds_as_variants_every_variant_has_every_position_once() {
        for place in 0..5 {
            let seen: std::collections::BTreeSet<usize> = (0..5).map(|round| order(5, round)[place]).collect();
            assert_eq!(seen.len(), 5);
        }
    }

    #[test]
    fn jobs_rotate_and_a_variant_that_failed_is_not_run_again_with_as_many_ranks() {
        let variants = ["dist_sync_mpi", "openmpi:4", "horovod", "mpi"].map(|name| name.parse().unwrap());
        let job = |ranks| Job { ranks, work: Work::Buffers(vec![4, 8]), iters: 2, warmup: 1 };
        let (mut fake, mut heard, mut begun) = (Fake::default(), Vec::new(), Vec::new());
        let rounds = [vec![job(2), job(3)], vec![job(2), job(3)]];
        let found = run(&mut fake, &variants, &rounds, Vec::new(), &mut |found, next| {
            heard.push((next.done, next.planned));
            begun.extend(next.begins.map(|round| (round, found.done.len())));
        });
        let asked: Vec<String> = fake.jobs.iter().map(|(name, ranks)| format!("{name} {ranks}")).collect();
        let first = ["dist_sync_mpi 2", "openmpi:4 2", "mpi 2", "dist_sync_mpi 3", "openmpi:4 3", "mpi 3"];
        let second = ["openmpi:4 2", "mpi 2", "dist_sync_mpi 2", "mpi 3", "dist_sync_mpi 3"];
        assert_eq!(asked, [&first[..], &second].concat());
        assert_eq!(fake.settled, (0..asked.len()).collect::<Vec<_>>(), "one wait before each job that runs");
        assert_eq!(heard, (0..12).map(|done| (done, 12)).collect::<Vec<_>>(), "of every planned job");
        assert_eq!(begun, [(1, 0), (2, 10)], "each round begins with the measurements of those before it");
        assert!(found.absent[0].1.contains("--horovod") && found.absent.len() == 1);
        assert!(found.failed[0].2.to_string().contains("rank 2 is lost") && found.failed.len() == 1);
        let places: Vec<(usize, usize)> =
            found.of(variants[0], 3, 8).iter().map(|done| (done.round, done.place)).collect();
        assert_eq!(places, [(1, 1), (2, 3)]);
    }

    #[test]
    fn a_signal_ends_the_rounds_and_another_run_goes_on_where_they_ended() {
        let variants = ["dist_sync_mpi", "openmpi:4", "mpi"].map(|name| name.parse().unwrap());
        let rounds = vec![vec![Job { ranks: 2, work: Work::Buffers(vec![4]), iters: 1, warmup: 1 }]; 3];
        let mut fake = Fake { signal_in: Some((4, 2)), ..Fake::default() };
        let found = run(&mut fake, &variants, &rounds, Vec::new(), &mut |_, _| ());
        let places = |found: &RoundsOutcome| {
            let mut all: Vec<(usize, usize)> = found.done.iter().map(|done| (done.round, done.place)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!((found.interrupted, fake.jobs.len()), (Some(2), 4));
        assert_eq!(places(&found), [(1, 1), (1, 2), (1, 3)], "the job that the signal ended is not kept");
        assert!(found.failed.is_empty());
        let mut fake = Fake::default();
        let found = run(&mut fake, &variants, &rounds, found.done, &mut |_, _| ());
        assert_eq!((found.interrupted, fake.jobs.len()), (None, 6));
        assert_eq!(
            places(&found),
            (1..=3).flat_map(|round| (1..=3).map(move |place| (round, place))).collect::<Vec<_>>()
        );
    }

    #[test]
    fn one_record_has_the_samples_of_all_rounds_their_median_cost_and_most_memory() {
        let job = Job { ranks: 4, work: Work::Buffers(vec![4000]), iters: 2, warmup: 1 };
        let (mut fake, variant) = (Fake::default(), "dist_sync_mpi".parse().unwrap());
        let found = run(&mut fake, &[variant], &vec![vec![job]; 3], Vec::new(), &mut |_, _| ());
        let links = Some(Links::from(1000.0));
        let record = merged(variant, &found.of(variant, 4, 4000), true, links, LinkRate::default()).unwrap();
        let second = Fake::SECONDS_A_BYTE * 4000.0;
        assert_eq!(record.seconds, [second; 6]);
        assert_eq!((record.mode.as_str(), record.hosts, record.bound_s), ("dist_sync_mpi", 4, Some(6.0)));
        let whole = Usage { cpu_s_per_gb: Some(2.0), extra_rss_bytes: Some(70), ..Usage::default() };
        assert_eq!((record.usage, record.host_bytes), (whole, Some(6100)));
        assert_eq!(found.done[0].stolen, Some(0.0625));
    }

    #[test]
    fn a_job_whose_records_have_other_sizes_is_a_failure() {
        let job = Job { ranks: 2, work: Work::Buffers(vec![4, 8]), iters: 1, warmup: 0 };
        let error = expected("mpi".parse().unwrap(), &job, Vec::new()).unwrap_err().to_string();
        assert!(error.contains("[4, 8] on 2 ranks"), "{error}");
    }
}
