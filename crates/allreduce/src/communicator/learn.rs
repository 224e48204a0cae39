//! Where a cluster's [`Model`] comes from: a file, the cache, or a probe.
//!
//! Rank 0 decides and sends the result, so that all ranks hold the same bits whatever is set or stored
//! elsewhere. Before a cached model is used the smallest ring is timed, and a long one: if they take far more
//! or less than the model says, the cluster is not what it was, and is probed again.

use std::path::Path;
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use xxhash_rust::xxh3::xxh3_64;

use ringpull_base::config::ModelSource;
use ringpull_base::{Error, Result};
use ringpull_plan::{Algorithm, LinkRates, Links, Model, Segments, choose, choose_weighted, predict};

use super::executor::Executor;
use super::link_trial::Ways;
use super::model_cache::{self, Stored};
use super::probe::{self, ProbeRunner, Prober};
use super::probe_rings::ProbeRing;
use super::rack_probe::Pairs;

/// The largest factor between the time of the smallest ring and what a cached model predicts,
const CREDIBLE: f64 = 4.0;
/// and that of a long ring, which other load changes less.
const CREDIBLE_LONG: f64 = 1.7;

/// A model and its origin in words.
#[derive(Debug, Clone, PartialEq)]
pub struct Learned {
    /// The numbers.
    pub model: Model,
    /// Which of two racks each host was found in, bit `h` for host `h`; 0 for one rack.
    pub racks: u64,
    /// The hosts' links, if they are not alike.
    pub links: Option<Links>,
    /// Their source.
    pub source: String,
    /// How long ago the cache got them, on rank 0.
    pub age: Option<Duration>,
    /// Whether they were measured, in this job or before, and not given.
    pub is_measured: bool,
}

impl Default for Learned {
    fn default() -> Self {
        Learned {
            model: Model::default(),
            racks: 0,
            links: None,
            source: "the default".to_owned(),
            age: None,
            is_measured: false,
        }
    }
}

impl Learned {
    /// Says in the log what was learned and what follows from it on `size` ranks, of which one talks for each
    /// of `hosts` hosts.
    pub(super) fn explain(&self, hosts: usize, size: usize, are_racks_named: bool, segments: Segments) {
        tracing::debug!("auto goes by {}: {:?}", self.source, self.model);
        if hosts < size {
            tracing::debug!(
                "ranks that share a host sum in its memory; what follows is between {hosts} hosts, one rank of each"
            );
        }
        if are_racks_named {
            tracing::debug!(
                "the hosts' racks have names: long sums cross the link between them once in each direction"
            );
        }
        if self.racks != 0 {
            tracing::debug!(
                "two racks, found by timing, the link between which long sums cross once in each direction: host h stands in the second if bit h is set in {:#b}",
                self.racks
            );
        }
        if let Some(links) = &self.links {
            tracing::debug!(
                "the hosts' links, of which the last {} are helpers', are not alike or have helpers, relative to the slowest: {:.2?}; of long sums each sends, and receives, as many times the bytes: {:.3?}, on trees: {:?}",
                links.helpers(),
                links.rates(),
                links.carried(),
                links.shape()
            );
        }
        for len_bytes in [4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 100_000_000] {
            let times: Vec<String> = Algorithm::ALL
                .map(|algorithm| predict(&self.model, algorithm, len_bytes, hosts, segments))
                .iter()
                .map(|of| format!("{} {:.0} us", of.algorithm, of.time_us))
                .collect();
            let chosen = choose(&self.model, len_bytes, hosts, segments);
            if let Some(links) = &self.links {
                let weighted = choose_weighted(&self.model, links, len_bytes, segments);
                tracing::debug!(
                    "{len_bytes} bytes in weighted parts: {:.0} us in {} turns",
                    weighted.time_us,
                    weighted.turns
                );
            }
            tracing::debug!(
                "{len_bytes} bytes: {} in segments of {}, the least of {}",
                chosen.algorithm,
                chosen.segment_bytes,
                times.join(", ")
            );
        }
    }
}

/// What rank 0 has found.
enum Found {
    Given(Stored),
    Cached(Stored),
    Nothing,
    Wrong(Error),
}

impl Found {
    fn stored(&self) -> Option<&Stored> {
        match self {
            Found::Given(stored) | Found::Cached(stored) => Some(stored),
            Found::Nothing | Found::Wrong(_) => None,
        }
    }
}

/// What rank 0 sends to the others, as it stands in memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Told {
    origin: u64,
    racks: u64,
    hosts: u64,
    /// How many rates of links follow.
    rates: u64,
    model: Model,
}

impl Told {
    const NOTHING: u64 = 0;
    const GIVEN: u64 = 1;
    const CACHED: u64 = 2;
    const WRONG: u64 = 3;

