//! One self-contained HTML page: the verdict, the charts, every sample, how it was measured and the command
//! that repeats it.
//!
//! It has no script and loads nothing. It fits paper, light and dark screens, phones and laptops.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment as Templates, Value, context};

use ringpull_base::{Error, Result};

use crate::compare::charts::{Bar, Chart, plain};
use crate::compare::columns::columns;
use crate::compare::notes::notes;
use crate::compare::published;
use crate::compare::results::{Comparison, Measured, Row};
use crate::compare::table::how;
use crate::text::format_seconds;
use crate::variant::Family;

const TEMPLATES: [(&str, &str); 3] = [
    ("report.html", include_str!("report.html")),
    ("chart.svg", include_str!("chart.svg")),
    ("bars.svg", include_str!("bars.svg")),
];

/// One of the templates, filled.
fn filled(name: &str, values: Value) -> Result<String> {
    let mut templates = Templates::new();
    let failed = |cause: minijinja::Error| Error::io("render", name, &std::io::Error::other(cause));
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?);
    for (name, text) in TEMPLATES {
        templates.add_template(name, text).map_err(failed)?;
    }
    // Names that end in .svg are not escaped unless this is said.
    templates.set_auto_escape_callback(|_| AutoEscape::Html);
    templates.get_template(name).map_err(failed)?.render(values).map_err(failed)
}

/// The families of the rows, with their words, in the order of the legend.
fn families(results: &Comparison) -> impl Iterator<Item = (Family, &'static str)> {
    Family::ALL.into_iter().filter(|(family, _)| results.rows.iter().any(|row| row.family == *family))
}

/// A method for readers who know no modes, with its mode.
fn words(row: &Row) -> String {
    let count = format!("{} server{}", row.servers, if row.servers == 1 { "" } else { "s" });
    match row.family {
        Family::Shared => format!("{count} on the workers' hosts ({})", row.variant),
        Family::Dedicated => format!("{count} on their own hosts ({})", row.variant),
        _ if row.servers > 0 => format!("{}, {count}", row.method),
        _ => row.method.clone(),
    }
}

/// The first chart as a file of its own, for a page or a message; none if nothing was measured.
pub(crate) fn picture(results: &Comparison) -> Result<Option<String>> {
    let setup = &results.setup;
    let Some(mut chart) = charts(results).into_iter().next() else { return Ok(None) };
    for bar in &mut chart.bars {
        if let Some(row) = results.row(&bar.name) {
            bar.name = words(row);
        }
    }
    let rate = setup.link.bytes_per_s().map_or_else(String::new, |_| format!(", links of {}", setup.link));
    let subtitle = format!("{} on {} workers, {}{rate}", setup.payload, setup.workers, setup.place);
    let legend: Vec<Value> = (0..)
        .zip(families(results))
        .map(|(index, (family, words))| {
            context! { class => Serde(family), words, x => 24 + 356 * (index % 2), y => 70 + 20 * (index / 2) }
        })
        .collect();
    let top = 90 + 20 * legend.len().div_ceil(2);
    let values = context! { title => chart.title, subtitle, families => legend, top, chart => chart.drawn() };
    filled("chart.svg", values).map(Some)
}

pub(crate) fn render(results: &Comparison) -> Result<String> {
    let setup = &results.setup;
    let families = families(results).map(|(family, words)| context! { class => Serde(family), words });
    filled(
        "report.html",
        context! {
            has_uplink => setup.uplink().bytes_per_s().is_some(),
            results => Serde(results),
            has_link => setup.link.bytes_per_s().is_some(),
            notes => notes(results),
            families => families.collect::<Vec<_>>(),
            charts => charts(results).iter().map(Chart::drawn).collect::<Vec<_>>(),
            heads => columns(results).iter().map(|column| column.html).collect::<Vec<_>>(),
            lines => lines(results),
            published => published_lines(results),
            train => setup.train.as_ref().map(|train| context! {
                compute => format_seconds(train.compute_s),
                how => how(train),
            }),
            training => Serde(published::TRAINING),
        },
    )
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
