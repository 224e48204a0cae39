//! Runs jobs, verifies and measures them: emulated hosts, launching, the benches and the comparison.
//!
//! - [`link`]: the rate of a link; [`lab`]: emulated hosts joined by links of that rate;
//! - [`mpirun`]: the command that starts MPI ranks; [`launch`]: jobs of scheduler, servers and workers;
//! - [`interrupt`]: Ctrl-C and its like; [`machine`]: what this machine can do;
//! - [`size`], [`models`]: payloads, as sizes or as the key lists of models;
//! - [`mode`]: what can be compared; [`cost`]: what each must move, in closed form;
//! - [`pushpull`], [`allreduce`]: the measuring ranks; [`pattern`]: inputs whose sums are known; [`expected`]: what a store must then hold;
//! - [`record`], [`statistics`], [`usage`]: a measurement, what it says and what it costs; [`explain`]: what `auto` does;
//! - [`train`]: the ranks that replay a model's steps; [`layers`], [`compute`]: what they replay; [`schedule`]: the least step;
//! - [`timeline`]: what the ranks' timelines say together;
//! - [`training`], [`dataset`], [`shard`], [`total`], [`checkpoint`]: what a training program needs;
//! - [`doctor`]: what would keep a job from running;
//! - [`manifest`]: Kubernetes manifests of jobs, and a check of them;
//! - [`compare`]: rounds of jobs, the table, the verdict, the report; [`sweep`]: allreduce over all sizes, against others.

pub mod allreduce;
pub mod checkpoint;
pub mod compare;
pub mod compute;
pub mod cost;
pub mod dataset;
pub mod doctor;
pub mod expected;
pub mod explain;
pub mod gpu_check;
pub mod interrupt;
pub mod lab;
pub mod launch;
pub mod layers;
pub mod link;
pub mod machine;
pub mod manifest;
pub mod mode;
pub mod models;
pub mod mpirun;
pub mod pattern;
pub mod pushpull;
pub mod record;
pub mod schedule;
pub mod shard;
pub mod size;
pub mod statistics;
pub mod sweep;
pub mod timeline;
pub mod total;
pub mod train;
pub mod training;
pub mod usage;
