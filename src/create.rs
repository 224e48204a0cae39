//! From a kind's name to a store.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

#[cfg(feature = "ps")]
use ringpull_base::claim::{self, Claim};
use ringpull_base::config::{self, Config, Dmlc, Role};
#[cfg(feature = "ps")]
use ringpull_base::forked::Process;
use ringpull_base::{Error, Kind, Result, notice, timeline};
#[cfg(feature = "devices")]
use ringpull_device::Devices;

#[cfg(all(feature = "devices", feature = "ps"))]
use self::with_devices::before_servers;
#[cfg(feature = "devices")]
use self::with_devices::over_ranks;
#[cfg(feature = "devices")]
use self::with_devices::{has_driver, open, over_devices};
#[cfg(all(not(feature = "devices"), feature = "ps"))]
use self::without_devices::before_servers;
#[cfg(not(feature = "devices"))]
use self::without_devices::over_ranks;
#[cfg(not(feature = "devices"))]
use self::without_devices::{Devices, has_driver, open, over_devices};
use crate::local::Local;
use crate::recorded::RecordedBackend;
use crate::{Backend, KvStore};

/// Creates a store. `kind` is one of [`Kind::ALL`], spelled exactly.
///
/// In a process with `RINGPULL_ROLE=helper`, `create("dist_sync_mpi")` does not return: the process reduces
/// for the workers of its job, and exits when they are done. ([`run_node`] would return then.)
///
/// `dist_sync_mpi` finds its peers through the `mpirun` that started the process, and the kinds with servers
/// find them by the `DMLC_*` variables. A process with the `DMLC_ROLE` `server` or `scheduler` has no store
/// and calls [`run_node`] instead.
///
/// The device kinds work on the devices that `RINGPULL_DEVICES` names, or on all GPUs if it is unset.
/// `dist_sync_mpi` works on devices only if the variable is set. [`create_on`] takes the devices from the
/// caller, who makes tensors on them.
///
/// The first `dist_sync_mpi` store of a process initialises MPI, and creating it is collective: it blocks
/// until every rank creates one. A store with servers blocks until the scheduler has met every node of the
/// job.
///
/// ```
/// let store = ringpull::create("local")?;
/// assert_eq!((store.rank(), store.num_workers()), (0, 1));
/// // Names are never guessed at.
/// let error = ringpull::create("dist_snyc").err().unwrap();
/// assert!(error.to_string().contains("did you mean dist_sync?"));
/// # Ok::<(), ringpull::Error>(())
/// ```
///
/// # Errors
/// If `kind` is no kind, or this build or machine cannot have the kind, or a variable has an invalid value,
/// or peers do not come.
pub fn create(kind: &str) -> Result<KvStore> {
    create_with(kind, &Config::from_env()?)
}

/// Creates a store as [`create`] does, in a job that goes on without workers that it loses. This is what
/// `RINGPULL_ELASTIC=1` sets, which the servers and the scheduler, if there are some, need too. Without
/// servers it needs `dist_sync_mpi` on an MPI with fault tolerance, such as Open MPI 5 under `mpirun
/// --with-ft ulfm`. Otherwise it has no effect, and a notice is printed. Every rank must call it. See
/// [`KvStore::on_change`].
///
/// ```
/// let store = ringpull::create_elastic("local")?;
/// assert_eq!(store.generation(), 0);
/// # Ok::<(), ringpull::Error>(())
/// ```
pub fn create_elastic(kind: &str) -> Result<KvStore> {
    create_with(kind, &Config { elastic: true, ..Config::from_env()? })
}

