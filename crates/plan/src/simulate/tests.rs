//! Compares the simulation with formulas, and one rank that represents all with all ranks.

use ringpull_base::DType;

use super::*;
use crate::{Schedule, allreduce, allreduce_in_turns, part_in_turns};

const RATE: f64 = 100.0;
const LATENCY: f64 = 20.0;

fn network(workers: usize) -> Network {
    let costs = Costs { message_us: 0.0, sum_bytes_per_us: 1e12 };
    Network { workers, bytes_per_us: RATE, own: Vec::new(), latency_us: LATENCY, costs }
}

fn schedules(
    network: &Network,
    ranks: Range<usize>,
    algorithm: Algorithm,
    len: usize,
    segment_bytes: usize,
) -> Vec<Schedule> {
    ranks
        .map(|rank| Schedule::of(&allreduce(algorithm, rank, network.workers, len), DType::F32, segment_bytes))
        .collect()
}

/// Returns the time of a collective, from the schedules of all ranks or of one that represents all.
fn collective_us(network: &Network, schedules: &[Schedule]) -> f64 {
    let mut engine = Simulation::new(network.latency_us);
    let hosts = network.hosts(&mut engine, schedules.len());
    let begin: Vec<_> = schedules.iter().map(|_| engine.task(engine::TaskKind::Nothing, &[])).collect();
    let ends = collective::add(&mut engine, (&hosts, &network.costs), (schedules, None), &begin, 0);
    let done = engine.run();
    ends.iter().map(|end| done[*end as usize]).max().unwrap_or(0) as f64 / 1e3
}

fn time(network: &Network, algorithm: Algorithm, len: usize, segment_bytes: usize) -> f64 {
    collective_us(network, &schedules(network, network.ranks(algorithm), algorithm, len, segment_bytes))
}

#[track_caller]
fn assert_near(time: f64, expected: f64, most: f64) {
    assert!((time / expected - 1.0).abs() <= most, "{time} instead of {expected}");
}

#[test]
fn a_ring_takes_the_wires_time_and_a_latency_for_each_step_of_whole_parts() {
    for n in [2, 3, 4, 8, 16] {
        let (len, steps) = (n * 30_000, 2.0 * (n as f64 - 1.0));
        let wire = steps * 4.0 * 30_000.0 / RATE;
        assert_near(time(&network(n), Algorithm::Ring, len, usize::MAX), wire + steps * LATENCY, 1e-9);
        // With segments a part's latency hides behind the others.
        assert_near(time(&network(n), Algorithm::Ring, len, 4 * 3000), wire + LATENCY, 0.001);
    }
}

#[test]
fn direct_takes_two_latencies_and_doubling_one_for_each_of_its_rounds() {
    for n in [2usize, 4, 8, 16] {
        let (bytes, rounds) = (n as f64 * 4000.0, f64::from(n.ilog2()));
        let wire = 2.0 * (n as f64 - 1.0) / n as f64 * bytes / RATE;
        // A rank's last contribution may wait behind others at its receiver, and so may its last sum.
        let direct = time(&network(n), Algorithm::Direct, n * 1000, usize::MAX);
        assert_near(direct, wire + 2.0 * LATENCY, 1e-9);
        let doubling = time(&network(n), Algorithm::Doubling, n * 1000, usize::MAX);
        assert_near(doubling, rounds * (bytes / RATE + LATENCY), 1e-9);
    }
}

#[test]
fn one_rank_stands_for_all_that_are_alike() {
    for n in (2..12).chain([13, 16]) {
        for algorithm in [Algorithm::Ring, Algorithm::Direct, Algorithm::Circulant, Algorithm::Doubling] {
            for (len, segment_bytes) in [(n, 1 << 20), (n * 5000, 1 << 20), (n * 50_000, 64 << 10)] {
                let network = network(n);
                let all = collective_us(&network, &schedules(&network, 0..n, algorithm, len, segment_bytes));
                // Some ranks of a circulant plan cut a range in two, which ranks of a power of two never do.
                let is_cut = algorithm == Algorithm::Circulant && !n.is_power_of_two();
                assert_near(time(&network, algorithm, len, segment_bytes), all, if is_cut { 0.1 } else { 0.001 });
            }
        }
    }
}

#[test]
fn every_plan_ends_on_every_number_of_ranks() {
    for n in 1..18 {
        for algorithm in Algorithm::ALL {
            for len in [0, 1, n, 1000] {
                let network = network(n);
                let time = collective_us(&network, &schedules(&network, 0..n, algorithm, len, 512));
                assert_eq!(time > 0.0, n > 1 && len > 0, "{algorithm} of {len} on {n} ranks");
            }
        }
    }
}

#[test]
fn a_slow_host_holds_up_a_ring() {
    let (n, len) = (8, 8 * 1_000_000);
    let even = time(&network(n), Algorithm::Ring, len, 64 << 10);
    let slow = Network { own: vec![(3, RATE / 2.0, RATE / 2.0)], ..network(n) };
    assert_near(time(&slow, Algorithm::Ring, len, 64 << 10), 2.0 * even, 0.02);
}

const WINDOW: (usize, usize) = (4, 128 << 10);

