//! Operations of several steps. Some steps use memory that the ranks of a host share, others use messages.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ringpull_base::Result;
use ringpull_plan::Schedule;

use crate::interpreter::flight::Ticket;
use crate::interpreter::memory::Memory;
use crate::transport::Stamp;

/// A step in which the ranks of a host wait for each other. A step may use the memory that it was made for
/// until it has ended. After an error it may use the memory for ever.
pub trait HostStep {
    /// Continues the step until its next wait for another rank, or until its end.
    fn poll(&mut self) -> Result<StepProgress>;

    /// Waits a little for other ranks. Returns at once if one has come since the last [`poll`](Self::poll).
    /// Returns true if it has slept and no rank came, and an error if no rank came or made progress for
    /// `limit`.
    fn wait(&mut self, limit: Duration) -> Result<bool>;

    /// Shows the ranks that wait in this step that this rank, which has not reached the step, makes progress.
    fn beat(&self);
}

/// The result of one [`poll`](HostStep::poll) of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepProgress {
    /// The step waits: another rank has not come.
    Waits,
    /// The step has gone on to another wait.
    Moved,
    /// The step has ended.
    Ended,
}

/// A step of a program.
pub enum ProgramStep {
    /// A step in memory that the ranks of a host share.
    Host(Box<dyn HostStep>),
    /// A step by messages, on a range of the memory.
    Plan(Arc<Schedule>, Range<usize>),
}

/// A program under way: its steps follow each other, on one memory.
pub(super) struct Program {
    pub(super) ticket: Ticket,
    pub(super) stamp: Stamp,
    pub(super) priority: i32,
    /// The steps that are left.
    pub(super) steps: VecDeque<ProgramStep>,
    /// The ticket of the first of these steps, if it goes by messages and has begun.
    pub(super) flight: Option<Ticket>,
    /// The memory, which outlives the steps.
    pub(super) memory: Memory,
}

impl Program {
    /// Returns the present step, if it is one in shared memory.
    pub(super) fn host_step(&mut self) -> Option<&mut dyn HostStep> {
        match self.steps.front_mut() {
            Some(ProgramStep::Host(step)) => Some(step.as_mut()),
            _ => None,
        }
    }

    /// Shows the ranks that already wait in the next shared-memory step that messages have moved.
    pub(super) fn beat(&self) {
        let waiting =
            self.steps.iter().find_map(|step| if let ProgramStep::Host(step) = step { Some(step) } else { None });
        if let (Some(_), Some(step)) = (self.flight, waiting) {
            step.beat();
        }
    }
}
