//! The generations of an engine. A generation is the time between two losses of ranks.
//!
//! Each generation has its own transport, control star, placement, agreement and counts of calls. Two things
//! last longer: [`CurrentGeneration`], which the callers hold, and the saved inputs of the operations that
//! are not done (`kept`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use ringpull_base::{Error, Waiter};

use crate::progress::kept::SavedOperation;
use crate::progress::shared::Shared;

/// The change of the ranks by a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The number of losses, including this one.
    pub generation: u64,
    /// This rank's number from now on.
    pub rank: usize,
    /// The number of ranks that are left.
    pub num_workers: usize,
    /// The numbers that the lost ranks had until now.
    pub lost: Vec<usize>,
}

/// The current generation, as callers see it.
pub(super) struct CurrentGeneration {
    shared: RwLock<Arc<Shared>>,
    /// This rank's number and the number of losses. They are atomics because every call reads them.
    rank: AtomicUsize,
    generation: AtomicU64,
    is_elastic: bool,
    changes: Mutex<Vec<Change>>,
    /// Work that is done as soon as this rank is rank 0.
    as_first: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl CurrentGeneration {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        CurrentGeneration {
            rank: AtomicUsize::new(shared.rank),
            generation: AtomicU64::new(0),
            is_elastic: shared.elastic.is_some(),
            shared: RwLock::new(shared),
            changes: Mutex::default(),
            as_first: Mutex::default(),
        }
    }

    /// Does `work` now if this rank is rank 0, or when it becomes rank 0.
    pub(super) fn when_first(&self, work: Box<dyn FnOnce() + Send>) {
        self.as_first.lock().push(work);
        self.do_as_first();
    }

    fn do_as_first(&self) {
        if self.get().rank == 0 {
            let all = std::mem::take(&mut *self.as_first.lock());
            all.into_iter().for_each(|work| work());
        }
    }

    /// This rank.
    pub(super) fn rank(&self) -> usize {
        self.rank.load(Ordering::Acquire)
    }

    /// Returns true if the job goes on when it loses a rank.
    pub(super) fn is_elastic(&self) -> bool {
        self.is_elastic
    }

    /// Returns the current generation. It may be replaced at any time.
    pub(super) fn get(&self) -> Arc<Shared> {
        Arc::clone(&self.shared.read())
    }

    /// Returns the changes without the first `seen`.
    pub(super) fn changes(&self, seen: usize) -> Vec<Change> {
        self.changes.lock().get(seen..).unwrap_or_default().to_vec()
    }

    /// The number of losses.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Replaces the generation `old` by `next`. `next` gets the operations saved in `old`, and those that are
    /// still called there.
    pub(super) fn replace(&self, old: &Shared, next: &Arc<Shared>, change: Change) {
        old.fail_waiting();
        let follower = Arc::clone(next);
        let pass = Box::new(move |(call, job): SavedOperation| {
            if let Err(cause) = follower.submit(call.topic, call.operation, call.terms, job) {
                follower.end(&cause);
            }
        });
        if !old.elastic.as_ref().is_some_and(|elastic| elastic.pass(pass)) {
            let follows = || Error::bug("a generation of ranks follows one that was to be the last");
            next.end(&old.condition.fatal().unwrap_or_else(follows));
        }
        // A caller may already wait for an operation that was called before the loss.
        next.wait();
        let generation = change.generation;
        self.changes.lock().push(change);
        // This is set first, for a caller that finds that the loss has been handled.
        self.rank.store(next.rank, Ordering::Release);
        self.generation.store(generation, Ordering::Release);
        *self.shared.write() = Arc::clone(next);
        next.condition.changes.notify();
        self.do_as_first();
    }
}

impl Waiter for CurrentGeneration {
    fn wait(&self) {
        self.get().wait();
    }

    fn watched(&self) {
        self.get().watched();
    }

    fn returned(&self) {
        self.get().returned();
    }
}
