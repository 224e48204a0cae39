//! The results of a comparison, which are `results.json`: one row for each variant, with every sample.

use ringpull_workload::sparse::SparseSetup;
use serde::{Deserialize, Serialize};

use crate::compare::Environment;
use crate::compare::published::{self, Training};
use crate::cost::{self, Links};
use crate::link::LinkRate;
use crate::record::{Record, Train};
use crate::rounds::TrainSetup;
use crate::shape::{HostRate, RackShape};
use crate::size::format_size;
use crate::statistics::{self, Relation, Summary};
use crate::text::several;
use crate::usage::Usage;
use crate::variant::Family;

/// A whole comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub environment: Environment,
    pub setup: Setup,
    /// One row for each variant, in the order of the command line.
    pub rows: Vec<Row>,
    /// The same variants with fewer workers, the fewest first, if fewer workers were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scaling: Vec<ScaledRows>,
    /// The part of this machine's processor time that its hypervisor took during the measured rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    pub verdict: Vec<String>,
    pub command: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The place of the jobs, such as `8 emulated hosts`.
    pub place: String,
    /// True if every worker had its own host, whose network interface shows its traffic.
    pub own_hosts: bool,
    pub workers: usize,
    pub link: LinkRate,
    /// The workers' hosts whose links have rates other than `link`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow_hosts: Vec<HostRate>,
    /// The racks that the hosts stand in, if there are two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub racks: Option<RackShape>,
    /// The payload in words.
    pub payload: String,
    /// Payload bytes of one worker.
    pub bytes: u64,
    pub rounds: usize,
    pub iters: usize,
    pub warmup: usize,
    /// The replayed training, if the iterations are training steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<TrainSetup>,
    /// The table, if rows of a table are pushed and pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse: Option<SparseSetup>,
    /// With a scaled model: the number of elements from which on a key is divided among servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bigarray_bound: Option<usize>,
}

/// The rows of a smaller number of workers, with the same numbers of servers as in [`Comparison::rows`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaledRows {
    pub workers: usize,
    pub rows: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The variant's name on the command line, in the table, in the charts and in the verdict.
    pub variant: String,
    /// The method, for programs.
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
pub enum Outcome {
    /// At least one round ended with verified samples.
    Measured {
        /// All rounds' samples in one record.
        record: Record,
        /// The rounds that succeeded: all, unless the comparison was interrupted or a round failed.
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
pub struct JobSamples {
    /// Counted from 1.
    pub round: usize,
    /// The variant's position in the round, from 1.
    pub place: usize,
    pub seconds: Vec<f64>,
    /// The costs of this job. The record has the costs of all rounds: the median processor time and the most
    /// memory.
    #[serde(default)]
    pub usage: Usage,
    /// The part of this machine's processor time that its hypervisor took during the round. `None` if the
    /// kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
}

impl Setup {
    /// The workers' links, if their rates are known.
    pub fn links(&self) -> Option<Links<'_>> {
        Some(Links { bytes_per_s: self.link.bytes_per_s()?, own: &self.slow_hosts })
    }

    /// The rate of the link between the racks; without racks it is unlimited.
    pub fn uplink(&self) -> LinkRate {
        self.racks.map(|racks| racks.uplink).unwrap_or_default()
    }

    /// Returns true if the hosts are emulated.
    pub fn is_emulated(&self) -> bool {
        self.place.contains("emulated")
    }
}

impl Row {
    /// The record, if the variant was measured.
    pub fn record(&self) -> Option<&Record> {
        match &self.outcome {
            Outcome::Measured { record, .. } => Some(record),
            _ => None,
        }
    }

    pub fn status(&self) -> &'static str {
        match self.outcome {
            Outcome::Measured { .. } => "measured",
            Outcome::Failed { .. } => "failed",
            Outcome::Absent { .. } => "absent",
        }
    }

