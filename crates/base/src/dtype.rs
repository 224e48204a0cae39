//! Element types that a store sums.

use std::fmt;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::named::named;

named! {
    /// An element type.
    ///
    /// ```
    /// # use ringpull_base as ringpull;
    /// assert_eq!(ringpull::DType::BF16.size_bytes(), 2);
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    #[allow(missing_docs)]
    pub enum DType {
        F32 = "f32",
        F64 = "f64",
        F16 = "f16",
        BF16 = "bf16",
        I8 = "i8",
        U8 = "u8",
        I32 = "i32",
        I64 = "i64",
    }
}

impl DType {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// Returns the bytes of a tensor of this `shape`. It is an error if no memory could hold them.
    pub fn len_bytes(self, shape: &[usize]) -> Result<usize, Error> {
        let product = shape.iter().try_fold(self.size_bytes(), |bytes, dim| bytes.checked_mul(*dim));
        // This is a page less than a slice may have, since allocations are rounded up.
        let most = isize::MAX.unsigned_abs() - (64 << 10);
        product.filter(|bytes| *bytes <= most).ok_or_else(|| {
            Error::argument(
                format!("a tensor of {self} and shape {shape:?} has more bytes than can be addressed"),
                "give a smaller shape",
            )
        })
    }

    /// A value of the type and a shape, in words.
    pub fn of_shape(self, shape: impl fmt::Debug) -> String {
        format!("{self} of shape {shape:?}")
    }

    /// Returns true if sums of the type are computed in a longer type and rounded.
    pub fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// Returns true if the type has NaN and Inf, and optimizers work on it.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the element of some [`DType`].
pub trait Element: bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed {
    /// The element's type.
    const DTYPE: DType;
    /// Returns `self + other` in this type's arithmetic. Integers wrap, and f16 and bf16 are rounded once
    /// from f32.
    #[must_use]
    fn plus(self, other: Self) -> Self;
    /// Returns `self * other` in this type's arithmetic.
    #[must_use]
    fn times(self, other: Self) -> Self;
    /// Returns the lesser of both. The order of the two does not matter: NaN is the least, and -0 is less
    /// than 0.
    #[must_use]
    fn least(self, other: Self) -> Self;
    /// Returns the greater of both. The order of the two does not matter: NaN is the greatest, and 0 is
    /// greater than -0.
    #[must_use]
    fn greatest(self, other: Self) -> Self;
    /// Returns `self / divisor`. An integer is rounded towards zero, and another type is divided in its
    /// arithmetic.
    #[must_use]
    fn over(self, divisor: u32) -> Self;
    /// Returns the value as f64, for checks and messages.
    fn to_f64(self) -> f64;
    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident, $arithmetic:ident, |$v:ident| $to:expr, |$w:ident| $from:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            $arithmetic!($type);
            fn to_f64(self) -> f64 { let $v = self; $to }
            fn from_f64(value: f64) -> Self { let $w = value; $from }
        }
    )*};
}

macro_rules! integer {
    ($type:ty) => {
        #[inline(always)]
        fn plus(self, other: Self) -> Self {
            self.wrapping_add(other)
        }
        #[inline(always)]
        fn times(self, other: Self) -> Self {
            self.wrapping_mul(other)
        }
        #[inline(always)]
        fn least(self, other: Self) -> Self {
            self.min(other)
        }
        #[inline(always)]
        fn greatest(self, other: Self) -> Self {
            self.max(other)
        }
        #[inline(always)]
        fn over(self, divisor: u32) -> Self {
            (i64::from(self) / i64::from(divisor)) as $type
        }
    };
}

/// Defines `least` and `greatest` with the comparisons of the type itself.
macro_rules! order {
    () => {
        #[inline(always)]
        fn least(self, other: Self) -> Self {
            if self < other || (self == other && self.is_sign_negative()) || self.is_nan() { self } else { other }
        }
        #[inline(always)]
        fn greatest(self, other: Self) -> Self {
            if self > other || (self == other && self.is_sign_positive()) || self.is_nan() { self } else { other }
        }
    };
}

macro_rules! float {
    ($type:ty) => {
        #[inline(always)]
        fn plus(self, other: Self) -> Self {
            self + other
        }
        #[inline(always)]
        fn times(self, other: Self) -> Self {
            self * other
        }
        order!();
        #[inline(always)]
        fn over(self, divisor: u32) -> Self {
            self / divisor as $type
        }
    };
}

macro_rules! half_float {
    ($type:ty) => {
        #[inline(always)]
        fn plus(self, other: Self) -> Self {
            <$type>::from_f32(self.to_f32() + other.to_f32())
        }
        #[inline(always)]
        fn times(self, other: Self) -> Self {
            <$type>::from_f32(self.to_f32() * other.to_f32())
        }
        order!();
        #[inline(always)]
        fn over(self, divisor: u32) -> Self {
            <$type>::from_f32(self.to_f32() / divisor as f32)
        }
    };
}

elements! {
    f32 => F32, float, |v| v.into(), |w| w as f32;
    f64 => F64, float, |v| v, |w| w;
    f16 => F16, half_float, |v| v.to_f64(), |w| f16::from_f64(w);
    bf16 => BF16, half_float, |v| v.to_f64(), |w| bf16::from_f64(w);
    i8 => I8, integer, |v| v.into(), |w| w as i8;
    u8 => U8, integer, |v| v.into(), |w| w as u8;
    i32 => I32, integer, |v| v.into(), |w| w as i32;
    i64 => I64, integer, |v| v as f64, |w| w as i64;
}

/// Runs `$body` with `$T` as the Rust type of a [`DType`].
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::DType::F16 => {
                type $T = $crate::half::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $T = $crate::half::bf16;
                $body
            }
            $crate::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::DType::I64 => {
                type $T = i64;
                $body
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_with_more_bytes_than_addresses_is_an_error() {
        assert_eq!(DType::F32.len_bytes(&[2, 3]), Ok(24));
        assert_eq!(DType::F64.len_bytes(&[]), Ok(8));
        assert_eq!(DType::F64.len_bytes(&[0, 7]), Ok(0));
        for shape in [&[1 << 32, 1 << 32][..], &[usize::MAX], &[1 << 61], &[1 << 62, 4]] {
            let error = DType::F32.len_bytes(shape).unwrap_err().to_string();
            assert!(error.contains("more bytes than can be addressed") && error.contains("hint:"), "{error}");
        }
    }
}
