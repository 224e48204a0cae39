//! Steps of a model with an embedding. Each step touches a few rows, which are drawn, pushed, pulled and
//! verified.
//!
//! The number of the rank and that of the iteration determine the rows that the rank touches: `touched` rows
//! that are drawn by Zipf's law, without replacement. The `k`-th most frequent row has the weight `1/k^s`. A
//! draw gives each row an exponentially distributed time with this weight as its rate, and takes the
//! `touched` earliest rows (Efraimidis and Spirakis 2006). That has the same distribution as drawing rows
//! until `touched` different rows were drawn. Frequent rows lie anywhere in the table, as hashed ids do.

use std::time::Instant;

use ringpull::KvStore;
use ringpull_base::{DType, Error, Kind, Result, RowSparse, Tensor};
use ringpull_kernels::optim::{Optimizer, Rule};
use serde::{Deserialize, Serialize};

/// An embedding, and the rows that a step touches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SparseSetup {
    /// The rows of the table.
    pub rows: usize,
    /// The f32 elements of a row.
    pub width: usize,
    /// The rows that each rank touches in a step.
    pub touched: usize,
    /// The exponent of Zipf's law; with 0 all rows are equally likely.
    pub zipf: f64,
}

impl SparseSetup {
    /// Makes a table of about `bytes` bytes with rows of 64 elements. A step touches the fraction `touched`
    /// of the rows, drawn by Zipf's law.
    pub fn new(bytes: usize, touched: f64) -> Result<Self> {
        const WIDTH: usize = 64;
        let wrong = |what: String, remedy: &str| Err(Error::argument(what, remedy));
        if !(touched > 0.0 && touched <= 1.0) {
            return wrong(format!("invalid --sparse {touched}: expected a part of the rows"), "give 0.01 for 1 %");
        }
        let rows = bytes / 4 / WIDTH;
        if rows == 0 {
            return wrong(format!("a table of {bytes} bytes has no row of {WIDTH} elements"), "give a larger size");
        }
        Ok(SparseSetup { rows, width: WIDTH, touched: ((rows as f64 * touched).round() as usize).max(1), zipf: 1.0 })
    }

    /// The bytes of a row.
    pub fn row_bytes(&self) -> usize {
        4 * self.width
    }

    /// The bytes of the rows that a rank touches.
    pub fn touched_bytes(&self) -> usize {
        self.touched * self.row_bytes()
    }
}

/// Draws rows.
pub struct Draws {
    setup: SparseSetup,
    /// For each row, `k^s` if it is the `k`-th most frequent row.
    rarity: Vec<f64>,
}

impl Draws {
    /// Draws of `setup`.
    pub fn new(setup: SparseSetup) -> Self {
        let (mut rarity, mut row, step) = (vec![0.0; setup.rows], 0, step(setup.rows));
        for rank in 1..=setup.rows {
            rarity[row] = (rank as f64).powf(setup.zipf);
            row = (row + step) % setup.rows;
        }
        Draws { setup, rarity }
    }

    /// The rows that `rank` touches in `iteration`, ascending.
    pub fn ids(&self, rank: usize, iteration: usize) -> Vec<i64> {
        let seed = mixed(((iteration as u64) << 20) ^ rank as u64);
        let time = |(row, rarity): (usize, &f64)| {
            // In (0, 1].
            let part = ((mixed(seed ^ row as u64) >> 11) + 1) as f64 / (1u64 << 53) as f64;
            (-part.ln() * rarity, row as i64)
        };
        let mut times: Vec<(f64, i64)> = self.rarity.iter().enumerate().map(time).collect();
        let touched = self.setup.touched;
        if touched < times.len() {
            times.select_nth_unstable_by(touched, |one, other| one.partial_cmp(other).expect("times are numbers"));
        }
        let mut ids: Vec<i64> = times[..touched].iter().map(|(_, row)| *row).collect();
        ids.sort_unstable();
        ids
    }
}

/// Returns the distance in the table between a row and the next less frequent row. Steps of this distance
/// visit every row once.
fn step(rows: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let golden = (rows as f64 * 0.618_033_988_75) as usize;
    (golden.max(1)..=rows + 1).find(|step| gcd(*step, rows) == 1).expect("a number has no divisor with the next")
}

/// `SplitMix64`'s finaliser: a number that looks random and is determined by `number`.
pub fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Adds the pushed rows to the value.
pub fn adding() -> Optimizer {
    Optimizer { rule: Rule::Test, ..Optimizer::sgd(1.0) }
}

/// Returns the gradient of a rank for the first column of a row. In the other columns it is greater by up to
/// [`COLUMNS`].
fn pushed(rank: usize, iteration: usize, row: i64) -> f64 {
    (1 + (rank + iteration + row as usize) % 5) as f64
}

const COLUMNS: usize = 3;

/// Iterations over an embedding, taken one by one. Each iteration pushes its own rows and pulls the rows of
/// the next iteration, as a training step does. It is verified.
pub struct SparseIterations {
    key: String,
    draws: Draws,
    ranks: usize,
    /// For each row the sum of the gradients of its first column, and the number of its pushes.
    sums: Vec<(f64, f64)>,
    /// The number of different rows that all ranks touch, added up over the iterations.
    union: usize,
    taken: usize,
}

