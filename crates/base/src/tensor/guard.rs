//! A tensor's elements while its lock is held.

use std::sync::Arc;

use parking_lot::RawRwLock;
use parking_lot::lock_api::{ArcRwLockReadGuard, ArcRwLockWriteGuard};

use super::Content;
use super::ranges::RangeLock;
use crate::{Buffer, DType, Element, Error, Key, Remote, Result};

/// A tensor locked for reading. The guard may move to another thread.
pub struct TensorRef {
    pub(super) dtype: DType,
    pub(super) shape: Arc<[usize]>,
    /// The lock on the range. It is released before the content, because the memory may be returned with the
    /// content and lent again.
    #[allow(dead_code)]
    pub(super) range: Option<RangeLock>,
    pub(super) content: ArcRwLockReadGuard<RawRwLock, Content>,
    pub(super) remote: Option<Remote>,
}

impl TensorRef {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The lengths of the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The memory, if it is not the host's.
    pub fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref()
    }

    /// Returns the bytes in C order, or none if the memory is not the host's.
    pub fn bytes(&self) -> &[u8] {
        self.content.data.bytes()
    }

    /// The elements in C order.
    ///
    /// # Panics
    /// If `T` is not the tensor's element type.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.dtype, "a tensor is read as the element type it has");
        bytemuck::cast_slice(self.bytes())
    }

    /// Returns the current content, which later writes to the tensor do not change. Owned memory is shared, and
    /// foreign memory is copied.
    pub fn snapshot(&self) -> Arc<Buffer> {
        snapshot(&self.content.data)
    }

    /// Unlocks a tensor, but never frees its memory, because a library or a device may still read it.
    pub fn abandon(self) {
        leak(&self.content.data, self.remote.as_ref());
    }
}

/// A tensor locked for writing. The guard may move to another thread.
pub struct TensorMut {
    pub(super) dtype: DType,
    pub(super) shape: Arc<[usize]>,
    /// The lock on the range, as in `TensorRef`.
    #[allow(dead_code)]
    pub(super) range: Option<RangeLock>,
    pub(super) content: ArcRwLockWriteGuard<RawRwLock, Content>,
    pub(super) remote: Option<Remote>,
    pub(super) touched: bool,
    pub(super) then: Option<AfterWrite>,
}

/// A function that is called at the end of a write. It gets the bytes, or the error that prevented the write.
type AfterWrite = Box<dyn FnOnce(Result<&[u8]>) + Send + Sync>;

impl TensorMut {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The lengths of the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The memory, if it is not the host's.
    pub fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref()
    }

    /// Calls `then` at the end of this write, on the thread that ends it, with the bytes written or the fault
    /// set. If there is neither, `then` is not called.
    #[must_use]
    pub fn then(mut self, then: impl FnOnce(Result<&[u8]>) + Send + Sync + 'static) -> Self {
        self.then = Some(Box::new(then));
        self
    }

    /// Returns true if dropping the guard only unlocks the tensor: nothing is called after the write, and no
    /// other library gets its memory back.
    pub fn is_simply_dropped(&self) -> bool {
        let is_own = self.remote.is_none() && !self.content.data.is_foreign();
        let is_last = || Arc::strong_count(ArcRwLockWriteGuard::rwlock(&self.content)) == 1;
        self.then.is_none() && self.content.released.is_none() && (is_own || !is_last())
    }

    /// Returns the bytes, for reading, or none if the memory is not the host's.
    pub fn bytes(&self) -> &[u8] {
        self.content.data.bytes()
    }

    /// Returns the bytes, for writing. They are copied first if a snapshot still needs the old bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.touched = true;
        unshare(&mut self.content.data).bytes_mut()
    }

    /// The elements, for writing.
    ///
    /// # Panics
    /// If `T` is not the tensor's element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(T::DTYPE, self.dtype, "a tensor is written as the element type it has");
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    /// Overwrites all elements, without first copying memory that a snapshot shares.
    pub fn copy_from(&mut self, bytes: &[u8]) {
        self.touched = true;
        if let Some(data) = Arc::get_mut(&mut self.content.data) {
            data.bytes_mut().copy_from_slice(bytes);
        } else {
            assert_eq!(bytes.len(), self.content.data.bytes().len(), "a tensor keeps its length");
            self.content.data = Arc::new(Buffer::copy_of(bytes));
        }
    }

    /// Sets the key of the value that is being written, for the timeline of the thread that waits for it.
    pub fn write_of(&mut self, key: &Key) {
        self.content.written = Some(key.clone());
    }

    /// Returns the current content, which later writes to the tensor do not change. Owned memory is shared, and
    /// foreign memory is copied.
    pub fn snapshot(&self) -> Arc<Buffer> {
        snapshot(&self.content.data)
    }

    /// Returns true if the memory is foreign, so that a snapshot is a copy.
    pub fn is_foreign(&self) -> bool {
        self.content.data.is_foreign()
    }

    /// Returns true if a sum that is written here need not be kept elsewhere.
    pub fn is_unkept(&self) -> bool {
        self.content.is_unkept
    }

    /// Fails the write as [`fail`](Self::fail) does, but never frees the memory, because a library or a
    /// device may still use it.
    pub fn abandon(self, fault: Error) {
        leak(&self.content.data, self.remote.as_ref());
        self.fail(fault);
    }

    /// Ends the write without a value: the next reader of the tensor gets `fault`.
    pub fn fail(mut self, fault: Error) {
        self.content.fault = Some(fault);
    }
}

impl Drop for TensorMut {
    fn drop(&mut self) {
        let Some(then) = self.then.take() else { return };
        match &self.content.fault {
            Some(fault) => then(Err(fault.clone())),
            None if self.touched => then(Ok(self.content.data.bytes())),
            None => {}
        }
    }
}

/// Keeps memory until the process ends.
fn leak(data: &Arc<Buffer>, remote: Option<&Remote>) {
    std::mem::forget((Arc::clone(data), remote.cloned()));
}

fn snapshot(data: &Arc<Buffer>) -> Arc<Buffer> {
    if data.is_foreign() { Arc::new(Buffer::copy_of(data.bytes())) } else { Arc::clone(data) }
}

/// Returns the buffer for writing. It is replaced by a new copy first if others still hold it.
pub fn unshare(data: &mut Arc<Buffer>) -> &mut Buffer {
    if Arc::get_mut(data).is_none() {
        *data = Arc::new(Buffer::copy_of(data.bytes()));
    }
    Arc::get_mut(data).expect("nobody else holds a buffer just copied, nor one that had no other holder")
}
