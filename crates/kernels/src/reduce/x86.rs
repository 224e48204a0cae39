//! The kernels of x86-64, written with the processor's vector instructions, so that a build without
//! optimisation has them too. The loop of `portable`, compiled for AVX2, is as fast only with full
//! optimisation, and not for f16 and bf16, whether these are converted one at a time or by `half`'s slices.
//!
//! A register holds the sums of some consecutive elements. f16 and bf16 are summed as f32 and rounded after
//! each addition. For bf16 the register keeps an f32 with zeros in its lower 16 bits, so that rounding is
//! integer arithmetic.
#![allow(unsafe_code)]
// All loads and stores here are the unaligned ones, whose arguments are pointers to registers.
#![allow(clippy::cast_ptr_alignment)]

use std::arch::x86_64::{
    __m128i, __m256, __m256i, __m512, __m512i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128,
    _mm_storeu_si128, _mm256_add_epi8, _mm256_add_epi32, _mm256_add_epi64, _mm256_add_pd, _mm256_add_ps,
    _mm256_and_si256, _mm256_blendv_epi8, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cmp_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_pd, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_or_si256, _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi32,
    _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_pd, _mm256_storeu_ps, _mm256_storeu_si256, _mm512_add_epi8,
    _mm512_add_epi32, _mm512_add_epi64, _mm512_add_pd, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_cvtps_ph, _mm512_loadu_pd, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_blend_epi32, _mm512_or_si512,
    _mm512_set1_epi32, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_pd, _mm512_storeu_ps, _mm512_storeu_si512,
};

use ringpull_base::half::{bf16, f16};
use ringpull_base::{DType, Element, Reduction, with_element};

use super::portable::{Combine, Maximum, Minimum, Plus, Times};
use super::{Reduce, portable};

/// Defines a kernel from the bytes of a register and the operations to load, add and store it.
macro_rules! kernels {
    ($($name:ident: $element:ty, $features:literal, $bytes:literal bytes,
        |$from:ident| $load:expr, |$a:ident, $b:ident| $add:expr, |$to:ident, $value:ident| $store:expr;)*) => {$(
        /// # Safety
        /// The processor has the features; all of `inputs` and `outputs` are valid for `len_bytes`, and an
        /// output is one of the inputs or overlaps none of them.
        #[target_feature(enable = $features)]
        unsafe fn $name(inputs: &[*const u8], outputs: &[*mut u8], len_bytes: usize) {
            // SAFETY: every access is below `len_bytes`, where all buffers are valid.
            unsafe {
                macro_rules! load { ($start:expr) => {{ let $from = $start; $load }}; }
                macro_rules! add { ($one:expr, $other:expr) => {{ let ($a, $b) = ($one, $other); $add }}; }
                macro_rules! store { ($start:expr, $sum:expr) => {{ let ($to, $value) = ($start, $sum); $store }}; }
                let (first, others) = (inputs[0], &inputs[1..]);
                let mut at = 0;
                while at + 4 * $bytes <= len_bytes {
                    let start = first.add(at);
                    let mut sums = (
                        load!(start),
                        load!(start.add($bytes)),
                        load!(start.add(2 * $bytes)),
                        load!(start.add(3 * $bytes)),
                    );
                    for input in others {
                        let start = input.add(at);
                        sums.0 = add!(sums.0, load!(start));
                        sums.1 = add!(sums.1, load!(start.add($bytes)));
                        sums.2 = add!(sums.2, load!(start.add(2 * $bytes)));
                        sums.3 = add!(sums.3, load!(start.add(3 * $bytes)));
                    }
                    for output in outputs {
                        let start = output.add(at);
                        store!(start, sums.0);
                        store!(start.add($bytes), sums.1);
                        store!(start.add(2 * $bytes), sums.2);
                        store!(start.add(3 * $bytes), sums.3);
                    }
                    at += 4 * $bytes;
                }
                while at + $bytes <= len_bytes {
                    let mut sum = load!(first.add(at));
                    for input in others {
                        sum = add!(sum, load!(input.add(at)));
                    }
                    for output in outputs {
                        store!(output.add(at), sum);
                    }
                    at += $bytes;
                }
                if at < len_bytes {
                    portable::reduce_from::<$element, Plus>(inputs, outputs, at, len_bytes);
                }
            }
        }
    )*};
}

