//! The one engine over MPI that a process can have. The process's first store makes it, and it ends when the
//! process exits.
//!
//! MPI is initialised and finalised once in a process, so stores share an engine, and it lives until `exit`.
//! A launcher that has lost a rank sends SIGTERM to the others, which `termination` handles.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;

use ringpull_base::config::{self, AlikeValues, Config, Dmlc, Role, check_alike};
use ringpull_base::forked::Process;
use ringpull_base::{DType, Error, Kind, Result, notice, timeline};

use crate::progress::connected::{Connect, LEARNING, ReadyTransport, Succession};
use crate::progress::engine::Engine;
use crate::progress::messages::Sums;
use crate::progress::termination;
use crate::transport::control::Control;
use crate::transport::mpi::{Mpi, network_id};
use crate::transport::star::{self, Hub, StartLimits};
use crate::transport::{Connections, Transport, has_ulfm, identity, mpi_library};

static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();

/// This process's engine over all ranks of its MPI job. The first call is collective. Returns an error if
/// `config` requires sums in another way than the existing engine does them. The MPI library sends up to
/// `eager_bytes` without asking the receiver, or up to its own limit with `None`. The limit must be the same
/// on every rank: the library writes past the end of a receiver's memory that is prepared for less.
///
/// In a helper it returns only with an error: the helper takes part in the sums of its job, and the process
/// exits when the others are done, as MXNet's servers do.
pub fn mpi_engine(config: &Config, eager_bytes: Option<usize>) -> Result<Arc<Engine>> {
    if config::is_helper() {
        serve(config, eager_bytes)?;
        std::process::exit(0);
    }
    start(config, eager_bytes)
}

/// Takes part in the sums of this helper's job until the others are done. Blocks. Then finalises MPI, even if
/// the program has initialised it, because the process is to exit.
pub fn serve(config: &Config, eager_bytes: Option<usize>) -> Result<()> {
    start(config, eager_bytes)?.serve()?;
    crate::transport::mpi::finalise();
    Ok(())
}

