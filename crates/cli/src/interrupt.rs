//! Ctrl-C, SIGTERM and SIGHUP, for code that has something to put in order first.
//!
//! While an [`Interrupt`] lives, these signals are only noted; while none does, they end the process as ever.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use ringpull_base::{Error, Result};

static WATCHERS: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static STARTED: OnceLock<Option<String>> = OnceLock::new();

/// Somebody who asks for interrupts instead of being ended by them.
#[derive(Debug)]
pub(crate) struct Interrupt(());

#[allow(clippy::unused_self, reason = "who does not watch is ended by an interrupt, and cannot ask for it")]
impl Interrupt {
    /// Begins to note interrupts.
    pub(crate) fn watch() -> Result<Self> {
        let failure = STARTED.get_or_init(|| start().err().map(|cause| cause.to_string()));
        if let Some(text) = failure {
            return Err(Error::Io {
                action: "watch".to_owned(),
                path: "signals".to_owned(),
                text: text.clone(),
                remedy: String::new(),
            });
        }
        WATCHERS.fetch_add(1, Ordering::SeqCst);
        Ok(Interrupt(()))
    }

    /// The last signal that came, if any did.
    pub(crate) fn signal(&self) -> Option<i32> {
        Some(LAST.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// How many came.
    pub(crate) fn count(&self) -> usize {
        COUNT.load(Ordering::SeqCst)
    }
}

impl Interrupt {
    /// What passes on to the process, as SIGTERM, the interrupts that have come since it was called last.
    pub(crate) fn forward_to(&self, pid: Pid) -> impl FnMut() {
        let mut passed_on = self.count();
        move || {
            if self.count() > passed_on {
                passed_on = self.count();
                if let Err(cause) = kill_process(pid, Signal::TERM) {
                    tracing::debug!(%cause, "the interrupted process had ended");
                }
            }
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        WATCHERS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn start() -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            LAST.store(signal, Ordering::SeqCst);
            COUNT.fetch_add(1, Ordering::SeqCst);
            if WATCHERS.load(Ordering::SeqCst) == 0
                && let Err(cause) = signal_hook::low_level::emulate_default_handler(signal)
            {
                eprintln!("error: cannot end on signal {signal}: {cause}");
            }
        }
    })?;
    Ok(())
}
