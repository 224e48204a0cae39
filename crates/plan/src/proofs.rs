//! Proves every plan by symbols for 1 to 33 ranks, executes it with numbers, and checks its cost.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::check::{Fault, Goal, Traffic, check};
use super::plan::Parts;
use super::{
    Algorithm, LinkRates, Links, Move, Plan, ReceiveAction, ReduceScatter, allgather, allreduce, allreduce_in_halves,
    allreduce_in_order, allreduce_in_turns, allreduce_weighted, alltoall, broadcast, reduce_scatter,
};

const SIZES: std::ops::RangeInclusive<usize> = 1..=33;

/// 0, 1, n-1, n, n+1 and beyond; the last splits the rounds of `circulant` and makes a broadcast a chain.
fn lens(size: usize) -> [usize; 8] {
    [0, 1, size - 1, size, size + 1, 2 * size + 3, 1000, 300_001]
}

fn allreduces(algorithm: Algorithm, size: usize, len: usize) -> Vec<Plan> {
    (0..size).map(|rank| allreduce(algorithm, rank, size, len)).collect()
}

fn proved(plans: &[Plan], goal: Goal, what: &str) -> Traffic {
    check(plans, goal).unwrap_or_else(|fault| panic!("{what}: {fault}"))
}

fn ceil_log2(size: usize) -> usize {
    size.next_power_of_two().ilog2() as usize
}

fn floor_log2(size: usize) -> usize {
    size.ilog2() as usize
}

/// Executes plans on numbers. `turns` chooses the rank of the next move. Moves run in order and sends never
/// wait.
fn executed(plans: &[Plan], mut buffers: Vec<Vec<f32>>, mut turns: impl FnMut(usize) -> usize) -> Vec<Vec<f32>> {
    let size = plans.len();
    let mut wires: Vec<VecDeque<Vec<f32>>> = vec![VecDeque::new(); size * size];
    let mut next = vec![0; size];
    loop {
        let can_move = |rank: &usize| match plans[*rank].moves.get(next[*rank]) {
            Some(Move::Send { .. }) => true,
            Some(Move::Recv { from, .. }) => !wires[from * size + rank].is_empty(),
            None => false,
        };
        let able: Vec<usize> = (0..size).filter(can_move).collect();
        if able.is_empty() {
            break;
        }
        let rank = able[turns(able.len())];
        let step = &plans[rank].moves[next[rank]];
        let range = plans[rank].parts.range(step.parts());
        match step {
            Move::Send { to, .. } => wires[rank * size + to].push_back(buffers[rank][range].to_vec()),
            Move::Recv { from, then, .. } => {
                let arrived = wires[from * size + rank].pop_front().expect("it can move");
                assert_eq!(arrived.len(), range.len());
                for (own, arrived) in buffers[rank][range].iter_mut().zip(arrived) {
                    *own = if *then == ReceiveAction::Copy { arrived } else { *own + arrived };
                }
            }
        }
        next[rank] += 1;
    }
    for (rank, plan) in plans.iter().enumerate() {
        assert_eq!(next[rank], plan.moves.len(), "rank {rank} finished its plan");
    }
    assert!(wires.iter().all(VecDeque::is_empty), "every message was read");
    buffers
}

#[test]
fn every_allreduce_has_each_contribution_once_and_the_same_bits() {
    for algorithm in Algorithm::ALL {
        for size in SIZES {
            for len in lens(size) {
                let what = format!("{algorithm} of {len} elements on {size} ranks");
                let traffic = proved(&allreduces(algorithm, size, len), Goal::Allreduce, &what);
                let is_idle = size == 1 || len == 0;
                assert_eq!(traffic.messages.iter().sum::<usize>() == 0, is_idle, "{what}");
            }
        }
    }
}

#[test]
fn a_sum_in_turns_moves_as_little_as_direct_in_segments_of_whole_blocks() {
    for size in SIZES {
        for len in [0, 1, 31, 32, 33, 32 * size, 32 * size + 1, 1000, 20_001] {
            for segment in [32, 64, 320] {
                let what = format!("{len} elements in segments of {segment} on {size} ranks");
                let plans: Vec<Plan> =
                    (0..size).map(|rank| allreduce_in_turns(rank, size, len, (32, segment))).collect();
                proved(&plans, Goal::Allreduce, &what);
                let parts = &plans[0].parts;
                for at in 0..parts.count() {
                    let range = parts.range(at..at + 1);
                    assert!(
                        range.is_empty() || range.start.is_multiple_of(32) && range.len() <= segment,
                        "{what}: {range:?}"
                    );
                }
                let sent: usize = plans.iter().map(Plan::sent_len).sum();
                assert_eq!(sent, 2 * (size - 1) * len, "{what}");
            }
        }
    }
}

