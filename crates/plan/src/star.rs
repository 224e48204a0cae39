//! Star: every rank sends its buffer to rank 0, which sends the sum to every rank.
//!
//! Rank 0 adds the other buffers to its own in the order `1, 2, ..., n - 1`, however the messages arrive. The
//! others copy its sum, so all have the same bits. Three ranks; `a`, `b`, `c` are contributions:
//!
//! ```text
//!           in: 1 and 2 to 0    out: 0 to 1 and 2
//! rank 0    abc                 abc
//! rank 1    b                   abc
//! rank 2    c                   abc
//! ```
//!
//! Cost, for `S` bytes: two messages one after the other, and `2(n-1)` in the whole job, the fewest of any
//! allreduce. But rank 0 takes and sends all of them, `(n-1) S` bytes in each direction. It is for the
//! smallest buffers, above all if ranks share cores: then every message costs every rank time.

use super::plan::{Plan, ReceiveAction};

/// Appends the moves on the only part of `plan`.
pub(super) fn allreduce(plan: &mut Plan, rank: usize, size: usize) {
    if rank > 0 {
        plan.send(0, 0..1);
        plan.recv(0, 0..1, ReceiveAction::Copy);
        return;
    }
    for peer in 1..size {
        plan.recv(peer, 0..1, ReceiveAction::Reduce);
    }
    for peer in 1..size {
        plan.send(peer, 0..1);
    }
}
