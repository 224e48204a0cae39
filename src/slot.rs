//! A key's value on one rank of `dist_sync_mpi`, and how far the operations on it have come.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use ringpull_base::timeline::{self, Phase};
use ringpull_base::{Buffer, Error, Result, TensorMut, waits};

use crate::Entry;
use crate::update::{Update, Updates};

/// A key's value on this rank.
pub(super) struct Slot {
    pub(super) entry: Entry,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// `None` while it is being overwritten, and when the last sum was left to the output that it stands in.
    value: Option<Arc<Buffer>>,
    /// Memory of the key's length for the next sum that has no output to stand in.
    scratch: Option<Buffer>,
    /// Operations called, and those of them that are done.
    called: u64,
    done: u64,
    /// Whether the last operation called leaves a value here, and whether the last one done has left none.
    keeps: bool,
    is_left_out: bool,
    fault: Option<Error>,
}

impl Slot {
    pub(super) fn new(entry: Entry) -> Self {
        Slot { entry, state: Mutex::default(), changed: Condvar::new() }
    }

    /// An operation has been called, which leaves a value here or does not. Whether the one before did.
    pub(super) fn call(&self, keeps: bool) -> bool {
        let mut state = self.state.lock();
        state.called += 1;
        std::mem::replace(&mut state.keeps, keeps)
    }

    /// What was called last could not be, and will not be done; what `call` answered to it holds again.
    pub(super) fn cancel(&self, kept: bool) {
        let mut state = self.state.lock();
        state.called -= 1;
        state.keeps = kept;
    }

    /// An error if there will be no value for `operation` when everything called so far is done.
    pub(super) fn check_kept(&self, operation: &str, rank: usize) -> Result<()> {
        if self.state.lock().keeps { Ok(()) } else { Err(self.not_kept(operation, rank)) }
    }

    /// Why `operation` finds no value.
    pub(super) fn not_kept(&self, operation: &str, rank: usize) -> Error {
        Error::argument(
            format!(
                "{operation} of key {} on rank {rank}: its last sum was left to the output and not kept",
                self.entry.key
            ),
            "push the key first, or let pushpull keep its sum (keep=True)",
        )
    }

    /// The value, if one is kept, when everything called so far is done.
    pub(super) fn settled(&self) -> Result<Option<Arc<Buffer>>> {
        let mut state = self.state.lock();
        let called = state.called;
        loop {
            if let Some(fault) = &state.fault {
                return Err(fault.clone());
            }
            // A value that the next operation has taken out comes back.
            if state.done >= called && (state.value.is_some() || state.is_left_out) {
                return Ok(state.value.clone());
            }
            let _wait = waits::wait();
            self.changed.wait(&mut state);
        }
    }

    /// An operation is done, and this is the value now.
    pub(super) fn settle(&self, value: impl Into<Option<Arc<Buffer>>>) {
        let mut state = self.state.lock();
        state.value = value.into();
        state.is_left_out = state.value.is_none();
        state.done += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// The value, taken out and updated by a dense sum of its length.
    pub(super) fn updated(&self, updates: &Updates, update: &Update, sum: &[u8]) -> Result<Arc<Buffer>> {
        let mut value = self.take_value().unwrap_or_else(|| Arc::new(Buffer::zeroed(sum.len())));
        let _span = timeline::span(Phase::Update, || &self.entry.key);
        updates.apply(update, &self.entry, sum, &mut value)?;
        Ok(value)
    }

    /// A dense push is done: this is the value now, and that of the outputs, which are let go.
    pub(super) fn settle_with(&self, value: Arc<Buffer>, outs: Vec<TensorMut>) {
        let span = timeline::span(Phase::Unpack, || &self.entry.key);
        for mut out in outs {
            if out.bytes().as_ptr() != value.bytes().as_ptr() {
                out.copy_from(value.bytes());
            }
        }
        drop(span);
        self.settle(value);
    }

    /// A dense push is done, whose sum stands in that output and nowhere else.
    pub(super) fn settle_in(&self, index: usize, mut outs: Vec<TensorMut>) {
        let span = timeline::span(Phase::Unpack, || &self.entry.key);
        let sum = outs.swap_remove(index);
        outs.into_iter().for_each(|mut out| out.copy_from(sum.bytes()));
        drop(sum);
        drop(span);
        self.settle(None);
    }

    pub(super) fn fail(&self, fault: &Error) {
        self.state.lock().fault.get_or_insert_with(|| fault.clone());
        self.changed.notify_all();
    }

    pub(super) fn take_value(&self) -> Option<Arc<Buffer>> {
        self.state.lock().value.take()
    }

    pub(super) fn take_scratch(&self) -> Option<Buffer> {
        self.state.lock().scratch.take()
    }

    pub(super) fn keep_scratch(&self, scratch: Buffer) {
        self.state.lock().scratch = Some(scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringpull_base::{DType, Key};

    #[test]
    fn a_value_that_the_next_operation_has_taken_out_is_waited_for() {
        let slot = Slot::new(Entry { key: Key::from("w"), dtype: DType::U8, shape: [1].into() });
        slot.call(true);
        slot.settle(Arc::new(Buffer::copy_of(&[1])));
        // Another thread's push begins here.
        drop(slot.take_value());
        let seen = std::thread::scope(|scope| {
            let pull = scope.spawn(|| slot.settled());
            slot.call(true);
            std::thread::park_timeout(std::time::Duration::from_millis(50));
            slot.settle(Arc::new(Buffer::copy_of(&[2])));
            pull.join().expect("a pull does not panic")
        });
        assert_eq!(seen.expect("there is no fault").expect("the value is kept").bytes(), [2]);
    }
}
