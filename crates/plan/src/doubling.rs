//! Recursive doubling: the whole buffer to a partner, in every round.
//!
//! The number of ranks that take part is the greatest power of two that is not above `n`. They are the
//! *core*. If `n` is no power of two, the other `n - core` ranks are folded in first: among the first `2(n -
//! core)` ranks, every even rank sends its buffer to the odd rank after it. The odd rank adds it, takes part
//! for both, and sends the result back at the end.
//!
//! The ranks of the core get new numbers from 0, in order. In the round with distance 1, 2, 4, ..., core rank
//! `c` exchanges its sum with core rank `c xor distance`, and each adds the other's sum. Before the round
//! with distance `d` every block of `d` core ranks holds the block's sum; after the last round every rank
//! holds the sum of all.
//!
//! Three ranks; `a`, `b`, `c` are contributions, the core is ranks 1 and 2:
//!
//! ```text
//!           fold: 0 to 1    distance 1: 1 with 2    unfold: 1 to 0
//! rank 0    a               .                       (ba)c
//! rank 1    ba              (ba)c                   (ba)c
//! rank 2    c               c(ba)                   c(ba)
//! ```
//!
//! Two partners add the same two values in opposite order, so they hold the same bits because `x + y` and
//! `y + x` are the same number; by induction so does every rank. (The payload bits of a NaN may follow the
//! operands' order.)
//!
//! Cost, for `S` bytes: `log2 n` messages one after the other, two more if `n` is not a power of two, and `S`
//! bytes in each of them. It is for buffers so small that only the number of messages counts.

use super::plan::{Plan, ReceiveAction};

/// Appends the moves on the only part of `plan`.
pub(super) fn allreduce(plan: &mut Plan, rank: usize, size: usize) {
    let core = 1 << size.ilog2();
    let excess = size - core;
    if rank < 2 * excess && rank.is_multiple_of(2) {
        plan.send(rank + 1, 0..1);
        plan.recv(rank + 1, 0..1, ReceiveAction::Copy);
        return;
    }
    let folded = (rank < 2 * excess).then(|| rank - 1);
    if let Some(folded) = folded {
        plan.recv(folded, 0..1, ReceiveAction::Reduce);
    }
    let position = if folded.is_some() { rank / 2 } else { rank - excess };
    let mut distance = 1;
    while distance < core {
        let partner = position ^ distance;
        let partner = if partner < excess { 2 * partner + 1 } else { partner + excess };
        plan.send(partner, 0..1);
        plan.recv(partner, 0..1, ReceiveAction::Reduce);
        distance *= 2;
    }
    if let Some(folded) = folded {
        plan.send(folded, 0..1);
    }
}
