//! Data-parallel training's push/pull KVStore, on MPI allreduce and on parameter servers.
//!
//! The layers, each importing only what stands before it (`tests/layering.rs` holds them to it):
//!
//! - the base: [`error`], [`key`], [`kind`], [`dtype`], [`buffer`], [`remote`], [`tensor`], [`sparse`], [`reduce`], [`config`], [`topology`],
//!   [`timeline`], [`spelling`];
//! - `transport`, `collective`, `communicator`, `progress`: the path of a gradient by allreduce;
//! - `compress`: gradient codecs; `optim`: optimizers; `device`: GPUs, real and simulated; `ps`: parameter servers;
//! - `store`: the KVStore that users call;
//! - `harness` and `cli`: the comparison, the benches and the commands.

/// The README's example is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod buffer;
pub mod config;
pub mod dtype;
pub mod error;
pub mod key;
pub mod kind;
pub mod reduce;
pub mod remote;
pub mod sparse;
pub mod spelling;
pub mod tensor;
pub mod timeline;
pub mod topology;

pub mod cli;
pub mod collective;
pub mod communicator;
pub mod compress;
pub mod device;
pub mod harness;
pub mod optim;
pub mod progress;
pub mod ps;
pub mod store;
pub mod transport;

pub use dtype::DType;
pub use error::{Error, Result};
pub use key::Key;
pub use kind::Kind;
pub use sparse::RowSparse;
pub use tensor::{Tensor, TensorMut, TensorRef};
