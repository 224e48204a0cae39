//! Runs schedules on memory: the transport of a job with the interpreter over it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytemuck::Pod;

use ringpull_base::{Buffer, DType, Error, Result};
use ringpull_plan::{Parts, Plan, Schedule};

use crate::interpreter::{Endpoint, PartUpdate, Runner, Ticket};
use crate::transport::observed::Observed;
use crate::transport::{Stamp, Transport};

/// All ranks of a job, as far as messages go.
pub struct Executor {
    pub(super) transport: Box<dyn Transport>,
    pub(super) runner: Runner,
    /// The number of ranks that take part in operations of all ranks: the first ones, which contribute.
    members: usize,
    /// Set to end the operations under way in an error.
    pub(super) stop: Arc<AtomicBool>,
}

impl Executor {
    /// An executor over `transport`, in messages of at most `segment_bytes` unless a schedule requires
    /// others. An operation that does not move for `limit` is lost.
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

    /// Returns true if this rank only reduces.
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

    /// Begins a schedule, as [`Runner::begin`] does.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn begin(
        &mut self,
        schedule: &Arc<Schedule>,
        data: *mut [u8],
        stamp: Stamp,
        priority: i32,
    ) -> Ticket {
        // SAFETY: as the caller promises.
        unsafe { self.runner.begin(schedule, data, stamp, priority) }
    }

    /// Begins a schedule of two halves, as [`Runner::begin_updating`] does.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn begin_updating(
        &mut self,
        schedule: &Arc<Schedule>,
        data: *mut [u8],
        halfway: (Range<usize>, PartUpdate),
        stamp: Stamp,
        priority: i32,
    ) -> Ticket {
        // SAFETY: as the caller promises.
        unsafe { self.runner.begin_updating(schedule, data, halfway, stamp, priority) }
    }

    /// Begins a schedule with an end of this rank's own making.
    ///
    /// # Safety
    /// As for [`Runner::begin_between`].
    pub(super) unsafe fn begin_between(
        &mut self,
        schedule: &Arc<Schedule>,
        endpoint: Box<dyn Endpoint>,
        stamp: Stamp,
        priority: i32,
    ) -> Ticket {
        // SAFETY: as the caller promises.
        unsafe { self.runner.begin_between(schedule, endpoint, stamp, priority) }
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

    /// Lets the library make progress, to be called now and then while nothing is under way here: others may
    /// still wait for its messages. Does not block.
    pub fn progress(&mut self) {
        self.transport.progress();
    }

    /// Returns the operations that have finished since the last call.
    pub fn take_finished(&mut self) -> impl Iterator<Item = Ticket> {
        self.runner.take_finished()
    }

    /// Runs a schedule on `data` to its end.
    ///
    /// # Safety
    /// After an error the transport may still read and write `data`: it stays valid, and nobody else
    /// touches it, until the transport is gone.
    pub(super) unsafe fn run(&mut self, schedule: &Arc<Schedule>, data: &mut [u8], stamp: Stamp) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.runner.run(schedule, data, &mut *self.transport, stamp, &self.stop) }
    }

    /// As [`run`](Self::run). `on_progress` is called when messages have moved.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    pub(super) unsafe fn run_observed(
        &mut self,
        on_progress: &dyn Fn(),
        schedule: &Arc<Schedule>,
        data: &mut [u8],
        stamp: Stamp,
    ) -> Result<()> {
        let mut observed = Observed::new(&mut *self.transport, on_progress);
        // SAFETY: as the caller promises.
        unsafe { self.runner.run(schedule, data, &mut observed, stamp, &self.stop) }
    }

    /// As [`run`](Self::run), of a schedule that only sends.
    ///
    /// # Safety
    /// As for [`run`](Self::run), though the transport only reads.
    pub(super) unsafe fn send_out(&mut self, schedule: &Arc<Schedule>, data: &[u8], stamp: Stamp) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.runner.send_out(schedule, data, &mut *self.transport, stamp, &self.stop) }
    }

    /// As [`run`](Self::run), with an end of this rank's own making.
    ///
    /// # Safety
    /// As for [`Runner::run_between`].
    pub(super) unsafe fn run_between(
        &mut self,
        schedule: &Arc<Schedule>,
        endpoint: Box<dyn Endpoint + '_>,
        stamp: Stamp,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.runner.run_between(schedule, endpoint, &mut *self.transport, stamp, &self.stop) }
    }

    /// Runs `into` on `data` and, beside it, `out`, which touches other bytes. Returns the reading of `clock`
    /// when `into` is done. After an error the transport keeps the data.
    pub(super) fn move_beside<T>(
        &mut self,
        (out, out_stamp): (&Arc<Schedule>, Stamp),
        (into, into_stamp): (&Arc<Schedule>, Stamp),
        data: Buffer,
        clock: impl FnOnce() -> T,
    ) -> Result<T> {
        let mut read = None;
        keep_after_error(data, |bytes| {
            // SAFETY: after an error the memory is never freed, and both are done when this returns.
            let ticket = unsafe { self.begin(out, std::ptr::from_mut::<[u8]>(bytes), out_stamp, i32::MAX) };
            // SAFETY: as above; no byte is of both.
            unsafe { self.run(into, bytes, into_stamp) }?;
            read = Some(clock());
            self.runner.until(ticket, &mut *self.transport, &self.stop)
        })?;
        Ok(read.expect("it is read before there is no error"))
    }

    /// Returns this rank's `plan` on bytes, in the longest messages allowed.
    pub(super) fn schedule(&self, plan: &Plan) -> Arc<Schedule> {
        self.runner.schedule(plan, DType::U8)
    }

    /// Runs `schedule` on `data` and returns it. After an error the transport keeps it.
    pub(super) fn move_buffer(&mut self, schedule: &Arc<Schedule>, data: Buffer, stamp: Stamp) -> Result<Buffer> {
        // SAFETY: after an error the memory is never freed.
        keep_after_error(data, |bytes| unsafe { self.run(schedule, bytes, stamp) })
    }

    /// Replaces `words` by those of rank 0. Their number is the same on every rank.
    pub(super) fn tell<T: Pod>(&mut self, words: &mut [T], stamp: Stamp) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        let schedule = self.schedule(&ringpull_plan::broadcast(0, self.rank(), self.size(), bytes.len()));
        let mut data = Buffer::zeroed(bytes.len());
        data.bytes_mut().copy_from_slice(bytes);
        bytes.copy_from_slice(self.move_buffer(&schedule, data, stamp)?.bytes());
        Ok(())
    }

    /// Returns every rank's part, of which `fill` writes this rank's.
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

fn keep_after_error(mut data: Buffer, run: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Buffer> {
    match run(data.bytes_mut()) {
        Ok(()) => Ok(data),
        Err(cause) => {
            std::mem::forget(data);
            Err(cause)
        }
    }
}
