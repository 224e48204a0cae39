//! The bytes that a mode must move through the busiest host, in closed form, and the least time for them.
//!
//! A link carries its rate in both directions at the same time, so the larger direction counts.
//! `n` workers hold `bytes` each; a server holds 1/k of every key.

use crate::mode::{Mode, Placement};

/// The least time of an allreduce: every rank sends and receives 2(n-1)/n of the payload (Patarasuk and Yuan
/// 2009).
pub(crate) fn allreduce_bound_s(ranks: usize, bytes: f64, link_bytes_per_s: f64) -> f64 {
    bus_factor(ranks) * bytes / link_bytes_per_s
}

/// From the payload of an operation to what every rank must send at least: (n-1)/n for a reduce-scatter, an
/// allgather and an alltoall, which are half of an allreduce.
pub(crate) fn factor_of(op: &str, ranks: usize) -> f64 {
    let half = ["reduce_scatter", "allgather", "alltoall"].contains(&op);
    if half { bus_factor(ranks) / 2.0 } else { bus_factor(ranks) }
}

/// 2(n-1)/n: from the payload to what an optimal allreduce sends on every rank.
pub(crate) fn bus_factor(ranks: usize) -> f64 {
    if ranks == 0 { 0.0 } else { 2.0 * (ranks as f64 - 1.0) / ranks as f64 }
}

/// Bytes that the busiest host sends or receives, whichever is more, in one push and pull of `bytes` per
/// worker.
pub(crate) fn busiest_host_bytes(mode: Mode, workers: usize, bytes: f64) -> f64 {
    let n = workers as f64;
    match mode {
        Mode::Allreduce => bus_factor(workers) * bytes,
        Mode::Servers { servers, placement: Placement::Dedicated, .. } => bytes * (n / servers as f64).max(1.0),
        Mode::Servers { servers, placement: Placement::Shared, .. } => {
            // The busiest host has `here` servers beside its worker. The worker's own share does not touch
            // the network.
            let (k, here) = (servers as f64, servers.div_ceil(workers.max(1)) as f64);
            bytes * ((k - here) + here * (n - 1.0)) / k
        }
    }
}

/// The least time of one push and pull in this mode: the busiest host's bytes over its link.
pub(crate) fn mode_bound_s(mode: Mode, workers: usize, bytes: f64, link_bytes_per_s: f64) -> f64 {
    busiest_host_bytes(mode, workers, bytes) / link_bytes_per_s
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
    fn one_rank_moves_nothing() {
        assert_eq!(busiest_host_bytes(Mode::Allreduce, 1, 5.0), 0.0);
        assert_eq!(busiest_host_bytes(mode("dist_sync:1shared"), 1, 5.0), 0.0);
        assert_eq!(busiest_host_bytes(mode("dist_sync:2"), 1, 5.0), 5.0);
    }
}
