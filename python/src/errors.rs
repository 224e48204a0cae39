//! Turns a store's error into the Python exception of its kind. `ringpull/errors.py` has the classes and the
//! table of kinds.

use pyo3::prelude::*;

use ringpull_base::Error;

/// The exception for `error`, with the error's fields as attributes.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error).unwrap_or_else(|failure| failure)
}

/// Makes the exception for a wrong argument, with a remedy.
pub(crate) fn argument(py: Python<'_>, what: impl Into<String>, remedy: impl Into<String>) -> PyErr {
    raise(py, &Error::argument(what, remedy))
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let fields = serde_json::to_string(error)
        .map_err(|cause| pyo3::exceptions::PyRuntimeError::new_err(format!("{error} ({cause})")))?;
    let exception = py.import("ringpull.errors")?.call_method1("_exception", (error.to_string(), fields))?;
    Ok(PyErr::from_value(exception))
}
