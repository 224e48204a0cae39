//! Finds out if this rank waits in a call for an operation that cannot begin.
//!
//! That is so if all of these hold: some call of the rank has not begun or makes no progress; nothing about
//! its calls changes; its process computes nothing; and every thread that uses stores waits in a call of
//! ringpull, or the program waits in its framework for a result of ringpull. A rank that computes, sleeps,
//! loads or saves does not wait in this sense, because it may call at any time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ringpull_base::waits::{self, IDLE, Place, used_s};

use crate::progress::agreement::STILL_S;
use crate::progress::messages::Stuck;
use crate::progress::shared::Shared;
use crate::transport::{messages, open_messages};

/// The greatest age of a look at the program that still counts.
const RECENT: Duration = Duration::from_secs(3);

/// A snapshot that changes with every event of this rank's calls.
#[derive(PartialEq, Clone)]
struct CallsSnapshot {
    made: u64,
    waiting: usize,
    running: Vec<u32>,
    is_joining: bool,
    moved: u64,
    orders: u64,
}

/// The last snapshot, the time since which it has not changed, and the last report to rank 0.
#[derive(Default)]
pub(super) struct Standstill {
    seen: Option<(CallsSnapshot, StillnessStart)>,
    /// The number of MPI's messages that have moved, the time of the last move, and the last report to rank 0
    /// about it.
    data: Option<(u64, f64)>,
    told_data: bool,
    told: Option<Stuck>,
}

#[derive(Clone)]
struct StillnessStart {
    now_s: f64,
    when: Instant,
    used_s: f64,
}

impl Standstill {
    /// Checks if this rank stands still, and reports a change to rank 0 by `report`.
    pub(super) fn report(&mut self, shared: &Shared, now_s: f64, report: impl FnOnce(Option<Stuck>)) {
        let stuck = self.look(shared, now_s);
        if stuck != self.told {
            self.told.clone_from(&stuck);
            report(stuck);
        }
    }

    /// Checks if messages of MPI are under way and none has moved, and reports a change to rank 0 by
    /// `report`.
    pub(super) fn report_data(&mut self, now_s: f64, report: impl FnOnce(bool)) {
        let moved = messages();
        let (_, since_s) =
            *self.data.insert(self.data.filter(|(before, _)| *before == moved).unwrap_or((moved, now_s)));
        let is_still = open_messages() > 0 && now_s - since_s >= STILL_S;
        if is_still != self.told_data {
            self.told_data = is_still;
            report(is_still);
        }
    }

    fn look(&mut self, shared: &Shared, now_s: f64) -> Option<Stuck> {
        let sight = sight(shared);
        if sight.waiting == 0 && sight.running.is_empty() && !sight.is_joining {
            self.seen = None;
            return None;
        }
        let since = match &self.seen {
            Some((before, since)) if *before == sight => since.clone(),
            _ => StillnessStart { now_s, when: Instant::now(), used_s: used_s() },
        };
        let (orders, has_begun) = (sight.orders, !sight.running.is_empty());
        self.seen = Some((sight, since.clone()));
        let still_s = now_s - since.now_s;
        if still_s < STILL_S / 2.0 {
            return None;
        }
        if waits::has_looker() {
            waits::look();
        }
        let is_idle = used_s() - since.used_s < IDLE * since.when.elapsed().as_secs_f64();
        if still_s < STILL_S || !is_idle {
            return None;
        }
        let recent = Instant::now().checked_sub(RECENT).map_or(since.when, |recent| recent.max(since.when));
        let place = waits::seen(recent);
        let is_stuck = waits::is_only_waiting(place.as_ref()) || shared.condition.is_leaving();
        is_stuck.then(|| Stuck { orders, has_begun, site: place.and_then(|Place { site, .. }| site) })
    }
}

fn sight(shared: &Shared) -> CallsSnapshot {
    // The locks are taken one after another. A change between them is seen the next time.
    let made = shared.calls.lock().made();
    let waiting = shared.waiting.lock().len();
    let running = shared.running.lock().iter().map(|(number, _)| *number).collect();
    let is_joining = shared.callers.joining.lock().is_some();
    let (moved, orders) = (shared.moved(), shared.counters.orders.load(Ordering::Relaxed));
    CallsSnapshot { made, waiting, running, is_joining, moved, orders }
}
