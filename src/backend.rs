//! The backend of a store: one for each way to reach the peers.

use std::sync::{Arc, Weak};

use ringpull_base::{Buffer, Error, Result, Tensor, TensorMut, Waiter};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::contract::Change;
use crate::{Contribution, Entry, MergedRows, SavedStates, Updater};

/// The part of a store that works between processes. Arguments have been checked; keys are known and values
/// fit them. The defaults are those of a store of one process, in host memory, whose pushes are done when
/// they return.
pub trait Backend: Send + Sync {
    /// This worker's rank.
    fn rank(&self) -> usize {
        0
    }
    /// The number of workers.
    fn num_workers(&self) -> usize {
        1
    }
    /// The first fatal fault, if there was one: every call raises it from then on.
    fn fault(&self) -> Option<Error> {
        None
    }
    /// Returns the number of losses of workers after which the job has gone on.
    fn generation(&self) -> u64 {
        0
    }
    /// Those losses, from the one at place `seen` on.
    fn changes(&self, _seen: usize) -> Vec<Change> {
        Vec::new()
    }
    /// The devices that it works on. Without any, all tensors that it is given are in host memory.
    #[cfg(feature = "devices")]
    fn devices(&self) -> Option<&Arc<ringpull_device::Devices>> {
        None
    }
    /// Why this worker would end, if it ended now: its last call failed with this error, or it reported this
    /// itself. `None` after a call that succeeded.
    fn failing(&self, _why: Option<&str>) {}
    /// Gives the key its first value; rank 0's wins. Does not wait for the peers, so that ranks may init in
    /// different orders.
    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()>;
    /// Returns when a push of the key may be made: earlier ones that are not done would otherwise fill the
    /// memory. Blocks, for some time at most.
    fn make_room(&self, _entry: &Entry, _priority: i32) -> Result<()> {
        Ok(())
    }
    /// Adds this worker's gradient: several values if there are devices to sum them, otherwise one. Returns
    /// before it has travelled. As soon as the round of pushes is complete, it writes the key's value into
    /// each of `outs` and drops it; on failure it calls [`TensorMut::fail`] on each.
    fn push(&self, entry: &Entry, gradient: Vec<Contribution>, outs: Vec<TensorMut>, priority: i32) -> Result<()>;
    /// As [`push`](Self::push) for a row-sparse gradient.
    fn push_rows(&self, entry: &Entry, gradient: MergedRows, priority: i32) -> Result<()>;
    /// The key's value in host memory, with every push that this worker has made. Blocks.
    fn value(&self, entry: &Entry, operation: &str, priority: i32) -> Result<Arc<Buffer>>;
    /// Writes that value into `outs`. Outputs on devices are ready on their streams.
    fn pull(&self, entry: &Entry, mut outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        let value = self.value(entry, "pull", priority)?;
        outs.iter_mut().for_each(|out| out.copy_from(value.bytes()));
        Ok(())
    }
    /// Rows `ids` (sorted, unique) of that value.
    fn pull_rows(&self, entry: &Entry, ids: &[i64], priority: i32) -> Result<Vec<u8>> {
        let (value, row_bytes) = (self.value(entry, "pull_rows", priority)?, entry.row_bytes());
        let mut rows = Vec::with_capacity(ids.len() * row_bytes);
        ids.iter().for_each(|id| rows.extend_from_slice(&value.bytes()[*id as usize * row_bytes..][..row_bytes]));
        Ok(rows)
    }
    /// Pushes made from now on are applied by `optimizer`; state is kept where the rule stays the same.
    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()>;
    /// The same, each rank having the states of its parts of the keys alone. One process has them all, and
    /// servers divide them anyway.
    fn set_sharded_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.set_optimizer(optimizer)
    }
    /// Pushes made from now on are applied by `updater`.
    fn set_updater(&self, updater: Updater) -> Result<()>;
    /// Dense `f32` gradients pushed from now on are compressed so, or not at all. `compression` has been
    /// checked.
    fn set_compression(&self, compression: Option<&Compression>) -> Result<()>;
    /// The optimizer's states, after every push that this worker has made. Blocks.
    fn states(&self) -> Result<SavedStates>;
    /// The bytes of the optimizer's states that this process holds in host memory.
    fn state_bytes(&self) -> u64 {
        0
    }
    /// Replaces the optimizer's states.
    fn set_states(&self, states: SavedStates) -> Result<()>;
    /// Returns when every worker has called it.
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
    /// This worker has no data left: it adds zeros until every worker has joined. The last one to. Blocks.
    fn join(&self) -> Result<usize> {
        Ok(0)
    }
    /// Returns when everything this worker has called is done.
    fn wait_all(&self) -> Result<()> {
        Ok(())
    }
    /// Leaves the job now, where dropping it does so and another thread may still be in a call.
    fn leave(&self) {}
    /// Payload bytes sent and received, and messages without payload.
    fn traffic(&self) -> (u64, u64, u64) {
        (0, 0, 0)
    }
    /// Returns the waiter to notify when the caller asks for a tensor that it has pushed, or that a push is
    /// going to write.
    fn waiter(&self) -> Option<Weak<dyn Waiter>> {
        None
    }
}
