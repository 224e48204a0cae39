//! Host tensors that a store can read and write while their owner goes on computing.
//!
//! A [`Tensor`] is a shared handle, as MXNet's `NDArray` is: a clone names the same elements. Its lock is the
//! dependency tracking. `push` takes the read lock and keeps it until the gradient has left; `push_pull`
//! takes the write lock of `out` and gives it back when the sum is there. So [`Tensor::read`] and
//! [`Tensor::write`] block exactly as long as communication still needs the memory, and no copy is needed for
//! that.
//!
//! Owned memory is copied on write: a store may keep a snapshot of a tensor for the price of a reference
//! count. A tensor may also be in memory of a device (see `device`). It then has the same lock, and asking
//! for its bytes is an error.
//!
//! Tensors over one piece of another library's memory, or over views of it, are locked as one (`ranges`).
//!
//! The store that holds a tensor is notified when its owner asks for it again (`Waiter`): once, and before
//! the owner may block.

mod guard;
mod lent;
mod ranges;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::lock_api::{ArcRwLockReadGuard, ArcRwLockWriteGuard};
use parking_lot::{RawRwLock, RwLock};

pub use guard::unshare;
pub use guard::{TensorMut, TensorRef};
pub use lent::Waiter;
use lent::{READ, StoreLoan, WRITTEN};
use ranges::{Range, RangeLock};

use crate::timeline::{self, Phase};
use crate::{Awake, Buffer, DType, Element, Error, Key, Remote, Result, waits};

/// A function that is called once, when nobody holds a tensor any more. It gets the error of the last write,
/// if there was one.
pub type OnRelease = Box<dyn FnOnce(Option<Error>) + Send + Sync>;

struct Content {
    data: Arc<Buffer>,
    /// The error for which the last write of this tensor did not happen. Reading the tensor returns it.
    fault: Option<Error>,
    /// The key that was written last, kept for the timeline only.
    written: Option<Key>,
    released: Option<OnRelease>,
    /// True if a store that writes this tensor may leave its key without a value.
    is_unkept: bool,
}

impl Content {
    fn of(data: Arc<Buffer>) -> Self {
        Content { data, fault: None, written: None, released: None, is_unkept: false }
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        if let Some(released) = self.released.take() {
            released(self.fault.take());
        }
    }
}

/// A dense tensor, C-contiguous, in host memory or on a device. Cloning clones the handle, not the elements.
///
/// It is a lock: a push holds it for reading until its elements have been used, and a `push_pull` holds its
/// outputs for writing until the sum is there, so [`read`](Self::read) and [`write`](Self::write) block
/// exactly as long as they must.
///
/// ```
/// # use ringpull_base as ringpull;
/// use ringpull::{DType, Tensor};
///
/// let tensor = Tensor::zeros(DType::F32, &[2, 3]);
/// tensor.write().as_mut_slice::<f32>()[4] = 1.5;
/// assert_eq!(tensor.to_vec::<f32>()?, [0.0, 0.0, 0.0, 0.0, 1.5, 0.0]);
/// # Ok::<(), ringpull::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Arc<[usize]>,
    content: Arc<RwLock<Content>>,
    remote: Option<Remote>,
    /// The range of the memory, if it is another library's.
    range: Option<Range>,
    lent: Arc<StoreLoan>,
}

fn len_bytes(dtype: DType, shape: &[usize]) -> usize {
    dtype.len_bytes(shape).unwrap_or_else(|error| panic!("{error}"))
}

