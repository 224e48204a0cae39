//! The command `ringpull`: it runs jobs, verifies and measures them.
//!
//! - [`commands`]: the command line, a file for each subcommand;
//! - `link`: the rate of a link; [`lab`]: emulated hosts joined by links of that rate;
//! - [`mpirun`]: the command that starts MPI ranks; `child`: whether it outlives them; `launch`: jobs of a
//!   scheduler, servers and workers; `interrupt`: Ctrl-C and its like;
//! - `machine`: what this machine can do; `doctor`, `gpu_check`: what would keep a job from running on it;
//! - `mode`: how our store sums; [`variant`]: who can be measured, ours and peers; [`cost`]: what each must
//!   move;
//! - `pushpull`, `allreduce`, `train`: the measuring ranks; `ranks`: what they found, brought together;
//!   [`layers`], `compute`: what a replayed step consists of;
//! - [`record`], `statistics`, `usage`: a measurement, what it says and what it costs; `explain`: what `auto`
//!   does;
//! - [`rounds`]: jobs of all variants in rotating rounds; [`compare`]: their table, verdict and report;
//!   `sweep`: allreduce over all sizes, against others; `quiet`: the wait between jobs;
//! - `timeline`: what the ranks' timelines say together;
//! - `size`, `text`: how sizes, times, counts and tables are written.

mod allreduce;
mod child;
pub mod commands;
pub mod compare;
mod compute;
pub mod cost;
mod doctor;
mod explain;
mod gpu_check;
mod interrupt;
pub mod lab;
mod launch;
pub mod layers;
mod link;
mod machine;
mod mode;
pub mod mpirun;
mod pushpull;
mod quiet;
mod ranks;
pub mod record;
pub mod rounds;
mod size;
mod statistics;
mod sweep;
mod text;
mod timeline;
mod train;
mod usage;
pub mod variant;
