//! The choice of `auto`, or a plan that was asked for: for each size, the time of each algorithm as the
//! cluster's model predicts it.

use std::time::Duration;

use indicatif::HumanDuration;
use serde::Serialize;

use ringpull_allreduce::communicator::Communicator;
use ringpull_base::config::Config;
use ringpull_base::{AlgorithmChoice, Error, Result};
use ringpull_plan::{Algorithm, Model, Segments};

use crate::allreduce::connect;
use crate::size::format_size;
use crate::text::{format_seconds, grid, several};

/// The model of a cluster and what follows from it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    pub ranks: usize,
    /// The ranks that share memory, host by host. `auto` sums in shared memory within a host; the predictions
    /// are for messages between hosts.
    pub hosts: Vec<Vec<usize>>,
    /// The number of ranks that exchange messages: all, or with `auto` on several hosts one rank of each
    /// host.
    pub parties: usize,
    /// The two racks, if any, as indices of `hosts`. `auto` sends long buffers only once across the link
    /// between the racks, whatever is predicted.
    pub racks: Option<[Vec<usize>; 2]>,
    /// The origin of the model.
    pub source: String,
    /// The model's age in seconds, if it is from the cache.
    pub age_seconds: Option<f64>,
    pub model: Model,
    pub asked: String,
    pub sizes: Vec<Explained>,
}

/// The prediction for one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explained {
    pub bytes: usize,
    /// The choice of `auto`, or the requested plan.
    pub algorithm: Algorithm,
    pub segment_bytes: usize,
    /// Every algorithm's time, in the order of [`Algorithm::ALL`].
    pub predictions: Vec<Predicted>,
}

/// An algorithm with its best size of segments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predicted {
    pub algorithm: Algorithm,
    pub segment_bytes: usize,
    pub seconds: f64,
}

/// Reads the cluster's model, and returns on rank 0 what `asked` does for each of `sizes`. Collective.
pub fn run(sizes: &[usize], asked: AlgorithmChoice) -> Result<Option<Explanation>> {
    let plan = match asked {
        AlgorithmChoice::Auto => None,
        AlgorithmChoice::Plan(algorithm) => Some(algorithm),
        AlgorithmChoice::Ordered | AlgorithmChoice::Native | AlgorithmChoice::Nccl => {
            return Err(Error::argument(
                format!("there is no prediction for {asked}"),
                "give --algorithm auto; measure ordered and native without --explain; nccl is for stores on GPUs",
            ));
        }
    };
    // Only `auto` goes by the cluster file.
    let config = Config { algorithm: AlgorithmChoice::Auto, ..Config::from_env()? };
    let engine = connect(&config, Some(config.segment_bytes))?;
    let (learned, segments, hosts, racks) = engine.collective("bench --explain", |comm: &mut Communicator, _| {
        Ok((comm.learned().clone(), comm.segments(), comm.hosts().to_vec(), comm.racks().cloned()))
    })?;
    let parties = if plan.is_none() && hosts.len() > 1 { hosts.len() } else { engine.size() };
    Ok((engine.rank() == 0).then(|| Explanation {
        ranks: engine.size(),
        parties,
        source: learned.source,
        age_seconds: learned.age.map(|age| age.as_secs_f64()),
        hosts,
        racks,
        model: learned.model,
        asked: asked.to_string(),
        sizes: sizes.iter().map(|bytes| explained(&learned.model, plan, *bytes, parties, segments)).collect(),
    }))
}

fn explained(model: &Model, plan: Option<Algorithm>, bytes: usize, ranks: usize, segments: Segments) -> Explained {
    let chosen = match plan {
        Some(algorithm) => ringpull_plan::predict(model, algorithm, bytes, ranks, segments),
        None => ringpull_plan::choose(model, bytes, ranks, segments),
    };
    let predictions = Algorithm::ALL.map(|algorithm| {
        let best = ringpull_plan::predict(model, algorithm, bytes, ranks, segments);
        Predicted { algorithm, segment_bytes: best.segment_bytes, seconds: best.time_us / 1e6 }
    });
    Explained {
        bytes,
        algorithm: chosen.algorithm,
        segment_bytes: chosen.segment_bytes,
        predictions: predictions.to_vec(),
    }
}

impl Explanation {
    /// The age of a cached model, as text.
    fn age(&self) -> String {
        let words = |seconds| {
            let ago = HumanDuration(Duration::from_secs_f64(seconds));
            format!(" (measured {ago} ago; `ringpull probe` measures anew)")
        };
        self.age_seconds.map(words).unwrap_or_default()
    }

