//! The command `ringpull`: it runs jobs, verifies and measures them.
//!
//! - [`commands`]: the command line, a file for each subcommand;
//! - `link`: the rate of a link; [`lab`]: emulated hosts joined by links of that rate;
//! - [`mpirun`]: the command that starts MPI ranks; `child`: runs it to its end; `launch`: jobs of a
//!   scheduler, servers and workers; `interrupt`: Ctrl-C, SIGTERM and SIGHUP;
//! - `machine`: what this machine can do; `doctor`, `gpu_check`: what would stop a job from running on it;
//! - `mode`: how our store sums; `variant`: what can be measured, ours and peers; `cost`: the bytes that each
//!   must move;
//! - `pushpull`, `allreduce`, `collectives`, `train`: the measuring ranks; `ranks`: gathers their reports;
//!   `layers`, `compute`: the parts of a replayed step; `late`: whose steps begin late;
//! - `record`, `statistics`, `usage`: a measurement, its spread and its cost; `explain`: what `auto` does;
//!   `kept`: what an interrupted benchmark has measured;
//! - `rounds`: jobs of all variants in rotating rounds; `compare`: their table, verdict and report; `sweep`:
//!   allreduces of many sizes, against others; `quiet`: the wait between jobs;
//! - `charts`: the pictures of `compare` and `advise`;
//! - `advise`: steps of training predicted for any number of hosts;
//! - `rehearse`: jobs that meet faults; `differ`: the values of two kinds;
//! - `timeline`: merges the ranks' timelines, and accounts for each step's time;
//! - `status_client`: jobs that run, asked for their status;
//! - `size`, `text`: the formats of sizes, times, counts and tables.

#![forbid(unsafe_code)]

mod advise;
mod allreduce;
mod charts;
mod child;
mod collectives;
pub mod commands;
#[cfg(test)]
#[path = "../../../tests/committed/mod.rs"]
mod committed;
mod compare;
mod compute;
mod cost;
mod differ;
mod doctor;
mod explain;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gpu_check;
mod hardware;
mod interrupt;
mod kept;
pub mod lab;
mod late;
mod launch;
mod launched;
mod layers;
mod link;
mod machine;
mod mode;
pub mod mpirun;
mod progress;
mod pushpull;
mod quiet;
mod ranks;
mod record;
mod rehearse;
mod replay;
mod rounds;
mod shape;
mod size;
mod statistics;
mod status_client;
mod sweep;
mod text;
mod timeline;
mod train;
mod usage;
mod variant;
