//! Runs the variants round by round. Round `r` begins with variant `r`, so that whatever drifts on the machine meets every
//! variant alike. A variant still follows the same other one in nearly every round: what that one leaves behind is why
//! `compare` waits before each job, and the sweep, which does not, measures it too.

use std::time::{Duration, Instant};

use ringpull_base::{Error, Result};

use crate::compare::results::{Outcome, Round, Row, Setup};
use crate::compare::{Runner, Workload};
use crate::mode::Variant;
use crate::record::{Measured, Record, Train};
use crate::statistics::Summary;
use crate::usage::Usage;
use crate::{cost, schedule};

/// The order of `count` variants in round `round`, from 0.
pub fn order(count: usize, round: usize) -> Vec<usize> {
    (0..count).map(|place| (place + round) % count).collect()
}

/// Runs every variant in every round. `progress` hears each job before it starts and `None` after each job.
///
/// A variant that fails is not run again; the others go on.
pub fn run(
    runner: &mut dyn Runner,
    variants: &[Variant],
    workload: &Workload,
    setup: &Setup,
    progress: &mut dyn FnMut(Option<String>),
) -> Vec<Row> {
    let mut progresses: Vec<Progress> = variants
        .iter()
        .map(|variant| match runner.missing(*variant) {
            Some(install) => Progress::Ended(Outcome::Absent { install }),
            None => Progress::Running(Vec::new()),
        })
        .collect();
    // What ran before the first is not known: a build, or another comparison.
    let mut last_job = Duration::MAX;
    for round in 0..setup.rounds {
        for (place, index) in order(variants.len(), round).into_iter().enumerate() {
            let variant = variants[index];
            progress(Some(format!("round {} of {}: {variant}", round + 1, setup.rounds)));
            if let Progress::Running(done) = &mut progresses[index] {
                runner.settle(last_job);
                let (start, before) = (Instant::now(), runner.processor_time());
                let outcome = runner.run(variant, workload).and_then(|records| expected(variant, records, setup));
                let stolen = runner.processor_time().zip(before).and_then(|(after, before)| after.stolen_since(before));
                last_job = start.elapsed();
                match outcome {
                    Ok(record) => done.push(Done { place: place + 1, record, stolen }),
                    Err(error) => progresses[index] = Progress::Ended(Outcome::Failed { error: error.to_string() }),
                }
            }
            progress(None);
        }
    }
    variants.iter().zip(progresses).map(|(variant, progress)| row(*variant, progress, workload, setup)).collect()
}

#[allow(clippy::large_enum_variant, reason = "there are a dozen of them")]
enum Progress {
    Running(Vec<Done>),
    Ended(Outcome),
}

/// A job that has ended well: at which place of its round, what it measured, and what the machine's host took meanwhile.
struct Done {
    place: usize,
    record: Record,
    stolen: Option<f64>,
}

/// The one record of a job, if it measured what was asked for.
fn expected(variant: Variant, mut records: Vec<Record>, setup: &Setup) -> Result<Record> {
    let wrong = |what: String| Error::Protocol {
        rank: 0,
        peer: format!("the job of {variant}"),
        what,
        remedy: "run the job by hand to see its output".to_owned(),
    };
    let (Some(record), true) = (records.pop(), records.is_empty()) else {
        return Err(wrong("not exactly one record".to_owned()));
    };
    if (record.bytes, record.ranks) != (setup.bytes, setup.workers) {
        return Err(wrong(format!(
            "a record of {} bytes on {} ranks, where {} bytes on {} ranks were asked for,",
            record.bytes, record.ranks, setup.bytes, setup.workers
        )));
    }
    Ok(record)
}

fn row(variant: Variant, progress: Progress, workload: &Workload, setup: &Setup) -> Row {
    let outcome = match progress {
        Progress::Ended(outcome) => outcome,
        Progress::Running(done) => {
            merged(variant, &done, workload, setup).unwrap_or_else(|error| Outcome::Failed { error: error.to_string() })
        }
    };
    Row {
        variant: variant.to_string(),
        method: variant.words(),
        family: variant.family(),
        servers: variant.mode.servers(),
        machines: if setup.own_hosts { setup.workers + variant.mode.extra_hosts() } else { 1 },
        computed_host_bytes: variant
            .compression
            .is_none()
            .then(|| cost::busiest_host_bytes(variant.mode, setup.workers, setup.bytes as f64)),
        outcome,
    }
}

