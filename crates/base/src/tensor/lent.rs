//! Records which store holds a tensor until its owner asks for it again, and notifies that store.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::Key;
use crate::forked::Process;

/// A store's notifications about the tensors that it holds.
pub trait Waiter: Send + Sync {
    /// The caller may be about to block until the store is done with a tensor.
    fn wait(&self);

    /// The store has a [watched](super::Tensor::watched) tensor. The tensor's owner waits for a callback, and
    /// not for the lock.
    fn watched(&self) {}

    /// The store is done with a watched tensor. The callback to its owner follows.
    fn returned(&self) {}
}

/// The store reads the tensor: writers block.
pub(super) const READ: u8 = 1;
/// The store writes the tensor: readers and writers block.
pub(super) const WRITTEN: u8 = 2;

#[derive(Default)]
pub(super) struct StoreLoan {
    /// 0, `READ` or `WRITTEN`. It is changed only while `to` is locked.
    how: AtomicU8,
    to: Mutex<Option<(Weak<dyn Waiter>, Process)>>,
    is_watched: bool,
    /// The key and the rank that the tensor was last given to a store for.
    given: Mutex<Option<(Key, usize)>>,
}

impl StoreLoan {
    pub(super) fn watched() -> Self {
        StoreLoan { is_watched: true, ..StoreLoan::default() }
    }

    pub(super) fn give(&self, key: &Key, rank: usize) {
        *self.given.lock() = Some((key.clone(), rank));
    }

    /// The key and the rank that the tensor was last given to a store for.
    pub(super) fn given(&self) -> Option<(Key, usize)> {
        self.given.lock().clone()
    }

    pub(super) fn lend(&self, to: &Weak<dyn Waiter>, how: u8) {
        let mut place = self.to.lock();
        let before = self.how.swap(how, Ordering::AcqRel);
        if self.is_watched && before == 0 {
            to.upgrade().into_iter().for_each(|waiter| waiter.watched());
        }
        if !self.is_watched || before == 0 {
            *place = Some((Weak::clone(to), Process::this()));
        }
    }

    /// Records that the owner asks for the tensor. Notifies the store, if it holds the tensor in a way that
    /// may make the owner block.
    pub(super) fn come_for(&self, blocks_from: u8) {
        if self.how.load(Ordering::Acquire) >= blocks_from {
            self.take_back().into_iter().for_each(|waiter| waiter.wait());
        }
    }

    /// Takes the tensor back, and returns the store that had it.
    pub(super) fn take_back(&self) -> Option<Arc<dyn Waiter>> {
        if self.how.load(Ordering::Acquire) == 0 {
            return None;
        }
        let place = {
            let mut place = self.to.lock();
            self.how.store(0, Ordering::Release);
            place.take()
        };
        let (waiter, process) = place?;
        // A forked child must not notify its parent's store.
        let waiter = waiter.upgrade().filter(|_| process.is_here())?;
        if self.is_watched {
            waiter.returned();
        }
        Some(waiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, DType, Tensor};

    #[derive(Default)]
    struct Count {
        waits: AtomicU8,
        held: AtomicU8,
    }

    impl Waiter for Count {
        fn wait(&self) {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }

        fn watched(&self) {
            self.held.fetch_add(1, Ordering::Relaxed);
        }

        fn returned(&self) {
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn counter() -> (Arc<Count>, Weak<dyn Waiter>) {
        let count = Arc::new(Count::default());
        let waiter: Arc<dyn Waiter> = count.clone();
        (count, Arc::downgrade(&waiter))
    }

    #[test]
    fn a_store_is_notified_once_when_the_owner_asks_for_its_tensor() {
        let (count, waiter) = counter();
        let (input, output) = (Tensor::zeros(DType::F32, &[1]), Tensor::zeros(DType::F32, &[1]));
        input.lend(&waiter, false);
        output.lend(&waiter, true);
        let counted = || count.waits.load(Ordering::Relaxed);
        drop(input.read());
        assert_eq!(counted(), 0, "a store that only reads keeps no reader waiting");
        drop(input.write());
        assert_eq!(counted(), 1);
        drop((output.read(), input.write()));
        assert_eq!(counted(), 2);
        drop((output.read(), output.clone().read()));
        assert_eq!(counted(), 2);
        assert_eq!(count.held.load(Ordering::Relaxed), 0, "none is watched");
    }

    #[test]
    fn a_store_knows_how_many_watched_tensors_it_has_before_their_owners_are_notified() {
        let (count, waiter) = counter();
        let held = {
            let count = Arc::clone(&count);
            move || count.held.load(Ordering::Relaxed)
        };
        let watched = || {
            let held = held.clone();
            Tensor::watched(DType::F32, &[1], Buffer::zeroed(4), Box::new(move |_| assert_eq!(held(), 0)))
        };
        let tensor = watched();
        tensor.lend(&waiter, false);
        tensor.lend(&waiter, true);
        assert_eq!(held(), 1, "one tensor, in two places of a call");
        drop(tensor);
        assert_eq!(held(), 0);
        let tensor = watched();
        tensor.lend(&waiter, true);
        drop(tensor.read());
        assert_eq!((held(), count.waits.load(Ordering::Relaxed)), (0, 1), "its owner came for it");
        drop(tensor);
        drop(watched());
        assert_eq!(held(), 0, "one that was never lent");
    }
}
