//! Two racks with a narrow link between them. Each byte of the sum crosses the link once in each direction.
//!
//! A ring over all ranks, however well ordered, carries `2 (n-1)/n S` over the link between the racks, nearly
//! twice what is needed. Here the buffer is cut into *pieces*, and each piece takes three stages:
//!
//! 1. *Reduce-scatter* on a ring within each rack: a rank ends with its rack's sum of its block.
//! 2. *Crossing*: the ranks that hold a range in the two racks send it to each other and add.
//!    Both add the same two numbers, so both have the same bits.
//! 3. *Allgather* on the ring within each rack.
//!
//! Racks may differ in size. Blocks are then cut wherever a block of either rack ends. With racks of 3 and 2
//! ranks:
//!
//! ```text
//!   rack 0     a0 a0 | a1 a1 | a2 a2        a0 crosses with b0, a1 with both, a2 with b1
//!   rack 1     b0 b0   b0 | b1   b1 b1
//! ```
//!
//! The stages of different pieces use different links, so they run at the same time: in program order stage 1
//! of piece `p` is followed by stage 2 of piece `p-1` and stage 3 of piece `p-2`. The link between the racks
//! is idle only during the first and the last piece's stages within the racks: With `k` pieces the sum takes
//! about `S/U + 2 S/(k B)`, for a link of rate `U` between the racks and of rate `B` within them. A ring
//! takes `2 (n-1)/n S/U`.

use std::ops::Range;

use super::plan::{Parts, Plan, ReceiveAction};

/// The blocks of one piece: member `i` of a rack holds `bounds[rack][i]..bounds[rack][i + 1]`, in elements.
struct RackBlocks {
    bounds: [Vec<usize>; 2],
}

impl RackBlocks {
    fn of(piece: Range<usize>, racks: [&[usize]; 2]) -> Self {
        let bounds = racks.map(|ranks| {
            let parts = Parts::even(piece.len(), ranks.len());
            (0..=ranks.len()).map(|member| piece.start + parts.range(0..member).end).collect()
        });
        RackBlocks { bounds }
    }

    fn block(&self, rack: usize, member: usize) -> Range<usize> {
        self.bounds[rack][member]..self.bounds[rack][member + 1]
    }
}

/// The plan of `rank`, which is in one of the two racks.
pub(super) fn allreduce(rank: usize, racks: [&[usize]; 2], len: usize, pieces: usize) -> Plan {
    let cuts = Parts::even(len, pieces);
    let blocks: Vec<RackBlocks> =
        (0..pieces).map(|piece| RackBlocks::of(cuts.range(piece..piece + 1), racks)).collect();
    let mut bounds: Vec<usize> = blocks.iter().flat_map(|blocks| blocks.bounds.iter().flatten().copied()).collect();
    bounds.sort_unstable();
    bounds.dedup();
    if len == 0 {
        return Plan::new(Parts::even(0, 1));
    }
    let mut plan = Plan::new(Parts::of(bounds.clone()));
    let place = |rack: usize| racks[rack].iter().position(|other| *other == rank).map(|member| (rack, member));
    let (rack, member) = place(0).or_else(|| place(1)).expect("every rank is in one of the racks");
    let stage = RackPosition { ranks: racks, rack, member, bounds: &bounds };
    for step in 0..pieces + 2 {
        if let Some(blocks) = blocks.get(step) {
            stage.reduce_scatter(&mut plan, blocks);
        }
        if let Some(blocks) = step.checked_sub(1).and_then(|piece| blocks.get(piece)) {
            stage.cross(&mut plan, blocks);
        }
        if let Some(blocks) = step.checked_sub(2).and_then(|piece| blocks.get(piece)) {
            stage.allgather(&mut plan, blocks);
        }
    }
    plan
}

/// One rank's place in the racks.
struct RackPosition<'a> {
    ranks: [&'a [usize]; 2],
    rack: usize,
    member: usize,
    bounds: &'a [usize],
}

