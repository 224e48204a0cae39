//! Allreduce over several hosts of which some have several ranks: within each host through shared memory,
//! between hosts by a plan.
//!
//! 1. Within each host the buffer is reduced and scattered: leader `l` of the host gets the sum of share `l`.
//! 2. The leaders `l` of all hosts allreduce share `l` among themselves; the shares travel at the same time.
//! 3. Within each host every rank gets every share from its leader.
//!
//! Each host's network carries `2 (h-1)/h S` for `h` hosts, however many ranks they have. Sums are made in
//! the order of the ranks within a host and in the plan's order between hosts: all ranks have the same bits,
//! and the bits depend on the placement of the ranks.

use std::rc::Rc;
use std::sync::Arc;

use ringpull_base::AlgorithmChoice;
use ringpull_kernels::reduce::Arithmetic;
use ringpull_plan::{Links, Model, Parts, Schedule, Segments};

use super::node::Node;
use super::racks::Racks;
use super::schedules::{Schedules, Sum};
use crate::interpreter::{Memory, ProgramStep};
use crate::transport::Stamp;

/// The least length of a share: a leader with less is not worth its messages.
const LEAST_SHARE_BYTES: usize = 256 << 10;
/// The most leaders of a host: more flows at once out of one host delay each other.
const MOST_LEADERS: usize = 4;

/// The hosts of a job.
#[derive(Clone, Copy)]
pub(super) struct Hosts<'a> {
    /// The ranks of each host.
    pub(super) ranks: &'a [Vec<usize>],
    /// The racks of the hosts, if there are two.
    pub(super) racks: Option<&'a Racks>,
    /// The model of the network between them.
    pub(super) model: &'a Model,
    /// The links of the hosts, if these are not alike.
    pub(super) links: Option<&'a Links>,
    /// The lengths into which messages are cut.
    pub(super) segments: Segments,
}

/// Returns the steps by which this `rank` sums `data` in place over all ranks of `hosts`. Between hosts they
/// use the plan that `auto` chooses. `node` is this rank's node, if the rank has neighbours.
pub(super) fn allreduce(
    (hosts, node): (Hosts, Option<&Rc<Node>>),
    (rank, schedules): (usize, &mut Schedules),
    arithmetic: Arithmetic,
    data: &mut Memory,
    stamp: Stamp,
) -> Vec<ProgramStep> {
    let (element, len_bytes) = (arithmetic.1.size_bytes(), data.bytes().len());
    let leaders = leaders(hosts.ranks, len_bytes);
    let shares = Parts::even(len_bytes / element, leaders);
    let bounds = Parts::of((0..=leaders).map(|leader| shares.range(0..leader).end * element).collect());
    // A rank that is alone on its host is the host's leader. In that case every host has one leader, and the
    // share is the whole buffer.
    let leader = node.map_or(0, |node| node.local_rank());
    let between = (leader < leaders).then(|| {
        let share = bounds.range(leader..leader + 1);
        ProgramStep::Plan(between_hosts(hosts, leader, (rank, schedules), arithmetic, share.len()), share)
    });
    let first = node.map(|node| ProgramStep::Host(node.reduce_scatter(arithmetic, data, bounds.clone(), stamp)));
    let last = node.map(|node| ProgramStep::Host(node.allgather(data, bounds, stamp)));
    [first, between, last].into_iter().flatten().collect()
}

/// Returns the number of leaders of each host.
fn leaders(hosts: &[Vec<usize>], len_bytes: usize) -> usize {
    let fewest = hosts.iter().map(Vec::len).min().unwrap_or(1);
    fewest.min(MOST_LEADERS).min(len_bytes / LEAST_SHARE_BYTES).max(1)
}

/// Returns the schedule that sums a share over the leaders of this number on all hosts.
fn between_hosts(
    hosts: Hosts,
    leader: usize,
    (rank, schedules): (usize, &mut Schedules),
    (reduction, dtype): Arithmetic,
    len_bytes: usize,
) -> Arc<Schedule> {
    let members: Vec<usize> = hosts.ranks.iter().map(|ranks| ranks[leader]).collect();
    let place = members.iter().position(|member| *member == rank).expect("a leader is one of the leaders");
    let size = members.len();
    let len = len_bytes / dtype.size_bytes();
    let plan = || {
        if let Some(plan) = hosts.racks.and_then(|racks| racks.plan(place, len, dtype.size_bytes())) {
            return (plan.among(&members), hosts.segments.most_bytes);
        }
        let (cluster, elements) = ((hosts.model, hosts.links), (len, dtype.size_bytes()));
        let (plan, segment_bytes) = ringpull_plan::auto(cluster, (place, size), elements, hosts.segments);
        (plan.among(&members), segment_bytes)
    };
    let sum = Sum { between_hosts: true, reduction, ..Sum::of(AlgorithmChoice::Auto, dtype, len_bytes) };
    schedules.find(sum, plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_has_as_many_leaders_and_short_buffers_have_one() {
        let hosts = [vec![0, 2, 4], vec![1, 3], vec![5, 6, 7]];
        assert_eq!(leaders(&hosts, 100_000_000), 2);
        assert_eq!(leaders(&hosts, LEAST_SHARE_BYTES), 1);
        assert_eq!(leaders(&hosts, 0), 1);
        assert_eq!(leaders(&[vec![0, 1], vec![2]], 100_000_000), 1);
    }
}
