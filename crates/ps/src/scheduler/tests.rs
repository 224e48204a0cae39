//! Tests ranks, barriers, silence and the end of a job, with a simulated clock.

use super::changes::said_of_loss;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn scheduler() -> Scheduler {
    Scheduler::new(Settings {
        num_workers: 2,
        num_servers: 1,
        warn: SECOND * 30,
        timeout: SECOND * 10,
        silence: SECOND * 5,
        bigarray_bound: 1000,
        token: 1,
        is_elastic: false,
        host: "h1".into(),
    })
}

fn register(role: Role, preferred: Option<usize>, kind: Option<Kind>) -> ToScheduler {
    ToScheduler::Register { info: info(role), preferred, kind, num_workers: 2, num_servers: 1 }
}

fn info(role: Role) -> NodeInfo {
    NodeInfo { role, address: "127.0.0.1".into(), port: 1, pid: 7, host: "h1".into() }
}

fn complete() -> Scheduler {
    let mut scheduler = scheduler();
    for (name, role, preferred, kind) in [
        (b"a", Role::Worker, Some(1), Some(Kind::DistSync)),
        (b"s", Role::Server, None, None),
        (b"b", Role::Worker, None, Some(Kind::DistSync)),
    ] {
        scheduler.handle(name, register(role, preferred, kind), SECOND).unwrap();
    }
    scheduler
}

