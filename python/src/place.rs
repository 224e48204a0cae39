//! Where the program is, as the interpreter knows it.

use pyo3::prelude::*;

use ringpull_base::waits::{self, Place};

use crate::interpreter::attached;

/// Lets the library ask where the program's main thread is.
pub(crate) fn tell() {
    waits::look_with(|| {
        let ask = |py: Python<'_>| -> PyResult<(Option<String>, bool)> {
            py.import("ringpull.place")?.call_method0("place")?.extract()
        };
        // Nobody can say while the interpreter ends.
        let (site, is_wait) = attached(ask).and_then(Result::ok).unwrap_or_default();
        Place { site, is_wait }
    });
}
