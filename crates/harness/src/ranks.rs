//! The findings of the ranks of a measurement, gathered on every rank.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use ringpull::KvStore;
use ringpull_base::topology::host_name;
use ringpull_base::{DType, Error, Result, RowSparse, Tensor};

use crate::hardware::{Hardware, Hosts};
use crate::record::Record;
use crate::text::to_json_line;
use crate::usage::{Usage, cpu_s};

/// The findings of one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankReport {
    pub host: String,
    /// The hardware of its host.
    pub hardware: Hardware,
    /// The seconds of each measured iteration.
    pub seconds: Vec<f64>,
    /// The seconds of the training steps before the measured ones, since a barrier.
    pub warmup_s: f64,
    /// The resources that all measured iterations used.
    pub spent: ResourceUse,
    /// The part of a core that the rank used while it waited for a late rank.
    pub waiting_cpu: Option<f64>,
    /// The growth of its memory.
    pub extra_rss_bytes: Option<u64>,
    /// The bytes of optimizer states on this rank, if there is an optimizer.
    pub state_bytes: Option<u64>,
}

/// The resources that a process and its host have used.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct ResourceUse {
    /// Processor seconds of the process.
    pub cpu_s: f64,
    /// Bytes that the host's network interfaces sent and received.
    sent_bytes: f64,
    received_bytes: f64,
}

impl ResourceUse {
    pub fn now() -> Self {
        let (sent_bytes, received_bytes) = traffic();
        ResourceUse { cpu_s: cpu_s(), sent_bytes, received_bytes }
    }

    /// Adds what was used between two moments.
    pub fn add(&mut self, before: ResourceUse, after: ResourceUse) {
        self.cpu_s += after.cpu_s - before.cpu_s;
        self.sent_bytes += after.sent_bytes - before.sent_bytes;
        self.received_bytes += after.received_bytes - before.received_bytes;
    }
}

impl Default for RankReport {
    fn default() -> Self {
        RankReport {
            host: host_name(),
            hardware: Hardware::survey(),
            seconds: Vec::new(),
            warmup_s: 0.0,
            spent: ResourceUse::default(),
            waiting_cpu: None,
            extra_rss_bytes: None,
            state_bytes: None,
        }
    }
}

/// Fills the record of `bytes` per rank with what the ranks found: the slowest rank's seconds and the busiest
/// host's traffic.
pub fn record_of(ranks: &[RankReport], bytes: usize, record: Record) -> Result<Record> {
    let iterations = ranks[0].seconds.len();
    let largest = |of: &dyn Fn(&RankReport) -> f64| ranks.iter().map(of).fold(0.0, f64::max);
    let mean = |parts: &[f64]| (!parts.is_empty()).then(|| parts.iter().sum::<f64>() / parts.len() as f64);
    let traffic = largest(&|rank| rank.spent.sent_bytes.max(rank.spent.received_bytes)) / iterations as f64;
    let cpu_s: Vec<f64> = ranks.iter().map(|rank| rank.spent.cpu_s).collect();
    let waiting: Vec<f64> = ranks.iter().filter_map(|rank| rank.waiting_cpu).collect();
    let usage = Usage {
        cpu_s_per_gb: mean(&cpu_s).map(|cpu_s| cpu_s / iterations as f64 / bytes as f64 * 1e9),
        waiting_cpu: mean(&waiting),
        // Unknown if it is unknown on one rank.
        extra_rss_bytes: ranks
            .iter()
            .map(|rank| rank.extra_rss_bytes)
            .collect::<Option<Vec<_>>>()
            .and_then(|all| all.into_iter().max()),
        state_bytes: ranks.iter().filter_map(|rank| rank.state_bytes).max(),
    };
    Record {
        ranks: ranks.len(),
        hosts: ranks.iter().map(|rank| &rank.host).collect::<BTreeSet<_>>().len(),
        machines: machines(ranks),
        bytes: bytes as u64,
        seconds: (0..iterations).map(|at| largest(&|rank| rank.seconds[at])).collect(),
        host_bytes: Some(traffic.round() as u64).filter(|bytes| *bytes > 0),
        usage,
        ..record
    }
    .with_figures()
}

/// The hosts of the ranks. Hosts with the same hardware are counted together.
fn machines(ranks: &[RankReport]) -> Vec<Hosts> {
    let hosts: BTreeMap<&str, &Hardware> = ranks.iter().map(|rank| (rank.host.as_str(), &rank.hardware)).collect();
    let mut machines: Vec<Hosts> = Vec::new();
    for hardware in hosts.into_values() {
        match machines.iter_mut().find(|known| known.hardware == *hardware) {
            Some(known) => known.hosts += 1,
            None => machines.push(Hosts { hosts: 1, hardware: hardware.clone() }),
        }
    }
    machines
}

