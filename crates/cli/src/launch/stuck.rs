//! Detects an `mpirun` that does not end although its ranks have ended or failed. The rules are the same with
//! and without servers beside the ranks.
//!
//! An `mpirun` is not ended while it writes, or while its output waits for the reader of this program's
//! output.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::control::RankControl;
use crate::child::{Childless, PATIENCE};

/// Words with which `mpirun` reports that it ends a job after a failure: those of Open MPI 4, Open MPI 5 and
/// MPICH.
const ABORTS: [&str; 4] =
    ["the job has been aborted", "the job to be terminated", "exited on signal", "BAD TERMINATION OF ONE"];

/// The reason why an `mpirun` will not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stuck {
    /// All its ranks have ended.
    Outlives,
    /// It has reported long ago that it ends the job.
    Aborts,
}

/// The output of an `mpirun` itself: the time of its arrival, and its messages about the job.
pub(super) struct Writing {
    last: Mutex<Instant>,
    /// The number of readers with output that is not passed on yet.
    busy: AtomicUsize,
    aborts: AtomicBool,
}

impl Writing {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Writing {
            last: Mutex::new(Instant::now()),
            busy: AtomicUsize::new(0),
            aborts: AtomicBool::new(false),
        })
    }

    /// Lets a reader pass on its output, which may wait.
    pub(super) fn passes(&self, pass_on: impl FnOnce()) {
        self.busy.fetch_add(1, Ordering::SeqCst);
        pass_on();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }

    /// Takes a line of stderr. Lines of processes begin with the processes' names.
    pub(super) fn line(&self, line: &str) {
        if !line.starts_with('[') && ABORTS.iter().any(|words| line.contains(words)) {
            self.aborts.store(true, Ordering::Relaxed);
        }
    }

    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::SeqCst) == 0
            && self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed() > PATIENCE
    }
}

/// The signs of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a column of the table")]
struct Signs {
    /// True if the `mpirun` has had children and has had none for some time.
    is_childless: bool,
    /// True if a connected rank is running.
    is_any_running: bool,
    /// True if all ranks of the job have ended.
    are_over: bool,
    /// True if the `mpirun` has reported that it ends the job.
    aborts: bool,
    is_idle: bool,
}

/// Watches one `mpirun`.
pub(super) struct MpirunWatch {
    childless: Childless,
    writing: Arc<Writing>,
    /// The time for which the `mpirun` may clean up on other hosts.
    pub(super) patience: Duration,
    over_since: Option<Instant>,
    aborts_since: Option<Instant>,
}

impl MpirunWatch {
    pub(super) fn new(childless: Childless, writing: Arc<Writing>, silence: Duration) -> Self {
        // After 1.5 times the limit of silence, survivors have reported which process they lost, or mpirun
        // has ended them.
        let patience = silence * 3 / 2 + PATIENCE;
        MpirunWatch { childless, writing, patience, over_since: None, aborts_since: None }
    }

    /// Returns the reason why the `mpirun` of `ranks` ranks will not end, if there is one. It must be polled,
    /// and does not block.
    pub(super) fn look(&mut self, control: &RankControl, ranks: usize) -> Option<Stuck> {
        let (ended, has_one_failed) = control.count_ended();
        let signs = Signs {
            is_childless: self.childless.is_stuck(),
            is_any_running: control.is_any_running(),
            are_over: control.has_ranks() && ended >= ranks,
            // A rank's program may print such words too.
            aborts: self.writing.aborts.load(Ordering::Relaxed) && (!control.has_ranks() || has_one_failed),
            is_idle: self.writing.is_idle(),
        };
        self.judge(Instant::now(), signs)
    }

    fn judge(&mut self, now: Instant, signs: Signs) -> Option<Stuck> {
        let Signs { is_childless, is_any_running, are_over, aborts, is_idle } = signs;
        let since = |is: bool, since: Option<Instant>| if is { since.or(Some(now)) } else { None };
        self.over_since = since(are_over, self.over_since);
        self.aborts_since = since(aborts, self.aborts_since);
        let is_long = |since: Option<Instant>| since.is_some_and(|since| now - since > self.patience);
        match () {
            () if !is_idle => None,
            () if is_long(self.aborts_since) => Some(Stuck::Aborts),
            () if is_childless && !is_any_running || is_long(self.over_since) => Some(Stuck::Outlives),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests an `mpirun` that shows one of 32 sets of signs from its start.
    #[test]
    fn one_that_writes_or_has_a_rank_is_left_alone_and_any_other_has_its_time() {
        for bits in 0..1 << 5 {
            let is = |bit: u32| bits >> bit & 1 > 0;
            let signs =
                Signs { is_childless: is(0), is_any_running: is(1), are_over: is(2), aborts: is(3), is_idle: is(4) };
            let patience = Duration::from_secs(20);
            let mut watch = MpirunWatch {
                childless: Childless::watch(u32::MAX, &[]),
                writing: Writing::new(),
                patience,
                over_since: None,
                aborts_since: None,
            };
            let begun = Instant::now();
            let at = [Duration::ZERO, patience, patience * 2].map(|after| watch.judge(begun + after, signs));
            let at_once = (signs.is_idle && signs.is_childless && !signs.is_any_running).then_some(Stuck::Outlives);
            let later = match signs {
                Signs { is_idle: false, .. } => None,
                Signs { aborts: true, .. } => Some(Stuck::Aborts),
                Signs { are_over: true, .. } => Some(Stuck::Outlives),
                _ => at_once,
            };
            assert_eq!(at, [at_once, at_once, later], "{signs:?}");
        }
    }

    #[test]
    fn the_words_of_a_rank_are_not_those_of_mpirun() {
        let writing = Writing::new();
        writing.line("[rank 0] the job has been aborted");
        assert!(!writing.aborts.load(Ordering::Relaxed));
        writing.line("a non-zero exit code. Per user-direction, the job has been aborted.");
        assert!(writing.aborts.load(Ordering::Relaxed));
    }
}
