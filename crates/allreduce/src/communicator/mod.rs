//! What a store asks of a set of ranks: allreduce, broadcast, allgather. A [`Communicator`] does them on host
//! memory, by plans over a transport or by the MPI library's own allreduce: `sums` and `copies`; its
//! `executor` runs their schedules.
//!
//! What `auto` knows of the cluster comes from `learn`, which reads it from `model_cache` or has `probe`
//! measure it.
//!
//! [`AlgorithmChoice`] names the ways. `placement` finds the ranks that share a host; `node` sums among them in shared
//! memory, `hierarchy` over several such hosts; `racks` knows where hosts stand; `schedules` keeps what is to
//! be sent for each kind of sum; gradients with a codec go by `compressed`, between whatever `ends` encode
//! and decode them. Memory of devices is the store's affair (`src/on_devices`).

mod compressed;
mod copies;
mod ends;
mod executor;
mod hierarchy;
mod learn;
mod model_cache;
mod node;
mod placement;
mod probe;
mod rack_probe;
mod racks;
mod schedules;
mod sums;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringpull_base::config::{Config, ModelSource};
use ringpull_base::{AlgorithmChoice, Result};
use ringpull_plan::Segments;

use crate::communicator::node::Node;
use crate::communicator::placement::Placement;
use crate::communicator::racks::Racks;
use crate::communicator::schedules::Schedules;
use crate::transport::Transport;

pub use executor::Executor;
pub use learn::Learned;
pub use ringpull_plan::Parts;

/// All ranks of a job, seen from one of them. Every operation is collective, with the same length, dtype and
/// stamp on all ranks, and blocks, but for those begun with [`begin_allreduce`](Self::begin_allreduce). Those
/// that block are called by all ranks in one order, when nothing is under way.
pub struct Communicator {
    executor: Executor,
    choice: AlgorithmChoice,
    learned: Learned,
    /// How messages are cut.
    cuts: Segments,
    schedules: Schedules,
    placement: Placement,
    takes_device_memory: bool,
}

impl Communicator {
    /// Collectives over `transport`. When `stop` is set, an operation under way ends in an error. Collective.
    pub fn new(transport: Box<dyn Transport>, config: &Config, stop: Arc<AtomicBool>) -> Result<Self> {
        // Longer than the control star waits for a silent rank: it names the one that is lost, a runner only
        // its neighbours.
        let mut executor = Executor::new(transport, config.segment_bytes, config.timeout * 3 / 2, stop);
        let choice = config.algorithm;
        let placement = Placement::find(&mut executor)?;
        let learned = Learned::default();
        // By the library's own sum there is no message of ours.
        let takes_device_memory = choice != AlgorithmChoice::Native
            && config.mpi_device_memory.unwrap_or_else(|| executor.transport.takes_device_memory());
        let cuts = Segments { most_bytes: config.segment_bytes, is_fixed: config.segment_is_fixed };
        Ok(Communicator {
            executor,
            choice,
            learned,
            cuts,
            schedules: Schedules::default(),
            placement,
            takes_device_memory,
        })
    }

    /// Finds out what `auto` must know of the cluster, as rank 0's `config` says. Collective; until then
    /// `auto` goes by the default model. Ranks that all share one host's memory need no network, and learn
    /// nothing.
    pub fn learn(&mut self, config: &Config) -> Result<()> {
        if self.placement.is_one_host() {
            if let (ModelSource::File(path), 0) = (&config.model, self.rank()) {
                tracing::warn!(path = %path.display(), "RINGPULL_MODEL is not read: all ranks share one host's memory, and no model is needed");
            }
            return Ok(());
        }
        let source = if self.choice.is_auto() { &config.model } else { &ModelSource::Default };
        let Placement { hosts, racks, are_racks_named, .. } = &mut self.placement;
        let cluster = (&hosts[..], *are_racks_named);
        self.learned = learn::learn(&mut self.executor, cluster, source)?;
        if !*are_racks_named {
            *racks = Racks::of_bits(self.learned.racks, hosts.len());
        }
        self.schedules = Schedules::default();
        if self.rank() == 0 && self.choice.is_auto() {
            let is_in_named_racks = self.placement.are_racks_named && self.placement.racks.is_some();
            let (hosts, size) = (self.placement.hosts.len(), self.size());
            self.learned.explain(hosts, size, is_in_named_racks, self.cuts);
        }
        Ok(())
    }

    /// What `auto` knows of the cluster.
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// The most bytes that short sums should travel in together: any number where no network is between the
    /// ranks.
    pub fn bucket_bytes(&self) -> usize {
        if self.placement.is_one_host() {
            return usize::MAX;
        }
        self.learned.model.bucket_bytes(self.size(), self.cuts)
    }

    /// How sums are to be done.
    pub fn choice(&self) -> AlgorithmChoice {
        self.choice
    }

    /// How long ranks wait for each other.
    pub fn limit(&self) -> Duration {
        self.executor.runner.limit
    }

    /// An error when the job was told to stop: for those who wait for other ranks elsewhere than here.
    pub fn go_on(&self) -> Result<()> {
        self.executor.go_on()
    }

    /// What runs its schedules, to move on what was begun.
    pub fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// How messages are cut.
    pub fn segments(&self) -> Segments {
        self.cuts
    }

    /// The ranks that share memory, host by host: among those of one host `auto` sums there.
    pub fn hosts(&self) -> &[Vec<usize>] {
        &self.placement.hosts
    }

    /// The racks the hosts stand in, if there are two, named or found: each one's hosts, by their place in
    /// [`hosts`](Self::hosts).
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

    /// The library under the transport, for people.
    pub fn library(&self) -> String {
        self.executor.transport.name()
    }

    /// Payload bytes sent and received; a buffer that is summed in shared memory, or by devices themselves,
    /// counts once in each direction.
    pub fn traffic_bytes(&self) -> (u64, u64) {
        let moved = self.placement.node.as_ref().map_or(0, Node::moved_bytes);
        (self.executor.runner.sent_bytes + moved, self.executor.runner.received_bytes + moved)
    }

    /// Takes note of a buffer that others than the transport have summed over the ranks.
    pub fn count(&mut self, len_bytes: usize) {
        self.executor.runner.sent_bytes += len_bytes as u64;
        self.executor.runner.received_bytes += len_bytes as u64;
    }
}
