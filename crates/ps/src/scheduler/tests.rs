//! Ranks, barriers, silence and the end of a job, under a clock of our own.

use super::*;
use crate::message::KnownJob;

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
        replicas: 1,
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
        assert!(
            scheduler
                .take_outputs()
                .contains(&(b"a".to_vec(), FromScheduler::WorkerLeft { rank: 0, info: info(Role::Worker), why: None }))
        );
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
        assert!(
            scheduler
                .take_outputs()
                .contains(&(b"a".to_vec(), FromScheduler::WorkerLeft { rank: 0, info: info(Role::Worker), why }))
        );
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

/// What is sent to each node, in words.
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
    // The last one is not gone on without, nor is a server.
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
    let pushes = BTreeMap::from([(Key::Int(7), 9)]);
    let calls = crate::message::CallsMade { pushes, optimizer: None };
    scheduler.handle(b"b", ToScheduler::Counts(calls), SECOND).unwrap();
    assert_eq!(sent(&mut scheduler), ["s: join 1 1 {Int(7): 9}"]);
    scheduler.tick(SECOND * 3);
    assert_eq!(*scheduler.phase(), JobPhase::Running, "a worker in the barrier waits for nobody");
    scheduler.handle(b"s", ToScheduler::Joined { rank: 1 }, SECOND).unwrap();
    let told = ["b: changed 2 [0, 1]", "c: entered 2 [0, 1] {Int(7): 9} 4", "b: barrier 4", "c: barrier 4"];
    assert_eq!(sent(&mut scheduler), told);
    // From now on it is waited for.
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

/// The others have waited for a worker for so long that it would be a deadlock if it waited too.
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
    // One that was on its way when the worker was lost.
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
    // So may be the one that comes; the barrier is done without it.
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
    // One that comes while the job ends is told too.
    scheduler.handle(b"e", register(Role::Worker, None, Some(Kind::DistSync)), SECOND).unwrap();
    scheduler.handle(b"a", ToScheduler::Goodbye, SECOND).unwrap();
    scheduler.handle(b"b", ToScheduler::Goodbye, SECOND).unwrap();
    assert!(sent(&mut scheduler).contains(&"e: abort".to_owned()));
}

/// A job of two workers and `servers` servers, each value on two of them.
fn with_replicas(servers: usize) -> Scheduler {
    let settings = Settings { num_servers: servers, replicas: 2, ..scheduler().settings };
    let mut scheduler = Scheduler::new(settings);
    for index in 0..servers + 2 {
        let kind = (index >= servers).then_some(Kind::DistSync);
        let role = if index >= servers { Role::Worker } else { Role::Server };
        let ToScheduler::Register { info, preferred, kind, num_workers, .. } = register(role, None, kind) else {
            panic!()
        };
        let message = ToScheduler::Register { info, preferred, kind, num_workers, num_servers: servers };
        scheduler.handle(&[index as u8], message, SECOND).unwrap();
    }
    scheduler.take_outputs();
    scheduler
}

