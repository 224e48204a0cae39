//! Sums of buffers, element by element: the only arithmetic on the path of a gradient. Also the other
//! reductions of the ranks' elements, by [`Reduction`].
//!
//! A [`Kernel`] is one set of machine code for all element types. The best one for the processor is chosen at
//! the first sum. `x86` has the kernels for AVX-512 and for AVX2 with F16C. `portable` has the kernel that
//! runs on every machine, against which the others are tested. It is compiled for the instructions that the
//! target always has (SSE2 on x86-64, NEON on 64-bit ARM), and converts f16 one at a time, by the `half`
//! crate.
//!
//! Every kernel gives the same bits: sums are made from left to right, f16 and bf16 are rounded to nearest
//! even after each addition, and integers wrap. Only for a sum of two NaNs the processor decides which one is
//! the result.
//!
//! No store bypasses the caches. If a sum overwrites its own operands, the lines have just been read, and
//! stores that bypass the caches took several times as long.
#![allow(unsafe_code)]

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

use ringpull_base::{DType, Element, Reduction, with_element};

/// Reduces `inputs` from left to right and stores the result to each of `outputs`, `len_bytes` bytes each.
type Reduce = unsafe fn(inputs: &[*const u8], outputs: &[*mut u8], len_bytes: usize);

/// The reduction operator of two elements, and their type.
pub type Arithmetic = (Reduction, DType);

/// One set of machine code for every sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// The instructions that every processor of the target has.
    Portable,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F and BW.
    Avx512,
}

impl Kernel {
    /// Returns the kernels that this processor can run, the best one last.
    pub fn available() -> Vec<Kernel> {
        let mut kernels = vec![Kernel::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
            if has_avx2 {
                kernels.push(Kernel::Avx2);
            }
            if has_avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                kernels.push(Kernel::Avx512);
            }
        }
        kernels
    }

    /// Returns the best kernel for this processor.
    pub fn best() -> Kernel {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| *Kernel::available().last().expect("the portable kernel is always there"))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Portable => "portable",
            Kernel::Avx2 => "AVX2",
            Kernel::Avx512 => "AVX-512",
        }
    }

    fn of(self, reduction: Reduction, dtype: DType) -> Reduce {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => x86::avx2(reduction, dtype),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512 => x86::avx512(reduction, dtype),
            _ => portable::of(reduction, dtype),
        }
    }

    /// Reduces as [`reduce_assign`] does, with this kernel.
    ///
    /// # Panics
    /// If the lengths differ or are not whole elements, or this processor cannot run it.
    pub fn reduce_assign(self, reduction: Reduction, dtype: DType, own: &mut [u8], other: &[u8]) {
        assert!(Kernel::available().contains(&self), "{} is not for this processor", self.name());
        reduce_by(self, reduction, dtype, own, other);
    }

    /// Adds as [`add_assign`] does, with this kernel.
    ///
    /// # Panics
    /// If the lengths differ or are not whole elements, or this processor cannot run it.
    pub fn add_assign(self, dtype: DType, sum: &mut [u8], addend: &[u8]) {
        assert!(Kernel::available().contains(&self), "{} is not for this processor", self.name());
        reduce_by(self, Reduction::Sum, dtype, sum, addend);
    }

    /// Sums as [`sum_into`] does, with this kernel.
    ///
    /// # Panics
    /// If the lengths differ or are not whole elements, or this processor cannot run it.
    pub fn sum_into(self, dtype: DType, sum: &mut [u8], addends: &[&[u8]]) {
        assert!(Kernel::available().contains(&self), "{} is not for this processor", self.name());
        sum_by(self, dtype, sum, addends);
    }
}

/// `sum[i] = sum[i] + addend[i]`. Both hold elements of `dtype`, at any alignment.
///
/// # Panics
/// If the lengths differ or are not whole elements: the caller has checked shapes before.
pub fn add_assign(dtype: DType, sum: &mut [u8], addend: &[u8]) {
    reduce_by(Kernel::best(), Reduction::Sum, dtype, sum, addend);
}

