//! Circulant: halving and doubling for any number of ranks.
//!
//! The buffer has `n` parts, one per rank; all numbers of ranks and parts are modulo `n`. Each rank counts
//! the parts from its own: *place* `i` of rank `r` is part `r + i`, so that place 0 is the part it owns. The
//! *skips* are `n` halved and rounded up until 1 is reached: for 5 ranks 5, 3, 2, 1; for 8 ranks 8, 4, 2, 1.
//! There is a round for each skip `s` after the first, `ceil(log2 n)` rounds; `a` is the skip above it, and
//! `a - s` is at most `s`.
//!
//! *Reduce-scatter*, skips downwards. Before the round with skip `s`, the places `0..a` of rank `r` hold sums
//! that no other rank holds: all contributions to part `r + i` are in place `i` of `r` and in those places of
//! other ranks that still count. Rank `r` sends its places `s..a` to rank `r + s`, for which they are the
//! places `0..a - s`. It adds the places `s..a` of rank `r - s` to its own places `0..a - s`. Now only the
//! places `0..s` count. After the round with skip 1 this is place 0: rank `r` holds the sum of part `r`. In
//! total a rank sends `a - s` parts in each round, `n - 1` parts.
//!
//! *Allgather*, skips upwards. Before the round with skip `s`, rank `r` holds the places `0..s`. It sends the
//! places `0..a - s` to rank `r - s`, for which they are the places `s..a`, and takes the places `0..a - s`
//! of rank `r + s`. After the last round it holds all places. Every part is as its owner summed it, with the
//! same bits everywhere.
//!
//! Three ranks, skips 3, 2, 1; a column is a place (not a part), `abc` is the sum of the contributions of
//! ranks 0, 1 and 2, `*` marks data that is sent next, `.` marks data that no longer counts:
//!
//! ```text
//!           reduce-scatter: s = 2        s = 1               done            allgather: s = 1     s = 2
//! place     0   1   2          0    1    2         0    1    2          0    1    2         0    1    2
//! rank 0    a   a   a*         ab   a*   .         abc  .    .          abc* .    .         abc* abc  .
//! rank 1    b   b   b*         bc   b*   .         abc  .    .          abc* .    .         abc* abc  .
//! rank 2    c   c   c*         ca   c*   .         abc  .    .          abc* .    .         abc* abc  .
//! ```
//!
//! *A power of two.* Here `+` and `-` are both replaced by the exclusive or: place `i` of rank `r` is part `r
//! xor i`. Then a rank sends to the rank that it receives from, the places of a round are always one range of
//! parts, and this is recursive halving and doubling. Two ranks that exchange wait for no third rank, which
//! pays if ranks share cores (8 emulated hosts on two, `ringpull bench allreduce --algorithm circulant
//! --sizes 64KiB,1MiB`: medians of 491 us in pairs, 537 in a circle, and of 16.4 and 18.9 ms). Other numbers
//! of ranks need no folding, in which two ranks would carry twice the bytes.
//!
//! A sum is added up in an order that the rounds fix. It differs between parts, but is the same in every run.
//! Since it is not the order of the ranks, the addition must be commutative, and it is.
//!
//! Cost, for `S` bytes: at most `2 ceil(log2 n)` messages one after the other and `2(n-1)/n S` bytes sent and
//! received per rank; no reduce-scatter and no allgather has fewer rounds or fewer bytes. See J. L. Traeff,
//! "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", TU Wien,
//! hdl.handle.net/20.500.12708/219280.
//!
//! *Order within a round.* In the reduce-scatter's next round a rank sends the upper end of the data that it
//! receives in this round. A long round is therefore two messages, with the upper places first. While the
//! lower half is under way the upper half is summed, so the next round starts without a pause. The allgather
//! does not need this, because the data that arrives last is sent last.

use std::ops::Range;

use super::plan::{Plan, ReceiveAction};

/// The least number of elements of a buffer (512 KiB of f32, two segments) for which a round is two messages.
const SPLIT_LEN: usize = 128 << 10;

/// Appends the first half: afterwards rank `r` holds the sum of part `r`.
pub(super) fn reduce_scatter(plan: &mut Plan, rank: usize, size: usize) {
    let is_split = plan.parts.len() >= SPLIT_LEN;
    for pair in skips(size).windows(2) {
        let (above, skip) = (pair[0], pair[1]);
        let (to, from) = partners(rank, skip, size);
        let next = if is_split { skip.div_ceil(2).min(above - skip) } else { 0 };
        for places in [next..above - skip, 0..next] {
            for parts in parts_at(to, places.clone(), size) {
                plan.send(to, parts);
            }
            for parts in parts_at(rank, places, size) {
                plan.recv(from, parts, ReceiveAction::Reduce);
            }
        }
    }
}

/// Appends the second half: before it rank `r` holds part `r`, afterwards all parts. Parts may differ in
/// length.
pub(super) fn allgather(plan: &mut Plan, rank: usize, size: usize) {
    for pair in skips(size).windows(2).rev() {
        let (above, skip) = (pair[0], pair[1]);
        let (from, to) = partners(rank, skip, size);
        for parts in parts_at(rank, 0..above - skip, size) {
            plan.send(to, parts);
        }
        for parts in parts_at(from, 0..above - skip, size) {
            plan.recv(from, parts, ReceiveAction::Copy);
        }
    }
}

/// `size`, then its half rounded up, and so on down to 1.
fn skips(size: usize) -> Vec<usize> {
    let mut skips = vec![size];
    let mut skip = size;
    while skip > 1 {
        skip = skip.div_ceil(2);
        skips.push(skip);
    }
    skips
}

/// Returns the ranks at a distance of `skip` upwards and downwards.
fn partners(rank: usize, skip: usize, size: usize) -> (usize, usize) {
    if size.is_power_of_two() {
        return (rank ^ skip, rank ^ skip);
    }
    ((rank + skip) % size, (rank + size - skip) % size)
}

/// The parts in consecutive places of a rank: one range, or two if they pass the last part.
fn parts_at(rank: usize, places: Range<usize>, size: usize) -> [Range<usize>; 2] {
    if size.is_power_of_two() {
        // The places of a round begin at a multiple of their number, which is a power of two or 0.
        let start = (rank ^ places.start) & !places.len().saturating_sub(1);
        return [start..start + places.len(), 0..0];
    }
    let (start, end) = (rank + places.start, rank + places.end);
    [start.min(size)..end.min(size), start.max(size) - size..end.max(size) - size]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_halve_and_round_up_to_one() {
        assert_eq!(skips(1), [1]);
        assert_eq!(skips(5), [5, 3, 2, 1]);
        assert_eq!(skips(8), [8, 4, 2, 1]);
    }

    #[test]
    fn places_that_pass_the_last_part_are_two_ranges() {
        assert_eq!(parts_at(3, 0..2, 5), [3..5, 0..0]);
        assert_eq!(parts_at(3, 1..4, 5), [4..5, 0..2]);
        assert_eq!(parts_at(3, 2..4, 5), [5..5, 0..2]);
    }

    #[test]
    fn the_places_of_a_round_are_one_range_if_the_ranks_are_a_power_of_two() {
        assert_eq!(parts_at(5, 0..4, 8), [4..8, 0..0]);
        assert_eq!(parts_at(5, 4..8, 8), [0..4, 0..0]);
        assert_eq!(parts_at(5, 2..4, 8), [6..8, 0..0]);
        assert_eq!(parts_at(5, 1..2, 8), [4..5, 0..0]);
        assert!(parts_at(5, 1..1, 8)[0].is_empty());
    }
}
