//! Runs rank 0's table and the ranks' calls with any programs and any order of calls and messages, in the
//! simulation of `ringpull-allreduce`. Also runs the table alone with messages that no rank of ours would
//! send.
//!
//! Nothing panics. Every call begins once on each rank, and all ranks have the same operation under one
//! number (which the simulation asserts). Programs that fit together end with everything done. Others end
//! with a fault, or with a missing call that rank 0 can name.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ringpull_allreduce::progress::agreement::Agreement;
use ringpull_allreduce::progress::messages::{
    Call, Envelope, Operation, Order, Overdue, Peering, StoppedCycle, Stuck, Terms, Topic, Transfer,
};
use ringpull_base::{DType, Key, Reduction};

#[allow(dead_code)]
#[path = "."]
mod progress {
    pub(crate) use ringpull_allreduce::progress::{agreement, calls, messages};

    #[path = "."]
    pub(crate) mod tests {
        #[path = "../../crates/allreduce/src/progress/tests/schedule/world.rs"]
        mod world;

        pub(crate) use together::run;

        mod together {
            use std::collections::VecDeque;

            use ringpull_base::DType;

            use super::super::super::{RankGroup, AgreementAction};
            use super::world::{ALL, Do, World};

            /// Runs the programs until no more moves are possible.
            pub(crate) fn run(input: &RankGroup) {
                let size = usize::from(input.more_ranks % 3) + 1;
                let common: Vec<Do> = input.steps.iter().take(4).flat_map(step).collect();
                // Some rank's program may differ: then they need not fit together.
                let differ: Vec<(usize, usize, Do)> = input
                    .changes
                    .iter()
                    .take(2)
                    .map(|(rank, at, what)| (usize::from(*rank) % size, usize::from(*at), one(what)))
                    .collect();
                let programs = (0..size).map(|rank| {
                    let mut program = common.clone();
                    for (_, at, what) in differ.iter().filter(|(of, ..)| *of == rank) {
                        let at = at % (program.len() + 1);
                        if input.replaces && at < program.len() { program[at] = *what } else { program.insert(at, *what) }
                    }
                    program.retain(|what| !matches!(what, Do::Split(set) | Do::Meet(set, _) if set >> rank & 1 == 0));
                    program.extend(input.leaves.then_some(Do::Leave));
                    program
                });
                let mut world = World::new(programs.collect(), 0);
                world.agreement.remember(usize::from(input.names));
                if input.sums_block {
                    world.sums_block();
                }
                world.bucket_bytes(usize::from(input.bucket) * 50);
                let mut choices = input.choices.iter().cycle();
                let is_done = |world: &World| world.programs.iter().all(VecDeque::is_empty);
                loop {
                    let moves = world.moves();
                    // If no other move is possible, some rank runs out of patience with the frozen cycle.
                    let is_impatient = moves.is_empty() && (0..size).any(|rank| world.hurry(rank));
                    if is_impatient {
                        continue;
                    }
                    if moves.is_empty() || world.fault.is_some() {
                        break;
                    }
                    let choice = choices.next().copied().map_or(0, usize::from);
                    world.make(moves[choice % moves.len()]);
                }
                if differ.is_empty() {
                    assert!(world.fault.is_none() && is_done(&world), "{:?}, {:?}", world.fault, world.programs);
                    assert!(world.numbers.is_empty(), "something is not done");
                } else if world.fault.is_none() && !is_done(&world) {
                    world.agreement.check_time(1000.0).expect_err("rank 0 does not know what is missing");
                }
            }

            /// Returns a step, repeated often enough to be frozen.
            fn step((times, whats): &(u8, Vec<AgreementAction>)) -> Vec<Do> {
                let step: Vec<Do> = whats.iter().take(5).map(one).collect();
                step.repeat(usize::from(*times % 6) + 1)
            }

