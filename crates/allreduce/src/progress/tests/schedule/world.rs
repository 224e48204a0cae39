//! Several ranks with their comm threads and rank 0's table. Their calls and messages are interleaved at
//! random.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ringpull_base::{DType, Error, Key, Reduction};

use crate::progress::agreement::Agreement;
use crate::progress::calls::{Act, Calls};
use crate::progress::messages::{
    Call, Envelope, Operation, Order, Overdue, Peering, Refusal, StoppedCycle, Terms, Topic, Transfer,
};

/// A step of a rank's program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::progress::tests) enum Do {
    /// Push the key with this number, of the store with this number, with this element type.
    Push(u32, i64, DType),
    /// Make the process set of these ranks. Each bit is a rank.
    Split(u8),
    /// Call the collective of this number on the set. [`ALL`] is the set of all ranks.
    Meet(u8, i64),
    /// Send to this rank.
    Send(usize),
    /// Receive from this rank, or from any rank.
    Recv(Option<usize>),
    /// Wait for everything called so far.
    Wait,
    /// Go on when everything called so far is done, like a caller that is notified of each end and does not
    /// report that it waits.
    Watch,
    /// Join, and wait until all have joined.
    Join,
    /// End the run in order, once everything called so far has begun.
    Leave,
}

pub(in crate::progress::tests) const ALL: u8 = u8::MAX;

pub(in crate::progress::tests) fn push(key: i64) -> Do {
    Do::Push(0, key, DType::F32)
}

#[cfg_attr(test, derive(Clone, serde::Serialize))]
pub(in crate::progress::tests) enum ToRank0 {
    Called(Box<Call>),
    Joined,
    CaughtUp,
    Forgot,
    Invalidate(u32, Option<Overdue>),
    Stopped(StoppedCycle),
    Leaving(Option<StoppedCycle>),
}

pub(in crate::progress::tests) type Unit = Vec<(Topic, u64)>;

#[cfg_attr(test, derive(Clone))]
pub(in crate::progress::tests) struct World {
    pub(in crate::progress::tests) agreement: Agreement,
    pub(in crate::progress::tests) ranks: Vec<Calls>,
    sums_block: bool,
    /// True if the programs watch the ends of their calls.
    watches: bool,
    pub(in crate::progress::tests) programs: Vec<VecDeque<Do>>,
    /// The calls of each rank whose end it has not seen.
    pub(in crate::progress::tests) open: Vec<BTreeSet<(Topic, u64)>>,
    /// True if the rank has reported that it waits.
    pub(in crate::progress::tests) waits: Vec<bool>,
    /// The number of calls for which each rank has made jobs as a joined rank.
    pub(in crate::progress::tests) stood_in: Vec<usize>,
    pub(in crate::progress::tests) last: Vec<Vec<usize>>,
    pub(in crate::progress::tests) up: Vec<VecDeque<ToRank0>>,
    pub(in crate::progress::tests) down: Vec<VecDeque<Order>>,
    pub(in crate::progress::tests) begun: Vec<Vec<Unit>>,
    /// The units that each rank's comm thread has received and has not handed on, in order, and which of them
    /// have ended.
    pub(in crate::progress::tests) comm: Vec<VecDeque<Unit>>,
    pub(in crate::progress::tests) ended: Vec<BTreeSet<Unit>>,
    /// The calls of each name that each rank has forgotten. The test distinguishes all calls.
    pub(in crate::progress::tests) forgotten: Vec<BTreeMap<Topic, u64>>,
    /// The unit of each number that some ranks have begun and others have not.
    pub(in crate::progress::tests) numbers: BTreeMap<u32, (Unit, usize)>,
    pub(in crate::progress::tests) notes: Vec<usize>,
    pub(in crate::progress::tests) fault: Option<Error>,
    random: u64,
}

