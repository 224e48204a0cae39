//! Gradient compression in a store: the setting, and the residual of each key.
//!
//! Dense `f32` gradients are compressed, after the values of one process have been summed. As in MXNet, the
//! first value of a key, row-sparse gradients and, with servers, pulled values are sent uncompressed, and a
//! dense push of another dtype is an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use ringpull_base::{DType, Error, Key, Result};
use ringpull_kernels::compress::{Compression, Feedback};

use crate::Entry;

/// The current setting, and each key's feedback.
#[derive(Default)]
pub(super) struct Compressor {
    present: Mutex<Option<Compression>>,
    kept: Mutex<BTreeMap<Key, Arc<Mutex<Feedback>>>>,
}

/// The compression of one push, which is fixed when the push is called. Pushes of one key use the key's
/// feedback in the order of the calls.
pub(super) struct Coding {
    pub(super) compression: Compression,
    pub(super) feedback: Arc<Mutex<Feedback>>,
}

impl Compressor {
    /// Compresses gradients pushed from now on by `compression`. The residuals of earlier codecs are kept and
    /// sent with them. If it is `None`, the residuals are dropped.
    pub(super) fn set(&self, compression: Option<&Compression>) {
        *self.present.lock() = compression.copied();
        if compression.is_none() {
            self.forget();
        }
    }

    /// Returns the compression of a dense gradient that is pushed now, if any.
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
                    "push of key {} on rank {rank}: {compression} counts elements in 32 bits, and the key has {}",
                    entry.key,
                    entry.len()
                ),
                "divide the key, push it as rows, or choose another compression",
            ));
        }
        Ok(Some(self.coding_by(&entry.key, compression)))
    }

    /// Returns the compression of a gradient of the key by a given codec.
    pub(super) fn coding_by(&self, key: &Key, compression: Compression) -> Coding {
        let feedback = Arc::clone(self.kept.lock().entry(key.clone()).or_default());
        Coding { compression, feedback }
    }

    /// Drops the residuals of all keys, because they belong to a run that does not go on.
    pub(super) fn forget(&self) {
        self.kept.lock().clear();
    }
}
