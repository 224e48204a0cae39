//! Collectives as plans.
//!
//! A collective operation is described before it is done: from `(rank, size, len)` each rank computes a
//! [`Plan`], the list of its sends and receives, without a message and without a buffer. The map:
//!
//! - `parts`: the division of a buffer; `plan`: moves and the meaning of a plan;
//! - `ring`, `direct`, `turns`, `weighted`, `circulant`, `doubling`, `star`, `tree`, `racks`, `ordered`,
//!   `alltoall`: one family of plans each, with an explanation at its beginning;
//! - `rows`: the choice of plans for row-sparse tensors;
//! - `schedule`: a plan cut into segments, with the dependencies of each message; the interpreter of
//!   `ringpull-allreduce` runs it;
//! - `model`: the cost of each plan on a cluster; `choose`: the choice of `auto`; `check`: the proof, by
//!   symbols, that the plans of all ranks reach their goal;
//! - `simulate`: the time of plans on given links, alone and in steps of training, message by message.
//!
//! Promises of every plan here:
//!
//! - after the plan, data that all ranks hold has the same bits on all of them, in every run with the same
//!   arguments;
//! - each rank's contribution is in each sum exactly once;
//! - the plan ends, however little is buffered, and leaves no message unread;
//! - no message is empty: both sides skip ranks without a part.
//!
//! Per rank, for `n` ranks and a buffer of `S` bytes (`q = ceil(log2 n)`):
//!
//! | plan | messages in a row | messages sent | bytes sent |
//! | --- | --- | --- | --- |
//! | allreduce `ring` | `2 (n-1)` | `2 (n-1)` | `2 (n-1)/n S` |
//! | allreduce `direct` | 2 | `2 (n-1)` | `2 (n-1)/n S` |
//! | allreduce in turns, `k` segments a part | 2, the segments behind one another | `2 k (n-1)` | `2 (n-1)/n S` |
//! | allreduce on trees, of mean degree `d_i`, in `k` turns | twice the levels, the turns behind one another
//! | `k` for each neighbour in each tree | `d_i S` |
//! | allreduce `circulant` | at most `2 q` | `2 q`, up to `6 q` where ranges wrap or are split | `2 (n-1)/n S` |
//! | allreduce `doubling` | `floor(log2 n)`, and 2 if `n` is no power of two | the same | `S` each |
//! | allreduce `star` | 2 | `n - 1` from rank 0, else 1 | `(n-1) S` from rank 0, else `S` |
//! | allreduce in two racks | grows with the pieces | the same | `2 (m-1)/m S` to the `m` ranks of its rack, `S/m` across |
//! | allreduce `ordered`, long | `2 (n-1)`, the pieces behind one another | twice the pieces, from the first and the last rank once | `2 S`, from the first and the last rank `S` |
//! | allreduce `tree` | `2 floor(log2 n)` | up to `q` | up to `q S` |
//! | broadcast, tree | `floor(log2 n)` | up to `q` | up to `q S` |
//! | broadcast, chain of `k` pieces | `n - 1`, the pieces behind one another | `k` | `S` |
//! | allgather, circulant | at most `q` | `q`, up to `2 q` where ranges wrap | `S` less its receiver's part |
//! | allgather, ring | `n - 1` | `n - 1` | `S` less its receiver's part |
//! | reduce-scatter, ring | `n - 1` | `n - 1` | `S` less its own part |
//! | reduce-scatter, direct | 1 | `n - 1` | `S` less its own part |
//! | reduce-scatter, ordered | `n`, the parts behind one another | `n`, from the last rank `n - 1` | `S`, from the last rank less its own part |
//! | alltoall, `k` segments a block | 1, the segments behind one another | `k (n-1)` | what it has for the others |

#![forbid(unsafe_code)]

mod alltoall;
#[cfg(any(test, fuzzing))]
mod check;
mod choose;
mod circulant;
mod direct;
mod doubling;
mod model;
mod ordered;
mod parts;
#[cfg(test)]
mod pictures;
mod plan;
#[cfg(test)]
mod proofs;
mod racks;
mod ring;
mod rows;
mod schedule;
pub mod simulate;
mod star;
mod tree;
mod turns;
mod weighted;

pub use alltoall::SEGMENT_BYTES as ALLTOALL_SEGMENT_BYTES;
#[cfg(any(test, fuzzing))]
pub use check::{Fault, Goal, PartContent, Traffic, check};
pub use choose::{Prediction, Segments, WeightedChoice, auto, choose, choose_reduce_scatter, choose_weighted, predict};
pub use model::Model;
pub use parts::Parts;
pub use plan::{Move, Plan, ReceiveAction};
pub use ringpull_base::Algorithm;
pub use rows::{Owners, RowWay, choose_rows};
pub use schedule::{Action, Lane, Message, Schedule};
pub use weighted::{LinkRates, Links};

