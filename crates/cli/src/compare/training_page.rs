//! What the report shows where steps of training are compared: its rows, its charts, and the published rates beside them.

use minijinja::{Value, context};

use crate::compare::charts::{Bar, Chart, Reference, class, plain};
use crate::compare::numbers::format_seconds;
use crate::compare::published;
use crate::compare::results::{Results, TrainSetup};
use crate::compare::training::{Figures, Trained, how, ranking};
use crate::mode::Family;

/// Length, label and samples of a row's bar, if it has one.
type BarOf<'a> = &'a dyn Fn(&Trained<'_>) -> Option<(f64, String, Vec<f64>)>;

/// The charts, most efficient variant first in all of them.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let ranking = ranking(results);
    let workers = results.setup.workers;
    let mut beside = Vec::new();
    for trained in &ranking {
        let steps = trained.row.record().map(|record| record.seconds.as_slice()).unwrap_or_default();
        beside.push(Bar {
            name: trained.row.variant.clone(),
            class: class(trained.row.family),
            value: 100.0 * trained.train.efficiency,
            label: format!("{:.2}", 100.0 * trained.train.efficiency),
            samples: steps.iter().map(|step| 100.0 * trained.train.compute_s / step).collect(),
        });
        beside.extend(trained.published.map(|known| Bar {
            name: format!("published: {}", known.method.split(',').next().unwrap_or_default()),
            class: class(Family::Peer),
            value: known.efficiency,
            label: format!("{:.2}", known.efficiency),
            samples: Vec::new(),
        }));
    }
    let efficiency = Chart {
        id: "efficiency",
        title: "Scaling efficiency".to_owned(),
        axis: "per cent of a step; ticks: single steps".to_owned(),
        reference: Some(Reference { value: 100.0, label: "all communication hidden".to_owned() }),
        bars: beside,
        tick: |value| format!("{} %", plain(value)),
    };
    let bars = |of: BarOf<'_>| -> Vec<Bar> {
        let bar = |trained| {
            let (value, label, samples) = of(trained)?;
            Some(Bar { name: trained.row.variant.clone(), class: class(trained.row.family), value, label, samples })
        };
        ranking.iter().filter_map(bar).collect()
    };
    let computing = ranking.first().map(|trained| trained.train.compute_s);
    let step = Chart {
        id: "step",
        title: "Time of a step".to_owned(),
        axis: "seconds, slowest worker; bar: median, ticks: samples".to_owned(),
        reference: computing.map(|value| Reference { value, label: format!("computing {}", format_seconds(value)) }),
        bars: bars(&|trained| {
            let record = trained.row.record()?;
            Some((record.median_s, format_seconds(record.median_s), record.seconds.clone()))
        }),
        tick: plain,
    };
    let machine = Chart {
        id: "images",
        title: "Images per second of each machine used".to_owned(),
        axis: "images/s of all workers over all machines".to_owned(),
        reference: None,
        bars: bars(&|trained| {
            let rate = trained.train.images_per_s? * workers as f64 / trained.row.machines as f64;
            Some((rate, format!("{rate:.2}"), Vec::new()))
        }),
        tick: plain,
    };
    [efficiency, step, machine].into_iter().filter(|chart| !chart.bars.is_empty()).collect()
}

/// What the page's template asks for.
pub(super) fn context_of(results: &Results, train: &TrainSetup) -> Value {
    let ranking = ranking(results);
    let none = || "\u{2013}".to_owned();
    let best = ranking.first().map(|trained| trained.row.variant.as_str());
    let lines: Vec<Value> = results
        .rows
        .iter()
        .map(|row| {
            let found = ranking.iter().find(|trained| trained.row.variant == row.variant);
            let figures = found.map(|trained| Figures::of(trained, results.setup.workers));
            let with = |of: &dyn Fn(&Figures) -> Option<String>| figures.as_ref().and_then(of).unwrap_or_else(none);
            let images = found.and_then(|trained| trained.published).map(|known| format!("{:.2}", known.images_per_s));
            context! {
                method => row.method.as_str(),
                class => class(row.family),
                servers => row.servers,
                machines => row.machines,
                status => row.status(),
                best => best == Some(row.variant.as_str()),
                step => row.summary().map_or_else(none, |summary| format_seconds(summary.median)),
                spread => row
                    .summary()
                    .map_or_else(none, |summary| format!("\u{b1}{:.1} %", 100.0 * summary.relative_spread())),
                exposed => with(&|figures| Some(figures.exposed.clone())),
                efficiency => with(&|figures| Some(figures.efficiency.clone())),
                of_possible => with(&|figures| figures.of_possible.clone()),
                images => with(&|figures| figures.images.clone()),
                images_per_machine => with(&|figures| figures.images_per_machine.clone()),
                published => with(&|figures| figures.published.clone()),
                published_images => images.unwrap_or_else(none),
            }
        })
        .collect();
    context! {
        model => train.model.as_str(),
        compute => format_seconds(train.compute_s),
        how => how(train),
        published_compute => format_seconds(published::COMPUTE_S),
        lines => lines,
    }
}
