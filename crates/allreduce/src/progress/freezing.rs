//! Finds a cycle in the calls that rank 0 receives, and freezes it.
//!
//! Rank 0 looks for a period in its own sequence of calls. When a period has come often enough, a line is
//! drawn behind its last call. Operations before the line launch as usual. Operations behind the line, on any
//! rank, belong to the frozen cycle and are held. When every operation before the line has launched, each
//! rank's calls of the last period are known, and so are the points at which it waits.
//!
//! A rank may make a call behind the line while it still has to make a call before the line. It may then wait
//! for the operation behind the line before it makes the other call, so the cycle is given up. This too
//! depends on the rank's sequence of calls and not on the time at which they arrive.

use std::collections::{BTreeMap, VecDeque};

use crate::progress::fusion::units;
use crate::progress::messages::{Call, Step, Topic, Transfer};
use crate::progress::period::Sequence;
use crate::progress::phases::phases;

/// The number of calls of a rank that are remembered at most.
const MEMORY: usize = 1 << 15;

#[cfg_attr(test, derive(Clone, serde::Serialize))]
struct LoggedCall {
    /// The topic's number in [`Logs::topics`].
    topic: u32,
    ordinal: u64,
    waited: bool,
}

/// The calls of each rank since the last freeze.
#[cfg_attr(test, derive(Clone, serde::Serialize))]
pub(super) struct Logs {
    seen: Vec<VecDeque<LoggedCall>>,
    /// The topics, which the entries refer to by number, because many ranks call the same topics.
    topics: Vec<Topic>,
    numbers: BTreeMap<Topic, u32>,
    /// Rank 0's calls, except those that never repeat.
    own: VecDeque<Call>,
    /// The number of calls that rank 0 has made on each topic.
    counts: BTreeMap<Topic, u64>,
    sequence: Sequence,
}

/// A cycle that is being frozen.
#[cfg_attr(test, derive(Clone, serde::Serialize))]
pub(super) struct PendingFreeze {
    /// The first ordinal of each topic behind the line.
    line: BTreeMap<Topic, u64>,
    /// Rank 0's calls of the last period.
    cycle: Vec<Call>,
    /// For each rank, the number of calls before the line that it has not made, and true if it has made a
    /// call behind the line.
    missing: Vec<usize>,
    beyond: Vec<bool>,
    /// Operations before the line that have not launched.
    unlaunched: usize,
    has_crossed: bool,
}

impl Logs {
    pub(super) fn new(size: usize) -> Self {
        Logs {
            seen: (0..size).map(|_| VecDeque::new()).collect(),
            topics: Vec::new(),
            numbers: BTreeMap::new(),
            own: VecDeque::new(),
            counts: BTreeMap::new(),
            sequence: Sequence::default(),
        }
    }

    pub(super) fn push(&mut self, rank: usize, call: &Call) {
        let topic = self.numbers.get(&call.topic).copied().unwrap_or_else(|| {
            let number = self.topics.len() as u32;
            self.topics.push(call.topic.clone());
            self.numbers.insert(call.topic.clone(), number);
            number
        });
        let seen = &mut self.seen[rank];
        if seen.len() >= MEMORY {
            seen.pop_front();
        }
        seen.push_back(LoggedCall { topic, ordinal: call.ordinal, waited: call.waited });
        if rank == 0 {
            self.counts.insert(call.topic.clone(), call.ordinal + 1);
            if self.sequence.push(call) {
                if self.own.len() >= MEMORY {
                    self.own.pop_front();
                }
                self.own.push_back(call.clone());
            }
        }
    }

    /// Returns the length of the shortest period whose `times` repetitions are the end of rank 0's calls. If
    /// rank 0 waits in the period at all, the period begins after a wait: other ranks may make the calls of a
    /// step in another order, and a line within the step would divide their steps.
    pub(super) fn period(&self, times: usize) -> Option<usize> {
        let is_whole = |period: &usize| {
            let mut waits = self.own.range(self.own.len() - period..).map(|call| call.waited);
            waits.next() == Some(true) || !waits.any(|waited| waited)
        };
        self.sequence.period(times).filter(is_whole)
    }

    /// Returns true if an operation in the last `period` calls runs alone.
    pub(super) fn runs_alone(&self, period: usize) -> bool {
        self.own.range(self.own.len() - period..).any(|call| call.transfer == Transfer::Alone)
    }

