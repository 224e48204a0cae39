//! A plan as the messages of one rank: parts cut into segments, moves into messages of whole segments, and what each
//! message has to wait for.
//!
//! A message depends on the earlier messages of the plan that touch the same segments, and on nothing else.

use std::ops::Range;

use crate::collective::elsewhere::Room;
use crate::collective::plan::{Move, Plan, Then};

/// What a message does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Send,
    Reduce,
    Copy,
}

pub(super) struct Message {
    /// Its lane among those of its direction.
    pub(super) lane: u32,
    pub(super) action: Action,
    /// Bytes of the buffer.
    pub(super) start: usize,
    pub(super) end: usize,
    /// How many earlier messages must finish first.
    pub(super) waits: u32,
    pub(super) dependents: Vec<u32>,
    /// For `Reduce`, while they are under way: where the bytes arrive.
    pub(super) room: Option<Room>,
    /// Whether the transport is done with it.
    pub(super) arrived: bool,
}

/// Messages to or from one peer, in program order.
pub(super) struct Lane {
    pub(super) peer: usize,
    pub(super) inflight: usize,
    queue: Vec<u32>,
    next: usize,
}

/// What one rank sends and receives for one plan. Lanes stand in the order in which the plan first names their peers.
#[derive(Default)]
pub(super) struct Messages {
    pub(super) all: Vec<Message>,
    pub(super) out: Vec<Lane>,
    pub(super) into: Vec<Lane>,
    pub(super) unfinished: usize,
}

impl Messages {
    pub(super) fn of(plan: &Plan, element: usize, segment_bytes: usize) -> Self {
        let most = (segment_bytes / element).max(1);
        let cells = Cells::of(plan, most);
        let mut messages = Messages::default();
        let mut writer: Vec<Option<u32>> = vec![None; cells.count()];
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); cells.count()];
        for step in &plan.moves {
            let (peer, parts, action) = match step {
                Move::Send { to, parts } => (*to, parts, Action::Send),
                Move::Recv { from, parts, then: Then::Reduce } => (*from, parts, Action::Reduce),
                Move::Recv { from, parts, then: Then::Copy } => (*from, parts, Action::Copy),
            };
            let lane = Lane::of(if action == Action::Send { &mut messages.out } else { &mut messages.into }, peer);
            for group in cells.groups(parts, most) {
                let token = messages.all.len() as u32;
                let mut before: Vec<u32> = Vec::new();
                for cell in group.clone() {
                    before.extend(writer[cell]);
                    if action == Action::Send {
                        readers[cell].push(token);
                    } else {
                        before.append(&mut readers[cell]);
                        writer[cell] = Some(token);
                    }
                }
                before.sort_unstable();
                before.dedup();
                for earlier in &before {
                    messages.all[*earlier as usize].dependents.push(token);
                }
                messages.lane(action, lane).queue.push(token);
                messages.all.push(Message {
                    lane,
                    action,
                    start: cells.bounds[group.start] * element,
                    end: cells.bounds[group.end] * element,
                    waits: before.len() as u32,
                    dependents: Vec::new(),
                    room: None,
                    arrived: false,
                });
            }
        }
        messages.unfinished = messages.all.len();
        messages
    }

    pub(super) fn lane(&mut self, action: Action, lane: u32) -> &mut Lane {
        let lanes = if action == Action::Send { &mut self.out } else { &mut self.into };
        &mut lanes[lane as usize]
    }

    /// The peers of messages that are in flight.
    pub(super) fn awaited(&self) -> impl Iterator<Item = usize> {
        self.out.iter().chain(&self.into).filter(|lane| lane.inflight > 0).map(|lane| lane.peer)
    }
}

impl Lane {
    /// The index of the peer's lane, which is added if it is new.
    fn of(lanes: &mut Vec<Lane>, peer: usize) -> u32 {
        let found = lanes.iter().position(|lane| lane.peer == peer);
        let index = found.unwrap_or_else(|| {
            lanes.push(Lane { peer, inflight: 0, queue: Vec::new(), next: 0 });
            lanes.len() - 1
        });
        index as u32
    }

    /// The next message to be posted.
    pub(super) fn head(&self) -> Option<u32> {
        self.queue.get(self.next).copied()
    }

    pub(super) fn posted(&mut self) {
        self.next += 1;
        self.inflight += 1;
    }
}

/// The segments of a buffer: the same on every rank, since they follow from the parts and the segment's length alone.
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

    /// Runs of consecutive cells that fit one message of `most` elements, in order.
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
