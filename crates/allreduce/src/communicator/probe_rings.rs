//! The rings that the probe times, all at the same time.
//!
//! In a ring over all hosts, the number of steps grows with the number of hosts. Latency would then hide the
//! rate of a link, and a probe would take longer with more hosts. A step takes as long in a ring of few hosts
//! as in a ring of many, so the probe uses several short rings.

use std::ops::Range;

use super::placement::ranks_by;

/// The number of hosts that is enough to measure a step. With less than twice this number there is one ring,
/// of all ranks.
const HOSTS_OF_A_RING: usize = 8;

/// The ring to which one rank belongs. Its members are neighbours in the order of a ring over all ranks.
#[derive(Debug)]
pub(super) struct ProbeRing {
    /// The ring's ranks, in order.
    pub(super) members: Vec<usize>,
    /// The ranks of the ring's first and last machine, or two ranks if there is one machine.
    pub(super) of_two: Vec<usize>,
    /// The number of ranks that are in no ring's `of_two`.
    pub(super) idle: usize,
    /// The number of ranks of the longest of the rings. Times are given as those of a ring of this length,
    /// and buffers have at most this number of parts.
    pub(super) longest: usize,
}

impl ProbeRing {
    /// Returns the ring of `rank`. `machine_of` has the number of each rank's machine. The ranks of a machine
    /// are in one ring, whether they share memory or not. So each ring crosses the network if there are
    /// several machines.
    pub(super) fn of(rank: usize, machine_of: &[u64]) -> Self {
        let machines = ranks_by(machine_of);
        let sorted = |mut members: Vec<usize>| {
            members.sort_unstable();
            members
        };
        let groups: Vec<Range<usize>> = groups(machines.len()).collect();
        let members = |group: &Range<usize>| sorted(machines[group.clone()].concat());
        let of_two = |group: &Range<usize>| match members(group)[..] {
            [first, .., last] if group.len() == 1 => vec![first, last],
            _ if group.len() > 1 => sorted([&machines[group.start][..], &machines[group.end - 1]].concat()),
            ref few => few.to_vec(),
        };
        let longest = groups.iter().map(|group| members(group).len()).max().unwrap_or(1);
        let at_work: usize = groups.iter().map(|group| of_two(group).len()).sum();
        let own = groups.iter().find(|group| members(group).contains(&rank));
        let (members, of_two) = own.map_or_else(|| (vec![rank], vec![rank]), |own| (members(own), of_two(own)));
        ProbeRing { members, of_two, idle: machine_of.len() - at_work, longest }
    }

    /// Returns [`longest`](Self::longest) on this number of hosts of one rank each.
    #[cfg(test)]
    pub(super) fn longest_of(hosts: usize) -> usize {
        groups(hosts).map(|group| group.len()).max().unwrap_or(1)
    }

    /// Returns [`idle`](Self::idle) on this number of hosts of one rank each.
    #[cfg(test)]
    pub(super) fn idle_of(hosts: usize) -> usize {
        groups(hosts).map(|group| group.len().saturating_sub(2)).sum()
    }
}

/// Returns half the steps of a ring of `ranks` ranks.
pub(super) fn steps(ranks: usize) -> f64 {
    (ranks.max(2) - 1) as f64
}

/// Returns groups of neighbouring hosts, of nearly equal numbers.
fn groups(hosts: usize) -> impl Iterator<Item = Range<usize>> {
    let count = (hosts / HOSTS_OF_A_RING).max(1);
    (0..count).map(move |group| group * hosts / count..(group + 1) * hosts / count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The machine of each rank, for `count` machines of `ranks` ranks, numbered machine by machine or in
    /// turn.
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
                assert!(ring.members.contains(&rank) && rings[ring.members[0]].of_two == ring.of_two);
                let two: BTreeSet<u64> = ring.of_two.iter().map(|member| machine_of[*member]).collect();
                let all_of_two = ring.members.iter().filter(|member| two.contains(&machine_of[**member]));
                assert!(two.len() == 2 && all_of_two.eq(&ring.of_two), "{ring:?}");
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
    fn two_hosts_of_each_ring_are_at_work_alone() {
        for hosts in [2, 3, 8, 16, 33] {
            assert_eq!(ProbeRing::of(0, &machines(hosts, 1, false)).idle, ProbeRing::idle_of(hosts));
        }
        let idle = |count, ranks| ProbeRing::of(0, &machines(count, ranks, true)).idle;
        assert_eq!([idle(1, 8), idle(2, 4), idle(3, 4), idle(40, 2)], [6, 0, 4, 60]);
    }
}
