//! The comparison as a table for a terminal, like the published one.

use comfy_table::{CellAlignment, Table, presets};

use crate::compare::notes::with_verdict;
use crate::compare::results::{Results, Row};
use crate::compare::training;

pub use crate::compare::numbers::{format_seconds, several};

const HEADER: [&str; 9] =
    ["method", "servers", "machines", "time", "spread", "/ bound", "per machine", "vs best", "busiest host"];

/// The table, the doubts about its samples, the errors of what failed, and the verdict.
pub fn render(results: &Results) -> String {
    let setup = &results.setup;
    if let Some(train) = &setup.train {
        return training::render(results, train);
    }
    let links = if setup.link.bytes_per_s().is_some() { format!(", links of {}", setup.link) } else { String::new() };
    let mut lines = vec![
        format!("push + pull of {} by {}, {}{links}", setup.payload, several(setup.workers, "worker"), setup.place),
        String::new(),
        grid(results),
        String::new(),
        format!("Every sum was checked. time: median of {}; spread: half the middle half.", counted(results)),
    ];
    if let Some(bound) = results.rows.iter().find_map(|row| row.record()?.bound_s) {
        let uplink = if setup.uplink_bytes_per_s().is_some() { ", and at least payload / uplink" } else { "" };
        lines.push(format!(
            "bound: {} for an uncompressed allreduce, 2(n-1)/n x payload / link{uplink}.",
            format_seconds(bound)
        ));
    }
    let source = if measured_traffic(results) { "by its interface, * computed" } else { "* computed" };
    let charged = if setup.own_hosts { "per machine: time x machines / workers. " } else { "" };
    lines.push(format!("{charged}busiest host: bytes in its busier direction, {source}."));
    with_verdict(lines, results)
}

fn grid(results: &Results) -> String {
    let best = results.ranking().first().map(|(_, summary)| summary.median);
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(HEADER);
    for row in &results.rows {
        table.add_row(cells(row, results, best));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((u16::from(index > 0), 1));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn cells(row: &Row, results: &Results, best: Option<f64>) -> Vec<String> {
    let count = |count: usize| if count == 0 { "-".to_owned() } else { count.to_string() };
    let mut cells = vec![row.method.clone(), count(row.servers), count(row.machines)];
    let (Some(record), Some(summary)) = (row.record(), row.summary()) else {
        cells.push(row.status().to_owned());
        cells.extend(std::iter::repeat_n("-".to_owned(), HEADER.len() - cells.len()));
        return cells;
    };
    cells.extend([
        format_seconds(summary.median),
        format!("+-{:.1} %", 100.0 * summary.relative_spread()),
        record.ratio_to_bound.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
        row.per_machine_s(results.setup.workers).map_or("-".to_owned(), format_seconds),
        best.map_or("-".to_owned(), |best| format!("{:.2}x", summary.median / best)),
        row.host_bytes_words(results.setup.own_hosts).unwrap_or("-".to_owned()),
    ]);
    cells
}

fn counted(results: &Results) -> String {
    format!("{} x {}", several(results.setup.rounds, "round"), several(results.setup.iters, "iteration"))
}

fn measured_traffic(results: &Results) -> bool {
    results.rows.iter().any(|row| row.host_bytes(results.setup.own_hosts).is_some_and(|(_, measured)| measured))
}