/// Creates a store as [`create`] does, with the caller's settings. These must be the same on every rank, and
/// the settings of `dist_sync_mpi`'s sums must be the same for all stores of a process. Collective and
/// blocking in the same cases as [`create`].
///
/// ```
/// let config = ringpull::Config { check_nan: true, ..ringpull::Config::default() };
/// let store = ringpull::create_with("local", &config)?;
/// # assert_eq!(store.kind(), ringpull::Kind::Local);
/// # Ok::<(), ringpull::Error>(())
/// ```
pub fn create_with(kind: &str, config: &Config) -> Result<KvStore> {
    let kind = kind.parse::<Kind>()?;
    let mut job = Dmlc::from_env()?;
    if let Some(job) = job.as_mut().filter(|_| kind == Kind::DistHybrid) {
        // The job's workers are ranks, with the ranks' numbers.
        job.preferred_rank = job.preferred_rank.or_else(config::launcher_rank);
    }
    // A server or the scheduler gets the error that it has no store, whether or not it has devices.
    let is_a_node = kind.has_servers() && job.as_ref().is_some_and(|job| job.role != Role::Worker);
    let named = config::devices();
    let devices = match kind {
        // As in MXNet, processes without a GPU sum their values in host memory.
        Kind::DistSyncDevice | Kind::DistAsyncDevice if named.is_none() && !has_driver() => None,
        Kind::Device | Kind::DistSyncDevice | Kind::DistAsyncDevice if !is_a_node => {
            Some(open(named.as_deref().unwrap_or("cuda")).map_err(|cause| no_devices(kind, &cause))?)
        }
        // A helper needs no devices.
        Kind::DistSyncMpi if !config::is_helper() => match named {
            Some(named) => Some(open(&named).map_err(|cause| no_devices(kind, &cause))?),
            None => None,
        },
        _ => None,
    };
    build(kind, config, job.as_ref(), devices)
}

/// Creates a store as [`create`] does, of a kind that works on devices. It works on `devices`.
///
/// ```
/// // Two simulated devices, which every machine has; `store.devices()` of a store on GPUs serves as well.
/// let devices = ringpull::Devices::simulated(2)?;
/// let store = ringpull::create_on("device", &devices)?;
/// assert_eq!(store.devices().map(|devices| devices.count()), Some(2));
/// # Ok::<(), ringpull::Error>(())
/// ```
#[cfg(feature = "devices")]
pub fn create_on(kind: &str, devices: &Arc<Devices>) -> Result<KvStore> {
    let kind = kind.parse::<Kind>()?;
    if matches!(kind, Kind::Local | Kind::DistSync | Kind::DistAsync) {
        return Err(Error::argument(
            format!("store kind {kind} sums in host memory, but devices were given"),
            "choose device, dist_sync_device, dist_async_device or dist_sync_mpi",
        ));
    }
    build(kind, &Config::from_env()?, Dmlc::from_env()?.as_ref(), Some(Arc::clone(devices)))
}

/// Serves the job as its scheduler or as a server if `DMLC_ROLE` names this role, or as a helper of
/// `dist_sync_mpi` if `RINGPULL_ROLE` does. Blocks until the job has ended, and then returns true. Returns
/// false at once in a worker, and in a process of a job without servers.
///
/// A program that is started in every role calls it before [`create`], as MXNet does while it is imported:
///
/// ```
/// fn main() -> ringpull::Result<()> {
///     if ringpull::run_node()? {
///         return Ok(());
///     }
///     let store = ringpull::create("local")?;
///     println!("worker {} of {}", store.rank(), store.num_workers());
///     Ok(())
/// }
/// ```
///
/// # Errors
/// If the job failed: every node has received the error, and the process should exit with a status other than
/// 0.
pub fn run_node() -> Result<bool> {
    if config::is_helper() {
        let config = Config::from_env()?;
        config.check()?;
        serve(&config)?;
        return Ok(true);
    }
    let Some(job) = Dmlc::from_env()?.filter(|job| job.role != Role::Worker) else { return Ok(false) };
    #[cfg(feature = "ps")]
    {
        let config = Config::from_env()?;
        config.check()?;
        timeline::start(config::timeline_file());
        warn_of_variables(Some(&job));
        ringpull_ps::run_node(job.role, &config, &job)?;
        Ok(true)
    }
    #[cfg(not(feature = "ps"))]
    Err(no_servers(&job.role.to_string()))
}

