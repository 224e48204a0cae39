//! The one engine over MPI that a process can have: made by its first store, ended when the process exits.
//!
//! MPI is initialised and finalised once in a process, so stores share an engine, and it lives until `exit`.
//! A launcher that has lost a rank sends SIGTERM to the others: `termination`.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use ringpull_base::config::{self, Config, Dmlc, Role};
use ringpull_base::forked::Process;
use ringpull_base::{DType, Error, Kind, Result, notice, timeline};

use crate::progress::connected::{Connect, Connected, LEARNING, Succession};
use crate::progress::engine::Engine;
use crate::progress::messages::Sums;
use crate::progress::termination;
use crate::transport::control::Control;
use crate::transport::mpi::{Mpi, network_id};
use crate::transport::star::{self, Hub, StartLimits};
use crate::transport::{Connections, Transport, has_ulfm};

static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();

/// This process's engine over all ranks of its MPI job. The first call is collective. An error if `config`
/// wants sums made in another way than by the engine there is. The MPI library is to send up to `eager_bytes`
/// without asking, the same on every rank: into what is prepared for less it writes past the end. `None`
/// leaves it its own limit.
///
/// In a helper it does not return but for an error: the helper takes part in the sums of its job, and the
/// process exits when the others are done, as MXNet's servers do.
pub fn mpi_engine(config: &Config, eager_bytes: Option<usize>) -> Result<Arc<Engine>> {
    if config::is_helper() {
        serve(config, eager_bytes)?;
        std::process::exit(0);
    }
    start(config, eager_bytes)
}

/// Takes part in the sums of this helper's job until the others are done. Blocks.
pub fn serve(config: &Config, eager_bytes: Option<usize>) -> Result<()> {
    start(config, eager_bytes)?.serve()
}

fn start(config: &Config, eager_bytes: Option<usize>) -> Result<Arc<Engine>> {
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
    let (segment_bytes, elastic) = (config.segment_bytes, config.elastic);
    let limits = StartLimits { warn: config.warn, silence: config.silence() };
    Box::new(move || {
        let mut mpi = Mpi::initialise(eager_bytes, elastic, config::is_helper())?;
        if mpi.is_elastic() {
            let ranks = (0..mpi.size()).collect();
            return without_the_lost(mpi, ranks, segment_bytes, limits);
        }
        let helpers = count_helpers(&mut mpi, elastic)?;
        if elastic && mpi.rank() == 0 {
            notice(&not_elastic(&mpi));
        }
        let (rank, size) = (mpi.rank(), mpi.size());
        check_segments(&mut mpi, segment_bytes)?;
        let is_local = are_equal(&mut mpi, network_id())?;
        let control = if rank == 0 {
            let hub = Hub::listen(is_local)?;
            mpi.broadcast_text(&hub.invitation()?)?;
            hub.gather(size, limits, &mut || Ok(()))?
        } else {
            let invitation = mpi.broadcast_text("")?;
            star::join(rank, size, &invitation, limits, &mut || Ok(()))?
        };
        let finalise = mpi.finaliser();
        Ok(Connected { transport: Box::new(mpi), control, helpers, is_cluster: true, finalise, succession: None })
    })
}

/// Why a job that is to go on without lost ranks will not.
fn not_elastic(mpi: &Mpi) -> String {
    let library = mpi.name();
    let why = if !mpi.is_initialised_here() {
        "the program has initialised MPI itself, and create() has to".to_owned()
    } else if has_ulfm() {
        format!("this mpirun ends the job with a rank, unless {library} is started by `mpirun --with-ft ulfm`")
    } else {
        format!("{library} cannot go on without a rank; Open MPI 5 can, under `mpirun --with-ft ulfm`")
    };
    format!(
        "warning: RINGPULL_ELASTIC has no effect: {why}\n  hint: `ringpull launch --elastic` starts a job that has lost a rank again, with every MPI"
    )
}

