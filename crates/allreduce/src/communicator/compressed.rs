//! Sums of compressed gradients: codes out, sums back, by a plan in turns
//! (`ringpull_plan::allreduce_in_turns`).
//!
//! *Codes out:* a rank encodes, for each other rank, its gradient's segments of that rank's part. *Sums
//! back:* when the codes of a segment of its own part have come from every rank, it adds them up, in the
//! order of the ranks where order matters, and sends the sum in the fewest bits that hold it. Every rank, the
//! owner too, decodes this one message, so all ranks have the same bits.
//!
//! ```text
//!   rank 0  encode part 1 ---codes---> rank 1: 0 + 1 + 2, pack ---sums of part 1---> ranks 0 and 2, decode
//! ```
//!
//! Segments are encoded when there is room for them on the wire and decoded as they come, so that encoding,
//! the wire, adding up and decoding overlap. A code leaves before the sum of its segment can come back, so
//! the result may take the gradient's place.
//!
//! If a code has `c` bits and a sum has `s` bits, a rank sends `(c + s)/32 (n-1)/n S` bytes, while an
//! allreduce of floats sends `2 (n-1)/n S`.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use ringpull_base::{Buffer, DType, Error, Result};
use ringpull_kernels::compress::{Codec, Compression, Feedback};
use ringpull_plan::{Action, Message, Parts, Schedule};

use crate::communicator::Communicator;
use crate::communicator::begun::{BegunOperation, Passage};
use crate::communicator::ends::{CodeEnds, CodedGradient, Elements};
use crate::communicator::schedules::Sum;
use crate::interpreter::{Endpoint, Memory, Scratch};
use crate::transport::Stamp;

impl Communicator {
    /// Begins to sum the compressed gradients of all ranks into `out`, with the same bits on each rank. If
    /// `gradient` is nothing, the gradient is in `out` itself. The memory comes back as a pair.
    pub fn begin_codes(
        &mut self,
        codec: Codec,
        feedback: &Arc<Mutex<Feedback>>,
        (gradient, out): (Memory, Memory),
        passage: Passage,
    ) -> BegunOperation {
        let len = out.bytes().len() / ELEMENT;
        let mut ends = Elements { codec, feedback: Arc::clone(feedback), gradient, out };
        let (rank, size) = (self.rank(), self.size());
        if size == 1 {
            sum_alone(codec, len, &mut ends);
            return BegunOperation::Done(ends.take_memory());
        }
        let schedule = self.schedule_of_codes(len);
        let exchange = Box::new(CodeExchange::new(codec, (rank, size), len, ends));
        let Passage { stamp, priority } = passage;
        BegunOperation::UnderWay(self.executor.runner.begin_between(&schedule, exchange, stamp, priority))
    }

    /// Begins to gather on every rank the codes of all ranks' gradients, for [`add_codes`](Self::add_codes).
    /// The memory that comes back has the codes.
    pub fn begin_gather_codes(
        &mut self,
        compression: &Compression,
        feedback: &Arc<Mutex<Feedback>>,
        gradient: &[f32],
        passage: Passage,
    ) -> BegunOperation {
        let each = compression.code_bytes(gradient.len());
        let parts = Parts::of((0..=self.size()).map(|rank| rank * each).collect());
        let mut codes = Buffer::zeroed(parts.len());
        let own = &mut codes.bytes_mut()[self.rank() * each..][..each];
        compression.encode(gradient, &mut feedback.lock(), own);
        self.begin_allgather(None, parts, Memory::Own(codes), passage)
    }

    /// Adds up every rank's codes into `out`, in the order of the ranks.
    pub fn add_codes(&self, compression: &Compression, codes: &[u8], out: &mut [f32]) -> Result<()> {
        out.fill(0.0);
        let each = compression.code_bytes(out.len());
        for (peer, code) in codes.chunks_exact(each.max(1)).enumerate() {
            let check = compression.check_code(code, out.len());
            check.map_err(|what| Error::protocol(self.rank(), format!("rank {peer}"), what))?;
            compression.decode_add(code, out);
        }
        Ok(())
    }

