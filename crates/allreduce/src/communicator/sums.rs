//! Sums and other reductions over all ranks. A call either begins a reduction, which then advances beside
//! others, or runs it to its end.

use std::sync::Arc;

use ringpull_base::{AlgorithmChoice, DType, Reduction, Result, Tensor};
use ringpull_kernels::reduce::Arithmetic;
use ringpull_plan::Schedule;

use crate::communicator::Communicator;
use crate::communicator::begun::BegunOperation;
use crate::communicator::hierarchy::{self, Hosts};
use crate::communicator::schedules::Sum;
use crate::interpreter::{Memory, ProgramStep};
use crate::transport::Stamp;
use crate::transport::window::MOST_UNDER_WAY;

impl Communicator {
    /// Returns the choice for a reduction. The library's own allreduce is used for sums only.
    fn choice_for(choice: AlgorithmChoice, reduction: Reduction) -> AlgorithmChoice {
        if choice == AlgorithmChoice::Native && reduction != Reduction::Sum { AlgorithmChoice::Auto } else { choice }
    }

    /// Returns true if sums by `choice` go through shared memory within hosts.
    fn uses_shared_memory(&self, choice: AlgorithmChoice) -> bool {
        match choice {
            AlgorithmChoice::Auto | AlgorithmChoice::Nccl => self.placement.has_neighbours(),
            AlgorithmChoice::Ordered => self.is_ordered_anyway(),
            AlgorithmChoice::Plan(_) | AlgorithmChoice::Native => false,
        }
    }

    /// The schedule of a sum by messages between all ranks.
    pub(super) fn schedule(&mut self, sum: Sum) -> Arc<Schedule> {
        let (rank, size) = (self.rank(), self.size());
        let (placement, learned, cuts) = (&self.placement, &self.learned, self.cuts);
        let cluster = (&learned.model, learned.links.as_ref());
        self.schedules.find(sum, || sum.plan((rank, size), placement, cluster, cuts))
    }

    /// Returns true if all ranks sum in shared memory, which adds in the order of the ranks anyway.
    fn is_ordered_anyway(&self) -> bool {
        self.placement.is_one_host() && self.placement.has_neighbours()
    }

    /// Returns true if sums by the communicator's own choice use the library's allreduce, which blocks. Such
    /// sums are done one after another, in the same order on every rank.
    pub fn sums_block(&self) -> bool {
        self.choice == AlgorithmChoice::Native
    }

    /// Returns true if all ranks share one host's memory, and collectives other than the library's own sums go
    /// through it.
    pub(super) fn is_in_one_memory(&self) -> bool {
        let uses_it = self.choice == AlgorithmChoice::Native || self.uses_shared_memory(self.choice);
        uses_it && self.is_ordered_anyway()
    }

    /// The number of operations of all ranks that may be under way at once. It is enough to hide the latency
    /// of each, and small enough that few messages are posted.
    pub fn most_under_way(&self) -> usize {
        const BY_MESSAGES: usize = 32;
        if self.placement.has_neighbours() { MOST_UNDER_WAY } else { BY_MESSAGES }
    }

    /// Begins to sum `data` over all ranks, or begins another reduction. If sums [block](Self::sums_block),
    /// the sum is done at once, and no other collective of all ranks may be under way. Sums of higher
    /// `priority` go first. Operations that are under way together have different stamps. `step_bytes` is the
    /// number of bytes that the whole step sums, or 0 if that is not known. It is the same on every rank.
    pub fn begin_allreduce(
        &mut self,
        (reduction, dtype): Arithmetic,
        data: Memory,
        stamp: Stamp,
        (priority, step_bytes): (i32, usize),
    ) -> Result<BegunOperation> {
        self.begin_by(self.choice, (reduction, dtype), data, stamp, (priority, step_bytes))
    }

    /// Sums `data` over all ranks in place, with the same bits on each. Returns it.
    pub fn allreduce(&mut self, dtype: DType, data: Memory, stamp: Stamp) -> Result<Memory> {
        self.allreduce_by(self.choice, dtype, data, stamp)
    }

    /// Sums `tensor` over all ranks in place, by the algorithm `choice`.
    pub fn allreduce_tensor(&mut self, choice: AlgorithmChoice, tensor: &Tensor, stamp: Stamp) -> Result<()> {
        self.allreduce_by(choice, tensor.dtype(), Memory::Written(tensor.write()), stamp).map(drop)
    }

    /// Sums as [`allreduce`](Self::allreduce) does, by the algorithm `choice`.
    pub fn allreduce_by(
        &mut self,
        choice: AlgorithmChoice,
        dtype: DType,
        data: Memory,
        stamp: Stamp,
    ) -> Result<Memory> {
        let begun = self.begin_by(choice, (Reduction::Sum, dtype), data, stamp, (i32::MAX, 0))?;
        self.complete(begun)
    }

    fn begin_by(
        &mut self,
        choice: AlgorithmChoice,
        (reduction, dtype): Arithmetic,
        data: Memory,
        stamp: Stamp,
        (priority, step_bytes): (i32, usize),
    ) -> Result<BegunOperation> {
        let choice = Self::choice_for(choice, reduction);
        if choice == AlgorithmChoice::Native {
            return self.at_once(data, |own, data| own.executor.transport.native_allreduce(dtype, data.bytes_mut()));
        }
        if self.uses_shared_memory(choice) {
            return Ok(self.begin_by_host((reduction, dtype), data, stamp, priority));
        }
        let sum = Sum { reduction, step_bytes, ..Sum::of(choice, dtype, data.bytes().len()) };
        let schedule = self.helped_schedule(sum, stamp, priority);
        Ok(BegunOperation::UnderWay(self.executor.runner.begin(&schedule, data, stamp, priority)))
    }

    /// Begins to sum by shared memory within hosts, and by a plan between them.
    fn begin_by_host(
        &mut self,
        arithmetic: Arithmetic,
        mut data: Memory,
        stamp: Stamp,
        priority: i32,
    ) -> BegunOperation {
        let rank = self.rank();
        let node = self.placement.node.as_ref();
        let steps = if let Some(node) = node.filter(|_| self.placement.is_one_host()) {
            vec![ProgramStep::Host(node.allreduce(arithmetic, &mut data, stamp))]
        } else {
            let hosts = Hosts {
                ranks: &self.placement.hosts,
                racks: self.placement.racks.as_ref(),
                model: &self.learned.model,
                links: self.learned.links.as_ref(),
                segments: self.cuts,
            };
            hierarchy::allreduce((hosts, node), (rank, &mut self.schedules), arithmetic, &mut data, stamp)
        };
        BegunOperation::UnderWay(self.executor.runner.begin_program(steps, data, stamp, priority))
    }
}
