//! The numbers by which `auto` plans. They come from a cluster file, or are constants that are the same
//! everywhere.
//!
//! A job measures nothing at its start: the result would depend on other load of the hosts, and with it the
//! plan of a sum and the sum's last bits. Rank 0 reads the file and sends its text to all ranks. So all ranks
//! have the same numbers, whatever is set or stored on other hosts.

use std::path::Path;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use xxhash_rust::xxh3::xxh3_64;

use ringpull_base::config::ClusterSource;
use ringpull_base::topology::host_name;
use ringpull_base::{Error, Result};
use ringpull_plan::{Algorithm, LinkRates, Links, Model, Segments, choose, choose_weighted, predict};

use super::cluster::Cluster;
use super::cluster_cache;
use super::executor::Executor;
use super::racks::Racks;
use crate::transport::{OF_A_SET, Stamp};

/// The stamp of these messages, which no operation of a job has.
const STAMP: Stamp = OF_A_SET - 1;
/// Linux's limit for the name of a host.
const NAME_BYTES: usize = 64;

/// A model and its source.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedModel {
    /// The numbers.
    pub model: Model,
    /// The hosts' links, if they are not alike.
    pub links: Option<Links>,
    /// The source of the numbers, in words.
    pub source: String,
    /// The age of the cluster file, on rank 0, if the file is in the cache.
    pub age: Option<Duration>,
}

impl Default for LearnedModel {
    fn default() -> Self {
        LearnedModel { model: Model::default(), links: None, source: "the default".to_owned(), age: None }
    }
}