/// Proves the sum on trees. Each rank must carry the buffer once, and more in proportion to its weight.
fn assert_weighted(sends: &[f64], receives: &[f64], len: usize, turns: usize) {
    let size = sends.len();
    let what = format!("{len} elements in {turns} turns by {sends:?} and {receives:?}");
    let beyond = |weights: &[f64]| -> Vec<f64> {
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| (size as f64 - 2.0).max(0.0) * weight / sum).collect()
    };
    let rates: Vec<LinkRates> = beyond(sends)
        .into_iter()
        .zip(beyond(receives))
        .map(|(sends, receives)| LinkRates { sends, receives })
        .collect();
    let links = Links::carrying(vec![LinkRates::both(1.0); size], &rates);
    let plans: Vec<Plan> = (0..size).map(|rank| allreduce_weighted(rank, &links, len, turns)).collect();
    let traffic = proved(&plans, Goal::Allreduce, &what);
    for (moved, beyond) in [(&traffic.sent_len, beyond(sends)), (&traffic.received_len, beyond(receives))] {
        for (rank, beyond) in beyond.iter().enumerate().filter(|_| size > 1) {
            // The ends of parts are rounded, and parts of less than a hundredth have no separate tree.
            let most = (1.04 + beyond) * len as f64 + (size * size) as f64;
            assert!(moved[rank] as f64 <= most, "{what}: {} of rank {rank}", moved[rank]);
            assert!(moved[rank] >= len, "{what}, rank {rank}");
        }
        assert_eq!(moved.iter().sum::<usize>(), 2 * (size - 1) * len, "{what}");
    }
}

#[test]
fn a_sum_of_weighted_parts_moves_what_each_link_can_carry() {
    for size in SIZES {
        // One rank that has everything, and some that have nothing.
        let first: Vec<f64> = (0..size).map(|rank| f64::from(u8::from(rank == 0))).collect();
        let uneven: Vec<f64> = (0..size).map(|rank| 0.01 + (rank % 5) as f64).collect();
        let all = [vec![1.0; size], first, uneven];
        for (sends, receives) in all.iter().flat_map(|sends| all.iter().map(move |receives| (sends, receives))) {
            for (len, turns) in [(0, 2), (1, 1), (size + 1, 2), (1000, 3), (10_000, 2)] {
                assert_weighted(sends, receives, len, turns);
            }
        }
    }
}

fn even(rates: &[f64]) -> Vec<LinkRates> {
    rates.iter().copied().map(LinkRates::both).collect()
}

/// Proves the sum with helpers, and that no rank carries more than its link can in the least time.
fn assert_helped(rates: &[f64], helpers: usize, len: usize, turns: usize) {
    let (size, workers) = (rates.len(), rates.len() - helpers);
    let what = format!("{len} elements in {turns} turns on {workers} workers and {helpers} helpers: {rates:?}");
    let links = Links::with_helpers(&even(rates), helpers).unwrap();
    let plans: Vec<Plan> = (0..size).map(|rank| allreduce_weighted(rank, &links, len, turns)).collect();
    let traffic = proved(&plans, Goal::HelpedAllreduce { workers }, &what);
    assert_eq!(traffic.sent_len, traffic.received_len, "{what}");
    for (rank, rate) in links.rates().iter().enumerate() {
        let most = (links.least_time() * rate.sends + 0.05) * len as f64 + (size * size) as f64;
        assert!(traffic.sent_len[rank] as f64 <= most, "{what}: {} of rank {rank}", traffic.sent_len[rank]);
        assert!(rank >= workers || traffic.sent_len[rank] >= len, "{what}, rank {rank}");
    }
}

#[test]
fn a_sum_with_helpers_has_each_workers_contribution_once_and_moves_what_each_link_can_carry() {
    for size in SIZES {
        for helpers in 0..=size {
            let Some(links) = Links::with_helpers(&even(&vec![1.0; size]), helpers) else {
                assert!(helpers == 0 || size - helpers < 3, "{size} ranks, {helpers} of them helpers");
                continue;
            };
            let (n, k) = ((size - helpers) as f64, helpers as f64);
            let least = (2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k)).max(1.0);
            assert!((links.least_time() - least).abs() < 0.01, "{n} workers, {k} helpers: {}", links.least_time());
            let uneven: Vec<f64> = (0..size).map(|rank| 1.0 + (rank % 3) as f64).collect();
            for rates in [vec![1.0; size], uneven] {
                for (len, turns) in [(0, 2), (1, 1), (size + 1, 2), (1000, 3)] {
                    assert_helped(&rates, helpers, len, turns);
                }
            }
        }
    }
}

