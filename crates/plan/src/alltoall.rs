//! Alltoall: every rank has different data for each other rank.
//!
//! Each of `n` ranks has `2 n` blocks. Block `d` is for rank `d`, and block `n + s` receives the data from
//! rank `s`. The block that a rank has for itself is copied without a message. Three ranks; `ab` is the data
//! of rank `a` for rank `b`, `.` has no meaning yet:
//!
//! ```text
//! block      0   1   2     3   4   5           0   1   2     3   4   5
//! rank 0     00  01  02    .   .   .           00  01  02    .   10  20
//! rank 1     10  11  12    .   .   .           10  11  12    01  .   21
//! rank 2     20  21  22    .   .   .           20  21  22    02  12  .
//! ```
//!
//! *Turns.* Blocks are cut into segments of one length, except the last of each block. In turn `t`, for `d`
//! from 1 to `n - 1`, rank `r` sends segment `t` of block `r + d` to rank `r + d`, and receives from rank
//! `r - d` into segment `t` of block `n + r - d`; numbers of ranks are modulo `n`. As in `direct`, for each
//! `d` the messages are a permutation of the ranks. A segment is a part of the plan. Every block of a rank has
//! as many parts as the rank's longest block has segments. Parts behind the end of a shorter block are empty.
//!
//! *How far ahead.* Without a limit all messages would leave at once. TCP does not divide a link evenly among
//! `n - 1` flows: some blocks would be far ahead, and in the end few flows would be left, which do not keep
//! all links busy. So a rank sends segment `t` to a peer only when it has received segment `t - w` from this
//! peer. So the two are at most `w` segments apart. `w` is such that [`UNDER_WAY`] segments are on their way
//! to a rank.
//!
//! Cost: no message waits for another, and each byte passes one link once, which no plan can beat. But each
//! rank must issue `n - 1` messages per segment.

use super::parts::Parts;
use super::plan::{Plan, ReceiveAction};

/// The most segments that may be on their way to one rank, from all other ranks together. With
/// [`SEGMENT_BYTES`] that is 1.25 MiB, about the size of a queue of a switch or a shaper.
const UNDER_WAY: usize = 20;

/// The bytes of a segment. They are so few that the order of turns is kept, and so many that the cost of a
/// message does not matter.
pub const SEGMENT_BYTES: usize = 64 << 10;

/// Returns the plan of `rank`, with its `2 size` blocks cut into segments of `segment` elements.
pub(super) fn alltoall(rank: usize, size: usize, blocks: &Parts, segment: usize) -> Plan {
    let block = |at: usize| blocks.range(at..at + 1);
    let turns = (0..2 * size).map(|at| block(at).len().div_ceil(segment)).max().unwrap_or(0).max(1);
    let ends = (0..2 * size).flat_map(|at| {
        let block = block(at);
        (1..=turns).map(move |turn| block.end.min(block.start.saturating_add(turn.saturating_mul(segment))))
    });
    let mut plan = Plan::new(Parts::of(std::iter::once(0).chain(ends).collect()));
    let ahead = turns_ahead(size);
    // For each peer, the indices of the receives from it.
    let mut receives: Vec<Vec<usize>> = vec![Vec::new(); size];
    for turn in 0..turns {
        let segment_of = |block: usize| block * turns + turn..block * turns + turn + 1;
        for distance in 1..size {
            let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
            let place = plan.moves.len();
            plan.send(to, segment_of(to));
            if plan.moves.len() > place && turn >= ahead {
                plan.after.extend(receives[to].get(turn - ahead).map(|receive| (place, *receive)));
            }
            let place = plan.moves.len();
            plan.recv(from, segment_of(size + from), ReceiveAction::Copy);
            if plan.moves.len() > place {
                receives[from].push(place);
            }
        }
    }
    plan
}

/// Returns the number of segments by which a rank may be ahead of its peer's.
fn turns_ahead(size: usize) -> usize {
    UNDER_WAY.div_ceil(size.saturating_sub(1).max(1))
}

#[cfg(test)]
mod tests {
    use super::super::plan::Move;
    use super::*;

    #[test]
    fn a_segment_waits_for_an_earlier_one_of_the_same_peer() {
        for size in [2, 3, 5, 8, 33] {
            let (ahead, turns) = (turns_ahead(size), 25);
            let plan = alltoall(1, size, &Parts::even(2 * size * turns * 3, 2 * size), 3);
            let mut waits = vec![Vec::new(); size];
            for (send, receive) in plan.after {
                let (send, receive) = (&plan.moves[send], &plan.moves[receive]);
                assert!(matches!((send, receive), (Move::Send { .. }, Move::Recv { .. })));
                assert_eq!(send.peer(), receive.peer());
                waits[send.peer()].push((send.parts().start % turns, receive.parts().start % turns));
            }
            for peer in (0..size).filter(|peer| *peer != 1) {
                assert_eq!(waits[peer], (ahead..turns).map(|turn| (turn, turn - ahead)).collect::<Vec<_>>(), "{peer}");
            }
        }
    }

    #[test]
    fn the_fewer_peers_the_more_segments_of_each_are_under_way() {
        assert_eq!([2, 3, 5, 6, 7, 8, 21, 33].map(turns_ahead), [20, 10, 5, 4, 4, 3, 1, 1]);
    }

    #[test]
    fn the_peers_take_turns_and_a_shorter_block_ends_earlier() {
        // Rank 0 has 5 for rank 1 and 2 for rank 2, and gets 2 and 3.
        let plan = alltoall(0, 3, &Parts::of_lens([4, 5, 2, 4, 2, 3]), 2);
        let moves = plan
            .moves
            .iter()
            .map(|step| (matches!(step, Move::Send { .. }), step.peer(), plan.parts.range(step.parts())));
        let (send, recv) = (true, false);
        let expected = [
            (send, 1, 4..6),
            (recv, 2, 17..19),
            (send, 2, 9..11),
            (recv, 1, 15..17),
            (send, 1, 6..8),
            (recv, 2, 19..20),
            (send, 1, 8..9),
        ];
        assert_eq!(moves.collect::<Vec<_>>(), expected);
    }
}
