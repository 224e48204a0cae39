//! The update of the sums of a rank's part between the two halves of an allreduce.
//!
//! In a plan of two halves (`ringpull_plan::allreduce_in_halves`) a rank holds the sums of its own part when
//! the first half has brought the last contribution. In the second half this part is the only one that it
//! originates; it only forwards the others. So a segment of the part is updated just before it leaves for the
//! first time. The next segments still arrive meanwhile, and the wire does not wait for the update of the
//! whole part.

use std::collections::HashSet;
use std::ops::Range;

use ringpull_base::Result;
use ringpull_plan::{Action, Message, Schedule};

/// Replaces the sums that begin at a byte of the buffer by the values that every rank gets instead, such as
/// new weights. Each byte of the rank's part is passed to it once, in any order.
pub type PartUpdate = Box<dyn FnMut(usize, &mut [u8]) -> Result<()> + Send>;

/// The update of one operation.
pub(super) struct HalfwayUpdate {
    own: Range<usize>,
    /// The first message of the second half.
    second: u32,
    /// The starts of the segments that have been updated.
    updated: HashSet<usize>,
    update: PartUpdate,
}

impl HalfwayUpdate {
    /// The update of this rank's part `own`, in bytes.
    pub(super) fn new(schedule: &Schedule, own: Range<usize>, update: PartUpdate) -> Self {
        let arrives = |message: &Message| message.action != Action::Send && own.contains(&message.start);
        let second = schedule.all.iter().rposition(arrives).map_or(0, |last| last as u32 + 1);
        HalfwayUpdate { own, second, updated: HashSet::new(), update }
    }

    /// Returns true if `message` leaves now and carries sums that must be updated first.
    pub(super) fn is_due(&mut self, index: u32, message: &Message) -> bool {
        index >= self.second && self.own.contains(&message.start) && self.updated.insert(message.start)
    }

    pub(super) fn update(&mut self, message: &Message, sums: &mut [u8]) -> Result<()> {
        (self.update)(message.start, sums)
    }
}
