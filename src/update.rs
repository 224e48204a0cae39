//! The change of a key's value by a merged gradient: overwrite, optimizer or updater.
//!
//! Every rank of `dist_sync_mpi`, and the one process of `local`, keeps the values and applies updates
//! itself, through here.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use ringpull_base::{Buffer, DType, Error, Key, Result, Tensor, TensorMut, unshare};
use ringpull_kernels::optim::{Optimizer, State};

use crate::{Contribution, Entry, MergedRows, SavedStates, Updater};

/// The update by a gradient. It is fixed when the gradient is pushed, so that a change of the setting applies
/// only to later pushes.
#[derive(Clone)]
pub(crate) enum Update {
    /// The value becomes the gradient.
    Overwrite,
    /// One step of this optimizer.
    Optimize(Arc<Optimizer>),
    /// One step of this optimizer. Each rank makes the step for its part, while the sum is under way, and
    /// sends the result to the others.
    Shard(Arc<Optimizer>),
    /// One call of this updater.
    Call(Arc<Mutex<Updater>>),
}

impl Update {
    /// Returns true if the memory of a finished sum has the key's new value.
    pub(crate) fn overwrites(&self) -> bool {
        matches!(self, Update::Overwrite | Update::Shard(_))
    }
}

/// Returns an error if the optimizer cannot change this key's value at all. To be called before a push has
/// changed anything.
pub(crate) fn check(optimizer: &Optimizer, entry: &Entry) -> Result<()> {
    optimizer.check_dtype(entry.dtype).map_err(|cause| of_key(entry, cause))
}

/// A key's state and the optimizer that last wrote it.
struct KeyState {
    optimizer: Arc<Optimizer>,
    state: State,
    /// True if the state is only that of this rank's part.
    is_shard: bool,
}

/// A part of a key's value in bytes, and the optimizer's step for this part.
pub(crate) struct ShardStep {
    optimizer: Arc<Optimizer>,
    kept: Arc<Mutex<KeyState>>,
    dtype: DType,
    part: Range<usize>,
    weights: Vec<u8>,
}

impl ShardStep {
    /// Applies the gradient that begins at byte `start` of the key, within the part. Returns the new weights
    /// there.
    pub(crate) fn apply(&mut self, start: usize, gradient: &[u8]) -> &[u8] {
        let at = start - self.part.start;
        self.optimizer.apply_at(&mut self.kept.lock().state, self.dtype, &mut self.weights, at, gradient);
        &self.weights[at..at + gradient.len()]
    }
}

/// The current update and the optimizer's states.
pub(crate) struct Updates {
    /// The current update. Its optimizer is that of all keys, with the factors of all keys.
    present: Mutex<Update>,
    /// True if an optimizer was sharded, so that states may be.
    are_shards: AtomicBool,
    states: Mutex<BTreeMap<Key, Arc<Mutex<KeyState>>>>,
}

impl Default for Updates {
    fn default() -> Self {
        Updates { present: Mutex::new(Update::Overwrite), are_shards: AtomicBool::new(false), states: Mutex::default() }
    }
}

impl Updates {
    /// Returns the update by a gradient of this key that is pushed now, if the key's value can be updated in
    /// this way.
    pub(crate) fn present(&self, entry: &Entry) -> Result<Update> {
        let mut update = self.present.lock().clone();
        if let Update::Optimize(optimizer) | Update::Shard(optimizer) = &mut update {
            *optimizer = optimizer.of(&entry.key);
            check(optimizer, entry)?;
        }
        Ok(update)
    }

    /// Applies gradients pushed from now on by `optimizer`. A key's state is kept if the rule does not
    /// change, and starts from zero at the first update with another rule.
    pub(crate) fn set_optimizer(&self, optimizer: &Optimizer) {
        *self.present.lock() = Update::Optimize(Arc::new(optimizer.clone()));
    }

