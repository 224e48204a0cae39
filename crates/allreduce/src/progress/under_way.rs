//! What the comm thread is at, and for how long it has been at something.

use std::time::{Duration, Instant};

use crate::progress::messages::Topic;

/// What the comm thread is at, in the order in which it began: the number, and one topic of it.
#[derive(Default)]
pub(super) struct UnderWay {
    operations: Vec<(u32, Topic)>,
    /// Since when there has been one.
    since: Option<Instant>,
    /// For how long there was one before.
    before: Duration,
}

impl UnderWay {
    pub(super) fn iter(&self) -> impl Iterator<Item = &(u32, Topic)> {
        self.operations.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    pub(super) fn begin(&mut self, number: u32, topic: Topic) {
        self.since.get_or_insert_with(Instant::now);
        self.operations.push((number, topic));
    }

    pub(super) fn replace(&mut self, operations: impl Iterator<Item = (u32, Topic)>) {
        self.operations.clear();
        self.operations.extend(operations);
        if self.operations.is_empty()
            && let Some(since) = self.since.take()
        {
            self.before += since.elapsed();
        }
    }

    pub(super) fn clear(&mut self) {
        self.replace(std::iter::empty());
    }

    /// For how long there has been an operation, all together.
    pub(super) fn moving(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_while_an_operation_is_under_way_and_overlapping_ones_count_once() {
        let mut under_way = UnderWay::default();
        assert_eq!(under_way.moving(), Duration::ZERO);
        under_way.begin(0, Topic::Barrier);
        under_way.begin(1, Topic::Direct);
        std::thread::sleep(Duration::from_millis(20));
        under_way.replace(std::iter::once((1, Topic::Direct)));
        assert!(under_way.moving() >= Duration::from_millis(20) && !under_way.is_empty());
        under_way.clear();
        let moved = under_way.moving();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(under_way.moving(), moved);
    }
}