    /// The table, and the numbers of the model below it.
    pub fn table(&self) -> String {
        if self.ranks == 1 {
            let told = "a single rank has nothing to sum with, so no network was measured";
            return format!("{told}\n  hint: mpirun -n 4 ringpull bench allreduce --explain\n");
        }
        let shares = self.hosts.len() == 1 && self.asked == AlgorithmChoice::Auto.to_string();
        if shares {
            let told = "all ranks share one host's memory and sum there: no network was measured and no model read";
            let sizes: Vec<String> = self.sizes.iter().map(|size| format_size(size.bytes as f64)).collect();
            return format!(
                "{}: shared memory, by {}\n{told}\n  hint: RINGPULL_SHARED_MEMORY=0 shows what messages between them would do\n",
                sizes.join(", "),
                several(self.ranks, "rank")
            );
        }
        let names = Algorithm::ALL.map(|algorithm| algorithm.name().to_owned());
        let head = ["payload", &self.asked, "segments"].map(str::to_owned);
        let row = |size: &Explained| {
            let segments = format!("{} KiB", size.segment_bytes as f64 / 1024.0);
            let mut cells = vec![format_size(size.bytes as f64), size.algorithm.to_string(), segments];
            cells.extend(size.predictions.iter().map(|of| format_seconds(of.seconds)));
            cells
        };
        let table = grid(head.into_iter().chain(names), self.sizes.iter().map(row).collect(), 2);
        let of = &self.model;
        let whom = if self.parties == self.ranks { "ranks" } else { "hosts, one rank of each" };
        let parties = self.parties;
        let mut text =
            format!("{table}\ntimes are predicted for {parties} {whom}, from {}{}:\n", self.source, self.age());
        let numbers = [
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
        ];
        text.extend(numbers.map(|(name, value)| format!("  {name:24}{value}\n")));
        if self.hosts.len() < self.ranks && self.asked == AlgorithmChoice::Auto.to_string() {
            let shared = "ranks that share a host's memory sum there, whatever is predicted";
            text.extend([format!("{shared}: {:?}\n", self.hosts)]);
        }
        if let Some([one, other]) = &self.racks {
            let crossing = "long buffers cross the link between them once in each direction, whatever is predicted";
            text.extend([format!("hosts {one:?} and {other:?} are in two racks: {crossing}\n")]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_the_least_prediction_and_a_requested_plan_has_its_own() {
        let segments = Segments { most_bytes: 256 << 10, is_fixed: false };
        for bytes in [4, 64 << 10, 100_000_000] {
            let of = |plan| explained(&Model::default(), plan, bytes, 8, segments);
            let choice = of(None);
            let least = choice.predictions.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap();
            assert_eq!((least.algorithm, least.segment_bytes), (choice.algorithm, choice.segment_bytes));
            let tree = of(Some(Algorithm::Tree));
            assert_eq!((tree.algorithm, tree.predictions), (Algorithm::Tree, choice.predictions));
        }
    }

    fn of_hosts(hosts: Vec<Vec<usize>>, racks: Option<[Vec<usize>; 2]>) -> Explanation {
        let segments = Segments { most_bytes: 256 << 10, is_fixed: false };
        let model = Model::default();
        Explanation {
            ranks: 8,
            parties: hosts.len(),
            hosts,
            racks,
            source: "the default".to_owned(),
            age_seconds: None,
            model,
            asked: "auto".to_owned(),
            sizes: [4, 25_000_000].map(|bytes| explained(&model, None, bytes, 8, segments)).to_vec(),
        }
    }

    #[test]
    fn if_all_ranks_share_memory_the_table_says_that_auto_sums_there() {
        let table = of_hosts(vec![(0..8).collect()], None).table();
        assert!(table.contains("shared memory") && table.contains("no network was measured"), "{table}");
        assert!(!of_hosts((0..8).map(|rank| vec![rank]).collect(), None).table().contains("shared memory"));
    }

    #[test]
    fn the_table_names_every_algorithm_and_every_number() {
        let explanation = of_hosts(vec![vec![0, 2], vec![1]], Some([vec![1], vec![0]]));
        let table = explanation.table();
        for part in [
            "ring",
            "tree",
            "star",
            "25 MB",
            "256 KiB",
            "predicted for 2 hosts, one rank of each, from the default",
            "30.0 us",
            "400 MB/s",
            "1.05x",
            "[[0, 2], [1]]",
            "hosts [1] and [0] are in two racks",
        ] {
            assert!(table.contains(part), "{part} in {table}");
        }
        let old = Explanation { source: "the cache".to_owned(), age_seconds: Some(600.0), ..explanation.clone() };
        let words = "from the cache (measured 10 minutes ago; `ringpull probe` measures anew):";
        assert!(old.table().contains(words), "{}", old.table());
        assert!(serde_json::to_string(&explanation).unwrap().contains("\"latency_us\":30.0"));
    }
}
