//! Finds that a sequence of calls repeats itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::progress::messages::{Call, Operation, Topic};

/// The greatest number of calls that are remembered. A cycle that is longer than a fraction of this number is
/// never found.
const MEMORY: usize = 1 << 16;

/// One rank's calls, as numbers that stand for their identities.
#[derive(Default)]
#[cfg_attr(test, derive(Clone, serde::Serialize))]
pub(super) struct Sequence {
    /// The number of each call. The key is the encoding of the properties that the call has in every step.
    known: BTreeMap<Vec<u8>, u32>,
    next: u32,
    /// The numbers of barriers.
    barriers: BTreeSet<u32>,
    calls: Vec<u32>,
}

impl Sequence {
    /// Records a call, unless it is of a kind that never repeats. Returns true if it was recorded.
    pub(super) fn push(&mut self, call: &Call) -> bool {
        if call.operation == Operation::Init || call.operation == Operation::split() {
            return false;
        }
        if self.calls.len() >= MEMORY {
            self.calls.drain(..MEMORY / 2);
            let left: BTreeSet<u32> = self.calls.iter().copied().collect();
            self.known.retain(|_, number| left.contains(number));
            self.barriers.retain(|number| left.contains(number));
        }
        let identity = postcard::to_stdvec(&(&call.topic, &call.operation, &call.terms)).expect("calls are plain data");
        let number = *self.known.entry(identity).or_insert_with(|| {
            self.next = self.next.wrapping_add(1);
            self.next
        });
        if call.topic == Topic::Barrier {
            self.barriers.insert(number);
        }
        self.calls.push(number);
        true
    }

    /// Returns the length of the shortest period whose `times` repetitions are the end of the sequence. A
    /// call that came more than once lately must be part of the period: three pushes of one key in a row are
    /// no cycle of a program that also pushes other keys. A period that consists only of barriers does not
    /// count, because it would save nothing. An example are a barrier at the end of a step and a barrier at
    /// the beginning of the next.
    pub(super) fn period(&self, times: usize) -> Option<usize> {
        let calls = &self.calls;
        (1..=calls.len() / times).find(|period| {
            let repeats = calls.len() - period * times;
            let lately = &calls[calls.len().saturating_sub(8 * period + 16)..];
            let one = &calls[calls.len() - period..];
            let once = |call: &u32| lately.iter().filter(|other| *other == call).count() == 1;
            (repeats..calls.len() - period).rev().all(|at| calls[at] == calls[at + period])
                && one.iter().any(|call| !self.barriers.contains(call))
                && lately.iter().all(|call| one.contains(call) || once(call))
        })
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Sequence::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::messages::Terms;
    use crate::progress::messages::Transfer;

    /// A key of 0 is a barrier.
    fn periods(keys: &[i64], times: usize) -> Vec<Option<usize>> {
        let mut sequence = Sequence::default();
        let found = keys.iter().map(|key| {
            let topic = if *key == 0 { Topic::Barrier } else { Topic::Key { store: 0, key: (*key).into() } };
            let (operation, terms) = (Operation::Push, Terms::default());
            sequence.push(&Call { topic, ordinal: 0, operation, terms, transfer: Transfer::Alone, waited: false });
            sequence.period(times)
        });
        found.collect()
    }

    #[test]
    fn a_period_is_found_at_the_end_of_its_second_time() {
        assert_eq!(periods(&[1, 2, 3, 1, 2, 3], 2), [None, None, None, None, None, Some(3)]);
        assert_eq!(periods(&[9, 1, 2, 1, 2], 2)[4], Some(2));
        assert_eq!(periods(&[1, 2, 1, 2, 1, 2], 3)[5], Some(2));
    }

    #[test]
    fn a_key_that_repeats_within_a_cycle_is_not_taken_for_one_once_the_others_have_come_twice() {
        let found = periods(&[1, 1, 2, 1, 1, 2, 1, 1], 2);
        assert_eq!(found, [None, Some(1), None, None, Some(1), Some(3), Some(3), Some(3)]);
    }

    #[test]
    fn barriers_between_steps_are_no_cycle_of_their_own() {
        let mut expected = vec![None; 7];
        expected.extend([Some(4); 2]);
        assert_eq!(periods(&[0, 1, 2, 0, 0, 1, 2, 0, 0], 2), expected);
    }

    #[test]
    fn what_came_once_before_the_cycle_does_not_matter() {
        assert_eq!(periods(&[7, 8, 1, 2, 1, 2], 2)[5], Some(2));
    }

    #[test]
    fn calls_that_never_repeat_are_not_remembered_for_ever() {
        let mut sequence = Sequence::default();
        for key in 0..3 * MEMORY as i64 {
            let (topic, operation) = (Topic::Key { store: 0, key: key.into() }, Operation::Push);
            let terms = Terms::default();
            sequence.push(&Call { topic, ordinal: 0, operation, terms, transfer: Transfer::Alone, waited: false });
        }
        assert!(sequence.known.len() <= MEMORY, "{}", sequence.known.len());
    }

    #[test]
    fn what_was_called_long_ago_does_not_matter() {
        let mut keys = vec![7, 8, 7];
        keys.extend([1, 2].repeat(40));
        assert_eq!(periods(&keys, 2).pop().unwrap(), Some(2));
    }
}