    /// The row with its samples, if the variant was measured.
    pub fn measured(&self) -> Option<MeasuredRow<'_>> {
        let record = self.record()?;
        Some(MeasuredRow { row: self, record, summary: Summary::of(&record.seconds)? })
    }

    /// The meaning of the variant's name, for readers who do not know the modes. Empty if the name is clear
    /// by itself.
    pub fn words(&self) -> String {
        let servers = several(self.servers, "server");
        match self.family {
            Family::Allreduce => "allreduce".to_owned(),
            Family::Helped => "allreduce with helpers".to_owned(),
            Family::Shared | Family::Dedicated if self.machines == 1 => servers,
            Family::Shared => format!("{servers} on the workers' hosts"),
            Family::Dedicated => format!("{servers} on other hosts"),
            Family::Compressed if self.servers == 0 => "allreduce of codes".to_owned(),
            Family::Compressed => format!("{servers}, codes"),
            Family::Peer if self.servers > 0 => format!("MXNet's own, {servers}"),
            Family::Peer => self.method.clone(),
        }
    }

    /// The median of each round, which is a job of its own.
    fn round_medians(&self) -> Vec<f64> {
        let Outcome::Measured { rounds, .. } = &self.outcome else { return Vec::new() };
        rounds.iter().filter_map(|round| Some(Summary::of(&round.seconds)?.median)).collect()
    }

    /// The summary of the samples, if the variant was measured.
    pub fn summary(&self) -> Option<Summary> {
        Summary::of(&self.record()?.seconds)
    }

    /// Returns true if the variant needs machines beyond the workers' own.
    pub fn needs_more(&self, setup: &Setup) -> bool {
        self.machines > setup.workers
    }

    /// The median charged for all machines: time x machines / workers. `None` if workers share one machine.
    pub fn per_machine_s(&self, workers: usize) -> Option<f64> {
        (self.machines >= workers).then_some(())?;
        Some(self.summary()?.median * self.machines as f64 / workers as f64)
    }

    /// [`host_bytes`](Self::host_bytes) as text. A star marks a computed number.
    pub fn host_bytes_words(&self, own_hosts: bool) -> Option<String> {
        let (bytes, measured) = self.host_bytes(own_hosts)?;
        Some(format!("{}{}", format_size(bytes), if measured { "" } else { " *" }))
    }

    /// Returns the bytes through the busiest host, and true if they were measured. Only workers' interfaces
    /// are measured, so with dedicated servers the bytes are computed. `None` if the workers share one
    /// machine.
    pub fn host_bytes(&self, own_hosts: bool) -> Option<(f64, bool)> {
        match self.record().and_then(|record| record.host_bytes) {
            Some(measured) if own_hosts && self.machines == self.record().map_or(0, |record| record.ranks) => {
                Some((measured as f64, true))
            }
            _ => self.computed_host_bytes.filter(|_| own_hosts).map(|bytes| (bytes, false)),
        }
    }
}

/// A measured row.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredRow<'a> {
    pub row: &'a Row,
    pub record: &'a Record,
    pub summary: Summary,
}

impl MeasuredRow<'_> {
    /// This row's time divided by the time of `other`.
    pub(super) fn ratio_to(&self, other: &MeasuredRow<'_>) -> f64 {
        self.summary.median / other.summary.median
    }

    /// Compares the times of the two rows.
    pub(super) fn relation(&self, other: &MeasuredRow<'_>) -> Relation {
        statistics::relation(&self.row.round_medians(), &other.row.round_medians())
    }

    /// The figures of training, if training steps were measured.
    pub(super) fn train(&self) -> Option<Train> {
        self.record.train
    }

    /// The published figures of the same variant.
    pub(super) fn published(&self, results: &Comparison) -> Option<Training> {
        results.published(&self.row.variant, results.setup.workers)
    }

    /// Images per second of all workers together, divided by the number of machines.
    pub(super) fn images_per_machine(&self, results: &Comparison) -> Option<f64> {
        Some(self.train()?.images_per_s? * results.setup.workers as f64 / self.row.machines as f64)
    }

    /// The number by which rows are ranked: the time; for training, a step's time divided by its computing
    /// time.
    pub(super) fn rank(&self) -> f64 {
        self.train().map_or(self.summary.median, |train| 1.0 / train.efficiency)
    }
}

