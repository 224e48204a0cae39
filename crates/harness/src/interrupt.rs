//! Ctrl-C, SIGTERM and SIGHUP, for code that must clean up before it ends.
//!
//! While an [`Interrupt`] lives, these signals are only counted. Otherwise they end the process as usual. A
//! SIGHUP that the process was started to ignore, as by `nohup`, stays ignored. A launcher takes SIGUSR1 and
//! SIGUSR2 too, for the processes of its job.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};

use ringpull_base::{Error, Result};

static WATCHERS: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static STARTED: OnceLock<std::io::Result<Handle>> = OnceLock::new();
/// The signals for the processes of a job. The flag is true if the signal has come.
static FOR_JOB: [(Signal, AtomicBool); 2] =
    [(Signal::USR1, AtomicBool::new(false)), (Signal::USR2, AtomicBool::new(false))];

/// A watcher that polls for interrupts instead of being ended by them.
#[derive(Debug)]
pub struct Interrupt(());

#[allow(clippy::unused_self, reason = "without a watcher an interrupt ends the process")]
impl Interrupt {
    /// Begins to count interrupts.
    pub fn watch() -> Result<Self> {
        STARTED.get_or_init(start).as_ref().map_err(|cause| Error::io("watch", "signals", cause))?;
        WATCHERS.fetch_add(1, Ordering::SeqCst);
        Ok(Interrupt(()))
    }

    /// Takes SIGUSR1 and SIGUSR2 as well, which do not count as interrupts. Those that came for an earlier
    /// job are forgotten.
    pub fn watch_for_job(&self) -> Result<()> {
        let failed = |cause: &std::io::Error| Error::io("watch", "signals", cause);
        FOR_JOB.iter().for_each(|(_, came)| came.store(false, Ordering::SeqCst));
        let handle = STARTED.get_or_init(start).as_ref().map_err(failed)?;
        [SIGUSR1, SIGUSR2].into_iter().try_for_each(|signal| handle.add_signal(signal)).map_err(|cause| failed(&cause))
    }

    /// The signals for the processes of the job that came since the last call.
    pub fn for_job(&self) -> impl Iterator<Item = Signal> {
        FOR_JOB.iter().filter(|(_, came)| came.swap(false, Ordering::SeqCst)).map(|(signal, _)| *signal)
    }

    /// Warns of each signal that came for the processes of a job. The job is run by `system`, and no signal
    /// is passed on to it.
    pub fn decline_for_job(&self, system: &str) {
        for signal in self.for_job() {
            eprintln!(
                "ringpull: signal {} is for no worker: {system} runs them, and the job goes on\n  hint: send it to the \
                 workers' own processes",
                signal.as_raw()
            );
        }
    }

    /// The last signal, if any.
    pub fn signal(&self) -> Option<i32> {
        Some(LAST.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// The number of signals that arrived.
    pub fn count(&self) -> usize {
        COUNT.load(Ordering::SeqCst)
    }

    /// Returns a function. Each call of this function sends SIGTERM to process `pid` for every interrupt
    /// since its last call.
    pub fn forward_to(&self, pid: Pid) -> impl FnMut() {
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

fn start() -> std::io::Result<Handle> {
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup))?;
    let handle = signals.handle();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if let Some((_, came)) = FOR_JOB.iter().find(|(for_job, _)| for_job.as_raw() == signal) {
                came.store(true, Ordering::SeqCst);
            } else {
                LAST.store(signal, Ordering::SeqCst);
                COUNT.fetch_add(1, Ordering::SeqCst);
            }
            if WATCHERS.load(Ordering::SeqCst) == 0
                && let Err(cause) = signal_hook::low_level::emulate_default_handler(signal)
            {
                eprintln!("error: cannot end on signal {signal}: {cause}");
            }
        }
    })?;
    Ok(handle)
}

/// Returns true if this process ignores a signal, as a process that `nohup` has started ignores SIGHUP.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (signal - 1) & 1 == 1
}
