//! The work that one job measures.

use ringpull_workload::models::ModelKey;
use ringpull_workload::sparse::SparseSetup;
use serde::{Deserialize, Serialize};

use crate::layers::Network;
use crate::size::format_payload;
use crate::text::several;

/// One job: some work, on some ranks.
#[derive(Debug, Clone)]
pub struct Job {
    pub ranks: usize,
    pub work: Work,
    pub iters: usize,
    pub warmup: usize,
}

#[derive(Debug, Clone)]
pub enum Work {
    /// The allreduce of plain f32 buffers of these sizes, one after the other, without the store.
    Buffers(Vec<usize>),
    /// Push and pull of f32 keys together, through the store.
    Keys {
        /// The keys, in forward order.
        keys: Vec<ModelKey>,
        /// The arguments of `ringpull bench` that name the keys, such as `--sizes 25000000`.
        named: Vec<String>,
    },
    /// Push and pull of rows of a table.
    Rows { table: SparseSetup, named: Vec<String> },
    /// Steps of training, replayed.
    Steps { network: Network, named: Vec<String>, train: TrainSetup },
}

/// How a step of training is replayed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainSetup {
    /// The model, by name or file.
    pub model: String,
    pub compute_s: f64,
    /// Images of one host in a step.
    pub batch: Option<usize>,
}

impl Job {
    /// The elements of each buffer or key.
    pub fn lens(&self) -> Vec<usize> {
        match &self.work {
            Work::Buffers(sizes) => sizes.iter().map(|bytes| bytes / 4).collect(),
            Work::Rows { table, .. } => vec![table.touched * table.width],
            Work::Keys { keys, .. } | Work::Steps { network: Network { keys, .. }, .. } => {
                keys.iter().map(ModelKey::len).collect()
            }
        }
    }

    /// The payload bytes of each record of the job.
    pub fn payloads(&self) -> Vec<usize> {
        match &self.work {
            Work::Buffers(sizes) => sizes.clone(),
            Work::Keys { .. } | Work::Rows { .. } | Work::Steps { .. } => vec![4 * self.lens().iter().sum::<usize>()],
        }
    }

    /// The job in words: `on 4 ranks, 4 B to 1 MiB`.
    pub fn words(&self) -> String {
        let payloads: Vec<String> = self.payloads().iter().map(|bytes| format_payload(*bytes as u64)).collect();
        match &payloads[..] {
            [first, .., last] => format!("on {}, {first} to {last}", several(self.ranks, "rank")),
            _ => format!("on {}, {}", several(self.ranks, "rank"), payloads.concat()),
        }
    }
}
