//! The median and spread of samples, the test of whether two variants differ, and warnings that say what to
//! do.
//!
//! The samples of one job share its connections, its memory and the cores that it got, so jobs count, not
//! samples: variants are compared by the medians of their rounds. Each round is a new job.

use serde::{Deserialize, Serialize};

use crate::text::several;

/// With fewer samples a spread says little.
const ENOUGH: usize = 5;
/// Iglewicz and Hoaglin's limit for the modified z-score, 0.6745 (x - median) / MAD.
const OUTLIER_SCORE: f64 = 3.5;
/// A smaller part of the median is never called an outlier or a gain.
pub const RESOLUTION: f64 = 0.02;
/// The probability, at most, of calling two variants different that do not differ.
const SIGNIFICANCE: f64 = 0.05;
/// The fewest rounds of each variant in which [`relation`] can find a difference. With three rounds even
/// complete separation has a probability of 1 in 10 by chance.
pub const FEWEST_ROUNDS: usize = 4;
/// If the hypervisor takes more than this part of the processors' time, there is a warning.
const STOLEN: f64 = 0.01;

/// Median and spread of some samples, in the samples' unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub count: usize,
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// The first quartile: a quarter of the samples is at or below it.
    pub q1: f64,
    /// The third quartile.
    pub q3: f64,
    /// The median distance from the median.
    pub mad: f64,
}

impl Summary {
    /// Summarizes `samples`. Returns `None` if there are no samples, or if one is not a finite number.
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let sorted = sorted(samples.to_vec());
        let median = quantile(&sorted, 0.5);
        let distances = sorted.iter().map(|sample| (sample - median).abs()).collect();
        Some(Summary {
            count: sorted.len(),
            median,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            q1: quantile(&sorted, 0.25),
            q3: quantile(&sorted, 0.75),
            mad: quantile(&self::sorted(distances), 0.5),
        })
    }

    /// Half the interquartile range divided by the median, which tables print after `+-`.
    pub fn relative_spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.q3 - self.q1) / 2.0 / self.median }
    }
}

/// The relation of two variants' times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// There are too few rounds to find any difference.
    TooFewRounds,
    /// No difference was found, or one that is too small to matter.
    Level,
    /// They differ.
    Apart,
}

/// Compares the medians of the rounds of two variants. The variants differ if two things hold: a rank-sum
/// test is significant at 5 %, and their medians differ by more than 2 %.
pub fn relation(one: &[f64], other: &[f64]) -> Relation {
    let (Some(own), Some(theirs)) = (Summary::of(one), Summary::of(other)) else { return Relation::TooFewRounds };
    let ways = subsets(&vec![1; one.len() + other.len()], one.len()).iter().sum::<f64>();
    if 2.0 / ways > SIGNIFICANCE {
        return Relation::TooFewRounds;
    }
    let matters = (own.median - theirs.median).abs() > RESOLUTION * own.median.min(theirs.median);
    if matters && rank_sum_chance(one, other) <= SIGNIFICANCE { Relation::Apart } else { Relation::Level }
}

/// The two-sided p-value of the rank-sum test (Mann and Whitney, "On a test of whether one of two random
/// variables is stochastically larger than the other", 1947): the probability of a rank sum at least as far
/// from its mean as that of `one`, if both have the same distribution. It assumes no particular distribution.
/// It is exact also for few samples and with ties, since it counts every choice of `one.len()` of the ranks.
/// Tied samples get the mean of their ranks.
fn rank_sum_chance(one: &[f64], other: &[f64]) -> f64 {
    let all = [one, other].concat();
    // Twice the rank, a whole number.
    let rank = |sample: &f64| {
        let (below, alike) =
            (all.iter().filter(|it| *it < sample).count(), all.iter().filter(|it| *it == sample).count());
        2 * below + alike + 1
    };
    let ways = subsets(&all.iter().map(rank).collect::<Vec<_>>(), one.len());
    let mean = one.len() * (all.len() + 1);
    let found = one.iter().map(rank).sum::<usize>().abs_diff(mean);
    let as_far = ways.iter().enumerate().filter(|(sum, _)| sum.abs_diff(mean) >= found);
    as_far.map(|(_, count)| count).sum::<f64>() / ways.iter().sum::<f64>()
}

