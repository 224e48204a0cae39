//! A key's value on one rank of `dist_sync_mpi`, and the progress of the operations on it.

use std::sync::Arc;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use xxhash_rust::xxh3::xxh3_64;

use ringpull_allreduce::progress::Topic;
use ringpull_base::timeline::{self, Phase};
use ringpull_base::{Buffer, Error, Result, TensorMut, waits};

use crate::Entry;
use crate::backlog;
use crate::update::{Update, Updates};

/// A key's value on this rank.
pub(super) struct Slot {
    pub(super) entry: Entry,
    /// The key's topic in the operations of the ranks.
    pub(super) topic: Topic,
    state: Mutex<SlotState>,
    changed: Condvar,
    /// The bytes of all operations of the store that were called and are not done.
    unfinished_bytes: Arc<AtomicU64>,
    /// The number of updates after which replicas are compared. 0 means never.
    check_every: u64,
    /// Held while an update is called, if replicas are checked.
    calling: Mutex<()>,
}

#[derive(Default)]
struct SlotState {
    /// The value. `None` while it is being overwritten, and if the last sum is only in an output.
    value: Option<Arc<Buffer>>,
    /// Memory of the key's length for the next sum without an output.
    scratch: Option<Buffer>,
    /// The number of operations called, of those that the comm thread has begun, and of those that are done.
    called: u64,
    begun: u64,
    done: u64,
    /// The hash of the value after the last update that is checked.
    hash: Option<u64>,
    /// True if the last called operation will leave a value here. `is_left_out` is true if the last completed
    /// operation has left none.
    keeps: bool,
    is_left_out: bool,
    fault: Option<Error>,
    /// The sum of the last completed operation, for ranks that lack it after a loss.
    last: Option<LastSum>,
}

/// Returns the number of updates among the first `operations` operations. The first operation is the init.
fn updates(operations: u64) -> u64 {
    operations.saturating_sub(1)
}

/// The sum of an operation.
pub(super) enum LastSum {
    Dense(Arc<Buffer>),
    Rows(Vec<u8>),
}

/// The value when all operations asked for are done, if it is kept.
struct Settled(Option<Arc<Buffer>>);

impl Slot {
    /// Returns a key without a value. Replicas are compared after every `check_every` updates, or never if
    /// that is 0.
    pub(super) fn new(entry: Entry, store: u32, unfinished_bytes: &Arc<AtomicU64>, check_every: u64) -> Self {
        let topic = Topic::Key { store, key: entry.key.clone().into() };
        let unfinished_bytes = Arc::clone(unfinished_bytes);
        let (state, changed, calling) = (Mutex::default(), Condvar::new(), Mutex::default());
        Slot { entry, topic, state, changed, unfinished_bytes, check_every, calling }
    }

