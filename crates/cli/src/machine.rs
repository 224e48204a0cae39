//! The abilities of this build and this machine, as `ringpull info` prints them.

use std::path::Path;

use serde::{Deserialize, Serialize};

use ringpull_base::config::fashion_mnist;
use ringpull_base::topology::host_name;
use ringpull_base::{Error, Kind};

use crate::mpirun::{Flavour, flavour_of};
use ringpull_harness::hardware::gib;
pub(crate) use ringpull_harness::hardware::{Hardware, field, first_line};

/// A survey of the machine, which changes nothing on it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub version: String,
    /// The names of the kinds of store.
    pub kinds: String,
    /// The MPI library that this program uses; `None` if it finds none.
    pub mpi_library: Option<String>,
    /// The reason why it finds none, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mpi_missing: Option<(String, String)>,
    /// The first line that the first `mpirun` found prints as its version.
    pub mpirun: Option<String>,
    /// True if this program's MPI library can go on without a lost rank.
    #[serde(default)]
    pub has_fault_tolerance: bool,
    pub host: String,
    #[serde(flatten)]
    pub hardware: Hardware,
    pub kernel: String,
    /// The reason why this machine cannot emulate hosts; `None` if it can.
    pub lab_lacks: Option<String>,
    /// The folder of Fashion-MNIST; `None` if it is not installed.
    pub dataset: Option<String>,
    /// GPUs, and the libraries that they need.
    pub devices: ringpull_device::Survey,
}

impl Machine {
    pub(crate) fn survey() -> Self {
        let uname = rustix::system::uname();
        let mpi_library = mpi_library();
        Machine {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kinds: Kind::names(),
            mpi_library: mpi_library.as_ref().ok().cloned(),
            mpi_missing: mpi_library.err(),
            mpirun: first_line(&ringpull_base::config::mpirun_program(), &["--version"]),
            has_fault_tolerance: has_fault_tolerance(),
            host: host_name(),
            hardware: Hardware::survey(),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            lab_lacks: lab_lacks(),
            dataset: Some(fashion_mnist()).filter(|folder| Path::new(folder).is_dir()).map(str::to_owned),
            devices: ringpull_device::survey(),
        }
    }

    /// The way in which a job goes on after it has lost ranks, in words.
    pub(crate) fn elastic(&self) -> String {
        let Some(mpirun) = &self.mpirun else { return "no: there is no mpirun".to_owned() };
        let by_restart = "by starting again from memory (ringpull launch --elastic)";
        let can_survive = flavour_of(mpirun) == Some(Flavour::OpenMpi5);
        let in_place = match (can_survive, self.has_fault_tolerance) {
            (true, true) => "and in place (RINGPULL_ELASTIC=1, mpirun --with-ft ulfm)",
            (true, false) => "not in place: this program has an MPI library without fault tolerance",
            (false, _) => "not in place, which needs Open MPI 5",
        };
        format!("{by_restart}, {in_place}")
    }

    /// The survey as names and values.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let none = || "none".to_owned();
        let Hardware { cores, processor, memory_bytes } = &self.hardware;
        vec![
            ("version", self.version.clone()),
            ("kinds", self.kinds.clone()),
            ("mpi library", self.mpi_library.clone().unwrap_or_else(|| no_mpi(self.mpi_missing.as_ref()))),
            ("mpirun", self.mpirun.clone().unwrap_or_else(|| "none on PATH (run scripts/setup)".to_owned())),
            ("elastic jobs", self.elastic()),
            ("host", self.host.clone()),
            ("cores", cores.to_string()),
            ("processor", processor.clone().unwrap_or_else(none)),
            ("memory", memory_bytes.map_or_else(none, gib)),
            ("kernel", self.kernel.clone()),
            ("emulated hosts", self.lab_lacks.as_ref().map_or("yes".to_owned(), |lacks| format!("no: {lacks}"))),
            ("fashion-mnist", self.dataset.clone().unwrap_or_else(|| "none (run scripts/setup)".to_owned())),
            ("cuda driver", self.devices.driver.to_string()),
            ("nccl", self.devices.nccl.to_string()),
            ("nvrtc", self.devices.nvrtc.to_string()),
            ("gpus", if self.devices.devices.is_empty() { none() } else { self.devices.devices.join(", ") }),
            ("peer access", self.devices.peer_access()),
        ]
    }
}

fn lab_lacks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    ["ip", "tc", "nsenter", "unshare"]
        .into_iter()
        .find(|program| first_line(program, &["-V"]).is_none())
        .map(|program| format!("{program} is not installed"))
}

fn no_mpi(missing: Option<&(String, String)>) -> String {
    missing.map_or("none".to_owned(), |(reason, remedy)| format!("none: {reason} (hint: {remedy})"))
}

/// The MPI library of this process. If there is none, the error has the reason and the remedy.
fn mpi_library() -> std::result::Result<String, (String, String)> {
    ringpull_allreduce::transport::mpi_library().map_err(|error| match error {
        Error::KindUnavailable { reason, remedy, .. } => (reason, remedy),
        other => (other.to_string(), "run `ringpull bench allreduce`".to_owned()),
    })
}

fn has_fault_tolerance() -> bool {
    ringpull_allreduce::transport::has_ulfm()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_lost_in_place_where_launcher_and_library_can() {
        let of = |mpirun: &str, has_fault_tolerance| {
            Machine { mpirun: Some(mpirun.to_owned()), has_fault_tolerance, ..Machine::default() }.elastic()
        };
        assert!(of("mpirun (Open MPI) 5.0.11", true).contains("and in place"));
        assert!(of("mpirun (Open MPI) 5.0.11", false).contains("not in place: this program"));
        assert!(of("mpirun (Open MPI) 4.1.4", false).contains("not in place, which needs Open MPI 5"));
        assert_eq!(Machine::default().elastic(), "no: there is no mpirun");
    }
}
