//! The kernel of every machine, in the element's own arithmetic. Runs of a fixed length, which compilers make
//! vectors of.
#![allow(unsafe_code)]

use ringpull_base::{DType, Element, with_element};

use super::Sum;

/// Elements summed at a time.
const RUN: usize = 32;

pub(super) fn of(dtype: DType) -> Sum {
    with_element!(dtype, T => sum::<T>)
}

/// # Safety
/// All of `inputs` and `outputs` are valid for `len_bytes`; an output is one of the inputs or overlaps none
/// of them.
unsafe fn sum<T: Element>(inputs: &[*const u8], outputs: &[*mut u8], len_bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { sum_from::<T>(inputs, outputs, 0, len_bytes) }
}

/// As [`sum`], from byte `at` on.
///
/// # Safety
/// As of [`sum`]; `at` is at the start of an element.
pub(super) unsafe fn sum_from<T: Element>(inputs: &[*const u8], outputs: &[*mut u8], mut at: usize, len_bytes: usize) {
    let run_bytes = RUN * size_of::<T>();
    while at + run_bytes <= len_bytes {
        // SAFETY: `run_bytes` bytes at `at` are within every buffer.
        unsafe { sum_run::<T, RUN>(inputs, outputs, at) };
        at += run_bytes;
    }
    while at < len_bytes {
        // SAFETY: `len_bytes` is whole elements, so one more is within every buffer.
        unsafe { sum_run::<T, 1>(inputs, outputs, at) };
        at += size_of::<T>();
    }
}

/// # Safety
/// `LEN` elements at byte `at` are within every buffer.
#[inline(always)]
unsafe fn sum_run<T: Element, const LEN: usize>(inputs: &[*const u8], outputs: &[*mut u8], at: usize) {
    // SAFETY: as the caller promises; a `T` may have any bits.
    unsafe {
        let mut sum = inputs[0].add(at).cast::<[T; LEN]>().read_unaligned();
        for input in &inputs[1..] {
            let addend = input.add(at).cast::<[T; LEN]>().read_unaligned();
            for lane in 0..LEN {
                sum[lane] = sum[lane].plus(addend[lane]);
            }
        }
        for output in outputs {
            output.add(at).cast::<[T; LEN]>().write_unaligned(sum);
        }
    }
}
