//! The key table of one process. It has the shape and the dtype of each key, and checks tensors against them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use ringpull_base::{DType, Error, Key, Result, RowSparse, Tensor};

/// A key with the properties that `init` has fixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The key's element type.
    pub dtype: DType,
    /// The key's shape.
    pub shape: Arc<[usize]>,
    /// True if the key's gradients are mostly row-sparse. Servers then keep the key in few long segments, and
    /// `dist_hybrid` keeps it on servers.
    pub is_row_sparse: bool,
}

impl Entry {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns true if the key's value has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of the key's value in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len() * self.dtype.size_bytes()
    }

    /// The number of rows, the first dimension.
    pub fn rows(&self) -> Result<usize> {
        self.shape.first().copied().ok_or_else(|| {
            Error::argument(format!("key {} is a scalar and has no rows", self.key), "use push and pull for it")
        })
    }

    /// Returns the error of an operation on a key that has no value.
    pub fn not_initialized(&self, operation: &str, rank: usize) -> Error {
        Error::NotInitialized { key: self.key.clone(), operation: operation.to_owned(), rank }
    }

    /// The size of one row in bytes.
    pub fn row_bytes(&self) -> usize {
        self.shape.iter().skip(1).product::<usize>() * self.dtype.size_bytes()
    }
}

/// All keys of a store, and the numbers of their pushes and pulls.
#[derive(Default)]
pub(super) struct Table {
    entries: Mutex<BTreeMap<Key, Entry>>,
    pushes: AtomicU64,
    pulls: AtomicU64,
}

impl Table {
    pub(super) fn add(&self, key: &Key, value: &Tensor, rank: usize, is_row_sparse: bool) -> Result<Entry> {
        let mut entries = self.entries.lock();
        check_type(&entries, key, rank)?;
        if entries.contains_key(key) {
            return Err(Error::AlreadyInitialized { key: key.clone(), rank });
        }
        let entry = Entry { key: key.clone(), dtype: value.dtype(), shape: value.shape().into(), is_row_sparse };
        entries.insert(key.clone(), entry.clone());
        Ok(entry)
    }

    pub(super) fn remove(&self, key: &Key) {
        self.entries.lock().remove(key);
    }

    /// Returns the key's entry. Returns an error if the key is not initialised or some of `tensors` do not
    /// fit it.
    pub(super) fn checked<'a>(
        &self,
        key: &Key,
        operation: &str,
        rank: usize,
        tensors: impl Iterator<Item = &'a Tensor>,
    ) -> Result<Entry> {
        let entry = self.find(key, operation, rank)?;
        for tensor in tensors {
            entry.check(operation, rank, tensor.shape(), tensor.dtype())?;
        }
        Ok(entry)
    }

    /// Returns the entry as [`checked`](Self::checked) does, for row-sparse values.
    pub(super) fn checked_rows(&self, key: &Key, operation: &str, rank: usize, values: &[RowSparse]) -> Result<Entry> {
        let entry = self.find(key, operation, rank)?;
        for value in values {
            entry.check(operation, rank, value.shape(), value.rows().dtype())?;
        }
        Ok(entry)
    }

    fn find(&self, key: &Key, operation: &str, rank: usize) -> Result<Entry> {
        let entries = self.entries.lock();
        check_type(&entries, key, rank)?;
        entries.get(key).cloned().ok_or_else(|| Error::NotInitialized {
            key: key.clone(),
            operation: operation.to_owned(),
            rank,
        })
    }

    pub(super) fn count_push(&self) {
        self.pushes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_pull(&self) {
        self.pulls.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.pushes.load(Ordering::Relaxed), self.pulls.load(Ordering::Relaxed))
    }
}

impl Entry {
    pub(super) fn check(&self, operation: &str, rank: usize, shape: &[usize], dtype: DType) -> Result<()> {
        let (key, operation) = (self.key.clone(), operation.to_owned());
        if *shape != *self.shape {
            let (expected, got) = (self.shape.to_vec(), shape.to_vec());
            return Err(Error::ShapeMismatch { key, operation, rank, expected, got });
        }
        if dtype != self.dtype {
            let (expected, got) = (self.dtype.to_string(), dtype.to_string());
            return Err(Error::DtypeMismatch { key, operation, rank, expected, got });
        }
        Ok(())
    }
}

fn check_type(entries: &BTreeMap<Key, Entry>, key: &Key, rank: usize) -> Result<()> {
    match entries.keys().next() {
        Some(first) if !first.same_type(key) => {
            Err(Error::MixedKeyTypes { key: key.clone(), first: first.clone(), rank })
        }
        _ => Ok(()),
    }
}
