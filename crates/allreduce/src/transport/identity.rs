//! The place of a rank in its job. Only one process can have it.
//!
//! A launcher of MPI sets variables that name a process's rank, and every process that the rank starts
//! inherits them. A second process that initialises MPI with them waits for ever, or takes the rank's place
//! in the job. Parentage does not distinguish the two: between the launcher and a rank there may be shells,
//! `env`, debuggers and containers, and a child may initialise MPI before its parent. So the first process
//! that initialises MPI is the rank, and any other process gets an error while the first lives. Programs that
//! run one after the other may be one rank, as Open MPI 5 allows.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use parking_lot::Mutex;

use ringpull_base::claim::{self, Claim};
use ringpull_base::config::{self, Identity};
use ringpull_base::{Error, Result};

/// Takes this process's place in its job, before MPI is used. Returns an error in a process that has only
/// inherited the launcher's variables. Also returns an error in a process that `srun` has not started as a
/// rank of this library, because the library may then abort.
pub(crate) fn take(library: &str) -> Result<()> {
    static TAKEN: Mutex<Option<Claim>> = Mutex::new(None);
    let mut taken = TAKEN.lock();
    if taken.is_none()
        && let Some(word) = config::missing_process_manager(library, speaks_pmi)
    {
        return Err(Error::KindUnavailable {
            kind: "dist_sync_mpi".to_owned(),
            reason: format!("srun has started this process as no rank of {library}"),
            remedy: srun_remedy(word),
        });
    }
    let Some(identity) = config::identity(library).filter(|_| taken.is_none()) else { return Ok(()) };
    let Some(name) = &identity.name else {
        let own = std::process::id();
        let what =
            format!("PMI_FD names no connection in this process (pid {own}): it is a child of rank {}", identity.rank);
        return Err(inherited(&identity, what));
    };
    match Claim::take(name) {
        Ok(claim) => {
            *taken = claim;
            Ok(())
        }
        Err(holder) => {
            let (rank, own, other) = (&identity.rank, std::process::id(), claim::in_words(holder));
            let what = if claim::is_ancestor(holder) {
                format!("this process (pid {own}) is a child of rank {rank}, {other}")
            } else {
                format!("rank {rank} is {other} already, not this process (pid {own})")
            };
            Err(inherited(&identity, what))
        }
    }
}

/// Returns false if the parts of the loaded library are files beside it, and none of them speaks Slurm's own
/// PMI.
fn speaks_pmi() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let libraries = maps.lines().filter_map(|line| Some(Path::new(line.get(line.find('/')?..)?)));
    let mut of_mpi =
        libraries.filter(|path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"libmpi.so")));
    let Some(folder) = of_mpi.next().and_then(Path::parent) else { return true };
    // The second folder is Debian's.
    let folders = ["openmpi", "openmpi/lib/openmpi3"].map(|parts| std::fs::read_dir(folder.join(parts)));
    let names = folders.into_iter().flatten().flatten().flatten().map(|entry| entry.file_name());
    let parts: Vec<_> = names.filter(|name| name.as_bytes().starts_with(b"mca_pmix_")).collect();
    parts.is_empty()
        || ["mca_pmix_s1.so", "mca_pmix_s2.so", "mca_pmix_cray.so"]
            .iter()
            .any(|part| parts.iter().any(|name| name == part))
}

/// Returns the remedy if `srun` and the library do not fit. `word` is the value of `srun --mpi` for the
/// library.
pub(super) fn srun_remedy(word: &str) -> String {
    format!("start it with srun --mpi={word}, or with `ringpull launch --launcher slurm`, which gives that option")
}

fn inherited(identity: &Identity, what: String) -> Error {
    Error::Inherited { what, variables: identity.variables.to_owned() }
}