impl SparseIterations {
    /// Makes iterations over a new table `key` of `store`. A push adds to the table's value. Collective.
    pub fn new(store: &KvStore, key: &str, setup: SparseSetup) -> Result<Self> {
        if store.kind() == Kind::DistAsync {
            return Err(Error::argument(
                "--sparse with dist_async: a pull need not see the other workers' pushes, so nothing can be checked",
                "measure a kind that sums in rounds",
            ));
        }
        store.init_row_sparse(key, &Tensor::zeros(DType::F32, &[setup.rows, setup.width]))?;
        store.set_optimizer(&adding())?;
        store.wait_all()?;
        let sums = vec![(0.0, 0.0); setup.rows];
        let (draws, ranks, key) = (Draws::new(setup), store.num_workers(), key.to_owned());
        Ok(SparseIterations { key, draws, ranks, sums, union: 0, taken: 0 })
    }

    /// Runs one iteration and verifies its rows. Returns its seconds, with the readings of `meter` right
    /// before and right after. Iterations count from 0. Collective.
    pub fn take<M>(&mut self, store: &KvStore, iteration: usize, meter: impl Fn() -> M) -> Result<(f64, M, M)> {
        let (setup, rank) = (self.draws.setup, store.rank());
        let (ids, next) = (self.draws.ids(rank, iteration), self.draws.ids(rank, iteration + 1));
        let gradient: Vec<f32> = ids
            .iter()
            .flat_map(|row| (0..setup.width).map(|at| (pushed(rank, iteration, *row) + (at % COLUMNS) as f64) as f32))
            .collect();
        let rows = Tensor::from_slice(&[ids.len(), setup.width], &gradient);
        let gradient = RowSparse::new(&[setup.rows, setup.width], &ids, rows)?;
        store.barrier()?;
        let before = meter();
        let start = Instant::now();
        store.push_rows(self.key.as_str(), std::slice::from_ref(&gradient), 0)?;
        let pulled = store.pull_rows(self.key.as_str(), &next, 0)?;
        let seconds = start.elapsed().as_secs_f64();
        let after = meter();
        store.barrier()?;
        self.advance(iteration);
        self.check(store, &pulled, &next, iteration)?;
        Ok((seconds, before, after))
    }

    /// The number of different rows that all ranks touch in an iteration, averaged over the iterations taken.
    pub fn union(&self) -> f64 {
        self.union as f64 / self.taken.max(1) as f64
    }

    fn advance(&mut self, iteration: usize) {
        let mut seen = vec![false; self.sums.len()];
        for rank in 0..self.ranks {
            for row in self.draws.ids(rank, iteration) {
                let (sum, count) = &mut self.sums[row as usize];
                *sum += pushed(rank, iteration, row);
                *count += 1.0;
                seen[row as usize] = true;
            }
        }
        self.union += seen.iter().filter(|seen| **seen).count();
        self.taken += 1;
    }

    fn check(&self, store: &KvStore, pulled: &RowSparse, ids: &[i64], iteration: usize) -> Result<()> {
        let (values, width) = (pulled.rows().to_vec::<f32>()?, self.draws.setup.width);
        let is_right = |(row, values): (&i64, &[f32])| {
            let (sum, count) = self.sums[*row as usize];
            values.iter().enumerate().all(|(at, value)| f64::from(*value) == sum + count * (at % COLUMNS) as f64)
        };
        let rows = || ids.iter().zip(values.chunks_exact(width));
        if pulled.row_ids() == ids && rows().all(is_right) {
            return Ok(());
        }
        let row = rows().find(|row| !is_right(*row)).map_or(0, |(row, _)| *row);
        Err(Error::bug(format!(
            "key {} on rank {}: row {row} is not the sum of what all ranks have pushed in {} iterations",
            self.key,
            store.rank(),
            iteration + 1
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_has_as_many_different_rows_as_it_should_and_is_the_same_each_time() {
        let draws = Draws::new(SparseSetup::new(256_000, 0.1).unwrap());
        let ids = draws.ids(3, 7);
        assert_eq!(ids.len(), 100);
        assert!(ids.is_sorted_by(|before, after| before < after) && (0..1000).contains(&ids[99]));
        assert_eq!(ids, draws.ids(3, 7));
        assert!(ids != draws.ids(3, 8) && ids != draws.ids(2, 7));
    }

    #[test]
    fn frequent_rows_are_drawn_by_all_ranks_and_without_an_exponent_all_rows_alike() {
        let union = |zipf: f64| {
            let draws = Draws::new(SparseSetup { zipf, ..SparseSetup::new(2_560_000, 0.01).unwrap() });
            let all: std::collections::BTreeSet<i64> = (0..8).flat_map(|rank| draws.ids(rank, 0)).collect();
            assert!(zipf == 0.0 || (0..8).all(|rank| draws.ids(rank, 0).contains(&0)));
            all.len()
        };
        let (alike, zipf) = (union(0.0), union(1.2));
        assert!((700..=800).contains(&alike), "{alike} of 800");
        assert!(zipf < 600, "{zipf} of 800");
    }

    #[test]
    fn every_row_has_one_frequency() {
        for rows in [1, 2, 3, 4, 100, 97_656] {
            let draws = Draws::new(SparseSetup { rows, width: 1, touched: 1, zipf: 1.0 });
            let mut rarity = draws.rarity.clone();
            rarity.sort_by(f64::total_cmp);
            assert!(rarity.iter().enumerate().all(|(rank, rarity)| *rarity == (rank + 1) as f64), "{rows}");
        }
    }

    #[test]
    fn what_no_table_can_be_is_an_error() {
        for (bytes, touched) in [(0, 0.1), (255, 0.1), (1000, 0.0), (1000, 1.5)] {
            assert!(SparseSetup::new(bytes, touched).is_err());
        }
        assert_eq!(SparseSetup::new(1000, 0.0001).unwrap().touched, 1);
    }
}
