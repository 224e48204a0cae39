//! A frozen cycle on one rank: its calls that were made, and the units that may begin.
//!
//! This module does no I/O. Units begin in one order, which is the same on every rank. A unit may begin when
//! this rank has called all its members.

use std::collections::BTreeMap;

use crate::progress::messages::{Call, Freeze, Step, Topic, Transfer};
use crate::transport::later;

/// Operations that travel together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The unit's number in the order of all launches.
    pub number: u32,
    /// The topic and the ordinal of each operation, in the order of the bucket.
    pub members: Vec<(Topic, u64)>,
    /// The bytes that one cycle sums.
    pub cycle_bytes: usize,
}

/// The operations of one topic in a cycle.
#[cfg_attr(test, derive(Clone, serde::Serialize))]
struct TopicSteps {
    /// The ordinal of its first operation in the first cycle.
    first: u64,
    /// The steps of these operations.
    steps: Vec<u32>,
}

/// A step of a cycle, counted from the freeze.
#[derive(Clone, Copy)]
struct StepPosition {
    cycle: u64,
    step: u32,
}

/// A frozen cycle, and this rank's progress in it.
#[cfg_attr(test, derive(Clone, serde::Serialize))]
pub(super) struct FrozenCycle {
    freeze: Freeze,
    cycle_bytes: usize,
    places: BTreeMap<Topic, TopicSteps>,
    /// The unit of each step.
    unit_of: Vec<u32>,
    /// For each step: its ordinal in the first cycle, and the number of steps of its topic.
    ordinals: Vec<(u64, u64)>,
    /// The number of units begun since the freeze. All units below this number have begun.
    begun: u64,
    /// For each cycle that is not done, the index of each call in the rank's own count of calls.
    called: BTreeMap<u64, Vec<Option<u64>>>,
}

impl FrozenCycle {
    pub(super) fn new(freeze: Freeze) -> Self {
        let mut places: BTreeMap<Topic, TopicSteps> = BTreeMap::new();
        for (index, step) in freeze.steps.iter().enumerate() {
            let place = places.entry(step.topic.clone());
            place.or_insert_with(|| TopicSteps { first: step.ordinal, steps: Vec::new() }).steps.push(index as u32);
        }
        let mut unit_of = vec![0; freeze.steps.len()];
        for (unit, members) in freeze.units.iter().enumerate() {
            members.iter().for_each(|step| unit_of[*step as usize] = unit as u32);
        }
        let mut ordinals = vec![(0, 0); freeze.steps.len()];
        for TopicSteps { first, steps } in places.values() {
            let numbered = steps.iter().zip(*first..);
            numbered.for_each(|(step, ordinal)| ordinals[*step as usize] = (ordinal, steps.len() as u64));
        }
        let sums = freeze
            .steps
            .iter()
            .map(|step| if let Transfer::Sum { len_bytes, .. } = step.transfer { len_bytes } else { 0 });
        let cycle_bytes = sums.sum();
        FrozenCycle { freeze, cycle_bytes, places, unit_of, ordinals, begun: 0, called: BTreeMap::new() }
    }

    pub(super) fn epoch(&self) -> u32 {
        self.freeze.epoch
    }

    /// The number of units begun since the freeze.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// The launch number of the first unit after the freeze.
    pub(super) fn number(&self) -> u32 {
        self.freeze.number
    }

    fn spot(&self, call: &Call) -> Option<StepPosition> {
        let place = self.places.get(&call.topic)?;
        let at = call.ordinal.checked_sub(place.first)?;
        let times = place.steps.len() as u64;
        Some(StepPosition { cycle: at / times, step: place.steps[(at % times) as usize] })
    }

    /// Returns the step that the call must match.
    pub(super) fn expected(&self, call: &Call) -> Option<&Step> {
        Some(&self.freeze.steps[self.spot(call)?.step as usize])
    }

    /// The unit that the call belongs to, counted from the freeze.
    pub(super) fn unit(&self, call: &Call) -> Option<u64> {
        let spot = self.spot(call)?;
        Some(spot.cycle * self.freeze.units.len() as u64 + u64::from(self.unit_of[spot.step as usize]))
    }

