//! The kinds of store and their strict names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, did_you_mean};

/// A kind of store; see the table in the README for where sums and optimizers run.
///
/// ```
/// # use ringpull_base as ringpull;
/// use ringpull::Kind;
///
/// let kind: Kind = "dist_sync_mpi".parse()?;
/// assert!(!kind.has_servers());
/// # Ok::<(), ringpull::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Host memory of one process.
    Local,
    /// GPUs of one process.
    Device,
    /// Parameter servers that merge one push of every worker.
    DistSync,
    /// Parameter servers that apply every push as it comes.
    DistAsync,
    /// `dist_sync`, the host's own devices summed on the GPU.
    DistSyncDevice,
    /// `dist_async`, the host's own devices summed on the GPU.
    DistAsyncDevice,
    /// Allreduce over all ranks, no servers.
    DistSyncMpi,
}

impl Kind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [Kind; 7] = [
        Kind::Local,
        Kind::Device,
        Kind::DistSync,
        Kind::DistAsync,
        Kind::DistSyncDevice,
        Kind::DistAsyncDevice,
        Kind::DistSyncMpi,
    ];

    /// The name that `create` takes.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Local => "local",
            Kind::Device => "device",
            Kind::DistSync => "dist_sync",
            Kind::DistAsync => "dist_async",
            Kind::DistSyncDevice => "dist_sync_device",
            Kind::DistAsyncDevice => "dist_async_device",
            Kind::DistSyncMpi => "dist_sync_mpi",
        }
    }

    /// All names, for messages.
    pub fn names() -> String {
        Kind::ALL.map(Kind::name).join(", ")
    }

    /// A question after the kind that a wrong name may have meant, or nothing.
    fn meant_by(given: &str) -> String {
        did_you_mean(given, Kind::ALL.map(Kind::name))
    }

    /// Whether the store has parameter servers.
    pub fn has_servers(self) -> bool {
        matches!(self, Kind::DistSync | Kind::DistAsync | Kind::DistSyncDevice | Kind::DistAsyncDevice)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        // MXNet spells the device kinds both ways.
        let name = match name {
            "dist_device_sync" => "dist_sync_device",
            "dist_device_async" => "dist_async_device",
            other => other,
        };
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| Error::UnknownKind { given: name.to_owned(), known: Kind::names() + &Kind::meant_by(name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_strict_and_the_error_lists_them() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse::<Kind>(), Ok(kind));
        }
        for wrong in ["", "dist_snyc", "DIST_SYNC", "local ", "horovod", "nccl", "dist"] {
            let error = wrong.parse::<Kind>().unwrap_err().to_string();
            assert!(error.contains("dist_sync_mpi") && error.contains(&format!("{wrong:?}")), "{error}");
        }
        let error = "dist_sync_mpl".parse::<Kind>().unwrap_err().to_string();
        assert!(error.ends_with("; did you mean dist_sync_mpi?"), "{error}");
    }
}
