//! A machine's devices as plain data. `cuda` fills it in, and `open` returns it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A library that is loaded at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Library {
    /// The library is installed, in this version.
    Version(String),
    /// The library is missing or does not work. The text has the names that were searched, or its error.
    Missing(String),
}

impl Library {
    /// Returns the library's version, if it is installed.
    pub fn version(&self) -> Option<&str> {
        match self {
            Library::Version(version) => Some(version),
            Library::Missing(_) => None,
        }
    }
}

impl Default for Library {
    fn default() -> Self {
        Library::Missing("not looked for".to_owned())
    }
}

impl fmt::Display for Library {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Library::Version(text) | Library::Missing(text)) = self;
        out.pad(text)
    }
}

/// The facts about this machine's devices that can be found without using them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// True if this build can use CUDA.
    pub built: bool,
    /// The CUDA driver; its version is that of CUDA.
    pub driver: Library,
    /// NCCL.
    pub nccl: Library,
    /// NVRTC.
    pub nvrtc: Library,
    /// Each device's name.
    pub devices: Vec<String>,
    /// Pairs of devices that reach each other's memory.
    pub peers: Vec<(usize, usize)>,
}

impl Survey {
    /// The pairs of devices that reach each other's memory, in words.
    pub fn peer_access(&self) -> String {
        let pairs: Vec<String> = self.peers.iter().map(|(from, to)| format!("{from}->{to}")).collect();
        if pairs.is_empty() { "none".to_owned() } else { pairs.join(" ") }
    }
}
