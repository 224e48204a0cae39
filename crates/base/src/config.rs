//! Every environment variable this crate reads, read here and nowhere else. `listed` has their names.

pub(crate) mod alike;
mod identity;
pub(crate) mod listed;
mod secret;
mod variables;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

pub use self::alike::{AlikeValue, AlikeValues, check_alike};
pub use self::identity::{Identity, identity, missing_process_manager, process_manager, security_mode};
pub use self::secret::{SECRET, SECRET_FILE, secret, secret_or_new};
use self::variables::{bad, not_one_of, parsed, required, seconds, seconds_or_never, switch, switch_or_auto};
pub use self::variables::{is_in_environment, misspelt_variables, text};
use crate::named::named;
use crate::recording::RecordingOptions;
use crate::{AlgorithmChoice, Error, Result};

named! {
    /// The role of a process in its job: in one with parameter servers, or as a helper of `dist_sync_mpi`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    #[allow(missing_docs)]
    pub enum Role {
        Worker = "worker",
        Server = "server",
        Scheduler = "scheduler",
        Helper = "helper",
    }
}

impl Role {
    /// Returns the name of the role's processes in messages, before their numbers. A worker is called a rank.
    pub fn label(self) -> &'static str {
        if self == Role::Worker { "rank" } else { self.name() }
    }
}

/// The `DMLC_*` variables of a parameter-server job, with ps-lite's meaning.
#[derive(Debug, Clone)]
pub struct Dmlc {
    /// `DMLC_ROLE`: unset is a worker.
    pub role: Role,
    /// `DMLC_PS_ROOT_URI` and `DMLC_PS_ROOT_PORT`: where the scheduler listens.
    pub root: SocketAddr,
    /// `DMLC_NUM_WORKER`, at least 1.
    pub num_workers: usize,
    /// `DMLC_NUM_SERVER`, at least 1.
    pub num_servers: usize,
    /// `DMLC_NODE_HOST`: the address at which the others reach this node. If unset, the address of the route
    /// to the root.
    pub node_host: Option<IpAddr>,
    /// `DMLC_RANK` or `DMLC_WORKER_ID`: the rank that this node prefers. If unset, the order of arrival
    /// decides.
    pub preferred_rank: Option<usize>,
}

/// The source of `auto`'s knowledge of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterSource {
    /// Unset: the file that `ringpull probe` has put into the user's cache for exactly these hosts, or the
    /// constants if there is none.
    Cached,
    /// `none`: the constants, which are the same everywhere.
    None,
    /// Anything else: the file with this name.
    File(PathBuf),
}

