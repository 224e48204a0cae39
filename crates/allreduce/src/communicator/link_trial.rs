//! Tries whether sums in parts that suit the links are faster, where links seem to differ.
//!
//! Rates are told by exchanges of pairs, in which load of a machine and what shapers save up look like links
//! that differ. A plan for links that do not exist takes up to twice as long as a ring, in every job that goes
//! by the cached model. So both plans sum the same buffer, in turn, and the rates are used only if theirs takes
//! less time.

use ringpull_base::{Buffer, Result};
use ringpull_plan::{Algorithm, Links, Model, Segments};

use super::probe::{ProbeRunner as _, Prober};

/// Each plan sums as often. The shortest time counts, since other load only adds time.
const TRIES: usize = 3;
/// A link carries about twice the buffer in a ring, which takes as long where the links are as slow as the
/// slowest: what a shaper has saved up is little beside that.
const RING_US: f64 = 200_000.0;
/// With fewer bytes latency would count; more tell no more.
const BYTES: std::ops::RangeInclusive<f64> = 262_144.0..=8_388_608.0;

impl Prober<'_> {
    /// Whether sums of `hosts` (ranks by host) whose links seem to have these rates are faster by the plan for
    /// them than by a ring. The rate of the `model` is that of the slowest link. Collective.
    pub(super) fn is_faster_by(&mut self, links: &Links, hosts: &[Vec<usize>], model: &Model) -> Result<bool> {
        let members: Vec<usize> = hosts.iter().map(|ranks| ranks[0]).collect();
        let place = members.iter().position(|member| *member == self.executor.rank());
        let len = (RING_US / 2.0 * model.long_bytes_per_us).clamp(*BYTES.start(), *BYTES.end()) as usize;
        let segments = Segments { most_bytes: self.segment_bytes(), is_fixed: false };
        let turns = ringpull_plan::choose_weighted(model, links, len, segments).turns;
        let weighted = place.map(|place| ringpull_plan::allreduce_weighted(place, links, len, turns).among(&members));
        let ring =
            place.map(|place| ringpull_plan::allreduce(Algorithm::Ring, place, members.len(), len).among(&members));
        let (mut data, mut least_us) = (Buffer::zeroed(len), [f64::INFINITY; 2]);
        for _ in 0..TRIES {
            for (plan, least_us) in [&weighted, &ring].into_iter().zip(&mut least_us) {
                let mut own_us = 0.0;
                if let Some(plan) = plan {
                    (data, own_us) = self.timed(plan, data)?;
                }
                *least_us = least_us.min(self.slowest([own_us])?[0]);
            }
        }
        let [weighted_us, ring_us] = least_us;
        tracing::debug!(weighted_us, ring_us, len, "links seem to differ: a sum by the plan for them, and by a ring");
        Ok(weighted_us < ring_us)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ringpull_plan::LinkRates;

    use super::super::executor::Executor;
    use super::super::probe_rings::ProbeRing;
    use super::*;
    use crate::transport::inproc;
    use crate::transport::over_links::{Cable, OverLinks};

    /// Whether the plan for links that seem to have these rates is used on links that have those.
    fn is_used(seem: [f64; 4], are: [f64; 4]) -> bool {
        let (hosts, cable) = ([0, 1, 2, 3].map(|rank| vec![rank]), Cable::of(&are));
        let links = Links::of(&seem.map(LinkRates::both)).unwrap();
        let slowest = seem.into_iter().fold(f64::INFINITY, f64::min);
        let model = Model { short_bytes_per_us: slowest, long_bytes_per_us: slowest, ..Model::default() };
        let run = |end| {
            let transport = Box::new(OverLinks::new(end, Arc::clone(&cable)));
            let mut executor = Executor::new(transport, 256 << 10, Duration::from_secs(20), Arc::default());
            let ring = ProbeRing::of(executor.rank(), &[0, 1, 2, 3]);
            Prober::new(&mut executor, ring).is_faster_by(&links, &hosts, &model).unwrap()
        };
        let found: Vec<bool> = std::thread::scope(|scope| {
            let ranks: Vec<_> = inproc::world(4).into_iter().map(|end| scope.spawn(|| run(end))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
        found[0]
    }

    #[test]
    fn the_plan_for_links_that_differ_is_used_where_they_do_and_not_where_they_only_seem_to() {
        // It takes two thirds of a ring's time,
        assert!(is_used([40.0, 40.0, 15.0, 40.0], [40.0, 40.0, 15.0, 40.0]));
        // and here twice as long: half of what is sent would be one rank's.
        assert!(!is_used([160.0, 40.0, 40.0, 40.0], [40.0; 4]));
    }
}
