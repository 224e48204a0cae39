//! Allreduce of device memory by the devices themselves. Device `d` of every rank sums part `d` together with
//! device `d` of the other ranks. On GPUs this is NCCL, over the GPUs' own links and networks.
//!
//! The transport carries only the agreement: rank 0 sends an id for the collective of each device, and every
//! rank reports whether it has joined. While ranks wait for each other in such a collective, a device runs
//! nothing else that waits for a peer. A rank ends the collective if it must stop or has waited for too long.
//! The other ranks notice that by the network, or by the control star, which has the cause. So a rank that
//! only knows that another rank is gone waits a little for the cause before it returns an error.

use std::time::{Duration, Instant};

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::communicator::Parts;
use ringpull_base::{AlgorithmChoice, Error, Result};
use ringpull_device::{JoinedDevices, Meeting, UniqueId, may_be_of_a_peer};

use super::sum::Sum;

/// The time limit for the cause of another rank's error to arrive.
const CAUSE_LIMIT: Duration = Duration::from_secs(1);

/// The outcomes of a rank's joining: it failed; it failed, perhaps because another rank did; it waited in
/// vain; it has joined.
const FAILED: u8 = 0;
const UNSURE: u8 = 1;
const WAITED: u8 = 2;
const JOINED: u8 = 3;

/// The reason that no rank has joined.
pub(super) struct NotJoined {
    /// The first rank that knows the cause. It is the same on every rank.
    pub(super) knows: usize,
    pub(super) cause: Error,
}

/// Joins the devices of all ranks. Each rank has the same number of devices. Either all ranks have joined, or
/// no rank has and each gets its own error. Collective. The outer error is an error of the transport.
pub(super) fn join(comm: &mut Communicator, sum: &Sum<'_>) -> Result<std::result::Result<JoinedDevices, NotJoined>> {
    let (rank, size, platform) = (comm.rank(), comm.size(), sum.devices.platform());
    let own: Result<Vec<UniqueId>> = match rank {
        0 => (0..sum.devices.count()).map(|_| platform.unique_id()).collect(),
        _ => Ok(Vec::new()),
    };
    // If rank 0 has no addresses, it sends none, and zeros arrive.
    let len = sum.devices.count() * size_of::<UniqueId>();
    let of_rank_0 = Parts::of((0..=size).map(|rank| if rank == 0 { 0 } else { len }).collect());
    let ids = comm.gather(of_rank_0, sum.stamp, |own_ids| {
        if let Ok(ids) = &own {
            own_ids.copy_from_slice(ids.as_flattened());
        }
    })?;
    let ids: Vec<UniqueId> =
        ids.bytes().chunks_exact(size_of::<UniqueId>()).map(bytemuck::pod_read_unaligned).collect();
    // The limit is shorter than the time for which a rank that could not join waits for the outcomes of the
    // others.
    let limit = comm.limit() / 2;
    let is_nameless = ids.iter().flatten().all(|byte| *byte == 0);
    let joined = match own {
        Ok(_) if is_nameless => Err(Error::on_rank(0, "rank 0 could not create an address at which devices join")),
        Ok(_) => sum.devices.without_collectives(sum.limit, || {
            let until = Instant::now() + limit;
            Ok(JoinedDevices::at(platform, &Meeting { ids, rank, size }, &|| go_on(comm, until, limit)))
        })?,
        Err(cause) => Err(cause),
    };
    let outcome = match &joined {
        Ok(_) => JOINED,
        Err(Error::PeerLost { .. } | Error::Stopped {}) => WAITED,
        Err(_) if is_nameless && rank != 0 => WAITED,
        Err(cause) if may_be_of_a_peer(cause) => UNSURE,
        Err(_) => FAILED,
    };
    let outcomes = comm.gather(Parts::even(size, size), sum.stamp, |own| own[0] = outcome)?;
    // A rank that only waited knows less than the rank for which it waited.
    let (lacking, least) =
        outcomes.bytes().iter().copied().enumerate().min_by_key(|(_, outcome)| *outcome).unwrap_or((rank, outcome));
    let cause = match joined {
        Ok(joined) if least == JOINED => return Ok(Ok(joined)),
        Err(cause) if outcome == least => cause,
        _ => {
            if comm.choice() == AlgorithmChoice::Nccl {
                await_cause(comm);
            }
            let what = format!("the devices of rank {lacking} could not join those of the other ranks");
            Error::on_rank(lacking, what)
        }
    };
    Ok(Err(NotJoined { knows: lacking, cause }))
}

/// Replaces the parts by the sums over all ranks. Blocks; collective.
pub(super) fn allreduce(comm: &mut Communicator, sum: &Sum<'_>, joined: &JoinedDevices) -> Result<()> {
    let (until, limit) = (Instant::now() + comm.limit(), comm.limit());
    let outcome =
        sum.devices.sum_over_ranks(joined, (sum.dtype, sum.parts), sum.limit, (limit, &|| go_on(comm, until, limit)));
    if outcome.is_ok() {
        comm.count(sum.layout.len_bytes());
    }
    let Err(cause) = outcome else { return Ok(()) };
    if !matches!(cause, Error::PeerLost { .. } | Error::Stopped {}) && !may_be_of_a_peer(&cause) {
        return Err(cause);
    }
    await_cause(comm);
    Err(cause)
}

/// Waits a little for another rank to report the cause of the error that this rank is about to return.
fn await_cause(comm: &Communicator) {
    let until = Instant::now() + CAUSE_LIMIT;
    while comm.go_on().is_ok() && Instant::now() < until {
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn go_on(comm: &Communicator, until: Instant, limit: Duration) -> Result<()> {
    comm.go_on()?;
    if Instant::now() < until {
        return Ok(());
    }
    Err(Error::PeerLost {
        peer: "another rank".to_owned(),
        ranks: Vec::new(),
        cause: format!("its devices did not join within {limit:?}"),
        operation: "a sum over the ranks' devices".to_owned(),
        rank: Some(comm.rank()),
    })
}
