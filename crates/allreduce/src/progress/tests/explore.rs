//! Explores every interleaving of small programs: all states of the ranks, of rank 0's table and of the
//! messages between them.
//!
//! The code that runs is the ranks' own (`agreement`, `calls`, `freezing`, `frozen`). The links keep the
//! order of messages and delay each message for any time. A link that breaks and is connected again is such a
//! delay; `session/src/tests/link.rs` shows that no frame is lost or duplicated by it. Ranks may end, or
//! join, or run out of patience.
//!
//! In every state, all ranks have the same operation under one number, and no rank begins a call twice or
//! begins a call that it has not made (`World::begin`). In every state without a next state, programs that
//! fit together have ended with everything done. Other programs end with a fault, or rank 0 knows which calls
//! are missing. If all ranks wait, rank 0 also knows that none can go on. Programs fit together if they end
//! on the simplest store, which does an operation when all ranks have called it ([`fit`]).

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use ringpull_base::Error;

use super::schedule::world::{ALL, Do, World, push, set_of, steps};
use crate::progress::messages::Stuck;

/// The expected outcome of programs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Expect {
    /// The programs end.
    Ends,
    /// The programs end, and the fused units do not depend on when messages arrive.
    One,
    /// Like `One`, and the frozen cycle is not stopped before the end, so no message is sent in any step
    /// after the freeze.
    Steady,
    /// The programs do not fit together and cannot end. Rank 0 finds the reason, and finds it at once if all
    /// ranks wait.
    Fault,
    /// The programs end, or rank 0 finds the reason that they do not. More is not promised if sums are fused
    /// or done one by one: other ranks may have begun several operations as one unit, or in one order, and a
    /// rank that waits for the first of them then waits for its own next call.
    Known,
}

/// The counts of an exploration.
#[derive(Debug, Default)]
struct ExplorationCounts {
    programs: usize,
    states: usize,
    moves: usize,
    ends: usize,
    faults: usize,
}

/// A state.
#[derive(Clone)]
struct Point {
    world: World,
    /// A hash of the units that each rank has begun, in any order.
    begun: Vec<u64>,
    /// The number of times that a rank may still run out of patience while another move is possible.
    hurries: usize,
}

impl Point {
    fn new(world: World, hurries: usize) -> Self {
        Point { begun: vec![0; world.ranks.len()], world, hurries }
    }

    /// The states that can come next.
    fn next(&self) -> Vec<Point> {
        let made = |what: &usize| {
            let mut next = self.clone();
            next.world.make(*what);
            next
        };
        let mut all: Vec<Point> = self.world.moves().iter().map(made).collect();
        // If no other move is possible, patience ends in any case.
        let has_come_to_rest = all.is_empty();
        if has_come_to_rest || self.hurries > 0 {
            all.extend((0..self.begun.len()).filter_map(|rank| {
                let mut next = self.clone();
                next.hurries -= usize::from(!has_come_to_rest);
                next.world.hurry(rank).then_some(next)
            }));
        }
        all.iter_mut().for_each(Point::settle);
        all
    }

    fn settle(&mut self) {
        self.world.settle();
        self.world.notes.clear();
        for (sum, begun) in self.begun.iter_mut().zip(&mut self.world.begun) {
            // Not all ranks begin an operation of a process set.
            for unit in begun.drain(..).filter(|unit| set_of(unit).is_none()) {
                *sum = sum.wrapping_add(xxh3_64(&postcard::to_stdvec(&unit).unwrap()));
            }
        }
    }

    /// Returns a hash. It is equal for two states only if the same states can follow from both.
    fn hash(&self) -> u128 {
        let World { agreement, ranks, programs, open, waits, up, down, comm, ended, forgotten, .. } = &self.world;
        let left: Vec<usize> = programs.iter().map(VecDeque::len).collect();
        let state =
            ((agreement, ranks, left), (open, waits, up, down, comm, ended, forgotten), &self.begun, self.hurries);
        xxh3_128(&postcard::to_stdvec(&state).unwrap())
    }