/// For each sum, the number of choices of `count` of the numbers that add up to it.
fn subsets(numbers: &[usize], count: usize) -> Vec<f64> {
    let width = numbers.iter().sum::<usize>() + 1;
    let mut ways = vec![vec![0.0; width]; count + 1];
    ways[0][0] = 1.0;
    for number in numbers {
        for chosen in (1..=count).rev() {
            for sum in (*number..width).rev() {
                ways[chosen][sum] += ways[chosen - 1][sum - number];
            }
        }
    }
    ways.swap_remove(count)
}

/// Warnings about `samples`, which are in the order of their measurement.
pub fn warnings(samples: &[f64]) -> Vec<String> {
    let Some(summary) = Summary::of(samples) else {
        return vec!["there are no samples".to_owned()];
    };
    let mut doubts = Vec::new();
    if summary.count < ENOUGH {
        doubts.push(format!(
            "only {}: a spread needs at least {ENOUGH}; raise --iters or, in compare, --rounds",
            several(summary.count, "sample"),
        ));
        if summary.count < 3 {
            return doubts;
        }
    }
    let first = samples[0];
    let slow_start = first > summary.median && is_outlier(first, &summary);
    if slow_start {
        doubts.push(format!(
            "the first sample took {:.2}x of the median: connections or memory were cold; run again with a higher --warmup, or leave it out of what you compare",
            first / summary.median
        ));
    }
    let far: Vec<f64> =
        samples.iter().skip(usize::from(slow_start)).copied().filter(|sample| is_outlier(*sample, &summary)).collect();
    if let Some(worst) = far.iter().copied().max_by(|a, b| distance(*a, &summary).total_cmp(&distance(*b, &summary))) {
        let direction = if worst < summary.median { "down" } else { "up" };
        doubts.push(format!(
            "{} of {} samples lie{} far from the others ({direction} to {:.2}x of the median): something else used the machine or the link; run again when it is quiet",
            far.len(),
            summary.count,
            if far.len() == 1 { "s" } else { "" },
            worst / summary.median
        ));
    }
    doubts
}

/// A warning if the hypervisor took a large part of the processors' time.
pub fn doubt_of_stolen(part: f64) -> Option<String> {
    (part > STOLEN).then(|| {
        format!(
            "{:.1} % of the processors' time was taken by the machine's host: times are too long by about this part; repeat when the host is quiet",
            100.0 * part
        )
    })
}

fn distance(sample: f64, summary: &Summary) -> f64 {
    (sample - summary.median).abs()
}

fn is_outlier(sample: f64, summary: &Summary) -> bool {
    let scale = summary.mad.max(RESOLUTION * summary.median);
    0.6745 * distance(sample, summary) > OUTLIER_SCORE * scale
}

fn sorted(mut samples: Vec<f64>) -> Vec<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    samples
}

