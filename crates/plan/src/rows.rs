//! Row-sparse sums: the choice between three ways that give every rank the sum of all ranks' rows.
//!
//! Each rank has some rows of a tensor, and all ranks know the rows of each rank, because the ids have been
//! exchanged. For rows of one length, with `t_i` rows on rank `i`, `t` on all ranks together, and `u`
//! different rows:
//!
//! - *Gather.* Every rank gets every rank's rows along a ring, and adds them. Each link carries all but the
//!   rows of one rank: at most `t - min t_i`.
//! - *By owner*, a reduce-scatter of rows and an allgather. The tensor's rows are divided over the ranks.
//!   Each rank sends its rows to their owners (`alltoall`), an owner adds the contributions to each row in
//!   the order of the ranks, and then the sums go along a ring. Owners get equal numbers of the `t` rows, so
//!   a link carries about `(t_i + t) / n` in the first half, and `u` less the fewest rows of an owner in the
//!   second.
//! - *Dense.* All rows are summed, with zeros for rows that a rank lacks. A link carries `2 (n-1)/n` of all
//!   rows.
//!
//! Ranks that have different rows (`u = t`) gather. If they have common rows, there are fewer sums than rows,
//! and *By owner* is the quickest. If they have nearly all rows, *Dense* saves a round. The choice depends
//! only on the ids and on the model, so all ranks make the same choice. Both halves of *By owner* are plans
//! of this crate.

use std::ops::Range;

use crate::Model;

/// The way in which the rows of all ranks become their sum on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowWay {
    /// Every rank adds every rank's rows.
    Gather,
    /// Each rank adds the rows that it owns.
    ByOwner(Owners),
    /// The rows are summed as a tensor that has all rows.
    Dense,
}

/// The rows that each rank adds: consecutive ones, in the order of the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    /// The first row of each rank except rank 0.
    starts: Vec<i64>,
}

impl Owners {
    /// Returns owners with equal numbers of the rows in `all`, which has the rows of every rank in ascending
    /// order. A row has one owner.
    fn sharing(all: &[i64], ranks: usize) -> Self {
        Owners { starts: (1..ranks).map(|rank| all.get(rank * all.len() / ranks).copied().unwrap_or(0)).collect() }
    }

    /// Returns the range in `ids`, which ascend, of each owner's rows.
    pub fn places(&self, ids: &[i64]) -> Vec<Range<usize>> {
        let start_of = |start: &i64| ids.partition_point(|id| id < start);
        let starts: Vec<usize> =
            std::iter::once(0).chain(self.starts.iter().map(start_of)).chain([ids.len()]).collect();
        starts.windows(2).map(|ends| ends[0]..ends[1]).collect()
    }

    /// Returns the number of rows of `ids`, which ascend, that each owner has.
    fn counts(&self, ids: &[i64]) -> Vec<usize> {
        self.places(ids).iter().map(Range::len).collect()
    }
}

