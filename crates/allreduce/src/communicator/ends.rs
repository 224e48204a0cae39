//! The two ends of an exchange of codes on one rank: the source of its gradient's codes, and the target of
//! all ranks' sums.
//!
//! [`Elements`] is a gradient in host memory, encoded and decoded segment by segment. [`CodedGradient`] is a
//! gradient that a device has encoded and will decode.

use std::ops::Range;

use ringpull_kernels::compress::Codec;

/// Asked once for the codes of each segment, and after that given its sums. Segments begin with whole blocks,
/// and all but the last end with one.
pub(super) trait CodeEnds {
    /// Writes the codes of the elements `range`.
    fn encode(&mut self, range: Range<usize>, codes: &mut [u8]);
    /// Takes the sums of `count` ranks' codes of `range`.
    fn decode(&mut self, range: Range<usize>, sums: &[u8], count: usize);
}

/// A gradient in host memory.
pub(super) struct Elements<'a> {
    pub(super) codec: Codec,
    /// `None` if the gradient stands in `out`.
    pub(super) gradient: Option<&'a [f32]>,
    pub(super) residual: &'a mut [f32],
    pub(super) out: &'a mut [f32],
}

impl CodeEnds for Elements<'_> {
    fn encode(&mut self, range: Range<usize>, codes: &mut [u8]) {
        let gradient = self.gradient.unwrap_or(self.out);
        self.codec.encode(&gradient[range.clone()], &mut self.residual[range], codes);
    }

    fn decode(&mut self, range: Range<usize>, sums: &[u8], count: usize) {
        self.codec.decode_sum(sums, count, &mut self.out[range]);
    }
}

/// The codes of a whole gradient, and a place for the whole sum.
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
