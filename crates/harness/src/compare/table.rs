//! The comparison as a table for a terminal.

use crate::compare::columns::columns;
use crate::compare::notes::notes;
use crate::compare::published;
use crate::compare::results::{Comparison, MeasuredRow, Outcome, Row};
use crate::cost::rows_words;
use crate::text::{format_seconds, grid, several};
use crate::variant::Family;

/// The table, the notes and the verdict.
pub fn render(results: &Comparison) -> String {
    let setup = &results.setup;
    let links = if setup.link.bytes_per_s().is_some() { format!(", links of {}", setup.link) } else { String::new() };
    let by = format!("{} by {}, {}{links}", setup.payload, several(setup.workers, "worker"), setup.place);
    let (mut lines, below) = match &setup.train {
        None => (vec![format!("push + pull of {by}")], below(results)),
        Some(train) => (
            vec![
                format!("training steps of {by}"),
                format!("computing: {} a step, replayed by the clock", format_seconds(train.compute_s)),
            ],
            below_training(results),
        ),
    };
    lines.extend([String::new(), rows(results), String::new()]);
    lines.extend(below);
    let notes = notes(results);
    if !notes.is_empty() {
        lines.push(String::new());
        lines.extend(notes);
    }
    lines.extend(scaling(results));
    lines.push(String::new());
    lines.extend(results.verdict.iter().cloned());
    lines.join("\n") + "\n"
}

fn rows(results: &Comparison) -> String {
    let columns = columns(results);
    let head = std::iter::once("method").chain(columns.iter().map(|column| column.heading));
    let rows = results.sorted_rows().into_iter().map(|row| {
        let cells = columns.iter().enumerate().map(|(at, column)| match row.measured() {
            Some(measured) => (column.cell)(&measured, results),
            None => (at == 0).then(|| row.status().to_owned()),
        });
        let dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        std::iter::once(row.variant.clone()).chain(cells.map(dash)).collect()
    });
    grid(head, rows.collect(), 1)
}

/// The medians with fewer workers, if these were measured. For training steps, the efficiencies beside the
/// published ones.
fn scaling(results: &Comparison) -> Option<String> {
    let counts = results.counts();
    if counts.len() < 2 {
        return None;
    }
    let per_cent = |part: f64| format!("{part:.2} %");
    let published = |measured: &MeasuredRow<'_>| results.published_scaling(&measured.row.variant);
    let ranking = results.ranking();
    let has_published = ranking.iter().any(|measured| published(measured).is_some());
    let title = if results.setup.train.is_some() { "efficiency by workers" } else { "workers" };
    let last = has_published.then(|| format!("published, {}", published::WORKERS));
    let head = std::iter::once(title.to_owned()).chain(counts.iter().map(|(workers, _)| workers.to_string()));
    let rows = ranking.iter().map(|measured| {
        let cell = |(_, rows): &(usize, &[Row])| {
            let measured = rows.iter().find(|row| row.variant == measured.row.variant).and_then(Row::measured);
            let words = |it: MeasuredRow<'_>| match it.train() {
                Some(train) => per_cent(100.0 * train.efficiency),
                None => format_seconds(it.summary.median),
            };
            measured.map_or("-".to_owned(), words)
        };
        let known = published(measured).map_or("-".to_owned(), |known| per_cent(known.efficiency));
        let cells = counts.iter().map(cell).chain(has_published.then_some(known));
        std::iter::once(measured.row.variant.clone()).chain(cells).collect()
    });
    Some(format!("\n{}", grid(head.chain(last), rows.collect(), 1)))
}

/// The sentence on the table's order and ratios, which the page has too.
pub(super) fn order(results: &Comparison) -> String {
    let (sorted, time) = match results.setup.train {
        Some(_) => ("efficiency, the highest", "step"),
        None => ("time, the shortest", "time"),
    };
    let ratios = results.home().map_or(String::new(), |home| {
        format!(" ratio: the {time} over that of {}; 0.75x is 25 % less.", home.row.variant)
    });
    format!("Sorted by {sorted} first.{ratios}")
}

