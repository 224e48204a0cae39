//! The probe in simulated time, for tests: each run takes what a model predicts.

use std::time::Duration;

use ringpull_base::Result;
use ringpull_plan::{Algorithm, Model};

use super::probe::{ProbeRun, ProbeRunner, ring_us, two_us};
use super::probe_rings::ProbeRing;

/// Runs the probe in simulated time: each run takes what the model predicts.
pub(super) struct SimulatedProbe<'a> {
    model: &'a Model,
    hosts: usize,
    ring_size: usize,
    segment_bytes: usize,
    now_us: f64,
}

impl<'a> SimulatedProbe<'a> {
    /// A probe on `hosts` hosts of one rank each.
    pub(super) fn new(model: &'a Model, hosts: usize, segment_bytes: usize) -> Self {
        SimulatedProbe { model, hosts, ring_size: ProbeRing::longest_of(hosts), segment_bytes, now_us: 0.0 }
    }

    fn gather_us(&self) -> f64 {
        f64::from(self.hosts.next_power_of_two().ilog2()) * (self.model.latency_us + self.model.message_us)
    }
}

impl ProbeRunner for SimulatedProbe<'_> {
    fn sizes(&self) -> (usize, usize) {
        (self.hosts, self.ring_size)
    }

    fn idle(&self) -> usize {
        ProbeRing::idle_of(self.hosts)
    }

    fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    fn sum_bytes_per_us(&mut self) -> f64 {
        self.model.sum_bytes_per_us
    }

    fn now_us(&self) -> f64 {
        self.now_us
    }

    fn run(&mut self, run: ProbeRun, len: usize) -> Result<f64> {
        let took_us = match run {
            ProbeRun::All(algorithm) => self.model.predicted_us(algorithm, len, self.hosts, self.segment_bytes),
            ProbeRun::Ring => ring_us(self.model, (self.hosts, self.ring_size), len, self.segment_bytes),
            ProbeRun::Two => two_us(self.model, (self.hosts, self.ring_size), len, self.segment_bytes),
        };
        self.now_us += took_us;
        if !matches!(run, ProbeRun::All(_)) {
            self.gather([0.0])?;
        }
        Ok(took_us)
    }

    fn gather<const N: usize>(&mut self, own: [f64; N]) -> Result<Vec<[f64; N]>> {
        self.now_us += self.gather_us();
        Ok(vec![own])
    }

    fn rest(&mut self, how_long: Duration) {
        self.now_us += how_long.as_secs_f64() * 1e6;
    }
}

mod tests {
    use ringpull_plan::{Segments, choose};

    use super::super::probe::fit;
    use super::*;

    const SEGMENT: usize = 256 << 10;

    /// Returns the model that the probe of `hosts` hosts finds.
    fn found(model: &Model, hosts: usize) -> Model {
        fit(&SimulatedProbe::new(model, hosts, SEGMENT).measure().unwrap())
    }

    #[test]
    fn what_slow_links_carry_is_found_behind_the_latency_of_many_hosts() {
        let rate = 6.0;
        let slow = Model { latency_us: 150.0, short_bytes_per_us: rate, long_bytes_per_us: rate, ..Model::default() };
        for hosts in [8, 15, 16, 32, 64, 1000] {
            let found = found(&slow, hosts);
            assert!((0.8..1.25).contains(&(found.long_bytes_per_us / rate)), "{hosts} hosts: {found:?}");
            let segments = Segments { most_bytes: SEGMENT, is_fixed: false };
            let chosen = choose(&found, 25_000_000, hosts, segments).algorithm;
            assert_eq!(chosen, choose(&slow, 25_000_000, hosts, segments).algorithm, "{hosts} hosts");
        }
    }

