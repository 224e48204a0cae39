//! `2bit` and `1bit` in MXNet's arithmetic and packing: the scalar reference, and the choice of a faster loop
//! with equal bits.
//!
//! *2bit.* `r += g`; code 11 and `r -= t` if `r >= t`; code 10 and `r += t` if `r <= -t`; code 00 otherwise.
//! Four codes a byte, the first in the two highest bits. Decoded: `t`, `-t`, 0. Comparisons with NaN are
//! false, so its code is 00 and it stays in the residual.
//!
//! *1bit.* `r += g`; bit 1 and `r -= 1` if `r > t`; bit 0 and `r += 1` otherwise. Eight bits a byte, the
//! first in the highest. Decoded: 1, -1, whatever the threshold.
//!
//! Codes fill whole words of four bytes. The rest of the last word is zero.

use super::Level;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// The bytes of `len` codes of 2 bits.
pub(super) fn two_bit_bytes(len: usize) -> usize {
    4 * len.div_ceil(16)
}

/// The bytes of `len` codes of 1 bit.
pub(super) fn one_bit_bytes(len: usize) -> usize {
    4 * len.div_ceil(32)
}

pub(super) fn encode_2bit(level: Level, gradient: &[f32], residual: &mut [f32], threshold: f32, code: &mut [u8]) {
    assert_eq!(gradient.len(), residual.len(), "a residual for each element");
    assert_eq!(code.len(), two_bit_bytes(gradient.len()), "a code for each element");
    let done = match level {
        Level::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::encode_2bit(gradient, residual, threshold, code),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::encode_2bit(gradient, residual, threshold, code),
    };
    let code = &mut code[done / 4..];
    code.fill(0);
    for (byte, (gradient, residual)) in
        code.iter_mut().zip(gradient[done..].chunks(4).zip(residual[done..].chunks_mut(4)))
    {
        for (at, (gradient, residual)) in gradient.iter().zip(residual).enumerate() {
            let sum = *residual + gradient;
            let (up, down) = (sum >= threshold, sum <= -threshold);
            *byte |= ((3 * u8::from(up)) | (2 * u8::from(down))) << (6 - 2 * at);
            let step = if up { threshold } else { -threshold };
            *residual = sum - if up | down { step } else { 0.0 };
        }
    }
}

pub(super) fn add_2bit(level: Level, code: &[u8], threshold: f32, sum: &mut [f32]) {
    assert_eq!(code.len(), two_bit_bytes(sum.len()), "a code for each element");
    let done = match level {
        Level::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::add_2bit(code, threshold, sum),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::add_2bit(code, threshold, sum),
    };
    let values = [0.0, 0.0, -threshold, threshold];
    for (byte, sum) in code[done / 4..].iter().zip(sum[done..].chunks_mut(4)) {
        for (at, sum) in sum.iter_mut().enumerate() {
            *sum += values[usize::from(byte >> (6 - 2 * at)) & 3];
        }
    }
}

pub(super) fn encode_1bit(level: Level, gradient: &[f32], residual: &mut [f32], threshold: f32, code: &mut [u8]) {
    assert_eq!(gradient.len(), residual.len(), "a residual for each element");
    assert_eq!(code.len(), one_bit_bytes(gradient.len()), "a code for each element");
    let done = match level {
        Level::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::encode_1bit(gradient, residual, threshold, code),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::encode_1bit(gradient, residual, threshold, code),
    };
    let code = &mut code[done / 8..];
    code.fill(0);
    for (byte, (gradient, residual)) in
        code.iter_mut().zip(gradient[done..].chunks(8).zip(residual[done..].chunks_mut(8)))
    {
        for (at, (gradient, residual)) in gradient.iter().zip(residual).enumerate() {
            let sum = *residual + gradient;
            let up = sum > threshold;
            *byte |= u8::from(up) << (7 - at);
            *residual = sum - if up { 1.0 } else { -1.0 };
        }
    }
}

pub(super) fn add_1bit(level: Level, code: &[u8], sum: &mut [f32]) {
    assert_eq!(code.len(), one_bit_bytes(sum.len()), "a code for each element");
    let done = match level {
        Level::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::add_1bit(code, sum),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::add_1bit(code, sum),
    };
    for (byte, sum) in code[done / 8..].iter().zip(sum[done..].chunks_mut(8)) {
        for (at, sum) in sum.iter_mut().enumerate() {
            *sum += if byte >> (7 - at) & 1 == 1 { 1.0 } else { -1.0 };
        }
    }
}

