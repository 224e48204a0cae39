//! The comm thread's operations under way, and the total time with at least one operation under way.

use std::time::Duration;

use ringpull_base::status::Stopwatch;

use crate::progress::messages::Topic;

/// The comm thread's operations under way, in the order in which they began: the number, and one topic of
/// each.
#[derive(Default)]
pub(super) struct OperationsUnderWay {
    operations: Vec<(u32, Topic)>,
    /// The topic of the operation that was under way last.
    last: Option<Topic>,
    time: Stopwatch,
}

impl OperationsUnderWay {
    pub(super) fn iter(&self) -> impl Iterator<Item = &(u32, Topic)> {
        self.operations.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The topic of the operation that has ended last.
    pub(super) fn last(&self) -> Option<&Topic> {
        self.last.as_ref()
    }

    pub(super) fn begin(&mut self, number: u32, topic: Topic) {
        self.operations.push((number, topic));
        self.time.run(true);
    }

    /// Ends the operation `number`, which need not have begun. `last` is its last topic.
    pub(super) fn end(&mut self, number: u32, last: Topic) {
        // With one rank, operations of several topics have one number.
        if let Some(place) = self.operations.iter().position(|(other, _)| *other == number) {
            self.operations.remove(place);
        }
        self.last = Some(last);
        self.time.run(!self.operations.is_empty());
    }

    pub(super) fn clear(&mut self) {
        self.operations.clear();
        self.time.run(false);
    }

    /// Returns the total time with at least one operation under way.
    pub(super) fn moving(&self) -> Duration {
        self.time.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_while_an_operation_is_under_way_and_overlapping_ones_count_once() {
        let mut under_way = OperationsUnderWay::default();
        assert_eq!(under_way.moving(), Duration::ZERO);
        under_way.begin(0, Topic::Barrier);
        under_way.begin(1, Topic::Direct);
        std::thread::sleep(Duration::from_millis(20));
        under_way.end(0, Topic::Barrier);
        assert!(under_way.moving() >= Duration::from_millis(20) && !under_way.is_empty());
        under_way.clear();
        let moved = under_way.moving();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(under_way.moving(), moved);
    }
}
