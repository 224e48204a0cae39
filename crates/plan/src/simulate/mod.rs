//! Simulates the time of plans and of steps of training on given links, message by message.
//!
//! `engine` keeps the clock. `collective` and `servers` convert the messages of a sum to tasks, and `step`
//! adds the computing around them. The model follows each message: it leaves its host in turn with the
//! others, arrives `latency_us` later at the next link, waits there for earlier messages, and is taken by a
//! processor. Links carry their rate in both directions at the same time, and switches buffer messages that
//! wait.
//!
//! The model leaves out lost packets, congestion control, bursts that a shaper lets through, ranks that share
//! cores, and hosts with different other work.

mod collective;
mod engine;
mod servers;
mod step;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::{Algorithm, Model};
use collective::SimulatedHost;
use engine::Simulation;
pub use servers::SimulatedSegment;
pub use step::{ComputedLayer, Exchange, PushedUnit, SimulatedServers, Step, step_us};

/// The time that a link needs for the bytes that its host has already handed over. A more urgent message
/// waits for these bytes. Measured steps fit it, whatever limits connections have
/// (docs/decisions/short-queues.md).
const AHEAD_US: f64 = 15_000.0;
/// The bytes of connections that always lie in the queue of a host's link.
const QUEUED_BYTES: usize = 384 << 10;
/// The most bytes that a host hands over ahead of its link. The interpreter posts four messages, and a
/// connection takes megabytes.
const MOST_BYTES: usize = 3 << 20;

/// Returns the bytes that a host has handed over and that its link, of this rate, has not sent.
fn ahead_bytes(link_bytes_per_us: f64) -> usize {
    ((link_bytes_per_us * AHEAD_US) as usize + QUEUED_BYTES).min(MOST_BYTES)
}

/// The network between the hosts of a job, one worker on each.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// The number of workers.
    pub workers: usize,
    /// The rate of a link in each direction.
    pub bytes_per_us: f64,
    /// The workers' hosts with other links: the worker, and the rates at which it sends and receives.
    pub own: Vec<(usize, f64, f64)>,
    /// The time from a message's leaving to its arriving.
    pub latency_us: f64,
    /// The processor's time for each message.
    pub costs: Costs,
}

/// The processor's time for messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// The time for one message.
    pub message_us: f64,
    /// The rate at which a processor adds.
    pub sum_bytes_per_us: f64,
}

/// The bytes of codes and of their sums, for each byte of a gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct Codes {
    /// The bytes that each simulated rank adds up. It sends their sums.
    pub own: Vec<Range<usize>>,
    /// The bytes of a gradient's code.
    pub code: f64,
    /// The bytes of a sum of codes.
    pub sum: f64,
}

impl Codes {
    fn bytes(&self, rank: usize, start: usize, len: usize) -> f64 {
        len as f64 * if self.own[rank].contains(&start) { self.sum } else { self.code }
    }
}

impl Network {
    /// Returns a network of equal links, with the latency and the costs of `model`.
    pub fn even(workers: usize, model: &Model) -> Self {
        let Model { long_bytes_per_us, latency_us, message_us, sum_bytes_per_us, .. } = *model;
        let costs = Costs { message_us, sum_bytes_per_us };
        Network { workers, bytes_per_us: long_bytes_per_us, own: Vec::new(), latency_us, costs }
    }

    /// Returns true if every host has the same link to every other.
    pub fn is_even(&self) -> bool {
        self.own.is_empty()
    }

    /// The rates at which the host of `worker` sends and receives.
    fn link(&self, worker: usize) -> (f64, f64) {
        let own = self.own.iter().find(|own| own.0 == worker);
        own.map_or((self.bytes_per_us, self.bytes_per_us), |own| (own.1, own.2))
    }

    /// Returns the ranks whose schedules are needed for a sum by `algorithm`. It is only the first if it can
    /// represent all ranks, which is so if all parts have one length.
    pub fn ranks(&self, algorithm: Algorithm) -> Range<usize> {
        let is_alike = match algorithm {
            Algorithm::Ring | Algorithm::Direct | Algorithm::Circulant => true,
            Algorithm::Doubling => self.workers.is_power_of_two(),
            Algorithm::Star | Algorithm::Tree => false,
        };
        if is_alike && self.is_even() { 0..1 } else { 0..self.workers }
    }

    /// Adds stations for `count` of the workers' hosts.
    fn hosts(&self, engine: &mut Simulation, count: usize) -> Vec<SimulatedHost> {
        let of = (0..count).map(|worker| {
            let (sends, receives) = self.link(worker);
            SimulatedHost {
                out: engine.station(sends),
                into: engine.station(receives),
                processor: engine.station(1.0),
                window: engine.window(1, ahead_bytes(sends)),
            }
        });
        of.collect()
    }
}
