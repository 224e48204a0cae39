//! The instructions by their names, as a GPU computes them: a NaN that arithmetic makes is the canonical one,
//! and f16 and bf16 are rounded to nearest even.
// One macro has the casts of all widths. Comparisons that are true for a NaN are written as negations.
#![allow(clippy::cast_lossless, clippy::unnecessary_cast, clippy::neg_cmp_op_on_partial_ord)]

use half::{bf16, f16};

use super::{One, Three, Two};

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// The bits of a result of f32 arithmetic.
fn f32_bits(value: f32) -> u64 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits().into() }
}

fn f64_bits(value: f64) -> u64 {
    if value.is_nan() { 0x7fff_ffff_ffff_ffff } else { value.to_bits() }
}

fn f16_bits(value: f32) -> u64 {
    if value.is_nan() { 0x7fff } else { f16::from_f32(value).to_bits().into() }
}

fn bf16_bits(value: f32) -> u64 {
    if value.is_nan() { 0x7fff } else { bf16::from_f32(value).to_bits().into() }
}

/// `$result` for the integers that `$kind` names, which are called `$type` in it.
macro_rules! any_integer {
    ($kind:expr, $type:ident => $result:expr) => {
        any_integer!(
            $kind,
            $type => $result,
            ("u8" | "b8", u8),
            ("s8", i8),
            ("u16" | "b16", u16),
            ("s16", i16),
            ("u32" | "b32", u32),
            ("s32", i32),
            ("u64" | "b64", u64),
            ("s64", i64)
        )
    };
    ($kind:expr, $type:ident => $result:expr, $(($names:pat, $integer:ty)),*) => {
        match $kind {
            $($names => { type $type = $integer; $result })*
            _ => return None,
        }
    };
}

/// The instruction of one operand whose name, without its modifiers of rounding and caching, is `name`.
pub(super) fn one(name: &str, kinds: &[&str]) -> Option<One> {
    Some(match (name, kinds) {
        ("mov" | "cvta", _) => |a| a,
        ("not", ["pred"]) => |a| u64::from(a == 0),
        ("not", ["b16"]) => |a| u64::from(!(a as u16)),
        ("not", ["b32"]) => |a| u64::from(!(a as u32)),
        ("not", ["b64"]) => |a| !a,
        ("neg", ["f32"]) => |a| f32_bits(-f32_of(a)),
        ("neg", ["f64"]) => |a| f64_bits(-f64_of(a)),
        ("abs", ["f32"]) => |a| f32_bits(f32_of(a).abs()),
        ("abs", ["f64"]) => |a| f64_bits(f64_of(a).abs()),
        ("sqrt", ["f32"]) => |a| f32_bits(f32_of(a).sqrt()),
        ("sqrt", ["f64"]) => |a| f64_bits(f64_of(a).sqrt()),
        ("rcp", ["f32"]) => |a| f32_bits(1.0 / f32_of(a)),
        ("rcp", ["f64"]) => |a| f64_bits(1.0 / f64_of(a)),
        ("neg", [kind]) => any_integer!(*kind, T => |a| narrow::<{ T::BITS }>(0u64.wrapping_sub(a))),
        ("cvt", [to, from]) => convert(to, from)?,
        _ => return None,
    })
}

fn convert(to: &str, from: &str) -> Option<One> {
    Some(match (to, from) {
        ("f32", "f32") => |a| f32_bits(f32_of(a)),
        ("f32", "f64") => |a| f32_bits(f64_of(a) as f32),
        ("f64", "f32") => |a| f64_bits(f32_of(a).into()),
        ("f32", "f16") => |a| f32_bits(f16::from_bits(a as u16).to_f32()),
        ("f16", "f32") => |a| f16_bits(f32_of(a)),
        ("f32", "bf16") => |a| f32_bits(bf16::from_bits(a as u16).to_f32()),
        ("bf16", "f32") => |a| bf16_bits(f32_of(a)),
        ("f32", _) => any_integer!(from, T => |a| f32_bits((a as T) as f32)),
        ("f64", _) => any_integer!(from, T => |a| f64_bits((a as T) as f64)),
        (_, "f32" | "f64" | "f16" | "bf16") => return None,
        _ => return widen(to, from),
    })
}

/// From integer to integer: the source is extended by its sign or by zeros, and cut to the destination.
fn widen(to: &str, from: &str) -> Option<One> {
    Some(any_integer!(from, From => any_integer!(to, To => |a| (a as From) as To as u64)))
}

