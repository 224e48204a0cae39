//! Two ranks on this host that report the properties of MPI. They are started like the ranks of any job, so a
//! fault that would stop a job stops them too.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use ringpull_base::{Error, Result};

use super::facts::ProbedRank;
use crate::child;
use crate::mpirun::{Mpirun, Ranks};

const LIMIT: Duration = Duration::from_secs(30);
const RANKS: usize = 2;

/// Starts the ranks and reads their reports.
pub(super) fn run() -> Result<Vec<ProbedRank>> {
    let program = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
    let command: Vec<OsString> = vec![program.into(), "doctor".into(), "--probe".into()];
    let mut ready = Mpirun::find()?.command(&[], Ranks { count: RANKS, command, env: Vec::new() })?;
    let begun = Instant::now();
    let end = child::run(&mut ready.command, "mpirun", |_| begun.elapsed() > LIMIT)?;
    let ranks: Vec<ProbedRank> = end.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !end.was_killed && ranks.len() == RANKS {
        return Ok(ranks);
    }
    let mut lines = end.stderr.lines().filter(|line| line.chars().any(char::is_alphabetic));
    let cause = if end.was_killed { "they do not end" } else { lines.next().unwrap_or("it prints no error") };
    Err(Error::argument(cause.trim(), "run `mpirun -n 2 hostname`"))
}

/// Runs one of the ranks: initialises MPI and prints its report as one line.
pub(crate) fn rank() -> Result<()> {
    let (size, level) = ringpull_allreduce::transport::initialise_once()?;
    let library = crate::machine::Machine::survey().mpi_library.unwrap_or_default();
    let rank = ProbedRank { size, level: level.to_owned(), library };
    println!("{}", ringpull_harness::text::to_json_line(&rank)?);
    Ok(())
}