/// The meaning of the modes with servers or helpers that are in the table.
fn names(results: &Comparison) -> Option<String> {
    let explained = [
        (Family::Helped, "dist_sync_mpi:Khelpers: K more hosts that only reduce."),
        (Family::Dedicated, "dist_sync:K: K servers on hosts of their own."),
        (Family::Shared, "dist_sync:Kshared: K servers on the workers' hosts."),
    ];
    let is_there = |family| results.rows.iter().any(|row| row.family == family);
    let words: Vec<_> = explained.iter().filter(|(family, _)| is_there(*family)).map(|(_, words)| *words).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The number of rounds of a median, in words. A variant that was interrupted or failed has fewer rounds.
/// `None` if no variant finished a round.
pub(super) fn rounds(results: &Comparison) -> Option<String> {
    let counts = results.rows.iter().filter_map(|row| match &row.outcome {
        Outcome::Measured { rounds, .. } => Some(rounds.len()),
        _ => None,
    });
    let (least, most) = counts.fold((usize::MAX, 0), |(least, most), count| (least.min(count), most.max(count)));
    let limit = if least < most { "at most " } else { "" };
    (most > 0).then(|| format!("{limit}{}", several(most, "round")))
}

/// The meaning of the columns.
fn below(results: &Comparison) -> Vec<String> {
    let setup = &results.setup;
    let mut lines = vec![order(results)];
    lines.extend(names(results));
    if let Some(rounds) = rounds(results) {
        let counted = format!("{rounds} of {}", several(setup.iters, "iteration"));
        lines.push(format!("Every sum was checked. time: median of {counted}; spread: half the interquartile range."));
    }
    if let Some((record, rows)) = results.rows.iter().find_map(|row| Some((row.record()?, row.record()?.sparse?))) {
        lines.push(rows_words(&rows, setup.workers) + ".");
        if let (Some(bound), Some(link)) = (record.bound_s, setup.link.bytes_per_s()) {
            let ways = rows.ways(setup.workers).map(|(way, bytes)| format!("{way} {}", format_seconds(bytes / link)));
            lines.push(format!("least times: {}.", ways.join(", ")));
            lines.push(format!("bound: {} for servers on every worker's host.", format_seconds(bound)));
            lines.push("own bound: the least time of the method itself.".to_owned());
        }
    } else if let Some(bound) = results.rows.iter().find_map(|row| row.record()?.bound_s) {
        let uplink = if setup.uplink().bytes_per_s().is_some() { ", and at least payload / uplink" } else { "" };
        let least = if setup.slow_hosts.is_empty() {
            "2(n-1)/n x payload / link"
        } else {
            "the larger of payload / slowest link and 2(n-1) x payload / all links"
        };
        lines.push(format!("bound: {} for an uncompressed allreduce, {least}{uplink}.", format_seconds(bound)));
        lines.push("own bound: the least time of the method itself.".to_owned());
    }
    if !setup.own_hosts {
        return lines;
    }
    let is_measured = results.rows.iter().any(|row| row.host_bytes(true).is_some_and(|(_, it)| it));
    let source = if is_measured { "counted by its interface; *: computed" } else { "*: computed" };
    let charged = if results.any_needs_more() { "charged: time x machines / workers. " } else { "" };
    lines.push(format!("{charged}busiest host: bytes in its busier direction, {source}."));
    lines
}

fn below_training(results: &Comparison) -> Vec<String> {
    let setup = &results.setup;
    let published = if results.ranking().iter().any(|it| it.published(results).is_some()) {
        "; published: efficiency as published"
    } else {
        ""
    };
    let mut lines = vec![order(results)];
    lines.extend(names(results));
    if let Some(rounds) = rounds(results) {
        let counted = format!("{rounds} of {}", several(setup.iters, "step"));
        lines.push(format!(
            "Every sum was checked. step: median of {counted}; efficiency: computing / step{published}."
        ));
    }
    lines.push(
        "of possible: (the longer of computing and this mode's bound on the link) / step; img/s: of one worker."
            .to_owned(),
    );
    lines
}
