//! The operations that a generation of ranks saves for the next one, because they were called and are not
//! done.
//!
//! Each job carries its call ([`SavedCall`]), so that it can be called again. The finished operations of each
//! topic are counted from the start of the job, so that survivors with different counts can be compared
//! (`renewal`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::progress::job::{SavedCall, Submission};
use crate::progress::messages::{Operation, Terms, Topic};

/// An operation that was called and is not done.
pub(super) type SavedOperation = (SavedCall, Submission);

/// The operations that a generation saves for the next one.
pub(super) struct RetryStore {
    /// The number of operations of each topic that were done before this generation.
    pub(super) before: BTreeMap<Topic, u64>,
    orphans: Mutex<SavedOperations>,
    /// The number of operations that were called.
    called: AtomicU64,
}

enum SavedOperations {
    Kept(Vec<SavedOperation>),
    /// The saved operations have been passed to the next generation, and later ones are passed on too.
    Passed(Box<dyn Fn(SavedOperation) + Send>),
    /// The job has ended without a next generation.
    Ended,
}

impl RetryStore {
    pub(super) fn new(before: BTreeMap<Topic, u64>) -> Self {
        RetryStore { before, orphans: Mutex::new(SavedOperations::Kept(Vec::new())), called: AtomicU64::new(0) }
    }

    /// Returns the call to save for a retry, with its number among the calls.
    pub(super) fn call(&self, topic: &Topic, operation: &Operation, terms: &Terms) -> Box<SavedCall> {
        let place = self.called.fetch_add(1, Ordering::Relaxed);
        Box::new(SavedCall { place, topic: topic.clone(), operation: operation.clone(), terms: terms.clone() })
    }

    /// Takes the job. Returns it if it cannot be retried, or if no job is kept any more.
    pub(super) fn adopt(&self, mut job: Submission) -> Result<(), Submission> {
        let mut orphans = self.orphans.lock();
        if matches!(*orphans, SavedOperations::Ended) || job.call.is_none() || !job.job.again() {
            return Err(job);
        }
        let Some(call) = job.call.take() else { return Err(job) };
        match &mut *orphans {
            SavedOperations::Kept(kept) => kept.push((*call, job)),
            SavedOperations::Passed(next) => next((*call, job)),
            SavedOperations::Ended => unreachable!("that was checked above"),
        }
        Ok(())
    }

    /// Returns true if the saved operations still wait for the next generation.
    pub(super) fn waits(&self) -> bool {
        matches!(*self.orphans.lock(), SavedOperations::Kept(_))
    }

    /// Ends the job without a next generation. Returns the operations saved for it.
    pub(super) fn end(&self) -> Vec<SavedOperation> {
        let mut orphans = self.orphans.lock();
        let SavedOperations::Kept(kept) = &mut *orphans else { return Vec::new() };
        let kept = std::mem::take(kept);
        *orphans = SavedOperations::Ended;
        kept
    }

    /// Passes the saved operations to `next`, in the order of the calls, and later also those that are saved
    /// after this call. Returns false if no saved operations wait for a next generation.
    pub(super) fn pass(&self, next: Box<dyn Fn(SavedOperation) + Send>) -> bool {
        let mut orphans = self.orphans.lock();
        let SavedOperations::Kept(kept) = &mut *orphans else { return false };
        kept.sort_by_key(|(call, _)| call.place);
        std::mem::take(kept).into_iter().for_each(&next);
        *orphans = SavedOperations::Passed(next);
        true
    }

    /// Does `work` on the saved operations.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Vec<SavedOperation>) -> T) -> Option<T> {
        match &mut *self.orphans.lock() {
            SavedOperations::Kept(kept) => Some(work(kept)),
            SavedOperations::Passed(_) | SavedOperations::Ended => None,
        }
    }
}
