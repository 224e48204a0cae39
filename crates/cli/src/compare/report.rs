//! One self-contained HTML page: the verdict, the charts, every sample, how it was measured and how to do it again.
//!
//! No script and nothing from outside; it prints, and reads in light and dark, on a phone and on a laptop.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment as Templates, Value, context};

use ringpull_base::{Error, Result};

use crate::compare::charts::{Bar, Chart, Reference, class, plain};
use crate::compare::notes::notes;
use crate::compare::numbers::format_seconds;
use crate::compare::results::{Outcome, Results, Row};
use crate::compare::{published, training_page};
use crate::mode::Family;
use crate::statistics::Summary;

const TEMPLATE: &str = include_str!("report.html");

/// The page.
pub fn render(results: &Results) -> Result<String> {
    let mut templates = Templates::new();
    let failed = |cause: minijinja::Error| Error::io("render", "report.html", &std::io::Error::other(cause));
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?);
    templates.add_template("report.html", TEMPLATE).map_err(failed)?;
    let (setup, environment) = (results.setup.clone(), results.environment.clone());
    let template = templates.get_template("report.html").map_err(failed)?;
    let families: Vec<_> = Family::ALL
        .into_iter()
        .filter(|family| results.rows.iter().any(|row| row.family == *family))
        .map(|family| context! { class => class(family), words => family.words() })
        .collect();
    template
        .render(context! {
            has_uplink => setup.uplink_bytes_per_s().is_some(),
            setup => context! {
                place => setup.place,
                workers => setup.workers,
                payload => setup.payload,
                bytes => setup.bytes,
                rounds => setup.rounds,
                iters => setup.iters,
                warmup => setup.warmup,
            },
            link => setup.link.to_string(),
            has_link => setup.link.bytes_per_s().is_some(),
            environment => context! {
                date => environment.date,
                cores => environment.cores,
                kernel => environment.kernel,
                mpi => environment.mpi,
                ringpull => environment.ringpull,
            },
            verdict => results.verdict.clone(),
            notes => notes(results),
            command => results.command.as_str(),
            families => families,
            charts => charts(results).iter().map(|chart| context! { title => chart.title.as_str(), svg => chart.svg() }).collect::<Vec<_>>(),
            lines => lines(results),
            samples => samples(results),
            published => published_lines(results),
            train => results.setup.train.as_ref().map(|train| training_page::context_of(results, train)),
            training => published::TRAINING.into_iter().map(|row| context! {
                method => row.method,
                machines => row.machines,
                images => format!("{:.2}", row.images_per_s),
                per_machine => format!("{:.2}", row.images_per_s * 8.0 / row.machines as f64),
                efficiency => format!("{:.1} %", row.efficiency),
            }).collect::<Vec<_>>(),
        })
        .map_err(failed)
}

/// Length, label and samples of a row's bar, if it has one.
type BarOf<'a> = &'a dyn Fn(&Row, &Summary) -> Option<(f64, String, Vec<f64>)>;

