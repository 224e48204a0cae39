//! The calls of one rank. They are announced one by one, or begin in a frozen order without a message.
//!
//! A rank begins by announcing each call to rank 0 (`agreement`). After rank 0 has frozen the sequence, calls
//! are only recorded, and each unit begins as soon as this rank has called its members. If a call does not
//! fit, or a caller waits for an operation that cannot begin, the rank asks rank 0 to stop all ranks. Each
//! rank then reports the number of units that it has begun. All run up to the unit of the furthest rank, and
//! later calls are announced again.
//!
//! This module does no I/O: nothing here sends, waits or reads the time.

use std::collections::BTreeMap;

use ringpull_base::Error;

use crate::progress::frozen::{FrozenCycle, Unit};
use crate::progress::messages::{Call, Freeze, Launch, Operation, RunTo, Step, StoppedCycle, Terms, Topic, Transfer};
use crate::progress::rest::{CatchUpQueue, QueuedOperation};
use crate::transport::OF_A_SET;

/// An action that follows from a call or a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Announce the call to rank 0.
    Announce(Call),
    /// Begin a unit, because all its members have been called.
    Begin(Unit),
    /// Run an operation, because every rank has called it.
    Run(Launch),
    /// Make a job for a call that this rank does not make because it has joined. The next action begins the
    /// job.
    StandIn(Call),
    /// Tell rank 0 that this rank has joined.
    Join,
    /// Ask rank 0 to stop the frozen cycle of this epoch.
    Invalidate(u32),
    /// Tell rank 0 that this rank has made its outstanding calls.
    CaughtUp,
    /// Fail, because the ranks do not agree.
    Fault(Error),
}

/// The number of names of collectives above which a rank without peers forgets them.
const MOST_NAMES: usize = 1024;

/// The number of later cycles whose calls a rank may make before it has made all calls of a cycle.
const CYCLES: u64 = 2;

#[cfg_attr(test, derive(Clone, serde::Serialize))]
enum RankPhase {
    /// Each call is announced.
    Agreeing,
    /// Units begin when they are complete.
    Frozen,
    /// No unit begins. Rank 0 will send the number of the last unit to begin.
    Stopped,
    /// Units up to some number are still to begin. Later calls are announced.
    Pending(RunTo),
}

/// State of a rank: it has data left, or it has joined.
#[derive(Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize))]
enum DataState {
    Left,
    /// No data is left. This is reported to rank 0 when every call that has not begun has been announced.
    Ended,
    /// No data is left, and this was reported to rank 0.
    Joined,
}

/// One rank's calls that have not begun, and the way in which they will begin.
#[cfg_attr(test, derive(Clone, serde::Serialize))]
pub struct Calls {
    rank: usize,
    /// True if sums are done one after another, in the same order on every rank.
    sums_block: bool,
    ordinals: BTreeMap<Topic, u64>,
    /// The number of messages that this rank has sent and received. Rank 0 pairs them by envelope, not by a
    /// count of calls on each topic.
    messages: u64,
    /// The number of names of collectives among the topics, which is only counted if the job has one rank.
    names: Option<usize>,
    /// The number of calls made, and the calls that have not begun.
    made: u64,
    /// The number of calls made on process sets.
    of_sets: u64,
    /// The largest number of pushes of one key, or of calls of one named collective.
    steps: u64,
    open: BTreeMap<u64, Call>,
    /// True if a caller has waited since the last call.
    waited: bool,
    data: DataState,
    mode: RankPhase,
    frozen: Option<FrozenCycle>,
    /// The units left to begin after a stop, and the operations launched meanwhile.
    rest: CatchUpQueue,
    /// True if other ranks had begun more units than this one when the last frozen cycle was stopped.
    is_behind: bool,
}

impl Calls {
    /// Returns an empty record of the calls of `rank`. `sums_block` is true if each sum is done only after
    /// the sum before it, in the same order on every rank.
    pub fn new(rank: usize, sums_block: bool) -> Self {
        Calls {
            rank,
            sums_block,
            ordinals: BTreeMap::new(),
            messages: 0,
            names: None,
            made: 0,
            of_sets: 0,
            steps: 0,
            open: BTreeMap::new(),
            waited: false,
            data: DataState::Left,
            mode: RankPhase::Agreeing,
            frozen: None,
            rest: CatchUpQueue::default(),
            is_behind: false,
        }
    }

    /// Returns a record for a job of one rank, in which each call may begin at once.
    pub fn of_one_rank() -> Self {
        Calls { names: Some(0), ..Calls::new(0, false) }
    }

    /// The number of calls made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// The number of calls made that are not of a process set.
    pub fn made_of_all(&self) -> u64 {
        self.made - self.of_sets
    }

