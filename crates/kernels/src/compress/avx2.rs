//! The codecs' loops on vectors of 256 bits. Each does whole runs of elements, returns their number, and
//! leaves the rest to the scalar loop.
#![allow(unsafe_code)]
// Intrinsics are recognised by their prefix, so a list of fifty names would not help.
#![allow(clippy::wildcard_imports)]

use std::arch::x86_64::*;

use super::lanes::{BLOCK, Half, Width};

/// Defines functions that may be called on any processor. They panic if the processor lacks the instructions
/// of their loops.
macro_rules! checked {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        pub(super) fn $name($($argument: $type),*) $(-> $result)? {
            assert!(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"), "this processor has no AVX2");
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
    encode_half(half: Half, gradient: &[f32], residual: &mut [f32], code: &mut [u8]) -> usize;
    round_half(half: Half, values: &[f32], code: &mut [u8]) -> usize;
    add_half(half: Half, code: &[u8], sum: &mut [f32]) -> usize;
    widen_half(half: Half, code: &[u8], values: &mut [f32]) -> usize;
    sum_planes(width: Width, codes: &[&[u8]], whole: usize, sums: &mut [u8], bits: usize) -> usize;
    decode_planes(width: Width, count: usize, sums: &[u8], bits: usize, unit: f32, values: &mut [f32]) -> usize;
}

mod loops {
    use super::*;

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(values: &[f32], at: usize) -> __m256 {
        let eight = &values[at..at + 8];
        // SAFETY: the slice holds 8 floats.
        unsafe { _mm256_loadu_ps(eight.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(values: &mut [f32], at: usize, vector: __m256) {
        let eight = &mut values[at..at + 8];
        // SAFETY: the slice holds 8 floats.
        unsafe { _mm256_storeu_ps(eight.as_mut_ptr(), vector) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn sign() -> __m256 {
        _mm256_set1_ps(-0.0)
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn encode_2bit(gradient: &[f32], residual: &mut [f32], threshold: f32, code: &mut [u8]) -> usize {
        let (limit, three, ones) = (_mm256_set1_ps(threshold), _mm256_set1_epi32(3), _mm256_set1_epi16(1));
        let weights = _mm256_set1_epi32(i32::from_le_bytes([64, 16, 4, 1]));
        let first_bytes =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
        let (gradients, residuals) = (gradient.as_chunks::<32>().0, residual.as_chunks_mut::<32>().0);
        for ((gradient, residual), code) in gradients.iter().zip(residuals).zip(code.as_chunks_mut::<8>().0) {
            let mut codes = [_mm256_setzero_si256(); 4];
            for (at, codes) in codes.iter_mut().enumerate() {
                let sum = _mm256_add_ps(load(residual, 8 * at), load(gradient, 8 * at));
                let far = _mm256_cmp_ps::<_CMP_GE_OQ>(_mm256_andnot_ps(sign(), sum), limit);
                let step = _mm256_and_ps(far, _mm256_or_ps(_mm256_and_ps(sign(), sum), limit));
                store(residual, 8 * at, _mm256_sub_ps(sum, step));
                // The code is 3 above the limit, and 2 below its negative.
                let code = _mm256_add_epi32(three, _mm256_srai_epi32::<31>(_mm256_castps_si256(sum)));
                *codes = _mm256_and_si256(_mm256_castps_si256(far), code);
            }
            // Packing goes lane by lane: it keeps fours together, and a byte is made of four.
            let [a, b, c, d] = codes;
            let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let fours = _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, weights), ones);
            let packed = _mm256_shuffle_epi8(fours, first_bytes);
            let (even, odd) = (_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed));
            *code = _mm_cvtsi128_si64(_mm_unpacklo_epi8(even, odd)).to_le_bytes();
        }
        gradient.len() / 32 * 32
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn add_2bit(code: &[u8], threshold: f32, sum: &mut [f32]) -> usize {
        let (up, down) = (threshold, -threshold);
        let values = _mm256_setr_ps(0.0, 0.0, down, up, 0.0, 0.0, down, up);
        let first = _mm256_setr_epi32(6, 4, 2, 0, 14, 12, 10, 8);
        let second = _mm256_setr_epi32(22, 20, 18, 16, 30, 28, 26, 24);
        let sums = sum.as_chunks_mut::<16>().0;
        let done = 16 * sums.len();
        for (sum, code) in sums.iter_mut().zip(code.as_chunks::<4>().0) {
            let word = _mm256_set1_epi32(i32::from_le_bytes(*code));
            for (at, shifts) in [(0, first), (8, second)] {
                // The two lowest bits of each index choose the value.
                let decoded = _mm256_permutevar_ps(values, _mm256_srlv_epi32(word, shifts));
                let total = _mm256_add_ps(load(sum, at), decoded);
                store(sum, at, total);
            }
        }
        done
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn encode_1bit(gradient: &[f32], residual: &mut [f32], threshold: f32, code: &mut [u8]) -> usize {
        let (limit, one) = (_mm256_set1_ps(threshold), _mm256_set1_ps(1.0));
        let (gradients, residuals) = (gradient.as_chunks::<32>().0, residual.as_chunks_mut::<32>().0);
        for ((gradient, residual), code) in gradients.iter().zip(residuals).zip(code.as_chunks_mut::<4>().0) {
            let mut bits = [0u8; 4];
            for (at, bits) in bits.iter_mut().enumerate() {
                let sum = _mm256_add_ps(load(residual, 8 * at), load(gradient, 8 * at));
                let up = _mm256_cmp_ps::<_CMP_GT_OQ>(sum, limit);
                let step = _mm256_or_ps(one, _mm256_andnot_ps(up, sign()));
                store(residual, 8 * at, _mm256_sub_ps(sum, step));
                *bits = _mm256_movemask_ps(up) as u8;
            }
            // The bits of each byte are reversed, because the first element's bit must be the highest.
            *code = u32::from_le_bytes(bits).reverse_bits().to_be_bytes();
        }
        gradient.len() / 32 * 32
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn add_1bit(code: &[u8], sum: &mut [f32]) -> usize {
        let (one, to_sign) = (_mm256_set1_ps(1.0), _mm256_setr_epi32(24, 25, 26, 27, 28, 29, 30, 31));
        let sums = sum.as_chunks_mut::<8>().0;
        let done = 8 * sums.len();
        for (sum, code) in sums.iter_mut().zip(code) {
            let bit = _mm256_castsi256_ps(_mm256_sllv_epi32(_mm256_set1_epi32(i32::from(*code)), to_sign));
            let decoded = _mm256_or_ps(one, _mm256_andnot_ps(bit, sign()));
            let total = _mm256_add_ps(load(sum, 0), decoded);
            store(sum, 0, total);
        }
        done
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn narrow<const BF16: bool>(values: __m256) -> __m128i {
        if !BF16 {
            return _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
        }
        let bits = _mm256_castps_si256(values);
        let upper = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        let up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
        let halves = _mm256_blendv_epi8(_mm256_srli_epi32::<16>(up), quiet, is_nan);
        _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn widen<const BF16: bool>(halves: __m128i) -> __m256 {
        if BF16 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        } else {
            _mm256_cvtph_ps(halves)
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load_halves(code: &[u8; 16]) -> __m128i {
        // SAFETY: the array holds 16 bytes.
        unsafe { _mm_loadu_si128(code.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store_halves(code: &mut [u8; 16], halves: __m128i) {
        // SAFETY: the array holds 16 bytes.
        unsafe { _mm_storeu_si128(code.as_mut_ptr().cast(), halves) }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn encode_half(half: Half, gradient: &[f32], residual: &mut [f32], code: &mut [u8]) -> usize {
        match half {
            Half::Bf16 => encode_as::<true>(gradient, residual, code),
            Half::Fp16 => encode_as::<false>(gradient, residual, code),
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    fn encode_as<const BF16: bool>(gradient: &[f32], residual: &mut [f32], code: &mut [u8]) -> usize {
        let infinity = _mm256_set1_ps(f32::INFINITY);
        let (gradients, residuals) = (gradient.as_chunks::<8>().0, residual.as_chunks_mut::<8>().0);
        for ((gradient, residual), code) in gradients.iter().zip(residuals).zip(code.as_chunks_mut::<16>().0) {
            let sum = _mm256_add_ps(load(residual, 0), load(gradient, 0));
            let halves = narrow::<BF16>(sum);
            store_halves(code, halves);
            let sent = widen::<BF16>(halves);
            let is_finite = _mm256_cmp_ps::<_CMP_LT_OQ>(_mm256_andnot_ps(sign(), sent), infinity);
            store(residual, 0, _mm256_and_ps(is_finite, _mm256_sub_ps(sum, sent)));
        }
        gradient.len() / 8 * 8
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn round_half(half: Half, values: &[f32], code: &mut [u8]) -> usize {
        for (values, code) in values.as_chunks::<8>().0.iter().zip(code.as_chunks_mut::<16>().0) {
            let values = load(values, 0);
            let halves = if half == Half::Bf16 { narrow::<true>(values) } else { narrow::<false>(values) };
            store_halves(code, halves);
        }
        values.len() / 8 * 8
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn add_half(half: Half, code: &[u8], sum: &mut [f32]) -> usize {
        let sums = sum.as_chunks_mut::<8>().0;
        let done = 8 * sums.len();
        for (sum, code) in sums.iter_mut().zip(code.as_chunks::<16>().0) {
            let halves = load_halves(code);
            let decoded = if half == Half::Bf16 { widen::<true>(halves) } else { widen::<false>(halves) };
            let total = _mm256_add_ps(load(sum, 0), decoded);
            store(sum, 0, total);
        }
        done
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn widen_half(half: Half, code: &[u8], values: &mut [f32]) -> usize {
        let runs = values.as_chunks_mut::<8>().0;
        let done = 8 * runs.len();
        for (values, code) in runs.iter_mut().zip(code.as_chunks::<16>().0) {
            let halves = load_halves(code);
            store(values, 0, if half == Half::Bf16 { widen::<true>(halves) } else { widen::<false>(halves) });
        }
        done
    }

    /// Returns bytes of `word`: byte `i` of the result is the byte with the index in `places`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn spread(word: i64, places: __m256i) -> __m256i {
        _mm256_shuffle_epi8(_mm256_set1_epi64x(word), places)
    }

    /// Returns the indices of the 4 or 8 bytes of a word. Each index is repeated for each element in its
    /// byte.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn places(each: usize) -> __m256i {
        let places: [u8; 32] = std::array::from_fn(|at| (at / each) as u8);
        // SAFETY: the array holds 32 bytes.
        unsafe { _mm256_loadu_si256(places.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn sum_planes(width: Width, codes: &[&[u8]], whole: usize, sums: &mut [u8], bits: usize) -> usize {
        let bias = _mm256_set1_epi8(width.bias(codes.len()) as u8 as i8);
        let (by_4, by_8) = (places(4), places(8));
        let both = _mm256_set1_epi32(i32::from_le_bytes([0xc0, 0x30, 0x0c, 0x03]));
        let upper = _mm256_set1_epi32(i32::from_le_bytes([0x80, 0x20, 0x08, 0x02]));
        let single = _mm256_set1_epi64x(i64::from_le_bytes([0x80, 0x40, 0x20, 0x10, 0x08, 0x04, 0x02, 0x01]));
        for (block, sums) in sums.chunks_exact_mut(4 * bits).take(whole).enumerate() {
            let mut stored = bias;
            for code in codes {
                if width == Width::TwoBit {
                    let word = i64::from_le_bytes(code.as_chunks().0[block]);
                    let code = _mm256_and_si256(spread(word, by_4), both);
                    stored = _mm256_sub_epi8(stored, _mm256_cmpeq_epi8(code, both));
                    stored = _mm256_add_epi8(stored, _mm256_cmpeq_epi8(code, upper));
                } else {
                    let word = i64::from(u32::from_le_bytes(code.as_chunks().0[block]));
                    let code = _mm256_and_si256(spread(word, by_8), single);
                    stored = _mm256_sub_epi8(stored, _mm256_cmpeq_epi8(code, single));
                }
            }
            for (bit, word) in sums.chunks_exact_mut(4).enumerate() {
                // Shift the bit to the highest position of its byte.
                let high = _mm256_sll_epi16(stored, _mm_cvtsi32_si128(7 - bit as i32));
                word.copy_from_slice(&_mm256_movemask_epi8(high).to_le_bytes());
            }
        }
        whole * BLOCK
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn decode_planes(
        width: Width,
        count: usize,
        sums: &[u8],
        bits: usize,
        unit: f32,
        values: &mut [f32],
    ) -> usize {
        let by_8 = places(8);
        let single = _mm256_set1_epi64x(i64::from_le_bytes([0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80u8]));
        let (unit, count) = (_mm256_set1_ps(unit), _mm256_set1_epi32(count as i32));
        let again = _mm256_set1_epi32(if width == Width::OneBit { -1 } else { 0 });
        let blocks = values.as_chunks_mut::<BLOCK>().0;
        let done = BLOCK * blocks.len();
        for (values, sums) in blocks.iter_mut().zip(sums.chunks_exact(4 * bits)) {
            let mut stored = _mm256_setzero_si256();
            for (bit, word) in sums.as_chunks::<4>().0.iter().enumerate() {
                let plane = spread(i64::from(u32::from_le_bytes(*word)), by_8);
                let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(plane, single), single);
                stored = _mm256_or_si256(stored, _mm256_and_si256(is_set, _mm256_set1_epi8((1u8 << bit) as i8)));
            }
            let (low, high) = (_mm256_castsi256_si128(stored), _mm256_extracti128_si256::<1>(stored));
            for (at, eight) in [low, _mm_srli_si128::<8>(low), high, _mm_srli_si128::<8>(high)].into_iter().enumerate()
            {
                let stored = _mm256_cvtepu8_epi32(eight);
                let sum = _mm256_sub_epi32(_mm256_add_epi32(stored, _mm256_and_si256(stored, again)), count);
                store(values, 8 * at, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), unit));
            }
        }
        done
    }
}
