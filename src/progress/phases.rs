//! Between which operations of a cycle some rank waits.

/// Ranks whose waits fit together need a round for each time that a chain of waits goes on in a rank that was looked at before;
/// ranks whose waits contradict each other would need rounds for ever.
const MOST_ROUNDS: usize = 64;

/// A phase of each of `len` operations: if some rank waits after it has called `a` and before it calls `b`, the phase of `a` is the lower one.
/// `ranks` has each rank's calls in their order, cut wherever it waits.
///
/// As low as possible, by the longest chain of waits. Where ranks wait for each other's operations in a circle, nothing can be
/// said, and the phases of those are of no meaning.
pub(super) fn phases(len: usize, ranks: &[Vec<Vec<usize>>]) -> Vec<u64> {
    let mut phases = vec![0; len];
    for _ in 0..MOST_ROUNDS {
        let before = phases.clone();
        for parts in ranks {
            let mut least = 0;
            for part in parts {
                part.iter().for_each(|operation| phases[*operation] = phases[*operation].max(least));
                least = part.iter().map(|operation| phases[*operation] + 1).fold(least, u64::max);
            }
        }
        if phases == before {
            break;
        }
    }
    phases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_of_any_rank_parts_what_it_called_before_from_what_it_calls_after() {
        assert_eq!(phases(3, &[vec![vec![0, 1, 2]], vec![vec![2, 0], vec![1]]]), [0, 1, 0]);
        assert_eq!(phases(3, &[vec![vec![0], vec![], vec![1, 2]], vec![]]), [0, 1, 1]);
    }

    #[test]
    fn waits_of_different_ranks_do_not_make_up_for_each_other() {
        // The one waits for 0 before 1, the other for 2 before 0, after 1: 0 still comes before 1.
        let (one, other) = (vec![vec![2, 0], vec![1]], vec![vec![2], vec![0]]);
        let found = phases(3, &[one, other]);
        assert!(found[2] < found[0] && found[0] < found[1], "{found:?}");
        assert_eq!(phases(3, &[vec![vec![0], vec![1, 2]], vec![vec![0, 1], vec![2]]]), [0, 1, 2]);
    }

    #[test]
    fn a_chain_goes_on_from_rank_to_rank_in_any_order() {
        let of = |first: usize| vec![vec![first], vec![first + 1]];
        let ranks: Vec<_> = (0..9).rev().map(of).collect();
        assert_eq!(phases(10, &ranks), (0..10).collect::<Vec<u64>>());
    }

    #[test]
    fn waits_that_contradict_each_other_have_an_end() {
        assert_eq!(phases(2, &[vec![vec![0], vec![1]], vec![vec![1], vec![0]]]).len(), 2);
    }
}
