//! The median and spread of samples, and warnings about them that say what to do.

use serde::{Deserialize, Serialize};

use crate::text::several;

/// With fewer samples a spread says little.
const ENOUGH: usize = 5;
/// Iglewicz and Hoaglin's limit for the modified z-score, 0.6745 (x - median) / MAD.
const OUTLIER_SCORE: f64 = 3.5;
/// A smaller part of the median is never called an outlier or a gain.
pub(crate) const RESOLUTION: f64 = 0.02;
/// A larger part of the processors' time taken by the hypervisor causes a warning.
const STOLEN: f64 = 0.01;

/// Median and spread of some samples, in the samples' unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub count: usize,
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// The quarter point: a quarter of the samples is at or below it.
    pub q1: f64,
    /// The three-quarter point.
    pub q3: f64,
    /// The median distance from the median.
    pub mad: f64,
}

impl Summary {
    /// The summary of `samples`; `None` if there are none or one is not a finite number.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
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

    /// Half the distance between the quarter points, as a part of the median: the `+-` that tables print.
    pub(crate) fn relative_spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.q3 - self.q1) / 2.0 / self.median }
    }

    /// Whether this differs from `other` beyond noise: the middle halves of the samples do not overlap, and
    /// the medians differ by more than 2 %.
    pub(crate) fn differs_from(&self, other: &Summary) -> bool {
        let apart = self.q3 < other.q1 || other.q3 < self.q1;
        apart && (self.median - other.median).abs() > RESOLUTION * self.median.min(other.median)
    }
}

/// Warnings about `samples`, which are in the order of their measurement.
pub(crate) fn warnings(samples: &[f64]) -> Vec<String> {
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
pub(crate) fn doubt_of_stolen(part: f64) -> Option<String> {
    (part > STOLEN).then(|| {
        format!(
            "{:.1} % of the processors' time was taken by the machine's host: times are too long by about as much; repeat when it is quiet",
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
    fn times_whose_middle_halves_overlap_do_not_differ() {
        let of = |samples: &[f64]| Summary::of(samples).unwrap();
        let (a, b, c) = (of(&[1.0, 1.1, 1.2, 1.3]), of(&[1.15, 1.2, 1.3, 1.4]), of(&[2.0, 2.1, 2.2]));
        assert!(!a.differs_from(&b));
        assert!(a.differs_from(&c) && c.differs_from(&a));
        assert!(!of(&[1.0; 5]).differs_from(&of(&[1.01; 5])));
    }
}
