//! The table of element types of programs' tensors: the type as which each travels, and its reductions.
//!
//! A store computes with the types of [`DType`]. A tensor of another type travels as elements of one of them:
//! a complex number as its two parts, a truth value as a byte, and a type without arithmetic here as bytes.
//! Names are those of NumPy, PyTorch and JAX.

use std::str::FromStr;

use crate::{DType, Error, Reduction, Result};

/// The reduction of the elements of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// Numbers: every reduction and a store's optimizers work on them.
    Numbers,
    /// Complex numbers: sums, averages and a store's optimizers work on the real and the imaginary part.
    Parts,
    /// Truth values: `max` is logical OR; `min` and `product` are logical AND.
    Truth,
    /// Unsigned integers: only sums and products, whose bits are the same as for signed integers.
    Wrapping,
    /// Elements that only travel: no reduction works on them.
    Nothing,
}

/// An element type of tensors that programs give.
///
/// ```
/// # use ringpull_base as ringpull;
/// let complex = ringpull::ElementType::of_name("complex64").unwrap();
/// assert_eq!((complex.dtype, complex.width), (ringpull::DType::F32, 2));
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct ElementType {
    /// Its name in NumPy and the frameworks.
    pub name: &'static str,
    /// The type in which its elements travel.
    pub dtype: DType,
    /// The number of `dtype` values that make up one element.
    pub width: usize,
    /// DLPack's code and the bits of an element.
    pub dlpack: (u8, u8),
    /// The reductions that elements of this type have.
    pub arithmetic: Arithmetic,
}

/// DLPack's codes.
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;

const fn row(name: &'static str, dlpack: (u8, u8), dtype: DType, width: usize, arithmetic: Arithmetic) -> ElementType {
    ElementType { name, dtype, width, dlpack, arithmetic }
}

/// Every element type. Those of stores come first, in the order of [`DType::ALL`].
pub static ELEMENT_TYPES: [ElementType; 24] = [
    row("float32", (FLOAT, 32), DType::F32, 1, Arithmetic::Numbers),
    row("float64", (FLOAT, 64), DType::F64, 1, Arithmetic::Numbers),
    row("float16", (FLOAT, 16), DType::F16, 1, Arithmetic::Numbers),
    row("bfloat16", (BFLOAT, 16), DType::BF16, 1, Arithmetic::Numbers),
    row("int8", (INT, 8), DType::I8, 1, Arithmetic::Numbers),
    row("uint8", (UINT, 8), DType::U8, 1, Arithmetic::Numbers),
    row("int32", (INT, 32), DType::I32, 1, Arithmetic::Numbers),
    row("int64", (INT, 64), DType::I64, 1, Arithmetic::Numbers),
    row("bool", (BOOL, 8), DType::U8, 1, Arithmetic::Truth),
    row("int16", (INT, 16), DType::U8, 2, Arithmetic::Nothing),
    row("uint16", (UINT, 16), DType::U8, 2, Arithmetic::Nothing),
    row("uint32", (UINT, 32), DType::I32, 1, Arithmetic::Wrapping),
    row("uint64", (UINT, 64), DType::I64, 1, Arithmetic::Wrapping),
    row("complex32", (COMPLEX, 32), DType::F16, 2, Arithmetic::Parts),
    row("complex64", (COMPLEX, 64), DType::F32, 2, Arithmetic::Parts),
    row("complex128", (COMPLEX, 128), DType::F64, 2, Arithmetic::Parts),
    row("float8_e3m4", (7, 8), DType::U8, 1, Arithmetic::Nothing),
    row("float8_e4m3", (8, 8), DType::U8, 1, Arithmetic::Nothing),
    row("float8_e4m3b11fnuz", (9, 8), DType::U8, 1, Arithmetic::Nothing),
    row("float8_e4m3fn", (10, 8), DType::U8, 1, Arithmetic::Nothing),
    row("float8_e4m3fnuz", (11, 8), DType::U8, 1, Arithmetic::Nothing),
    row("float8_e5m2", (12, 8), DType::U8, 1, Arithmetic::Nothing),
    row("float8_e5m2fnuz", (13, 8), DType::U8, 1, Arithmetic::Nothing),
    row("float8_e8m0fnu", (14, 8), DType::U8, 1, Arithmetic::Nothing),
];

