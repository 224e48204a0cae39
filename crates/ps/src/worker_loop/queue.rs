//! The messages that wait to be sent to one server (the first of those that hold their segments), and how
//! many may be on their way.
//!
//! Higher priorities leave first, then earlier calls, then lower segments. So that all workers stay together,
//! what a worker has sent and is not answered yet is limited (the *window*): a server answers a segment when
//! the last worker's push of it is there. Without the limit the workers share the server's link as TCP
//! happens to divide it. The fastest is a whole key ahead of the slowest, and the link of the answers stays
//! idle until the slowest has caught up.
//!
//! Each call may have one segment under way beyond the window. So every call moves on, whatever the order in
//! which the workers make their calls: a server can answer the first segment of a call that all workers have
//! made. A push whose value is not requested is answered with a word when it is done. Inits are not answered
//! and do not count.
//!
//! Pulls have a window of their own, so a pull leaves behind the push of the same segment and not behind the
//! whole push before it. What such a pair has under way together is no more than what a `push_pull` has: each
//! counts twice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// The messages that may be under way to one of few servers and back: as few as keep the links busy in both
/// directions.
const WINDOW: usize = 4;
/// The bytes of [`WINDOW`].
const WINDOW_BYTES: usize = 128 << 10;
/// So many whole windows together are about what waits in a switch without loss.
const WHOLE_WINDOWS: usize = 8;
/// What a worker may have under way to each server and back, in messages and in bytes, whichever is more. The
/// windows of all workers meet at a server's link, and those of all servers at a worker's: with many each is
/// half as large. With a quarter, which is one message, a server would wait for the next one.
pub fn window(workers: usize, servers: usize) -> (usize, usize) {
    let parts = if workers.max(servers) <= WHOLE_WINDOWS { 1 } else { 2 };
    (WINDOW / parts, WINDOW_BYTES / parts)
}

/// The number of messages of a [`window`] that a message counts as. Pushes and pulls that go apart use both
/// windows, which are smaller for many nodes already.
pub(super) fn weight(workers: usize, servers: usize, is_push_pull: bool) -> usize {
    if is_push_pull || workers.max(servers) > WHOLE_WINDOWS { 1 } else { 2 }
}

/// A call's position among those that wait: its priority, and its number.
type Position = (Reverse<i32>, u64);

/// A message of a call: about a segment, or a few of which only some rows travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingMessage {
    /// The number of its call.
    pub(super) operation: u64,
    pub(super) batch: usize,
    /// True if it only asks for something.
    pub(super) is_pull: bool,
    /// The longer of what is sent and what is answered; `None` if it is not answered.
    pub(super) answered_bytes: Option<usize>,
    /// How many messages of a window it counts as, each of so many bytes.
    pub(super) weight: usize,
}

/// What is under way of pushes, or of pulls.
#[derive(Default)]
struct PeerWindow {
    messages: usize,
    bytes: usize,
}

impl PeerWindow {
    fn is_open(&self, most: (usize, usize)) -> bool {
        self.messages < most.0 || self.bytes < most.1
    }
}

/// The queue of one server's shard.
pub(super) struct Queue {
    /// The [`window`].
    most: (usize, usize),
    waiting: BTreeMap<Position, VecDeque<PendingMessage>>,
    /// The messages under way, by call.
    open: BTreeMap<u64, usize>,
    pushes: PeerWindow,
    pulls: PeerWindow,
    /// True if this worker leaves: what it has called goes out, whatever the others have called.
    is_leaving: bool,
}

impl Queue {
    /// With a window of so many messages or bytes.
    pub(super) fn new(most: (usize, usize)) -> Self {
        let (pushes, pulls) = (PeerWindow::default(), PeerWindow::default());
        Queue { most, waiting: BTreeMap::new(), open: BTreeMap::new(), pushes, pulls, is_leaving: false }
    }

