//! What a store asks of a set of ranks: allreduce, broadcast, allgather. [`Host`] does them on host memory, by plans
//! over a transport or by the MPI library's own allreduce; [`staged`] on memory of devices, by way of the host's.

mod host;
pub mod staged;

pub use host::{Choice, Host};