/// The instruction of two operands.
pub(super) fn two(name: &str, kinds: &[&str]) -> Option<Two> {
    Some(match (name, kinds) {
        ("add", ["f32"]) => |a, b| f32_bits(f32_of(a) + f32_of(b)),
        ("add", ["f64"]) => |a, b| f64_bits(f64_of(a) + f64_of(b)),
        ("sub", ["f32"]) => |a, b| f32_bits(f32_of(a) - f32_of(b)),
        ("sub", ["f64"]) => |a, b| f64_bits(f64_of(a) - f64_of(b)),
        ("mul", ["f32"]) => |a, b| f32_bits(f32_of(a) * f32_of(b)),
        ("mul", ["f64"]) => |a, b| f64_bits(f64_of(a) * f64_of(b)),
        ("div", ["f32"]) => |a, b| f32_bits(f32_of(a) / f32_of(b)),
        ("div", ["f64"]) => |a, b| f64_bits(f64_of(a) / f64_of(b)),
        ("min", ["f32"]) => |a, b| f32_bits(f32_of(a).min(f32_of(b))),
        ("max", ["f32"]) => |a, b| f32_bits(f32_of(a).max(f32_of(b))),
        ("and", ["pred"]) => |a, b| a & b,
        ("or", ["pred"]) => |a, b| a | b,
        ("xor", ["pred"]) => |a, b| a ^ b,
        ("shl", ["b16"]) => |a, b| u64::from((a as u16).checked_shl(b as u32).unwrap_or(0)),
        ("shl", ["b32"]) => |a, b| u64::from((a as u32).checked_shl(b as u32).unwrap_or(0)),
        ("shl", ["b64"]) => |a, b| a.checked_shl(b as u32).unwrap_or(0),
        ("mul.wide", ["u16"]) => |a, b| u64::from(u32::from(a as u16) * u32::from(b as u16)),
        ("mul.wide", ["s16"]) => |a, b| u64::from((i32::from(a as i16) * i32::from(b as i16)) as u32),
        ("mul.wide", ["u32"]) => |a, b| u64::from(a as u32) * u64::from(b as u32),
        ("mul.wide", ["s32"]) => |a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64,
        ("mul.hi", ["u32"]) => |a, b| (u64::from(a as u32) * u64::from(b as u32)) >> 32,
        ("mul.hi", ["u64"]) => |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64,
        ("mul.hi", ["s32"]) => |a, b| u64::from(((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
        (comparison, ["f32"]) if comparison.starts_with("setp.") => compare_f32(&comparison[5..])?,
        (comparison, ["f64"]) if comparison.starts_with("setp.") => compare_f64(&comparison[5..])?,
        (comparison, [kind]) if comparison.starts_with("setp.") => compare(&comparison[5..], kind)?,
        (_, [kind]) => return integers(name, kind),
        _ => return None,
    })
}

fn integers(name: &str, kind: &str) -> Option<Two> {
    // A result is cut to its width, so that it is never seen wider.
    macro_rules! of {
        ($type:ident => |$a:ident, $b:ident| $result:expr) => {
            any_integer!(kind, $type => |$a, $b| narrow::<{ $type::BITS }>(($result) as u64))
        };
    }
    Some(match name {
        "add" => of!(T => |a, b| (a as T).wrapping_add(b as T)),
        "sub" => of!(T => |a, b| (a as T).wrapping_sub(b as T)),
        "mul.lo" => of!(T => |a, b| (a as T).wrapping_mul(b as T)),
        "div" => of!(T => |a, b| (a as T).checked_div(b as T).unwrap_or(T::MAX)),
        "rem" => of!(T => |a, b| (a as T).checked_rem(b as T).unwrap_or(a as T)),
        "and" => of!(T => |a, b| a & b),
        "or" => of!(T => |a, b| a | b),
        "xor" => of!(T => |a, b| a ^ b),
        "min" => of!(T => |a, b| (a as T).min(b as T)),
        "max" => of!(T => |a, b| (a as T).max(b as T)),
        // Shifted beyond its width, a value is only sign bits or zeros.
        "shr" => of!(T => |a, b| i128::from(a as T) >> (b as u32).min(64)),
        _ => return None,
    })
}

fn narrow<const BITS: u32>(value: u64) -> u64 {
    value & (u64::MAX >> (64 - BITS))
}

fn compare(how: &str, kind: &str) -> Option<Two> {
    Some(match how {
        "eq" => any_integer!(kind, T => |a, b| u64::from(a as T == b as T)),
        "ne" => any_integer!(kind, T => |a, b| u64::from(a as T != b as T)),
        "lt" | "lo" => any_integer!(kind, T => |a, b| u64::from((a as T) < b as T)),
        "le" | "ls" => any_integer!(kind, T => |a, b| u64::from(a as T <= b as T)),
        "gt" | "hi" => any_integer!(kind, T => |a, b| u64::from(a as T > b as T)),
        "ge" | "hs" => any_integer!(kind, T => |a, b| u64::from(a as T >= b as T)),
        _ => return None,
    })
}

/// Comparisons that end in `u` are true for a NaN, and the others are false.
macro_rules! compare_floats {
    ($function:ident, $of:ident) => {
        fn $function(how: &str) -> Option<Two> {
            Some(match how {
                "eq" => |a, b| u64::from($of(a) == $of(b)),
                "ne" => |a, b| u64::from($of(a) < $of(b) || $of(a) > $of(b)),
                "lt" => |a, b| u64::from($of(a) < $of(b)),
                "le" => |a, b| u64::from($of(a) <= $of(b)),
                "gt" => |a, b| u64::from($of(a) > $of(b)),
                "ge" => |a, b| u64::from($of(a) >= $of(b)),
                "equ" => |a, b| u64::from(!($of(a) < $of(b) || $of(a) > $of(b))),
                "neu" => |a, b| u64::from($of(a) != $of(b)),
                "ltu" => |a, b| u64::from(!($of(a) >= $of(b))),
                "leu" => |a, b| u64::from(!($of(a) > $of(b))),
                "gtu" => |a, b| u64::from(!($of(a) <= $of(b))),
                "geu" => |a, b| u64::from(!($of(a) < $of(b))),
                "num" => |a, b| u64::from(!$of(a).is_nan() && !$of(b).is_nan()),
                "nan" => |a, b| u64::from($of(a).is_nan() || $of(b).is_nan()),
                _ => return None,
            })
        }
    };
}
compare_floats!(compare_f32, f32_of);
compare_floats!(compare_f64, f64_of);

/// The instruction of three operands.
pub(super) fn three(name: &str, kinds: &[&str]) -> Option<Three> {
    Some(match (name, kinds) {
        ("selp", [_]) => |a, b, which| if which == 0 { b } else { a },
        ("fma", ["f32"]) => |a, b, c| f32_bits(f32_of(a).mul_add(f32_of(b), f32_of(c))),
        ("fma", ["f64"]) => |a, b, c| f64_bits(f64_of(a).mul_add(f64_of(b), f64_of(c))),
        ("mad.lo", ["u32" | "s32"]) => |a, b, c| u64::from((a as u32).wrapping_mul(b as u32).wrapping_add(c as u32)),
        ("mad.lo", ["u64" | "s64"]) => |a, b, c| a.wrapping_mul(b).wrapping_add(c),
        ("mad.wide", ["u32"]) => |a, b, c| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c),
        ("mad.wide", ["s32"]) => |a, b, c| ((i64::from(a as i32) * i64::from(b as i32)) as u64).wrapping_add(c),
        ("prmt", ["b32"]) => permute,
        _ => return None,
    })
}

/// Selects four bytes of eight. Each is chosen by four bits, and the highest of these bits asks for the
/// byte's sign instead.
fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = (u64::from(b as u32) << 32) | u64::from(a as u32);
    (0..4).fold(0, |result, place| {
        let choice = selector >> (4 * place);
        let byte = (bytes >> (8 * (choice & 7))) as u8;
        let byte = if choice & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        result | u64::from(byte) << (8 * place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_width_of_their_type_and_signs_count() {
        assert_eq!(two("add", &["s16"]).unwrap()(0xffff_ffff, 2), 1);
        assert_eq!(two("shr", &["s32"]).unwrap()(0x8000_0000, 40), 0xffff_ffff);
        assert_eq!(two("shr", &["u32"]).unwrap()(0x8000_0000, 31), 1);
        assert_eq!(two("setp.lt", &["s32"]).unwrap()(0xffff_ffff, 0), 1);
        assert_eq!(two("setp.lt", &["u32"]).unwrap()(0xffff_ffff, 0), 0);
        assert_eq!(one("cvt", &["s32", "s8"]).unwrap()(0x80), 0xffff_ffff_ffff_ff80);
        assert_eq!(one("neg", &["s32"]).unwrap()(1), 0xffff_ffff);
        assert_eq!(three("prmt", &["b32"]).unwrap()(0x3322_1100, 0x7766_5544, 0x7531), 0x7755_3311);
        assert_eq!(three("prmt", &["b32"]).unwrap()(0x80, 0, 0x8), 0x8080_80ff);
    }

    #[test]
    fn a_nan_is_in_no_order_and_arithmetic_makes_the_canonical_one() {
        let nan = u64::from(f32::NAN.to_bits());
        assert_eq!((two("setp.lt", &["f32"]).unwrap()(nan, 0), two("setp.geu", &["f32"]).unwrap()(nan, 0)), (0, 1));
        assert_eq!((two("setp.ne", &["f32"]).unwrap()(nan, 0), two("setp.neu", &["f32"]).unwrap()(nan, 0)), (0, 1));
        assert_eq!(two("add", &["f32"]).unwrap()(nan, 0), 0x7fff_ffff);
        assert_eq!(one("cvt", &["f16", "f32"]).unwrap()(nan), 0x7fff);
        assert_eq!(one("cvt", &["f16", "f32"]).unwrap()(u64::from(65520f32.to_bits())), 0x7c00);
    }
}