#[test]
fn the_checker_finds_helpers_that_contribute_or_leave_something_out() {
    let links = Links::with_helpers(&even(&[1.0; 6]), 2).unwrap();
    let good: Vec<Plan> = (0..6).map(|rank| allreduce_weighted(rank, &links, 60, 2)).collect();
    let goal = Goal::HelpedAllreduce { workers: 4 };
    proved(&good, goal, "four workers and two helpers");
    for (rank, plan) in good.iter().enumerate() {
        for (index, step) in plan.moves.iter().enumerate() {
            let mut wrong = good.clone();
            wrong[rank].moves.remove(index);
            wrong[rank].after.clear();
            assert!(check(&wrong, goal).is_err(), "rank {rank} without move {index}");
            if let Move::Recv { from, parts, then } = step.clone() {
                let then = if then == ReceiveAction::Copy { ReceiveAction::Reduce } else { ReceiveAction::Copy };
                let mut wrong = good.clone();
                wrong[rank].moves[index] = Move::Recv { from, parts, then };
                assert!(check(&wrong, goal).is_err(), "rank {rank}, move {index}: {then:?}");
            }
        }
    }
}

#[test]
fn an_ordered_sum_adds_in_the_order_of_the_ranks_whatever_its_length() {
    // In several pieces.
    const LONG_LEN: usize = 9001;
    let value = |rank: usize, i: usize| 1.0 / (1 + (rank * 31 + i * 7) % 101) as f32;
    for size in SIZES {
        for len in [0, 1, size, 1000, LONG_LEN] {
            let what = format!("{len} elements on {size} ranks");
            let plans: Vec<Plan> = (0..size).map(|rank| allreduce_in_order(rank, size, len)).collect();
            let traffic = proved(&plans, Goal::Allreduce, &what);
            let buffers: Vec<Vec<f32>> = (0..size).map(|rank| (0..len).map(|i| value(rank, i)).collect()).collect();
            let in_order = |i| buffers[1..].iter().fold(buffers[0][i], |sum: f32, other| sum + other[i]);
            let expected: Vec<u32> = (0..len).map(|i| in_order(i).to_bits()).collect();
            for of_rank in executed(&plans, buffers.clone(), |able| able - 1) {
                assert!(of_rank.iter().map(|sum| sum.to_bits()).eq(expected.iter().copied()), "{what}");
            }
            if len == LONG_LEN && size > 2 {
                let pieces = plans[0].parts.count();
                assert!(pieces > 1, "{what}");
                assert_eq!(traffic.rounds, 2 * (size - 1), "{what}: the pieces go behind one another");
                for (rank, plan) in plans.iter().enumerate() {
                    let neighbours = if rank == 0 || rank + 1 == size { 1 } else { 2 };
                    assert_eq!(
                        (plan.sent_len(), traffic.messages[rank]),
                        (neighbours * len, neighbours * pieces),
                        "{what}"
                    );
                }
            }
        }
    }
}

#[test]
fn messages_in_a_row_are_as_documented() {
    for size in SIZES {
        let rounds = |algorithm| {
            let plans = allreduces(algorithm, size, 1000);
            proved(&plans, Goal::Allreduce, &format!("{algorithm} on {size} ranks")).rounds
        };
        assert_eq!(rounds(Algorithm::Ring), 2 * (size - 1), "ring, {size}");
        assert_eq!(rounds(Algorithm::Direct), if size == 1 { 0 } else { 2 }, "direct, {size}");
        // Places that a round does not change need not wait for it, so some numbers of ranks take fewer than
        // two rounds per skip.
        let circulant = rounds(Algorithm::Circulant);
        assert!((2 * floor_log2(size)..=2 * ceil_log2(size)).contains(&circulant), "circulant, {size}: {circulant}");
        let folding = if size.is_power_of_two() { 0 } else { 2 };
        assert_eq!(rounds(Algorithm::Doubling), floor_log2(size) + folding, "doubling, {size}");
        assert_eq!(rounds(Algorithm::Star), if size == 1 { 0 } else { 2 }, "star, {size}");
        assert_eq!(rounds(Algorithm::Tree), 2 * floor_log2(size), "tree, {size}");
    }
}

