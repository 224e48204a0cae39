//! Workers are lost in any state of two servers. Every sum comes, is the same in all segments of its key, and
//! contains the pushes of all survivors.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use ringpull_base::{DType, Key};

use super::*;
use crate::message::{WholeKeys, WholePushes};

const ROUNDS: u64 = 3;
const WORKERS: usize = 3;
/// For each key, the server of each segment. The first key has a segment on each server, and the second has
/// both on one.
const KEYS: [(&str, [usize; 2]); 2] = [("over both", [0, 1]), ("on one", [1, 1])];

enum Notice {
    Lose(usize),
    Settle(usize, WholeKeys),
}

/// The messages on their way from one worker to one server.
type OnTheWay = VecDeque<(Request, Vec<u8>)>;

/// Two servers, the messages on their way to them, and the workers' knowledge.
struct SimulatedServers {
    servers: Vec<Server>,
    requests: BTreeMap<(usize, usize), OnTheWay>,
    orders: Vec<VecDeque<Notice>>,
    /// The pushes that only one of two servers has reported.
    reported: BTreeSet<(usize, Key, u64)>,
    /// For each lost rank: the servers that have not answered the loss, and the whole pushes that the others
    /// know.
    losses: BTreeMap<usize, (usize, WholeKeys)>,
    is_alive: [bool; WORKERS],
    /// The values that workers got for each segment, by key and round.
    values: BTreeMap<(usize, u64), Vec<f32>>,
}

fn contribution(rank: usize, round: u64) -> f32 {
    10f32.powi(rank as i32) * round as f32
}

impl SimulatedServers {
    fn new(sync: bool) -> Self {
        let mut requests: BTreeMap<_, OnTheWay> = BTreeMap::new();
        for rank in 0..WORKERS {
            for (number, (name, servers)) in KEYS.into_iter().enumerate() {
                let spans = servers[0] != servers[1];
                for (segment, server) in servers.into_iter().enumerate() {
                    let place = Place { key: name.into(), segment: segment as u32 };
                    let here = if spans { 1 } else { 2 };
                    let queue = requests.entry((rank, server)).or_default();
                    let bytes = |value: f32| value.to_le_bytes().to_vec();
                    let (dtype, shape) = (DType::F32, vec![2]);
                    let init =
                        Request::Init { place: place.clone(), dtype, shape, len_bytes: 4, unit_bytes: 4, here, spans };
                    queue.push_back((init, bytes(rank as f32)));
                    let reply = |round: u64| Some((PullTarget::Value, round * 10 + number as u64));
                    let places = Places { key: name.into(), segments: vec![segment as u32] };
                    let first = Request::Pull { places, rounds: 0, want: PullTarget::Value, reply: number as u64 };
                    queue.push_back((first, Vec::new()));
                    for round in 1..=ROUNDS {
                        let place = place.clone();
                        let push = Request::Push { place, round, optimizer: 0, compression: None, reply: reply(round) };
                        queue.push_back((push, bytes(contribution(rank, round))));
                    }
                }
            }
        }
        SimulatedServers {
            servers: (0..2).map(|_| Server::elastic(WORKERS, sync)).collect(),
            requests,
            orders: (0..2).map(|_| VecDeque::new()).collect(),
            reported: BTreeSet::new(),
            losses: BTreeMap::new(),
            is_alive: [true; WORKERS],
            values: BTreeMap::new(),
        }
    }

    fn kill(&mut self, rank: usize) {
        if self.is_alive.iter().filter(|alive| **alive).count() > 1 && std::mem::take(&mut self.is_alive[rank]) {
            self.losses.insert(rank, (2, WholeKeys::new()));
            self.orders.iter_mut().for_each(|orders| orders.push_back(Notice::Lose(rank)));
        }
    }

    /// Delivers one message, if any is left, from the `choice`th of the non-empty queues.
    fn step(&mut self, choice: usize) -> bool {
        let mut ways: Vec<(Option<usize>, usize)> = self
            .requests
            .iter()
            .filter(|(_, queue)| !queue.is_empty())
            .map(|((rank, to), _)| (Some(*rank), *to))
            .collect();
        ways.extend((0..2).filter(|server| !self.orders[*server].is_empty()).map(|server| (None, server)));
        let Some((from, to)) = ways.get(choice % ways.len().max(1)).copied() else { return false };
        let outputs = match from {
            Some(rank) => {
                let (request, payload) = self.requests.get_mut(&(rank, to)).unwrap().pop_front().unwrap();
                let is_met = self.servers[to].meets(rank, 0);
                if is_met { self.servers[to].handle(rank, request, payload) } else { Vec::new() }
            }
            None => match self.orders[to].pop_front().unwrap() {
                Notice::Settle(rank, whole) => self.servers[to].settle(rank, &whole),
                Notice::Lose(rank) => {
                    let known = self.servers[to].lose(rank, 0);
                    let (left, all) = self.losses.get_mut(&rank).unwrap();
                    for (key, WholePushes { completed, rounds }) in known {
                        let all = all.entry(key).or_default();
                        all.completed = all.completed.max(completed);
                        all.rounds.extend(rounds);
                    }
                    *left -= 1;
                    if *left == 0 {
                        let whole = all.clone();
                        self.orders.iter_mut().for_each(|orders| orders.push_back(Notice::Settle(rank, whole.clone())));
                    }
                    Vec::new()
                }
            },
        };
        outputs.into_iter().for_each(|output| self.take(output));
        true
    }

