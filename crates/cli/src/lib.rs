//! The command `ringpull`: it runs jobs, verifies and measures them.
//!
//! - [`commands`]: the command line, a file for each subcommand;
//! - [`mpirun`]: the command that starts MPI ranks; `child`: runs it to its end; `launch`: jobs of a
//!   scheduler, servers and workers; `launched`: starts the jobs of a comparison;
//! - `machine`: the abilities of this machine; `doctor`, `gpu_check`: find what would stop a job from running
//!   on it;
//! - `timeline`: merges the ranks' timelines, and divides each step's time into parts.
//!
//! The measuring ranks, rounds and reports are in `ringpull-harness`. Emulated hosts, faults, recorded jobs and
//! predictions are in `ringpull-lab`.
#![forbid(unsafe_code)]

mod child;
pub mod commands;
#[cfg(test)]
#[path = "../../../tests/committed/mod.rs"]
mod committed;
mod doctor;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gpu_check;
mod launch;
mod launched;
mod machine;
pub mod mpirun;
mod timeline;

use ringpull_lab::hosts as lab;
