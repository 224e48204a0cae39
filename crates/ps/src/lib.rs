//! Parameter servers: scheduler, servers and workers of one job, joined by the `DMLC_*` variables, over TCP.
//!
//! Every node (a worker or a server) holds a `link` to the scheduler, which assigns ranks, runs barriers,
//! listens to heartbeats, and sends faults and the end of the job to every node. Values travel between
//! workers and servers only:
//!
//! ```text
//!   worker 0 --push segment--> server 0        shard: which server holds which segment of a key
//!   worker 0 <---new value---- server 0        merge: one round of pushes, added up in rank order
//!   worker 1 --push segment--> server 1        server, scheduler: (state, message) -> replies, no I/O
//!        \____ scheduler _________/            *_loop: the same with sockets around them
//! ```
//!
//! - A round of a segment is complete when every worker's push of the round has arrived. Pushes are merged in
//!   the order of the ranks, so that the bits are the same in every run. A worker that pushes twice
//!   contributes to two rounds.
//! - `push_pull` asks for the new value together with the push: segment `i` comes back while segment `i + 1`
//!   goes out.
//! - A message that comes from a peer outside the job, or that cannot be decoded, is logged and dropped.
//! - A lost node, a stall or a disagreement is reported to the scheduler, which reports it to every node and
//!   ends the job.

#![forbid(unsafe_code)]

mod call;
pub mod coded;
pub(crate) mod link;
pub(crate) mod merge;
pub mod message;
pub(crate) mod operation;
pub mod scheduler;
mod scheduler_loop;
pub mod server;
mod server_loop;
pub mod shard;
pub(crate) mod socket;
mod status;
pub mod worker;
mod worker_loop;

pub use worker_loop::window;

use ringpull_base::config::{Config, Dmlc, Role};
use ringpull_base::{Error, Result};

/// Runs this process as the job's scheduler or as one of its servers, until the job has ended. Blocks.
///
/// # Errors
/// If the job failed: every node has received the error, and the process should exit with a status other than
/// 0.
pub fn run_node(role: Role, config: &Config, dmlc: &Dmlc) -> Result<()> {
    match role {
        Role::Scheduler => scheduler_loop::run(config, dmlc),
        Role::Server => server_loop::run(config, dmlc),
        Role::Worker | Role::Helper => Err(Error::argument(
            format!("run_node was called in a {role}, which runs no node of a job with servers"),
            "create a store of kind dist_sync or dist_async in the worker's program",
        )),
    }
}
