//! The facts that the doctor has about a host. It judges these facts without access to the host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub machine: Machine,
    /// The host's name or address in the hostfile, or else its own name.
    pub called: String,
    /// The number of ranks that the host is to run.
    pub slots: usize,
    pub uid: u32,
    /// The reports of two ranks on this host. Empty if there is a `probe_failure`.
    pub probe: Vec<ProbedRank>,
    /// The reason why two ranks could not be started.
    pub probe_failure: Option<String>,
    /// True if the environment lets Open MPI run as root.
    pub root_allowed: bool,
    pub in_container: bool,
    /// The file system at /dev/shm: its size and its free space, in bytes.
    pub shared_memory: Option<(u64, u64)>,
    /// The kernel's `ptrace_scope`: above 0, ranks cannot read each other's memory.
    pub ptrace_scope: u32,
    /// True if this process may trace others in spite of `ptrace_scope`.
    pub may_trace: bool,
    /// The limit of locked memory in bytes, `None` for no limit.
    pub locked_memory: Option<u64>,
    pub rdma: Vec<String>,
    pub gpus: usize,
    /// NVIDIA's driver, by its number.
    pub driver: Option<String>,
    /// The variables of NCCL that are set and that the doctor judges.
    #[serde(default)]
    pub nccl: BTreeMap<String, String>,
    /// The Python that a job finds in its PATH.
    #[serde(default)]
    pub python: Option<String>,
    /// The folder for temporary files, and the reason why files there cannot be made or executed.
    #[serde(default)]
    pub temporary: Option<(String, String)>,
    /// The network interfaces.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// The name that this host's own name resolves to.
    pub own_address: Option<String>,
    /// Files and folders of ssh.
    pub ssh: Vec<SshFile>,
    /// The difference of the host's clock from the doctor's, and its uncertainty, both in seconds.
    pub clock: Option<(f64, f64)>,
    /// The time on the host, in seconds since 1970.
    pub now_s: f64,
    /// The other hosts, seen from this one.
    pub peers: Vec<PeerHost>,
}

/// A rank that the doctor started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProbedRank {
    pub size: usize,
    /// MPI's thread level: `single`, `funneled`, `serialized`, `multiple`.
    pub level: String,
    /// The first line of the library's version.
    pub library: String,
}

/// A file of ssh with its permissions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SshFile {
    pub path: String,
    pub mode: u32,
    pub owner: u32,
    pub is_key: bool,
}

/// Another host, seen from this one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PeerHost {
    pub host: String,
    /// Its address, if the name resolves.
    pub address: Option<String>,
    /// The network interface on the way to it.
    pub interface: Option<String>,
    /// The reason why a connection to its port failed.
    pub failure: Option<String>,
}
