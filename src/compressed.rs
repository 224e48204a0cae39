//! Gradient compression in a store: the setting, what is kept of each key, and a compressed push by allreduce.
//!
//! Dense `f32` gradients are compressed, after the values of one process have been summed; the first value of a key, row-sparse
//! gradients and, with servers, pulled values travel as they are, as in MXNet. A dense push of another dtype is an error, as there.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use ringpull_allreduce::communicator::Host;
use ringpull_allreduce::progress::{Job, Launch};
use ringpull_base::{Buffer, DType, Error, Key, Result, TensorMut};
use ringpull_kernels::compress::{Compression, Feedback};

use crate::slot::Slot;
use crate::update::{Update, Updates};
use crate::{Contribution, Entry};

/// The present setting, and each key's feedback.
#[derive(Default)]
pub(super) struct Compressor {
    present: Mutex<Option<Compression>>,
    kept: Mutex<BTreeMap<Key, Arc<Mutex<Feedback>>>>,
}

/// How one push is compressed; fixed when it is made. Pushes of one key use its feedback in the order in which they were made.
pub(super) struct Coding {
    pub(super) compression: Compression,
    pub(super) feedback: Arc<Mutex<Feedback>>,
}

impl Compressor {
    /// Gradients pushed from now on are compressed so. What earlier codecs kept is sent by this one, and dropped if there is none.
    pub(super) fn set(&self, compression: Option<&Compression>) {
        *self.present.lock() = compression.copied();
        if compression.is_none() {
            self.forget();
        }
    }

    /// How a dense gradient pushed now is compressed, if it is.
    pub(super) fn coding(&self, entry: &Entry, rank: usize) -> Result<Option<Coding>> {
        let Some(compression) = *self.present.lock() else { return Ok(None) };
        if entry.dtype != DType::F32 {
            return Err(Error::argument(
                format!(
                    "push of key {} on rank {rank}: gradient compression ({compression}) is only supported for float32, not {}",
                    entry.key, entry.dtype
                ),
                "init the key as f32, push it as rows, or train without compression",
            ));
        }
        if matches!(compression, Compression::TopK(_)) && u32::try_from(entry.len()).is_err() {
            return Err(Error::argument(
                format!(
                    "push of key {} on rank {rank}: {compression} counts elements in 32 bits, and it has {}",
                    entry.key,
                    entry.len()
                ),
                "divide the key, push it as rows, or choose another compression",
            ));
        }
        Ok(Some(self.coding_by(&entry.key, compression)))
    }

    /// How a gradient of that key is compressed by a codec that is given.
    pub(super) fn coding_by(&self, key: &Key, compression: Compression) -> Coding {
        let feedback = Arc::clone(self.kept.lock().entry(key.clone()).or_default());
        Coding { compression, feedback }
    }

    /// Drops what is kept of every key: it belongs to a run that is not gone on with.
    pub(super) fn forget(&self) {
        self.kept.lock().clear();
    }
}

/// A dense gradient that travels compressed. The sum is decoded into an output if there is one.
pub(super) struct CompressedPush {
    slot: Arc<Slot>,
    gradient: Option<Contribution>,
    /// The sum.
    sum: Option<Arc<Buffer>>,
    outs: Vec<TensorMut>,
    update: Update,
    updates: Arc<Updates>,
    coding: Coding,
}

impl CompressedPush {
    pub fn new(
        slot: &Arc<Slot>,
        gradient: Contribution,
        outs: Vec<TensorMut>,
        update: Update,
        updates: &Arc<Updates>,
        coding: Coding,
    ) -> Self {
        let (slot, updates, gradient) = (Arc::clone(slot), Arc::clone(updates), Some(gradient));
        CompressedPush { slot, gradient, sum: None, outs, update, updates, coding }
    }
}

impl Job for CompressedPush {
    fn run(&mut self, host: &mut Host, launch: &Launch) -> Result<()> {
        // An overwritten value is not needed any more: with it gone, memory that it shares with an output is written in place.
        let old = if matches!(self.update, Update::Overwrite) { self.slot.take_value() } else { None };
        let Coding { compression, feedback } = &self.coding;
        let mut feedback = feedback.lock();
        let mut reduce = |gradient: Option<&[u8]>, out: &mut [u8]| {
            let (gradient, out) = (gradient.map(bytemuck::cast_slice), bytemuck::cast_slice_mut(out));
            host.allreduce_compressed(compression, &mut feedback, gradient, out, launch.number)
        };
        let sum = match self.gradient.take() {
            Some(Contribution::InPlace(index)) => {
                drop(old);
                reduce(None, self.outs[index].bytes_mut())?;
                self.outs[index].snapshot()
            }
            Some(Contribution::Held(value)) if !self.outs.is_empty() => {
                drop(old);
                reduce(Some(value.bytes()), self.outs[0].bytes_mut())?;
                self.outs[0].snapshot()
            }
            Some(Contribution::Held(value)) => {
                let recycled = old.and_then(Arc::into_inner).filter(|buffer| !buffer.is_foreign());
                let mut sum = recycled.unwrap_or_else(|| Buffer::zeroed(value.bytes().len()));
                reduce(Some(value.bytes()), sum.bytes_mut())?;
                Arc::new(sum)
            }
            Some(Contribution::Summed(mut sum)) => {
                reduce(None, sum.bytes_mut())?;
                Arc::new(sum)
            }
            None => return Ok(()),
        };
        self.sum = Some(sum);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let Some(sum) = self.sum.take() else { return Ok(()) };
        if matches!(self.update, Update::Overwrite) {
            self.slot.settle_with(sum, self.outs);
            return Ok(());
        }
        match self.slot.updated(&self.updates, &self.update, sum.bytes()) {
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
        // The transport has only ever seen codes: the outputs may be freed.
        self.slot.fail(fault);
        self.outs.into_iter().for_each(|out| out.fail(fault.clone()));
    }
}