impl Tensor {
    /// Returns a tensor of zeros.
    ///
    /// # Panics
    /// If [`DType::len_bytes`] has no answer for `shape`.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Self {
        Self::from_buffer(dtype, shape, Buffer::zeroed(len_bytes(dtype, shape)))
    }

    /// Returns zeros as [`zeros`](Self::zeros) does, or an error if the shape is impossible or there is no
    /// memory for `what`.
    pub fn try_zeros(dtype: DType, shape: &[usize], what: &str) -> Result<Self> {
        let buffer = Buffer::try_zeroed(dtype.len_bytes(shape)?, what)?;
        Ok(Self::from_buffer(dtype, shape, buffer))
    }

    /// A tensor holding a copy of `values`, in C order.
    ///
    /// # Panics
    /// If `shape` does not hold exactly `values.len()` elements.
    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Self {
        assert_eq!(len_bytes(T::DTYPE, shape), size_of_val(values), "the shape holds as many elements as are given");
        Self::from_buffer(T::DTYPE, shape, Buffer::copy_of(bytemuck::cast_slice(values)))
    }

    /// Returns a tensor with `value`, rounded to `dtype`, in every element.
    pub fn full(dtype: DType, shape: &[usize], value: f64) -> Self {
        let len = len_bytes(dtype, shape) / dtype.size_bytes();
        crate::with_element!(dtype, T => Self::from_slice(shape, &vec![T::from_f64(value); len]))
    }

    /// A tensor over `buffer`, which may be foreign memory.
    ///
    /// # Panics
    /// If the buffer's length is not that of the shape.
    pub fn from_buffer(dtype: DType, shape: &[usize], buffer: Buffer) -> Self {
        let bytes = buffer.bytes();
        assert_eq!(bytes.len(), len_bytes(dtype, shape), "the buffer holds the shape's elements");
        let range = if buffer.is_foreign() { Range::of(bytes.as_ptr() as usize, bytes.len()) } else { None };
        Tensor { range, ..Self::over(dtype, shape, Content::of(Arc::new(buffer))) }
    }

    /// Returns a tensor as [`from_buffer`](Self::from_buffer) does. Calls `released` when the last handle and
    /// the last guard are gone, so that no store uses the memory any more. The call may come on a store's
    /// thread and must not block it. Give the tensor to stores of one kind at a time: only the first that
    /// holds it is notified of its return.
    pub fn watched(dtype: DType, shape: &[usize], buffer: Buffer, released: OnRelease) -> Self {
        let lent = Arc::new(StoreLoan::watched());
        let tensor = Tensor { lent: Arc::clone(&lent), ..Self::from_buffer(dtype, shape, buffer) };
        tensor.content.write().released = Some(Box::new(move |fault| {
            lent.take_back();
            released(fault);
        }));
        tensor
    }

    /// Lets a store that writes a sum here leave the key without a value until the next push. Keeping a value
    /// would cost a copy, at once if the memory is foreign, and otherwise when the tensor is next written. A
    /// program that needs the sum reads it here. Pulling the key is an error meanwhile.
    #[must_use = "it is the tensor"]
    pub fn unkept(self) -> Self {
        self.content.write().is_unkept = true;
        self
    }

    fn over(dtype: DType, shape: &[usize], content: Content) -> Self {
        let content = Arc::new(RwLock::new(content));
        Tensor { dtype, shape: shape.into(), content, remote: None, range: None, lent: Arc::default() }
    }

    /// Returns a tensor over memory that is not the host's.
    pub fn from_remote(dtype: DType, shape: &[usize], remote: Remote) -> Self {
        Tensor { remote: Some(remote), ..Self::over(dtype, shape, Content::of(Arc::new(Buffer::zeroed(0)))) }
    }

    /// Returns this tensor, marked as memory of another library that begins at `start`. While a guard of it
    /// is held, tensors over overlapping memory are locked too.
    #[must_use = "it is the tensor"]
    pub fn at(self, start: usize) -> Self {
        Tensor { range: Range::of(start, self.len_bytes()), ..self }
    }

    /// The memory, if it is not the host's.
    pub fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref()
    }

    /// Returns a tensor over a snapshot. The memory is copied when either side writes.
    pub fn from_snapshot(dtype: DType, shape: &[usize], data: Arc<Buffer>) -> Self {
        Self::over(dtype, shape, Content::of(data))
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The lengths of the dimensions; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len() * self.dtype.size_bytes()
    }

    /// Returns true if both handles name the same elements.
    pub fn is_same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.content, &other.content)
    }

    /// Returns true if both are in another library's memory, and their memory overlaps.
    pub fn overlaps(&self, other: &Tensor) -> bool {
        self.range.zip(other.range).is_some_and(|(own, other)| own.overlaps(other))
    }

    /// Returns the elements, for reading. Blocks while a store still has to write them. If that write fails,
    /// returns its error.
    pub fn read(&self) -> Result<TensorRef> {
        self.remote.as_ref().map_or(Ok(()), |remote| Err(remote.refuse()))?;
        self.read_anywhere()
    }

    /// Locks the tensor as [`read`](Self::read) does, wherever the memory is. On a device it blocks until a
    /// store has queued its work on the tensor's stream.
    pub fn read_anywhere(&self) -> Result<TensorRef> {
        self.come_for(WRITTEN);
        let content = if timeline::is_on() { self.read_timed() } else { self.read_locked() };
        self.guard(content, self.hold(false))
    }

    /// Locks the range of memory, if it is another library's. Blocks while others hold it.
    fn hold(&self, is_written: bool) -> Option<RangeLock> {
        let held = |range| match ranges::hold(range, is_written, &self.lent, None) {
            Ok(held) => held,
            Err(_) => unreachable!("without a deadline it waits"),
        };
        self.range.map(held)
    }

    fn read_locked(&self) -> ArcRwLockReadGuard<RawRwLock, Content> {
        self.look_out();
        RwLock::try_read_arc(&self.content).unwrap_or_else(|| {
            let _wait = waits::wait();
            RwLock::read_arc(&self.content)
        })
    }

    /// Polls for a moment until a store has written a short tensor, because sleeping would take longer.
    fn look_out(&self) {
        const SHORT_BYTES: usize = 64 << 10;
        const MOMENT: Duration = Duration::from_micros(50);
        if self.len_bytes() > SHORT_BYTES || !self.content.is_locked_exclusive() {
            return;
        }
        let mut awake = Awake::new(MOMENT);
        while self.content.is_locked_exclusive() && awake.is_awake() {}
    }

    /// Reads as [`read`](Self::read) does, but returns `None` if a store still has to write the elements
    /// after `limit`.
    pub fn read_within(&self, limit: Duration) -> Result<Option<TensorRef>> {
        self.remote.as_ref().map_or(Ok(()), |remote| Err(remote.refuse()))?;
        self.read_anywhere_within(limit)
    }

    /// Locks the tensor as [`read_within`](Self::read_within) does, wherever the memory is.
    pub fn read_anywhere_within(&self, limit: Duration) -> Result<Option<TensorRef>> {
        let deadline = Instant::now().checked_add(limit);
        let Some(content) = self.read_locked_within(limit) else { return Ok(None) };
        match self.range.map(|range| ranges::hold(range, false, &self.lent, deadline)).transpose() {
            Ok(range) => self.guard(content, range).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn read_locked_within(&self, limit: Duration) -> Option<ArcRwLockReadGuard<RawRwLock, Content>> {
        self.come_for(WRITTEN);
        if !limit.is_zero() {
            self.look_out();
        }
        let _wait = waits::wait();
        RwLock::try_read_arc_for(&self.content, limit)
    }

    /// Waits for at most `limit`. Returns true if no store has to write the elements any more, or the error
    /// of such a write. Other tensors over this memory do not count, so the elements may have changed since.
    pub fn is_settled_within(&self, limit: Duration) -> Result<bool> {
        let Some(content) = self.read_locked_within(limit) else { return Ok(false) };
        content.fault.clone().map_or(Ok(true), Err)
    }

    /// Waits for at most `limit`. Returns true if no other tensor's lock on this memory would make an access
    /// wait.
    pub fn is_free_within(&self, is_written: bool, limit: Duration) -> bool {
        self.range.is_none_or(|range| ranges::is_free(range, is_written, Instant::now() + limit))
    }

    fn guard(&self, content: ArcRwLockReadGuard<RawRwLock, Content>, range: Option<RangeLock>) -> Result<TensorRef> {
        if let Some(fault) = &content.fault {
            return Err(fault.clone());
        }
        let (shape, remote) = (Arc::clone(&self.shape), self.remote.clone());
        Ok(TensorRef { dtype: self.dtype, shape, range, content, remote })
    }

    fn read_timed(&self) -> ArcRwLockReadGuard<RawRwLock, Content> {
        RwLock::try_read_arc(&self.content).unwrap_or_else(|| {
            let since_ns = timeline::now_ns();
            let content = self.read_locked();
            self.record_wait(&content, since_ns);
            content
        })
    }

    /// Records in the timeline that this thread has waited for the elements since `since_ns`, by
    /// [`timeline::now_ns`], and may read them now.
    pub fn waited_since(&self, since_ns: u64) {
        if let (true, Some(content)) = (timeline::is_on(), RwLock::try_read_arc(&self.content)) {
            self.record_wait(&content, since_ns);
        }
    }

    fn record_wait(&self, content: &Content, since_ns: u64) {
        let name = || content.written.as_ref().map_or("an output".into(), timeline::Name::from);
        timeline::record(Phase::Wait, name, since_ns, self.len_bytes() as u64);
    }

    /// Returns the elements, for writing. If the memory is not the host's, only locks them. Blocks while a
    /// store still uses them. Clears an earlier fault.
    pub fn write(&self) -> TensorMut {
        self.come_for(READ);
        let content = RwLock::try_write_arc(&self.content).unwrap_or_else(|| {
            let _wait = waits::wait();
            RwLock::write_arc(&self.content)
        });
        self.guard_mut(content, self.hold(true))
    }

    /// Writes as [`write`](Self::write) does, but returns an error if the tensor stays locked for `limit`, or
    /// is not on the host.
    pub fn write_within(&self, limit: Duration) -> Result<TensorMut> {
        self.remote.as_ref().map_or(Ok(()), |remote| Err(remote.refuse()))?;
        self.write_anywhere_within(limit)
    }

    /// Locks the tensor as [`write_within`](Self::write_within) does, wherever the memory is.
    pub fn write_anywhere_within(&self, limit: Duration) -> Result<TensorMut> {
        self.come_for(READ);
        let _wait = waits::wait();
        let deadline = Instant::now().checked_add(limit);
        let content = RwLock::try_write_arc_for(&self.content, limit).ok_or_else(|| {
            Error::argument(
                format!("an output tensor of shape {:?} stayed in use for {} s", self.shape, limit.as_secs_f64()),
                "drop every guard of `read` and `write` on it before giving it to a store",
            )
        })?;
        let range = self.range.map(|range| ranges::hold(range, true, &self.lent, deadline)).transpose();
        Ok(self.guard_mut(content, range.map_err(|other| self.in_use(&other, limit))?))
    }

    /// Returns the error for an output whose memory could not be locked within `limit`, because `other` holds
    /// it.
    fn in_use(&self, other: &StoreLoan, limit: Duration) -> Error {
        let name = |lent: &StoreLoan| {
            lent.given().map_or(("another tensor".to_owned(), String::new()), |(key, rank)| {
                (format!("key {key}"), format!(" on rank {rank}"))
            })
        };
        let ((own, rank), (other, _)) = (name(&self.lent), name(other));
        Error::argument(
            format!(
                "an output of {own}{rank} shares memory with a tensor of {other}, which stayed in use for {} s",
                limit.as_secs_f64()
            ),
            format!("wait for the call of {other} before another call gets its memory, or give memory of its own"),
        )
    }

    /// Records that the tensor is given to a store for `key`, on this rank, so that errors can name it.
    pub fn give(&self, key: &Key, rank: usize) {
        if self.range.is_some() {
            self.lent.give(key, rank);
        }
    }

    /// Records that a store has been given the tensor, to write it or only to read it.
    pub fn lend(&self, to: &Weak<dyn Waiter>, is_written: bool) {
        self.lent.lend(to, if is_written { WRITTEN } else { READ });
    }

    /// Notifies the store, if it was given the tensor in a way that may make this access block.
    fn come_for(&self, blocks_from: u8) {
        self.lent.come_for(blocks_from);
    }

    fn guard_mut(&self, mut content: ArcRwLockWriteGuard<RawRwLock, Content>, range: Option<RangeLock>) -> TensorMut {
        content.fault = None;
        let (shape, remote) = (Arc::clone(&self.shape), self.remote.clone());
        TensorMut { dtype: self.dtype, shape, range, content, remote, touched: false, then: None }
    }

    /// A copy of the elements as a vector.
    ///
    /// # Panics
    /// If `T` is not the tensor's element type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.read()?.as_slice::<T>().to_vec())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Tensor({} {:?})", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_keeps_its_content_while_the_tensor_changes() {
        let tensor = Tensor::from_slice(&[3], &[1f32, 2.0, 3.0]);
        let before = tensor.read().unwrap().snapshot();
        tensor.write().as_mut_slice::<f32>()[0] = 9.0;
        assert_eq!(bytemuck::cast_slice::<u8, f32>(before.bytes()), [1.0, 2.0, 3.0]);
        assert_eq!(tensor.to_vec::<f32>().unwrap(), [9.0, 2.0, 3.0]);
    }

    #[test]
    fn foreign_memory_is_written_in_place_and_snapshots_of_it_are_copies() {
        let mut memory = vec![1f32, 2.0].into_boxed_slice();
        let start = std::ptr::NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        #[allow(unsafe_code)]
        // SAFETY: the box outlives the tensor as its owner, and is not touched meanwhile.
        let buffer = unsafe { Buffer::foreign(start, 8, Box::new(memory)) };
        let tensor = Tensor::from_buffer(DType::F32, &[2], buffer);
        let before = tensor.read().unwrap().snapshot();
        tensor.write().copy_from(bytemuck::cast_slice(&[5f32, 6.0]));
        assert_eq!(tensor.read().unwrap().bytes().as_ptr(), start.as_ptr());
        assert_eq!(bytemuck::cast_slice::<u8, f32>(before.bytes()), [1.0, 2.0]);
        assert!(!tensor.write().is_unkept() && tensor.unkept().write().is_unkept());
    }

    #[test]
    fn a_failed_write_is_raised_by_the_next_read_and_cleared_by_the_next_write() {
        let tensor = Tensor::zeros(DType::F32, &[1]);
        let fault = Error::argument("x", "y");
        tensor.write().fail(fault.clone());
        assert_eq!(tensor.read().err(), Some(fault));
        drop(tensor.write());
        assert!(tensor.read().is_ok());
    }

    #[test]
    fn a_watched_tensor_tells_its_fault_when_nobody_holds_it_any_more() {
        let (told, heard) = std::sync::mpsc::channel();
        let tensor =
            Tensor::watched(DType::F32, &[1], Buffer::zeroed(4), Box::new(move |fault| told.send(fault).unwrap()));
        let (handle, guard, fault) = (tensor.clone(), tensor.write(), Error::argument("x", "y"));
        drop(tensor);
        assert_eq!(handle.read_within(Duration::ZERO).unwrap().map(drop), None);
        guard.abandon(fault.clone());
        assert!(heard.try_recv().is_err());
        drop(handle);
        assert_eq!(heard.try_recv(), Ok(Some(fault)));
    }

    #[test]
    fn a_tensor_that_nobody_gets_back_is_simply_dropped() {
        let plain = Tensor::zeros(DType::F32, &[1]);
        assert!(plain.write().is_simply_dropped());
        assert!(!plain.write().then(|_| ()).is_simply_dropped());
        let watched = Tensor::watched(DType::F32, &[1], Buffer::zeroed(4), Box::new(|_| ()));
        assert!(!watched.write().is_simply_dropped());
        let mut memory = vec![0f32].into_boxed_slice();
        let start = std::ptr::NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        #[allow(unsafe_code)]
        // SAFETY: the box outlives the tensor as its owner, and is not touched meanwhile.
        let foreign = unsafe { Buffer::foreign(start, 4, Box::new(memory)) };
        let lent = Tensor::from_buffer(DType::F32, &[1], foreign);
        assert!(lent.write().is_simply_dropped(), "it is held here, too");
        let last = lent.write();
        drop(lent);
        assert!(!last.is_simply_dropped());
    }

    /// Returns tensors over parts of one array of eight elements, as another library would lend it each time
    /// anew.
    fn over_one_array<const N: usize>(parts: [std::ops::Range<usize>; N]) -> [Tensor; N] {
        let memory: Arc<[std::sync::atomic::AtomicU32; 8]> = Arc::default();
        parts.map(|part| {
            let start = std::ptr::NonNull::new(memory[part.clone()].as_ptr().cast_mut().cast()).unwrap();
            #[allow(unsafe_code)]
            // SAFETY: the owner keeps the array, which nothing but tensors over it touches; these are locked
            // as one.
            let buffer = unsafe { Buffer::foreign(start, 4 * part.len(), Box::new(Arc::clone(&memory))) };
            Tensor::from_buffer(DType::F32, &[part.len()], buffer)
        })
    }

    #[test]
    fn tensors_over_memory_that_overlaps_are_locked_as_one() {
        const NOW: Duration = Duration::ZERO;
        let [left, right, all, beside] = over_one_array([0..5, 3..6, 0..6, 6..8]);
        assert!(left.overlaps(&right) && !left.overlaps(&beside) && !left.is_same(&all));
        let written = left.write();
        assert!(right.read_within(NOW).unwrap().is_none() && right.write_within(NOW).is_err());
        assert!(!all.is_free_within(false, NOW) && all.is_settled_within(NOW).unwrap());
        assert!(beside.write_within(NOW).is_ok());
        drop(written);
        let read = (left.read().unwrap(), right.read().unwrap());
        assert!(all.is_free_within(false, NOW) && !all.is_free_within(true, NOW));
        drop(read);
        assert!(all.write_within(NOW).is_ok());
    }

    #[test]
    fn the_holder_of_overlapping_memory_is_waited_for_and_named_after_the_limit() {
        let [first, second] = over_one_array([0..5, 3..8]);
        first.give(&Key::from("a"), 1);
        second.give(&Key::from("b"), 1);
        let guard = first.write();
        let error = second.write_within(Duration::from_millis(5)).err().unwrap().to_string();
        assert!(error.contains("key \"b\" on rank 1") && error.contains("tensor of key \"a\""), "{error}");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| second.to_vec::<f32>().unwrap());
            std::thread::park_timeout(Duration::from_millis(20));
            let mut guard = guard;
            guard.as_mut_slice::<f32>().fill(7.0);
            drop(guard);
            assert_eq!(waits.join().unwrap(), [7.0, 7.0, 0.0, 0.0, 0.0]);
        });
    }

    #[test]
    fn a_store_is_notified_when_another_tensor_needs_memory_that_it_holds() {
        #[derive(Default)]
        struct TestWaiter(std::sync::Mutex<Option<TensorMut>>);
        impl Waiter for TestWaiter {
            fn wait(&self) {
                // Acts as a store that is done at once and releases the range itself.
                self.0.lock().unwrap().take();
            }
        }
        let [first, second] = over_one_array([0..8, 7..8]);
        let store = Arc::new(TestWaiter::default());
        *store.0.lock().unwrap() = Some(first.write());
        let waiter: Arc<dyn Waiter> = store.clone();
        first.lend(&Arc::downgrade(&waiter), true);
        assert!(second.read_within(Duration::ZERO).unwrap().is_some());
    }

    #[test]
    fn a_held_guard_is_an_error_for_a_bounded_writer() {
        let tensor = Tensor::zeros(DType::F32, &[1]);
        let guard = tensor.read().unwrap();
        assert!(tensor.write_within(Duration::from_millis(5)).is_err());
        drop(guard);
        assert!(tensor.write_within(Duration::from_millis(5)).is_ok());
    }
}
