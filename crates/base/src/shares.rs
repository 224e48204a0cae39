//! Shares of a batch for workers of different speeds, with which all workers end a step together.
//!
//! A share is a weight, as in MXNet's `work_load_list`: with 3, 3, 3, 1 the last worker has a tenth of the
//! batch. [`split`] cuts a batch. [`factor`] weights the mean over a worker's own part, so that the sum over
//! the workers is that of equal parts. [`suggest`] finds shares from the computing time of each worker, which
//! [`computed_s`] measures.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{Error, Result, waits};

/// Returns the sum of the weights. Returns an error unless all are finite and not negative, and one is
/// positive.
fn total(work_load_list: &[f64]) -> Result<f64> {
    let total: f64 = work_load_list.iter().sum();
    let is_weight = |weight: &f64| weight.is_finite() && *weight >= 0.0;
    if !work_load_list.iter().all(is_weight) || total <= 0.0 || !total.is_finite() {
        return Err(Error::argument(
            format!("work_load_list {work_load_list:?}: expected weights that are not negative, and not all 0"),
            "give each worker a number such as 3, 3, 3, 1",
        ));
    }
    Ok(total)
}

/// Returns the rows of each worker in a batch of `len`, in order, as near to the weights as whole rows can
/// be. A worker with a positive weight gets at least one row, or it is an error.
///
/// ```
/// # use ringpull_base as ringpull;
/// assert_eq!(ringpull::split(10, &[3.0, 3.0, 3.0, 1.0])?, [0..3, 3..6, 6..9, 9..10]);
/// # Ok::<(), ringpull::Error>(())
/// ```
pub fn split(len: usize, work_load_list: &[f64]) -> Result<Vec<Range<usize>>> {
    let total = total(work_load_list)?;
    let (mut parts, mut until, mut start) = (Vec::with_capacity(work_load_list.len()), 0.0, 0);
    for (worker, weight) in work_load_list.iter().enumerate() {
        until += weight;
        let end = ((len as f64 * (until / total)).round() as usize).min(len);
        if *weight > 0.0 && end == start {
            return Err(Error::argument(
                format!("a batch of {len} over work_load_list {work_load_list:?}: nothing is left for worker {worker}"),
                "give a larger batch, fewer workers, or weights that are nearer to each other",
            ));
        }
        parts.push(start..end);
        start = end;
    }
    Ok(parts)
}

/// Returns the factor of worker `rank` for a mean over its part: its share of the whole, times the number of
/// workers.
pub fn factor(rank: usize, work_load_list: &[f64]) -> Result<f64> {
    let total = total(work_load_list)?;
    Ok(work_load_list[rank] * work_load_list.len() as f64 / total)
}

/// Returns the shares with which all workers would compute for the same time, if with `shares` they have
/// computed for `seconds`. They add up to the number of workers. A worker with a share or a time of 0 keeps
/// its share.
pub fn suggest(shares: &[f64], seconds: &[f64]) -> Vec<f64> {
    let speed = |(share, second): (&f64, &f64)| (*share > 0.0 && *second > 0.0).then(|| share / second);
    let speeds: Vec<Option<f64>> = shares.iter().zip(seconds).map(speed).collect();
    let known = |values: &dyn Fn(usize) -> f64| -> f64 {
        (0..shares.len()).filter(|at| speeds[*at].is_some()).map(values).sum()
    };
    // Workers of known speed divide their common share anew.
    let (had, fast) = (known(&|at| shares[at]), known(&|at| speeds[at].unwrap_or_default()));
    let all: f64 = shares.iter().sum();
    let suggested = |(speed, share): (&Option<f64>, &f64)| speed.map_or(*share, |speed| speed * had / fast);
    speeds.iter().zip(shares).map(|one| suggested(one) * shares.len() as f64 / all).collect()
}

/// This worker's weight over the mean of all, as the bits of an f64.
static OWN: AtomicU64 = AtomicU64::new(1f64.to_bits());

/// Returns this worker's weight over the mean of all, as it was last set.
pub fn own() -> f64 {
    f64::from_bits(OWN.load(Ordering::Relaxed))
}

