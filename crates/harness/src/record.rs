//! One measurement as JSON: what ran, every sample, and the figures that follow from them.

use serde::{Deserialize, Serialize};

use ringpull_base::{DType, Error, Result};

use crate::cost::{self, Links, SparseRows};
use crate::hardware::Hosts;
use crate::mode::Mode;
use crate::statistics::Summary;
use crate::usage::Usage;

/// The meaning of a record's figures, which every record contains.
pub const UNIT_NOTES: &str = "seconds: one sample for each iteration, barrier to slowest rank; bytes: payload of one rank; bound_s: 2(n-1)/n x bytes / link, of reduce_scatter, allgather and alltoall half of it, with two racks at least bytes / uplink, and on links that are not alike the larger of bytes / the slowest and 2(n-1) x bytes / all together; mode_bound_s: bytes through this mode's host that takes longest / its link; ratio_to_mode_bound: median_s / mode_bound_s; algbw_Bps: bytes / median_s; busbw_Bps: algbw_Bps x bound_s x link / bytes; host_bytes: larger of sent and received by the busiest worker's host in one iteration, by its network interface; cpu_s_per_GB: processor seconds of one rank's process, averaged over ranks, for each 10^9 bytes of its payload, the median of the rounds; waiting_cpu: part of a core that a rank used while it waited for a late one; extra_rss_bytes: the most that a rank's memory, without its neighbours' that it maps, grew beyond its payload and what it held before, in any round, seen every 5 ms while iterations warm up and once at the end, without the MPI library's shared memory; sparse: bytes are then those of the rows that each rank touches of a table; state_bytes: what the rank with most of the optimizer's states has of them";

/// The meaning of the figures in a record of training.
pub const TRAIN_NOTES: &str = "seconds: one sample for each step, from the last rank's end of the step before to the last rank's end of this one; bytes: gradients of one rank; compute_s: computing in a step; exposed_s: median_s - compute_s; efficiency: compute_s / median_s; shortest_s: the longer of compute_s and mode_bound_s, below which no step can be; images_per_s: batch / median_s, of one rank; bound_s and ratio_to_bound: of the communication alone, see pushpull; host_bytes: larger of sent and received by the busiest worker's host in one step, by its network interface";

/// Samples of one operation on one payload, all of them verified.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// `pushpull`, `allreduce` or `train`.
    pub op: String,
    /// The mode or peer, such as `dist_sync:8shared`; `bench` writes only the kind of store.
    pub mode: String,
    /// The allreduce plan, or `servers`.
    pub algorithm: String,
    pub ranks: usize,
    pub hosts: usize,
    pub servers: usize,
    /// The hardware of the hosts, if the ranks reported it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<Hosts>,
    /// Payload bytes of one rank in one iteration.
    pub bytes: u64,
    pub dtype: DType,
    /// Every sample: the slowest rank's time from a barrier until it has read the result.
    pub seconds: Vec<f64>,
    pub median_s: f64,
    /// The least time of an allreduce of this payload, the same for every mode. `None` if no link rate is
    /// known.
    pub bound_s: Option<f64>,
    pub ratio_to_bound: Option<f64>,
    /// The least time of this mode, on links that carry their rate in both directions at the same time.
    #[serde(default)]
    pub mode_bound_s: Option<f64>,
    #[serde(default)]
    pub ratio_to_mode_bound: Option<f64>,
    #[serde(rename = "algbw_Bps")]
    pub algbw_bytes_per_s: f64,
    #[serde(rename = "busbw_Bps")]
    pub busbw_bytes_per_s: f64,
    /// Always true: unverified samples are not recorded.
    pub verified: bool,
    /// The rows that were pushed and pulled, if the payload is rows of a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse: Option<SparseRows>,
    #[serde(default)]
    pub host_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<Train>,
    #[serde(flatten)]
    pub usage: Usage,
    pub unit_notes: String,
}

/// A replayed step of training: `seconds` and `median_s` of its record are steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Train {
    /// Computing in a step.
    pub compute_s: f64,
    pub exposed_s: f64,
    pub efficiency: f64,
    /// The longer of `compute_s` and the mode's bound. `None` if the bound is not known.
    pub shortest_s: Option<f64>,
    /// Images or other samples of one rank in a step.
    pub batch: Option<usize>,
    pub images_per_s: Option<f64>,
}

