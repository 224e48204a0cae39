//! Finds the ranks that share a host, and the memory that they share. This is done once, at the start, and
//! needs no configuration.
//!
//! MPI reports which ranks could share memory. Ranks whose hosts have different names do not share it,
//! whatever MPI reports, such as the emulated hosts of one machine. Every rank then sends the address of its
//! memory to all others, tries to map the memory of its neighbours, and reports to all others if it
//! succeeded. So all ranks draw the same conclusion. A host on which one attempt failed goes on with
//! messages; a container that hides its processes may be the reason. In the same way ranks find out if they
//! can read the memory of each other's processes.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::rc::Rc;

use xxhash_rust::xxh3::xxh3_64;

use ringpull_base::buffer::arena;
use ringpull_base::buffer::region::{Address, Region};
use ringpull_base::topology::host_name;
use ringpull_base::{Result, config};
use ringpull_plan::Plan;

use super::executor::Executor;
use super::node::Node;
use super::racks::{self, Racks};
use super::reached::MemoryReach;
use crate::transport::Stamp;
use crate::transport::peer_memory::{self, Probe};
use crate::transport::window::Window;

/// The stamp of a job's first messages.
const FIRST: Stamp = 0;

/// The least number of hosts for which racks make a useful difference.
const RACKED: usize = 4;

const MOST_CORES: u64 = 1 << 16;

/// The number of words that a rank sends to all others.
const CARD_WORDS: usize = 15;
type Card = [u64; CARD_WORDS];

/// The ranks by host, and this rank's access to its neighbours' memory.
pub(super) struct Placement {
    /// The ranks of each host in ascending order. Hosts are in the order of their lowest ranks. A rank that
    /// shares no memory counts as a host of its own.
    pub(super) hosts: Vec<Vec<usize>>,
    /// The number of hosts on which MPI runs ranks, whether their ranks share memory or not.
    machines: usize,
    /// The racks of the hosts, if there are two.
    pub(super) racks: Option<Racks>,
    /// True if every rank has a name for its rack, even if all have the same name.
    pub(super) are_racks_named: bool,
    /// This rank's neighbours, if it has any.
    pub(super) node: Option<Rc<Node>>,
}

impl Placement {
    /// Returns true if all ranks share one host's memory.
    pub(super) fn is_one_host(&self) -> bool {
        self.hosts.len() == 1
    }

    /// The placement of the ranks, as text: `8 ranks on 2 hosts, shared memory within each`.
    pub(super) fn description(&self) -> String {
        let (ranks, machines) = (self.hosts.iter().map(Vec::len).sum::<usize>(), self.machines);
        let plural = |count| if count == 1 { "" } else { "s" };
        let memory = match (self.hosts.len(), machines) {
            _ if ranks == machines => "",
            (1, 1) => ", shared memory",
            (groups, machines) if groups == machines => ", shared memory within each",
            (groups, _) if groups == ranks => ", no shared memory",
            _ => ", shared memory within some",
        };
        format!("{ranks} rank{} on {machines} host{}{memory}", plural(ranks), plural(machines))
    }

    /// Returns true if some ranks share memory.
    pub(super) fn has_neighbours(&self) -> bool {
        self.hosts.iter().any(|ranks| ranks.len() > 1)
    }

    /// Returns the plan of `rank` between racks, if every rank is on a host of its own and the buffer is long
    /// enough.
    pub(super) fn plan_in_racks(&self, rank: usize, len_bytes: usize, element_bytes: usize) -> Option<Plan> {
        self.racks.as_ref()?.plan(rank, len_bytes / element_bytes, element_bytes)
    }

    /// The placement with every rank on a host of its own.
    pub(super) fn apart(size: usize) -> Self {
        Placement {
            hosts: (0..size).map(|rank| vec![rank]).collect(),
            machines: size,
            racks: None,
            are_racks_named: false,
            node: None,
        }
    }

    /// Returns true if the racks of a cluster file are used. They are not used with too few hosts, or if the
    /// environment names the racks.
    pub(super) fn may_have_racks(&self) -> bool {
        !self.are_racks_named && self.hosts.len() >= RACKED
    }

