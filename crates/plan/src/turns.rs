//! Every rank to every rank, in turns: the messages of `direct`, in an order in which sums begin to return
//! early.
//!
//! The buffer has `n` parts, one for each rank, and every part has `k` segments. In turn `t` a rank sends, to
//! each other rank, the sum of segment `t - 4` of its own part, and then its contribution to segment `t` of
//! that rank's part. On four ranks, rank 0 sends rank 1:
//!
//! ```text
//!   part 1: 0, 1, 2, 3, part 0: sum 0, part 1: 4, part 0: sum 1, part 1: 5, ... part 0: sum k - 1
//! ```
//!
//! So contributions that take time to make, such as the codes of a gradient, leave while the sums of earlier
//! ones come back. A rank is at most some segments ahead of another, because its next contribution leaves
//! after a sum to which every rank has contributed.
//!
//! The cost is that of `direct`, with `k` times as many messages.

use std::ops::Range;

use crate::parts::Parts;
use crate::plan::{Plan, ReceiveAction};

/// The number of contributions that leave before the first sum. It is large enough that even the slowest of
/// ranks that share cores has made its first contributions by then.
const LEAD: usize = 4;

/// Returns the range of elements of `rank`'s part.
pub(super) fn part(rank: usize, size: usize, len: usize, block: usize) -> Range<usize> {
    let blocks = Parts::even(len.div_ceil(block), size).range(rank..rank + 1);
    (blocks.start * block).min(len)..(blocks.end * block).min(len)
}

/// The plan of `rank`. Segments have at most `segment` elements and begin at multiples of `block`, so
/// `segment` must be a multiple of `block`.
pub(super) fn allreduce(rank: usize, size: usize, len: usize, block: usize, segment: usize) -> Plan {
    let count = part(0, size, len, block).len().div_ceil(segment).max(1);
    let starts = (0..size).flat_map(|owner| {
        let part = part(owner, size, len, block);
        (0..count).map(move |at| (part.start + at * segment).min(part.end))
    });
    let mut plan = Plan::new(Parts::of(starts.chain([len]).collect()));
    let segment_of = |part: usize, at: usize| part * count + at..part * count + at + 1;
    for turn in 0..count + LEAD {
        let peers = (1..size).map(|distance| ((rank + distance) % size, (rank + size - distance) % size));
        if let Some(at) = turn.checked_sub(LEAD) {
            for (to, from) in peers.clone() {
                plan.send(to, segment_of(rank, at));
                plan.recv(from, segment_of(from, at), ReceiveAction::Copy);
            }
        }
        if turn < count {
            for (to, from) in peers {
                plan.send(to, segment_of(to, turn));
                plan.recv(from, segment_of(rank, turn), ReceiveAction::Reduce);
            }
        }
    }
    plan
}
