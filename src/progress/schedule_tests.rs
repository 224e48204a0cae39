//! Several ranks and rank 0's table together, their calls and messages interleaved at random: what is begun with what does not
//! depend on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::agreement::{Agreement, Call, Order, Topic};
use super::calls::{Act, Calls, Stopped};
use super::job::Wire;
use crate::dtype::DType;
use crate::error::Error;

/// What a rank's program does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Do {
    /// Push this key of this store, with these terms.
    Push(u32, i64, &'static str),
    /// Wait for everything called so far.
    Wait,
    /// Join, and wait until all have.
    Join,
}

fn push(key: i64) -> Do {
    Do::Push(0, key, "f32")
}

enum Note {
    Called(Call),
    Joined,
    Thaw(u32),
    Stopped(Stopped),
}

type Unit = Vec<(Topic, u64)>;

struct World {
    agreement: Agreement,
    ranks: Vec<Calls>,
    programs: Vec<VecDeque<Do>>,
    /// What each rank has called and not seen done.
    open: Vec<BTreeSet<(Topic, u64)>>,
    /// Whether the rank has said that it waits.
    waits: Vec<bool>,
    /// How many calls each rank has stood in for, and the rank that joined last, as each was told.
    stood_in: Vec<usize>,
    last: Vec<Vec<usize>>,
    up: Vec<VecDeque<Note>>,
    down: Vec<VecDeque<Order>>,
    begun: Vec<Vec<Unit>>,
    times: BTreeMap<Unit, usize>,
    notes: Vec<usize>,
    fault: Option<Error>,
    random: u64,
}

impl World {
    fn new(programs: Vec<Vec<Do>>, seed: u64) -> Self {
        let size = programs.len();
        World {
            agreement: Agreement::new(size, 10.0, 1000),
            ranks: (0..size).map(Calls::new).collect(),
            programs: programs.into_iter().map(VecDeque::from).collect(),
            open: vec![BTreeSet::new(); size],
            waits: vec![false; size],
            stood_in: vec![0; size],
            last: vec![Vec::new(); size],
            up: (0..size).map(|_| VecDeque::new()).collect(),
            down: (0..size).map(|_| VecDeque::new()).collect(),
            begun: vec![Vec::new(); size],
            times: BTreeMap::new(),
            notes: Vec::new(),
            fault: None,
            random: seed.wrapping_mul(2).wrapping_add(1),
        }
    }

    fn bucket_bytes(&mut self, bytes: usize) {
        self.agreement = Agreement::new(self.ranks.len(), 10.0, bytes);
    }

    /// Lets things happen in a random order until nothing can; whether every program has come to its end.
    fn run(&mut self) -> bool {
        loop {
            let size = self.ranks.len();
            let ready = (0..3 * size).filter(|what| {
                let rank = what / 3;
                match what % 3 {
                    0 => !self.up[rank].is_empty(),
                    1 => !self.down[rank].is_empty(),
                    _ => self.can_move(rank),
                }
            });
            let ready: Vec<usize> = ready.collect();
            if ready.is_empty() || self.fault.is_some() {
                return self.programs.iter().all(VecDeque::is_empty);
            }
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let what = ready[(self.random >> 33) as usize % ready.len()];
            match what % 3 {
                0 => self.deliver(what / 3),
                1 => self.obey(what / 3),
                _ => self.step(what / 3),
            }
        }
    }

    fn can_move(&self, rank: usize) -> bool {
        match self.programs[rank].front() {
            None => false,
            Some(Do::Wait) => !self.waits[rank] || self.open[rank].is_empty(),
            Some(Do::Join) => !self.waits[rank],
            Some(Do::Push(..)) => true,
        }
    }

