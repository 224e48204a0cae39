//! Measures jobs of ringpull and of other libraries, and reports conclusions.
//!
//! - `pushpull`, `allreduce`, `collectives`, `train`: the measuring ranks; `ranks`: gathers their reports;
//!   `layers`, `compute`: the parts of a replayed step;
//! - `record`, `statistics`, `usage`: a measurement, its spread and its cost; `explain`: what `auto` does;
//! - `mode`: how our store sums; `variant`: the programs that can be measured, ours and peers; `cost`: the
//!   bytes that each mode must move;
//! - `link`, `shape`: the rates of links, and how hosts are joined; `hardware`: the processor of a host;
//! - `rounds`: jobs of all variants in rotating rounds; `quiet`: the wait between jobs; `compare`: their
//!   table, verdict and report; `sweep`: allreduces of many sizes, against others; `charts`: the pictures;
//! - `progress`: the lines that a command shows while it works; `interrupt`: the signals that end it;
//! - `size`, `text`: the formats of sizes, times, counts and tables.
//!
//! Nothing here starts a process of a job: [`rounds`] asks a runner for that.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "fields of records and of options, for the command alone: their names say them")]

pub mod allreduce;
pub mod charts;
pub mod collectives;
#[cfg(test)]
#[path = "../../../tests/committed/mod.rs"]
mod committed;
pub mod compare;
pub mod compute;
pub mod cost;
pub mod explain;
pub mod hardware;
pub mod interrupt;
pub mod layers;
pub mod link;
pub mod mode;
pub mod progress;
pub mod pushpull;
pub mod quiet;
pub mod ranks;
pub mod record;
pub mod rounds;
pub mod shape;
pub mod size;
pub mod statistics;
pub mod sweep;
pub mod text;
pub mod train;
pub mod usage;
pub mod variant;
