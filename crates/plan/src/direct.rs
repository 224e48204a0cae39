//! Direct, or spread: every rank sends to every other, twice.
//!
//! The buffer has `n` parts, one per rank; all numbers are modulo `n`.
//!
//! *Reduce-scatter.* For `d` from 1 to `n - 1`, rank `r` sends part `r + d`, its own contribution, to its
//! owner `r + d`, and adds what arrives from `r - d` to its part `r`. Afterwards rank `r` holds the sum of
//! part `r`, added up in the order `r, r - 1, r - 2, ...` in every run, however the messages arrive.
//!
//! *Allgather.* For `d` from 1 to `n - 1`, rank `r` sends part `r`, the sum, to `r + d`, and takes part
//! `r - d` from its owner `r - d`. One rank has added up each part and the others copy it: the same bits
//! everywhere.
//!
//! Rank `r` begins with `r + 1`, so that at any time the senders have different receivers. For each `d` the
//! messages are a permutation of the ranks, and no rank receives from two unless a rank is late. Four ranks:
//!
//! ```text
//!            d = 1                d = 2                d = 3
//! rank 0     part 1 to rank 1     part 2 to rank 2     part 3 to rank 3
//! rank 1     part 2 to rank 2     part 3 to rank 3     part 0 to rank 0
//! rank 2     part 3 to rank 3     part 0 to rank 0     part 1 to rank 1
//! rank 3     part 0 to rank 0     part 1 to rank 1     part 2 to rank 2
//! ```
//!
//! Cost, for `S` bytes: two messages one after the other, the fewest with which a rank moves only `2(n-1)/n
//! S` bytes. But each rank must issue `2(n-1)` messages, and as many flows meet in the switch. It is the
//! traffic of parameter servers with one server on every worker's host.

use super::plan::{Plan, ReceiveAction};

/// Appends the first half: afterwards rank `r` holds the sum of part `r`.
pub(super) fn reduce_scatter(plan: &mut Plan, rank: usize, size: usize) {
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        plan.send(to, to..to + 1);
        plan.recv(from, rank..rank + 1, ReceiveAction::Reduce);
    }
}

/// Appends the second half: before it rank `r` holds part `r`, afterwards all parts.
pub(super) fn allgather(plan: &mut Plan, rank: usize, size: usize) {
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        plan.send(to, rank..rank + 1);
        plan.recv(from, from..from + 1, ReceiveAction::Copy);
    }
}