    fn step(&mut self, rank: usize) {
        let acts = match self.programs[rank].front().copied() {
            Some(Do::Push(store, key, terms)) => {
                self.programs[rank].pop_front();
                let topic = Topic::Key { store, key: key.into() };
                self.open[rank].insert((topic.clone(), self.ranks[rank].ordinal(&topic)));
                let wire = Wire::Sum { dtype: DType::F32, len_bytes: 100, priority: 0 };
                self.ranks[rank].call(topic, "push", terms.into(), wire)
            }
            Some(Do::Wait) if self.waits[rank] => {
                self.programs[rank].pop_front();
                self.waits[rank] = false;
                Vec::new()
            }
            Some(Do::Join) => {
                self.waits[rank] = true;
                self.ranks[rank].join()
            }
            Some(Do::Wait) => {
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
                Act::Announce(call) => self.up[rank].push_back(Note::Called(call)),
                Act::Thaw(epoch) => self.up[rank].push_back(Note::Thaw(epoch)),
                Act::Begin(unit) => self.begin(rank, unit.members),
                Act::Fault(fault) => self.fault = Some(fault),
                Act::Join => self.up[rank].push_back(Note::Joined),
                Act::StandIn(call) => {
                    self.stood_in[rank] += 1;
                    self.open[rank].insert((call.topic, call.ordinal));
                }
            }
        }
    }

    fn begin(&mut self, rank: usize, unit: Unit) {
        let times = self.times.entry(unit.clone()).or_default();
        *times += 1;
        if *times == self.ranks.len() {
            self.open.iter_mut().for_each(|open| open.retain(|called| !unit.contains(called)));
        }
        self.begun[rank].push(unit);
    }

    fn deliver(&mut self, rank: usize) {
        let Some(note) = self.up[rank].pop_front() else { return };
        self.notes.push(self.begun[0].len());
        let orders = match note {
            Note::Called(call) => self.agreement.call(rank, call, 0.0),
            Note::Joined => self.agreement.join(rank, 0.0),
            Note::Thaw(epoch) => Ok(self.agreement.thaw(epoch, None)),
            Note::Stopped(stopped) => self.agreement.stopped(rank, stopped),
        };
        match orders {
            Ok(orders) => {
                self.down.iter_mut().for_each(|down| down.extend(orders.iter().cloned()));
            }
            Err(fault) => self.fault = Some(fault),
        }
    }

