//! Where a cluster's [`Model`] comes from: a file, the cache, or a probe.
//!
//! Rank 0 decides and tells, so that all ranks hold the same bits whatever is set or stored elsewhere. The cache is a file
//! for each cluster under the user's cache folder; its name is a hash of everything that makes it this cluster: the MPI
//! library, the ranks in order, each one's host name and network interfaces with their hardware addresses and rates, and
//! the cores. Before a cached model is used the smallest ring is timed: if it takes a quarter or four times what the
//! model says, the cluster is not what it was, and is probed again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime};

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::probe::{self, Prober};
use crate::collective::{Algorithm, Model, Runner, Segments, choose, predict};
use crate::config::ModelSource;
use crate::error::{Error, Result};
use crate::topology::host_name;
use crate::transport::Transport;

/// Part of every key: a model that another way of measuring or predicting has made is of no use.
const VERSION: u32 = 7;
/// How far the smallest ring may be from what a cached model predicts.
const CREDIBLE: f64 = 4.0;

/// The cache keeps the latest models: containers and emulated hosts are new ones, with new addresses, each time they are made.
const KEPT: usize = 32;

/// A model and its origin in words.
#[derive(Debug, Clone, PartialEq)]
pub struct Learned {
    /// The numbers.
    pub model: Model,
    /// Which of two racks each host was found in, bit `h` for host `h`; 0 for one rack.
    pub racks: u64,
    /// Where they are from.
    pub source: String,
}

impl Default for Learned {
    fn default() -> Self {
        Learned { model: Model::default(), racks: 0, source: "the default".to_owned() }
    }
}

impl Learned {
    /// Says in the log what was learned and what follows from it on `size` ranks, of which one talks for each of `hosts` hosts.
    pub(super) fn explain(&self, (hosts, size): (usize, usize), are_racks_named: bool, segments: Segments) {
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
        for len_bytes in [4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 100_000_000] {
            let times: Vec<String> = Algorithm::ALL
                .map(|algorithm| predict(&self.model, algorithm, len_bytes, hosts, segments))
                .iter()
                .map(|of| format!("{} {:.0} us", of.algorithm, of.time_us))
                .collect();
            let chosen = choose(&self.model, len_bytes, hosts, segments);
            tracing::debug!(
                "{len_bytes} bytes: {} in segments of {}, the least of {}",
                chosen.algorithm,
                chosen.segment_bytes,
                times.join(", ")
            );
        }
    }
}

/// A file of the cache, and what `RINGPULL_MODEL` may name.
#[derive(Default, Serialize, Deserialize)]
struct Stored {
    model: Model,
    /// Bit `h` is the rack of host `h` of so many.
    #[serde(default)]
    racks: (u64, usize),
    /// For people.
    #[serde(default)]
    library: String,
    #[serde(default)]
    ranks: usize,
}

/// What rank 0 has found.
enum Found {
    Given(Stored),
    Cached(Stored),
    Nothing,
    Wrong(Error),
}

/// What rank 0 tells of it to the others, as it stands in memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Told {
    origin: u64,
    racks: u64,
    hosts: u64,
    model: Model,
}

impl Told {
    const NOTHING: u64 = 0;
    const GIVEN: u64 = 1;
    const CACHED: u64 = 2;
    const WRONG: u64 = 3;

    fn of(found: &Found) -> Self {
        let (origin, stored) = match found {
            Found::Given(stored) => (Self::GIVEN, Some(stored)),
            Found::Cached(stored) => (Self::CACHED, Some(stored)),
            Found::Nothing => (Self::NOTHING, None),
            Found::Wrong(_) => (Self::WRONG, None),
        };
        let ((racks, hosts), model) =
            stored.map_or_else(|| ((0, 0), Model::default()), |stored| (stored.racks, stored.model));
        Told { origin, racks, hosts: hosts as u64, model }
    }
}

