//! Ranks, barriers, silence and the end of a job, under a clock of our own.

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
    })
}

fn register(role: Role, preferred: Option<usize>, kind: Option<Kind>) -> ToScheduler {
    let info = NodeInfo { role, address: "127.0.0.1".into(), port: 1, pid: 7, host: "h1".into() };
    ToScheduler::Register { info, preferred, kind, num_workers: 2, num_servers: 1 }
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

/// Rank 1 has waited this long for rank 0's push of key 3.
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

/// Rank 1 is late, rank 0 says that it waits, and then each comes to a barrier at its own time.
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
