//! What the numbers say, in two to five sentences. Every word follows from the samples.

use crate::compare::numbers::format_seconds;
use crate::compare::results::{Results, Row, Setup};
use crate::compare::training;
use crate::mode::Family;
use crate::statistics::Summary;

type Ranked<'a> = (&'a Row, Summary);

/// The sentences, the most important first.
pub fn sentences(results: &Results) -> Vec<String> {
    if results.setup.train.is_some() {
        return training::sentences(results);
    }
    let ranking = results.ranking();
    let Some(best) = ranking.first() else {
        return vec!["No variant was measured, so there is nothing to compare.".to_owned()];
    };
    let mut sentences = vec![fastest(best, ranking.get(1))];
    if let Some(allreduce) = ranking.iter().find(|(row, _)| row.family == Family::Allreduce) {
        sentences.extend(against_shared(allreduce, &ranking, &results.setup));
        sentences.extend(against_dedicated(allreduce, &ranking, &results.setup));
    }
    sentences.extend(against_mxnet(results));
    sentences.extend(compressed(results));
    sentences
}

fn fastest(best: &Ranked, next: Option<&Ranked>) -> String {
    let ratio = best.0.record().and_then(|record| record.ratio_to_bound);
    let bound = ratio.map_or(String::new(), |ratio| format!(", {ratio:.2}x of the allreduce bound"));
    let head = format!("{} is fastest with {}{bound}", best.0.variant, format_seconds(best.1.median));
    let Some(next) = next else { return format!("{head}; nothing else was measured.") };
    let factor = next.1.median / best.1.median;
    if best.1.count.min(next.1.count) < 3 {
        format!(
            "{head}; next is {} with {factor:.2}x of that time: too few samples to tell noise from more.",
            next.0.variant
        )
    } else if next.1.differs_from(&best.1) {
        format!("{head}; next is {} with {factor:.2}x of that time, which is beyond noise.", next.0.variant)
    } else {
        format!("{head}; {} takes {factor:.2}x of that time, which is within noise: call it a tie.", next.0.variant)
    }
}

/// Allreduce against servers on the same hosts.
fn against_shared(allreduce: &Ranked, ranking: &[Ranked], setup: &Setup) -> Option<String> {
    let shared: Vec<&Ranked> = ranking.iter().filter(|(row, _)| row.family == Family::Shared).collect();
    if shared.is_empty() {
        return None;
    }
    let name = |group: &[&Ranked]| {
        let parts: Vec<String> = group
            .iter()
            .map(|(row, summary)| format!("{} ({:.2}x)", row.variant, summary.median / allreduce.1.median))
            .collect();
        parts.join(", ")
    };
    let apart = |it: &&&Ranked| it.1.differs_from(&allreduce.1);
    let slower: Vec<&Ranked> =
        shared.iter().filter(|it| apart(it) && it.1.median > allreduce.1.median).copied().collect();
    let faster: Vec<&Ranked> =
        shared.iter().filter(|it| apart(it) && it.1.median < allreduce.1.median).copied().collect();
    let level: Vec<&Ranked> = shared.iter().filter(|it| !apart(it)).copied().collect();
    let mut parts = Vec::new();
    if !slower.is_empty() {
        parts.push(format!("allreduce is ahead of {}", name(&slower)));
    }
    if !level.is_empty() {
        parts.push(format!("level with {} within noise", name(&level)));
    }
    if !faster.is_empty() {
        parts.push(format!("behind {}, whose parameter servers beat it here", name(&faster)));
    }
    let workers = setup.workers;
    let place = if setup.own_hosts {
        format!("the same {workers} machines")
    } else {
        format!("one machine with {workers} ranks")
    };
    let mut sentence = format!("On {place} {}", parts.join(", "));
    if setup.own_hosts && shared.iter().any(|(row, _)| row.servers >= workers) {
        sentence.push_str(
            "; a server on every worker's host moves the same bytes through each link as an allreduce, so both have one bound",
        );
    }
    sentence.push('.');
    Some(sentence)
}

/// What dedicated servers buy, and what they cost.
fn against_dedicated(allreduce: &Ranked, ranking: &[Ranked], setup: &Setup) -> Option<String> {
    let (row, summary) = ranking.iter().find(|(row, _)| row.family == Family::Dedicated)?;
    let factor = summary.median / allreduce.1.median;
    if !setup.own_hosts {
        let noise = if summary.differs_from(&allreduce.1) { "" } else { ", which is within noise" };
        return Some(format!(
            "{}, whose servers are more processes of the same machine and none that add a link, takes {factor:.2}x of allreduce's time{noise}.",
            row.variant
        ));
    }
    let workers = setup.workers;
    let extra = row.machines - workers;
    let machines = if extra == 1 { "1 machine".to_owned() } else { format!("{extra} machines") };
    let charged = factor * row.machines as f64 / workers as f64;
    Some(if !summary.differs_from(&allreduce.1) {
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

/// What compression gains over the same mode without it.
fn compressed(results: &Results) -> Option<String> {
    let pairs: Vec<String> = results
        .rows
        .iter()
        .filter_map(|row| {
            let (mode, _) = row.variant.split_once('+')?;
            let plain = results.row(mode)?.summary()?;
            Some(format!("{:.2}x of the time of {}", plain.median / row.summary()?.median, row.variant))
        })
        .collect();
    (!pairs.is_empty()).then(|| format!("The same mode without compression takes {}.", pairs.join(", ")))
}

/// Our servers against MXNet's, row by row.
fn against_mxnet(results: &Results) -> Option<String> {
    let pairs: Vec<String> = results
        .rows
        .iter()
        .filter_map(|theirs| {
            let mode = theirs.variant.strip_prefix("mxnet:")?;
            let ours = results.row(mode)?.summary()?;
            Some(format!(
                "{:.2}x with {}",
                ours.median / theirs.summary()?.median,
                mode.trim_start_matches("dist_sync:")
            ))
        })
        .collect();
    (!pairs.is_empty())
        .then(|| format!("Our servers take {} of real MXNet's time in the same place.", pairs.join(", ")))
}
