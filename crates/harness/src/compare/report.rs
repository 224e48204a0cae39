//! One self-contained HTML page: the verdict, the charts, every sample, how it was measured and the command
//! that repeats it.
//!
//! It has no script and loads nothing. It fits paper, light and dark screens, phones and laptops.

use minijinja::value::Serde;
use minijinja::{Value, context};

use ringpull_base::Result;

use crate::charts::picture::{filled, framed};
use crate::charts::{Bar, Chart, Curve, Curves, Drawing, percent, plain};
use crate::compare::columns::{columns, ratio};
use crate::compare::notes::notes;
use crate::compare::published;
use crate::compare::results::{Comparison, MeasuredRow, Row};
use crate::compare::table::{order, rounds};
use crate::cost;
use crate::statistics::FEWEST_ROUNDS;
use crate::text::{format_seconds, several};
use crate::variant::Family;

/// The families of the rows, with their words, in the order of the legend.
fn families(results: &Comparison) -> impl Iterator<Item = (Family, &'static str)> {
    Family::ALL.into_iter().filter(|(family, _)| results.rows.iter().any(|row| row.family == *family))
}

/// The subject of the comparison, in one line.
pub(super) fn headline(results: &Comparison) -> String {
    let setup = &results.setup;
    let what = if setup.train.is_some() { "Training " } else { "" };
    format!("Allreduce or parameter servers? {what}{} on {}", setup.payload, several(setup.workers, "worker"))
}

/// The place of the comparison, for half a line.
pub(super) fn place(results: &Comparison) -> String {
    let setup = &results.setup;
    let rate = setup.link.bytes_per_s().map_or_else(String::new, |_| format!(", links of {}", setup.link));
    format!("{}{rate}", setup.place)
}

/// The first chart as a file of its own, for a page or a message. Returns `None` if nothing was measured.
pub fn picture(results: &Comparison) -> Result<Option<String>> {
    let setup = &results.setup;
    let Some(chart) = drawings(results).into_iter().next() else { return Ok(None) };
    let subtitle = format!("{} on {}, {}", setup.payload, several(setup.workers, "worker"), place(results));
    framed(&chart, &subtitle, families(results)).map(Some)
}

pub fn render(results: &Comparison) -> Result<String> {
    let setup = &results.setup;
    let families = families(results).map(|(family, words)| context! { class => Serde(family), words });
    filled(
        "report.html",
        include_str!("report.html"),
        context! {
            headline => headline(results),
            has_uplink => setup.uplink().bytes_per_s().is_some(),
            has_slow_hosts => !setup.slow_hosts.is_empty(),
            results => Serde(results),
            has_link => setup.link.bytes_per_s().is_some(),
            machines => results.environment.machines(setup),
            order => order(results),
            is_charged => results.any_needs_more(),
            rounds => rounds(results),
            iterations => several(setup.iters, if setup.train.is_some() { "step" } else { "iteration" }),
            warmup => several(setup.warmup, "iteration"),
            fewest_rounds => FEWEST_ROUNDS,
            notes => notes(results),
            families => families.collect::<Vec<_>>(),
            charts => Serde(drawings(results)),
            heads => columns(results).iter().map(|column| column.title).collect::<Vec<_>>(),
            lines => lines(results),
            published => published_lines(results),
            train => setup.train.as_ref().map(|train| context! {
                compute => format_seconds(train.compute_s),
                how => "replayed by the clock",
            }),
            training => Serde(published::TRAINING),
        },
    )
}

/// Every chart, laid out, in the order of the page.
pub(super) fn drawings(results: &Comparison) -> Vec<Drawing> {
    let mut drawings: Vec<Drawing> = charts(results).iter().map(Chart::drawn).collect();
    if let Some(curves) = scaling(results) {
        drawings.insert(0, curves.drawn());
    }
    drawings
}

/// Time or efficiency over the number of workers, if several were measured.
fn scaling(results: &Comparison) -> Option<Curves> {
    let counts = results.counts();
    if counts.len() < 2 {
        return None;
    }
    let is_training = results.setup.train.is_some();
    let value = |row: &Row| {
        let measured = row.measured()?;
        Some(measured.train().map_or(measured.summary.median, |train| 100.0 * train.efficiency))
    };
    let ranking = results.ranking();
    let mut of_variants: Vec<Curve> = ranking
        .iter()
        .map(|it| {
            let of = |(workers, rows): &(usize, &[Row])| {
                let row = rows.iter().find(|row| row.variant == it.row.variant)?;
                Some((*workers, value(row)?))
            };
            let published = results.published_scaling(&it.row.variant);
            Curve {
                name: it.row.variant.clone(),
                family: Some(it.row.family),
                points: counts.iter().filter_map(of).collect(),
                published: published.map(|known| (published::WORKERS, known.efficiency)),
            }
        })
        .filter(|curve| curve.points.len() > 1)
        .collect();
    if let Some(links) = results.setup.links().filter(|_| !is_training) {
        let bound = |workers: usize| cost::allreduce_bound_s(workers, results.setup.bytes as f64, links);
        let points = counts.iter().map(|(workers, _)| (*workers, bound(*workers))).collect();
        of_variants.push(Curve { name: "allreduce bound".to_owned(), family: None, points, published: None });
    }
    let (title, axis, tick): (_, _, fn(f64) -> String) = if is_training {
        let has_published = of_variants.iter().any(|curve| curve.published.is_some());
        (
            if has_published {
                "Efficiency by workers (circles, grey: published)"
            } else {
                "Scaling efficiency by number of workers"
            },
            "per cent of a step that computes, over the number of workers",
            percent,
        )
    } else {
        ("Time by number of workers", "seconds (median) over the number of workers", plain)
    };
    Some(Curves { id: "scaling", title, axis, by_doubling: is_training, of_variants, tick })
}

