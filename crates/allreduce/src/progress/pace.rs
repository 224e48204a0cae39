//! Whether sums of all ranks have become slow: on a link, and not because a rank comes late.
//!
//! A rank takes the time from when it begins a sum, nothing else of all ranks being under way, until nothing
//! is. It compares that with the shortest of as many bytes, and counts how many were slower in a row. Each
//! rank sends its counts to rank 0 with its heartbeats. A rank that comes last waits for nobody: if it alone
//! is late, its own time is as ever. A slow link is felt by all, though not by all as much: the parts of a
//! ring that have passed the slow host come early to some ranks, which are done before the others. So sums
//! have become slow if some of the latest were slower on every rank, and clearly so on most.
//!
//! Pure: time comes in as a number.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Fewer bytes show a link's rate less than they show what else a host does.
const LEAST_BYTES: usize = 1 << 20;
/// How often as many bytes were summed before the shortest time counts.
const KNOWN: usize = 3;
/// A sum is slower than the shortest if it takes as many times as long, and clearly slower.
const SLOWER: f64 = 1.1;
const CLEARLY: f64 = 1.4;
/// So many times in a row, so many sums that were slower for all.
const IN_A_ROW: u32 = 3;

/// The sums of all ranks that a rank has done, and how many of the last were slower.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlowSums {
    done: u32,
    slower: u32,
    clearly: u32,
}

/// What was slower in a row.
#[derive(Default)]
struct Run {
    times: u32,
    sums: u32,
}

impl Run {
    fn take(&mut self, goes_on: bool, sums: u32) {
        *self =
            if goes_on { Run { times: self.times + 1, sums: self.sums.saturating_add(sums) } } else { Run::default() };
    }

    fn reported(&self) -> u32 {
        if self.times < IN_A_ROW { 0 } else { self.sums }
    }
}

/// One rank's times.
#[derive(Default)]
pub(super) struct Pace {
    began_s: Option<f64>,
    bytes: usize,
    sums: u32,
    /// By the logarithm of the bytes: how often, and the shortest time a byte.
    known: BTreeMap<u32, (usize, f64)>,
    slower: Run,
    clearly: Run,
    done: u32,
}

impl Pace {
    /// A sum of all ranks begins.
    pub(super) fn begin(&mut self, bytes: usize, now_s: f64) {
        self.began_s.get_or_insert(now_s);
        self.bytes += bytes;
        self.sums += 1;
    }

    /// No sum of all ranks is under way.
    pub(super) fn idle(&mut self, now_s: f64) -> SlowSums {
        if let Some(began_s) = self.began_s.take() {
            let (bytes, sums) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.sums));
            self.done = self.done.wrapping_add(sums);
            if bytes < LEAST_BYTES {
                // It says nothing, and is no end of what was in a row.
                [&mut self.slower, &mut self.clearly]
                    .into_iter()
                    .for_each(|run| run.sums = run.sums.saturating_add(sums));
            } else {
                self.take(bytes.ilog2(), (now_s - began_s) / bytes as f64, sums);
            }
        }
        SlowSums { done: self.done, slower: self.slower.reported(), clearly: self.clearly.reported() }
    }

    fn take(&mut self, class: u32, time: f64, sums: u32) {
        let (times, shortest) = self.known.entry(class).or_insert((0, f64::INFINITY));
        let ratio = if *times < KNOWN { 0.0 } else { time / *shortest };
        *times += 1;
        *shortest = shortest.min(time);
        self.slower.take(ratio > SLOWER, sums);
        self.clearly.take(ratio > CLEARLY, sums);
    }

    /// What a rank reports of which every sum was slow.
    #[cfg(test)]
    pub(super) fn slow_in_test() -> SlowSums {
        SlowSums { done: 100, slower: 100, clearly: 100 }
    }

    /// The links have been measured. Sums are compared with later ones from now on, or, if the links' rates
    /// could not be told, still with the shortest.
    pub(super) fn measured(&mut self, are_told: bool) -> SlowSums {
        let known = if are_told { BTreeMap::new() } else { std::mem::take(&mut self.known) };
        *self = Pace { done: self.done, known, ..Pace::default() };
        SlowSums { done: self.done, ..SlowSums::default() }
    }
}

/// When links that differ are measured again, in case they do no more; and the least time between two
/// measurements. It doubles whenever one has told nothing new,
const LEAST_PAUSE_S: f64 = 30.0;
/// up to this,
const MOST_PAUSE_S: f64 = 3600.0;
/// and is as many times what a measurement takes.
const TIMES_AS_LONG: f64 = 30.0;

/// On rank 0: when to measure the links again.
pub(super) struct Vigil {
    sums: Vec<SlowSums>,
    /// Before this nothing is measured.
    until_s: f64,
    pause_s: f64,
    differ: bool,
    /// Whether a measurement is on its way.
    is_asked: bool,
    /// The operation that was the last measurement.
    last: Option<u32>,
    /// How many sums were done when the links were measured last.
    seen: u32,
}