    /// Sets an optimizer as [`set_optimizer`](Self::set_optimizer) does, but each rank has only the states of
    /// its parts. From then on all optimizers of the store are sharded.
    pub(crate) fn set_sharded_optimizer(&self, optimizer: &Optimizer) {
        self.are_shards.store(true, Ordering::Relaxed);
        *self.present.lock() = Update::Shard(Arc::new(optimizer.clone()));
    }

    /// Returns true if an optimizer was sharded.
    pub(crate) fn are_shards(&self) -> bool {
        self.are_shards.load(Ordering::Relaxed)
    }

    /// Passes gradients pushed from now on to `updater`.
    pub(crate) fn set_updater(&self, updater: Updater) {
        *self.present.lock() = Update::Call(Arc::new(Mutex::new(updater)));
    }

    /// Applies `gradient` to `value`. If an updater fails, the changes that it has made to the value stay.
    pub(crate) fn apply(&self, update: &Update, entry: &Entry, gradient: &[u8], value: &mut Arc<Buffer>) -> Result<()> {
        match update {
            Update::Overwrite => overwrite(value, gradient),
            Update::Optimize(optimizer) => {
                return self.optimize(optimizer, entry, |state| {
                    optimizer.apply(state, entry.dtype, unshare(value).bytes_mut(), gradient)
                });
            }
            Update::Call(updater) => {
                let received = Tensor::from_buffer(entry.dtype, &entry.shape, Buffer::copy_of(gradient));
                return call(updater, entry, &received, value);
            }
            Update::Shard(_) => return Err(applied_in_parts()),
        }
        Ok(())
    }

    /// Applies the push of one process as [`apply`](Self::apply) does, without copying memory that can be
    /// passed on. `outs` are the outputs of the push.
    pub(crate) fn apply_contribution(
        &self,
        update: &Update,
        entry: &Entry,
        gradient: Contribution,
        outs: &[TensorMut],
        value: &mut Arc<Buffer>,
    ) -> Result<()> {
        match (update, gradient) {
            (Update::Overwrite, Contribution::Summed(sum)) => {
                *value = Arc::new(sum);
                Ok(())
            }
            (Update::Call(updater), Contribution::Held(held)) => {
                let received = Tensor::from_snapshot(entry.dtype, &entry.shape, held.snapshot());
                drop(held);
                call(updater, entry, &received, value)
            }
            (Update::Call(updater), Contribution::Summed(sum)) => {
                call(updater, entry, &Tensor::from_buffer(entry.dtype, &entry.shape, sum), value)
            }
            (update, gradient) => self.apply(update, entry, gradient.bytes(outs), value),
        }
    }

    /// Applies row-sparse gradients as [`apply`](Self::apply) does. Overwriting makes absent rows zero, and
    /// optimizers do not change them. An updater gets the gradient with zeros in absent rows.
    pub(crate) fn apply_rows(
        &self,
        update: &Update,
        entry: &Entry,
        gradient: &MergedRows,
        value: &mut Arc<Buffer>,
    ) -> Result<()> {
        match update {
            Update::Overwrite => {
                *value = Arc::new(gradient.dense(entry));
                Ok(())
            }
            Update::Optimize(optimizer) => self.optimize(optimizer, entry, |state| {
                let (weight, rows) = (unshare(value).bytes_mut(), gradient.rows.bytes());
                optimizer.apply_rows(state, entry.dtype, weight, entry.row_bytes(), &gradient.ids, rows)
            }),
            Update::Call(updater) => {
                let received = Tensor::from_buffer(entry.dtype, &entry.shape, gradient.dense(entry));
                call(updater, entry, &received, value)
            }
            Update::Shard(_) => Err(applied_in_parts()),
        }
    }

    /// Begins a step of this rank's `part` of a key, in bytes. `value` is that of the whole key.
    pub(crate) fn begin_shard(
        &self,
        optimizer: &Arc<Optimizer>,
        entry: &Entry,
        part: Range<usize>,
        value: &[u8],
    ) -> Result<ShardStep> {
        let (kept, weights) = (self.kept(optimizer, entry), value[part.clone()].to_vec());
        let mut locked = kept.lock();
        if !std::mem::replace(&mut locked.is_shard, true) {
            locked.state.keep(part.clone(), value.len());
        }
        let begun = optimizer.begin_step(&mut locked.state, entry.dtype, &weights);
        drop(locked);
        begun.map_err(|cause| of_key(entry, cause))?;
        Ok(ShardStep { optimizer: Arc::clone(optimizer), kept, dtype: entry.dtype, part, weights })
    }