    /// Returns a guard that must be held while an update is called. The update may check the one before it,
    /// so updates must be called in their order.
    pub(super) fn in_order(&self) -> Option<MutexGuard<'_, ()>> {
        (self.check_every > 0).then(|| self.calling.lock())
    }

    /// Returns true if replicas are compared after this update.
    fn is_checked(&self, update: u64) -> bool {
        update > 0 && update.checked_rem(self.check_every) == Some(0)
    }

    /// Returns the number of the update before the last called one, if it must be checked.
    pub(super) fn to_check(&self) -> Option<u64> {
        if self.check_every == 0 {
            return None;
        }
        let update = updates(self.state.lock().called).saturating_sub(1);
        self.is_checked(update).then_some(update)
    }

    /// Waits until the update is done. Returns the hash of the value after it.
    pub(super) fn hash_after(&self, update: u64) -> Result<u64> {
        let mut state = self.state.lock();
        loop {
            if let Some(fault) = &state.fault {
                return Err(fault.clone());
            }
            if updates(state.done) >= update
                && let Some(hash) = state.hash.take()
            {
                return Ok(hash);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Returns the hash of the value after an update, if it has to be compared.
    fn hash(&self, bytes: &[u8]) -> Option<u64> {
        if self.check_every == 0 {
            return None;
        }
        let update = updates(self.state.lock().done + 1);
        self.is_checked(update).then(|| xxh3_64(bytes))
    }

    /// Waits for at most `limit`. Returns true if there is room for one more push, or if there was a fault.
    pub(super) fn has_room_within(&self, limit: Duration) -> bool {
        /// The interval for checking whether pushes of other keys have ended.
        const LOOK: Duration = Duration::from_millis(10);
        let mut deadline = None;
        let mut state = self.state.lock();
        loop {
            let unfinished = state.called - state.done;
            let bytes = || self.unfinished_bytes.load(Ordering::Relaxed);
            if state.fault.is_some() || !backlog::is_full(unfinished, bytes, self.entry.len_bytes()) {
                return true;
            }
            if limit.is_zero() {
                return false;
            }
            let now = Instant::now();
            let deadline = *deadline.get_or_insert(now + limit);
            if now >= deadline {
                return false;
            }
            self.changed.wait_until(&mut state, deadline.min(now + LOOK));
        }
    }

    /// Records the call of an operation. The operation leaves a value here if it `keeps` one. Returns the
    /// `keeps` of the previous call.
    pub(super) fn call(&self, keeps: bool) -> bool {
        let mut state = self.state.lock();
        state.called += 1;
        self.unfinished_bytes.fetch_add(self.entry.len_bytes() as u64, Ordering::Relaxed);
        std::mem::replace(&mut state.keeps, keeps)
    }

    /// Undoes the last `call`; `kept` is the value that it returned.
    pub(super) fn cancel(&self, kept: bool) {
        let mut state = self.state.lock();
        state.called -= 1;
        self.unfinished_bytes.fetch_sub(self.entry.len_bytes() as u64, Ordering::Relaxed);
        state.keeps = kept;
    }

    /// Records that the comm thread begins the next operation.
    pub(super) fn begin(&self) {
        self.state.lock().begun += 1;
    }

    /// Records the beginning as [`begin`](Self::begin) does, but only once, for an operation that may begin
    /// again after a loss, or get its sum before it has begun.
    pub(super) fn begin_once(&self, is_begun: &mut bool) {
        if !std::mem::replace(is_begun, true) {
            self.begin();
        }
    }

    /// Records the beginning as [`begin`](Self::begin) does, for an operation that needs the value of the
    /// operations before it. Waits until these are done, and takes the value out. They have left the comm
    /// thread.
    pub(super) fn begin_with_value(&self) -> Result<Arc<Buffer>> {
        let mut state = self.state.lock();
        state.begun += 1;
        while state.done + 1 < state.begun {
            if let Some(fault) = &state.fault {
                return Err(fault.clone());
            }
            self.changed.wait(&mut state);
        }
        let value = state.value.take();
        value.ok_or_else(|| Error::bug(format!("key {} has no value to be updated", self.entry.key)))
    }

    /// Returns an error if there will be no value for `operation` when everything called so far is done.
    pub(super) fn check_kept(&self, operation: &str, rank: usize) -> Result<()> {
        if self.state.lock().keeps { Ok(()) } else { Err(self.not_kept(operation, rank)) }
    }

    /// Returns the error for `operation` if it finds no value.
    pub(super) fn not_kept(&self, operation: &str, rank: usize) -> Error {
        Error::argument(
            format!(
                "{operation} of key {} on rank {rank}: its last sum is only in the output (keep=False)",
                self.entry.key
            ),
            "push the key first, or let pushpull keep its sum (keep=True)",
        )
    }

    /// Waits until everything called so far is done. Returns the value, if one is kept.
    pub(super) fn settled(&self) -> Result<Option<Arc<Buffer>>> {
        let called = self.state.lock().called;
        let _wait = waits::wait();
        Ok(waits::until(|limit| self.settled_within(called, limit))?.0)
    }

    /// Waits until `called` operations are done. Returns the value, if one is kept, or nothing after `limit`.
    fn settled_within(&self, called: u64, limit: Option<Duration>) -> Result<Option<Settled>> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state.lock();
        loop {
            if let Some(fault) = &state.fault {
                return Err(fault.clone());
            }
            // If the next operation has taken the value out, the value will come back.
            if state.done >= called && (state.value.is_some() || state.is_left_out) {
                return Ok(Some(Settled(state.value.clone())));
            }
            match deadline {
                Some(deadline) if self.changed.wait_until(&mut state, deadline).timed_out() => return Ok(None),
                Some(_) => {}
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Records that an operation is done, and sets the value.
    pub(super) fn settle(&self, value: Arc<Buffer>) {
        let hash = self.hash(value.bytes());
        self.settle_as(Some(value), hash);
    }

    fn settle_as(&self, value: Option<Arc<Buffer>>, hash: Option<u64>) {
        let mut state = self.state.lock();
        state.value = value;
        state.is_left_out = state.value.is_none();
        state.hash = hash.or(state.hash);
        state.done += 1;
        self.unfinished_bytes.fetch_sub(self.entry.len_bytes() as u64, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
    }

    /// Takes the value out, and returns it updated by a dense sum.
    pub(super) fn updated(&self, updates: &Updates, update: &Update, sum: &[u8]) -> Result<Arc<Buffer>> {
        let mut value = self.take_value().unwrap_or_else(|| Arc::new(Buffer::zeroed(sum.len())));
        let _span = timeline::span(Phase::Update, || &self.entry.key);
        updates.apply(update, &self.entry, sum, &mut value)?;
        Ok(value)
    }

    /// Returns the value after a dense push with this sum. It is the sum itself, or the value updated by the
    /// sum.
    pub(super) fn value_after(&self, updates: &Updates, update: &Update, sum: Arc<Buffer>) -> Result<Arc<Buffer>> {
        if update.overwrites() { Ok(sum) } else { self.updated(updates, update, sum.bytes()) }
    }

    /// Records that a dense push is done. Sets the value, writes it to the outputs and releases them. An
    /// error fails the key and the outputs.
    pub(super) fn settle_with(&self, value: Result<Arc<Buffer>>, outs: Vec<TensorMut>) -> Result<()> {
        let value = match value {
            Ok(value) => value,
            Err(fault) => {
                self.fail_with(&fault, outs);
                return Err(fault);
            }
        };
        let span = timeline::span(Phase::Unpack, || &self.entry.key);
        for mut out in outs {
            if out.bytes().as_ptr() != value.bytes().as_ptr() {
                out.copy_from(value.bytes());
            }
        }
        drop(span);
        self.settle(value);
        Ok(())
    }

    /// Fails the key and the outputs that wait for the value.
    pub(super) fn fail_with(&self, fault: &Error, outs: Vec<TensorMut>) {
        self.fail(fault);
        outs.into_iter().for_each(|out| out.fail(fault.clone()));
    }

    /// Records that a dense push is done. Its sum is only in the output `index`.
    pub(super) fn settle_in(&self, index: usize, mut outs: Vec<TensorMut>) {
        let span = timeline::span(Phase::Unpack, || &self.entry.key);
        let sum = outs.swap_remove(index);
        outs.into_iter().for_each(|mut out| out.copy_from(sum.bytes()));
        let hash = self.hash(sum.bytes());
        drop(sum);
        drop(span);
        self.settle_as(None, hash);
    }

    /// Keeps the sum of an operation. To be called before the operation settles, in a job that goes on
    /// without lost ranks.
    pub(super) fn keep_last(&self, sum: LastSum) {
        self.state.lock().last = Some(sum);
    }

    /// Returns the sum of the last completed operation.
    pub(super) fn last_sum(&self) -> Option<Vec<u8>> {
        Some(match self.state.lock().last.as_ref()? {
            LastSum::Dense(sum) => sum.bytes().to_vec(),
            LastSum::Rows(rows) => rows.clone(),
        })
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
        let slot = Slot::new(
            Entry { key: Key::from("w"), dtype: DType::U8, shape: [1].into(), is_row_sparse: false },
            0,
            &Arc::default(),
            0,
        );
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
