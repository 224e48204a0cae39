//! What this build and this machine can do, as `ringpull info` prints it.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;

use crate::device;
use crate::harness::dataset::fashion_mnist;
use crate::kind::Kind;
use crate::topology::host_name;

/// The survey. Reading it changes nothing on the machine.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// This crate's version.
    pub version: String,
    /// The names of the kinds of store.
    pub kinds: String,
    /// The MPI library this program was built with, `None` for a build without MPI.
    pub mpi_library: Option<String>,
    /// The `mpirun` that is found first, by its own words.
    pub mpirun: Option<String>,
    /// This host's name.
    pub host: String,
    /// Cores this process may use.
    pub cores: usize,
    /// The processor's name.
    pub processor: Option<String>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The kernel.
    pub kernel: String,
    /// Why emulated hosts cannot be had here, `None` if they can.
    pub lab_lacks: Option<String>,
    /// Where Fashion-MNIST is, `None` if it is not installed.
    pub dataset: Option<String>,
    /// GPUs, and the libraries that they take.
    pub devices: device::Survey,
}

impl Machine {
    /// Looks at the machine.
    pub fn survey() -> Self {
        let uname = rustix::system::uname();
        Machine {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kinds: Kind::names(),
            mpi_library: mpi_library(),
            mpirun: first_line(&crate::config::mpirun_program(), "--version"),
            host: host_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: field("/proc/cpuinfo", "model name"),
            memory_bytes: field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .map(|kib| kib * 1024),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            lab_lacks: lab_lacks(),
            dataset: Some(fashion_mnist()).filter(|folder| Path::new(folder).is_dir()).map(str::to_owned),
            devices: device::survey(),
        }
    }

    /// The survey as lines of a name and its value.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let none = || "none".to_owned();
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1u32 << 30));
        vec![
            ("version", self.version.clone()),
            ("kinds", self.kinds.clone()),
            (
                "mpi library",
                self.mpi_library.clone().unwrap_or_else(|| "none (built without the mpi feature)".to_owned()),
            ),
            ("mpirun", self.mpirun.clone().unwrap_or_else(|| "none on PATH (run scripts/setup)".to_owned())),
            ("host", self.host.clone()),
            ("cores", self.cores.to_string()),
            ("processor", self.processor.clone().unwrap_or_else(none)),
            ("memory", self.memory_bytes.map_or_else(none, gib)),
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
        .find(|program| first_line(program, "-V").is_none())
        .map(|program| format!("{program} is not installed"))
}

fn first_line(program: &str, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).stdin(Stdio::null()).output().ok().filter(|it| it.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(|line| line.trim().to_owned())
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(feature = "mpi")]
fn mpi_library() -> Option<String> {
    mpi::environment::library_version().ok()?.lines().next().map(|line| line.trim_end_matches('\0').trim().to_owned())
}

#[cfg(not(feature = "mpi"))]
fn mpi_library() -> Option<String> {
    None
}
