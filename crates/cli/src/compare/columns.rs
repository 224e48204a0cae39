//! The columns of the comparison's table, in a terminal and on the page alike.

use crate::compare::published::{self, Training};
use crate::compare::results::{Results, Row};
use crate::record::{Record, Train};
use crate::statistics::Summary;
use crate::text::{format_seconds, format_signed_seconds};

/// A measured row.
#[derive(Debug, Clone, Copy)]
pub struct Measured<'a> {
    /// The row.
    pub row: &'a Row,
    /// All its samples.
    pub record: &'a Record,
    /// What they say.
    pub summary: Summary,
}

/// A column behind the method, its servers and its machines.
pub(super) struct Column {
    /// The heading in a terminal; without one it is on the page alone.
    pub(super) heading: &'static str,
    /// The heading on the page, in HTML.
    pub(super) html: &'static str,
    /// The cell of a row, if it has one.
    pub(super) cell: fn(&Measured<'_>, &Results) -> Option<String>,
}

const SPREAD: Column = Column {
    heading: "spread",
    html: "spread",
    cell: |measured, _| Some(format!("+-{:.1} %", 100.0 * measured.summary.relative_spread())),
};

/// Where push and pull are compared.
const PUSH_PULL: [Column; 7] = [
    Column { heading: "time", html: "time", cell: |measured, _| Some(format_seconds(measured.summary.median)) },
    SPREAD,
    Column {
        heading: "/ bound",
        html: "&divide; allreduce<br>bound",
        cell: |measured, _| Some(format!("{:.2}", measured.record.ratio_to_bound?)),
    },
    Column {
        heading: "",
        html: "&divide; own<br>bound",
        cell: |measured, _| Some(format!("{:.2}", measured.summary.median / measured.record.mode_bound_s?)),
    },
    Column {
        heading: "per machine",
        html: "time &times; machines<br>&divide; workers",
        cell: |measured, results| measured.row.per_machine_s(results.setup.workers).map(format_seconds),
    },
    Column {
        heading: "vs best",
        html: "vs best",
        cell: |measured, results| {
            let best = results.ranking().first()?.summary.median;
            Some(format!("{:.2}x", measured.summary.median / best))
        },
    },
    Column {
        heading: "busiest host",
        html: "bytes, busiest<br>host",
        cell: |measured, results| measured.row.host_bytes_words(results.setup.own_hosts),
    },
];

/// Where steps of training are compared.
const TRAINING: [Column; 9] = [
    Column { heading: "step", html: "step", cell: |measured, _| Some(format_seconds(measured.summary.median)) },
    SPREAD,
    Column {
        heading: "exposed",
        html: "exposed<br>communication",
        // Noise may make it negative.
        cell: |measured, _| Some(format_signed_seconds(measured.train()?.exposed_s)),
    },
    Column {
        heading: "efficiency",
        html: "scaling<br>efficiency",
        cell: |measured, _| Some(format!("{:.2} %", 100.0 * measured.train()?.efficiency)),
    },
    Column {
        heading: "of possible",
        html: "of what is<br>possible",
        cell: |measured, _| {
            let train = measured.train()?;
            Some(format!("{:.1} %", 100.0 * train.shortest_s? / (train.compute_s / train.efficiency)))
        },
    },
    Column {
        heading: "img/s",
        html: "images/s<br>per worker",
        cell: |measured, _| Some(format!("{:.2}", measured.train()?.images_per_s?)),
    },
    Column {
        heading: "img/s/machine",
        html: "images/s<br>per machine",
        cell: |measured, results| Some(format!("{:.2}", measured.images_per_machine(results)?)),
    },
    Column {
        heading: "published",
        html: "published<br>efficiency",
        cell: |measured, results| Some(format!("{:.2} %", measured.published(results)?.efficiency)),
    },
    Column {
        heading: "",
        html: "published<br>images/s",
        cell: |measured, results| Some(format!("{:.2}", measured.published(results)?.images_per_s)),
    },
];

/// The columns that suit what was compared.
pub(super) fn columns(results: &Results) -> &'static [Column] {
    if results.setup.train.is_some() { &TRAINING } else { &PUSH_PULL }
}

impl Measured<'_> {
    /// The figures of training, if steps were measured.
    pub(super) fn train(&self) -> Option<Train> {
        self.record.train
    }

    /// What was published for such a row.
    pub(super) fn published(&self, results: &Results) -> Option<Training> {
        let known = published::TRAINING.into_iter().find(|known| known.variant == self.row.variant);
        known.filter(|_| results.setup.workers == 8)
    }

    /// The images a second of all workers over all machines.
    pub(super) fn images_per_machine(&self, results: &Results) -> Option<f64> {
        Some(self.train()?.images_per_s? * results.setup.workers as f64 / self.row.machines as f64)
    }

    /// What rows are ranked by: the time, or with training that of a step over its computing.
    pub(super) fn rank(&self) -> f64 {
        self.train().map_or(self.summary.median, |train| 1.0 / train.efficiency)
    }
}