/// True if this process has made a store.
static HAS_STORES: AtomicBool = AtomicBool::new(false);

pub(crate) fn has_stores() -> bool {
    HAS_STORES.load(Ordering::Acquire)
}

fn build(kind: Kind, config: &Config, job: Option<&Dmlc>, devices: Option<Arc<Devices>>) -> Result<KvStore> {
    config.check()?;
    HAS_STORES.store(true, Ordering::Release);
    timeline::start(config::timeline_file());
    if !kind.has_servers() {
        check_role(kind, job)?;
    }
    warn_of_separate_models(kind, job);
    warn_of_variables(job);
    warn_of_metrics(kind, job)?;
    let limit = config.timeout;
    let backend: Box<dyn Backend> = match (kind, devices) {
        (Kind::DistHybrid, _) => over_both(config, job)?,
        (Kind::Device, Some(devices)) => {
            timeline::introduce(Role::Worker, 0, 1);
            over_devices(devices, limit)
        }
        (Kind::Local | Kind::Device, _) => {
            timeline::introduce(Role::Worker, 0, 1);
            Box::new(Local::default())
        }
        (Kind::DistSyncMpi, devices) => over_mpi(config, devices)?,
        (Kind::DistSync | Kind::DistAsync | Kind::DistSyncDevice | Kind::DistAsyncDevice, devices) => {
            over_servers(kind, config, job, devices)?
        }
    };
    Ok(KvStore::over(kind, recorded(kind, backend)?, config))
}

/// Returns a backend that records, if recording is asked for and this is the first store of the process.
fn recorded(kind: Kind, backend: Box<dyn Backend>) -> Result<Box<dyn Backend>> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    match config::recording()? {
        Some(options) if !IS_TAKEN.swap(true, Ordering::Relaxed) => {
            Ok(Box::new(RecordedBackend::new(backend, kind, &options)?))
        }
        _ => Ok(backend),
    }
}

