//! The backend of a store. There is one for each way to reach the peers.

use std::sync::{Arc, Weak};

use ringpull_base::{Buffer, Error, Result, Tensor, TensorMut, Waiter};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::contract::Change;
use crate::{Contribution, Entry, MergedRows, SavedStates, Updater};

/// The part of a store that works between processes. Arguments have been checked; keys are known and values
/// fit them. The default methods are those of a store of one process in host memory. Its pushes are done when
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
    /// Returns the first fatal fault, if there was one. From then on every call returns it.
    fn fault(&self) -> Option<Error> {
        None
    }
    /// Returns the number of losses of workers after which the job has gone on.
    fn generation(&self) -> u64 {
        0
    }
    /// Returns these losses, without the first `seen`.
    fn changes(&self, _seen: usize) -> Vec<Change> {
        Vec::new()
    }
    /// Returns the devices on which the backend works. If there are none, it gets only tensors in host
    /// memory.
    #[cfg(feature = "devices")]
    fn devices(&self) -> Option<&Arc<ringpull_device::Devices>> {
        None
    }
    /// Records why this worker would end if it ended now: its last call failed with this error, or the
    /// program reported this reason. `None` after a call that succeeded.
    fn failing(&self, _why: Option<&str>) {}
    /// Gives the key its first value. The value of rank 0 counts. Does not wait for the peers, so that ranks
    /// may init in different orders.
    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()>;
    /// Waits until a push of the key may be made, because unfinished pushes would otherwise fill the memory.
    /// Blocks for a limited time.
    fn make_room(&self, _entry: &Entry, _priority: i32) -> Result<()> {
        Ok(())
    }
    /// Adds this worker's gradient. It is several values if there are devices to sum them, otherwise one.
    /// Returns before the gradient is sent. As soon as the round of pushes is complete, the backend writes
    /// the key's value into each of `outs` and drops it. On failure it calls [`TensorMut::fail`] on each of
    /// them.
    fn push(&self, entry: &Entry, gradient: Vec<Contribution>, outs: Vec<TensorMut>, priority: i32) -> Result<()>;
    /// Adds a row-sparse gradient, as [`push`](Self::push) does a dense one.
    fn push_rows(&self, entry: &Entry, gradient: MergedRows, priority: i32) -> Result<()>;
    /// Returns the key's value in host memory, after every push that this worker has made. Blocks.
    fn value(&self, entry: &Entry, operation: &str, priority: i32) -> Result<Arc<Buffer>>;
    /// Writes the key's value into `outs`. Outputs on devices are ready on their streams.
    fn pull(&self, entry: &Entry, mut outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        let value = self.value(entry, "pull", priority)?;
        outs.iter_mut().for_each(|out| out.copy_from(value.bytes()));
        Ok(())
    }
    /// Returns the rows `ids` (sorted, unique) of the key's value.
    fn pull_rows(&self, entry: &Entry, ids: &[i64], priority: i32) -> Result<Vec<u8>> {
        let (value, row_bytes) = (self.value(entry, "pull_rows", priority)?, entry.row_bytes());
        let mut rows = Vec::with_capacity(ids.len() * row_bytes);
        ids.iter().for_each(|id| rows.extend_from_slice(&value.bytes()[*id as usize * row_bytes..][..row_bytes]));
        Ok(rows)
    }
    /// Applies pushes made from now on by `optimizer`. Keeps the state if the rule does not change.
    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()>;
    /// Sets an optimizer as `set_optimizer` does, but each rank has only the states of its parts of the keys.
    /// With one process that makes no difference, and servers divide the states anyway.
    fn set_sharded_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.set_optimizer(optimizer)
    }
    /// Applies pushes made from now on by `updater`.
    fn set_updater(&self, updater: Updater) -> Result<()>;
    /// Compresses dense `f32` gradients pushed from now on by `compression`, or sends them uncompressed if it
    /// is `None`. `compression` has been checked.
    fn set_compression(&self, compression: Option<&Compression>) -> Result<()>;
    /// Returns the optimizer's states, after every push that this worker has made. Blocks.
    fn states(&self) -> Result<SavedStates>;
    /// The bytes of the optimizer's states that this process holds in host memory.
    fn state_bytes(&self) -> u64 {
        0
    }
    /// Replaces the optimizer's states.
    fn set_states(&self, states: SavedStates) -> Result<()>;
    /// Waits until every worker has called `barrier`.
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
    /// Joins, because this worker has no data left. The worker adds zeros until every worker has joined.
    /// Returns the last worker to join. Blocks.
    fn join(&self) -> Result<usize> {
        Ok(0)
    }
    /// Waits until everything that this worker has called is done.
    fn wait_all(&self) -> Result<()> {
        Ok(())
    }
    /// Leaves the job now, if dropping the backend would leave it. Another thread may still be in a call.
    fn leave(&self) {}
    /// Returns the payload bytes sent and received, and the number of messages without payload.
    fn traffic(&self) -> (u64, u64, u64) {
        (0, 0, 0)
    }
    /// Returns the waiter to notify when the caller asks for a tensor that it has pushed, or that a push will
    /// write.
    fn waiter(&self) -> Option<Weak<dyn Waiter>> {
        None
    }
}
