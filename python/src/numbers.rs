//! Numbers that come from programs. A number that does not fit is an error of ours that names the allowed
//! range, instead of Python's `OverflowError`. A test of the package calls every function with such numbers.

use std::fmt::Display;
use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyUnicodeEncodeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors::argument;

/// A number in the range of its type. For arguments: `#[pyo3(from_py_with = number)]`.
pub(crate) fn number<'py, T: FromPyObjectOwned<'py> + NumberRange>(object: &Bound<'py, PyAny>) -> PyResult<T> {
    object.extract::<T>().map_err(|error| {
        let (py, error) = (object.py(), error.into());
        if !error.is_instance_of::<PyOverflowError>(py) {
            return error;
        }
        let given = object.str().map_or_else(|_| "it".to_owned(), |text| text.to_string());
        argument(py, format!("the number {given} cannot be used"), format!("give one from {} to {}", T::LEAST, T::MOST))
    })
}

/// A number of an argument that may be None.
pub(crate) fn optional_number<'py, T: FromPyObjectOwned<'py> + NumberRange>(
    object: &Bound<'py, PyAny>,
) -> PyResult<Option<T>> {
    if object.is_none() { Ok(None) } else { number(object).map(Some) }
}

/// The numbers of a list.
pub(crate) fn numbers<'py, T: FromPyObjectOwned<'py> + NumberRange>(object: &Bound<'py, PyAny>) -> PyResult<Vec<T>> {
    object.try_iter()?.map(|one| number(&one?)).collect()
}

/// The numbers of a list that may be None.
pub(crate) fn optional_numbers<'py, T: FromPyObjectOwned<'py> + NumberRange>(
    object: &Bound<'py, PyAny>,
) -> PyResult<Option<Vec<T>>> {
    if object.is_none() { Ok(None) } else { numbers(object).map(Some) }
}

/// A type of numbers with a range.
pub(crate) trait NumberRange {
    const LEAST: Self::Words;
    const MOST: Self::Words;
    type Words: Display;
}

macro_rules! bounded {
    ($($type:ty),*) => {$(
        impl NumberRange for $type {
            type Words = $type;
            const LEAST: $type = <$type>::MIN;
            const MOST: $type = <$type>::MAX;
        }
    )*};
}

bounded!(i32, u32, i64, u64, usize);

/// The time for which a call waits, from a number of seconds or None. A number that is too large counts as
/// the longest possible time.
pub(crate) fn seconds(object: &Bound<'_, PyAny>) -> PyResult<Option<Duration>> {
    if object.is_none() {
        return Ok(None);
    }
    let given = match object.extract::<f64>() {
        Ok(given) => given,
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => f64::MAX,
        Err(error) => return Err(error),
    };
    let found = Duration::try_from_secs_f64(given.clamp(0.0, 1e9));
    let refused =
        |_| argument(object.py(), format!("a timeout of {given} seconds"), "give a number of seconds, or None");
    found.map(Some).map_err(refused)
}

/// A factor.
pub(crate) fn factor(object: &Bound<'_, PyAny>) -> PyResult<f64> {
    object.extract::<f64>().map_err(|error| {
        let py = object.py();
        if !error.is_instance_of::<PyOverflowError>(py) {
            return error;
        }
        argument(py, "a factor that is beyond every float", "give a number such as 1.0")
    })
}

/// A text. Characters that cannot be encoded are replaced.
pub(crate) fn any_text(object: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(object.cast::<PyString>()?.to_string_lossy().into_owned())
}

/// A text. Raises if it has half of a character.
pub(crate) fn text(object: &Bound<'_, PyAny>) -> PyResult<String> {
    object.extract::<String>().map_err(|error| {
        let py = object.py();
        if !error.is_instance_of::<PyUnicodeEncodeError>(py) {
            return error;
        }
        let shown = object.repr().map_or_else(|_| "it".to_owned(), |text| text.to_string());
        argument(
            py,
            format!("the text {shown} has half of a character (a lone surrogate)"),
            "give text that can be encoded in UTF-8",
        )
    })
}
