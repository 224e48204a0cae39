//! The place of the program, as the interpreter knows it.

use pyo3::prelude::*;

use ringpull_base::waits::{self, Place};

use crate::interpreter::attached;

/// Lets the library ask where the program's main thread is.
pub(crate) fn install() {
    type Answer = (Option<String>, bool, Vec<u32>);
    waits::look_with(|| {
        let ask =
            |py: Python<'_>| -> PyResult<Answer> { py.import("ringpull.place")?.call_method0("place")?.extract() };
        // Nobody can say while the interpreter ends: any thread may be in Python then.
        let (site, is_wait, busy) = attached(ask).and_then(Result::ok).unwrap_or((None, false, vec![0]));
        Place { site, is_wait, busy }
    });
}
