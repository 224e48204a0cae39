//! Sums that each rank updates for all: an allreduce in two halves, with the update of a rank's part between
//! them.
//!
//! A reduce-scatter gives each rank the sums of its part. The rank replaces them by the values that all will
//! get (new weights, in the same bytes). An allgather then gives every rank all parts. By messages the halves
//! are one plan, and each segment is updated as it leaves (`interpreter::halfway`). In shared memory each
//! rank updates its part in place, where the sums have been stored. Both move the same number of bytes as an
//! allreduce. If there are several hosts and some have several ranks, all ranks exchange messages and none
//! uses shared memory. In a ring, one rank of each host sends to the next host.

use std::collections::HashMap;
use std::sync::Arc;

use ringpull_base::{Algorithm, AlgorithmChoice, DType, Reduction, Result};
use ringpull_plan::{Parts, ReduceScatter, Schedule, choose_reduce_scatter};

use crate::communicator::Communicator;
use crate::communicator::begun::{BegunOperation, Passage};
use crate::interpreter::{Memory, PartUpdate};

/// The schedules of such sums, by element type, parts and length of the step.
#[derive(Default)]
pub(super) struct DividedSchedules(HashMap<(DType, Parts, usize), Arc<Schedule>>);

impl Communicator {
    /// Begins a divided sum: rank `r` sums part `r` and calls its `update` for these bytes, and every rank
    /// gets all parts. A job of one rank does it at once.
    pub fn begin_divided(
        &mut self,
        (dtype, parts): (DType, Parts),
        data: Memory,
        mut update: PartUpdate,
        passage: Passage,
        step_bytes: usize,
    ) -> Result<BegunOperation> {
        let bytes = bytes_of(&parts, dtype);
        assert_eq!(bytes.len(), data.bytes().len(), "the parts of a buffer have its length");
        let own = bytes.range(self.rank()..self.rank() + 1);
        if self.size() == 1 {
            return self.at_once(data, |_, data| update(0, data.bytes_mut()));
        }
        if self.is_in_one_memory() {
            return Ok(self.in_memory(data, passage, |node, data, stamp| {
                node.allreduce_updating((Reduction::Sum, dtype), data, bytes, update, stamp)
            }));
        }
        let schedule = self.divided_schedule(dtype, parts, step_bytes);
        let ticket =
            self.executor.runner.begin_updating(&schedule, data, (own, update), passage.stamp, passage.priority);
        Ok(BegunOperation::UnderWay(ticket))
    }

    fn divided_schedule(&mut self, dtype: DType, parts: Parts, step_bytes: usize) -> Arc<Schedule> {
        /// The number of schedules kept: more than the buckets and keys of any step.
        const MOST: usize = 1024;
        let (rank, size, cuts) = (self.rank(), self.size(), self.cuts);
        let (way, segment_bytes) = match self.choice {
            AlgorithmChoice::Ordered => (ReduceScatter::Ordered, cuts.most_bytes),
            AlgorithmChoice::Plan(Algorithm::Ring) => (ReduceScatter::Ring, cuts.most_bytes),
            AlgorithmChoice::Plan(Algorithm::Direct) => (ReduceScatter::Direct, cuts.most_bytes),
            _ => {
                let model = self.learned.model.within(step_bytes);
                choose_reduce_scatter(&model, parts.len() * dtype.size_bytes(), size, cuts)
            }
        };
        let kept = &mut self.divided.0;
        if kept.len() >= MOST {
            kept.clear();
        }
        let made = kept.entry((dtype, parts.clone(), step_bytes)).or_insert_with(|| {
            let plan = ringpull_plan::allreduce_in_halves(way, rank, size, parts);
            Arc::new(Schedule::of(&plan, dtype, segment_bytes))
        });
        Arc::clone(made)
    }
}

/// Converts parts in elements to parts in bytes.
fn bytes_of(parts: &Parts, dtype: DType) -> Parts {
    Parts::of((0..=parts.count()).map(|part| parts.range(0..part).end * dtype.size_bytes()).collect())
}
