//! From a kind's name to a store.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::store::KvStore;
#[cfg(feature = "mpi")]
use crate::store::allreduce::Allreduce;

/// Creates a store. `kind` is one of [`Kind::ALL`], spelled exactly.
///
/// `dist_sync_mpi` is collective: every rank of the MPI job creates its stores in the same order.
pub fn create(kind: &str) -> Result<KvStore> {
    let kind: Kind = kind.parse()?;
    let config = Config::from_env()?;
    match kind {
        Kind::DistSyncMpi => over_mpi(kind, &config),
        _ => Err(Error::KindUnavailable { kind: kind.to_string(), reason: "no backend".to_owned(), remedy: "none".to_owned() }),
    }
}

#[cfg(feature = "mpi")]
fn over_mpi(kind: Kind, config: &Config) -> Result<KvStore> {
    let engine = crate::progress::process::mpi_engine(config)?;
    Ok(KvStore::over(kind, Box::new(Allreduce::new(engine)), config))
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(kind: Kind, _config: &Config) -> Result<KvStore> {
    Err(Error::KindUnavailable {
        kind: kind.to_string(),
        reason: "this build has no MPI".to_owned(),
        remedy: "build it with the feature `mpi`, which is on by default".to_owned(),
    })
}
