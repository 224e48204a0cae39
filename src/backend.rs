//! What stands behind a store: one way for each way to reach the peers.

use std::sync::Weak;

use ringpull_base::{Error, Result, Tensor, TensorMut, Waiter};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

#[cfg(feature = "devices")]
use crate::Anywhere;
use crate::{Contribution, Entry, MergedRows, SavedStates, Stats, Updater};

/// What happens between processes. Arguments have been checked; keys are known and values fit them.
pub trait Backend: Send + Sync {
    /// This worker's rank.
    fn rank(&self) -> usize;
    /// The number of workers.
    fn num_workers(&self) -> usize;
    /// The first fatal fault, if there was one: every call raises it from then on.
    fn fault(&self) -> Option<Error>;
    /// Why this worker would end, if it ended now: its last call failed so, or it says so itself. `None` after a call that succeeded.
    fn failing(&self, _why: Option<&str>) {}
    /// Gives the key its first value; rank 0's wins. Does not wait for the peers, so that ranks may init in different orders.
    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()>;
    /// Returns when a push of the key may be made: earlier ones that are not done would otherwise fill the
    /// memory. Blocks, for some time at most.
    fn make_room(&self, _entry: &Entry, _priority: i32) -> Result<()> {
        Ok(())
    }
    /// Adds this worker's gradient. Returns before it has travelled. When the round of pushes is complete, writes the
    /// key's value into each of `outs` and drops it; on failure calls [`TensorMut::fail`] on each.
    fn push(&self, entry: &Entry, gradient: Contribution, outs: Vec<TensorMut>, priority: i32) -> Result<()>;
    /// As [`push`](Self::push) for a row-sparse gradient.
    fn push_rows(&self, entry: &Entry, gradient: MergedRows, priority: i32) -> Result<()>;
    /// Writes the key's value, with every push that this worker has made, into `outs`. Blocks.
    fn pull(&self, entry: &Entry, outs: &mut [TensorMut], priority: i32) -> Result<()>;
    /// Rows `ids` (sorted, unique) of the key's value. Blocks.
    fn pull_rows(&self, entry: &Entry, ids: &[i64], priority: i32) -> Result<Vec<u8>>;
    /// Pushes made from now on are applied by `optimizer`; state is kept where the rule stays the same.
    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()>;
    /// Pushes made from now on are applied by `updater`.
    fn set_updater(&self, updater: Updater) -> Result<()>;
    /// Dense `f32` gradients pushed from now on are compressed so, or not at all. `compression` has been checked.
    fn set_compression(&self, compression: Option<&Compression>) -> Result<()>;
    /// The optimizer's states, after every push that this worker has made. Blocks.
    fn states(&self) -> Result<SavedStates>;
    /// Replaces the optimizer's states.
    fn set_states(&self, states: SavedStates) -> Result<()>;
    /// Returns when every worker has called it.
    fn barrier(&self) -> Result<()>;
    /// This worker has no data left: it adds zeros until every worker has joined. The last one to. Blocks.
    fn join(&self) -> Result<usize>;
    /// Returns when everything this worker has called is done.
    fn wait_all(&self) -> Result<()>;
    /// Counters; `pushes` and `pulls` are counted by the caller.
    fn stats(&self) -> Stats;
    /// The backend as one that takes tensors on devices, if it does.
    #[cfg(feature = "devices")]
    fn anywhere(&self) -> Option<&dyn Anywhere> {
        None
    }
    /// Who is to be told when the caller comes for a tensor that it has pushed, or that a push is going to write.
    fn waiter(&self) -> Option<Weak<dyn Waiter>> {
        None
    }
}