/// The model of the cluster of `hosts` (ranks by host) under `transport`; racks are looked for among hosts of which not all are in racks
/// with names. Collective, in well under a second on links of 1 Gbit/s, in about one where it finds racks,
/// and in several on links of 10 Mbit/s.
pub(super) fn learn(
    runner: &mut Runner,
    transport: &mut dyn Transport,
    (hosts, are_named): (&[Vec<usize>], bool),
    source: &ModelSource,
    stop: &AtomicBool,
) -> Result<Learned> {
    let (rank, size, library) = (transport.rank(), transport.size(), transport.name());
    if size == 1 {
        return Ok(Learned::default());
    }
    let start = Instant::now();
    let mut prober = Prober { runner, transport, stop };
    // The upper 48 bits of a hash, which an f64 holds exactly.
    let rows = prober.gather([(xxh3_64(this_host().as_bytes()) >> 16) as f64])?;
    let cached = (rank == 0).then(|| cache_file(&library, &rows, hosts, are_named)).flatten();
    let found = if rank == 0 { find(source, cached.as_deref()) } else { Found::Nothing };
    let told = prober.told(Told::of(&found))?;
    if let Found::Wrong(cause) = found {
        return Err(cause);
    }
    // The racks of other hosts, or of the same ranks on others, are none of these.
    let is_of_these = !are_named && told.hosts == hosts.len() as u64;
    let (known, racks) = (told.model, if is_of_these { told.racks } else { 0 });
    if told.origin == Told::WRONG {
        return Err(Error::argument("rank 0 could not use what its RINGPULL_MODEL names", "see rank 0's own message"));
    }
    if told.origin == Told::GIVEN {
        return Ok(Learned { model: known, racks, source: format!("{source}, on rank 0's word") });
    }
    if told.origin == Told::CACHED {
        let then = known.predicted_us(Algorithm::Ring, size, size, prober.runner.segment_bytes());
        let mut now = 0.0;
        // Once more if need be: a job that is still starting is slow for a moment.
        for _ in 0..2 {
            now = prober.smallest_ring_us()?;
            if (1.0 / CREDIBLE..CREDIBLE).contains(&(now / then)) {
                return Ok(Learned { model: known, racks, source: "the cache".to_owned() });
            }
        }
        if rank == 0 {
            tracing::info!(
                "the cached model says {then:.0} us for the smallest ring, which takes {now:.0}: probing again"
            );
        }
    }
    let times = prober.measure()?;
    let model = probe::fit(&times);
    let racks = if are_named { 0 } else { prober.racks(hosts, &times)? };
    if let Some(file) = cached {
        let stored = Stored { model, racks: (racks, hosts.len()), library, ranks: size };
        if let Err(cause) = store(&file, &stored) {
            tracing::info!(%cause, "the model is not kept for later runs");
        }
    }
    Ok(Learned { model, racks, source: format!("a probe of {:.0} ms", start.elapsed().as_secs_f64() * 1e3) })
}

fn find(source: &ModelSource, cached: Option<&Path>) -> Found {
    match source {
        ModelSource::Default => Found::Given(Stored::default()),
        ModelSource::Probe => Found::Nothing,
        ModelSource::File(path) => read(path).map_or_else(Found::Wrong, Found::Given),
        ModelSource::Cached => match cached.map(read) {
            Some(Ok(stored)) => Found::Cached(stored),
            _ => Found::Nothing,
        },
    }
}

fn read(path: &Path) -> Result<Stored> {
    let io = |cause: std::io::Error| Error::io("read the model in", path.display(), &cause);
    let stored: Stored =
        serde_json::from_slice(&fs::read(path).map_err(io)?).map_err(|cause| io(std::io::Error::other(cause)))?;
    if stored.model.is_sound() {
        Ok(stored)
    } else {
        Err(io(std::io::Error::other("its numbers are those of no cluster")))
    }
}

/// Whole or not at all: another job may read it at the same time.
fn store(path: &Path, stored: &Stored) -> Result<()> {
    let io = |cause: std::io::Error| Error::io("write the model to", path.display(), &cause);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(io)?;
    let file = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
    let text = serde_json::to_vec_pretty(stored).map_err(|cause| io(std::io::Error::other(cause)))?;
    fs::write(file.path(), text).map_err(io)?;
    file.persist(path).map_err(|cause| io(cause.error))?;
    forget(folder);
    Ok(())
}

/// Removes all models from `folder` but the latest.
fn forget(folder: &Path) {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_model = path.extension()? == "json" && path.file_name()?.to_str()?.starts_with("model-");
        Some((fs::metadata(&path).ok()?.modified().ok()?, path)).filter(|_| is_model)
    });
    let mut models: Vec<(SystemTime, PathBuf)> = files.collect();
    models.sort_unstable_by(|one, other| other.cmp(one));
    for (_, path) in models.into_iter().skip(KEPT) {
        // Another job may just have done it, and a file too many does no harm.
        if let Err(cause) = fs::remove_file(&path) {
            tracing::debug!(%cause, "an old model stays: {}", path.display());
        }
    }
}