impl World {
    pub(in crate::progress::tests) fn new(programs: Vec<Vec<Do>>, seed: u64) -> Self {
        let size = programs.len();
        World {
            agreement: Agreement::new(size, 10.0, 1000),
            ranks: (0..size).map(|rank| Calls::new(rank, false)).collect(),
            sums_block: false,
            watches: programs.iter().flatten().any(|what| *what == Do::Watch),
            programs: programs.into_iter().map(VecDeque::from).collect(),
            open: vec![BTreeSet::new(); size],
            waits: vec![false; size],
            stood_in: vec![0; size],
            last: vec![Vec::new(); size],
            up: (0..size).map(|_| VecDeque::new()).collect(),
            down: (0..size).map(|_| VecDeque::new()).collect(),
            begun: vec![Vec::new(); size],
            comm: vec![VecDeque::new(); size],
            ended: vec![BTreeSet::new(); size],
            forgotten: vec![BTreeMap::new(); size],
            numbers: BTreeMap::new(),
            notes: Vec::new(),
            fault: None,
            random: seed.wrapping_mul(2).wrapping_add(1),
        }
    }

    /// Makes sums block, as on ranks that share a host: no sum runs beside another.
    pub(in crate::progress::tests) fn sums_block(&mut self) {
        self.sums_block = true;
        self.agreement.sums_block();
        self.ranks = (0..self.ranks.len()).map(|rank| Calls::new(rank, true)).collect();
    }

    pub(in crate::progress::tests) fn bucket_bytes(&mut self, bytes: usize) {
        self.agreement = Agreement::new(self.ranks.len(), 10.0, bytes);
    }

    /// Makes moves in a random order until none is possible. Returns true if every program has ended.
    pub(in crate::progress::tests) fn run(&mut self) -> bool {
        loop {
            let ready = self.moves();
            if ready.is_empty() || self.fault.is_some() {
                return self.programs.iter().all(VecDeque::is_empty);
            }
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.make(ready[(self.random >> 33) as usize % ready.len()]);
        }
    }

    /// The moves that can happen next.
    pub(in crate::progress::tests) fn moves(&self) -> Vec<usize> {
        let is_ready = |what: &usize| {
            let rank = what / 3;
            match what % 3 {
                0 => !self.up[rank].is_empty(),
                1 => !self.down[rank].is_empty(),
                _ => self.can_move(rank),
            }
        };
        (0..3 * self.ranks.len()).filter(is_ready).collect()
    }

    /// Ends the rank's patience with a unit of a frozen cycle. Returns true if it waits for one.
    pub(in crate::progress::tests) fn hurry(&mut self, rank: usize) -> bool {
        let Some((epoch, _)) = self.ranks[rank].frozen().filter(|_| !self.open[rank].is_empty()) else { return false };
        let overdue = Overdue { has_begun: !self.comm[rank].is_empty(), waited_s: 5.0 };
        self.up[rank].push_back(ToRank0::Invalidate(epoch, Some(overdue)));
        true
    }

    /// Lets every caller return whose wait is over. Nothing else depends on when it returns.
    pub(in crate::progress::tests) fn settle(&mut self) {
        for rank in 0..self.ranks.len() {
            let is_over = matches!(self.programs[rank].front(), Some(Do::Wait)) && self.waits[rank];
            if is_over && self.open[rank].is_empty() {
                self.step(rank);
            }
        }
    }

    /// Makes one of the moves.
    pub(in crate::progress::tests) fn make(&mut self, what: usize) {
        match what % 3 {
            0 => self.deliver(what / 3),
            1 => self.apply_order(what / 3),
            _ => self.step(what / 3),
        }
    }

    fn can_move(&self, rank: usize) -> bool {
        match self.programs[rank].front() {
            None => false,
            Some(Do::Wait) => !self.waits[rank] || self.open[rank].is_empty(),
            Some(Do::Watch) => self.open[rank].is_empty(),
            Some(Do::Join) => !self.waits[rank],
            Some(Do::Leave) => !self.waits[rank] || self.has_begun_all(rank),
            Some(Do::Push(..) | Do::Split(_) | Do::Meet(..) | Do::Send(_) | Do::Recv(_)) => true,
        }
    }

    fn has_begun_all(&self, rank: usize) -> bool {
        self.open[rank].iter().all(|called| self.comm[rank].iter().any(|unit| unit.contains(called)))
    }

