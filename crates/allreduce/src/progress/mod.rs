//! Communication that goes on while the caller computes.
//!
//! - [`agreement`] (pure): which operations every rank has called, and in which order all of them launch;
//!   `period` and `freezing`: when rank 0's calls repeat themselves; `phases` and [`fusion`]: what travels
//!   together then, and in which order;
//! - [`calls`] (pure): one rank's calls, announced one by one or begun in a frozen order (`frozen`); `rest`:
//!   what is left to begin when that order has been stopped;
//! - [`messages`]: the messages of the control star;
//! - [`job`]: an operation between its call and its end, and what stands in for it on a rank that has joined;
//!   `layout` (pure): where the memory of several jobs stands in one bucket;
//! - [`engine`]: the threads. One (`comm`) owns the transport from initialisation to finalisation and runs
//!   the collectives; one applies updates, and whatever else takes its time when a sum is there; one
//!   (`watcher`) listens to the control star, notices faults and spreads them; `shared` is what they share,
//!   `standstill` finds out whether this rank waits for what cannot come; `status` says what every rank is
//!   doing (`answers`, `under_way`);
//! - `generation`: what lives on when a rank is lost and the others go on, `kept`: what is done again, and
//!   `renewal`: how they go on; `connected`: the ranks that a transport joins, and those that follow them;
//! - [`process`]: the one engine over MPI that a process can have, from its first store to its exit;
//!   `termination`: what it reports when a launcher ends it; `hang`: its end if MPI does not return.

pub mod agreement;
mod answers;
pub mod calls;
mod comm;
pub mod connected;
pub mod engine;
mod freezing;
pub mod frozen;
pub mod fusion;
#[cfg(fuzzing)]
pub mod fuzzing;
mod generation;
mod handover;
mod hang;
mod help;
pub mod job;
mod kept;
mod layout;
pub mod messages;
mod period;
mod phases;
pub mod process;
mod renewal;
mod rest;
mod shared;
mod standstill;
mod status;
mod termination;
#[cfg(test)]
mod tests;
mod under_way;
mod watcher;

pub use engine::Engine;
pub use generation::Change;
pub use job::{Answer, Job, Reply, StandIn, answer};
pub use messages::{Call, Envelope, Launch, Operation, Peering, Sums, Terms, Topic, Transfer};
