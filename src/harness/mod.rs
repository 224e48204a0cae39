//! Runs jobs, verifies and measures them: emulated hosts, launching, the benches and the comparison.
//!
//! - [`link`]: the rate of a link; [`lab`]: emulated hosts joined by links of that rate;
//! - [`mpirun`]: the command that starts MPI ranks; [`launch`]: jobs of scheduler, servers and workers;
//! - [`interrupt`]: Ctrl-C and its like; [`machine`]: what this machine can do;
//! - [`dataset`], [`shard`], [`total`], [`checkpoint`]: what a training example needs;

pub mod checkpoint;
pub mod dataset;
pub mod interrupt;
pub mod lab;
pub mod launch;
pub mod link;
pub mod machine;
pub mod mpirun;
pub mod shard;
pub mod total;
