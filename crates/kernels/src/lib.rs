//! Arithmetic on host memory, as pure functions: the state of a key between two calls belongs to the caller.
//!
//! - [`reduce`]: adding one buffer to another, for every element type;
//! - [`compress`]: gradient codecs; [`optim`]: optimizers;
//! - [`row_ids`]: ids of rows in few bytes.

pub mod compress;
pub mod optim;
pub mod reduce;
pub mod row_ids;