impl Record {
    /// An empty record of `op`.
    pub fn blank(op: &str, dtype: DType) -> Self {
        Record {
            op: op.to_owned(),
            mode: String::new(),
            algorithm: String::new(),
            ranks: 0,
            hosts: 0,
            servers: 0,
            machines: Vec::new(),
            bytes: 0,
            dtype,
            seconds: Vec::new(),
            median_s: 0.0,
            bound_s: None,
            ratio_to_bound: None,
            mode_bound_s: None,
            ratio_to_mode_bound: None,
            algbw_bytes_per_s: 0.0,
            busbw_bytes_per_s: 0.0,
            verified: false,
            sparse: None,
            host_bytes: None,
            train: None,
            usage: Usage::default(),
            unit_notes: UNIT_NOTES.to_owned(),
        }
    }

    /// The record with the figures that follow from its seconds, which must all be verified.
    pub fn with_figures(mut self) -> Result<Self> {
        let summary = Summary::of(&self.seconds).filter(|summary| summary.min > 0.0).ok_or_else(|| {
            Error::argument(
                format!("{} of {} bytes has no usable sample", self.op, self.bytes),
                "measure at least one iteration",
            )
        })?;
        self.median_s = summary.median;
        self.algbw_bytes_per_s = self.bytes as f64 / summary.median;
        self.busbw_bytes_per_s = self.algbw_bytes_per_s * cost::factor_of(&self.op, self.ranks);
        self.verified = true;
        Ok(self)
    }

    /// Makes this the record of a training step that computes for `compute_s` seconds.
    #[must_use]
    pub fn with_train(mut self, compute_s: f64, batch: Option<usize>) -> Self {
        self.train = Some(Train {
            compute_s,
            exposed_s: self.median_s - compute_s,
            efficiency: compute_s / self.median_s,
            shortest_s: self.mode_bound_s.map(|bound| bound.max(compute_s)),
            batch,
            images_per_s: batch.map(|batch| batch as f64 / self.median_s),
        });
        TRAIN_NOTES.clone_into(&mut self.unit_notes);
        self
    }

    /// Fills in the bounds for `links`: that of an allreduce and that of `mode`. With a dense payload, a link
    /// between two racks may raise both, since each rack must receive at least the sum of the other rack.
    #[must_use]
    pub fn with_links<'a>(
        mut self,
        links: impl Into<Links<'a>>,
        uplink_bytes_per_s: Option<f64>,
        mode: Option<Mode>,
    ) -> Self {
        let (bytes, links) = (self.bytes as f64, links.into());
        let part = cost::factor_of(&self.op, self.ranks) / cost::bus_factor(self.ranks).max(f64::MIN_POSITIVE);
        let bound = part * cost::allreduce_bound_s(self.ranks, bytes, links);
        let bound = Some(bound).filter(|bound| *bound > 0.0);
        let across = uplink_bytes_per_s.map_or(0.0, |rate| bytes / rate);
        self.bound_s = bound.map(|bound| bound.max(across));
        self.ratio_to_bound = self.bound_s.map(|bound| self.median_s / bound);
        self.mode_bound_s = mode.map(|mode| match self.sparse {
            Some(rows) => rows.bound_s(mode, self.ranks, links),
            None => cost::mode_bound_s(mode, self.ranks, bytes, links).max(across),
        });
        let own = self.mode_bound_s.filter(|bound| *bound > 0.0);
        self.ratio_to_mode_bound = own.map(|bound| self.median_s / bound);
        self
    }

    /// Reads the records that a job printed, whatever else is printed before, between or behind them: MPI
    /// libraries and the libraries that they load print to stdout too. A record with unverified samples is an
    /// error.
    pub fn parse_list(origin: &str, printed: &str) -> Result<Vec<Record>> {
        let wrong = |what: &str| {
            let remedy = "a job must print one JSON array of records to stdout: run it by hand to see what it prints";
            Error::argument(format!("{origin}: {what}"), remedy)
        };
        let records = first_list(printed).or_else(|| first_list(&without_other_lines(printed)));
        let records: Vec<Record> = records.ok_or_else(|| wrong("no records among what it printed"))?;
        match records.iter().find(|record| !record.verified || Summary::of(&record.seconds).is_none()) {
            Some(record) => Err(wrong(&format!("unverified samples of {} bytes", record.bytes))),
            None => Ok(records),
        }
    }
}

/// The first JSON array of records that begins in a line of `text`, wherever it ends.
fn first_list(text: &str) -> Option<Vec<Record>> {
    let starts = text.match_indices('[').map(|(at, _)| at);
    let list = |at: usize| serde_json::Deserializer::from_str(&text[at..]).into_iter::<Vec<Record>>().next()?.ok();
    starts.filter_map(list).find(|records| !records.is_empty())
}

