//! The codecs' loops on vectors of 512 bits, for the loops that are faster with them than with 256 bits. Each
//! does whole runs of elements, returns their number, and leaves the rest to the scalar loop.
#![allow(unsafe_code)]
// Intrinsics are recognised by their prefix, so a list of fifty names would not help.
#![allow(clippy::wildcard_imports)]

use std::arch::x86_64::*;

use super::Level;
use super::lanes::{BLOCK, Width};

/// Defines functions that may be called on any processor. They panic if the processor lacks the instructions
/// of their loops.
macro_rules! checked {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        pub(super) fn $name($($argument: $type),*) -> $result {
            assert!(Level::best() == Level::Avx512, "this processor has no AVX-512");
            // SAFETY: the processor has the instructions.
            unsafe { loops::$name($($argument),*) }
        }
    )*};
}

checked! {
    encode_2bit(gradient: &[f32], residual: &mut [f32], threshold: f32, code: &mut [u8]) -> usize;
    add_2bit(code: &[u8], threshold: f32, sum: &mut [f32]) -> usize;
    encode_1bit(gradient: &[f32], residual: &mut [f32], threshold: f32, code: &mut [u8]) -> usize;
    add_1bit(code: &[u8], sum: &mut [f32]) -> usize;
    decode_planes(width: Width, count: usize, sums: &[u8], bits: usize, unit: f32, values: &mut [f32]) -> usize;
}

/// The least number of decoded values that bypass the caches, if they begin at a whole line. So many values
/// are a segment of a gradient of megabytes, and its memory need not be read before it is written.
const STREAMED_LEN: usize = 64 << 10;

