//! Executes a [`Schedule`](ringpull_plan::Schedule) over a transport: one to its end, or several begun and
//! advanced together.
//!
//! `flight` is a schedule under way; `program` an operation of several steps; `run` the interpreter; `idle`
//! its waits; `ahead` the limit of data that is sent ahead of a peer; `endpoint` the handling of a segment at
//! an end, if more is needed than to add or copy it; `halfway` the update of a sum before others get it;
//! `memory` the memory that an operation owns; `scratch` the memory of bytes to be added; `tokens` the
//! numbers of messages in the transport.

mod ahead;
mod endpoint;
mod flight;
mod halfway;
mod idle;
mod memory;
mod program;
mod run;
mod scratch;
#[cfg(test)]
mod tests;
mod tokens;

pub use endpoint::Endpoint;
pub use flight::Ticket;
pub use halfway::PartUpdate;
pub use memory::Memory;
pub use program::{HostStep, ProgramStep, StepProgress};
pub use ringpull_plan::{Action, Message};
pub use run::Runner;
pub use scratch::Scratch;
