//! Steps of training as tasks: a device computes layer by layer, and sums overlap with it.
//!
//! The backward pass goes from the last layer to the first; when it has the gradients of a unit's layers,
//! this unit begins. The forward pass goes from the first layer to the last, and each layer waits for the
//! sums of its units. Nothing else synchronises the ranks. This is what `ringpull bench train` does.

use crate::Schedule;
use crate::simulate::collective::{self, SimulatedHost};
use crate::simulate::engine::{Simulation, Task, TaskKind, ns};
use crate::simulate::servers::{self, SimulatedSegment, SimulatedServer, Stations};
use crate::simulate::{Codes, Network};

/// The number of simulated steps. The last one counts. From the second step on, each step leaves equal work
/// to the next.
const STEPS: usize = 3;

/// The computing of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the words say it")]
pub struct ComputedLayer {
    pub backward_us: f64,
    pub forward_us: f64,
}

/// The exchange of a unit.
pub enum Exchange {
    /// A sum over all ranks: the schedules of all ranks, or of one that represents all, and the sizes of
    /// codes.
    Sum(Vec<Schedule>, Option<Codes>),
    /// A key on servers.
    Servers(Vec<SimulatedSegment>),
}

/// The layers that are pushed together.
pub struct PushedUnit {
    /// The layers of the unit's gradients.
    pub layers: Vec<usize>,
    /// The highest goes first.
    pub priority: i32,
    /// True if no other unit may be under way at the same time.
    pub is_alone: bool,
    /// The exchange of the unit.
    pub exchange: Exchange,
}

/// The servers of a job, and their hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedServers {
    /// The number of servers.
    pub count: usize,
    /// True if they are on the workers' hosts, in order from the first, and not each on its own host.
    pub is_shared: bool,
    /// The limit of a worker's unanswered messages at a server: a number of messages, or of bytes.
    pub window: (usize, usize),
}

/// A step of training.
pub struct Step {
    /// The layers, in the order of the forward pass.
    pub layers: Vec<ComputedLayer>,
    /// The units, in the order in which they begin.
    pub units: Vec<PushedUnit>,
    /// The servers, if there are any.
    pub servers: Option<SimulatedServers>,
}

/// The time of a step among many, in microseconds.
///
/// # Panics
/// If a sum has several schedules, but not one for each worker, or they do not fit together, or if units are of
/// servers that the step does not have.
pub fn step_us(network: &Network, step: &Step) -> f64 {
    let mut engine = Simulation::new(network.latency_us);
    let schedules =
        |unit: &PushedUnit| if let Exchange::Sum(schedules, _) = &unit.exchange { schedules.len() } else { 1 };
    let ranks = step.units.iter().map(schedules).max().unwrap_or(1);
    let hosts = network.hosts(&mut engine, ranks);
    let stations = step.servers.map(|servers| stations(&mut engine, network, servers));
    let mut device: Vec<Option<Task>> = vec![None; ranks];
    let ends: Vec<Vec<Task>> = (0..STEPS)
        .map(|_| {
            one(&mut engine, network, (&hosts, stations.as_ref()), step, &mut device);
            device.iter().flatten().copied().collect()
        })
        .collect();
    let done = engine.run();
    let end = |at: usize| ends[at].iter().map(|task| done[*task as usize]).max().unwrap_or(0);
    (end(STEPS - 1) - end(STEPS - 2)) as f64 / 1e3
}

/// Adds one step behind the earlier work of each rank's device.
fn one(
    engine: &mut Simulation,
    network: &Network,
    (hosts, stations): (&[SimulatedHost], Option<&Stations>),
    step: &Step,
    device: &mut [Option<Task>],
) {
    let mut compute = |engine: &mut Simulation, rank: usize, us: f64, after: &[Task]| {
        let after: Vec<Task> = device[rank].iter().chain(after).copied().collect();
        let task = engine.task(TaskKind::Delay(ns(us)), &after);
        device[rank] = Some(task);
        task
    };
    let ranks = hosts.len();
    let mut backward = vec![vec![0; step.layers.len()]; ranks];
    for (rank, backward) in backward.iter_mut().enumerate() {
        for (index, layer) in step.layers.iter().enumerate().rev() {
            backward[index] = compute(engine, rank, layer.backward_us, &[]);
        }
    }
    // For each unit, the tasks that end with it on each rank.
    let mut ends: Vec<Vec<Task>> = Vec::new();
    let mut begun: Vec<Vec<Task>> = vec![Vec::new(); ranks];
    let mut was_alone = false;
    for unit in &step.units {
        let begin: Vec<Task> = (0..ranks)
            .map(|rank| {
                let called = unit.layers.iter().map(|layer| backward[rank][*layer]);
                let busy = ends.iter().map(|end| end[rank]).filter(|_| unit.is_alone || was_alone);
                let after: Vec<Task> = called.chain(begun[rank].iter().copied()).chain(busy).collect();
                engine.task(TaskKind::Nothing, &after)
            })
            .collect();
        ends.push(match &unit.exchange {
            Exchange::Sum(schedules, codes) => {
                let how = (&schedules[..], codes.as_ref());
                collective::add(engine, (hosts, &network.costs), how, &begin, unit.priority)
            }
            Exchange::Servers(segments) => {
                let stations = stations.expect("a step with units of servers has servers");
                vec![servers::add(engine, (stations, &network.costs), segments, begin[0], unit.priority)]
            }
        });
        begin.iter().zip(&mut begun).for_each(|(begin, begun)| *begun = vec![*begin]);
        was_alone = unit.is_alone;
    }
    for rank in 0..ranks {
        for (index, layer) in step.layers.iter().enumerate() {
            let of_layer = step.units.iter().zip(&ends).filter(|(unit, _)| unit.layers.contains(&index));
            let awaited: Vec<Task> = of_layer.map(|(_, end)| end[rank]).collect();
            compute(engine, rank, layer.forward_us, &awaited);
        }
    }
}

/// Adds stations for all servers, and for the workers' hosts that are not alike: those with a server or a
/// different link, those before them, and one for all others.
fn stations(engine: &mut Simulation, network: &Network, servers: SimulatedServers) -> Stations {
    let SimulatedServers { count, is_shared, window } = servers;
    let with_server = if is_shared { count.min(network.workers) } else { 0 };
    let apart = network.own.iter().map(|own| own.0 + 1).fold(with_server, usize::max);
    let hosts = (apart + 1).min(network.workers);
    let mut links = |count: usize, rate: &dyn Fn(usize) -> f64| {
        let stations: Vec<usize> = (0..count).map(|at| engine.station(rate(at))).collect();
        stations.first().map_or(0..0, |first| *first..first + count)
    };
    let workers = (links(hosts, &|at| network.link(at).0), links(hosts, &|at| network.link(at).1));
    let even = |_: usize| network.bytes_per_us;
    let own = if is_shared { workers.clone() } else { (links(count, &even), links(count, &even)) };
    let servers = (0..count).map(|at| {
        let at = if is_shared { at % with_server.max(1) } else { at };
        let (processor, window) = (engine.station(1.0), engine.window(window.0, window.1));
        SimulatedServer { out: own.0.start + at, into: own.1.start + at, processor, window }
    });
    Stations {
        servers: servers.collect(),
        workers,
        remote: network.workers - usize::from(is_shared),
        worker_count: network.workers,
        is_shared,
    }
}
