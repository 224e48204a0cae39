//! The parts of a training program beside a store, for the examples of this folder.
//!
//! - [`training`]: the program's options, and the store that they select;
//! - [`dataset`]: Fashion-MNIST; [`shard`]: the division of its images among workers;
//! - [`checkpoint`], `resume`: files from which a run can resume.

pub mod checkpoint;
pub mod dataset;
mod resume;
pub mod shard;
pub mod training;
