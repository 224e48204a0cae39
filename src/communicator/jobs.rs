//! The job that a communicator gives its engine: [`Collective`]. From the call to the end it owns the locks
//! of its tensors and its other memory, except while the transport has them. The collectives differ in the
//! function that begins their messages.

use std::sync::Arc;

use ringpull_allreduce::communicator::{BegunOperation, Communicator, Parts, Passage};
use ringpull_allreduce::interpreter::Memory;
use ringpull_allreduce::progress::{Job, Launch, Reply, Transfer};
use ringpull_base::{Buffer, DType, Error, Reduction, Result, Tensor, TensorMut, TensorRef};
use ringpull_kernels::reduce::{self, Arithmetic};

/// The ranks of an operation.
#[derive(Clone, Default)]
pub(super) struct Site {
    /// The operation's ranks, if they are not all ranks of the job.
    pub(super) set: Option<Arc<[usize]>>,
    pub(super) priority: i32,
}

impl Site {
    pub(super) fn with_priority(self, priority: i32) -> Self {
        Site { priority, ..self }
    }

    fn transfer(&self) -> Transfer {
        Transfer::Messages { priority: self.priority }
    }

    /// Returns the transfer of a sum. The engine itself does a sum of all ranks.
    fn transfer_of_sum(&self, (reduction, dtype): Arithmetic, len_bytes: usize) -> Transfer {
        match self.set {
            Some(_) => self.transfer(),
            None => Transfer::Sum { dtype, reduction, len_bytes, priority: self.priority, is_divided: false },
        }
    }

    fn passage(&self, launch: &Launch) -> Passage {
        Passage { stamp: launch.number, priority: self.priority }
    }
}

/// The arithmetic of the elements, and the work on the result after it has arrived.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) reduction: Reduction,
    pub(super) divisor: u32,
    pub(super) postscale: f64,
}

impl Default for Arrival {
    fn default() -> Self {
        Arrival { reduction: Reduction::Sum, divisor: 1, postscale: 1.0 }
    }
}

impl Arrival {
    fn is_nothing(self) -> bool {
        self.divisor == 1 && self.postscale == 1.0
    }

    fn apply(self, out: &mut TensorMut) {
        let dtype = out.dtype();
        if self.divisor > 1 {
            reduce::divide(dtype, out.bytes_mut(), self.divisor);
        }
        if self.postscale != 1.0 {
            reduce::scale(dtype, out.bytes_mut(), self.postscale);
        }
    }
}

/// The output of an operation.
pub(super) struct Output {
    tensor: Tensor,
    /// The lock of the output. `None` while the transport has it.
    guard: Option<TensorMut>,
    /// The caller's memory, if the result is made in other memory.
    caller: Option<Box<(Tensor, TensorMut)>>,
}

impl Output {
    /// Returns an output in the caller's memory, with its lock.
    pub(super) fn within(tensor: Tensor, guard: TensorMut) -> Self {
        Output { tensor, guard: Some(guard), caller: None }
    }

    /// Returns an output in separate memory, with a copy of the caller's content. The caller's memory gets
    /// the result at the end. For a job that goes on without lost ranks: a message that was given up may
    /// still arrive in the separate memory.
    pub(super) fn apart(tensor: Tensor, guard: TensorMut) -> Self {
        let own = Tensor::zeros(tensor.dtype(), tensor.shape());
        let mut own_guard = own.write();
        own_guard.copy_from(guard.bytes());
        Output { tensor: own, guard: Some(own_guard), caller: Some(Box::new((tensor, guard))) }
    }

    fn guard(&mut self) -> &mut TensorMut {
        self.guard.as_mut().expect("the transport has given back the output")
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.guard().bytes_mut()
    }

    pub(super) fn copy_from(&mut self, bytes: &[u8]) {
        self.guard().copy_from(bytes);
    }

    fn lend(&mut self) -> Memory {
        self.guard.take().map_or(Memory::Nothing, Memory::Written)
    }

    fn receive(&mut self, memory: Memory) {
        self.guard = Some(memory.into_tensor());
    }

    /// Returns true if the job is short. The comm thread then finishes it, which is quicker than waking
    /// another thread.
    fn is_soon_let_go(&self) -> bool {
        const SHORT_BYTES: usize = 64 << 10;
        self.guard.as_ref().is_some_and(|guard| guard.bytes().len() <= SHORT_BYTES && guard.is_simply_dropped())
    }

