//! Jobs. A job is an operation between its call and its end.

use std::ops::Range;

use ringpull_base::{Buffer, DType, Error, Key, Reduction, Result};

use crate::communicator::{BegunOperation, Communicator, PartUpdate};
use crate::interpreter::Memory;
use crate::progress::answer::Reply;
use crate::progress::messages::{Launch, Operation, Terms, Topic, Transfer};

/// Makes the jobs of a store on a rank that has joined.
pub trait StandIn: Send + Sync {
    /// Returns a job that adds zeros, for a call that others have made and this rank has not. Returns an
    /// error if no job can be made for it.
    fn stand_in(&self, key: &Key, operation: &Operation, terms: &Terms) -> Result<Submission>;

    /// Returns the last finished sum of the key, for ranks that lack it, or `None` if there is none.
    fn last_sum(&self, _key: &Key) -> Option<Vec<u8>> {
        None
    }

    /// Returns an error if the store cannot go on without the lost ranks.
    fn check_complete(&self) -> Result<()> {
        Ok(())
    }
}

/// An operation between its call and its end.
pub trait Job: Send {
    /// The job's use of the transport.
    fn transfer(&self) -> Transfer {
        Transfer::Alone
    }

    /// Returns the memory to sum, for [`Transfer::Sum`]. Called on the comm thread. The memory comes back
    /// with the sum by [`receive`](Self::receive), but not after a fault.
    fn lend(&mut self) -> Memory {
        Memory::Nothing
    }

    /// Takes back the memory that `lend` or `advance` has passed on, when the transport is done with it.
    fn receive(&mut self, _memory: Memory) {}

    /// Returns the update of this rank's part, for a divided [`Transfer::Sum`]. `part` is a range of bytes of
    /// the memory to sum. Called once, before `lend`, on the comm thread, when no earlier operation of this
    /// topic is under way.
    fn part_update(&mut self, _part: Range<usize>) -> Result<PartUpdate> {
        Err(Error::bug("an operation is divided and has no update"))
    }

    /// Begins the next messages of a job, for [`Transfer::Messages`]. Called on the comm thread, and called
    /// again when the messages are done and their memory has been [received](Self::receive). Returns `None`
    /// if no message is left. Blocks at most until earlier operations of the job's key are finished.
    fn advance(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<Option<BegunOperation>> {
        Ok(None)
    }

    /// Does the collective part of the job in one call, for [`Transfer::Alone`]. Called on the comm thread.
    fn run(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        Err(Error::bug("an operation that is a sum or sends messages was run alone"))
    }

    /// Returns true if `finish` takes less time than it takes to wake another thread. The comm thread then
    /// calls `finish`, if no earlier job is left to finish.
    fn is_soon_finished(&self) -> bool {
        false
    }

    /// Does the rest of the job on this rank alone, on the finishing thread or the comm thread.
    fn finish(self: Box<Self>) -> Result<()>;

    /// Called instead of `finish` when the job will never be done. Memory that the job has passed on and not
    /// received is leaked already.
    fn fail(self: Box<Self>, fault: &Error);

    /// Prepares the job for a retry with other ranks, without the memory that it has passed on. Returns false
    /// if the job cannot be retried.
    fn again(&mut self) -> bool {
        false
    }

    /// Finishes the job with the sum of other ranks that have done the operation.
    fn given(self: Box<Self>, _sum: &[u8]) -> Result<()> {
        Err(Error::bug("an operation was done by other ranks, and its job cannot take their sum"))
    }
}

/// A collective that comes before a job, on the comm thread, when no other operation is under way.
pub type Check = Box<dyn FnMut(&mut Communicator, &Launch) -> Result<()> + Send>;

/// A job as the engine has it, with the steps around it.
pub struct Submission {
    pub(super) job: Box<dyn Job>,
    /// The check before the job. Either all ranks have one or none has.
    pub(super) check: Option<Check>,
    /// The call, if it can be made again in the next generation of ranks.
    pub(super) call: Option<Box<SavedCall>>,
}

impl Submission {
    /// A job without a check.
    pub fn new(job: impl Job + 'static) -> Self {
        Submission { job: Box::new(job), check: None, call: None }
    }

    /// Returns the submission with a check that runs first, if there is one.
    #[must_use]
    pub fn after(self, check: Option<Check>) -> Self {
        Submission { check, ..self }
    }

    /// Returns true if no other operation of all ranks may be under way when the job begins.
    pub(super) fn is_alone(&self) -> bool {
        self.check.is_some() || self.job.transfer() == Transfer::Alone
    }
}

/// A call of this rank.
pub(super) struct SavedCall {
    /// The call's number among this rank's calls.
    pub(super) place: u64,
    pub(super) topic: Topic,
    pub(super) operation: Operation,
    pub(super) terms: Terms,
}

pub(super) type CollectiveWork<T> = Box<dyn FnOnce(&mut Communicator, u32) -> Result<T> + Send>;

/// A collective that the caller waits for.
pub(super) struct DirectCollective<T> {
    work: Option<CollectiveWork<T>>,
    value: Option<T>,
    result: Reply<T>,
}

impl<T> DirectCollective<T> {
    pub(super) fn new(work: CollectiveWork<T>, result: Reply<T>) -> Self {
        DirectCollective { work: Some(work), value: None, result }
    }
}

impl<T: Send> Job for DirectCollective<T> {
    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        if let Some(work) = self.work.take() {
            self.value = Some(work(comm, launch.number)?);
        }
        Ok(())
    }

    fn is_soon_finished(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let DirectCollective { value, result, .. } = *self;
        if let Some(value) = value {
            result.send(Ok(value));
        }
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.result.send(Err(fault.clone()));
    }
}

/// A barrier that the caller waits for. It is a sum of one byte, which is done when every rank has called the
/// barrier.
pub(super) struct Barrier {
    result: Reply<()>,
}

impl Barrier {
    pub(super) fn new(result: Reply<()>) -> Self {
        Barrier { result }
    }
}

impl Job for Barrier {
    fn transfer(&self) -> Transfer {
        Transfer::Sum {
            dtype: DType::U8,
            reduction: Reduction::Sum,
            len_bytes: 1,
            priority: i32::MAX,
            is_divided: false,
        }
    }

    fn lend(&mut self) -> Memory {
        Memory::Own(Buffer::zeroed(1))
    }

    fn is_soon_finished(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.result.send(Ok(()));
        Ok(())
    }

    fn again(&mut self) -> bool {
        true
    }

    fn given(self: Box<Self>, _sum: &[u8]) -> Result<()> {
        self.finish()
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.result.send(Err(fault.clone()));
    }
}