    /// The largest number of pushes of one key, or of calls of one named collective.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the number of calls made on `topic`. For a message it is the number of messages.
    pub fn ordinal(&self, topic: &Topic) -> u64 {
        if matches!(topic, Topic::Message(_)) {
            return self.messages;
        }
        self.ordinals.get(topic).copied().unwrap_or(0)
    }

    /// The number of calls made on each topic.
    pub(super) fn ordinals(&self) -> impl Iterator<Item = (&Topic, u64)> {
        self.ordinals.iter().map(|(topic, made)| (topic, *made))
    }

    /// Records a call, and returns the actions that follow.
    pub fn call(&mut self, topic: Topic, operation: Operation, terms: Terms, transfer: Transfer) -> Vec<Act> {
        let next = match &topic {
            Topic::Message(_) => &mut self.messages,
            _ => self.ordinals.entry(topic.clone()).or_default(),
        };
        let ordinal = *next;
        *next += 1;
        match (&topic, &operation) {
            // The first call on a key is its init.
            (Topic::Key { .. }, Operation::Push | Operation::PushRows) => self.steps = self.steps.max(ordinal),
            (Topic::Collective { name: Some(_), .. }, _) => self.steps = self.steps.max(ordinal + 1),
            _ => {}
        }
        if let Some(names) = &mut self.names {
            self.made += 1;
            *names += usize::from(ordinal == 0 && topic.is_named());
            if *names > MOST_NAMES {
                // On a single rank, every operation that was called has begun.
                self.ordinals.retain(|topic, _| !topic.is_named());
                *names = 0;
            }
            return vec![Act::Run(Launch { topic, ordinal, number: ordinal as u32, call: None, from: None })];
        }
        if topic.set().is_some() {
            // The call is in no frozen cycle and waits for no outstanding operation, because it is not a call
            // of all ranks.
            self.made += 1;
            self.of_sets += 1;
            let mut acts = if self.must_leave_cycle() { self.deviate() } else { Vec::new() };
            acts.push(Act::Announce(Call { topic, ordinal, operation, terms, transfer, waited: false }));
            return acts;
        }
        let waited = std::mem::take(&mut self.waited);
        let index = self.open(Call { topic, ordinal, operation, terms, transfer, waited });
        self.place(index)
    }

    fn open(&mut self, call: Call) -> u64 {
        let index = self.made;
        self.made += 1;
        self.open.insert(index, call);
        index
    }

    /// Records that this rank has no data left. Until [`joined`](Self::joined) it adds zeros in the
    /// operations of the others.
    pub fn join(&mut self) -> Vec<Act> {
        self.data = DataState::Ended;
        let mut acts = self.wait();
        if matches!(self.mode, RankPhase::Pending(_)) {
            acts.extend(self.make_up());
            acts.extend(self.begin());
        }
        acts.extend(self.announce_join());
        acts
    }

    /// Records that every rank has joined.
    pub fn joined(&mut self) {
        self.data = DataState::Left;
    }

    /// Returns true if this rank has joined.
    pub fn has_joined(&self) -> bool {
        self.data != DataState::Left
    }

    /// Returns the report that this rank has joined, if its earlier calls have been announced.
    fn announce_join(&mut self) -> Option<Act> {
        if self.data != DataState::Ended || matches!(self.mode, RankPhase::Stopped) {
            return None;
        }
        self.data = DataState::Joined;
        Some(Act::Join)
    }

    /// Records that a caller waits, or reads the result of a call. So all earlier calls must be able to begin
    /// without a further call.
    pub fn wait(&mut self) -> Vec<Act> {
        self.waited = true;
        match self.mode {
            RankPhase::Frozen if !self.open.is_empty() => self.deviate(),
            _ => Vec::new(),
        }
    }

    /// Records that the results of all earlier calls have been returned to a caller that is notified of each.
    /// The caller may have waited for them without reporting the wait.
    pub fn all_returned(&mut self) {
        self.waited = true;
    }

    /// Records an operation that was launched by itself. The operation comes after the outstanding units,
    /// because other ranks have begun these before it.
    pub fn launched(&mut self, launch: Launch) -> Vec<Act> {
        let found = self.open.iter().find(|(_, call)| call.ordinal == launch.ordinal && call.topic == launch.topic);
        let found = found.map(|(index, call)| (*index, call.transfer));
        let mut acts = Vec::new();
        let transfer = match (found, launch.call.as_deref().filter(|_| self.has_joined())) {
            (Some((index, transfer)), _) => {
                self.open.remove(&index);
                transfer
            }
            (None, Some(call)) => {
                self.ordinals.insert(launch.topic.clone(), launch.ordinal + 1);
                acts.push(Act::StandIn(call.clone()));
                call.transfer
            }
            (None, None) => return vec![Act::Run(launch)],
        };
        // A barrier that is launched does not wait.
        if matches!(self.mode, RankPhase::Pending(_)) && launch.topic != Topic::Barrier {
            let is_alone = transfer == Transfer::Alone || self.sums_block;
            self.rest.push(QueuedOperation::Launch(launch.clone()), vec![launch.topic], is_alone);
            acts.extend(self.begin());
        } else {
            acts.push(Act::Run(launch));
        }
        acts
    }

