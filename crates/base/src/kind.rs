//! The kinds of store and their strict names.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::named::named;
use crate::{Error, did_you_mean};

named! {
    /// A kind of store; see the table in `docs/reference/kinds.md` for where sums and optimizers run.
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
        Local = "local",
        /// GPUs of one process.
        Device = "device",
        /// Parameter servers that merge one push of every worker.
        DistSync = "dist_sync",
        /// Parameter servers that apply every push as it comes.
        DistAsync = "dist_async",
        /// `dist_sync`, with the values of a process summed on its GPUs.
        DistSyncDevice = "dist_sync_device",
        /// `dist_async`, with the values of a process summed on its GPUs.
        DistAsyncDevice = "dist_async_device",
        /// Allreduce over all ranks, no servers.
        DistSyncMpi = "dist_sync_mpi",
        /// Dense keys as `dist_sync_mpi`, row-sparse keys as `dist_sync`.
        DistHybrid = "dist_hybrid",
    }
}

impl Kind {
    /// All names, for messages.
    pub fn names() -> String {
        Kind::ALL.map(Kind::name).join(", ")
    }

    /// Returns a question with the kind that a wrong name may mean, or nothing.
    fn meant_by(given: &str) -> String {
        did_you_mean(given, Kind::ALL.map(Kind::name))
    }

    /// Returns true if the store has parameter servers.
    pub fn has_servers(self) -> bool {
        match self {
            Kind::DistSync | Kind::DistAsync | Kind::DistSyncDevice | Kind::DistAsyncDevice | Kind::DistHybrid => true,
            Kind::Local | Kind::Device | Kind::DistSyncMpi => false,
        }
    }

    /// Returns true if servers apply every push as it comes.
    pub fn is_async(self) -> bool {
        match self {
            Kind::DistAsync | Kind::DistAsyncDevice => true,
            Kind::Local
            | Kind::Device
            | Kind::DistSync
            | Kind::DistSyncDevice
            | Kind::DistSyncMpi
            | Kind::DistHybrid => false,
        }
    }

    /// Returns true if the workers are ranks of an MPI job.
    pub fn has_ranks(self) -> bool {
        match self {
            Kind::DistSyncMpi | Kind::DistHybrid => true,
            Kind::Local
            | Kind::Device
            | Kind::DistSync
            | Kind::DistAsync
            | Kind::DistSyncDevice
            | Kind::DistAsyncDevice => false,
        }
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        // MXNet spells the device kinds both ways, and its tutorials write `dist` for `dist_sync`.
        let name = match name {
            "dist" => "dist_sync",
            "dist_device_sync" => "dist_sync_device",
            "dist_device_async" => "dist_async_device",
            other => other,
        };
        Kind::of_name(name)
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
        for wrong in ["", "dist_snyc", "DIST_SYNC", "local ", "horovod", "nccl", "dist_"] {
            let error = wrong.parse::<Kind>().unwrap_err().to_string();
            assert!(error.contains("dist_sync_mpi") && error.contains(&format!("{wrong:?}")), "{error}");
        }
        assert_eq!("dist".parse::<Kind>(), Ok(Kind::DistSync));
        let error = "dist_sync_mpl".parse::<Kind>().unwrap_err().to_string();
        assert!(error.ends_with("; did you mean dist_sync_mpi?"), "{error}");
    }
}
