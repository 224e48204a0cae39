//! The measurement of `ringpull bench pushpull`, in Python's process and on Python's store.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use ringpull::KvStore;
use ringpull_workload::iterations::Iterations;

use crate::errors::raise;
use crate::store::Store;

/// Iterations of Rust's own loop over keys of a store.
#[pyclass(frozen, module = "ringpull._native")]
pub(crate) struct RustIterations {
    store: Arc<KvStore>,
    iterations: Mutex<Iterations>,
}

#[pymethods]
impl RustIterations {
    /// Makes the loop for keys whose numbers of f32 elements are `lens`. Their names begin with `prefix`.
    /// Collective.
    #[new]
    fn new(py: Python<'_>, store: &Store, lens: Vec<usize>, prefix: &str) -> PyResult<Self> {
        let store = store.open(py)?;
        let iterations = py.detach(|| Iterations::new(&store, &lens, prefix)).map_err(|error| raise(py, &error))?;
        Ok(RustIterations { store, iterations: Mutex::new(iterations) })
    }

    /// Runs one iteration, checks its sums and returns its seconds. Collective.
    fn seconds(&self, py: Python<'_>, iteration: usize) -> PyResult<f64> {
        let taken = py.detach(|| {
            let mut iterations = self.iterations.lock().unwrap_or_else(PoisonError::into_inner);
            iterations.seconds(&self.store, iteration)
        });
        taken.map_err(|error| raise(py, &error))
    }
}
