//! Arithmetic on host memory, as pure functions: what a key keeps between two calls belongs to the caller.
//!
//! - [`reduce`]: adding one buffer to another, for every element type;
//! - [`compress`]: gradient codecs; [`optim`]: optimizers.

pub mod compress;
pub mod optim;
pub mod reduce;
