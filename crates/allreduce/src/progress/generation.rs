//! The generations of an engine: its ranks between two losses.
//!
//! Everything of a generation is made anew for the next one: the transport and the control star, the
//! placement, the agreement, the numbers of calls. What lives on is [`Current`], which the callers hold, and
//! the operations that were called and are not done: each is kept ([`Orphan`]) with what it needs to be done
//! again.
//!
//! How many operations of a topic are done is counted from the start of the job, so that ranks that have come
//! through a loss differently far can be compared (`renewal`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use ringpull_base::{Error, Result, Waiter};

use crate::communicator::{Communicator, PartUpdate};
use crate::interpreter::Ticket;
use crate::progress::job::Job;
use crate::progress::messages::{Launch, Operation, Terms, Topic, Transfer};
use crate::progress::shared::Shared;

/// What has changed with a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// How many losses there were, with this one.
    pub generation: u64,
    /// This rank's number from now on.
    pub rank: usize,
    /// How many ranks are left.
    pub num_workers: usize,
    /// The numbers that the lost ranks had until now.
    pub lost: Vec<usize>,
}

/// The present generation, as callers see it.
pub(super) struct Current {
    shared: RwLock<Arc<Shared>>,
    changes: Mutex<Vec<Change>>,
    /// Whether this rank has said that it calls nothing more.
    pub(super) has_left: AtomicBool,
}

impl Current {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Current { shared: RwLock::new(shared), changes: Mutex::default(), has_left: AtomicBool::new(false) }
    }

    /// The present generation, which may be replaced at once.
    pub(super) fn get(&self) -> Arc<Shared> {
        Arc::clone(&self.shared.read())
    }

    /// Changes since the one of that number.
    pub(super) fn changes(&self, seen: usize) -> Vec<Change> {
        self.changes.lock().get(seen..).unwrap_or_default().to_vec()
    }

    /// How many losses there were.
    pub(super) fn generation(&self) -> u64 {
        self.changes.lock().last().map_or(0, |change| change.generation)
    }

    /// The next generation takes the place of `old`, and gets what that has kept, and what is still called
    /// there.
    pub(super) fn replace(&self, old: &Shared, next: &Arc<Shared>, change: Change) {
        old.fail_waiting();
        if let Some(elastic) = &old.elastic {
            elastic.pass(next);
        }
        self.changes.lock().push(change);
        *self.shared.write() = Arc::clone(next);
        if self.has_left.load(Ordering::SeqCst) {
            next.say_goodbye();
        }
    }
}

impl Waiter for Current {
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

/// What a generation keeps for the next one.
pub(super) struct Elastic {
    /// How many operations of each topic were done before this generation.
    pub(super) before: BTreeMap<Topic, u64>,
    orphans: Mutex<Orphans>,
    /// How many operations were called.
    called: AtomicU64,
}

enum Orphans {
    Kept(Vec<Orphan>),
    /// They went to the next generation, and those that still come do.
    Passed(Arc<Shared>),
    /// There is no next generation.
    Ended,
}

/// An operation that was called and is not done.
pub(super) struct Orphan {
    /// Its place among the calls of this rank.
    pub(super) place: u64,
    pub(super) topic: Topic,
    pub(super) operation: Operation,
    pub(super) terms: Terms,
    pub(super) job: Box<dyn Job>,
}

impl Orphan {
    fn pass(self, next: &Shared) {
        if let Err(cause) = next.submit(self.topic, self.operation, self.terms, self.job) {
            next.end(&cause);
        }
    }
}

impl Elastic {
    pub(super) fn new(before: BTreeMap<Topic, u64>) -> Self {
        Elastic { before, orphans: Mutex::new(Orphans::Kept(Vec::new())), called: AtomicU64::new(0) }
    }

    /// The job of a call that is kept if its generation ends before it is done.
    pub(super) fn keep(&self, topic: &Topic, operation: &Operation, terms: &Terms, job: Box<dyn Job>) -> Box<dyn Job> {
        let place = self.called.fetch_add(1, Ordering::Relaxed);
        let (topic, operation, terms) = (topic.clone(), operation.clone(), terms.clone());
        Box::new(Kept(Some(Orphan { place, topic, operation, terms, job })))
    }

    /// Takes the job, unless it cannot be done again or nothing is kept any more.
    pub(super) fn adopt(&self, mut job: Box<dyn Job>) -> std::result::Result<(), Box<dyn Job>> {
        let mut orphans = self.orphans.lock();
        if matches!(*orphans, Orphans::Ended) {
            return Err(job);
        }
        let Some(orphan) = job.orphan() else { return Err(job) };
        match &mut *orphans {
            Orphans::Kept(kept) => kept.push(orphan),
            Orphans::Passed(next) => orphan.pass(next),
            Orphans::Ended => unreachable!("it was looked for"),
        }
        Ok(())
    }

    /// Whether there is or may be a next generation.
    pub(super) fn goes_on(&self) -> bool {
        !matches!(*self.orphans.lock(), Orphans::Ended)
    }

    /// Whether what is kept still waits for the next generation.
    pub(super) fn waits(&self) -> bool {
        matches!(*self.orphans.lock(), Orphans::Kept(_))
    }

    /// There is no next generation: what was kept.
    pub(super) fn end(&self) -> Vec<Orphan> {
        let mut orphans = self.orphans.lock();
        let Orphans::Kept(kept) = &mut *orphans else { return Vec::new() };
        let kept = std::mem::take(kept);
        *orphans = Orphans::Ended;
        kept
    }

    /// Calls what was kept in the next generation, in the order of the calls.
    fn pass(&self, next: &Arc<Shared>) {
        let mut orphans = self.orphans.lock();
        if let Orphans::Kept(kept) = &mut *orphans {
            kept.sort_by_key(|orphan| orphan.place);
            std::mem::take(kept).into_iter().for_each(|orphan| orphan.pass(next));
            *orphans = Orphans::Passed(Arc::clone(next));
        } else if let Orphans::Ended = *orphans {
            let fault = Error::bug("a generation of ranks follows one that was to be the last");
            next.end(&fault);
        }
    }

    /// Does `work` on what is kept.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Vec<Orphan>) -> T) -> Option<T> {
        match &mut *self.orphans.lock() {
            Orphans::Kept(kept) => Some(work(kept)),
            Orphans::Passed(_) | Orphans::Ended => None,
        }
    }
}

/// A job that can be taken out of its generation.
struct Kept(Option<Orphan>);

impl Kept {
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

impl Job for Kept {
    fn transfer(&self) -> Transfer {
        self.job().transfer()
    }

    fn checks(&self) -> bool {
        self.job().checks()
    }

    fn check(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        self.job_mut().check(comm, launch)
    }

    fn addend(&mut self) -> &mut [u8] {
        self.job_mut().addend()
    }

    fn part_update(&mut self, part: Range<usize>) -> Result<PartUpdate> {
        self.job_mut().part_update(part)
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Ticket>> {
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

    fn orphan(&mut self) -> Option<Orphan> {
        if self.job_mut().again() { self.0.take() } else { None }
    }
}
