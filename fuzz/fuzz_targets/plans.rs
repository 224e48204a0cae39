//! Plans and schedules: for any collective, number of ranks, length and segment, the plans of all ranks pass
//! the checker, and their schedules, run in any order of turns, give the collective's result.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ringpull_base::DType;
use ringpull_plan::{
    Action, Algorithm, Goal, Lane, Model, Parts, Plan, ReduceScatter, Schedule, Segments, allgather, allreduce,
    allreduce_in_order, allreduce_in_racks, alltoall, broadcast, check, choose, reduce_scatter,
};

#[derive(Arbitrary, Debug)]
enum Collective {
    Allreduce(u8),
    InOrder,
    InRacks { first: u8, pieces: u8 },
    Broadcast { root: u8 },
    Allgather { lens: Vec<u8> },
    ReduceScatter { lens: Vec<u8>, is_ring: bool },
    Alltoall { lens: Vec<u8> },
}

#[derive(Arbitrary, Debug)]
struct PlansInput {
    collective: Collective,
    size: u8,
    len: u16,
    segment_bytes: u32,
    dtype: u8,
    turns: Vec<u8>,
}

/// The most ranks. The sum of all ranks is a number of 64 bits, with four bits for each rank.
const MOST_RANKS: usize = 12;
const MOST_LEN: usize = 300;

fuzz_target!(|input: PlansInput| {
    let size = usize::from(input.size) % MOST_RANKS + 1;
    let len = usize::from(input.len);
    let dtype = DType::ALL[usize::from(input.dtype) % DType::ALL.len()];
    let (plans, goal) = plans(&input.collective, size, len);
    check(&plans, goal).unwrap_or_else(|fault| panic!("{:?} of {len} on {size} ranks: {fault}", input.collective));

    let segment_bytes = input.segment_bytes as usize;
    let segments = Segments { most_bytes: segment_bytes.max(1), is_fixed: len % 2 == 0 };
    let choice = choose(&Model::default(), len * dtype.size_bytes(), size, segments);
    assert!(choice.time_us.is_finite() && choice.time_us >= 0.0, "{choice:?}");

    // The ranks of an alltoall have different buffers, so offsets of lanes cannot be compared between ranks.
    if goal != Goal::Alltoall && plans[0].parts.len() <= MOST_LEN {
        let schedules: Vec<Schedule> = plans.iter().map(|plan| Schedule::of(plan, dtype, segment_bytes)).collect();
        let most_bytes = segment_bytes.max(dtype.size_bytes());
        assert_lanes_fit(&schedules, most_bytes);
        assert_ends_with(&plans[0].parts, goal, run(&schedules, &input.turns));
    }
});

fn plans(collective: &Collective, size: usize, len: usize) -> (Vec<Plan>, Goal) {
    let ranks = 0..size;
    match collective {
        Collective::Allreduce(which) => {
            let algorithm = Algorithm::ALL[usize::from(*which) % Algorithm::ALL.len()];
            (ranks.map(|rank| allreduce(algorithm, rank, size, len)).collect(), Goal::Allreduce)
        }
        Collective::InOrder => (ranks.map(|rank| allreduce_in_order(rank, size, len)).collect(), Goal::Allreduce),
        Collective::InRacks { first, pieces } => {
            let all: Vec<usize> = (0..size.max(2)).collect();
            let racks = all.split_at(usize::from(*first) % (all.len() - 1) + 1);
            let pieces = usize::from(*pieces) % 8 + 1;
            let of = |rank: &usize| allreduce_in_racks(*rank, [racks.0, racks.1], len, pieces);
            (all.iter().map(of).collect(), Goal::Allreduce)
        }
        Collective::Broadcast { root } => {
            let root = usize::from(*root) % size;
            // The length is great enough for chains.
            let len = 40 * len;
            (ranks.map(|rank| broadcast(root, rank, size, len)).collect(), Goal::Broadcast { root })
        }
        Collective::Allgather { lens } => {
            // Some lengths are great enough for a ring.
            let each = |rank: usize| lens.get(rank).map_or(0, |len| usize::from(*len));
            let parts = Parts::of_lens((0..size).map(|rank| each(rank) * if len > 60_000 { 1000 } else { 1 }));
            (ranks.map(|rank| allgather(rank, size, parts.clone())).collect(), Goal::Allgather)
        }
        Collective::ReduceScatter { lens, is_ring } => {
            let parts = Parts::of_lens((0..size).map(|rank| lens.get(rank).map_or(0, |len| usize::from(*len))));
            let way = if *is_ring { ReduceScatter::Ring } else { ReduceScatter::Direct };
            (ranks.map(|rank| reduce_scatter(way, rank, size, parts.clone())).collect(), Goal::ReduceScatter)
        }
        Collective::Alltoall { lens } => {
            let split = |from: usize, to: usize| lens.get(from * size + to).map_or(0, |len| usize::from(*len));
            let out = |rank: usize| (0..size).map(move |to| split(rank, to));
            let into = |rank: usize| (0..size).map(move |from| split(from, rank));
            let parts = |rank: usize| Parts::of_lens(out(rank).chain(into(rank)));
            (ranks.map(|rank| alltoall(rank, size, &parts(rank), 64)).collect(), Goal::Alltoall)
        }
    }
}

