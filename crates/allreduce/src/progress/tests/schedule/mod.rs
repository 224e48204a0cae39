//! Tests that the operations that ranks begin together do not depend on the interleaving of their calls and
//! messages.

pub(super) mod world;

use std::collections::BTreeSet;

use ringpull_base::DType;

use crate::progress::calls::{Act, Calls};
use crate::progress::messages::{Operation, Terms, Topic, Transfer};

use world::{ALL, Do, World, composition, fused, push, steps};

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
    let step = [Do::Push(0, 1, DType::F32), Do::Push(1, 1, DType::F32), Do::Push(0, 2, DType::F32), Do::Wait];
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
    // This rank pushes the next step's key 1 before this step's key 2.
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
        let text = world.agreement.check_time(16.0).unwrap_err().to_string();
        assert!(text.contains("push of key 2") && text.contains("[1]"), "seed {seed}: {text}");
        let late = world.agreement.late().unwrap();
        assert_eq!((late.key.to_string(), &late.missing[..]), ("2".to_owned(), &[1][..]), "seed {seed}");
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
    odd.extend([push(1), Do::Push(0, 2, DType::F16), push(3), Do::Wait]);
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
    let orders = world.agreement.leave(1, begun, 0.0).unwrap();
    world.down.iter_mut().for_each(|down| down.extend(orders.iter().cloned()));
    world.run();
    let text = world.fault.expect("a fault").to_string();
    assert!(text.contains("rank 1 ended its run") && text.contains("push of key"), "{text}");
}

/// Ranks make different numbers of steps before each of three joins, and some do not wait for their last
/// step.
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
        if seed % 3 == 0 {
            world.sums_block();
        }
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
    let text = world.agreement.leave(0, None, 0.0).unwrap_err().to_string();
    assert!(text.contains("rank 0 ended its run") && text.contains("join"), "{text}");
}

/// One rank makes the calls of a step in another order, and other calls beside them. The operations that the
/// other ranks have begun run alone there.
#[test]
fn what_runs_alone_neither_overtakes_what_others_have_begun_nor_is_overtaken() {
    let orders: [(&[i64], &[i64]); 6] = [
        (&[1, 100, 2, 101], &[101, 2, 100, 1]),
        (&[1, 100, 2, 101, 9], &[9, 101, 1, 2, 100]),
        (&[1, 100, 2, 101, 109], &[109, 2, 1, 100, 101]),
        (&[100, 1, 101, 2, 109, 9], &[109, 9, 2, 101, 1, 100]),
        (&[1, 2, 109, 9], &[109, 9, 2, 1]),
        (&[1, 2, 109, 110], &[110, 2, 109, 1]),
    ];
    for (plain, odd) in orders {
        let cycle: Vec<i64> = plain.iter().copied().filter(|key| key % 100 < 9).collect();
        let program = |step: &[i64]| {
            let part = [steps(5, &cycle), steps(1, step)].concat();
            [part.clone(), part].concat()
        };
        for seed in 0..200 {
            let mut world = World::new(vec![program(plain), program(odd), program(plain)], seed);
            world.bucket_bytes(seed as usize % 2 * 1000);
            if seed % 4 > 1 {
                world.sums_block();
            }
            assert!(world.run(), "{odd:?}, seed {seed}: {:?}, {:?}", world.comm, world.fault);
        }
    }
}

/// No cycle is frozen while a rank still has to make calls of the last one.
#[test]
fn a_rank_with_an_outstanding_call_for_several_steps_still_makes_it() {
    let late = [steps(5, &[1, 2, 3]), steps(6, &[2, 3]), steps(1, &[1]), steps(9, &[1, 2, 3])].concat();
    let plain = [steps(5, &[1, 2, 3]), vec![push(1)], [push(2), push(3)].repeat(6), steps(9, &[1, 2, 3])].concat();
    for seed in 0..200 {
        let mut world = World::new(vec![plain.clone(), late.clone()], seed);
        world.bucket_bytes(0);
        assert!(world.run(), "seed {seed}: {:?}, {:?}", world.comm, world.fault);
    }
}

/// Two ranks end their data in one step of a frozen cycle, while a third rank has begun the next step. One of
/// the two joins when it already knows its outstanding calls.
#[test]
fn a_rank_that_joins_while_a_call_is_outstanding_makes_up_for_that() {
    for seed in 0..400 {
        let program = |count| [steps(count, &[1, 2, 3]), vec![Do::Join], steps(3, &[1, 2, 3])].concat();
        let mut world = World::new(vec![program(9), program(9), program(10)], seed);
        world.bucket_bytes(seed as usize % 2 * 1000);
        if seed % 3 == 0 {
            world.sums_block();
        }
        assert!(world.run(), "seed {seed}: {:?}, {:?}", world.programs, world.fault);
        assert_eq!(world.stood_in, [3, 3, 0], "seed {seed}");
    }
}