/// Sets `own[i]` to the `reduction` of `own[i]` and `other[i]`. For a sum or an average it does as
/// [`add_assign`]; [`divide`] does the division of an average.
///
/// # Panics
/// If the lengths differ or are not whole elements.
pub fn reduce_assign(reduction: Reduction, dtype: DType, own: &mut [u8], other: &[u8]) {
    reduce_by(Kernel::best(), reduction, dtype, own, other);
}

/// Multiplies every element by `factor`, in f64, and rounds it.
///
/// # Panics
/// If the bytes are not whole, aligned elements.
pub fn scale(dtype: DType, bytes: &mut [u8], factor: f64) {
    with_element!(dtype, T => bytemuck::cast_slice_mut::<u8, T>(bytes)
        .iter_mut().for_each(|value| *value = T::from_f64(Element::to_f64(*value) * factor)));
}

/// Divides every element by `divisor`, to turn a sum into an average.
///
/// # Panics
/// If the bytes are not whole, aligned elements.
pub fn divide(dtype: DType, bytes: &mut [u8], divisor: u32) {
    with_element!(dtype, T => bytemuck::cast_slice_mut::<u8, T>(bytes)
        .iter_mut().for_each(|value| *value = value.over(divisor)));
}

/// Sets `sum[i]` to the sum of all `addends[..][i]` from left to right, in one pass. The bits are those of a
/// copy of the first addend and [`add_assign`] of each of the others.
///
/// # Panics
/// If there is no addend, or the lengths differ or are not whole elements.
pub fn sum_into(dtype: DType, sum: &mut [u8], addends: &[&[u8]]) {
    sum_by(Kernel::best(), dtype, sum, addends);
}

fn reduce_by(kernel: Kernel, reduction: Reduction, dtype: DType, own: &mut [u8], other: &[u8]) {
    assert_eq!(own.len(), other.len(), "both buffers of a sum have one length");
    assert_eq!(own.len() % dtype.size_bytes(), 0, "a sum is of whole elements");
    let start = own.as_mut_ptr();
    // SAFETY: both are valid for the length; the output is the first input itself; the processor has been
    // asked.
    unsafe { kernel.of(reduction, dtype)(&[start.cast_const(), other.as_ptr()], &[start], own.len()) }
}

fn sum_by(kernel: Kernel, dtype: DType, sum: &mut [u8], addends: &[&[u8]]) {
    assert!(!addends.is_empty(), "a sum has at least one addend");
    assert!(addends.iter().all(|addend| addend.len() == sum.len()), "all buffers of a sum have one length");
    assert_eq!(sum.len() % dtype.size_bytes(), 0, "a sum is of whole elements");
    let inputs: Vec<*const u8> = addends.iter().map(|addend| addend.as_ptr()).collect();
    // SAFETY: all are valid for the length, and the output overlaps no input; the processor has been asked.
    unsafe { kernel.of(Reduction::Sum, dtype)(&inputs, &[sum.as_mut_ptr()], sum.len()) }
}

/// Reduces memory that other processes may map too. Reduces `inputs` from left to right, and stores the
/// result to each of `outputs`.
///
/// # Safety
/// All are valid for `len_bytes` bytes of whole elements, and nobody else touches them meanwhile. An output
/// is one of the inputs, or overlaps none of them. There is at least one input.
pub unsafe fn reduce_shared(
    (reduction, dtype): Arithmetic,
    inputs: &[*const u8],
    outputs: &[*mut u8],
    len_bytes: usize,
) {
    // SAFETY: as the caller promises; the processor has been asked.
    unsafe { Kernel::best().of(reduction, dtype)(inputs, outputs, len_bytes) }
}

