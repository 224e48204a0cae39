//! Runs schedules on memory, with a job's transport and the interpreter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytemuck::Pod;

use ringpull_base::{Buffer, DType, Error, Result};
use ringpull_plan::{Parts, Plan, Schedule};

use crate::interpreter::{Endpoint, Memory, Runner, Ticket};
use crate::transport::{Stamp, Transport};

/// Exchanges messages with all ranks of a job.
pub struct Executor {
    pub(super) transport: Box<dyn Transport>,
    pub(super) runner: Runner,
    /// The number of ranks that contribute, which are the first ones. They take part in operations of all
    /// ranks.
    members: usize,
    /// Set to end the operations under way in an error.
    pub(super) stop: Arc<AtomicBool>,
}

impl Executor {
    /// Returns an executor over `transport`. Messages have at most `segment_bytes`, unless a schedule
    /// requires others. An operation in which nothing moves for `limit` is lost.
    pub(super) fn new(
        transport: Box<dyn Transport>,
        segment_bytes: usize,
        limit: Duration,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let members = transport.size();
        Executor { transport, runner: Runner::new(segment_bytes, limit), members, stop }
    }

    /// This rank.
    pub(super) fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// The number of ranks, without helpers.
    pub(super) fn size(&self) -> usize {
        self.members
    }

    /// Returns true if this rank is a helper, which only reduces.
    pub(super) fn is_helper(&self) -> bool {
        self.rank() >= self.members
    }

    /// Does `work` among all ranks, helpers too.
    pub(super) fn with_helpers<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let workers = std::mem::replace(&mut self.members, self.transport.size());
        let outcome = work(self);
        self.members = workers;
        outcome
    }

    /// Limits operations of all ranks to the first `workers` ranks from now on. Collective.
    pub(super) fn narrow(&mut self, workers: usize) -> Result<()> {
        self.members = workers;
        self.transport.narrow(workers)
    }

    /// Returns an error once the job is stopping.
    pub(super) fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Acquire) { Err(Error::Stopped {}) } else { Ok(()) }
    }

    /// Moves the messages that can move now. Returns true if any did. Does not block.
    pub fn advance(&mut self) -> Result<bool> {
        self.runner.advance(&mut *self.transport, &self.stop)
    }

    /// Waits a little, to be called when nothing has moved. Returns an error if nothing has moved for too
    /// long.
    pub fn pause(&mut self) -> Result<()> {
        self.runner.pause(&mut *self.transport)
    }

    /// Lets the library make progress. To be called now and then while nothing is under way on this rank,
    /// because other ranks may still wait for its messages. Does not block.
    pub fn progress(&mut self) {
        self.transport.progress();
    }

    /// Returns the operations that have finished since the last call, each with its memory.
    pub fn take_finished(&mut self) -> impl Iterator<Item = (Ticket, Memory)> {
        self.runner.take_finished()
    }

    /// Ends all operations after an error. Returns their memory, to be [given up](Memory::give_up): the
    /// transport may use it for ever.
    pub fn abandon(&mut self) -> Vec<Memory> {
        self.runner.abandon()
    }

    /// Runs a schedule on `memory` to its end. After an error the runner has the memory.
    pub(super) fn run(&mut self, schedule: &Arc<Schedule>, memory: &mut Memory, stamp: Stamp) -> Result<()> {
        self.runner.run(schedule, memory, &mut *self.transport, stamp, &self.stop)
    }

    /// Runs a schedule as [`run`](Self::run) does, with the caller's own [`Endpoint`].
    pub(super) fn run_between(
        &mut self,
        schedule: &Arc<Schedule>,
        endpoint: Box<dyn Endpoint + '_>,
        stamp: Stamp,
    ) -> Result<()> {
        self.runner.run_between(schedule, endpoint, &mut *self.transport, stamp, &self.stop).map(drop)
    }

    /// Waits until an operation that was begun is finished. Returns its memory.
    pub(super) fn until(&mut self, ticket: Ticket) -> Result<Memory> {
        self.runner.until(ticket, &mut *self.transport, &self.stop)
    }

    /// Runs two schedules beside each other, each on its own data. Returns the value of `clock` when `into`
    /// is done.
    pub(super) fn move_beside<T>(
        &mut self,
        (out, sent, out_stamp): (&Arc<Schedule>, Buffer, Stamp),
        (into, received, into_stamp): (&Arc<Schedule>, Buffer, Stamp),
        clock: impl FnOnce() -> T,
    ) -> Result<T> {
        let ticket = self.runner.begin(out, Memory::Own(sent), out_stamp, i32::MAX);
        self.run(into, &mut Memory::Own(received), into_stamp)?;
        let read = clock();
        self.until(ticket).map(|_| read)
    }

    /// Returns this rank's `plan` on bytes, in the longest messages allowed.
    pub(super) fn schedule(&self, plan: &Plan) -> Arc<Schedule> {
        self.runner.schedule(plan, DType::U8)
    }

    /// Runs `schedule` on `data` and returns it.
    pub(super) fn move_buffer(&mut self, schedule: &Arc<Schedule>, data: Buffer, stamp: Stamp) -> Result<Buffer> {
        let mut memory = Memory::Own(data);
        self.run(schedule, &mut memory, stamp).map(|()| memory.into_buffer())
    }

    /// Replaces `words` by the words of rank 0. Every rank has the same number of words.
    pub(super) fn broadcast_words<T: Pod>(&mut self, words: &mut [T], stamp: Stamp) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        let schedule = self.schedule(&ringpull_plan::broadcast(0, self.rank(), self.size(), bytes.len()));
        let mut data = Buffer::zeroed(bytes.len());
        data.bytes_mut().copy_from_slice(bytes);
        bytes.copy_from_slice(self.move_buffer(&schedule, data, stamp)?.bytes());
        Ok(())
    }

    /// Returns all ranks' parts. `fill` writes this rank's part.
    pub(super) fn gather(&mut self, parts: Parts, stamp: Stamp, fill: impl FnOnce(&mut [u8])) -> Result<Buffer> {
        let rank = self.rank();
        let mut all = Buffer::zeroed(parts.len());
        fill(&mut all.bytes_mut()[parts.range(rank..rank + 1)]);
        let schedule = self.schedule(&ringpull_plan::allgather(rank, self.size(), parts));
        self.move_buffer(&schedule, all, stamp)
    }

    /// Returns every rank's `own` row, in the order of the ranks.
    pub(super) fn gather_rows<T: Pod, const N: usize>(&mut self, own: &[T; N], stamp: Stamp) -> Result<Vec<[T; N]>> {
        let row_bytes = size_of::<[T; N]>();
        let parts = Parts::of((0..=self.size()).map(|rank| rank * row_bytes).collect());
        let all = self.gather(parts, stamp, |row| row.copy_from_slice(bytemuck::cast_slice(own)))?;
        let value = |row: &[u8], at: usize| bytemuck::pod_read_unaligned(&row[at * size_of::<T>()..][..size_of::<T>()]);
        Ok(all.bytes().chunks_exact(row_bytes).map(|row| std::array::from_fn(|at| value(row, at))).collect())
    }
}
