//! The verdict on a comparison of training steps, next to the published rates.

use crate::compare::published;
use crate::compare::results::{Comparison, Measured};
use crate::cost;
use crate::text::format_seconds;

/// The seconds that a step computes at the published ratio of computing to traffic.
pub(crate) fn published_compute_s(workers: usize, bytes: f64, link_bytes_per_s: f64) -> f64 {
    published::COMPUTE_S * cost::allreduce_bound_s(workers, bytes, link_bytes_per_s) / published::TRAINING_BOUND_S
}

/// The ratio of computing to traffic here and in the published run, if the link is known.
fn ratio_words(results: &Comparison) -> Option<String> {
    let setup = &results.setup;
    let train = setup.train.as_ref()?;
    let bound = cost::allreduce_bound_s(setup.workers, setup.bytes as f64, setup.link.bytes_per_s()?);
    let (here, there) = (train.compute_s / bound, published::COMPUTE_S / published::TRAINING_BOUND_S);
    let same = (here / there - 1.0).abs() < 0.02;
    let judged =
        if same { "the published ratio" } else { "not the published ratio, so efficiencies cannot be compared" };
    Some(format!(
        "Computing takes {here:.2}x of an allreduce's bound here and {there:.2}x there ({:.3} s over {:.3} s): {judged}.",
        published::COMPUTE_S,
        published::TRAINING_BOUND_S
    ))
}

/// The sentences about `ranking`, the most important first.
pub(super) fn sentences(results: &Comparison, ranking: &[Measured<'_>]) -> Vec<String> {
    let mut said = Vec::new();
    if let Some((best, train)) = ranking.first().and_then(|best| Some((best, best.train()?))) {
        said.push(format!(
            "{} is most efficient: a step takes {}, of which {} computes ({:.2} %).",
            best.row.variant,
            format_seconds(best.record.median_s),
            format_seconds(train.compute_s),
            100.0 * train.efficiency
        ));
    }
    let own = ranking.iter().find(|measured| measured.row.variant == "dist_sync_mpi");
    said.extend(own.and_then(|own| {
        Some(format!(
            "dist_sync_mpi reaches {:.2} % where {:.2} % was published for an allreduce.",
            100.0 * own.train()?.efficiency,
            own.published(results)?.efficiency
        ))
    }));
    said.extend(order_words(results, ranking));
    said.extend(ratio_words(results));
    said
}

/// Whether the rows with servers have the published order.
fn order_words(results: &Comparison, ranking: &[Measured<'_>]) -> Option<String> {
    let served = ranking.iter().filter(|measured| measured.row.servers > 0);
    let served: Vec<(&str, f64)> = served
        .filter_map(|measured| Some((measured.row.variant.as_str(), measured.published(results)?.efficiency)))
        .collect();
    if served.len() < 2 {
        return None;
    }
    let alike = served.windows(2).all(|pair| pair[0].1 > pair[1].1);
    let names: Vec<&str> = served.iter().map(|(name, _)| *name).collect();
    let judged = if alike { "the order that was published" } else { "not the order that was published" };
    Some(format!("With servers, from the most efficient: {}; {judged}.", names.join(", ")))
}
