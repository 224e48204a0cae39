//! The book's page of the published figures, each beside what was measured here: `docs/published.md`. It is
//! made from `docs/measured`, which has the output of the commands on the page.

use std::path::Path;

use crate::committed;
use crate::compare::Comparison;
use crate::compare::columns::ratio;
use crate::compare::published;
use crate::cost;
use crate::mode::Mode;
use crate::size::format_size;
use crate::text::format_seconds;

#[test]
fn the_page_of_published_figures_follows_from_what_was_measured() {
    let [push_pull, train, two] = ["compare", "train", "train-2"].map(|name| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/measured/{name}.json"));
        serde_json::from_str::<Comparison>(&std::fs::read_to_string(file).unwrap()).unwrap()
    });
    let page = include_str!("published.md")
        .replace("PUSH_PULL_TABLE\n", &push_pull_table(&push_pull))
        .replace("TRAINING_TABLE\n", &training_table(&[&train, &two]))
        .replace("PUSH_PULL_COMMAND", &push_pull.command)
        .replace("TRAINING_COMMAND", &train.command)
        .replace("TWO_COMMAND", &two.command);
    committed::keep("docs/published.md", &page);
}

/// A row for each published time. Beside it is our time with the same number of servers on the workers'
/// hosts. Each time is also divided by its bound.
fn push_pull_table(results: &Comparison) -> String {
    let (rate, bytes) = (1.25e9, 400e6);
    let here = format!("{} at {}", format_size(results.setup.bytes as f64), results.setup.link);
    let head = ["published", "400 MB at 10 Gbit/s", "/ its bound", "like it here", &here, "/ its bound"];
    let rows = published::PUSH_PULL.iter().map(|row| {
        let ours = match row.servers {
            0 => "dist_sync_mpi".to_owned(),
            servers => format!("dist_sync:{servers}shared"),
        };
        let bound_s = cost::mode_bound_s(ours.parse::<Mode>().unwrap(), results.setup.workers, bytes, rate);
        let record = results.row(&ours).and_then(|row| row.record()).unwrap();
        [
            row.method.to_owned(),
            format_seconds(row.seconds),
            ratio(row.seconds / bound_s),
            format!("`{ours}`"),
            format_seconds(record.median_s),
            ratio(record.ratio_to_mode_bound.unwrap()),
        ]
    });
    table(&head.map(str::to_owned), rows)
}

/// A row for each published efficiency, beside the efficiency that we measured with the same servers.
fn training_table(measured: &[&Comparison]) -> String {
    let head = ["published", "images/s of a host", "efficiency", "here", "images/s of a host", "efficiency"];
    let rows = published::TRAINING.iter().map(|row| {
        let record = measured.iter().find_map(|results| results.row(row.variant)?.record()).unwrap();
        let train = record.train.unwrap();
        [
            row.method.to_owned(),
            format!("{:.2}", row.images_per_s),
            format!("{:.2} %", row.efficiency),
            format!("`{}`", row.variant),
            format!("{:.2}", train.images_per_s.unwrap()),
            format!("{:.2} %", 100.0 * train.efficiency),
        ]
    });
    table(&head.map(str::to_owned), rows)
}

fn table(head: &[String; 6], rows: impl Iterator<Item = [String; 6]>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = format!("|{}\n", " --- |".repeat(head.len()));
    line(head) + &rule + &rows.map(|cells| line(&cells)).collect::<String>()
}