    fn step(&mut self, rank: usize) {
        let acts = match self.programs[rank].front().copied() {
            Some(Do::Push(store, key, dtype)) => {
                self.programs[rank].pop_front();
                let topic = Topic::Key { store, key: key.into() };
                if self.watches && self.open[rank].is_empty() {
                    self.ranks[rank].all_returned();
                }
                self.open[rank].insert((topic.clone(), self.ranks[rank].ordinal(&topic)));
                let sum = Transfer::Sum {
                    dtype: DType::F32,
                    reduction: Reduction::Sum,
                    len_bytes: 100,
                    priority: 0,
                    is_divided: is_divided(&topic),
                };
                let transfer = if is_alone(&topic) { Transfer::Alone } else { sum };
                let terms = Terms { value: Some((dtype, Arc::default())), ..Terms::default() };
                self.ranks[rank].call(topic, Operation::Push, terms, transfer)
            }
            Some(what @ (Do::Split(set) | Do::Meet(set, _))) => {
                self.programs[rank].pop_front();
                let (name, operation) = match what {
                    Do::Meet(_, name) => (name.into(), Operation::Collective("allreduce".to_owned())),
                    _ => (Key::from("process set"), Operation::split()),
                };
                let members = (0..self.ranks.len()).filter(|rank| set >> rank & 1 == 1);
                let set = (set != ALL).then(|| members.collect());
                let topic = Topic::Collective { comm: 0, set, name: Some(name) };
                let called = self.told_apart(rank, (topic.clone(), self.ranks[rank].ordinal(&topic)));
                self.open[rank].insert(called);
                self.ranks[rank].call(topic, operation, Terms::default(), Transfer::Messages { priority: 0 })
            }
            Some(what @ (Do::Send(_) | Do::Recv(_))) => {
                self.programs[rank].pop_front();
                let peer = match what {
                    Do::Recv(from) => Peering::From(from),
                    Do::Send(to) => Peering::To(to),
                    _ => unreachable!("it is a message"),
                };
                let topic = Topic::Message(Envelope { comm: 0, among: None, tag: 0, rank, peer });
                self.open[rank].insert((topic.clone(), self.ranks[rank].ordinal(&topic)));
                let transfer = Transfer::Messages { priority: 0 };
                self.ranks[rank].call(topic, Operation::message(), Terms::default(), transfer)
            }
            Some(Do::Wait) if self.waits[rank] => {
                self.programs[rank].pop_front();
                self.waits[rank] = false;
                Vec::new()
            }
            Some(Do::Watch) => {
                self.programs[rank].pop_front();
                Vec::new()
            }
            Some(Do::Join) => {
                self.waits[rank] = true;
                self.ranks[rank].join()
            }
            Some(Do::Leave) if self.waits[rank] => {
                self.programs[rank].pop_front();
                self.waits[rank] = false;
                self.up[rank].push_back(ToRank0::Leaving(self.ranks[rank].begun()));
                Vec::new()
            }
            Some(Do::Wait | Do::Leave) => {
                self.waits[rank] = true;
                self.ranks[rank].wait()
            }
            None => Vec::new(),
        };
        self.act(rank, acts);
    }

