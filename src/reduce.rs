//! Sums of two buffers, element by element: the only arithmetic on the path of a gradient.

use crate::dtype::{DType, Element};
use crate::with_element;

/// `sum[i] = sum[i] + addend[i]`. Both hold elements of `dtype` and are aligned for it.
///
/// # Panics
/// If the lengths differ or are not whole elements: the caller has checked shapes before.
pub fn add_assign(dtype: DType, sum: &mut [u8], addend: &[u8]) {
    assert_eq!(sum.len(), addend.len(), "both buffers of a sum have one length");
    with_element!(dtype, T => add_elements::<T>(bytemuck::cast_slice_mut(sum), bytemuck::cast_slice(addend)));
}

fn add_elements<T: Element>(sum: &mut [T], addend: &[T]) {
    for (to, from) in sum.iter_mut().zip(addend) {
        *to = to.plus(*from);
    }
}

/// The index and value of the first element that is NaN or Inf.
pub fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<(usize, f64)> {
    if !dtype.is_float() {
        return None;
    }
    with_element!(dtype, T => bytemuck::cast_slice::<u8, T>(bytes)
        .iter().map(|value| Element::to_f64(*value)).enumerate().find(|(_, value)| !value.is_finite()))
}

#[cfg(test)]
mod tests {
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
}