/// The settings of a process.
///
/// ```
/// # use ringpull_base::config as ringpull;
/// use std::time::Duration;
///
/// // The environment's settings, and otherwise these.
/// let own = ringpull::Config { timeout: Duration::from_secs(60), ..ringpull::Config::default() };
/// let config = ringpull::Config::from_env_or(own)?;
/// # assert!(config.timeout > Duration::ZERO);
/// # Ok::<(), ringpull_base::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Config {
    /// `RINGPULL_WARN`, seconds (30): the time after which a warning names a rank for which others wait. The
    /// warning comes again each time this time has doubled.
    pub warn: Duration,
    /// `RINGPULL_TIMEOUT`, seconds (1800; 0 is [`NEVER`]): the time after which a wait for a live rank is an
    /// error.
    pub timeout: Duration,
    /// `RINGPULL_SILENCE` or ps-lite's `PS_HEARTBEAT_TIMEOUT`, seconds (30): the time without heartbeats
    /// after which a peer's process is lost. At most `timeout`, see [`silence`](Config::silence).
    pub silence: Duration,
    /// `RINGPULL_SEGMENT`, bytes (262144): the size of one message of a part.
    pub segment_bytes: usize,
    /// `RINGPULL_FUSION_BYTES`, bytes: the largest bucket of short gradients that follow each other in every
    /// step. 0 sums each gradient separately; `None` chooses by the cluster. Rank 0's value counts.
    pub fusion_bytes: Option<usize>,
    /// True if `RINGPULL_SEGMENT` was given. Then every message has that size. Otherwise `auto` may choose
    /// shorter ones.
    pub segment_is_fixed: bool,
    /// `RINGPULL_ALGORITHM` (auto): the allreduce plan.
    pub algorithm: AlgorithmChoice,
    /// `RINGPULL_CLUSTER`: the source of `auto`'s knowledge of the cluster.
    pub cluster: ClusterSource,
    /// `RINGPULL_READ_MEMORY`: lets ranks of one host read and write the memory of each other's processes, if
    /// the system allows it. `None`: two ranks do, and ranks that outnumber the cores.
    pub read_memory: Option<bool>,
    /// `RINGPULL_CHECK_NAN` (0): makes a pushed NaN or Inf an error.
    pub check_nan: bool,
    /// `RINGPULL_CHECK_REPLICAS`, updates (0: never): the number of a key's updates between two comparisons
    /// of its value over the ranks of `dist_sync_mpi`.
    pub check_replicas: u64,
    /// `RINGPULL_ELASTIC` (0): lets a job of `dist_sync_mpi` go on without lost ranks, if MPI can (Open MPI 5
    /// under `mpirun --with-ft ulfm`), and a job with servers without lost workers.
    pub elastic: bool,
    /// `MXNET_KVSTORE_BIGARRAY_BOUND`, elements (1000000): keys of at least this length are split over all
    /// servers.
    pub bigarray_bound: usize,
    /// `PS_HEARTBEAT_INTERVAL`, seconds (1): the time between signs of life.
    pub heartbeat_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            warn: Duration::from_secs(30),
            timeout: Duration::from_secs(1800),
            silence: Duration::from_secs(30),
            segment_bytes: 256 << 10,
            fusion_bytes: None,
            segment_is_fixed: false,
            cluster: ClusterSource::None,
            algorithm: AlgorithmChoice::Auto,
            read_memory: None,
            check_nan: false,
            check_replicas: 0,
            elastic: false,
            bigarray_bound: 1_000_000,
            heartbeat_interval: Duration::from_secs(1),
        }
    }
}

/// A limit that is never reached: longer than any job, and short enough to be added to any moment.
pub const NEVER: Duration = Duration::from_secs(1_000_000_000);

/// The time after which there is a deadlock, if every rank that has not ended waits for a call that another
/// has not made.
pub const DEADLOCK: Duration = Duration::from_secs(5);

/// The valid values of `segment_bytes`.
const SEGMENTS: std::ops::RangeInclusive<usize> = 1024..=1 << 30;

impl Config {
    /// Reads the environment. An invalid value is an error, and is not replaced by a default.
    pub fn from_env() -> Result<Self> {
        Config::from_env_or(Config { cluster: ClusterSource::Cached, ..Config::default() })
    }

    /// Returns the time for which a peer may be silent. It is at most the limit for a late rank.
    pub fn silence(&self) -> Duration {
        self.silence.min(self.timeout)
    }

    /// Reads the environment as [`from_env`](Self::from_env) does, with `default` for settings that it lacks.
    pub fn from_env_or(default: Config) -> Result<Self> {
        let config = Config {
            warn: seconds("RINGPULL_WARN", default.warn)?,
            timeout: seconds_or_never("RINGPULL_TIMEOUT", default.timeout)?,
            silence: seconds("RINGPULL_SILENCE", seconds("PS_HEARTBEAT_TIMEOUT", default.silence)?)?,
            segment_bytes: parsed("RINGPULL_SEGMENT", "a number of bytes, 1024 to 1073741824", default.segment_bytes)?,
            fusion_bytes: match text("RINGPULL_FUSION_BYTES") {
                Some(_) => Some(required("RINGPULL_FUSION_BYTES", "a number of bytes")?),
                None => default.fusion_bytes,
            },
            segment_is_fixed: default.segment_is_fixed || text("RINGPULL_SEGMENT").is_some(),
            algorithm: match text("RINGPULL_ALGORITHM") {
                Some(given) => AlgorithmChoice::of_name(&given)
                    .ok_or_else(|| not_one_of("RINGPULL_ALGORITHM", &given, &AlgorithmChoice::names()))?,
                None => default.algorithm,
            },
            cluster: text("RINGPULL_CLUSTER").map_or(default.cluster, |given| ClusterSource::named(&given)),
            check_nan: match text("RINGPULL_CHECK_NAN") {
                Some(given) => switch("RINGPULL_CHECK_NAN", &given)?,
                None => default.check_nan,
            },
            read_memory: switch_or_auto("RINGPULL_READ_MEMORY", default.read_memory)?,
            check_replicas: parsed("RINGPULL_CHECK_REPLICAS", "a number of updates; 0: never", default.check_replicas)?,
            elastic: match text("RINGPULL_ELASTIC") {
                Some(given) => switch("RINGPULL_ELASTIC", &given)?,
                None => default.elastic,
            },
            bigarray_bound: parsed("MXNET_KVSTORE_BIGARRAY_BOUND", "a number of elements", default.bigarray_bound)?,
            heartbeat_interval: seconds("PS_HEARTBEAT_INTERVAL", default.heartbeat_interval)?,
        };
        if !SEGMENTS.contains(&config.segment_bytes) && text("RINGPULL_SEGMENT").is_some() {
            return Err(bad("RINGPULL_SEGMENT", "a number of bytes, 1024 to 1073741824"));
        }
        config.check().map(|()| config)
    }

