//! A frozen cycle on one rank: what has been called of it, and which units may begin.
//!
//! Pure. Units are begun in one order, which is the same on every rank; a unit may begin when this rank has called all its members.
//! When a cycle has been stopped, those that are left to do begin as soon as they may.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::progress::fusion::Step;
use crate::progress::job::Wire;
use crate::progress::order::{Call, Launch, Topic};

/// So many sums may go ahead of one that is left to do: fewer than can be under way, so that there is room for that one.
pub(super) const OVERTAKING: u64 = 16;

/// What rank 0 tells every rank when it freezes the sequence of calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    /// Counts the freezes.
    pub epoch: u32,
    /// The last operation that was agreed on by itself.
    pub last: Launch,
    /// The number of the first unit.
    pub number: u32,
    /// The operations of a cycle, in the order in which rank 0 calls them.
    pub steps: Vec<Step>,
    /// The units of a cycle, as indices of `steps`.
    pub units: Vec<Vec<u32>>,
}

/// Operations that travel together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Its place in the order of all launches.
    pub number: u32,
    /// Topic and ordinal of each, in the order in which they lie in a bucket.
    pub members: Vec<(Topic, u64)>,
    /// What a cycle sums in all.
    pub cycle_bytes: usize,
}

/// The operations of one topic in a cycle.
struct Place {
    /// The ordinal of the first of them in the first cycle.
    first: u64,
    /// Their steps.
    steps: Vec<u32>,
}

/// A step of a cycle, counted from the freeze.
#[derive(Clone, Copy)]
struct Spot {
    cycle: u64,
    step: u32,
}

/// A frozen cycle, and where this rank is in it.
pub(super) struct Frozen {
    freeze: Freeze,
    /// Whether sums are done one after another, on every rank in one order.
    sums_block: bool,
    cycle_bytes: usize,
    places: BTreeMap<Topic, Place>,
    /// The unit of each step.
    unit_of: Vec<u32>,
    /// Units begun, since the freeze: all before this one.
    begun: u64,
    /// What is left to do of a cycle that was stopped.
    owed: BTreeSet<u64>,
    /// What has been called of each cycle that is not done, by the rank's own count of calls.
    called: BTreeMap<u64, Vec<Option<u64>>>,
}

impl Frozen {
    pub(super) fn new(freeze: Freeze, sums_block: bool) -> Self {
        let mut places: BTreeMap<Topic, Place> = BTreeMap::new();
        for (index, step) in freeze.steps.iter().enumerate() {
            let place = places.entry(step.topic.clone());
            place.or_insert_with(|| Place { first: step.ordinal, steps: Vec::new() }).steps.push(index as u32);
        }
        let mut unit_of = vec![0; freeze.steps.len()];
        for (unit, members) in freeze.units.iter().enumerate() {
            members.iter().for_each(|step| unit_of[*step as usize] = unit as u32);
        }
        let sums =
            freeze.steps.iter().map(|step| if let Wire::Sum { len_bytes, .. } = step.wire { len_bytes } else { 0 });
        let cycle_bytes = sums.sum();
        Frozen {
            freeze,
            sums_block,
            cycle_bytes,
            places,
            unit_of,
            begun: 0,
            owed: BTreeSet::new(),
            called: BTreeMap::new(),
        }
    }

    pub(super) fn epoch(&self) -> u32 {
        self.freeze.epoch
    }

    /// Units begun until it was stopped, since the freeze.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// The number of the unit that was the first after the freeze.
    pub(super) fn number(&self) -> u32 {
        self.freeze.number
    }

    fn spot(&self, call: &Call) -> Option<Spot> {
        let place = self.places.get(&call.topic)?;
        let at = call.ordinal.checked_sub(place.first)?;
        let times = place.steps.len() as u64;
        Some(Spot { cycle: at / times, step: place.steps[(at % times) as usize] })
    }

    /// The step that the call should be, and whether it is.
    pub(super) fn expected(&self, call: &Call) -> Option<(&Step, bool)> {
        let step = &self.freeze.steps[self.spot(call)?.step as usize];
        Some((step, step.operation == call.operation && step.terms == call.terms))
    }

    /// The unit that the call belongs to, counted from the freeze.
    pub(super) fn unit(&self, call: &Call) -> Option<u64> {
        let spot = self.spot(call)?;
        Some(spot.cycle * self.freeze.units.len() as u64 + u64::from(self.unit_of[spot.step as usize]))
    }

