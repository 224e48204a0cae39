//! Collectives of all ranks or of some, which are begun and then advance beside others.
//!
//! A process set is a list of ranks, and a rank's number in the set is its index in the list. The set's plan
//! is made for this number of ranks, and the job's numbers then replace the set's (`Plan::among`). A set's
//! collectives always go by messages. If all ranks of the job share memory, the job's own collectives go
//! through shared memory. Only the library's own collectives block. All others progress beside each other.

use std::rc::Rc;
use std::sync::Arc;

use ringpull_base::{DType, Reduction, Result, Tensor};
use ringpull_kernels::reduce::Arithmetic;
use ringpull_plan::{ALLTOALL_SEGMENT_BYTES, Parts, Plan, Schedule, Segments, choose_reduce_scatter};

use crate::communicator::Communicator;
use crate::communicator::node::Node;
use crate::communicator::placement::Placement;
use crate::communicator::schedules::Sum;
use crate::communicator::two_buffers::{BlockExchange, ReduceScatterEnd};
use crate::interpreter::{HostStep, Memory, ProgramStep, Ticket};
use crate::transport::{BlockCollective, Stamp};

/// The ranks of the job that take part, in the order of the set. `None` stands for all ranks.
pub type ProcessSet<'a> = Option<&'a [usize]>;

/// The identity of an operation under way.
#[derive(Debug, Clone, Copy)]
pub struct Passage {
    /// The stamp of the operation's messages.
    pub stamp: Stamp,
    /// Operations of higher priority go first.
    pub priority: i32,
}

/// An operation that was begun. If beginning it returned an error instead, the runner has the memory.
pub enum BegunOperation {
    /// The operation is under way. Its memory comes with the ticket from
    /// [`take_finished`](super::Executor::take_finished).
    UnderWay(Ticket),
    /// Done.
    Done(Memory),
}

impl Communicator {
    /// Blocks until the operation is finished. Returns its memory.
    pub(crate) fn complete(&mut self, begun: BegunOperation) -> Result<Memory> {
        match begun {
            BegunOperation::Done(memory) => Ok(memory),
            BegunOperation::UnderWay(ticket) => self.executor.until(ticket),
        }
    }

    /// Does `work` at once on `memory`. Other ranks of this host may use any part of the memory, so the
    /// runner keeps it after an error.
    pub(super) fn at_once(
        &mut self,
        mut memory: Memory,
        work: impl FnOnce(&mut Self, &mut Memory) -> Result<()>,
    ) -> Result<BegunOperation> {
        match work(self, &mut memory) {
            Ok(()) => Ok(BegunOperation::Done(memory)),
            Err(cause) => {
                self.executor.runner.lose(memory);
                Err(cause)
            }
        }
    }

    /// Begins the step that `work` makes for `memory`, among the ranks of this host, which all share memory.
    pub(super) fn in_memory(
        &mut self,
        mut memory: Memory,
        Passage { stamp, priority }: Passage,
        work: impl FnOnce(&Rc<Node>, &mut Memory, Stamp) -> Box<dyn HostStep>,
    ) -> BegunOperation {
        let node = self.placement.node.as_ref().expect("ranks that share memory have a window");
        let step = ProgramStep::Host(work(node, &mut memory, stamp));
        BegunOperation::UnderWay(self.executor.runner.begin_program(vec![step], memory, stamp, priority))
    }

