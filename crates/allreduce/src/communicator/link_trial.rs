//! Tries whether sums are faster by the plan for the links that were found.
//!
//! Rates of links come from exchanges between pairs of hosts. Other load of a machine, and the burst that a
//! shaper lets through at full speed, make links seem to differ. With a plan for links that do not exist,
//! sums may take several times as long as with a ring, in every job that goes by the cached model. So both
//! plans sum the same buffer, in turn, and the rates are used only if at least a third of the predicted
//! saving is measured.

use std::ops::RangeInclusive;
use std::sync::Arc;

use ringpull_base::{Buffer, DType, Result};
use ringpull_plan::{Algorithm, Links, Model, Plan, Schedule, Segments};

use super::probe::{ProbeRunner as _, Prober, STAMP};

/// How often each plan sums. The shortest time counts, since other load only adds time.
const TRIES: usize = 3;
/// No further try begins once all sums together took so long.
const ENOUGH_US: f64 = 1_500_000.0;
/// The ring that comes first, untimed, uses up what shapers have saved up.
const FIRST_BYTES: usize = 256 << 10;
/// How long one sum may take, by either plan, if every link is as slow as the slowest that was found: long
/// enough that a shaper's burst is little beside what a ring moves, and no longer than a job may wait for.
const SUM_US: RangeInclusive<f64> = 200_000.0..=3_000_000.0;
const BYTES: RangeInclusive<usize> = 256 << 10..=64 << 20;
/// A plan that is not predicted to save so much of a ring's time on the longest buffer is not used. A trial
/// could not measure so little.
const LEAST_GAIN: f64 = 0.1;
/// Trees take longer to fill than a ring, and on many hosts longer than is predicted. So the buffer is so
/// long that the predicted saving is at least this part of that on the longest buffer,
const FILLED: f64 = 0.85;
/// or, if that takes too long, this part.
const HALF_FILLED: f64 = 0.5;

/// Two plans for a sum over hosts: one for the links that were found, and a ring.
pub(super) struct Ways<'a> {
    pub(super) hosts: usize,
    pub(super) found: &'a Links,
    /// Its rate is that of the slowest link.
    pub(super) model: Model,
    pub(super) segments: Segments,
}

/// How one of them sums a buffer.
#[derive(Clone, Copy)]
enum Way<'a> {
    Weighted { links: &'a Links, turns: usize },
    Ring { segment_bytes: usize },
}

impl<'a> Ways<'a> {
    /// The plan for the links and the ring for a buffer of `len` bytes, and the time of each by the model, in
    /// microseconds.
    fn of(&self, len: usize) -> [(Way<'a>, f64); 2] {
        // The burst of a shaper is used up. What ranks that share cores take costs both plans the same, so it
        // is left out: on slow links a probe may count a shaper's delay there.
        let model = Model { short_bytes: 0.0, ..self.model }.apart();
        let weighted = ringpull_plan::choose_weighted(&model, self.found, len, self.segments);
        let ring = ringpull_plan::predict(&model, Algorithm::Ring, len, self.hosts, self.segments);
        [
            (Way::Weighted { links: self.found, turns: weighted.turns }, weighted.time_us),
            (Way::Ring { segment_bytes: ring.segment_bytes }, ring.time_us),
        ]
    }

    /// What the plan for the links saves by the model, of the ring's time.
    fn gain(&self, len: usize) -> f64 {
        let [(_, found_us), (_, ring_us)] = self.of(len);
        1.0 - found_us / ring_us
    }

    /// What a ring takes by the model, and the plan for the links if all were as slow as the slowest, in
    /// microseconds.
    fn times_if_alike_us(&self, len: usize) -> (f64, f64) {
        let by_ring = 2.0 * (self.hosts - 1) as f64 / self.hosts as f64;
        let most = self.found.carried().iter().map(|of| of.sends.max(of.receives)).fold(0.0, f64::max);
        let [_, (_, ring_us)] = self.of(len);
        (ring_us, ring_us * most / by_ring)
    }

    /// The bytes of the shortest trial that tells; `None` if it would take too long.
    fn trial_bytes(&self) -> Option<usize> {
        let (most_gain, mut longest) = (self.gain(*BYTES.end()), None);
        let longer = |len: &usize| Some(2 * len).filter(|len| len <= BYTES.end());
        for len in std::iter::successors(Some(*BYTES.start()), longer) {
            let (gain, (ring_us, found_us)) = (self.gain(len), self.times_if_alike_us(len));
            if ring_us.max(found_us) > *SUM_US.end() {
                break;
            }
            if gain > LEAST_GAIN.max(HALF_FILLED * most_gain) {
                longest = Some(len);
                if ring_us > *SUM_US.start() && gain > FILLED * most_gain {
                    break;
                }
            }
        }
        longest
    }
}

impl Way<'_> {
    fn schedule(self, members: &[usize], place: usize, len: usize, most_bytes: usize) -> Arc<Schedule> {
        let (plan, segment_bytes): (Plan, usize) = match self {
            Way::Weighted { links, turns } => (ringpull_plan::allreduce_weighted(place, links, len, turns), most_bytes),
            Way::Ring { segment_bytes } => {
                (ringpull_plan::allreduce(Algorithm::Ring, place, members.len(), len), segment_bytes)
            }
        };
        Arc::new(Schedule::of(&plan.among(members), DType::U8, segment_bytes))
    }
}

