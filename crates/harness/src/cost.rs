//! The bytes that a mode must move through the busiest host, in closed form, and the least time for them.
//!
//! `n` workers hold `S` bytes each, and each of `k` servers holds 1/k of every key.
//!
//! A link carries its rate in both directions at the same time: pushes go one way and answers the other, so
//! the larger direction counts. What a worker and a server of one host exchange does not cross the link.
//!
//! *Dedicated.* A server receives its share of each worker's bytes, in all `n/k S`, and sends `n/k S`. A
//! worker sends and receives `S`. So the larger of the two counts, `max(n/k, 1) S`.
//!
//! *Shared, k <= n.* The host of a server receives the shares of the other workers, `(n-1)/k S`, and for its
//! own worker the shares of the other servers, `(k-1)/k S`: together `(n+k-2)/k S`. It sends the same number
//! of bytes. A host without a server sends and receives `S`, which is never more. With `h` servers on the
//! busiest host it is `(h (n-1) + k - h)/k S`.
//!
//! *Helpers.* With `h` hosts that only reduce, each worker and each helper carries
//! `2 n (n-1) / (n^2 + h n - 2 h) S`, but a worker at least `S`. With fewer than three workers helpers are of
//! no use (`ringpull_plan::Links`).
//!
//! *Rows.* Each worker pushes and pulls `r` bytes of rows of a table of `S` bytes, and all workers together
//! have `u` bytes of different rows. Servers, also those of `dist_hybrid`, move the bytes above with `S = r`.
//! An allreduce gives every worker all rows, and each link carries `(n-1) r` if the rows are gathered,
//! `(n-1)/n (r + u)` by owners, or `2 (n-1)/n S` as a dense table. It can choose the least.
//!
//! *When the answers begin.* A server can answer a segment once the last worker's push of it is there. If all
//! workers send the `m` segments of a share in the same order at the same rate, the first answer leaves after
//! `1/m` of the time of the pushes, and the last answer ends `1/m` after the last push. So the two directions
//! overlap except for `1/m`, and with many short segments the time comes close to these bounds. A worker that
//! is ahead of the others does not shorten this time.

use ringpull_workload::sparse::SparseSetup;
use serde::{Deserialize, Serialize};

use crate::mode::{Mode, ServerPlacement};
use crate::shape::HostRate;
use crate::size::format_size;

/// The links of the workers' hosts.
#[derive(Debug, Clone, Copy)]
pub struct Links<'a> {
    pub bytes_per_s: f64,
    /// The hosts whose links have rates of their own.
    pub own: &'a [HostRate],
}

impl From<f64> for Links<'_> {
    fn from(bytes_per_s: f64) -> Self {
        Links { bytes_per_s, own: &[] }
    }
}

impl Links<'_> {
    /// The rates at which the host of `worker`, counted from 0, sends and receives.
    fn of(&self, worker: usize) -> (f64, f64) {
        let own = self.own.iter().find(|own| own.host == worker + 1);
        let rate = |own: Option<f64>| own.unwrap_or(self.bytes_per_s);
        own.map_or((self.bytes_per_s, self.bytes_per_s), |own| {
            (rate(own.sends.bytes_per_s()), rate(own.receives.bytes_per_s()))
        })
    }
}

/// The least time of an allreduce. On links of equal rates every rank sends and receives 2(n-1)/n of the
/// payload (Patarasuk and Yuan 2009). On other links each rank sends and receives at least the payload, and
/// all ranks together 2(n-1) times the payload.
pub fn allreduce_bound_s<'a>(ranks: usize, bytes: f64, links: impl Into<Links<'a>>) -> f64 {
    let links = links.into();
    if ranks < 2 || links.own.is_empty() {
        return bus_factor(ranks) * bytes / links.bytes_per_s;
    }
    let (mut slowest, mut sent, mut received) = (f64::INFINITY, 0.0, 0.0);
    for (sends, receives) in (0..ranks).map(|rank| links.of(rank)) {
        slowest = slowest.min(sends).min(receives);
        sent += sends;
        received += receives;
    }
    bytes * (1.0 / slowest).max(2.0 * (ranks as f64 - 1.0) / sent.min(received))
}

/// The least that every rank must send, divided by the payload: (n-1)/n for a reduce-scatter, an allgather
/// and an alltoall; twice that for an allreduce.
pub fn factor_of(op: &str, ranks: usize) -> f64 {
    let half = ["reduce_scatter", "allgather", "alltoall"].contains(&op);
    if half { bus_factor(ranks) / 2.0 } else { bus_factor(ranks) }
}

/// The bytes that a rank sends in an optimal allreduce, divided by the payload: 2(n-1)/n.
pub fn bus_factor(ranks: usize) -> f64 {
    if ranks == 0 { 0.0 } else { 2.0 * (ranks as f64 - 1.0) / ranks as f64 }
}

