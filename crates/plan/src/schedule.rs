//! A plan as the messages of one rank: parts cut into segments, moves into messages of whole segments, and
//! the dependencies of each message.
//!
//! A message depends on the earlier messages of the plan that touch the same segments, and on nothing else. A
//! schedule is made once and run any number of times.

use std::ops::Range;

use ringpull_base::{DType, Reduction};

use crate::plan::{Move, Plan, ReceiveAction};

/// The action of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send bytes of the buffer.
    Send,
    /// Receive bytes, and reduce them into those of the buffer.
    Reduce,
    /// Receive bytes into the buffer.
    Copy,
}

/// A segment on its way between this rank and a peer.
pub struct Message {
    /// The index of the message's lane among those of its direction.
    pub lane: u32,
    /// The action of the message on this rank.
    pub action: Action,
    /// The offset of the message's bytes in the buffer.
    pub start: usize,
    pub(super) end: usize,
    /// The index of its first dependent. Its dependents end at the next message's first dependent.
    first_dependent: u32,
}

impl Message {
    /// Returns the bytes of the message, at least one.
    #[allow(clippy::len_without_is_empty, reason = "no message is empty")]
    pub fn len(&self) -> usize {
        self.end - self.start
    }
}

/// Messages to or from one peer, in program order.
pub struct Lane {
    /// The peer.
    pub peer: usize,
    queue: Vec<u32>,
    /// Of all messages.
    pub bytes: usize,
}

/// The sends and receives of one rank for one plan on elements of one type.
pub struct Schedule {
    /// The element type.
    pub dtype: DType,
    /// The reduction operator.
    pub reduction: Reduction,
    /// Of the buffer that it runs on.
    pub len_bytes: usize,
    /// Of all messages.
    pub traffic_bytes: usize,
    /// Every message, in program order.
    pub all: Vec<Message>,
    /// The lanes of sent messages, in the order in which the plan first names their peers.
    pub out: Vec<Lane>,
    /// The lanes of received messages, in the same way.
    pub into: Vec<Lane>,
    /// For each message, one more than the number of earlier messages that must finish before it.
    pub pending: Vec<u32>,
    dependents: Vec<u32>,
}

