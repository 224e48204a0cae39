//! `RINGPULL_CHECK_REPLICAS`: whether every rank of `dist_sync_mpi` holds the same value of a key.
//!
//! The update that follows each K-th one of a key begins with the check: on the comm thread, with nothing
//! else under way, the ranks gather eight bytes of each, the hash of what the K-th update has left. So a
//! check is no call of its own: ranks agree on nothing more, and steps are frozen as without it. The hash is
//! made where the update is done, on the finishing thread. If the value is not kept (MXNet's and PyTorch's
//! own arrays hold it) the sum is hashed instead. Hashes are of bits: two zeros of different sign differ.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ringpull_allreduce::communicator::{Communicator, PartUpdate, Parts};
use ringpull_allreduce::interpreter::Memory;
use ringpull_allreduce::progress::{Job, Launch, Transfer};
use ringpull_base::{Error, Result};

use crate::slot::Slot;

/// An update that is preceded by a comparison of its key's replicas.
struct Checked {
    job: Box<dyn Job>,
    slot: Arc<Slot>,
    update: u64,
}

/// The update of that key called last, with a check before it if it is time for one.
pub(super) fn before(slot: &Arc<Slot>, job: Box<dyn Job>) -> Box<dyn Job> {
    match slot.to_check() {
        Some(update) => Box::new(Checked { job, slot: Arc::clone(slot), update }),
        None => job,
    }
}

impl Job for Checked {
    fn transfer(&self) -> Transfer {
        self.job.transfer()
    }

    fn checks(&self) -> bool {
        true
    }

    fn check(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        let own = self.slot.hash_after(self.update)?;
        let bounds = (0..=comm.size()).map(|rank| rank * size_of_val(&own)).collect();
        let hashes = comm.gather(Parts::of(bounds), launch.number, |part| part.copy_from_slice(&own.to_ne_bytes()))?;
        let Some((ranks, others)) = odd_ones(bytemuck::cast_slice(hashes.bytes())) else { return Ok(()) };
        Err(Error::ReplicasDiffer { key: self.slot.entry.key.clone(), update: self.update, ranks, others })
    }

    fn part_update(&mut self, part: Range<usize>) -> Result<PartUpdate> {
        self.job.part_update(part)
    }

    fn lend(&mut self) -> Memory {
        self.job.lend()
    }

    fn receive(&mut self, memory: Memory) {
        self.job.receive(memory);
    }

    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        self.job.run(comm, launch)
    }

    fn is_soon_finished(&self) -> bool {
        self.job.is_soon_finished()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.job.finish()
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.job.fail(fault);
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