    /// Returns true if the programs have ended. Checks that they should, or may.
    fn check_end(&self, expect: Expect) -> bool {
        let world = &self.world;
        let has_ended = world.programs.iter().all(VecDeque::is_empty);
        if expect == Expect::Fault || expect == Expect::Known && !has_ended {
            assert!(!has_ended, "programs that do not fit together have ended");
            if world.fault.is_none() {
                assert_missing(world, expect);
            }
            return false;
        }
        assert!(has_ended && world.fault.is_none(), "{:?}, {:?}, {:?}", world.programs, world.comm, world.fault);
        assert!(world.open.iter().all(BTreeSet::is_empty) && world.numbers.is_empty(), "something is not done");
        assert!(self.begun.iter().all(|begun| *begun == self.begun[0]), "not every rank has begun the same");
        if expect == Expect::Steady {
            assert!(world.ranks.iter().all(|rank| rank.frozen().is_some()), "it was never frozen, or stopped");
        }
        true
    }
}

/// Checks that rank 0 knows which missing calls the ranks wait for. It must know at once if all ranks wait.
fn assert_missing(world: &World, expect: Expect) {
    let mut agreement = world.agreement.clone();
    for (rank, waits) in world.waits.iter().enumerate() {
        agreement.stuck(
            rank,
            waits.then_some(Stuck { orders: 9, has_begun: !world.comm[rank].is_empty(), site: None }),
            0.0,
        );
        agreement.data_still(rank, !world.comm[rank].is_empty(), 0.0);
    }
    let in_vain = agreement.check_deadlock(&[9; 8], 3.0);
    let all_wait = world.waits.iter().all(|waits| *waits);
    let is_right = match &in_vain {
        // As far as rank 0 knows, two ranks that are behind may wait for data. A little later it reports the
        // data as lost.
        Ok(()) => !all_wait || expect == Expect::Known || agreement.lost_data(&[9; 8], 100.0, 30.0, 0.0).is_some(),
        // The ranks of a process set may wait for each other, whatever the other ranks do.
        Err(Error::Deadlock { waits }) => all_wait || waits.iter().all(|(rank, _)| world.waits[*rank]),
        Err(_) => false,
    };
    assert!(is_right, "{:?}, {in_vain:?}", world.programs);
    assert!(agreement.check_time(1000.0).is_err(), "rank 0 does not know what is missing: {:?}", world.programs);
}

fn explore(start: Point, expect: Expect, found: &mut ExplorationCounts) {
    let mut seen = HashSet::new();
    let mut compositions = BTreeSet::new();
    let mut open = vec![start];
    found.programs += 1;
    while let Some(point) = open.pop() {
        found.states += 1;
        let next = if point.world.fault.is_some() { Vec::new() } else { point.next() };
        if next.is_empty() {
            found.ends += 1;
            found.faults += usize::from(!point.check_end(expect));
            compositions.insert(point.begun[0]);
        }
        found.moves += next.len();
        open.extend(next.into_iter().filter(|next| seen.insert(next.hash())));
    }
    let is_one = matches!(expect, Expect::One | Expect::Steady);
    assert!(!is_one || compositions.len() == 1, "{} compositions", compositions.len());
}

fn world(programs: &[Vec<Do>], bucket_bytes: usize, sums_block: bool) -> World {
    let mut world = World::new(programs.to_vec(), 0);
    world.bucket_bytes(bucket_bytes);
    if sums_block {
        world.sums_block();
    }
    world
}

fn report(name: &str, start: Instant, found: &ExplorationCounts) {
    let ExplorationCounts { programs, states, moves, ends, faults } = found;
    let s = start.elapsed().as_secs_f64();
    println!(
        "{name}: {programs} sets of programs, {states} states, {moves} moves, {ends} ends, {faults} of them faults, {s:.1} s"
    );
}

fn explore_one(name: &str, programs: &[Vec<Do>], hurries: usize, expect: Expect) {
    let (start, mut found) = (Instant::now(), ExplorationCounts::default());
    for sums_block in [false, true] {
        explore(Point::new(world(programs, 1000, sums_block), hurries), expect, &mut found);
    }
    report(&format!("{name}, {} ranks, {hurries} times out of patience", programs.len()), start, &found);
    assert!(found.states > 20);
}