/// The part of processor time that was stolen, averaged over all rounds of `rows`.
pub fn stolen(rows: &[Row]) -> Option<f64> {
    let rounds = rows.iter().filter_map(|row| match &row.outcome {
        Outcome::Measured { rounds, .. } => Some(rounds),
        _ => None,
    });
    let parts: Vec<f64> = rounds.flatten().filter_map(|round| round.stolen).collect();
    (!parts.is_empty()).then(|| parts.iter().sum::<f64>() / parts.len() as f64)
}

impl Comparison {
    /// The measured rows, the fastest or most efficient first.
    pub fn ranking(&self) -> Vec<MeasuredRow<'_>> {
        let mut ranking: Vec<MeasuredRow<'_>> = self.rows.iter().filter_map(Row::measured).collect();
        ranking.sort_by(|a, b| a.rank().total_cmp(&b.rank()));
        ranking
    }

    /// The first of the ranking that needs only the workers' machines and does not round gradients. The
    /// others' times are divided by its time.
    pub fn home(&self) -> Option<MeasuredRow<'_>> {
        let mut ranking = self.ranking().into_iter();
        ranking.find(|it| !it.row.needs_more(&self.setup) && it.row.family != Family::Compressed)
    }

    /// The numbers of workers that were measured, the fewest first, with their rows.
    pub(super) fn counts(&self) -> Vec<(usize, &[Row])> {
        let fewer = self.scaling.iter().map(|scaled| (scaled.workers, &scaled.rows[..]));
        fewer.chain([(self.setup.workers, &self.rows[..])]).collect()
    }

    /// The published figures of a variant with `workers` workers, if they can be compared with ours.
    fn published(&self, variant: &str, workers: usize) -> Option<Training> {
        let known = published::TRAINING.into_iter().find(|known| known.variant == variant);
        known.filter(|_| workers == published::WORKERS && self.is_comparable())
    }

    /// The ratio of the computing time to an allreduce's bound, here and in the published run. `None` if the
    /// link's rate is not known.
    pub(super) fn compute_over_bound(&self) -> Option<(f64, f64)> {
        let bound = cost::allreduce_bound_s(self.setup.workers, self.setup.bytes as f64, self.setup.links()?);
        Some((self.setup.train.as_ref()?.compute_s / bound, published::COMPUTE_S / published::TRAINING_BOUND_S))
    }

    /// Returns true if efficiencies can be compared with the published ones: the two ratios of
    /// [`compute_over_bound`](Self::compute_over_bound) differ by less than 2 %, or are not known.
    pub(super) fn is_comparable(&self) -> bool {
        self.compute_over_bound().is_none_or(|(here, there)| (here / there - 1.0).abs() < 0.02)
    }

    /// The published figures of training steps, if the published number of workers is one of
    /// [`counts`](Self::counts).
    pub(super) fn published_scaling(&self, variant: &str) -> Option<Training> {
        self.setup.train.as_ref()?;
        self.counts().into_iter().find_map(|(workers, _)| self.published(variant, workers))
    }

    /// Returns true if any variant needs machines beyond the workers' own.
    pub(super) fn any_needs_more(&self) -> bool {
        self.rows.iter().any(|row| row.needs_more(&self.setup))
    }

    /// The rows in the order of every table and chart: the measured ones as ranked, then the others.
    pub fn sorted_rows(&self) -> Vec<&Row> {
        let others = self.rows.iter().filter(|row| row.measured().is_none());
        self.ranking().iter().map(|it| it.row).chain(others).collect()
    }

    /// Returns true if a variant failed. An absent peer is not a failure.
    pub fn any_failed(&self) -> bool {
        let mut all = self.rows.iter().chain(self.scaling.iter().flat_map(|scaled| &scaled.rows));
        all.any(|row| matches!(row.outcome, Outcome::Failed { .. } | Outcome::Measured { failure: Some(_), .. }))
    }

    /// The row of a variant by its name on the command line.
    pub fn row(&self, variant: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.variant == variant)
    }

    /// The records of all measured rows, those of the fewest workers first: what `--format json` prints.
    pub fn records(&self) -> Vec<&Record> {
        self.counts().into_iter().flat_map(|(_, rows)| rows).filter_map(Row::record).collect()
    }
}
