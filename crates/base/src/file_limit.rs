//! The limit of a file's length (`ulimit -f`). Exceeding it is an error of the call, like a full disk, and
//! does not end the process.
//!
//! The kernel sends SIGXFSZ to the thread that exceeds the limit, which by default ends the process. A thread
//! that blocks the signal only gets the error `EFBIG`. Other threads, and handlers of the program, are not
//! affected.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `work`. If a file would become too long, this thread gets an error and no signal.
pub fn without_signal<T>(work: impl FnOnce() -> T) -> T {
    let _blocked = SignalBlock::new();
    work()
}

/// Does as [`without_signal`] for the rest of this thread, which must be one of ringpull's, and for threads
/// that it starts.
pub fn without_signal_in_this_thread() {
    std::mem::forget(SignalBlock::new());
}

/// A guard that blocks SIGXFSZ in this thread. Its end restores the earlier state.
struct SignalBlock {
    before: libc::sigset_t,
    /// True if a signal was pending before. That signal is not taken away.
    was_pending: bool,
}

impl SignalBlock {
    fn new() -> Self {
        let signal = signal();
        let mut before = MaybeUninit::uninit();
        let mut pending = MaybeUninit::uninit();
        // SAFETY: the sets are written by these calls, which with valid arguments cannot fail, before they
        // are read.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signal, before.as_mut_ptr());
            libc::sigpending(pending.as_mut_ptr());
            let was_pending = libc::sigismember(pending.as_ptr(), libc::SIGXFSZ) == 1;
            SignalBlock { before: before.assume_init(), was_pending }
        }
    }
}

impl Drop for SignalBlock {
    fn drop(&mut self) {
        let (signal, at_once) = (signal(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: the sets and the time are valid. Taking the signal fails if none came, which is as good.
        unsafe {
            if !self.was_pending {
                libc::sigtimedwait(&raw const signal, ptr::null_mut(), &raw const at_once);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut());
        }
    }
}

/// Returns the set that has only SIGXFSZ.
fn signal() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call writes the set, which the second adds a signal of this system to.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The environment variable with the file to which the test's process writes.
    const FILE: &str = "RINGPULL_TEST_FILE";

    #[test]
    fn a_file_beyond_the_limit_is_an_error_and_no_end_of_the_process() {
        const NAME: &str = "file_limit::tests::a_file_beyond_the_limit_is_an_error_and_no_end_of_the_process";
        if let Some(file) = std::env::var_os(FILE) {
            return in_a_process_with_a_limit(file.as_ref());
        }
        let folder = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        // The unit is 512 bytes in some shells and 1024 in others.
        let script = "ulimit -f 8 && exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(program).args([NAME, "--exact", "--nocapture"]);
        let output = command.env(FILE, folder.path().join("file")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("survived"), "{}: {text}", output.status);
    }

    fn in_a_process_with_a_limit(file: &std::path::Path) {
        use crate::buffer::region::Region;

        let too_large = |error: Option<std::io::Error>| error.and_then(|error| error.raw_os_error());
        let long = [0_u8; 16 << 10];
        assert_eq!(too_large(Region::create(long.len()).err()), Some(libc::EFBIG));
        assert_eq!(too_large(crate::files::replace(file, &[&long]).err()), Some(libc::EFBIG));
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 0);
        // The signal is not pending now, and not blocked.
        let is_blocked = || {
            let mut set = MaybeUninit::uninit();
            // SAFETY: the call writes the set before it is read.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr());
                libc::sigismember(set.as_ptr(), libc::SIGXFSZ) == 1
            }
        };
        assert!(!is_blocked() && without_signal(is_blocked));
        println!("survived");
    }
}
