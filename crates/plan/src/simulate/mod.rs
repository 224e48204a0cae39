//! Simulates the time of plans and of steps of training on given links, message by message.
//!
//! `engine` keeps the clock. `collective` and `servers` say which tasks the messages of a sum are, `step`
//! adds the computing around them. The model is that of each message's own way: it leaves its host in turn
//! with the others, is `latency_us` later at the next link, waits there for what came before, and is taken by
//! a processor. Links carry their rate in both directions at the same time; switches hold what has to wait.
//!
//! The model leaves out packets that are lost and sent again, congestion control, bursts that a shaper lets
//! through, ranks that share cores, and hosts that differ in what they do at the same time.

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

/// The time for which a link sends what its host has handed over: a more urgent message waits for that.
/// Measured steps fit it, whatever limits connections have (docs/decisions/short-queues.md).
const AHEAD_US: f64 = 15_000.0;
/// The bytes of connections that always lie in the queue of a host's link.
const QUEUED_BYTES: usize = 384 << 10;
/// The most that a host has ahead of its link: the interpreter posts four messages, and a connection takes
/// megabytes.
const MOST_BYTES: usize = 3 << 20;

/// The bytes that a host has handed over, and its link of this rate has not sent.
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
    /// Workers' hosts with links of their own: the worker, what it sends and what it receives at.
    pub own: Vec<(usize, f64, f64)>,
    /// From a message's leaving to its arriving.
    pub latency_us: f64,
    /// The processor's time for each message.
    pub costs: Costs,
}

/// The processor's time for messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// For one message.
    pub message_us: f64,
    /// The rate of adding.
    pub sum_bytes_per_us: f64,
}

/// The bytes of codes and of their sums, for each byte of a gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct Codes {
    /// The bytes that each simulated rank adds up: it sends their sums.
    pub own: Vec<Range<usize>>,
    /// Of a gradient's code.
    pub code: f64,
    /// Of a sum of codes.
    pub sum: f64,
}

impl Codes {
    fn bytes(&self, rank: usize, start: usize, len: usize) -> f64 {
        len as f64 * if self.own[rank].contains(&start) { self.sum } else { self.code }
    }
}

impl Network {
    /// Equal links, with latency and costs of `model`.
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

    /// The ranks whose schedules have to be known of a sum by `algorithm`: the first alone, if it stands for
    /// all of them, as it does when all parts have one length.
    pub fn ranks(&self, algorithm: Algorithm) -> Range<usize> {
        let is_alike = match algorithm {
            Algorithm::Ring | Algorithm::Direct | Algorithm::Circulant => true,
            Algorithm::Doubling => self.workers.is_power_of_two(),
            Algorithm::Star | Algorithm::Tree => false,
        };
        if is_alike && self.is_even() { 0..1 } else { 0..self.workers }
    }

    /// Stations for so many of the workers' hosts.
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
