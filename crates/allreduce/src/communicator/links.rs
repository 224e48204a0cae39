//! Links whose rates change while a job runs: when they are measured again, and the plans that follow.
//!
//! Rank 0 notices by itself that long sums receive more slowly (`interpreter/pace.rs`). That is no
//! more than a suspicion. So it has all ranks measure their links at an operation that all of them have agreed
//! on, with the exchanges of the first probe, and only what these say changes the plans. Links that are known
//! to differ are looked at now and then: on plans that suit them, sums do not become faster when a slow link
//! recovers.
//!
//! What measuring takes is a small part of a job: the next time is so many times as far away as the last one
//! took, and twice as far whenever that has changed nothing.

use std::time::{Duration, Instant};

use ringpull_base::Result;
use ringpull_base::config::{Config, ModelSource};
use ringpull_plan::Links;

use super::Communicator;
use super::probe::Prober;
use super::rack_probe::HOSTS;

/// Links that the first probe, or the cache, says are not alike are looked at after this time.
const FIRST_LOOK: Duration = Duration::from_secs(20);
/// How many times what a measurement has taken passes until the next: if plans have changed,
const AFTER_CHANGE: u32 = 8;
/// and if they have not, or if nothing but time speaks for it.
const AFTER_NONE: u32 = 40;
const MOST_DOUBLINGS: u32 = 6;

/// When the links may be measured again.
pub(super) struct Watch {
    /// Not before, if sums have become slower.
    next: Instant,
    /// If it is only known that the links are not alike.
    look: Instant,
    in_vain: u32,
}

impl Watch {
    fn new(now: Instant) -> Self {
        Watch { next: now, look: now + FIRST_LOOK, in_vain: 0 }
    }

    /// Links were measured, which took so long.
    fn measured(&mut self, now: Instant, took: Duration, has_changed: bool) {
        self.in_vain = if has_changed { 0 } else { (self.in_vain + 1).min(MOST_DOUBLINGS) };
        self.look = now + took * (AFTER_NONE << self.in_vain);
        self.next = if has_changed { now + took * AFTER_CHANGE } else { self.look };
    }
}

impl Communicator {
    /// From now on rank 0 watches whether the links change, if plans can follow that: `auto` chooses them, by
    /// a model that was measured, and there is one rack and no helper.
    pub(super) fn watch_links(&mut self, config: &Config) {
        let is_measured = matches!(config.model, ModelSource::Probe | ModelSource::Cached);
        let is_watched = self.rank() == 0
            && self.choice.is_auto()
            && is_measured
            && !config.elastic
            && self.helpers.active() == 0
            && self.placement.racks.is_none()
            && HOSTS.contains(&self.placement.hosts.len());
        self.watch = is_watched.then(|| Watch::new(Instant::now()));
        self.watch_pace();
    }

    fn watch_pace(&mut self) {
        if self.watch.is_some() {
            let segment_us = self.cuts.most_bytes as f64 / self.learned.model.long_bytes_per_us;
            self.executor.runner.pace.watch(Duration::from_secs_f64(segment_us / 1e6));
        }
    }

    /// On rank 0: whether the links should be [measured again](Self::measure_links), since sums have become
    /// slower or slow links may have recovered.
    pub fn suspects_links(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| {
            let now = Instant::now();
            (now >= watch.next && self.executor.runner.pace.is_slower())
                || (now >= watch.look && self.learned.links.is_some())
        })
    }

    /// Measures the hosts' links again; long sums go by what is found from then on. Blocks; collective, while
    /// no other operation of all ranks is under way.
    pub fn measure_links(&mut self) -> Result<()> {
        if !HOSTS.contains(&self.placement.hosts.len()) {
            return Ok(());
        }
        let begun = Instant::now();
        let (hosts, known) = (&self.placement.hosts, self.learned.links.as_ref());
        let mut prober = Prober { executor: &mut self.executor };
        let found = prober.rates_again(hosts, &self.learned.model, known)?;
        if let Some(rates) = &found {
            self.learned.links = Links::of(rates);
            self.learned.model.long_bytes_per_us =
                rates.iter().map(|rates| rates.slower()).fold(f64::INFINITY, f64::min);
            self.schedules.forget();
        }
        if let Some(watch) = &mut self.watch {
            let (now, took) = (Instant::now(), begun.elapsed());
            watch.measured(now, took, found.is_some());
            tracing::info!(
                "the hosts' links were measured again, in {:.0} ms: {}",
                took.as_secs_f64() * 1e3,
                match (&found, &self.learned.links) {
                    (None, _) => "plans stay as they are".to_owned(),
                    (Some(_), None) => "they are alike".to_owned(),
                    (Some(_), Some(links)) => format!("relative to the slowest, {:.2?}", links.rates()),
                }
            );
        }
        self.watch_pace();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_measuring_takes_is_a_small_part_of_a_job_whatever_it_finds() {
        for has_changed in [false, true] {
            let begun = Instant::now();
            let (mut watch, mut now, took) = (Watch::new(begun), begun, Duration::from_secs(1));
            for _ in 0..10 {
                now = now.max(watch.next) + took;
                watch.measured(now, took, has_changed);
            }
            let part = 10.0 / watch.next.duration_since(begun).as_secs_f64();
            assert!(part < if has_changed { 0.12 } else { 0.005 }, "{part}");
            assert!(watch.look > watch.next || !has_changed);
        }
    }
}
