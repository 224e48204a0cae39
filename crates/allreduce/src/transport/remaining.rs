//! The processes of a communicator that are left after losses, and their ranks.

use std::ffi::c_int;

/// The processes of a communicator that are left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemainingProcesses {
    /// The number of each rank in the communicator.
    numbers: Vec<c_int>,
    /// The number of processes at first.
    begun: usize,
}

impl RemainingProcesses {
    /// Returns all of `count` processes.
    pub(super) fn all(count: usize) -> Self {
        RemainingProcesses { numbers: (0..count as c_int).collect(), begun: count }
    }

    pub(super) fn size(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn number(&self, rank: usize) -> c_int {
        self.numbers[rank]
    }

    /// Returns the number of lost processes. Ranks that agree on the survivors agree on this number, and each
    /// loss changes it. If the network has cut the job into parts, ranks of another part send nothing.
    pub(super) fn lost(&self) -> usize {
        self.begun - self.numbers.len()
    }

    /// Returns the processes that are not among `failed` (which has their numbers in the communicator), and
    /// the ranks that they had before.
    pub(super) fn without(&self, failed: &[c_int]) -> (Self, Vec<usize>) {
        let is_left = |rank: &usize| !failed.contains(&self.numbers[*rank]);
        let ranks: Vec<usize> = (0..self.numbers.len()).filter(is_left).collect();
        let numbers = ranks.iter().map(|rank| self.numbers[*rank]).collect();
        (RemainingProcesses { numbers, begun: self.begun }, ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_keep_their_numbers_when_others_are_lost() {
        let all = RemainingProcesses::all(5);
        let (four, ranks) = all.without(&[1]);
        assert_eq!((ranks, four.lost()), (vec![0, 2, 3, 4], 1));
        let (two, ranks) = four.without(&[1, 0, 3]);
        assert_eq!((ranks, two.lost()), (vec![1, 3], 3));
        assert_eq!([two.number(0), two.number(1)], [2, 4]);
        assert_eq!(two.without(&[1, 0, 3]).0, two);
    }
}
