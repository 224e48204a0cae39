//! Two ranks on this host that say what MPI gives them: started like any job, so that what would stop a job
//! stops them.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ringpull_base::{Error, Result};

use super::facts::ProbedRank;
use crate::child;
use crate::mpirun::{Hosts, Mpirun, Ranks};

/// How long two ranks may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How many ranks are started.
const RANKS: usize = 2;

/// Starts the ranks and reads what they say.
pub(super) fn run() -> Result<Vec<ProbedRank>> {
    let program = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
    let command: Vec<OsString> = vec![program.into(), "doctor".into(), "--probe".into()];
    let mut ready = Mpirun::find()?.command(&Hosts::Local, Ranks { count: RANKS, command, env: Vec::new() })?;
    ready.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = ready.command.spawn().map_err(|cause| Error::io("run", "mpirun", &cause))?;
    let begun = Instant::now();
    // A few lines fit into the pipes, so they can be read at the end.
    let (_, killed) = child::wait(&mut child, "mpirun", || begun.elapsed() > LIMIT)?;
    let output = child.wait_with_output().map_err(|cause| Error::io("read", "mpirun's output", &cause))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let ranks: Vec<ProbedRank> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !killed && ranks.len() == RANKS {
        return Ok(ranks);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let spoken = |line: &&str| line.chars().any(char::is_alphabetic);
    let cause = if killed { "they do not end" } else { words.lines().find(spoken).unwrap_or("it says nothing") };
    Err(Error::argument(cause.trim(), "run `mpirun -n 2 hostname`"))
}

/// What one of the ranks does: initialises MPI and prints what it got, as one line.
#[cfg(feature = "mpi")]
pub(crate) fn rank() -> Result<()> {
    use mpi::Threading;
    use mpi::traits::Communicator as _;

    let (universe, level) = mpi::initialize_with_threading(Threading::Multiple)
        .ok_or_else(|| Error::argument("MPI is initialised already", "start the probe by itself"))?;
    let level = match level {
        Threading::Single => "single",
        Threading::Funneled => "funneled",
        Threading::Serialized => "serialized",
        Threading::Multiple => "multiple",
    };
    let library = crate::machine::Machine::survey().mpi_library.unwrap_or_default();
    let size = universe.world().size() as usize;
    let rank = ProbedRank { size, level: level.to_owned(), library };
    let line =
        serde_json::to_string(&rank).map_err(|cause| Error::io("write", "stdout", &std::io::Error::other(cause)))?;
    println!("{line}");
    Ok(())
}

/// Without MPI there is nothing to say.
#[cfg(not(feature = "mpi"))]
pub(crate) fn rank() -> Result<()> {
    Err(Error::argument("this program was built without MPI", "build it with the mpi feature"))
}
