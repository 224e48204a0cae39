//! What the ranks of a measurement found, brought together on every rank: one row of numbers a rank.

use xxhash_rust::xxh3::xxh3_64;

use ringpull::KvStore;
use ringpull_base::topology::host_name;
use ringpull_base::{DType, Result, RowSparse, Tensor};

use crate::record::Record;
use crate::usage::{Usage, cpu_s};

/// What one rank found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The seconds of each measured iteration.
    pub(crate) seconds: Vec<f64>,
    /// What all of them used.
    pub(crate) spent: Spent,
    /// The part of a core that it used while it waited for a late rank.
    pub(crate) waiting_cpu: Option<f64>,
    /// How far its memory grew.
    pub(crate) extra_rss_bytes: Option<u64>,
    /// Computing in a step.
    pub(crate) compute_s: f64,
}

/// What this process and its host have used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    /// Processor seconds of this process.
    pub(crate) cpu_s: f64,
    /// Bytes that this host's network interfaces sent and received.
    sent_bytes: f64,
    received_bytes: f64,
}

impl Spent {
    /// So far.
    pub(crate) fn now() -> Self {
        let (sent_bytes, received_bytes) = traffic();
        Spent { cpu_s: cpu_s(), sent_bytes, received_bytes }
    }

    /// Adds what was used between two moments.
    pub(crate) fn add(&mut self, before: Spent, after: Spent) {
        self.cpu_s += after.cpu_s - before.cpu_s;
        self.sent_bytes += after.sent_bytes - before.sent_bytes;
        self.received_bytes += after.received_bytes - before.received_bytes;
    }
}

/// The columns of a row; the seconds of the iterations follow.
const HOST: usize = 0;
const CPU_S: usize = 1;
const SENT: usize = 2;
const RECEIVED: usize = 3;
const WAITING: usize = 4;
const EXTRA_RSS: usize = 5;
const COMPUTE_S: usize = 6;
const COLUMNS: usize = 7;

impl Found {
    /// The row of this rank. What is not known is negative.
    pub(crate) fn row(&self) -> Vec<f64> {
        // 32 bits of the hash of the host's name: an f64 holds them exactly.
        let host = (xxh3_64(host_name().as_bytes()) >> 32) as f64;
        let Spent { cpu_s, sent_bytes, received_bytes } = self.spent;
        let extra_rss = self.extra_rss_bytes.map_or(-1.0, |bytes| bytes as f64);
        let head: [f64; COLUMNS] =
            [host, cpu_s, sent_bytes, received_bytes, self.waiting_cpu.unwrap_or(-1.0), extra_rss, self.compute_s];
        [&head[..], &self.seconds].concat()
    }

    /// The rows of all ranks. Collective; `key` must be new.
    pub(crate) fn gather(&self, store: &KvStore, key: &str) -> Result<Ranks> {
        Ok(Ranks(rows(store, key, &self.row())?))
    }
}

/// The rows of all ranks, in the order of the ranks.
#[derive(Debug)]
pub(crate) struct Ranks(pub(crate) Vec<Vec<f64>>);

impl Ranks {
    fn column(&self, at: usize) -> impl Iterator<Item = f64> {
        self.0.iter().map(move |row| row[at])
    }

    fn largest(&self, at: usize) -> f64 {
        self.column(at).fold(0.0, f64::max)
    }

    fn iterations(&self) -> usize {
        self.0[0].len() - COLUMNS
    }

    /// The slowest rank's computing in a step.
    pub(crate) fn compute_s(&self) -> f64 {
        self.largest(COMPUTE_S)
    }

    /// Fills the record of `bytes` a rank with what the ranks found: the slowest rank's seconds and the
    /// busiest host's traffic.
    pub(crate) fn record(&self, bytes: usize, record: Record) -> Result<Record> {
        let mut hosts: Vec<u64> = self.column(HOST).map(|host| host as u64).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let iterations = self.iterations() as f64;
        let traffic = self.largest(SENT).max(self.largest(RECEIVED)) / iterations;
        let waiting: Vec<f64> = self.column(WAITING).filter(|part| *part >= 0.0).collect();
        let usage = Usage {
            cpu_s_per_gb: Some(self.column(CPU_S).sum::<f64>() / self.0.len() as f64 / iterations / bytes as f64 * 1e9),
            waiting_cpu: (!waiting.is_empty()).then(|| waiting.iter().sum::<f64>() / waiting.len() as f64),
            extra_rss_bytes: self.column(EXTRA_RSS).all(|bytes| bytes >= 0.0).then(|| self.largest(EXTRA_RSS) as u64),
        };
        Record {
            ranks: self.0.len(),
            hosts: hosts.len(),
            bytes: bytes as u64,
            seconds: (COLUMNS..COLUMNS + self.iterations()).map(|at| self.largest(at)).collect(),
            host_bytes: Some(traffic.round() as u64).filter(|bytes| *bytes > 0),
            usage,
            ..record
        }
        .with_figures()
    }
}

/// Every rank's `own`, in the order of the ranks: the sum of matrices that are zero but for one row. `key`
/// must be new. Collective.
pub(crate) fn rows(store: &KvStore, key: &str, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let (ranks, width) = (store.num_workers(), own.len());
    let matrix = Tensor::zeros(DType::F64, &[ranks, width]);
    store.init(key, &matrix)?;
    // Rows are never compressed.
    let row = RowSparse::new(&[ranks, width], &[store.rank() as i64], Tensor::from_slice(&[1, width], own))?;
    store.push_rows(key, &[row], 0)?;
    store.barrier()?;
    store.pull(key, std::slice::from_ref(&matrix), 0)?;
    let rows = matrix.to_vec::<f64>()?.chunks_exact(width).map(<[f64]>::to_vec).collect();
    store.barrier()?;
    Ok(rows)
}

/// Bytes sent and received so far by this host's network interfaces, the loopback apart; zeros where the
/// system does not say.
fn traffic() -> (f64, f64) {
    std::fs::read_to_string("/proc/self/net/dev").map_or((0.0, 0.0), |text| sum_traffic(&text))
}

fn sum_traffic(table: &str) -> (f64, f64) {
    table.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo").fold(
        (0.0, 0.0),
        |(sent, received), (_, counters)| {
            let counters: Vec<f64> = counters.split_whitespace().filter_map(|field| field.parse().ok()).collect();
            let at = |index: usize| counters.get(index).copied().unwrap_or(0.0);
            (sent + at(8), received + at(0))
        },
    )
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
        let spent = |cpu_s, sent_bytes| Spent { cpu_s, sent_bytes, received_bytes: 10.0 };
        let late = Found { seconds: vec![1.0, 4.0], spent: spent(3.0, 30.0), ..Found::default() };
        let waiting = |part| Found {
            seconds: vec![2.0, 3.0],
            spent: spent(1.0, 0.0),
            waiting_cpu: Some(part),
            ..Found::default()
        };
        let ranks = Ranks([&late, &waiting(0.25), &waiting(0.75)].map(Found::row).to_vec());
        let record = ranks.record(1_000_000_000, Record::blank("pushpull", DType::F32)).unwrap();
        assert_eq!((record.ranks, record.hosts, record.host_bytes), (3, 1, Some(15)));
        assert_eq!((&record.seconds[..], record.median_s), (&[2.0, 4.0][..], 3.0));
        let usage = Usage { cpu_s_per_gb: Some(5.0 / 6.0), waiting_cpu: Some(0.5), extra_rss_bytes: None };
        assert_eq!(record.usage, usage);
    }
}
