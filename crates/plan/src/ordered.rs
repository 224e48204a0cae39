//! Ordered: every element is added up in the order of the ranks, `((x0 + x1) + x2) + ...`, as shared memory
//! and parameter servers add. The bits of a sum then depend only on the contributions, and not on where the
//! ranks run, on the length of the buffer, or on other sums in the same bucket. A plan adds arriving data to
//! present data, so the ranks may not begin with different parts, as in a ring.
//!
//! *Short buffers* take the star (`star`), in which rank 0 adds the buffers in this order.
//!
//! *Long buffers* run up the line of the ranks and down again, in pieces: rank `r` adds what comes from
//! `r - 1` to its own and passes the sum to `r + 1`; from the last rank the sums come back. Four ranks, `a`,
//! `b`, `c`, `d` contribute:
//!
//! ```text
//!           up                      down
//! rank 0    a to 1                  abcd from 1
//! rank 1    ab to 2                 abcd from 2, to 0
//! rank 2    abc to 3                abcd from 3, to 1
//! rank 3    abcd                    abcd to 2
//! ```
//!
//! Cost, for `S` bytes: `2 (n-1)` messages one after the other, with the pieces behind one another. The ranks
//! within the line move `2 S` bytes in each direction. The ring moves `2(n-1)/n S`, so this is 1.14 times as
//! much on 8 ranks and 1.33 times as much on 4. Two ranks move `S`, as in a ring. A host's link carries the
//! bytes of its ranks, except those between two successive ranks on the host.
//!
//! *A reduce-scatter* has one part for each rank. The parts run up the line, and the last rank gives each sum
//! to its owner: `n` messages in a row, and `S` bytes from each rank except the last.

use super::plan::{Parts, Plan, ReceiveAction};
use super::{star, tree};

/// The most elements (16 KiB of f32) of a buffer that takes the star, which has fewer messages in a row.
const STAR_LEN: usize = 4 << 10;

/// The number of pieces for each message that lies in a row, so that the line is full most of the time.
const PIECES_PER_HOP: usize = 4;

/// The plan of `rank` for the sum of `len` elements.
pub(super) fn allreduce(rank: usize, size: usize, len: usize) -> Plan {
    if len <= STAR_LEN || size < 3 {
        let mut plan = Plan::new(Parts::even(len, 1));
        star::allreduce(&mut plan, rank, size);
        return plan;
    }
    let piece = (len / (PIECES_PER_HOP * 2 * (size - 1))).clamp(STAR_LEN, tree::PIECE_LEN);
    let mut plan = Plan::new(Parts::even(len, len.div_ceil(piece)));
    for piece in 0..plan.parts.count() {
        if rank > 0 {
            plan.recv(rank - 1, piece..piece + 1, ReceiveAction::Reduce);
        }
        if rank + 1 < size {
            plan.send(rank + 1, piece..piece + 1);
        }
    }
    for piece in 0..plan.parts.count() {
        if rank + 1 < size {
            plan.recv(rank + 1, piece..piece + 1, ReceiveAction::Copy);
        }
        if rank > 0 {
            plan.send(rank - 1, piece..piece + 1);
        }
    }
    plan
}

/// Appends the first half: afterwards rank `r` holds the sum of part `r`.
pub(super) fn reduce_scatter(plan: &mut Plan, rank: usize, size: usize) {
    let last = size - 1;
    for part in 0..size {
        if rank > 0 {
            plan.recv(rank - 1, part..part + 1, ReceiveAction::Reduce);
        }
        if rank < last {
            plan.send(rank + 1, part..part + 1);
        } else if part < last {
            plan.send(part, part..part + 1);
        }
    }
    if rank < last {
        plan.recv(last, rank..rank + 1, ReceiveAction::Copy);
    }
}
