//! The rule for how long a waiting thread stays awake before it sleeps. Every wait for another thread or rank
//! uses it.
//!
//! Waking up takes a good part of the time of a short operation. So a thread first polls, and yields its core
//! between two polls. This pays only while there are free cores. If another thread computes on the core, the
//! yield returns milliseconds later. A thread that sleeps gets a core soon after it is woken, because the
//! scheduler prefers threads that have run little. Two late yields within 50 ms show that cores are busy.
//! From then on every wait of the process sleeps at once, for 100 ms at first. That time doubles, up to 1 s,
//! each time the next try is late too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::waits::since_start_ns;

/// A yield that takes at least this time gave the core to a thread that computes. Yields between ranks that
/// share a core return sooner, except for a few in each second.
const LATE: Duration = Duration::from_micros(1500);
/// The time within which a second yield must be late. Beside a thread that computes, every other yield is
/// late.
const AGAIN: Duration = Duration::from_millis(50);
/// The shortest and the longest time for which the cores then count as busy.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(1);

static CORES: Cores = Cores::new();

/// The knowledge of a process about the cores on which it runs. Times are nanoseconds since the start of the
/// process.
struct Cores {
    /// The time until which the cores count as busy.
    busy_until: AtomicU64,
    /// The length of the last time for which they counted as busy.
    pause: AtomicU64,
    /// The time of the last late yield.
    late_at: AtomicU64,
}

impl Cores {
    const fn new() -> Self {
        Cores { busy_until: AtomicU64::new(0), pause: AtomicU64::new(0), late_at: AtomicU64::new(0) }
    }

    fn are_busy(&self, now_ns: u64) -> bool {
        now_ns < self.busy_until.load(Ordering::Relaxed)
    }

    /// Records a late yield. Several threads may do so at the same time, and any of their values is valid.
    fn record_late(&self, now_ns: u64) {
        let (until_ns, pause_ns) = (self.busy_until.load(Ordering::Relaxed), self.pause.load(Ordering::Relaxed));
        let before_ns = self.late_at.swap(now_ns, Ordering::Relaxed);
        // Two threads that were late at the same time show one pause, not two.
        let again_ns = LATE.as_nanos() as u64..AGAIN.as_nanos() as u64;
        let is_second = before_ns > 0 && again_ns.contains(&now_ns.saturating_sub(before_ns));
        if now_ns < until_ns || !is_second {
            // Another thread has recorded it already, or this is the first late yield.
            return;
        }
        let is_again = now_ns - until_ns < 2 * pause_ns;
        let longer_ns = if is_again { 2 * pause_ns } else { 0 };
        let pause_ns = longer_ns.clamp(SHORTEST.as_nanos() as u64, LONGEST.as_nanos() as u64);
        self.pause.store(pause_ns, Ordering::Relaxed);
        self.busy_until.store(now_ns + pause_ns, Ordering::Relaxed);
    }
}

/// Returns true while yields are expected to return late.
pub fn are_cores_busy() -> bool {
    CORES.are_busy(since_start_ns(Instant::now()))
}

/// The first part of a wait, in which the thread is awake.
pub struct Awake {
    begun: Instant,
    now: Instant,
    limit: Duration,
}

impl Awake {
    /// Returns a wait that stays awake for at most `limit`.
    pub fn new(limit: Duration) -> Self {
        let now = Instant::now();
        Awake { begun: now, now, limit }
    }

    /// Yields the core for a moment. Returns false if the thread is to sleep now.
    pub fn is_awake(&mut self) -> bool {
        if self.now - self.begun >= self.limit || CORES.are_busy(since_start_ns(self.now)) {
            return false;
        }
        std::thread::yield_now();
        let now = Instant::now();
        if now - self.now >= LATE {
            CORES.record_late(since_start_ns(now));
        }
        self.now = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_stay_busy_are_tried_ever_more_rarely_and_soon_again_after_they_were_free() {
        let (cores, short_ns, long_ns) = (Cores::new(), SHORTEST.as_nanos() as u64, LONGEST.as_nanos() as u64);
        let mut now_ns = 5 * long_ns;
        let mut pauses_ns = Vec::new();
        for _ in 0..10 {
            cores.record_late(now_ns - LATE.as_nanos() as u64);
            assert!(!cores.are_busy(now_ns));
            cores.record_late(now_ns);
            let until_ns = cores.busy_until.load(Ordering::Relaxed);
            pauses_ns.push(until_ns - now_ns);
            assert!(cores.are_busy(now_ns) && cores.are_busy(until_ns - 1));
            // A second thread was late at the same time.
            cores.record_late(now_ns + 1);
            assert_eq!(cores.busy_until.load(Ordering::Relaxed), until_ns);
            now_ns = until_ns + short_ns / 2;
        }
        assert_eq!((pauses_ns[0], pauses_ns[1], pauses_ns[9]), (short_ns, 2 * short_ns, long_ns));
        now_ns += 3 * long_ns;
        cores.record_late(now_ns - LATE.as_nanos() as u64);
        cores.record_late(now_ns);
        assert_eq!(cores.busy_until.load(Ordering::Relaxed), now_ns + short_ns);
    }

    #[test]
    fn one_pause_that_two_threads_meet_shows_no_busy_cores() {
        let (cores, late_ns, again_ns) = (Cores::new(), LATE.as_nanos() as u64, AGAIN.as_nanos() as u64);
        for now_ns in [again_ns, again_ns + 1, 3 * again_ns] {
            cores.record_late(now_ns);
            assert!(!cores.are_busy(now_ns));
        }
        cores.record_late(3 * again_ns + late_ns);
        assert!(cores.are_busy(3 * again_ns + late_ns));
    }

    #[test]
    fn a_wait_is_awake_for_no_longer_than_its_limit() {
        let mut never = Awake::new(Duration::ZERO);
        assert!(!never.is_awake());
        let mut some = Awake::new(Duration::from_micros(200));
        while some.is_awake() {}
    }
}
