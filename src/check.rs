//! `RINGPULL_CHECK_REPLICAS`: checks that all ranks of `dist_sync_mpi` have the same value of a key.
//!
//! After each K-th update of a key, the next update begins with the check. On the comm thread, with nothing
//! else under way, the ranks gather eight bytes of each rank: the hash of the value after the K-th update. So
//! a check is no separate call: ranks need no further agreement, and steps are frozen as without checks. The
//! finishing thread, which does the update, computes the hash. If the store does not keep the value (because
//! MXNet's or PyTorch's own arrays hold it), the sum is hashed instead. Hashes are computed from bits, so
//! zeros of different sign differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringpull_allreduce::communicator::Parts;
use ringpull_allreduce::progress::Check;
use ringpull_base::Error;

use crate::slot::Slot;

/// Returns the comparison of replicas that must run before the last called update of the key, if one is due.
pub(super) fn before(slot: &Arc<Slot>) -> Option<Check> {
    let (update, slot) = (slot.to_check()?, Arc::clone(slot));
    let mut hash = None;
    Some(Box::new(move |comm, launch| {
        let own = match hash {
            // After a loss the hash is compared again.
            Some(own) => own,
            None => *hash.insert(slot.hash_after(update)?),
        };
        let bounds = (0..=comm.size()).map(|rank| rank * size_of_val(&own)).collect();
        let hashes = comm.gather(Parts::of(bounds), launch.number, |part| part.copy_from_slice(&own.to_ne_bytes()))?;
        let Some((ranks, others)) = odd_ones(bytemuck::cast_slice(hashes.bytes())) else { return Ok(()) };
        Err(Error::ReplicasDiffer { key: slot.entry.key.clone(), update, ranks, others })
    }))
}

/// Returns the ranks whose hash differs from the most frequent hash, and the ranks that have the most
/// frequent hash. If several hashes are equally frequent, the hash of the lowest rank counts. Returns `None`
/// if all hashes are equal.
fn odd_ones(hashes: &[u64]) -> Option<(Vec<usize>, Vec<usize>)> {
    let mut counts = BTreeMap::new();
    hashes.iter().for_each(|hash| *counts.entry(hash).or_insert(0) += 1);
    let most = hashes.iter().rev().max_by_key(|hash| counts[hash])?;
    let (odd, others): (Vec<usize>, Vec<usize>) = (0..hashes.len()).partition(|rank| hashes[*rank] != *most);
    (!odd.is_empty()).then_some((odd, others))
}

#[cfg(test)]
mod tests {
    use super::odd_ones;

    #[test]
    fn the_ranks_that_differ_from_most_are_named() {
        for (hashes, named) in [
            (&[7][..], None),
            (&[7, 7, 7], None),
            (&[7, 7, 8, 7], Some((vec![2], vec![0, 1, 3]))),
            (&[8, 7, 7, 9], Some((vec![0, 3], vec![1, 2]))),
            (&[7, 8], Some((vec![1], vec![0]))),
            (&[8, 7, 7, 8, 8], Some((vec![1, 2], vec![0, 3, 4]))),
        ] {
            assert_eq!(odd_ones(hashes), named, "{hashes:?}");
        }
    }
}