fn lane(lanes: &[Lane], peer: usize) -> Option<&Lane> {
    lanes.iter().find(|lane| lane.peer == peer)
}

/// Asserts that each rank sends to each other rank the bytes and messages that the other receives.
fn assert_lanes_fit(schedules: &[Schedule], most_bytes: usize) {
    for (rank, schedule) in schedules.iter().enumerate() {
        let received: usize = schedule.into.iter().map(|lane| lane.bytes).sum();
        let sent: usize = schedule.out.iter().map(|lane| lane.bytes).sum();
        assert_eq!(received + sent, schedule.traffic_bytes);
        for (peer, other) in schedules.iter().enumerate().filter(|(peer, _)| *peer != rank) {
            let (out, into) = (lane(&schedule.out, peer), lane(&other.into, rank));
            for place in 0.. {
                let message = |schedule: &Schedule, lane: Option<&Lane>| {
                    let index = lane?.message(place)?;
                    let message = &schedule.all[index as usize];
                    Some((message.start, message.len()))
                };
                let (sent, received) = (message(schedule, out), message(other, into));
                assert_eq!(sent, received, "message {place} of {rank} to {peer}");
                let Some((_, len_bytes)) = sent else { break };
                assert!(0 < len_bytes && len_bytes <= most_bytes, "a message of {len_bytes} of {most_bytes} bytes");
            }
        }
    }
}

/// One rank while the schedules run.
struct RunningRank<'a> {
    schedule: &'a Schedule,
    /// A number for each element.
    values: Vec<u64>,
    pending: Vec<u32>,
    /// The number of messages of each lane that are done, by direction and peer.
    sent: BTreeMap<usize, usize>,
    received: BTreeMap<usize, usize>,
    /// The values that have arrived and wait to be added, by peer.
    arrived: BTreeMap<usize, Vec<u64>>,
    finished: usize,
}

impl RunningRank<'_> {
    fn range(&self, index: u32) -> std::ops::Range<usize> {
        let (message, element) = (&self.schedule.all[index as usize], self.schedule.dtype.size_bytes());
        message.start / element..(message.start + message.len()) / element
    }

    fn next_send(&self, to: usize) -> Option<u32> {
        lane(&self.schedule.out, to)?.message(self.sent.get(&to).copied().unwrap_or(0))
    }

    fn next_receive(&self, from: usize) -> Option<u32> {
        lane(&self.schedule.into, from)?.message(self.received.get(&from).copied().unwrap_or(0))
    }

    fn is_free(&self, index: u32) -> bool {
        self.pending[index as usize] == 1
    }

    fn finish(&mut self, index: u32) {
        for dependent in self.schedule.dependents(index) {
            self.pending[*dependent as usize] -= 1;
        }
        self.finished += 1;
    }

    /// Adds the values that arrived from this peer, if the message is next in order.
    fn settle(&mut self, from: usize) {
        let Some(index) = self.next_receive(from).filter(|index| self.is_free(*index)) else { return };
        let Some(arrived) = self.arrived.remove(&from) else { return };
        let is_copy = self.schedule.all[index as usize].action == Action::Copy;
        let range = self.range(index);
        for (own, arrived) in self.values[range].iter_mut().zip(arrived) {
            *own = if is_copy { arrived } else { *own + arrived };
        }
        *self.received.entry(from).or_default() += 1;
        self.finish(index);
    }
}