    /// Returns the result, which may be read from now on.
    fn finish(mut self) -> Tensor {
        let guard = self.guard.take();
        let Some(caller) = self.caller else {
            drop(guard);
            return self.tensor;
        };
        let (tensor, mut lent) = *caller;
        guard.into_iter().for_each(|guard| lent.copy_from(guard.bytes()));
        drop(lent);
        tensor
    }

    /// Fails the output: readers get `fault`.
    fn fail(self, fault: &Error) {
        let caller = self.caller.map(|caller| caller.1);
        self.guard.into_iter().chain(caller).for_each(|guard| guard.fail(fault.clone()));
    }
}

/// The result of a collective for its caller.
pub(super) trait Outcome: Send + Sized {
    /// Returns the result from the output and the numbers that other ranks have sent, if it can be made from
    /// them.
    fn of(out: Option<Tensor>, numbers: Vec<usize>) -> Option<Self>;
}

impl Outcome for () {
    fn of(_out: Option<Tensor>, _numbers: Vec<usize>) -> Option<Self> {
        Some(())
    }
}

impl Outcome for Tensor {
    fn of(out: Option<Tensor>, _numbers: Vec<usize>) -> Option<Self> {
        out
    }
}

impl Outcome for (Tensor, usize) {
    fn of(out: Option<Tensor>, numbers: Vec<usize>) -> Option<Self> {
        out.zip(numbers.first().copied())
    }
}

impl Outcome for (Tensor, Vec<usize>) {
    fn of(out: Option<Tensor>, numbers: Vec<usize>) -> Option<Self> {
        Some((out?, numbers))
    }
}

/// The tensors and numbers of a collective.
pub(super) struct CollectiveState {
    /// An input that is only read, until the end.
    input: Memory,
    out: Option<Output>,
    /// The numbers that other ranks have sent.
    numbers: Vec<usize>,
    /// Begins the messages that follow those under way. It gets the memory of the latter.
    next: Option<Next>,
}

/// Begins messages of a collective.
type Begin = Box<dyn FnOnce(&mut Communicator, &Launch, &mut CollectiveState) -> Result<BegunOperation> + Send>;
type Next = Box<dyn FnOnce(&Memory) -> Begin + Send>;

impl CollectiveState {
    fn lend(&mut self) -> Memory {
        self.out.as_mut().map_or(Memory::Nothing, Output::lend)
    }

    /// Returns the output. It is a new tensor if the caller gave none because its length was not known.
    fn output(&mut self, dtype: DType, shape: &[usize], what: &str) -> Result<&mut Output> {
        let given = if let Some(given) = self.out.take() {
            given
        } else {
            let tensor = Tensor::try_zeros(dtype, shape, what)?;
            let guard = tensor.write();
            Output::within(tensor, guard)
        };
        Ok(self.out.insert(given))
    }
}

/// A collective of a communicator.
pub(super) struct Collective<T> {
    transfer: Transfer,
    state: CollectiveState,
    arrival: Arrival,
    /// Begins the next messages, if there are any.
    begin: Option<Begin>,
    reply: Reply<T>,
}

impl<T> Collective<T> {
    /// Returns a collective with its result in `out`, if it has a result.
    fn new(
        transfer: Transfer,
        out: Option<Output>,
        reply: Reply<T>,
        begin: impl FnOnce(&mut Communicator, &Launch, &mut CollectiveState) -> Result<BegunOperation> + Send + 'static,
    ) -> Self {
        let state = CollectiveState { input: Memory::Nothing, out, numbers: Vec::new(), next: None };
        Collective { transfer, state, arrival: Arrival::default(), begin: Some(Box::new(begin)), reply }
    }

    fn with_arrival(self, arrival: Arrival) -> Self {
        Collective { arrival, ..self }
    }
}

impl<T: Outcome> Job for Collective<T> {
    fn transfer(&self) -> Transfer {
        self.transfer
    }

    /// In a frozen cycle an operation without output would not wait for other ranks, so the ranks meet in a
    /// sum of one byte.
    fn lend(&mut self) -> Memory {
        if self.state.out.is_none() { Memory::Own(Buffer::zeroed(1)) } else { self.state.lend() }
    }

