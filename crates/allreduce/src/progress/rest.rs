//! What is left to begin after a frozen cycle was stopped: its units up to the furthest rank's, then what
//! launches.
//!
//! Sums that move beside others may begin in any order, so some go ahead of one that this rank has not called
//! yet. What runs alone stays in its place: another rank that runs it begins nothing later, and waits for
//! what it began before. So nothing passes it, and it passes nothing.

use std::collections::VecDeque;

use crate::progress::messages::Launch;

/// This many may go ahead of the first that cannot begin: fewer than can be under way, so that there is room
/// for that one.
const AHEAD: usize = 16;

/// What may begin.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub(super) enum Due {
    /// A unit of the frozen cycle, when this rank has called all its members.
    Unit(u64),
    /// What every rank has called.
    Launch(Launch),
}

/// A queue whose first entry is one that cannot begin yet; an entry that has begun leaves a gap.
#[derive(Default)]
#[cfg_attr(test, derive(Clone, serde::Serialize))]
pub(super) struct Rest {
    due: VecDeque<Option<(Due, bool)>>,
}

impl Rest {
    /// Adds an entry at the end. `is_alone` if it runs alone.
    pub(super) fn push(&mut self, due: Due, is_alone: bool) {
        self.due.push_back(Some((due, is_alone)));
    }

    /// Takes out an entry that may begin. `is_called` says of a unit whether this rank has called all of it.
    pub(super) fn pop(&mut self, is_called: impl Fn(u64) -> bool) -> Option<Due> {
        for place in 0..self.due.len().min(AHEAD) {
            let Some((due, is_alone)) = &self.due[place] else { continue };
            if *is_alone && place > 0 {
                break;
            }
            if matches!(due, Due::Launch(_)) || matches!(due, Due::Unit(unit) if is_called(*unit)) {
                let taken = self.due[place].take();
                while matches!(self.due.front(), Some(None)) {
                    self.due.pop_front();
                }
                return taken.map(|(due, _)| due);
            }
            if *is_alone {
                break;
            }
        }
        None
    }

    /// The units that have not begun, in their order.
    pub(super) fn units(&self) -> impl Iterator<Item = u64> {
        self.due.iter().flatten().filter_map(|(due, _)| if let Due::Unit(unit) = due { Some(*unit) } else { None })
    }

    /// Whether everything has begun.
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What begins of units 0, 1, ..., of which `alone` run alone, when `called` have been called, in that
    /// order.
    fn begun(count: u64, alone: &[u64], called: &[u64]) -> Vec<u64> {
        let mut rest = Rest::default();
        (0..count).for_each(|unit| rest.push(Due::Unit(unit), alone.contains(&unit)));
        let begun = std::iter::from_fn(|| rest.pop(|unit| called.contains(&unit)));
        begun.map(|due| if let Due::Unit(unit) = due { unit } else { panic!("only units were added") }).collect()
    }

    #[test]
    fn what_moves_beside_others_goes_ahead_of_what_was_not_called() {
        assert_eq!(begun(4, &[], &[0, 2, 3]), [0, 2, 3]);
    }

    #[test]
    fn what_runs_alone_passes_nothing_and_nothing_passes_it() {
        assert_eq!(begun(4, &[2], &[1, 2, 3]), [1]);
        assert_eq!(begun(4, &[1], &[0, 2, 3]), [0]);
        assert_eq!(begun(4, &[1], &[0, 1, 2, 3]), [0, 1, 2, 3]);
    }

    #[test]
    fn a_limited_number_goes_ahead() {
        let called: Vec<u64> = (1..40).collect();
        assert_eq!(begun(40, &[], &called).len(), AHEAD - 1);
    }
}
