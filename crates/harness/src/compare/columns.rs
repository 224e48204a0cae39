//! The columns of the comparison's table, in a terminal and on the page alike. A column without a cell is
//! left out.

use crate::compare::results::{Comparison, MeasuredRow};
use crate::text::format_seconds;

/// A column behind the variant's name.
pub(super) struct Column {
    /// The heading in a terminal, on a phone and on paper.
    pub(super) heading: &'static str,
    /// The heading on the page.
    pub(super) title: &'static str,
    /// The cell of a row, if it has one.
    pub(super) cell: Cell,
}

type Cell = fn(&MeasuredRow<'_>, &Comparison) -> Option<String>;

const fn column(heading: &'static str, title: &'static str, cell: Cell) -> Column {
    Column { heading, title, cell }
}

const MACHINES: Column =
    column("machines", "machines", |it, results| results.setup.own_hosts.then(|| it.row.machines.to_string()));
const SPREAD: Column =
    column("spread", "spread", |it, _| Some(format!("+-{:.1} %", 100.0 * it.summary.relative_spread())));
const RATIO: Column = column("ratio", "ratio", |it, results| Some(ratio(it.ratio_to(&results.home()?))));

/// The columns of a comparison of push and pull.
const PUSH_PULL: [Column; 8] = [
    column("time", "time", |it, _| Some(format_seconds(it.summary.median))),
    RATIO,
    SPREAD,
    MACHINES,
    column("charged", "charged for all machines", |it, results| {
        results.any_needs_more().then(|| it.row.per_machine_s(results.setup.workers).map(format_seconds))?
    }),
    column("/ bound", "of the bound that the picture marks", |it, _| Some(ratio(it.record.ratio_to_bound?))),
    column("own bound", "of its own bound", |it, _| Some(ratio(it.record.ratio_to_mode_bound?))),
    column("busiest host", "through the busiest host", |it, results| it.row.host_bytes_words(results.setup.own_hosts)),
];

/// The columns of a comparison of training steps.
const TRAINING: [Column; 10] = [
    column("step", "step", |it, _| Some(format_seconds(it.summary.median))),
    RATIO,
    SPREAD,
    MACHINES,
    // Noise may make it negative.
    column("exposed", "exposed communication", |it, _| Some(format_seconds(it.train()?.exposed_s))),
    column("efficiency", "scaling efficiency", |it, _| Some(format!("{:.2} %", 100.0 * it.train()?.efficiency))),
    column("published", "published efficiency", |it, results| {
        Some(format!("{:.2} %", it.published(results)?.efficiency))
    }),
    column("of possible", "of what is possible", |it, _| {
        let train = it.train()?;
        Some(format!("{:.1} %", 100.0 * train.shortest_s? / (train.compute_s / train.efficiency)))
    }),
    column("img/s", "images/s per worker", |it, _| Some(format!("{:.2}", it.train()?.images_per_s?))),
    column("img/s/machine", "images/s per machine", |it, results| {
        results.any_needs_more().then(|| Some(format!("{:.2}", it.images_per_machine(results)?)))?
    }),
];

/// A ratio of two times as text. Below `1.00x` the first time is shorter.
pub(super) fn ratio(value: f64) -> String {
    format!("{value:.2}x")
}

/// The columns that suit the comparison and have at least one cell.
pub(super) fn columns(results: &Comparison) -> Vec<&'static Column> {
    let all: &[Column] = if results.setup.train.is_some() { &TRAINING } else { &PUSH_PULL };
    let measured = results.ranking();
    all.iter().filter(|column| measured.iter().any(|it| (column.cell)(it, results).is_some())).collect()
}
