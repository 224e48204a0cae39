//! How fast long operations receive on this rank, and whether that has become slower.
//!
//! In a ring, as on trees, every rank receives at the pace of the slowest link. So each rank can see by itself
//! that some link has become slow. It cannot see which, nor that it is a link: whoever asks has to measure.
//!
//! A rank that is late keeps the others waiting once, and a slow link delays every segment. So the time between
//! two arrivals counts up to a few times what a segment usually takes, and the time before the first does not
//! count. What has come is cut into windows; the median of the last ones is compared with the fastest.

use std::time::{Duration, Instant};

/// Shorter operations do not count.
pub(super) const LONG_BYTES: usize = 1 << 20;
/// A window is as long as these, whichever takes longer.
const WINDOW: Duration = Duration::from_millis(250);
const WINDOW_BYTES: u64 = 4 << 20;
/// How many windows have to be slower, but for one.
const WINDOWS: usize = 3;
/// How much slower.
const SLOWER: f64 = 1.3;
/// The most that counts between two arrivals, in what a segment takes,
const MOST_SEGMENTS: u32 = 4;
/// and at least this: ranks that share cores take turns.
const LEAST_GAP: Duration = Duration::from_millis(20);

/// What has been received, and how fast. By default nothing is noted.
#[derive(Debug, Default)]
pub struct Pace {
    most_gap: Option<Duration>,
    last: Option<Instant>,
    busy: Duration,
    bytes: u64,
    /// Of the last windows, in bytes per second.
    rates: Vec<f64>,
    fastest: f64,
}

impl Pace {
    /// Begins anew, with segments that take about so long.
    pub fn watch(&mut self, segment: Duration) {
        *self = Pace { most_gap: Some((MOST_SEGMENTS * segment).max(LEAST_GAP)), ..Pace::default() };
    }

    /// A message of a long operation has come, at the time that `clock` says.
    pub(super) fn arrived(&mut self, bytes: u64, clock: impl FnOnce() -> Instant) {
        let Some(most_gap) = self.most_gap else { return };
        let now = clock();
        if let Some(last) = self.last.replace(now) {
            self.busy += now.saturating_duration_since(last).min(most_gap);
            self.bytes += bytes;
        }
        if self.busy >= WINDOW && self.bytes >= WINDOW_BYTES {
            if self.rates.len() == WINDOWS {
                self.rates.remove(0);
            }
            self.rates.push(self.bytes as f64 / self.busy.as_secs_f64());
            (self.busy, self.bytes) = (Duration::ZERO, 0);
            self.fastest = self.fastest.max(self.recent().unwrap_or(0.0));
        }
    }

    /// No long operation is under way.
    pub(super) fn rest(&mut self) {
        self.last = None;
    }

    /// Whether operations have become slower.
    pub fn is_slower(&self) -> bool {
        self.recent().is_some_and(|recent| SLOWER * recent < self.fastest)
    }

    /// The median of the last windows, if there are enough.
    fn recent(&self) -> Option<f64> {
        let mut rates = self.rates.clone();
        rates.sort_unstable_by(f64::total_cmp);
        (rates.len() == WINDOWS).then(|| rates[WINDOWS / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 256 << 10;

    /// A rank that receives segments, each of which takes `segment`.
    struct Receiver {
        pace: Pace,
        now: Instant,
    }

    impl Receiver {
        fn new() -> Self {
            let mut pace = Pace::default();
            pace.watch(Duration::from_millis(10));
            Receiver { pace, now: Instant::now() }
        }

        /// An operation of 100 segments; before segment `late_at` the rank waits for `late`.
        fn receive(&mut self, segment: Duration, (late_at, late): (usize, Duration)) {
            for at in 0..100 {
                self.now += segment + if at == late_at { late } else { Duration::ZERO };
                self.pace.arrived(SEGMENT, || self.now);
            }
            self.pace.rest();
            self.now += Duration::from_secs(5);
        }
    }

    const FAST: Duration = Duration::from_millis(10);
    const PUNCTUAL: (usize, Duration) = (0, Duration::ZERO);

    #[test]
    fn a_link_at_half_its_rate_is_noticed_within_two_operations_and_a_pause_is_not() {
        let mut rank = Receiver::new();
        (0..5).for_each(|_| rank.receive(FAST, PUNCTUAL));
        assert!(!rank.pace.is_slower(), "{:?}", rank.pace);
        (0..2).for_each(|_| rank.receive(2 * FAST, PUNCTUAL));
        assert!(rank.pace.is_slower(), "{:?}", rank.pace);
        rank.pace.watch(FAST);
        rank.receive(2 * FAST, PUNCTUAL);
        assert!(!rank.pace.is_slower(), "what is usual since then is not slower: {:?}", rank.pace);
    }

    #[test]
    fn a_rank_that_is_late_in_every_operation_is_no_slow_link() {
        let mut rank = Receiver::new();
        (0..5).for_each(|_| rank.receive(FAST, PUNCTUAL));
        for late_at in [0, 1, 50, 99, 30, 70] {
            rank.receive(FAST, (late_at, Duration::from_secs(3)));
            assert!(!rank.pace.is_slower(), "late before segment {late_at}: {:?}", rank.pace);
        }
    }

    #[test]
    fn one_slow_window_is_noise() {
        let mut rank = Receiver::new();
        (0..5).for_each(|_| rank.receive(FAST, PUNCTUAL));
        for _ in 0..25 {
            rank.now += 3 * FAST;
            rank.pace.arrived(SEGMENT, || rank.now);
        }
        assert!(!rank.pace.is_slower(), "{:?}", rank.pace);
    }
}