    /// Puts a segment behind the earlier ones of its call, all of one priority.
    pub(super) fn push(&mut self, priority: i32, item: PendingMessage) {
        self.waiting.entry((Reverse(priority), item.operation)).or_default().push_back(item);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Nothing is limited any more.
    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Takes the segment that may be sent next, if any may.
    pub(super) fn next(&mut self) -> Option<PendingMessage> {
        let (pushes, pulls) = (self.pushes.is_open(self.most), self.pulls.is_open(self.most));
        let may_leave = |(_, operation): &Position, items: &VecDeque<PendingMessage>| {
            let is_open = if items[0].is_pull { pulls } else { pushes };
            self.is_leaving || is_open || items[0].answered_bytes.is_none() || !self.open.contains_key(operation)
        };
        let position = self.waiting.iter().find(|(position, items)| may_leave(position, items)).map(|(at, _)| *at)?;
        let items = self.waiting.get_mut(&position)?;
        let item = items.pop_front()?;
        if items.is_empty() {
            self.waiting.remove(&position);
        }
        if let Some(bytes) = item.answered_bytes {
            *self.open.entry(item.operation).or_default() += 1;
            let window = if item.is_pull { &mut self.pulls } else { &mut self.pushes };
            window.messages += item.weight;
            window.bytes += item.weight * bytes;
        }
        Some(item)
    }

    /// A segment that was taken has been answered.
    pub(super) fn answered(&mut self, item: PendingMessage) {
        let Some(bytes) = item.answered_bytes else { return };
        let window = if item.is_pull { &mut self.pulls } else { &mut self.pushes };
        window.messages -= item.weight;
        window.bytes -= item.weight * bytes;
        if let Some(count) = self.open.get_mut(&item.operation) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&item.operation);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(operation: u64, batch: usize, answered_bytes: Option<usize>) -> PendingMessage {
        PendingMessage { operation, batch, is_pull: false, answered_bytes, weight: 1 }
    }

    #[test]
    fn windows_of_many_nodes_are_smaller() {
        let messages = [(1, 1), (8, 8), (9, 1), (1, 9), (1000, 64)];
        assert_eq!(messages.map(|(workers, servers)| window(workers, servers).0), [4, 4, 2, 2, 2]);
        for (workers, is_push_pull, count) in [(8, false, 2), (9, false, 2), (9, true, 2)] {
            let mut queue = Queue::new(window(workers, 1));
            let weight = weight(workers, 1, is_push_pull);
            (0..9).for_each(|batch| queue.push(0, PendingMessage { weight, ..item(1, batch, Some(WINDOW_BYTES / 4)) }));
            assert_eq!(taken(&mut queue).len(), count, "{workers} workers, {is_push_pull}");
        }
    }

    /// All that may leave now.
    fn taken(queue: &mut Queue) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| queue.next()).map(|item| (item.operation, item.batch)).collect()
    }

    #[test]
    fn higher_priorities_leave_first_then_earlier_calls_then_lower_segments() {
        let mut queue = Queue::new(window(1, 1));
        for (priority, operation, segment) in [(0, 1, 0), (0, 1, 1), (5, 2, 0), (0, 3, 0), (5, 2, 1)] {
            queue.push(priority, item(operation, segment, Some(1)));
        }
        assert_eq!(taken(&mut queue), [(2, 0), (2, 1), (1, 0), (1, 1), (3, 0)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_window_of_unanswered_segments_leaves_and_an_answer_lets_another_go() {
        let long = Some(WINDOW_BYTES);
        for (answered_bytes, count) in [(Some(WINDOW_BYTES / 8), 8), (long, WINDOW)] {
            let mut queue = Queue::new(window(1, 1));
            (0..9).for_each(|segment| queue.push(0, item(1, segment, answered_bytes)));
            assert_eq!(taken(&mut queue), (0..count).map(|segment| (1, segment)).collect::<Vec<_>>());
            queue.answered(item(1, 0, answered_bytes));
            assert_eq!(taken(&mut queue), [(1, count)]);
        }
    }

    #[test]
    fn each_call_has_a_segment_under_way_however_full_the_window_is() {
        let mut queue = Queue::new(window(1, 1));
        let whole = Some(WINDOW_BYTES);
        for (operation, segment) in (0..6).map(|segment| (1, segment)).chain([(2, 0), (2, 1), (3, 0)]) {
            queue.push(0, item(operation, segment, whole));
        }
        assert_eq!(taken(&mut queue), [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (3, 0)]);
        // The first call waits for a worker that waits for the second.
        queue.answered(item(2, 0, whole));
        assert_eq!(taken(&mut queue), [(2, 1)]);
    }

    #[test]
    fn a_worker_that_leaves_sends_all_that_it_has_called() {
        let mut queue = Queue::new(window(1, 1));
        (0..9).for_each(|segment| queue.push(0, item(1, segment, Some(WINDOW_BYTES))));
        assert_eq!(taken(&mut queue).len(), WINDOW);
        queue.leave();
        assert_eq!(taken(&mut queue).len(), 9 - WINDOW);
    }

    #[test]
    fn pulls_do_not_wait_for_the_pushes_before_them() {
        let (mut queue, long) = (Queue::new(window(1, 1)), Some(WINDOW_BYTES));
        let pull = |segment| PendingMessage { is_pull: true, ..item(2, segment, long) };
        (0..9).for_each(|segment| queue.push(0, item(1, segment, long)));
        (0..9).for_each(|segment| queue.push(0, pull(segment)));
        let both = [1, 2].map(|operation| (0..WINDOW).map(move |segment| (operation, segment)));
        assert_eq!(taken(&mut queue), both.into_iter().flatten().collect::<Vec<_>>());
        queue.answered(item(1, 0, long));
        assert_eq!(taken(&mut queue), [(1, WINDOW)]);
        queue.answered(pull(0));
        assert_eq!(taken(&mut queue), [(2, WINDOW)]);
    }

    #[test]
    fn what_is_not_answered_needs_no_room() {
        let mut queue = Queue::new(window(1, 1));
        (0..=WINDOW).for_each(|segment| queue.push(0, item(1, segment, Some(WINDOW_BYTES))));
        queue.push(-1, item(2, 0, None));
        queue.push(-1, item(2, 1, None));
        assert_eq!(taken(&mut queue), [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]);
    }
}
