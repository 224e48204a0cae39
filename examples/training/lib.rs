//! What a training program needs beside a store, for the examples of this folder.
//!
//! - [`training`]: its options, and the store that they ask for;
//! - [`dataset`]: Fashion-MNIST; [`shard`]: which of it is whose;
//! - [`checkpoint`], `resume`: files to go on from; [`total`]: a number summed over all workers.

pub mod checkpoint;
pub mod dataset;
mod resume;
pub mod shard;
pub mod total;
pub mod training;
