//! Access of a store's threads to the interpreter. They may use it until the program ends.
//!
//! A thread that waits for the interpreter while the interpreter ends never returns: before Python 3.14
//! `PyGILState_Ensure` would end the thread, and `PyO3` stops it for good. If it is a store's thread, the
//! whole job hangs. So the end of the program waits for the store's threads that are in the interpreter, and
//! lets no more in. This gate does not concern Python's own threads: Python ends them or waits for them.

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

/// A thread's stay in the interpreter.
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

/// Does `work` with the interpreter, from any thread. Blocks until other threads release the interpreter.
/// Returns `None` if the thread is a store's and the program is ending.
pub(crate) fn attached<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    if is_known() {
        return Python::try_attach(work);
    }
    let _visit = Visit::begin()?;
    Python::try_attach(work)
}

/// Returns true if this thread is one of Python's own, or is in the interpreter already.
#[allow(unsafe_code)]
fn is_known() -> bool {
    // SAFETY: this may be called on any thread, at any time after the module was imported.
    !unsafe { ffi::PyGILState_GetThisThreadState() }.is_null()
}

/// Lets no more threads into the interpreter, and waits for those that are in it. Waits at most for
/// `RINGPULL_SILENCE`, or until a signal's handler raises. Does nothing in a child that the `importer`
/// forked, which has none of these threads.
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
                "ringpull: an updater, or the code that frees a tensor's memory, has run in Python for more than {limit:?} while the program was ending: the program ends now\n  hint: make that code return sooner, or set a longer RINGPULL_SILENCE"
            );
            leave_at_once(py);
        }
    }
}

/// Writes the process's output and ends the process at once. Otherwise Python would stop for good the thread
/// that is in the interpreter, and a store would wait for that thread.
#[allow(unsafe_code)]
fn leave_at_once(py: Python<'_>) -> ! {
    let flushed = py.import("sys").and_then(|sys| {
        ["stdout", "stderr"].into_iter().try_for_each(|name| sys.getattr(name)?.call_method0("flush").map(drop))
    });
    // An error here is ignored: the reader of the output may be gone.
    drop(flushed);
    ringpull_base::timeline::flush();
    // SAFETY: this ends the process, and the system releases everything that the process holds.
    unsafe { libc::_exit(1) }
}

/// Closes the gate at the end of the program. Functions that are registered with `atexit` later, such as
/// those of the stores, run before.
pub(crate) fn close_at_exit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let close = wrap_pyfunction!(close_interpreter, module)?;
    module.py().import("atexit")?.call_method1("register", (close, std::process::id())).map(drop)
}
