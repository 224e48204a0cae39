//! The comparison as a table for a terminal.

use crate::compare::columns::columns;
use crate::compare::notes::notes;
use crate::compare::results::Comparison;
use crate::rounds::TrainSetup;
use crate::text::{format_seconds, grid, several};

/// The table, the notes and the verdict.
pub(crate) fn render(results: &Comparison) -> String {
    let setup = &results.setup;
    let links = if setup.link.bytes_per_s().is_some() { format!(", links of {}", setup.link) } else { String::new() };
    let by = format!("{} by {}, {}{links}", setup.payload, several(setup.workers, "worker"), setup.place);
    let (mut lines, below) = match &setup.train {
        None => (vec![format!("push + pull of {by}")], below(results)),
        Some(train) => (
            vec![
                format!("training steps of {by}"),
                format!("computing: {} a step, {}", format_seconds(train.compute_s), how(train)),
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
    lines.push(String::new());
    lines.extend(results.verdict.iter().cloned());
    lines.join("\n") + "\n"
}

fn rows(results: &Comparison) -> String {
    let columns: Vec<_> = columns(results).iter().filter(|column| !column.heading.is_empty()).collect();
    let head = ["method", "servers", "machines"].into_iter().chain(columns.iter().map(|column| column.heading));
    let count = |count: usize| if count == 0 { "-".to_owned() } else { count.to_string() };
    let rows = results.rows.iter().map(|row| {
        let front = [row.method.clone(), count(row.servers), count(row.machines)];
        let cells = columns.iter().enumerate().map(|(at, column)| match row.measured() {
            Some(measured) => (column.cell)(&measured, results),
            None => (at == 0).then(|| row.status().to_owned()),
        });
        front.into_iter().chain(cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()))).collect()
    });
    grid(head, rows.collect(), 1)
}

/// What the columns mean.
fn below(results: &Comparison) -> Vec<String> {
    let setup = &results.setup;
    let counted = format!("{} x {}", several(setup.rounds, "round"), several(setup.iters, "iteration"));
    let mut lines = vec![format!("Every sum was checked. time: median of {counted}; spread: half the middle half.")];
    if let Some(bound) = results.rows.iter().find_map(|row| row.record()?.bound_s) {
        let uplink = if setup.uplink().bytes_per_s().is_some() { ", and at least payload / uplink" } else { "" };
        lines.push(format!(
            "bound: {} for an uncompressed allreduce, 2(n-1)/n x payload / link{uplink}.",
            format_seconds(bound)
        ));
    }
    let is_measured = results.rows.iter().any(|row| row.host_bytes(setup.own_hosts).is_some_and(|(_, it)| it));
    let source = if is_measured { "by its interface, * computed" } else { "* computed" };
    let charged = if setup.own_hosts { "per machine: time x machines / workers. " } else { "" };
    lines.push(format!("{charged}busiest host: bytes in its busier direction, {source}."));
    lines
}

fn below_training(results: &Comparison) -> Vec<String> {
    vec![
        format!(
            "Every sum was checked. step: median of {} rounds x {} steps; efficiency: computing / step.",
            results.setup.rounds, results.setup.iters
        ),
        "of possible: the longer of computing and this mode's bound on the link / step; img/s: of one worker; published: efficiency."
            .to_owned(),
    ]
}

/// How a step computes.
pub(super) fn how(train: &TrainSetup) -> String {
    train.burn.map_or_else(
        || "replayed by the clock".to_owned(),
        |part| format!("{:.0} % of it on the processor, measured without communication", 100.0 * part),
    )
}
