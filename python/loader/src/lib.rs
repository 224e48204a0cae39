//! Loads the MPI that this process should use, before `ringpull._native` is imported.

use std::path::Path;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// Loads the MPI to use, and returns the folder within `variants` of the code that is built against it. `lib`
/// is the environment's folder for libraries.
#[pyfunction]
fn load(lib: &str, variants: &str) -> PyResult<&'static str> {
    let family = ringpull_loader::load(Some(Path::new(lib)), Path::new(variants)).map_err(PyImportError::new_err)?;
    Ok(family.folder())
}

#[pymodule]
fn _loader(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(load, module)?)
}
