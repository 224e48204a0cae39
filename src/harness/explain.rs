//! What `auto` would do and why: for each size the time that the cluster's model predicts for each algorithm.

use std::fmt::Write as _;

use serde::Serialize;

use crate::collective::{self, Algorithm, Model, Segments};
use crate::communicator::Host;
use crate::config::Config;
use crate::error::Result;
use crate::harness::allreduce::connect;
use crate::harness::compare::table::format_seconds;
use crate::harness::size::format_size;

/// The model of a cluster and what follows from it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// Ranks.
    pub ranks: usize,
    /// The ranks that share memory, host by host. `auto` sums there among them; what is predicted is for the messages of ranks that do not.
    pub hosts: Vec<Vec<usize>>,
    /// Where the model is from.
    pub source: String,
    /// Its numbers.
    pub model: Model,
    /// One entry for each size.
    pub sizes: Vec<Choice>,
}

/// What is predicted for one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// Payload bytes of one rank.
    pub bytes: usize,
    /// What `auto` takes.
    pub algorithm: Algorithm,
    /// The size of its segments.
    pub segment_bytes: usize,
    /// Every algorithm's time, in the order of [`Algorithm::ALL`].
    pub predictions: Vec<Predicted>,
}

/// One algorithm at its best.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predicted {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The size of segments that suits it.
    pub segment_bytes: usize,
    /// The time, in seconds.
    pub seconds: f64,
}

/// Learns the cluster's model and explains the choice for each of `sizes`, on rank 0. Collective.
pub fn run(sizes: &[usize]) -> Result<Option<Explanation>> {
    let engine = connect(&Config::from_env()?)?;
    let (learned, segments, hosts) = engine.collective("bench --explain", Vec::new(), |host: &mut Host, _, _| {
        Ok((host.learned().clone(), host.segments(), host.hosts().to_vec()))
    })?;
    Ok((engine.rank() == 0).then(|| Explanation {
        ranks: engine.size(),
        source: learned.source,
        hosts,
        model: learned.model,
        sizes: sizes.iter().map(|bytes| choice(&learned.model, *bytes, engine.size(), segments)).collect(),
    }))
}

fn choice(model: &Model, bytes: usize, ranks: usize, segments: Segments) -> Choice {
    let chosen = collective::choose(model, bytes, ranks, segments);
    let predictions = Algorithm::ALL.map(|algorithm| {
        let best = collective::predict(model, algorithm, bytes, ranks, segments);
        Predicted { algorithm, segment_bytes: best.segment_bytes, seconds: best.time_us / 1e6 }
    });
    Choice {
        bytes,
        algorithm: chosen.algorithm,
        segment_bytes: chosen.segment_bytes,
        predictions: predictions.to_vec(),
    }
}

impl Explanation {
    /// The table for people, and the numbers under it.
    pub fn table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        let names = Algorithm::ALL.map(|algorithm| algorithm.name().to_owned());
        let head = ["payload", "auto", "segments"].map(str::to_owned);
        table.set_header(head.into_iter().chain(names));
        for size in &self.sizes {
            let mut cells = vec![
                format_size(size.bytes as f64),
                size.algorithm.to_string(),
                format!("{} KiB", size.segment_bytes as f64 / 1024.0),
            ];
            cells.extend(size.predictions.iter().map(|of| format_seconds(of.seconds)));
            table.add_row(cells);
        }
        let mut text = format!("{}\n", table.trim_fmt());
        let ranks = if self.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", self.ranks) };
        let of = &self.model;
        writeln!(text, "times are predicted for {ranks}, from {}:", self.source).expect("a string takes every text");
        for (name, value) in [
            ("latency", format!("{:.1} us", of.latency_us)),
            ("a message, its rank", format!("{:.2} us", of.message_us)),
            ("a message, every rank", format!("{:.2} us", of.shared_message_us)),
            (
                "a link at first",
                format!("{}/s, for {}", format_size(of.short_bytes_per_us * 1e6), format_size(of.short_bytes)),
            ),
            ("a link in the long run", format!("{}/s", format_size(of.long_bytes_per_us * 1e6))),
            ("a megabyte, every rank", format!("{:.1} us", of.shared_us_per_byte * 1e6)),
            ("flows that meet", format!("{:.2}x of the wire's time", of.fan_factor)),
            ("adding", format!("{}/s", format_size(of.sum_bytes_per_us * 1e6))),
        ] {
            writeln!(text, "  {name:24}{value}").expect("a string takes every text");
        }
        if self.hosts.len() < self.ranks {
            writeln!(text, "ranks that share a host's memory sum there, whatever is predicted: {:?}", self.hosts)
                .expect("a string takes every text");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_prediction_is_the_one_that_is_taken() {
        let segments = Segments { most_bytes: 256 << 10, is_fixed: false };
        for bytes in [4, 64 << 10, 100_000_000] {
            let choice = choice(&Model::default(), bytes, 8, segments);
            let least = choice.predictions.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap();
            assert_eq!((least.algorithm, least.segment_bytes), (choice.algorithm, choice.segment_bytes));
        }
    }

    #[test]
    fn the_table_names_every_algorithm_and_every_number() {
        let segments = Segments { most_bytes: 256 << 10, is_fixed: false };
        let model = Model::default();
        let explanation = Explanation {
            ranks: 8,
            hosts: vec![vec![0, 2], vec![1]],
            source: "the default".to_owned(),
            model,
            sizes: vec![choice(&model, 4, 8, segments), choice(&model, 25_000_000, 8, segments)],
        };
        let table = explanation.table();
        for part in [
            "ring",
            "tree",
            "star",
            "25 MB",
            "256 KiB",
            "predicted for 8 ranks, from the default",
            "30.0 us",
            "400 MB/s",
            "1.05x",
            "[[0, 2], [1]]",
        ] {
            assert!(table.contains(part), "{part} in {table}");
        }
        assert!(serde_json::to_string(&explanation).unwrap().contains("\"latency_us\":30.0"));
    }
}
