//! The devices of the machine, the context of each, and which one is current for a thread.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::codes::{INVALID_CONTEXT, INVALID_DEVICE, NOT_INITIALIZED, Outcome};
use crate::findings::report;
use crate::memory;
use crate::settings::SETTINGS;
use crate::streams;

/// The handle of a device's context.
const CONTEXT: usize = 0xc0de_0000;

pub(crate) struct FakeDevice {
    /// The number of the machine's device, whatever this process sees.
    pub(crate) physical: usize,
    /// The error with which the device has failed.
    failed: OnceLock<c_int>,
    /// The number of times that its context was retained.
    pub(crate) retained: AtomicU32,
    /// The devices whose memory its context reaches.
    pub(crate) peers: Mutex<BTreeSet<usize>>,
}

impl FakeDevice {
    /// Fails the device: from now on every call returns this error, as a real context is lost after an error.
    pub(crate) fn fail(&self, code: c_int) {
        self.failed.get_or_init(|| code);
    }

    pub(crate) fn check(&self) -> Outcome<()> {
        self.failed.get().map_or(Ok(()), |code| Err(*code))
    }
}

static DEVICES: OnceLock<Vec<FakeDevice>> = OnceLock::new();

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Makes the machine, once.
pub(crate) fn start() {
    DEVICES.get_or_init(|| {
        let sizes: Vec<usize> = SETTINGS.visible.iter().map(|physical| SETTINGS.devices[*physical]).collect();
        memory::start(&sizes);
        if SETTINGS.reports_leaks {
            at_exit();
        }
        let device = |physical: &usize| FakeDevice {
            physical: *physical,
            failed: OnceLock::new(),
            retained: AtomicU32::new(0),
            peers: Mutex::default(),
        };
        SETTINGS.visible.iter().map(device).collect()
    });
}

/// Returns the devices, or an error before `cuInit`.
pub(crate) fn devices() -> Outcome<&'static [FakeDevice]> {
    DEVICES.get().map(Vec::as_slice).ok_or(NOT_INITIALIZED)
}

/// A device that the program has named.
pub(crate) fn device(ordinal: c_int) -> Outcome<&'static FakeDevice> {
    devices()?.get(ordinal as usize).ok_or(INVALID_DEVICE)
}

/// Returns a device that has a handle of ours.
pub(crate) fn known(index: usize) -> &'static FakeDevice {
    &DEVICES.get().expect("a handle was given out after cuInit")[index]
}

pub(crate) fn context_of(index: usize) -> usize {
    CONTEXT + index * 0x100
}

/// The device of a context that is retained.
pub(crate) fn of_context(context: usize) -> Outcome<usize> {
    let index = context.wrapping_sub(CONTEXT) / 0x100;
    let is_retained = |device: &FakeDevice| device.retained.load(Ordering::Acquire) > 0;
    if context >= CONTEXT && devices()?.get(index).is_some_and(is_retained) {
        return Ok(index);
    }
    report("wrong context", &format!("{context:#x} is no context that is retained"));
    Err(INVALID_CONTEXT)
}

pub(crate) fn set_current(index: Option<usize>) {
    CURRENT.set(index);
}

/// The device that is current for this thread, if any.
pub(crate) fn current_if_any() -> Option<usize> {
    CURRENT.get()
}

/// The device that is current for this thread and works.
pub(crate) fn current(call: &str) -> Outcome<usize> {
    devices()?;
    let Some(index) = CURRENT.get() else {
        report("wrong context", &format!("{call} without a current context"));
        return Err(INVALID_CONTEXT);
    };
    known(index).check()?;
    Ok(index)
}

#[allow(unsafe_code)]
fn at_exit() {
    extern "C" fn leaks() {
        for left in memory::left().into_iter().chain(streams::left()) {
            report("leak", &left);
        }
    }
    // SAFETY: a function of this library, which is never unloaded: its threads keep it.
    unsafe { libc::atexit(leaks) };
}
