//! Two racks: the hosts of each, and the plan that moves the fewest bytes over the link between them.
//!
//! A rank learns its rack's name from `RINGPULL_RACK`, or from Slurm, if Slurm knows the network. Otherwise
//! the cluster file may name the rack. Names matter only if all ranks have one and there are two different
//! names.

use ringpull_base::config;
use ringpull_plan::Plan;

/// The least length of sums that use racks. Shorter sums use the plans for one rack, which need fewer
/// messages.
const LEAST_BYTES: usize = 1 << 20;
/// The approximate length of a block of a piece, which is some segments.
const BLOCK_BYTES: usize = 512 << 10;
/// The most pieces. More pieces cost more time for their messages than they save.
const MOST_PIECES: usize = 64;

/// The hosts of each rack, by their number among the hosts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Racks {
    hosts: [Vec<usize>; 2],
}

impl Racks {
    /// Returns the racks of hosts, from the hashed names of each host's rack (0 for none). Returns `None`
    /// unless there are two racks.
    pub(super) fn of(names: &[u64]) -> Option<Self> {
        let first = *names.first()?;
        let second = *names.iter().find(|name| **name != first)?;
        if names.contains(&0) || names.iter().any(|name| *name != first && *name != second) {
            return None;
        }
        let in_rack = |name: u64| (0..names.len()).filter(|host| names[*host] == name).collect();
        Some(Racks { hosts: [in_rack(first), in_rack(second)] })
    }

    /// The hosts of each rack, by their number among the hosts.
    pub(super) fn hosts(&self) -> &[Vec<usize>; 2] {
        &self.hosts
    }

    /// Returns the plan of host `place` for `len` elements, if these are enough to use racks.
    pub(super) fn plan(&self, place: usize, len: usize, element_bytes: usize) -> Option<Plan> {
        let len_bytes = len * element_bytes;
        let [one, other] = &self.hosts;
        let pieces = (len_bytes / (one.len().max(other.len()) * BLOCK_BYTES)).clamp(1, MOST_PIECES);
        (len_bytes >= LEAST_BYTES).then(|| ringpull_plan::allreduce_in_racks(place, [one, other], len, pieces))
    }
}

/// Returns the hash of the name of this process's rack, or 0 if it has none.
pub(super) fn own_name() -> u64 {
    config::rack().map_or(0, |name| hashed(&name))
}

/// Returns the hash of a rack's name, which is never 0.
pub(super) fn hashed(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_racks_only_if_all_have_one_and_there_are_two() {
        assert_eq!(Racks::of(&[5, 7, 5, 7]), Some(Racks { hosts: [vec![0, 2], vec![1, 3]] }));
        for names in [&[5, 5, 5][..], &[5, 7, 0], &[5, 7, 9], &[0, 0], &[]] {
            assert_eq!(Racks::of(names), None);
        }
    }
}
