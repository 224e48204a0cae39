//! What the doctor knows of a host. Facts are gathered elsewhere, and judged without looking at the host
//! again.

use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// A host as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// What the machine can do.
    pub machine: Machine,
    /// The name or address by which the doctor was sent there; its own name where it was not sent.
    pub called: String,
    /// This crate's version there.
    /// Ranks it is to take.
    pub slots: usize,
    /// The user's number.
    pub uid: u32,
    /// What two ranks of this host found; why there are none in `probe_failure`.
    pub probe: Vec<ProbedRank>,
    /// Why two ranks could not be started.
    pub probe_failure: Option<String>,
    /// Whether the environment lets Open MPI run as root.
    pub root_allowed: bool,
    /// Whether it is a container.
    pub in_container: bool,
    /// The file system at /dev/shm: its size and what is free of it, in bytes.
    pub shared_memory: Option<(u64, u64)>,
    /// The kernel's `ptrace_scope`: above 0, ranks cannot read each other's memory.
    pub ptrace_scope: u32,
    /// Whether this process may look into others all the same.
    pub may_trace: bool,
    /// The limit of locked memory in bytes, none for no limit.
    pub locked_memory: Option<u64>,
    pub rdma: Vec<String>,
    /// NVIDIA devices that are there.
    pub gpus: usize,
    /// NVIDIA's driver, by its number.
    pub driver: Option<String>,
    /// The name that this host's own name resolves to.
    pub own_address: Option<String>,
    /// Files and folders of ssh.
    pub ssh: Vec<SshFile>,
    /// How its clock differs from the doctor's, in seconds, and how sure that is.
    pub clock: Option<(f64, f64)>,
    /// The time there, in seconds since 1970.
    pub now_s: f64,
    /// The other hosts as they look from there.
    pub peers: Vec<Seen>,
}

/// A rank that the doctor started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProbedRank {
    pub size: usize,
    /// The thread level that MPI gives: `single`, `funneled`, `serialized`, `multiple`.
    pub level: String,
    /// The library's first words.
    pub library: String,
}

/// A file of ssh and who may do what with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SshFile {
    pub path: String,
    pub mode: u32,
    pub owner: u32,
    /// Whether it is a private key.
    pub is_key: bool,
}

/// Another host from here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub host: String,
    /// Its address, if the name resolves.
    pub address: Option<String>,
    /// The interface on the way there.
    pub interface: Option<String>,
    /// Why its port does not answer.
    pub failure: Option<String>,
}