fn start(config: &Config, eager_bytes: Option<usize>) -> Result<Arc<Engine>> {
    /// True while MPI starts, and afterwards if the call was interrupted. MPI then goes on starting by
    /// itself, and cannot start again.
    static STARTING: Mutex<bool> = Mutex::new(false);
    static OWNER: OnceLock<Process> = OnceLock::new();
    // MPI is initialised once, and a forked child of its process cannot initialise it again.
    OWNER.get_or_init(Process::this).check("MPI")?;
    let mut was_interrupted = STARTING.lock();
    if let Some(engine) = ENGINE.get() {
        let wanted = Sums::from(config);
        if *engine.sums() != wanted {
            return Err(Error::argument(
                format!("this process sums {}, but another store requires sums {wanted}", engine.sums()),
                "all stores of a process sum in one way: create all with the same settings",
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
            reason: "a signal interrupted the call that started MPI, and MPI can start only once".to_owned(),
            remedy: "start the program again".to_owned(),
        });
    }
    identity::take(&mpi_library()?)?;
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
    let (own, elastic) = (Introduction::new(config), config.elastic);
    let limits = StartLimits { warn: config.warn, silence: config.silence() };
    Box::new(move || {
        let mut mpi = Mpi::initialise(eager_bytes, elastic, config::is_helper())?;
        if mpi.is_elastic() {
            let size = mpi.size();
            return without_the_lost(mpi, (0..size).collect(), own, limits);
        }
        let ranks = Introduction::of_all(&mut mpi, own)?;
        Introduction::check(&ranks)?;
        let helpers = ranks.iter().filter(|rank| rank.is_helper == 1).count();
        if elastic && mpi.rank() == 0 {
            notice(&not_elastic(&mpi));
        }
        let (rank, size) = (mpi.rank(), mpi.size());
        let is_local = Introduction::share_a_network(&ranks);
        let control = if rank == 0 {
            let hub = Hub::listen(is_local)?;
            mpi.broadcast_text(&hub.invitation()?)?;
            hub.gather(size, limits, &mut || Ok(()))?
        } else {
            let invitation = mpi.broadcast_text("")?;
            star::join(rank, size, &invitation, limits, &mut || Ok(()))?
        };
        let finalise = mpi.finaliser();
        Ok(ReadyTransport { transport: Box::new(mpi), control, helpers, finalise, succession: None })
    })
}

/// Explains why a job that is set to go on without lost ranks cannot do so.
fn not_elastic(mpi: &Mpi) -> String {
    let library = mpi.name();
    let why = if !mpi.is_initialised_here() {
        "the program has initialised MPI itself, and create() must do it".to_owned()
    } else if has_ulfm() {
        format!("this mpirun ends the job when a rank ends, unless {library} is started by `mpirun --with-ft ulfm`")
    } else {
        format!("{library} cannot go on without a rank; Open MPI 5 can, under `mpirun --with-ft ulfm`")
    };
    format!(
        "warning: RINGPULL_ELASTIC has no effect: {why}\n  hint: `ringpull launch --elastic` starts a job that has lost a rank again, with every MPI"
    )
}

/// Connects the surviving ranks of a job that goes on without lost ranks. `ranks` has their numbers in the
/// generation before. A rank that is lost meanwhile is left out.
fn without_the_lost(
    mut mpi: Mpi,
    mut ranks: Vec<usize>,
    own: Introduction,
    limits: StartLimits,
) -> Result<ReadyTransport> {
    let among = ranks.len();
    loop {
        let heritage = mpi.heritage().ok_or_else(|| Error::bug("a job that is not elastic has lost a rank"))?;
        match meet(&mut mpi, own, limits) {
            Ok((control, ends)) => {
                let next = move |cause: &Error| {
                    let (mpi, ranks) = heritage.successor(LEARNING).unwrap_or_else(|| Err(cause.clone()))?;
                    without_the_lost(mpi, ranks, own, limits)
                };
                let sever = Arc::new(move |ranks: &[usize]| ends.sever(ranks));
                let succession = Some(Succession { ranks, among, next: Box::new(next), sever });
                // MPI is not finalised, because it would wait for ever for a rank that is lost meanwhile.
                let finalise = Box::new(|| ());
                let transport = Box::new(mpi);
                return Ok(ReadyTransport { transport, control, helpers: 0, finalise, succession });
            }
            Err(cause) => {
                let (next, left) = heritage.successor(LEARNING).unwrap_or(Err(cause))?;
                ranks = left.into_iter().map(|rank| ranks[rank]).collect();
                // The library may still use the messages of the old communicator.
                std::mem::forget(std::mem::replace(&mut mpi, next));
            }
        }
    }
}

/// The addresses at which a rank can be reached, and the addresses of its existing connections.
#[derive(serde::Serialize, serde::Deserialize)]
struct RankAddresses {
    /// Rank 0's invitation to the control star.
    invitation: String,
    ends: BTreeSet<SocketAddr>,
}

/// Connects the control star of the current ranks, using messages only. Blocks; collective.
fn meet(mpi: &mut Mpi, own: Introduction, limits: StartLimits) -> Result<(Control, Connections)> {
    /// The greatest length of an encoded invitation, and of an encoded address.
    const INVITATION_BYTES: usize = 4096;
    const END_BYTES: usize = 32;
    let (rank, size) = (mpi.rank(), mpi.size());
    let ranks: Vec<Introduction> =
        mpi.exchange(bytemuck::bytes_of(&own), 0)?.iter().map(|bytes| bytemuck::pod_read_unaligned(bytes)).collect();
    Introduction::check(&ranks)?;
    let is_local = Introduction::share_a_network(&ranks);
    let hub = if rank == 0 { Some(Hub::listen(is_local)?) } else { None };
    let invitation = hub.as_ref().map_or(Ok(String::new()), Hub::invitation)?;
    // By now every rank has a connection to every other rank, and few connections to anybody else.
    let most = 2 * size + 32;
    let ends = Connections::own().into_iter().take(most).collect();
    let mut own = postcard::to_stdvec(&RankAddresses { invitation, ends }).expect("plain data");
    own.resize(INVITATION_BYTES + most * END_BYTES, 0);
    let read = |bytes: &Vec<u8>| {
        let read = postcard::take_from_bytes(bytes).map(|(found, _)| found);
        read.map_err(|cause| Error::protocol(rank, "another rank", cause.to_string()))
    };
    let all: Vec<RankAddresses> = mpi.exchange(&own, 0)?.iter().map(read).collect::<Result<_>>()?;
    let mut meanwhile = || mpi.check_failures();
    let control = match hub {
        Some(hub) => hub.gather(size, limits, &mut meanwhile)?,
        None => star::join(rank, size, &all[0].invitation, limits, &mut meanwhile)?,
    };
    let ends = all.into_iter().map(|one| one.ends).collect();
    Ok((control, Connections::of_ranks(ends, |other| ranks[other].network == ranks[rank].network)))
}

/// The settings and the network of a rank, which it sends to the others before it has any other connection to
/// them.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Introduction {
    /// The settings that must be equal on all ranks. They include the length of segments, because no rank may
    /// get a longer message than its library has prepared for.
    settings: AlikeValues,
    /// The length of a segment, which a program may also set in a `Config`.
    segment_bytes: u64,
    network: u64,
    /// 1 for a helper, which only reduces.
    is_helper: u64,
    /// 1 if the job is to go on without lost ranks.
    is_elastic: u64,
}

