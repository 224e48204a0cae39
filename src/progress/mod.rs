//! Communication that goes on while the caller computes.
//!
//! - [`agreement`] (pure): which operations every rank has called, and in which order all of them launch;
//! - [`job`]: an operation between its call and its end;
//! - [`engine`]: the threads. One (`comm`) owns the transport from initialisation to finalisation and runs the collectives; one
//!   applies updates; one (`watcher`) listens to the control star, notices faults and spreads them; `shared` is what they share;
//! - [`process`]: the one engine over MPI that a process can have, from its first store to its exit.

pub mod agreement;
mod comm;
pub mod engine;
pub mod job;
#[cfg(feature = "mpi")]
pub mod process;
mod shared;
mod watcher;

pub use agreement::{Call, Launch, Topic};
pub use engine::Engine;
pub use job::{Job, Wire};
