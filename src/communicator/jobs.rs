//! The jobs that a communicator gives its engine. A job owns the locks of its tensors, and memory of its own,
//! from the call to the end, but for the time in which the transport has them.

use std::sync::Arc;

use ringpull_allreduce::communicator::{Begun, Communicator, Parts, Passage};
use ringpull_allreduce::interpreter::Memory;
use ringpull_allreduce::progress::{Job, Launch, Reply, Transfer};
use ringpull_base::{Buffer, DType, Error, Reduction, Result, Tensor, TensorMut, TensorRef};
use ringpull_kernels::reduce;

/// The ranks of an operation.
#[derive(Clone, Default)]
pub(super) struct Site {
    /// Its ranks, where they are not all of the job.
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

    fn passage(&self, launch: &Launch) -> Passage {
        Passage { stamp: launch.number, priority: self.priority }
    }
}

/// The arithmetic of the ranks' elements, and the work on the result when it is there.
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
    /// `None` while the transport has it.
    guard: Option<TensorMut>,
    /// The caller's memory, if the result is made elsewhere.
    caller: Option<Box<(Tensor, TensorMut)>>,
}

impl Output {
    /// In this memory, with its lock.
    pub(super) fn within(tensor: Tensor, guard: TensorMut) -> Self {
        Output { tensor, guard: Some(guard), caller: None }
    }

    /// In memory of its own, with the content of the caller's, which gets the result at the end. For a job
    /// that goes on without lost ranks: a message that was given up may still arrive where it was to go.
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

    /// A short job is finished by the comm thread, sooner than another would wake up.
    fn is_soon_let_go(&self) -> bool {
        const SHORT_BYTES: usize = 64 << 10;
        self.guard.as_ref().is_some_and(|guard| guard.bytes().len() <= SHORT_BYTES && guard.is_simply_dropped())
    }

    /// The result, which may be read from now on.
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

    /// It is not to be read.
    fn fail(self, fault: &Error) {
        let caller = self.caller.map(|caller| caller.1);
        self.guard.into_iter().chain(caller).for_each(|guard| guard.fail(fault.clone()));
    }
}

/// An allreduce, in the memory of its result.
pub(super) struct Reduce {
    site: Site,
    out: Output,
    arrival: Arrival,
    reply: Reply<Tensor>,
    was_begun: bool,
}

impl Reduce {
    /// `out` holds this rank's contribution.
    pub(super) fn new(site: Site, out: Output, arrival: Arrival, reply: Reply<Tensor>) -> Self {
        Reduce { site, out, arrival, reply, was_begun: false }
    }
}

impl Job for Reduce {
    fn transfer(&self) -> Transfer {
        if self.site.set.is_some() {
            return self.site.transfer();
        }
        Transfer::Sum {
            dtype: self.out.tensor.dtype(),
            reduction: self.arrival.reduction,
            len_bytes: self.out.tensor.len_bytes(),
            priority: self.site.priority,
            is_divided: false,
        }
    }

    fn lend(&mut self) -> Memory {
        self.out.lend()
    }

    fn receive(&mut self, memory: Memory) {
        self.out.receive(memory);
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Begun>> {
        if std::mem::replace(&mut self.was_begun, true) {
            return Ok(None);
        }
        let (arithmetic, passage) = ((self.arrival.reduction, self.out.tensor.dtype()), self.site.passage(launch));
        let set = self.site.set.as_deref().unwrap_or_default();
        Ok(Some(comm.begin_allreduce_among(set, arithmetic, self.out.lend(), passage)))
    }

    fn is_soon_finished(&self) -> bool {
        self.arrival.is_nothing() && self.out.is_soon_let_go()
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.arrival.apply(self.out.guard());
        self.reply.send(Ok(self.out.finish()));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.out.fail(fault);
        self.reply.send(Err(fault.clone()));
    }
}

/// A reduce-scatter.
pub(super) struct Scatter {
    site: Site,
    input: Memory,
    /// The elements of each rank's part.
    lens: Vec<usize>,
    out: Output,
    arrival: Arrival,
    reply: Reply<Tensor>,
    was_begun: bool,
}

impl Scatter {
    pub(super) fn new(
        site: Site,
        (input, lens): (Memory, Vec<usize>),
        out: Output,
        arrival: Arrival,
        reply: Reply<Tensor>,
    ) -> Self {
        Scatter { site, input, lens, out, arrival, reply, was_begun: false }
    }
}

impl Job for Scatter {
    fn transfer(&self) -> Transfer {
        self.site.transfer()
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Begun>> {
        if std::mem::replace(&mut self.was_begun, true) {
            return Ok(None);
        }
        let (arithmetic, passage) = ((self.arrival.reduction, self.out.tensor.dtype()), self.site.passage(launch));
        let parts = Parts::of_lens(self.lens.iter().copied());
        let buffers = (std::mem::take(&mut self.input), self.out.lend());
        comm.begin_reduce_scatter(self.site.set.as_deref(), arithmetic, parts, buffers, passage).map(Some)
    }

    fn receive(&mut self, memory: Memory) {
        self.out.receive(memory.into_pair().1);
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.arrival.apply(self.out.guard());
        self.reply.send(Ok(self.out.finish()));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.out.fail(fault);
        self.reply.send(Err(fault.clone()));
    }
}

/// Numbers that ranks tell each other first, as memory.
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

/// The output of an operation whose length was not known before, in a new tensor, if none was given.
fn output<'a>(out: &'a mut Option<Output>, dtype: DType, shape: &[usize], what: &str) -> Result<&'a mut Output> {
    let given = if let Some(given) = out.take() {
        given
    } else {
        let tensor = Tensor::try_zeros(dtype, shape, what)?;
        let guard = tensor.write();
        Output::within(tensor, guard)
    };
    Ok(out.insert(given))
}

