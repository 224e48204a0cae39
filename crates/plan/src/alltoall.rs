//! Alltoall: every rank has something else for each other.
//!
//! Each of `n` ranks has `2 n` parts of its own: part `d` is for rank `d`, part `n + s` is where what rank
//! `s` has for it arrives. For `d` from 1 to `n - 1`, rank `r` sends part `r + d` to rank `r + d`, and takes
//! what rank `r - d` sends it into part `n + r - d`; numbers of ranks are modulo `n`. As in `direct`, for
//! each `d` the messages are a permutation of the ranks. What a rank has for itself is copied without a
//! message.
//!
//! Three ranks; `ab` is what rank `a` has for rank `b`, `.` has no meaning yet:
//!
//! ```text
//! part       0   1   2     3   4   5           0   1   2     3   4   5
//! rank 0     00  01  02    .   .   .           00  01  02    .   10  20
//! rank 1     10  11  12    .   .   .           10  11  12    01  .   21
//! rank 2     20  21  22    .   .   .           20  21  22    02  12  .
//! ```
//!
//! Cost: one message in a row, and each byte passes one link once, which no plan can beat; but `n - 1`
//! messages per rank to issue.

use super::plan::{Plan, Then};

/// Appends the moves, on `2 size` parts.
pub(super) fn alltoall(plan: &mut Plan, rank: usize, size: usize) {
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        plan.send(to, to..to + 1);
        plan.recv(from, size + from..size + from + 1, Then::Copy);
    }
}
