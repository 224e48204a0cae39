//! The operations that a generation of ranks saves for the next one: those that were called and are not done.
//!
//! Each call is wrapped so that it can be taken out with the inputs for a retry ([`SavedOperation`]). The
//! finished operations of each topic are counted from the start of the job, so that survivors with different
//! counts can be compared (`renewal`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use ringpull_base::{Error, Result};

use crate::communicator::{Begun, Communicator, PartUpdate};
use crate::interpreter::Memory;
use crate::progress::job::{Job, SavedOperation};
use crate::progress::messages::{Launch, Operation, Terms, Topic, Transfer};

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
    /// The saved operations went to the next generation, and so do those that still come.
    Passed(Box<dyn Fn(SavedOperation) + Send>),
    /// The job has ended without a next generation.
    Ended,
}

impl RetryStore {
    pub(super) fn new(before: BTreeMap<Topic, u64>) -> Self {
        RetryStore { before, orphans: Mutex::new(SavedOperations::Kept(Vec::new())), called: AtomicU64::new(0) }
    }

    /// Returns the job of a call that is kept if its generation ends before it is done.
    pub(super) fn keep(&self, topic: &Topic, operation: &Operation, terms: &Terms, job: Box<dyn Job>) -> Box<dyn Job> {
        let place = self.called.fetch_add(1, Ordering::Relaxed);
        let (topic, operation, terms) = (topic.clone(), operation.clone(), terms.clone());
        Box::new(KeptJob(Some(SavedOperation { place, topic, operation, terms, job })))
    }

    /// Takes the job, unless it cannot be retried or no job is kept any more.
    pub(super) fn adopt(&self, mut job: Box<dyn Job>) -> std::result::Result<(), Box<dyn Job>> {
        let mut orphans = self.orphans.lock();
        if matches!(*orphans, SavedOperations::Ended) {
            return Err(job);
        }
        let Some(orphan) = job.orphan() else { return Err(job) };
        match &mut *orphans {
            SavedOperations::Kept(kept) => kept.push(orphan),
            SavedOperations::Passed(next) => next(orphan),
            SavedOperations::Ended => unreachable!("it was looked for"),
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

    /// Gives the saved operations to `next`, in the order of the calls, and later those that still come.
    /// Returns false if no saved operations wait for a next generation.
    pub(super) fn pass(&self, next: Box<dyn Fn(SavedOperation) + Send>) -> bool {
        let mut orphans = self.orphans.lock();
        let SavedOperations::Kept(kept) = &mut *orphans else { return false };
        kept.sort_by_key(|orphan| orphan.place);
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

/// A job that can be taken out of its generation.
struct KeptJob(Option<SavedOperation>);

impl KeptJob {
    fn job(&self) -> &dyn Job {
        &*self.0.as_ref().expect("a job that was taken out is not asked").job
    }

    fn job_mut(&mut self) -> &mut dyn Job {
        &mut *self.0.as_mut().expect("a job that was taken out is not asked").job
    }

    fn taken(mut self) -> Box<dyn Job> {
        self.0.take().expect("a job is taken out once").job
    }
}

impl Job for KeptJob {
    fn transfer(&self) -> Transfer {
        self.job().transfer()
    }

    fn checks(&self) -> bool {
        self.job().checks()
    }

    fn check(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        self.job_mut().check(comm, launch)
    }

    fn lend(&mut self) -> Memory {
        self.job_mut().lend()
    }

    fn receive(&mut self, memory: Memory) {
        self.job_mut().receive(memory);
    }

    fn part_update(&mut self, part: Range<usize>) -> Result<PartUpdate> {
        self.job_mut().part_update(part)
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Begun>> {
        self.job_mut().advance(comm, launch)
    }

    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        self.job_mut().run(comm, launch)
    }

    fn is_soon_finished(&self) -> bool {
        self.job().is_soon_finished()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.taken().finish()
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.taken().fail(fault);
    }

    fn orphan(&mut self) -> Option<SavedOperation> {
        if self.job_mut().again() { self.0.take() } else { None }
    }
}
