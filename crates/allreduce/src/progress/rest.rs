//! The operations that are left to begin after a frozen cycle was stopped. They are the cycle's units up to
//! the last one of the furthest rank, and then the launches that follow.
//!
//! Sums that progress beside others may begin in any order. So some sums go ahead of a sum that this rank has
//! not called yet. Their number is limited so that there is room for that sum, and for all of them in memory
//! that ranks share. An operation that runs alone keeps its place. Another rank that runs it begins nothing
//! later, and waits for the operations that it began before. So nothing passes such an operation, and it
//! passes nothing. No operation passes an earlier operation of its key either, because the earlier value
//! would then replace the later one.

use std::collections::{BTreeSet, VecDeque};

use crate::progress::messages::{Launch, Topic};
use crate::transport::window::AHEAD;

/// An operation that may begin.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub(super) enum QueuedOperation {
    /// A unit of the frozen cycle, when this rank has called all its members.
    Unit(u64),
    /// An operation that every rank has called.
    Launch(Launch),
}

/// An operation that is left to begin.
#[cfg_attr(test, derive(Clone, serde::Serialize))]
struct QueueEntry {
    due: QueuedOperation,
    topics: Vec<Topic>,
    is_alone: bool,
}

/// A queue of operations. The first entry cannot begin yet, and an entry that has begun leaves a gap.
#[derive(Default)]
#[cfg_attr(test, derive(Clone, serde::Serialize))]
pub(super) struct CatchUpQueue {
    due: VecDeque<Option<QueueEntry>>,
}

impl CatchUpQueue {
    /// Adds an operation on `topics` at the end. `is_alone` is true if it runs alone.
    pub(super) fn push(&mut self, due: QueuedOperation, topics: Vec<Topic>, is_alone: bool) {
        self.due.push_back(Some(QueueEntry { due, topics, is_alone }));
    }

    /// Takes out an entry that may begin. `is_called` returns true for a unit if this rank has called all its
    /// members.
    pub(super) fn pop(&mut self, is_called: impl Fn(u64) -> bool) -> Option<QueuedOperation> {
        let place = self.first(is_called)?;
        let taken = self.due[place].take();
        while matches!(self.due.front(), Some(None)) {
            self.due.pop_front();
        }
        taken.map(|entry| entry.due)
    }

    /// The first entry that may begin.
    fn first(&self, is_called: impl Fn(u64) -> bool) -> Option<usize> {
        let mut passed: BTreeSet<&Topic> = BTreeSet::new();
        for place in 0..self.due.len().min(AHEAD) {
            let Some(QueueEntry { due, topics, is_alone }) = &self.due[place] else { continue };
            if *is_alone && place > 0 {
                return None;
            }
            let is_next = !topics.iter().any(|topic| passed.contains(topic));
            if is_next
                && (matches!(due, QueuedOperation::Launch(_))
                    || matches!(due, QueuedOperation::Unit(unit) if is_called(*unit)))
            {
                return Some(place);
            }
            if *is_alone {
                return None;
            }
            passed.extend(topics);
        }
        None
    }

    /// The units that have not begun, in their order.
    pub(super) fn units(&self) -> impl Iterator<Item = u64> {
        let unit = |entry: &QueueEntry| if let QueuedOperation::Unit(unit) = entry.due { Some(unit) } else { None };
        self.due.iter().flatten().filter_map(unit)
    }

    /// Returns true if every operation has begun.
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the units that begin, in their order, if there are `count` units and `called` have been
    /// called. The units in `alone` run alone, and those in `same` are of one key.
    fn begin_of(count: u64, alone: &[u64], same: &[u64], called: &[u64]) -> Vec<u64> {
        let mut rest = CatchUpQueue::default();
        for unit in 0..count {
            let key = if same.contains(&unit) { -1 } else { unit as i64 };
            let topic = Topic::Key { store: 0, key: key.into() };
            rest.push(QueuedOperation::Unit(unit), vec![topic], alone.contains(&unit));
        }
        let begun = std::iter::from_fn(|| rest.pop(|unit| called.contains(&unit)));
        begun
            .map(|due| if let QueuedOperation::Unit(unit) = due { unit } else { panic!("only units were added") })
            .collect()
    }

    fn begin(count: u64, alone: &[u64], called: &[u64]) -> Vec<u64> {
        begin_of(count, alone, &[], called)
    }

    #[test]
    fn nothing_goes_ahead_of_an_earlier_one_of_its_key() {
        assert_eq!(begin_of(5, &[], &[0, 2], &[1, 2, 3]), [1, 3]);
        assert_eq!(begin_of(5, &[], &[1, 2, 4], &[0, 1, 2, 3, 4]), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_moves_beside_others_goes_ahead_of_what_was_not_called() {
        assert_eq!(begin(4, &[], &[0, 2, 3]), [0, 2, 3]);
    }

    #[test]
    fn what_runs_alone_passes_nothing_and_nothing_passes_it() {
        assert_eq!(begin(4, &[2], &[1, 2, 3]), [1]);
        assert_eq!(begin(4, &[1], &[0, 2, 3]), [0]);
        assert_eq!(begin(4, &[1], &[0, 1, 2, 3]), [0, 1, 2, 3]);
    }

    #[test]
    fn a_limited_number_goes_ahead() {
        let called: Vec<u64> = (1..40).collect();
        assert_eq!(begin(40, &[], &called).len(), AHEAD - 1);
    }
}