/// Returns true if every code is one of 11, 10 and 00, and all bits behind the last one are zero.
pub(super) fn is_2bit(code: &[u8], len: usize) -> bool {
    let known = code.iter().fold(0, |wrong, byte| wrong | byte & !(byte >> 1) & 0x55) == 0;
    known && is_zero_behind(code, 2 * len)
}

/// Returns true if all bits behind the last code are zero.
pub(super) fn is_1bit(code: &[u8], len: usize) -> bool {
    is_zero_behind(code, len)
}

fn is_zero_behind(code: &[u8], bits: usize) -> bool {
    let (whole, rest) = (bits / 8, bits % 8);
    let behind = code.get(whole).is_none_or(|byte| rest == 0 || byte & (0xff >> rest) == 0);
    behind && code[code.len().min(bits.div_ceil(8))..].iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does two rounds of MXNet's own check of values, codes and residuals.
    #[test]
    fn two_bits_give_mxnets_values_over_two_rounds() {
        let (gradient, mut residual) = ([0.5f32, 0.49, -0.5, 1.7, -3.0], [0f32; 5]);
        for expected in [[0.5f32, 0.0, -0.5, 0.5, -0.5], [0.5, 0.5, -0.5, 0.5, -0.5]] {
            let mut code = vec![0xff; two_bit_bytes(5)];
            encode_2bit(Level::Scalar, &gradient, &mut residual, 0.5, &mut code);
            let mut sum = [0f32; 5];
            add_2bit(Level::Scalar, &code, 0.5, &mut sum);
            assert_eq!(sum, expected);
        }
        for (kept, expected) in residual.into_iter().zip([0.0, 0.48, 0.0, 2.4, -5.0]) {
            assert!((kept - expected).abs() < 1e-6, "{kept} where {expected} is kept");
        }
    }

    #[test]
    fn the_first_code_is_in_the_highest_bits_and_the_tail_is_zero() {
        // 11 00 10 11 | 10 00 00 00 and two empty bytes: one word of four bytes for up to 16 values.
        let mut code = vec![0xff; two_bit_bytes(5)];
        encode_2bit(Level::Scalar, &[0.5, 0.49, -0.5, 1.7, -3.0], &mut [0.0; 5], 0.5, &mut code);
        assert_eq!(code, [0b1100_1011, 0b1000_0000, 0, 0]);
        let mut code = vec![0xff; one_bit_bytes(9)];
        let gradient = [1.0, 0.5, 0.6, -2.0, 0.0, 9.0, 0.2, 0.4, 0.7];
        encode_1bit(Level::Scalar, &gradient, &mut [0.0; 9], 0.5, &mut code);
        assert_eq!(code, [0b1010_0100, 0b1000_0000, 0, 0]);
        assert_eq!((two_bit_bytes(16), two_bit_bytes(17), one_bit_bytes(32), one_bit_bytes(33)), (4, 8, 4, 8));
    }

    #[test]
    fn one_bit_moves_the_residual_by_1_whatever_the_threshold() {
        let mut residual = [0f32; 4];
        let mut code = [0; 4];
        encode_1bit(Level::Scalar, &[0.75, 0.25, -0.25, 0.5], &mut residual, 0.5, &mut code);
        assert_eq!(residual, [-0.25, 1.25, 0.75, 1.5]);
        let mut sum = [0f32; 4];
        add_1bit(Level::Scalar, &code, &mut sum);
        assert_eq!(sum, [1.0, -1.0, -1.0, -1.0]);
    }

    #[test]
    fn codes_that_no_worker_sends_are_found() {
        assert!(is_2bit(&[0b1100_1011, 0b1000_0000, 0, 0], 5));
        assert!(!is_2bit(&[0b0100_0000, 0, 0, 0], 5), "01 is no code");
        assert!(!is_2bit(&[0, 0b0010_0000, 0, 0], 5), "a sixth value");
        assert!(!is_2bit(&[0, 0, 0, 0b11], 5), "a last value");
        assert!(is_1bit(&[0xff, 0x80, 0, 0], 9) && !is_1bit(&[0xff, 0x40, 0, 0], 9) && !is_1bit(&[0, 0, 0, 1], 9));
        assert!(is_2bit(&[], 0) && is_1bit(&[], 0) && is_1bit(&[0xff; 4], 32));
    }
}