/// Returns true if the programs end on a store where a call is done when all of its ranks have made it, and a
/// wait ends when the calls before it are done. For programs without joins.
fn fit(programs: &[Vec<Do>]) -> bool {
    let calls = |rank: usize, at: usize| programs[rank][..at].iter().copied().filter(is_call).collect::<Vec<_>>();
    let mut at = vec![0; programs.len()];
    loop {
        let all: Vec<Vec<Do>> = (0..programs.len()).map(|rank| calls(rank, at[rank])).collect();
        let count = |calls: &[Do], call: &Do| calls.iter().filter(|other| *other == call).count();
        let are_done = |rank: usize| {
            all[rank].iter().all(|call| {
                let mut ranks = (0..programs.len()).filter(|rank| is_of(call, *rank));
                ranks.all(|other| count(&all[other], call) >= count(&all[rank], call))
            })
        };
        let can_move = |rank: &usize| match programs[*rank].get(at[*rank]) {
            None => false,
            Some(what) => is_call(what) || are_done(*rank),
        };
        let Some(rank) = (0..programs.len()).find(can_move) else { break };
        at[rank] += 1;
    }
    at.iter().zip(programs).all(|(at, program)| *at == program.len())
}

fn is_call(what: &Do) -> bool {
    matches!(what, Do::Push(..) | Do::Split(_) | Do::Meet(..))
}

/// Returns true if the rank takes part in this call.
fn is_of(call: &Do, rank: usize) -> bool {
    if let Do::Split(set) | Do::Meet(set, _) = call { set >> rank & 1 == 1 } else { true }
}

/// Returns all sequences of up to `most` elements of `of`.
fn sequences(of: &[Do], most: usize) -> Vec<Vec<Do>> {
    let mut all = vec![Vec::new()];
    for len in 0..most {
        let shorter: Vec<Vec<Do>> = all.iter().filter(|sequence| sequence.len() == len).cloned().collect();
        all.extend(shorter.iter().flat_map(|sequence| of.iter().map(|what| [&sequence[..], &[*what]].concat())));
    }
    all
}

/// Explores programs of some first calls, a frozen cycle, and then a few more calls and waits that differ
/// between ranks, in every combination. Ranks leave out the calls of process sets that they are not in.
fn explore_choices(ranks: usize, first: &[Do], cycle: &[i64], of: &[Do], most: usize, hurries: usize) {
    let (start, mut found, mut last) = (Instant::now(), ExplorationCounts::default(), Instant::now());
    let choices = sequences(of, most);
    let (mut fitting, mut stuck, combinations) = (0, 0, choices.len().pow(ranks as u32));
    for number in 0..combinations {
        let choice = |rank: usize| &choices[number / choices.len().pow(rank as u32) % choices.len()];
        let program = |rank: usize| {
            let mut program = [first, &steps(2, cycle)[..], choice(rank), &[Do::Wait]].concat();
            program.retain(|what| is_of(what, rank));
            program
        };
        let programs: Vec<Vec<Do>> = (0..ranks).map(program).collect();
        let fits = fit(&programs);
        fitting += usize::from(fits);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // An operation that runs alone keeps its place among all others, like sums that are done one by
            // one.
            let expect = match fits {
                _ if of.contains(&alone(0)) => Expect::Known,
                true => Expect::Ends,
                false => Expect::Fault,
            };
            explore(Point::new(world(&programs, 0, false), hurries), expect, &mut found);
            let before = found.faults;
            explore(Point::new(world(&programs, 0, true), hurries), Expect::Known, &mut found);
            explore(Point::new(world(&programs, 1000, false), hurries), Expect::Known, &mut found);
            stuck += usize::from(fits && found.faults > before);
        }));
        assert!(outcome.is_ok(), "{programs:?}");
        if last.elapsed() > Duration::from_secs(60) {
            last = Instant::now();
            report(&format!("{number} of {combinations}"), start, &found);
        }
    }
    assert!(0 < fitting && fitting < combinations);
    report(&format!("{ranks} ranks, up to {most} of {of:?} after {first:?}, cycles of {cycle:?}"), start, &found);
    println!(
        "  {fitting} of {combinations} fit together; of these {stuck} may not end where sums are fused or done one by one"
    );
}

fn alone(key: i64) -> Do {
    push(100 + key)
}