    /// Takes note of the rank's `index`-th call. Whether it fits: a call that is not part of the cycle, differs from what was called
    /// before, or is `most` cycles ahead of one that was left out, does not.
    pub(super) fn call(&mut self, call: &Call, index: u64, most: u64) -> bool {
        let Some(spot) = self.spot(call) else { return false };
        let fits = self.expected(call).is_some_and(|(_, fits)| fits);
        if !fits || spot.cycle >= (self.begun / self.freeze.units.len() as u64).saturating_add(most) {
            return false;
        }
        let called = self.called.entry(spot.cycle).or_insert_with(|| vec![None; self.freeze.steps.len()]);
        called[spot.step as usize] = Some(index);
        true
    }

    /// The next unit, if all its members have been called, with the indices of their calls.
    pub(super) fn begin(&mut self) -> Option<(Unit, Vec<u64>)> {
        let complete = self.complete(self.begun)?;
        self.begun += 1;
        let each = self.freeze.units.len() as u64;
        if self.begun.is_multiple_of(each) {
            self.called.remove(&(self.begun / each - 1));
        }
        Some(complete)
    }

    /// The units before this one are to be done still.
    pub(super) fn owe(&mut self, until: u64) {
        self.owed = (self.begun..until).collect();
    }

    /// A unit that is left to do, if all its members have been called, with the indices of their calls.
    ///
    /// Sums that move beside others go in any order, some of them ahead of one that has not been called. What runs alone on another
    /// rank keeps it from all that it begins later, and waits there for what it began before: none overtakes that, nor is overtaken by it.
    pub(super) fn begin_owed(&mut self) -> Option<(Unit, Vec<u64>)> {
        let mut passed = None;
        for number in self.owed.iter().copied() {
            let is_in_order = passed.is_none_or(|first| number < first + OVERTAKING && !self.is_alone(number));
            match self.complete(number) {
                Some(complete) if is_in_order => {
                    self.owed.remove(&number);
                    return Some(complete);
                }
                _ if !is_in_order || self.is_alone(number) => return None,
                _ => passed = passed.or(Some(number)),
            }
        }
        None
    }

    /// Whether something runs alone among what is left to do.
    pub(super) fn owes_alone(&self) -> bool {
        self.owed.iter().any(|number| self.is_alone(*number))
    }

    fn is_alone(&self, number: u64) -> bool {
        let members = &self.freeze.units[(number % self.freeze.units.len() as u64) as usize];
        self.sums_block || members.iter().any(|step| self.freeze.steps[*step as usize].wire == Wire::Alone)
    }

    /// Whether nothing is left to do.
    pub(super) fn is_even(&self) -> bool {
        self.owed.is_empty()
    }

    fn complete(&self, number: u64) -> Option<(Unit, Vec<u64>)> {
        let each = self.freeze.units.len() as u64;
        let cycle = number / each;
        let called = self.called.get(&cycle)?;
        let members = &self.freeze.units[(number % each) as usize];
        let indices = members.iter().map(|step| called[*step as usize]).collect::<Option<Vec<u64>>>()?;
        let members =
            members.iter().map(|step| (self.freeze.steps[*step as usize].topic.clone(), self.ordinal(cycle, *step)));
        let number = self.freeze.number.wrapping_add(number as u32);
        Some((Unit { number, members: members.collect(), cycle_bytes: self.cycle_bytes }, indices))
    }

    /// The ordinal of a step in a cycle.
    fn ordinal(&self, cycle: u64, step: u32) -> u64 {
        let place = &self.places[&self.freeze.steps[step as usize].topic];
        let within = place.steps.iter().position(|other| *other == step).expect("a step stands at its own place");
        place.first + cycle * place.steps.len() as u64 + within as u64
    }

    /// What this rank has not called of the units that are left to do, in their order.
    pub(super) fn uncalled(&self) -> Vec<(&Step, u64)> {
        let each = self.freeze.units.len() as u64;
        let members = self.owed.iter().flat_map(|number| {
            let cycle = number / each;
            self.freeze.units[(number % each) as usize].iter().map(move |step| (cycle, *step))
        });
        let is_uncalled =
            |(cycle, step): &(u64, u32)| self.called.get(cycle).is_none_or(|called| called[*step as usize].is_none());
        let uncalled = members.filter(is_uncalled);
        uncalled.map(|(cycle, step)| (&self.freeze.steps[step as usize], self.ordinal(cycle, step))).collect()
    }

    /// The first operation that this rank has not called of the next unit, or of those that are left to do.
    pub(super) fn missing(&self) -> Option<&Step> {
        let number = self.owed.first().copied().unwrap_or(self.begun);
        let each = self.freeze.units.len() as u64;
        let called = self.called.get(&(number / each));
        let is_missing = |step: &&u32| called.is_none_or(|called| called[**step as usize].is_none());
        let step = self.freeze.units[(number % each) as usize].iter().find(is_missing)?;
        Some(&self.freeze.steps[*step as usize])
    }
}