    /// Finds the placement. Collective. `read_memory` is the configuration's.
    pub(super) fn find(executor: &mut Executor, read_memory: Option<bool>) -> Result<Self> {
        let (rank, size) = (executor.rank(), executor.size());
        let lowest = executor.transport.hosts()?;
        let all_apart = lowest.iter().enumerate().all(|(rank, lowest)| rank == *lowest);
        if all_apart && size < RACKED {
            return Ok(Placement::apart(size));
        }
        let window = (lowest[rank] == rank)
            .then(|| Window::create(lowest.iter().filter(|other| **other == rank).count()))
            .and_then(|region| {
                region.inspect_err(|cause| tracing::warn!(%cause, "no memory for the ranks of this host to share")).ok()
            });
        let neighbours = lowest.iter().filter(|other| **other == lowest[rank]).count();
        let card = card(lowest[rank], window.as_ref(), may_read(read_memory, neighbours));
        let cards = executor.gather_rows(&card, FIRST)?;
        let hosts = by_host(&cards);
        let are_racks_named = cards.iter().all(|card| card[11] != 0);
        let racks =
            |hosts: &[Vec<usize>]| Racks::of(&hosts.iter().map(|ranks| cards[ranks[0]][11]).collect::<Vec<_>>());
        if all_apart {
            return Ok(Placement { racks: racks(&hosts), are_racks_named, ..Placement::apart(size) });
        }
        let own = hosts.iter().find(|ranks| ranks.contains(&rank)).expect("every rank is on a host").clone();
        let node = if own.len() > 1 { join(rank, &own, &cards, window) } else { None };
        let outcome = [
            u64::from(node.is_some()),
            u64::from(node.as_ref().is_some_and(|(_, arenas)| !arenas.is_empty())),
            u64::from(node.is_some() && reads_processes(read_memory, &own, &cards)),
        ];
        let outcomes = executor.gather_rows(&outcome, FIRST)?;
        let succeeded = |ranks: &[usize], step: usize| ranks.iter().all(|rank| outcomes[*rank][step] == 1);
        let shared = hosts.iter().flat_map(|ranks| {
            let apart = !succeeded(ranks, 0);
            if apart { ranks.iter().map(|rank| vec![*rank]).collect() } else { vec![ranks.clone()] }
        });
        let mut shared: Vec<Vec<usize>> = shared.collect();
        shared.sort_unstable();
        let machines = cards.iter().map(|card| (card[0] << 1, card[1])).collect::<BTreeSet<_>>().len();
        let node = node.filter(|_| succeeded(&own, 0)).map(|(window, arenas)| {
            let arenas = if succeeded(&own, 1) { arenas } else { Vec::new() };
            let processes = succeeded(&own, 2).then(|| own.iter().map(|rank| cards[*rank][2] as u32).collect());
            Rc::new(Node::new(window, MemoryReach::new(arenas, processes), rank))
        });
        let (arenas, processes) = (succeeded(&own, 1), succeeded(&own, 2));
        tracing::debug!(rank, hosts = ?shared, arenas, processes, "ranks that share memory");
        Ok(Placement { racks: racks(&shared), are_racks_named, hosts: shared, machines, node })
    }
}

fn card(lowest: usize, window: Option<&Region>, may_read: bool) -> Card {
    let name = xxh3_64(host_name().as_bytes());
    let is_willing = config::shared_memory();
    let arena = if is_willing { arena::of_process().map(arena::Arena::address) } else { None };
    let window = window.map(Region::address);
    let words = |address: Option<Address>| {
        address.map_or([0; 4], |found| {
            [u64::from(found.descriptor) + 1, found.identity.0, found.identity.1, found.len_bytes]
        })
    };
    let (window, arena) = (words(window), words(arena));
    // The lowest rank with which this rank shares memory, as MPI reports. The highest bit is set if this rank
    // is configured to use shared memory.
    let place = lowest as u64 | u64::from(is_willing) << 63;
    let pid = u64::from(std::process::id());
    let probe = if may_read && is_willing { peer_memory::probe() } else { Probe::NONE };
    [
        place,
        name,
        pid,
        window[0],
        window[1],
        window[2],
        window[3],
        arena[0],
        arena[1],
        arena[2],
        arena[3],
        racks::own_name(),
        probe.address,
        probe.value,
        own_cores(),
    ]
}

