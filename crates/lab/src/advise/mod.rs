//! Finds the mode that is worth its hosts: predicts steps of training for numbers of hosts that nobody has to
//! try.
//!
//! [`predict`] gives a step in one mode to the simulation. An [`Advice`] has the rows of all modes and
//! numbers of hosts; `verdict` names the mode that wins. All is pure.

pub mod predict;
pub mod table;
pub mod verdict;

use std::sync::Mutex;

use serde::Serialize;

use ringpull_base::Result;

use crate::advise::predict::Setting;
use ringpull_harness::cost;
use ringpull_harness::mode::{Mode, ServerPlacement};
use ringpull_harness::variant::{Family, Variant};

/// A mode. Its number of servers may depend on the number of hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    pub name: String,
    of: ModelKind,
}

#[derive(Debug, Clone, PartialEq)]
enum ModelKind {
    Fixed(Variant),
    /// The number of servers is the number of hosts divided by this number, and at least one.
    Servers(usize, ServerPlacement),
    /// The number of helpers is the number of hosts.
    Helpers,
}

impl Choice {
    pub fn fixed(variant: Variant) -> Self {
        Choice { name: variant.to_string(), of: ModelKind::Fixed(variant) }
    }

    /// The modes that are predicted unless some are named.
    pub fn all() -> Vec<Self> {
        let fixed = |name: &str| name.parse().ok().map(Choice::fixed);
        let servers = |name: &str, divisor, placement| {
            Some(Choice { name: name.to_owned(), of: ModelKind::Servers(divisor, placement) })
        };
        [
            fixed("dist_sync_mpi"),
            fixed("dist_sync_mpi+fp16"),
            fixed("dist_sync_mpi+2bit:0.5"),
            fixed("dist_sync:1shared"),
            servers("dist_sync:Kshared, K=n/2", 2, ServerPlacement::Shared),
            servers("dist_sync:Kshared, K=n", 1, ServerPlacement::Shared),
            fixed("dist_sync:1"),
            servers("dist_sync:K, K=n/2", 2, ServerPlacement::Dedicated),
            servers("dist_sync:K, K=n", 1, ServerPlacement::Dedicated),
            Some(Choice { name: "dist_sync_mpi:Khelpers, K=n".to_owned(), of: ModelKind::Helpers }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    pub fn variant(&self, hosts: usize) -> Variant {
        match self.of {
            ModelKind::Fixed(variant) => variant,
            ModelKind::Servers(divisor, placement) => {
                Variant::ours(Mode::Servers { sync: true, servers: (hosts / divisor).max(1), placement })
            }
            ModelKind::Helpers => Variant::ours(Mode::Helped { helpers: hosts }),
        }
    }
}

/// The prediction for one mode on one number of hosts.
#[derive(Debug, Clone, Serialize)]
pub struct PredictedRow {
    pub mode: String,
    /// The number of the workers' hosts.
    pub hosts: usize,
    /// The number of all hosts: the workers' hosts, and the servers' or helpers' own.
    pub machines: usize,
    pub step_s: f64,
    /// True if measured steps of this kind took longer than predicted. Then `step_s` is a lower limit, and
    /// `efficiency` an upper limit.
    pub is_at_best: bool,
    /// The part of a step that computes.
    pub efficiency: f64,
    /// The seconds of a step in which nothing is computed.
    pub exposed_s: f64,
    /// The bytes that the busiest host sends or receives in a step, whichever is more. They are computed
    /// without compression and for links of equal rates.
    pub busiest_host_bytes: f64,
    #[serde(skip)]
    pub variant: Variant,
}

/// The prediction, and its consequences.
#[derive(Debug, Serialize)]
pub struct Advice {
    /// The model in words, such as `vgg16, 32 tensors, 553 MB`.
    pub model: String,
    pub compute_s: f64,
    pub link: String,
    pub latency_s: f64,
    /// Sorted by the number of hosts, then as the modes were given.
    pub rows: Vec<PredictedRow>,
    pub assumptions: Vec<String>,
    pub verdict: Vec<String>,
}

/// The rows of all choices for all numbers of hosts. For each number of hosts a mode occurs once. If a choice
/// has no prediction for some number of hosts, it is an error if choices are `named`; else this row is left
/// out.
pub fn rows(setting: &Setting, (choices, named): (&[Choice], bool), hosts: &[usize]) -> Result<Vec<PredictedRow>> {
    let mut wanted: Vec<(usize, Variant)> = Vec::new();
    for hosts in hosts {
        let variants = choices.iter().map(|choice| choice.variant(*hosts));
        for variant in variants.filter(|variant| named || setting.reaches(*variant, *hosts)) {
            if !wanted.contains(&(*hosts, variant)) {
                wanted.push((*hosts, variant));
            }
        }
    }
    // Predictions for more hosts take longer, so they begin first.
    let (queue, found) = (Mutex::new(wanted.iter().enumerate()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let next = || queue.lock().ok()?.next_back();
                while let Some((at, (hosts, variant))) = next() {
                    let row = row(setting, *variant, *hosts);
                    found.lock().expect("no prediction panics").push((at, row));
                }
            });
        }
    });
    let mut found = found.into_inner().expect("no prediction panics");
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, row)| row).collect()
}

