//! The command `ringpull`: it runs jobs, verifies and measures them. Emulated hosts, launching, the benches,
//! the comparison.
//!
//! - [`commands`]: the command line, a file for each subcommand;
//! - [`link`]: the rate of a link; [`lab`]: emulated hosts joined by links of that rate;
//! - [`mpirun`]: the command that starts MPI ranks; [`child`]: whether it outlives them; [`launch`]: jobs of scheduler, servers and workers;
//! - [`interrupt`]: Ctrl-C and its like; [`machine`]: what this machine can do;
//! - [`size`]: payloads by their bytes; those that are the keys of a model are `ringpull-workload`'s;
//! - [`mode`]: how our store sums; [`variant`]: who can be measured, ours and peers; [`cost`]: what each must move, in closed form;
//! - [`pushpull`], [`allreduce`]: the measuring ranks; `ranks`: what they found, brought together;
//! - [`text`]: how times, counts and tables are written;
//! - [`record`], [`statistics`], [`usage`]: a measurement, what it says and what it costs; [`explain`]: what `auto` does;
//! - [`train`]: the ranks that replay a model's steps; [`layers`], [`compute`]: what they replay;
//! - [`timeline`]: what the ranks' timelines say together;
//! - [`doctor`]: what would keep a job from running;
//! - [`rounds`]: jobs of all variants in rotating rounds; [`compare`]: their table, verdict and report;
//!   [`sweep`]: allreduce over all sizes, against others.

pub mod allreduce;
pub mod child;
pub mod commands;
pub mod compare;
pub mod compute;
pub mod cost;
pub mod doctor;
pub mod explain;
pub mod gpu_check;
pub mod interrupt;
pub mod lab;
pub mod launch;
pub mod layers;
pub mod link;
pub mod machine;
pub mod mode;
pub mod mpirun;
pub mod pushpull;
pub mod quiet;
mod ranks;
pub mod record;
pub mod rounds;
pub mod size;
pub mod statistics;
pub mod sweep;
pub mod text;
pub mod timeline;
pub mod train;
pub mod usage;
pub mod variant;
