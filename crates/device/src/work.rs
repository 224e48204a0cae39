//! Work for a stream: an operation with the memory that it reads and writes, and the collectives of a
//! process's devices.

use std::sync::Arc;

use ringpull_base::{DType, Error, Result};
use ringpull_kernels::compress::Codec;
use ringpull_kernels::optim::Optimizer;

use super::handle::Slice;

/// An operation, without its memory. `reference` is its meaning.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Each write becomes the read at its place: one copy, or the packing or unpacking of a bucket in one
    /// launch. Between host and device, or two devices, there is one pair.
    Copy,
    /// The one write becomes zeros.
    Zero,
    /// The one write becomes the sum of the reads, in their order. Halves are added in f32 and rounded once.
    Sum(DType),
    /// Reads a gradient and a residual, both f32; writes the codes of MXNet's 2-bit compression and the
    /// residual.
    Quantise2 {
        /// The threshold, more than 0: a code sends it at once.
        threshold: f32,
    },
    /// Reads codes and an f32 sum; writes the sum with the decoded values added.
    AddDequantised2 {
        /// As in quantising.
        threshold: f32,
    },
    /// As `Quantise2` with MXNet's 1-bit compression.
    Quantise1 {
        /// Above it a value is sent as 1, otherwise as -1.
        threshold: f32,
    },
    /// As `AddDequantised2` with MXNet's 1-bit compression.
    AddDequantised1,
    /// Reads the sum of `count` workers' codes; writes the f32 values that it stands for.
    DecodeSum {
        /// A codec whose sums are integers.
        codec: Codec,
        /// The workers.
        count: usize,
    },
    /// One step of an optimizer. Reads the gradient, the weight and the slots; writes the weight and the
    /// slots.
    Update {
        /// The optimizer.
        optimizer: Arc<Optimizer>,
        /// The element type of gradient and weight.
        dtype: DType,
        /// The number of earlier updates.
        updates: u64,
    },
}

/// One operation on memory. Memory that is changed is among both.
pub struct Work {
    /// The operation.
    pub operation: Operation,
    /// The memory that it reads.
    pub reads: Vec<Slice>,
    /// The memory that it writes.
    pub writes: Vec<Slice>,
}

impl Work {
    /// `to` becomes `from`.
    pub fn copy(from: Slice, to: Slice) -> Self {
        Work { operation: Operation::Copy, reads: vec![from], writes: vec![to] }
    }

    /// `to` becomes the sum of `addends`.
    pub fn sum(dtype: DType, addends: Vec<Slice>, to: Slice) -> Self {
        Work { operation: Operation::Sum(dtype), reads: addends, writes: vec![to] }
    }

    /// `to` becomes zeros.
    pub fn zero(to: Slice) -> Self {
        Work { operation: Operation::Zero, reads: Vec::new(), writes: vec![to] }
    }

    /// An error if they do not fit together.
    pub(super) fn check_lengths(&self) -> Result<()> {
        let lengths = |slices: &[Slice]| slices.iter().map(Slice::len_bytes).collect::<Vec<_>>();
        let (reads, writes) = (lengths(&self.reads), lengths(&self.writes));
        let fits = match &self.operation {
            Operation::Copy => reads == writes,
            Operation::Zero => reads.is_empty() && writes.len() == 1,
            Operation::Sum(_) => writes.len() == 1 && !reads.is_empty() && reads.iter().all(|len| *len == writes[0]),
            Operation::Quantise2 { .. } | Operation::Quantise1 { .. } => reads.len() == 2 && writes.len() == 2,
            Operation::AddDequantised2 { .. } | Operation::AddDequantised1 => reads.len() == 2 && writes.len() == 1,
            Operation::DecodeSum { codec, count } => {
                writes.len() == 1 && reads == [codec.sum_bytes(writes[0] / size_of::<f32>(), *count)]
            }
            Operation::Update { .. } => reads.len() == writes.len() + 1,
        };
        if fits {
            return Ok(());
        }
        Err(Error::bug(format!("{:?} of {reads:?} bytes into {writes:?} bytes", self.operation)))
    }

    /// Returns true if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.writes.iter().all(|slice| slice.len_bytes() == 0)
    }
}

/// The kind of a collective, in NCCL's words. Every device gives as many elements as the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectiveKind {
    /// Device `d` gets part `d` of the sum.
    ReduceScatter,
    /// Every device gets the parts of all, in order.
    AllGather,
    /// Every device gets the sum.
    AllReduce,
    /// The root gets the sum.
    Reduce(usize),
    /// Every device gets what the root has.
    Broadcast(usize),
}

/// One collective of all devices of a process.
pub struct Collective {
    /// The kind of the collective.
    pub kind: CollectiveKind,
    /// The element type.
    pub dtype: DType,
    /// The value of each device. Of a broadcast only the root's is read.
    pub send: Vec<Slice>,
    /// The place of the result on each device. Of a reduce only the root's is written.
    pub receive: Vec<Slice>,
}