fn row(setting: &Setting, variant: Variant, hosts: usize) -> Result<PredictedRow> {
    let step_s = setting.step_s(variant, hosts)?;
    Ok(PredictedRow {
        mode: variant.to_string(),
        hosts,
        machines: hosts + variant.mode.extra_hosts(),
        step_s,
        is_at_best: is_at_best(variant.mode, hosts),
        efficiency: (setting.compute_s / step_s).min(1.0),
        exposed_s: (step_s - setting.compute_s).max(0.0),
        busiest_host_bytes: cost::busiest_host_bytes(variant.mode, hosts, setting.bytes()),
        variant,
    })
}

impl Advice {
    pub fn row(&self, hosts: usize, variant: Variant) -> Option<&PredictedRow> {
        self.rows.iter().find(|row| (row.hosts, row.variant) == (hosts, variant))
    }

    /// The numbers of hosts, the fewest first.
    pub fn hosts(&self) -> Vec<usize> {
        let mut hosts: Vec<usize> = self.rows.iter().map(|row| row.hosts).collect();
        hosts.dedup();
        hosts
    }

    /// The families of the rows, in the order of the legend.
    pub fn families(&self) -> Vec<(Family, &'static str)> {
        let is_there = |family| self.rows.iter().any(|row| row.variant.family() == family);
        Family::ALL.into_iter().filter(|(family, _)| is_there(*family)).collect()
    }
}

/// The most hosts on which predictions have been compared with measurements.
pub const COMPARED_HOSTS: usize = 64;
/// With more workers than this, steps with servers took longer than predicted. The simulation assumes that
/// all workers proceed equally fast, but TCP divides a link unevenly among many connections
/// (`docs/decisions/server-window.md`).
const MOST_WORKERS_OF_SERVERS: usize = 16;
/// The difference of predictions from measurements; `docs/how-to/advise.md` has the commands.
const COMPARED: &str = "Compared with emulated hosts: sums are within 5 % (allreduce on 2 to 64 hosts, servers on 2 to 16), \
    and within 8 % beside a slow host. Steps of training are within 9 % (2 to 16 hosts, and allreduce on 32). On 64 \
    hosts, whose processes share two cores there, predicted steps of allreduce are up to 36 % too short.";

/// Returns true if a step in this mode with `workers` workers may take longer than predicted.
fn is_at_best(mode: Mode, workers: usize) -> bool {
    matches!(mode, Mode::Servers { .. }) && workers > MOST_WORKERS_OF_SERVERS
}

/// The assumptions of every row.
pub fn assumptions(setting: &Setting, link: &str, rows: &[PredictedRow]) -> Vec<String> {
    let words = ringpull_harness::text::format_seconds;
    let mut all = vec![
        format!(
            "Links: {link} in each direction at the same time, of which TCP carries {:.1} %; {} from one host to another.",
            100.0 * predict::GOODPUT,
            words(setting.latency_s)
        ),
        "Switches: they keep waiting packets, lose none and carry all links at full rate. One worker on each host."
            .to_owned(),
        format!(
            "Computing: {} a step on each host, two thirds of it backward; a layer's share of the time is its share of the FLOPs.",
            words(setting.compute_s)
        ),
        format!(
            "Sums: this build's plans, buckets, segments and priorities, message by message; each message takes {} of a processor; encoding is not counted.",
            words(setting.message_s())
        ),
        "Not included: late hosts, hosts that differ, other traffic, reading data, and updates by the optimizer."
            .to_owned(),
        COMPARED.to_owned(),
    ];
    if rows.iter().any(|row| row.is_at_best) {
        all.push(format!(
            "At best (< and >): steps with servers and more than {MOST_WORKERS_OF_SERVERS} workers. Measured ones \
             took up to 1.7 times as long."
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_with_servers_and_more_workers_than_were_near_are_at_best() {
        let of = |mode: &str, workers| is_at_best(mode.parse::<Variant>().unwrap().mode, workers);
        for mode in ["dist_sync:1", "dist_sync:8shared", "dist_sync:8+fp16"] {
            assert_eq!([16, 17, 1024].map(|workers| of(mode, workers)), [false, true, true], "{mode}");
        }
        // All keys of a model are dense, and dist_hybrid sums dense keys over the ranks.
        for mode in ["dist_sync_mpi", "dist_sync_mpi:32helpers", "dist_sync_mpi+fp16", "dist_hybrid:8shared"] {
            assert!(!of(mode, 1024), "{mode}");
        }
    }
}
