//! Allreduce of device memory over ranks, by one of two routes:
//!
//! * `staged`: the data is copied to pinned host memory and summed like any host memory. It is always
//!   available.
//! * `joined`: device `d` of each rank sums with device `d` of the other ranks, on GPUs by NCCL. It is
//!   available if all ranks have the same number of devices and all devices could join.
//!
//! The ranks agree on the possible routes with a store's first sum. An algorithm that names a plan uses
//! `staged` with this plan. `nccl` uses `joined`, or fails. `auto` measures: in each size class (a power of
//! two of bytes) the first sums go by each route in turn. Then every rank sends its times to all others. So
//! all ranks have the same times and make the same choice for the class. The time of a sum is the shortest
//! that any rank took, because the rank that comes last waits for nobody. The first sum of each route, which
//! allocates, does not count.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::communicator::Parts;
use ringpull_allreduce::transport::Stamp;
use ringpull_base::{AlgorithmChoice, Error, Result};
use ringpull_device::{JoinedDevices, Pool};

use super::joined::NotJoined;
use super::sum::Sum;
use super::{joined, staged};

/// The number of trials of each route. The first trial does not count.
const ROUNDS: usize = 3;

/// The routes of a store's sums, and the memory through which the sums pass. The memory is kept, so that only
/// the first sum of each size and route allocates.
#[derive(Default)]
pub(crate) struct Route {
    ways: Mutex<Option<Ways>>,
    /// The memory that is lent to each sum.
    pub(super) pool: Arc<Pool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SumRoute {
    Staged,
    Joined,
}

impl fmt::Display for SumRoute {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            SumRoute::Staged => "copies in pinned memory",
            SumRoute::Joined => "nccl",
        })
    }
}

/// Replaces the parts by the sums over all ranks, in the order of the lanes, with the same bits on each rank.
/// Waits for the other ranks; collective.
pub(crate) fn allreduce(comm: &mut Communicator, route: &Route, sum: &Sum<'_>) -> Result<()> {
    let mut ways = route.ways.lock();
    let ways = match &mut *ways {
        Some(agreed) => agreed,
        none => none.insert(Ways::agree(comm, sum)?),
    };
    ways.sum(comm, sum)
}

/// The possible routes, on which all ranks have agreed.
struct Ways {
    open: Vec<SumRoute>,
    joined: Option<JoinedDevices>,
    /// The size classes, by their power of two.
    classes: BTreeMap<u32, Class>,
}

/// The state of sums of one size.
enum Class {
    /// The times of the sums so far in nanoseconds, with the routes in turn.
    Tried(Vec<u64>),
    Chosen(SumRoute),
}

impl Ways {
    /// Agrees on the possible routes with the other ranks. Collective.
    fn agree(comm: &mut Communicator, sum: &Sum<'_>) -> Result<Self> {
        let (size, choice) = (comm.size(), comm.choice());
        // No machine has more than 255 devices.
        let count = u8::try_from(sum.devices.count()).unwrap_or(0);
        let joins = size > 1 && choice.is_auto() && sum.devices.platform().can_join();
        let parts = Parts::of((0..=size).collect());
        let cards = comm.gather(parts, sum.stamp, |card| card[0] = if joins { count } else { 0 })?;
        let cards = cards.bytes();
        // From here on use only values that are the same on every rank.
        let unlike = cards.iter().position(|card| *card == 0 || *card != cards[0]);
        let joined = match unlike {
            None => joined::join(comm, sum)?,
            Some(rank) => {
                let cause = Error::job_mismatch(
                    format!(
                        "rank {rank} has {} devices that can sum with those of other ranks, rank 0 {}",
                        cards[rank], cards[0]
                    ),
                    "give every rank the same number of GPUs, each GPU once, and NCCL 2.14 or later (see `ringpull info`), without NCCL_COMM_BLOCKING=1; or leave RINGPULL_ALGORITHM at auto",
                );
                Err(NotJoined { knows: rank, cause })
            }
        };
        let mut open = vec![SumRoute::Staged];
        let joined = match (joined, choice) {
            (Ok(joined), AlgorithmChoice::Nccl) => {
                open.clear();
                Some(joined)
            }
            (Ok(joined), _) => Some(joined),
            (Err(NotJoined { cause, .. }), AlgorithmChoice::Nccl) => return Err(cause),
            (Err(NotJoined { knows, cause }), _) => {
                if unlike.is_none() && comm.rank() == knows {
                    tracing::warn!(rank = comm.rank(), %cause, "the ranks' devices cannot sum among themselves (nccl)");
                }
                None
            }
        };
        open.extend(joined.is_some().then_some(SumRoute::Joined));
        if comm.rank() == 0 {
            let names: Vec<String> = open.iter().map(ToString::to_string).collect();
            tracing::info!("sums over the ranks' devices go by {} ({})", names.join(", "), comm.library());
        }
        Ok(Ways { open, joined, classes: BTreeMap::new() })
    }