    fn obey(&mut self, rank: usize) {
        let Some(order) = self.down[rank].pop_front() else { return };
        let acts = match order {
            Order::Launch(launch) => {
                let acts = self.ranks[rank].launched(&launch).into_iter().collect();
                self.act(rank, acts);
                self.begin(rank, vec![(launch.topic, launch.ordinal)]);
                Vec::new()
            }
            Order::Freeze(freeze) => {
                self.begin(rank, vec![(freeze.last.topic.clone(), freeze.last.ordinal)]);
                self.ranks[rank].freeze(freeze)
            }
            Order::Stop(epoch) => {
                let stopped = self.ranks[rank].stop(epoch);
                self.up[rank].extend(stopped.map(Note::Stopped));
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
        };
        self.act(rank, acts);
    }
}

/// Steps of a program: the keys, and a wait.
fn steps(count: usize, keys: &[i64]) -> Vec<Do> {
    (0..count).flat_map(|_| keys.iter().map(|key| push(*key)).chain([Do::Wait])).collect()
}

/// Runs the programs under many interleavings; what every rank has begun, which is the same in all of them.
fn composition(programs: &[Vec<Do>]) -> BTreeSet<Unit> {
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

fn fused(units: &BTreeSet<Unit>) -> usize {
    units.iter().filter(|unit| unit.len() > 1).count()
}

#[test]
fn after_two_steps_no_message_is_sent() {
    for seed in 0..60 {
        let mut world = World::new(vec![steps(50, &[1, 2, 3]); 3], seed);
        assert!(world.run());
        assert!(world.notes.iter().all(|begun| *begun <= 6), "seed {seed}: {:?}", world.notes);
        assert_eq!(world.begun[0].len(), 6 + 48, "each step is one bucket");
    }
}

#[test]
fn what_is_fused_does_not_depend_on_when_anything_comes() {
    let units = composition(&[steps(20, &[1, 2, 3]), steps(20, &[3, 1, 2]), steps(20, &[2, 3, 1])]);
    assert_eq!(fused(&units), 18);
}

#[test]
fn programs_that_do_not_wait_are_frozen_too() {
    let program = |keys: [i64; 3]| keys.map(push).repeat(20);
    assert_eq!(fused(&composition(&[program([1, 2, 3]), program([1, 2, 3])])), 18);
}

#[test]
fn a_key_that_all_leave_out_or_add_is_agreed_on_again() {
    let mut program = steps(10, &[1, 2, 3]);
    program.extend(steps(20, &[1, 3]));
    program.extend(steps(30, &[1, 4, 3, 2]));
    let units = composition(&[program.clone(), program.clone(), program]);
    assert!(fused(&units) >= 8 + 14 + 12, "{}", fused(&units));
}

#[test]
fn a_step_that_differs_now_and_then_goes_through() {
    let mut program = Vec::new();
    for _ in 0..6 {
        program.extend(steps(12, &[1, 2, 3]));
        program.extend([push(1), push(9), push(2), Do::Wait, push(3), Do::Wait]);
    }
    let units = composition(&[program.clone(), program]);
    assert!(fused(&units) > 20, "{}", fused(&units));
}

#[test]
fn nothing_is_fused_across_a_wait_of_any_rank() {
    let waits = |keys: &[i64]| keys.iter().flat_map(|key| [push(*key), Do::Wait]).collect::<Vec<_>>();
    let units = composition(&[steps(10, &[1, 2, 3]), waits(&[1, 2, 3]).repeat(10)]);
    assert_eq!(fused(&units), 0);
    let other = [push(3), push(1), Do::Wait, push(2), Do::Wait].repeat(10);
    let units = composition(&[steps(10, &[1, 2, 3]), other]);
    assert_eq!(fused(&units), 8);
}

#[test]
fn two_stores_share_a_cycle() {
    let step = [Do::Push(0, 1, "f32"), Do::Push(1, 1, "f32"), Do::Push(0, 2, "f32"), Do::Wait];
    assert_eq!(fused(&composition(&[step.repeat(10), step.repeat(10)])), 8);
}

#[test]
fn a_rank_that_waits_in_the_middle_of_one_step_is_not_kept_waiting() {
    let mut odd = steps(9, &[1, 2, 3]);
    odd.extend([push(3), Do::Wait, push(2), Do::Wait, push(1), Do::Wait]);
    odd.extend(steps(10, &[1, 2, 3]));
    for seed in 0..60 {
        let mut world = World::new(vec![steps(20, &[1, 2, 3]), odd.clone()], seed);
        world.bucket_bytes(0);
        assert!(world.run(), "seed {seed}: {:?}", world.programs);
    }
}

#[test]
fn a_rank_whose_calls_cross_the_end_of_the_cycle_is_agreed_with_one_by_one() {
    // It pushes the next step's key 1 before this step's key 2.
    let mut odd = vec![push(1)];
    odd.extend([push(1), Do::Wait, push(2)].repeat(19));
    odd.extend([push(2), Do::Wait]);
    let plain = [push(1), push(2)].repeat(20);
    assert_eq!(fused(&composition(&[plain, odd])), 0);
}

#[test]
fn a_key_that_one_rank_leaves_out_is_known_to_that_rank() {
    let mut odd = steps(9, &[1, 2, 3]);
    odd.extend(steps(1, &[1, 3]));
    for seed in 0..60 {
        let mut world = World::new(vec![steps(10, &[1, 2, 3]), odd.clone(), steps(10, &[1, 2, 3])], seed);
        assert!(!world.run(), "seed {seed}: the others wait for key 2, {:?} {:?}", world.begun, world.fault);
        let owed = world.ranks[1].owed().map(|(_, key, operation)| (key.to_string(), operation));
        let alone = world.agreement.check_time(11.0).err().map(|error| error.to_string());
        let named = owed == Some(("2".to_owned(), "push".to_owned()));
        let stalled = alone.is_some_and(|text| text.contains("key 2") && text.contains("[1]"));
        assert!(named != stalled, "seed {seed}: it is owed or stays alone");
    }
}

#[test]
fn a_key_that_one_rank_adds_stays_alone() {
    let mut odd = steps(9, &[1, 2, 3]);
    odd.extend(steps(1, &[1, 7, 2, 3]));
    for seed in 0..60 {
        let mut world = World::new(vec![steps(10, &[1, 2, 3]), odd.clone(), steps(10, &[1, 2, 3])], seed);
        assert!(!world.run(), "it waits for key 7");
        let text = world.agreement.check_time(16.0).unwrap_err().to_string();
        assert!(text.contains("key 7") && text.contains("[0, 2]"), "{text}");
    }
}

#[test]
fn terms_that_differ_in_step_100_are_an_error_that_names_both() {
    let mut odd = steps(99, &[1, 2, 3]);
    odd.extend([push(1), Do::Push(0, 2, "f16"), push(3), Do::Wait]);
    for seed in 0..60 {
        let mut world = World::new(vec![steps(100, &[1, 2, 3]), odd.clone(), steps(100, &[1, 2, 3])], seed);
        world.run();
        let text = world.fault.expect("a fault").to_string();
        assert!(text.contains("key 2") && text.contains("push of f16") && text.contains("push of f32"), "{text}");
    }
}

#[test]
fn a_rank_that_leaves_stops_the_cycle_and_is_named_to_those_who_wait_for_it() {
    let mut world = World::new(vec![steps(10, &[1, 2]), steps(9, &[1, 2])], 1);
    assert!(!world.run());
    let begun = world.ranks[1].begun();
    let orders = world.agreement.leave(1, begun).unwrap();
    world.down.iter_mut().for_each(|down| down.extend(orders.iter().cloned()));
    world.run();
    let text = world.fault.expect("a fault").to_string();
    assert!(text.contains("rank 1 is lost") && text.contains("push of key"), "{text}");
}

/// Ranks with different numbers of steps before each of three joins, and some that do not wait for their last step.
#[test]
fn ranks_with_different_numbers_of_steps_join_and_go_on_together() {
    for seed in 0..200 {
        let program = |counts: [usize; 3], waits: bool| {
            let mut program = Vec::new();
            for count in counts {
                program.extend(steps(count, &[1, 2, 3]));
                if !waits && count > 0 {
                    program.pop();
                }
                program.push(Do::Join);
            }
            program.extend(steps(10, &[3, 2, 1]));
            program
        };
        let programs = vec![program([5, 0, 9], true), program([7, 1, 9], seed % 2 == 0), program([10, 4, 9], true)];
        let mut world = World::new(programs, seed);
        assert!(world.run(), "seed {seed}: {:?}, {:?}", world.programs, world.fault);
        assert!(world.open.iter().all(BTreeSet::is_empty), "seed {seed}: {:?}", world.open);
        for rank in 0..3 {
            let members = world.begun[rank].iter().flatten().count();
            assert_eq!(members, 3 * (10 + 4 + 9 + 10), "seed {seed}: rank {rank} takes part in every sum");
            assert_eq!(world.last[rank], world.last[0], "seed {seed}: all are told the same last rank");
        }
        assert_eq!(world.stood_in, [3 * (5 + 4), 3 * (3 + 3), 0], "seed {seed}");
        assert_eq!(world.last[0].len(), 3);
    }
}

#[test]
fn ranks_that_join_with_calls_that_only_they_have_made_have_them_done() {
    for seed in 0..60 {
        let odd = |key: i64| [steps(4, &[1, 2]), vec![push(key), Do::Join], steps(3, &[1, 2])].concat();
        let mut world = World::new(vec![odd(7), odd(8)], seed);
        assert!(world.run(), "seed {seed}: {:?}, {:?}", world.programs, world.fault);
        assert_eq!(world.stood_in, [1, 1], "seed {seed}");
    }
}

#[test]
fn a_rank_that_waits_for_others_to_join_for_too_long_names_them() {
    let mut world = World::new(vec![steps(9, &[1]), [steps(3, &[1]), vec![Do::Join]].concat()], 1);
    world.run();
    let text = world.agreement.check_time(11.0).unwrap_err().to_string();
    assert!(text.contains("join") && text.contains("[0]"), "{text}");
    let text = world.agreement.leave(0, None).unwrap_err().to_string();
    assert!(text.contains("rank 0 is lost") && text.contains("join"), "{text}");
}