fn failure(scheduler: &Scheduler) -> String {
    match scheduler.phase() {
        JobPhase::Failed(error) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_asked_for_are_given_and_the_others_fill_up() {
    let outputs = complete().take_outputs();
    let ranks = outputs.iter().map(|(to, message)| match message {
        FromScheduler::Welcome(job) => (to[0], job.rank),
        other => panic!("{other:?}"),
    });
    assert_eq!(ranks.collect::<Vec<_>>(), [(b'a', 1), (b's', 0), (b'b', 0)]);
}

#[test]
fn workers_of_other_hosts_leave_a_barrier_before_those_of_the_schedulers() {
    let mut scheduler = scheduler();
    for (name, host) in [(b"a", "h1"), (b"b", "h2")] {
        let info = NodeInfo { host: host.into(), ..info(Role::Worker) };
        let kind = Some(Kind::DistSync);
        let register = ToScheduler::Register { info, preferred: None, kind, num_workers: 2, num_servers: 1 };
        scheduler.handle(name, register, SECOND).unwrap();
    }
    scheduler.handle(b"s", register(Role::Server, None, None), SECOND).unwrap();
    scheduler.take_outputs();
    for name in [b"a", b"b"] {
        scheduler.handle(name, ToScheduler::Barrier { number: 1 }, SECOND).unwrap();
    }
    let told: Vec<u8> = scheduler.take_outputs().iter().map(|(to, _)| to[0]).collect();
    assert_eq!(told, [b'b', b'a']);
}

#[test]
fn a_silent_node_is_named_to_all() {
    let mut scheduler = complete();
    scheduler.take_outputs();
    for name in [b"a", b"s"] {
        scheduler.handle(name, ToScheduler::Heartbeat { moved: 0 }, SECOND * 5).unwrap();
    }
    scheduler.tick(SECOND * 7);
    assert!(failure(&scheduler).contains("worker rank 0 (pid 7 on h1)"));
    let aborts = scheduler.take_outputs().into_iter().filter(|(_, m)| matches!(m, FromScheduler::Abort(_)));
    assert_eq!(aborts.count(), 3);
}

/// Rank 1's report that it has waited `waited_s` seconds for rank 0's push of key 3.
fn stalled(waited_s: u64) -> ToScheduler {
    let (operation, key, why) = ("push".to_owned(), Key::Int(3), String::new());
    ToScheduler::Stalled(Error::Stalled { operation, key, rank: 1, missing: vec![0], waited_s, why })
}

#[test]
fn a_stall_is_believed_only_when_the_missing_rank_moves_nothing() {
    let mut scheduler = complete();
    scheduler.handle(b"b", ToScheduler::Heartbeat { moved: 99 }, SECOND * 8).unwrap();
    scheduler.handle(b"a", stalled(10), SECOND * 12).unwrap();
    assert_eq!(*scheduler.phase(), JobPhase::Running);
    scheduler.handle(b"a", stalled(10), SECOND * 18).unwrap();
    assert!(failure(&scheduler).contains("rank(s) [0]"));
}

#[test]
fn waiting_for_a_worker_that_has_ended_is_an_error_at_once() {
    for (waits, told) in [(stalled(0), "push of key 3"), (ToScheduler::Barrier { number: 1 }, "barrier")] {
        let mut scheduler = complete();
        scheduler.handle(b"b", ToScheduler::Heartbeat { moved: 99 }, SECOND).unwrap();
        scheduler.take_outputs();
        scheduler.handle(b"b", ToScheduler::Goodbye, SECOND).unwrap();
        assert!(scheduler.take_outputs().contains(&(b"a".to_vec(), FromScheduler::WorkerLeft { rank: 0, why: None })));
        scheduler.handle(b"a", waits, SECOND).unwrap();
        scheduler.tick(SECOND);
        let error = failure(&scheduler);
        let wanted =
            format!("worker rank 0 (pid 7 on h1) ended its run without calling {told}, for which rank 1 waits");
        assert!(error.starts_with(&wanted) && error.contains("same number of steps"), "{error}");
    }
}

#[test]
fn waiting_for_a_worker_that_failed_is_an_error_at_once_and_has_its_error() {
    for (waits, told) in [(stalled(0), "push of key 3"), (ToScheduler::Barrier { number: 1 }, "barrier")] {
        let mut scheduler = complete();
        scheduler.handle(b"b", ToScheduler::Heartbeat { moved: 99 }, SECOND).unwrap();
        scheduler.handle(b"b", ToScheduler::Failing(Some("ValueError: broken".to_owned())), SECOND).unwrap();
        scheduler.take_outputs();
        scheduler.handle(b"b", ToScheduler::Goodbye, SECOND).unwrap();
        let why = Some("ValueError: broken".to_owned());
        assert!(scheduler.take_outputs().contains(&(b"a".to_vec(), FromScheduler::WorkerLeft { rank: 0, why })));
        scheduler.handle(b"a", waits, SECOND).unwrap();
        scheduler.tick(SECOND);
        let error = failure(&scheduler);
        assert!(error.contains("ValueError: broken") && error.contains(told), "{error}");
    }
}

#[test]
fn all_are_connected_when_the_last_worker_is_and_workers_are_told_once() {
    let mut scheduler = complete();
    scheduler.take_outputs();
    scheduler.handle(b"s", ToScheduler::Connected, SECOND).unwrap_err();
    for (name, count) in [(b"a", 0), (b"a", 0), (b"b", 2), (b"b", 0)] {
        scheduler.handle(name, ToScheduler::Connected, SECOND).unwrap();
        let told = scheduler.take_outputs();
        assert!(told.iter().all(|(_, message)| *message == FromScheduler::AllConnected));
        assert_eq!(told.len(), count);
    }
}

#[test]
fn nobody_waits_for_the_connections_of_a_worker_that_has_left() {
    for has_left_first in [false, true] {
        let mut scheduler = complete();
        scheduler.take_outputs();
        let mut both = [(b"a", ToScheduler::Connected), (b"b", ToScheduler::Goodbye)];
        if has_left_first {
            both.reverse();
        }
        for (name, message) in both {
            scheduler.handle(name, message, SECOND).unwrap();
        }
        let told = scheduler.take_outputs();
        let is_told = |name: &[u8]| told.contains(&(name.to_vec(), FromScheduler::AllConnected));
        assert_eq!([b"a", b"s"].map(|name| is_told(name)), [true, false]);
    }
}

#[test]
fn a_stall_and_a_warning_always_have_a_rank_that_is_awaited() {
    let mut scheduler = complete();
    let (operation, key, why) = ("push".to_owned(), Key::Int(3), String::new());
    let of_nobody = Error::Stalled { operation, key, rank: 1, missing: Vec::new(), waited_s: 99, why };
    scheduler.handle(b"a", ToScheduler::Stalled(of_nobody), SECOND * 18).unwrap_err();
    assert_eq!(*scheduler.phase(), JobPhase::Running);
    scheduler.handle(b"a", ToScheduler::Barrier { number: 1 }, SECOND).unwrap();
    let warning = scheduler.warning(SECOND * 32).unwrap();
    assert_eq!(warning, "warning: the scheduler has waited 31 s for rank(s) [0] to come to a barrier");
}

#[test]
fn the_notice_of_a_loss_has_no_hint_within_and_does_not_say_to_restart_a_job_that_goes_on() {
    let said = said_of_loss(&complete().nodes[0].lost("its connection closed"), 1);
    let expected = "ringpull: worker rank 1 (pid 7 on h1) is lost: its connection closed (during heartbeat); \
                    the job goes on with 1 worker(s)";
    assert_eq!(said, expected);
}

#[test]
fn barriers_end_when_all_have_come_and_name_who_has_not() {
    let mut scheduler = complete();
    scheduler.handle(b"a", ToScheduler::Barrier { number: 1 }, SECOND).unwrap();
    scheduler.take_outputs();
    scheduler.handle(b"b", ToScheduler::Barrier { number: 1 }, SECOND).unwrap();
    assert_eq!(scheduler.take_outputs().len(), 2);
    scheduler.handle(b"b", ToScheduler::Barrier { number: 2 }, SECOND * 2).unwrap();
    for name in [b"a", b"b", b"s"] {
        scheduler.handle(name, ToScheduler::Heartbeat { moved: 0 }, SECOND * 12).unwrap();
    }
    scheduler.tick(SECOND * 13);
    assert!(failure(&scheduler).contains("rank(s) [1]"));
}

#[test]
fn the_last_goodbye_ends_the_job_well() {
    let mut scheduler = complete();
    scheduler.handle(b"a", ToScheduler::Goodbye, SECOND).unwrap();
    assert_eq!(*scheduler.phase(), JobPhase::Running);
    scheduler.unreachable(b"a");
    scheduler.handle(b"b", ToScheduler::Goodbye, SECOND).unwrap();
    assert_eq!(*scheduler.phase(), JobPhase::Ended);
    assert!(scheduler.take_outputs().contains(&(b"s".to_vec(), FromScheduler::Farewell)));
}

#[test]
fn strangers_and_nodes_too_many_are_turned_away() {
    let mut scheduler = complete();
    assert!(scheduler.handle(b"x", ToScheduler::Heartbeat { moved: 1 }, SECOND).is_err());
    assert!(scheduler.handle(b"x", ToScheduler::Fault(Error::argument("a", "b")), SECOND).is_err());
    assert!(scheduler.handle(b"x", register(Role::Worker, None, None), SECOND).is_err());
    assert_eq!(*scheduler.phase(), JobPhase::Running);
}

#[test]
fn workers_of_different_kinds_are_one_error() {
    let mut scheduler = scheduler();
    for (name, kind) in [(b"a", Kind::DistSync), (b"b", Kind::DistAsync)] {
        scheduler.handle(name, register(Role::Worker, None, Some(kind)), SECOND).unwrap();
    }
    assert!(failure(&scheduler).contains("dist_sync and dist_async"));
}

#[test]
fn workers_that_wait_for_each_other_get_an_error_once_that_is_certain() {
    let mut scheduler = complete();
    let waits = |rank: usize| ToScheduler::Waits { what: format!(" for push of key {rank}"), missing: vec![1 - rank] };
    // `a` has asked for rank 1.
    for second in 2..14 {
        scheduler.handle(b"a", waits(1), SECOND * second).unwrap();
        scheduler.handle(b"s", ToScheduler::Heartbeat { moved: 0 }, SECOND * second).unwrap();
        scheduler.handle(b"b", ToScheduler::Heartbeat { moved: second.into() }, SECOND * second).unwrap();
        scheduler.tick(SECOND * second);
        assert_eq!(*scheduler.phase(), JobPhase::Running, "rank 0 goes on");
    }
    for second in 14..17 {
        scheduler.handle(b"a", waits(1), SECOND * second).unwrap();
        scheduler.handle(b"b", waits(0), SECOND * second).unwrap();
        scheduler.handle(b"s", ToScheduler::Heartbeat { moved: 0 }, SECOND * second).unwrap();
        scheduler.tick(SECOND * second);
    }
    let text = failure(&scheduler);
    for words in
        ["rank 0 waits for push of key 0, which rank(s) [1]", "rank 1 waits for push of key 1, which rank(s) [0]"]
    {
        assert!(text.contains(words), "{text}");
    }
}

/// Rank 1 is late, rank 0 reports that it waits, and then each comes to a barrier at another time.
#[test]
fn a_late_worker_that_comes_to_a_barrier_is_no_deadlock() {
    let mut scheduler = complete();
    let waits = |missing: Vec<usize>| ToScheduler::Waits { what: " for push of key 0".into(), missing };
    for second in 2..14 {
        scheduler.handle(b"b", waits(vec![1]), SECOND * second).unwrap();
        for name in [b"a", b"s"] {
            scheduler.handle(name, ToScheduler::Heartbeat { moved: 0 }, SECOND * second).unwrap();
        }
        scheduler.tick(SECOND * second);
    }
    scheduler.handle(b"a", ToScheduler::Barrier { number: 1 }, SECOND * 14).unwrap();
    scheduler.tick(SECOND * 14);
    assert_eq!(*scheduler.phase(), JobPhase::Running);
    scheduler.handle(b"b", waits(vec![]), SECOND * 14).unwrap();
    for second in 14..17 {
        for name in [b"a", b"b", b"s"] {
            scheduler.handle(name, ToScheduler::Heartbeat { moved: 0 }, SECOND * second).unwrap();
        }
        scheduler.tick(SECOND * second);
        assert_eq!(*scheduler.phase(), JobPhase::Running, "rank 0 does something else before its barrier");
    }
}

/// Returns the messages to each node, as text.
fn sent(scheduler: &mut Scheduler) -> Vec<String> {
    let word = |message: &FromScheduler| match message {
        FromScheduler::Changed { generation, workers } => format!("changed {generation} {:?}", workers.keys()),
        FromScheduler::Entered { generation, workers, calls, barriers } => {
            format!("entered {generation} {:?} {:?} {barriers}", workers.keys(), calls.pushes)
        }
        FromScheduler::Lost { rank, incarnation } => format!("lost {rank} {incarnation}"),
        FromScheduler::Settle { rank, whole } => format!("settle {rank} {whole:?}"),
        FromScheduler::Join { rank, incarnation, after } => format!("join {rank} {incarnation} {after:?}"),
        FromScheduler::Welcome(job) => format!("welcome {} {} {:?}", job.rank, job.incarnation, job.present),
        FromScheduler::BarrierDone { number } => format!("barrier {number}"),
        FromScheduler::Count => "count".to_owned(),
        FromScheduler::Abort(_) => "abort".to_owned(),
        other => format!("{other:?}"),
    };
    let outputs = scheduler.take_outputs();
    outputs.iter().map(|(to, message)| format!("{}: {}", char::from(to[0]), word(message))).collect()
}

/// Worker b has rank 0, worker a has rank 1.
fn elastic() -> Scheduler {
    let mut scheduler = complete();
    scheduler.settings.is_elastic = true;
    scheduler.take_outputs();
    scheduler
}

#[test]
fn a_barrier_is_done_without_a_worker_that_is_lost_and_servers_agree_on_its_pushes() {
    let mut scheduler = elastic();
    scheduler.handle(b"b", ToScheduler::Barrier { number: 1 }, SECOND).unwrap();
    scheduler.unreachable(b"a");
    assert_eq!(sent(&mut scheduler), ["a: abort", "s: lost 1 0", "b: changed 1 [0]", "b: barrier 1"]);
    let known = crate::message::WholePushes { completed: 3, rounds: [5].into() };
    let whole = BTreeMap::from([(Key::Int(7), known)]);
    scheduler.handle(b"s", ToScheduler::Known { rank: 1, whole: whole.clone() }, SECOND).unwrap();
    assert_eq!(sent(&mut scheduler), [format!("s: settle 1 {whole:?}")]);
    assert_eq!(*scheduler.phase(), JobPhase::Running);
    // The job does not go on without its last worker, or without a server.
    scheduler.unreachable(b"b");
    assert!(failure(&scheduler).contains("worker rank 0"));
    let mut scheduler = elastic();
    scheduler.unreachable(b"s");
    assert!(failure(&scheduler).contains("server 0"));
}

#[test]
fn a_worker_that_reported_an_error_ends_an_elastic_job_with_it() {
    let mut scheduler = elastic();
    scheduler.handle(b"a", ToScheduler::Failing(Some("no memory".to_owned())), SECOND).unwrap();
    scheduler.unreachable(b"a");
    assert!(failure(&scheduler).contains("no memory"));
}

#[test]
fn a_worker_that_comes_later_gets_a_free_rank_and_takes_part_after_a_barrier() {
    let mut scheduler = elastic();
    scheduler.handle(b"c", register(Role::Worker, None, Some(Kind::DistSync)), SECOND).unwrap();
    assert!(sent(&mut scheduler).is_empty(), "no rank is free");
    scheduler.handle(b"c", ToScheduler::Heartbeat { moved: 0 }, SECOND).unwrap();
    assert_eq!(sent(&mut scheduler), ["c: Alive"]);
    scheduler.unreachable(b"a");
    scheduler.handle(b"s", ToScheduler::Known { rank: 1, whole: BTreeMap::new() }, SECOND).unwrap();
    sent(&mut scheduler);
    scheduler.handle(b"s", ToScheduler::Settled { rank: 1 }, SECOND).unwrap();
    assert_eq!(sent(&mut scheduler), ["c: welcome 1 1 [0, 1]"]);
    scheduler.handle(b"c", ToScheduler::Enter, SECOND).unwrap();
    scheduler.handle(b"b", ToScheduler::Barrier { number: 4 }, SECOND).unwrap();
    assert_eq!(sent(&mut scheduler), ["b: count"]);
    assert_eq!(scheduler.warning(SECOND * 40), None, "all have come to the barrier");
    let pushes = BTreeMap::from([(Key::Int(7), 9)]);
    let calls = crate::message::CallsMade { pushes, optimizer: None };
    scheduler.handle(b"b", ToScheduler::Counts(calls), SECOND).unwrap();
    assert_eq!(sent(&mut scheduler), ["s: join 1 1 {Int(7): 9}"]);
    scheduler.tick(SECOND * 3);
    assert_eq!(*scheduler.phase(), JobPhase::Running, "a worker in the barrier waits for nobody");
    scheduler.handle(b"s", ToScheduler::Joined { rank: 1 }, SECOND).unwrap();
    let told = ["b: changed 2 [0, 1]", "c: entered 2 [0, 1] {Int(7): 9} 4", "b: barrier 4", "c: barrier 4"];
    assert_eq!(sent(&mut scheduler), told);
    // From now on the others wait for it.
    scheduler.handle(b"b", ToScheduler::Barrier { number: 5 }, SECOND).unwrap();
    assert!(sent(&mut scheduler).is_empty());
    scheduler.handle(b"c", ToScheduler::Barrier { number: 5 }, SECOND).unwrap();
    assert_eq!(sent(&mut scheduler), ["b: barrier 5", "c: barrier 5"]);
}

/// Registers a worker or a server of a job of three workers.
fn register_of_three(role: Role) -> ToScheduler {
    match register(role, None, Some(Kind::DistSync)) {
        ToScheduler::Register { info, preferred, kind, num_servers, .. } => {
            ToScheduler::Register { info, preferred, kind, num_workers: 3, num_servers }
        }
        other => other,
    }
}

/// Workers a, b and d have the ranks 0, 1 and 2.
fn three() -> Scheduler {
    let mut scheduler = Scheduler::new(Settings { num_workers: 3, is_elastic: true, ..scheduler().settings });
    for (name, role) in [(b"a", Role::Worker), (b"b", Role::Worker), (b"d", Role::Worker), (b"s", Role::Server)] {
        scheduler.handle(name, register_of_three(role), SECOND).unwrap();
    }
    scheduler
}

/// The others have waited for a worker, and there would be a deadlock if it waited too.
#[test]
fn the_loss_of_a_worker_that_others_have_waited_for_is_no_deadlock() {
    let mut scheduler = three();
    for second in 2..9 {
        for name in [b"a", b"b"] {
            let waits = ToScheduler::Waits { what: " for push of key 0".into(), missing: vec![2] };
            scheduler.handle(name, waits, SECOND * second).unwrap();
        }
        scheduler.handle(b"d", ToScheduler::Heartbeat { moved: u64::from(second) }, SECOND * second).unwrap();
        scheduler.handle(b"s", ToScheduler::Heartbeat { moved: 0 }, SECOND * second).unwrap();
        scheduler.tick(SECOND * second);
        assert_eq!(*scheduler.phase(), JobPhase::Running);
    }
    scheduler.unreachable(b"d");
    // A report that was on its way when the worker was lost.
    let stalled = Error::Stalled {
        operation: "push".to_owned(),
        key: Key::Int(0),
        rank: 0,
        missing: vec![2],
        waited_s: 8,
        why: String::new(),
    };
    scheduler.handle(b"a", ToScheduler::Stalled(stalled), SECOND * 8).unwrap();
    scheduler.handle(b"s", ToScheduler::Known { rank: 2, whole: BTreeMap::new() }, SECOND * 8).unwrap();
    scheduler.handle(b"s", ToScheduler::Settled { rank: 2 }, SECOND * 8).unwrap();
    scheduler.tick(SECOND * 8);
    assert_eq!(*scheduler.phase(), JobPhase::Running);
}

#[test]
fn whoever_was_asked_what_it_has_called_may_be_lost_and_another_is_asked() {
    let mut scheduler = three();
    scheduler.unreachable(b"d");
    scheduler.handle(b"s", ToScheduler::Known { rank: 2, whole: BTreeMap::new() }, SECOND).unwrap();
    scheduler.handle(b"s", ToScheduler::Settled { rank: 2 }, SECOND).unwrap();
    scheduler.handle(b"c", register_of_three(Role::Worker), SECOND).unwrap();
    scheduler.handle(b"c", ToScheduler::Enter, SECOND).unwrap();
    scheduler.handle(b"a", ToScheduler::Barrier { number: 1 }, SECOND).unwrap();
    scheduler.handle(b"b", ToScheduler::Barrier { number: 1 }, SECOND).unwrap();
    sent(&mut scheduler);
    scheduler.unreachable(b"a");
    assert!(sent(&mut scheduler).contains(&"b: count".to_owned()));
    // The new worker may be lost too. The barrier is done without it.
    scheduler.unreachable(b"c");
    sent(&mut scheduler);
    scheduler.handle(b"b", ToScheduler::Counts(crate::message::CallsMade::default()), SECOND).unwrap();
    assert_eq!(sent(&mut scheduler), ["b: barrier 1"]);
}

#[test]
fn whoever_comes_and_finds_no_rank_is_told_so_in_the_end() {
    let mut scheduler = elastic();
    scheduler.handle(b"c", register(Role::Worker, None, Some(Kind::DistSync)), SECOND).unwrap();
    for name in [b"a", b"b", b"s"] {
        scheduler.handle(name, ToScheduler::Heartbeat { moved: 1 }, SECOND * 16).unwrap();
    }
    sent(&mut scheduler);
    scheduler.tick(SECOND * 17);
    assert_eq!(sent(&mut scheduler), ["c: abort"]);
    // A worker that comes while the job ends is told too.
    scheduler.handle(b"e", register(Role::Worker, None, Some(Kind::DistSync)), SECOND).unwrap();
    scheduler.handle(b"a", ToScheduler::Goodbye, SECOND).unwrap();
    scheduler.handle(b"b", ToScheduler::Goodbye, SECOND).unwrap();
    assert!(sent(&mut scheduler).contains(&"e: abort".to_owned()));
}