/// Bytes that the busiest host sends or receives, whichever is more, in one push and pull of `bytes` per
/// worker.
pub fn busiest_host_bytes(mode: Mode, workers: usize, bytes: f64) -> f64 {
    let n = workers as f64;
    match mode {
        // For keys that are not row-sparse.
        Mode::Allreduce | Mode::Hybrid { .. } => bus_factor(workers) * bytes,
        Mode::Helped { .. } if workers < 3 => bus_factor(workers) * bytes,
        Mode::Helped { helpers } => {
            let h = helpers as f64;
            bytes * (2.0 * n * (n - 1.0) / (n * n + h * n - 2.0 * h)).max(1.0)
        }
        Mode::Servers { servers, placement: ServerPlacement::Dedicated, .. } => bytes * (n / servers as f64).max(1.0),
        Mode::Servers { servers, placement: ServerPlacement::Shared, .. } => {
            bytes * host_share(workers, servers, servers.div_ceil(workers.max(1)))
        }
    }
}

/// The least time of one push and pull in this mode: the time of the host whose bytes take longest over its
/// link. The slower direction of the link counts, because a host sends as many bytes as it receives.
pub fn mode_bound_s<'a>(mode: Mode, workers: usize, bytes: f64, links: impl Into<Links<'a>>) -> f64 {
    let links = links.into();
    if let Mode::Helped { helpers } = mode
        && !links.own.is_empty()
    {
        let of_worker = |worker: usize| {
            let (sends, receives) = links.of(worker);
            ringpull_plan::LinkRates { sends, receives }
        };
        let of_helpers = vec![ringpull_plan::LinkRates::both(links.bytes_per_s); helpers];
        let rates: Vec<_> = (0..workers).map(of_worker).chain(of_helpers).collect();
        let slowest = rates.iter().map(|rates| rates.slower()).fold(f64::INFINITY, f64::min);
        if let Some(trees) = ringpull_plan::Links::with_helpers(&rates, helpers) {
            return bytes * trees.least_time() / slowest;
        }
    }
    let (servers, placement) = match mode {
        Mode::Servers { servers, placement, .. } => (servers, placement),
        Mode::Helped { .. } => return busiest_host_bytes(mode, workers, bytes) / links.bytes_per_s,
        Mode::Allreduce | Mode::Hybrid { .. } => return allreduce_bound_s(workers, bytes, links),
    };
    let of_worker = |worker: usize| {
        let here = match placement {
            ServerPlacement::Dedicated => 0,
            ServerPlacement::Shared => servers / workers + usize::from(worker < servers % workers),
        };
        let (sends, receives) = links.of(worker);
        bytes * host_share(workers, servers, here) / sends.min(receives)
    };
    let busiest = busiest_host_bytes(mode, workers, bytes) / links.bytes_per_s;
    let of_servers = if placement == ServerPlacement::Dedicated { busiest } else { 0.0 };
    (0..workers).map(of_worker).fold(of_servers, f64::max)
}

/// The rows that the iterations of a record push and pull.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SparseRows {
    /// The table, and what each rank touches of it.
    #[serde(flatten)]
    pub table: SparseSetup,
    /// The different rows that all ranks touch, on average.
    pub union: f64,
}

impl SparseRows {
    /// Bytes through each link, in each direction, for each way to sum rows by an allreduce, and for a server
    /// on each worker's host.
    pub fn ways(&self, workers: usize) -> [(&'static str, f64); 4] {
        let (n, row) = (workers as f64, self.table.row_bytes() as f64);
        let (touched, union, all) = (self.table.touched as f64 * row, self.union * row, self.table.rows as f64 * row);
        let apart = bus_factor(workers) / 2.0;
        [
            ("rows gathered", (n - 1.0) * touched),
            ("rows by owner", apart * (touched + union)),
            ("dense ring", 2.0 * apart * all),
            ("servers", 2.0 * apart * touched),
        ]
    }

    /// The least time of pushing and pulling these rows in this mode.
    pub fn bound_s<'a>(&self, mode: Mode, workers: usize, links: impl Into<Links<'a>>) -> f64 {
        let links = links.into();
        if let Some(placement) = mode.placement() {
            let servers = Mode::Servers { sync: true, servers: mode.servers(), placement };
            return mode_bound_s(servers, workers, self.table.touched_bytes() as f64, links);
        }
        let least = self.ways(workers)[..3].iter().map(|way| way.1).fold(f64::INFINITY, f64::min);
        // Computed as an allreduce that sends `least` bytes on every rank.
        allreduce_bound_s(workers, least / bus_factor(workers).max(f64::MIN_POSITIVE), links)
    }
}