impl Prober<'_> {
    /// Whether sums over `hosts` (ranks by host) take less time by the plan for the links that were found: no
    /// if [`LEAST_GAIN`] is not even predicted, yes if a trial that is short enough cannot tell. Collective;
    /// takes one to seven seconds.
    pub(super) fn is_faster(&mut self, hosts: &[Vec<usize>], ways: &Ways<'_>) -> Result<bool> {
        let most_gain = ways.gain(*BYTES.end());
        tracing::debug!(most_gain, "links seem to differ: what the plan for them gains at most, as predicted");
        if most_gain < LEAST_GAIN {
            return Ok(false);
        }
        let Some(len) = ways.trial_bytes() else { return Ok(true) };
        let both = ways.of(len);
        let members: Vec<usize> = hosts.iter().map(|ranks| ranks[0]).collect();
        let place = members.iter().position(|member| *member == self.executor.rank());
        let most_bytes = ways.segments.most_bytes;
        let schedules = place.map(|place| both.map(|(way, _)| way.schedule(&members, place, len, most_bytes)));
        let first = place
            .map(|place| Way::Ring { segment_bytes: most_bytes }.schedule(&members, place, FIRST_BYTES, most_bytes));
        let mut first_data = Buffer::zeroed(if place.is_some() { FIRST_BYTES } else { 0 });
        self.slowest_us(first.as_ref(), &mut first_data)?;
        let mut data = Buffer::zeroed(if place.is_some() { len } else { 0 });
        let (mut least_us, mut all_us) = ([f64::INFINITY; 2], 0.0);
        for _ in 0..TRIES {
            // The plan that is in doubt comes second: what shapers have still saved up does not help it.
            for (way, least_us) in least_us.iter_mut().enumerate().rev() {
                let took_us = self.slowest_us(schedules.as_ref().map(|both| &both[way]), &mut data)?;
                *least_us = least_us.min(took_us);
                all_us += took_us;
            }
            if all_us > ENOUGH_US {
                break;
            }
        }
        let predicted = both.map(|(_, time_us)| time_us);
        tracing::debug!(?least_us, ?predicted, len, "links seem to differ: sums by the plan for them and without it");
        Ok(is_kept(least_us, predicted))
    }

    /// What `schedule` takes the slowest of the ranks that have one.
    fn slowest_us(&mut self, schedule: Option<&Arc<Schedule>>, data: &mut Buffer) -> Result<f64> {
        // All begin together.
        self.gather([0.0])?;
        let mut own_us = 0.0;
        if let Some(schedule) = schedule {
            let begun_us = self.now_us();
            *data = self.executor.move_buffer(schedule, std::mem::replace(data, Buffer::zeroed(0)), STAMP)?;
            own_us = self.now_us() - begun_us;
        }
        Ok(self.slowest([own_us])?[0])
    }
}

