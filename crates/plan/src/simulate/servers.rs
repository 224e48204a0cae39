//! A key on parameter servers as tasks.
//!
//! All workers push the same segments, and none can be more than a window ahead of another, so one worker
//! represents all. Its push occupies each worker's link for its bytes, and the server's link for the bytes of
//! all workers. An answer does the same in the other direction. Each worker begins with a different server,
//! so a server's link does not wait until the simulated worker comes to it. A worker's host may have a
//! server. The messages between the two cross no link.

use std::ops::Range;

use crate::simulate::Costs;
use crate::simulate::engine::{Hop, Simulation, Task, TaskKind, Transit, ns};

/// A segment of a key, as `ringpull-ps` cuts it.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedSegment {
    /// The segment's server.
    pub server: usize,
    /// The bytes that every worker sends.
    pub pushed_bytes: usize,
    /// The bytes that every worker gets back.
    pub answered_bytes: usize,
}

/// The links of a job with servers.
pub(super) struct Stations {
    /// The stations of the workers' hosts that are not alike, for sending and for receiving.
    pub workers: (Range<usize>, Range<usize>),
    pub servers: Vec<SimulatedServer>,
    /// The number of workers whose messages reach a server over its link.
    pub remote: usize,
    pub worker_count: usize,
    pub is_shared: bool,
}

pub(super) struct SimulatedServer {
    pub out: usize,
    pub into: usize,
    pub processor: usize,
    /// The window of a worker's segments for a server.
    pub window: usize,
}

/// Adds the tasks of one key, which the workers begin after `begin`. Returns the tasks that end with it.
pub(super) fn add(
    engine: &mut Simulation,
    (stations, costs): (&Stations, &Costs),
    segments: &[SimulatedSegment],
    begin: Task,
    priority: i32,
) -> Task {
    let (senders, receivers) = &stations.workers;
    let mut ends = vec![begin];
    for segment in segments {
        let SimulatedServer { out, into, processor, window } = stations.servers[segment.server];
        let (remote, count) = (stations.remote as f64, stations.worker_count as f64);
        let (pushed, answered) = (segment.pushed_bytes as f64, segment.answered_bytes as f64);
        let of_workers = |links: &Range<usize>, own: usize, bytes: f64| Hop {
            stations: links.clone(),
            but: stations.is_shared.then_some(own),
            bytes,
        };
        let counted = segment.pushed_bytes.max(segment.answered_bytes);
        let message = |window: Option<usize>, hops| {
            let (bytes, is_spread, left) = (counted, window.is_some(), Vec::new());
            TaskKind::Send(Transit { window, priority, bytes, frees: false, is_spread, hops, left })
        };
        let hops = vec![of_workers(senders, out, pushed), Hop::at(into, remote * pushed)];
        let push = engine.task(message(Some(window), hops), &[begin]);
        let time = ns(count * (costs.message_us + answered / costs.sum_bytes_per_us));
        let merged = engine.task(TaskKind::Work { station: processor, time }, &[push]);
        let hops = vec![Hop::at(out, remote * answered), of_workers(receivers, into, answered)];
        let answer = engine.task(message(None, hops), &[merged]);
        ends.push(engine.task(TaskKind::Answered { window, bytes: counted }, &[answer]));
    }
    engine.task(TaskKind::Nothing, &ends)
}