/// Length, label and samples of a row's bar, if it has one.
type BarOf<'a> = &'a dyn Fn(&MeasuredRow<'_>) -> Option<(f64, String, Vec<f64>)>;

/// The bar charts in the order of the page. All have their bars in the order of the ranking.
fn charts(results: &Comparison) -> Vec<Chart> {
    let ranking = results.ranking();
    let chart = |id, title, axis, reference: Option<(f64, String)>, tick, of: BarOf<'_>| {
        let bars = ranking.iter().filter_map(|measured| {
            let (value, label, samples) = of(measured)?;
            let Row { variant, family, .. } = measured.row;
            let words = measured.row.words();
            Some(Bar { name: variant.clone(), words, family: *family, value, label, samples })
        });
        Chart { id, title, axis, reference, bars: bars.collect(), tick }
    };
    let seconds = "seconds, slowest worker; bar: median, ticks: samples";
    let median = |measured: &MeasuredRow<'_>| {
        let median = measured.summary.median;
        Some((median, format_seconds(median), measured.record.seconds.clone()))
    };
    let charts = if results.setup.train.is_some() {
        let computing = ranking.first().and_then(MeasuredRow::train).map(|train| train.compute_s);
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
        // Rows of a table are compared with the way that moves the fewest bytes.
        let of = if results.setup.sparse.is_some() { "servers' bound" } else { "allreduce bound" };
        let bound = bound.map(|value| (value, format!("{of} {}", format_seconds(value))));
        vec![
            chart("time", "Time of one push and pull", seconds, bound, plain, &median),
            chart(
                "traffic",
                "Bytes through the busiest host",
                "MB in the busier direction, one push and pull",
                None,
                plain,
                &|MeasuredRow { row, .. }| {
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
                    // If no variant needs extra machines, this chart would repeat the first one.
                    let seconds = measured.row.per_machine_s(results.setup.workers)?;
                    results.any_needs_more().then(|| (seconds, format_seconds(seconds), Vec::new()))
                },
            ),
        ]
    };
    charts.into_iter().filter(|chart| !chart.bars.is_empty()).collect()
}

/// The scaling efficiencies, each next to the published one.
fn efficiency(results: &Comparison, ranking: &[MeasuredRow<'_>]) -> Chart {
    let mut bars = Vec::new();
    for measured in ranking {
        let Some(train) = measured.train() else { continue };
        bars.push(Bar {
            name: measured.row.variant.clone(),
            words: measured.row.words(),
            family: measured.row.family,
            value: 100.0 * train.efficiency,
            label: format!("{:.2} %", 100.0 * train.efficiency),
            samples: measured.record.seconds.iter().map(|step| 100.0 * train.compute_s / step).collect(),
        });
        bars.extend(measured.published(results).map(|known| Bar {
            name: "published".to_owned(),
            words: known.method.to_owned(),
            family: Family::Peer,
            value: known.efficiency,
            label: format!("{:.2} %", known.efficiency),
            samples: Vec::new(),
        }));
    }
    Chart {
        id: "efficiency",
        title: "Scaling efficiency",
        axis: "per cent of a step; ticks: single steps",
        reference: Some((100.0, "all communication hidden".to_owned())),
        bars,
        tick: percent,
    }
}

fn lines(results: &Comparison) -> Vec<Value> {
    let home = results.home().map(|measured| measured.row.variant.clone());
    let heads = columns(results);
    let line = |row: &Row| {
        let cells = row.measured().map(|measured| {
            let cell = |cell: Option<String>| cell.map_or("\u{2013}".to_owned(), |text| text.replace("+-", "\u{b1}"));
            let cells = heads.iter().map(|column| (column.heading, cell((column.cell)(&measured, results))));
            cells.map(|(head, text)| context! { head, text }).collect::<Vec<_>>()
        });
        context! {
            name => row.variant.as_str(),
            words => row.words(),
            class => Serde(row.family),
            status => row.status(),
            home => home.as_ref() == Some(&row.variant),
            cells => cells,
        }
    };
    results.sorted_rows().into_iter().map(line).collect()
}

/// The published rows, each beside our row with the same number of servers on the workers' hosts. Columns
/// that would have no figure are left out.
fn published_lines(results: &Comparison) -> Value {
    let factor = |variant: &str| results.row(variant).and_then(|row| row.record()?.ratio_to_bound).map(ratio);
    let lines = published::PUSH_PULL.map(|row| {
        let ours = match row.servers {
            0 => "dist_sync_mpi".to_owned(),
            servers => format!("dist_sync:{servers}shared"),
        };
        let theirs = if row.servers == 0 { "mpi".to_owned() } else { format!("mxnet:{ours}") };
        (row, factor(&ours), factor(&theirs))
    });
    let has_ours = lines.iter().any(|(_, ours, _)| ours.is_some());
    let has_theirs = lines.iter().any(|(.., theirs)| theirs.is_some());
    let cell = |factor: &Option<String>| factor.clone().unwrap_or_else(|| "\u{2013}".to_owned());
    let rows = lines.iter().map(|(row, ours, theirs)| {
        context! {
            method => row.method,
            time => format_seconds(row.seconds),
            ratio => ratio(row.seconds / published::BOUND_S),
            ours => cell(ours),
            theirs => cell(theirs),
        }
    });
    context! { has_ours, has_theirs, rows => rows.collect::<Vec<_>>() }
}
