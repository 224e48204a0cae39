//! Finds the first difference of two recorded jobs, and its size.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use ringpull_base::{Key, Result};

use super::read::{GradientId, JobRecording, SeenValue, ValueId};

/// The first gradient or value that differs between the jobs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FirstDifference {
    /// A worker pushed a different gradient, although all values so far were the same.
    Gradient {
        /// The number of the push of the key.
        update: u64,
        /// The key.
        key: Key,
        /// The worker.
        rank: usize,
    },
    /// A value differs, although all gradients so far were the same.
    Value {
        /// The number of the update that gave this value; 0 for the first value.
        update: u64,
        /// The key.
        key: Key,
        /// The size of the difference, if both jobs recorded the elements.
        size: Option<DifferenceSize>,
    },
}

/// The distance of two values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct DifferenceSize {
    /// The number of elements that differ, and of all elements.
    pub(super) elements: usize,
    pub(super) of: usize,
    /// The largest difference.
    pub(super) largest: f64,
    /// The largest difference divided by the largest element.
    pub(super) relative: f64,
}

/// The values of one update.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct UpdateRow {
    pub(super) update: u64,
    /// The number of values that differ, and of all values.
    pub(super) differ: usize,
    pub(super) of: usize,
    /// The largest relative difference among the values with recorded elements.
    pub(super) relative: Option<f64>,
}

/// The result of the comparison of two jobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Judgement {
    pub(super) first: Option<FirstDifference>,
    /// A row for each update for which both jobs have values.
    pub(super) updates: Vec<UpdateRow>,
    /// The number of values and gradients that were compared.
    pub(super) values: usize,
    pub(super) gradients: usize,
    /// The number of the gradients that differ.
    pub(super) gradients_differ: usize,
    /// True if the store updates its values in only one of the jobs.
    pub(super) updates_elsewhere: bool,
    /// Values and gradients that only one job has.
    pub(super) unpaired: usize,
}

/// The first difference in the file of a worker, found by its line number.
struct FirstLine {
    line: usize,
    rank: usize,
    what: DifferingThing,
}

enum DifferingThing {
    Gradient(GradientId),
    Value(ValueId),
}

impl FirstLine {
    fn update(&self) -> u64 {
        match &self.what {
            DifferingThing::Gradient(id) => id.update,
            DifferingThing::Value(id) => id.update,
        }
    }
}

/// Compares the gradients and values of all workers. `one` and `other` have the same number of workers. A
/// gradient is the first difference only if all values that its worker had received before are the same.
pub(super) fn judge(one: &JobRecording, other: &JobRecording) -> Result<Judgement> {
    let mut found =
        Judgement { updates_elsewhere: one.store_updates() != other.store_updates(), ..Judgement::default() };
    let mut rows: BTreeMap<u64, UpdateRow> = BTreeMap::new();
    let mut firsts = Vec::new();
    for (rank, (own, theirs)) in one.workers.iter().zip(&other.workers).enumerate() {
        let mut lines = Vec::new();
        found.unpaired += unpaired(own.gradients.keys(), theirs.gradients.keys());
        found.unpaired += unpaired(own.values.keys(), theirs.values.keys());
        for (id, seen) in &own.gradients {
            let Some(beside) = theirs.gradients.get(id) else { continue };
            found.gradients += 1;
            if seen.hash != beside.hash {
                found.gradients_differ += 1;
                lines.push(FirstLine { line: seen.line, rank, what: DifferingThing::Gradient(id.clone()) });
            }
        }
        for (id, seen) in &own.values {
            let Some(beside) = theirs.values.get(id) else { continue };
            found.values += 1;
            let row =
                rows.entry(id.update).or_insert(UpdateRow { update: id.update, differ: 0, of: 0, relative: None });
            row.of += 1;
            if seen.hash == beside.hash {
                continue;
            }
            row.differ += 1;
            lines.push(FirstLine { line: seen.line, rank, what: DifferingThing::Value(id.clone()) });
            if let Some(size) = size(one, other, rank, &id.key, (seen, beside))? {
                row.relative = Some(row.relative.unwrap_or(0.0).max(size.relative));
            }
        }
        firsts.extend(lines.into_iter().min_by_key(|first| first.line));
    }
    found.updates = rows.into_values().collect();
    let of_gradients = firsts.iter().filter(|first| matches!(first.what, DifferingThing::Gradient(_)));
    let first = of_gradients.min_by_key(|first| first.update()).or(firsts.iter().min_by_key(|first| first.update()));
    found.first = match first {
        None => None,
        Some(FirstLine { rank, what: DifferingThing::Gradient(id), .. }) => {
            Some(FirstDifference::Gradient { update: id.update, key: id.key.clone(), rank: *rank })
        }
        Some(FirstLine { rank, what: DifferingThing::Value(id), .. }) => {
            let seen = (&one.workers[*rank].values[id], &other.workers[*rank].values[id]);
            let size = size(one, other, *rank, &id.key, seen)?;
            Some(FirstDifference::Value { update: id.update, key: id.key.clone(), size })
        }
    };
    Ok(found)
}

impl Judgement {
    /// Returns true if values differ only because one of the stores updates them and the other does not. Then
    /// no gradient that was pushed after them differs, so the weights were the same.
    pub(super) fn is_of_other_values(&self) -> bool {
        let last = self.updates.last().map_or(0, |row| row.update);
        let is_early = matches!(self.first, Some(FirstDifference::Value { update, .. }) if (1..last).contains(&update));
        self.updates_elsewhere && is_early && self.gradients > 0 && self.gradients_differ == 0
    }
}