    /// Records the rank's `index`-th call. Returns true if it fits. A call does not fit if it is not part of
    /// the cycle, if it differs from its step, or if it is `most` cycles ahead of a call that was left out.
    pub(super) fn call(&mut self, call: &Call, index: u64, most: u64) -> bool {
        let Some(spot) = self.spot(call) else { return false };
        let step = &self.freeze.steps[spot.step as usize];
        if step.operation != call.operation
            || step.terms != call.terms
            || spot.cycle >= (self.begun / self.freeze.units.len() as u64).saturating_add(most)
        {
            return false;
        }
        let called = self.called.entry(spot.cycle).or_insert_with(|| vec![None; self.freeze.steps.len()]);
        called[spot.step as usize] = Some(index);
        true
    }

    /// Returns the next unit with the indices of its calls, if all its members have been called.
    pub(super) fn begin(&mut self) -> Option<(Unit, Vec<u64>)> {
        let complete = self.complete(self.begun)?;
        self.begun += 1;
        let each = self.freeze.units.len() as u64;
        if self.begun.is_multiple_of(each) {
            self.called.remove(&(self.begun / each - 1));
        }
        Some(complete)
    }

    /// Returns true if a unit runs alone: it waits for the units begun before it, and the units begun after
    /// it wait for it.
    pub(super) fn is_alone(&self, number: u64) -> bool {
        self.members(number).any(|step| step.transfer == Transfer::Alone)
    }

    /// Returns true if some unit runs alone.
    pub(super) fn runs_alone(&self) -> bool {
        self.freeze.steps.iter().any(|step| step.transfer == Transfer::Alone)
    }

    /// The topics of a unit.
    pub(super) fn topics(&self, number: u64) -> Vec<Topic> {
        self.members(number).map(|step| step.topic.clone()).collect()
    }

    fn members(&self, number: u64) -> impl Iterator<Item = &Step> {
        let members = &self.freeze.units[(number % self.freeze.units.len() as u64) as usize];
        members.iter().map(|step| &self.freeze.steps[*step as usize])
    }

    /// Returns a unit with the indices of its calls, if all its members have been called.
    pub(super) fn complete(&self, number: u64) -> Option<(Unit, Vec<u64>)> {
        let each = self.freeze.units.len() as u64;
        let cycle = number / each;
        let called = self.called.get(&cycle)?;
        let members = &self.freeze.units[(number % each) as usize];
        let indices = members.iter().map(|step| called[*step as usize]).collect::<Option<Vec<u64>>>()?;
        let members =
            members.iter().map(|step| (self.freeze.steps[*step as usize].topic.clone(), self.ordinal(cycle, *step)));
        let number = later(self.freeze.number, number);
        Some((Unit { number, members: members.collect(), cycle_bytes: self.cycle_bytes }, indices))
    }

    /// The ordinal of a step in a cycle.
    fn ordinal(&self, cycle: u64, step: u32) -> u64 {
        let (first, each) = self.ordinals[step as usize];
        first + cycle * each
    }

    /// Returns the operations of these units that this rank has not called, in the order of the units.
    pub(super) fn uncalled(&self, units: impl Iterator<Item = u64>) -> Vec<(&Step, u64)> {
        let each = self.freeze.units.len() as u64;
        let members = units.flat_map(|number| {
            let cycle = number / each;
            self.freeze.units[(number % each) as usize].iter().map(move |step| (cycle, *step))
        });
        let is_uncalled =
            |(cycle, step): &(u64, u32)| self.called.get(cycle).is_none_or(|called| called[*step as usize].is_none());
        let uncalled = members.filter(is_uncalled);
        uncalled.map(|(cycle, step)| (&self.freeze.steps[step as usize], self.ordinal(cycle, step))).collect()
    }

    /// Returns the first operation of the next unit that this rank has not called.
    pub(super) fn missing(&self) -> Option<&Step> {
        let uncalled = self.uncalled(std::iter::once(self.begun));
        uncalled.first().map(|(step, _)| *step)
    }
}
