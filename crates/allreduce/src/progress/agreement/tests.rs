//! Tests the table of calls, call by call. Freezing is tested in `tests::schedule`, where ranks call
//! together.

use super::*;
use ringpull_base::DType;
use ringpull_base::config::Config;
use std::sync::Arc;

use crate::progress::messages::{Envelope, Peering, Sums, Terms};

fn of(dtype: DType) -> Terms {
    Terms { value: Some((dtype, Arc::default())), ..Terms::default() }
}

fn call(key: i64, ordinal: u64, dtype: DType) -> Call {
    let topic = Topic::Key { store: 0, key: key.into() };
    let transfer =
        Transfer::Sum { dtype: DType::F32, reduction: Reduction::Sum, len_bytes: 100, priority: 0, is_divided: false };
    Call { topic, ordinal, operation: Operation::Push, terms: of(dtype), transfer, waited: false }
}

fn launched(orders: Result<Vec<Order>, Error>) -> Launch {
    match &orders.unwrap()[..] {
        [Order::Launch(launch)] => launch.clone(),
        other => panic!("one launch and not {other:?}"),
    }
}

#[test]
fn an_operation_launches_when_every_rank_has_called_it_whatever_the_order() {
    let mut table = Agreement::new(2, 10.0, 1000);
    assert_eq!(table.call(0, call(1, 0, DType::F32), 0.0), Ok(vec![]));
    assert_eq!(table.call(0, call(2, 0, DType::F32), 0.0), Ok(vec![]));
    let second = launched(table.call(1, call(2, 0, DType::F32), 0.0));
    let first = launched(table.call(1, call(1, 0, DType::F32), 0.0));
    assert_eq!((second.number, first.number), (1, 2));
    assert_eq!(table.check_time(1e9), Ok(()));
}

#[test]
fn pushing_twice_is_not_two_ranks_pushing_once() {
    let mut table = Agreement::new(2, 10.0, 1000);
    assert_eq!(table.call(0, call(1, 0, DType::F32), 0.0), Ok(vec![]));
    assert_eq!(table.call(0, call(1, 1, DType::F32), 0.0), Ok(vec![]));
    assert_eq!(table.check_time(9.0), Ok(()));
    let error = table.check_time(11.0).unwrap_err();
    assert!(matches!(error, Error::Stalled { ref missing, .. } if missing == &[1]), "{error}");
}

#[test]
fn a_key_that_a_rank_waits_for_is_named_before_the_barrier_in_which_it_is_awaited() {
    let mut table = Agreement::new(3, 10.0, 1000);
    let barrier = || Call { topic: Topic::Barrier, operation: Operation::Barrier, ..call(0, 0, DType::F32) };
    assert_eq!(table.call(1, barrier(), 0.0), Ok(vec![]));
    assert_eq!(table.call(2, barrier(), 0.0), Ok(vec![]));
    assert_eq!(table.call(1, call(3, 0, DType::F32), 1.0), Ok(vec![]));
    let text = table.check_time(11.0).unwrap_err().to_string();
    assert!(text.contains("barrier") && text.contains("rank(s) [0]"), "rank 0 waits for nothing: {text}");
    assert_eq!(table.call(0, call(7, 0, DType::F32), 5.0), Ok(vec![]));
    let text = table.check_time(11.0).unwrap_err().to_string();
    assert!(text.contains("push of key 7 on rank 0 waited 6 s: rank(s) [1, 2]"), "{text}");
}

#[test]
fn terms_that_differ_are_an_error_that_names_each_ranks_view() {
    let mut table = Agreement::new(2, 10.0, 1000);
    assert_eq!(table.call(1, call(7, 0, DType::F32), 0.0), Ok(vec![]));
    let text = table.call(0, call(7, 0, DType::F16), 0.0).unwrap_err().to_string();
    let views = "rank 0 has push of f16 of shape [], rank 1 has push of f32 of shape []";
    assert!(text.contains("key 7") && text.contains(views), "{text}");
}

