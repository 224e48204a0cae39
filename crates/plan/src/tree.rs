//! Trees: one rank to all, all ranks to one, and the chain for long broadcasts.
//!
//! Ranks are counted from the root: rank `r` has *number* `v = r - root` modulo `n`, so that the root's
//! number is 0. In the binomial tree the parent of `v` is `v` without its lowest set bit, and the children of
//! `v` are `v + 1`, `v + 2`, `v + 4`, ... as long as the bit added is below the lowest set bit of `v` and the
//! number below `n`. The subtree of the child `v + 2^k` has the numbers from `v + 2^k` to below `v +
//! 2^(k+1)`. Six ranks, root 0:
//!
//! ```text
//!        0
//!      / | \
//!     1  2  4
//!        |  |
//!        3  5
//! ```
//!
//! *Broadcast.* A rank takes the buffer from its parent and sends it to its children, the child with the
//! largest subtree first. *Reduce.* A rank adds its children's buffers to its own, and sends the sum to its
//! parent. It begins with the child with the smallest subtree, which is ready first. The order of additions
//! follows from the tree, so bits do not depend on which message came first. An *allreduce* is both, with
//! root 0: one rank adds, and the others copy.
//!
//! Cost, for `S` bytes: at most `floor(log2 n)` messages one after the other in each direction, but
//! `ceil(log2 n) S` bytes out of the root.
//!
//! *Chain.* The buffer is cut into pieces. Each rank passes each piece to the next number when it arrives.
//! There are `n - 1` messages between the root and the last rank, but every link carries only `S` bytes, and
//! all links do so at the same time.

use super::plan::{Plan, ReceiveAction};

/// The length, in elements, of the pieces of a chain: 256 KiB of f32, one segment.
pub(super) const PIECE_LEN: usize = 64 << 10;

/// Returns true if a broadcast is a chain.
///
/// In addition to the common costs, the tree's root sends `ceil(log2 n) - 1` more copies of the buffer, and
/// the chain's last rank waits until `n - 2` pieces have been passed on. The chain is used if the copies take
/// longer.
pub(super) fn is_chain(size: usize, len: usize) -> bool {
    let copies = size.next_power_of_two().ilog2().saturating_sub(1) as usize;
    len >= 2 * PIECE_LEN && copies.saturating_mul(len) > size.saturating_sub(2).saturating_mul(PIECE_LEN)
}

/// Appends the way from the root to all, on all parts at once.
pub(super) fn broadcast(plan: &mut Plan, root: usize, rank: usize, size: usize) {
    let whole = 0..plan.parts.count();
    let number = (rank + size - root) % size;
    if number > 0 {
        plan.recv((root + parent(number)) % size, whole.clone(), ReceiveAction::Copy);
    }
    for child in children(number, size).into_iter().rev() {
        plan.send((root + child) % size, whole.clone());
    }
}

/// Appends the way from all to the root, on all parts at once.
pub(super) fn reduce(plan: &mut Plan, root: usize, rank: usize, size: usize) {
    let whole = 0..plan.parts.count();
    let number = (rank + size - root) % size;
    for child in children(number, size) {
        plan.recv((root + child) % size, whole.clone(), ReceiveAction::Reduce);
    }
    if number > 0 {
        plan.send((root + parent(number)) % size, whole);
    }
}

/// Appends the way from the root along the chain of all ranks, part by part.
pub(super) fn chain(plan: &mut Plan, root: usize, rank: usize, size: usize) {
    let number = (rank + size - root) % size;
    for piece in 0..plan.parts.count() {
        if number > 0 {
            plan.recv((rank + size - 1) % size, piece..piece + 1, ReceiveAction::Copy);
        }
        if number + 1 < size {
            plan.send((rank + 1) % size, piece..piece + 1);
        }
    }
}

/// The number without its lowest set bit; `number` is not 0.
fn parent(number: usize) -> usize {
    number & (number - 1)
}

/// The numbers whose parent is `number`, ascending.
fn children(number: usize, size: usize) -> Vec<usize> {
    let bits = if number == 0 { usize::BITS - 1 } else { number.trailing_zeros() };
    (0..bits).map(|bit| number + (1 << bit)).take_while(|child| *child < size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_child_of_its_parent_and_of_nobody_else() {
        for size in 1..70 {
            let mut parents = vec![None; size];
            for number in 0..size {
                for child in children(number, size) {
                    assert_eq!(parents[child].replace(number), None, "{child} of {size} has two parents");
                }
            }
            assert_eq!(parents[0], None);
            for (number, found) in parents.into_iter().enumerate().skip(1) {
                assert_eq!(found, Some(parent(number)), "{number} of {size}");
            }
        }
    }

    #[test]
    fn short_broadcasts_and_broadcasts_to_one_rank_are_trees() {
        assert!(!is_chain(1, 1 << 30));
        assert!(!is_chain(2, 1 << 30));
        assert!(!is_chain(8, 1000));
        assert!(is_chain(8, 1 << 20));
        assert!(!is_chain(1000, 1 << 20));
    }
}
