//! MXNet's push/pull KVStore for Rust: MPI ring allreduce without servers, parameter servers, GPUs.
//!
//! [`create`] makes a [`KvStore`] of a [`Kind`]. Pushed values of a key are summed over all workers of the
//! job, and each worker pulls the sum. [`communicator`] has collectives without keys. This page has all
//! public names.

/// The examples of the book are compiled with the tests, and run if they can.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../docs/compression.md")]
    struct Compression;
    #[doc = include_str!("../docs/how-to/gpus.md")]
    struct Gpus;
    #[doc = include_str!("../docs/how-to/rust.md")]
    struct Rust;
}

mod allreduce;
mod backend;
mod backlog;
mod check;
mod communicator;
mod compressed;
mod contract;
mod contribution;
mod create;
#[cfg(all(feature = "devices", feature = "ps"))]
mod device_sums;
#[cfg(feature = "ps")]
mod hybrid;
mod jobs;
mod kvstore;
mod local;
#[cfg(feature = "devices")]
mod on_devices;
mod recorded;
mod replica;
#[cfg(feature = "ps")]
mod servers;
mod shares;
mod slot;
mod states;
mod status;
mod sum_rows;
mod table;
mod update;

pub use communicator::{CallOptions, Communicator, Handle, communicator, communicator_with};
pub use contract::{Change, OnChange, Updater};
#[cfg(feature = "devices")]
pub use create::create_on;
pub use create::{create, create_elastic, create_with, run_node};
pub use kvstore::{Capability, KvStore, Stats};
pub use shares::suggest_shares;

#[doc(inline)]
pub use ringpull_base::config::{ClusterSource, Config};
#[doc(inline)]
pub use ringpull_base::{
    Algorithm, AlgorithmChoice, Buffer, DType, Element, Error, Key, Kind, Reduction, Result, RowSparse, Tensor,
    TensorMut, TensorRef, split,
};
#[cfg(feature = "devices")]
#[doc(inline)]
pub use ringpull_device::Devices;
#[doc(inline)]
pub use ringpull_kernels::compress::{Codec, Compression, TopK};
#[doc(inline)]
pub use ringpull_kernels::optim::{Optimizer, Rule};

pub(crate) use backend::Backend;
pub(crate) use contribution::{Contribution, MergedRows};
pub(crate) use states::SavedStates;
pub(crate) use table::Entry;
pub(crate) use update::Updates;

/// Internals for this workspace's own tests, examples and command. It may change in any version.
#[doc(hidden)]
pub mod internal {
    #[cfg(feature = "ps")]
    use ringpull_base::config::Role;

    #[cfg(feature = "ps")]
    use crate::Result;
    pub use crate::allreduce::Allreduce;
    pub use crate::backend::Backend;
    #[cfg(all(feature = "devices", feature = "ps"))]
    pub use crate::device_sums::DeviceSums;
    #[cfg(feature = "devices")]
    pub use crate::on_devices::OnDevices;
    #[cfg(feature = "ps")]
    pub use crate::servers::Servers;
    pub use crate::states::{SavedStates, replace_file};
    use crate::{Config, Kind, KvStore};
    pub use ringpull_allreduce::transport::share_mpi;

    /// Serves the job if this process is a server, a scheduler or a helper, and `kind`, the kind of the store
    /// that its program is about to create, has such processes. Blocks until the job has ended, and returns
    /// the status with which the process must exit. In any other process, returns `None` at once.
    #[cfg(feature = "ps")]
    pub fn serve(kind: &str) -> Result<Option<i32>> {
        let Ok(kind) = kind.parse::<Kind>() else { return Ok(None) };
        let job = ringpull_base::config::Dmlc::from_env()?.filter(|_| kind.has_servers());
        let role = if kind == Kind::DistSyncMpi && ringpull_base::config::is_helper() {
            Role::Helper
        } else {
            let Some(job) = job else { return Ok(None) };
            job.role
        };
        Ok(match crate::run_node() {
            Ok(serves) => serves.then_some(0),
            Err(error) => {
                let words = error.last_words(None);
                let hint = words.hint.map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
                ringpull_base::notice(&format!("ringpull {role}: {}{hint}", words.line));
                Some(1)
            }
        })
    }

    /// Returns true if this process has made a store, of any kind.
    pub fn has_stores() -> bool {
        crate::create::has_stores()
    }

    /// Makes a store of `kind` over `backend`.
    pub fn store_over(kind: Kind, backend: Box<dyn Backend>, config: &Config) -> KvStore {
        KvStore::over(kind, backend, config)
    }
}
