//! The interpreter, as threads of a store's may use it: until the program ends.
//!
//! A thread that waits for the interpreter while it ends never returns: before Python 3.14
//! `PyGILState_Ensure` would end the thread, and `PyO3` stops it for good. If that is a store's thread, its
//! whole job hangs. So the end of the program waits for the threads that are inside, and lets none in after.
//! This door does not concern Python's own threads: Python ends or waits for them.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use pyo3::ffi;
use pyo3::prelude::*;

use ringpull_base::config::Config;

struct AttachGate {
    inside: usize,
    is_closed: bool,
}

static DOOR: Mutex<AttachGate> = Mutex::new(AttachGate { inside: 0, is_closed: false });
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

/// Does `work` with the interpreter, from any thread. Blocks until other threads let go of it. `None` if the
/// thread is a store's and the program ends.
pub(crate) fn attached<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    if is_known() {
        return Python::try_attach(work);
    }
    let _visit = Visit::begin()?;
    Python::try_attach(work)
}

/// Returns true if this thread is one of Python's own, or inside already.
#[allow(unsafe_code)]
fn is_known() -> bool {
    // SAFETY: may be called on any thread at any time since the module was imported.
    !unsafe { ffi::PyGILState_GetThisThreadState() }.is_null()
}

/// Lets nobody in any more and waits for those inside, at most for `RINGPULL_SILENCE` or until a signal's
/// handler raises. A child that the `importer` forked has none of its threads.
#[pyfunction]
fn close_interpreter(py: Python<'_>, importer: u32) -> PyResult<()> {
    const LOOK: Duration = Duration::from_millis(50);
    if importer != std::process::id() {
        return Ok(());
    }
    let limit = Config::from_env().unwrap_or_default().silence();
    let begun = Instant::now();
    loop {
        let inside = py.detach(|| {
            let mut door = DOOR.lock();
            door.is_closed = true;
            LEFT.wait_while_for(&mut door, |door| door.inside > 0, LOOK);
            door.inside
        });
        if inside == 0 {
            return Ok(());
        }
        py.check_signals()?;
        if begun.elapsed() > limit {
            eprintln!(
                "ringpull: an updater, or what frees a tensor's memory, has run in Python for more than {limit:?} while the program was ending: it ends now\n  hint: let it return, or give it RINGPULL_SILENCE seconds"
            );
            leave_at_once(py);
        }
    }
}

/// Ends the process with what it has printed: Python would stop the thread that is inside for good, and a
/// store would wait for that thread.
#[allow(unsafe_code)]
fn leave_at_once(py: Python<'_>) -> ! {
    let flushed = py.import("sys").and_then(|sys| {
        ["stdout", "stderr"].into_iter().try_for_each(|name| sys.getattr(name)?.call_method0("flush").map(drop))
    });
    // Whoever was to read it may be gone.
    drop(flushed);
    ringpull_base::timeline::flush();
    // SAFETY: ends the process; whatever holds is let go of by the system.
    unsafe { libc::_exit(1) }
}

/// Closes the door at the end of the program: after whoever registers with `atexit` later, as the stores do.
pub(crate) fn close_at_exit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let close = wrap_pyfunction!(close_interpreter, module)?;
    module.py().import("atexit")?.call_method1("register", (close, std::process::id())).map(drop)
}
