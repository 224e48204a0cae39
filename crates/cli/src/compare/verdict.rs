//! The conclusion in two to five sentences, which follow from the samples alone.

use crate::compare::results::{Comparison, Measured, Row, Setup};
use crate::compare::training;
use crate::text::{format_seconds, several};
use crate::variant::Family;

/// The sentences, the most important first.
pub(crate) fn sentences(results: &Comparison) -> Vec<String> {
    let ranking = results.ranking();
    let Some(best) = ranking.first() else {
        return vec!["No variant was measured, so there is nothing to compare.".to_owned()];
    };
    if results.setup.train.is_some() {
        return training::sentences(results, &ranking);
    }
    let mut sentences = vec![fastest(best, ranking.get(1))];
    if let Some(allreduce) = ranking.iter().find(|it| it.row.family == Family::Allreduce) {
        sentences.extend(against_shared(allreduce, &ranking, &results.setup));
        sentences.extend(against_dedicated(allreduce, &ranking, &results.setup));
    }
    sentences.extend(against_mxnet(results));
    sentences.extend(compressed(results));
    sentences
}

fn fastest(best: &Measured<'_>, next: Option<&Measured<'_>>) -> String {
    let bound =
        best.record.ratio_to_bound.map_or(String::new(), |ratio| format!(", {ratio:.2}x of the allreduce bound"));
    let head = format!("{} is fastest with {}{bound}", best.row.variant, format_seconds(best.summary.median));
    let Some(next) = next else { return format!("{head}; nothing else was measured.") };
    let factor = next.summary.median / best.summary.median;
    if best.summary.count.min(next.summary.count) < 3 {
        format!(
            "{head}; next is {} with {factor:.2}x of that time: too few samples to tell noise from more.",
            next.row.variant
        )
    } else if next.summary.differs_from(&best.summary) {
        format!("{head}; next is {} with {factor:.2}x of that time, which is beyond noise.", next.row.variant)
    } else {
        format!("{head}; {} takes {factor:.2}x of that time, which is within noise: call it a tie.", next.row.variant)
    }
}

/// Allreduce compared with servers on the same hosts.
fn against_shared(allreduce: &Measured<'_>, ranking: &[Measured<'_>], setup: &Setup) -> Option<String> {
    let shared = || ranking.iter().filter(|it| it.row.family == Family::Shared);
    shared().next()?;
    let name = |of: &dyn Fn(f64, bool) -> bool| {
        let parts: Vec<String> = shared()
            .map(|it| (it, it.summary.median / allreduce.summary.median))
            .filter(|(it, factor)| of(*factor, it.summary.differs_from(&allreduce.summary)))
            .map(|(it, factor)| format!("{} ({factor:.2}x)", it.row.variant))
            .collect();
        Some(parts.join(", ")).filter(|names| !names.is_empty())
    };
    let parts = [
        name(&|factor, apart| apart && factor > 1.0).map(|names| format!("allreduce is ahead of {names}")),
        name(&|_, apart| !apart).map(|names| format!("level with {names} within noise")),
        name(&|factor, apart| apart && factor < 1.0)
            .map(|names| format!("behind {names}, whose parameter servers beat it here")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let workers = setup.workers;
    let place = if setup.own_hosts {
        format!("the same {workers} machines")
    } else {
        format!("one machine with {workers} ranks")
    };
    let mut sentence = format!("On {place} {}", parts.join(", "));
    if setup.own_hosts && shared().any(|it| it.row.servers >= workers) {
        sentence.push_str(
            "; a server on every worker's host moves the same bytes through each link as an allreduce, so both have one bound",
        );
    }
    sentence.push('.');
    Some(sentence)
}

/// The gain and the cost of dedicated servers.
fn against_dedicated(allreduce: &Measured<'_>, ranking: &[Measured<'_>], setup: &Setup) -> Option<String> {
    let Measured { row, summary, .. } = ranking.iter().find(|it| it.row.family == Family::Dedicated)?;
    let factor = summary.median / allreduce.summary.median;
    if !setup.own_hosts {
        let noise = if summary.differs_from(&allreduce.summary) { "" } else { ", which is within noise" };
        return Some(format!(
            "{}, whose servers are more processes of the same machine and none that add a link, takes {factor:.2}x of allreduce's time{noise}.",
            row.variant
        ));
    }
    let workers = setup.workers;
    let extra = row.machines - workers;
    let machines = several(extra, "machine");
    let charged = factor * row.machines as f64 / workers as f64;
    Some(if !summary.differs_from(&allreduce.summary) {
        format!(
            "{} needs {machines} more and is level with allreduce within noise ({factor:.2}x): the extra machines buy nothing here.",
            row.variant
        )
    } else if factor < 1.0 {
        let judged = if charged < 1.0 { "they pay for themselves" } else { "that is the price of the shorter wait" };
        format!(
            "{} beats allreduce with {factor:.2}x of its time, for {machines} more; charged for all {} machines it costs {charged:.2}x of allreduce's machine time: {judged}.",
            row.variant, row.machines
        )
    } else {
        format!(
            "{} needs {machines} more and still takes {factor:.2}x of allreduce's time ({charged:.2}x of its machine time).",
            row.variant
        )
    })
}

/// The gain of compression over the same mode without it.
fn compressed(results: &Comparison) -> Option<String> {
    let pairs = pairs(results, |row| {
        let plain = results.row(row.variant.split_once('+')?.0)?.summary()?;
        Some(format!("{:.2}x of the time of {}", plain.median / row.summary()?.median, row.variant))
    })?;
    Some(format!("The same mode without compression takes {pairs}."))
}

/// Our servers compared with MXNet's.
fn against_mxnet(results: &Comparison) -> Option<String> {
    let pairs = pairs(results, |theirs| {
        let mode = theirs.variant.strip_prefix("mxnet:")?;
        let factor = results.row(mode)?.summary()?.median / theirs.summary()?.median;
        Some(format!("{factor:.2}x with {}", mode.trim_start_matches("dist_sync:")))
    })?;
    Some(format!("Our servers take {pairs} of real MXNet's time in the same place."))
}

/// The texts of the rows that have one.
fn pairs(results: &Comparison, words: impl Fn(&Row) -> Option<String>) -> Option<String> {
    let pairs: Vec<String> = results.rows.iter().filter_map(words).collect();
    (!pairs.is_empty()).then(|| pairs.join(", "))
}
