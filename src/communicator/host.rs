//! Collectives on host memory.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::buffer::Buffer;
use crate::collective::{self, Algorithm, Parts, Runner};
use crate::communicator::compressed;
use crate::compress::{Compression, Feedback};
use crate::config::Config;
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
    stop: Arc<AtomicBool>,
    native_sum: Buffer,
    /// Segments of compressed gradients, between two of them.
    segments: Vec<Buffer>,
}

impl Host {
    /// Collectives over `transport`. When `stop` is set, an operation under way ends in an error.
    pub fn new(transport: Box<dyn Transport>, config: &Config, stop: Arc<AtomicBool>) -> Result<Self> {
        // Longer than the control star waits for a silent rank: it names the one that is lost, a runner only its neighbours.
        let runner = Runner::new(config.segment_bytes, config.timeout * 3 / 2);
        let choice = config.algorithm.parse()?;
        Ok(Host { transport, runner, choice, stop, native_sum: Buffer::zeroed(0), segments: Vec::new() })
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
        let algorithm = match choice {
            Choice::Auto => collective::choose(data.len(), self.size()),
            Choice::Plan(algorithm) => algorithm,
            Choice::Native => return self.allreduce_natively(dtype, data),
        };
        let plan = collective::allreduce(algorithm, self.rank(), self.size(), data.len() / dtype.size_bytes());
        self.runner.run(&plan, dtype, data, &mut *self.transport, stamp, &self.stop)
    }

    /// `out` becomes the sum over all ranks of what their compressed gradients say, the same bits on each. The gradient stands in `out`
    /// itself if none is given.
    pub fn allreduce_compressed(
        &mut self,
        compression: &Compression,
        feedback: &mut Feedback,
        gradient: Option<&[f32]>,
        out: &mut [f32],
        stamp: Stamp,
    ) -> Result<()> {
        match compression {
            Compression::Codec(codec) => {
                let work =
                    compressed::Work { codec: *codec, gradient, residual: feedback.residual_mut(out.len()), out };
                let mut wire = compressed::Wire {
                    transport: &mut *self.transport,
                    stamp,
                    stop: &self.stop,
                    limit: self.runner.limit,
                };
                let (sent, received) = compressed::allreduce(work, &mut wire, &mut self.segments)?;
                self.runner.sent_bytes += sent;
                self.runner.received_bytes += received;
                Ok(())
            }
            Compression::TopK(_) => self.gather_compressed(compression, feedback, gradient, out, stamp),
        }
    }

    /// Every rank gets every rank's code and adds them up in the order of the ranks.
    fn gather_compressed(
        &mut self,
        compression: &Compression,
        feedback: &mut Feedback,
        gradient: Option<&[f32]>,
        out: &mut [f32],
        stamp: Stamp,
    ) -> Result<()> {
        let (rank, size, each) = (self.rank(), self.size(), compression.code_bytes(out.len()));
        let mut codes = Buffer::zeroed(size * each);
        compression.encode(gradient.unwrap_or(out), feedback, &mut codes.bytes_mut()[rank * each..(rank + 1) * each]);
        let parts = Parts::of((0..=size).map(|rank| rank * each).collect());
        if let Err(cause) = self.allgather(parts, codes.bytes_mut(), stamp) {
            // The transport may still write into it.
            std::mem::forget(codes);
            return Err(cause);
        }
        out.fill(0.0);
        for (peer, code) in codes.bytes().chunks_exact(each.max(1)).enumerate() {
            compression.check_code(code, out.len()).map_err(|what| Error::Protocol {
                rank,
                peer: format!("rank {peer}"),
                what,
                remedy: "run the same version of ringpull on every rank".to_owned(),
            })?;
            compression.decode_add(code, out);
        }
        Ok(())
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
