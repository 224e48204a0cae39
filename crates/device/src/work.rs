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
    /// Copies each read to the write with its index. It is one copy, or the packing or unpacking of a bucket
    /// in one launch. Between host and device, or between two devices, there is one pair.
    Copy,
    /// Sets the one write to zeros.
    Zero,
    /// Sets the one write to the sum of the reads, in order. f16 and bf16 are added in f32 and rounded once.
    Sum(DType),
    /// Reads a gradient and a residual, both f32; writes the codes of MXNet's 2-bit compression and the
    /// residual.
    Quantise2 {
        /// The value of a code, more than 0.
        threshold: f32,
    },
    /// Reads codes and an f32 sum; writes the sum with the decoded values added.
    AddDequantised2 {
        /// The value of a code, as in quantising.
        threshold: f32,
    },
    /// Like `Quantise2`, with MXNet's 1-bit compression.
    Quantise1 {
        /// A value above the threshold is sent as 1, and any other value as -1.
        threshold: f32,
    },
    /// Like `AddDequantised2`, with MXNet's 1-bit compression.
    AddDequantised1,
    /// Reads the sum of `count` workers' codes, and writes its f32 values.
    DecodeSum {
        /// A codec whose sums are integers.
        codec: Codec,
        /// The number of workers.
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

/// One operation on memory. Memory that is changed in place is among both reads and writes.
pub struct Work {
    /// The operation.
    pub operation: Operation,
    /// The memory that it reads.
    pub reads: Vec<Slice>,
    /// The memory that it writes.
    pub writes: Vec<Slice>,
}

impl Work {
    /// Returns work that copies `from` to `to`.
    pub fn copy(from: Slice, to: Slice) -> Self {
        Work { operation: Operation::Copy, reads: vec![from], writes: vec![to] }
    }

    /// Returns work that sets `to` to the sum of `addends`.
    pub fn sum(dtype: DType, addends: Vec<Slice>, to: Slice) -> Self {
        Work { operation: Operation::Sum(dtype), reads: addends, writes: vec![to] }
    }

    /// Returns work that sets `to` to zeros.
    pub fn zero(to: Slice) -> Self {
        Work { operation: Operation::Zero, reads: Vec::new(), writes: vec![to] }
    }

    /// Returns an error if the lengths do not fit together.
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

/// The kind of a collective, in NCCL's terms. All devices give the same number of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectiveKind {
    /// Device `d` gets part `d` of the sum.
    ReduceScatter,
    /// Every device gets the parts of all devices, in order.
    AllGather,
    /// Every device gets the sum.
    AllReduce,
    /// The root gets the sum.
    Reduce(usize),
    /// Every device gets the root's value.
    Broadcast(usize),
}

/// One collective of all devices of a process.
pub struct Collective {
    /// The kind of the collective.
    pub kind: CollectiveKind,
    /// The element type.
    pub dtype: DType,
    /// The value of each device. In a broadcast only the root's value is read.
    pub send: Vec<Slice>,
    /// The memory of the result on each device. In a reduce only the root's memory is written.
    pub receive: Vec<Slice>,
}