/// Returns programs in which each rank makes its own number of steps and joins, and then all make `after`
/// steps.
fn joins(counts: &[usize], keys: &[i64], after: usize) -> Vec<Vec<Do>> {
    let program = |count: &usize| [steps(*count, keys), vec![Do::Join], steps(after, keys)].concat();
    counts.iter().map(program).collect()
}

fn leaves(mut programs: Vec<Vec<Do>>) -> Vec<Vec<Do>> {
    programs.iter_mut().for_each(|program| program.push(Do::Leave));
    programs
}

/// Returns programs of steps that repeat, followed by some that differ. All ranks have the same program.
fn changes(ranks: usize) -> Vec<Vec<Do>> {
    vec![[steps(3, &[1, 2]), steps(3, &[1, 3])].concat(); ranks]
}

#[test]
fn ranks_that_repeat_themselves_send_nothing_after_the_freeze() {
    explore_one("steady", &vec![steps(5, &[1, 2]); 2], 0, Expect::Steady);
    explore_one("steady, in two orders", &[steps(5, &[1, 2]), steps(5, &[2, 1])], 0, Expect::Steady);
    explore_one("steady", &vec![steps(3, &[1, 2]); 3], 0, Expect::Steady);
}

#[test]
fn a_step_that_changes_is_no_error_and_nor_is_impatience() {
    explore_one("changes", &changes(2), 0, Expect::One);
    explore_one("changes", &changes(2), 1, Expect::Ends);
    explore_one("leaves", &leaves(changes(2)), 0, Expect::One);
}

#[test]
fn ranks_that_join_after_unlike_numbers_of_steps_go_on_together() {
    for counts in [[1, 3], [3, 4], [4, 3]] {
        explore_one("joins", &joins(&counts, &[1, 2], 1), 0, Expect::Ends);
    }
    explore_one("joins", &joins(&[3, 2, 3], &[1], 1), 0, Expect::Ends);
}

#[test]
fn whatever_two_ranks_call_after_a_freeze_ends_or_is_known_to_be_missing() {
    explore_choices(2, &[], &[1, 2], &[push(1), push(2), Do::Wait], 2, 0);
}

#[test]
fn whatever_three_ranks_call_after_a_freeze_ends_or_is_known_to_be_missing() {
    explore_choices(3, &[], &[1], &[push(1), push(2)], 1, 0);
}

/// Rank 0 remembers one name. Ranks call names that are being forgotten again, both before and after they
/// know of it.
#[test]
fn names_that_are_forgotten_are_told_apart_all_the_same() {
    let (start, mut found) = (Instant::now(), ExplorationCounts::default());
    let meet = |name| Do::Meet(ALL, name);
    let pair = |name| Do::Meet(3, name);
    for programs in [
        vec![vec![meet(1), meet(2), meet(1), meet(3), meet(1), Do::Wait]; 2],
        vec![
            vec![meet(1), meet(1), Do::Wait, meet(2), meet(1), Do::Wait],
            vec![meet(2), meet(1), meet(1), Do::Wait, meet(1), Do::Wait],
        ],
        vec![vec![pair(1), pair(2), pair(1), pair(3), pair(1), Do::Wait]; 2],
        vec![
            [&steps(2, &[1])[..], &[push(1), pair(1), pair(2), pair(1), Do::Wait]].concat(),
            [&steps(2, &[1])[..], &[pair(2), pair(1), push(1), pair(1), Do::Wait]].concat(),
        ],
    ] {
        let mut world = world(&programs, 1000, false);
        world.agreement.remember(1);
        explore(Point::new(world, 0), Expect::Ends, &mut found);
    }
    report("names", start, &found);
}

