//! From a kind's name to a store.

use crate::config::{self, Config, Dmlc, Role};
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::ps;
use crate::store::local::Local;
use crate::store::servers::Servers;
use crate::store::{Backend, KvStore};
use crate::timeline;

/// Creates a store. `kind` is one of [`Kind::ALL`], spelled exactly.
///
/// The distributed kinds find their peers by what started the process: `mpirun` for `dist_sync_mpi`, the `DMLC_*` variables for
/// the kinds with servers. In a process whose `DMLC_ROLE` is `server` or `scheduler`, a kind with servers makes the process that
/// node: the call ends only with the process, with status 0 if the job ended well and 1 otherwise.
pub fn create(kind: &str) -> Result<KvStore> {
    let kind: Kind = kind.parse()?;
    let config = Config::from_env()?;
    timeline::start(config::timeline_file());
    if !kind.has_servers() {
        check_role(kind)?;
    }
    let backend: Box<dyn Backend> = match kind {
        Kind::Local => {
            timeline::introduce(Role::Worker, 0, 1);
            Box::new(Local::default())
        }
        Kind::Device | Kind::DistSyncDevice | Kind::DistAsyncDevice => return Err(needs_gpu(kind)),
        Kind::DistSyncMpi => over_mpi(&config)?,
        Kind::DistSync | Kind::DistAsync => over_servers(kind, &config)?,
    };
    Ok(KvStore::over(kind, backend, &config))
}

/// A process of a job with servers that asks for another kind would do each worker's work on its own, and call it done.
fn check_role(kind: Kind) -> Result<()> {
    match Dmlc::from_env()? {
        Some(job) if job.role != Role::Worker || kind == Kind::DistSyncMpi => Err(Error::KindUnavailable {
            kind: kind.to_string(),
            reason: format!("this process is a {} of a job with parameter servers (DMLC_ROLE and others are set)", job.role),
            remedy: "ask for dist_sync or dist_async; for dist_sync_mpi start it with mpirun, or `ringpull launch -s 0 --launcher mpi`"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

fn over_servers(kind: Kind, config: &Config) -> Result<Box<dyn Backend>> {
    let dmlc = Dmlc::from_env()?.ok_or_else(|| Error::KindUnavailable {
        kind: kind.to_string(),
        reason: "this process has no DMLC_* variables, so it belongs to no job with parameter servers".to_owned(),
        remedy: "start it with `ringpull launch -n 2 -s 2 -- CMD`: two workers, two servers and a scheduler".to_owned(),
    })?;
    if dmlc.role == Role::Worker {
        let servers = Servers::connect(kind, config, &dmlc)?;
        timeline::introduce(Role::Worker, servers.rank(), servers.num_workers());
        return Ok(Box::new(servers));
    }
    if let Err(error) = ps::run_node(dmlc.role, config, &dmlc) {
        eprintln!("ringpull {}: {error}", dmlc.role);
        std::process::exit(1)
    }
    std::process::exit(0)
}

#[cfg(feature = "mpi")]
fn over_mpi(config: &Config) -> Result<Box<dyn Backend>> {
    let engine = crate::progress::process::mpi_engine(config)?;
    Ok(Box::new(crate::store::allreduce::Allreduce::new(engine)))
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(_config: &Config) -> Result<Box<dyn Backend>> {
    Err(Error::KindUnavailable {
        kind: Kind::DistSyncMpi.to_string(),
        reason: "this build has no MPI".to_owned(),
        remedy: "build it with the feature `mpi`, which is on by default".to_owned(),
    })
}

fn needs_gpu(kind: Kind) -> Error {
    let host_kind = match kind {
        Kind::Device => Kind::Local,
        Kind::DistAsyncDevice => Kind::DistAsync,
        _ => Kind::DistSync,
    };
    Error::KindUnavailable {
        kind: kind.to_string(),
        reason:
            "it sums on GPUs, which takes a CUDA driver, NCCL 2 and a build with GPU support, and this build has none"
                .to_owned(),
        remedy: format!("use {host_kind}, which gives the same results with tensors in host memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_kinds_say_what_they_need_and_what_to_use_meanwhile() {
        for (kind, instead) in
            [("device", "local"), ("dist_sync_device", "dist_sync"), ("dist_async_device", "dist_async")]
        {
            let error = create(kind).err().map(|error| error.to_string()).unwrap_or_default();
            for part in [kind, "CUDA driver", "NCCL", &format!("use {instead},")] {
                assert!(error.contains(part), "{error}");
            }
        }
    }

    #[test]
    fn a_local_store_is_rank_0_of_1() {
        let store = create("local").unwrap();
        assert_eq!((store.rank(), store.num_workers(), store.kind()), (0, 1, Kind::Local));
    }
}
