//! Finds a cycle in the calls that rank 0 receives, and freezes it.
//!
//! Rank 0 looks for a period in its own sequence of calls. A line is drawn behind the last call of a period
//! that has come often enough. Operations before the line launch as before. Operations behind the line, on
//! any rank, belong to the frozen cycle and are held. Every rank's calls of the last period are known when
//! every operation before the line has launched, and so are the places where it waits.
//!
//! A rank may make a call from behind the line while it has still to make one from before it. It may then
//! wait for the first to be done before it makes the second, so the cycle is given up. That, too, follows
//! from the rank's sequence of calls and not from the time at which they arrive.

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
    /// The topics that the entries name by number: many ranks call the same.
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
    /// The first ordinal of each topic behind the point of the freeze.
    line: BTreeMap<Topic, u64>,
    /// Rank 0's calls of the last period.
    cycle: Vec<Call>,
    /// Calls before the line that each rank has not made, and whether it has made one from behind it.
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

    /// Returns the length of the shortest period whose last `times` repetitions are the end of rank 0's
    /// calls. It begins where rank 0 has waited, if rank 0 waits in it at all: other ranks make the calls of
    /// a step in other orders, and a line within the step would cut theirs.
    pub(super) fn period(&self, times: usize) -> Option<usize> {
        let is_whole = |period: &usize| {
            let mut waits = self.own.range(self.own.len() - period..).map(|call| call.waited);
            waits.next() == Some(true) || !waits.any(|waited| waited)
        };
        self.sequence.period(times).filter(is_whole)
    }

    /// Returns true if an operation in that period runs alone.
    pub(super) fn runs_alone(&self, period: usize) -> bool {
        self.own.range(self.own.len() - period..).any(|call| call.transfer == Transfer::Alone)
    }

    /// Draws the line behind rank 0's last call. `open` are the operations that have not launched, with the
    /// ranks that they lack.
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

    /// The operations of the frozen cycle, named as in its first round, and its units.
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
                // A wait before the first call of the period is one between two cycles.
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

    /// Forgets the calls of these topics, and the sequence of calls that they are in.
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