fn unpaired<'a, T: Ord + 'a>(one: impl Iterator<Item = &'a T>, other: impl Iterator<Item = &'a T>) -> usize {
    let (one, other): (BTreeSet<&T>, BTreeSet<&T>) = (one.collect(), other.collect());
    one.symmetric_difference(&other).count()
}

fn size(
    one: &JobRecording,
    other: &JobRecording,
    rank: usize,
    key: &Key,
    (own, theirs): (&SeenValue, &SeenValue),
) -> Result<Option<DifferenceSize>> {
    let own = one.workers[rank].elements(own, key)?;
    let theirs = other.workers[rank].elements(theirs, key)?;
    Ok(own.zip(theirs).map(|(own, theirs)| distance(&own, &theirs)))
}

/// Returns the distance of two values. A NaN in only one of them is an infinite difference.
fn distance(own: &[f64], theirs: &[f64]) -> DifferenceSize {
    let mut size = DifferenceSize { of: own.len().max(theirs.len()), ..DifferenceSize::default() };
    let mut most = 0.0f64;
    for (own, theirs) in own.iter().zip(theirs) {
        if own.to_bits() == theirs.to_bits() {
            most = most.max(own.abs());
            continue;
        }
        size.elements += 1;
        let apart = (own - theirs).abs();
        size.largest = size.largest.max(if apart.is_nan() { f64::INFINITY } else { apart });
        most = most.max(own.abs()).max(theirs.abs());
    }
    size.relative = if size.largest == 0.0 { 0.0 } else { size.largest / most };
    size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differ::read::{SeenGradient, WorkerRecording};

    /// A worker that pushed `gradients` of key `w` and received one of `values` after each.
    fn worker(gradients: &[u64], values: &[u64]) -> WorkerRecording {
        let mut worker = WorkerRecording::default();
        push(&mut worker, "w", gradients, values);
        worker
    }

    fn push(worker: &mut WorkerRecording, key: &str, gradients: &[u64], values: &[u64]) {
        let begun = worker.gradients.len() + worker.values.len();
        for (at, hash) in gradients.iter().enumerate() {
            let seen = SeenGradient { hash: *hash, line: begun + 2 * at };
            worker.gradients.insert(GradientId { update: at as u64 + 1, key: key.into() }, seen);
        }
        for (at, hash) in values.iter().enumerate() {
            let id = ValueId { update: at as u64 + 1, key: key.into(), ids: None };
            worker.values.insert(id, SeenValue::new(*hash, begun + 2 * at + 1));
        }
    }

    fn first(one: WorkerRecording, other: WorkerRecording) -> Option<FirstDifference> {
        let job = |second| JobRecording { workers: vec![worker(&[1, 2], &[5, 6]), second] };
        judge(&job(one), &job(other)).unwrap().first
    }

    #[test]
    fn a_gradient_that_differs_before_any_value_is_to_blame_and_a_value_otherwise() {
        assert_eq!(first(worker(&[3, 4], &[5, 6]), worker(&[3, 4], &[5, 6])), None);
        let (update, key) = (2, Key::from("w"));
        let gradient = FirstDifference::Gradient { update, key: key.clone(), rank: 1 };
        assert_eq!(first(worker(&[3, 4], &[5, 6]), worker(&[3, 9], &[5, 7])), Some(gradient));
        // The second gradients differ because the first values did.
        let value = FirstDifference::Value { update: 1, key, size: None };
        assert_eq!(first(worker(&[3, 4], &[5, 6]), worker(&[3, 9], &[8, 7])), Some(value));
    }

    #[test]
    fn a_gradient_of_another_key_may_come_from_a_value_of_the_same_update() {
        // `w` is pushed and pulled before the gradient of `v` is computed.
        let job = |value: u64, gradient: u64| {
            let mut worker = worker(&[1], &[value]);
            push(&mut worker, "v", &[gradient], &[7]);
            JobRecording { workers: vec![worker] }
        };
        let first = judge(&job(5, 2), &job(6, 3)).unwrap().first;
        assert_eq!(first, Some(FirstDifference::Value { update: 1, key: "w".into(), size: None }));
    }

    #[test]
    fn values_that_no_gradient_depends_on_are_others_and_the_last_ones_may_not_be() {
        let judged = |values: &[u64], gradients: &[u64], store_updates: bool| {
            let job = |values, store_updates| {
                let mut worker = worker(gradients, values);
                worker.store_updates = store_updates;
                JobRecording { workers: vec![worker] }
            };
            judge(&job(&[5, 6, 7], true), &job(values, store_updates)).unwrap()
        };
        assert!(judged(&[8, 9, 9], &[1, 2, 3], false).is_of_other_values());
        assert!(!judged(&[8, 9, 9], &[1, 2, 3], true).is_of_other_values(), "both stores update: sums are wrong");
        assert!(
            !judged(&[5, 6, 9], &[1, 2, 3], false).is_of_other_values(),
            "nothing was pushed after the last update"
        );
        assert!(!judged(&[8, 9, 9], &[], false).is_of_other_values());
    }

    #[test]
    fn updates_of_one_job_only_are_counted() {
        let job = |values: &[u64]| JobRecording { workers: vec![worker(&[1, 2], values)] };
        let judgement = judge(&job(&[5, 6]), &job(&[5])).unwrap();
        assert_eq!((judgement.unpaired, judgement.values, judgement.first), (1, 1, None));
    }

    #[test]
    fn a_difference_is_measured_by_the_largest_element() {
        let size = distance(&[1.0, -4.0, 0.0], &[1.0, -4.0, 0.5]);
        assert_eq!(size, DifferenceSize { elements: 1, of: 3, largest: 0.5, relative: 0.125 });
        assert_eq!(distance(&[0.0], &[-0.0]).relative, 0.0);
        assert!(distance(&[1.0], &[f64::NAN]).largest.is_infinite());
    }
}