    /// Does the collective `which` from `input` into `out`, by plans or by the library's own collective.
    /// Collective; blocks.
    pub fn collect(
        &mut self,
        (which, is_native): (BlockCollective, bool),
        input: &Tensor,
        out: &Tensor,
        stamp: Stamp,
    ) -> Result<()> {
        let (given, mut taken) = (input.read()?, out.write());
        let (size, passage) = (self.size(), Passage { stamp, priority: 0 });
        let pair = |given, taken| (Memory::Read(given), Memory::Written(taken));
        let begun = match which {
            _ if is_native => self.at_once(Memory::Pair(Box::new(pair(given, taken))), |own, memory| {
                let (input, out) = memory.pair_mut();
                own.executor.transport.native_collective(which, input, out)
            })?,
            BlockCollective::Allgather => {
                let parts = Parts::even(taken.bytes().len(), size);
                let own = parts.range(self.rank()..self.rank() + 1);
                taken.bytes_mut()[own].copy_from_slice(given.bytes());
                self.begin_allgather(None, parts, Memory::Written(taken), passage)
            }
            BlockCollective::Alltoall => {
                let lens = vec![given.bytes().len() / size; size];
                self.begin_alltoall(None, (&lens, &lens), pair(given, taken), passage)
            }
            BlockCollective::ReduceScatter(dtype) => {
                let parts = Parts::even(given.bytes().len() / dtype.size_bytes(), size);
                self.begin_reduce_scatter(None, (Reduction::Sum, dtype), parts, pair(given, taken), passage)
            }
        };
        self.complete(begun).map(drop)
    }

    /// Returns this rank's place in a process set, and the number of the set's ranks.
    ///
    /// # Panics
    /// If this rank is not in the set.
    pub fn place_in(&self, set: ProcessSet) -> (usize, usize) {
        let Some(members) = set else { return (self.rank(), self.size()) };
        let place = members.iter().position(|member| *member == self.rank());
        (place.expect("a rank takes part in collectives of its own sets"), members.len())
    }

    fn cut(plan: Plan, set: ProcessSet, dtype: DType, segment_bytes: usize) -> Schedule {
        let plan = if let Some(members) = set { plan.among(members) } else { plan };
        Schedule::of(&plan, dtype, segment_bytes)
    }

    fn cut_bytes(&self, plan: Plan, set: ProcessSet) -> Arc<Schedule> {
        Arc::new(Self::cut(plan, set, DType::U8, self.executor.runner.segment_bytes()))
    }

    /// Returns true if the set has all ranks, and these share one host's memory.
    fn is_in_memory(&self, set: ProcessSet) -> bool {
        set.is_none() && self.is_in_one_memory()
    }

    /// Begins to reduce `data` over the ranks of a set. All of them get the result.
    pub fn begin_allreduce_among(
        &mut self,
        set: &[usize],
        (reduction, dtype): Arithmetic,
        data: Memory,
        passage: Passage,
    ) -> BegunOperation {
        let (place, size) = self.place_in(Some(set));
        let sum = Sum { reduction, ..Sum::of(self.choice, dtype, data.bytes().len()) };
        let (plan, segment_bytes) =
            sum.plan((place, size), &Placement::apart(size), (&self.learned.model, None), self.cuts);
        let schedule = Arc::new(Self::cut(plan, Some(set), dtype, segment_bytes).by(reduction));
        BegunOperation::UnderWay(self.executor.runner.begin(&schedule, data, passage.stamp, passage.priority))
    }

    /// Begins to replace `data` by the data of the set's `root`. The root's own data is only read.
    pub fn begin_broadcast(&mut self, set: ProcessSet, root: usize, data: Memory, passage: Passage) -> BegunOperation {
        if self.is_in_memory(set) {
            // On one host a rank is its local rank.
            return self.in_memory(data, passage, |node, data, stamp| node.broadcast(root, data, stamp));
        }
        let (place, size) = self.place_in(set);
        let schedule = self.cut_bytes(ringpull_plan::broadcast(root, place, size, data.bytes().len()), set);
        BegunOperation::UnderWay(self.executor.runner.begin(&schedule, data, passage.stamp, passage.priority))
    }

