//! The verdict on a comparison of training steps, next to the published rates.

use crate::compare::published;
use crate::compare::results::{Comparison, MeasuredRow};
use crate::cost;
use crate::statistics::Relation;

/// The seconds for which a step computes at the published ratio of computing to traffic.
pub fn published_compute_s(workers: usize, bytes: f64, link_bytes_per_s: f64) -> f64 {
    published::COMPUTE_S * cost::allreduce_bound_s(workers, bytes, link_bytes_per_s) / published::TRAINING_BOUND_S
}

/// The sentence about the ratio of computing to traffic.
fn ratio_words(results: &Comparison) -> Option<String> {
    let (here, there) = results.compute_over_bound()?;
    let judged = if results.is_comparable() {
        "the published ratio"
    } else {
        "not the published ratio, so efficiencies cannot be compared"
    };
    Some(format!(
        "Computing takes {here:.2}x of the bound of an allreduce here and {there:.2}x there ({:.3} s over {:.3} s): {judged}.",
        published::COMPUTE_S,
        published::TRAINING_BOUND_S
    ))
}

/// The sentences that compare `ranking` with the published figures, the most important first.
pub(super) fn sentences(results: &Comparison, ranking: &[MeasuredRow<'_>]) -> Vec<String> {
    let own = ranking.iter().find(|measured| measured.row.variant == "dist_sync_mpi");
    let reached = own.and_then(|own| {
        Some(format!(
            "dist_sync_mpi reaches {:.2} % efficiency where {:.2} % was published for an allreduce.",
            100.0 * own.train()?.efficiency,
            own.published(results)?.efficiency
        ))
    });
    [reached, order_words(results, ranking), ratio_words(results)].into_iter().flatten().collect()
}

/// The sentence that says if the rows with servers have the published order, as far as they differ.
fn order_words(results: &Comparison, ranking: &[MeasuredRow<'_>]) -> Option<String> {
    let served = ranking.iter().filter(|measured| measured.row.servers > 0);
    let served: Vec<(&MeasuredRow<'_>, f64)> =
        served.filter_map(|measured| Some((measured, measured.published(results)?.efficiency))).collect();
    if served.len() < 2 {
        return None;
    }
    let pairs = served.iter().enumerate().flat_map(|(at, one)| served[at + 1..].iter().map(move |other| (one, other)));
    let pairs: Vec<(Relation, bool)> = pairs.map(|(one, other)| (one.0.relation(other.0), one.1 > other.1)).collect();
    let judged = if pairs.iter().all(|(relation, _)| *relation == Relation::TooFewRounds) {
        "too few rounds to compare with the order that was published"
    } else if pairs.iter().all(|(relation, _)| *relation != Relation::Apart) {
        "level here, so no order to compare with the published one"
    } else if pairs.iter().all(|(relation, alike)| *alike || *relation != Relation::Apart) {
        "the order that was published, as far as they differ"
    } else {
        "not the order that was published"
    };
    let names: Vec<&str> = served.iter().map(|(measured, _)| measured.row.variant.as_str()).collect();
    Some(format!("With servers, from the most efficient: {}; {judged}.", names.join(", ")))
}
