//! What a store asks of a set of ranks: allreduce, broadcast, allgather. [`Host`] does them on host memory, by plans
//! over a transport or by the MPI library's own allreduce. What `auto` knows of the cluster comes from `learn`, which
//! reads it or has `probe` measure it.

mod host;
mod learn;
mod probe;

pub use host::{Choice, Host};
pub use learn::Learned;
