//! Broadcast, allgather and alltoall: collectives that copy data and do not reduce it.
#![allow(unsafe_code)]

use std::sync::Arc;

use ringpull_base::{Buffer, Result};
use ringpull_plan::Parts;

use crate::communicator::Communicator;
use crate::communicator::begun::Passage;
use crate::communicator::node::WaitLimits;
use crate::transport::Stamp;

impl Communicator {
    /// Replaces `data` by that of rank `root`.
    ///
    /// # Safety
    /// As for [`allreduce`](Self::allreduce).
    pub unsafe fn broadcast(&mut self, root: usize, data: &mut [u8], stamp: Stamp) -> Result<()> {
        if self.is_in_one_memory() {
            // SAFETY: it is borrowed.
            return unsafe { self.broadcast_in_memory(root, data, stamp) };
        }
        let plan = ringpull_plan::broadcast(root, self.rank(), self.size(), data.len());
        let schedule = self.executor.schedule(&plan);
        // SAFETY: as the caller promises.
        unsafe { self.executor.run(&schedule, data, stamp) }
    }

    /// Sends `data` to every other rank. The others call [`broadcast`](Self::broadcast) with this rank as the
    /// root.
    ///
    /// # Safety
    /// As for [`allreduce`](Self::allreduce).
    pub unsafe fn broadcast_own(&mut self, data: &[u8], stamp: Stamp) -> Result<()> {
        if self.is_in_one_memory() {
            // SAFETY: it is borrowed, and a root only reads.
            return unsafe { self.broadcast_in_memory(self.rank(), std::ptr::from_ref(data).cast_mut(), stamp) };
        }
        let plan = ringpull_plan::broadcast(self.rank(), self.rank(), self.size(), data.len());
        let schedule = self.executor.schedule(&plan);
        // SAFETY: as the caller promises.
        unsafe { self.executor.send_out(&schedule, data, stamp) }
    }

    /// Replaces all ranks' `data` by those of rank `root`. The ranks share one host's memory.
    ///
    /// # Safety
    /// They are valid until this returns; the root's are only read, nobody else touches the others'.
    pub(super) unsafe fn broadcast_in_memory(&mut self, root: usize, data: *mut [u8], stamp: Stamp) -> Result<()> {
        let (stop, limit) = (Arc::clone(&self.executor.stop), self.executor.runner.limit);
        let limits = WaitLimits { stamp, stop: &stop, limit };
        let node = self.placement.node.as_mut().expect("ranks that share memory have a window");
        // SAFETY: as the caller promises. On one host a rank is its local rank.
        unsafe { node.broadcast(root, (data.cast(), data.len()), limits) }
    }

    /// Returns every rank's `own` word.
    pub fn gather_word(&mut self, own: u64, stamp: Stamp) -> Result<Vec<u64>> {
        let rows = self.executor.gather_rows(&[own], stamp)?;
        Ok(rows.into_iter().map(|[word]| word).collect())
    }

    /// Returns every rank's part, bounded in bytes, of which `fill` writes this rank's. After an error the
    /// transport keeps the memory.
    pub fn gather(&mut self, parts: Parts, stamp: Stamp, fill: impl FnOnce(&mut [u8])) -> Result<Buffer> {
        self.executor.gather(parts, stamp, fill)
    }

    /// Exchanges blocks with every rank, and returns those received in the order of the ranks: `input` has
    /// `given[r]` bytes for rank `r`, and `taken[r]` come from it. After an error the transport keeps the
    /// memory that it has made.
    ///
    /// # Safety
    /// After an error `input` stays valid, and nobody changes it, until the transport is gone.
    pub unsafe fn alltoall(
        &mut self,
        (given, taken): (&[usize], &[usize]),
        input: &[u8],
        stamp: Stamp,
    ) -> Result<Buffer> {
        let mut all = Buffer::zeroed(taken.iter().sum());
        let buffers = (std::ptr::from_ref(input), std::ptr::from_mut(all.bytes_mut()));
        // SAFETY: both are borrowed until it is done; after an error the output is never freed, and for the
        // input the caller promises the same.
        let begun =
            unsafe { self.begin_alltoall(None, (given, taken), false, buffers, Passage { stamp, priority: 0 }) };
        match begun.and_then(|begun| self.complete(begun)) {
            Ok(()) => Ok(all),
            Err(cause) => {
                std::mem::forget(all);
                Err(cause)
            }
        }
    }
}
