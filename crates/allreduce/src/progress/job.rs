//! Jobs: operations between their call and their end.

use std::ops::Range;

use crossbeam_channel::{Receiver, Sender};

use ringpull_base::{DType, Error, Key, Reduction, Result, Tensor};

use crate::communicator::{Communicator, PartUpdate};
use crate::interpreter::Ticket;
use crate::progress::messages::{Launch, Operation, Terms, Topic, Transfer};

/// Makes the jobs of a store on a rank that has joined.
pub trait StandIn: Send + Sync {
    /// Returns the job of a call that others have made and this rank has not: it adds zeros. Returns an error
    /// if no job can stand in for it.
    fn stand_in(&self, key: &Key, operation: &Operation, terms: &Terms) -> Result<Box<dyn Job>>;

    /// Returns the sum of the key's last operation that is done here, for ranks that lack it; `None` if there
    /// is none.
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

    /// Returns true if `check` comes before all else; the same on every rank.
    fn checks(&self) -> bool {
        false
    }

    /// Runs a collective that comes first, on the comm thread, when no other operation is under way.
    fn check(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        Ok(())
    }

    /// Returns the memory to sum, for [`Transfer::Sum`]. The sum is returned in it; it is the same memory
    /// each time. On the comm thread.
    fn addend(&mut self) -> &mut [u8] {
        &mut []
    }

    /// Returns the update of this rank's part, a range of the addend in bytes, for a divided
    /// [`Transfer::Sum`]. Called once, before `addend`, on the comm thread, when no earlier operation of the
    /// same topic is under way.
    fn part_update(&mut self, _part: Range<usize>) -> Result<PartUpdate> {
        Err(Error::bug("an operation is divided and has no update"))
    }

    /// Begins the next messages of a job, for [`Transfer::Messages`], on the comm thread. Called again when
    /// the ticket that it returned last is finished. Returns `None` if no message is left. It blocks only if
    /// it is of all ranks and [`sums_block`](Communicator::sums_block).
    fn advance(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<Option<Ticket>> {
        Ok(None)
    }

    /// Does the collective part as a whole, for [`Transfer::Alone`], on the comm thread.
    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()>;

    /// Returns true if `finish` takes less time than to wake another thread. The comm thread then calls it,
    /// if no earlier job is left to finish.
    fn is_soon_finished(&self) -> bool {
        false
    }

    /// Does the rest of the job on this rank alone, on the finishing thread or the comm thread.
    fn finish(self: Box<Self>) -> Result<()>;

    /// Called instead of `finish` when the job will never be done. The transport may still use the job's
    /// memory, if it was ever given any of it.
    fn fail(self: Box<Self>, fault: &Error);

    /// Prepares the job for a retry by other ranks. Returns false if the job cannot be retried. A retry uses
    /// memory that the transport has never had, because the transport may still use the memory that it has.
    fn again(&mut self) -> bool {
        false
    }

    /// Finishes the job with the sum of other ranks that have done the operation.
    fn given(self: Box<Self>, _sum: &[u8]) -> Result<()> {
        Err(Error::bug("an operation was done elsewhere, and cannot be given"))
    }

    /// Returns the saved inputs of the job for a retry, when its generation of ranks ends; `None` if it
    /// cannot be retried.
    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn orphan(&mut self) -> Option<SavedOperation> {
        None
    }
}

/// An operation that was called and is not done.
pub(super) struct SavedOperation {
    /// Its place among the calls of this rank.
    pub(super) place: u64,
    pub(super) topic: Topic,
    pub(super) operation: Operation,
    pub(super) terms: Terms,
    pub(super) job: Box<dyn Job>,
}

/// The sender of a job's answer to its caller.
pub struct Reply<T>(Sender<Result<T>>);

/// A job's answer to its caller, who may wait for it: see [`Engine::wait_for`](super::Engine::wait_for).
pub struct Answer<T>(pub(super) Receiver<Result<T>>);

/// Returns the two ends of an answer.
pub fn answer<T>() -> (Reply<T>, Answer<T>) {
    let (result, answer) = crossbeam_channel::bounded(1);
    (Reply(result), Answer(answer))
}

impl<T> Reply<T> {
    /// Sends the answer; a caller that has gone needs none.
    pub fn send(self, outcome: Result<T>) {
        drop(self.0.send(outcome));
    }
}

impl<T> Answer<T> {
    /// Returns true if the answer has arrived.
    pub fn is_there(&self) -> bool {
        !self.0.is_empty()
    }
}

pub(super) type CollectiveWork<T> = Box<dyn FnOnce(&mut Communicator, &[Tensor], u32) -> Result<T> + Send>;

/// A collective that the caller waits for.
pub(super) struct DirectCollective<T> {
    work: Option<CollectiveWork<T>>,
    /// The memory that the work lets the transport use.
    memory: Vec<Tensor>,
    value: Option<T>,
    result: Sender<Result<T>>,
}

impl<T> DirectCollective<T> {
    pub(super) fn new(work: CollectiveWork<T>, memory: Vec<Tensor>, result: Sender<Result<T>>) -> Self {
        DirectCollective { work: Some(work), memory, value: None, result }
    }
}

impl<T: Send> Job for DirectCollective<T> {
    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        if let Some(work) = self.work.take() {
            self.value = Some(work(comm, &self.memory, launch.number)?);
        }
        Ok(())
    }

    fn is_soon_finished(&self) -> bool {
        // To free memory may take long.
        self.memory.is_empty()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        // A caller that has gone needs no answer.
        self.value.into_iter().for_each(|value| drop(self.result.send(Ok(value))));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        drop(self.result.send(Err(fault.clone())));
        if self.work.is_none() {
            // The transport may still use it.
            std::mem::forget(self.memory);
        }
    }
}

/// A barrier that the caller waits for: a sum of one byte, which is there when every rank has come.
pub(super) struct Barrier {
    byte: Box<[u8; 1]>,
    result: Sender<Result<()>>,
}

impl Barrier {
    pub(super) fn new(result: Sender<Result<()>>) -> Self {
        Barrier { byte: Box::new([0]), result }
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

    fn addend(&mut self) -> &mut [u8] {
        &mut *self.byte
    }

    /// It launches when every rank has called it: there is nothing left to be done.
    fn run(&mut self, _host: &mut Communicator, _launch: &Launch) -> Result<()> {
        Ok(())
    }

    fn is_soon_finished(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        drop(self.result.send(Ok(())));
        Ok(())
    }

    fn again(&mut self) -> bool {
        std::mem::forget(std::mem::replace(&mut self.byte, Box::new([0])));
        true
    }

    fn given(self: Box<Self>, _sum: &[u8]) -> Result<()> {
        self.finish()
    }

    fn fail(self: Box<Self>, fault: &Error) {
        drop(self.result.send(Err(fault.clone())));
        // The transport may still write it.
        std::mem::forget(self.byte);
    }
}
