//! Elements as bytes of any alignment, and the number types in which updates are computed.

use std::ops::{Add, Div, Mul, Neg, Sub};

use ringpull_base::half::{bf16, f16};

/// A number type in which updates are computed: f32, or f64 for f64 weights.
pub(super) trait Real:
    Copy
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + StoredFloat<Real = Self>
{
    const ZERO: Self;
    const ONE: Self;
    fn from_f64(value: f64) -> Self;
    fn sqrt(self) -> Self;

    /// `self` within `[-limit, limit]`; NaN stays NaN.
    #[inline]
    fn clipped(self, limit: Self) -> Self {
        if self > limit {
            limit
        } else if self < -limit {
            -limit
        } else {
            self
        }
    }
}

/// A float type as bytes. Received frames and saved states are not aligned, so elements are read as bytes,
/// which compiles to vector loads all the same.
pub(super) trait StoredFloat {
    type Bytes: bytemuck::Pod + Send + Sync;
    type Real: Real;
    fn load(bytes: Self::Bytes) -> Self::Real;
    fn store(value: Self::Real) -> Self::Bytes;
}

/// The bytes of `bytes` as elements of `T`.
pub(super) fn elements<T: StoredFloat>(bytes: &[u8]) -> &[T::Bytes] {
    bytemuck::cast_slice(bytes)
}

/// As [`elements`], for writing.
pub(super) fn elements_mut<T: StoredFloat>(bytes: &mut [u8]) -> &mut [T::Bytes] {
    bytemuck::cast_slice_mut(bytes)
}

macro_rules! reals {
    ($($type:ident, $size:literal;)*) => {$(
        impl Real for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline]
            fn from_f64(value: f64) -> Self { value as $type }
            #[inline]
            fn sqrt(self) -> Self { $type::sqrt(self) }
        }

        impl StoredFloat for $type {
            type Bytes = [u8; $size];
            type Real = $type;
            #[inline]
            fn load(bytes: Self::Bytes) -> $type { $type::from_le_bytes(bytes) }
            #[inline]
            fn store(value: $type) -> Self::Bytes { value.to_le_bytes() }
        }
    )*};
}

reals! {
    f32, 4;
    f64, 8;
}

macro_rules! halves {
    ($($type:ident),*) => {$(
        impl StoredFloat for $type {
            type Bytes = [u8; 2];
            type Real = f32;
            #[inline]
            fn load(bytes: Self::Bytes) -> f32 { $type::from_le_bytes(bytes).to_f32() }
            #[inline]
            fn store(value: f32) -> Self::Bytes { $type::from_f32(value).to_le_bytes() }
        }
    )*};
}

halves!(f16, bf16);
