//! What the comm thread has given to the finishing thread and that has not finished.
//!
//! The comm thread finishes a short job itself if nothing that it gave before is left: then the finishing
//! thread's work lies before its own. The count is generic for `loom`, as in `transport::meeting`.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::transport::meeting::Number;

/// A count of jobs between the two threads.
#[derive(Default)]
pub(super) struct Handover<N = AtomicU32>(N);

impl<N: Number> Handover<N> {
    /// The comm thread gives one more job, before it sends it.
    pub(super) fn give(&self) {
        self.0.add(1, Ordering::Relaxed);
    }

    /// The finishing thread has finished one.
    pub(super) fn finished(&self) {
        self.0.add(u32::MAX, Ordering::Release);
    }

    /// Whether nothing is left. What finishing has done is seen then.
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::meeting::tests::Modelled;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::mpsc::channel;

    /// Accesses of the cell that no ordering keeps apart are an error of loom's. Either ordering weakened to
    /// `Relaxed` is found by this.
    #[test]
    fn what_the_finishing_thread_has_done_lies_before_what_the_comm_thread_finishes_itself() {
        loom::model(|| {
            let shared = Arc::new((Handover::<Modelled>::default(), UnsafeCell::new(())));
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
