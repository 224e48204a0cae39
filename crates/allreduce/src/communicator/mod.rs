//! What a store asks of a set of ranks: allreduce, broadcast, allgather. [`Host`] does them on host memory, by plans
//! over a transport or by the MPI library's own allreduce.
//!
//! What `auto` knows of the cluster comes from `learn`, which reads it from `model_cache` or has `probe` measure it.
//!
//! [`Choice`] names the ways. `placement` finds the ranks that share a host; `node` sums among them in shared
//! memory, `hierarchy` over several such hosts; `racks` knows where hosts stand; `schedules` keeps what is to
//! be sent for each kind of sum; gradients with a codec go by `compressed`, between whatever `ends` encode
//! and decode them. Memory of devices is the store's affair (`src/on_devices`).

mod choice;
mod compressed;
mod ends;
mod hierarchy;
mod host;
mod learn;
mod model_cache;
mod node;
mod placement;
mod probe;
mod rack_probe;
mod racks;
mod schedules;
#[cfg(test)]
mod tests;

pub use choice::Choice;
pub use host::Host;
pub use learn::Learned;
pub use ringpull_plan::Parts;
