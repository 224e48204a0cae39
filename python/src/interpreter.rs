//! The interpreter, as threads of a store's may use it: until the program ends.
//!
//! A thread that waits for the interpreter while it ends never returns (`PyGILState_Ensure` of Python before 3.14 ends such a thread, `PyO3` stops
//! it for good), and with a store's thread its job would stand still. So the end of the program waits for those who are inside, and lets nobody in
//! after.

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;

struct Door {
    inside: usize,
    is_closed: bool,
}

static DOOR: Mutex<Door> = Mutex::new(Door { inside: 0, is_closed: false });
static LEFT: Condvar = Condvar::new();

/// Somebody inside.
struct Visit;

impl Visit {
    fn begin() -> Option<Self> {
        let mut door = DOOR.lock();
        if door.is_closed {
            return None;
        }
        door.inside += 1;
        Some(Visit)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        DOOR.lock().inside -= 1;
        LEFT.notify_all();
    }
}

/// Does `work` with the interpreter, from any thread. Blocks until other threads let go of it. `None` once the program ends.
pub(crate) fn attached<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let _visit = Visit::begin()?;
    Python::try_attach(work)
}

/// Waits for everybody inside and lets nobody in any more.
#[pyfunction]
fn close_interpreter(py: Python<'_>) {
    py.detach(|| {
        let mut door = DOOR.lock();
        door.is_closed = true;
        LEFT.wait_while(&mut door, |door| door.inside > 0);
    });
}

/// Closes the door at the end of the program: after whoever registers with `atexit` later, as the stores do.
pub(crate) fn close_at_exit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let close = wrap_pyfunction!(close_interpreter, module)?;
    module.py().import("atexit")?.call_method1("register", (close,)).map(drop)
}
