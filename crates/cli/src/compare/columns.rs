//! The columns of the comparison's table, in a terminal and on the page alike.

use crate::compare::results::{Comparison, Measured};
use crate::text::format_seconds;

/// A column behind the method, its servers and its machines.
pub(super) struct Column {
    /// The heading in a terminal; without one it is on the page alone.
    pub(super) heading: &'static str,
    /// The heading on the page, in HTML.
    pub(super) html: &'static str,
    /// The cell of a row, if it has one.
    pub(super) cell: Cell,
}

type Cell = fn(&Measured<'_>, &Comparison) -> Option<String>;

const fn column(heading: &'static str, html: &'static str, cell: Cell) -> Column {
    Column { heading, html, cell }
}

const SPREAD: Column =
    column("spread", "spread", |it, _| Some(format!("+-{:.1} %", 100.0 * it.summary.relative_spread())));

/// Where push and pull are compared.
const PUSH_PULL: [Column; 7] = [
    column("time", "time", |it, _| Some(format_seconds(it.summary.median))),
    SPREAD,
    column("/ bound", "&divide; allreduce<br>bound", |it, _| Some(format!("{:.2}", it.record.ratio_to_bound?))),
    column("", "&divide; own<br>bound", |it, _| Some(format!("{:.2}", it.summary.median / it.record.mode_bound_s?))),
    column("per machine", "time &times; machines<br>&divide; workers", |it, results| {
        it.row.per_machine_s(results.setup.workers).map(format_seconds)
    }),
    column("vs best", "vs best", |it, results| {
        Some(format!("{:.2}x", it.summary.median / results.ranking().first()?.summary.median))
    }),
    column("busiest host", "bytes, busiest<br>host", |it, results| it.row.host_bytes_words(results.setup.own_hosts)),
];

/// Where steps of training are compared.
const TRAINING: [Column; 9] = [
    column("step", "step", |it, _| Some(format_seconds(it.summary.median))),
    SPREAD,
    // Noise may make it negative.
    column("exposed", "exposed<br>communication", |it, _| Some(format_seconds(it.train()?.exposed_s))),
    column("efficiency", "scaling<br>efficiency", |it, _| Some(format!("{:.2} %", 100.0 * it.train()?.efficiency))),
    column("of possible", "of what is<br>possible", |it, _| {
        let train = it.train()?;
        Some(format!("{:.1} %", 100.0 * train.shortest_s? / (train.compute_s / train.efficiency)))
    }),
    column("img/s", "images/s<br>per worker", |it, _| Some(format!("{:.2}", it.train()?.images_per_s?))),
    column("img/s/machine", "images/s<br>per machine", |it, results| {
        Some(format!("{:.2}", it.images_per_machine(results)?))
    }),
    column("published", "published<br>efficiency", |it, results| {
        Some(format!("{:.2} %", it.published(results)?.efficiency))
    }),
    column("", "published<br>images/s", |it, results| Some(format!("{:.2}", it.published(results)?.images_per_s))),
];

/// The columns that suit what was compared.
pub(super) fn columns(results: &Comparison) -> &'static [Column] {
    if results.setup.train.is_some() { &TRAINING } else { &PUSH_PULL }
}