    /// A probe whose links have shapers: `saved` bytes of each direction go at once, the others at `rate`.
    struct ShapedProbe<'a> {
        probe: SimulatedProbe<'a>,
        rate: f64,
        burst: f64,
        saved: f64,
        since_us: f64,
        /// The number of long rings that take 0.1 s longer, because of other load.
        slow: usize,
    }

    impl<'a> ShapedProbe<'a> {
        fn new(open: &'a Model, hosts: usize, rate: f64) -> Self {
            let burst = f64::from(128 << 10);
            let probe = SimulatedProbe::new(open, hosts, SEGMENT);
            ShapedProbe { probe, rate, burst, saved: burst, since_us: 0.0, slow: 0 }
        }
    }

    impl ProbeRunner for ShapedProbe<'_> {
        fn sizes(&self) -> (usize, usize) {
            self.probe.sizes()
        }

        fn idle(&self) -> usize {
            self.probe.idle()
        }

        fn segment_bytes(&self) -> usize {
            self.probe.segment_bytes()
        }

        fn sum_bytes_per_us(&mut self) -> f64 {
            self.probe.sum_bytes_per_us()
        }

        fn now_us(&self) -> f64 {
            self.probe.now_us()
        }

        fn run(&mut self, run: ProbeRun, len: usize) -> Result<f64> {
            let (ranks, ring) = self.sizes();
            let one_way = match run {
                ProbeRun::Ring | ProbeRun::Two => 2 * (ring - 1) * len,
                ProbeRun::All(Algorithm::Star) => (ranks - 1) * len,
                ProbeRun::All(_) => 2 * (ranks - 1) * len.div_ceil(ranks),
            };
            self.saved = self.burst.min(self.saved + (self.now_us() - self.since_us) * self.rate);
            let open_us = self.probe.run(run, len)?;
            let mut took_us = open_us.max((one_way as f64 - self.saved) / self.rate);
            if self.slow > 0 && matches!(run, ProbeRun::Ring) && one_way > 64 << 10 {
                self.slow -= 1;
                took_us += 1e5;
            }
            self.probe.now_us += took_us - open_us;
            self.saved = self.burst.min(self.saved + took_us * self.rate - one_way as f64);
            self.since_us = self.now_us();
            Ok(took_us)
        }

        fn gather<const N: usize>(&mut self, own: [f64; N]) -> Result<Vec<[f64; N]>> {
            self.probe.gather(own)
        }

        fn rest(&mut self, how_long: Duration) {
            self.probe.rest(how_long);
        }
    }

    #[test]
    fn what_waits_for_a_slow_shaper_is_not_taken_for_the_ranks_work() {
        let open = Model { latency_us: 100.0, short_bytes_per_us: 600.0, long_bytes_per_us: 600.0, ..Model::default() };
        for (hosts, rate) in
            [(2, 24.0), (2, 6.0), (3, 24.0), (4, 6.0), (8, 6.0), (8, 25.0), (12, 6.0), (15, 3.0), (16, 6.0), (16, 12.0)]
        {
            let found = fit(&ShapedProbe::new(&open, hosts, rate).measure().unwrap());
            assert!((0.8..1.7).contains(&(found.long_bytes_per_us / rate)), "{hosts} hosts at {rate}: {found:?}");
            assert!(found.shared_us_per_byte * hosts as f64 * rate < 0.3, "{hosts} hosts at {rate}: {found:?}");
            let segments = Segments { most_bytes: SEGMENT, is_fixed: false };
            let chosen = choose(&found, 25_000_000, hosts, segments).algorithm;
            assert_eq!(chosen, Algorithm::Ring, "{hosts} hosts at {rate}: {found:?}");
        }
    }

    #[test]
    fn long_rings_that_other_load_delays_are_no_reason_to_stop_before_a_shaper_shows() {
        let open = Model { latency_us: 1700.0, short_bytes_per_us: 60.0, long_bytes_per_us: 60.0, ..Model::default() };
        for slow in [0, 2, 4] {
            let found = fit(&ShapedProbe { slow, ..ShapedProbe::new(&open, 64, 2.4) }.measure().unwrap());
            assert!((0.8..1.7).contains(&(found.long_bytes_per_us / 2.4)), "{slow} slow ones: {found:?}");
        }
    }
}