impl RackPosition<'_> {
    /// Appends the ring of `ring.rs` within the rack. After it each rank holds its rack's sum of its own
    /// block.
    fn reduce_scatter(&self, plan: &mut Plan, blocks: &RackBlocks) {
        let size = self.ranks[self.rack].len();
        for step in 0..size - 1 {
            self.send_right(plan, blocks, step + 1);
            self.recv_left(plan, blocks, step + 2, ReceiveAction::Reduce);
        }
    }

    /// Appends the allgather within the rack. After it each rank of the rack holds every block.
    fn allgather(&self, plan: &mut Plan, blocks: &RackBlocks) {
        let size = self.ranks[self.rack].len();
        for step in 0..size - 1 {
            self.send_right(plan, blocks, step);
            self.recv_left(plan, blocks, step + 1, ReceiveAction::Copy);
        }
    }

    /// Exchanges the own block with the ranks that hold its ranges in the other rack.
    fn cross(&self, plan: &mut Plan, blocks: &RackBlocks) {
        let (own, other) = (blocks.block(self.rack, self.member), 1 - self.rack);
        for (member, peer) in self.ranks[other].iter().enumerate() {
            let theirs = blocks.block(other, member);
            let common = own.start.max(theirs.start)..own.end.min(theirs.end);
            if !common.is_empty() {
                plan.send(*peer, self.parts(&common));
                plan.recv(*peer, self.parts(&common), ReceiveAction::Reduce);
            }
        }
    }

    fn send_right(&self, plan: &mut Plan, blocks: &RackBlocks, behind: usize) {
        let ranks = self.ranks[self.rack];
        let block = blocks.block(self.rack, (self.member + ranks.len() - behind) % ranks.len());
        plan.send(ranks[(self.member + 1) % ranks.len()], self.parts(&block));
    }

    fn recv_left(&self, plan: &mut Plan, blocks: &RackBlocks, behind: usize, then: ReceiveAction) {
        let ranks = self.ranks[self.rack];
        let block = blocks.block(self.rack, (self.member + ranks.len() - behind) % ranks.len());
        plan.recv(ranks[(self.member + ranks.len() - 1) % ranks.len()], self.parts(&block), then);
    }

    /// Returns the parts of a range that begins and ends at boundaries.
    fn parts(&self, range: &Range<usize>) -> Range<usize> {
        let part = |bound: usize| self.bounds.binary_search(&bound).expect("every block ends at a boundary");
        part(range.start)..part(range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{Goal, check};
    use super::super::plan::Move;
    use super::*;

    /// Returns ranks in two racks of these sizes. If `is_dealt`, successive ranks are in different racks.
    fn racks(sizes: [usize; 2], is_dealt: bool) -> [Vec<usize>; 2] {
        let count = sizes[0] + sizes[1];
        let order: Vec<usize> = if is_dealt {
            (0..count).step_by(2).chain((1..count).step_by(2)).rev().collect()
        } else {
            (0..count).collect()
        };
        [order[..sizes[0]].to_vec(), order[sizes[0]..].to_vec()]
    }

    #[test]
    fn every_pair_of_racks_is_proved_and_each_element_crosses_once_each_way() {
        for (one, other) in (1..=6).flat_map(|one| (1..=6).map(move |other| (one, other))) {
            for is_dealt in [false, true] {
                let racks = racks([one, other], is_dealt);
                let count = one + other;
                for len in [0, 1, count - 1, count, count + 1, 1000] {
                    for pieces in [1, 2, 5] {
                        let plans: Vec<Plan> =
                            (0..count).map(|rank| allreduce(rank, [&racks[0], &racks[1]], len, pieces)).collect();
                        check(&plans, Goal::Allreduce).unwrap_or_else(|fault| {
                            panic!("racks {racks:?}, {len} elements, {pieces} pieces: {fault}")
                        });
                        let crossing: usize = racks[0].iter().map(|rank| crossing_len(&plans[*rank], &racks[1])).sum();
                        assert_eq!(crossing, len);
                    }
                }
            }
        }
    }

    fn crossing_len(plan: &Plan, others: &[usize]) -> usize {
        let sends = plan.moves.iter().filter(|step| matches!(step, Move::Send { to, .. } if others.contains(to)));
        sends.map(|step| plan.parts.range(step.parts()).len()).sum()
    }
}