fn on_servers(network: &Network, count: usize, is_shared: bool, bytes: usize) -> f64 {
    let segment = 16 << 10;
    let each = bytes / segment;
    let segment = |at| SimulatedSegment { server: at % count, pushed_bytes: segment, answered_bytes: segment };
    let exchange = Exchange::Servers((0..each).map(segment).collect());
    let unit = PushedUnit { layers: vec![0], priority: 0, is_alone: false, exchange };
    let layers = vec![ComputedLayer { backward_us: 0.0, forward_us: 0.0 }];
    let step = Step { layers, units: vec![unit], servers: Some(SimulatedServers { count, is_shared, window: WINDOW }) };
    step_us(network, &step)
}

#[test]
fn servers_take_the_time_of_the_busiest_link() {
    let bytes = 8 << 20;
    let whole = bytes as f64 / RATE;
    for (count, is_shared, busiest) in
        [(1, false, 8.0), (4, false, 2.0), (8, false, 1.0), (1, true, 7.0), (2, true, 8.0 / 2.0), (8, true, 14.0 / 8.0)]
    {
        let time = on_servers(&network(8), count, is_shared, bytes) / whole;
        assert!((1.0..1.06).contains(&(time / busiest)), "{count} servers, shared {is_shared}: {time} of {busiest}");
    }
    // Half the rate for a worker, whose link carries 1 with servers elsewhere, and 14/8 with one beside it.
    for (worker, count, is_shared, busiest) in
        [(5, 8, false, 2.0), (5, 2, true, 4.0), (5, 8, true, 3.5), (0, 2, true, 8.0)]
    {
        let slow = Network { own: vec![(worker, RATE / 2.0, RATE / 2.0)], ..network(8) };
        let time = on_servers(&slow, count, is_shared, bytes) / whole;
        assert!((1.0..1.06).contains(&(time / busiest)), "{count} servers, host {worker} slow: {time} of {busiest}");
    }
}

fn training(network: &Network, compute_us: f64, priority: impl Fn(usize) -> i32) -> f64 {
    let (layers, len) = (8, 4_000_000);
    let layer = ComputedLayer { backward_us: compute_us * 2.0 / 24.0, forward_us: compute_us / 24.0 };
    let unit = |index| PushedUnit {
        layers: vec![index],
        priority: priority(index),
        is_alone: false,
        exchange: Exchange::Sum(
            schedules(network, network.ranks(Algorithm::Ring), Algorithm::Ring, len, 256 << 10),
            None,
        ),
    };
    let units = (0..layers).rev().map(unit).collect();
    step_us(network, &Step { layers: vec![layer; layers], units, servers: None })
}

#[test]
fn a_step_takes_the_longer_of_computing_and_communication_and_what_cannot_overlap() {
    let network = network(4);
    let wire = 8.0 * 6.0 * 4.0 * 1_000_000.0 / RATE;
    // All sums but the first layer's hide behind the computing that is left.
    let long = training(&network, 10.0 * wire, |_| 0);
    assert_near(long, 10.0 * wire + wire / 8.0, 0.002);
    // The first layer's sum waits for those before it, unless it is urgent.
    let short = training(&network, wire / 10.0, |_| 0);
    assert!((wire..1.1 * wire).contains(&short), "{short} of {wire}");
    let urgent = training(&network, wire, |layer| -(layer as i32));
    assert!(urgent < 0.9 * training(&network, wire, |layer| layer as i32), "{urgent}");
}

#[test]
fn what_is_urgent_waits_for_as_long_on_a_slow_link_as_on_a_fast_one() {
    // Bytes and rate grow by one factor, so the times stay equal, except for the bytes that are always in a
    // queue. When the first layer's sum is ready, the other sums still need 0.3 s of the link, and a step is
    // longer by the time that the first sum waits.
    let step = |times: f64| {
        let network = Network { bytes_per_us: 25.0 * times, ..network(4) };
        let len = (250_000.0 * times) as usize;
        let unit = |layer: usize| PushedUnit {
            layers: vec![layer],
            priority: -(layer as i32),
            is_alone: false,
            exchange: Exchange::Sum(schedules(&network, 0..1, Algorithm::Direct, len, 256 << 10), None),
        };
        let layers = vec![ComputedLayer { backward_us: 20_000.0, forward_us: 100_000.0 }; 8];
        step_us(&network, &Step { layers, units: (0..8).rev().map(unit).collect(), servers: None })
    };
    // Megabytes in a queue would make it a quarter longer.
    assert_near(step(1.0), step(50.0), 0.1);
}

#[test]
fn codes_take_their_own_bytes() {
    let (n, len) = (8, 8 << 16);
    let plan = allreduce_in_turns(0, n, len, (32, 4096));
    let part = part_in_turns(0, n, len, 32);
    let own = 4 * part.start..4 * part.end;
    let codes = |code, sum| Codes { own: vec![own.clone()], code, sum };
    let time = |codes| {
        let exchange = Exchange::Sum(vec![Schedule::of(&plan, DType::F32, usize::MAX)], Some(codes));
        let unit = PushedUnit { layers: vec![0], priority: 0, is_alone: true, exchange };
        let layers = vec![ComputedLayer { backward_us: 0.0, forward_us: 0.0 }];
        step_us(&network(n), &Step { layers, units: vec![unit], servers: None })
    };
    let wire = 7.0 / 8.0 * 4.0 * len as f64 / RATE;
    assert_near(time(codes(1.0, 1.0)), 2.0 * wire, 0.01);
    assert_near(time(codes(0.25, 0.5)), 0.75 * wire, 0.02);
}
