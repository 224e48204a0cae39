//! A dense push of a job that goes on without lost ranks: nothing that the store has is changed before the
//! sum is there, so the push can be done again.
//!
//! The sum is made in memory of its own and not in an output, because MPI may still write into what it was
//! given for a sum that was given up. Such memory is never freed and never used again. The gradient is kept
//! beside it: that is one copy more than a push of another job makes.

use std::sync::Arc;

use ringpull_allreduce::interpreter::Memory;
use ringpull_allreduce::progress::{Job, Transfer};
use ringpull_base::{Buffer, Error, Reduction, Result, TensorMut};

use crate::Contribution;
use crate::slot::{LastSum, Slot};
use crate::update::{Update, Updates};

/// A gradient, kept until its sum is done.
pub(super) struct KeptPush {
    slot: Arc<Slot>,
    gradient: Contribution,
    sum: Option<Buffer>,
    is_begun: bool,
    outs: Vec<TensorMut>,
    update: Update,
    updates: Arc<Updates>,
    priority: i32,
}

impl KeptPush {
    pub(super) fn new(
        slot: &Arc<Slot>,
        gradient: Contribution,
        outs: Vec<TensorMut>,
        update: Update,
        updates: &Arc<Updates>,
        priority: i32,
    ) -> Self {
        let (slot, updates) = (Arc::clone(slot), Arc::clone(updates));
        KeptPush { slot, gradient, sum: None, is_begun: false, outs, update, updates, priority }
    }
}

impl Job for KeptPush {
    fn transfer(&self) -> Transfer {
        let entry = &self.slot.entry;
        let (dtype, len_bytes) = (entry.dtype, entry.len_bytes());
        Transfer::Sum { dtype, reduction: Reduction::Sum, len_bytes, priority: self.priority, is_divided: false }
    }

    fn lend(&mut self) -> Memory {
        if let Contribution::Held(held) = &self.gradient {
            // The caller's tensor is free again from now on, as in other jobs.
            self.gradient = Contribution::Summed(Buffer::copy_of(held.bytes()));
        }
        self.slot.begin_once(&mut self.is_begun);
        Memory::Own(Buffer::copy_of(self.gradient.bytes(&self.outs)))
    }

    fn receive(&mut self, memory: Memory) {
        self.sum = Some(memory.into_buffer());
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let Some(sum) = self.sum.take() else { return Ok(()) };
        let sum = Arc::new(sum);
        self.slot.keep_last(LastSum::Dense(Arc::clone(&sum)));
        match self.slot.value_after(&self.updates, &self.update, sum) {
            Ok(value) => {
                self.slot.settle_with(value, self.outs);
                Ok(())
            }
            Err(fault) => {
                self.fail(&fault);
                Err(fault)
            }
        }
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.slot.fail(fault);
        self.outs.into_iter().for_each(|out| out.fail(fault.clone()));
    }

    fn again(&mut self) -> bool {
        self.sum = None;
        true
    }

    fn given(mut self: Box<Self>, sum: &[u8]) -> Result<()> {
        self.slot.begin_once(&mut self.is_begun);
        self.sum = Some(Buffer::copy_of(sum));
        self.finish()
    }
}
