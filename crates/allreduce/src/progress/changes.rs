//! Waits for a change of this rank's state, in any generation of ranks.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The time after which a waiting thread looks without a notice, because some changes, such as the end of a
/// thread, give no notice.
const LOOK: Duration = Duration::from_millis(100);

/// The notices of changes.
#[derive(Default)]
pub(super) struct Changes {
    count: Mutex<u64>,
    changed: Condvar,
    /// The number of threads that wait or are about to wait.
    waiting: AtomicU32,
}

impl Changes {
    /// Makes the waiting threads look again. Costs nothing if no thread waits.
    pub(super) fn notify(&self) {
        // The change must precede this look at `waiting`, because a waiting thread counts itself before it
        // looks for a change.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            *self.count.lock() += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until `is_over` returns true. `is_over` is called after each change, with the time waited since
    /// its last call. This time is at most [`LOOK`], so that the time in which a process was stopped does not
    /// count.
    pub(super) fn until(&self, mut is_over: impl FnMut(Duration) -> bool) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut waited = Duration::ZERO;
        loop {
            let count = *self.count.lock();
            if is_over(waited) {
                break;
            }
            let since = Instant::now();
            let mut now = self.count.lock();
            if *now == count {
                self.changed.wait_for(&mut now, LOOK);
            }
            drop(now);
            waited = since.elapsed().min(LOOK);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_wait_ends_with_a_change_and_without_one_looks_again() {
        let (changes, is_over) = (Changes::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| changes.until(|_| is_over.load(Ordering::Acquire)));
            while changes.waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::Release);
            changes.notify();
            waits.join().unwrap();
        });
        let mut looks = 0;
        changes.until(|waited| {
            looks += 1;
            assert!(waited <= LOOK);
            looks == 3
        });
        assert_eq!((looks, changes.waiting.load(Ordering::SeqCst)), (3, 0));
    }
}
