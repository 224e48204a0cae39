//! The rings that the probe times, all at the same time.
//!
//! A ring over all of many hosts takes as many steps as there are hosts. Then latency would hide what a link
//! carries, and a probe would last longer the more hosts there are. A step takes as long in a ring of few.

use std::ops::Range;

use super::placement::ranks_by;

/// So many hosts tell what a step takes. With less than twice as many there is one ring, of all ranks.
const HOSTS_OF_A_RING: usize = 8;

/// The ring of one rank: neighbours within it, like those of a ring over all ranks.
pub(super) struct ProbeRing {
    /// Its ranks, in order.
    pub(super) members: Vec<usize>,
    /// Two of them on different machines, if there are such.
    pub(super) pair: [usize; 2],
    /// How many ranks the longest of the rings has. Times are told as those of a ring of so many, and buffers
    /// have as many parts or fewer.
    pub(super) longest: usize,
}

impl ProbeRing {
    /// That of `rank`, where each rank is on the machine with this number. The ranks of a machine are in one
    /// ring, whether they share memory or not: so each ring crosses the network.
    pub(super) fn of(rank: usize, machine_of: &[u64]) -> Self {
        let machines = ranks_by(machine_of);
        let members = |group: Range<usize>| {
            let mut members = machines[group].concat();
            members.sort_unstable();
            members
        };
        let groups: Vec<Range<usize>> = groups(machines.len()).collect();
        let longest = groups.iter().map(|group| members(group.clone()).len()).max();
        let own = groups.iter().cloned().map(members).find(|members| members.contains(&rank));
        let members = own.unwrap_or_else(|| vec![rank]);
        let (first, last) = (members[0], members[members.len() - 1]);
        let is_elsewhere = |member: &usize| machine_of[*member] != machine_of[first];
        let other = members.iter().copied().rfind(is_elsewhere).unwrap_or(last);
        ProbeRing { longest: longest.unwrap_or(members.len()), pair: [first, other], members }
    }

    /// What [`longest`](Self::longest) is on so many hosts of one rank each.
    pub(super) fn longest_of(hosts: usize) -> usize {
        groups(hosts).map(|group| group.len()).max().unwrap_or(1)
    }

    /// What a ring of `longest` ranks takes if this one takes `time_us`.
    pub(super) fn told_us(&self, time_us: f64) -> f64 {
        let steps = |ranks: usize| (ranks.max(2) - 1) as f64;
        time_us * steps(self.longest) / steps(self.members.len())
    }
}

/// Neighbouring hosts in groups of nearly as many.
fn groups(hosts: usize) -> impl Iterator<Item = Range<usize>> {
    let count = (hosts / HOSTS_OF_A_RING).max(1);
    (0..count).map(move |group| group * hosts / count..(group + 1) * hosts / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine of each rank: so many of so many ranks, numbered machine by machine or in turn.
    fn machines(count: usize, ranks: usize, in_turn: bool) -> Vec<u64> {
        (0..count * ranks).map(|rank| 7 + if in_turn { rank % count } else { rank / ranks } as u64).collect()
    }

    #[test]
    fn a_ring_of_few_hosts_is_of_all_ranks() {
        for (count, ranks, in_turn) in [(1, 40, false), (8, 1, false), (15, 2, false), (4, 8, true)] {
            for rank in 0..count * ranks {
                let ring = ProbeRing::of(rank, &machines(count, ranks, in_turn));
                assert_eq!(ring.members, (0..count * ranks).collect::<Vec<_>>());
                assert_eq!(ring.longest, count * ranks);
                assert_eq!(ring.told_us(7.0), 7.0);
            }
        }
    }

    #[test]
    fn each_rank_of_many_hosts_is_in_one_ring_that_crosses_the_network() {
        let mut unequal = machines(8, 1, false);
        unequal.extend((0..8 * 16).map(|rank| 100 + rank / 16));
        let even = [(16, 1, false), (31, 1, false), (33, 8, false), (1000, 1, false), (40, 2, true)];
        let even = even.map(|(count, ranks, in_turn)| machines(count, ranks, in_turn));
        for machine_of in even.into_iter().chain([unequal]) {
            let rings: Vec<ProbeRing> = (0..machine_of.len()).map(|rank| ProbeRing::of(rank, &machine_of)).collect();
            for (rank, ring) in rings.iter().enumerate() {
                assert!(ring.members.contains(&rank) && rings[ring.members[0]].pair == ring.pair);
                assert_ne!(machine_of[ring.pair[0]], machine_of[ring.pair[1]]);
                assert!(ring.members.iter().all(|member| rings[*member].members == ring.members));
                let mut crossed: Vec<u64> = ring.members.iter().map(|member| machine_of[*member]).collect();
                crossed.sort_unstable();
                crossed.dedup();
                assert!((HOSTS_OF_A_RING..2 * HOSTS_OF_A_RING).contains(&crossed.len()), "{crossed:?}");
                assert!(ring.longest >= ring.members.len() && ring.longest == rings[0].longest);
            }
        }
    }

    #[test]
    fn times_of_a_ring_are_told_as_those_of_the_longest() {
        let ring = ProbeRing { members: (0..9).collect(), pair: [0, 8], longest: 11 };
        assert_eq!(ring.told_us(80.0), 100.0);
    }
}
