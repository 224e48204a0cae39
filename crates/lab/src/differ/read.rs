//! The record of a job, read from its folder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use ringpull_base::recording::{RecordedLine, lines_of, values_of};
use ringpull_base::{DType, Error, Key, Kind, Result};

/// The recordings of all workers of a job.
#[derive(Debug, Default)]
pub(super) struct JobRecording {
    pub(super) workers: Vec<WorkerRecording>,
}

/// The record of one worker.
#[derive(Debug, Default)]
pub struct WorkerRecording {
    /// The keys with their element types, in the order of their inits.
    pub(super) keys: Vec<(Key, DType)>,
    /// Each gradient.
    pub(super) gradients: BTreeMap<GradientId, SeenGradient>,
    /// Each value that was received. Of a value that was received twice, the first.
    pub(super) values: BTreeMap<ValueId, SeenValue>,
    /// True if the worker's store was given an optimizer or an updater.
    pub(super) store_updates: bool,
    values_file: PathBuf,
}

/// A gradient of a worker: its key, and the number of the push of this key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GradientId {
    pub(super) update: u64,
    pub(super) key: Key,
}

/// A value: the number of its update, its key, and its rows if it does not have all rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ValueId {
    pub(super) update: u64,
    pub(super) key: Key,
    pub(super) ids: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SeenGradient {
    pub(super) hash: u64,
    /// Its line.
    pub(super) line: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SeenValue {
    pub(super) hash: u64,
    /// The value's line. The program can use the value only after this line.
    pub(super) line: usize,
    offset: Option<u64>,
    len: u64,
}

#[cfg(test)]
impl SeenValue {
    pub(super) fn new(hash: u64, line: usize) -> Self {
        SeenValue { hash, line, offset: None, len: 0 }
    }
}

impl JobRecording {
    /// Reads the files of all workers of a job of `kind` in `folder`.
    pub(super) fn read(folder: &Path, kind: Kind) -> Result<Self> {
        let (first, workers) = WorkerRecording::read(folder, 0, kind)?;
        let mut all = vec![first];
        for rank in 1..workers {
            all.push(WorkerRecording::read(folder, rank, kind)?.0);
        }
        Ok(JobRecording { workers: all })
    }

    /// Returns true if the store of any worker updates its values itself.
    pub(super) fn store_updates(&self) -> bool {
        self.workers.iter().any(|worker| worker.store_updates)
    }

    /// The number of updates of the key that was updated most.
    pub(super) fn updates(&self) -> u64 {
        let last = |worker: &WorkerRecording| worker.gradients.last_key_value().map_or(0, |(id, _)| id.update);
        self.workers.iter().map(last).max().unwrap_or(0)
    }
}

impl WorkerRecording {
    /// The recording of a worker, and the number of all workers.
    fn read(folder: &Path, rank: usize, kind: Kind) -> Result<(Self, usize)> {
        let path = lines_of(folder, rank);
        let file = File::open(&path).map_err(|_| {
            Error::argument(
                format!(
                    "the job with {kind} has no recording of rank {rank}: that process created no store of ringpull"
                ),
                "let every worker create a store, of the kind for which {kind} stands in the command",
            )
        })?;
        let failed = |cause: std::io::Error| Error::io("read", path.display(), &cause);
        let found = WorkerRecording { values_file: values_of(folder, rank), ..WorkerRecording::default() };
        found.with_lines(BufReader::new(file), kind, &failed)
    }

    /// Adds the lines of the worker's file. Returns the number of all workers, too.
    pub fn with_lines(
        self,
        from: impl BufRead,
        kind: Kind,
        failed: &impl Fn(std::io::Error) -> Error,
    ) -> Result<(Self, usize)> {
        let (mut found, mut workers) = (self, 0);
        for (line, text) in from.lines().enumerate() {
            let text = text.map_err(failed)?;
            match serde_json::from_str(&text).map_err(|cause| failed(cause.into()))? {
                RecordedLine::Store { kind: own, .. } if own != kind => {
                    return Err(Error::argument(
                        format!("the command has created a store of kind {own}, and not {kind}"),
                        "write {kind} where the command takes its kind, as in --kv-store {kind}",
                    ));
                }
                RecordedLine::Store { workers: all, .. } => workers = all,
                RecordedLine::Init { key, dtype } => found.keys.push((key, dtype)),
                RecordedLine::Push { key, update, hash } => {
                    found.gradients.insert(GradientId { update, key }, SeenGradient { hash, line });
                }
                RecordedLine::Value { key, update, ids, hash, offset, len } => {
                    let seen = SeenValue { hash, line, offset, len };
                    found.values.entry(ValueId { update, key, ids }).or_insert(seen);
                }
                RecordedLine::Updates => found.store_updates = true,
            }
        }
        Ok((found, workers))
    }

    /// The elements of a value, if they were recorded.
    pub(super) fn elements(&self, seen: &SeenValue, key: &Key) -> Result<Option<Vec<f64>>> {
        let dtype = self.keys.iter().find(|(known, _)| known == key).map(|(_, dtype)| *dtype);
        let (Some(offset), Some(dtype)) = (seen.offset, dtype) else { return Ok(None) };
        let failed = |cause: std::io::Error| Error::io("read", self.values_file.display(), &cause);
        let file = File::open(&self.values_file).map_err(failed)?;
        // The offset comes from the file of lines, which may have any content.
        let there = file.metadata().map_err(failed)?.len().saturating_sub(offset);
        if seen.len > there {
            return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let mut bytes = vec![0; seen.len as usize];
        file.read_exact_at(&mut bytes, offset).map_err(failed)?;
        Ok(Some(widened(dtype, &bytes)))
    }
}

fn widened(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    ringpull_base::with_element!(dtype, T => {
        let element = |bytes| ringpull_base::Element::to_f64(bytemuck::pod_read_unaligned::<T>(bytes));
        bytes.chunks_exact(size_of::<T>()).map(element).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_longer_than_its_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let key = Key::from("w");
        let file = folder.path().join("values");
        std::fs::write(&file, 1f32.to_le_bytes()).unwrap();
        let found =
            WorkerRecording { keys: vec![(key.clone(), DType::F32)], values_file: file, ..WorkerRecording::default() };
        let seen = |len| SeenValue { offset: Some(0), len, ..SeenValue::new(0, 0) };
        assert_eq!(found.elements(&seen(4), &key).unwrap(), Some(vec![1.0]));
        assert!(found.elements(&seen(1 << 60), &key).is_err());
    }
}