#[test]
fn two_ranks_that_differ_are_an_error_before_the_third_has_called() {
    let init = |len: usize, algorithm: &str, on_devices: bool| {
        let config = Config { algorithm: algorithm.parse().unwrap(), ..Config::default() };
        let mut sums = Sums::from(&config);
        sums.on_devices = on_devices;
        let terms = Terms { value: Some((DType::F32, Arc::from([len]))), sums: Some(sums), ..Terms::default() };
        Call { operation: Operation::Init, terms, ..call(7, 0, DType::F32) }
    };
    let differing = |first: Call, second: Call| {
        let mut table = Agreement::new(3, 10.0, 1000);
        assert_eq!(table.call(2, first, 0.0), Ok(vec![]));
        table.call(1, second, 0.0).unwrap_err().to_string()
    };
    let text = differing(init(3, "ring", false), init(4, "star", false));
    let views =
        "in init: rank 1 has f32 of shape [4], rank 2 has f32 of shape [3]\n  hint: init the key with one shape";
    assert!(text.contains("key 7") && text.contains(views), "nothing but the shapes: {text}");
    let text = differing(init(3, "ring", false), init(3, "star", false));
    assert!(text.contains("rank 1 has sums by star in segments of"), "{text}");
    assert!(text.contains("RINGPULL_ALGORITHM"), "{text}");
    let text = differing(init(3, "ring", true), init(3, "ring", false));
    assert!(text.contains("bytes on devices\n") && text.contains("RINGPULL_DEVICES"), "{text}");
    let compression = Some("2bit".parse().unwrap());
    let compressed = Call { terms: Terms { compression, ..of(DType::F32) }, ..call(7, 0, DType::F32) };
    let text = differing(call(7, 0, DType::F32), compressed);
    assert!(text.contains("hint: every rank must use") && text.contains("gradient compression"), "{text}");
}

#[test]
fn a_rank_that_left_fails_those_who_wait_for_it_at_once() {
    let mut table = Agreement::new(2, 10.0, 1000);
    assert_eq!(table.leave(1, None, 0.0), Ok(vec![]));
    let text = table.call(0, call(7, 0, DType::F32), 0.0).unwrap_err().to_string();
    assert!(text.contains("rank 1 ended its run") && text.contains("push of key 7"), "{text}");
    assert!(text.contains("same number of steps"), "{text}");
}

/// The other ranks wait for data of the cycle, and have nothing else to call.
#[test]
fn a_rank_that_leaves_without_what_others_began_of_a_stopped_cycle_is_an_error_at_once() {
    let mut table = Agreement::new(2, 1800.0, 1000);
    for step in 0..2 {
        for (rank, key) in [(0, 1), (1, 1)] {
            table.call(rank, call(key, step, DType::F32), 0.0).unwrap();
        }
    }
    assert_eq!(table.invalidate(1, None), [Order::Stop(1)]);
    for (rank, begun) in [(0, 0), (1, 3)] {
        let missing = Some((Key::from(1), Operation::Push));
        table.stopped(rank, StoppedCycle { epoch: 1, begun, missing }, 1.0).unwrap();
    }
    assert_eq!(table.leave(1, None, 2.0), Ok(vec![]), "rank 1 has called more");
    let text = table.leave(0, None, 3.0).unwrap_err().to_string();
    assert!(text.contains("rank 0 ended its run without calling push of key 1, for which rank 1 waits"), "{text}");
}

#[test]
fn a_rank_that_has_joined_waits_longer_while_a_sum_is_under_way() {
    let mut agreement = Agreement::new(2, 10.0, 0);
    assert!(agreement.join(0, 0.0).unwrap().is_empty());
    agreement.heard(9.0);
    agreement.check_time(18.0).unwrap();
    let text = agreement.check_time(20.0).unwrap_err().to_string();
    assert!(text.contains("join") && text.contains("[1]"), "{text}");
}