    /// Records an operation that has failed by itself and will not be launched.
    pub fn refused(&mut self, topic: &Topic, ordinal: u64) {
        let found = self.open.iter().find(|(_, call)| call.ordinal == ordinal && call.topic == *topic);
        let index = found.map(|(index, _)| *index);
        index.into_iter().for_each(|index| drop(self.open.remove(&index)));
        if matches!(topic, Topic::Message(_)) {
            return;
        }
        // A rank that has joined has not called the operation.
        let next = self.ordinals.entry(topic.clone()).or_default();
        *next = (*next).max(ordinal + 1);
    }

    /// Forgets these names. The number beside each name is the number of calls that every rank has made of
    /// it. Later calls count from 0.
    pub fn forget(&mut self, topics: &[(Topic, u64)]) {
        for (topic, made) in topics {
            if let Some(next) = self.ordinals.get_mut(topic) {
                *next = next.saturating_sub(*made);
                if *next == 0 {
                    self.ordinals.remove(topic);
                    continue;
                }
            }
            self.open.values_mut().filter(|call| call.topic == *topic).for_each(|call| call.ordinal -= *made);
        }
    }

    /// The number of calls that have not begun.
    #[cfg(test)]
    pub fn unbegun(&self) -> usize {
        self.open.len()
    }

    /// The number of names of collectives that are remembered.
    #[cfg(test)]
    pub fn names(&self) -> usize {
        self.ordinals.keys().filter(|topic| topic.is_named()).count()
    }

    /// Freezes the sequence of calls. Its first calls are those that were announced and not launched.
    pub fn freeze(&mut self, freeze: Freeze) -> Vec<Act> {
        // No rank has joined, and no call is outstanding: otherwise rank 0 would not freeze a sequence.
        let mut acts = self.launched(freeze.last.clone());
        self.frozen = Some(FrozenCycle::new(freeze));
        self.mode = RankPhase::Frozen;
        if self.must_leave_cycle() {
            acts.extend(self.deviate());
        }
        let open: Vec<u64> = self.open.keys().copied().collect();
        for index in open {
            if matches!(self.mode, RankPhase::Frozen) && self.open.contains_key(&index) {
                acts.extend(self.place(index));
            }
        }
        if self.waited && matches!(self.mode, RankPhase::Frozen) && !self.open.is_empty() {
            acts.extend(self.deviate());
        }
        acts
    }

    /// Stops the frozen cycle of `epoch`. Returns this rank's progress in it.
    pub fn stop(&mut self, epoch: u32) -> Option<StoppedCycle> {
        let stopped = self.begun().filter(|stopped| stopped.epoch == epoch)?;
        self.mode = RankPhase::Stopped;
        Some(stopped)
    }

    /// Begins the units up to the last one of the furthest rank, after all ranks have stopped. Later calls
    /// are announced, in the order in which they were made.
    pub fn run_to(&mut self, end: RunTo) -> Vec<Act> {
        let Some(frozen) = self.frozen.as_ref().filter(|frozen| frozen.epoch() == end.epoch) else { return Vec::new() };
        self.is_behind = frozen.begun() < end.until;
        for unit in frozen.begun()..end.until {
            self.rest.push(QueuedOperation::Unit(unit), frozen.topics(unit), frozen.is_alone(unit) || self.sums_block);
        }
        self.mode = RankPhase::Pending(end);
        let open: Vec<u64> = self.open.keys().copied().collect();
        let mut acts = Vec::new();
        for index in open {
            // The call may have begun already, with a call that was placed before it.
            if self.open.contains_key(&index) {
                acts.extend(self.place(index));
            }
        }
        if self.has_joined() {
            acts.extend(self.make_up());
        }
        acts.extend(self.begin());
        acts.extend(self.announce_join());
        acts
    }

    /// Makes jobs for the operations of the frozen cycle that other ranks have begun and that this rank has
    /// not called, because it has joined.
    fn make_up(&mut self) -> Vec<Act> {
        // Rank 0 has dropped a join that was sent before it stopped the ranks.
        self.data = DataState::Ended;
        let Some(frozen) = self.frozen.as_ref().filter(|_| matches!(self.mode, RankPhase::Pending(_))) else {
            return Vec::new();
        };
        let call = |(step, ordinal): (&Step, u64)| Call {
            topic: step.topic.clone(),
            ordinal,
            operation: step.operation.clone(),
            terms: step.terms.clone(),
            transfer: step.transfer,
            waited: false,
        };
        let uncalled: Vec<Call> = frozen.uncalled(self.rest.units()).into_iter().map(call).collect();
        let mut acts = Vec::new();
        for call in uncalled {
            self.ordinals.insert(call.topic.clone(), call.ordinal + 1);
            acts.push(Act::StandIn(call.clone()));
            let index = self.open(call);
            acts.extend(self.place(index));
        }
        acts
    }

