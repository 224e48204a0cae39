//! The element-wise codecs: a code for each element, codes that can be added up, sums that can be decoded.

use serde::{Deserialize, Serialize};

use super::lanes::{self, Half, Width};
use super::{Level, halves, planes, quantise};

/// A codec that treats each element separately, so that any part of a gradient can be encoded on its own.
///
/// The sum of the workers' codes does not depend on where it is computed:
///
/// - `2bit`: `(p - m) * threshold`, rounded once, if `p` workers sent `threshold` and `m` sent `-threshold`.
///   Adding the codes one by one gives this sum too if no multiple of the threshold needs rounding, as with
///   MXNet's 0.5.
/// - `1bit`: `p - m`, exactly.
/// - `fp16` and `bf16`: the sum in f32, in the order of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Codec {
    /// IEEE half precision.
    Fp16,
    /// The upper half of an f32.
    Bf16,
    /// MXNet's `2bit`.
    TwoBit {
        /// The value of a code, which is greater than 0.
        threshold: f32,
    },
    /// MXNet's `1bit`.
    OneBit {
        /// The code of an element above the threshold is 1, and that of any other element is -1.
        threshold: f32,
    },
}

/// The form in which a sum of codes is sent.
enum SumKind {
    Half(Half),
    /// An integer, and the value of 1.
    Integer(Width, f32),
}

/// The format of sums of codes that are integers, for decoders outside this crate. A block of
/// [`Codec::BLOCK`] sums is `bits` words of 32 bits, little endian. Bit `i` of word `j` is bit `j` of the
/// number stored for sum `i`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SumFormat {
    /// The bits of a number.
    pub bits: usize,
    /// The sum of `n` workers' codes is `factor * number - n`, in units of `unit`.
    pub factor: i32,
    /// The value of 1.
    pub unit: f32,
}

/// The number of elements of `fp16` and `bf16` that are added in one run, on the stack.
const RUN: usize = 1024;

impl Codec {
    /// The number of elements of a block. Parts of a gradient that begin at a multiple of it have codes and
    /// sums of whole words.
    pub const BLOCK: usize = lanes::BLOCK;

    fn sum_kind(self) -> SumKind {
        match self {
            Codec::Fp16 => SumKind::Half(Half::Fp16),
            Codec::Bf16 => SumKind::Half(Half::Bf16),
            Codec::TwoBit { threshold } => SumKind::Integer(Width::TwoBit, threshold),
            Codec::OneBit { .. } => SumKind::Integer(Width::OneBit, 1.0),
        }
    }

    /// The bytes of one worker's codes of `len` elements.
    pub fn code_bytes(self, len: usize) -> usize {
        match self {
            Codec::Fp16 | Codec::Bf16 => 2 * len,
            Codec::TwoBit { .. } => quantise::two_bit_bytes(len),
            Codec::OneBit { .. } => quantise::one_bit_bytes(len),
        }
    }

    /// Encodes the sum of `gradient` and `residual`. The part that the codes cannot express is the new
    /// residual.
    ///
    /// # Panics
    /// If the lengths do not fit together.
    pub fn encode(self, gradient: &[f32], residual: &mut [f32], code: &mut [u8]) {
        self.encode_at(Level::best(), gradient, residual, code);
    }

    /// Encodes as [`encode`](Self::encode) does, with the instructions of `level`, which the processor must
    /// have.
    pub fn encode_at(self, level: Level, gradient: &[f32], residual: &mut [f32], code: &mut [u8]) {
        let level = level.min(Level::best());
        match self {
            Codec::Fp16 => halves::encode(level, Half::Fp16, gradient, residual, code),
            Codec::Bf16 => halves::encode(level, Half::Bf16, gradient, residual, code),
            Codec::TwoBit { threshold } => quantise::encode_2bit(level, gradient, residual, threshold, code),
            Codec::OneBit { threshold } => quantise::encode_1bit(level, gradient, residual, threshold, code),
        }
    }

    /// Decodes `code` and adds it to `sum`.
    ///
    /// # Panics
    /// If the lengths do not fit together.
    pub fn decode_add(self, code: &[u8], sum: &mut [f32]) {
        self.decode_add_at(Level::best(), code, sum);
    }