/// Runs the schedules in the order of `turns`. The wire buffers nothing except one message that is to be
/// added. Rank `r` begins with 16^r in every element.
fn run(schedules: &[Schedule], turns: &[u8]) -> Vec<Vec<u64>> {
    let mut ranks: Vec<RunningRank> = schedules
        .iter()
        .enumerate()
        .map(|(rank, schedule)| RunningRank {
            schedule,
            values: vec![1 << (4 * rank); schedule.len_bytes / schedule.dtype.size_bytes()],
            pending: schedule.pending.clone(),
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            arrived: BTreeMap::new(),
            finished: 0,
        })
        .collect();
    let mut turns = turns.iter().cycle();
    loop {
        let mut able = Vec::new();
        for (from, sender) in ranks.iter().enumerate() {
            for out in &sender.schedule.out {
                let Some(send) = sender.next_send(out.peer).filter(|send| sender.is_free(*send)) else { continue };
                let receiver = &ranks[out.peer];
                let Some(receive) = receiver.next_receive(from) else { continue };
                let is_reduce = receiver.schedule.all[receive as usize].action == Action::Reduce;
                let can_post = receiver.is_free(receive) || is_reduce;
                if can_post && !receiver.arrived.contains_key(&from) {
                    able.push((from, out.peer, send));
                }
            }
        }
        if able.is_empty() {
            break;
        }
        let turn = turns.next().map_or(0, |turn| usize::from(*turn));
        let (from, to, send) = able[turn % able.len()];
        let values = ranks[from].values[ranks[from].range(send)].to_vec();
        *ranks[from].sent.entry(to).or_default() += 1;
        ranks[from].finish(send);
        ranks[to].arrived.insert(from, values);
        // A finished message may allow others to be added, and these may allow further ones.
        for rank in &mut ranks {
            let mut before = usize::MAX;
            while before != rank.finished {
                before = rank.finished;
                let waiting: Vec<usize> = rank.arrived.keys().copied().collect();
                waiting.into_iter().for_each(|from| rank.settle(from));
            }
        }
    }
    for (rank, of_rank) in ranks.iter().enumerate() {
        assert_eq!(of_rank.finished, of_rank.schedule.messages(), "rank {rank} stops with messages left");
    }
    ranks.into_iter().map(|rank| rank.values).collect()
}

fn assert_ends_with(parts: &Parts, goal: Goal, values: Vec<Vec<u64>>) {
    let of_rank = |rank: usize| 1u64 << (4 * rank);
    let all: u64 = (0..values.len()).map(of_rank).sum();
    for (rank, values) in values.iter().enumerate() {
        for part in 0..parts.count() {
            let expected = match goal {
                Goal::Allreduce => all,
                Goal::Broadcast { root } => of_rank(root),
                Goal::Allgather => of_rank(part),
                Goal::ReduceScatter if part == rank => all,
                Goal::HelpedAllreduce { workers } if rank < workers => (0..workers).map(of_rank).sum(),
                Goal::HelpedAllreduce { .. } | Goal::ReduceScatter | Goal::Alltoall => continue,
            };
            let found = &values[parts.range(part..part + 1)];
            assert!(found.iter().all(|value| *value == expected), "part {part} of rank {rank} after {goal:?}");
        }
    }
}