/// An allgather. Unless every rank has said how many rows there are, the ranks tell each other first.
pub(super) struct Allgather {
    site: Site,
    input: TensorRef,
    /// The rows of each rank.
    lens: Option<Vec<usize>>,
    shape: Vec<usize>,
    out: Option<Output>,
    reply: Reply<Tensor>,
    was_begun: bool,
}

impl Allgather {
    /// The first number of `shape` is to be all rows.
    pub(super) fn new(
        site: Site,
        (input, lens): (TensorRef, Option<Vec<usize>>),
        shape: Vec<usize>,
        out: Option<Output>,
        reply: Reply<Tensor>,
    ) -> Self {
        Allgather { site, input, lens, shape, out, reply, was_begun: false }
    }

    fn own_rows(&self) -> usize {
        self.input.shape().first().copied().unwrap_or(1)
    }
}

impl Job for Allgather {
    fn transfer(&self) -> Transfer {
        self.site.transfer()
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Begun>> {
        if self.was_begun {
            return Ok(None);
        }
        let (set, passage) = (self.site.set.as_deref(), self.site.passage(launch));
        let (place, size) = comm.place_in(set);
        let Some(lens) = &self.lens else {
            let own = self.own_rows();
            let told = words((0..size).map(|rank| if rank == place { own } else { 0 }));
            let parts = Parts::of((0..=size).map(|rank| rank * size_of::<u64>()).collect());
            return comm.begin_allgather(set, parts, told, passage).map(Some);
        };
        self.was_begun = true;
        self.shape[0] = lens.iter().sum();
        let dtype = self.input.dtype();
        let row_bytes = self.shape[1..].iter().product::<usize>() * dtype.size_bytes();
        let parts = Parts::of_lens(lens.iter().map(|rows| rows * row_bytes));
        let out = output(&mut self.out, dtype, &self.shape, "the result of an allgather")?;
        out.bytes_mut()[parts.range(place..place + 1)].copy_from_slice(self.input.bytes());
        comm.begin_allgather(set, parts, out.lend(), passage).map(Some)
    }

    fn receive(&mut self, memory: Memory) {
        match &mut self.out {
            Some(out) if self.was_begun => out.receive(memory),
            _ => self.lens = Some(numbers(&memory)),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        drop(self.input);
        let Some(out) = self.out else { return Err(Error::bug("an allgather has ended without a result")) };
        self.reply.send(Ok(out.finish()));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.out.into_iter().for_each(|out| out.fail(fault));
        self.reply.send(Err(fault.clone()));
    }
}

/// The rows of each block of an alltoall.
pub(super) struct Blocks {
    /// For each rank.
    pub(super) given: Vec<usize>,
    /// From each rank, if that is known.
    pub(super) taken: Option<Vec<usize>>,
    pub(super) are_equal: bool,
}

/// An alltoall. Unless a rank knows what comes from each other, they tell each other first.
pub(super) struct Alltoall {
    site: Site,
    dtype: DType,
    input: Memory,
    blocks: Blocks,
    shape: Vec<usize>,
    out: Option<Output>,
    reply: Reply<(Tensor, Vec<usize>)>,
    was_begun: bool,
}

impl Alltoall {
    /// The first number of `shape` is to be all rows that come.
    pub(super) fn new(
        site: Site,
        input: TensorRef,
        blocks: Blocks,
        shape: Vec<usize>,
        out: Option<Output>,
        reply: Reply<(Tensor, Vec<usize>)>,
    ) -> Self {
        let (dtype, input) = (input.dtype(), Memory::Read(input));
        Alltoall { site, dtype, input, blocks, shape, out, reply, was_begun: false }
    }
}

impl Job for Alltoall {
    fn transfer(&self) -> Transfer {
        self.site.transfer()
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Begun>> {
        if self.was_begun {
            return Ok(None);
        }
        let (set, passage) = (self.site.set.as_deref(), self.site.passage(launch));
        let (_, size) = comm.place_in(set);
        let Blocks { given, taken, are_equal } = &self.blocks;
        let Some(taken) = taken else {
            let lens = vec![size_of::<u64>(); size];
            let buffers = (words(given.iter().copied()), words(std::iter::repeat_n(0, size)));
            return comm.begin_alltoall(set, (&lens, &lens), true, buffers, passage).map(Some);
        };
        self.was_begun = true;
        self.shape[0] = taken.iter().sum();
        let row_bytes = self.shape[1..].iter().product::<usize>() * self.dtype.size_bytes();
        let bytes = |rows: &[usize]| -> Vec<usize> { rows.iter().map(|rows| rows * row_bytes).collect() };
        let lens = (bytes(given), bytes(taken));
        let out = output(&mut self.out, self.dtype, &self.shape, "the result of an alltoall")?;
        let buffers = (std::mem::take(&mut self.input), out.lend());
        comm.begin_alltoall(set, (&lens.0, &lens.1), *are_equal, buffers, passage).map(Some)
    }

    fn receive(&mut self, memory: Memory) {
        let (_, received) = memory.into_pair();
        match &mut self.out {
            Some(out) if self.was_begun => out.receive(received),
            _ => self.blocks.taken = Some(numbers(&received)),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Some(out) = self.out else { return Err(Error::bug("an alltoall has ended without a result")) };
        self.reply.send(Ok((out.finish(), self.blocks.taken.unwrap_or_default())));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.out.into_iter().for_each(|out| out.fail(fault));
        self.reply.send(Err(fault.clone()));
    }
}

/// The content of a broadcast.
pub(super) enum Travels {
    /// On the root of a send: its input, which is only read.
    Input(Memory),
    /// The result.
    Out(Output),
}

/// The result of a broadcast for its caller.
pub(super) trait Outcome: Send + Sized {
    fn of(tensor: Option<Tensor>, from: usize) -> Option<Self>;
}

impl Outcome for () {
    fn of(_tensor: Option<Tensor>, _from: usize) -> Option<Self> {
        Some(())
    }
}

impl Outcome for Tensor {
    fn of(tensor: Option<Tensor>, _from: usize) -> Option<Self> {
        tensor
    }
}

impl Outcome for (Tensor, usize) {
    fn of(tensor: Option<Tensor>, from: usize) -> Option<Self> {
        tensor.map(|tensor| (tensor, from))
    }
}

/// A broadcast. A message is one between two ranks of its site, which its launch names.
pub(super) struct Bcast<T> {
    site: Site,
    /// The rank of the data; of a message, when it has begun.
    root: usize,
    travels: Travels,
    reply: Reply<T>,
    was_begun: bool,
}

impl<T> Bcast<T> {
    pub(super) fn new(site: Site, root: usize, travels: Travels, reply: Reply<T>) -> Self {
        Bcast { site, root, travels, reply, was_begun: false }
    }
}

impl<T: Outcome> Job for Bcast<T> {
    fn transfer(&self) -> Transfer {
        self.site.transfer()
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Begun>> {
        if std::mem::replace(&mut self.was_begun, true) {
            return Ok(None);
        }
        let data = match &mut self.travels {
            Travels::Input(input) => std::mem::take(input),
            Travels::Out(out) => out.lend(),
        };
        let (passage, set) = (self.site.passage(launch), self.site.set.as_deref());
        let ends = launch.ends();
        if let (Some([from, _]), Some(ranks)) = (ends, set) {
            self.root = ranks.iter().position(|rank| *rank == from).unwrap_or_default();
        }
        let (set, root) = ends.as_ref().map_or((set, self.root), |ends| (Some(&ends[..]), 0));
        comm.begin_broadcast(set, root, data, passage).map(Some)
    }

    fn receive(&mut self, memory: Memory) {
        match &mut self.travels {
            Travels::Input(input) => *input = memory,
            Travels::Out(out) => out.receive(memory),
        }
    }

    fn is_soon_finished(&self) -> bool {
        matches!(&self.travels, Travels::Out(out) if out.is_soon_let_go())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Bcast { travels, root, reply, .. } = *self;
        let tensor = match travels {
            Travels::Input(_) => None,
            Travels::Out(out) => Some(out.finish()),
        };
        if let Some(outcome) = T::of(tensor, root) {
            reply.send(Ok(outcome));
        }
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        if let Travels::Out(out) = self.travels {
            out.fail(fault);
        }
        self.reply.send(Err(fault.clone()));
    }
}

/// A job without work: it is done when every rank has called it, such as a barrier or a split.
pub(super) struct Nothing {
    site: Site,
    reply: Reply<()>,
}

impl Nothing {
    pub(super) fn new(site: Site, reply: Reply<()>) -> Self {
        Nothing { site, reply }
    }
}

impl Job for Nothing {
    fn transfer(&self) -> Transfer {
        if self.site.set.is_some() {
            return self.site.transfer();
        }
        Transfer::Sum {
            dtype: DType::U8,
            reduction: Reduction::Sum,
            len_bytes: 1,
            priority: self.site.priority,
            is_divided: false,
        }
    }

    /// In a frozen cycle nobody else need have come: the ranks meet in a sum of one byte.
    fn lend(&mut self) -> Memory {
        Memory::Own(Buffer::zeroed(1))
    }

    fn is_soon_finished(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.reply.send(Ok(()));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.reply.send(Err(fault.clone()));
    }
}
