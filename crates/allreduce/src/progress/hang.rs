//! Ends a process whose MPI library does not return, if no caller can get the fault.
//!
//! After a fault the comm thread fails the operations under way, and so their callers get the fault. The comm
//! thread cannot do that while it is in a call of MPI that never returns: after a reset of a connection, Open
//! MPI 4.1 has looped in its list of events. A program that only waits for such an operation would wait for
//! ever, so its process prints the fault and ends. A program that does something else is left alone: it may
//! save its work, and its next call returns the fault.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use ringpull_base::{notice, timeline, waits};

use crate::progress::shared::Shared;
use crate::transport::{messages, open_messages};

/// The time in which the comm thread must fail the operations under way. It looks for a fault between any two
/// messages.
const GRACE: Duration = Duration::from_secs(1);
/// The interval between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// The time since which nothing has moved after a fault, and the bytes that had moved by then.
#[derive(Default)]
pub(super) struct HangDetector {
    since: Option<(Instant, u64)>,
}

impl HangDetector {
    /// Ends the process if the library hangs and the program only waits. To be called now and then after a
    /// fault.
    pub(super) fn check(&mut self, shared: &Shared) {
        let Some(fault) = shared.condition.fault() else { return };
        if shared.running.lock().is_empty() || open_messages() == 0 {
            self.since = None;
            return;
        }
        waits::look();
        let since = self.since.filter(|(_, moved)| *moved == messages()).map_or_else(Instant::now, |(since, _)| since);
        self.since = Some((since, messages()));
        if since.elapsed() < GRACE || !waits::is_only_waiting(waits::seen(since).as_ref()) {
            return;
        }
        if !shared.condition.is_reported() {
            notice(&format!("ringpull: rank {}: {fault}", shared.rank));
        }
        notice(&format!("ringpull: rank {}: the MPI library does not return: this process ends", shared.rank));
        timeline::flush();
        // SAFETY: ends the process at once; the library cannot be finalised.
        unsafe { libc::_exit(1) }
    }
}