#[test]
fn two_ranks_that_wait_for_each_others_keys_are_both_named() {
    let mut table = Agreement::new(2, 10.0, 1000);
    assert_eq!(table.call(0, call(3, 0, DType::F32), 0.0), Ok(vec![]));
    assert_eq!(table.call(1, call(7, 0, DType::F32), 1.0), Ok(vec![]));
    let text = table.check_time(10.5).unwrap_err().to_string();
    assert!(
        text.contains("key 3 on rank 0 waited 10 s: rank(s) [1] have not called it; rank 1 has called push of key 7"),
        "{text}"
    );
    assert!(text.contains("which rank(s) [0] have not"), "{text}");
}

/// Every rank waits for the units of a cycle, and none is behind: the next cycle would stand still as well.
#[test]
fn a_cycle_that_stood_still_twice_is_the_last() {
    for waited_s in [None, Some(10.0)] {
        let mut table = Agreement::new(2, 10.0, 1000);
        let freezes = |table: &mut Agreement, steps: std::ops::Range<u64>| {
            let calls = steps.flat_map(|step| {
                [(0, 1), (1, 1), (0, 2), (1, 2)].map(|(rank, key)| (rank, call(key, step, DType::F32)))
            });
            let orders: Vec<Order> = calls.flat_map(|(rank, call)| table.call(rank, call, 0.0).unwrap()).collect();
            orders.iter().filter(|order| matches!(order, Order::Freeze(_))).count()
        };
        let stop = |table: &mut Agreement, epoch: u32| {
            let overdue = waited_s.map(|waited_s| Overdue { has_begun: false, waited_s });
            assert_eq!(table.invalidate(epoch, overdue), [Order::Stop(epoch)]);
            let stopped = || StoppedCycle { epoch, begun: 0, missing: None };
            assert_eq!(table.stopped(0, stopped(), 0.0), Ok(vec![]));
            assert!(matches!(table.stopped(1, stopped(), 0.0).unwrap()[..], [Order::RunTo(_)]));
        };
        assert_eq!(freezes(&mut table, 0..2), 1);
        stop(&mut table, 1);
        // All ranks may have paused there.
        assert_eq!(freezes(&mut table, 2..40), 1);
        stop(&mut table, 2);
        assert_eq!(freezes(&mut table, 40..120) > 0, waited_s.is_none());
    }
}

#[test]
fn every_rank_that_waits_for_another_is_named_with_what_it_waits_for() {
    let mut table = Agreement::new(2, 1800.0, 1000);
    assert_eq!(table.call(0, call(3, 0, DType::F32), 0.0), Ok(vec![]));
    assert_eq!(table.call(1, call(7, 0, DType::F32), 0.0), Ok(vec![]));
    let stuck = |orders, site: &str| Some(Stuck { orders, has_begun: false, site: Some(site.to_owned()) });
    table.stuck(0, stuck(5, "train.py:3"), 10.0);
    assert_eq!(table.check_deadlock(&[5; 3], 100.0), Ok(()), "rank 1 computes");
    table.stuck(1, stuck(5, "train.py:4"), 100.0);
    assert_eq!(table.check_deadlock(&[5; 3], 101.0), Ok(()), "something may be on its way");
    assert_eq!(table.check_deadlock(&[6; 3], 103.0), Ok(()), "an order is on its way");
    let text = table.check_deadlock(&[5; 3], 103.0).unwrap_err().to_string();
    for part in [
        "rank 0 waits at train.py:3 for push of key 3, which rank(s) [1] have not called",
        "rank 1 waits at train.py:4 for push of key 7, which rank(s) [0] have not called",
    ] {
        assert!(text.contains(part), "{text}");
    }
    table.stuck(1, None, 104.0);
    assert_eq!(table.check_deadlock(&[5; 3], 200.0), Ok(()), "rank 1 goes on");
    let mut ended = Agreement::new(2, 1800.0, 1000);
    (0..2).for_each(|rank| drop(ended.leave(rank, None, 0.0)));
    assert_eq!(ended.check_deadlock(&[0; 3], 200.0), Ok(()), "all have left");
}

