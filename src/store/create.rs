//! From a kind's name to a store.

use crate::config::{Config, Dmlc, Role};
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::ps;
use crate::store::KvStore;
use crate::store::servers::Servers;

/// Creates a store. `kind` is one of [`Kind::ALL`], spelled exactly.
///
/// In a process whose `DMLC_ROLE` is `server` or `scheduler`, a kind with parameter servers makes the process that node: the
/// call returns only with the end of the process, with status 0 if the job ended well and 1 otherwise.
pub fn create(kind: &str) -> Result<KvStore> {
    let kind: Kind = kind.parse()?;
    let config = Config::from_env()?;
    match kind {
        Kind::DistSync | Kind::DistAsync => {
            let dmlc = Dmlc::from_env()?.ok_or_else(|| unavailable(
                kind,
                "this process has no DMLC_* variables, so it belongs to no job with parameter servers",
                "start it with `ringpull launch -n 2 -s 2 -- CMD`, which sets them for two workers, two servers and a scheduler",
            ))?;
            if dmlc.role != Role::Worker {
                run_node_and_exit(dmlc.role, &config, &dmlc);
            }
            Ok(KvStore::over(kind, Box::new(Servers::connect(kind, &config, &dmlc)?), &config))
        }
        Kind::Device | Kind::DistSyncDevice | Kind::DistAsyncDevice => Err(unavailable(
            kind,
            "it sums values on GPUs, and this version holds values in host memory only",
            "use the kind of the same name without `device`: local, dist_sync or dist_async",
        )),
        Kind::Local | Kind::DistSyncMpi => Err(unavailable(kind, "no backend", "none")),
    }
}

fn unavailable(kind: Kind, reason: &str, remedy: &str) -> Error {
    Error::KindUnavailable { kind: kind.to_string(), reason: reason.to_owned(), remedy: remedy.to_owned() }
}

fn run_node_and_exit(role: Role, config: &Config, dmlc: &Dmlc) -> ! {
    match ps::run_node(role, config, dmlc) {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("ringpull {role}: {error}");
            std::process::exit(1)
        }
    }
}