kernels! {
    avx2_f32: f32, "avx2", 32 bytes,
        |from| _mm256_loadu_ps(from.cast()), |a, b| _mm256_add_ps(a, b), |to, v| _mm256_storeu_ps(to.cast(), v);
    avx2_f64: f64, "avx2", 32 bytes,
        |from| _mm256_loadu_pd(from.cast()), |a, b| _mm256_add_pd(a, b), |to, v| _mm256_storeu_pd(to.cast(), v);
    avx2_i8: i8, "avx2", 32 bytes, |from| _mm256_loadu_si256(from.cast()),
        |a, b| _mm256_add_epi8(a, b), |to, v| _mm256_storeu_si256(to.cast::<__m256i>(), v);
    avx2_i32: i32, "avx2", 32 bytes, |from| _mm256_loadu_si256(from.cast()),
        |a, b| _mm256_add_epi32(a, b), |to, v| _mm256_storeu_si256(to.cast::<__m256i>(), v);
    avx2_i64: i64, "avx2", 32 bytes, |from| _mm256_loadu_si256(from.cast()),
        |a, b| _mm256_add_epi64(a, b), |to, v| _mm256_storeu_si256(to.cast::<__m256i>(), v);
    avx2_f16: f16, "avx2,f16c", 16 bytes, |from| _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
        |a, b| _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_add_ps(a, b))),
        |to, v| _mm_storeu_si128(to.cast::<__m128i>(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
    avx2_bf16: bf16, "avx2", 16 bytes,
        |from| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())))),
        |a, b| round_to_bf16_avx2(_mm256_add_ps(a, b)),
        |to, v| _mm_storeu_si128(to.cast::<__m128i>(), upper_halves_avx2(v));
    avx512_f32: f32, "avx512f", 64 bytes,
        |from| _mm512_loadu_ps(from.cast()), |a, b| _mm512_add_ps(a, b), |to, v| _mm512_storeu_ps(to.cast(), v);
    avx512_f64: f64, "avx512f", 64 bytes,
        |from| _mm512_loadu_pd(from.cast()), |a, b| _mm512_add_pd(a, b), |to, v| _mm512_storeu_pd(to.cast(), v);
    avx512_i8: i8, "avx512f,avx512bw", 64 bytes, |from| _mm512_loadu_si512(from.cast()),
        |a, b| _mm512_add_epi8(a, b), |to, v| _mm512_storeu_si512(to.cast::<__m512i>(), v);
    avx512_i32: i32, "avx512f", 64 bytes, |from| _mm512_loadu_si512(from.cast()),
        |a, b| _mm512_add_epi32(a, b), |to, v| _mm512_storeu_si512(to.cast::<__m512i>(), v);
    avx512_i64: i64, "avx512f", 64 bytes, |from| _mm512_loadu_si512(from.cast()),
        |a, b| _mm512_add_epi64(a, b), |to, v| _mm512_storeu_si512(to.cast::<__m512i>(), v);
    avx512_f16: f16, "avx512f,avx2", 32 bytes, |from| _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())),
        |a, b| _mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_add_ps(a, b))),
        |to, v| _mm256_storeu_si256(to.cast::<__m256i>(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
    avx512_bf16: bf16, "avx512f,avx2", 32 bytes,
        |from| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))),
        |a, b| round_to_bf16_avx512(_mm512_add_ps(a, b)),
        |to, v| _mm256_storeu_si256(
            to.cast::<__m256i>(),
            _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(v))),
        );
}

/// The portable kernel, compiled for AVX2.
///
/// # Safety
/// As of a kernel above.
#[target_feature(enable = "avx2,f16c")]
unsafe fn by_avx2<T: Element, C: Combine>(inputs: &[*const u8], outputs: &[*mut u8], len_bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { portable::reduce_from::<T, C>(inputs, outputs, 0, len_bytes) }
}

/// Returns the AVX2 kernel. Only sums have a special kernel. The others are the portable ones, which the
/// compiler turns into vector code.
pub(super) fn avx2(reduction: Reduction, dtype: DType) -> Reduce {
    match reduction {
        Reduction::Sum | Reduction::Average => avx2_sum(dtype),
        Reduction::Min => with_element!(dtype, T => by_avx2::<T, Minimum>),
        Reduction::Max => with_element!(dtype, T => by_avx2::<T, Maximum>),
        Reduction::Product => with_element!(dtype, T => by_avx2::<T, Times>),
    }
}

fn avx2_sum(dtype: DType) -> Reduce {
    match dtype {
        DType::F32 => avx2_f32,
        DType::F64 => avx2_f64,
        DType::F16 => avx2_f16,
        DType::BF16 => avx2_bf16,
        DType::I8 | DType::U8 => avx2_i8,
        DType::I32 => avx2_i32,
        DType::I64 => avx2_i64,
    }
}

pub(super) fn avx512(reduction: Reduction, dtype: DType) -> Reduce {
    match (reduction, dtype) {
        (Reduction::Min | Reduction::Max | Reduction::Product, _) => avx2(reduction, dtype),
        (_, DType::F32) => avx512_f32,
        (_, DType::F64) => avx512_f64,
        (_, DType::F16) => avx512_f16,
        (_, DType::BF16) => avx512_bf16,
        (_, DType::I8 | DType::U8) => avx512_i8,
        (_, DType::I32) => avx512_i32,
        (_, DType::I64) => avx512_i64,
    }
}

/// Returns the nearest f32 with 16 zero bits at its end, with ties to even. A NaN stays a NaN.
#[inline]
#[target_feature(enable = "avx2")]
fn round_to_bf16_avx2(value: __m256) -> __m256 {
    let bits = _mm256_castps_si256(value);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
    let chosen = _mm256_blendv_epi8(rounded, quiet, is_nan);
    _mm256_castsi256_ps(_mm256_and_si256(chosen, _mm256_set1_epi32(-0x1_0000)))
}

/// The upper 16 bits of each of the 8 elements.
#[inline]
#[target_feature(enable = "avx2")]
fn upper_halves_avx2(value: __m256) -> __m128i {
    let halves = _mm256_srli_epi32::<16>(_mm256_castps_si256(value));
    // Packing works within 128 bits: the first and the third quarter hold the 8 halves.
    _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(halves, halves)))
}

/// As `round_to_bf16_avx2`.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_to_bf16_avx512(value: __m512) -> __m512 {
    let bits = _mm512_castps_si512(value);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
    let chosen = _mm512_mask_blend_epi32(is_nan, rounded, quiet);
    _mm512_castsi512_ps(_mm512_and_si512(chosen, _mm512_set1_epi32(-0x1_0000)))
}
