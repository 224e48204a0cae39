//! Communication that goes on while the caller computes.
//!
//! - [`agreement`] (pure): the calls of all ranks, and the order in which their operations launch; `period`
//!   and `freezing`: find the cycle of rank 0's calls; `phases` and [`fusion`]: cut that cycle into units;
//! - [`calls`] (pure): one rank's calls, announced one by one or begun in a frozen order (`frozen`); `rest`:
//!   the operations left to begin after that order was stopped;
//! - [`messages`]: the messages of the control star; `topic_key`: keys as numbers in them;
//! - [`job`]: an operation between its call and its end, and its stand-in on a rank that has joined;
//!   `layout` (pure): the layout of several jobs' memory in one bucket; [`Script`]: a job of several collectives;
//! - [`engine`]: the threads. One (`comm`) owns the transport from initialisation to finalisation and runs
//!   the collectives. One applies updates, and does other long work on finished sums. One (`watcher`)
//!   receives the messages of the control star, notices faults and spreads them. `shared` is their common
//!   state; `condition` is the job's condition and the rank's presence; `changes` wakes threads that wait for
//!   a change. `standstill` finds out if this rank waits for an operation that cannot begin; `status`
//!   collects the state of every rank (`answers`, `under_way`); `stopping` stops all ranks at the same step;
//! - `generation`: the ranks between two losses; `kept`: the operations saved for a retry; `renewal`: leads
//!   from one generation to the next; `connected`: the ranks of a transport, and their successors;
//! - [`process`]: the one engine over MPI that a process can have, from its first store to its exit;
//!   `termination`: the report of a rank that its launcher ends; `hang`: the end of a rank if MPI does not
//!   return.

pub mod agreement;
mod answer;
mod answers;
pub mod calls;
mod changes;
mod comm;
mod condition;
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
mod script;
mod shared;
mod standstill;
mod status;
mod stopping;
mod termination;
#[cfg(test)]
mod tests;
mod topic_key;
mod under_way;
mod watcher;

pub use answer::{Answer, Reply, answer};
pub use engine::Engine;
pub use generation::Change;
pub use job::{Check, Job, StandIn, Submission};
pub use messages::{Call, Envelope, Launch, Operation, Peering, Sums, Terms, Topic, Transfer};
pub use script::{Collectives, Script, ScriptStep};
pub use topic_key::TopicKey;