#[test]
fn the_longest_wait_is_reported_first() {
    let mut table = Agreement::new(3, 1800.0, 1000);
    assert_eq!(table.late(), None);
    assert_eq!(table.call(2, call(7, 0, DType::F32), 4.0), Ok(vec![]));
    assert_eq!(table.call(0, call(3, 0, DType::F32), 1.0), Ok(vec![]));
    let late = table.late().unwrap();
    assert_eq!((late.key, late.rank, late.missing, late.since_s), (3.into(), 0, vec![1, 2], 1.0));
}

fn stuck(orders: u64) -> Stuck {
    Stuck { orders, has_begun: true, site: None }
}

/// A link is down in a frozen step. Rank 0 has begun the next step, and the others still wait for data of
/// this step.
#[test]
fn ranks_that_wait_for_data_are_no_deadlock() {
    let mut table = Agreement::new(3, 1800.0, 1000);
    for step in 0..2 {
        for (rank, key) in [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)] {
            table.call(rank, call(key, step, DType::F32), 0.0).unwrap();
        }
    }
    assert_eq!(table.invalidate(1, Some(Overdue { has_begun: true, waited_s: 3.0 })), [Order::Stop(1)]);
    for (rank, begun) in [(0, 1), (1, 0), (2, 0)] {
        let missing = Some((Key::from(1), Operation::Push));
        table.stopped(rank, StoppedCycle { epoch: 1, begun, missing }, 4.0).unwrap();
    }
    assert_eq!(table.late().map(|late| late.missing), Some(vec![1]));
    (0..3).for_each(|rank| table.stuck(rank, Some(stuck(5)), 5.0));
    assert_eq!(table.check_deadlock(&[5; 3], 100.0), Ok(()));
    // If nothing has begun, no data can come.
    (1..3).for_each(|rank| table.stuck(rank, Some(Stuck { has_begun: false, ..stuck(5) }), 5.0));
    let text = table.check_deadlock(&[5; 3], 100.0).unwrap_err().to_string();
    assert!(text.contains("rank 1 waits for what comes after push of key 1, which it has not called itself"), "{text}");
    (1..3).for_each(|rank| table.stuck(rank, Some(stuck(5)), 5.0));
    // Rank 0 waits for a call of ranks 1 and 2, and these wait for data. After the limit the data is lost.
    (1..3).for_each(|rank| table.data_still(rank, true, 4.0));
    assert_eq!(table.lost_data(&[5; 3], 31.9, 30.0, 0.0), None);
    assert_eq!(table.lost_data(&[5; 3], 32.0, 30.0, 0.0), Some(vec![1, 2]));
    assert_eq!(table.lost_data(&[5; 3], 54.9, 30.0, 25.0), None, "a rank was silent until 25 s");
    assert_eq!(table.lost_data(&[6; 3], 100.0, 30.0, 0.0), None, "an order is on its way");
    table.data_still(2, false, 5.0);
    assert_eq!(table.lost_data(&[5; 3], 100.0, 30.0, 0.0), None, "rank 2 is at something else");
    table.data_still(2, true, 6.0);
    table.stuck(2, None, 6.0);
    assert_eq!(
        table.lost_data(&[5; 3], 100.0, 30.0, 0.0),
        None,
        "rank 2 computes, and may still call the operation that the others wait for"
    );
}

#[test]
fn data_of_sums_that_all_have_called_is_lost_also_while_they_compute() {
    let mut table = Agreement::new(2, 1800.0, 1000);
    assert_eq!(table.call(0, call(3, 0, DType::F32), 0.0), Ok(vec![]));
    assert!(matches!(table.call(1, call(3, 0, DType::F32), 0.0).unwrap()[..], [Order::Launch(_)]));
    table.data_still(0, true, 2.0);
    assert_eq!(table.lost_data(&[1; 3], 100.0, 30.0, 0.0), None, "rank 1 has nothing under way");
    table.data_still(1, true, 2.0);
    assert_eq!(table.lost_data(&[1; 3], 29.9, 30.0, 0.0), None);
    assert_eq!(table.lost_data(&[1; 3], 30.0, 30.0, 0.0), Some(vec![0, 1]));
    table.data_still(0, false, 40.0);
    assert_eq!(table.lost_data(&[1; 3], 100.0, 30.0, 0.0), None, "it moves again");
}