/// Calls as MXNet's engine makes them: the keys of a step in any order, and the keys of the next step when
/// all of these are done. No caller reports a wait.
#[test]
fn a_cycle_without_marked_ends_of_steps_is_not_fused_across_them() {
    let orders = [[1, 2, 3, 4], [2, 1, 3, 4], [1, 3, 2, 4], [4, 1, 2, 3]];
    let program = |of: &dyn Fn(usize) -> usize| {
        let step = |step: usize| orders[of(step) % 4].map(push).into_iter().chain([Do::Watch]);
        (0..30).flat_map(step).collect::<Vec<_>>()
    };
    let mut fused = 0;
    for seed in 0..400 {
        let now_and_then = |step: usize| usize::from(step.is_multiple_of(3 + seed)) * (1 + seed % 3);
        let programs = vec![program(&now_and_then), program(&|step| step / 5 + seed), program(&|_| 0)];
        let mut world = World::new(programs, seed as u64);
        if seed % 2 == 0 {
            world.sums_block();
        }
        assert!(world.run(), "seed {seed}: {:?}, {:?}", world.begun[0].last(), world.fault);
        fused += world.begun[0].iter().filter(|unit| unit.len() > 1).count();
    }
    assert!(fused > 0, "nothing was fused at all");
}

/// Rank 0 pushes a key twice, and rank 1 has not called the second push. Rank 1 first calls a collective of a
/// process set and waits for it. The second push waits for the first, and nothing else waits for the second.
#[test]
fn a_divided_sum_keeps_no_process_set_and_no_other_key_waiting() {
    let set = |first: bool| [Do::Split(3), Do::Wait].into_iter().filter(move |_| first);
    for (ranks, is_first) in [(2, true), (3, true), (2, false), (3, false)] {
        let meet = if is_first { [Do::Split(3), Do::Wait] } else { [Do::Meet(3, 1), Do::Wait] };
        for other in [1, 51] {
            let step = [push(50), push(other), Do::Wait].repeat(6);
            let ahead = [push(50), push(other), push(50), push(other)];
            let mut programs =
                vec![[&step[..], &ahead, &meet].concat(), [&step[..], &meet, &ahead, &[Do::Wait]].concat()];
            programs.extend((2..ranks).map(|_| [&step[..], &ahead, &[Do::Wait]].concat()));
            for program in programs.iter_mut().take(2) {
                program.splice(0..0, set(!is_first));
            }
            for seed in 0..100 {
                let mut world = World::new(programs.clone(), seed);
                world.bucket_bytes(seed as usize % 2 * 1000);
                assert!(world.run(), "{ranks} ranks, {is_first}, seed {seed}: {:?}, {:?}", world.comm, world.fault);
            }
        }
    }
}

#[test]
fn a_key_that_a_step_pushes_twice_is_summed_in_the_order_of_its_pushes() {
    let plain = steps(9, &[1, 2, 1]);
    let odd = [steps(6, &[1, 2, 1]), vec![push(1), push(1), Do::Wait, push(2), Do::Wait]].concat();
    for seed in 0..400 {
        // A rank that waits in the middle of a bucket is not guaranteed to end.
        World::new(vec![plain.clone(), odd.clone()], seed).run();
    }
}

/// A job gives most collectives new names and calls some names again. It has a process set, and its steps are
/// frozen meanwhile.
#[test]
fn a_name_for_each_collective_takes_no_memory_for_ever() {
    for seed in 0..30 {
        let program = |rank: usize| {
            let mut program = Vec::new();
            for turn in 0..100 {
                let mut names: Vec<i64> = (0..5).map(|name| 10 + 5 * turn + name).collect();
                names.extend([1, 2]);
                names.rotate_left(rank * 3);
                let set = if turn < 50 { ALL } else { 3 };
                program.extend(names.into_iter().map(|name| Do::Meet(set, name)));
                program.extend([push(1), push(2), Do::Wait]);
            }
            program.retain(|what| rank < 2 || !matches!(what, Do::Meet(3, _)));
            program
        };
        let mut world = World::new((0..3).map(program).collect(), seed);
        world.agreement.remember(16);
        assert!(world.run(), "seed {seed}: {:?}, {:?}", world.comm, world.fault);
        let names: Vec<usize> = world.ranks.iter().map(Calls::names).chain([world.agreement.names()]).collect();
        assert!(names.iter().all(|names| *names < 100), "seed {seed}: {names:?}");
        assert!(world.ranks[0].frozen().is_some(), "seed {seed}: the steps of keys were not frozen");
    }
}

#[test]
fn the_only_rank_of_a_job_remembers_neither_its_calls_nor_their_names() {
    let mut calls = Calls::of_one_rank();
    for name in 0..5000 {
        let topic = Topic::Collective { comm: 0, set: None, name: Some(name.into()) };
        let operation = Operation::Collective("allreduce".to_owned());
        let acts = calls.call(topic, operation, Terms::default(), Transfer::Messages { priority: 0 });
        assert!(matches!(acts[..], [Act::Run(_)]), "{acts:?}");
        calls.call(Topic::Barrier, Operation::Barrier, Terms::default(), Transfer::Alone);
    }
    assert!(calls.names() < 2000 && calls.unbegun() == 0, "{}, {}", calls.names(), calls.unbegun());
}