    fn take(&mut self, output: Output) {
        match output {
            Output::Reply { rank, .. } if !self.is_alive[rank] => {}
            Output::Reply { rank, reply: Reply::Arrived { key, round }, .. } => {
                if !self.reported.insert((rank, key.clone(), round)) {
                    for server in 0..2 {
                        let commit = (Request::Commit { key: key.clone(), round }, Vec::new());
                        self.requests.get_mut(&(rank, server)).unwrap().push_back(commit);
                    }
                }
            }
            Output::Reply { reply: Reply::Value { reply }, payload, .. } => {
                let value = f32::from_le_bytes(payload.unwrap()[..].try_into().unwrap());
                self.values.entry(((reply % 10) as usize, reply / 10)).or_default().push(value);
            }
            Output::Reply { .. } => panic!("nobody asked for anything else"),
            Output::Fault(error) => panic!("{error}"),
            Output::Dropped(why) => panic!("{why}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_lost_workers_push_counts_in_all_segments_of_a_key_or_in_none(
        choices in proptest::collection::vec(0usize..64, 10..60),
        kills in proptest::collection::vec((0usize..90, 0..WORKERS), 0..3),
    ) {
        let mut job = SimulatedServers::new(true);
        let mut delivered = 0;
        for choice in choices.iter().cycle() {
            kills.iter().filter(|(when, _)| *when == delivered).for_each(|(_, rank)| job.kill(*rank));
            delivered += 1;
            if !job.step(*choice) && delivered > 90 {
                break;
            }
        }
        let left: Vec<usize> = (0..WORKERS).filter(|rank| job.is_alive[*rank]).collect();
        for key in 0..KEYS.len() {
            for round in 0..=ROUNDS {
                let values = &job.values[&(key, round)];
                prop_assert!(values.iter().all(|value| *value == values[0]), "{key} {round}: {values:?}");
                prop_assert!(values.len() >= 2 * left.len(), "{key} {round}: {values:?}");
                let of = |rank: usize| contribution(rank, round);
                let lost: Vec<f32> = (0..WORKERS).filter(|rank| !left.contains(rank)).map(of).collect();
                let sum: f32 = left.iter().map(|rank| of(*rank)).sum();
                let subsets = (0..1 << lost.len()).map(|set: usize| {
                    sum + lost.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1).map(|(_, of)| of).sum::<f32>()
                });
                prop_assert!(round == 0 || subsets.into_iter().any(|sum| sum == values[0]), "{key} {round}: {values:?}");
                prop_assert!(round > 0 || values[0] <= left[0] as f32, "the value of the lowest rank: {values:?}");
            }
        }
    }
}

/// The init of a key with one segment, by one worker.
fn init(rank: usize) -> (Request, Vec<u8>) {
    let place = Place { key: "w".into(), segment: 0 };
    let (dtype, shape, here, spans) = (DType::F32, vec![1], 1, false);
    (
        Request::Init { place, dtype, shape, len_bytes: 4, unit_bytes: 4, here, spans },
        (rank as f32).to_le_bytes().into(),
    )
}

fn push(rank: usize, round: u64) -> (Request, Vec<u8>) {
    let place = Place { key: "w".into(), segment: 0 };
    let push = Request::Push { place, round, optimizer: 0, compression: None, reply: Some((PullTarget::Value, round)) };
    (push, contribution(rank, round).to_le_bytes().into())
}

/// Returns the values in a server's answers, by rank.
fn values(outputs: Vec<Output>) -> Vec<(usize, f32)> {
    let value = |output| match output {
        Output::Reply { rank, payload: Some(value), .. } => (rank, f32::from_le_bytes(value[..].try_into().unwrap())),
        Output::Dropped(why) => panic!("{why}"),
        _ => panic!("no value"),
    };
    outputs.into_iter().map(value).collect()
}

fn handle(server: &mut Server, rank: usize, (request, payload): (Request, Vec<u8>)) -> Vec<Output> {
    server.handle(rank, request, payload)
}

#[test]
fn a_worker_that_comes_later_counts_from_the_round_after_those_that_were_called() {
    let mut server = Server::elastic(2, true);
    (0..2).for_each(|rank| drop(handle(&mut server, rank, init(rank))));
    server.lose(1, 0);
    server.settle(1, &WholeKeys::new());
    assert_eq!(values(handle(&mut server, 0, push(0, 1))), [(0, 1.0)], "the round counts who is left");
    assert!(!server.meets(1, 0) && server.meets(1, 7), "messages of the lost worker are not its successor's");
    assert!(handle(&mut server, 1, init(1)).is_empty());
    let early = handle(&mut server, 1, push(1, 2));
    assert!(matches!(&early[..], [Output::Dropped(why)] if why.contains("takes no part")));
    // Worker 0 has called two pushes, and one of them has arrived.
    let after = BTreeMap::from([(Key::from("w"), 2)]);
    assert!(server.join(1, 7, &after).is_empty());
    assert_eq!(values(handle(&mut server, 0, push(0, 2))), [(0, 2.0)]);
    assert!(handle(&mut server, 0, push(0, 3)).is_empty(), "it waits for the one that has come");
    assert_eq!(values(handle(&mut server, 1, push(1, 3))), [(0, 33.0), (1, 33.0)]);
}

#[test]
fn async_servers_go_on_at_once_and_count_the_pushes_of_a_successor_anew() {
    let mut server = Server::elastic(2, false);
    (0..2).for_each(|rank| drop(handle(&mut server, rank, init(rank))));
    assert_eq!(values(handle(&mut server, 1, push(1, 1))), [(1, 10.0)]);
    server.lose(1, 0);
    assert_eq!(values(handle(&mut server, 0, push(0, 1))), [(0, 1.0)]);
    server.settle(1, &WholeKeys::new());
    assert!(server.meets(1, 3));
    drop(handle(&mut server, 1, init(1)));
    server.join(1, 3, &BTreeMap::new());
    assert_eq!(values(handle(&mut server, 1, push(1, 1))), [(1, 10.0)]);
}