#[test]
fn ring_direct_and_circulant_move_no_more_than_the_bound() {
    for algorithm in [Algorithm::Ring, Algorithm::Direct, Algorithm::Circulant] {
        for size in SIZES {
            for len in lens(size) {
                let traffic = proved(&allreduces(algorithm, size, len), Goal::Allreduce, "traffic");
                // n - 1 parts out and n - 1 in, in each half, and no part is longer than the longest.
                let bound = 2 * (size - 1) * len.div_ceil(size);
                for (rank, (sent, received)) in traffic.sent_len.iter().zip(&traffic.received_len).enumerate() {
                    let what = format!("{algorithm}, rank {rank} of {size}, {len} elements");
                    assert!(*sent <= bound && *received <= bound, "{what}: {sent} and {received} of {bound}");
                }
                if len % size == 0 {
                    assert!(traffic.sent_len.iter().all(|sent| *sent == bound));
                }
            }
        }
    }
}

#[test]
fn messages_sent_are_as_documented() {
    for size in SIZES {
        let most = |algorithm, len| {
            let traffic = proved(&allreduces(algorithm, size, len), Goal::Allreduce, "messages");
            traffic.messages.into_iter().max().expect("a rank")
        };
        assert_eq!(most(Algorithm::Ring, 1000), 2 * (size - 1));
        assert_eq!(most(Algorithm::Direct, 1000), 2 * (size - 1));
        assert!(most(Algorithm::Circulant, 1000) <= 4 * ceil_log2(size));
        assert!(most(Algorithm::Circulant, 300_001) <= 6 * ceil_log2(size));
        assert!(most(Algorithm::Doubling, 1000) <= floor_log2(size) + 1);
        assert_eq!(most(Algorithm::Star, 1000), size - 1);
        assert!(most(Algorithm::Tree, 1000) <= ceil_log2(size));
    }
}

#[test]
fn a_broadcast_from_each_root_reaches_every_rank() {
    for size in SIZES {
        for len in lens(size) {
            for root in 0..size {
                let plans: Vec<Plan> = (0..size).map(|rank| broadcast(root, rank, size, len)).collect();
                let what = format!("broadcast of {len} elements from {root} of {size}");
                let traffic = proved(&plans, Goal::Broadcast { root }, &what);
                for rank in (0..size).filter(|rank| *rank != root) {
                    assert_eq!(traffic.received_len[rank], len, "{what}");
                }
                let pieces = plans[0].parts.count();
                if size > 1 && len > 0 && pieces == 1 {
                    assert_eq!(traffic.rounds, floor_log2(size), "{what}");
                } else if pieces > 1 {
                    assert_eq!(traffic.rounds, size - 1, "{what}");
                    assert!(traffic.sent_len.iter().all(|sent| *sent <= len), "{what}");
                }
            }
        }
    }
    let pieces = broadcast(0, 0, 8, 300_001).parts.count();
    assert!(pieces > 1, "the longest buffer is a chain");
}