/// A call without a name on a communicator of the ranks in `set`, or of all ranks.
fn collective(set: Option<&[usize]>, ordinal: u64, dtype: DType) -> Call {
    let topic = Topic::Collective { comm: 0, set: set.map(<[usize]>::to_vec), name: None };
    Call { topic, operation: Operation::Collective("allreduce".to_owned()), ..call(0, ordinal, dtype) }
}

#[test]
fn a_set_launches_when_its_own_ranks_have_called_it_by_numbers_of_its_own() {
    let mut table = Agreement::new(3, 10.0, 1000);
    let set = Some(&[2, 0][..]);
    assert_eq!(table.call(2, collective(set, 0, DType::F32), 0.0), Ok(vec![]));
    let launch = launched(table.call(0, collective(set, 0, DType::F32), 0.0));
    assert_eq!((launch.number, launch.call), (OF_A_SET | 1, None));
    assert!(!Order::Launch(Launch { call: None, ..launch }).concerns(1));
    (0..2).for_each(|rank| assert_eq!(table.call(rank, call(1, 0, DType::F32), 0.0), Ok(vec![])));
    assert_eq!(launched(table.call(2, call(1, 0, DType::F32), 0.0)).number, 1);
    // A rank outside the set, and a rank that does not exist.
    assert!(table.call(1, collective(set, 1, DType::F32), 0.0).is_err());
    assert!(table.call(0, collective(Some(&[0, 3]), 0, DType::F32), 0.0).is_err());
    // The error names the ranks of the set that have not called it, and no others.
    assert_eq!(table.call(2, collective(set, 1, DType::F32), 0.0), Ok(vec![]));
    let error = table.check_time(11.0).unwrap_err();
    assert!(matches!(error, Error::Stalled { ref missing, .. } if missing == &[0]), "{error}");
}

#[test]
fn calls_of_a_communicator_that_differ_fail_that_operation_when_all_have_called_it() {
    for set in [None, Some(&[0, 1, 2][..])] {
        let mut table = Agreement::new(3, 10.0, 1000);
        assert_eq!(table.call(0, collective(set, 0, DType::F32), 0.0), Ok(vec![]));
        assert_eq!(table.call(1, collective(set, 0, DType::F64), 0.0), Ok(vec![]));
        let orders = table.call(2, collective(set, 0, DType::F32), 0.0).unwrap();
        let [Order::Refuse(refusal)] = &orders[..] else { panic!("{orders:?}") };
        let text = refusal.fault.to_string();
        assert!(text.contains("rank 0 has allreduce of f32") && text.contains("rank 1 has allreduce of f64"), "{text}");
        (0..2).for_each(|rank| assert_eq!(table.call(rank, collective(set, 1, DType::F32), 0.0), Ok(vec![])));
        assert_eq!(launched(table.call(2, collective(set, 1, DType::F32), 0.0)).ordinal, 1);
    }
}

#[test]
fn nothing_that_blocks_is_frozen_once_there_are_sets() {
    let frozen = |sums_block: bool, has_sets: bool| {
        let mut table = Agreement::new(2, 10.0, 1000);
        if sums_block {
            table.sums_block();
        }
        if has_sets {
            let split = Call { operation: Operation::split(), ..collective(None, 0, DType::F32) };
            (0..2).for_each(|rank| drop(table.call(rank, split.clone(), 0.0).unwrap()));
        }
        (0..20).any(|step| {
            let orders = (0..2).flat_map(|rank| table.call(rank, call(1, step, DType::F32), 0.0).unwrap());
            orders.collect::<Vec<_>>().iter().any(|order| matches!(order, Order::Freeze(_)))
        })
    };
    assert_eq!(
        [(false, false), (false, true), (true, false), (true, true)].map(|(block, sets)| frozen(block, sets)),
        [true, true, true, false]
    );
}

