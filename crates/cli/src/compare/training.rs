//! The comparison of training steps: the table, the verdict, and what stands beside the published rates.

use comfy_table::{CellAlignment, Table, presets};

use crate::compare::notes::with_verdict;
use crate::compare::numbers::format_seconds;
use crate::compare::published::{self, Training};
use crate::compare::results::{Results, Row};
use crate::cost;
use crate::record::Train;

pub use crate::compare::results::TrainSetup;

/// A measured row with its figures of training.
pub struct Trained<'a> {
    /// The row.
    pub row: &'a Row,
    /// Its figures.
    pub train: Train,
    /// What was published for such a row.
    pub published: Option<Training>,
}

const HEADER: [&str; 11] = [
    "method",
    "servers",
    "machines",
    "step",
    "spread",
    "exposed",
    "efficiency",
    "of possible",
    "img/s",
    "img/s/machine",
    "published",
];

/// The seconds that a step computes for where the ratio of computing to traffic is the published one.
pub fn published_compute_s(workers: usize, bytes: f64, link_bytes_per_s: f64) -> f64 {
    published::COMPUTE_S * cost::allreduce_bound_s(workers, bytes, link_bytes_per_s) / published::TRAINING_BOUND_S
}

/// The measured rows, most efficient first.
pub fn ranking(results: &Results) -> Vec<Trained<'_>> {
    let mut trained: Vec<Trained<'_>> = results
        .rows
        .iter()
        .filter_map(|row| {
            let train = row.record()?.train?;
            let published = published::TRAINING.into_iter().find(|known| known.variant == row.variant);
            Some(Trained { row, train, published: published.filter(|_| results.setup.workers == 8) })
        })
        .collect();
    trained.sort_by(|a, b| b.train.efficiency.total_cmp(&a.train.efficiency));
    trained
}

/// How computing relates to traffic here and in the published run, if a link is known.
pub fn ratio_words(results: &Results) -> Option<String> {
    let setup = &results.setup;
    let train = setup.train.as_ref()?;
    let bound = cost::allreduce_bound_s(setup.workers, setup.bytes as f64, setup.link.bytes_per_s()?);
    let (here, there) = (train.compute_s / bound, published::COMPUTE_S / published::TRAINING_BOUND_S);
    let same = (here / there - 1.0).abs() < 0.02;
    let judged = if same {
        "the published ratio"
    } else {
        "another ratio than the published one, so that efficiencies cannot be held against each other"
    };
    Some(format!(
        "Computing takes {here:.2}x of an allreduce's bound here and {there:.2}x there ({:.3} s over {:.3} s): {judged}.",
        published::COMPUTE_S,
        published::TRAINING_BOUND_S
    ))
}

/// The sentences, the most important first.
pub fn sentences(results: &Results) -> Vec<String> {
    let ranking = ranking(results);
    let Some(best) = ranking.first() else {
        return vec!["No variant was measured, so there is nothing to compare.".to_owned()];
    };
    let mut said = vec![format!(
        "{} is most efficient: a step takes {}, of which {} computes ({:.2} %).",
        best.row.variant,
        format_seconds(best.row.record().map_or(0.0, |record| record.median_s)),
        format_seconds(best.train.compute_s),
        100.0 * best.train.efficiency
    )];
    if let Some(own) = ranking.iter().find(|trained| trained.row.variant == "dist_sync_mpi")
        && let Some(published) = own.published
    {
        said.push(format!(
            "dist_sync_mpi reaches {:.2} % where {:.2} % was published for an allreduce.",
            100.0 * own.train.efficiency,
            published.efficiency
        ));
    }
    said.extend(order_words(&ranking));
    said.extend(ratio_words(results));
    said
}