    /// Returns the states of every key with which the current optimizer could continue, and this optimizer.
    /// The second value has the keys with states of only this rank's part.
    pub(crate) fn states(&self) -> Result<(SavedStates, Vec<Key>)> {
        let optimizer = self.optimizer("save_optimizer_states")?;
        let states = self.states.lock();
        let mut shards = Vec::new();
        let carried = states.iter().filter_map(|(key, kept)| {
            let kept = kept.lock();
            let is_carried = optimizer.keeps_states_of(&kept.optimizer);
            shards.extend((is_carried && kept.is_shard).then(|| key.clone()));
            is_carried.then(|| (key.clone(), kept.state.clone()))
        });
        let states = carried.collect();
        Ok((SavedStates { states, optimizer: Some((*optimizer).clone()) }, shards))
    }

    /// The bytes of all states.
    pub(crate) fn state_bytes(&self) -> u64 {
        let of =
            |kept: &Arc<Mutex<KeyState>>| kept.lock().state.slots.iter().map(|slot| slot.len() as u64).sum::<u64>();
        self.states.lock().values().map(of).sum()
    }

    /// Replaces the states, and the optimizer too if `saved` holds one.
    pub(crate) fn set_states(&self, saved: SavedStates) -> Result<()> {
        if let Some(optimizer) = &saved.optimizer {
            optimizer.check()?;
            if self.are_shards() { self.set_sharded_optimizer(optimizer) } else { self.set_optimizer(optimizer) }
        }
        let optimizer = self.optimizer("load_optimizer_states")?;
        let kept = |state| Arc::new(Mutex::new(KeyState { optimizer: Arc::clone(&optimizer), state, is_shard: false }));
        *self.states.lock() = saved.states.into_iter().map(|(key, state)| (key, kept(state))).collect();
        Ok(())
    }

    /// Returns the optimizer of all keys, which `operation` needs.
    pub(crate) fn optimizer(&self, operation: &str) -> Result<Arc<Optimizer>> {
        match &*self.present.lock() {
            Update::Optimize(optimizer) | Update::Shard(optimizer) => Ok(Arc::clone(optimizer)),
            Update::Overwrite | Update::Call(_) => Err(no_optimizer(operation)),
        }
    }

    /// Returns the key's state. It starts from zero if another rule left it.
    fn kept(&self, optimizer: &Arc<Optimizer>, entry: &Entry) -> Arc<Mutex<KeyState>> {
        let fresh = || KeyState { optimizer: Arc::clone(optimizer), state: State::default(), is_shard: false };
        let mut states = self.states.lock();
        let kept = states.entry(entry.key.clone()).or_insert_with(|| Arc::new(Mutex::new(fresh())));
        let mut locked = kept.lock();
        if !optimizer.keeps_states_of(&locked.optimizer) {
            *locked = fresh();
        }
        locked.optimizer = Arc::clone(optimizer);
        drop(locked);
        Arc::clone(kept)
    }

    /// Runs `step` on the key's state.
    fn optimize(
        &self,
        optimizer: &Arc<Optimizer>,
        entry: &Entry,
        step: impl FnOnce(&mut State) -> Result<()>,
    ) -> Result<()> {
        step(&mut self.kept(optimizer, entry).lock().state).map_err(|cause| of_key(entry, cause))
    }
}

/// Sets `value` to `bytes`. If a snapshot shares the memory, replaces it without copying it first.
fn overwrite(value: &mut Arc<Buffer>, bytes: &[u8]) {
    match Arc::get_mut(value) {
        Some(value) if !value.is_foreign() => value.bytes_mut().copy_from_slice(bytes),
        _ => *value = Arc::new(Buffer::copy_of(bytes)),
    }
}

