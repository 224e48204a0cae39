//! All ranks of a job as one object: the collectives of host memory. `sums` and `copies` run them as plans
//! over a transport, or by the MPI library's own allreduce; `begun` begins collectives, of all ranks or of
//! some, that run beside others, and `two_buffers` is for those with separate buffers for input and output;
//! `divided` begins sums of which each rank updates a part; `executor` runs the schedules of plans.
//!
//! The transport's last ranks may be helpers. Helpers take part in sums only (`helped`), and this module does
//! not count them as ranks.
//!
//! `learn` provides the model of the cluster that `auto` uses. The model comes from a file (`cluster`,
//! `cluster_cache`), or consists of constants. `measure` makes such a file: `probe` and `rack_probe` run
//! allreduces and exchanges for it.
//!
//! [`AlgorithmChoice`] names the algorithms. `placement` finds the ranks that share a host; `node` sums their
//! buffers in shared memory, `hierarchy` sums over several such hosts; `racks` finds the racks of hosts;
//! `schedules` caches the schedule of each kind of sum; `compressed` sums gradients that `ends` encodes and
//! decodes. Sums in the memory of devices are done by the store (`src/on_devices`).

mod begun;
mod cluster;
mod cluster_cache;
mod compressed;
mod copies;
mod divided;
mod ends;
mod executor;
mod helped;
mod hierarchy;
mod learn;
mod measure;
mod node;
mod placement;
mod probe;
mod probe_rings;
mod rack_probe;
mod racks;
mod reached;
mod schedules;
#[cfg(test)]
mod simulated_probe;
mod sums;
#[cfg(test)]
mod tests;
mod two_buffers;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringpull_base::config::{ClusterSource, Config};
use ringpull_base::{AlgorithmChoice, Result};
use ringpull_plan::{LinkRates, Links, Segments};

use crate::communicator::divided::DividedSchedules;
use crate::communicator::helped::{Ask, Helpers};
use crate::communicator::node::Node;
use crate::communicator::placement::Placement;
use crate::communicator::schedules::Schedules;
use crate::transport::Transport;

pub use crate::interpreter::{PartUpdate, Ticket};
pub use begun::{BegunOperation, Passage, ProcessSet};
pub use cluster::{Cluster, ClusterHost, Network};
pub use executor::Executor;
pub use helped::HelpRequest;
pub use learn::LearnedModel;
pub use ringpull_plan::{Owners, Parts, RowWay, choose_rows};
pub use schedules::plan_of_codes;

/// All ranks of a job, seen from one of them. Every operation is collective, and has the same length, dtype
/// and stamp on all ranks. Every operation blocks, except those whose names begin with `begin`. All ranks
/// call blocking operations in the same order, and only when no other operation of all ranks is running.
pub struct Communicator {
    executor: Executor,
    choice: AlgorithmChoice,
    learned: LearnedModel,
    /// The lengths into which messages are cut.
    cuts: Segments,
    schedules: Schedules,
    divided: DividedSchedules,
    placement: Placement,
    helpers: Helpers,
    /// The function that asks the helpers to take part in a sum. Only rank 0 has it.
    ask: Option<Ask>,
}

impl Communicator {
    /// A communicator over `transport`, of which the last `helpers` ranks only reduce. A running operation
    /// returns an error when `stop` is set. Collective.
    pub fn new(transport: Box<dyn Transport>, helpers: usize, config: &Config, stop: Arc<AtomicBool>) -> Result<Self> {
        // The runner's limit is longer than the time that the control star waits for a silent rank. So the
        // star reports first, and it knows which rank is lost, while a runner knows only its neighbours.
        let mut executor = Executor::new(transport, config.segment_bytes, config.timeout * 3 / 2, stop);
        let choice = config.algorithm;
        let helpers = Helpers::find(&mut executor, helpers, config)?;
        let placement = if executor.is_helper() {
            Placement::apart(executor.size())
        } else {
            Placement::find(&mut executor, config.read_memory)?
        };
        let links = Links::with_helpers(&vec![LinkRates::both(1.0); executor.transport.size()], helpers.active());
        let learned = LearnedModel { links, ..LearnedModel::default() };
        let cuts = Segments { most_bytes: config.segment_bytes, is_fixed: config.segment_is_fixed };
        Ok(Communicator {
            executor,
            choice,
            learned,
            cuts,
            schedules: Schedules::default(),
            divided: DividedSchedules::default(),
            placement,
            helpers,
            ask: None,
        })
    }

