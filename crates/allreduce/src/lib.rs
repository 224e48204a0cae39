//! Allreduce over all ranks of a job: the layers that a gradient passes on its way to its sum, each using
//! only those below it.
//!
//! - [`transport`]: bytes between two ranks, over MPI or over threads, and the control star;
//! - [`interpreter`]: does what a plan says over a transport;
//! - [`communicator`]: allreduce, broadcast and allgather on host memory, within hosts and between them;
//! - [`progress`]: the threads behind a store, the agreement on what is launched, and faults.

pub mod communicator;
pub mod interpreter;
pub mod progress;
pub mod transport;