fn merged(variant: Variant, done: &[Done], workload: &Workload, setup: &Setup) -> Result<Outcome> {
    let Done { record: first, .. } =
        done.first().ok_or_else(|| Error::argument("no round was run", "ask for at least one with --rounds"))?;
    let traffic: Vec<u64> = done.iter().filter_map(|job| job.record.host_bytes).collect();
    let record = Record::of_verified(Measured {
        op: match first.op.as_str() {
            "allreduce" => "allreduce",
            "train" => "train",
            _ => "pushpull",
        },
        mode: variant.to_string(),
        algorithm: first.algorithm.clone(),
        ranks: first.ranks,
        hosts: if setup.own_hosts { setup.workers } else { 1 },
        servers: variant.mode.servers(),
        bytes: first.bytes,
        dtype: first.dtype,
        seconds: done.iter().flat_map(|job| job.record.seconds.iter().copied()).collect(),
        usage: Usage::over_jobs(&done.iter().map(|job| job.record.usage).collect::<Vec<_>>()),
        host_bytes: Some(traffic.iter().sum::<u64>() / traffic.len().max(1) as u64).filter(|bytes| *bytes > 0),
    })?;
    let record = match &first.train {
        Some(train) => trained(record, train, variant, done, workload, setup),
        None => record,
    };
    // What a mode must send is known of gradients as they are.
    let own = variant.compression.is_none().then_some(variant.mode);
    let record = match setup.link.bytes_per_s() {
        Some(rate) => record.with_link(rate, own).with_uplink(setup.uplink_bytes_per_s()),
        None => record,
    };
    let rounds = done
        .iter()
        .enumerate()
        .map(|(round, Done { place, record, stolen })| Round {
            round: round + 1,
            place: *place,
            seconds: record.seconds.clone(),
            usage: record.usage,
            stolen: *stolen,
        })
        .collect();
    Ok(Outcome::Measured { record, rounds })
}