thread_local! {
    static IN_UPDATER: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if this thread runs an updater. A call that blocks would then wait for later work of this
/// thread.
pub(crate) fn is_in_updater() -> bool {
    IN_UPDATER.get()
}

/// A guard. While it lives, this thread runs an updater.
struct InUpdater;

impl InUpdater {
    fn begin() -> Self {
        IN_UPDATER.set(true);
        InUpdater
    }
}

impl Drop for InUpdater {
    fn drop(&mut self) {
        IN_UPDATER.set(false);
    }
}

/// Lends `value` to the updater as a tensor and takes it back, even if the updater unwinds.
fn call(updater: &Mutex<Updater>, entry: &Entry, received: &Tensor, value: &mut Arc<Buffer>) -> Result<()> {
    struct LentValue<'a>(&'a mut Arc<Buffer>, Tensor);
    impl Drop for LentValue<'_> {
        fn drop(&mut self) {
            // If an updater keeps a handle and goes on writing, it writes to its own copy.
            if let Ok(stored) = self.1.read() {
                *self.0 = stored.snapshot();
            }
        }
    }
    let _inside = InUpdater::begin();
    let data = std::mem::replace(value, Arc::new(Buffer::zeroed(0)));
    let lent = LentValue(value, Tensor::from_snapshot(entry.dtype, &entry.shape, data));
    updater.lock()(&entry.key, received, &lent.1)
}

fn applied_in_parts() -> Error {
    Error::bug("a sharded optimizer's step is made while the sum travels")
}

fn of_key(entry: &Entry, cause: Error) -> Error {
    match cause {
        Error::InvalidArgument { what, remedy } => Error::argument(format!("key {}: {what}", entry.key), remedy),
        other => other,
    }
}

