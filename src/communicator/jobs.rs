//! The jobs that a communicator gives its engine. A job owns the locks of its tensors, and memory of its own,
//! from the call to the end; after a fault it keeps for ever the memory that the transport may still use.
#![allow(unsafe_code)]

use std::sync::Arc;

use ringpull_allreduce::communicator::{Communicator, Parts, Passage, Ticket};
use ringpull_allreduce::progress::{Job, Launch, Reply, Transfer};
use ringpull_base::{DType, Error, Reduction, Result, Tensor, TensorMut, TensorRef};
use ringpull_kernels::reduce;

use super::Given;

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
    guard: TensorMut,
    /// The caller's memory, if the result is made elsewhere.
    caller: Option<Box<(Tensor, TensorMut)>>,
}

impl Output {
    /// In this memory, with its lock.
    pub(super) fn within(tensor: Tensor, guard: TensorMut) -> Self {
        Output { tensor, guard, caller: None }
    }

    /// In memory of its own, with the content of the caller's, which gets the result at the end. For a job
    /// that goes on without lost ranks: a message that was given up may still arrive where it was to go.
    pub(super) fn apart(tensor: Tensor, guard: TensorMut) -> Self {
        let own = Tensor::zeros(tensor.dtype(), tensor.shape());
        let mut own_guard = own.write();
        own_guard.copy_from(guard.bytes());
        Output { tensor: own, guard: own_guard, caller: Some(Box::new((tensor, guard))) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.guard.bytes_mut()
    }

    pub(super) fn copy_from(&mut self, bytes: &[u8]) {
        self.guard.copy_from(bytes);
    }

    /// A short job is finished by the comm thread, sooner than another would wake up.
    fn is_soon_let_go(&self) -> bool {
        const SHORT_BYTES: usize = 64 << 10;
        self.guard.bytes().len() <= SHORT_BYTES && self.guard.is_simply_dropped()
    }

    /// The result, which may be read from now on.
    fn finish(self) -> Tensor {
        let Output { tensor, guard, caller } = self;
        match caller {
            None => {
                drop(guard);
                tensor
            }
            Some(caller) => {
                let (tensor, mut lent) = *caller;
                lent.copy_from(guard.bytes());
                drop(lent);
                tensor
            }
        }
    }

    /// It is not to be read, and the transport may use its memory if the job was begun.
    fn fail(self, was_begun: bool, fault: &Error) {
        if was_begun {
            self.guard.abandon(fault.clone());
        } else {
            self.guard.fail(fault.clone());
        }
        if let Some(caller) = self.caller {
            caller.1.fail(fault.clone());
        }
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

    fn addend(&mut self) -> &mut [u8] {
        self.was_begun = true;
        self.out.bytes_mut()
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Ticket>> {
        if std::mem::replace(&mut self.was_begun, true) {
            return Ok(None);
        }
        let (arithmetic, passage) = ((self.arrival.reduction, self.out.tensor.dtype()), self.site.passage(launch));
        let set = self.site.set.as_deref().unwrap_or_default();
        // SAFETY: the job owns the lock until it is done; `fail` never frees the memory.
        Ok(Some(unsafe { comm.begin_allreduce_among(set, arithmetic, self.out.bytes_mut(), passage) }))
    }

    fn run(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        Ok(())
    }

    fn is_soon_finished(&self) -> bool {
        self.arrival.is_nothing() && self.out.is_soon_let_go()
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.arrival.apply(&mut self.out.guard);
        self.reply.send(Ok(self.out.finish()));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.out.fail(self.was_begun, fault);
        self.reply.send(Err(fault.clone()));
    }
}

/// A reduce-scatter.
pub(super) struct Scatter {
    site: Site,
    given: Given,
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
        (given, lens): (Given, Vec<usize>),
        out: Output,
        arrival: Arrival,
        reply: Reply<Tensor>,
    ) -> Self {
        Scatter { site, given, lens, out, arrival, reply, was_begun: false }
    }
}

impl Job for Scatter {
    fn transfer(&self) -> Transfer {
        self.site.transfer()
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Ticket>> {
        if std::mem::replace(&mut self.was_begun, true) {
            return Ok(None);
        }
        let (arithmetic, passage) = ((self.arrival.reduction, self.out.tensor.dtype()), self.site.passage(launch));
        let parts = Parts::of_lens(self.lens.iter().copied());
        let buffers = (std::ptr::from_ref(self.given.bytes()), std::ptr::from_mut(self.out.bytes_mut()));
        // SAFETY: the job owns both locks until it is done; `fail` never frees the memory.
        unsafe { comm.begin_reduce_scatter(self.site.set.as_deref(), arithmetic, parts, buffers, passage) }
    }

    fn run(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.arrival.apply(&mut self.out.guard);
        drop(self.given);
        self.reply.send(Ok(self.out.finish()));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.out.fail(self.was_begun, fault);
        if self.was_begun {
            std::mem::forget(self.given);
        }
        self.reply.send(Err(fault.clone()));
    }
}

/// Numbers that ranks tell each other first.
struct Words(Box<[u64]>);

impl Words {
    fn zeroed(count: usize) -> Self {
        Words(vec![0; count].into())
    }

    fn bytes_mut(&mut self) -> *mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    fn lens(&self) -> Vec<usize> {
        self.0.iter().map(|word| *word as usize).collect()
    }
}

/// An allgather. Unless every rank has said how many rows there are, the ranks tell each other first.
pub(super) struct Allgather {
    site: Site,
    input: TensorRef,
    /// The rows of each rank.
    lens: Option<Vec<usize>>,
    told: Option<Words>,
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
        Allgather { site, input, lens, told: None, shape, out, reply, was_begun: false }
    }

    fn own_rows(&self) -> usize {
        self.input.shape().first().copied().unwrap_or(1)
    }
}

impl Job for Allgather {
    fn transfer(&self) -> Transfer {
        self.site.transfer()
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Ticket>> {
        if self.was_begun {
            return Ok(None);
        }
        let (set, passage) = (self.site.set.clone(), self.site.passage(launch));
        let set = set.as_deref();
        let (place, size) = comm.place_in(set);
        if self.lens.is_none() && self.told.is_none() {
            let own = self.own_rows() as u64;
            let told = self.told.insert(Words::zeroed(size));
            told.0[place] = own;
            let parts = Parts::of((0..=size).map(|rank| rank * size_of::<u64>()).collect());
            // SAFETY: the job owns the words; `fail` never frees them.
            let ticket = unsafe { comm.begin_allgather(set, parts, told.bytes_mut(), passage) }?;
            if ticket.is_some() {
                return Ok(ticket);
            }
        }
        let lens = self.lens.take().or_else(|| self.told.take().map(|told| told.lens())).unwrap_or_default();
        let out = match &mut self.out {
            Some(out) => out,
            none => {
                self.shape[0] = lens.iter().sum();
                let tensor = Tensor::try_zeros(self.input.dtype(), &self.shape, "the result of an allgather")?;
                let guard = tensor.write();
                none.insert(Output::within(tensor, guard))
            }
        };
        self.was_begun = true;
        let row_bytes = self.shape[1..].iter().product::<usize>() * self.input.dtype().size_bytes();
        let parts = Parts::of_lens(lens.iter().map(|rows| rows * row_bytes));
        let own = parts.range(place..place + 1);
        out.bytes_mut()[own].copy_from_slice(self.input.bytes());
        // SAFETY: the job owns the lock until it is done; `fail` never frees the memory.
        unsafe { comm.begin_allgather(set, parts, out.bytes_mut(), passage) }
    }

    fn run(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        drop(self.input);
        let Some(out) = self.out else { return Err(Error::bug("an allgather has ended without a result")) };
        self.reply.send(Ok(out.finish()));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.out.into_iter().for_each(|out| out.fail(self.was_begun, fault));
        // It may be on its way.
        std::mem::forget(self.told);
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
    input: TensorRef,
    blocks: Blocks,
    told: Option<(Words, Words)>,
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
        Alltoall { site, input, blocks, told: None, shape, out, reply, was_begun: false }
    }
}

impl Job for Alltoall {
    fn transfer(&self) -> Transfer {
        self.site.transfer()
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Ticket>> {
        if self.was_begun {
            return Ok(None);
        }
        let (set, passage) = (self.site.set.clone(), self.site.passage(launch));
        let set = set.as_deref();
        let (_, size) = comm.place_in(set);
        if self.blocks.taken.is_none() && self.told.is_none() {
            let own = Words(self.blocks.given.iter().map(|rows| *rows as u64).collect());
            let (own, theirs) = self.told.insert((own, Words::zeroed(size)));
            let lens = vec![size_of::<u64>(); size];
            let buffers = (own.bytes_mut().cast_const(), theirs.bytes_mut());
            // SAFETY: the job owns the words; `fail` never frees them.
            let ticket = unsafe { comm.begin_alltoall(set, (&lens, &lens), true, buffers, passage) }?;
            if ticket.is_some() {
                return Ok(ticket);
            }
        }
        if let Some((_, theirs)) = self.told.take() {
            self.blocks.taken = Some(theirs.lens());
        }
        let (dtype, taken) = (self.input.dtype(), self.blocks.taken.as_deref().unwrap_or_default());
        let out = match &mut self.out {
            Some(out) => out,
            none => {
                self.shape[0] = taken.iter().sum();
                let tensor = Tensor::try_zeros(dtype, &self.shape, "the result of an alltoall")?;
                let guard = tensor.write();
                none.insert(Output::within(tensor, guard))
            }
        };
        self.was_begun = true;
        let row_bytes = self.shape[1..].iter().product::<usize>() * dtype.size_bytes();
        let bytes = |rows: &[usize]| -> Vec<usize> { rows.iter().map(|rows| rows * row_bytes).collect() };
        let lens = (bytes(&self.blocks.given), bytes(taken));
        let buffers = (std::ptr::from_ref(self.input.bytes()), std::ptr::from_mut(out.bytes_mut()));
        // SAFETY: the job owns both locks until it is done; `fail` never frees the memory.
        unsafe { comm.begin_alltoall(set, (&lens.0, &lens.1), self.blocks.are_equal, buffers, passage) }
    }

    fn run(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        drop(self.input);
        let Some(out) = self.out else { return Err(Error::bug("an alltoall has ended without a result")) };
        self.reply.send(Ok((out.finish(), self.blocks.taken.unwrap_or_default())));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.out.into_iter().for_each(|out| out.fail(self.was_begun, fault));
        if self.was_begun {
            std::mem::forget(self.input);
        }
        // They may be on their way.
        std::mem::forget(self.told);
        self.reply.send(Err(fault.clone()));
    }
}

/// The content of a broadcast.
pub(super) enum Travels {
    /// On the root of a send: its input, which is only read.
    Input(TensorRef),
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

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Ticket>> {
        if std::mem::replace(&mut self.was_begun, true) {
            return Ok(None);
        }
        let data: *mut [u8] = match &mut self.travels {
            Travels::Input(input) => std::ptr::from_ref(input.bytes()).cast_mut(),
            Travels::Out(out) => out.bytes_mut(),
        };
        let (passage, set) = (self.site.passage(launch), self.site.set.as_deref());
        let ends = launch.ends();
        if let (Some([from, _]), Some(ranks)) = (ends, set) {
            self.root = ranks.iter().position(|rank| *rank == from).unwrap_or_default();
        }
        let (set, root) = ends.as_ref().map_or((set, self.root), |ends| (Some(&ends[..]), 0));
        // SAFETY: the job owns the lock until it is done, and the root's data are only read; `fail` never
        // frees the memory.
        unsafe { comm.begin_broadcast(set, root, data, passage) }
    }

    fn run(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        Ok(())
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
        match self.travels {
            Travels::Input(input) if self.was_begun => std::mem::forget(input),
            Travels::Input(_) => {}
            Travels::Out(out) => out.fail(self.was_begun, fault),
        }
        self.reply.send(Err(fault.clone()));
    }
}

/// A job without work: it is done when every rank has called it, such as a barrier or a split.
pub(super) struct Nothing {
    site: Site,
    reply: Reply<()>,
    /// In a frozen cycle nobody else need have come: the ranks meet in a sum of one byte.
    byte: Box<[u8; 1]>,
}

impl Nothing {
    pub(super) fn new(site: Site, reply: Reply<()>) -> Self {
        Nothing { site, reply, byte: Box::new([0]) }
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

    fn addend(&mut self) -> &mut [u8] {
        &mut *self.byte
    }

    fn run(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        Ok(())
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
        // The transport may still write it.
        std::mem::forget(self.byte);
    }
}