    /// Returns an error if a setting of the program is impossible (MPI counts a message's bytes in an int),
    /// or if a variable that is read later, in code that cannot return an error, has an invalid value.
    pub fn check(&self) -> Result<()> {
        wants_shared_memory()?;
        wants_quiet()?;
        role()?;
        metrics()?;
        if SEGMENTS.contains(&self.segment_bytes) {
            return Ok(());
        }
        let what = format!("segments of {} bytes", self.segment_bytes);
        Err(Error::argument(what, "set Config::segment_bytes to 1024 to 1073741824"))
    }
}

impl ClusterSource {
    fn named(given: &str) -> Self {
        if given == "none" { ClusterSource::None } else { ClusterSource::File(given.into()) }
    }
}

impl std::fmt::Display for ClusterSource {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClusterSource::Cached => out.pad("the cache"),
            ClusterSource::None => out.pad("the default"),
            ClusterSource::File(path) => out.pad(&format!("the file {}", path.display())),
        }
    }
}

impl Dmlc {
    /// Reads the `DMLC_*` variables. Returns `None` if they describe no job.
    pub fn from_env() -> Result<Option<Self>> {
        let role = match text("DMLC_ROLE") {
            Some(name) => Role::of_name(&name)
                .filter(|role| *role != Role::Helper)
                .ok_or_else(|| bad("DMLC_ROLE", "worker, server or scheduler"))?,
            None => Role::Worker,
        };
        if ["DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_NUM_WORKER"].iter().all(|name| text(name).is_none()) {
            return Ok(None);
        }
        let host =
            text("DMLC_PS_ROOT_URI").ok_or_else(|| bad("DMLC_PS_ROOT_URI", "the scheduler's host or address"))?;
        let port: u16 = required("DMLC_PS_ROOT_PORT", "the scheduler's port")?;
        let root = (host.as_str(), port)
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next())
            .ok_or_else(|| bad("DMLC_PS_ROOT_URI", "a host name or address that resolves"))?;
        let counted = |name| match required(name, "a number, at least 1")? {
            0 => Err(bad(name, "a number, at least 1")),
            count => Ok(count),
        };
        let node_host = text("DMLC_NODE_HOST")
            .map(|host| host.parse().map_err(|_| bad("DMLC_NODE_HOST", "an IP address of this host")))
            .transpose()?;
        Ok(Some(Dmlc {
            role,
            root,
            num_workers: counted("DMLC_NUM_WORKER")?,
            num_servers: counted("DMLC_NUM_SERVER")?,
            node_host,
            preferred_rank: ["DMLC_RANK", "DMLC_WORKER_ID"].iter().find_map(|name| text(name)?.parse().ok()),
        }))
    }
}

/// `RINGPULL_MPIRUN`: the program that starts MPI ranks. If it is unset, the `mpirun` beside this program (as
/// in a virtual environment that has both), otherwise the `mpirun` in the `PATH`.
pub fn mpirun_program() -> String {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("mpirun")).filter(|program| program.is_file());
    let found = text("RINGPULL_MPIRUN").or_else(|| Some(beside()?.to_string_lossy().into_owned()));
    found.unwrap_or_else(|| "mpirun".to_owned())
}

/// `RINGPULL_SSH` (ssh): the program that reaches other hosts. Its options may follow, separated by blanks.
pub fn ssh_command() -> Vec<String> {
    text("RINGPULL_SSH").unwrap_or_else(|| "ssh".to_owned()).split_whitespace().map(str::to_owned).collect()
}

