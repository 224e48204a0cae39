//! The base of every crate of ringpull: keys, kinds, element types, tensors and errors.
//!
//! - [`Key`], [`Kind`], [`DType`], [`Reduction`], [`AlgorithmChoice`], [`Error`]: the words of the KVStore's
//!   contract; [`ElementType`]: of which other types tensors may be that travel;
//! - [`Buffer`]: bytes, in the memory that ranks of a host share, if they can ([`buffer`]); [`Tensor`]: a
//!   buffer behind a lock, or memory of a device ([`Remote`]); [`RowSparse`]: some rows of one;
//! - [`files`]: files that are there whole or not at all; [`file_limit`]: none longer than the user's limit;
//!   [`own_folder`]: folders of this user in a place that all share;
//!   [`notice()`]: what people should read although
//!   nothing failed; [`config`]: every environment variable; [`topology`]: where this process runs;
//!   [`timeline`]: what it does when; [`forked`]: what a child of it must leave alone; [`claim`]: names that
//!   one process of a host has; [`Secret`]: how
//!   processes prove that they are of one job; [`strangers`]: what a port grants those that have not.
//!
//! It does no arithmetic and talks to nobody.

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
