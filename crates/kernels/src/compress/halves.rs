//! `fp16` and `bf16`: the code is the 16-bit float that is nearest to gradient plus residual, and the
//! rounding error is the new residual.
//!
//! The error of rounding to fewer bits is a float itself, so code and residual add up to exactly the input.
//! Beyond the largest 16-bit float there is no error to keep: Inf and NaN are sent unchanged and leave a
//! residual of 0.

use super::Level;
#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::lanes::Half;

/// Encodes the sum of `gradient` and `residual`. `residual` becomes the rounding error.
pub(super) fn encode(level: Level, half: Half, gradient: &[f32], residual: &mut [f32], code: &mut [u8]) {
    assert_eq!(gradient.len(), residual.len(), "a residual for each element");
    assert_eq!(code.len(), 2 * gradient.len(), "a half for each element");
    let done = match level {
        Level::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => avx2::encode_half(half, gradient, residual, code),
    };
    let inputs = gradient[done..].iter().zip(&mut residual[done..]);
    for (code, (gradient, residual)) in code[2 * done..].chunks_exact_mut(2).zip(inputs) {
        let sum = *residual + gradient;
        let bits = half.bits_of(sum);
        code.copy_from_slice(&bits.to_le_bytes());
        let sent = half.value_of(bits);
        *residual = if sent.is_finite() { sum - sent } else { 0.0 };
    }
}

/// Encodes `values` without a residual.
pub(super) fn round(level: Level, half: Half, values: &[f32], code: &mut [u8]) {
    assert_eq!(code.len(), 2 * values.len(), "a half for each element");
    let done = match level {
        Level::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => avx2::round_half(half, values, code),
    };
    for (code, value) in code[2 * done..].chunks_exact_mut(2).zip(&values[done..]) {
        code.copy_from_slice(&half.bits_of(*value).to_le_bytes());
    }
}

/// `sum[i] += code[i]`.
pub(super) fn add(level: Level, half: Half, code: &[u8], sum: &mut [f32]) {
    assert_eq!(code.len(), 2 * sum.len(), "a half for each element");
    let done = match level {
        Level::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => avx2::add_half(half, code, sum),
    };
    for (sum, code) in sum[done..].iter_mut().zip(code[2 * done..].chunks_exact(2)) {
        *sum += half.value_of(u16::from_le_bytes([code[0], code[1]]));
    }
}

/// `values[i] = code[i]`.
pub(super) fn widen(level: Level, half: Half, code: &[u8], values: &mut [f32]) {
    assert_eq!(code.len(), 2 * values.len(), "a half for each element");
    let done = match level {
        Level::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => avx2::widen_half(half, code, values),
    };
    for (value, code) in values[done..].iter_mut().zip(code[2 * done..].chunks_exact(2)) {
        *value = half.value_of(u16::from_le_bytes([code[0], code[1]]));
    }
}
