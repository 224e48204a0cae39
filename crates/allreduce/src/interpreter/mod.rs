//! Does what a [`Schedule`](ringpull_plan::Schedule) says over a transport: one to its end, or several begun
//! and advanced together.
//!
//! `flight` is a schedule under way; `run` the interpreter; `idle` how it waits; `ahead` how far it may be
//! ahead of a peer; `elsewhere` memory that it may not touch; `scratch` what arrives to be added; `tokens`
//! what a message is to the transport.

mod ahead;
mod elsewhere;
mod flight;
mod idle;
mod run;
mod scratch;
#[cfg(test)]
mod tests;
mod tokens;

pub use elsewhere::Elsewhere;
pub use flight::Ticket;
pub(crate) use idle::Idle;
pub use run::{Runner, stopped};