    /// Reads the cluster file for `auto`, as rank 0's `config` requires. Collective; measures nothing. Until
    /// this call `auto` uses the default model. If all ranks share one host's memory, nothing is read.
    pub fn learn(&mut self, config: &Config) -> Result<()> {
        if self.placement.is_one_host() {
            if let (ClusterSource::File(path), 0) = (&config.cluster, self.rank()) {
                tracing::info!(path = %path.display(), "RINGPULL_CLUSTER is not read: all ranks share one host's memory, and no network is used");
            }
            return Ok(());
        }
        let source = if self.choice.is_auto() { &config.cluster } else { &ClusterSource::None };
        let helpers = self.helpers.active();
        if helpers > 0 {
            // A sum with helpers crosses the link between racks anyhow.
            (self.learned, _) = self.executor.with_helpers(|all| {
                let hosts: Vec<Vec<usize>> = (0..all.size()).map(|rank| vec![rank]).collect();
                learn::learn(all, &hosts, source, (helpers, false))
            })?;
            self.forget_schedules();
            if self.rank() == 0 {
                self.learned.explain(self.size(), self.size(), false, self.cuts);
            }
            return Ok(());
        }
        if self.executor.is_helper() {
            return Ok(());
        }
        let (learned, racks) =
            learn::learn(&mut self.executor, &self.placement.hosts, source, (0, self.placement.may_have_racks()))?;
        self.learned = learned;
        if !self.placement.are_racks_named {
            self.placement.racks = racks;
        }
        self.forget_schedules();
        if self.rank() == 0 && self.choice.is_auto() {
            let (hosts, size) = (self.placement.hosts.len(), self.size());
            self.learned.explain(hosts, size, self.placement.racks.is_some(), self.cuts);
        }
        Ok(())
    }

    /// Uses the numbers that ranks of the same cluster have learned. Nothing is measured.
    pub fn go_on_from(&mut self, learned: &LearnedModel) {
        // The racks and links were those of all hosts, and some hosts may be gone.
        self.learned = LearnedModel { links: None, ..learned.clone() };
        self.forget_schedules();
    }

    /// Gives the communicator up after an error: requests may still refer to the communicator's memory, and
    /// the library must not be called any more, not even to free the communicator.
    pub fn abandon(self) {
        std::mem::forget(self);
    }

    /// Sets the counters of bytes to the numbers that this rank has sent and received before.
    pub fn count_on(&mut self, [sent, received]: [u64; 2]) {
        (self.executor.runner.sent_bytes, self.executor.runner.received_bytes) = (sent, received);
    }

    /// Drops the schedules, because the model of the cluster has changed.
    fn forget_schedules(&mut self) {
        (self.schedules, self.divided) = (Schedules::default(), DividedSchedules::default());
    }

    /// The model of the cluster, and its source.
    pub fn learned(&self) -> &LearnedModel {
        &self.learned
    }

    /// The limit of a bucket's length that suits the network. There is no limit if all ranks are on one host.
    pub fn bucket_bytes(&self) -> usize {
        if self.placement.is_one_host() {
            return usize::MAX;
        }
        self.learned.model.bucket_bytes(self.size(), self.cuts)
    }

    /// The way in which sums are computed.
    pub fn choice(&self) -> AlgorithmChoice {
        self.choice
    }

    /// The time that ranks wait for each other.
    pub fn limit(&self) -> Duration {
        self.executor.runner.limit
    }

    /// Returns an error once the job is stopping: for code outside this type that waits for other ranks.
    pub fn go_on(&self) -> Result<()> {
        self.executor.go_on()
    }

    /// The executor, which advances the sums that were begun.
    pub fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// The lengths into which messages are cut.
    pub fn segments(&self) -> Segments {
        self.cuts
    }

    /// The ranks that share memory, host by host. `auto` sums within a host in shared memory.
    pub fn hosts(&self) -> &[Vec<usize>] {
        &self.placement.hosts
    }

    /// The hosts of each of the two racks, as indices of [`hosts`](Self::hosts); `None` if two racks were
    /// neither named nor found.
    pub fn racks(&self) -> Option<&[Vec<usize>; 2]> {
        Some(self.placement.racks.as_ref()?.hosts())
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.executor.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.executor.size()
    }

    /// The placement of the ranks, as text: `8 ranks on 2 hosts, shared memory within each, and 2 helpers`.
    pub fn placement(&self) -> String {
        self.placement.description() + &self.helpers.description()
    }

    /// The name of the library under the transport, for messages.
    pub fn library(&self) -> String {
        self.executor.transport.name()
    }

    /// Returns the payload bytes sent and received. A buffer that is summed in shared memory, or by devices
    /// themselves, counts once in each direction.
    pub fn traffic_bytes(&self) -> (u64, u64) {
        let moved = self.placement.node.as_deref().map_or(0, Node::moved_bytes);
        (self.executor.runner.sent_bytes + moved, self.executor.runner.received_bytes + moved)
    }

    /// Counts a buffer that was summed over the ranks without the transport.
    pub fn count(&mut self, len_bytes: usize) {
        self.executor.runner.sent_bytes += len_bytes as u64;
        self.executor.runner.received_bytes += len_bytes as u64;
    }
}