impl LearnedModel {
    /// Logs the learned numbers and the choices that follow from them, for `size` ranks on `hosts` hosts.
    pub(super) fn explain(&self, hosts: usize, size: usize, has_racks: bool, segments: Segments) {
        tracing::debug!("auto goes by {}: {:?}", self.source, self.model);
        if hosts < size {
            tracing::debug!(
                "ranks that share a host sum in its memory; what follows is between {hosts} hosts, one rank of each"
            );
        }
        if has_racks {
            tracing::debug!("the hosts are in two racks: long sums cross the link between them once in each direction");
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

/// Facts of a rank's host, which it sends to the others.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HostCard {
    /// The name of the host, padded with zeros.
    name: [u8; NAME_BYTES],
    /// A hash of the host's identity.
    identity: u64,
}

/// The hosts of a job: their names, and the file of the cache for just these.
pub(super) struct JobHosts {
    pub(super) names: Vec<String>,
    pub(super) identities: Vec<u64>,
}

impl JobHosts {
    /// Returns the hosts of the ranks of `executor`. Collective.
    pub(super) fn gather(executor: &mut Executor, hosts: &[Vec<usize>]) -> Result<Self> {
        let mut own = HostCard { name: [0; NAME_BYTES], identity: xxh3_64(cluster_cache::this_host().as_bytes()) };
        let name = host_name();
        let len = name.len().min(NAME_BYTES);
        own.name[..len].copy_from_slice(&name.as_bytes()[..len]);
        let rows: Vec<[HostCard; 1]> = executor.gather_rows(&[own], STAMP)?;
        let name = |card: &HostCard| String::from_utf8_lossy(&card.name).trim_end_matches('\0').to_owned();
        let cards = || hosts.iter().map(|ranks| &rows[ranks[0]][0]);
        Ok(JobHosts { names: cards().map(name).collect(), identities: cards().map(|card| card.identity).collect() })
    }
}

/// The source of numbers that rank 0 has found.
enum FoundSource {
    Text { text: String, source: String, age: Option<Duration> },
    Nothing,
    Wrong(Error),
}

impl FoundSource {
    const NOTHING: u64 = 0;
    const TEXT: u64 = 1;
    const CACHED: u64 = 2;
    const WRONG: u64 = 3;

    /// The kind of source, and the number of bytes of text that follow.
    fn head(&self) -> [u64; 2] {
        match self {
            FoundSource::Text { text, age, .. } => {
                [if age.is_some() { Self::CACHED } else { Self::TEXT }, text.len() as u64]
            }
            FoundSource::Nothing => [Self::NOTHING, 0],
            FoundSource::Wrong(_) => [Self::WRONG, 0],
        }
    }
}

/// Takes the model and the racks of `hosts` from rank 0's `source`. `hosts` has the ranks of each host; the
/// last `helpers` hosts are helpers'. Returns the racks if the source names two. More racks are an error if
/// the job uses racks. Collective; measures nothing.
pub(super) fn learn(
    executor: &mut Executor,
    hosts: &[Vec<usize>],
    source: &ClusterSource,
    (helpers, goes_by_racks): (usize, bool),
) -> Result<(LearnedModel, Option<Racks>)> {
    let (rank, size) = (executor.rank(), executor.size());
    if size == 1 {
        return Ok((LearnedModel::default(), None));
    }
    let job = JobHosts::gather(executor, hosts)?;
    let found = if rank == 0 { find(source, &job) } else { FoundSource::Nothing };
    let mut head = found.head();
    executor.broadcast_words(&mut head, STAMP)?;
    let mut text = match &found {
        FoundSource::Text { text, .. } => text.clone().into_bytes(),
        FoundSource::Nothing | FoundSource::Wrong(_) => vec![0; head[1] as usize],
    };
    if head[1] > 0 {
        executor.broadcast_words(&mut text, STAMP)?;
    }
    if let FoundSource::Wrong(cause) = found {
        return Err(cause);
    }
    match head[0] {
        FoundSource::WRONG => {
            return Err(Error::on_rank(0, "rank 0 could not use the file that its RINGPULL_CLUSTER names"));
        }
        FoundSource::NOTHING => {
            let links = links_of(&[], hosts.len(), helpers);
            return Ok((LearnedModel { links, ..LearnedModel::default() }, None));
        }
        _ => {}
    }
    let is_cached = head[0] == FoundSource::CACHED;
    let cluster = std::str::from_utf8(&text).map_err(|cause| cause.to_string()).and_then(Cluster::parse);
    let cluster = cluster.map_err(|cause| Error::protocol(None, "rank 0", cause))?;
    let (source, age) = match found {
        FoundSource::Text { source, age, .. } => (source, age),
        _ => (if is_cached { "the cache" } else { "a file of rank 0" }.to_owned(), None),
    };
    if rank == 0 {
        let unknown = cluster.unknown(&job.names);
        if !unknown.is_empty() {
            tracing::info!("{source} does not name {}: they have its link_mbit", unknown.join(", "));
        }
    }
    let racks = match cluster.racks(&job.names) {
        Err(cause) if goes_by_racks => return Err(cause),
        racks => racks.unwrap_or_default(),
    };
    // The plan for racks does not use rates of single hosts.
    let links = if racks.is_some() { None } else { links_of(&cluster.links(&job.names), hosts.len(), helpers) };
    Ok((LearnedModel { model: cluster.model(&job.names), links, source, age }, racks))
}

/// Returns the links of `hosts` hosts. Without `rates` all links are alike.
fn links_of(rates: &[LinkRates], hosts: usize, helpers: usize) -> Option<Links> {
    match (rates, helpers) {
        (_, 0) => Links::of(rates),
        ([], _) => Links::with_helpers(&vec![LinkRates::both(1.0); hosts], helpers),
        _ => Links::with_helpers(rates, helpers),
    }
}

fn find(source: &ClusterSource, job: &JobHosts) -> FoundSource {
    match source {
        ClusterSource::None => FoundSource::Nothing,
        ClusterSource::File(path) => match read(path) {
            Ok(text) => FoundSource::Text { text, source: format!("{source}, as rank 0 reports"), age: None },
            Err(cause) => FoundSource::Wrong(cause),
        },
        ClusterSource::Cached => {
            let cached = cluster_cache::file_of(&job.identities).filter(|file| file.exists());
            let Some(file) = cached else { return FoundSource::Nothing };
            match read(&file) {
                Ok(text) => {
                    let age = Some(cluster_cache::age(&file).unwrap_or_default());
                    FoundSource::Text { text, source: "the cache".to_owned(), age }
                }
                Err(cause) => {
                    tracing::info!(%cause, "the cache's cluster file is not used");
                    FoundSource::Nothing
                }
            }
        }
    }
}

/// Reads a cluster file, and checks that it is a valid one.
fn read(path: &Path) -> Result<String> {
    let io = |cause: &std::io::Error| Error::io("read the cluster file", path.display(), cause);
    let text = std::fs::read_to_string(path).map_err(|cause| io(&cause))?;
    match Cluster::parse(&text) {
        Ok(_) => Ok(text),
        Err(cause) => Err(io(&std::io::Error::other(cause))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::transport::inproc;

    fn learned(size: usize, source: &ClusterSource) -> Vec<Result<LearnedModel>> {
        learned_if(size, source, true)
    }

    fn learned_if(size: usize, source: &ClusterSource, goes_by_racks: bool) -> Vec<Result<LearnedModel>> {
        let hosts: Vec<Vec<usize>> = (0..size).map(|rank| vec![rank]).collect();
        let run = |end| {
            let mut executor = Executor::new(Box::new(end), 256 << 10, Duration::from_secs(20), Arc::default());
            learn(&mut executor, &hosts, source, (0, goes_by_racks)).map(|(learned, _)| learned)
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = inproc::world(size).into_iter().map(|end| scope.spawn(move || run(end))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn without_a_file_every_start_has_the_same_numbers() {
        for size in [1, 2, 3, 5] {
            for learned in learned(size, &ClusterSource::None) {
                assert_eq!(learned.unwrap(), LearnedModel::default());
            }
        }
    }

    #[test]
    fn a_file_is_taken_at_its_word_and_a_wrong_one_is_an_error_on_every_rank() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.toml");
        let rates = vec![LinkRates::both(100.0), LinkRates { sends: 50.0, receives: 80.0 }, LinkRates::both(100.0)];
        let cluster = Cluster::of(&Model::default(), vec![host_name(); 3], &rates, 0);
        std::fs::write(&path, cluster.text()).unwrap();
        for learned in learned(3, &ClusterSource::File(path.clone())) {
            let learned = learned.unwrap();
            assert_eq!((learned.model.long_bytes_per_us, learned.links), (50.0, Links::of(&rates)));
        }
        std::fs::write(&path, cluster.text().replace("fan_factor = 1.05", "fan_factor = -1")).unwrap();
        let errors: Vec<String> =
            learned(2, &ClusterSource::File(path)).into_iter().map(|it| it.unwrap_err().to_string()).collect();
        assert!(errors[0].contains("fan_factor = -1"), "{errors:?}");
        assert!(errors[1].contains("rank 0"), "{errors:?}");
    }

    #[test]
    fn a_job_in_three_racks_of_its_file_does_not_start_unless_other_names_of_racks_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.toml");
        let mut cluster = Cluster::of(&Model::default(), vec![host_name(); 3], &[], 0);
        for (number, host) in cluster.hosts.iter_mut().enumerate() {
            host.rack = Some(format!("rack {number}"));
        }
        std::fs::write(&path, cluster.text()).unwrap();
        let source = ClusterSource::File(path);
        for learned in learned_if(3, &source, true) {
            let error = learned.unwrap_err().to_string();
            assert!(error.contains("in 3 racks") && error.contains("hint: there is a plan for two racks"), "{error}");
        }
        assert!(learned_if(3, &source, false).iter().all(Result::is_ok));
        assert!(learned_if(2, &source, true).iter().all(Result::is_ok), "two of the racks");
    }
}