/// All rounds' steps in one record: with the median of their computing, which differs between rounds only on the processor.
fn trained(
    record: Record,
    first: &Train,
    variant: Variant,
    done: &[Done],
    workload: &Workload,
    setup: &Setup,
) -> Record {
    let computing: Vec<f64> = done.iter().filter_map(|job| Some(job.record.train?.compute_s)).collect();
    let compute_s = Summary::of(&computing).map_or(first.compute_s, |summary| summary.median);
    let mut record = record.with_train(compute_s, first.burn, first.batch);
    if let (Some(train), Some((network, _)), Some(rate)) =
        (&mut record.train, &workload.network, setup.link.bytes_per_s())
    {
        let link_s: Vec<f64> = network
            .keys
            .iter()
            .map(|key| cost::mode_bound_s(variant.mode, setup.workers, 4.0 * key.len() as f64, rate))
            .collect();
        train.shortest_s = Some(schedule::shortest_step_s(network, compute_s, &link_s));
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::results::stolen;
    use crate::machine::ProcessorTime;
    use crate::mode::Peer;
    use ringpull_base::DType;
    use ringpull_workload::models::ModelKey;
    use std::collections::BTreeSet;

    /// Fails `dist_sync:1shared` in its second job, has no horovod, and takes longer for every job.
    struct Fake {
        jobs: Vec<String>,
        bytes: u64,
        /// How often the kernel was asked.
        asked: u64,
        /// How many jobs had been started at each wait between them.
        settled: Vec<usize>,
    }

    impl Runner for Fake {
        fn missing(&mut self, variant: Variant) -> Option<String> {
            (variant.peer == Some(Peer::Horovod)).then(|| "scripts/peers/setup --horovod".to_owned())
        }

        /// Of 10000 ticks between two questions 625 are stolen, a sixteenth: exact as a float.
        fn processor_time(&mut self) -> Option<ProcessorTime> {
            self.asked += 1;
            ProcessorTime::parse(&format!("cpu  {} 0 0 0 0 0 0 {} 0 0\n", 9375 * self.asked, 625 * self.asked))
        }

        fn settle(&mut self, last_job: Duration) {
            assert_eq!(last_job == Duration::MAX, self.jobs.is_empty());
            self.settled.push(self.jobs.len());
        }

        fn run(&mut self, variant: Variant, workload: &Workload) -> Result<Vec<Record>> {
            self.jobs.push(variant.to_string());
            let failing = variant.to_string() == "dist_sync:1shared";
            if failing && self.jobs.iter().filter(|job| *job == "dist_sync:1shared").count() == 2 {
                return Err(Error::argument("server 0 is lost", "look at its host"));
            }
            assert_eq!(workload.bytes(), 4000);
            let record = Record::of_verified(Measured {
                op: "pushpull",
                mode: variant.mode.kind().to_string(),
                algorithm: "auto".to_owned(),
                ranks: 4,
                hosts: 4,
                servers: 0,
                bytes: self.bytes,
                dtype: DType::F32,
                seconds: vec![self.jobs.len() as f64; workload.iters],
                host_bytes: Some(6100),
                // The one job in the middle takes most memory, the last most time.
                usage: Usage {
                    cpu_s_per_gb: Some(self.jobs.len() as f64),
                    waiting_cpu: None,
                    extra_rss_bytes: Some(if self.jobs.len() == 6 { 70 } else { 30 }),
                },
            })?;
            Ok(vec![record])
        }
    }

    fn compared(bytes: u64) -> (Vec<Row>, Vec<String>, usize) {
        let setup = Setup {
            place: "4 emulated hosts".to_owned(),
            own_hosts: true,
            workers: 4,
            link: "8kbit".parse().unwrap(),
            racks: None,
            payload: "4 kB".to_owned(),
            bytes: 4000,
            rounds: 3,
            iters: 2,
            warmup: 1,
            train: None,
        };
        let workload = Workload {
            words: "4 kB".to_owned(),
            bench: "pushpull",
            bench_args: vec![],
            network: None,
            keys: vec![ModelKey { name: "payload".to_owned(), shape: vec![1000] }],
            iters: 2,
            warmup: 1,
        };
        let modes = ["dist_sync_mpi", "dist_sync:1shared", "dist_sync:2"].map(|mode| mode.parse().unwrap());
        let variants = Variant::list(&modes, &[Peer::Horovod]);
        let (mut fake, mut ended) = (Fake { jobs: vec![], bytes, asked: 0, settled: vec![] }, 0);
        let rows = run(&mut fake, &variants, &workload, &setup, &mut |job| ended += usize::from(job.is_none()));
        assert_eq!(fake.settled, (0..fake.jobs.len()).collect::<Vec<_>>(), "one wait before each job that runs");
        (rows, fake.jobs, ended)
    }

    #[test]
    fn every_variant_has_every_place_once_in_as_many_rounds_as_there_are_variants() {
        for place in 0..5 {
            let seen: BTreeSet<usize> = (0..5).map(|round| order(5, round)[place]).collect();
            assert_eq!(seen.len(), 5);
        }
    }

    #[test]
    fn jobs_rotate_and_a_variant_that_failed_is_not_run_again_while_the_others_go_on() {
        let (rows, jobs, ended) = compared(4000);
        let expected = [
            "dist_sync_mpi",
            "dist_sync:1shared",
            "dist_sync:2", //
            "dist_sync:1shared",
            "dist_sync:2",
            "dist_sync_mpi", //
            "dist_sync:2",
            "dist_sync_mpi",
        ];
        assert_eq!(jobs, expected);
        assert_eq!(ended, 12, "progress hears of every planned job");
        assert!(matches!(&rows[1].outcome, Outcome::Failed { error } if error.contains("server 0 is lost")));
        assert!(matches!(&rows[3].outcome, Outcome::Absent { install } if install.contains("--horovod")));
        let record = rows[0].record().unwrap();
        assert_eq!(record.seconds, [1.0, 1.0, 6.0, 6.0, 8.0, 8.0]);
        assert_eq!((record.mode.as_str(), record.bound_s), ("dist_sync_mpi", Some(6.0)));
        let whole = Usage { cpu_s_per_gb: Some(6.0), waiting_cpu: None, extra_rss_bytes: Some(70) };
        assert_eq!(record.usage, whole, "the median of jobs 1, 6 and 8, and the most of any");
        assert_eq!((rows[2].machines, rows[2].per_machine_s(4)), (6, Some(7.5)));
        assert_eq!(stolen(&rows), Some(0.0625));
        assert_eq!(rows[0].host_bytes(true), Some((6100.0, true)));
        assert_eq!(rows[0].host_bytes(false), Some((6000.0, false)));
        assert_eq!(rows[2].host_bytes(true), Some((8000.0, false)), "a dedicated server's interface is not a worker's");
    }

    #[test]
    fn a_job_that_measured_something_else_is_a_failure() {
        let (rows, _, _) = compared(8000);
        assert!(matches!(&rows[0].outcome, Outcome::Failed { error } if error.contains("8000 bytes on 4 ranks")));
    }
}