/// Whether the first of two ways gains at least a third of what was predicted. On links that are alike it
/// gains nothing, since it sends more over one of them than a ring does.
fn is_kept(took_us: [f64; 2], predicted_us: [f64; 2]) -> bool {
    let [took, predicted] = [took_us, predicted_us].map(|[found, ring]| found / ring);
    1.0 - took > (1.0 - predicted) / 3.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringpull_plan::LinkRates;

    use super::super::executor::Executor;
    use super::super::probe_rings::ProbeRing;
    use super::super::rack_probe::HOSTS;
    use super::*;
    use crate::transport::inproc;
    use crate::transport::over_links::{Cable, OverLinks};

    const SEGMENTS: Segments = Segments { most_bytes: 256 << 10, is_fixed: false };

    fn model_of(rates: &[f64]) -> Model {
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        Model { short_bytes_per_us: slowest, long_bytes_per_us: slowest, ..Model::default() }
    }

    /// Whether the plan for links that seem to have these rates is used on links that have those, of hosts of
    /// two ranks each.
    fn is_used(seem: [f64; 4], are: [f64; 4]) -> bool {
        let of_ranks: Vec<f64> = are.iter().flat_map(|rate| [*rate, *rate]).collect();
        let (hosts, cable) = ([0, 2, 4, 6].map(|rank| vec![rank, rank + 1]), Cable::of(&of_ranks));
        let links = Links::of(&seem.map(LinkRates::both)).unwrap();
        let ways = Ways { hosts: 4, found: &links, model: model_of(&seem), segments: SEGMENTS };
        assert!(ways.gain(*BYTES.end()) > LEAST_GAIN && ways.trial_bytes().is_some(), "there is no trial");
        let run = |end| {
            let transport = Box::new(OverLinks::new(end, Arc::clone(&cable)));
            let mut executor = Executor::new(transport, 256 << 10, Duration::from_secs(20), Arc::default());
            let ring = ProbeRing::of(executor.rank(), &[0, 0, 1, 1, 2, 2, 3, 3]);
            Prober::new(&mut executor, ring).is_faster(&hosts, &ways).unwrap()
        };
        let found: Vec<bool> = std::thread::scope(|scope| {
            let ranks: Vec<_> = inproc::world(8).into_iter().map(|end| scope.spawn(|| run(end))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
        found[0]
    }

    #[test]
    fn links_that_only_seem_to_differ_are_not_believed() {
        // Half of what is sent would be one rank's: it takes twice a ring's time.
        assert!(!is_used([160.0, 40.0, 40.0, 40.0], [40.0; 4]));
    }

    #[test]
    #[ignore = "it measures, and needs a quiet machine: scripts/test --all"]
    fn links_that_differ_are_believed() {
        assert!(is_used([40.0, 40.0, 10.0, 40.0], [40.0, 40.0, 10.0, 40.0]));
    }

    #[test]
    fn a_third_of_what_is_predicted_is_enough() {
        assert!(is_kept([0.66, 1.0], [2.0, 3.5]) && is_kept([85.0, 100.0], [2.0, 3.5]));
        assert!(!is_kept([86.0, 100.0], [2.0, 3.5]) && !is_kept([0.98, 1.0], [0.9, 1.0]));
    }

    #[test]
    fn a_shapers_delay_that_counts_as_work_of_the_ranks_hides_no_gain() {
        let rates = [6.0, 3.0, 6.0, 6.0];
        let links = Links::of(&rates.map(LinkRates::both)).unwrap();
        let model = Model { shared_us_per_byte: 0.07, short_bytes_per_us: 31.0, ..model_of(&rates) };
        let ways = Ways { hosts: 4, found: &links, model, segments: SEGMENTS };
        assert!(ways.gain(*BYTES.end()) > 0.3 && ways.trial_bytes().is_some());
    }

    #[test]
    fn sixteen_fast_hosts_have_a_trial_and_many_slow_ones_none() {
        let is_tried = |hosts: usize, fast: f64| {
            let rates: Vec<f64> = (0..hosts).map(|host| if host == 1 { fast / 2.0 } else { fast }).collect();
            let links = Links::of(&rates.iter().copied().map(LinkRates::both).collect::<Vec<_>>()).unwrap();
            Ways { hosts, found: &links, model: model_of(&rates), segments: SEGMENTS }.trial_bytes().is_some()
        };
        assert!(is_tried(16, 125.0) && is_tried(16, 25.0) && is_tried(24, 125.0));
        assert!(!is_tried(24, 6.25) && !is_tried(32, 6.25));
    }

    #[test]
    fn trials_are_as_long_as_they_need_to_be_and_end_in_time() {
        for hosts in HOSTS {
            for fast in [2.5, 6.25, 25.0, 125.0, 1250.0] {
                for slower in [1.4, 2.0, 4.0] {
                    let rates: Vec<f64> = (0..hosts).map(|host| if host == 1 { fast / slower } else { fast }).collect();
                    let links = Links::of(&rates.iter().copied().map(LinkRates::both).collect::<Vec<_>>()).unwrap();
                    let model = model_of(&rates);
                    let ways = Ways { hosts, found: &links, model, segments: SEGMENTS };
                    let (most_gain, what) = (ways.gain(*BYTES.end()), format!("{hosts}, {fast}, 1/{slower}"));
                    let Some(len) = ways.trial_bytes() else {
                        // The trees of many hosts, and on slow links, take long to fill.
                        let is_long = hosts > 8 || fast / slower < 2.0;
                        assert!(most_gain < LEAST_GAIN || is_long, "{what}");
                        continue;
                    };
                    let ((ring_us, found_us), gain) = (ways.times_if_alike_us(len), ways.gain(len));
                    assert!(gain > LEAST_GAIN && ring_us.max(found_us) <= *SUM_US.end(), "{what}: {len}");
                    if hosts <= 8 && (25.0..1000.0).contains(&fast) {
                        assert!(gain > FILLED * most_gain && ring_us > *SUM_US.start(), "{what}: {len}");
                        let is_shorter = |len| {
                            ways.gain(len) > FILLED * most_gain && ways.times_if_alike_us(len).0 > *SUM_US.start()
                        };
                        assert!(len == *BYTES.start() || !is_shorter(len / 2), "{what}: {len} is too long");
                    }
                }
            }
        }
    }
}