            fn one(what: &AgreementAction) -> Do {
                match what {
                    AgreementAction::Push(key) => Do::Push(0, i64::from(key % 4), DType::F32),
                    AgreementAction::Alone(key) => Do::Push(0, 100 + i64::from(key % 2), DType::F32),
                    AgreementAction::Divided(key) => Do::Push(0, 50 + i64::from(key % 2), DType::F32),
                    AgreementAction::Split => Do::Split(3),
                    AgreementAction::Meet(name) => Do::Meet(ALL, i64::from(name % 3)),
                    AgreementAction::MeetOfSet(name) => Do::Meet(3, i64::from(name % 3)),
                    AgreementAction::Other(key) => Do::Push(1, i64::from(key % 2), DType::F32),
                    AgreementAction::Half(key) => Do::Push(0, i64::from(key % 4), DType::F16),
                    AgreementAction::Wait => Do::Wait,
                    AgreementAction::Join => Do::Join,
                }
            }
        }
    }
}

#[derive(Arbitrary, Debug)]
enum AgreementInput {
    Ranks(RankGroup),
    Table { more_ranks: u8, messages: Vec<(u8, Delivery)> },
}

#[derive(Arbitrary, Debug)]
struct RankGroup {
    more_ranks: u8,
    sums_block: bool,
    bucket: u8,
    /// The number of names of collectives that are remembered.
    names: u8,
    leaves: bool,
    /// The steps of every rank, each with the number of its repetitions.
    steps: Vec<(u8, Vec<AgreementAction>)>,
    changes: Vec<(u8, u8, AgreementAction)>,
    replaces: bool,
    choices: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
enum AgreementAction {
    Push(u8),
    Alone(u8),
    Divided(u8),
    Other(u8),
    Half(u8),
    /// Ranks 0 and 1 make their process set.
    Split,
    /// A collective of all ranks, by its name.
    Meet(u8),
    /// A collective of that process set.
    MeetOfSet(u8),
    Wait,
    Join,
}

#[derive(Arbitrary, Debug)]
enum Delivery {
    /// The next call of a rank on a key, or a call with any ordinal.
    Call { key: u8, ordinal: Option<u32>, terms: bool, transfer: u8, waited: bool },
    /// The next call of a collective of this name, of all ranks or of a process set.
    Collective { name: u8, set: Option<u8>, ordinal: Option<u32>, arguments: bool },
    /// A send to a rank, or a receive from one rank or from any rank.
    Message { sends: bool, other: Option<u8>, ordinal: Option<u32>, arguments: bool },
    Forgot,
    Barrier,
    Invalidate { epoch: u8, has_begun: Option<bool> },
    StoppedCycle { epoch: u8, begun: u64, is_missing: bool },
    Leave { epoch: Option<u8>, begun: u64 },
    Join,
    CaughtUp,
    Stuck(bool),
    Tick,
}

fuzz_target!(|input: AgreementInput| match input {
    AgreementInput::Ranks(ranks) => progress::tests::run(&ranks),
    AgreementInput::Table { more_ranks, messages } => table(usize::from(more_ranks % 4) + 1, messages),
});

/// Passes the messages to the table until its first error, as a job does.
fn table(size: usize, messages: Vec<(u8, Delivery)>) {
    let mut agreement = Agreement::new(size, 10.0, 1000);
    agreement.remember(2);
    let mut ordinals = vec![[0u64; 10]; size];
    let mut number = 0u32;
    for (at, (rank, message)) in messages.into_iter().enumerate() {
        let (rank, now_s) = (usize::from(rank) % size, at as f64);
        let mut next = |key: usize| {
            ordinals[rank][key] += 1;
            ordinals[rank][key] - 1
        };
        let outcome = match message {
            Delivery::Call { key, ordinal, terms, transfer, waited } => {
                let key = key % 4;
                let topic = Topic::Key { store: 0, key: Key::Int(i64::from(key)).into() };
                let dtype = if terms { DType::F32 } else { DType::F16 };
                let terms = Terms { value: Some((dtype, Vec::new().into())), ..Terms::default() };
                let sum = |is_divided| Transfer::Sum {
                    dtype: DType::F32,
                    reduction: Reduction::Sum,
                    len_bytes: 100,
                    priority: 0,
                    is_divided,
                };
                let transfer = if transfer % 3 == 0 { Transfer::Alone } else { sum(transfer % 3 == 1) };
                let ordinal = ordinal.map_or_else(|| next(usize::from(key)), u64::from);
                let operation = Operation::Push;
                agreement.call(rank, Call { topic, ordinal, operation, terms, transfer, waited }, now_s)
            }
            Delivery::Barrier => {
                let (dtype, reduction) = (DType::U8, Reduction::Sum);
                let transfer = Transfer::Sum { dtype, reduction, len_bytes: 1, priority: 0, is_divided: false };
                let (topic, ordinal, operation) = (Topic::Barrier, next(4), Operation::Barrier);
                let call = Call { topic, ordinal, operation, terms: Terms::default(), transfer, waited: true };
                agreement.call(rank, call, now_s)
            }
            Delivery::Collective { name, set, ordinal, arguments } => {
                let name = name % 4;
                let members = |set: u8| (0..size).filter(|rank| set >> rank & 1 == 1).collect();
                let topic = Topic::Collective { comm: 0, set: set.map(members), name: Some(i64::from(name).into()) };
                let ordinal = ordinal.map_or_else(|| next(5 + usize::from(name)), u64::from);
                let operation = if name == 0 { Operation::split() } else { Operation::Collective("allreduce".into()) };
                let terms = Terms { arguments: arguments.to_string(), ..Terms::default() };
                let transfer = Transfer::Messages { priority: 0 };
                agreement.call(rank, Call { topic, ordinal, operation, terms, transfer, waited: false }, now_s)
            }
            Delivery::Message { sends, other, ordinal, arguments } => {
                let other = other.map(|other| usize::from(other % 4));
                let peer = if sends { Peering::To(other.unwrap_or(0)) } else { Peering::From(other) };
                let topic = Topic::Message(Envelope { comm: 0, among: None, tag: 0, rank, peer });
                let ordinal = ordinal.map_or_else(|| next(9), u64::from);
                let terms = Terms { arguments: arguments.to_string(), ..Terms::default() };
                let (operation, transfer) = (Operation::message(), Transfer::Messages { priority: 0 });
                agreement.call(rank, Call { topic, ordinal, operation, terms, transfer, waited: false }, now_s)
            }
            Delivery::Forgot => {
                agreement.forgot(rank);
                Ok(Vec::new())
            }
            Delivery::Invalidate { epoch, has_begun } => {
                let overdue = has_begun.map(|has_begun| Overdue { has_begun, waited_s: 5.0 });
                Ok(agreement.invalidate(u32::from(epoch), overdue))
            }
            Delivery::StoppedCycle { epoch, begun, is_missing } => {
                agreement.stopped(rank, stopped(epoch, begun, is_missing), now_s)
            }
            Delivery::Leave { epoch, begun } => {
                agreement.leave(rank, epoch.map(|epoch| stopped(epoch, begun, false)), now_s)
            }
            Delivery::Join => agreement.join(rank, now_s),
            Delivery::CaughtUp => {
                agreement.caught_up(rank);
                Ok(Vec::new())
            }
            Delivery::Stuck(is_stuck) => {
                agreement.stuck(rank, is_stuck.then_some(Stuck { orders: 0, has_begun: true, site: None }), now_s);
                Ok(Vec::new())
            }
            Delivery::Tick => agreement
                .check_time(now_s)
                .and_then(|()| agreement.check_deadlock(&[0; 8], now_s))
                .map(|()| drop((agreement.late(), agreement.oldest())))
                .map(|()| Vec::new()),
        };
        match outcome {
            Ok(orders) => {
                for order in orders {
                    if let Order::Launch(launch) = order {
                        number = number.wrapping_add(1);
                        assert!(launch.number > 0);
                    }
                }
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        }
    }
}

fn stopped(epoch: u8, begun: u64, is_missing: bool) -> StoppedCycle {
    let missing = is_missing.then(|| (Key::Int(1), Operation::Push));
    StoppedCycle { epoch: u32::from(epoch), begun, missing }
}