fn cache_file(library: &str, names: &[[f64; 1]], hosts: &[Vec<usize>], are_named: bool) -> Option<PathBuf> {
    let mut key = format!("{VERSION} {} {library} {hosts:?} {are_named}", env!("CARGO_PKG_VERSION"));
    key.extend(names.iter().map(|[name]| format!(" {name}")));
    Some(crate::config::cache_folder()?.join("ringpull").join(format!("model-{:016x}.json", xxh3_64(key.as_bytes()))))
}

/// Everything about this rank's host that its links' speed may depend on.
fn this_host() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut links = Vec::new();
    if let Ok(folder) = fs::read_dir("/sys/class/net") {
        for link in folder.filter_map(|entry| Some(entry.ok()?.path())) {
            let field = |name: &str| fs::read_to_string(link.join(name)).unwrap_or_default().trim().to_owned();
            links.push(format!("{} {} {} {}", link.display(), field("address"), field("mtu"), field("speed")));
        }
    }
    links.sort_unstable();
    format!("{} {cores} {}", host_name(), links.join(" "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::transport::inproc;

    fn learned(size: usize, source: &ModelSource) -> Vec<Result<Learned>> {
        std::thread::scope(|scope| {
            let ranks: Vec<_> = inproc::world(size)
                .into_iter()
                .map(|mut end| {
                    scope.spawn(move || {
                        let mut runner = Runner::new(256 << 10, Duration::from_secs(20));
                        let hosts: Vec<Vec<usize>> = (0..size).map(|rank| vec![rank]).collect();
                        learn(&mut runner, &mut end, (&hosts, false), source, &AtomicBool::new(false))
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_learns_the_same_bits_by_a_probe() {
        for size in [1, 2, 3, 5] {
            let models: Vec<Learned> = learned(size, &ModelSource::Probe).into_iter().map(Result::unwrap).collect();
            assert!(models[0].model.is_sound());
            assert!(
                models.iter().all(|learned| (learned.model, learned.racks) == (models[0].model, models[0].racks)),
                "{models:?}"
            );
        }
    }

    #[test]
    fn a_file_is_taken_at_its_word_and_a_wrong_one_is_an_error_on_every_rank() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/model.json");
        let model = Model { latency_us: 1.0 / 3.0, ..Model::default() };
        store(&path, &Stored { model, racks: (0b110, 3), library: "a library".to_owned(), ranks: 3 }).unwrap();
        for learned in learned(3, &ModelSource::File(path.clone())) {
            let learned = learned.unwrap();
            assert_eq!((learned.model, learned.racks), (model, 0b110));
        }
        let wrong = Stored { model: Model { fan_factor: -1.0, ..model }, ..Stored::default() };
        store(&path, &wrong).unwrap();
        let errors: Vec<String> =
            learned(2, &ModelSource::File(path)).into_iter().map(|it| it.unwrap_err().to_string()).collect();
        assert!(errors[0].contains("numbers are those of no cluster"), "{errors:?}");
        assert!(errors[1].contains("rank 0"), "{errors:?}");
    }

    #[test]
    fn the_latest_models_are_kept_and_nothing_else_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("notes.json"), "a user's own").unwrap();
        for index in 0..KEPT + 3 {
            store(&path(&format!("model-{index}.json")), &Stored::default()).unwrap();
            let age = Duration::from_secs((KEPT + 3 - index) as u64);
            let file = fs::File::options().write(true).open(path(&format!("model-{index}.json"))).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        store(&path("model-last.json"), &Stored::default()).unwrap();
        let kept = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(kept, KEPT + 1, "the models and the user's file");
        assert!(path("notes.json").exists() && path("model-last.json").exists());
        assert!(!path("model-3.json").exists() && path("model-4.json").exists());
    }

    #[test]
    fn another_library_or_another_host_is_another_cluster() {
        let apart = [vec![0], vec![1]];
        let of = |library: &str, names: &[[f64; 1]]| cache_file(library, names, &apart, false);
        if let Some(file) = of("a", &[[1.0], [2.0]]) {
            assert_eq!(of("a", &[[1.0], [2.0]]), Some(file.clone()));
            for other in [of("b", &[[1.0], [2.0]]), of("a", &[[1.0], [3.0]]), of("a", &[[1.0]])] {
                assert_ne!(other, Some(file.clone()));
            }
            let names = [[1.0], [2.0]];
            assert_ne!(cache_file("a", &names, &[vec![0, 1]], false), Some(file.clone()));
            assert_ne!(cache_file("a", &names, &apart, true), Some(file));
        }
    }
}
