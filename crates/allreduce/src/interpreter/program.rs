//! Operations of several steps, of which some are done in memory that the ranks of a host share, and others
//! by messages.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ringpull_base::Result;
use ringpull_plan::Schedule;

use crate::interpreter::flight::Ticket;
use crate::interpreter::memory::Memory;
use crate::transport::Stamp;

/// A step of the ranks of a host, which wait for each other. It may use the memory that it was made for until
/// it has ended, or for ever after an error.
pub trait HostStep {
    /// Goes on to the next wait for another rank, or to its end.
    fn poll(&mut self) -> Result<StepProgress>;

    /// Waits a little for other ranks, or until one has come since the last [`poll`](Self::poll). Returns true
    /// if it has slept, and an error if for `limit` no rank came or made progress.
    fn wait(&mut self, limit: Duration) -> Result<bool>;

    /// Lets the waiting ranks of this step know that this one makes progress on its way there.
    fn beat(&self);
}

/// What a look at a step has given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepProgress {
    /// Nothing: another rank has not come.
    Waits,
    /// It has gone on to another wait.
    Moved,
    /// The step has ended.
    Ended,
}

/// A step of a program.
pub enum ProgramStep {
    /// In memory that the ranks of a host share.
    Host(Box<dyn HostStep>),
    /// By messages, on a range of the memory.
    Plan(Arc<Schedule>, Range<usize>),
}

/// A program under way: its steps follow each other, on one memory.
pub(super) struct Program {
    pub(super) ticket: Ticket,
    pub(super) stamp: Stamp,
    pub(super) priority: i32,
    /// The steps that are left.
    pub(super) steps: VecDeque<ProgramStep>,
    /// The flight of the first of them, if it is by messages and has begun.
    pub(super) flight: Option<Ticket>,
    /// The memory, which outlives the steps.
    pub(super) memory: Memory,
}

impl Program {
    /// The step in shared memory that it is at.
    pub(super) fn host_step(&mut self) -> Option<&mut dyn HostStep> {
        match self.steps.front_mut() {
            Some(ProgramStep::Host(step)) => Some(step.as_mut()),
            _ => None,
        }
    }

    /// Lets the ranks that wait for this one in a later step know that messages have moved.
    pub(super) fn beat(&self) {
        let waiting =
            self.steps.iter().find_map(|step| if let ProgramStep::Host(step) = step { Some(step) } else { None });
        if let (Some(_), Some(step)) = (self.flight, waiting) {
            step.beat();
        }
    }
}