impl ElementType {
    /// Returns the type that has this name in NumPy, PyTorch or JAX.
    pub fn of_name(name: &str) -> Option<&'static Self> {
        ELEMENT_TYPES.iter().find(|element| element.name == name)
    }

    /// Returns the type with this code and this number of bits in DLPack.
    pub fn of_dlpack(code: u8, bits: usize) -> Option<&'static Self> {
        ELEMENT_TYPES.iter().find(|element| (element.dlpack.0, usize::from(element.dlpack.1)) == (code, bits))
    }

    /// Returns the type of a format of Python's `struct` module in native byte order. Its elements have
    /// `size` bytes.
    pub fn of_format(format: &str, size: usize) -> Option<&'static Self> {
        let code = match format.trim_start_matches(['@', '=', '<']) {
            "e" | "f" | "d" => FLOAT,
            "b" | "h" | "i" | "l" | "q" => INT,
            "B" | "H" | "I" | "L" | "Q" => UINT,
            "Ze" | "Zf" | "Zd" => COMPLEX,
            "?" => BOOL,
            _ => return None,
        };
        Self::of_dlpack(code, 8 * size)
    }

    /// Returns the type of a string of NumPy's array interface (byte order, kind, bytes).
    pub fn of_typestr(typestr: &str) -> Option<&'static Self> {
        let (order, kind) = (typestr.get(..1)?, typestr.get(1..2)?);
        let size: usize = typestr.get(2..)?.parse().ok()?;
        let code = match kind {
            "f" => FLOAT,
            "i" => INT,
            "u" => UINT,
            "c" => COMPLEX,
            "b" => BOOL,
            _ => return None,
        };
        if order == ">" { None } else { Self::of_dlpack(code, size.checked_mul(8)?) }
    }

    /// Bytes of one element.
    pub fn size_bytes(&self) -> usize {
        self.width * self.dtype.size_bytes()
    }

    /// Returns the shape in which a tensor of `shape` travels. A scalar of a type with several values in an
    /// element (`width`) travels as one row.
    pub fn travelling(&self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        if self.width > 1 {
            if shape.is_empty() {
                shape.push(1);
            }
            shape.push(self.width);
        }
        shape
    }

    /// Returns the reductions that elements of this type have.
    pub fn reductions(&self) -> &'static [Reduction] {
        match self.arithmetic {
            Arithmetic::Numbers => &Reduction::ALL,
            Arithmetic::Parts => &[Reduction::Sum, Reduction::Average],
            Arithmetic::Truth => &[Reduction::Max, Reduction::Min, Reduction::Product],
            Arithmetic::Wrapping => &[Reduction::Sum, Reduction::Product],
            Arithmetic::Nothing => &[],
        }
    }

    /// Returns an error unless the type has `reduction`, and its elements can be multiplied if `is_scaled`.
    /// `what` is the operation, such as `allreduce of w`.
    pub fn check(&self, what: &str, reduction: Reduction, is_scaled: bool) -> Result<()> {
        let (name, known) = (self.name, self.reductions());
        if !known.contains(&reduction) {
            let remedy = match self.arithmetic {
                Arithmetic::Nothing => {
                    format!("{name} can be sent but not reduced: cast it to a type such as float32 or int32")
                }
                Arithmetic::Truth => {
                    "use max for logical OR and min for logical AND, or cast it to an integer type".to_owned()
                }
                _ => {
                    let names: Vec<&str> = known.iter().map(|reduction| reduction.name()).collect();
                    format!("reductions of {name} are {}", names.join(" and "))
                }
            };
            return Err(Error::argument(format!("{what}: there is no {reduction} of {name}"), remedy));
        }
        if is_scaled && !matches!(self.arithmetic, Arithmetic::Numbers | Arithmetic::Parts) {
            return Err(Error::argument(
                format!("{what}: {name} cannot be multiplied by a factor"),
                "leave prescale and postscale at 1",
            ));
        }
        Ok(())
    }

    /// Returns this type as a [`DType`] if stores compute with it.
    pub fn as_dtype(&self) -> Option<DType> {
        (self.arithmetic == Arithmetic::Numbers).then_some(self.dtype)
    }

    /// Returns true if a store can hold values of this type.
    pub fn is_of_stores(&self) -> bool {
        matches!(self.arithmetic, Arithmetic::Numbers | Arithmetic::Parts)
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        // The name is that of a `DType`, or that of NumPy.
        let of_numpy = || ElementType::of_name(name).and_then(ElementType::as_dtype);
        DType::of_name(name).or_else(of_numpy).ok_or_else(|| {
            let names = DType::ALL.map(DType::name).join(", ");
            Error::argument(format!("unknown dtype {name:?}"), format!("the dtypes are {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_begins_with_the_types_of_stores_and_every_row_is_as_long_as_it_says() {
        for (dtype, element) in DType::ALL.into_iter().zip(&ELEMENT_TYPES) {
            assert_eq!((element.dtype, element.width, element.arithmetic), (dtype, 1, Arithmetic::Numbers));
        }
        for element in &ELEMENT_TYPES {
            assert_eq!(8 * element.size_bytes(), usize::from(element.dlpack.1), "{}", element.name);
            assert_eq!(ElementType::of_name(element.name), Some(element));
        }
    }

    #[test]
    fn a_type_is_found_by_each_of_the_ways_in_which_it_is_told() {
        let name = |element: Option<&ElementType>| element.map(|element| element.name);
        for (format, size, wanted) in [
            ("f", 4, Some("float32")),
            ("<d", 8, Some("float64")),
            ("l", 8, Some("int64")),
            ("l", 4, Some("int32")),
            ("L", 8, Some("uint64")),
            ("H", 2, Some("uint16")),
            ("?", 1, Some("bool")),
            ("Zf", 8, Some("complex64")),
            ("Zd", 16, Some("complex128")),
            ("g", 16, None),
            (">f", 4, None),
            ("", 1, None),
        ] {
            assert_eq!(name(ElementType::of_format(format, size)), wanted, "{format}");
        }
        for (typestr, wanted) in [
            ("<f4", Some("float32")),
            ("<f2", Some("float16")),
            ("<i8", Some("int64")),
            ("|i1", Some("int8")),
            ("|b1", Some("bool")),
            ("<u4", Some("uint32")),
            ("<c8", Some("complex64")),
            (">f4", None),
            ("<f9223372036854775807", None),
            ("<M8", None),
            ("", None),
        ] {
            assert_eq!(name(ElementType::of_typestr(typestr)), wanted, "{typestr}");
        }
    }

    #[test]
    fn a_reduction_that_makes_no_sense_is_an_error_that_names_the_type_and_what_there_is() {
        let said = |name: &str, reduction, is_scaled| {
            let element = ElementType::of_name(name).unwrap();
            element.check("allreduce of w", reduction, is_scaled).err().map(|error| error.to_string())
        };
        assert_eq!(said("complex64", Reduction::Average, true), None);
        assert_eq!(said("bool", Reduction::Max, false), None);
        assert_eq!(said("uint64", Reduction::Sum, false), None);
        for (name, reduction, is_scaled, words) in [
            (
                "complex64",
                Reduction::Max,
                false,
                "allreduce of w: there is no max of complex64\n  hint: reductions of complex64 are sum and average",
            ),
            ("bool", Reduction::Sum, false, "hint: use max for logical OR and min for logical AND"),
            ("uint32", Reduction::Average, false, "there is no average of uint32"),
            ("uint32", Reduction::Sum, true, "uint32 cannot be multiplied by a factor"),
            ("float8_e5m2", Reduction::Sum, false, "hint: float8_e5m2 can be sent but not reduced: cast it"),
        ] {
            let text = said(name, reduction, is_scaled).unwrap();
            assert!(text.contains(words), "{text}");
        }
    }
}