    /// Sums the compressed gradients of all ranks. Each rank's gradient is in `out`. Returns the sum. Blocks.
    pub fn allreduce_compressed(
        &mut self,
        compression: &Compression,
        feedback: &Arc<Mutex<Feedback>>,
        mut out: Memory,
        stamp: Stamp,
    ) -> Result<Memory> {
        let passage = Passage { stamp, priority: i32::MAX };
        match compression {
            Compression::Codec(codec) => {
                let begun = self.begin_codes(*codec, feedback, (Memory::Nothing, out), passage);
                Ok(self.complete(begun)?.into_output())
            }
            Compression::TopK(_) => {
                let begun = self.begin_gather_codes(compression, feedback, bytemuck::cast_slice(out.bytes()), passage);
                let codes = self.complete(begun)?;
                self.add_codes(compression, codes.bytes(), bytemuck::cast_slice_mut(out.bytes_mut()))?;
                Ok(out)
            }
        }
    }

    /// Sums a gradient of `len` elements, as [`begin_codes`](Self::begin_codes) does, but the caller has
    /// encoded it and will decode the sum. `sums` becomes the sum of all ranks' `codes`, as [`Codec::sum`]
    /// writes it.
    pub fn allreduce_codes(
        &mut self,
        codec: Codec,
        len: usize,
        codes: &[u8],
        sums: &mut [u8],
        stamp: Stamp,
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let mut ends = CodedGradient { codec, codes, sums };
        if size == 1 {
            sum_alone(codec, len, &mut ends);
            return Ok(());
        }
        let schedule = self.schedule_of_codes(len);
        let exchange = Box::new(CodeExchange::new(codec, (rank, size), len, &mut ends));
        self.executor.run_between(&schedule, exchange, stamp)
    }

    fn schedule_of_codes(&mut self, len: usize) -> Arc<Schedule> {
        self.schedule(Sum { is_coded: true, ..Sum::of(self.choice, DType::F32, len * ELEMENT) })
    }
}

/// Sums the gradient of a job of one rank, which needs no message.
fn sum_alone(codec: Codec, len: usize, ends: &mut dyn CodeEnds) {
    let (mut codes, mut sums) = (vec![0; codec.code_bytes(len)], vec![0; codec.sum_bytes(len, 1)]);
    ends.encode(0..len, &mut codes);
    codec.sum(&[&codes], len, &mut sums);
    ends.decode(0..len, &sums, 1);
}

/// One rank's end of a sum of compressed gradients.
struct CodeExchange<E> {
    codec: Codec,
    rank: usize,
    size: usize,
    ends: E,
    /// The elements of the own part.
    own: Range<usize>,
    /// The memory that the transport is busy with, by address.
    given: HashMap<*mut u8, Buffer>,
    /// Codes that leave, by the start of their segment.
    leaving: HashMap<usize, Buffer>,
    /// For each segment of the own part that has not been added up: the codes that have come, with their
    /// ranks. The key is the segment's start.
    gathered: HashMap<usize, Vec<(usize, Buffer)>>,
    /// For each segment that has been added up, its sum, and the number of ranks to which it must still be
    /// sent.
    sums: HashMap<usize, (Buffer, usize)>,
}

const ELEMENT: usize = size_of::<f32>();

impl<E: CodeEnds> CodeExchange<E> {
    /// The exchange of a gradient of `len` elements.
    fn new(codec: Codec, (rank, size): (usize, usize), len: usize, ends: E) -> Self {
        let own = ringpull_plan::part_in_turns(rank, size, len, Codec::BLOCK);
        let (given, leaving) = (HashMap::new(), HashMap::new());
        CodeExchange { codec, rank, size, ends, own, given, leaving, gathered: HashMap::new(), sums: HashMap::new() }
    }

    fn is_own(&self, elements: &Range<usize>) -> bool {
        self.own.start <= elements.start && elements.end <= self.own.end
    }

    fn encode(&mut self, elements: Range<usize>, scratch: &mut Scratch) -> Buffer {
        let len_bytes = self.codec.code_bytes(elements.len());
        let mut codes = scratch.take(len_bytes);
        self.ends.encode(elements, &mut codes.bytes_mut()[..len_bytes]);
        codes
    }

