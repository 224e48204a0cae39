//! Runs the scheduler with any sequence of messages from nodes and strangers and of ticks of its clock.
//! Nothing panics, every node is welcomed at most once, and no two nodes of a role have one rank. Messages go
//! through the wire's encoding, as the scheduler gets them.
#![no_main]

use std::collections::BTreeSet;
use std::time::Duration;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ringpull_base::config::Role;
use ringpull_base::{Error, Key, Kind};
use ringpull_ps::message::{CallsMade, FromScheduler, NodeInfo, ToScheduler, WholeKeys, decode, encode};
use ringpull_ps::scheduler::{JobPhase, Scheduler, Settings};

#[derive(Arbitrary, Debug)]
struct SchedulerInput {
    workers: u8,
    servers: u8,
    /// True if every node registers before anything else.
    is_complete: bool,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
struct Step {
    from: u8,
    /// The milliseconds since the previous step.
    later: u16,
    what: SchedulerAction,
}

#[derive(Arbitrary, Debug)]
enum SchedulerAction {
    Register { role: u8, preferred: Option<u8>, kind: Option<bool>, num_workers: u8, num_servers: u8, host: String },
    Heartbeat(u64),
    Barrier(u64),
    FarBarriers(u8),
    Fault,
    Stalled { missing: Vec<u8>, is_barrier: bool },
    Waits(Vec<u8>),
    Goodbye,
    Failing(Option<String>),
    Tick,
    Probe,
    Unreachable,
    Enter,
    Counts,
    Known(u8),
    Settled(u8),
    Joined(u8),
    Bytes(Vec<u8>),
    Connected,
}

fuzz_target!(|input: SchedulerInput| {
    let (num_workers, num_servers) = (usize::from(input.workers) % 3 + 1, usize::from(input.servers) % 2 + 1);
    let mut scheduler = Scheduler::new(Settings {
        num_workers,
        num_servers,
        warn: Duration::from_secs(3),
        timeout: Duration::from_secs(10),
        silence: Duration::from_secs(5),
        bigarray_bound: 1000,
        token: 1,
        // The other bits of the number.
        is_elastic: input.workers >= 128,
        host: "h".to_owned(),
    });
    let mut now = Duration::ZERO;
    let mut welcomed = BTreeSet::new();
    if input.is_complete {
        for node in 0..num_workers + num_servers {
            let role = if node < num_workers { Role::Worker } else { Role::Server };
            let message = register(role, None, Some(Kind::DistSync), (num_workers, num_servers), "h");
            scheduler.handle(&[node as u8], message, now).expect("the job's nodes are registered");
        }
        check(&mut scheduler, &mut welcomed);
        assert_eq!(welcomed.len(), num_workers + num_servers);
    }
    for step in input.steps {
        now += Duration::from_millis(u64::from(step.later));
        let from = [step.from % 7];
        let sent = match step.what {
            SchedulerAction::Tick => {
                scheduler.tick(now);
                scheduler.warning(now);
                Vec::new()
            }
            SchedulerAction::Probe => {
                scheduler.probe();
                Vec::new()
            }
            SchedulerAction::Unreachable => {
                scheduler.unreachable(&from);
                Vec::new()
            }
            SchedulerAction::Register { role, preferred, kind, num_workers, num_servers, host } => {
                let role = [Role::Worker, Role::Server, Role::Scheduler][usize::from(role) % 3];
                let kind = kind.map(|is_async| if is_async { Kind::DistAsync } else { Kind::DistSync });
                let counts = (usize::from(num_workers) % 4, usize::from(num_servers) % 3);
                vec![register(role, preferred.map(usize::from), kind, counts, &host)]
            }
            SchedulerAction::Heartbeat(moved) => vec![ToScheduler::Heartbeat { moved }],
            SchedulerAction::Barrier(number) => vec![ToScheduler::Barrier { number }],
            SchedulerAction::FarBarriers(count) => {
                (0..u64::from(count) * 8).map(|number| ToScheduler::Barrier { number: number << 9 }).collect()
            }
            SchedulerAction::Fault => vec![ToScheduler::Fault(Error::argument("a", "b"))],
            SchedulerAction::Stalled { missing, is_barrier } => {
                let operation = if is_barrier { "barrier" } else { "push" }.to_owned();
                let missing = missing.into_iter().map(usize::from).collect();
                let (key, why) = (Key::Int(1), String::new());
                vec![ToScheduler::Stalled(Error::Stalled { operation, key, rank: 0, missing, waited_s: 1, why })]
            }
            SchedulerAction::Waits(missing) => {
                let missing = missing.into_iter().map(usize::from).collect();
                vec![ToScheduler::Waits { what: "push of key 1".to_owned(), missing }]
            }
            SchedulerAction::Goodbye => vec![ToScheduler::Goodbye],
            SchedulerAction::Failing(why) => vec![ToScheduler::Failing(why)],
            SchedulerAction::Enter => vec![ToScheduler::Enter],
            SchedulerAction::Counts => vec![ToScheduler::Counts(CallsMade::default())],
            SchedulerAction::Known(rank) => vec![ToScheduler::Known { rank: usize::from(rank), whole: WholeKeys::default() }],
            SchedulerAction::Settled(rank) => vec![ToScheduler::Settled { rank: usize::from(rank) }],
            SchedulerAction::Joined(rank) => vec![ToScheduler::Joined { rank: usize::from(rank) }],
            SchedulerAction::Bytes(bytes) => decode(&bytes).into_iter().collect(),
            SchedulerAction::Connected => vec![ToScheduler::Connected],
        };
        for message in sent {
            let message = decode(&encode(&message)).expect("what was encoded is decoded");
            if let Err(why) = scheduler.handle(&from, message, now) {
                assert!(!why.is_empty());
            }
        }
        check(&mut scheduler, &mut welcomed);
    }
});

fn register(
    role: Role,
    preferred: Option<usize>,
    kind: Option<Kind>,
    (num_workers, num_servers): (usize, usize),
    host: &str,
) -> ToScheduler {
    ToScheduler::Register { info: info(role, host), preferred, kind, num_workers, num_servers }
}

fn info(role: Role, host: &str) -> NodeInfo {
    NodeInfo { role, address: "127.0.0.1".to_owned(), port: 1, pid: 7, host: host.to_owned() }
}

fn check(scheduler: &mut Scheduler, welcomed: &mut BTreeSet<(bool, usize)>) {
    for (to, message) in scheduler.take_outputs() {
        assert!(decode::<FromScheduler>(&encode(&message)).is_some());
        if let FromScheduler::Welcome(job) = message {
            // The message does not contain the receiver's role, which is the one for which it registered.
            let is_server = usize::from(to[0]) >= job.workers.len() && job.servers.len() > job.rank;
            assert!(job.rank < job.workers.len().max(job.servers.len()));
            welcomed.insert((is_server, job.rank));
        }
    }
    if let JobPhase::Failed(error) = scheduler.phase() {
        assert!(!error.to_string().is_empty());
    }
}