#[test]
fn an_allgather_of_even_parts_costs_as_documented() {
    for size in SIZES {
        for (len, expected) in [(1000, ceil_log2(size)), (size * 20_000, size - 1)] {
            let plans: Vec<Plan> = (0..size).map(|rank| allgather(rank, size, Parts::even(len, size))).collect();
            let traffic = proved(&plans, Goal::Allgather, &format!("allgather of {len} elements on {size} ranks"));
            assert!(traffic.rounds <= expected, "{} of {expected}", traffic.rounds);
            for received in traffic.received_len {
                assert!(received <= len - len / size, "{size} ranks, {len} elements");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn an_allgather_of_uneven_parts_reaches_every_rank(
        lens in prop::collection::vec(prop_oneof![Just(0usize), 1usize..10, 1usize..2000, 20_000usize..90_000], 1..34),
    ) {
        let (size, parts) = (lens.len(), Parts::of_lens(lens.iter().copied()));
        let plans: Vec<Plan> = (0..size).map(|rank| allgather(rank, size, parts.clone())).collect();
        let traffic = proved(&plans, Goal::Allgather, &format!("{lens:?}"));
        for (received, own) in traffic.received_len.iter().zip(&lens) {
            prop_assert_eq!(*received, parts.len() - own);
        }
    }

    #[test]
    fn a_sum_of_parts_of_any_weights_has_each_contribution_once(
        weights in prop::collection::vec((prop_oneof![Just(0u32), 1u32..1000], prop_oneof![Just(0u32), 1u32..1000]), 1..34),
        len in 0usize..20_000,
        turns in 1usize..4,
    ) {
        let weight = |weight: u32| 1e-3 + f64::from(weight);
        let (sends, receives): (Vec<f64>, Vec<f64>) =
            weights.into_iter().map(|(sends, receives)| (weight(sends), weight(receives))).unzip();
        assert_weighted(&sends, &receives, len, turns);
    }

    #[test]
    fn a_sum_with_any_helpers_has_each_contribution_once(
        rates in prop::collection::vec(1u32..20, 4..34),
        helpers in 1usize..33,
        len in 0usize..20_000,
        turns in 1usize..4,
    ) {
        let rates: Vec<f64> = rates.into_iter().map(f64::from).collect();
        assert_helped(&rates, 1 + helpers % (rates.len() - 3), len, turns);
    }

    #[test]
    fn sums_have_the_same_bits_whichever_rank_is_late(
        size in 1usize..20,
        len in 0usize..70,
        seed in any::<u64>(),
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
    ) {
        let plans = allreduces(algorithm, size, len);
        // Magnitudes differ so much that the order of additions changes the bits.
        let value = |rank: usize, i: usize| ((rank * 31 + i * 7) % 23) as f32 * 10f32.powi((rank * 5 % 13) as i32 - 6);
        let buffers: Vec<Vec<f32>> = (0..size).map(|rank| (0..len).map(|i| value(rank, i)).collect()).collect();
        let bits = |buffers: Vec<Vec<f32>>| -> Vec<Vec<u32>> {
            buffers.into_iter().map(|buffer| buffer.into_iter().map(f32::to_bits).collect()).collect()
        };
        let first = bits(executed(&plans, buffers.clone(), |_| 0));
        for of_rank in &first {
            prop_assert_eq!(of_rank, &first[0]);
        }
        let mut state = seed | 1;
        let shuffled = executed(&plans, buffers.clone(), |able| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % able as u64) as usize
        });
        prop_assert_eq!(bits(shuffled), first);
    }

    #[test]
    fn small_integers_sum_exactly(
        size in 1usize..34,
        len in 0usize..200,
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
    ) {
        let buffers = (0..size).map(|rank| (0..len).map(|i| (i % 97 + rank) as f32).collect()).collect();
        let sums = executed(&allreduces(algorithm, size, len), buffers, |able| able - 1);
        let expected: Vec<f32> = (0..len).map(|i| (size * (i % 97) + size * (size - 1) / 2) as f32).collect();
        for of_rank in sums {
            prop_assert_eq!(&of_rank, &expected);
        }
    }
}

#[test]
fn allgathers_and_broadcasts_move_the_numbers_of_their_owners() {
    for size in SIZES {
        let lens: Vec<usize> = (0..size).map(|rank| rank * 3 % 5).collect();
        let parts = Parts::of_lens(lens.iter().copied());
        let own = |rank: usize| vec![rank as f32; parts.len()];
        let plans: Vec<Plan> = (0..size).map(|rank| allgather(rank, size, parts.clone())).collect();
        let gathered = executed(&plans, (0..size).map(own).collect(), |_| 0);
        let expected: Vec<f32> = lens.iter().enumerate().flat_map(|(rank, len)| vec![rank as f32; *len]).collect();
        assert!(gathered.iter().all(|of_rank| *of_rank == expected), "{size} ranks");
        let root = size / 2;
        let plans: Vec<Plan> = (0..size).map(|rank| broadcast(root, rank, size, 7)).collect();
        let received = executed(&plans, (0..size).map(|rank| vec![rank as f32; 7]).collect(), |_| 0);
        assert!(received.iter().all(|of_rank| *of_rank == vec![root as f32; 7]), "{size} ranks");
    }
}

/// Every rank's plan of a reduce-scatter.
fn reduce_scatters(way: ReduceScatter, parts: &Parts) -> Vec<Plan> {
    let size = parts.count();
    (0..size).map(|rank| reduce_scatter(way, rank, size, parts.clone())).collect()
}

const WAYS: [ReduceScatter; 2] = [ReduceScatter::Ring, ReduceScatter::Direct];

#[test]
fn a_reduce_scatter_gives_each_rank_the_sum_of_its_part_with_the_fewest_bytes() {
    for size in SIZES {
        for len in lens(size) {
            let parts = Parts::even(len, size);
            for way in WAYS {
                let what = format!("{way:?} of {len} elements on {size} ranks");
                let traffic = proved(&reduce_scatters(way, &parts), Goal::ReduceScatter, &what);
                let has_moves = size > 1 && len > 0;
                let rounds = if way == ReduceScatter::Direct { 1 } else { (size - 1).min(len.max(1)) };
                assert!(traffic.rounds <= if has_moves { rounds.max(size - 1) } else { 0 }, "{what}");
                if way == ReduceScatter::Direct {
                    assert_eq!(traffic.rounds, usize::from(has_moves), "{what}");
                }
                for (rank, sent) in traffic.sent_len.iter().enumerate() {
                    assert_eq!(*sent, len - parts.range(rank..rank + 1).len(), "{what}, rank {rank}");
                }
                assert!(traffic.messages.iter().all(|messages| *messages < size.max(1)), "{what}");
            }
        }
    }
}

/// The elements of a segment of an alltoall that [`alltoalls`] plans.
const SEGMENT: usize = 3;

/// Every rank's plan of an alltoall, in which rank `r` has `splits[r][d]` elements for rank `d`.
fn alltoalls(splits: &[Vec<usize>]) -> Vec<Plan> {
    let size = splits.len();
    let parts = |rank: usize| {
        let arriving = splits.iter().map(|row| row[rank]);
        Parts::of_lens(splits[rank].iter().copied().chain(arriving))
    };
    (0..size).map(|rank| alltoall(rank, size, &parts(rank), SEGMENT)).collect()
}

fn assert_alltoall(splits: &[Vec<usize>]) {
    let size = splits.len();
    let plans = alltoalls(splits);
    let traffic = proved(&plans, Goal::Alltoall, &format!("{splits:?}"));
    for rank in 0..size {
        let others = || (0..size).filter(|other| *other != rank);
        assert_eq!(traffic.sent_len[rank], others().map(|other| splits[rank][other]).sum::<usize>());
        assert_eq!(traffic.received_len[rank], others().map(|other| splits[other][rank]).sum::<usize>());
        assert_eq!(traffic.messages[rank], others().map(|other| splits[rank][other].div_ceil(SEGMENT)).sum::<usize>());
    }
    assert_eq!(traffic.rounds, usize::from(traffic.sent_len.iter().any(|sent| *sent > 0)));
    let buffers = (0..size).map(|rank| {
        let own = (0..size).flat_map(|to| vec![(rank * size + to) as f32; splits[rank][to]]);
        own.chain(vec![-1.0; splits.iter().map(|row| row[rank]).sum()]).collect()
    });
    for (rank, buffer) in executed(&plans, buffers.collect(), |able| able - 1).into_iter().enumerate() {
        let parts = &plans[rank].parts;
        let per_block = parts.count() / (2 * size);
        for from in (0..size).filter(|from| *from != rank) {
            let block = &buffer[parts.range((size + from) * per_block..(size + from + 1) * per_block)];
            assert_eq!(block, vec![(from * size + rank) as f32; splits[from][rank]], "{from} to {rank}");
        }
    }
}

#[test]
fn an_alltoall_gives_each_rank_what_each_other_has_for_it() {
    // There are enough segments to make sends wait for others.
    for size in [2, 3, 5, 8] {
        assert_alltoall(&vec![vec![25 * SEGMENT; size]; size]);
    }
    for size in SIZES {
        for len in [0, 1, 7] {
            assert_alltoall(&vec![vec![len; size]; size]);
        }
        assert_alltoall(
            &(0..size).map(|rank| (0..size).map(|to| (rank * 5 + to * 3) % 4).collect()).collect::<Vec<_>>(),
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn an_alltoall_of_any_lengths_is_right(
        size in 1usize..34,
        lens in prop::collection::vec(prop_oneof![Just(0usize), 1usize..13], 33 * 33),
    ) {
        let splits: Vec<Vec<usize>> = lens.chunks(33).take(size).map(|row| row[..size].to_vec()).collect();
        assert_alltoall(&splits);
    }

    #[test]
    fn a_reduce_scatter_of_uneven_parts_sums_each_once(
        lens in prop::collection::vec(prop_oneof![Just(0usize), 1usize..10, 1usize..2000], 1..34),
        way in prop::sample::select(WAYS.to_vec()),
    ) {
        let parts = Parts::of_lens(lens.iter().copied());
        let (size, plans) = (lens.len(), reduce_scatters(way, &parts));
        proved(&plans, Goal::ReduceScatter, &format!("{way:?}, {lens:?}"));
        let value = |rank: usize, i: usize| (rank + i % 97) as f32;
        let buffers = (0..size).map(|rank| (0..parts.len()).map(|i| value(rank, i)).collect()).collect();
        for (rank, buffer) in executed(&plans, buffers, |able| able - 1).into_iter().enumerate() {
            for i in parts.range(rank..rank + 1) {
                prop_assert_eq!(buffer[i], (size * (i % 97) + size * (size - 1) / 2) as f32);
            }
        }
    }
}

#[test]
fn between_its_halves_an_allreduce_has_each_sum_on_its_owner_alone_and_ordered_adds_in_order() {
    let value = |rank: usize, i: usize| 1.0 / (1 + (rank * 31 + i * 7) % 101) as f32;
    for size in SIZES {
        let uneven = Parts::of_lens((0..size).map(|rank| rank * 3 % 5));
        for parts in [1, size, size + 1, 1000].map(|len| Parts::even(len, size)).into_iter().chain([uneven]) {
            for way in [ReduceScatter::Ring, ReduceScatter::Direct, ReduceScatter::Ordered] {
                let what = format!("{way:?} of {} elements on {size} ranks", parts.len());
                let plans: Vec<Plan> =
                    (0..size).map(|rank| allreduce_in_halves(way, rank, size, parts.clone())).collect();
                proved(&plans, Goal::Allreduce, &what);
                let first = reduce_scatters(way, &parts);
                proved(&first, Goal::ReduceScatter, &what);
                for (rank, (plan, half)) in plans.iter().zip(&first).enumerate() {
                    assert_eq!(plan.moves[..half.moves.len()], half.moves, "{what}");
                    let second = &plan.moves[half.moves.len()..];
                    assert!(
                        second.iter().all(|step| matches!(step, Move::Send { .. }) || !step.parts().contains(&rank)),
                        "{what}: rank {rank} receives its own part in the second half"
                    );
                    if size > 1 && !parts.range(rank..rank + 1).is_empty() {
                        assert!(second.iter().any(|step| step.parts() == (rank..rank + 1)), "{what}");
                    }
                }
                if way == ReduceScatter::Ordered {
                    let buffers: Vec<Vec<f32>> =
                        (0..size).map(|rank| (0..parts.len()).map(|i| value(rank, i)).collect()).collect();
                    let in_order = |i| buffers[1..].iter().fold(buffers[0][i], |sum: f32, other| sum + other[i]);
                    let expected: Vec<u32> = (0..parts.len()).map(|i| in_order(i).to_bits()).collect();
                    for of_rank in executed(&plans, buffers.clone(), |able| able - 1) {
                        assert!(of_rank.iter().map(|sum| sum.to_bits()).eq(expected.iter().copied()), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_checker_finds_what_is_wrong_where_ranks_end_with_different_things() {
    let parts = Parts::of_lens([2, 0, 3, 1]);
    for way in WAYS {
        let good = reduce_scatters(way, &parts);
        assert!(check(&good, Goal::ReduceScatter).is_ok());
        assert!(matches!(check(&good, Goal::Allreduce), Err(Fault::WrongSum { .. })));
        for (rank, plan) in good.iter().enumerate() {
            for index in 0..plan.moves.len() {
                let mut wrong = good.clone();
                wrong[rank].moves.remove(index);
                assert!(check(&wrong, Goal::ReduceScatter).is_err(), "{way:?}: {rank} without {index}");
            }
        }
    }
    let splits = vec![vec![1, 2, 2], vec![2, 1, 2], vec![2, 2, 1]];
    let good = alltoalls(&splits);
    assert!(check(&good, Goal::Alltoall).is_ok());
    for (rank, plan) in good.iter().enumerate() {
        for index in 0..plan.moves.len() {
            let mut wrong = good.clone();
            let taken = wrong[rank].moves.remove(index);
            assert!(check(&wrong, Goal::Alltoall).is_err(), "{rank} without {index}");
            // The right length to the right rank, but another rank's part.
            if let Move::Send { to, parts } = taken {
                let other = (0..3).find(|part| *part != rank && *part != to).expect("of three ranks");
                assert_ne!(parts, other..other + 1);
                wrong[rank].moves.insert(index, Move::Send { to, parts: other..other + 1 });
                assert!(matches!(check(&wrong, Goal::Alltoall), Err(Fault::WrongSum { .. })), "{rank}, {index}");
            }
        }
    }
    let shorter = alltoalls(&[vec![1, 2, 2], vec![2, 1, 2], vec![2, 1, 1]]);
    let mixed = vec![good[0].clone(), good[1].clone(), shorter[2].clone()];
    assert!(matches!(check(&mixed, Goal::Alltoall), Err(Fault::Unmatched { from: 2, to: 1, .. })));
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let good = || allreduces(Algorithm::Ring, 3, 9);
    assert!(check(&good(), Goal::Allreduce).is_ok());
    assert!(matches!(check(&good(), Goal::Allgather), Err(Fault::WrongSum { rank: 0, part: 0, .. })));

    let mut unread = good();
    unread[1].moves.push(Move::Send { to: 2, parts: 0..1 });
    assert!(matches!(check(&unread, Goal::Allreduce), Err(Fault::Unmatched { from: 1, to: 2, received: None, .. })));

    let mut mismatched = good();
    mismatched[0].moves[0] = Move::Send { to: 1, parts: 1..3 };
    assert!(matches!(check(&mismatched, Goal::Allreduce), Err(Fault::Unmatched { from: 0, to: 1, index: 0, .. })));

    let mut copied = good();
    for step in &mut copied[2].moves {
        if let Move::Recv { then, .. } = step {
            *then = ReceiveAction::Copy;
        }
    }
    assert!(matches!(check(&copied, Goal::Allreduce), Err(Fault::WrongSum { .. })));

    let mut to_itself = good();
    to_itself[2].moves[0] = Move::Send { to: 2, parts: 0..1 };
    assert!(matches!(check(&to_itself, Goal::Allreduce), Err(Fault::BadMove { rank: 2, index: 0, .. })));

    let mut divided = good();
    divided[1].parts = Parts::even(10, 3);
    assert_eq!(check(&divided, Goal::Allreduce), Err(Fault::PartsDiffer { rank: 1 }));
}

#[test]
fn the_checker_finds_every_move_that_is_left_out_and_every_reduce_that_became_a_copy() {
    for algorithm in Algorithm::ALL {
        for size in 2..8 {
            let good = allreduces(algorithm, size, 20);
            for (rank, plan) in good.iter().enumerate() {
                for (index, step) in plan.moves.iter().enumerate() {
                    let mut wrong = good.clone();
                    wrong[rank].moves.remove(index);
                    assert!(check(&wrong, Goal::Allreduce).is_err(), "{algorithm}, {size}: {rank} without {index}");
                    let Move::Recv { from, parts, then: ReceiveAction::Reduce } = step.clone() else { continue };
                    wrong[rank].moves.insert(index, Move::Recv { from, parts, then: ReceiveAction::Copy });
                    assert!(check(&wrong, Goal::Allreduce).is_err(), "{algorithm}, {size}: {rank} copies {index}");
                }
            }
        }
    }
}

#[test]
fn the_checker_finds_additions_in_another_order() {
    let everyone_to_everyone = |rank: usize| {
        let mut plan = Plan::new(Parts::even(1, 1));
        for peer in (0..3).filter(|peer| *peer != rank) {
            plan.send(peer, 0..1);
        }
        for peer in (0..3).filter(|peer| *peer != rank) {
            plan.recv(peer, 0..1, ReceiveAction::Reduce);
        }
        plan
    };
    let plans: Vec<Plan> = (0..3).map(everyone_to_everyone).collect();
    assert_eq!(check(&plans, Goal::Allreduce), Err(Fault::BitsDiffer { rank: 2, part: 0 }));
}

#[test]
fn the_checker_finds_a_send_that_waits_for_what_is_no_earlier_receive() {
    let (size, len) = (4, 8);
    // The plan's moves alternate between sends and receives.
    for (after, is_right) in [((4, 1), true), ((4, 5), false), ((4, 2), false), ((3, 1), false)] {
        let mut plans = allreduces(Algorithm::Ring, size, len);
        plans[1].after = vec![after];
        assert_eq!(check(&plans, Goal::Allreduce).is_ok(), is_right, "{after:?}");
    }
}

#[test]
fn the_checker_finds_a_plan_that_needs_buffers_and_one_that_stops_for_ever() {
    let swap = |rank: usize| {
        let mut plan = Plan::new(Parts::even(1, 1));
        plan.send(1 - rank, 0..1);
        plan.recv(1 - rank, 0..1, ReceiveAction::Copy);
        plan
    };
    let plans: Vec<Plan> = (0..2).map(swap).collect();
    assert!(matches!(check(&plans, Goal::Allgather), Err(Fault::Deadlock { rank: 0, index: 0, .. })));

    let wait = |rank: usize| {
        let mut plan = Plan::new(Parts::even(1, 1));
        plan.recv(1 - rank, 0..1, ReceiveAction::Copy);
        plan.send(1 - rank, 0..1);
        plan
    };
    let plans: Vec<Plan> = (0..2).map(wait).collect();
    assert!(matches!(check(&plans, Goal::Allgather), Err(Fault::Deadlock { rank: 0, index: 0, .. })));
}