    fn act(&mut self, rank: usize, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Announce(call) => self.up[rank].push_back(ToRank0::Called(Box::new(call))),
                Act::Invalidate(epoch) => self.up[rank].push_back(ToRank0::Invalidate(epoch, None)),
                Act::Begin(unit) => self.begin(rank, unit.number, unit.members),
                Act::Run(launch) => self.begin(rank, launch.number, vec![(launch.topic, launch.ordinal)]),
                Act::Fault(fault) => self.fault = Some(fault),
                Act::Join => self.up[rank].push_back(ToRank0::Joined),
                Act::CaughtUp => self.up[rank].push_back(ToRank0::CaughtUp),
                Act::StandIn(call) => {
                    self.stood_in[rank] += 1;
                    self.open[rank].insert((call.topic, call.ordinal));
                }
            }
        }
    }

    fn told_apart(&self, rank: usize, (topic, ordinal): (Topic, u64)) -> (Topic, u64) {
        let forgotten = self.forgotten[rank].get(&topic).copied().unwrap_or(0);
        (topic, ordinal + forgotten)
    }

    /// Begins a unit. Checks that every call begins once, and that every rank has the same unit under one
    /// number.
    fn begin(&mut self, rank: usize, number: u32, unit: Unit) {
        let unit: Unit = unit.into_iter().map(|called| self.told_apart(rank, called)).collect();
        let is_under_way = |called: &(Topic, u64)| self.comm[rank].iter().any(|unit| unit.contains(called));
        let is_new = |called: &(Topic, u64)| self.open[rank].contains(called) && !is_under_way(called);
        assert!(unit.iter().all(is_new), "rank {rank} begins what it has not called, or again: {unit:?}");
        let is_next = |(topic, ordinal): &(Topic, u64)| {
            let mut open = self.open[rank].iter().filter(|called| !is_under_way(called));
            !open.any(|(other, earlier)| other == topic && earlier < ordinal)
        };
        assert!(unit.iter().all(is_next), "rank {rank} begins an operation of a key before an earlier one: {unit:?}");
        let (same, times) = self.numbers.entry(number).or_insert_with(|| (unit.clone(), 0));
        assert_eq!(*same, unit, "number {number} on rank {rank} and on another");
        *times += 1;
        if *times == ranks_of(&unit, self.ranks.len()).count() {
            self.numbers.remove(&number);
        }
        self.begun[rank].push(unit.clone());
        self.comm[rank].push_back(unit);
        while self.end_one() {}
    }

    /// Returns the units of a rank's comm thread that are under way, and the units that wait for others of
    /// their keys.
    fn under_way(&self, rank: usize) -> (BTreeSet<Unit>, BTreeSet<Unit>) {
        let (mut under_way, mut waiting, mut earlier) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let mut is_kept_back = false;
        for unit in &self.comm[rank] {
            if set_of(unit).is_some() {
                under_way.insert(unit.clone());
                continue;
            }
            if runs_alone(unit) || self.sums_block {
                under_way.extend(earlier.is_empty().then(|| unit.clone()));
                // If no unit waits, this one is taken, and the comm thread takes nothing else.
                if waiting.is_empty() {
                    break;
                }
                is_kept_back = true;
            } else if earlier.iter().any(|other: &&Unit| {
                share_topics(unit, other)
                    && (waiting.contains(*other) || unit.iter().any(|(topic, _)| is_divided(topic)))
            }) {
                waiting.insert(unit.clone());
            } else if !is_kept_back {
                under_way.insert(unit.clone());
            }
            earlier.push(unit);
        }
        under_way.retain(|unit| !self.ended[rank].contains(unit));
        (under_way, waiting)
    }

    /// Ends a unit that is under way on all of its ranks.
    fn end_one(&mut self) -> bool {
        let size = self.ranks.len();
        let under_way: Vec<BTreeSet<Unit>> = (0..size).map(|rank| self.under_way(rank).0).collect();
        let is_everywhere = |unit: &&Unit| ranks_of(unit, size).all(|rank| under_way[rank].contains(*unit));
        let Some(unit) = under_way.iter().flatten().find(is_everywhere) else { return false };
        for rank in ranks_of(unit, size) {
            self.ended[rank].insert(unit.clone());
            self.hand_on(rank);
        }
        true
    }

    /// Hands on the units that have ended. Units of all ranks are handed on in their order, unless another
    /// unit waits for one of them. Units of a set are handed on at once.
    fn hand_on(&mut self, rank: usize) {
        loop {
            let (_, waiting) = self.under_way(rank);
            let mut earlier: Vec<&Unit> = Vec::new();
            let found = self.comm[rank].iter().position(|unit| {
                let is_awaited = waiting.iter().any(|other| other != unit && share_topics(unit, other));
                let is_first =
                    earlier.is_empty() || is_awaited && !earlier.iter().any(|other| share_topics(unit, other));
                if set_of(unit).is_none() {
                    earlier.push(unit);
                }
                self.ended[rank].contains(unit) && (set_of(unit).is_some() || is_first)
            });
            let Some(unit) = found.and_then(|at| self.comm[rank].remove(at)) else { return };
            self.ended[rank].remove(&unit);
            self.open[rank].retain(|called| !unit.contains(called));
        }
    }

    fn deliver(&mut self, rank: usize) {
        let Some(note) = self.up[rank].pop_front() else { return };
        self.notes.push(self.begun[0].len());
        let orders = match note {
            ToRank0::Called(call) => self.agreement.call(rank, *call, 0.0),
            ToRank0::Joined => self.agreement.join(rank, 0.0),
            ToRank0::Invalidate(epoch, overdue) => Ok(self.agreement.invalidate(epoch, overdue)),
            ToRank0::Stopped(stopped) => self.agreement.stopped(rank, stopped, 0.0),
            ToRank0::Leaving(begun) => self.agreement.leave(rank, begun, 0.0),
            ToRank0::CaughtUp => {
                self.agreement.caught_up(rank);
                Ok(Vec::new())
            }
            ToRank0::Forgot => {
                self.agreement.forgot(rank);
                Ok(Vec::new())
            }
        };
        match orders {
            Ok(orders) => {
                for (rank, down) in self.down.iter_mut().enumerate() {
                    down.extend(orders.iter().filter(|order| order.concerns(rank)).cloned());
                }
            }
            Err(fault) => self.fault = Some(fault),
        }
    }

    fn apply_order(&mut self, rank: usize) {
        let Some(order) = self.down[rank].pop_front() else { return };
        let acts = match order {
            Order::Launch(launch) => self.ranks[rank].launched(launch),
            Order::Refuse(Refusal { topic, ordinal, .. }) => {
                self.ranks[rank].refused(&topic, ordinal);
                let called = self.told_apart(rank, (topic, ordinal));
                self.open[rank].remove(&called);
                Vec::new()
            }
            Order::Freeze(freeze) => self.ranks[rank].freeze(freeze),
            Order::Stop(epoch) => {
                let stopped = self.ranks[rank].stop(epoch);
                self.up[rank].extend(stopped.map(ToRank0::Stopped));
                Vec::new()
            }
            Order::RunTo(end) => self.ranks[rank].run_to(end),
            Order::Joined(last) => {
                self.ranks[rank].joined();
                assert_eq!(self.programs[rank].pop_front(), Some(Do::Join));
                self.waits[rank] = false;
                self.last[rank].push(last);
                Vec::new()
            }
            Order::ReportStop | Order::StopAt(_) => unreachable!("no call of an operation leads to it"),
            Order::Forget(topics) => {
                self.ranks[rank].forget(&topics);
                for (topic, made) in topics {
                    *self.forgotten[rank].entry(topic).or_default() += made;
                }
                self.up[rank].push_back(ToRank0::Forgot);
                Vec::new()
            }
        };
        self.act(rank, acts);
    }
}

