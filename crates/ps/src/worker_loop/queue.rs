//! The messages that wait to be sent to one server (the first server of their segments), and the limit of
//! messages under way.
//!
//! Higher priorities leave first, then earlier calls, then lower segments. To keep all workers together,
//! there is a limit (the *window*) on the messages that a worker has sent and that are not answered: a server
//! answers a segment when the last worker's push of it has arrived. Without the limit, TCP divides the
//! server's link between the workers by chance. The fastest is a whole key ahead of the slowest, and the link
//! of the answers stays idle until the slowest has caught up.
//!
//! Each call may have one segment under way beyond the window. So every call moves on, whatever the order in
//! which the workers make their calls: a server can answer the first segment of a call that all workers have
//! made. A push whose value is not requested is answered with a confirmation when it is done. Inits are not
//! answered and do not count.
//!
//! Pulls have a separate window. So the pull of a segment leaves right after the push of this segment, and
//! not after the whole push. In such a pair each message counts twice, so the pair has no more under way than
//! a `push_pull`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// The most messages that may be under way to one of few servers and back. It is the least number that keeps
/// the links busy in both directions.
const WINDOW: usize = 4;
/// The bytes of [`WINDOW`] messages.
const WINDOW_BYTES: usize = 128 << 10;
/// The number of whole windows that a switch can buffer without loss, approximately.
const WHOLE_WINDOWS: usize = 8;
/// Returns the limit on a worker's traffic under way to each server and back, in messages and in bytes; the
/// larger of the two counts. The windows of all workers share a server's link, and the windows of all servers
/// share a worker's link, so with many nodes each window is half as large. With a quarter, which is one
/// message, a server would wait for the next message.
pub fn window(workers: usize, servers: usize) -> (usize, usize) {
    let parts = if workers.max(servers) <= WHOLE_WINDOWS { 1 } else { 2 };
    (WINDOW / parts, WINDOW_BYTES / parts)
}

/// Returns the number of messages of a [`window`] for which a message counts. Separate pushes and pulls use
/// both windows. With many nodes these are smaller already.
pub(super) fn weight(workers: usize, servers: usize, is_push_pull: bool) -> usize {
    if is_push_pull || workers.max(servers) > WHOLE_WINDOWS { 1 } else { 2 }
}

/// A call's position among the waiting calls: its priority and its number.
type Position = (Reverse<i32>, u64);

/// A message of a call. It has one segment, or some rows of a few segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingMessage {
    /// The number of the message's call.
    pub(super) operation: u64,
    pub(super) batch: usize,
    /// True if the message only asks for a value.
    pub(super) is_pull: bool,
    /// The bytes of the message or of its answer, whichever is more, or `None` if there is no answer.
    pub(super) answered_bytes: Option<usize>,
    /// The number of messages of a window for which this message counts, each with these bytes.
    pub(super) weight: usize,
}

/// The pushes, or the pulls, under way.
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
    /// The number of messages under way, by call.
    open: BTreeMap<u64, usize>,
    pushes: PeerWindow,
    pulls: PeerWindow,
    /// True if this worker leaves. Its messages then go out, whatever the others have called.
    is_leaving: bool,
}

impl Queue {
    /// Returns a queue with a window of `most` messages or bytes.
    pub(super) fn new(most: (usize, usize)) -> Self {
        let (pushes, pulls) = (PeerWindow::default(), PeerWindow::default());
        Queue { most, waiting: BTreeMap::new(), open: BTreeMap::new(), pushes, pulls, is_leaving: false }
    }

    /// Adds a segment behind the earlier ones of its call. All segments of a call have one priority.
    pub(super) fn push(&mut self, priority: i32, item: PendingMessage) {
        self.waiting.entry((Reverse(priority), item.operation)).or_default().push_back(item);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes the limit, because this worker leaves.
    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Takes the segment that may be sent next, if there is one.
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

    /// Records that a taken segment has been answered.
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

    /// Takes all messages that may leave now.
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
        // The first call waits for a worker that waits for the second call.
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
