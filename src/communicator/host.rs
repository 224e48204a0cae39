//! Collectives on host memory.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::learn::{self, Learned};
use crate::buffer::Buffer;
use crate::collective::{self, Algorithm, Parts, Runner, Segments};
use crate::config::{Config, ModelSource};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::transport::{Stamp, Transport};

/// How an allreduce is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// By the plan that suits the size and the number of ranks.
    Auto,
    /// By this plan.
    Plan(Algorithm),
    /// By the library under the transport: `MPI_Allreduce`.
    Native,
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Choice::Auto),
            "native" => Ok(Choice::Native),
            other => other.parse().map(Choice::Plan).map_err(|_| {
                Error::argument(
                    format!("unknown algorithm {other:?}"),
                    format!("the algorithms are auto, {}, and native, the MPI library's own", Algorithm::names()),
                )
            }),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => out.pad("auto"),
            Choice::Plan(algorithm) => algorithm.fmt(out),
            Choice::Native => out.pad("native"),
        }
    }
}

/// All ranks of a job, seen from one of them. Every operation blocks and is collective: all ranks call the same ones in the
/// same order with the same lengths, dtypes and stamps.
pub struct Host {
    transport: Box<dyn Transport>,
    runner: Runner,
    choice: Choice,
    learned: Learned,
    segments: Segments,
    stop: Arc<AtomicBool>,
    native_sum: Buffer,
}

impl Host {
    /// Collectives over `transport`. When `stop` is set, an operation under way ends in an error.
    pub fn new(transport: Box<dyn Transport>, config: &Config, stop: Arc<AtomicBool>) -> Result<Self> {
        // Longer than the control star waits for a silent rank: it names the one that is lost, a runner only its neighbours.
        let runner = Runner::new(config.segment_bytes, config.timeout * 3 / 2);
        let choice = config.algorithm.parse()?;
        let learned = Learned::default();
        let segments = Segments { most_bytes: config.segment_bytes, is_fixed: config.segment_is_fixed };
        Ok(Host { transport, runner, choice, learned, segments, stop, native_sum: Buffer::zeroed(0) })
    }

    /// Finds out what `auto` must know of the cluster, as rank 0's `config` says. Collective; until then `auto` goes by the
    /// default model.
    pub fn learn(&mut self, config: &Config) -> Result<()> {
        let source = if self.choice == Choice::Auto { &config.model } else { &ModelSource::Default };
        self.learned = learn::learn(&mut self.runner, &mut *self.transport, source, &self.stop)?;
        if self.rank() == 0 && self.choice == Choice::Auto {
            self.explain();
        }
        Ok(())
    }

    /// What `auto` knows of the cluster.
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// How messages are cut.
    pub fn segments(&self) -> Segments {
        self.segments
    }

    /// Says in the log what was learned and what follows from it.
    fn explain(&self) {
        let Learned { model, source } = &self.learned;
        tracing::debug!("auto goes by {source}: {model:?}");
        for len_bytes in [4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 100_000_000] {
            let times: Vec<String> = Algorithm::ALL
                .map(|algorithm| collective::predict(model, algorithm, len_bytes, self.size(), self.segments))
                .iter()
                .map(|of| format!("{} {:.0} us", of.algorithm, of.time_us))
                .collect();
            let chosen = collective::choose(model, len_bytes, self.size(), self.segments);
            tracing::debug!(
                "{len_bytes} bytes: {} in segments of {}, the least of {}",
                chosen.algorithm,
                chosen.segment_bytes,
                times.join(", ")
            );
        }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.transport.size()
    }

    /// The library under the transport, for people.
    pub fn library(&self) -> String {
        self.transport.name()
    }

    /// Payload bytes sent and received.
    pub fn traffic_bytes(&self) -> (u64, u64) {
        (self.runner.sent_bytes, self.runner.received_bytes)
    }

    /// `data` becomes the sum over all ranks, the same bits on each.
    pub fn allreduce(&mut self, dtype: DType, data: &mut [u8], stamp: Stamp) -> Result<()> {
        self.allreduce_by(self.choice, dtype, data, stamp)
    }

    /// As [`allreduce`](Self::allreduce), by the given way.
    pub fn allreduce_by(&mut self, choice: Choice, dtype: DType, data: &mut [u8], stamp: Stamp) -> Result<()> {
        let most_bytes = self.segments.most_bytes;
        let (algorithm, segment_bytes) = match choice {
            Choice::Auto => {
                let chosen = collective::choose(&self.learned.model, data.len(), self.size(), self.segments);
                (chosen.algorithm, chosen.segment_bytes)
            }
            Choice::Plan(algorithm) => (algorithm, most_bytes),
            Choice::Native => return self.allreduce_natively(dtype, data),
        };
        let plan = collective::allreduce(algorithm, self.rank(), self.size(), data.len() / dtype.size_bytes());
        self.runner.segment_bytes = segment_bytes;
        let outcome = self.runner.run(&plan, dtype, data, &mut *self.transport, stamp, &self.stop);
        self.runner.segment_bytes = most_bytes;
        outcome
    }

    /// `data` becomes rank `root`'s.
    pub fn broadcast(&mut self, root: usize, data: &mut [u8], stamp: Stamp) -> Result<()> {
        let plan = collective::broadcast(root, self.rank(), self.size(), data.len());
        self.runner.run(&plan, DType::U8, data, &mut *self.transport, stamp, &self.stop)
    }

    /// Part `r` of `data`, bounded in bytes, becomes rank `r`'s on every rank.
    pub fn allgather(&mut self, parts: Parts, data: &mut [u8], stamp: Stamp) -> Result<()> {
        let plan = collective::allgather(self.rank(), self.size(), parts);
        self.runner.run(&plan, DType::U8, data, &mut *self.transport, stamp, &self.stop)
    }

    fn allreduce_natively(&mut self, dtype: DType, data: &mut [u8]) -> Result<()> {
        if self.native_sum.bytes().len() != data.len() {
            self.native_sum = Buffer::zeroed(data.len());
        }
        self.transport.native_allreduce(dtype, data, self.native_sum.bytes_mut())?;
        data.copy_from_slice(self.native_sum.bytes());
        Ok(())
    }
}