/// Whether the rows with servers stand in the order in which they were published.
fn order_words(ranking: &[Trained<'_>]) -> Option<String> {
    let served: Vec<&Trained<'_>> =
        ranking.iter().filter(|trained| trained.row.servers > 0 && trained.published.is_some()).collect();
    if served.len() < 2 {
        return None;
    }
    let published = |trained: &Trained<'_>| trained.published.map_or(0.0, |known| known.efficiency);
    let alike = served.windows(2).all(|pair| published(pair[0]) > published(pair[1]));
    let names: Vec<&str> = served.iter().map(|trained| trained.row.variant.as_str()).collect();
    let judged = if alike { "the order that was published" } else { "not the order that was published" };
    Some(format!("With servers, from the most efficient: {}; {judged}.", names.join(", ")))
}

/// The table, its notes and the verdict.
pub fn render(results: &Results, train: &TrainSetup) -> String {
    let setup = &results.setup;
    let links = if setup.link.bytes_per_s().is_some() { format!(", links of {}", setup.link) } else { String::new() };
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(HEADER);
    for row in &results.rows {
        table.add_row(cells(row, results));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((u16::from(index > 0), 1));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = vec![
        format!("training steps of {} by {} workers, {}{links}", setup.payload, setup.workers, setup.place),
        format!("computing: {} a step, {}", format_seconds(train.compute_s), how(train)),
        String::new(),
        table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n"),
        String::new(),
        format!(
            "Every sum was checked. step: median of {} rounds x {} steps; efficiency: computing / step.",
            setup.rounds, setup.iters
        ),
        "of possible: efficiency over that of the best schedule on this link; img/s: of one worker; published: efficiency."
            .to_owned(),
    ];
    with_verdict(lines, results)
}

/// How a step computes, in words.
pub fn how(train: &TrainSetup) -> String {
    train.burn.map_or_else(
        || "replayed by the clock".to_owned(),
        |part| format!("{:.0} % of it on the processor, measured without communication", 100.0 * part),
    )
}

fn cells(row: &Row, results: &Results) -> Vec<String> {
    let mut cells =
        vec![row.method.clone(), dash(Some(row.servers).filter(|count| *count > 0)), row.machines.to_string()];
    let ranking = ranking(results);
    let found = ranking.iter().find(|trained| trained.row.variant == row.variant);
    let (Some(trained), Some(summary)) = (found, row.summary()) else {
        cells.push(row.status().to_owned());
        cells.extend(std::iter::repeat_n("-".to_owned(), HEADER.len() - cells.len()));
        return cells;
    };
    let figures = Figures::of(trained, results.setup.workers);
    cells.extend([
        format_seconds(summary.median),
        format!("+-{:.1} %", 100.0 * summary.relative_spread()),
        figures.exposed,
        figures.efficiency,
        dash(figures.of_possible),
        dash(figures.images),
        dash(figures.images_per_machine),
        dash(figures.published),
    ]);
    cells
}

/// A row's figures in words.
pub struct Figures {
    /// Communication that is not hidden; noise may make it negative.
    pub exposed: String,
    /// Computing over the step.
    pub efficiency: String,
    /// The efficiency over that of the best schedule.
    pub of_possible: Option<String>,
    /// Images a second of one worker.
    pub images: Option<String>,
    /// The same with every machine charged.
    pub images_per_machine: Option<String>,
    /// The published efficiency.
    pub published: Option<String>,
}

impl Figures {
    /// Puts them into words.
    pub fn of(trained: &Trained<'_>, workers: usize) -> Self {
        let Trained { row, train, published } = trained;
        let per_machine = workers as f64 / row.machines as f64;
        let sign = if train.exposed_s < 0.0 { "-" } else { "" };
        let step = train.compute_s / train.efficiency;
        Figures {
            exposed: format!("{sign}{}", format_seconds(train.exposed_s.abs())),
            efficiency: format!("{:.2} %", 100.0 * train.efficiency),
            of_possible: train.shortest_s.map(|shortest| format!("{:.1} %", 100.0 * shortest / step)),
            images: train.images_per_s.map(|rate| format!("{rate:.2}")),
            images_per_machine: train.images_per_s.map(|rate| format!("{:.2}", rate * per_machine)),
            published: published.map(|known| format!("{:.2} %", known.efficiency)),
        }
    }
}

fn dash(value: Option<impl ToString>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}
