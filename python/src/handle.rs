//! Handles of operations under way.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use ringpull_base::forked::OfProcess;
use ringpull_base::timeline::{self, Phase};
use ringpull_base::{Tensor, waits};
use ringpull_device::Devices;

use crate::errors::raise;
use crate::numbers::seconds;

/// The time between two checks for the user's interrupt during a wait.
pub(crate) const SIGNALS: Duration = Duration::from_millis(100);

/// Pushpulls that have been called. `wait` returns when their outputs hold the results.
#[pyclass(frozen, module = "ringpull._native")]
pub(crate) struct Handle {
    /// Every tensor of the operations, the outputs first. Kept until the end, so that memory is given back on
    /// the caller's thread. In a forked child nobody ends the operations, and their memory may be on a device
    /// that the child cannot use.
    tensors: OfProcess<Mutex<Vec<Tensor>>>,
    outs: usize,
    /// The devices that the tensors may be on.
    devices: OfProcess<Option<Arc<Devices>>>,
}

impl Handle {
    pub(crate) fn new(
        mut outs: Vec<Tensor>,
        values: impl Iterator<Item = Tensor>,
        devices: Option<Arc<Devices>>,
    ) -> Self {
        let count = outs.len();
        outs.extend(values);
        Handle { tensors: OfProcess::new(Mutex::new(outs)), outs: count, devices: OfProcess::new(devices) }
    }

    /// Raises an error in a forked child.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.tensors.process().check("this handle").map_err(|error| raise(py, &error))
    }

    fn tensors(&self) -> std::sync::MutexGuard<'_, Vec<Tensor>> {
        self.tensors.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Removes outputs from the end of `outs`, each when it holds its result. Returns when none is left, or after
/// `limit`. If the timeline is on, it records the output for which this thread was blocked since `since_ns`.
fn drop_done(outs: &mut Vec<Tensor>, limit: Duration, since_ns: &mut Option<u64>) -> ringpull_base::Result<()> {
    let end = Instant::now() + limit;
    while let Some(last) = outs.last() {
        if since_ns.is_none() && !last.is_settled_within(Duration::ZERO)? {
            *since_ns = Some(timeline::now_ns());
        }
        if !last.is_settled_within(end.saturating_duration_since(Instant::now()))? {
            return Ok(());
        }
        if let Some(since_ns) = since_ns.take() {
            last.waited_since(since_ns);
        }
        outs.pop();
    }
    Ok(())
}

#[pymethods]
impl Handle {
    /// Returns True when every operation is done, and False after `timeout` seconds. Raises the error of an
    /// operation that failed. On a device whose library's stream is known, an operation counts as done when
    /// it is done in the order of that stream.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, #[pyo3(from_py_with = seconds)] timeout: Option<Duration>) -> PyResult<bool> {
        self.check(py)?;
        let begun = Instant::now();
        let _wait = waits::wait();
        let mut outs: Vec<Tensor> = self.tensors().iter().take(self.outs).cloned().collect();
        let mut since_ns = None;
        while !outs.is_empty() {
            let left = timeout.map_or(SIGNALS, |limit| limit.saturating_sub(begun.elapsed()).min(SIGNALS));
            py.detach(|| drop_done(&mut outs, left, &mut since_ns)).map_err(|error| raise(py, &error))?;
            if outs.is_empty() {
                break;
            }
            if timeout.is_some_and(|limit| begun.elapsed() >= limit) {
                if let Some(since_ns) = since_ns {
                    // The operation that writes the output, and its key, cannot be known yet.
                    timeline::record(Phase::Wait, || timeline::RESULTS, since_ns, 0);
                }
                return Ok(false);
            }
            py.check_signals()?;
        }
        let done = std::mem::take(&mut *self.tensors());
        let settle = |devices: &Arc<Devices>| done.iter().try_for_each(|tensor| devices.settle(tensor));
        py.detach(|| self.devices.as_ref().map_or(Ok(()), settle)).map_err(|error| raise(py, &error))?;
        Ok(true)
    }

    /// Returns true if `wait` would return at once.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.check(py)?;
        let outs: Vec<Tensor> = self.tensors().iter().take(self.outs).cloned().collect();
        Ok(py.detach(|| outs.iter().all(|out| !matches!(out.is_settled_within(Duration::ZERO), Ok(false)))))
    }
}