/// Returns the parameters of MPI libraries that are set before `MPI_Init`, unless the user has set them. With
/// them ranks that wait yield the processor, and messages of up to `eager_bytes`, if given, are sent eagerly
/// over TCP. UCX, under MPICH, has one limit for all networks, so it is not changed if there is InfiniBand.
pub fn library_settings(eager_bytes: Option<usize>) -> Vec<(&'static str, String)> {
    let mut settings = vec![("OMPI_MCA_mpi_yield_when_idle", "1".to_owned())];
    let Some(eager_bytes) = eager_bytes else { return settings };
    let limit = (eager_bytes + 4096).to_string();
    let tcp = ["OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_rndv_eager_limit", "OMPI_MCA_btl_tcp_max_send_size"];
    settings.extend(tcp.map(|name| (name, limit.clone())));
    let has_infiniband = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut found| found.next().is_some());
    if !has_infiniband {
        settings.push(("UCX_RNDV_THRESH", limit));
    }
    settings
}

/// Returns true if the `mpirun` that started this process lets its job go on when a rank is lost.
pub fn launcher_survives_losses() -> bool {
    text("OMPI_MCA_mpi_ft_enable").is_some_and(|value| !matches!(value.as_str(), "0" | "f" | "false" | "no"))
}

/// A parameter of Open MPI for a job that goes on without lost ranks: Open MPI's shared memory is not used,
/// because a process that is killed at a bad moment leaves a queue there that can never be read again. Ranks
/// of a host sum in ringpull's own shared memory.
pub const ELASTIC_SETTING: (&str, &str) = ("OMPI_MCA_btl", "^sm");

/// Returns the launcher's variable with the number of ranks, and its value. It serves to detect the `mpirun`
/// of another MPI, and a launcher that starts no ranks of MPI, such as `torchrun`, whose variable comes last.
pub fn launcher_world_size() -> Option<(&'static str, usize)> {
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"]
        .into_iter()
        .find_map(|name| Some((name, text(name)?.parse().ok()?)))
}

/// Returns this process's rank, if a launcher of MPI has set one.
pub fn launcher_rank() -> Option<usize> {
    launcher_world_size().filter(|(_, size)| *size > 1)?;
    told_rank()?.parse().ok()
}

/// Returns true if a launcher has set rank 0 for this process, or no rank.
pub fn is_first_rank() -> bool {
    told_rank().is_none_or(|rank| rank == "0")
}

/// Returns the rank that a launcher gives this process.
fn told_rank() -> Option<String> {
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"].into_iter().find_map(text)
}

/// Returns true if this process prints messages that one process of a job should print. In a job with servers
/// it is the first worker, or every worker if no variable numbers them, whatever rank a launcher gives.
/// Otherwise it is the launcher's first rank.
pub fn speaks_for_the_job(job: Option<&Dmlc>) -> bool {
    job.map_or_else(is_first_rank, |job| job.role == Role::Worker && job.preferred_rank.unwrap_or(0) == 0)
}

/// Returns the number of workers for which this process prints messages, and the launcher's variable with
/// this number, if there are several.
pub fn first_of_several(job: Option<&Dmlc>) -> Option<(&'static str, usize)> {
    let told = job.map(|job| ("DMLC_NUM_WORKER", job.num_workers)).or_else(launcher_world_size);
    told.filter(|(_, workers)| *workers > 1 && speaks_for_the_job(job))
}

/// Returns true if Open MPI's `mpirun` runs for root.
pub fn root_may_run_mpi() -> bool {
    text("OMPI_ALLOW_RUN_AS_ROOT").is_some() && text("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM").is_some()
}

/// Returns the number of ranks that a launcher has put on this host, if a variable has it.
pub fn launcher_local_size() -> Option<usize> {
    ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"].into_iter().find_map(|name| text(name)?.parse().ok())
}

/// Returns this process's number among those of this host, if its launcher has set one.
pub fn launcher_local_rank() -> Option<usize> {
    let names = ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"];
    names.into_iter().find_map(|name| text(name)?.parse().ok())
}

const SHARED_MEMORY: &str = "RINGPULL_SHARED_MEMORY";

