//! A runner without processes, for tests.

use std::time::Duration;

use ringpull_base::{DType, Error, Result};

use super::{Job, JobRunner};
use crate::hardware::ProcessorTime;
use crate::record::Record;
use crate::usage::Usage;
use crate::variant::{Peer, Variant};

/// Our variants take a nanosecond per byte, on MPICH half a nanosecond; peers take two. Horovod is missing.
/// `openmpi:4` fails on 3 ranks, and `dist_sync:1shared` fails in its second job.
#[derive(Debug, Default)]
pub struct Fake {
    /// The variants that were started, with the number of ranks.
    pub jobs: Vec<(String, usize)>,
    /// The number of jobs that had been started at each wait between them.
    pub settled: Vec<usize>,
    /// The job that a signal ends, from 1, and the signal.
    pub signal_in: Option<(usize, i32)>,
    /// How often the processor time was read.
    pub asked: u64,
}

impl Fake {
    pub const SECONDS_A_BYTE: f64 = 1e-9;
}

impl JobRunner for Fake {
    fn missing(&mut self, variant: Variant) -> Option<String> {
        (variant.peer == Some(Peer::Horovod)).then(|| "scripts/peers/setup --horovod".to_owned())
    }

    /// Of 10000 ticks between two reads 625 are stolen, a sixteenth: exact as a float.
    fn processor_time(&mut self) -> Option<ProcessorTime> {
        self.asked += 1;
        ProcessorTime::parse(&format!("cpu  {} 0 0 0 0 0 0 {} 0 0\n", 9375 * self.asked, 625 * self.asked))
    }

    fn settle(&mut self, last_job: Duration) {
        assert_eq!(last_job == Duration::MAX, self.jobs.is_empty());
        self.settled.push(self.jobs.len());
    }

    fn interrupted(&self) -> Option<i32> {
        self.signal_in.filter(|(job, _)| self.jobs.len() >= *job).map(|(_, signal)| signal)
    }

    fn run(&mut self, variant: Variant, job: &Job) -> Result<Vec<Record>> {
        let name = variant.to_string();
        self.jobs.push((name.clone(), job.ranks));
        if self.interrupted().is_some() {
            return Err(Error::argument("interrupted", "run it again"));
        }
        let count = self.jobs.iter().filter(|(other, _)| *other == name).count();
        if (name.as_str(), job.ranks) == ("openmpi:4", 3) || (name.as_str(), count) == ("dist_sync:1shared", 2) {
            return Err(Error::argument("rank 2 is lost", "look at its host"));
        }
        let factor = match (variant.peer, variant.on_mpich) {
            (None, false) => 1.0,
            (None, true) => 0.5,
            (Some(_), _) => 2.0,
        };
        let record = |bytes: usize| {
            Record {
                mode: variant.mode.kind().to_string(),
                algorithm: "auto".to_owned(),
                ranks: job.ranks,
                hosts: job.ranks,
                bytes: bytes as u64,
                seconds: vec![factor * bytes as f64 * Self::SECONDS_A_BYTE; job.iters],
                host_bytes: Some(6100),
                // The second job takes the most memory, and the last job the most time.
                usage: Usage {
                    cpu_s_per_gb: Some(self.jobs.len() as f64),
                    waiting_cpu: None,
                    extra_rss_bytes: Some(if self.jobs.len() == 2 { 70 } else { 30 }),
                    state_bytes: None,
                },
                ..Record::blank("allreduce", DType::F32)
            }
            .with_figures()
        };
        job.payloads().into_iter().map(record).collect()
    }
}
