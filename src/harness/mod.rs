//! harness

pub mod checkpoint;
pub mod dataset;
pub mod shard;
pub mod total;
