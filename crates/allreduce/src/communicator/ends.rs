//! The two ends of an exchange of codes on one rank: the source of its gradient's codes, and the target of
//! all ranks' sums.
//!
//! [`Elements`] is a gradient in host memory, encoded and decoded segment by segment. [`CodedGradient`] is a
//! gradient that a device has encoded and will decode.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use ringpull_kernels::compress::{Codec, Feedback};

use crate::interpreter::Memory;

/// Encodes and decodes a gradient. For each segment, `encode` is called once, and `decode` after it. Every
/// segment begins at the start of a block, and every segment but the last ends at the end of one.
pub(super) trait CodeEnds {
    /// Writes the codes of the elements `range`.
    fn encode(&mut self, range: Range<usize>, codes: &mut [u8]);
    /// Takes the sums of `count` ranks' codes of `range`.
    fn decode(&mut self, range: Range<usize>, sums: &[u8], count: usize);
    /// Returns the memory that this end owns.
    fn take_memory(&mut self) -> Memory {
        Memory::Nothing
    }
}

/// A gradient in host memory.
pub(super) struct Elements {
    pub(super) codec: Codec,
    pub(super) feedback: Arc<Mutex<Feedback>>,
    /// Nothing if the gradient is in `out`.
    pub(super) gradient: Memory,
    pub(super) out: Memory,
}

impl CodeEnds for Elements {
    fn encode(&mut self, range: Range<usize>, codes: &mut [u8]) {
        let gradient = if matches!(self.gradient, Memory::Nothing) { &self.out } else { &self.gradient };
        let gradient: &[f32] = bytemuck::cast_slice(gradient.bytes());
        let mut feedback = self.feedback.lock();
        let residual = feedback.residual_mut(gradient.len());
        self.codec.encode(&gradient[range.clone()], &mut residual[range], codes);
    }

    fn decode(&mut self, range: Range<usize>, sums: &[u8], count: usize) {
        let out: &mut [f32] = bytemuck::cast_slice_mut(self.out.bytes_mut());
        self.codec.decode_sum(sums, count, &mut out[range]);
    }

    fn take_memory(&mut self) -> Memory {
        Memory::Pair(Box::new((std::mem::take(&mut self.gradient), std::mem::take(&mut self.out))))
    }
}

impl<T: CodeEnds> CodeEnds for &mut T {
    fn encode(&mut self, range: Range<usize>, codes: &mut [u8]) {
        (**self).encode(range, codes);
    }

    fn decode(&mut self, range: Range<usize>, sums: &[u8], count: usize) {
        (**self).decode(range, sums, count);
    }
}

/// The codes of a whole gradient, and the memory for the whole sum.
pub(super) struct CodedGradient<'a> {
    pub(super) codec: Codec,
    pub(super) codes: &'a [u8],
    pub(super) sums: &'a mut [u8],
}

impl CodeEnds for CodedGradient<'_> {
    fn encode(&mut self, range: Range<usize>, codes: &mut [u8]) {
        let start = self.codec.code_bytes(range.start);
        codes.copy_from_slice(&self.codes[start..start + codes.len()]);
    }

    fn decode(&mut self, range: Range<usize>, sums: &[u8], count: usize) {
        let start = self.codec.sum_bytes(range.start, count);
        self.sums[start..start + sums.len()].copy_from_slice(sums);
    }
}
