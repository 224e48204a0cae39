//! The library's texts for errors that nobody catches, which Python prints (`ringpull/uncaught.py`).

use pyo3::prelude::*;

use ringpull_base::{Error, config, last_words};

use crate::errors::argument;
use crate::store::key_of;

/// This process's rank, if it is one of several.
#[pyfunction]
fn own_rank() -> Option<usize> {
    last_words::own_rank()
}

/// Returns the numbers that MPI's launcher gives this process: its rank and the number of ranks, in the job
/// and on this host.
#[pyfunction]
fn launched() -> Option<(usize, usize, usize, usize)> {
    let ((_, size), rank) = (config::launcher_world_size()?, config::launcher_rank().unwrap_or(0));
    Some((rank, size, config::launcher_local_rank().unwrap_or(0), config::launcher_local_size().unwrap_or(1)))
}

/// The last words of this process about a native error. `fields` is the error as JSON. Returns a line, a
/// hint, and true if the error happened on another rank.
#[pyfunction(name = "last_words")]
fn words_of(py: Python<'_>, fields: &str) -> PyResult<(String, Option<String>, bool)> {
    let error: Error =
        serde_json::from_str(fields).map_err(|cause| argument(py, cause.to_string(), "give what an error has"))?;
    let words = error.last_words(last_words::store_rank());
    Ok((words.line, words.hint, words.is_heard))
}

/// Returns true if the log records everything. Tracebacks are then printed whole.
#[pyfunction]
fn is_debugged() -> bool {
    last_words::is_debugged()
}

/// Makes messages show `name` beside `key` from now on.
#[pyfunction]
fn name_key(key: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
    ringpull_base::name_key(key_of(key)?, name);
    Ok(())
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(own_rank, module)?)?;
    module.add_function(wrap_pyfunction!(launched, module)?)?;
    module.add_function(wrap_pyfunction!(words_of, module)?)?;
    module.add_function(wrap_pyfunction!(is_debugged, module)?)?;
    module.add_function(wrap_pyfunction!(name_key, module)?)
}
