//! Allreduce over all ranks of a job: the layers that a gradient passes on its way to its sum. Each uses only
//! those before it.
//!
//! - [`transport`]: bytes between two ranks, over MPI or over threads, and the control star;
//! - [`interpreter`]: executes a plan over a transport;
//! - [`communicator`]: allreduce, broadcast and allgather on host memory, within hosts and between them;
//! - [`progress`]: the threads of a store, the agreement on the order of launches, and faults.

pub mod communicator;
pub mod interpreter;
pub mod progress;
pub mod transport;
