//! The command `ringpull`: it runs jobs, verifies and measures them.
//!
//! - [`commands`]: the command line, a file for each subcommand;
//! - [`lab`]: emulated hosts joined by links of a rate;
//! - [`mpirun`]: the command that starts MPI ranks; `child`: runs it to its end; `launch`: jobs of a
//!   scheduler, servers and workers; `launched`: starts the jobs of a comparison;
//! - `machine`: what this machine can do; `doctor`, `gpu_check`: what would stop a job from running on it;
//! - `advise`: steps of training predicted for any number of hosts;
//! - `rehearse`: jobs that meet faults; `differ`: the values of two kinds; `replay`: the calls of a recorded job;
//! - `timeline`: merges the ranks' timelines, and accounts for each step's time;
//! - `status_client`: jobs that run, asked for their status.
//!
//! What is measured, and what follows from it, is in `ringpull-harness`.
#![forbid(unsafe_code)]

mod advise;
mod child;
pub mod commands;
#[cfg(test)]
#[path = "../../../tests/committed/mod.rs"]
mod committed;
mod differ;
mod doctor;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gpu_check;
pub mod lab;
mod launch;
mod launched;
mod machine;
pub mod mpirun;
mod rehearse;
mod replay;
mod status_client;
mod timeline;
