//! The ring: every rank sends to its right neighbour only.
//!
//! The buffer has `n` parts, one per rank. Rank `r` sends to `r + 1` and receives from `r - 1` (all numbers
//! modulo `n`), and each of the two halves takes `n - 1` steps.
//!
//! *Reduce-scatter.* In step `t` (from 0) rank `r` sends part `r - 1 - t` and adds what arrives to its part
//! `r - 2 - t`, which is the part it sends next. So a part starts at the rank after its owner, goes around,
//! and gathers one contribution at each rank. It comes to its owner with only the owner's contribution
//! missing. After the last step rank `r` holds the sum of part `r`.
//!
//! *Allgather.* In step `t` rank `r` sends part `r - t` and takes part `r - 1 - t` as it arrives, which is
//! the part it sends next. After the last step every rank holds every part as its owner summed it, with the
//! same bits everywhere.
//!
//! Three ranks; `a`, `b`, `c` are the contributions of ranks 0, 1 and 2, a column is a part, a sum is written
//! with the holder's own contribution first, `*` marks the part that the rank sends next, and `.` a part that
//! nobody will read again:
//!
//! ```text
//!           reduce-scatter                                              allgather
//! part      0   1   2        0   1   2        0   1   2                 0   1   2        0   1   2
//! rank 0    a   a   a*       .   ac* .        acb* .  .                 acb .   cba*     acb bac cba
//! rank 1    b*  b   b        .   .   ba*      .   bac* .                acb* bac .       acb bac cba
//! rank 2    c   c*  c        cb* .   .        .   .   cba*              .   bac* cba     acb bac cba
//! ```
//!
//! Cost, for `S` bytes: `2(n-1)` messages one after the other, and each rank sends and receives `2(n-1)/n S`
//! bytes, which no allreduce of point-to-point messages can beat. A rank always sends the part that arrived
//! last, so an interpreter that forwards each segment as soon as it is summed keeps the link full from the
//! first step to the last. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", JPDC 69 (2009).

use super::plan::{Plan, ReceiveAction};

/// Appends the first half: afterwards rank `r` holds the sum of part `r`.
pub(super) fn reduce_scatter(plan: &mut Plan, rank: usize, size: usize) {
    let (left, right) = (behind(rank, 1, size), (rank + 1) % size);
    for step in 0..size - 1 {
        let leaves = behind(rank, step + 1, size);
        let arrives = behind(rank, step + 2, size);
        plan.send(right, leaves..leaves + 1);
        plan.recv(left, arrives..arrives + 1, ReceiveAction::Reduce);
    }
}

/// Appends the second half: before it rank `r` holds part `r`, afterwards all parts. Parts may differ in
/// length.
pub(super) fn allgather(plan: &mut Plan, rank: usize, size: usize) {
    let (left, right) = (behind(rank, 1, size), (rank + 1) % size);
    for step in 0..size - 1 {
        let leaves = behind(rank, step, size);
        let arrives = behind(rank, step + 1, size);
        plan.send(right, leaves..leaves + 1);
        plan.recv(left, arrives..arrives + 1, ReceiveAction::Copy);
    }
}

/// The number `distance` places behind `rank` on the ring; `distance` is at most `size`.
fn behind(rank: usize, distance: usize, size: usize) -> usize {
    (rank + size - distance) % size
}
