//! An operation under way.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ringpull::Tensor;
use ringpull::device::Devices;

use crate::errors::raise;

/// How often a wait asks whether the user has interrupted it.
const SIGNALS: Duration = Duration::from_millis(100);

/// A pushpull that has been called: `wait` returns when its outputs hold the result.
#[pyclass(frozen, module = "ringpull._native")]
pub(crate) struct Handle {
    /// Every tensor of the operation, its outputs first. Kept until the end, so that memory is given back on the caller's thread.
    tensors: Mutex<Vec<Tensor>>,
    outs: usize,
    /// What the tensors may be on.
    devices: Option<Arc<Devices>>,
}

impl Handle {
    pub(crate) fn new(outs: Vec<Tensor>, values: Vec<Tensor>, devices: Option<Arc<Devices>>) -> Self {
        let count = outs.len();
        Handle { tensors: Mutex::new(outs.into_iter().chain(values).collect()), outs: count, devices }
    }

    fn tensors(&self) -> std::sync::MutexGuard<'_, Vec<Tensor>> {
        self.tensors.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[pymethods]
impl Handle {
    /// Returns True when the operation is done, False if it is not within `timeout` seconds; raises what kept it from being done. On a device
    /// whose library's stream is known it is done in the order of that stream.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let limit = timeout.map(|seconds| Duration::from_secs_f64(seconds.clamp(0.0, 1e9)));
        let begun = Instant::now();
        let outs: Vec<Tensor> = self.tensors().iter().take(self.outs).cloned().collect();
        for out in &outs {
            loop {
                let left = limit.map_or(SIGNALS, |limit| limit.saturating_sub(begun.elapsed()).min(SIGNALS));
                match py.detach(|| out.read_anywhere_within(left).map(|guard| guard.is_some())) {
                    Ok(true) => break,
                    Ok(false) if limit.is_some_and(|limit| begun.elapsed() >= limit) => return Ok(false),
                    Ok(false) => py.check_signals()?,
                    Err(error) => return Err(raise(py, &error)),
                }
            }
        }
        drop(outs);
        let done = std::mem::take(&mut *self.tensors());
        let settle = |devices: &Arc<Devices>| done.iter().try_for_each(|tensor| devices.settle(tensor));
        py.detach(|| self.devices.as_ref().map_or(Ok(()), settle)).map_err(|error| raise(py, &error))?;
        Ok(true)
    }

    /// Whether `wait` would return at once.
    fn done(&self, py: Python<'_>) -> bool {
        let outs: Vec<Tensor> = self.tensors().iter().take(self.outs).cloned().collect();
        py.detach(|| outs.iter().all(|out| !matches!(out.read_anywhere_within(Duration::ZERO), Ok(None))))
    }
}
