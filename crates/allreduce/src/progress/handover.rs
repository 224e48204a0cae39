//! The number of jobs that the comm thread has passed to the finishing thread and that are not finished.
//!
//! The comm thread finishes a short job itself if this number is 0, because all work of the finishing thread
//! has then happened before. The number's type is generic for `loom`, as in `transport::meeting`.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::transport::meeting::Number;

/// A count of jobs between the two threads.
#[derive(Default)]
pub(super) struct Handover<N = AtomicU32>(N);

impl<N: Number> Handover<N> {
    /// Counts a job of the comm thread, before it is sent.
    pub(super) fn give(&self) {
        self.0.add(1, Ordering::Relaxed);
    }

    /// Counts a job as finished, on the finishing thread.
    pub(super) fn finished(&self) {
        self.0.add(u32::MAX, Ordering::Release);
    }

    /// Returns true if every job is finished. This thread then sees everything that the finishing thread
    /// wrote.
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::meeting::tests::LoomNumber;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::mpsc::channel;

    /// Loom reports unordered accesses of the cell. So this test fails if either ordering is weakened to
    /// `Relaxed`.
    #[test]
    fn the_finishing_threads_work_happens_before_what_the_comm_thread_finishes_itself() {
        loom::model(|| {
            let shared = Arc::new((Handover::<LoomNumber>::default(), UnsafeCell::new(())));
            let (sender, receiver) = channel::<()>();
            let finishing = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    for _ in 0..2 {
                        receiver.recv().unwrap();
                        shared.1.with_mut(drop);
                        shared.0.finished();
                    }
                })
            };
            for _ in 0..2 {
                shared.0.give();
                sender.send(()).unwrap();
                if shared.0.is_empty() {
                    shared.1.with(drop);
                }
            }
            finishing.join().unwrap();
            assert!(shared.0.is_empty());
        });
    }
}
