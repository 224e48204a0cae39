//! The condition of a job, as this rank knows it, and this rank's presence in the job. Both are enums;
//! docs/protocol.md has a table of their transitions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use ringpull_base::{Error, OnFault};

use crate::progress::changes::Changes;

/// The condition of a generation of ranks.
#[derive(Debug, Clone)]
enum GenerationState {
    Well,
    /// All ranks are done, or one rank has left and its process has ended. `MPI_Finalize` has a time limit
    /// from now on.
    Closing,
    /// A rank is lost, and the others go on in the next generation. `is_closing` is kept from before the
    /// loss.
    Renewing {
        loss: Error,
        is_closing: bool,
    },
    /// The job has ended by this fault.
    Failed(Error),
}

/// The presence of this rank in the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Here,
    /// The program calls nothing more.
    Leaving,
    /// The other ranks have been told.
    Left,
}

/// The condition and the presence, with the flags by which other threads notice a change.
pub(super) struct Condition {
    job: Mutex<GenerationState>,
    presence: Mutex<Presence>,
    /// Set with the first fault; the collectives watch it.
    stop: Arc<AtomicBool>,
    /// Called with the first fault.
    hook: OnceLock<OnFault>,
    /// True if a caller has received the fault.
    is_reported: AtomicBool,
    /// True if the error with which this rank would end was sent to the others.
    is_failing: AtomicBool,
    /// Notified of each change that a thread may wait for.
    pub(super) changes: Arc<Changes>,
}

/// The state of a job before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlierState {
    Well,
    Renewing,
    Failed,
}

impl Condition {
    /// Returns the condition of a new generation. The rank may already be about to leave.
    pub(super) fn new(stop: Arc<AtomicBool>, is_leaving: bool, changes: Arc<Changes>) -> Self {
        Condition {
            job: Mutex::new(GenerationState::Well),
            presence: Mutex::new(if is_leaving { Presence::Leaving } else { Presence::Here }),
            stop,
            hook: OnceLock::new(),
            is_reported: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
            changes,
        }
    }

    /// Returns true if there was no fault.
    pub(super) fn is_well(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }

    /// The fault that has ended this generation of ranks, or the job.
    pub(super) fn fault(&self) -> Option<Error> {
        if self.is_well() {
            // Every operation calls this, so it does not take the lock.
            return None;
        }
        match &*self.job.lock() {
            GenerationState::Well | GenerationState::Closing => None,
            GenerationState::Renewing { loss: fault, .. } | GenerationState::Failed(fault) => Some(fault.clone()),
        }
    }

    /// The fault that has ended the job.
    pub(super) fn fatal(&self) -> Option<Error> {
        if self.is_well() {
            return None;
        }
        if let GenerationState::Failed(fault) = &*self.job.lock() { Some(fault.clone()) } else { None }
    }

    /// The loss that has ended this generation of ranks, and not the job.
    pub(super) fn loss(&self) -> Option<Error> {
        if self.is_well() {
            return None;
        }
        if let GenerationState::Renewing { loss, .. } = &*self.job.lock() { Some(loss.clone()) } else { None }
    }

    /// Returns true if a loss has ended this generation of ranks, and not the job.
    pub(super) fn is_renewing(&self) -> bool {
        !self.is_well() && matches!(*self.job.lock(), GenerationState::Renewing { .. })
    }

    /// Records the first fault. If `goes_on`, the job may go on with a next generation. Returns false if
    /// there was a fault before.
    pub(super) fn fail(&self, fault: &Error, goes_on: bool) -> bool {
        let mut job = self.job.lock();
        let is_first = matches!(*job, GenerationState::Well | GenerationState::Closing);
        if is_first {
            let is_closing = matches!(*job, GenerationState::Closing);
            *job = if goes_on {
                GenerationState::Renewing { loss: fault.clone(), is_closing }
            } else {
                GenerationState::Failed(fault.clone())
            };
            self.stop.store(true, Ordering::Release);
            self.changes.notify();
        }
        is_first
    }