#[test]
fn a_set_that_its_ranks_make_alone_stops_a_cycle_that_blocks() {
    let mut table = Agreement::new(3, 10.0, 1000);
    table.sums_block();
    let freezes = |table: &mut Agreement| {
        let found = (0..20).find(|step| {
            let orders = (0..3).flat_map(|rank| table.call(rank, call(1, *step, DType::F32), 0.0).unwrap());
            orders.collect::<Vec<_>>().iter().any(|order| matches!(order, Order::Freeze(_)))
        });
        found.is_some()
    };
    assert!(freezes(&mut table));
    let split = Call { operation: Operation::split(), ..collective(Some(&[0, 1]), 0, DType::F32) };
    assert_eq!(table.call(0, split.clone(), 0.0), Ok(vec![Order::Stop(1)]));
    assert_eq!(launched(table.call(1, split, 0.0)).ordinal, 0);
}

#[test]
fn ranks_of_sets_that_wait_for_each_other_are_in_a_deadlock_while_another_goes_on() {
    let mut table = Agreement::new(3, 1000.0, 1000);
    let (left, right) = (Some(&[0, 1][..]), Some(&[1, 0][..]));
    assert_eq!(table.call(0, collective(left, 0, DType::F32), 0.0), Ok(vec![]));
    assert_eq!(table.call(1, collective(right, 0, DType::F32), 0.0), Ok(vec![]));
    (0..2).for_each(|rank| table.stuck(rank, Some(Stuck { orders: 5, has_begun: true, site: None }), 0.0));
    let text = table.check_deadlock(&[5; 3], 10.0).unwrap_err().to_string();
    assert!(text.contains("rank 0 waits") && text.contains("rank 1 waits") && !text.contains("rank 2 waits"), "{text}");
    assert_eq!(table.check_deadlock(&[5, 6, 5], 10.0), Ok(()), "an order is on its way to rank 1");
    // A call that the third rank may still make would end one of the waits.
    let third = Some(&[0, 2][..]);
    assert_eq!(table.call(0, collective(third, 0, DType::F32), 0.0), Ok(vec![]));
    assert_eq!(table.check_deadlock(&[5; 3], 10.0), Ok(()));
}

fn message(rank: usize, peer: Peering, ordinal: u64, dtype: DType) -> Call {
    let topic = Topic::Message(Envelope { comm: 0, among: None, tag: 0, rank, peer });
    Call { topic, operation: Operation::message(), ..call(0, ordinal, dtype) }
}

/// The ends of a message that was launched: the sender and its count, the receiver and its count.
fn ends(orders: Result<Vec<Order>, Error>) -> [(usize, u64); 2] {
    match &orders.unwrap()[..] {
        [Order::Launch(sent), Order::Launch(received)] => {
            assert_eq!((sent.number, sent.ends()), (received.number, received.ends()));
            let [from, to] = received.ends().unwrap();
            assert_eq!((received.from, sent.from), (Some(from), None));
            for (launch, rank) in [(sent, from), (received, to)] {
                let concerns = |other| Order::Launch(launch.clone()).concerns(other);
                assert!((0..4).all(|other| concerns(other) == (other == rank)), "{launch:?}");
            }
            [(from, sent.ordinal), (to, received.ordinal)]
        }
        other => panic!("the two ends of a message and not {other:?}"),
    }
}

#[test]
fn a_receive_from_any_rank_takes_what_was_announced_first_and_each_ranks_messages_in_order() {
    let mut table = Agreement::new(4, 10.0, 1000);
    let (any, to) = (Peering::From(None), Peering::To(0));
    for (at, (rank, ordinal)) in [(3, 0), (1, 0), (3, 1)].into_iter().enumerate() {
        assert_eq!(table.call(rank, message(rank, to, ordinal, DType::F32), at as f64), Ok(vec![]));
    }
    let mut receive = |ordinal, peer| ends(table.call(0, message(0, peer, ordinal, DType::F32), 5.0));
    assert_eq!(receive(0, any), [(3, 0), (0, 0)]);
    // A receive from rank 3 takes rank 3's message before the earlier one of rank 1.
    assert_eq!(receive(1, Peering::From(Some(3))), [(3, 1), (0, 1)]);
    assert_eq!(receive(2, any), [(1, 0), (0, 2)]);
    assert_eq!(table.check_time(1e9), Ok(()));
}