impl Schedule {
    /// Returns the schedule of `plan` on elements of `dtype`, in messages of at most `segment_bytes`, or of
    /// one element if that is longer.
    pub fn of(plan: &Plan, dtype: DType, segment_bytes: usize) -> Self {
        let element = dtype.size_bytes();
        let most = (segment_bytes / element).max(1);
        let cells = Cells::of(plan, most);
        let mut schedule = Schedule {
            dtype,
            reduction: Reduction::Sum,
            len_bytes: plan.parts.len() * element,
            traffic_bytes: 0,
            all: Vec::new(),
            out: Vec::new(),
            into: Vec::new(),
            pending: Vec::new(),
            dependents: Vec::new(),
        };
        let mut edges: Vec<(u32, u32)> = Vec::new();
        let mut writer: Vec<Option<u32>> = vec![None; cells.count()];
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); cells.count()];
        let mut before: Vec<u32> = Vec::new();
        // The last message of each move.
        let mut last: Vec<u32> = Vec::with_capacity(plan.moves.len());
        let mut after = plan.after.iter().peekable();
        for (at, step) in plan.moves.iter().enumerate() {
            let awaited = after.next_if(|(send, _)| *send == at).map(|(_, receive)| last[*receive]);
            let (peer, parts, action) = match step {
                Move::Send { to, parts } => (*to, parts, Action::Send),
                Move::Recv { from, parts, then: ReceiveAction::Reduce } => (*from, parts, Action::Reduce),
                Move::Recv { from, parts, then: ReceiveAction::Copy } => (*from, parts, Action::Copy),
            };
            let lanes = if action == Action::Send { &mut schedule.out } else { &mut schedule.into };
            let lane = Lane::of(lanes, peer);
            for group in cells.groups(parts, most) {
                let index = schedule.all.len() as u32;
                before.clear();
                before.extend(awaited);
                for cell in group.clone() {
                    before.extend(writer[cell]);
                    if action == Action::Send {
                        readers[cell].push(index);
                    } else {
                        before.append(&mut readers[cell]);
                        writer[cell] = Some(index);
                    }
                }
                before.sort_unstable();
                before.dedup();
                edges.extend(before.iter().map(|earlier| (*earlier, index)));
                lanes[lane].queue.push(index);
                schedule.pending.push(before.len() as u32 + 1);
                let (start, end) = (cells.bounds[group.start] * element, cells.bounds[group.end] * element);
                lanes[lane].bytes += end - start;
                schedule.all.push(Message { lane: lane as u32, action, start, end, first_dependent: 0 });
            }
            last.push(schedule.all.len() as u32 - 1);
        }
        schedule.traffic_bytes = schedule.all.iter().map(Message::len).sum();
        edges.sort_unstable();
        for (index, message) in schedule.all.iter_mut().enumerate() {
            message.first_dependent = edges.partition_point(|edge| (edge.0 as usize) < index) as u32;
        }
        schedule.dependents.extend(edges.iter().map(|edge| edge.1));
        // Free the spare memory, because the schedule may be kept for long.
        schedule.all.shrink_to_fit();
        schedule.pending.shrink_to_fit();
        schedule.out.iter_mut().chain(&mut schedule.into).for_each(|lane| lane.queue.shrink_to_fit());
        schedule
    }

    /// Returns the schedule with this reduction in place of a sum.
    #[must_use]
    pub fn by(self, reduction: Reduction) -> Self {
        Schedule { reduction, ..self }
    }

    /// The number of messages.
    pub fn messages(&self) -> usize {
        self.all.len()
    }

    /// The number of messages that are received.
    pub fn arrivals(&self) -> usize {
        self.into.iter().map(|lane| lane.queue.len()).sum()
    }

    /// Returns true if the schedule only sends.
    pub fn only_sends(&self) -> bool {
        self.into.is_empty()
    }

    /// Returns the messages that may not finish before this one is finished, or is sent from a copy.
    pub fn dependents(&self, index: u32) -> &[u32] {
        let first = |index: usize| self.all.get(index).map_or(self.dependents.len(), |at| at.first_dependent as usize);
        &self.dependents[first(index as usize)..first(index as usize + 1)]
    }
}

impl Lane {
    /// Returns the index of the peer's lane. Adds the lane if it is new.
    fn of(lanes: &mut Vec<Lane>, peer: usize) -> usize {
        lanes.iter().position(|lane| lane.peer == peer).unwrap_or_else(|| {
            lanes.push(Lane { peer, queue: Vec::new(), bytes: 0 });
            lanes.len() - 1
        })
    }

    /// Returns the message at this position of the lane.
    pub fn message(&self, place: usize) -> Option<u32> {
        self.queue.get(place).copied()
    }
}

/// The segments of a buffer. They are the same on every rank, since they follow from the parts and the
/// segment's length.
struct Cells {
    /// Boundaries in elements.
    bounds: Vec<usize>,
    /// The first cell of each part, and the number of cells at the end.
    first: Vec<usize>,
}

impl Cells {
    fn of(plan: &Plan, segment: usize) -> Self {
        let (mut bounds, mut first) = (vec![0], vec![0]);
        for part in 0..plan.parts.count() {
            let range = plan.parts.range(part..part + 1);
            bounds.extend((range.start..range.end).step_by(segment).skip(1));
            if !range.is_empty() {
                bounds.push(range.end);
            }
            first.push(bounds.len() - 1);
        }
        Cells { bounds, first }
    }

    fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Returns runs of consecutive cells that fit into one message of `most` elements, in order.
    fn groups(&self, parts: &Range<usize>, most: usize) -> Vec<Range<usize>> {
        let (mut start, end) = (self.first[parts.start], self.first[parts.end]);
        let mut groups = Vec::new();
        while start < end {
            let mut stop = start + 1;
            while stop < end && self.bounds[stop + 1] - self.bounds[start] <= most {
                stop += 1;
            }
            groups.push(start..stop);
            start = stop;
        }
        groups
    }
}