impl Vigil {
    /// Of as many ranks, whose links differ or not, from now on.
    pub(super) fn new(size: usize, differ: bool, now_s: f64) -> Self {
        let until_s = if differ { now_s + 2.0 * LEAST_PAUSE_S } else { now_s };
        Vigil {
            sums: vec![SlowSums::default(); size],
            until_s,
            pause_s: LEAST_PAUSE_S,
            differ,
            is_asked: false,
            last: None,
            seen: 0,
        }
    }

    /// A rank has reported.
    pub(super) fn take(&mut self, rank: usize, sums: SlowSums) {
        self.sums[rank] = sums;
    }

    /// Whether to measure now. Once it is, it is not until that has been [`measured`](Self::measured).
    pub(super) fn is_due(&mut self, now_s: f64) -> bool {
        let has_sums = self.sums[0].done.wrapping_sub(self.seen) >= IN_A_ROW;
        let is_due = !self.is_asked && now_s >= self.until_s && (self.are_slow() || self.differ && has_sums);
        self.is_asked |= is_due;
        is_due
    }

    /// Whether some of the latest sums were slower for all ranks, and clearly so for most.
    fn are_slow(&self) -> bool {
        // Counted from rank 0's, as counts wrap.
        let from = |count: u32| i64::from(count.wrapping_sub(self.sums[0].done) as i32);
        let last = self.sums.iter().map(|sums| from(sums.done)).min().unwrap_or(0);
        let since = |sums: &SlowSums, slow: u32| last - (from(sums.done) - i64::from(slow)) >= i64::from(IN_A_ROW);
        let clearly = self.sums.iter().filter(|sums| since(sums, sums.clearly)).count();
        let first = self.sums.iter().map(|sums| from(sums.done) - i64::from(sums.slower)).max();
        first.is_some_and(|first| last - first >= i64::from(IN_A_ROW)) && 2 * clearly > self.sums.len()
    }

    /// Whether the measurement of this number has not been seen before.
    pub(super) fn is_news(&mut self, number: u32) -> bool {
        self.last.replace(number) != Some(number)
    }

