//! One self-contained HTML page: the verdict, the charts, every sample, how it was measured and the command
//! that repeats it.
//!
//! It has no script and loads nothing. It fits paper, light and dark screens, phones and laptops.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment as Templates, Value, context};

use ringpull_base::{Error, Result};

use crate::compare::charts::{Bar, Chart, plain};
use crate::compare::columns::columns;
use crate::compare::notes::notes;
use crate::compare::published;
use crate::compare::results::{Comparison, Measured, Row};
use crate::compare::table::how;
use crate::text::format_seconds;
use crate::variant::Family;

const TEMPLATE: &str = include_str!("report.html");

pub(crate) fn render(results: &Comparison) -> Result<String> {
    let mut templates = Templates::new();
    let failed = |cause: minijinja::Error| Error::io("render", "report.html", &std::io::Error::other(cause));
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?);
    templates.add_template("report.html", TEMPLATE).map_err(failed)?;
    let setup = &results.setup;
    let template = templates.get_template("report.html").map_err(failed)?;
    let families = Family::ALL.into_iter().filter(|(family, _)| results.rows.iter().any(|row| row.family == *family));
    template
        .render(context! {
            has_uplink => setup.uplink().bytes_per_s().is_some(),
            results => Serde(results),
            has_link => setup.link.bytes_per_s().is_some(),
            notes => notes(results),
            families => families.map(|(family, words)| context! { class => Serde(family), words }).collect::<Vec<_>>(),
            charts => charts(results).iter().map(Chart::drawn).collect::<Vec<_>>(),
            heads => columns(results).iter().map(|column| column.html).collect::<Vec<_>>(),
            lines => lines(results),
            published => published_lines(results),
            train => setup.train.as_ref().map(|train| context! {
                compute => format_seconds(train.compute_s),
                how => how(train),
            }),
            training => Serde(published::TRAINING),
        })
        .map_err(failed)
}

/// Length, label and samples of a row's bar, if it has one.
type BarOf<'a> = &'a dyn Fn(&Measured<'_>) -> Option<(f64, String, Vec<f64>)>;

/// The charts in the order of the page. All have their bars in the order of the ranking.
fn charts(results: &Comparison) -> Vec<Chart> {
    let ranking = results.ranking();
    let chart = |id, title, axis, reference: Option<(f64, String)>, tick, of: BarOf<'_>| {
        let bars = ranking.iter().filter_map(|measured| {
            let (value, label, samples) = of(measured)?;
            let Row { variant, family, .. } = measured.row;
            Some(Bar { name: variant.clone(), family: *family, value, label, samples })
        });
        Chart { id, title, axis, reference, bars: bars.collect(), tick }
    };
    let seconds = "seconds, slowest worker; bar: median, ticks: samples";
    let median = |measured: &Measured<'_>| {
        let median = measured.summary.median;
        Some((median, format_seconds(median), measured.record.seconds.clone()))
    };
    let charts = if results.setup.train.is_some() {
        let computing = ranking.first().and_then(Measured::train).map(|train| train.compute_s);
        let computing = computing.map(|value| (value, format!("computing {}", format_seconds(value))));
        vec![
            efficiency(results, &ranking),
            chart("step", "Time of a step", seconds, computing, plain, &median),
            chart(
                "images",
                "Images per second of each machine used",
                "images/s of all workers over all machines",
                None,
                plain,
                &|measured| {
                    let rate = measured.images_per_machine(results)?;
                    Some((rate, format!("{rate:.2}"), Vec::new()))
                },
            ),
        ]
    } else {
        let bound = results.rows.iter().find_map(|row| row.record()?.bound_s);
        let bound = bound.map(|value| (value, format!("allreduce bound {}", format_seconds(value))));
        vec![
            chart("time", "Time of one push and pull", seconds, bound, plain, &median),
            chart(
                "traffic",
                "Bytes through the busiest host",
                "MB in the busier direction, one push and pull",
                None,
                plain,
                &|Measured { row, .. }| {
                    let (bytes, _) = row.host_bytes(results.setup.own_hosts)?;
                    Some((bytes / 1e6, row.host_bytes_words(results.setup.own_hosts)?, Vec::new()))
                },
            ),
            chart(
                "machine",
                "Time with every machine charged",
                "seconds x machines / workers",
                None,
                plain,
                &|measured| {
                    let seconds = measured.row.per_machine_s(results.setup.workers)?;
                    Some((seconds, format_seconds(seconds), Vec::new()))
                },
            ),
        ]
    };
    charts.into_iter().filter(|chart| !chart.bars.is_empty()).collect()
}

/// The scaling efficiencies, each next to the published one.
fn efficiency(results: &Comparison, ranking: &[Measured<'_>]) -> Chart {
    let mut bars = Vec::new();
    for measured in ranking {
        let Some(train) = measured.train() else { continue };
        bars.push(Bar {
            name: measured.row.variant.clone(),
            family: measured.row.family,
            value: 100.0 * train.efficiency,
            label: format!("{:.2}", 100.0 * train.efficiency),
            samples: measured.record.seconds.iter().map(|step| 100.0 * train.compute_s / step).collect(),
        });
        bars.extend(measured.published(results).map(|known| Bar {
            name: format!("published: {}", known.method.split(',').next().unwrap_or_default()),
            family: Family::Peer,
            value: known.efficiency,
            label: format!("{:.2}", known.efficiency),
            samples: Vec::new(),
        }));
    }
    Chart {
        id: "efficiency",
        title: "Scaling efficiency",
        axis: "per cent of a step; ticks: single steps",
        reference: Some((100.0, "all communication hidden".to_owned())),
        bars,
        tick: |value| format!("{} %", plain(value)),
    }
}

fn lines(results: &Comparison) -> Vec<Value> {
    let best = results.ranking().first().map(|measured| measured.row.variant.clone());
    let line = |row: &Row| {
        let cells = row.measured().map(|measured| {
            let cell = |cell: Option<String>| cell.map_or("\u{2013}".to_owned(), |text| text.replace("+-", "\u{b1}"));
            columns(results).iter().map(|column| cell((column.cell)(&measured, results))).collect::<Vec<_>>()
        });
        context! {
            method => row.method.as_str(),
            class => Serde(row.family),
            servers => row.servers,
            machines => row.machines,
            status => row.status(),
            best => best.as_ref() == Some(&row.variant),
            cells => cells,
        }
    };
    results.rows.iter().map(line).collect()
}

/// The published rows, each with ours with as many servers on the workers' hosts.
fn published_lines(results: &Comparison) -> Vec<Value> {
    let ratio = |variant: &str| {
        let ratio = results.row(variant).and_then(|row| row.record()?.ratio_to_bound);
        ratio.map_or("\u{2013}".to_owned(), |ratio| format!("{ratio:.2}"))
    };
    published::PUSH_PULL
        .into_iter()
        .map(|row| {
            let ours = match row.servers {
                0 => "dist_sync_mpi".to_owned(),
                servers => format!("dist_sync:{servers}shared"),
            };
            let theirs = if row.servers == 0 { "mpi".to_owned() } else { format!("mxnet:{ours}") };
            context! {
                method => row.method,
                time => format_seconds(row.seconds),
                ratio => format!("{:.2}", row.seconds / published::BOUND_S),
                ours => ratio(&ours),
                mxnet => ratio(&theirs),
            }
        })
        .collect()
}
