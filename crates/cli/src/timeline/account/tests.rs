//! Hand-made traces with a known account.

use ringpull_base::config::Role;
use ringpull_base::timeline::trace::{About, Args, Trace, TraceEvent};

use super::account;
use crate::timeline::merge::{MergedTimeline, merge};

/// A rank's spans as (category, name, start, end), in milliseconds. The caller is thread 1; all other work is
/// on thread 2.
pub(in crate::timeline) fn rank(rank: usize, spans: &[(&str, &str, u32, u32)]) -> Trace {
    let about = About {
        ringpull: String::new(),
        role: Role::Worker,
        rank: Some(rank),
        size: 2,
        host: "h".to_owned(),
        pid: 1,
        zero_unix_ns: 0,
        ahead_ns: 0,
        round_trip_ns: Some(1),
        left_out: 0,
    };
    let event = |(cat, name, start, end): &(&str, &str, u32, u32)| TraceEvent {
        name: (*name).to_owned(),
        cat: (*cat).to_owned(),
        ph: "X".to_owned(),
        ts: f64::from(*start) * 1e3,
        dur: Some(f64::from(end - start) * 1e3),
        pid: rank as u32,
        tid: if ["step", "push", "wait"].contains(cat) { 1 } else { 2 },
        id: None,
        args: Args { bytes: (*cat == "push").then_some(400), name: None },
    };
    Trace { events: spans.iter().map(event).collect(), unit: "ms".to_owned(), about }
}

fn two_ranks() -> MergedTimeline {
    // Rank 0 waits from 30 to 100: until 60 for rank 1's push, then for the wire, from 80 to 90 for the
    // copies, then for the update.
    let first = rank(
        0,
        &[
            ("step", "warm-up", 0, 10),
            ("step", "step", 10, 110),
            ("push", "w", 20, 22),
            ("wait", "w", 30, 100),
            ("collective", "w", 60, 80),
            ("unpack", "w", 80, 90),
            ("update", "w", 90, 100),
        ],
    );
    let second = rank(
        1,
        &[("step", "step", 10, 110), ("push", "w", 60, 61), ("wait", "w", 70, 80), ("collective", "w", 60, 80)],
    );
    merge(vec![first, second]).unwrap()
}

fn near(got: f64, milliseconds: f64) -> bool {
    (got * 1e3 - milliseconds).abs() < 1e-6
}

#[test]
fn a_hand_made_trace_gives_the_numbers_it_was_made_from() {
    let found = account(&two_ranks());
    assert_eq!(found.ranks.iter().map(|rank| rank.steps).collect::<Vec<_>>(), [1, 1]);
    let share = found.ranks[0].share;
    let parts = [
        (share.step_s, 100.0),
        (share.compute_s, 28.0),
        (share.push_s, 2.0),
        (share.straggler_s, 30.0),
        (share.communication_s, 20.0),
        (share.packing_s, 10.0),
        (share.update_s, 10.0),
    ];
    assert!(parts.iter().all(|(got, known)| near(*got, *known)), "{share:?}");
    let share = found.ranks[1].share;
    assert!(near(share.compute_s, 89.0) && near(share.communication_s, 10.0) && share.straggler_s == 0.0, "{share:?}");
    assert!(near(found.ranks[1].awaited_s, 30.0) && found.ranks[0].awaited_s == 0.0);
    assert!(near(found.mean.communication_s, 15.0));
    let key = &found.keys[0];
    assert_eq!((key.key.as_str(), key.bytes), ("w", 400));
    assert!(near(key.blocked_s, 40.0) && near(key.communication_s, 20.0), "{key:?}");
}

#[test]
fn without_marks_a_step_lasts_from_a_push_of_the_first_key_to_its_next() {
    // `once` is pushed only before the first step.
    let once = [("push", "once", 0, 1), ("wait", "once", 1, 2)];
    let pushes = [("push", "b", 3, 4), ("push", "a", 5, 6), ("wait", "b", 10, 20), ("push", "b", 53, 54)];
    let found = account(&merge(vec![rank(0, &[&once[..], &pushes[..]].concat())]).unwrap());
    assert_eq!(found.steps_by, "the first key that is pushed again");
    assert!(near(found.mean.step_s, 50.0) && near(found.mean.communication_s, 10.0), "{found:?}");
}

#[test]
fn a_barrier_that_one_rank_reaches_late_is_waiting_for_that_rank() {
    let early = rank(0, &[("push", "w", 0, 1), ("wait", "barrier", 10, 50), ("push", "w", 60, 61)]);
    let late = rank(1, &[("push", "w", 0, 1), ("wait", "barrier", 45, 50), ("push", "w", 60, 61)]);
    let found = account(&merge(vec![early, late]).unwrap());
    assert!(near(found.ranks[0].share.straggler_s, 35.0) && near(found.ranks[0].share.communication_s, 5.0));
    assert!(near(found.ranks[1].share.communication_s, 5.0) && near(found.ranks[1].awaited_s, 35.0));
}

#[test]
fn a_framework_calls_on_many_threads_and_its_program_waits_for_results() {
    // Four steps of 25 ms. Pushes are made on two threads in turn. In each step the program's own thread
    // waits from 10 to 20, of which until 16 for rank 1.
    let of = |number: usize, start: u32| {
        let steps = (0..4).map(|step| 25 * step);
        let spans: Vec<_> = steps
            .flat_map(|at| [("push", "w", at + start, at + start + 1), ("wait", "results", at + 10, at + 20)])
            .collect();
        let mut trace = rank(number, &spans);
        for (index, event) in trace.events.iter_mut().enumerate() {
            event.tid = if event.cat == "wait" { 9 } else { 3 + (index / 2 % 2) as u32 };
        }
        trace
    };
    let found = account(&merge(vec![of(0, 0), of(1, 16)]).unwrap());
    let share = found.ranks[0].share;
    assert_eq!(found.ranks[0].steps, 3);
    assert!(near(share.step_s, 25.0) && near(share.straggler_s, 6.0) && near(share.communication_s, 4.0), "{share:?}");
    assert!(near(found.ranks[1].awaited_s, 6.0) && found.ranks[1].share.straggler_s == 0.0, "{found:?}");
}