/// The charts in the order of the page. Bars stand in the order of time, fastest first, in all of them.
fn charts(results: &Results) -> Vec<Chart> {
    if results.setup.train.is_some() {
        return training_page::charts(results);
    }
    let ranking = results.ranking();
    if ranking.is_empty() {
        return Vec::new();
    }
    let bars = |of: BarOf<'_>| -> Vec<Bar> {
        ranking
            .iter()
            .filter_map(|(row, summary)| {
                let (value, label, samples) = of(row, summary)?;
                Some(Bar { name: row.variant.clone(), class: class(row.family), value, label, samples })
            })
            .collect()
    };
    let bound = results.rows.iter().find_map(|row| row.record()?.bound_s);
    let time = Chart {
        id: "time",
        title: "Time of one push and pull".to_owned(),
        axis: "seconds, slowest worker; bar: median, ticks: samples".to_owned(),
        reference: bound.map(|value| Reference { value, label: format!("allreduce bound {}", format_seconds(value)) }),
        bars: bars(&|row, summary| {
            Some((summary.median, format_seconds(summary.median), row.record()?.seconds.clone()))
        }),
        tick: plain,
    };
    let ratio = Chart {
        id: "ratio",
        title: "Time over the allreduce bound".to_owned(),
        axis: "times the bound, 2(n-1)/n x payload / link".to_owned(),
        reference: Some(Reference { value: 1.0, label: "bound".to_owned() }),
        bars: bars(&|row, _| {
            let ratio = row.record()?.ratio_to_bound?;
            Some((ratio, format!("{ratio:.2}x"), Vec::new()))
        }),
        tick: |value| format!("{}x", plain(value)),
    };
    let traffic = Chart {
        id: "traffic",
        title: "Bytes through the busiest host".to_owned(),
        axis: "MB in the busier direction, one push and pull".to_owned(),
        reference: None,
        bars: bars(&|row, _| {
            let (bytes, _) = row.host_bytes(results.setup.own_hosts)?;
            Some((bytes / 1e6, row.host_bytes_words(results.setup.own_hosts)?, Vec::new()))
        }),
        tick: plain,
    };
    let workers = results.setup.workers;
    let machine = Chart {
        id: "machine",
        title: "Time with every machine charged".to_owned(),
        axis: "seconds x machines / workers".to_owned(),
        reference: None,
        bars: bars(&|row, _| {
            let seconds = row.per_machine_s(workers)?;
            Some((seconds, format_seconds(seconds), Vec::new()))
        }),
        tick: plain,
    };
    [time, ratio, traffic, machine].into_iter().filter(|chart| !chart.bars.is_empty()).collect()
}

fn lines(results: &Results) -> Vec<Value> {
    let best = results.ranking().first().map(|(_, summary)| summary.median);
    let none = || "\u{2013}".to_owned();
    let line = |row: &Row| {
        let measured = row.record().zip(row.summary());
        let with = |words: &dyn Fn(&crate::record::Record, &Summary) -> Option<String>| {
            measured.and_then(|(record, summary)| words(record, &summary)).unwrap_or_else(none)
        };
        context! {
            variant => row.variant.clone(),
            method => row.method.clone(),
            class => class(row.family),
            servers => row.servers,
            machines => row.machines,
            best => measured.is_some_and(|(_, summary)| Some(summary.median) == best),
            time => with(&|_, summary| Some(format_seconds(summary.median))),
            spread => with(&|_, summary| Some(format!("\u{b1}{:.1} %", 100.0 * summary.relative_spread()))),
            ratio => with(&|record, _| Some(format!("{:.2}", record.ratio_to_bound?))),
            own_ratio => with(&|record, summary| Some(format!("{:.2}", summary.median / record.mode_bound_s?))),
            per_machine => with(&|_, _| row.per_machine_s(results.setup.workers).map(format_seconds)),
            relative => with(&|_, summary| Some(format!("{:.2}x", summary.median / best?))),
            host_bytes => with(&|_, _| row.host_bytes_words(results.setup.own_hosts)),
            status => row.status(),
        }
    };
    results.rows.iter().map(line).collect()
}

fn samples(results: &Results) -> Vec<Value> {
    let one = |row: &Row| {
        let Outcome::Measured { rounds, .. } = &row.outcome else { return None };
        let rounds = rounds.iter().map(|round| {
            let seconds: Vec<String> = round.seconds.iter().map(|seconds| format!("{seconds:.4}")).collect();
            context! { round => round.round, place => round.place, seconds => seconds.join("  ") }
        });
        Some(context! { variant => row.variant.as_str(), rounds => rounds.collect::<Vec<_>>() })
    };
    results.rows.iter().filter_map(one).collect()
}

/// The published rows, each beside ours with as many servers on the workers' hosts.
fn published_lines(results: &Results) -> Vec<Value> {
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
