//! The base of every crate of ringpull: keys, kinds, element types, tensors and errors.
//!
//! - [`Key`], [`Kind`], [`DType`], [`Reduction`], [`AlgorithmChoice`], [`Error`]: the types of the KVStore's
//!   contract; [`ElementType`]: the other types of tensors that can be sent;
//! - [`Buffer`]: bytes, in the memory that ranks of a host share, if they can ([`buffer`]); [`Tensor`]: a
//!   buffer behind a lock, or memory of a device ([`Remote`]); [`RowSparse`]: some rows of one;
//! - [`files`]: files that exist whole or not at all; [`file_limit`]: the user's limit of a file's length;
//!   [`own_folder`]: folders of this user in a place that all users share; [`notice()`]: messages for people
//!   when nothing has failed; [`config`]: every environment variable; [`topology`]: this process and its
//!   host; [`timeline`]: the activity of this process over time; [`forked`]: protection from forked children;
//!   [`claim`]: names that one process of a host has; [`Secret`]: the proof that processes are of one job;
//!   [`strangers`]: the limits of a port for connections without this proof.
//!
//! This crate does no arithmetic and no communication.

mod algorithm;
mod awake;
pub mod buffer;
pub mod claim;
pub mod config;
mod dtype;
mod element;
mod error;
pub mod file_limit;
pub mod files;
pub mod forked;
mod key;
mod kind;
pub mod last_words;
mod named;
mod names;
pub mod notice;
pub mod own_folder;
#[cfg(test)]
mod pages;
pub mod recording;
mod reduction;
mod remote;
pub mod secret;
pub mod shares;
mod sparse;
mod spelling;
pub mod status;
pub mod strangers;
mod tensor;
pub mod timeline;
pub mod topology;
pub mod waits;

pub use algorithm::{Algorithm, AlgorithmChoice};
pub use awake::{Awake, are_cores_busy};
pub use buffer::Buffer;
pub use dtype::{DType, Element};
pub use element::{Arithmetic, ELEMENT_TYPES, ElementType};
pub use error::{Error, INIT_ALIKE, OnFault, Result, after_error};
#[doc(hidden)]
pub use half;
pub use key::Key;
pub use kind::Kind;
pub use last_words::LastWords;
pub use names::name_key;
pub use notice::notice;
pub use reduction::Reduction;
pub use remote::Remote;
pub use secret::Secret;
pub use shares::split;
pub use sparse::{RowSparse, check_row_ids};
pub use spelling::{closest, did_you_mean};
pub use tensor::{OnRelease, Tensor, TensorMut, TensorRef, Waiter, unshare};
