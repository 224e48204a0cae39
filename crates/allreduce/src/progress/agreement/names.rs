//! Forgets the names of old collectives, so that the memory of a job that gives each collective a new name
//! does not grow.
//!
//! Every rank counts its calls of each name, and the count distinguishes its calls of one name. When there
//! are many names, rank 0 picks names to forget: those that were called longest ago and have no pending call.
//! All ranks have made the same number of calls of such a name. Rank 0 sends the names with these numbers
//! ([`Order::Forget`]), and each rank subtracts them from its counts. Calls that a rank sent before it
//! received the order have old counts. The messages of a rank keep their order, so rank 0 subtracts the
//! number from the counts of a rank's calls until the rank has answered ([`forgot`](Agreement::forgot)).

use std::collections::{BTreeMap, BTreeSet};

use crate::progress::agreement::{Agreement, AgreementPhase};
use crate::progress::messages::{Call, Order, Topic};

/// The number of names above which the oldest are forgotten.
const MOST: usize = 1024;

/// Names that have been called, and those that are being forgotten.
#[cfg_attr(test, derive(Clone, serde::Serialize))]
pub(super) struct Names {
    most: usize,
    /// For each name: the number of calls that each rank has made, and the number of all launches when the
    /// last call of the name was launched.
    known: BTreeMap<Topic, (u64, u64)>,
    launches: u64,
    /// The number of launches at which names to forget are searched again.
    next_look: u64,
    forgotten: BTreeMap<Topic, u64>,
    /// The ranks that have not answered the last order.
    awaited: BTreeSet<usize>,
}

impl Default for Names {
    fn default() -> Self {
        let (known, forgotten, awaited) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Names { most: MOST, known, launches: 0, next_look: 0, forgotten, awaited }
    }
}

impl Names {
    /// Records that an operation has launched or was refused: every rank has called it.
    pub(super) fn launched(&mut self, topic: &Topic, ordinal: u64) {
        if topic.is_named() {
            self.launches += 1;
            self.known.insert(topic.clone(), (ordinal + 1, self.launches));
        }
    }

    /// Removes a topic that is part of a cycle, because launches in a cycle are not counted.
    pub(super) fn is_frozen(&mut self, topic: &Topic) {
        self.known.remove(topic);
    }

    /// Subtracts the number of forgotten calls from a call's ordinal, if the rank made the call before it
    /// forgot them.
    pub(super) fn count(&self, rank: usize, call: &mut Call) {
        if self.awaited.contains(&rank)
            && let Some(made) = self.forgotten.get(&call.topic)
        {
            call.ordinal = call.ordinal.saturating_sub(*made);
        }
    }
}

impl Agreement {
    /// Returns the order to forget names, if it is due.
    pub(super) fn forget_names(&mut self) -> Option<Order> {
        let names = &self.names;
        let is_due = names.known.len() > names.most && names.launches >= names.next_look && names.awaited.is_empty();
        if !is_due || !self.left.is_empty() {
            return None;
        }
        // A name of all ranks may be part of a cycle, or may still have to begin after a cycle was stopped.
        let is_open = matches!(self.phase, AgreementPhase::Open)
            && self.outstanding.iter().all(Option::is_none)
            && self.joined.is_empty();
        let pending: BTreeSet<&Topic> =
            self.pending.keys().chain(self.of_sets.keys()).map(|(topic, _)| topic).collect();
        let names = &mut self.names;
        names.next_look = names.launches + (names.most / 2) as u64;
        let mut all: Vec<(u64, &Topic, u64)> =
            names.known.iter().map(|(topic, (made, at))| (*at, topic, *made)).collect();
        all.sort_unstable();
        all.truncate(all.len() - names.most / 2);
        all.retain(|(_, topic, _)| (is_open || topic.set().is_some()) && !pending.contains(topic));
        let forgotten: BTreeMap<Topic, u64> = all.into_iter().map(|(_, topic, made)| (topic.clone(), made)).collect();
        if forgotten.is_empty() {
            return None;
        }
        names.known.retain(|topic, _| !forgotten.contains_key(topic));
        self.logs.forget(&forgotten);
        names.awaited = (0..self.size).collect();
        names.forgotten.clone_from(&forgotten);
        Some(Order::Forget(forgotten.into_iter().collect()))
    }

    /// Records that a rank has forgotten the names of the last order.
    pub fn forgot(&mut self, rank: usize) {
        self.names.awaited.remove(&rank);
        if self.names.awaited.is_empty() {
            self.names.forgotten.clear();
        }
    }

    /// Sets the number of names above which the oldest are forgotten. Tests and the fuzzer set it low.
    pub fn remember(&mut self, most: usize) {
        self.names.most = most;
    }

    /// The number of names that are remembered.
    #[cfg(test)]
    pub fn names(&self) -> usize {
        self.names.known.len() + self.names.forgotten.len() + self.logs.names()
    }
}