#[test]
fn a_message_goes_to_the_first_receive_that_takes_it() {
    let mut table = Agreement::new(3, 10.0, 1000);
    for (ordinal, from) in [(0, Some(2)), (1, None), (2, Some(1)), (3, None)] {
        assert_eq!(table.call(0, message(0, Peering::From(from), ordinal, DType::F32), 0.0), Ok(vec![]));
    }
    let mut send = |rank, ordinal| ends(table.call(rank, message(rank, Peering::To(0), ordinal, DType::F32), 0.0));
    assert_eq!(send(1, 0), [(1, 0), (0, 1)]);
    assert_eq!(send(1, 1), [(1, 1), (0, 2)]);
    assert_eq!(send(1, 2), [(1, 2), (0, 3)]);
    assert_eq!(send(2, 0), [(2, 0), (0, 0)]);
}

#[test]
fn a_message_that_does_not_fit_fails_at_its_two_ends_alone() {
    let mut table = Agreement::new(3, 10.0, 1000);
    assert_eq!(table.call(0, message(0, Peering::From(None), 4, DType::F32), 0.0), Ok(vec![]));
    let orders = table.call(2, message(2, Peering::To(0), 7, DType::F64), 0.0).unwrap();
    let [Order::Refuse(sent), Order::Refuse(received)] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!((sent.ordinal, received.ordinal), (7, 4));
    assert!([0, 1, 2].map(|rank| orders[0].concerns(rank)) == [false, false, true]);
    assert!([0, 1, 2].map(|rank| orders[1].concerns(rank)) == [true, false, false]);
    let text = received.fault.to_string();
    assert!(text.contains("rank 0 has send and recv of f32") && text.contains("receive the dtype"), "{text}");
    // A caller with a wrong rank, a rank that does not exist, and a rank of another communicator.
    for (rank, among, peer) in
        [(1, None, Peering::To(0)), (0, None, Peering::To(3)), (0, Some(vec![0, 1]), Peering::To(2))]
    {
        let topic = Topic::Message(Envelope { comm: 0, among, tag: 0, rank, peer });
        let call = Call { topic, ..message(0, peer, 0, DType::F32) };
        assert!(table.call(0, call, 0.0).is_err());
    }
}

#[test]
fn a_receive_from_any_rank_waits_in_vain_when_nobody_is_left_who_could_send() {
    let table = || {
        let mut table = Agreement::new(3, 10.0, 1000);
        assert_eq!(table.call(0, message(0, Peering::From(None), 0, DType::F32), 0.0), Ok(vec![]));
        table
    };
    let mut left = table();
    assert_eq!(left.leave(1, None, 0.0), Ok(vec![]), "rank 2 can send");
    let text = left.leave(2, None, 0.0).unwrap_err().to_string();
    assert!(text.contains("ended its run") && text.contains("from any rank to rank 0, tag 0"), "{text}");
    // Ranks 0 and 1 wait for each other, but rank 2 may send to rank 0.
    let mut stuck = table();
    assert_eq!(stuck.call(1, message(1, Peering::From(Some(0)), 0, DType::F32), 0.0), Ok(vec![]));
    let wait =
        |table: &mut Agreement, rank| table.stuck(rank, Some(Stuck { orders: 0, has_begun: true, site: None }), 0.0);
    (0..2).for_each(|rank| wait(&mut stuck, rank));
    assert_eq!(stuck.check_deadlock(&[0; 3], 3.0), Ok(()));
    assert_eq!(stuck.leave(2, None, 0.0), Ok(vec![]), "rank 1 can send");
    assert!(matches!(stuck.check_deadlock(&[0; 3], 3.0), Err(Error::Deadlock { .. })));
    let error = table().check_time(11.0).unwrap_err();
    assert!(matches!(error, Error::Stalled { ref missing, .. } if missing == &[1, 2]), "{error}");
}
