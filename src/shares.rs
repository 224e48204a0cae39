//! The shares of a batch with which all ranks of a job end a step together; see [`ringpull_base::shares`].

use ringpull_base::{DType, Result, Tensor, shares};

use crate::{CallOptions, communicator};

/// Returns shares of a batch with which all ranks would compute for the same time. They are weights for
/// [`split`](crate::split) and [`KvStore::set_shares`](crate::KvStore::set_shares). They follow from the time
/// for which each rank has computed since its first push, or since it last set shares or called this. They
/// add up to the number of ranks, and are the same on every rank.
///
/// All time of a rank outside waits in calls of a store counts as computing. Call it after all ranks have
/// made some steps. Collective over the ranks of an MPI job; blocks.
///
/// ```no_run
/// # fn main() -> ringpull::Result<()> {
/// let store = ringpull::create("dist_sync_mpi")?;
/// // ... some steps with equal parts ...
/// let shares = ringpull::suggest_shares()?;
/// let parts = ringpull::split(256, &shares)?;
/// store.set_shares(&parts.iter().map(|part| part.len() as f64).collect::<Vec<_>>())?;
/// let rows = parts[store.rank()].clone();
/// # Ok(())
/// # }
/// ```
pub fn suggest_shares() -> Result<Vec<f64>> {
    let seconds = shares::computed_s();
    let all = communicator()?;
    let own = Tensor::zeros(DType::F64, &[1, 2]);
    own.write().as_mut_slice::<f64>().copy_from_slice(&[shares::own(), seconds]);
    let rows = vec![1; all.size()];
    let gathered = all.allgather(&own, Some(&rows), &CallOptions::default())?.wait()?.to_vec::<f64>()?;
    let (weights, times): (Vec<f64>, Vec<f64>) = gathered.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip();
    shares::measure_anew();
    Ok(shares::suggest(&weights, &times))
}
