//! The shared state of the threads of simulated streams: the first fault of any of them, the abort, and waits
//! that the abort ends.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

use ringpull_base::Error;

/// The shared state of the streams' threads.
#[derive(Default)]
pub(super) struct Health {
    fault: Mutex<Option<Error>>,
    pub(super) aborted: AtomicBool,
    bell: Condvar,
    bell_lock: Mutex<()>,
}

impl Health {
    pub(super) fn fail(&self, fault: Error) {
        self.fault.lock().get_or_insert(fault);
    }

    pub(super) fn fault(&self) -> Option<Error> {
        self.fault.lock().clone()
    }

    /// Waits for `flag`, or for the abort.
    pub(super) fn wait(&self, flag: &AtomicBool) {
        let mut guard = self.bell_lock.lock();
        while !flag.load(Ordering::Acquire) && !self.aborted.load(Ordering::Acquire) {
            self.bell.wait(&mut guard);
        }
    }

    pub(super) fn raise(&self, flag: &AtomicBool) {
        flag.store(true, Ordering::Release);
        drop(self.bell_lock.lock());
        self.bell.notify_all();
    }
}