/// Returns every rank's `own`, in rank order. Collective; `key` and names that begin with `key` must be new.
pub fn gather<T: Serialize + DeserializeOwned>(store: &KvStore, key: &str, own: &T) -> Result<Vec<T>> {
    gather_by(own, |name, numbers| rows(store, &format!("{key}.{name}"), numbers))
}

/// Returns every rank's `own`. It calls `exchange` twice; in each call all ranks pass the same number of
/// numbers.
pub fn gather_by<T: Serialize + DeserializeOwned>(
    own: &T,
    mut exchange: impl FnMut(&str, &[f64]) -> Result<Vec<Vec<f64>>>,
) -> Result<Vec<T>> {
    let text = to_json_line(own)?;
    let lens = exchange("lens", &[text.len() as f64])?;
    let longest = lens.iter().map(|len| len[0] as usize).max().unwrap_or(0);
    let mut padded: Vec<f64> = text.bytes().map(f64::from).collect();
    // Blanks may follow JSON.
    padded.resize(longest, f64::from(b' '));
    let read = |row: &Vec<f64>| {
        let bytes: Vec<u8> = row.iter().map(|byte| *byte as u8).collect();
        let failed = |cause| Error::io("read", "a rank's report", &std::io::Error::other(cause));
        serde_json::from_slice(&bytes).map_err(failed)
    };
    exchange("texts", &padded)?.iter().map(read).collect()
}

/// Returns every rank's `own`, in rank order. It sums one matrix per rank, which is zero except for the
/// rank's row. Collective; `key` must be new.
fn rows(store: &KvStore, key: &str, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let (ranks, width) = (store.num_workers(), own.len());
    let matrix = Tensor::zeros(DType::F64, &[ranks, width]);
    store.init(key, &matrix)?;
    // Rows are never compressed.
    let row = RowSparse::new(&[ranks, width], &[store.rank() as i64], Tensor::from_slice(&[1, width], own))?;
    store.push_rows(key, &[row], 0)?;
    // An asynchronous server has every rank's row only after both.
    store.wait_all()?;
    store.barrier()?;
    store.pull(key, std::slice::from_ref(&matrix), 0)?;
    let rows = matrix.to_vec::<f64>()?.chunks_exact(width).map(<[f64]>::to_vec).collect();
    store.barrier()?;
    Ok(rows)
}

/// The bytes that this host's network interfaces, except for the loopback, have sent and received. Zeros if
/// the system does not report them.
fn traffic() -> (f64, f64) {
    std::fs::read_to_string("/proc/self/net/dev").map_or((0.0, 0.0), |text| sum_traffic(&text))
}

fn sum_traffic(table: &str) -> (f64, f64) {
    let interfaces = table.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    interfaces.fold((0.0, 0.0), |(sent, received), (_, counters)| {
        let counters: Vec<f64> = counters.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let at = |index: usize| counters.get(index).copied().unwrap_or(0.0);
        (sent + at(8), received + at(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_adds_up_every_interface_but_the_loopback() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth0: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n  eth1: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n";
        assert_eq!(sum_traffic(table), (202.0, 101.0));
    }

    #[test]
    fn a_record_has_the_slowest_seconds_the_busiest_host_and_the_mean_of_the_waiting_ranks() {
        let spent = |cpu_s, sent_bytes| ResourceUse { cpu_s, sent_bytes, received_bytes: 10.0 };
        let late = RankReport { seconds: vec![1.0, 4.0], spent: spent(3.0, 30.0), ..RankReport::default() };
        let waiting = |part| RankReport {
            seconds: vec![2.0, 3.0],
            spent: spent(1.0, 0.0),
            waiting_cpu: Some(part),
            ..RankReport::default()
        };
        let ranks = [late, waiting(0.25), waiting(0.75)];
        let record = record_of(&ranks, 1_000_000_000, Record::blank("pushpull", DType::F32)).unwrap();
        assert_eq!((record.ranks, record.hosts, record.host_bytes), (3, 1, Some(15)));
        assert_eq!((&record.seconds[..], record.median_s), (&[2.0, 4.0][..], 3.0));
        let usage = Usage { cpu_s_per_gb: Some(5.0 / 6.0), waiting_cpu: Some(0.5), ..Usage::default() };
        assert_eq!(record.usage, usage);
    }

    #[test]
    fn reports_of_different_lengths_are_gathered() {
        let own = RankReport { seconds: vec![0.1], host: "a".to_owned(), ..RankReport::default() };
        let other = to_json_line(&RankReport { seconds: vec![1.5; 9], ..own.clone() }).unwrap();
        let found = gather_by(&own, |name, numbers| {
            let theirs = match name {
                "lens" => vec![other.len() as f64],
                _ => other.bytes().map(f64::from).collect(),
            };
            assert!(name == "lens" || numbers.len() == theirs.len());
            Ok(vec![numbers.to_vec(), theirs])
        });
        let seconds: Vec<Vec<f64>> = found.unwrap().into_iter().map(|rank| rank.seconds).collect();
        assert_eq!(seconds, [vec![0.1], vec![1.5; 9]]);
    }
}