    /// Begins to give every rank of the set all parts of `data`. Each rank has brought its own part. `parts`
    /// has the bounds in bytes.
    pub fn begin_allgather(&mut self, set: ProcessSet, parts: Parts, data: Memory, passage: Passage) -> BegunOperation {
        assert_eq!(parts.len(), data.bytes().len(), "the parts of a buffer have its length");
        if self.is_in_memory(set) {
            return self.in_memory(data, passage, |node, data, stamp| node.allgather(data, parts, stamp));
        }
        let (place, size) = self.place_in(set);
        let schedule = self.cut_bytes(ringpull_plan::allgather(place, size, parts), set);
        BegunOperation::UnderWay(self.executor.runner.begin(&schedule, data, passage.stamp, passage.priority))
    }

    /// Begins to reduce this rank's part of every rank's input into the output. The input has `parts`, in
    /// elements, and is not changed.
    pub fn begin_reduce_scatter(
        &mut self,
        set: ProcessSet,
        (reduction, dtype): Arithmetic,
        parts: Parts,
        (input, mut out): (Memory, Memory),
        passage: Passage,
    ) -> BegunOperation {
        let ((place, size), element) = (self.place_in(set), dtype.size_bytes());
        assert_eq!(parts.len() * element, input.bytes().len(), "the parts of a buffer have its length");
        assert_eq!(parts.range(place..place + 1).len() * element, out.bytes().len(), "an output has its part's length");
        if self.is_in_memory(set) {
            let bounds = Parts::of((0..=size).map(|rank| parts.range(0..rank).end * element).collect());
            return self.in_memory(Memory::Pair(Box::new((input, out))), passage, |node, pair, stamp| {
                node.reduce_scatter_into((reduction, dtype), pair, bounds, stamp)
            });
        }
        let own = parts.range(place..place + 1);
        let own = own.start * element..own.end * element;
        out.bytes_mut().copy_from_slice(&input.bytes()[own.clone()]);
        let (way, segment_bytes) = choose_reduce_scatter(&self.learned.model, parts.len() * element, size, self.cuts);
        let plan = ringpull_plan::reduce_scatter(way, place, size, parts);
        let schedule = Arc::new(Self::cut(plan, set, dtype, segment_bytes).by(reduction));
        let endpoint = Box::new(ReduceScatterEnd::new((reduction, dtype), input, out, own));
        let Passage { stamp, priority } = passage;
        BegunOperation::UnderWay(self.executor.runner.begin_between(&schedule, endpoint, stamp, priority))
    }

    /// Begins to send each rank of the set its block of the input, which is not changed, and to receive one
    /// block from each rank into the output. `given` and `taken` are the lengths of the blocks in bytes.
    pub fn begin_alltoall(
        &mut self,
        set: ProcessSet,
        (given, taken): (&[usize], &[usize]),
        (input, out): (Memory, Memory),
        passage: Passage,
    ) -> BegunOperation {
        let lens = (input.bytes().len(), out.bytes().len());
        assert_eq!((given.iter().sum::<usize>(), taken.iter().sum::<usize>()), lens, "blocks fill their buffers");
        if self.is_in_memory(set) {
            let blocks = (Parts::of_lens(given.iter().copied()), Parts::of_lens(taken.iter().copied()));
            return self.in_memory(Memory::Pair(Box::new((input, out))), passage, |node, pair, stamp| {
                node.alltoall(pair, blocks, stamp)
            });
        }
        let (place, size) = self.place_in(set);
        let parts = Parts::of_lens(given.iter().chain(taken).copied());
        let (own, kept) = (parts.range(place..place + 1), parts.range(size + place..size + place + 1));
        let Segments { most_bytes, is_fixed } = self.cuts;
        let segment_bytes = if is_fixed { most_bytes } else { most_bytes.min(ALLTOALL_SEGMENT_BYTES) };
        let schedule = self.cut_bytes(ringpull_plan::alltoall(place, size, &parts, segment_bytes), set);
        let own = (own, kept.start - input.bytes().len());
        let endpoint = Box::new(BlockExchange::new(input, out, own, schedule.arrivals()));
        let Passage { stamp, priority } = passage;
        BegunOperation::UnderWay(self.executor.runner.begin_between(&schedule, endpoint, stamp, priority))
    }
}
