//! `RINGPULL_CHECK_REPLICAS`: whether every rank of `dist_sync_mpi` holds the same value of a key.
//!
//! A check is an operation of its own, called on every rank behind each K-th update of a key, and frozen with
//! the calls around it like any other. What the update has left is hashed where the update is done, on the
//! finishing thread; the comm thread then gathers the hashes, eight bytes of each rank. Where the value is
//! not kept (MXNet's and PyTorch's own arrays hold it) the sum is hashed instead. Hashes are of bits: two
//! zeros of different sign differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringpull_allreduce::communicator::{Communicator, Parts};
use ringpull_allreduce::progress::{Job, Launch};
use ringpull_base::{Error, Result};

use crate::slot::Slot;

/// What ranks call it in errors.
pub(super) const OPERATION: &str = "check of replicas";

/// One comparison of a key's replicas.
pub(super) struct Check {
    slot: Arc<Slot>,
    update: u64,
}

impl Check {
    /// Of what that update of the key leaves.
    pub(super) fn new(slot: &Arc<Slot>, update: u64) -> Self {
        Check { slot: Arc::clone(slot), update }
    }
}

impl Job for Check {
    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        let own = self.slot.hash_after(self.update)?;
        let bounds = (0..=comm.size()).map(|rank| rank * size_of_val(&own)).collect();
        let hashes = comm.gather(Parts::of(bounds), launch.number, |part| part.copy_from_slice(&own.to_ne_bytes()))?;
        let Some((ranks, others)) = odd_ones(bytemuck::cast_slice(hashes.bytes())) else { return Ok(()) };
        Err(Error::ReplicasDiffer { key: self.slot.entry.key.clone(), update: self.update, ranks, others })
    }

    fn is_soon_finished(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.slot.checked();
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.slot.fail(fault);
    }
}

/// The ranks whose hash is not that of most, and those whose it is; of hashes that are as frequent, the one
/// of the lowest rank counts. `None` if all are alike.
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
