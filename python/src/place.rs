//! The line that the program is at, from the interpreter.

use pyo3::prelude::*;

use ringpull_base::waits::{self, Place};

use crate::interpreter::attached;

/// Makes it possible for the library to ask for the line that the program's main thread is at.
pub(crate) fn install() {
    type Answer = (Option<String>, bool, Vec<u32>);
    waits::look_with(|| {
        let ask =
            |py: Python<'_>| -> PyResult<Answer> { py.import("ringpull.place")?.call_method0("place")?.extract() };
        // While the interpreter ends the answer is not known: any thread may be in Python then.
        let (site, is_wait, busy) = attached(ask).and_then(Result::ok).unwrap_or((None, false, vec![0]));
        Place { site, is_wait, busy }
    });
}
