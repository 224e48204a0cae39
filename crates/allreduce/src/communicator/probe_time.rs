//! What the probe takes, for those who have no hosts yet: it runs what its model predicts.

use ringpull_plan::{Algorithm, Model};

use super::probe::{LONG_BYTES, LONG_RUNS, REST, RESTED_BYTES, RUNS, batches_in, long_enough_us, ring_us, short_part};
use super::probe_rings::ProbeRing;
use super::rack_probe;

/// About what the probe of so many hosts takes by `model`, in microseconds, if each has one rank and their links
/// seem alike. The processes are there already.
pub fn probe_us(model: &Model, hosts: usize, segment_bytes: usize) -> f64 {
    if hosts < 2 {
        return 0.0;
    }
    let ring_size = ProbeRing::longest_of(hosts);
    let ring = |part| ring_us(model, (hosts, ring_size), part, segment_bytes);
    let all = |algorithm, len| model.predicted_us(algorithm, len, hosts, segment_bytes);
    let gather = f64::from(hosts.next_power_of_two().ilog2()) * (model.latency_us + model.message_us);
    let (star, direct) = (all(Algorithm::Star, hosts), all(Algorithm::Direct, hosts));
    let batch = ring(1) + star + direct + all(Algorithm::Star, short_part(hosts)) + ring(short_part(ring_size));
    let runs = 1 + RUNS * batches_in(RUNS as f64 * batch);
    let (mut growth, mut long) = (0.0, 0);
    for bytes in LONG_BYTES {
        let once = ring(bytes.div_ceil(ring_size));
        (growth, long) = (growth + 2.0 * once + gather, bytes);
        if once > long_enough_us(ring(1)) {
            break;
        }
    }
    let rested = ring(RESTED_BYTES.min(long).div_ceil(ring_size)) + REST.as_secs_f64() * 1e6;
    let round = ring(long.div_ceil(ring_size)) + all(Algorithm::Direct, long) + rested + 3.0 * gather;
    let pairs = if rack_probe::HOSTS.contains(&hosts) {
        2.0 * all(Algorithm::Ring, long) + rack_probe::tournament_us(model, hosts, gather)
    } else {
        0.0
    };
    runs as f64 * batch + growth + LONG_RUNS as f64 * round + pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: usize = 256 << 10;

    #[test]
    fn a_probe_of_many_hosts_takes_hardly_longer_than_one_of_few() {
        let hosts = Model { latency_us: 50.0, message_us: 10.0, ..Model::default() };
        let took = [8, 33, 1000].map(|count| probe_us(&hosts, count, SEGMENT));
        assert!(took[0] > 1e5 && took[1] < 1.5 * took[0] && took[2] < 3.0 * took[0], "{took:?}");
        let far = Model { latency_us: 20_000.0, ..hosts };
        assert!(probe_us(&far, 8, SEGMENT) < 2e7);
    }
}