/// Linear interpolation between the samples around the point.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let point = part * (sorted.len() - 1) as f64;
    let (below, above) = (point.floor() as usize, point.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * point.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_known_samples_is_exact() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0, 5.0]).unwrap();
        let expected = Summary { count: 5, median: 3.0, min: 1.0, max: 5.0, q1: 2.0, q3: 4.0, mad: 1.0 };
        assert_eq!(summary, expected);
        assert_eq!(Summary::of(&[2.0, 1.0]).unwrap().median, 1.5);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn steady_samples_cause_no_warning() {
        assert!(warnings(&[1.00, 1.01, 0.99, 1.00, 1.02, 1.00]).is_empty());
        assert!(warnings(&[1.0; 9]).is_empty());
    }

    #[test]
    fn a_slow_first_sample_suggests_a_warm_up_and_is_not_an_outlier_too() {
        let doubts = warnings(&[3.0, 1.0, 1.01, 0.99, 1.0, 1.0]);
        assert_eq!(doubts.len(), 1, "{doubts:?}");
        assert!(doubts[0].contains("3.00x") && doubts[0].contains("--warmup"));
    }

    #[test]
    fn an_outlier_suggests_a_quiet_machine_and_few_samples_more_of_them() {
        let doubts = warnings(&[1.0, 1.01, 0.99, 2.0, 1.0, 1.0]);
        assert!(doubts[0].starts_with("1 of 6 samples lies far"), "{doubts:?}");
        let doubts = warnings(&[1.0, 1.01, 0.99, 0.5, 1.0, 1.0]);
        assert!(doubts[0].contains("down to 0.50x of the median"), "{doubts:?}");
        assert!(warnings(&[1.0])[0].contains("only 1 sample:"));
        assert!(warnings(&[1.0, 1.0, 1.0])[0].contains("only 3 samples:"));
    }

    #[test]
    fn stolen_time_above_one_per_cent_causes_a_warning() {
        assert_eq!(doubt_of_stolen(0.01), None);
        let doubt = doubt_of_stolen(0.032).unwrap();
        assert!(doubt.starts_with("3.2 % of the processors' time was taken by the machine's host"), "{doubt}");
    }

    #[test]
    fn the_chance_of_a_sum_of_ranks_is_exact_with_ties_too() {
        let close = |chance: f64, exact: f64| assert!((chance - exact).abs() < 1e-12, "{chance} is not {exact}");
        close(rank_sum_chance(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]), 2.0 / 70.0);
        close(rank_sum_chance(&[1.0, 2.0, 3.0], &[5.0, 6.0, 7.0]), 0.1);
        // Of the 252 choices of five ranks of ten, eight have sums at least as far from the mean.
        close(rank_sum_chance(&[1.0, 2.0, 3.0, 5.0, 6.0], &[4.0, 7.0, 8.0, 9.0, 10.0]), 8.0 / 252.0);
        close(rank_sum_chance(&[1.0; 5], &[1.0; 5]), 1.0);
        close(rank_sum_chance(&[1.0, 1.0], &[1.0, 2.0]), 1.0);
    }

    #[test]
    fn three_rounds_never_differ_and_four_do_if_they_are_apart() {
        let few = relation(&[1.0, 1.0, 1.0], &[9.0, 9.0, 9.0]);
        assert_eq!(few, Relation::TooFewRounds);
        let of = |count: usize, from: f64| (0..count).map(|at| from + 0.001 * at as f64).collect::<Vec<_>>();
        for count in 1..8 {
            let found = relation(&of(count, 1.0), &of(count, 2.0));
            assert_eq!(found, if count < FEWEST_ROUNDS { Relation::TooFewRounds } else { Relation::Apart }, "{count}");
        }
    }

    #[test]
    fn a_wide_spread_or_a_small_difference_is_level() {
        let wide = [[1.0, 3.0, 1.1, 2.9, 2.0], [1.2, 3.5, 1.3, 3.2, 2.5]];
        assert_eq!(relation(&wide[0], &wide[1]), Relation::Level);
        assert_eq!(relation(&[1.0; 9], &[1.01; 9]), Relation::Level, "1 % does not matter");
        assert_eq!(relation(&[1.0, 1.01, 1.0, 1.02, 1.0], &[1.1, 1.12, 1.1, 9.0, 1.1]), Relation::Apart);
    }

    #[test]
    fn where_nothing_differs_one_comparison_in_twenty_says_so_at_most() {
        // Every way to deal ten different ranks to two variants, all equally likely.
        let deals: Vec<u32> = (0..1u32 << 10).filter(|deal| deal.count_ones() == 5).collect();
        let apart = deals.iter().filter(|deal| {
            let of =
                |bit| (0..10).filter(|at| **deal >> at & 1 == bit).map(|at| 1.0 + f64::from(at)).collect::<Vec<_>>();
            rank_sum_chance(&of(1), &of(0)) <= SIGNIFICANCE
        });
        let part = apart.count() as f64 / deals.len() as f64;
        assert!(part <= SIGNIFICANCE && part > 0.02, "{part}");
    }
}