/// Sets this worker's weight over the mean of all, and restarts the measurement.
pub fn set_own(factor: f64) {
    OWN.store(factor.to_bits(), Ordering::Relaxed);
    measure_anew();
}

/// The time at which this process began to measure its computing time, and the waiting time of its threads by
/// then.
static BEGUN: Mutex<Option<(Instant, Duration)>> = Mutex::new(None);

/// Begins to measure, unless the process already measures.
pub fn begin_measuring() {
    BEGUN.lock().get_or_insert_with(|| (Instant::now(), waits::waited()));
}

/// Restarts the measurement.
pub fn measure_anew() {
    *BEGUN.lock() = Some((Instant::now(), waits::waited()));
}

/// Returns the time since the measurement began, without the waits in calls of stores, or 0 if it has not
/// begun.
pub fn computed_s() -> f64 {
    let begun = *BEGUN.lock();
    begun.map_or(0.0, |(begun, waited)| {
        begun.elapsed().saturating_sub(waits::waited().saturating_sub(waited)).as_secs_f64()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_tile_the_batch_and_are_as_near_to_the_weights_as_rows_can_be() {
        for weights in [&[1.0][..], &[1.0, 1.0, 1.0], &[3.0, 3.0, 3.0, 1.0], &[0.0, 2.5, 0.0, 0.5], &[7.0, 1.0]] {
            let total: f64 = weights.iter().sum();
            for len in [10, 64, 1000, 1001] {
                let parts = split(len, weights).unwrap();
                assert!(parts[0].start == 0 && parts.last().unwrap().end == len);
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
                for (part, weight) in parts.iter().zip(weights) {
                    assert!((part.len() as f64 - len as f64 * weight / total).abs() <= 1.0, "{parts:?}");
                }
            }
        }
    }

    #[test]
    fn weights_that_divide_nothing_are_errors() {
        for weights in [&[][..], &[0.0, 0.0], &[1.0, -1.0], &[f64::NAN], &[f64::INFINITY, 1.0]] {
            assert!(split(10, weights).is_err() && factor(0, weights).is_err(), "{weights:?}");
        }
        assert!(split(3, &[1.0; 4]).is_err() && split(10, &[1.0, 100.0]).is_err());
        assert_eq!(split(10, &[0.0, 1.0]).unwrap(), [0..0, 0..10]);
    }

    #[test]
    fn means_over_parts_times_their_factors_add_up_to_what_equal_parts_give() {
        let values: Vec<f64> = (0..20).map(f64::from).collect();
        let sum_of = |weights: &[f64]| -> f64 {
            let parts = split(values.len(), weights).unwrap();
            let mean = |part: &Range<usize>| values[part.clone()].iter().sum::<f64>() / part.len() as f64;
            parts.iter().enumerate().map(|(rank, part)| mean(part) * factor(rank, weights).unwrap()).sum()
        };
        assert!((sum_of(&[3.0, 3.0, 3.0, 1.0]) - sum_of(&[1.0; 4])).abs() < 1e-9);
    }

    #[test]
    fn shares_by_the_speed_end_together() {
        let near = |got: &[f64]| got.iter().zip([1.2, 1.2, 1.2, 0.4]).all(|(got, known)| (got - known).abs() < 1e-12);
        for (shares, seconds) in [([1.0; 4], [1.0, 1.0, 1.0, 3.0]), ([3.0, 3.0, 3.0, 1.0], [0.5; 4])] {
            assert!(near(&suggest(&shares, &seconds)), "{:?}", suggest(&shares, &seconds));
        }
        assert_eq!(suggest(&[1.0, 1.0], &[0.0, 2.0]), [1.0, 1.0]);
        assert_eq!(suggest(&[0.0, 2.0], &[1.0, 2.0]), [0.0, 2.0]);
    }

    #[test]
    fn what_a_process_waits_for_is_no_computing() {
        measure_anew();
        waits::call();
        let waiting = waits::wait();
        std::thread::sleep(Duration::from_millis(60));
        drop(waiting);
        std::thread::sleep(Duration::from_millis(20));
        let computed_s = computed_s();
        assert!((0.015..0.05).contains(&computed_s), "{computed_s}");
    }
}
