//! Counts every call of an entry point, and finds the fault for it that the environment sets.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::codes::Outcome;
use crate::settings::{Effect, SETTINGS};

static COUNTS: LazyLock<Mutex<HashMap<&'static str, u64>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The fault of the work that the current call of this thread queues.
    static LATER: Cell<Option<Effect>> = const { Cell::new(None) };
    /// The first call of NCCL that this thread was made to fail in its group.
    static FAILED: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// Counts a call. Returns the error that the call must return, if there is one.
pub(crate) fn count(entry: &'static str) -> Outcome<()> {
    let mut counts = COUNTS.lock();
    let number = counts.entry(entry).or_default();
    *number += 1;
    let fault = SETTINGS.faults.iter().find(|fault| fault.entry == entry && fault.at == *number);
    let effect = fault.map(|fault| fault.effect);
    LATER.set(effect);
    match effect {
        Some(Effect::Returns(code)) => {
            if entry.starts_with("nccl") {
                FAILED.set(FAILED.get().or(Some(code)));
            }
            Err(code)
        }
        _ => Ok(()),
    }
}

/// Returns the fault of work that is queued now. To be called once for each call.
pub(crate) fn later() -> Option<Effect> {
    LATER.take()
}

/// Returns the error with which a group of NCCL's calls was made to fail. To be called at the group's end.
pub(crate) fn failed_in_group() -> Option<c_int> {
    FAILED.take()
}

/// The code that a C function returns.
pub(crate) fn code(outcome: Outcome<()>) -> c_int {
    outcome.err().unwrap_or(0)
}

/// Defines entry points of C. Their calls are counted, and a panic ends the process with its message.
macro_rules! entries {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$attribute])*
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
                let outcome = $crate::calls::count(stringify!($name)).and_then(|()| {
                    let body = || -> $crate::codes::Outcome<()> { $body };
                    body()
                });
                $crate::calls::code(outcome)
            }
        )*
    };
}
pub(crate) use entries;