/// The rows, and the bytes that each way to sum them moves, in words.
pub fn rows_words(rows: &SparseRows, workers: usize) -> String {
    let SparseSetup { rows: all, width, touched, zipf } = rows.table;
    let part = |count: f64| format!("{:.2} %", 100.0 * count / all as f64);
    let ways = rows.ways(workers).map(|(way, bytes)| format!("{way} {}", format_size(bytes)));
    format!(
        "each rank touches {touched} of {all} rows of {} ({}, Zipf {zipf}), all together {}; through each link: {}",
        format_size(4.0 * width as f64),
        part(touched as f64),
        part(rows.union),
        ways.join(", ")
    )
}

/// The bytes that a worker's host sends (or receives), divided by the payload, if `here` of the servers are
/// on this host. Traffic between this worker and these servers does not touch the network.
fn host_share(workers: usize, servers: usize, here: usize) -> f64 {
    let (n, k, here) = (workers as f64, servers as f64, here as f64);
    ((k - here) + here * (n - 1.0)) / k
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str) -> Mode {
        text.parse().unwrap()
    }

    #[test]
    fn a_server_on_every_workers_host_moves_what_an_allreduce_moves() {
        for n in 2..=33 {
            let shared = busiest_host_bytes(mode(&format!("dist_sync:{n}shared")), n, 1.0);
            assert!((shared - busiest_host_bytes(Mode::Allreduce, n, 1.0)).abs() < 1e-12, "{n}");
        }
    }

    #[test]
    fn the_published_testbed_has_the_published_bounds() {
        let bound = |text: &str| mode_bound_s(mode(text), 8, 400e6, 1.25e9);
        assert_eq!(bound("dist_sync_mpi"), 0.56);
        assert_eq!(bound("dist_sync:1"), 2.56);
        assert_eq!(bound("dist_sync:8"), 0.32);
        assert_eq!(bound("dist_sync:8shared"), 0.56);
        assert_eq!(bound("dist_sync:1shared"), 2.24);
        assert_eq!(allreduce_bound_s(8, 400e6, 1.25e9), 0.56);
    }

    #[test]
    fn links_that_are_not_alike_bound_each_mode_by_the_host_that_takes_longest() {
        let own = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<HostRate>>();
        let bound =
            |text: &str, own: &[HostRate]| mode_bound_s(mode(text), 8, 125e6, Links { bytes_per_s: 125e6, own });
        let slow = own(&["3=500mbit"]);
        assert_eq!(bound("dist_sync_mpi", &slow), 2.0);
        assert_eq!(bound("dist_sync_mpi", &own(&["3=500mbit/1gbit"])), 2.0);
        let half = own(&["1=500mbit", "2=500mbit", "3=500mbit", "4=500mbit"]);
        assert!((bound("dist_sync_mpi", &half) - 14.0 / 6.0).abs() < 1e-12);
        assert_eq!([bound("dist_sync:1shared", &slow), bound("dist_sync:1shared", &half)], [7.0, 14.0]);
        assert_eq!([bound("dist_sync:8shared", &slow), bound("dist_sync:8", &slow)], [3.5, 2.0]);
        assert_eq!(bound("dist_sync:2", &slow), 4.0, "of the servers");
    }

    #[test]
    fn rows_are_bounded_by_the_shortest_way_of_each_mode() {
        // 1 % of 25.6 MB on each of 8 ranks, 4 % together, on links of 25.6 MB/s.
        let table = SparseSetup { rows: 100_000, width: 64, touched: 1000, zipf: 1.0 };
        let rows = SparseRows { table, union: 4000.0 };
        let bound = |text: &str, rows: SparseRows| rows.bound_s(mode(text), 8, 25.6e6);
        assert_eq!(rows.ways(8).map(|way| way.1 / 25.6e6), [0.07, 0.04375, 1.75, 0.0175]);
        assert!((bound("dist_sync_mpi", rows) - 0.04375).abs() < 1e-12);
        assert!((bound("dist_hybrid:8shared", rows) - 0.0175).abs() < 1e-12);
        assert!((bound("dist_sync:8", rows) - 0.01).abs() < 1e-12);
        let apart = SparseRows { union: 8000.0, ..rows };
        assert!((bound("dist_sync_mpi", apart) - 0.07).abs() < 1e-12, "gathered");
    }

    #[test]
    fn one_rank_moves_nothing() {
        assert_eq!(busiest_host_bytes(Mode::Allreduce, 1, 5.0), 0.0);
        assert_eq!(busiest_host_bytes(mode("dist_sync:1shared"), 1, 5.0), 0.0);
        assert_eq!(busiest_host_bytes(mode("dist_sync:2"), 1, 5.0), 5.0);
    }
}
