//! The place and the time of a comparison.

use serde::{Deserialize, Serialize};

use ringpull_base::config;

use crate::compare::Setup;
use crate::hardware::{Hardware, Hosts, first_line};

/// The machine, the versions and the date.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The time at which the comparison began, UTC, such as `2026-01-31 12:00 UTC`.
    pub date: String,
    /// The machine that started the jobs.
    #[serde(flatten)]
    pub hardware: Hardware,
    /// The machines that ran the jobs, if these are not the machine that started them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Hosts>,
    pub kernel: String,
    pub ringpull: String,
    /// The MPI that starts and joins the ranks, as `mpirun` names itself.
    pub mpi: String,
}

impl Environment {
    pub fn survey() -> Self {
        let uname = rustix::system::uname();
        Environment {
            date: first_line("date", &["-u", "+%F %R UTC"]).unwrap_or_default(),
            hardware: Hardware::survey(),
            hosts: Vec::new(),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            ringpull: env!("CARGO_PKG_VERSION").to_owned(),
            mpi: first_line(&config::mpirun_program(), &["--version"]).unwrap_or_else(|| "no mpirun".to_owned()),
        }
    }

    /// The machines that ran the jobs, in words.
    pub(super) fn machines(&self, setup: &Setup) -> String {
        if !setup.own_hosts || setup.is_emulated() {
            return format!("{}, shared by all processes", self.hardware.words());
        }
        if self.hosts.is_empty() {
            return format!("started on {}", self.hardware.words());
        }
        let each = self.hosts.iter().map(|of| format!("{} x {}", of.hosts, of.hardware.words()));
        each.collect::<Vec<_>>().join("; ")
    }
}