/// The most elements per rank on average (64 KiB of f32) for which an allgather is circulant, which has fewer
/// messages in a row. A longer allgather is a ring: a part that is much longer than the others passes each
/// link once, and uses all links at the same time.
const SHORT_LEN: usize = 16 << 10;

/// The plan of `rank` for the sum of all ranks' buffers of `len` elements, on every rank, in place.
///
/// # Panics
/// If `rank` is not below `size`.
pub fn allreduce(algorithm: Algorithm, rank: usize, size: usize, len: usize) -> Plan {
    assert!(rank < size, "rank {rank} of {size}");
    let count = match algorithm {
        Algorithm::Ring | Algorithm::Direct | Algorithm::Circulant => size,
        Algorithm::Doubling | Algorithm::Star | Algorithm::Tree => 1,
    };
    let mut plan = Plan::new(Parts::even(len, count));
    match algorithm {
        Algorithm::Ring => {
            ring::reduce_scatter(&mut plan, rank, size);
            ring::allgather(&mut plan, rank, size);
        }
        Algorithm::Direct => {
            direct::reduce_scatter(&mut plan, rank, size);
            direct::allgather(&mut plan, rank, size);
        }
        Algorithm::Circulant => {
            circulant::reduce_scatter(&mut plan, rank, size);
            circulant::allgather(&mut plan, rank, size);
        }
        Algorithm::Doubling => doubling::allreduce(&mut plan, rank, size),
        Algorithm::Star => star::allreduce(&mut plan, rank, size),
        Algorithm::Tree => {
            tree::reduce(&mut plan, 0, rank, size);
            tree::broadcast(&mut plan, 0, rank, size);
        }
    }
    plan
}

/// The plan of `rank` for the sum of all ranks' buffers if the ranks are in two racks with a narrow link
/// between them. Every byte crosses the link once in each direction. The buffer is sent in `pieces` pieces,
/// so that the stages of different pieces overlap.
///
/// # Panics
/// If `rank` is in neither rack, a rack is empty, or `pieces` is 0.
pub fn allreduce_in_racks(rank: usize, racks: [&[usize]; 2], len: usize, pieces: usize) -> Plan {
    assert!(racks.iter().all(|ranks| !ranks.is_empty()) && pieces > 0, "two racks with ranks in them, and a piece");
    racks::allreduce(rank, racks, len, pieces)
}

/// The plan of `rank` for the sum of all ranks' buffers, with each element added up in the order of the
/// ranks, for any `size` and `len`.
///
/// # Panics
/// If `rank` is not below `size`.
pub fn allreduce_in_order(rank: usize, size: usize, len: usize) -> Plan {
    assert!(rank < size, "rank {rank} of {size}");
    ordered::allreduce(rank, size, len)
}

/// The plan of `rank` for the sum of all ranks' buffers, from every rank to every rank, if contributions take
/// time to make. Segments have at most `segment` elements, which is a multiple of `block`, and begin at
/// multiples of `block`. The first sums return while the last contributions leave.
///
/// # Panics
/// If `rank` is not below `size`, or `segment` is no multiple of `block`.
pub fn allreduce_in_turns(rank: usize, size: usize, len: usize, (block, segment): (usize, usize)) -> Plan {
    assert!(rank < size, "rank {rank} of {size}");
    assert!(segment > 0 && segment.is_multiple_of(block), "segments of {segment} in blocks of {block}");
    turns::allreduce(rank, size, len, block, segment)
}

/// The plan of `rank` for the sum of all ranks' buffers, in parts that suit the ranks' `links`, and in
/// `turns` turns. Each part goes up its own tree and down again, and all parts do so at the same time.
///
/// # Panics
/// If `rank` is not one of the links', or `turns` is 0.
pub fn allreduce_weighted(rank: usize, links: &Links, len: usize, turns: usize) -> Plan {
    assert!(rank < links.len() && turns > 0, "rank {rank} of {} in {turns} turns", links.len());
    weighted::allreduce(rank, links, len, turns)
}

/// The elements that `rank` sums for all in [`allreduce_in_turns`].
pub fn part_in_turns(rank: usize, size: usize, len: usize, block: usize) -> std::ops::Range<usize> {
    turns::part(rank, size, len, block)
}