fn address(card: &Card, first: usize) -> Option<Address> {
    let descriptor = card[first].checked_sub(1)? as u32;
    let identity = (card[first + 1], card[first + 2]);
    Some(Address { pid: card[2] as u32, descriptor, identity, len_bytes: card[first + 3] })
}

/// Returns the ranks of each host: ranks with the same place and the same name that are willing to share
/// memory.
fn by_host(cards: &[Card]) -> Vec<Vec<usize>> {
    let is_alone = |rank: usize| (cards[rank][0] >> 63 == 0).then_some(rank);
    ranks_by(cards.iter().enumerate().map(|(rank, card)| (card[0], card[1], is_alone(rank))))
}

/// Groups ranks by their keys, which are in the order of the ranks. Groups are in the order of their lowest
/// ranks.
pub(super) fn ranks_by<K: Eq + Hash>(keys: impl IntoIterator<Item = K>) -> Vec<Vec<usize>> {
    let (mut groups, mut place_of) = (Vec::<Vec<usize>>::new(), HashMap::new());
    for (rank, key) in keys.into_iter().enumerate() {
        let place = *place_of.entry(key).or_insert(groups.len());
        if place == groups.len() {
            groups.push(Vec::new());
        }
        groups[place].push(rank);
    }
    groups
}

/// Returns true if this number of ranks of one host may decide to read each other's memory. If not, a rank
/// need not allow it.
fn may_read(wanted: Option<bool>, neighbours: usize) -> bool {
    wanted.unwrap_or(neighbours == 2 || own_cores() % MOST_CORES < neighbours as u64)
}

/// Returns true if this rank can and should read the memory of its neighbours' processes. It should if
/// `wanted` is true, or if `wanted` is not set and reading is faster. The window costs a meeting at each
/// piece, and at each meeting ranks that outnumber the cores wait for one. But the kernel's copies take more
/// of a core's time, and their number grows with the number of ranks.
fn reads_processes(wanted: Option<bool>, ranks: &[usize], cards: &[Card]) -> bool {
    let probe = |card: &Card| Probe { address: card[12], value: card[13] };
    let sets: BTreeSet<u64> = ranks.iter().map(|rank| cards[*rank][14]).collect();
    let cores: u64 = sets.iter().map(|set| set % MOST_CORES).sum();
    let is_wanted = wanted.unwrap_or(ranks.len() == 2 || cores < ranks.len() as u64);
    is_wanted && ranks.iter().all(|rank| peer_memory::can_read(cards[*rank][2] as u32, probe(&cards[*rank])))
}

/// Describes the cores that this process may use: a number that names the set of cores, times [`MOST_CORES`],
/// plus the number of cores that the process may use at once. A launcher that binds ranks gives each rank its
/// own set.
fn own_cores() -> u64 {
    let set = rustix::thread::sched_getaffinity(None).map_or(0, |set| {
        let members: Vec<u8> = (0..rustix::thread::CpuSet::MAX_CPU).map(|core| u8::from(set.is_set(core))).collect();
        xxh3_64(&members)
    });
    let count = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    set / MOST_CORES * MOST_CORES + count.min(MOST_CORES - 1)
}

/// Returns this rank's view of the window and of its neighbours' arenas. Without a window there is no view.
/// If one arena is lacking, there are no arenas.
fn join(rank: usize, ranks: &[usize], cards: &[Card], window: Option<Region>) -> Option<(Window, Vec<Region>)> {
    let open = |what: &str, rank: usize, address: Option<Address>| {
        let region = Region::open(&address?);
        region
            .inspect_err(|cause| tracing::debug!(%cause, rank, "the {what} of a rank of this host cannot be had"))
            .ok()
    };
    let local_rank = ranks.iter().position(|other| *other == rank)?;
    let region = if local_rank == 0 { window } else { open("window", ranks[0], address(&cards[ranks[0]], 3)) }?;
    let window = Window::over(region, local_rank, ranks.len());
    let window = window.inspect_err(|cause| tracing::debug!(%cause, "the window cannot be used")).ok()?;
    let arenas: Option<Vec<Region>> =
        ranks.iter().map(|rank| open("memory", *rank, address(&cards[*rank], 7))).collect();
    Some((window, arenas.unwrap_or_default()))
}
