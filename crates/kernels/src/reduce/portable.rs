//! The kernel of every machine, in the element's own arithmetic. Elements are reduced in runs of a fixed
//! length, which compilers turn into vector code.
#![allow(unsafe_code)]

use ringpull_base::{DType, Element, Reduction, with_element};

use super::Reduce;

/// Elements reduced at a time.
const RUN: usize = 32;

/// The reduction operator of two elements.
pub(super) trait Combine {
    fn combine<T: Element>(one: T, other: T) -> T;
}

pub(super) struct Plus;
pub(super) struct Times;
pub(super) struct Minimum;
pub(super) struct Maximum;

impl Combine for Plus {
    #[inline(always)]
    fn combine<T: Element>(one: T, other: T) -> T {
        one.plus(other)
    }
}

impl Combine for Times {
    #[inline(always)]
    fn combine<T: Element>(one: T, other: T) -> T {
        one.times(other)
    }
}

impl Combine for Minimum {
    #[inline(always)]
    fn combine<T: Element>(one: T, other: T) -> T {
        one.least(other)
    }
}

impl Combine for Maximum {
    #[inline(always)]
    fn combine<T: Element>(one: T, other: T) -> T {
        one.greatest(other)
    }
}

pub(super) fn of(reduction: Reduction, dtype: DType) -> Reduce {
    with_element!(dtype, T => match reduction {
        Reduction::Sum | Reduction::Average => reduce::<T, Plus>,
        Reduction::Min => reduce::<T, Minimum>,
        Reduction::Max => reduce::<T, Maximum>,
        Reduction::Product => reduce::<T, Times>,
    })
}

/// # Safety
/// All of `inputs` and `outputs` are valid for `len_bytes`; an output is one of the inputs or overlaps none
/// of them.
unsafe fn reduce<T: Element, C: Combine>(inputs: &[*const u8], outputs: &[*mut u8], len_bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { reduce_from::<T, C>(inputs, outputs, 0, len_bytes) }
}

/// Reduces as [`reduce`] does, from byte `at` on.
///
/// # Safety
/// As of [`reduce`]; `at` is at the start of an element.
#[inline(always)]
pub(super) unsafe fn reduce_from<T: Element, C: Combine>(
    inputs: &[*const u8],
    outputs: &[*mut u8],
    mut at: usize,
    len_bytes: usize,
) {
    let run_bytes = RUN * size_of::<T>();
    while at + run_bytes <= len_bytes {
        // SAFETY: `run_bytes` bytes at `at` are within every buffer.
        unsafe { reduce_run::<T, C, RUN>(inputs, outputs, at) };
        at += run_bytes;
    }
    while at < len_bytes {
        // SAFETY: `len_bytes` is whole elements, so one more is within every buffer.
        unsafe { reduce_run::<T, C, 1>(inputs, outputs, at) };
        at += size_of::<T>();
    }
}

/// # Safety
/// `LEN` elements at byte `at` are within every buffer.
#[inline(always)]
unsafe fn reduce_run<T: Element, C: Combine, const LEN: usize>(inputs: &[*const u8], outputs: &[*mut u8], at: usize) {
    // SAFETY: as the caller promises; a `T` may have any bits.
    unsafe {
        let mut total = inputs[0].add(at).cast::<[T; LEN]>().read_unaligned();
        for input in &inputs[1..] {
            let next = input.add(at).cast::<[T; LEN]>().read_unaligned();
            for lane in 0..LEN {
                total[lane] = C::combine(total[lane], next[lane]);
            }
        }
        for output in outputs {
            output.add(at).cast::<[T; LEN]>().write_unaligned(total);
        }
    }
}
