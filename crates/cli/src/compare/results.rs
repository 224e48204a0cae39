//! The results of a comparison, which are `results.json`: one row for each variant, with every sample.

use serde::{Deserialize, Serialize};

use crate::compare::Environment;
use crate::compare::published::{self, Training};
use crate::lab::Racks;
use crate::link::LinkRate;
use crate::record::{Record, Train};
use crate::rounds::TrainSetup;
use crate::size::format_size;
use crate::statistics::Summary;
use crate::usage::Usage;
use crate::variant::Family;

/// A whole comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub environment: Environment,
    pub setup: Setup,
    /// One row for each variant, in the order of the command line.
    pub rows: Vec<Row>,
    /// The part of this machine's processor time that its hypervisor took during the measured rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    pub verdict: Vec<String>,
    pub command: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Where the jobs ran, such as `8 emulated hosts`.
    pub place: String,
    /// Whether every worker had its own host, whose network interface shows its traffic.
    pub own_hosts: bool,
    pub workers: usize,
    pub link: LinkRate,
    /// The racks that the hosts stand in, if there are two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub racks: Option<Racks>,
    /// The payload in words.
    pub payload: String,
    /// Payload bytes of one worker.
    pub bytes: u64,
    pub rounds: usize,
    pub iters: usize,
    pub warmup: usize,
    /// The replayed training, if the iterations are steps of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<TrainSetup>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub variant: String,
    pub method: String,
    pub family: Family,
    pub servers: usize,
    /// All hosts that are used; 1 if every process is on this one.
    pub machines: usize,
    /// Bytes through the busiest host in one push and pull, in the larger direction, computed. `None` for
    /// compressed gradients, whose bytes depend on the codec.
    pub computed_host_bytes: Option<f64>,
    pub outcome: Outcome,
}

/// The result of a variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "status")]
#[allow(clippy::large_enum_variant, reason = "nearly every row is a measured one")]
pub(crate) enum Outcome {
    /// At least one round ended with verified samples.
    Measured {
        /// All rounds' samples in one record.
        record: Record,
        /// Those that ended well: all, unless the comparison was interrupted or a round failed.
        rounds: Vec<JobSamples>,
        /// Why a later round failed; the variant was not run again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
    /// The first round failed; the variant was not run again.
    Failed { error: String },
    /// The peer is not installed.
    Absent {
        /// The command that installs it.
        install: String,
    },
}

/// The samples of one variant in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobSamples {
    /// Counted from 1.
    pub round: usize,
    /// Its position in the round, from 1.
    pub place: usize,
    pub seconds: Vec<f64>,
    /// Of this job. The record has those of all rounds: the median processor time, and the most memory.
    #[serde(default)]
    pub usage: Usage,
    /// The part of this machine's processor time that its hypervisor took meanwhile; `None` if the kernel
    /// does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
}

impl Setup {
    /// The rate of the link between the racks; without racks it is unlimited.
    pub(crate) fn uplink(&self) -> LinkRate {
        self.racks.map(|racks| racks.uplink).unwrap_or_default()
    }
}

impl Row {
    /// The record, if the variant was measured.
    pub(crate) fn record(&self) -> Option<&Record> {
        match &self.outcome {
            Outcome::Measured { record, .. } => Some(record),
            _ => None,
        }
    }

    pub(crate) fn status(&self) -> &'static str {
        match self.outcome {
            Outcome::Measured { .. } => "measured",
            Outcome::Failed { .. } => "failed",
            Outcome::Absent { .. } => "absent",
        }
    }

    /// The row with its samples, if the variant was measured.
    pub(crate) fn measured(&self) -> Option<Measured<'_>> {
        let record = self.record()?;
        Some(Measured { row: self, record, summary: Summary::of(&record.seconds)? })
    }

    /// The samples' summary, if the variant was measured.
    pub(crate) fn summary(&self) -> Option<Summary> {
        Summary::of(&self.record()?.seconds)
    }

    /// The median charged for all machines: time x machines / workers. `None` if workers share one machine.
    pub(crate) fn per_machine_s(&self, workers: usize) -> Option<f64> {
        (self.machines >= workers).then_some(())?;
        Some(self.summary()?.median * self.machines as f64 / workers as f64)
    }

    /// [`host_bytes`](Self::host_bytes) as text. A star marks a computed number.
    pub(crate) fn host_bytes_words(&self, own_hosts: bool) -> Option<String> {
        let (bytes, measured) = self.host_bytes(own_hosts)?;
        Some(format!("{}{}", format_size(bytes), if measured { "" } else { " *" }))
    }

    /// Bytes through the busiest host, and whether they were measured. Only workers' interfaces are measured,
    /// so with dedicated servers the bytes are computed.
    pub(crate) fn host_bytes(&self, own_hosts: bool) -> Option<(f64, bool)> {
        match self.record().and_then(|record| record.host_bytes) {
            Some(measured) if own_hosts && self.machines == self.record().map_or(0, |record| record.ranks) => {
                Some((measured as f64, true))
            }
            _ => self.computed_host_bytes.map(|bytes| (bytes, false)),
        }
    }
}

/// A measured row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured<'a> {
    pub row: &'a Row,
    pub record: &'a Record,
    pub summary: Summary,
}

impl Measured<'_> {
    /// The figures of training, if steps were measured.
    pub(super) fn train(&self) -> Option<Train> {
        self.record.train
    }

    /// The published figures of the same variant.
    pub(super) fn published(&self, results: &Comparison) -> Option<Training> {
        let known = published::TRAINING.into_iter().find(|known| known.variant == self.row.variant);
        known.filter(|_| results.setup.workers == 8)
    }

    /// The images a second of all workers over all machines.
    pub(super) fn images_per_machine(&self, results: &Comparison) -> Option<f64> {
        Some(self.train()?.images_per_s? * results.setup.workers as f64 / self.row.machines as f64)
    }

    /// What rows are ranked by: the time, or for training the time of a step over its computing.
    pub(super) fn rank(&self) -> f64 {
        self.train().map_or(self.summary.median, |train| 1.0 / train.efficiency)
    }
}

/// The mean part of processor time that was stolen, over all rounds of `rows`.
pub(crate) fn stolen(rows: &[Row]) -> Option<f64> {
    let rounds = rows.iter().filter_map(|row| match &row.outcome {
        Outcome::Measured { rounds, .. } => Some(rounds),
        _ => None,
    });
    let parts: Vec<f64> = rounds.flatten().filter_map(|round| round.stolen).collect();
    (!parts.is_empty()).then(|| parts.iter().sum::<f64>() / parts.len() as f64)
}

impl Comparison {
    /// The measured rows, the fastest or most efficient first.
    pub(crate) fn ranking(&self) -> Vec<Measured<'_>> {
        let mut ranking: Vec<Measured<'_>> = self.rows.iter().filter_map(Row::measured).collect();
        ranking.sort_by(|a, b| a.rank().total_cmp(&b.rank()));
        ranking
    }

    /// Whether a variant failed. An absent peer is not a failure.
    pub(crate) fn any_failed(&self) -> bool {
        self.rows
            .iter()
            .any(|row| matches!(row.outcome, Outcome::Failed { .. } | Outcome::Measured { failure: Some(_), .. }))
    }

    /// The row of a variant by its name on the command line.
    pub(crate) fn row(&self, variant: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.variant == variant)
    }

    /// The records of all measured rows: what `--format json` prints.
    pub(crate) fn records(&self) -> Vec<&Record> {
        self.rows.iter().filter_map(Row::record).collect()
    }
}
