//! The phases of a cycle. They separate operations between which some rank waits.

use std::collections::BTreeSet;

/// Returns the phase of each of `len` operations. If some rank waits after it has called `a` and before it
/// calls `b`, the phase of `a` is lower than that of `b`. `ranks` has each rank's calls in their order, cut
/// wherever the rank waits.
///
/// A phase is as low as possible: it is the number of waits in the longest chain that leads to the operation.
/// Kahn's algorithm finds it in time linear in the calls. If ranks wait for each other's operations in a
/// circle, the operation with the fewest waits before it goes first, and only these waits are ignored.
pub(super) fn phases(len: usize, ranks: &[Vec<Vec<usize>>]) -> Vec<u64> {
    let mut nodes: Vec<GraphNode> = Vec::new();
    nodes.resize_with(len, GraphNode::default);
    // For each operation: the number of times that all ranks together wait before it.
    let mut waits = vec![0; len];
    for parts in ranks {
        // A wait comes after the calls before it and after the previous wait.
        for (number, part) in parts.iter().enumerate() {
            let wait = nodes.len();
            let before = (number > 0).then(|| wait - 1);
            nodes.push(GraphNode { is_wait: true, ..GraphNode::default() });
            before.into_iter().for_each(|before| join(&mut nodes, before, wait));
            for operation in part.iter().copied() {
                before.into_iter().for_each(|before| join(&mut nodes, before, operation));
                join(&mut nodes, operation, wait);
                waits[operation] += number;
            }
        }
    }
    let mut ready: Vec<usize> = (0..nodes.len()).filter(|node| nodes[*node].awaits == 0).collect();
    let mut stuck: BTreeSet<(usize, usize)> = (0..len).map(|operation| (waits[operation], operation)).collect();
    loop {
        while let Some(done) = ready.pop() {
            if done < len {
                stuck.remove(&(waits[done], done));
            }
            nodes[done].is_done = true;
            let GraphNode { phase, is_wait, .. } = nodes[done];
            for next in std::mem::take(&mut nodes[done].before) {
                // An operation called before a wait is one phase below an operation called after it.
                let least = if is_wait { phase } else { phase + 1 };
                let node = &mut nodes[next];
                node.awaits -= 1;
                if !node.is_done {
                    node.phase = node.phase.max(least);
                    if node.awaits == 0 {
                        ready.push(next);
                    }
                }
            }
        }
        let Some((_, first)) = stuck.pop_first() else { break };
        ready.push(first);
    }
    nodes.truncate(len);
    nodes.into_iter().map(|node| node.phase).collect()
}

/// An operation, or a wait of one rank.
#[derive(Default)]
struct GraphNode {
    is_wait: bool,
    phase: u64,
    /// The number of nodes before this one that are not done.
    awaits: usize,
    /// The nodes that this node precedes.
    before: Vec<usize>,
    is_done: bool,
}

fn join(nodes: &mut [GraphNode], before: usize, after: usize) {
    nodes[before].before.push(after);
    nodes[after].awaits += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_of_any_rank_separates_its_earlier_calls_from_its_later_ones() {
        assert_eq!(phases(3, &[vec![vec![0, 1, 2]], vec![vec![2, 0], vec![1]]]), [0, 1, 0]);
        assert_eq!(phases(3, &[vec![vec![0], vec![], vec![1, 2]], vec![]]), [0, 1, 1]);
    }

    #[test]
    fn waits_of_different_ranks_do_not_cancel_each_other() {
        // One rank waits between 0 and 1. The other rank calls 2, waits, and calls 0, and 1 comes before
        // that. Operation 0 still goes before 1.
        let (one, other) = (vec![vec![2, 0], vec![1]], vec![vec![2], vec![0]]);
        let found = phases(3, &[one, other]);
        assert!(found[2] < found[0] && found[0] < found[1], "{found:?}");
        assert_eq!(phases(3, &[vec![vec![0], vec![1, 2]], vec![vec![0, 1], vec![2]]]), [0, 1, 2]);
    }

    #[test]
    fn a_chain_goes_on_from_rank_to_rank_in_any_order_and_to_any_length() {
        let of = |first: usize| vec![vec![first], vec![first + 1]];
        let ranks: Vec<_> = (0..9).rev().map(of).collect();
        assert_eq!(phases(10, &ranks), (0..10).collect::<Vec<u64>>());
        // One rank waits before every even operation, the other before every odd one.
        let pairs = |from: usize| (from..400).step_by(2).map(|first| (first..400.min(first + 2)).collect()).collect();
        let other: Vec<Vec<usize>> = [vec![vec![0]], pairs(1)].concat();
        assert_eq!(phases(400, &[pairs(0), other]), (0..400).collect::<Vec<u64>>());
    }

    #[test]
    fn waits_that_contradict_each_other_spoil_no_others() {
        assert_eq!(phases(2, &[vec![vec![0], vec![1]], vec![vec![1], vec![0]]]).len(), 2);
        let found = phases(4, &[vec![vec![0], vec![1], vec![2], vec![3]], vec![vec![1], vec![0], vec![2, 3]]]);
        assert!(found[0].max(found[1]) < found[2] && found[2] < found[3], "{found:?}");
    }
}