    /// Decodes as [`decode_add`](Self::decode_add) does, with the instructions of `level`, which the
    /// processor must have.
    pub fn decode_add_at(self, level: Level, code: &[u8], sum: &mut [f32]) {
        let level = level.min(Level::best());
        match self {
            Codec::Fp16 => halves::add(level, Half::Fp16, code, sum),
            Codec::Bf16 => halves::add(level, Half::Bf16, code, sum),
            Codec::TwoBit { threshold } => quantise::add_2bit(level, code, threshold, sum),
            Codec::OneBit { .. } => quantise::add_1bit(level, code, sum),
        }
    }

    /// Returns true if adding up to 4096 workers' decoded codes one after the other gives the sum of
    /// [`sum`](Self::sum) and [`decode_sum`](Self::decode_sum). That is so if no multiple of the threshold
    /// needs rounding.
    pub fn adds_exactly(self) -> bool {
        match self {
            Codec::TwoBit { threshold } => threshold.to_bits().trailing_zeros() >= 12,
            Codec::Fp16 | Codec::Bf16 | Codec::OneBit { .. } => true,
        }
    }

    /// Returns an error, with the reason, unless `code` is a code of `len` elements that a worker can have
    /// sent.
    pub fn check_code(self, code: &[u8], len: usize) -> Result<(), String> {
        if code.len() != self.code_bytes(len) {
            return Err(format!("{} bytes of codes instead of {}", code.len(), self.code_bytes(len)));
        }
        let known = match self {
            Codec::Fp16 | Codec::Bf16 => true,
            Codec::TwoBit { .. } => quantise::is_2bit(code, len),
            Codec::OneBit { .. } => quantise::is_1bit(code, len),
        };
        if known { Ok(()) } else { Err("codes that no encoder writes".to_owned()) }
    }

    /// The bytes of the sum of `count` workers' codes of `len` elements.
    pub fn sum_bytes(self, len: usize, count: usize) -> usize {
        match self.sum_kind() {
            SumKind::Half(_) => 2 * len,
            SumKind::Integer(width, _) => planes::bytes(len, width.bits(count)),
        }
    }

    /// Returns the format of sums of `count` workers' codes, if they are integers.
    pub fn stored(self, count: usize) -> Option<SumFormat> {
        match self.sum_kind() {
            SumKind::Half(_) => None,
            SumKind::Integer(width, unit) => Some(SumFormat { bits: width.bits(count), factor: width.factor(), unit }),
        }
    }

    /// Adds up `codes` of `len` elements, one slice for each worker in the order of the ranks.
    ///
    /// # Panics
    /// If the lengths do not fit together.
    pub fn sum(self, codes: &[&[u8]], len: usize, sums: &mut [u8]) {
        self.sum_at(Level::best(), codes, len, sums);
    }

    /// Sums as [`sum`](Self::sum) does, with the instructions of `level`, which the processor must have.
    pub fn sum_at(self, level: Level, codes: &[&[u8]], len: usize, sums: &mut [u8]) {
        let level = level.min(Level::best());
        assert!(codes.iter().all(|code| code.len() == self.code_bytes(len)), "each worker has a code for each element");
        let half = match self.sum_kind() {
            SumKind::Integer(width, _) => return planes::sum(level, width, codes, len, sums),
            SumKind::Half(half) => half,
        };
        for (run, sums) in sums.chunks_mut(2 * RUN).enumerate() {
            let mut total = [0f32; RUN];
            let total = &mut total[..sums.len() / 2];
            for code in codes {
                halves::add(level, half, &code[run * 2 * RUN..][..sums.len()], total);
            }
            halves::round(level, half, total, sums);
        }
    }

    /// Decodes the sum of `count` workers' codes into `values`.
    ///
    /// # Panics
    /// If the lengths do not fit together.
    pub fn decode_sum(self, sums: &[u8], count: usize, values: &mut [f32]) {
        self.decode_sum_at(Level::best(), sums, count, values);
    }

    /// Decodes as [`decode_sum`](Self::decode_sum) does, with the instructions of `level`, which the
    /// processor must have.
    pub fn decode_sum_at(self, level: Level, sums: &[u8], count: usize, values: &mut [f32]) {
        let level = level.min(Level::best());
        match self.sum_kind() {
            SumKind::Half(half) => halves::widen(level, half, sums, values),
            SumKind::Integer(width, unit) => planes::decode(level, width, count, sums, unit, values),
        }
    }
}
