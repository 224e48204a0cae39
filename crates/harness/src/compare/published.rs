//! The published figures that the comparison answers: the proposal "Extend MXNet Distributed Training by MPI
//! `AllReduce`" (apache/mxnet #10696), 8 hosts joined by 10 Gbit/s Ethernet.

use serde::Serialize;

/// Push and pull of 400 MB by 8 workers.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PushPull {
    pub method: &'static str,
    /// The number of servers, 0 for allreduce.
    pub servers: usize,
    pub seconds: f64,
}

/// The least time of an allreduce there: 2 x 7/8 x 400 MB / 1.25 GB/s.
pub const BOUND_S: f64 = 0.56;

pub const PUSH_PULL: [PushPull; 5] = [
    PushPull { method: "PS, 1 server", servers: 1, seconds: 6.5 },
    PushPull { method: "PS, 2 servers", servers: 2, seconds: 3.4 },
    PushPull { method: "PS, 4 servers", servers: 4, seconds: 2.0 },
    PushPull { method: "PS, 8 servers", servers: 8, seconds: 1.2 },
    PushPull { method: "MPI allreduce", servers: 0, seconds: 1.0 },
];

/// VGG-16 training, batch 64 on each of 8 hosts.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Training {
    /// Our variant that does the same.
    pub variant: &'static str,
    pub method: &'static str,
    pub machines: usize,
    pub images_per_s: f64,
    /// Scaling efficiency in per cent.
    pub efficiency: f64,
}

/// The number of workers of every published run.
pub const WORKERS: usize = 8;

/// The computing time of one host in a step: 64 images at 29.30 images/s, which every published row gives for
/// one host.
pub const COMPUTE_S: f64 = 2.184;

/// The images of one host in a step.
pub const BATCH: usize = 64;

/// The least time of an allreduce of the gradients there: 2 x 7/8 x 553.4 MB / 1.25 GB/s.
pub const TRAINING_BOUND_S: f64 = 0.7748;

pub const TRAINING: [Training; 5] = [
    Training {
        variant: "dist_sync:8shared",
        method: "PS, 8 servers on the workers' hosts",
        machines: 8,
        images_per_s: 19.87,
        efficiency: 67.81,
    },
    Training { variant: "dist_sync:8", method: "PS, 8 dedicated", machines: 16, images_per_s: 27.3, efficiency: 93.17 },
    Training { variant: "dist_sync:4", method: "PS, 4 dedicated", machines: 12, images_per_s: 22.7, efficiency: 77.47 },
    Training { variant: "dist_sync:2", method: "PS, 2 dedicated", machines: 10, images_per_s: 11.1, efficiency: 37.90 },
    Training { variant: "dist_sync_mpi", method: "MPI allreduce", machines: 8, images_per_s: 27.76, efficiency: 94.74 },
];