/// The lines of `text` that may be indented JSON: only braces and brackets, `"name": value`, or a number.
fn without_other_lines(text: &str) -> String {
    let is_json = |line: &&str| {
        let line = line.trim().trim_end_matches(',');
        matches!(line, "[" | "]" | "{" | "}")
            || line.starts_with('"') && line.contains("\": ")
            || line.parse::<f64>().is_ok()
    };
    text.lines().filter(is_json).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            mode: "dist_sync:2shared".to_owned(),
            algorithm: "servers".to_owned(),
            ranks: 8,
            hosts: 8,
            servers: 2,
            bytes: 400_000_000,
            seconds: vec![1.0, 2.0, 0.5],
            ..Record::blank("pushpull", DType::F32)
        }
        .with_figures()
        .unwrap()
    }

    #[test]
    fn a_record_prints_every_field_of_the_design_and_reads_itself_back() {
        let record = record().with_links(1.25e9, None, "dist_sync:2shared".parse().ok());
        let json = serde_json::to_string(&vec![record.clone()]).unwrap();
        let fields = "op mode algorithm ranks hosts servers bytes dtype seconds median_s bound_s ratio_to_bound algbw_Bps busbw_Bps verified unit_notes";
        for field in fields.split(' ') {
            assert!(json.contains(&format!("\"{field}\":")), "{field} in {json}");
        }
        assert_eq!(Record::parse_list("test", &json).unwrap(), [record]);
    }

    #[test]
    fn figures_follow_from_the_samples() {
        let record = record().with_links(1.25e9, None, "dist_sync:2shared".parse().ok());
        assert_eq!((record.median_s, record.algbw_bytes_per_s), (1.0, 4e8));
        assert_eq!(record.busbw_bytes_per_s, 7e8);
        assert_eq!((record.bound_s, record.mode_bound_s), (Some(0.56), Some(1.28)));
        assert_eq!((record.ratio_to_bound, record.ratio_to_mode_bound), (Some(1.0 / 0.56), Some(1.0 / 1.28)));
    }

    #[test]
    fn a_narrow_link_between_racks_raises_the_bound_and_a_wide_one_does_not() {
        let bound = |uplink| record().with_links(1.25e9, uplink, None).bound_s;
        assert_eq!(bound(None), Some(0.56));
        assert_eq!(bound(Some(1.25e9)), Some(0.56));
        let narrow = record().with_links(1.25e9, Some(0.4e9), "dist_sync_mpi".parse().ok());
        assert_eq!((narrow.bound_s, narrow.ratio_to_bound), (Some(1.0), Some(1.0)));
        assert_eq!((narrow.mode_bound_s, narrow.ratio_to_mode_bound), (Some(1.0), Some(1.0)));
    }

    #[test]
    fn without_a_link_rate_there_is_no_bound() {
        assert_eq!((record().bound_s, record().ratio_to_bound), (None, None));
    }

    #[test]
    fn unverified_samples_are_an_error() {
        let mut record = record();
        record.verified = false;
        let json = serde_json::to_string(&[record]).unwrap();
        assert!(Record::parse_list("mxnet", &json).unwrap_err().to_string().contains("unverified"));
        for nothing in ["[]", "hello", "", "[1.5, 2.5]"] {
            let error = Record::parse_list("mxnet", nothing).unwrap_err().to_string();
            assert!(error.contains("mxnet: no records among what it printed"), "{error}");
        }
    }

    #[test]
    fn records_are_found_among_whatever_libraries_print() {
        const OTHER: &str =
            "[1764.25] [h1:4711:0]  parser.c:2036 UCX  WARN  unused environment variable: UCX_HOME [maybe: UCX_NUMA?]";
        let records = [record().with_links(1.25e9, None, "dist_sync:2shared".parse().ok()), record()];
        let line = serde_json::to_string(&records).unwrap();
        let indented = serde_json::to_string_pretty(&records).unwrap();
        let between: Vec<&str> = indented.lines().flat_map(|line| [line, OTHER]).collect();
        for printed in [
            format!("{OTHER}\n{line}\n{OTHER}\n"),
            format!("progress 100 %{line} done"),
            format!("{OTHER}\n{OTHER}\n{indented}{OTHER}"),
            between.join("\n"),
        ] {
            assert_eq!(Record::parse_list("test", &printed).unwrap(), records, "{printed}");
        }
    }
}
