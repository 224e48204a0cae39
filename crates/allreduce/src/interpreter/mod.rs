//! Does what a [`Schedule`](ringpull_plan::Schedule) says over a transport: one to its end, or several begun
//! and advanced together.
//!
//! `flight` is a schedule under way; `run` the interpreter; `idle` how it waits; `ahead` how far it may be
//! ahead of a peer; `endpoint` what happens to a segment at an end, if that is more than to add or copy it;
//! `halfway` what becomes of a sum before others get it; `scratch` what arrives to be added; `tokens` what a
//! message is to the transport.

mod ahead;
mod endpoint;
mod flight;
mod halfway;
mod idle;
mod run;
mod scratch;
#[cfg(test)]
mod tests;
mod tokens;

pub use endpoint::Endpoint;
pub use flight::Ticket;
pub use halfway::PartUpdate;
pub use ringpull_plan::{Action, Message};
pub use run::Runner;
pub use scratch::Scratch;