/// Keys from 100 on are of pushes that run alone.
pub(in crate::progress::tests) fn is_alone(topic: &Topic) -> bool {
    matches!(topic, Topic::Key { key, .. } if matches!(key.key(), Key::Int(100..)))
}

pub(in crate::progress::tests) fn runs_alone(unit: &Unit) -> bool {
    unit.iter().any(|(topic, _)| is_alone(topic))
}

/// Keys from 50 on are of pushes that are divided.
pub(in crate::progress::tests) fn is_divided(topic: &Topic) -> bool {
    matches!(topic, Topic::Key { key, .. } if matches!(key.key(), Key::Int(50..100)))
}

fn share_topics(one: &Unit, other: &Unit) -> bool {
    one.iter().any(|(topic, _)| other.iter().any(|(other, _)| other == topic))
}

/// Returns the process set of a unit, if it has one.
pub(in crate::progress::tests) fn set_of(unit: &Unit) -> Option<&[usize]> {
    unit.first().and_then(|(topic, _)| topic.set())
}

/// Returns the ranks that take part in a unit.
fn ranks_of(unit: &Unit, size: usize) -> impl Iterator<Item = usize> {
    let set = set_of(unit).map(<[usize]>::to_vec);
    (0..size).filter(move |rank| set.as_ref().is_none_or(|set| set.contains(rank)))
}

/// Returns steps of a program. Each step pushes the keys and waits.
pub(in crate::progress::tests) fn steps(count: usize, keys: &[i64]) -> Vec<Do> {
    (0..count).flat_map(|_| keys.iter().map(|key| push(*key)).chain([Do::Wait])).collect()
}

/// Runs the programs under many interleavings. Returns the units that every rank has begun, which are the
/// same in all of them.
pub(in crate::progress::tests) fn composition(programs: &[Vec<Do>]) -> BTreeSet<Unit> {
    let mut seen: Option<BTreeSet<Unit>> = None;
    for seed in 0..60 {
        let mut world = World::new(programs.to_vec(), seed);
        assert!(world.run(), "seed {seed}: not all programs ended: {:?}, {:?}", world.programs, world.fault);
        for begun in &world.begun {
            let units: BTreeSet<Unit> = begun.iter().cloned().collect();
            assert_eq!(seen.get_or_insert_with(|| units.clone()), &units, "seed {seed}");
        }
    }
    seen.expect("there was a run")
}

pub(in crate::progress::tests) fn fused(units: &BTreeSet<Unit>) -> usize {
    units.iter().filter(|unit| unit.len() > 1).count()
}