/// The variable that `ringpull launch` sets together with `MASTER_ADDR` and `MASTER_PORT`, to `ADDR:PORT`: a
/// process then knows that the launcher has set them, and not the user.
pub const MEETING: &str = "RINGPULL_MEETING";

/// The variable that `ringpull launch --quiet` sets.
pub const QUIET: &str = "RINGPULL_QUIET";

/// `RINGPULL_SHARED_MEMORY` (1): 0 makes ranks of one host exchange messages as if they were on different
/// hosts. An invalid value is an error of [`Config::from_env`] and of functions that create a store.
pub fn shared_memory() -> bool {
    wants_shared_memory() != Ok(false)
}

fn wants_shared_memory() -> Result<bool> {
    text(SHARED_MEMORY).map_or(Ok(true), |given| switch(SHARED_MEMORY, &given))
}

/// The variable that makes a process of an MPI job a helper.
pub const ROLE: &str = "RINGPULL_ROLE";

/// `RINGPULL_ROLE` (worker): makes this process a helper of a job of `dist_sync_mpi`, a rank that only
/// reduces. An invalid value is an error of [`Config::from_env`] and of functions that create a store.
pub fn is_helper() -> bool {
    role() == Ok(true)
}

fn role() -> Result<bool> {
    match text(ROLE).as_deref() {
        None | Some("worker") => Ok(false),
        Some("helper") => Ok(true),
        Some(_) => Err(bad(ROLE, "worker or helper")),
    }
}

/// `RINGPULL_QUIET` (0): leaves out the first line of a job, with the placement of its ranks.
pub fn is_quiet() -> bool {
    wants_quiet() == Ok(true)
}

fn wants_quiet() -> Result<bool> {
    text(QUIET).map_or(Ok(false), |given| switch(QUIET, &given))
}

/// `RINGPULL_METRICS`: the address of rank 0's metrics. A port without an address is on loopback.
pub fn metrics() -> Result<Option<SocketAddr>> {
    const NAME: &str = "RINGPULL_METRICS";
    let Some(given) = text(NAME) else { return Ok(None) };
    let port = given.parse::<u16>().map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let address = port.ok().or_else(|| given.parse().ok());
    address.map(Some).ok_or_else(|| bad(NAME, "a port, or an address such as 0.0.0.0:9400 or [::]:9400"))
}

/// `RINGPULL_RACK`: the name of this host's rack; if unset, Slurm's name of the switches above it.
pub fn rack() -> Option<String> {
    let switches = || Some(text("SLURM_TOPOLOGY_ADDR")?.rsplit_once('.')?.0.to_owned());
    text("RINGPULL_RACK").or_else(switches)
}

/// `NCCL_COMM_BLOCKING`: makes NCCL's calls wait for other processes, so that no call can be given up.
pub fn nccl_blocks() -> bool {
    text("NCCL_COMM_BLOCKING").is_some_and(|given| given.trim() == "1")
}

/// Returns the number of workers on this host, as a launcher has set it, at least 1. `ringpull launch` sets
/// `RINGPULL_LOCAL_WORKERS`.
pub fn local_workers() -> usize {
    let told = text("RINGPULL_LOCAL_WORKERS").and_then(|count| count.parse().ok());
    told.or_else(launcher_local_size).unwrap_or(1).max(1)
}

/// The threads that arithmetic of this process may use: `RAYON_NUM_THREADS` if it is set, otherwise this
/// process's share of the cores. It is determined once, because that reads files.
pub fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from) / local_workers();
        let given = text("RAYON_NUM_THREADS").and_then(|count| count.parse().ok()).filter(|count| *count > 0);
        given.unwrap_or_else(cores).max(1)
    })
}

/// `XDG_CACHE_HOME` (`HOME`/.cache): the folder that may be emptied at any time.
pub fn cache_folder() -> Option<PathBuf> {
    let named = text("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    named.or_else(|| Some(PathBuf::from(text("HOME")?).join(".cache")))
}

/// `RINGPULL_LOG` (warn): the filter of the log on stderr, in `tracing`'s syntax.
pub fn log_filter() -> String {
    text("RINGPULL_LOG").unwrap_or_else(|| "ringpull=warn".to_owned())
}

/// Returns true if the log on stderr has colours: in a terminal, unless `NO_COLOR` is set.
pub fn log_is_colored() -> bool {
    use std::io::IsTerminal;
    std::io::stderr().is_terminal() && text("NO_COLOR").is_none()
}

/// The folder of Debian's package `dataset-fashion-mnist`.
pub const FASHION_MNIST: &str = "/usr/share/datasets/fashion-mnist";

/// The folder with Fashion-MNIST. It is the package's, or the one in this checkout that `scripts/setup` fills
/// if it does not run as root.
pub fn fashion_mnist() -> &'static str {
    static FOLDER: OnceLock<String> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let unprivileged = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.deps", "/usr/share/datasets/fashion-mnist");
        let found = (!Path::new(FASHION_MNIST).is_dir()).then(|| std::fs::canonicalize(unprivileged).ok()).flatten();
        found.map_or_else(|| FASHION_MNIST.to_owned(), |folder| folder.display().to_string())
    })
}