    fn sum(&mut self, comm: &mut Communicator, sum: &Sum<'_>) -> Result<()> {
        let class = sum.layout.len_bytes().next_power_of_two().ilog2();
        let mut took = match (&self.open[..], self.classes.get(&class)) {
            ([only], _) => return self.by(*only, comm, sum),
            (_, Some(Class::Chosen(way))) => return self.by(*way, comm, sum),
            (_, Some(Class::Tried(took))) => took.clone(),
            (_, None) => Vec::new(),
        };
        // Earlier work is not part of the measured time.
        sum.devices.drain(sum.limit)?;
        let start = Instant::now();
        self.by(self.open[took.len() % self.open.len()], comm, sum)?;
        took.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let known = if took.len() < ROUNDS * self.open.len() {
            Class::Tried(took)
        } else {
            let way = self.choose(class, &took, comm, sum.stamp)?;
            Class::Chosen(way)
        };
        self.classes.insert(class, known);
        Ok(())
    }

    /// Returns the quickest route by the measurements of all ranks. Collective.
    fn choose(&self, class: u32, took: &[u64], comm: &mut Communicator, stamp: Stamp) -> Result<SumRoute> {
        let own = size_of_val(took);
        let parts = Parts::of((0..=comm.size()).map(|rank| rank * own).collect());
        let all = comm.gather(parts, stamp, |times| times.copy_from_slice(bytemuck::cast_slice(took)))?;
        let row = |times: &[u8]| times.chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned).collect();
        let rows: Vec<Vec<u64>> = all.bytes().chunks_exact(own).map(row).collect();
        let (quickest, nanos) = quickest(&rows, self.open.len());
        if comm.rank() == 0 {
            let each: Vec<String> = self
                .open
                .iter()
                .zip(&nanos)
                .map(|(way, nanos)| format!("{way} {:.0} us", *nanos as f64 / 1e3))
                .collect();
            tracing::info!(
                "sums over the ranks' devices up to {} bytes go by {}: {}",
                1u64 << class,
                self.open[quickest],
                each.join(", ")
            );
        }
        Ok(self.open[quickest])
    }

    fn by(&self, way: SumRoute, comm: &mut Communicator, sum: &Sum<'_>) -> Result<()> {
        match (way, &self.joined) {
            (SumRoute::Joined, Some(joined)) => joined::allreduce(comm, sum, joined),
            _ => staged::allreduce(comm, sum),
        }
    }
}

/// Returns the quickest route, and the time of each route, which is the shortest that any rank has measured.
/// `rows` has the ranks' times, with the routes in turn.
fn quickest(rows: &[Vec<u64>], ways: usize) -> (usize, Vec<u64>) {
    let of =
        |way: usize| rows.iter().flat_map(|row| row.iter().skip(ways + way).step_by(ways)).copied().min().unwrap_or(0);
    let nanos: Vec<u64> = (0..ways).map(of).collect();
    let quickest = (0..ways).min_by_key(|way| nanos[*way]).unwrap_or(0);
    (quickest, nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_way_is_that_of_the_least_time_of_any_rank_but_for_the_first_round() {
        // Three routes and three rounds. The first round does not count, and neither does the time of waiting
        // for a late rank.
        let punctual = vec![1, 9, 9, /**/ 70, 900, 60, /**/ 80, 50, 90];
        let late = vec![9, 1, 9, /**/ 75, 40, 900, /**/ 65, 45, 90];
        assert_eq!(quickest(&[punctual, late], 3), (1, vec![65, 40, 60]));
        assert_eq!(quickest(&[vec![0, 0, 7, 7, 7, 7]], 2), (0, vec![7, 7]));
    }
}