    fn of(found: &Found) -> Self {
        let origin = match found {
            Found::Given(_) => Self::GIVEN,
            Found::Cached(_) => Self::CACHED,
            Found::Nothing => Self::NOTHING,
            Found::Wrong(_) => Self::WRONG,
        };
        let ((racks, hosts), rates, model) = found
            .stored()
            .map_or_else(|| ((0, 0), 0, Model::default()), |stored| (stored.racks, stored.rates.len(), stored.model));
        Told { origin, racks, hosts: hosts as u64, rates: rates as u64, model }
    }
}

/// The model of the cluster of `hosts` (ranks by host, the last `helpers` of which only reduce) under
/// `transport`; racks are looked for among hosts of which not all are in racks with names. Collective, in
/// well under a second on links of 1 Gbit/s, in about one where it finds racks, in two to eight where links
/// differ, and in up to twenty on links of less than 100 Mbit/s.
pub(super) fn learn(
    executor: &mut Executor,
    (hosts, are_named): (&[Vec<usize>], bool),
    source: &ModelSource,
    helpers: usize,
    segments: Segments,
) -> Result<Learned> {
    let (rank, size, library) = (executor.rank(), executor.size(), executor.transport.name());
    if size == 1 {
        return Ok(Learned::default());
    }
    let start = Instant::now();
    // The upper 48 bits of a hash, which an f64 holds exactly.
    let own = [(xxh3_64(model_cache::this_host().as_bytes()) >> 16) as f64];
    let rows = executor.gather_rows(&own, probe::STAMP)?;
    let machines: Vec<u64> = rows.iter().map(|row| row[0] as u64).collect();
    let mut prober = Prober::new(executor, ProbeRing::of(rank, &machines));
    let cached = (rank == 0).then(|| model_cache::file_of(&library, &rows, hosts, are_named)).flatten();
    let found = if rank == 0 { find(source, cached.as_deref()) } else { Found::Nothing };
    let told = prober.told(Told::of(&found))?;
    let mut rates =
        found.stored().map_or_else(|| vec![LinkRates::both(0.0); told.rates as usize], |stored| stored.rates.clone());
    prober.tell(&mut rates)?;
    if let Found::Wrong(cause) = found {
        return Err(cause);
    }
    // The racks and links of other hosts, or of the same ranks on others, are none of these.
    let is_of_these = told.hosts == hosts.len() as u64;
    let (known, racks) = (told.model, if is_of_these && !are_named { told.racks } else { 0 });
    let known_rates = if is_of_these && rates.len() == hosts.len() { &rates[..] } else { &[] };
    let links = links_of(known_rates, hosts.len(), helpers);
    if told.origin == Told::WRONG {
        return Err(Error::on_rank(0, "rank 0 could not use the model that its RINGPULL_MODEL names"));
    }
    if told.origin == Told::GIVEN {
        let source = format!("{source}, as rank 0 reports");
        return Ok(Learned { model: known, racks, links, source, age: None, is_measured: false });
    }
    if told.origin == Told::CACHED {
        let age = cached.as_deref().and_then(model_cache::age);
        if is_credible(&mut prober, &known)? {
            let source = "the cache".to_owned();
            return Ok(Learned { model: known, racks, links, source, age, is_measured: true });
        }
        if rank == 0 {
            tracing::info!("the cached model does not fit these hosts any more: they are measured again");
        }
    }
    let times = prober.measure()?;
    tracing::debug!("the probe's times: {times:?}");
    let mut model = probe::fit(&times);
    let Pairs { racks, mut rates } = prober.pairs(hosts, are_named, &times)?;
    if let Some(found) = Links::of(&rates) {
        // The model's rate is that of the slowest link; that of a long exchange is surer than that of a ring.
        let slowest = rates.iter().map(|rates| rates.slower()).fold(f64::INFINITY, f64::min);
        let short_bytes_per_us = model.short_bytes_per_us.max(slowest);
        let slower = Model { long_bytes_per_us: slowest, short_bytes_per_us, ..model };
        let ways = Ways { hosts: hosts.len(), found: &found, model: slower, segments };
        // With helpers sums have two plans, one of which a trial would not judge.
        if helpers > 0 || prober.is_faster(hosts, &ways)? {
            model = slower;
        } else {
            rates.clear();
        }
    }
    let links = links_of(&rates, hosts.len(), helpers);
    if let Some(file) = cached {
        let stored = Stored { model, racks: (racks, hosts.len()), rates, library, ranks: size };
        if let Err(cause) = model_cache::store(&file, &stored) {
            tracing::info!(%cause, "the model is not kept for later runs");
        }
    }
    let source = format!("a probe of {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    Ok(Learned { model, racks, links, source, age: None, is_measured: true })
}

/// Whether this cluster is still as the model `known` says. Collective.
fn is_credible(prober: &mut impl ProbeRunner, known: &Model) -> Result<bool> {
    // Once more if need be: a job that is still starting is slow for a moment.
    for _ in 0..2 {
        let is_near = |(now, then): (f64, f64), most: f64| (1.0 / most..most).contains(&(now / then));
        let small = prober.smallest_ring_us(known)?;
        let long = prober.long_ring_us(known)?;
        if is_near(small, CREDIBLE) && is_near(long, CREDIBLE_LONG) {
            return Ok(true);
        }
        let ((small, small_then), (long, long_then)) = (small, long);
        tracing::debug!(
            "rings take {small:.0} and {long:.0} us, where the cached model says {small_then:.0} and {long_then:.0}"
        );
    }
    Ok(false)
}

/// The links of so many hosts. Without rates they are alike.
fn links_of(rates: &[LinkRates], hosts: usize, helpers: usize) -> Option<Links> {
    match (rates, helpers) {
        (_, 0) => Links::of(rates),
        ([], _) => Links::with_helpers(&vec![LinkRates::both(1.0); hosts], helpers),
        _ => Links::with_helpers(rates, helpers),
    }
}

fn find(source: &ModelSource, cached: Option<&Path>) -> Found {
    match source {
        ModelSource::Default => Found::Given(Stored::default()),
        ModelSource::Probe => Found::Nothing,
        ModelSource::File(path) => model_cache::read(path).map_or_else(Found::Wrong, Found::Given),
        ModelSource::Cached => match cached.map(model_cache::read) {
            Some(Ok(stored)) => Found::Cached(stored),
            _ => Found::Nothing,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::probe_time::SimulatedProbe;
    use super::*;
    use crate::transport::inproc;

    fn learned(size: usize, source: &ModelSource) -> Vec<Result<Learned>> {
        let hosts: Vec<Vec<usize>> = (0..size).map(|rank| vec![rank]).collect();
        let run = |end| {
            let mut executor = Executor::new(Box::new(end), 256 << 10, Duration::from_secs(20), Arc::default());
            learn(&mut executor, (&hosts, false), source, 0, Segments { most_bytes: 256 << 10, is_fixed: false })
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = inproc::world(size).into_iter().map(|end| scope.spawn(move || run(end))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_model_is_believed_where_it_is_true_and_not_once_links_carry_more_or_less() {
        let slow = Model { short_bytes_per_us: 6.0, long_bytes_per_us: 6.0, latency_us: 100.0, ..Model::default() };
        let fast = Model { short_bytes_per_us: 3000.0, long_bytes_per_us: 3000.0, ..Model::default() };
        for now in [slow, fast, Model::default()] {
            for hosts in [2, 3, 8, 15, 16, 64, 1000] {
                let is_believed = |times: f64| {
                    let mut then = now;
                    then.short_bytes_per_us *= times;
                    then.long_bytes_per_us *= times;
                    is_credible(&mut SimulatedProbe::new(&now, hosts, 256 << 10), &then).unwrap()
                };
                assert!([0.8, 1.0, 1.2].map(is_believed).iter().all(|it| *it), "{hosts} hosts of {now:?}");
                assert!([0.02, 0.4, 2.5, 50.0].map(is_believed).iter().all(|it| !it), "{hosts} hosts of {now:?}");
            }
        }
    }

    #[test]
    fn every_rank_learns_the_same_bits_by_a_probe() {
        for size in [1, 2, 3, 5] {
            let models: Vec<Learned> = learned(size, &ModelSource::Probe).into_iter().map(Result::unwrap).collect();
            assert!(models[0].model.is_sound());
            assert!(
                models.iter().all(|learned| {
                    (learned.model, learned.racks, &learned.links)
                        == (models[0].model, models[0].racks, &models[0].links)
                }),
                "{models:?}"
            );
        }
    }

    #[test]
    fn a_file_is_taken_at_its_word_and_a_wrong_one_is_an_error_on_every_rank() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/model.json");
        let model = Model { latency_us: 1.0 / 3.0, ..Model::default() };
        let rates = vec![LinkRates::both(100.0), LinkRates { sends: 50.0, receives: 80.0 }, LinkRates::both(100.0)];
        let stored =
            Stored { model, racks: (0b110, 3), rates: rates.clone(), library: "a library".to_owned(), ranks: 3 };
        model_cache::store(&path, &stored).unwrap();
        for learned in learned(3, &ModelSource::File(path.clone())) {
            let learned = learned.unwrap();
            assert_eq!((learned.model, learned.racks, learned.links), (model, 0b110, Links::of(&rates)));
        }
        // The links of three hosts are not those of two.
        assert!(learned(2, &ModelSource::File(path.clone())).into_iter().all(|it| it.unwrap().links.is_none()));
        let wrong = Stored { model: Model { fan_factor: -1.0, ..model }, ..Stored::default() };
        model_cache::store(&path, &wrong).unwrap();
        let errors: Vec<String> =
            learned(2, &ModelSource::File(path)).into_iter().map(|it| it.unwrap_err().to_string()).collect();
        assert!(errors[0].contains("numbers are impossible"), "{errors:?}");
        assert!(errors[1].contains("rank 0"), "{errors:?}");
    }
}