pub(super) fn no_optimizer(operation: &str) -> Error {
    Error::argument(
        format!("{operation} in a store without an optimizer"),
        "call set_optimizer first; an updater keeps its states itself",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(shape: &[usize]) -> Entry {
        Entry { key: Key::from("w"), dtype: DType::F32, shape: shape.into(), is_row_sparse: false }
    }

    fn buffer(values: &[f32]) -> Arc<Buffer> {
        Arc::new(Buffer::copy_of(bytemuck::cast_slice(values)))
    }

    fn floats(buffer: &Buffer) -> &[f32] {
        bytemuck::cast_slice(buffer.bytes())
    }

    fn momentum(rate: f64) -> Optimizer {
        format!("sgd,lr={rate},momentum=0.5").parse().unwrap()
    }

    #[test]
    fn an_update_is_the_one_that_was_present_at_the_push() {
        let (updates, entry, mut value) = (Updates::default(), entry(&[2]), buffer(&[1.0, 2.0]));
        let before = updates.present(&entry).unwrap();
        updates.set_optimizer(&Optimizer::sgd(1.0));
        updates.apply(&before, &entry, bytemuck::cast_slice(&[5f32, 6.0]), &mut value).unwrap();
        assert_eq!(floats(&value), [5.0, 6.0]);
        updates
            .apply(&updates.present(&entry).unwrap(), &entry, bytemuck::cast_slice(&[1f32, 1.0]), &mut value)
            .unwrap();
        assert_eq!(floats(&value), [4.0, 5.0]);
    }

    #[test]
    fn a_snapshot_of_a_value_outlives_every_kind_of_update() {
        let (updates, entry, mut value) = (Updates::default(), entry(&[2]), buffer(&[1.0, 2.0]));
        let snapshot = Arc::clone(&value);
        let gradient = bytemuck::cast_slice(&[1f32, 1.0]);
        updates.apply(&Update::Overwrite, &entry, gradient, &mut value).unwrap();
        let overwritten = Arc::clone(&value);
        updates.apply(&Update::Optimize(Arc::new(Optimizer::sgd(1.0))), &entry, gradient, &mut value).unwrap();
        let optimized = Arc::clone(&value);
        updates.set_updater(Box::new(|_, received, stored| {
            stored.write().as_mut_slice::<f32>()[1] = 10.0 * received.read()?.as_slice::<f32>()[1];
            Ok(())
        }));
        updates.apply(&updates.present(&entry).unwrap(), &entry, gradient, &mut value).unwrap();
        assert_eq!(floats(&snapshot), [1.0, 2.0]);
        assert_eq!(floats(&overwritten), [1.0, 1.0]);
        assert_eq!(floats(&optimized), [0.0, 0.0]);
        assert_eq!(floats(&value), [0.0, 10.0]);
    }

    #[test]
    fn an_updater_that_panics_leaves_the_value_whole() {
        let (updates, entry, mut value) = (Updates::default(), entry(&[2]), buffer(&[1.0, 2.0]));
        updates.set_updater(Box::new(|_, _, _| panic!("the updater's own")));
        let update = updates.present(&entry).unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            updates.apply(&update, &entry, &[0; 8], &mut value)
        }));
        assert!(outcome.is_err());
        assert_eq!(floats(&value), [1.0, 2.0]);
    }

    #[test]
    fn states_are_carried_on_while_the_rule_stays_the_same() {
        let (updates, entry, mut value) = (Updates::default(), entry(&[1]), buffer(&[0.0]));
        let push = |value: &mut Arc<Buffer>| {
            updates.apply(&updates.present(&entry).unwrap(), &entry, bytemuck::cast_slice(&[1f32]), value).unwrap();
            floats(value)[0]
        };
        updates.set_optimizer(&momentum(1.0));
        assert_eq!(push(&mut value), -1.0);
        updates.set_optimizer(&momentum(2.0));
        assert_eq!(push(&mut value), -3.5);
        updates.set_optimizer(&"test".parse().unwrap());
        assert_eq!(push(&mut value), -2.5);
        updates.set_optimizer(&momentum(1.0));
        assert_eq!(push(&mut value), -3.5);
    }

    #[test]
    fn restored_states_continue_exactly() {
        let (updates, entry, mut value) = (Updates::default(), entry(&[3]), buffer(&[1.0; 3]));
        let gradient = bytemuck::cast_slice(&[1f32, -2.0, 0.5]);
        updates.set_optimizer(&"adam,lr=0.1".parse().unwrap());
        updates.apply(&updates.present(&entry).unwrap(), &entry, gradient, &mut value).unwrap();
        let (saved, mut copy) = (updates.states().unwrap().0, Arc::clone(&value));
        updates.apply(&updates.present(&entry).unwrap(), &entry, gradient, &mut value).unwrap();
        let restored = Updates::default();
        restored.set_states(saved).unwrap();
        restored.apply(&restored.present(&entry).unwrap(), &entry, gradient, &mut copy).unwrap();
        assert_eq!(value.bytes(), copy.bytes());
        assert!(Updates::default().set_states(SavedStates::default()).is_err());
    }

    #[test]
    fn rows_overwrite_with_zeros_between_and_optimize_without_touching_the_rest() {
        let (updates, entry, mut value) = (Updates::default(), entry(&[3, 2]), buffer(&[1.0; 6]));
        let rows = Buffer::copy_of(bytemuck::cast_slice(&[5f32, 6.0]));
        let gradient = MergedRows { ids: vec![1], rows: Arc::new(rows) };
        let sgd = Update::Optimize(Arc::new(Optimizer::sgd(1.0)));
        updates.apply_rows(&sgd, &entry, &gradient, &mut value).unwrap();
        assert_eq!(floats(&value), [1.0, 1.0, -4.0, -5.0, 1.0, 1.0]);
        updates.apply_rows(&Update::Overwrite, &entry, &gradient, &mut value).unwrap();
        assert_eq!(floats(&value), [0.0, 0.0, 5.0, 6.0, 0.0, 0.0]);
    }

    #[test]
    fn an_optimizer_on_integers_is_an_error_that_names_the_key() {
        let entry = Entry { dtype: DType::I64, ..entry(&[1]) };
        let error = check(&Optimizer::sgd(1.0), &entry).unwrap_err().to_string();
        assert!(error.contains("\"w\"") && error.contains("i64"), "{error}");
    }
}
