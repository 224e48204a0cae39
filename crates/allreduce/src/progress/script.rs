//! The messages of a job, written as an async function. The function begins a collective, waits for the
//! memory of its result, and goes on.
//!
//! The comm thread polls the function between other operations. So a job of several collectives is written
//! like blocking code, but holds up no other job.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use ringpull_base::{Buffer, DType, Reduction, Result};
use ringpull_plan::{Model, Parts};

use crate::communicator::{BegunOperation, Communicator, Passage};
use crate::interpreter::Memory;

type Begin = Box<dyn FnOnce(&mut Communicator) -> Result<BegunOperation> + Send>;

/// The collective that a script has asked for, or the memory of the collective that is done.
#[derive(Default)]
enum Exchange {
    #[default]
    Nothing,
    Asked(Begin),
    Done(Memory),
}

/// The collectives that a script may begin, one after another. All ranks take part in each.
pub struct Collectives {
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The model of the cluster.
    pub model: Model,
    passage: Passage,
    exchange: Arc<Mutex<Exchange>>,
}

impl Collectives {
    async fn run(&self, begin: impl FnOnce(&mut Communicator) -> Result<BegunOperation> + Send + 'static) -> Memory {
        *self.exchange.lock() = Exchange::Asked(Box::new(begin));
        poll_fn(|_| {
            let mut exchange = self.exchange.lock();
            match std::mem::take(&mut *exchange) {
                Exchange::Done(memory) => Poll::Ready(memory),
                other => {
                    *exchange = other;
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Gathers a part from every rank. `parts` has their bounds in bytes, and `fill` writes this rank's part.
    pub async fn gather(&self, parts: Parts, fill: impl FnOnce(&mut [u8])) -> Result<Buffer> {
        let (passage, mut all) = (self.passage, Buffer::try_zeroed(parts.len(), "the data of all ranks")?);
        fill(&mut all.bytes_mut()[parts.range(self.rank..self.rank + 1)]);
        let begin = move |comm: &mut Communicator| Ok(comm.begin_allgather(None, parts, Memory::Own(all), passage));
        Ok(self.run(begin).await.into_buffer())
    }

    /// Returns every rank's `own` word.
    pub async fn gather_word(&self, own: u64) -> Result<Vec<u64>> {
        const WORD: usize = size_of::<u64>();
        let parts = Parts::of((0..=self.size).map(|rank| rank * WORD).collect());
        let all = self.gather(parts, |word| word.copy_from_slice(&own.to_ne_bytes())).await?;
        Ok(all.bytes().chunks_exact(WORD).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Exchanges blocks with every rank. Returns the received blocks in the order of the ranks. `input` has
    /// `given[r]` bytes for rank `r`, and `taken[r]` bytes come from it.
    pub async fn alltoall(&self, (given, taken): (Vec<usize>, Vec<usize>), input: Memory) -> Result<Buffer> {
        let out = Buffer::try_zeroed(taken.iter().sum(), "the blocks of an alltoall")?;
        let (passage, out) = (self.passage, Memory::Own(out));
        let begin =
            move |comm: &mut Communicator| Ok(comm.begin_alltoall(None, (&given, &taken), (input, out), passage));
        Ok(self.run(begin).await.into_output().into_buffer())
    }

    /// Returns the sum of every rank's `data`.
    pub async fn allreduce(&self, dtype: DType, data: Buffer) -> Buffer {
        let Passage { stamp, priority } = self.passage;
        let begin = move |comm: &mut Communicator| {
            comm.begin_allreduce((Reduction::Sum, dtype), Memory::Own(data), stamp, (priority, 0))
        };
        self.run(begin).await.into_buffer()
    }
}

/// A script under way. Its result is a `T`.
pub struct Script<T> {
    work: Pin<Box<dyn Future<Output = Result<T>> + Send>>,
    exchange: Arc<Mutex<Exchange>>,
}

/// A script's next collective, or its result.
pub enum ScriptStep<T> {
    /// A collective has begun. When it is done, its memory is to be given to [`receive`](Script::receive).
    Begun(BegunOperation),
    /// The script has ended.
    Ended(T),
}

impl<T> Script<T> {
    /// Returns a script that runs `work`. Its messages have the stamp and the priority of `passage`.
    pub fn new<W>(comm: &Communicator, passage: Passage, work: impl FnOnce(Collectives) -> W) -> Self
    where
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let exchange = Arc::new(Mutex::new(Exchange::Nothing));
        let (rank, size, model) = (comm.rank(), comm.size(), comm.learned().model);
        let collectives = Collectives { rank, size, model, passage, exchange: Arc::clone(&exchange) };
        Script { work: Box::pin(work(collectives)), exchange }
    }

    /// Runs the script until it begins a collective or ends.
    pub fn advance(&mut self, comm: &mut Communicator) -> Result<ScriptStep<T>> {
        match self.work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome.map(ScriptStep::Ended),
            Poll::Pending => {
                let asked = std::mem::take(&mut *self.exchange.lock());
                let Exchange::Asked(begin) = asked else { unreachable!("a script waits for its collectives only") };
                begin(comm).map(ScriptStep::Begun)
            }
        }
    }

    /// Runs the script to its end. For a job that runs alone, because it blocks.
    pub fn run(mut self, comm: &mut Communicator) -> Result<T> {
        loop {
            match self.advance(comm)? {
                ScriptStep::Begun(begun) => self.receive(comm.complete(begun)?),
                ScriptStep::Ended(value) => return Ok(value),
            }
        }
    }

    /// Takes the memory of the collective that is done.
    pub fn receive(&mut self, memory: Memory) {
        *self.exchange.lock() = Exchange::Done(memory);
    }
}