#[test]
fn a_server_whose_values_others_have_is_gone_on_without() {
    let mut scheduler = with_replicas(3);
    let lost = || ToScheduler::ServerLost { rank: 1, cause: "its connection closed".to_owned() };
    assert!(scheduler.handle(&[0], lost(), SECOND).is_err(), "of a server");
    scheduler.handle(&[3], lost(), SECOND).unwrap();
    let told = scheduler.take_outputs();
    assert!(matches!(&told[..], [(server, FromScheduler::Abort(Error::PeerLost { .. })), _, _] if *server == [1]));
    let to_worker = |worker: u8| (vec![worker], FromScheduler::ServerLost { rank: 1 });
    assert_eq!(told[1..], [to_worker(3), to_worker(4)]);
    // Another worker, and the scheduler itself, notice it later.
    scheduler.handle(&[4], lost(), SECOND).unwrap();
    scheduler.unreachable(&[1]);
    assert!(scheduler.take_outputs().is_empty() && *scheduler.phase() == JobPhase::Running);
    scheduler.unreachable(&[0]);
    let error = failure(&scheduler);
    let words = ["server 0 (pid 7 on h1, 127.0.0.1:1) is lost", "and so was before it server 1 (pid 7", "hint: "];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn servers_of_different_values_may_be_lost_and_a_job_without_replicas_ends() {
    let mut scheduler = with_replicas(4);
    scheduler.unreachable(&[3]);
    scheduler.unreachable(&[1]);
    assert_eq!(*scheduler.phase(), JobPhase::Running);
    scheduler.unreachable(&[0]);
    assert!(failure(&scheduler).contains("and so was before it server 1 "), "{}", failure(&scheduler));
    let mut scheduler = complete();
    let lost = ToScheduler::ServerLost { rank: 0, cause: String::new() };
    assert!(scheduler.handle(b"a", lost, SECOND).is_err());
    scheduler.unreachable(b"s");
    assert!(failure(&scheduler).contains("server 0 (pid 7"), "{}", failure(&scheduler));
}

/// A scheduler that was started again in a job like that of `with_replicas`.
fn started_again(servers: usize) -> Scheduler {
    Scheduler::new(Settings { num_servers: servers, replicas: 2, ..scheduler().settings })
}

/// What the node of this role and rank knows, which knows nothing of the others.
fn known(rank: usize) -> KnownJob {
    let (left, lost_servers, barriers) = Default::default();
    KnownJob { rank, token: 9, kind: Kind::DistSync, left, lost_servers, barriers, last_barrier: 0 }
}

/// Worker 0 is `[0]`, server 0 `[10]`.
fn comes_back(scheduler: &mut Scheduler, role: Role, known: KnownJob) -> Result<(), String> {
    let identity = [known.rank as u8 + if role == Role::Server { 10 } else { 0 }];
    scheduler.handle(&identity, ToScheduler::Rejoin { info: info(role), known }, SECOND)
}

#[test]
fn a_server_that_a_worker_has_lost_while_there_was_no_scheduler_is_refused_before_and_after_it_comes_back() {
    for is_first in [false, true] {
        let mut scheduler = started_again(2);
        if is_first {
            comes_back(&mut scheduler, Role::Server, known(1)).unwrap();
        }
        comes_back(&mut scheduler, Role::Worker, known(0)).unwrap();
        let lost = ToScheduler::ServerLost { rank: 1, cause: "its connection closed".to_owned() };
        scheduler.handle(&[0], lost, SECOND).unwrap();
        if !is_first {
            comes_back(&mut scheduler, Role::Server, known(1)).unwrap_err();
        }
        let outputs = scheduler.take_outputs();
        let is_told = |(to, message): &(Identity, FromScheduler)| {
            *to == [11] && matches!(message, FromScheduler::Abort(error) if error.to_string().contains("server 1"))
        };
        assert!(outputs.iter().any(is_told), "{outputs:?}");
        comes_back(&mut scheduler, Role::Server, known(0)).unwrap();
        comes_back(&mut scheduler, Role::Worker, known(1)).unwrap();
        scheduler.tick(SECOND);
        assert!(scheduler.complete && *scheduler.phase() == JobPhase::Running);
        let told = scheduler.take_outputs();
        let to_worker = |worker: u8| (vec![worker], FromScheduler::ServerLost { rank: 1 });
        assert!(told.contains(&to_worker(0)) && told.contains(&to_worker(1)), "{told:?}");
    }
}

#[test]
fn all_servers_of_a_value_that_are_lost_without_a_scheduler_are_an_error_for_who_comes_back_later_too() {
    let mut scheduler = started_again(2);
    let lost = |rank: usize| BTreeMap::from([(rank, format!("server {rank} (pid 7 on h1)"))]);
    comes_back(&mut scheduler, Role::Worker, KnownJob { lost_servers: lost(0), ..known(0) }).unwrap();
    comes_back(&mut scheduler, Role::Worker, KnownJob { lost_servers: lost(1), ..known(1) }).unwrap();
    let error = failure(&scheduler);
    assert!(error.contains("so was before it server 0 (pid 7 on h1), which held the same values"), "{error}");
    assert!(sent(&mut scheduler).contains(&"\u{1}: abort".to_owned()));
    let mut scheduler = started_again(3);
    comes_back(&mut scheduler, Role::Worker, known(0)).unwrap();
    scheduler.handle(&[0], ToScheduler::Fault(Error::argument("no such thing", "try another")), SECOND).unwrap();
    comes_back(&mut scheduler, Role::Server, known(2)).unwrap();
    let told = scheduler.take_outputs();
    let [.., (to, FromScheduler::Abort(error))] = &told[..] else { panic!("{told:?}") };
    assert!(*to == [12] && error.to_string().contains("no such thing"), "{error}");
    assert!(!scheduler.all_are_back());
}

#[test]
fn who_does_not_come_back_is_lost_or_an_error_after_a_while() {
    let mut scheduler = started_again(2);
    for (role, rank) in [(Role::Worker, 0), (Role::Worker, 1), (Role::Server, 1)] {
        comes_back(&mut scheduler, role, known(rank)).unwrap();
    }
    let beats = |scheduler: &mut Scheduler, nodes: &[u8], now: Duration| {
        nodes.iter().for_each(|node| scheduler.handle(&[*node], ToScheduler::Heartbeat { moved: 0 }, now).unwrap());
        scheduler.tick(now);
    };
    beats(&mut scheduler, &[0, 1, 11], SECOND * 14);
    assert!(!scheduler.complete);
    beats(&mut scheduler, &[0, 1, 11], SECOND * 16);
    assert!(scheduler.complete && scheduler.lost_servers.contains_key(&0));
    let mut scheduler = started_again(2);
    for (role, rank) in [(Role::Worker, 0), (Role::Server, 0), (Role::Server, 1)] {
        comes_back(&mut scheduler, role, known(rank)).unwrap();
    }
    beats(&mut scheduler, &[0, 10, 11], SECOND * 16);
    assert!(failure(&scheduler).contains("worker rank(s) [1] did not come back"), "{}", failure(&scheduler));
}

#[test]
fn a_worker_that_left_is_known_to_all_again() {
    let mut scheduler = started_again(2);
    let left = BTreeMap::from([(1, (info(Role::Worker), Some("ValueError: broken".to_owned())))]);
    comes_back(&mut scheduler, Role::Worker, KnownJob { left, ..known(0) }).unwrap();
    comes_back(&mut scheduler, Role::Server, known(0)).unwrap();
    comes_back(&mut scheduler, Role::Server, known(1)).unwrap();
    scheduler.tick(SECOND);
    let why = Some("ValueError: broken".to_owned());
    let left = FromScheduler::WorkerLeft { rank: 1, info: info(Role::Worker), why };
    let told = scheduler.take_outputs();
    assert!(told.contains(&(vec![0], left.clone())) && told.contains(&(vec![10], left)), "{told:?}");
    scheduler.handle(&[0], ToScheduler::Goodbye, SECOND).unwrap();
    assert_eq!(*scheduler.phase(), JobPhase::Ended);
}

#[test]
fn barriers_go_on_in_a_scheduler_that_was_started_again() {
    let mut scheduler = started_again(2);
    comes_back(&mut scheduler, Role::Server, known(0)).unwrap();
    comes_back(&mut scheduler, Role::Server, known(1)).unwrap();
    comes_back(&mut scheduler, Role::Worker, KnownJob { barriers: vec![2, 3], last_barrier: 1, ..known(0) }).unwrap();
    comes_back(&mut scheduler, Role::Worker, KnownJob { last_barrier: 2, ..known(1) }).unwrap();
    let done = |scheduler: &mut Scheduler| {
        let outputs = scheduler.take_outputs().into_iter();
        outputs.filter(|(_, message)| matches!(message, FromScheduler::BarrierDone { .. })).collect::<Vec<_>>()
    };
    scheduler.tick(SECOND);
    assert!(done(&mut scheduler).contains(&(vec![0], FromScheduler::BarrierDone { number: 2 })));
    scheduler.handle(&[1], ToScheduler::Barrier { number: 3 }, SECOND).unwrap();
    assert!(done(&mut scheduler).contains(&(vec![0], FromScheduler::BarrierDone { number: 3 })));
}

#[test]
fn what_cannot_be_a_node_of_the_job_does_not_come_back() {
    let refused = |scheduler: &mut Scheduler, role, known| {
        scheduler.take_outputs();
        comes_back(scheduler, role, known).unwrap_err();
        let told = scheduler.take_outputs();
        assert!(matches!(&told[..], [(_, FromScheduler::Abort(_))]), "{told:?}");
    };
    let mut scheduler = started_again(2);
    let name = "x".repeat(2000);
    refused(&mut scheduler, Role::Worker, known(2));
    refused(&mut scheduler, Role::Scheduler, known(0));
    refused(&mut scheduler, Role::Worker, KnownJob { barriers: vec![1; MAX_BARRIERS + 1], ..known(0) });
    refused(&mut scheduler, Role::Worker, KnownJob { lost_servers: BTreeMap::from([(2, String::new())]), ..known(0) });
    refused(&mut scheduler, Role::Worker, KnownJob { lost_servers: BTreeMap::from([(1, name.clone())]), ..known(0) });
    let left = BTreeMap::from([(0, (NodeInfo { host: name, ..info(Role::Worker) }, None))]);
    refused(&mut scheduler, Role::Worker, KnownJob { left, ..known(1) });
    comes_back(&mut scheduler, Role::Worker, known(0)).unwrap();
    refused(&mut scheduler, Role::Worker, known(0));
    refused(&mut scheduler, Role::Worker, KnownJob { token: 8, ..known(1) });
    refused(&mut with_replicas(2), Role::Worker, known(1));
    refused(&mut complete(), Role::Worker, known(1));
}

#[test]
fn asynchronous_values_are_not_on_several_servers() {
    let mut scheduler = started_again(1);
    scheduler.handle(b"a", register(Role::Worker, None, Some(Kind::DistAsync)), SECOND).unwrap();
    assert!(failure(&scheduler).contains("dist_async has no values on 2 servers each"));
}