    /// Draws the line behind rank 0's last call. `open` has the operations that have not launched, each with
    /// the ranks that have not called it.
    pub(super) fn freezing<'a>(
        &self,
        period: usize,
        open: impl Iterator<Item = (&'a (Topic, u64), Vec<usize>)>,
    ) -> PendingFreeze {
        let size = self.seen.len();
        let cycle = self.own.range(self.own.len() - period..).cloned().collect();
        let (missing, beyond) = (vec![0; size], vec![false; size]);
        let mut freezing =
            PendingFreeze { line: self.counts.clone(), cycle, missing, beyond, unlaunched: 0, has_crossed: false };
        for ((topic, ordinal), lacks) in open {
            if !freezing.is_beyond(topic, *ordinal) {
                freezing.unlaunched += 1;
                lacks.into_iter().for_each(|rank| freezing.missing[rank] += 1);
            }
        }
        for (rank, seen) in self.seen.iter().enumerate() {
            for LoggedCall { topic, ordinal, .. } in seen {
                let is_beyond = freezing.is_beyond(&self.topics[*topic as usize], *ordinal);
                freezing.has_crossed |= freezing.beyond[rank] && !is_beyond;
                freezing.beyond[rank] |= is_beyond;
            }
            freezing.has_crossed |= freezing.beyond[rank] && freezing.missing[rank] > 0;
        }
        freezing
    }

    /// Returns the operations of the frozen cycle, with the ordinals of its first round, and its units.
    pub(super) fn cycle(&self, freezing: &PendingFreeze, bucket_bytes: usize) -> (Vec<Step>, Vec<Vec<u32>>) {
        let mut times: BTreeMap<&Topic, u64> = BTreeMap::new();
        freezing.cycle.iter().for_each(|call| *times.entry(&call.topic).or_default() += 1);
        let step = |call: &Call| Step {
            topic: call.topic.clone(),
            ordinal: call.ordinal + times[&call.topic],
            operation: call.operation.clone(),
            terms: call.terms.clone(),
            transfer: call.transfer,
        };
        let steps: Vec<Step> = freezing.cycle.iter().map(step).collect();
        let place: BTreeMap<(&Topic, u64), usize> =
            freezing.cycle.iter().enumerate().map(|(index, call)| ((&call.topic, call.ordinal), index)).collect();
        let parts = |seen: &VecDeque<LoggedCall>| {
            let mut parts: Vec<Vec<usize>> = Vec::new();
            for seen in seen {
                let step = place.get(&(&self.topics[seen.topic as usize], seen.ordinal));
                // A wait before the first call of the period is a wait between two cycles.
                if seen.waited && !parts.is_empty() || parts.is_empty() && step.is_some() {
                    parts.push(Vec::new());
                }
                parts.last_mut().into_iter().for_each(|part| part.extend(step));
            }
            parts
        };
        let phases = phases(steps.len(), &self.seen.iter().map(parts).collect::<Vec<_>>());
        let units = units(&steps, &phases, bucket_bytes);
        (steps, units)
    }

    /// Forgets the calls of these topics, and the sequences of calls that contain them.
    pub(super) fn forget(&mut self, topics: &BTreeMap<Topic, u64>) {
        if topics.keys().any(|topic| topic.set().is_none()) {
            self.clear();
            self.counts.retain(|topic, _| !topics.contains_key(topic));
        }
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> usize {
        self.counts.keys().filter(|topic| topic.is_named()).count()
    }

    pub(super) fn clear(&mut self) {
        // The memory is freed: a step of many ranks takes much of it.
        self.seen.iter_mut().for_each(|seen| *seen = VecDeque::new());
        self.topics.clear();
        self.numbers.clear();
        self.own.clear();
        self.sequence.clear();
    }
}

impl PendingFreeze {
    /// Returns true if the operation lies behind the line.
    pub(super) fn is_beyond(&self, topic: &Topic, ordinal: u64) -> bool {
        self.line.get(topic).is_none_or(|line| ordinal >= *line)
    }

    /// Records one more call of a rank.
    pub(super) fn call(&mut self, rank: usize, topic: &Topic, ordinal: u64) {
        if self.is_beyond(topic, ordinal) {
            self.beyond[rank] = true;
            self.has_crossed |= self.missing[rank] > 0;
        } else {
            self.has_crossed |= self.beyond[rank];
            self.missing[rank] = self.missing[rank].saturating_sub(1);
        }
    }

    /// Records that an operation before the line has launched.
    pub(super) fn launched(&mut self) {
        self.unlaunched -= 1;
    }

    /// Returns true if every operation before the line has launched.
    pub(super) fn is_ready(&self) -> bool {
        self.unlaunched == 0
    }

    /// Returns true if some rank's calls cross the line.
    pub(super) fn has_crossed(&self) -> bool {
        self.has_crossed
    }
}