    /// Returns the epoch of the current frozen cycle, and the unit of the first call that has not begun.
    pub fn frozen(&self) -> Option<(u32, Option<u64>)> {
        let frozen = self.frozen.as_ref().filter(|_| matches!(self.mode, RankPhase::Frozen))?;
        let first = self.open.values().filter_map(|call| frozen.unit(call)).min();
        Some((frozen.epoch(), first))
    }

    /// Returns the unit of the frozen cycle with this number, counted from the freeze.
    pub fn unit(&self, number: u32) -> Option<u64> {
        let frozen = self.frozen.as_ref()?;
        let unit = u64::from(number.wrapping_sub(frozen.number()) & !OF_A_SET);
        (number & OF_A_SET == 0 && unit < frozen.begun()).then_some(unit)
    }

    /// Returns the number of units that this rank has begun of the last frozen cycle.
    pub fn begun(&self) -> Option<StoppedCycle> {
        let frozen = self.frozen.as_ref()?;
        let missing = frozen.missing().map(|step| (step.topic.key(), step.operation.clone()));
        Some(StoppedCycle { epoch: frozen.epoch(), begun: frozen.begun(), missing })
    }

    /// Announces an open call, or begins the unit that it completes.
    fn place(&mut self, index: u64) -> Vec<Act> {
        let call = &self.open[&index];
        let Some(frozen) = &mut self.frozen else { return vec![Act::Announce(call.clone())] };
        match &self.mode {
            RankPhase::Agreeing => vec![Act::Announce(call.clone())],
            RankPhase::Stopped => Vec::new(),
            RankPhase::Frozen if frozen.call(call, index, CYCLES) => self.begin(),
            RankPhase::Frozen => self.deviate(),
            RankPhase::Pending(end) => {
                if frozen.unit(call).is_none_or(|unit| unit >= end.until) {
                    return vec![Act::Announce(call.clone())];
                }
                if frozen.call(call, index, u64::MAX) {
                    return self.begin();
                }
                let (step, by) = (frozen.expected(call), end.by);
                let theirs = step.map_or_else(String::new, |step| format!("{} of {}", step.operation, step.terms));
                let ours = format!("{} of {}", call.operation, call.terms);
                vec![Act::Fault(Error::Disagreement {
                    key: call.topic.key(),
                    operation: step.map_or(&call.operation, |step| &step.operation).to_string(),
                    views: vec![(self.rank, ours), (by, theirs)],
                    remedy:
                        "every rank must use the same operations, shapes, dtypes and optimizer for a key in every step"
                            .to_owned(),
                })]
            }
        }
    }

    /// Begins the operations that may begin.
    fn begin(&mut self) -> Vec<Act> {
        let mut acts = Vec::new();
        let Some(frozen) = &mut self.frozen else { return acts };
        loop {
            let complete = match self.mode {
                RankPhase::Frozen => frozen.begin(),
                RankPhase::Pending(_) => match self.rest.pop(|unit| frozen.complete(unit).is_some()) {
                    Some(QueuedOperation::Unit(unit)) => frozen.complete(unit),
                    Some(QueuedOperation::Launch(launch)) => {
                        acts.push(Act::Run(launch));
                        continue;
                    }
                    None => None,
                },
                RankPhase::Agreeing | RankPhase::Stopped => None,
            };
            let Some((unit, indices)) = complete else { break };
            indices.iter().for_each(|index| drop(self.open.remove(index)));
            acts.push(Act::Begin(unit));
        }
        if matches!(self.mode, RankPhase::Pending(_)) && self.rest.is_empty() {
            self.mode = RankPhase::Agreeing;
            acts.extend(std::mem::take(&mut self.is_behind).then_some(Act::CaughtUp));
        }
        acts
    }

    /// Returns true if this rank must not begin a unit of a cycle that blocks, because it sends or receives a
    /// message. A unit that it began could not go on before another rank has called the unit, and that rank
    /// may wait for the message first.
    fn must_leave_cycle(&self) -> bool {
        let frozen = self.frozen.as_ref().filter(|_| matches!(self.mode, RankPhase::Frozen));
        self.messages > 0 && frozen.is_some_and(|frozen| self.sums_block || frozen.runs_alone())
    }

    fn deviate(&mut self) -> Vec<Act> {
        self.mode = RankPhase::Stopped;
        self.frozen.as_ref().map(|frozen| Act::Invalidate(frozen.epoch())).into_iter().collect()
    }
}