    fn receive(&mut self, memory: Memory) {
        match (self.state.next.take(), &mut self.state.out) {
            (Some(next), _) => self.begin = Some(next(&memory)),
            (None, Some(out)) => out.receive(memory.into_output()),
            (None, None) => self.state.input = memory,
        }
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<BegunOperation>> {
        self.begin.take().map(|begin| begin(comm, launch, &mut self.state)).transpose()
    }

    fn is_soon_finished(&self) -> bool {
        match (&self.state.out, &self.state.input) {
            (Some(out), Memory::Nothing) => self.arrival.is_nothing() && out.is_soon_let_go(),
            (None, Memory::Nothing | Memory::Own(_)) => true,
            _ => false,
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let CollectiveState { input, out, numbers, .. } = self.state;
        drop(input);
        let out = out.map(|mut out| {
            self.arrival.apply(out.guard());
            out.finish()
        });
        let outcome = T::of(out, numbers).ok_or_else(|| Error::bug("a collective has ended without a result"))?;
        self.reply.send(Ok(outcome));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.state.out.into_iter().for_each(|out| out.fail(fault));
        self.reply.send(Err(fault.clone()));
    }
}

/// Returns an allreduce in the memory of its result, which holds this rank's contribution.
pub(super) fn allreduce(site: Site, out: Output, arrival: Arrival, reply: Reply<Tensor>) -> Collective<Tensor> {
    let arithmetic = (arrival.reduction, out.tensor.dtype());
    let transfer = site.transfer_of_sum(arithmetic, out.tensor.len_bytes());
    let begin = move |comm: &mut Communicator, launch: &Launch, state: &mut CollectiveState| {
        let set = site.set.as_deref().unwrap_or_default();
        Ok(comm.begin_allreduce_among(set, arithmetic, state.lend(), site.passage(launch)))
    };
    Collective::new(transfer, Some(out), reply, begin).with_arrival(arrival)
}

/// Returns a reduce-scatter to parts of `lens` elements.
pub(super) fn reduce_scatter(
    site: Site,
    (input, lens): (Memory, Vec<usize>),
    out: Output,
    arrival: Arrival,
    reply: Reply<Tensor>,
) -> Collective<Tensor> {
    let (transfer, arithmetic) = (site.transfer(), (arrival.reduction, out.tensor.dtype()));
    let begin = move |comm: &mut Communicator, launch: &Launch, state: &mut CollectiveState| {
        let (parts, buffers) = (Parts::of_lens(lens), (input, state.lend()));
        Ok(comm.begin_reduce_scatter(site.set.as_deref(), arithmetic, parts, buffers, site.passage(launch)))
    };
    Collective::new(transfer, Some(out), reply, begin).with_arrival(arrival)
}

/// Returns the numbers that ranks first send each other, as memory.
fn words(numbers: impl ExactSizeIterator<Item = usize>) -> Memory {
    let mut words = Buffer::zeroed(numbers.len() * size_of::<u64>());
    let all: &mut [u64] = bytemuck::cast_slice_mut(words.bytes_mut());
    all.iter_mut().zip(numbers).for_each(|(word, number)| *word = number as u64);
    Memory::Own(words)
}

fn numbers(words: &Memory) -> Vec<usize> {
    let words: &[u64] = bytemuck::cast_slice(words.bytes());
    words.iter().map(|word| *word as usize).collect()
}

/// Returns an allgather. Unless `lens` has the number of rows of each rank, the ranks first send each other
/// these numbers. The first number of `shape` becomes the number of all rows.
pub(super) fn allgather(
    site: Site,
    (input, lens): (TensorRef, Option<Vec<usize>>),
    mut shape: Vec<usize>,
    out: Option<Output>,
    reply: Reply<Tensor>,
) -> Collective<Tensor> {
    let (transfer, asked) = (site.transfer(), site.clone());
    let own = input.shape().first().copied().unwrap_or(1);
    let gather = move |lens: Vec<usize>| -> Begin {
        Box::new(move |comm, launch, state| {
            let set = site.set.as_deref();
            let ((place, _), dtype) = (comm.place_in(set), input.dtype());
            shape[0] = lens.iter().sum();
            let row_bytes = shape[1..].iter().product::<usize>() * dtype.size_bytes();
            let parts = Parts::of_lens(lens.iter().map(|rows| rows * row_bytes));
            let out = state.output(dtype, &shape, "the result of an allgather")?;
            out.bytes_mut()[parts.range(place..place + 1)].copy_from_slice(input.bytes());
            state.input = Memory::Read(input);
            Ok(comm.begin_allgather(set, parts, state.lend(), site.passage(launch)))
        })
    };
    let begin = move |comm: &mut Communicator, launch: &Launch, state: &mut CollectiveState| {
        if let Some(lens) = lens {
            return gather(lens)(comm, launch, state);
        }
        let set = asked.set.as_deref();
        let (place, size) = comm.place_in(set);
        let told = words((0..size).map(|rank| if rank == place { own } else { 0 }));
        let parts = Parts::of((0..=size).map(|rank| rank * size_of::<u64>()).collect());
        state.next = Some(Box::new(|told| gather(numbers(told))));
        Ok(comm.begin_allgather(set, parts, told, asked.passage(launch)))
    };
    Collective::new(transfer, out, reply, begin)
}

/// The rows of each block of an alltoall.
pub(super) struct Blocks {
    /// The rows to send to each rank.
    pub(super) given: Vec<usize>,
    /// The rows that come from each rank, if that is known.
    pub(super) taken: Option<Vec<usize>>,
}

/// Returns an alltoall. Unless the ranks know the rows that come from each rank, they first send each other
/// these numbers. The first number of `shape` becomes the number of all rows that come.
pub(super) fn alltoall(
    site: Site,
    input: TensorRef,
    Blocks { given, taken }: Blocks,
    mut shape: Vec<usize>,
    out: Option<Output>,
    reply: Reply<(Tensor, Vec<usize>)>,
) -> Collective<(Tensor, Vec<usize>)> {
    let (transfer, asked, told) = (site.transfer(), site.clone(), given.clone());
    let exchange = move |taken: Vec<usize>| -> Begin {
        Box::new(move |comm, launch, state| {
            let dtype = input.dtype();
            shape[0] = taken.iter().sum();
            let row_bytes = shape[1..].iter().product::<usize>() * dtype.size_bytes();
            let bytes = |rows: &[usize]| -> Vec<usize> { rows.iter().map(|rows| rows * row_bytes).collect() };
            let lens = (bytes(&given), bytes(&taken));
            state.numbers = taken;
            state.output(dtype, &shape, "the result of an alltoall")?;
            let buffers = (Memory::Read(input), state.lend());
            Ok(comm.begin_alltoall(site.set.as_deref(), (&lens.0, &lens.1), buffers, site.passage(launch)))
        })
    };
    let begin = move |comm: &mut Communicator, launch: &Launch, state: &mut CollectiveState| {
        if let Some(taken) = taken {
            return exchange(taken)(comm, launch, state);
        }
        let set = asked.set.as_deref();
        let (_, size) = comm.place_in(set);
        let lens = vec![size_of::<u64>(); size];
        let buffers = (words(told.iter().copied()), words(std::iter::repeat_n(0, size)));
        state.next = Some(Box::new(|told| exchange(numbers(told.output()))));
        Ok(comm.begin_alltoall(set, (&lens, &lens), buffers, asked.passage(launch)))
    };
    Collective::new(transfer, out, reply, begin)
}

/// The memory of a broadcast.
pub(super) enum Travels {
    /// The input of the rank that sends a message, which is only read.
    Input(Memory),
    /// The output.
    Out(Output),
}

/// Returns a broadcast of the `root`'s data. A message is a broadcast between two ranks of its site, and its
/// launch names them.
pub(super) fn broadcast<T>(site: Site, root: usize, travels: Travels, reply: Reply<T>) -> Collective<T> {
    let transfer = site.transfer();
    let (input, out) = match travels {
        Travels::Input(input) => (Some(input), None),
        Travels::Out(out) => (None, Some(out)),
    };
    let begin = move |comm: &mut Communicator, launch: &Launch, state: &mut CollectiveState| {
        let (passage, set) = (site.passage(launch), site.set.as_deref());
        let data = input.unwrap_or_else(|| state.lend());
        let Some(ends) = launch.ends() else {
            return Ok(comm.begin_broadcast(set, root, data, passage));
        };
        state.numbers.extend(set.and_then(|ranks| ranks.iter().position(|rank| *rank == ends[0])));
        Ok(comm.begin_broadcast(Some(&ends), 0, data, passage))
    };
    Collective::new(transfer, out, reply, begin)
}

/// Returns a collective without work, such as a barrier or a split. It is done when every rank has called it.
pub(super) fn rendezvous(site: &Site, reply: Reply<()>) -> Collective<()> {
    let transfer = site.transfer_of_sum((Reduction::Sum, DType::U8), 1);
    let done = |_: &mut Communicator, _: &Launch, _: &mut CollectiveState| Ok(BegunOperation::Done(Memory::Nothing));
    Collective::new(transfer, None, reply, done)
}