/// Returns an error in a process of a job with servers that asks for another kind. Otherwise each such
/// process would train alone, without a warning.
fn check_role(kind: Kind, job: Option<&Dmlc>) -> Result<()> {
    match job {
        Some(job) if job.role != Role::Worker || kind.has_ranks() => Err(Error::KindUnavailable {
            kind: kind.to_string(),
            reason: format!(
                "this process is a {} of a job with parameter servers (DMLC_ROLE and others are set)",
                job.role
            ),
            remedy:
                "ask for dist_sync or dist_async; for dist_sync_mpi start it with mpirun, or `ringpull launch -s 0`"
                    .to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Warns, once in a job, that the stores of its processes are separate.
fn warn_of_separate_models(kind: Kind, job: Option<&Dmlc>) {
    static ONCE: Once = Once::new();
    let told = if matches!(kind, Kind::Local | Kind::Device) { config::first_of_several(job) } else { None };
    if let Some(told) = told {
        ONCE.call_once(|| notice(&separate_models(kind, told.0, told.1)));
    }
}

/// Warns, once in a job, that this kind has no metrics.
fn warn_of_metrics(kind: Kind, job: Option<&Dmlc>) -> Result<()> {
    static ONCE: Once = Once::new();
    if !kind.has_ranks() && !kind.has_servers() && config::metrics()?.is_some() && config::speaks_for_the_job(job) {
        ONCE.call_once(|| {
            notice(&format!(
                "warning: RINGPULL_METRICS has no effect: {kind} is for one process, and only jobs of several have metrics"
            ));
        });
    }
    Ok(())
}

/// Warns, once in a job, of variables that are probably misspelled.
fn warn_of_variables(job: Option<&Dmlc>) {
    static ONCE: Once = Once::new();
    if config::speaks_for_the_job(job) {
        ONCE.call_once(|| config::misspelt_variables().iter().for_each(|warning| notice(warning)));
    }
}

/// Reports, once in a job, the hosts of its processes.
pub(crate) fn introduce(job: &str) {
    static ONCE: Once = Once::new();
    if !config::is_quiet() {
        ONCE.call_once(|| ringpull_base::notice::inform(&format!("ringpull: {job}")));
    }
}

/// Returns the warning for a kind for one process that is created in one of several processes, as `variable`
/// shows.
fn separate_models(kind: Kind, variable: &str, processes: usize) -> String {
    let instead = if variable == "DMLC_NUM_WORKER" { "dist_sync" } else { "dist_sync_mpi" };
    format!(
        "warning: store kind {kind} is for one process, but this is one of {processes} ({variable}): each trains a model of its own\n  hint: ask for {instead}, in our examples with --kv-store {instead}; or start one process"
    )
}

#[cfg(feature = "ps")]
fn over_servers(
    kind: Kind,
    config: &Config,
    job: Option<&Dmlc>,
    devices: Option<Arc<Devices>>,
) -> Result<Box<dyn Backend>> {
    let servers = connect_to_servers(kind, config, worker_of(kind, job)?)?;
    if servers.rank() == 0 {
        if matches!(kind, Kind::DistSyncDevice | Kind::DistAsyncDevice) && devices.is_none() {
            notice(&format!("warning: {kind} without a CUDA driver: values are summed in host memory"));
        }
        introduce(&servers.description());
        crate::status::serve(servers.worker())?;
    }
    timeline::introduce(Role::Worker, servers.rank(), servers.num_workers());
    Ok(match devices {
        Some(devices) => before_servers(servers, devices, config.timeout),
        None => Box::new(servers),
    })
}

/// Returns the job with servers of which this process is a worker.
#[cfg(feature = "ps")]
fn worker_of(kind: Kind, job: Option<&Dmlc>) -> Result<&Dmlc> {
    let dmlc = job.ok_or_else(|| Error::KindUnavailable {
        kind: kind.to_string(),
        reason: "this process has no DMLC_* variables, so it belongs to no job with parameter servers".to_owned(),
        remedy: format!(
            "start it with `ringpull launch -n 2 -s 2{} -- CMD`: two workers, two servers and a scheduler",
            if kind.has_ranks() { " --hybrid" } else { "" }
        ),
    })?;
    if dmlc.role != Role::Worker {
        return Err(Error::KindUnavailable {
            kind: kind.to_string(),
            reason: format!("this process is a {} of the job, and has no store", dmlc.role),
            remedy: "call run_node() before create(): it serves until the job has ended".to_owned(),
        });
    }
    Ok(dmlc)
}

#[cfg(feature = "ps")]
fn connect_to_servers(kind: Kind, config: &Config, dmlc: &Dmlc) -> Result<crate::servers::Servers> {
    /// The process that is the worker. The children that it forks are not.
    static OWNER: OnceLock<Process> = OnceLock::new();
    /// The claim by which a child of this process, which inherits its variables, finds out that it is a
    /// child.
    static PLACE: OnceLock<Option<Claim>> = OnceLock::new();
    /// The job of which this process is a worker, and its number there.
    static JOINED: OnceLock<(SocketAddr, usize)> = OnceLock::new();
    OWNER.get_or_init(Process::this).check("this worker of the job")?;
    // The scheduler has ended with the job, if every worker has closed its store.
    if let Some((_, rank)) = JOINED.get().filter(|(root, _)| *root == dmlc.root && !config.elastic) {
        return Err(Error::job_mismatch(
            format!(
                "this process (pid {}) is worker {rank} of its job already, by an earlier store",
                std::process::id()
            ),
            ONE_STORE_OF_SERVERS,
        ));
    }
    let place = |rank: usize| format!("worker {rank} of {}", dmlc.root);
    let servers = crate::servers::Servers::connect(kind, config, dmlc).map_err(|error| {
        let parent = (0..dmlc.num_workers).find(|rank| Claim::holder(&place(*rank)).is_some_and(claim::is_ancestor));
        match (parent, error) {
            (Some(rank), Error::JobMismatch { what, .. }) => Error::job_mismatch(
                format!("{what}, and this process (pid {}) is a child of worker {rank}", std::process::id()),
                CHILD_OF_A_WORKER,
            ),
            (_, error) => error,
        }
    })?;
    JOINED.get_or_init(|| (dmlc.root, servers.rank()));
    PLACE.get_or_init(|| Claim::take(&place(servers.rank())).ok().flatten());
    Ok(servers)
}

#[cfg(feature = "ps")]
const ONE_STORE_OF_SERVERS: &str = "create one store with servers, keep it until the program ends, and give each model keys of its own; \
                                    a process may have several stores of dist_sync_mpi";

#[cfg(feature = "ps")]
const CHILD_OF_A_WORKER: &str = "create the store in the worker alone, in a script of multiprocessing under \
                                 `if __name__ == \"__main__\":`; a child that needs one of its own creates the kind local";

/// Returns the backend of ranks of MPI that are also workers of servers, with equal numbers.
#[cfg(feature = "ps")]
fn over_both(config: &Config, job: Option<&Dmlc>) -> Result<Box<dyn Backend>> {
    let kind = Kind::DistHybrid;
    let dmlc = worker_of(kind, job)?;
    for (is_set, what, variable) in [
        (config::devices().is_some(), "values on devices", "RINGPULL_DEVICES"),
        (config.elastic, "going on without lost ranks", "RINGPULL_ELASTIC"),
        (config::is_helper(), "helpers", config::ROLE),
    ] {
        if is_set {
            return Err(Error::argument(
                format!("{kind} has no {what} ({variable})"),
                format!("unset {variable}, or use dist_sync_mpi"),
            ));
        }
    }
    let engine = engine(config, false)?;
    let servers = connect_to_servers(kind, config, &Dmlc { preferred_rank: Some(engine.rank()), ..dmlc.clone() })?;
    if servers.rank() == 0 {
        introduce(&servers.description());
    }
    timeline::introduce(Role::Worker, servers.rank(), servers.num_workers());
    Ok(Box::new(crate::hybrid::Hybrid::new(crate::allreduce::Allreduce::new(engine), servers)?))
}

#[cfg(not(feature = "ps"))]
fn over_both(_config: &Config, _job: Option<&Dmlc>) -> Result<Box<dyn Backend>> {
    Err(Error::KindUnavailable {
        kind: Kind::DistHybrid.to_string(),
        reason: "this build lacks parameter servers".to_owned(),
        remedy: "build it with the feature `ps`, which is on by default".to_owned(),
    })
}

#[cfg(not(feature = "ps"))]
fn over_servers(
    kind: Kind,
    _config: &Config,
    _job: Option<&Dmlc>,
    _devices: Option<Arc<Devices>>,
) -> Result<Box<dyn Backend>> {
    Err(no_servers(kind.name()))
}

#[cfg(not(feature = "ps"))]
fn no_servers(asked: &str) -> Error {
    Error::KindUnavailable {
        kind: asked.to_owned(),
        reason: "this build has no parameter servers".to_owned(),
        remedy: "build it with the feature `ps`, which is on by default".to_owned(),
    }
}

/// Returns the engine over this job's ranks.
fn engine(config: &Config, on_devices: bool) -> Result<Arc<ringpull_allreduce::progress::Engine>> {
    /// True if the first store goes on without lost ranks.
    static IS_ELASTIC: OnceLock<bool> = OnceLock::new();
    check_elastic(config, on_devices)?;
    let engine = ringpull_allreduce::progress::process::mpi_engine(config, Some(config.segment_bytes))?;
    if *IS_ELASTIC.get_or_init(|| config.elastic || engine.is_elastic()) != config.elastic {
        return Err(Error::argument(
            "either all stores of a process go on without lost ranks (RINGPULL_ELASTIC, create_elastic) or none does",
            "create all of its dist_sync_mpi stores alike",
        ));
    }
    announce(&engine)?;
    Ok(engine)
}

/// Announces the job of the first store or communicator of a process: to people, to `ringpull top`, and to
/// the launcher.
pub(crate) fn announce(engine: &Arc<ringpull_allreduce::progress::Engine>) -> Result<()> {
    static ONCE: Once = Once::new();
    if engine.rank() == 0 {
        introduce(&format!("{}, {}", engine.placement(), engine.library()));
    }
    if let Some((folder, number)) = config::elastic()?.filter(|_| engine.is_elastic()) {
        // `mpirun` reports success even if every rank was killed. So the launcher checks if some rank has
        // written this file at its end.
        ONCE.call_once(|| engine.write_at_end(folder.join(format!("done-{number}"))));
    }
    crate::status::serve(engine)
}

fn over_mpi(config: &Config, devices: Option<Arc<Devices>>) -> Result<Box<dyn Backend>> {
    let engine = engine(config, devices.is_some())?;
    Ok(match devices {
        None => Box::new(crate::allreduce::Allreduce::new(engine)),
        Some(_) if config.check_replicas > 0 => {
            return Err(Error::argument(
                format!(
                    "cannot compare replicas every {} updates: that is not implemented for values on devices",
                    config.check_replicas
                ),
                "unset RINGPULL_CHECK_REPLICAS, or RINGPULL_DEVICES for values in host memory",
            ));
        }
        Some(devices) => over_ranks(devices, engine, config.timeout),
    })
}

/// Returns an error if the store cannot go on without a lost rank.
fn check_elastic(config: &Config, on_devices: bool) -> Result<()> {
    let (what, variable) = match config.elastic {
        true if on_devices => ("values on devices", "RINGPULL_DEVICES"),
        // MPI's own sums cannot go on after a loss.
        true if config.algorithm == ringpull_base::AlgorithmChoice::Native => {
            ("MPI's own collectives", "RINGPULL_ALGORITHM")
        }
        _ => return Ok(()),
    };
    Err(Error::argument(
        format!("a job that goes on without lost ranks (RINGPULL_ELASTIC) cannot have {what}"),
        format!(
            "unset {variable}, or RINGPULL_ELASTIC; `ringpull launch --elastic` starts a job again that has lost a rank"
        ),
    ))
}

/// Reduces for the workers of this helper's job until the workers are done. Blocks.
fn serve(config: &Config) -> Result<()> {
    timeline::start(config::timeline_file());
    ringpull_allreduce::progress::process::serve(config, Some(config.segment_bytes))
}

/// The stores on devices, in a build that has them.
#[cfg(feature = "devices")]
mod with_devices {
    use std::sync::Arc;
    use std::time::Duration;

    use ringpull_allreduce::progress::Engine;
    pub(super) use ringpull_device::open;

    use super::{Backend, Devices};
    use crate::on_devices::OnDevices;

    /// Returns true if this host has a driver of GPUs.
    pub(super) fn has_driver() -> bool {
        !matches!(ringpull_device::survey().driver, ringpull_device::Library::Missing(_))
    }

    pub(super) fn over_devices(devices: Arc<Devices>, limit: Duration) -> Box<dyn Backend> {
        Box::new(OnDevices::alone(devices, limit))
    }

    pub(super) fn over_ranks(devices: Arc<Devices>, engine: Arc<Engine>, limit: Duration) -> Box<dyn Backend> {
        Box::new(OnDevices::over_ranks(devices, engine, limit))
    }

    #[cfg(feature = "ps")]
    pub(super) fn before_servers(
        servers: crate::servers::Servers,
        devices: Arc<Devices>,
        limit: Duration,
    ) -> Box<dyn Backend> {
        Box::new(crate::device_sums::DeviceSums::new(servers, devices, limit))
    }
}

/// The functions of `with_devices` for a build without devices.
#[cfg(not(feature = "devices"))]
#[allow(clippy::needless_pass_by_value, reason = "as the names that a build with devices has")]
mod without_devices {
    use super::Backend;
    use ringpull_base::{Error, Result};
    use std::sync::Arc;
    use std::time::Duration;

    pub(super) enum Devices {}

    pub(super) fn has_driver() -> bool {
        false
    }

    pub(super) fn open(name: &str) -> Result<Arc<Devices>> {
        Err(Error::argument(
            format!("this build cannot open {name}: it has no devices"),
            "build it with the feature `cuda`, which is on by default",
        ))
    }

    pub(super) fn over_devices(devices: Arc<Devices>, _limit: Duration) -> Box<dyn Backend> {
        match *devices {}
    }

    pub(super) fn over_ranks<E>(devices: Arc<Devices>, _engine: E, _limit: Duration) -> Box<dyn Backend> {
        match *devices {}
    }

    #[cfg(feature = "ps")]
    pub(super) fn before_servers<S>(_servers: S, devices: Arc<Devices>, _limit: Duration) -> Box<dyn Backend> {
        match *devices {}
    }
}

fn no_devices(kind: Kind, cause: &Error) -> Error {
    let host_kind = match kind {
        Kind::Device => Kind::Local,
        Kind::DistAsyncDevice => Kind::DistAsync,
        _ => Kind::DistSync,
    };
    let (what, how) = match cause {
        Error::InvalidArgument { what, remedy } => (what.clone(), remedy.clone()),
        other => (other.to_string(), "see what `ringpull info` finds".to_owned()),
    };
    Error::KindUnavailable {
        kind: kind.to_string(),
        reason: format!("it sums on GPUs, which needs a CUDA driver and, for several GPUs, NCCL 2: {what}"),
        remedy: match kind {
            Kind::DistSyncMpi => format!("{how}; or unset RINGPULL_DEVICES: the same sums of tensors in host memory"),
            _ => format!("{how}; or use {host_kind}, which gives the same results with tensors in host memory"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_on_devices_says_what_it_needs_and_what_to_use_meanwhile() {
        let error = create("device").err().map(|error| error.to_string()).unwrap_or_default();
        for part in ["device", "CUDA driver", "NCCL", "use local,"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_kind_of_one_process_in_one_of_several_is_worth_a_warning() {
        for (variable, instead) in [("OMPI_COMM_WORLD_SIZE", "dist_sync_mpi;"), ("DMLC_NUM_WORKER", "dist_sync;")] {
            let warning = separate_models(Kind::Device, variable, 4);
            for part in ["device", "one of 4", variable, "hint:", &format!("--kv-store {instead}")] {
                assert!(warning.contains(part), "{warning}");
            }
        }
    }

    #[test]
    fn a_variable_with_an_impossible_word_is_an_error_with_a_programs_own_settings_too() {
        const NAME: &str =
            "create::tests::a_variable_with_an_impossible_word_is_an_error_with_a_programs_own_settings_too";
        if config::text("RINGPULL_SHARED_MEMORY").as_deref() == Some("of") {
            let refused = create_with("local", &Config::default()).err();
            return println!("refused: {}", refused.map_or_else(|| "not at all".to_owned(), |error| error.to_string()));
        }
        // Run the test again in its own process, because it changes the environment of the whole process.
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args([NAME, "--exact", "--nocapture"]).env("RINGPULL_SHARED_MEMORY", "of");
        let output = again.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("refused: RINGPULL_SHARED_MEMORY=\"of\" cannot be used"), "{text}");
    }

    #[test]
    fn a_local_store_is_rank_0_of_1() {
        let store = create("local").unwrap();
        assert_eq!((store.rank(), store.num_workers(), store.kind()), (0, 1, Kind::Local));
    }
}
