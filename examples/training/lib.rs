//! The parts of a training program beside a store, for the examples of this folder.
//!
//! - [`training`]: its options, and the store that they ask for;
//! - [`dataset`]: Fashion-MNIST; [`shard`]: which of it is whose;
//! - [`checkpoint`], `resume`: files to go on from.

pub mod checkpoint;
pub mod dataset;
mod resume;
pub mod shard;
pub mod training;
