//! The common types of the scalar loops and the loops for AVX: 16-bit floats, and blocks of sums of codes.

use ringpull_base::half::{bf16, f16};

/// The 16-bit float type of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    Fp16,
    Bf16,
}

impl Half {
    pub(super) fn bits_of(self, value: f32) -> u16 {
        match self {
            Half::Fp16 => f16::from_f32(value).to_bits(),
            Half::Bf16 => bf16::from_f32(value).to_bits(),
        }
    }

    pub(super) fn value_of(self, bits: u16) -> f32 {
        match self {
            Half::Fp16 => f16::from_bits(bits).to_f32(),
            Half::Bf16 => bf16::from_bits(bits).to_f32(),
        }
    }
}

/// The sums in a block.
pub(super) const BLOCK: usize = 32;

/// The kind of codes that are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    OneBit,
    TwoBit,
}

impl Width {
    /// The bits of a stored sum of `count` codes.
    pub(super) fn bits(self, count: usize) -> usize {
        let largest = match self {
            Width::OneBit => count,
            Width::TwoBit => 2 * count,
        };
        (usize::BITS - largest.leading_zeros()).max(1) as usize
    }

    /// The bytes of the codes of a block.
    pub(super) fn block_bytes(self) -> usize {
        match self {
            Width::OneBit => BLOCK / 8,
            Width::TwoBit => BLOCK / 4,
        }
    }

    /// Returns the number that one code adds to the stored sum, relative to an absent code.
    pub(super) fn stored(self, code: &[u8], at: usize) -> i64 {
        match self {
            Width::OneBit => i64::from(code[at / 8] >> (7 - at % 8) & 1),
            Width::TwoBit => [0, 0, -1, 1][usize::from(code[at / 4] >> (6 - 2 * (at % 4)) & 3)],
        }
    }

    /// Returns the start value of a stored sum of `count` codes.
    pub(super) fn bias(self, count: usize) -> usize {
        match self {
            Width::OneBit => 0,
            Width::TwoBit => count,
        }
    }

    /// Returns the value of one unit of a stored sum.
    pub(super) fn factor(self) -> i32 {
        match self {
            Width::OneBit => 2,
            Width::TwoBit => 1,
        }
    }
}