/// Messages between two ranks, received from a named rank or from any rank, beside frozen sums.
#[test]
fn messages_find_their_receives_or_it_is_known_that_they_do_not() {
    let (to, any, of) = (Do::Send, Do::Recv(None), |from| Do::Recv(Some(from)));
    let beside = |more: &[Do]| [&steps(2, &[1])[..], more, &steps(1, &[1]), &[Do::Wait]].concat();
    explore_one("messages", &[vec![any, any, Do::Wait], vec![to(0), Do::Wait], vec![to(0), Do::Wait]], 0, Expect::Ends);
    explore_one("messages", &[vec![any, of(1), Do::Wait], vec![to(0), to(0), Do::Wait]], 0, Expect::Ends);
    // The outcome depends on which sender is first: the receive from rank 1 may wait for a message that the
    // receive from any rank has taken.
    let third = [vec![any, of(1), Do::Wait], vec![to(0), Do::Wait], vec![to(0), Do::Wait]];
    explore_one("messages", &third, 0, Expect::Known);
    for programs in [
        [beside(&[any]), beside(&[to(0)])],
        [beside(&[any, Do::Wait]), beside(&[Do::Wait, to(0)])],
        // The sender waits in a sum that the receiver calls later.
        [
            [steps(4, &[1]), vec![any, Do::Wait], steps(1, &[1])].concat(),
            [steps(4, &[1]), vec![to(0)], steps(1, &[1])].concat(),
        ],
    ] {
        explore_one("messages", &programs, 1, Expect::Ends);
    }
    explore_one("messages", &[vec![any, Do::Wait], vec![any, Do::Wait]], 0, Expect::Fault);
    explore_one("messages", &[vec![any, any, Do::Wait], vec![to(0), Do::Wait], vec![Do::Wait]], 0, Expect::Fault);
    explore_one("messages", &[vec![any, Do::Wait], vec![Do::Leave], vec![Do::Leave]], 0, Expect::Fault);
}

/// Divided sums, beside other sums and beside collectives of a process set. Ranks 0 and 1 are the set.
#[test]
fn divided_sums_wait_for_nothing_but_earlier_sums_of_their_keys() {
    let (plain, divided, split, meet) = (push(1), push(50), Do::Split(3), Do::Meet(3, 1));
    explore_one("divided, steady", &vec![steps(5, &[50, 51]); 2], 0, Expect::Steady);
    explore_choices(2, &[], &[50], &[divided, Do::Wait], 3, 0);
    explore_choices(2, &[], &[50, 1], &[divided, plain], 2, 0);
    explore_choices(2, &[], &[50], &[divided, split], 2, 0);
    explore_choices(2, &[split, Do::Wait], &[50], &[divided, meet, Do::Wait], 2, 0);
}

#[test]
#[ignore = "takes minutes: scripts/long explore"]
fn larger_divided() {
    let (split, meet) = (Do::Split(3), Do::Meet(3, 1));
    explore_choices(2, &[], &[50], &[push(50), split, Do::Wait], 2, 1);
    explore_choices(3, &[split, Do::Wait], &[50], &[push(50), meet], 2, 0);
    explore_choices(2, &[], &[50, 51], &[push(50), push(51), Do::Wait], 2, 0);
    explore_choices(2, &[split, Do::Wait], &[50, 1], &[push(50), push(1), meet], 2, 0);
    explore_choices(3, &[], &[50], &[push(50), split], 1, 0);
    explore_choices(3, &[split, Do::Wait], &[50], &[push(50), meet], 1, 1);
}

#[test]
#[ignore = "takes minutes: scripts/long explore"]
fn larger_two_ranks() {
    explore_choices(2, &[], &[1, 2], &[push(1), push(2), push(3), Do::Wait], 2, 0);
    explore_choices(2, &[], &[1, 2], &[push(1), push(2), alone(0), Do::Wait], 3, 0);
}

#[test]
#[ignore = "takes minutes: scripts/long explore"]
fn larger_two_impatient_ranks() {
    explore_choices(2, &[], &[1, 2], &[push(1), push(2), push(3), Do::Wait], 2, 1);
}

#[test]
#[ignore = "takes minutes: scripts/long explore"]
fn larger_three_ranks() {
    explore_choices(3, &[], &[1, 2], &[push(1), push(2), push(3)], 1, 0);
}

#[test]
#[ignore = "takes minutes: scripts/long explore"]
fn larger_programs() {
    explore_one("steady", &vec![steps(4, &[1, 2, 3]); 3], 0, Expect::Steady);
    explore_one("changes", &changes(3), 0, Expect::One);
    explore_one("leaves", &leaves(changes(3)), 0, Expect::One);
    for counts in [[2, 3, 4], [4, 3, 3], [3, 4, 4]] {
        explore_one("joins", &joins(&counts, &[1, 2], 2), 0, Expect::Ends);
    }
    explore_one("joins", &joins(&[3, 4], &[1, 2], 3), 2, Expect::Ends);
}
