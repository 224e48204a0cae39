//! Reports why a rank ends if its launcher ends it. (A launcher that has lost a rank sends SIGTERM to the
//! others.) Reports the state of every rank on SIGUSR1.
//!
//! If a program has not handled SIGTERM, the signal still ends its process, but a moment later. In this time
//! the fault that is the reason arrives, and the caller reports it, or else this module does. A program's own
//! handling of SIGTERM is left as it is, whether it was set before `create` or after: the program may need
//! all of its grace period to write a checkpoint. If a handler that was installed later calls the previous
//! handler, that does nothing here. All this holds for SIGUSR1 too, which would end the process by default.
#![allow(unsafe_code)]

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use libc::{SIGTERM, SIGUSR1, c_int, sighandler_t};

use ringpull_base::forked::{self, Hooks};
use ringpull_base::{Error, Result, last_words, notice, timeline};

use crate::progress::engine::Engine;

/// The time in which the reason must arrive.
const REASON: Duration = Duration::from_millis(300);
/// The time in which the caller must report the reason and end by itself.
const REPORT: Duration = Duration::from_millis(400);

/// The descriptor to which the handler writes a byte, and the process in which the handler does so.
static WAKE: AtomicI32 = AtomicI32::new(-1);
static PID: AtomicI32 = AtomicI32::new(0);

/// The signals that are handled.
const SIGNALS: [c_int; 2] = [SIGTERM, SIGUSR1];

/// Explains the end of this process by SIGTERM from now on, and answers SIGUSR1, unless the program handles
/// or ignores that signal.
pub(super) fn explain(engine: &Arc<Engine>) -> Result<()> {
    let failed = |cause: std::io::Error| Error::io("watch", "signals", &cause);
    if SIGNALS.iter().all(|signal| present(*signal) != libc::SIG_DFL) {
        return Ok(());
    }
    let (wake, woken) = UnixStream::pair().map_err(failed)?;
    wake.set_nonblocking(true).map_err(failed)?;
    forked::close_in_child(wake.as_raw_fd());
    forked::close_in_child(woken.as_raw_fd());
    let engine = Arc::downgrade(engine);
    let name = "ringpull-term".to_owned();
    std::thread::Builder::new().name(name).spawn(move || wait(woken, &engine)).map_err(failed)?;
    PID.store(std::process::id() as i32, Ordering::Release);
    // The descriptor is never closed, because a signal may come at any time.
    WAKE.store(wake.into_raw_fd(), Ordering::Release);
    forked::around_forks(Hooks { child: let_go, ..Hooks::NONE });
    let handler: extern "C" fn(c_int) = on_signal;
    for signal in SIGNALS.into_iter().filter(|signal| present(*signal) == libc::SIG_DFL) {
        let replaced = set(signal, handler as sighandler_t);
        if replaced.sa_sigaction != libc::SIG_DFL {
            // Another thread has set a handler in between. SAFETY: puts back the action that was just
            // replaced.
            unsafe { libc::sigaction(signal, &raw const replaced, ptr::null_mut()) };
        }
    }
    Ok(())
}

/// Returns the current handler. Safe in a signal handler.
fn present(signal: c_int) -> sighandler_t {
    let mut found = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads the action. All zeros is a valid `sigaction`, which the call fills.
    unsafe {
        libc::sigaction(signal, ptr::null(), found.as_mut_ptr());
        found.assume_init().sa_sigaction
    }
}

/// Replaces the handler. Safe in a signal handler.
fn set(signal: c_int, handler: sighandler_t) -> libc::sigaction {
    let mut replaced = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the handler is one of the system's or `on_signal`, which is a plain function; all zeros is a
    // valid `sigaction`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, replaced.as_mut_ptr());
        replaced.assume_init()
    }
}

fn is_ours(signal: c_int) -> bool {
    let handler: extern "C" fn(c_int) = on_signal;
    present(signal) == handler as sighandler_t
}

/// Handles the signal with system calls only.
extern "C" fn on_signal(signal: c_int) {
    // SAFETY: the thread's own error number, which its interrupted code may be about to read.
    let error = unsafe { *libc::__errno_location() };
    if is_ours(signal) {
        // SAFETY: reads the process id, writes one valid byte to a descriptor that is never closed, and
        // raises a signal that is blocked until this returns.
        unsafe {
            if libc::getpid() == PID.load(Ordering::Acquire) {
                let byte = u8::try_from(signal).unwrap_or(0);
                libc::write(WAKE.load(Ordering::Acquire), ptr::from_ref(&byte).cast(), 1);
            } else {
                // This is a child that was just forked.
                set(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
}

/// Restores the default actions of the signals in a forked child, which has no thread that waits for them.
fn let_go() {
    for signal in SIGNALS.into_iter().filter(|signal| is_ours(*signal)) {
        set(signal, libc::SIG_DFL);
    }
}

/// Waits for the signal, and then for the fault that is the reason. Gives the caller time to report it,
/// otherwise reports it, and ends the process.
fn wait(mut woken: UnixStream, engine: &Weak<Engine>) {
    let mut signal = [0];
    loop {
        if woken.read_exact(&mut signal).is_err() {
            return;
        }
        if c_int::from(signal[0]) == SIGTERM {
            break;
        }
        if let Some(engine) = engine.upgrade() {
            engine.describe();
        }
    }
    if let Some(engine) = engine.upgrade() {
        let told = Instant::now();
        while engine.first_fault().is_none() && told.elapsed() < REASON {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(fault) = engine.first_fault() {
            // The caller has the error, or gets it when it reads an output. Give it time to report the error
            // and to end by itself.
            std::thread::sleep(REPORT);
            if !engine.is_reported() && !engine.is_leaving() && !last_words::has_spoken() {
                notice(&format!("ringpull: rank {}: {fault}", engine.rank()));
            }
        }
    }
    timeline::flush();
    set(SIGTERM, libc::SIG_DFL);
    // SAFETY: ends the process by the signal, which this thread unblocks. If that fails, ends it at once by
    // `_exit`. MPI is not finalised, since peers are lost.
    unsafe {
        let mut only = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), SIGTERM);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), ptr::null_mut());
        libc::raise(SIGTERM);
        libc::_exit(128 + SIGTERM)
    }
}
