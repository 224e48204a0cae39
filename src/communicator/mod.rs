//! What a store asks of a set of ranks: allreduce, broadcast, allgather. [`Host`] does them on host memory, by plans
//! over a transport or by the MPI library's own allreduce; gradients with a codec by `compressed`.

mod compressed;
mod host;

pub use host::{Choice, Host};