mod loops {
    use super::*;

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(values: &[f32], at: usize) -> __m512 {
        let sixteen = &values[at..at + 16];
        // SAFETY: the slice holds 16 floats.
        unsafe { _mm512_loadu_ps(sixteen.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store(values: &mut [f32], at: usize, vector: __m512) {
        let sixteen = &mut values[at..at + 16];
        // SAFETY: the slice holds 16 floats.
        unsafe { _mm512_storeu_ps(sixteen.as_mut_ptr(), vector) }
    }

    /// Returns pairs of bits, with the bit of `upper` above the bit of `lower`. There are four pairs to a
    /// byte, and the first is in its highest bits.
    #[inline]
    #[target_feature(enable = "bmi2")]
    fn interleave(upper: u32, lower: u32) -> u64 {
        let pairs = _pdep_u64(upper.into(), 0xaaaa_aaaa_aaaa_aaaa) | _pdep_u64(lower.into(), 0x5555_5555_5555_5555);
        let (twos, fours) = (0x3333_3333_3333_3333, 0x0f0f_0f0f_0f0f_0f0f);
        let pairs = (pairs & twos) << 2 | pairs >> 2 & twos;
        (pairs & fours) << 4 | pairs >> 4 & fours
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,bmi2")]
    pub(super) fn encode_2bit(gradient: &[f32], residual: &mut [f32], threshold: f32, code: &mut [u8]) -> usize {
        let (limit, negative) = (_mm512_set1_ps(threshold), _mm512_set1_ps(-threshold));
        let (gradients, residuals) = (gradient.as_chunks::<32>().0, residual.as_chunks_mut::<32>().0);
        for ((gradient, residual), code) in gradients.iter().zip(residuals).zip(code.as_chunks_mut::<8>().0) {
            let (mut far, mut above) = (0, 0);
            for at in [0, 16] {
                let sum = _mm512_add_ps(load(residual, at), load(gradient, at));
                let up = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(sum, limit);
                let down = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(sum, negative);
                let rest = _mm512_mask_sub_ps(sum, up, sum, limit);
                store(residual, at, _mm512_mask_add_ps(rest, down, sum, limit));
                above |= u32::from(up) << at;
                far |= u32::from(up | down) << at;
            }
            *code = interleave(far, above).to_le_bytes();
        }
        gradient.len() / 32 * 32
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn add_2bit(code: &[u8], threshold: f32, sum: &mut [f32]) -> usize {
        let (up, down) = (threshold, -threshold);
        let values = _mm512_broadcast_f32x4(_mm_setr_ps(0.0, 0.0, down, up));
        let shifts = _mm512_setr_epi32(6, 4, 2, 0, 14, 12, 10, 8, 22, 20, 18, 16, 30, 28, 26, 24);
        let sums = sum.as_chunks_mut::<16>().0;
        let done = 16 * sums.len();
        for (sum, code) in sums.iter_mut().zip(code.as_chunks::<4>().0) {
            let word = _mm512_set1_epi32(i32::from_le_bytes(*code));
            // The two lowest bits of each index choose the value.
            let decoded = _mm512_permutevar_ps(values, _mm512_srlv_epi32(word, shifts));
            let total = _mm512_add_ps(load(sum, 0), decoded);
            store(sum, 0, total);
        }
        done
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn encode_1bit(gradient: &[f32], residual: &mut [f32], threshold: f32, code: &mut [u8]) -> usize {
        let (limit, one) = (_mm512_set1_ps(threshold), _mm512_set1_ps(1.0));
        let (gradients, residuals) = (gradient.as_chunks::<32>().0, residual.as_chunks_mut::<32>().0);
        for ((gradient, residual), code) in gradients.iter().zip(residuals).zip(code.as_chunks_mut::<4>().0) {
            let mut bits = 0;
            for at in [0, 16] {
                let sum = _mm512_add_ps(load(residual, at), load(gradient, at));
                let up = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(sum, limit);
                let rest = _mm512_add_ps(sum, one);
                store(residual, at, _mm512_mask_sub_ps(rest, up, sum, one));
                bits |= u32::from(up) << at;
            }
            // The bits of each byte are reversed, because the first element's bit must be the highest.
            *code = bits.reverse_bits().to_be_bytes();
        }
        gradient.len() / 32 * 32
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn add_1bit(code: &[u8], sum: &mut [f32]) -> usize {
        let (one, minus_one) = (_mm512_set1_ps(1.0), _mm512_set1_ps(-1.0));
        let sums = sum.as_chunks_mut::<16>().0;
        let done = 16 * sums.len();
        for (sum, code) in sums.iter_mut().zip(code.as_chunks::<2>().0) {
            let up = u16::from_be_bytes(*code).reverse_bits();
            let decoded = _mm512_mask_blend_ps(up, minus_one, one);
            let total = _mm512_add_ps(load(sum, 0), decoded);
            store(sum, 0, total);
        }
        done
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn decode_planes(
        width: Width,
        count: usize,
        sums: &[u8],
        bits: usize,
        unit: f32,
        values: &mut [f32],
    ) -> usize {
        let (unit, count) = (_mm512_set1_ps(unit), _mm512_set1_epi32(count as i32));
        let streams = values.len() >= STREAMED_LEN && values.as_ptr().addr().is_multiple_of(64);
        let blocks = values.as_chunks_mut::<BLOCK>().0;
        let done = BLOCK * blocks.len();
        for (values, sums) in blocks.iter_mut().zip(sums.chunks_exact(4 * bits)) {
            let mut stored = [_mm512_setzero_si512(); 2];
            for (bit, word) in sums.as_chunks::<4>().0.iter().enumerate() {
                let (plane, one) = (u32::from_le_bytes(*word), _mm512_set1_epi32(width.factor() << bit));
                stored[0] = _mm512_mask_or_epi32(stored[0], plane as u16, stored[0], one);
                stored[1] = _mm512_mask_or_epi32(stored[1], (plane >> 16) as u16, stored[1], one);
            }
            for (stored, values) in stored.into_iter().zip(values.as_chunks_mut::<16>().0) {
                let value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(stored, count)), unit);
                if streams {
                    // SAFETY: the place holds 16 floats, and begins at a multiple of 64 bytes as the first
                    // one does.
                    unsafe { _mm512_stream_ps(values.as_mut_ptr(), value) };
                } else {
                    store(values, 0, value);
                }
            }
        }
        if streams {
            // The fence makes the values visible to a thread that learns that they are written.
            _mm_sfence();
        }
        done
    }
}