/// Returns the index and the value of the first element that is NaN or Inf.
pub fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<(usize, f64)> {
    if !dtype.is_float() {
        return None;
    }
    with_element!(dtype, T => bytemuck::cast_slice::<u8, T>(bytes)
        .iter().map(|value| Element::to_f64(*value)).enumerate().find(|(_, value)| !value.is_finite()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_dtype_sums_exactly_on_small_integers() {
        for dtype in DType::ALL {
            with_element!(dtype, T => {
                let mut sum: Vec<T> = (0..67).map(|i| T::from_f64(f64::from(i))).collect();
                let addend: Vec<T> = (0..67).map(|i| T::from_f64(f64::from(i % 5))).collect();
                add_assign(dtype, bytemuck::cast_slice_mut(&mut sum), bytemuck::cast_slice(&addend));
                for (i, value) in sum.iter().enumerate() {
                    assert_eq!(Element::to_f64(*value), (i + i % 5) as f64, "{dtype} element {i}");
                }
            });
        }
    }

    #[test]
    fn nan_and_inf_pass_through_and_are_found_when_asked() {
        let mut sum = [1f32, f32::NAN, 2.0, f32::INFINITY];
        add_assign(DType::F32, bytemuck::cast_slice_mut(&mut sum), bytemuck::cast_slice(&[1f32; 4]));
        assert!(sum[0] == 2.0 && sum[1].is_nan() && sum[3].is_infinite());
        assert_eq!(first_not_finite(DType::F32, bytemuck::cast_slice(&sum)).map(|f| f.0), Some(1));
        assert_eq!(first_not_finite(DType::I32, bytemuck::cast_slice(&sum)), None);
    }

    /// The sum as the element's own arithmetic gives it, one addition after the other.
    fn reference(dtype: DType, addends: &[&[u8]]) -> Vec<u8> {
        with_element!(dtype, T => {
            let read = |bytes: &[u8]| -> Vec<T> {
                bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
            };
            let mut sum = read(addends[0]);
            for addend in &addends[1..] {
                sum.iter_mut().zip(read(addend)).for_each(|(to, from)| *to = to.plus(from));
            }
            bytemuck::cast_slice(&sum).to_vec()
        })
    }

    /// Equal bits, or both NaN.
    fn assert_same(dtype: DType, kernel: Kernel, got: &[u8], expected: &[u8]) {
        with_element!(dtype, T => {
            for (i, (got, expected)) in
                got.chunks_exact(size_of::<T>()).zip(expected.chunks_exact(size_of::<T>())).enumerate()
            {
                let value: f64 = Element::to_f64(bytemuck::pod_read_unaligned::<T>(expected));
                let other: f64 = Element::to_f64(bytemuck::pod_read_unaligned::<T>(got));
                let same = got == expected || (value.is_nan() && other.is_nan());
                assert!(same, "{dtype} element {i} by {}: {got:?}, expected {expected:?}", kernel.name());
            }
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_kernel_gives_the_bits_of_the_element_s_own_arithmetic(
            bytes in proptest::collection::vec(any::<u8>(), 8 * 700),
            count in 1usize..8,
            len in 0usize..75,
            shift in 0usize..9,
        ) {
            for dtype in DType::ALL {
                let len_bytes = len * dtype.size_bytes();
                let addends: Vec<&[u8]> = (0..count).map(|n| &bytes[n * 650 + shift..][..len_bytes]).collect();
                let expected = reference(dtype, &addends);
                for kernel in Kernel::available() {
                    let mut memory = vec![0x55u8; len_bytes + shift + 9];
                    kernel.sum_into(dtype, &mut memory[shift..][..len_bytes], &addends);
                    assert_same(dtype, kernel, &memory[shift..][..len_bytes], &expected);
                    prop_assert!(memory[..shift].iter().chain(&memory[shift + len_bytes..]).all(|byte| *byte == 0x55));
                    let mut sum = addends[0].to_vec();
                    addends[1..].iter().for_each(|addend| kernel.add_assign(dtype, &mut sum, addend));
                    assert_same(dtype, kernel, &sum, &expected);
                }
            }
        }
    }

    fn combined(reduction: Reduction, dtype: DType, own: &[u8], other: &[u8]) -> Vec<u8> {
        with_element!(dtype, T => {
            let read = |bytes: &[u8]| -> Vec<T> {
                bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
            };
            let combine = |(one, other): (T, T)| match reduction {
                Reduction::Sum | Reduction::Average => one.plus(other),
                Reduction::Min => one.least(other),
                Reduction::Max => one.greatest(other),
                Reduction::Product => one.times(other),
            };
            let all: Vec<T> = read(own).into_iter().zip(read(other)).map(combine).collect();
            bytemuck::cast_slice(&all).to_vec()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_reduction_of_every_kernel_gives_the_element_s_own_and_the_same_from_both_sides(
            bytes in proptest::collection::vec(any::<u8>(), 2 * 8 * 75 + 8),
            len in 0usize..75,
            shift in 0usize..8,
        ) {
            for reduction in Reduction::ALL {
                for dtype in DType::ALL {
                    let len_bytes = len * dtype.size_bytes();
                    let (one, other) = (&bytes[shift..][..len_bytes], &bytes[600 + shift..][..len_bytes]);
                    let expected = combined(reduction, dtype, one, other);
                    for kernel in Kernel::available() {
                        for (own, addend) in [(one, other), (other, one)] {
                            let mut own = own.to_vec();
                            kernel.reduce_assign(reduction, dtype, &mut own, addend);
                            assert_same(dtype, kernel, &own, &expected);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_least_and_the_greatest_of_two_do_not_depend_on_their_order() {
        for (one, other, least, greatest) in
            [(1.0, 2.0, 1.0, 2.0), (-0.0, 0.0, -0.0, 0.0), (f32::NEG_INFINITY, 3.0, f32::NEG_INFINITY, 3.0)]
        {
            for (one, other) in [(one, other), (other, one)] {
                assert_eq!(Element::least(one, other).to_bits(), f32::to_bits(least));
                assert_eq!(Element::greatest(one, other).to_bits(), f32::to_bits(greatest));
                assert!(Element::least(one, f32::NAN).is_nan() && Element::greatest(f32::NAN, one).is_nan());
            }
        }
    }

    #[test]
    fn averages_of_integers_are_rounded_towards_zero_and_factors_are_rounded_once() {
        let mut values = [-7i64, 7, i64::MAX];
        divide(DType::I64, bytemuck::cast_slice_mut(&mut values), 2);
        assert_eq!(values, [-3, 3, i64::MAX / 2]);
        let mut values = [1.0f32, 3.0];
        divide(DType::F32, bytemuck::cast_slice_mut(&mut values), 4);
        scale(DType::F32, bytemuck::cast_slice_mut(&mut values), 0.5);
        assert_eq!(values, [0.125, 0.375]);
    }

    #[test]
    fn every_pair_of_halves_near_a_tie_is_rounded_to_even() {
        for dtype in [DType::F16, DType::BF16] {
            for high in (0..=u16::MAX).step_by(257) {
                let one: Vec<u8> = (0..512u16).flat_map(|_| high.to_le_bytes()).collect();
                let other: Vec<u8> = (0..512u16).flat_map(|n| (n * 127).to_le_bytes()).collect();
                let expected = reference(dtype, &[&one, &other]);
                for kernel in Kernel::available() {
                    let mut sum = one.clone();
                    kernel.add_assign(dtype, &mut sum, &other);
                    assert_same(dtype, kernel, &sum, &expected);
                }
            }
        }
    }

    #[test]
    fn one_sum_goes_to_every_output_in_place() {
        let mut memory = [[1f32, 2.0, 3.0], [10.0, 20.0, 30.0], [100.0, 200.0, 300.0]];
        let starts: Vec<*mut u8> = memory.iter_mut().map(|row| row.as_mut_ptr().cast()).collect();
        let inputs: Vec<*const u8> = starts.iter().map(|start| start.cast_const()).collect();
        // SAFETY: three rows of 12 bytes that do not overlap; each output is an input.
        unsafe { reduce_shared((Reduction::Sum, DType::F32), &inputs, &starts, 12) };
        assert_eq!(memory, [[111.0, 222.0, 333.0]; 3]);
    }
}
