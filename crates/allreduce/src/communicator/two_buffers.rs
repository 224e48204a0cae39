//! One rank's end of what gives and takes in different buffers: a reduce-scatter, whose input stays as it is,
//! and an alltoall.
//!
//! The rank's plan is on one buffer; here its places are found in the two. The job that owns both keeps them
//! until the operation is finished.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ops::Range;

use ringpull_base::{Buffer, Result};
use ringpull_kernels::reduce::{self, Arithmetic};
use ringpull_plan::Message;

use crate::interpreter::{Endpoint, Scratch};

/// A reduce-scatter by a plan in which every segment that is passed on arrives once. Sums on their way stand
/// where they arrived; that of this rank's part stands in the output, which begins with its own contribution.
pub(super) struct Scatter {
    arithmetic: Arithmetic,
    input: *const u8,
    out: *mut u8,
    /// This rank's part of the input.
    own: Range<usize>,
    /// By the address that the transport has.
    arriving: HashMap<*mut u8, Buffer>,
    /// By the place in the buffer.
    passed_on: HashMap<usize, Buffer>,
}

impl Scatter {
    /// `input` has all ranks' parts, `out` this rank's, `own`, as it is in the input.
    pub(super) fn new(arithmetic: Arithmetic, input: *const u8, out: *mut u8, own: Range<usize>) -> Self {
        Scatter { arithmetic, input, out, own, arriving: HashMap::new(), passed_on: HashMap::new() }
    }
}

impl Endpoint for Scatter {
    fn copies_in_place(&self) -> bool {
        false
    }

    fn outgoing(&mut self, message: &Message, _scratch: &mut Scratch) -> Result<*const u8> {
        let sum = self.passed_on.get(&message.start).map(|sum| sum.bytes().as_ptr());
        Ok(sum.unwrap_or_else(|| self.input.wrapping_add(message.start)))
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
        let mut room = self.arriving.remove(&place).expect("what arrives has a room from when it is posted");
        if self.own.contains(&message.start) {
            let start = self.out.wrapping_add(message.start - self.own.start);
            // SAFETY: the range lies in the output, which nobody else touches.
            let sum = unsafe { std::slice::from_raw_parts_mut(start, len) };
            reduce::reduce_assign(reduction, dtype, sum, &room.bytes()[..len]);
            scratch.put(room);
        } else {
            // SAFETY: the range lies in the input, which nobody changes.
            let own = unsafe { std::slice::from_raw_parts(self.input.wrapping_add(message.start), len) };
            reduce::reduce_assign(reduction, dtype, &mut room.bytes_mut()[..len], own);
            self.passed_on.insert(message.start, room);
        }
        Ok(())
    }
}

/// An alltoall: what is sent stands in the input, and behind its `input_bytes` come the places of the output.
pub(super) struct BlockExchange {
    input: *const u8,
    input_bytes: usize,
    out: *mut u8,
}

impl BlockExchange {
    pub(super) fn new(input: *const u8, input_bytes: usize, out: *mut u8) -> Self {
        BlockExchange { input, input_bytes, out }
    }
}

impl Endpoint for BlockExchange {
    fn copies_in_place(&self) -> bool {
        true
    }

    fn outgoing(&mut self, message: &Message, _scratch: &mut Scratch) -> Result<*const u8> {
        Ok(self.input.wrapping_add(message.start))
    }

    fn sent(&mut self, _message: &Message, _scratch: &mut Scratch) {}

    fn incoming(&mut self, message: &Message, _peer: usize, _scratch: &mut Scratch) -> Result<*mut u8> {
        Ok(self.out.wrapping_add(message.start - self.input_bytes))
    }

    fn received(&mut self, _message: &Message, _peer: usize, _place: *mut u8, _scratch: &mut Scratch) -> Result<()> {
        Ok(())
    }
}
