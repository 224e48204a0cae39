//! One rank's end of a collective with an input and an output buffer: a reduce-scatter, whose input stays as
//! it is, and an alltoall.
//!
//! The rank's plan is for one buffer. This module converts the plan's offsets to offsets in the two buffers.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ops::Range;

use ringpull_base::{Buffer, Result};
use ringpull_kernels::reduce::{self, Arithmetic};
use ringpull_plan::Message;

use crate::interpreter::{Endpoint, Memory, Scratch};

/// A reduce-scatter by a plan in which every segment that is passed on arrives once. Partial sums stay where
/// they arrived. The sum of this rank's part is in the output, which begins with the rank's own contribution.
pub(super) struct ReduceScatterEnd {
    arithmetic: Arithmetic,
    input: Memory,
    out: Memory,
    /// This rank's part of the input.
    own: Range<usize>,
    /// The buffers of arriving segments, by the address that the transport was given.
    arriving: HashMap<*mut u8, Buffer>,
    /// The buffers of segments that are passed on, by the offset in the plan's buffer.
    passed_on: HashMap<usize, Buffer>,
}

impl ReduceScatterEnd {
    /// `input` has all ranks' parts. `own` is this rank's part of the input, and `out` has its length.
    pub(super) fn new(arithmetic: Arithmetic, input: Memory, out: Memory, own: Range<usize>) -> Self {
        ReduceScatterEnd { arithmetic, input, out, own, arriving: HashMap::new(), passed_on: HashMap::new() }
    }
}

// SAFETY: the transport reads the input, which does not change, and reads buffers that are kept until their
// message is done. It writes buffers that nobody else has.
unsafe impl Endpoint for ReduceScatterEnd {
    fn copies_in_place(&self) -> bool {
        false
    }

    fn outgoing(&mut self, message: &Message, _scratch: &mut Scratch) -> Result<*const u8> {
        let sum = self.passed_on.get(&message.start).map(|sum| sum.bytes().as_ptr());
        Ok(sum.unwrap_or_else(|| self.input.bytes()[message.start..].as_ptr()))
    }

    fn sent(&mut self, message: &Message, scratch: &mut Scratch) {
        self.passed_on.remove(&message.start).into_iter().for_each(|sum| scratch.put(sum));
    }

    fn incoming(&mut self, message: &Message, _peer: usize, scratch: &mut Scratch) -> Result<*mut u8> {
        let mut room = scratch.take(message.len());
        let start = room.bytes_mut().as_mut_ptr();
        self.arriving.insert(start, room);
        Ok(start)
    }

    fn received(&mut self, message: &Message, _peer: usize, place: *mut u8, scratch: &mut Scratch) -> Result<()> {
        let ((reduction, dtype), len) = (self.arithmetic, message.len());
        let mut room = self.arriving.remove(&place).expect("a message has a room from its posting on");
        if self.own.contains(&message.start) {
            let sum = &mut self.out.bytes_mut()[message.start - self.own.start..][..len];
            reduce::reduce_assign(reduction, dtype, sum, &room.bytes()[..len]);
            scratch.put(room);
        } else {
            let own = &self.input.bytes()[message.start..][..len];
            reduce::reduce_assign(reduction, dtype, &mut room.bytes_mut()[..len], own);
            self.passed_on.insert(message.start, room);
        }
        Ok(())
    }

    fn take_memory(&mut self) -> Memory {
        pair(&mut self.input, &mut self.out)
    }
}

/// Returns the two buffers of an operation that has ended.
fn pair(input: &mut Memory, out: &mut Memory) -> Memory {
    Memory::Pair(Box::new((std::mem::take(input), std::mem::take(out))))
}

/// An alltoall. In the plan's offsets, the blocks to send are in the input, and the output begins behind the
/// `input_bytes` of the input. The rank's block for itself is copied in pieces, one with each message that
/// arrives, so that no link waits for the copy.
pub(super) struct BlockExchange {
    input: Memory,
    out: Memory,
    /// The address of the output. The transport writes other bytes of the output while this rank copies.
    start: *mut u8,
    /// The rest of the rank's block for itself that is not copied yet, and its offset in the output.
    own: Range<usize>,
    kept_start: usize,
    /// The bytes that are copied at a time.
    piece_bytes: usize,
}

impl BlockExchange {
    /// `own` is the range in the input of the rank's block for itself. The block begins at `kept_start` in
    /// the output. `arrivals` messages arrive.
    ///
    /// # Panics
    /// If a block does not lie in its buffer.
    pub(super) fn new(
        input: Memory,
        mut out: Memory,
        (own, kept_start): (Range<usize>, usize),
        arrivals: usize,
    ) -> Self {
        assert!(own.end <= input.bytes().len() && kept_start + own.len() <= out.bytes().len(), "blocks lie in buffers");
        let (start, piece_bytes) = (out.start(), own.len().div_ceil(arrivals.max(1)));
        let mut exchange = BlockExchange { input, out, start, own, kept_start, piece_bytes };
        if arrivals == 0 {
            exchange.copy_piece();
        }
        exchange
    }

    fn copy_piece(&mut self) {
        let len = self.piece_bytes.min(self.own.len());
        let from = self.input.bytes()[self.own.start..][..len].as_ptr();
        // SAFETY: the block lies in the output, and the transport writes other blocks only.
        unsafe { std::ptr::copy_nonoverlapping(from, self.start.add(self.kept_start), len) };
        self.own.start += len;
        self.kept_start += len;
    }
}

// SAFETY: the transport reads the input, which does not change, and writes blocks of the output that nobody
// else touches.
unsafe impl Endpoint for BlockExchange {
    fn copies_in_place(&self) -> bool {
        true
    }

    fn outgoing(&mut self, message: &Message, _scratch: &mut Scratch) -> Result<*const u8> {
        Ok(self.input.bytes()[message.start..].as_ptr())
    }

    fn sent(&mut self, _message: &Message, _scratch: &mut Scratch) {}

    fn incoming(&mut self, message: &Message, _peer: usize, _scratch: &mut Scratch) -> Result<*mut u8> {
        let place = message.start - self.input.bytes().len();
        assert!(place + message.len() <= self.out.bytes().len(), "a block lies in the output");
        Ok(self.start.wrapping_add(place))
    }

    fn received(&mut self, _message: &Message, _peer: usize, _place: *mut u8, _scratch: &mut Scratch) -> Result<()> {
        self.copy_piece();
        Ok(())
    }

    fn take_memory(&mut self) -> Memory {
        pair(&mut self.input, &mut self.out)
    }
}
