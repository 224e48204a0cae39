//! The conclusion in a few sentences, which follow from the samples alone. The first is about the reader's
//! own machines, the next about the gain by more machines.

use crate::compare::columns::ratio;
use crate::compare::results::{Comparison, MeasuredRow, Row};
use crate::compare::training;
use crate::statistics::{FEWEST_ROUNDS, Relation};
use crate::text::{format_seconds, several};
use crate::variant::Family;

/// The sentences, the most important first.
pub fn sentences(results: &Comparison) -> Vec<String> {
    let ranking = results.ranking();
    if ranking.is_empty() {
        return vec!["No variant was measured, so there is nothing to compare.".to_owned()];
    }
    let mut said = Vec::new();
    if let Some(home) = results.home() {
        said.push(own_machines(&home, &ranking, results));
        said.extend(more_machines(&home, &ranking, results));
        said.extend(few_rounds(&home, &ranking));
        if results.setup.train.is_none() {
            said.extend(same_bound(&home, &ranking, results));
        }
    }
    if results.setup.train.is_some() {
        said.extend(training::sentences(results, &ranking));
    } else {
        said.extend(against_mxnet(results));
    }
    said.extend(compressed(results));
    said
}

/// The best variant on the machines that the workers need anyway, and the variants that may be as fast.
fn own_machines(home: &MeasuredRow<'_>, ranking: &[MeasuredRow<'_>], results: &Comparison) -> String {
    let setup = &results.setup;
    let place = match (setup.own_hosts, setup.is_emulated()) {
        (true, false) => format!("On your {}", several(setup.workers, "machine")),
        (true, true) => format!("On {} (emulated)", several(setup.workers, "machine")),
        (false, _) => format!("On this machine with {}", several(setup.workers, "worker")),
    };
    let efficiency =
        home.train().map_or(String::new(), |train| format!(", {:.2} % efficiency", 100.0 * train.efficiency));
    let what = if home.train().is_some() { " a step" } else { "" };
    let level = ranking.iter().filter(|it| {
        let is_other = it.row.variant != home.row.variant && it.row.family != Family::Compressed;
        is_other && !it.row.needs_more(setup) && it.relation(home) == Relation::Level
    });
    let level: Vec<&str> = level.map(|it| it.row.variant.as_str()).collect();
    let level = if level.is_empty() { String::new() } else { format!("; {} may be as fast", listed(&level)) };
    let alone = if ranking.len() == 1 { "; nothing else was measured" } else { "" };
    format!("{place}: {}, {}{what}{efficiency}{level}{alone}.", home.row.variant, format_seconds(home.summary.median))
}

/// The gain and the cost of machines beyond the workers' own.
fn more_machines(home: &MeasuredRow<'_>, ranking: &[MeasuredRow<'_>], results: &Comparison) -> Option<String> {
    let setup = &results.setup;
    let best = ranking.iter().find(|it| it.row.needs_more(setup) && it.row.family != Family::Compressed)?;
    let factor = best.ratio_to(home);
    let (extra, name) = (best.row.machines - setup.workers, best.row.variant.as_str());
    let with = format!("With {extra} more: {name}");
    Some(match best.relation(home) {
        Relation::Level => {
            format!("{with} shows no clear difference ({}); more rounds may show one.", ratio(factor))
        }
        Relation::Apart if factor >= 1.0 => {
            format!(
                "{with} takes {:.0} % more time ({}): they buy nothing here.",
                100.0 * (factor - 1.0),
                ratio(factor)
            )
        }
        found => {
            let charged = factor * best.row.machines as f64 / setup.workers as f64;
            let time = if factor < 1.0 { (1.0 - factor, "less") } else { (factor - 1.0, "more") };
            let doubt = if found == Relation::TooFewRounds { ", if that is not by chance" } else { "" };
            let cost = if charged < 1.0 { "so they pay for themselves" } else { "the price of the shorter wait" };
            let cost = if factor < 1.0 { format!(", {cost}") } else { String::new() };
            format!(
                "{with}, {:.0} % {} time ({}){doubt}; charged for all {} machines it is {}{cost}.",
                100.0 * time.0,
                time.1,
                ratio(factor),
                best.row.machines,
                ratio(charged)
            )
        }
    })
}

/// A sentence if there are too few rounds to tell any difference from noise.
fn few_rounds(home: &MeasuredRow<'_>, ranking: &[MeasuredRow<'_>]) -> Option<String> {
    let mut others = ranking.iter().filter(|it| it.row.variant != home.row.variant).peekable();
    others.peek()?;
    others.all(|it| it.relation(home) == Relation::TooFewRounds).then(|| {
        format!("These rounds are too few to tell a difference from noise: give --rounds {FEWEST_ROUNDS} or more.")
    })
}

/// The distance of the best variant from an allreduce's bound. If there is a server on every worker's host,
/// also the reason why they are at best as fast as an allreduce.
fn same_bound(home: &MeasuredRow<'_>, ranking: &[MeasuredRow<'_>], results: &Comparison) -> Option<String> {
    if results.setup.sparse.is_some() {
        return rows_bound(ranking);
    }
    let bound = home.record.bound_s?;
    let has_servers_everywhere =
        ranking.iter().any(|it| it.row.family == Family::Shared && it.row.servers >= results.setup.workers);
    let why = if has_servers_everywhere {
        "; a server on every worker's host has the same bound, since it moves the same bytes through each link"
    } else {
        ""
    };
    Some(format!(
        "{} takes {} of the bound of an allreduce, {}{why}.",
        home.row.variant,
        ratio(home.summary.median / bound),
        format_seconds(bound)
    ))
}

/// The ratio of our best time to the least time of its way to move rows.
fn rows_bound(ranking: &[MeasuredRow<'_>]) -> Option<String> {
    let best = ranking.iter().find(|it| it.row.family != Family::Peer)?;
    let own = best.record.ratio_to_mode_bound?;
    let name = &best.row.variant;
    Some(format!("Of ours the shortest is {name}, {} of the least time of its way to move rows.", ratio(own)))
}

/// The gain of compression over the same mode without it.
fn compressed(results: &Comparison) -> Option<String> {
    let pairs = pairs(results, |row| {
        let plain = results.row(row.variant.split_once('+')?.0)?;
        let factor = row.summary()?.median / plain.summary()?.median;
        Some(format!("{} takes {} of the time of {}", row.variant, ratio(factor), plain.variant))
    })?;
    Some(format!("Compression: {pairs}."))
}

/// MXNet's servers compared with ours.
fn against_mxnet(results: &Comparison) -> Option<String> {
    let pairs = pairs(results, |theirs| {
        let mode = theirs.variant.strip_prefix("mxnet:")?;
        let factor = theirs.summary()?.median / results.row(mode)?.summary()?.median;
        Some(format!("{mode} {}", ratio(factor)))
    })?;
    Some(format!("MXNet's own servers, in the time of ours in the same place: {pairs}."))
}

/// The texts that `words` returns for rows, joined. `None` if no row has a text.
fn pairs(results: &Comparison, words: impl Fn(&Row) -> Option<String>) -> Option<String> {
    let pairs: Vec<String> = results.rows.iter().filter_map(words).collect();
    (!pairs.is_empty()).then(|| pairs.join(", "))
}

/// `a, b and c`.
pub(super) fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}
