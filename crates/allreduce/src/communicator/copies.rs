//! Broadcast and allgather that block: collectives that copy data and do not reduce it.

use ringpull_base::{Buffer, Result};
use ringpull_plan::Parts;

use crate::communicator::Communicator;
use crate::communicator::begun::Passage;
use crate::interpreter::Memory;
use crate::transport::Stamp;

impl Communicator {
    /// Replaces `data` by the data of rank `root`, whose own data is only read. Returns it.
    pub fn broadcast(&mut self, root: usize, data: Memory, stamp: Stamp) -> Result<Memory> {
        let begun = self.begin_broadcast(None, root, data, Passage { stamp, priority: 0 });
        self.complete(begun)
    }

    /// Gathers `data` on every rank: part `r`, with bounds in bytes, comes from rank `r`. Returns `data`.
    pub fn allgather(&mut self, parts: Parts, data: Memory, stamp: Stamp) -> Result<Memory> {
        let begun = self.begin_allgather(None, parts, data, Passage { stamp, priority: 0 });
        self.complete(begun)
    }

    /// Returns every rank's `own` word.
    pub fn gather_word(&mut self, own: u64, stamp: Stamp) -> Result<Vec<u64>> {
        let rows = self.executor.gather_rows(&[own], stamp)?;
        Ok(rows.into_iter().map(|[word]| word).collect())
    }

    /// Returns all ranks' parts. `fill` writes this rank's part. The bounds of `parts` are in bytes.
    pub fn gather(&mut self, parts: Parts, stamp: Stamp, fill: impl FnOnce(&mut [u8])) -> Result<Buffer> {
        self.executor.gather(parts, stamp, fill)
    }
}