    /// The links have been measured, in so many seconds.
    pub(super) fn measured(&mut self, changed: bool, differ: bool, took_s: f64, now_s: f64) {
        self.pause_s = if changed { LEAST_PAUSE_S } else { (2.0 * self.pause_s).min(MOST_PAUSE_S) };
        self.until_s = now_s + self.pause_s.max(TIMES_AS_LONG * took_s);
        (self.differ, self.is_asked) = (differ, false);
        self.seen = self.sums[0].done;
        // What was reported before is of the times before.
        self.sums.iter_mut().for_each(|sums| (sums.slower, sums.clearly) = (0, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 25_000_000;

    /// What a rank reports after sums of these seconds, each alone.
    fn after(times: &[f64]) -> SlowSums {
        let (mut pace, mut now_s) = (Pace::default(), 0.0);
        let report = |time: &f64| {
            pace.begin(BYTES, now_s);
            now_s += time;
            pace.idle(now_s)
        };
        times.iter().map(report).last().unwrap_or_default()
    }

    /// So many sums, of which so many were slower in a row, and so many clearly.
    fn sums(done: u32, slower: u32, clearly: u32) -> SlowSums {
        SlowSums { done, slower, clearly }
    }

    #[test]
    fn sums_are_slow_after_three_in_a_row_that_take_longer_than_the_shortest() {
        assert_eq!(after(&[1.0, 1.05, 1.0, 2.0, 2.0]), sums(5, 0, 0));
        assert_eq!(after(&[1.0, 1.05, 1.0, 2.0, 2.0, 2.0, 2.0]), sums(7, 4, 4));
        assert_eq!(after(&[1.0, 1.05, 1.0, 2.0, 2.0, 2.0, 1.2]), sums(7, 4, 0));
        assert_eq!(after(&[1.0, 1.05, 1.0, 2.0, 2.0, 2.0, 1.05]), sums(7, 0, 0));
        assert_eq!(after(&[1.0, 1.1, 1.05, 1.2, 1.3, 1.39]), sums(6, 3, 0), "noise");
        assert_eq!(after(&[2.0, 2.0, 2.0, 2.0]), sums(4, 0, 0), "as ever");
    }

    #[test]
    fn sums_that_overlap_count_together_and_short_ones_tell_nothing() {
        let mut pace = Pace::default();
        let mut step = |from_s: f64, takes_s: f64| {
            (0..4).for_each(|at| pace.begin(BYTES / 4, from_s + 0.1 * f64::from(at)));
            pace.idle(from_s + takes_s);
            pace.begin(1000, from_s + takes_s + 1.0);
            pace.idle(from_s + takes_s + 60.0)
        };
        for at in 0..4 {
            assert_eq!(step(100.0 * f64::from(at), 1.0).clearly, 0);
        }
        step(500.0, 2.0);
        step(600.0, 2.0);
        let SlowSums { done, clearly, .. } = step(700.0, 2.0);
        assert!(done == 35 && clearly >= 12, "{clearly} of {done}");
        assert_eq!(step(800.0, 1.0), sums(40, 0, 0));
    }

    fn are_slow(all: &[SlowSums]) -> bool {
        let mut vigil = Vigil::new(all.len(), false, 0.0);
        all.iter().enumerate().for_each(|(rank, sums)| vigil.take(rank, *sums));
        vigil.is_due(100.0)
    }

    #[test]
    fn a_rank_that_comes_late_is_no_slow_link() {
        // Rank 2 comes a second late from the fourth sum on; the others wait for it.
        let waits = after(&[1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
        let is_late = after(&[1.0, 1.0, 1.0, 1.02, 0.98, 1.0, 1.0]);
        assert!(!are_slow(&[waits, waits, is_late, waits]) && !are_slow(&[is_late, waits, waits, waits]));
        // Each rank is late in turn: none of the sums was slow for all.
        assert!(!are_slow(&[sums(9, 3, 3), sums(20, 4, 4), sums(15, 3, 3)]));
    }

    #[test]
    fn a_slow_link_is_felt_by_all() {
        let slow = after(&[1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
        assert!(are_slow(&[slow; 4]));
        // In a ring of eight of which the third is slow, the first is done after two thirds of the time.
        let done_early = after(&[1.0, 1.0, 1.0, 1.34, 1.32, 1.34, 1.35]);
        assert!(are_slow(&[done_early, slow, slow, slow]));
        assert!(!are_slow(&[done_early, done_early, slow, done_early]), "a busy host");
        // One that reports a little later is of the same sums.
        assert!(are_slow(&[slow, sums(9, 6, 6), slow]));
    }

    #[test]
    fn links_are_measured_less_and_less_often_if_nothing_is_found() {
        let slow = sums(9, 5, 5);
        let mut vigil = Vigil::new(2, false, 0.0);
        let mut now_s = 0.0;
        let mut measured = Vec::new();
        while now_s < 7200.0 {
            (0..2).for_each(|rank| vigil.take(rank, slow));
            if vigil.is_due(now_s) {
                measured.push(now_s);
                vigil.measured(false, false, 1.0, now_s);
                assert!(!vigil.is_due(now_s + MOST_PAUSE_S), "what was reported before tells nothing any more");
            }
            now_s += 1.0;
        }
        assert!(measured.len() < 9 && measured.windows(3).all(|at| at[2] - at[1] >= at[1] - at[0]), "{measured:?}");
    }

    #[test]
    fn links_that_differ_are_looked_at_again_while_there_are_sums() {
        let mut vigil = Vigil::new(2, true, 0.0);
        let at = |done: u32| sums(done, 0, 0);
        (0..2).for_each(|rank| vigil.take(rank, at(10)));
        assert!(!vigil.is_due(LEAST_PAUSE_S) && vigil.is_due(2.0 * LEAST_PAUSE_S));
        vigil.measured(true, true, 0.1, 60.0);
        assert!(!vigil.is_due(1000.0), "there was no sum");
        (0..2).for_each(|rank| vigil.take(rank, at(20)));
        assert!(!vigil.is_due(60.0 + LEAST_PAUSE_S - 1.0) && vigil.is_due(60.0 + LEAST_PAUSE_S));
        vigil.measured(true, false, 0.1, 100.0);
        (0..2).for_each(|rank| vigil.take(rank, at(30)));
        assert!(!vigil.is_due(1e6), "they are alike");
    }

    #[test]
    fn sums_stay_slow_while_a_measurement_cannot_tell_the_rates() {
        let begun = |pace: &mut Pace, times: &[f64]| {
            let mut now_s = 0.0;
            let reports = times.iter().map(|time| {
                pace.begin(BYTES, now_s);
                now_s += time;
                pace.idle(now_s)
            });
            reports.last().unwrap()
        };
        for are_told in [false, true] {
            let mut pace = Pace::default();
            assert_eq!(begun(&mut pace, &[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]), sums(6, 3, 3));
            assert_eq!(pace.measured(are_told), sums(6, 0, 0));
            let slow = if are_told { 0 } else { 3 };
            assert_eq!(begun(&mut pace, &[2.0; 3]), sums(9, slow, slow));
        }
    }

    #[test]
    fn counts_may_wrap() {
        let mut vigil = Vigil::new(2, false, 0.0);
        vigil.take(0, sums(2, 9, 9));
        vigil.take(1, sums(u32::MAX, 9, 9));
        assert!(vigil.is_due(0.0));
    }
}