/// Returns every row that some rank has, and the way to sum the rows. `ids` has each rank's rows, ascending
/// and each once. The tensor has `rows` rows of `row_bytes`.
pub fn choose_rows(model: &Model, ids: &[Vec<i64>], rows: usize, row_bytes: usize) -> (Vec<i64>, RowWay) {
    let ranks = ids.len();
    let mut all = ids.concat();
    #[allow(clippy::stable_sort_primitive, reason = "each rank's ids ascend, and it finds such runs")]
    all.sort();
    let owners = Owners::sharing(&all, ranks);
    let mut union = all.clone();
    union.dedup();
    let time = |rounds: usize, most_rows: usize, fan: f64| {
        rounds as f64 * (model.latency_us + model.message_us)
            + (most_rows * row_bytes) as f64 * fan / model.long_bytes_per_us
    };
    let fewest = |counts: &[usize]| counts.iter().copied().min().unwrap_or(0);
    let own: Vec<usize> = ids.iter().map(Vec::len).collect();
    let gather = time(ranks - 1, all.len() - fewest(&own), 1.0);
    let by_owner = {
        let given: Vec<Vec<usize>> = ids.iter().map(|ids| owners.counts(ids)).collect();
        let sent = (0..ranks).map(|rank| own[rank] - given[rank][rank]).max().unwrap_or(0);
        let taken = (0..ranks).map(|rank| (0..ranks).filter(|from| *from != rank).map(|from| given[from][rank]).sum());
        let summed = union.len() - fewest(&owners.counts(&union));
        time(ranks - 1, sent.max(taken.max().unwrap_or(0)), model.fan_factor) + time(ranks - 1, summed, 1.0)
    };
    let dense = time(2 * (ranks - 1), 2 * (rows - rows / ranks), 1.0);
    let way = if gather <= by_owner.min(dense) {
        RowWay::Gather
    } else if by_owner <= dense {
        RowWay::ByOwner(owners)
    } else {
        RowWay::Dense
    };
    (union, way)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Goal, Parts, allgather, alltoall, check};

    const ROW_BYTES: usize = 256;

    /// Returns the rows of `ranks` ranks. Each rank has `own` rows that no other has, and `common` rows that
    /// all have.
    fn ids(ranks: usize, own: usize, common: usize) -> Vec<Vec<i64>> {
        let of = |rank: usize| (0..common).chain(common + rank * own..common + (rank + 1) * own);
        (0..ranks).map(|rank| of(rank).map(|row| row as i64).collect()).collect()
    }

    fn way(ids: &[Vec<i64>], rows: usize) -> RowWay {
        choose_rows(&Model::default(), ids, rows, ROW_BYTES).1
    }

    #[test]
    fn rows_in_common_go_by_owner_different_ones_are_gathered_and_nearly_all_are_dense() {
        assert_eq!(way(&ids(8, 1000, 0), 100_000), RowWay::Gather);
        assert!(matches!(way(&ids(8, 100, 900), 100_000), RowWay::ByOwner(_)));
        assert!(matches!(way(&ids(8, 0, 50_000), 100_000), RowWay::ByOwner(_)));
        assert_eq!(way(&ids(8, 0, 100_000), 100_000), RowWay::Dense);
        assert_eq!(way(&ids(8, 1, 2), 100_000), RowWay::Gather, "few rows take the fewest messages");
        for ranks in 1..34 {
            assert_eq!(way(&ids(ranks, 0, 0), 0), RowWay::Gather, "{ranks}");
        }
    }

    #[test]
    fn owners_share_what_all_ranks_have_and_each_row_has_one() {
        for ranks in 1..34 {
            for (own, common) in [(0, 0), (0, 1), (3, 0), (5, 7), (1, 100)] {
                let ids = ids(ranks, own, common);
                let mut all = ids.concat();
                all.sort_unstable();
                let owners = Owners::sharing(&all, ranks);
                let places: Vec<Range<usize>> = owners.places(&all);
                assert_eq!((places.len(), places[0].start, places[ranks - 1].end), (ranks, 0, all.len()));
                assert!(places.windows(2).all(|two| two[0].end == two[1].start));
                assert!(
                    places
                        .windows(2)
                        .all(|two| two[1].is_empty() || two[0].is_empty() || all[two[0].end - 1] < all[two[1].start])
                );
                // A row that all ranks have goes to one owner.
                assert!(places.iter().all(|place| place.len() < all.len() / ranks + 1 + ranks), "{places:?}");
            }
        }
    }

    #[test]
    fn both_halves_of_a_sum_by_owner_are_proved_on_1_to_33_ranks() {
        for ranks in 1..34 {
            for (own, common) in [(0, 3), (3, 0), (2, 40)] {
                let ids = ids(ranks, own, common);
                let mut all = ids.concat();
                all.sort_unstable();
                let owners = Owners::sharing(&all, ranks);
                all.dedup();
                let given: Vec<Vec<usize>> = ids.iter().map(|ids| owners.counts(ids)).collect();
                let blocks = |rank: usize| {
                    let taken = given.iter().map(|counts| counts[rank]);
                    Parts::of_lens(given[rank].iter().copied().chain(taken))
                };
                let to_owners: Vec<_> = (0..ranks).map(|rank| alltoall(rank, ranks, &blocks(rank), 4)).collect();
                let found = check(&to_owners, Goal::Alltoall).unwrap_or_else(|fault| panic!("{ranks}: {fault}"));
                assert!((0..ranks).all(|rank| found.sent_len[rank] == ids[rank].len() - given[rank][rank]));
                let sums = || Parts::of_lens(owners.counts(&all));
                let back: Vec<_> = (0..ranks).map(|rank| allgather(rank, ranks, sums())).collect();
                check(&back, Goal::Allgather).unwrap_or_else(|fault| panic!("{ranks}: {fault}"));
            }
        }
    }
}