/// The plan of `rank` that gives every rank the buffer of `root`, of `len` elements: a tree, and a chain for
/// long buffers.
///
/// # Panics
/// If `rank` or `root` is not below `size`.
pub fn broadcast(root: usize, rank: usize, size: usize, len: usize) -> Plan {
    assert!(rank < size && root < size, "rank {rank} and root {root} of {size}");
    if tree::is_chain(size, len) {
        let mut plan = Plan::new(Parts::even(len, len.div_ceil(tree::PIECE_LEN)));
        tree::chain(&mut plan, root, rank, size);
        plan
    } else {
        let mut plan = Plan::new(Parts::even(len, 1));
        tree::broadcast(&mut plan, root, rank, size);
        plan
    }
}

/// The plan of `rank` that swaps with `other`: of `2 len` elements the lower rank sends the first half, the
/// higher the second.
pub fn exchange(rank: usize, other: usize, len: usize) -> Plan {
    let mut plan = Plan::new(Parts::even(2 * len, 2));
    let (own, theirs) = if rank < other { (0, 1) } else { (1, 0) };
    plan.send(other, own..own + 1);
    plan.recv(other, theirs..theirs + 1, ReceiveAction::Copy);
    plan
}

/// The same exchange as two plans that run at once: one for the data that `rank` sends, and one for the data
/// that it receives.
pub fn exchange_by_direction(rank: usize, other: usize, len: usize) -> (Plan, Plan) {
    let mut out = exchange(rank, other, len);
    let mut into = out.clone();
    out.moves.retain(|step| matches!(step, Move::Send { .. }));
    into.moves.retain(|step| matches!(step, Move::Recv { .. }));
    (out, into)
}

/// The plan of `rank` that gives every rank all parts. Rank `r` brings part `r`. Parts may differ in length.
///
/// # Panics
/// If `rank` is not below `size`, or there is not one part per rank.
pub fn allgather(rank: usize, size: usize, parts: Parts) -> Plan {
    assert!(rank < size && parts.count() == size, "rank {rank} of {size} with {} parts", parts.count());
    let is_short = parts.len() / size <= SHORT_LEN;
    let mut plan = Plan::new(parts);
    if is_short {
        circulant::allgather(&mut plan, rank, size);
    } else {
        ring::allgather(&mut plan, rank, size);
    }
    plan
}

/// The algorithm of a reduce-scatter, which is the first half of an allreduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceScatter {
    /// Along a ring.
    Ring,
    /// From every rank to every rank.
    Direct,
    /// Up the line of the ranks. Each element is added up in their order.
    Ordered,
}

/// The plan of `rank` that gives rank `r` the sum of part `r`, for each `r`. Parts may differ in length.
///
/// # Panics
/// If `rank` is not below `size`, or there is not one part per rank.
pub fn reduce_scatter(way: ReduceScatter, rank: usize, size: usize, parts: Parts) -> Plan {
    assert!(rank < size && parts.count() == size, "rank {rank} of {size} with {} parts", parts.count());
    let mut plan = Plan::new(parts);
    match way {
        ReduceScatter::Ring => ring::reduce_scatter(&mut plan, rank, size),
        ReduceScatter::Direct => direct::reduce_scatter(&mut plan, rank, size),
        ReduceScatter::Ordered => ordered::reduce_scatter(&mut plan, rank, size),
    }
    plan
}

/// The plan of `rank` for the sum of all ranks' buffers in two halves. After the first half, each rank `r`
/// holds the sum of part `r`, and may change it, because it receives nothing more for this part. The second
/// half gives every rank all parts. Parts may differ in length.
///
/// # Panics
/// If `rank` is not below `size`, or there is not one part per rank.
pub fn allreduce_in_halves(way: ReduceScatter, rank: usize, size: usize, parts: Parts) -> Plan {
    let mut plan = reduce_scatter(way, rank, size, parts);
    match way {
        ReduceScatter::Direct => direct::allgather(&mut plan, rank, size),
        ReduceScatter::Ring | ReduceScatter::Ordered => ring::allgather(&mut plan, rank, size),
    }
    plan
}

/// The plan of `rank` for an alltoall, in segments of `segment` elements. `blocks` are this rank's blocks:
/// first one to send to each rank, then one to receive from each rank, with the length of that rank's block
/// for this one.
///
/// # Panics
/// If `rank` is not below `size`, there are not two blocks per rank, or `segment` is 0.
pub fn alltoall(rank: usize, size: usize, blocks: &Parts, segment: usize) -> Plan {
    assert!(rank < size && blocks.count() == 2 * size, "rank {rank} of {size} with {} blocks", blocks.count());
    alltoall::alltoall(rank, size, blocks, segment)
}
