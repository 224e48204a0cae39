//! The one engine over MPI that a process can have: made by its first store, ended when the process exits.
//!
//! MPI is initialised and finalised once in a process, so stores share an engine, and it lives until `exit`.
//! A launcher that has lost a rank sends SIGTERM to the others: `termination`.
#![allow(unsafe_code)]

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use ringpull_base::config::{self, Config, Dmlc, Role};
use ringpull_base::forked::Process;
use ringpull_base::{DType, Error, Kind, Result, timeline};

use crate::progress::engine::{Connect, Connected, Engine};
use crate::progress::messages::Sums;
use crate::progress::termination;
use crate::transport::Transport;
use crate::transport::mpi::Mpi;
use crate::transport::star::{self, Hub, StartLimits};

static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();

/// This process's engine over all ranks of its MPI job. The first call is collective. An error if `config`
/// wants sums made in another way than by the engine there is. The MPI library is to send up to `eager_bytes`
/// without asking, the same on every rank: into what is prepared for less it writes past the end. `None`
/// leaves it its own limit.
pub fn mpi_engine(config: &Config, eager_bytes: Option<usize>) -> Result<Arc<Engine>> {
    /// Whether a call was interrupted while MPI started, which goes on by itself and cannot begin again.
    static STARTING: Mutex<bool> = Mutex::new(false);
    static OWNER: OnceLock<Process> = OnceLock::new();
    // MPI is initialised once, and a child of the process that has it cannot have another.
    OWNER.get_or_init(Process::this).check("MPI")?;
    let mut was_interrupted = STARTING.lock();
    if let Some(engine) = ENGINE.get() {
        let wanted = Sums::from(config);
        if *engine.sums() != wanted {
            return Err(Error::argument(
                format!("this process sums {}, but another store requires sums {wanted}", engine.sums()),
                "stores of one process share the way they sum: create all with the same settings",
            ));
        }
        return Ok(Arc::clone(engine));
    }
    if let Some(job) = Dmlc::from_env()?.filter(|job| job.role != Role::Worker) {
        return Err(Error::argument(
            format!("this process was started as a {}, but a job of dist_sync_mpi has only workers", job.role),
            "start no servers: `ringpull launch -s 0`, or plain `mpirun`",
        ));
    }
    if *was_interrupted {
        return Err(Error::KindUnavailable {
            kind: Kind::DistSyncMpi.to_string(),
            reason: "a signal interrupted the call that started MPI, which can start only once".to_owned(),
            remedy: "start the program again".to_owned(),
        });
    }
    timeline::start(config::timeline_file());
    let engine = Engine::start(config, connect(config, eager_bytes))
        .inspect_err(|error| *was_interrupted = matches!(error, Error::Interrupted {}))?;
    // SAFETY: `end_engine` is a plain function, and may run on the thread that exits.
    if unsafe { libc::atexit(end_engine) } != 0 {
        return Err(Error::limit("the exit of the process cannot be watched", "register fewer functions with atexit"));
    }
    termination::explain(&engine)?;
    Ok(Arc::clone(ENGINE.get_or_init(|| engine)))
}

fn connect(config: &Config, eager_bytes: Option<usize>) -> Connect {
    let segment_bytes = config.segment_bytes;
    let limits = StartLimits { warn: config.warn, silence: config.silence() };
    Box::new(move || {
        let mut mpi = Mpi::initialise(eager_bytes)?;
        let (rank, size) = (mpi.rank(), mpi.size());
        check_segments(&mut mpi, segment_bytes)?;
        let is_local = are_equal(&mut mpi, network_id())?;
        let control = if rank == 0 {
            let hub = Hub::listen(is_local)?;
            mpi.broadcast_text(&hub.invitation()?)?;
            hub.gather(size, limits)?
        } else {
            let invitation = mpi.broadcast_text("")?;
            star::join(rank, size, &invitation, limits)?
        };
        let finalise = mpi.finaliser();
        Ok(Connected { transport: Box::new(mpi), control, is_cluster: true, finalise })
    })
}

/// What is the same for all processes that reach each other over loopback, and for hardly any others.
fn network_id() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_else(|_| std::process::id().to_string());
    let namespace = std::fs::read_link("/proc/self/ns/net").map(|name| name.to_string_lossy().into_owned());
    let namespace = namespace.unwrap_or_else(|_| std::process::id().to_string());
    xxhash_rust::xxh3::xxh3_64((read("/proc/sys/kernel/random/boot_id") + &namespace).as_bytes())
}

/// Whether every rank gives the same. Blocks; collective.
fn are_equal(mpi: &mut Mpi, own: u64) -> Result<bool> {
    let mut all = vec![0u64; mpi.size()];
    all[mpi.rank()] = own;
    mpi.native_allreduce(DType::I64, bytemuck::cast_slice_mut(&mut all))?;
    Ok(all.iter().all(|other| *other == own))
}

/// The same error on every rank unless all have segments of one length: no rank is to get a message longer
/// than what its library has prepared for. Blocks; collective.
fn check_segments(mpi: &mut Mpi, segment_bytes: usize) -> Result<()> {
    let mut lens = vec![0u64; mpi.size()];
    lens[mpi.rank()] = segment_bytes as u64;
    mpi.native_allreduce(DType::I64, bytemuck::cast_slice_mut(&mut lens))?;
    match lens.iter().position(|len| *len != lens[0]) {
        None => Ok(()),
        Some(other) => Err(Error::job_mismatch(
            format!("segments differ: rank 0 has {} bytes, rank {other} has {}", lens[0], lens[other]),
            "give every rank the same RINGPULL_SEGMENT, or the same Config",
        )),
    }
}

extern "C" fn end_engine() {
    if let Some(engine) = ENGINE.get() {
        engine.leave();
    }
}