/// Connects the ranks of a job that goes on without lost ones. `ranks` are their numbers before. A rank that
/// is lost meanwhile is left out.
fn without_the_lost(
    mut mpi: Mpi,
    mut ranks: Vec<usize>,
    segment_bytes: usize,
    limits: StartLimits,
) -> Result<Connected> {
    loop {
        let heritage = mpi.heritage().ok_or_else(|| Error::bug("a job that is not elastic has lost a rank"))?;
        match meet(&mut mpi, segment_bytes, limits) {
            Ok((control, ends)) => {
                let next = move |cause: &Error| {
                    let (mpi, ranks) = heritage.successor(LEARNING).unwrap_or_else(|| Err(cause.clone()))?;
                    without_the_lost(mpi, ranks, segment_bytes, limits)
                };
                let sever = Arc::new(move |ranks: &[usize]| ends.sever(ranks));
                let succession = Some(Succession { ranks, next: Box::new(next), sever });
                // Nobody ends MPI: whoever is lost meanwhile would be waited for without end.
                let finalise = Box::new(|| ());
                let transport = Box::new(mpi);
                return Ok(Connected { transport, control, helpers: 0, is_cluster: true, finalise, succession });
            }
            Err(cause) => {
                let (next, left) = heritage.successor(LEARNING).unwrap_or(Err(cause))?;
                ranks = left.into_iter().map(|rank| ranks[rank]).collect();
                // The library may still use its messages.
                std::mem::forget(std::mem::replace(&mut mpi, next));
            }
        }
    }
}

/// What a rank sends to the others as it connects.
#[derive(serde::Serialize, serde::Deserialize)]
struct Introduction {
    /// Rank 0's.
    invitation: String,
    ends: BTreeSet<SocketAddr>,
}

/// The control star of the present ranks, by messages alone, and what connects them. Blocks; collective.
fn meet(mpi: &mut Mpi, segment_bytes: usize, limits: StartLimits) -> Result<(Control, Connections)> {
    /// The longest invitation, and the longest address as it is sent.
    const INVITATION_BYTES: usize = 4096;
    const END_BYTES: usize = 32;
    let (rank, size) = (mpi.rank(), mpi.size());
    let own = [segment_bytes as u64, network_id(), u64::from(config::is_helper())];
    let words: Vec<[u64; 3]> = mpi
        .exchange(bytemuck::cast_slice(&own), 0)?
        .iter()
        .map(|bytes| [0, 8, 16].map(|at| bytemuck::pod_read_unaligned(&bytes[at..at + 8])))
        .collect();
    if words.iter().any(|words| words[2] == 1) {
        return Err(elastic_with_helpers());
    }
    same_segments(&words.iter().map(|words| words[0]).collect::<Vec<_>>())?;
    let is_local = words.iter().all(|other| other[1] == words[0][1]);
    let hub = if rank == 0 { Some(Hub::listen(is_local)?) } else { None };
    let invitation = hub.as_ref().map_or(Ok(String::new()), Hub::invitation)?;
    // Every rank has a connection to every other by now, and few to anybody else.
    let most = 2 * size + 32;
    let ends = Connections::own().into_iter().take(most).collect();
    let mut own = postcard::to_stdvec(&Introduction { invitation, ends }).expect("plain data");
    own.resize(INVITATION_BYTES + most * END_BYTES, 0);
    let read = |bytes: &Vec<u8>| {
        let read = postcard::take_from_bytes(bytes).map(|(introduction, _)| introduction);
        read.map_err(|cause| Error::protocol(rank, "another rank", cause.to_string()))
    };
    let all: Vec<Introduction> = mpi.exchange(&own, 0)?.iter().map(read).collect::<Result<_>>()?;
    let mut meanwhile = || mpi.check_failures();
    let control = match hub {
        Some(hub) => hub.gather(size, limits, &mut meanwhile)?,
        None => star::join(rank, size, &all[0].invitation, limits, &mut meanwhile)?,
    };
    let ends = all.into_iter().map(|introduction| introduction.ends).collect();
    Ok((control, Connections::of_ranks(ends, |other| words[other][1] == words[rank][1])))
}

/// How many ranks only reduce. An error on every rank if some has to go on without lost ranks. Blocks;
/// collective.
fn count_helpers(mpi: &mut Mpi, elastic: bool) -> Result<usize> {
    let mut counts = [config::is_helper(), elastic].map(u64::from);
    mpi.native_allreduce(DType::I64, bytemuck::cast_slice_mut(&mut counts))?;
    let [helpers, elastic] = counts.map(|count| count as usize);
    if helpers > 0 && elastic > 0 {
        return Err(elastic_with_helpers());
    }
    if helpers == mpi.size() {
        return Err(Error::argument(
            format!("every rank of this job is a helper ({}=helper), and nobody has anything to sum", config::ROLE),
            format!("start workers beside the helpers: ranks without {}", config::ROLE),
        ));
    }
    Ok(helpers)
}

fn elastic_with_helpers() -> Error {
    Error::argument(
        format!(
            "a job that goes on without lost ranks (RINGPULL_ELASTIC) cannot have helpers ({}=helper)",
            config::ROLE
        ),
        "start it without helpers, or unset RINGPULL_ELASTIC",
    )
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
    same_segments(&lens)
}

fn same_segments(lens: &[u64]) -> Result<()> {
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