impl Introduction {
    fn new(config: &Config) -> Self {
        Introduction {
            settings: config.alike(),
            segment_bytes: config.segment_bytes as u64,
            network: network_id(),
            is_helper: config::is_helper().into(),
            is_elastic: config.elastic.into(),
        }
    }

    /// Returns the introductions of all ranks, by one of MPI's own collectives. Blocks; collective.
    fn of_all(mpi: &mut Mpi, own: Self) -> Result<Vec<Self>> {
        let mut ranks = vec![Self::zeroed(); mpi.size()];
        ranks[mpi.rank()] = own;
        mpi.native_allreduce(DType::I64, bytemuck::cast_slice_mut(&mut ranks))?;
        Ok(ranks)
    }

    /// Returns an error, the same on every rank, if the ranks cannot work together.
    fn check(ranks: &[Self]) -> Result<()> {
        let helpers = ranks.iter().filter(|rank| rank.is_helper == 1).count();
        if helpers > 0 && ranks.iter().any(|rank| rank.is_elastic == 1) {
            return Err(Error::argument(
                format!(
                    "a job that goes on without lost ranks (RINGPULL_ELASTIC) cannot have helpers ({}=helper)",
                    config::ROLE
                ),
                "start it without helpers, or unset RINGPULL_ELASTIC",
            ));
        }
        if helpers == ranks.len() {
            return Err(Error::argument(
                format!("every rank of this job is a helper ({}=helper), and nobody has anything to sum", config::ROLE),
                format!("start workers beside the helpers: ranks without {}", config::ROLE),
            ));
        }
        check_alike(&ranks.iter().map(|rank| rank.settings).collect::<Vec<_>>())?;
        let bytes = |rank: usize| ranks[rank].segment_bytes;
        let Some(other) = (0..ranks.len()).find(|rank| bytes(*rank) != bytes(0)) else { return Ok(()) };
        Err(Error::job_mismatch(
            format!("segments differ: rank 0 has up to {} bytes, rank {other} has up to {}", bytes(0), bytes(other)),
            "give every rank the same Config",
        ))
    }

    fn share_a_network(ranks: &[Self]) -> bool {
        ranks.iter().all(|rank| rank.network == ranks[0].network)
    }
}

extern "C" fn end_engine() {
    if let Some(engine) = ENGINE.get() {
        engine.leave();
    }
}
