//! Where and when a comparison ran.

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, first_line};

/// The machine, the versions and the date.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// When it began, UTC, such as `2026-01-31 12:00 UTC`.
    pub date: String,
    pub cores: usize,
    pub kernel: String,
    pub ringpull: String,
    /// The MPI that starts and joins the ranks, by `mpirun`'s own words.
    pub mpi: String,
}

impl Environment {
    pub(crate) fn survey() -> Self {
        let Machine { cores, kernel, version, mpirun, .. } = Machine::survey();
        Environment {
            date: first_line("date", &["-u", "+%F %R UTC"]).unwrap_or_default(),
            cores,
            kernel,
            ringpull: version,
            mpi: mpirun.unwrap_or_else(|| "no mpirun".to_owned()),
        }
    }
}
