//! A rank that is late: the others sum among themselves before it comes, and each link carries the buffer
//! once after that.
//!
//! Ranks are counted from the late one: rank `r` has *number* `v = r - late` modulo `n`. Each sends to the
//! next number only, around the ring, the buffer in pieces. *Up:* number 1 sends its contribution to 2, which
//! adds its own and passes the sum on, and so on to `n - 1`. That needs nothing of the late rank. Number
//! `n - 1` sends the sum of all others to the late rank, which adds its own. *Down:* the late rank sends that
//! to 1, which passes it on, and so on to `n - 1`. Four ranks, of which number 0 contributes `d`:
//!
//! ```text
//!             before the late rank comes     after
//! number 0                                   abc from 3, abcd to 1
//! number 1    a to 2                         abcd from 0, to 2
//! number 2    a from 1, ab to 3              abcd from 1, to 3
//! number 3    ab from 2                      abc to 0, abcd from 2
//! ```
//!
//! The late rank's contribution is added last: the same bits in every run and on all ranks.
//!
//! *After the late rank has come* every link carries the buffer once in each direction, all of them at the
//! same time, but for the pieces of the first and the last of `n` steps: `(1 + n/k) S/B` with `k` pieces, for
//! `S` bytes on links of the rate `B`. No plan is faster, as its whole contribution must leave the late rank.
//! Of a ring of parts `2(n-1)/n S/B` is left: the late rank sends on sums of all parts but one, twice.
//!
//! *If nobody is late* the same links carry both ways, `2 S` but for the late rank's and its neighbour's. A
//! ring of parts carries `2(n-1)/n S`.
//!
//! *Short buffers* go to the late rank as they are, and it adds them to its own and returns the sum (`star`):
//! two messages in a row, and all of them pass the late rank's link.

use super::plan::{Parts, Plan, Then};
use super::{star, tree};

/// Buffers of at most this many elements (16 KiB of f32) take the star: fewer messages in a row.
const STAR_LEN: usize = 4 << 10;

/// How many pieces there should be for each rank: the first and the last steps, in which links are idle, then
/// take a fiftieth of the time.
const PIECES_PER_RANK: usize = 50;

/// The plan of `rank` for the sum of `len` elements.
pub(super) fn allreduce(rank: usize, late: usize, size: usize, len: usize) -> Plan {
    let number = (rank + size - late) % size;
    if len <= STAR_LEN {
        let mut plan = Plan::new(Parts::even(len, 1));
        star::allreduce(&mut plan, number, size);
        let members: Vec<usize> = (0..size).map(|number| (late + number) % size).collect();
        return plan.among(&members);
    }
    let piece = (len / (PIECES_PER_RANK * size)).clamp(STAR_LEN, tree::PIECE_LEN);
    let mut plan = Plan::new(Parts::even(len, len.div_ceil(piece)));
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    for piece in (0..plan.parts.count()).filter(|_| size > 1) {
        if number != 1 {
            plan.recv(left, piece..piece + 1, Then::Reduce);
        }
        if number != 0 {
            plan.send(right, piece..piece + 1);
        }
    }
    tree::chain(&mut plan, late, rank, size);
    plan
}