    /// Ends the job by this fault, unless another fault has ended it. Returns the earlier state.
    pub(super) fn end(&self, fault: &Error) -> EarlierState {
        let mut job = self.job.lock();
        let before = match *job {
            GenerationState::Well | GenerationState::Closing => EarlierState::Well,
            GenerationState::Renewing { .. } => EarlierState::Renewing,
            GenerationState::Failed(_) => return EarlierState::Failed,
        };
        *job = GenerationState::Failed(fault.clone());
        self.stop.store(true, Ordering::Release);
        self.changes.notify();
        before
    }

    /// Records that all ranks are done, or that one rank has left and its process has ended.
    pub(super) fn close(&self) {
        match &mut *self.job.lock() {
            job @ GenerationState::Well => *job = GenerationState::Closing,
            GenerationState::Renewing { is_closing, .. } => *is_closing = true,
            GenerationState::Closing | GenerationState::Failed(_) => {}
        }
        self.changes.notify();
    }

    /// Returns true if the end of this generation has a time limit.
    pub(super) fn is_closing(&self) -> bool {
        matches!(*self.job.lock(), GenerationState::Closing | GenerationState::Renewing { is_closing: true, .. })
    }

    /// Records that the program calls nothing more. Returns false if that was recorded before.
    pub(super) fn begin_to_leave(&self) -> bool {
        let mut presence = self.presence.lock();
        let was_here = *presence == Presence::Here;
        if was_here {
            *presence = Presence::Leaving;
        }
        was_here
    }

    /// Returns true if the program calls nothing more.
    pub(super) fn is_leaving(&self) -> bool {
        *self.presence.lock() != Presence::Here
    }

    /// Records that the other ranks have been told that this rank leaves. Returns false if that was recorded
    /// before.
    pub(super) fn leave(&self) -> bool {
        std::mem::replace(&mut *self.presence.lock(), Presence::Left) != Presence::Left
    }

    /// Sets the function that gets the first fault, and calls it if there was one. The first call counts.
    pub(super) fn set_hook(&self, hook: OnFault) {
        self.hook.get_or_init(|| hook);
        if let Some(fault) = self.fault() {
            self.call_hook(&fault);
        }
    }

    pub(super) fn call_hook(&self, fault: &Error) {
        self.hook.get().into_iter().for_each(|hook| hook(fault));
    }

    /// Records that a caller has received the fault.
    pub(super) fn report(&self) {
        self.is_reported.store(true, Ordering::Release);
    }

    pub(super) fn is_reported(&self) -> bool {
        self.is_reported.load(Ordering::Acquire)
    }

    /// Records whether this rank's last call has failed with an error that is sent to the others. Returns the
    /// value before.
    pub(super) fn set_failing(&self, is_failing: bool) -> bool {
        let was_failing = self.is_failing.swap(is_failing, Ordering::AcqRel);
        self.changes.notify();
        was_failing
    }

    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss() -> Error {
        Error::Stopped {}
    }

    #[test]
    fn the_first_fault_counts_and_only_the_end_of_the_job_follows_a_loss() {
        let condition = Condition::new(Arc::default(), false, Arc::default());
        condition.close();
        assert!(condition.is_well() && condition.is_closing() && condition.fault().is_none());
        assert!(condition.fail(&loss(), true) && !condition.fail(&Error::bug("later"), false));
        assert!(!condition.is_well() && condition.is_closing() && condition.is_renewing());
        condition.close();
        assert!(condition.fatal().is_none() && condition.is_renewing());
        assert_eq!(condition.end(&Error::bug("it cannot go on")), EarlierState::Renewing);
        assert_eq!(condition.end(&loss()), EarlierState::Failed);
        assert!(condition.fatal().unwrap().to_string().contains("it cannot go on") && !condition.is_renewing());
        assert!(!condition.is_closing());
    }

    #[test]
    fn a_rank_leaves_once() {
        let condition = Condition::new(Arc::default(), false, Arc::default());
        assert!(!condition.is_leaving() && condition.begin_to_leave() && !condition.begin_to_leave());
        assert!(condition.is_leaving() && condition.leave() && !condition.leave() && condition.is_leaving());
        let next = Condition::new(Arc::default(), true, Arc::default());
        assert!(next.is_leaving() && !next.begin_to_leave() && next.leave());
    }
}