/// `RINGPULL_DEVICES`: the devices of the device kinds (all GPUs if unset), and of `dist_sync_mpi` (host
/// memory if unset).
pub fn devices() -> Option<String> {
    text("RINGPULL_DEVICES")
}

/// `RINGPULL_TIMELINE` (unset): the file to which each process writes its timeline, a Chrome trace.
pub fn timeline_file() -> Option<String> {
    text("RINGPULL_TIMELINE")
}

/// `RINGPULL_RECORD` and `RINGPULL_RECORD_VALUES` (0): the folder in which gradients and values are recorded,
/// and the bytes of values.
pub fn recording() -> Result<Option<RecordingOptions>> {
    let value_bytes = parsed(RECORD_VALUES, "a number of bytes", 0)?;
    let starts = elastic()?.map_or(0, |(_, starts)| starts);
    Ok(text(RECORD).map(|folder| {
        let folder = PathBuf::from(folder);
        let folder = if starts == 0 { folder } else { folder.join(format!("start-{starts}")) };
        RecordingOptions { folder, value_bytes }
    }))
}

/// The variables that [`recording`] reads, for code that sets them.
pub const RECORD: &str = "RINGPULL_RECORD";
#[allow(missing_docs)]
pub const RECORD_VALUES: &str = "RINGPULL_RECORD_VALUES";

/// The variables by which `ringpull launch --elastic` makes the ranks of a job elastic.
pub const SNAPSHOTS: &str = "RINGPULL_SNAPSHOTS";
#[allow(missing_docs)]
pub const GENERATION: &str = "RINGPULL_GENERATION";

/// The beginning of the name of a file in that folder. With it a rank of a generation reports that all ranks
/// have started MPI. The rest of the name is the generation.
pub const STARTED: &str = "started-";

/// The fewest ranks with which an elastic job goes on.
pub const MIN_WORKERS: &str = "RINGPULL_MIN_WORKERS";

/// `RINGPULL_SNAPSHOTS` and `RINGPULL_GENERATION`: the folder of an elastic job's snapshots on each host, and
/// the number of earlier starts of the job. `None` in a job that is not elastic.
pub fn elastic() -> Result<Option<(PathBuf, u32)>> {
    let Some(folder) = text(SNAPSHOTS) else { return Ok(None) };
    Ok(Some((folder.into(), required(GENERATION, "the number of the start, from 0")?)))
}

/// `RINGPULL_MIN_WORKERS`: the fewest ranks that go on without lost ranks.
pub fn min_workers() -> Result<usize> {
    parsed(MIN_WORKERS, "a number of ranks", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_no_message_can_count_is_an_error_of_the_program() {
        Config::default().check().unwrap();
        for segment_bytes in [0, 1 << 31, usize::MAX] {
            let error = Config { segment_bytes, ..Config::default() }.check().unwrap_err().to_string();
            assert!(error.contains("Config::segment_bytes"), "{error}");
        }
    }

    #[test]
    fn a_library_that_sums_by_itself_keeps_its_own_limits() {
        let names = |eager_bytes| library_settings(eager_bytes).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(None), ["OMPI_MCA_mpi_yield_when_idle"]);
        assert!(names(Some(1 << 18)).contains(&"OMPI_MCA_btl_tcp_eager_limit"));
    }

    #[test]
    fn a_cluster_is_that_of_a_file_or_none() {
        assert_eq!(ClusterSource::named("none"), ClusterSource::None);
        assert_eq!(ClusterSource::named("/etc/cluster.toml"), ClusterSource::File("/etc/cluster.toml".into()));
    }
}