    /// Adds up a segment of the own part, whose codes have come from all others.
    fn add_up(&mut self, mut gathered: Vec<(usize, Buffer)>, elements: Range<usize>, scratch: &mut Scratch) {
        gathered.push((self.rank, self.encode(elements.clone(), scratch)));
        gathered.sort_unstable_by_key(|(rank, _)| *rank);
        let (code_bytes, len) = (self.codec.code_bytes(elements.len()), elements.len());
        let codes: Vec<&[u8]> = gathered.iter().map(|(_, codes)| &codes.bytes()[..code_bytes]).collect();
        let sum_bytes = self.codec.sum_bytes(len, self.size);
        let mut sum = scratch.take(sum_bytes);
        self.codec.sum(&codes, len, &mut sum.bytes_mut()[..sum_bytes]);
        self.ends.decode(elements.clone(), &sum.bytes()[..sum_bytes], self.size);
        self.sums.insert(elements.start, (sum, self.size - 1));
        gathered.into_iter().for_each(|(_, codes)| scratch.put(codes));
    }
}

fn elements(message: &Message) -> Range<usize> {
    message.start / ELEMENT..(message.start + message.len()) / ELEMENT
}

fn lost(what: &str, rank: usize) -> Error {
    Error::bug(format!("{what} on rank {rank}"))
}

// SAFETY: the memory that the transport uses is in buffers that this type keeps until the transport is done.
unsafe impl<E: CodeEnds> Endpoint for CodeExchange<E> {
    fn wire_bytes(&self, message: &Message) -> usize {
        let elements = elements(message);
        // Sums are the segments of the own part that are sent, and the segments of other parts that are
        // received.
        if self.is_own(&elements) == (message.action == Action::Send) {
            self.codec.sum_bytes(elements.len(), self.size)
        } else {
            self.codec.code_bytes(elements.len())
        }
    }

    fn copies_in_place(&self) -> bool {
        false
    }

    fn outgoing(&mut self, message: &Message, scratch: &mut Scratch) -> Result<*const u8> {
        let elements = elements(message);
        if self.is_own(&elements) {
            let sum = self.sums.get(&elements.start);
            return sum
                .map(|(sum, _)| sum.bytes().as_ptr())
                .ok_or_else(|| lost("a sum is due to be sent but was not computed", self.rank));
        }
        let start = elements.start;
        let codes = self.encode(elements, scratch);
        let address = codes.bytes().as_ptr();
        self.leaving.insert(start, codes);
        Ok(address)
    }

    fn sent(&mut self, message: &Message, scratch: &mut Scratch) {
        let start = elements(message).start;
        if let Some(codes) = self.leaving.remove(&start) {
            scratch.put(codes);
        } else if let Some((_, left)) = self.sums.get_mut(&start) {
            *left -= 1;
            if *left == 0 {
                self.sums.remove(&start).into_iter().for_each(|(sum, _)| scratch.put(sum));
            }
        }
    }

    fn incoming(&mut self, message: &Message, _peer: usize, scratch: &mut Scratch) -> Result<*mut u8> {
        let mut buffer = scratch.take(self.wire_bytes(message));
        let place = buffer.bytes_mut().as_mut_ptr();
        self.given.insert(place, buffer);
        Ok(place)
    }

    fn received(&mut self, message: &Message, peer: usize, place: *mut u8, scratch: &mut Scratch) -> Result<()> {
        let Some(arrived) = self.given.remove(&place) else {
            return Err(lost("bytes have arrived although none were expected", self.rank));
        };
        let elements = elements(message);
        if message.action == Action::Copy {
            let sum_bytes = self.wire_bytes(message);
            self.ends.decode(elements, &arrived.bytes()[..sum_bytes], self.size);
            scratch.put(arrived);
            return Ok(());
        }
        let gathered = self.gathered.entry(elements.start).or_default();
        gathered.push((peer, arrived));
        if gathered.len() == self.size - 1 {
            let gathered = self.gathered.remove(&elements.start).unwrap_or_default();
            self.add_up(gathered, elements, scratch);
        }
        Ok(())
    }

    fn take_memory(&mut self) -> Memory {
        self.ends.take_memory()
    }
}
