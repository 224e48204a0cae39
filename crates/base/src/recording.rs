//! `RINGPULL_RECORD`: the gradients that a program pushes and the values that it gets, in a file for each worker.
//!
//! A file has a line of JSON for each [`RecordedLine`]. Each line is written at once, so a job that is killed
//! leaves all its calls up to that time. `ringpull differ` compares the files of two jobs.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::{DType, Error, Key, Kind, Result, notice};

/// A line of a recording. `update` is the number of this worker's pushes of the key, including this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedLine {
    /// The first line: the worker of the file.
    Store {
        /// The kind of the store.
        kind: Kind,
        /// The rank of the worker.
        rank: usize,
        /// The number of workers.
        workers: usize,
    },
    /// A key got its first value.
    Init {
        /// The key.
        key: Key,
        /// The type of its elements.
        dtype: DType,
    },
    /// A gradient was pushed.
    Push {
        /// The key.
        key: Key,
        /// The number of the key's update.
        update: u64,
        /// The hash of this worker's gradient, and of its ids.
        hash: u64,
    },
    /// From now on the store updates its values by gradients: it was given an optimizer or an updater.
    Updates,
    /// A value has come.
    Value {
        /// The key.
        key: Key,
        /// The number of the key's update after which the value came.
        update: u64,
        /// The hash of the row ids, if rows were pulled.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ids: Option<u64>,
        /// The hash of the value, or of those rows.
        hash: u64,
        /// The offset of the value in the file of values, if it is there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offset: Option<u64>,
        /// The length of the value in bytes.
        len: u64,
    },
}

/// The folder of a recording, and the bytes of values that it keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingOptions {
    /// `RINGPULL_RECORD`: the folder.
    pub folder: PathBuf,
    /// `RINGPULL_RECORD_VALUES`: the bytes of values that a worker writes.
    pub value_bytes: u64,
}

/// The files of one worker.
#[derive(Debug)]
pub struct Recording {
    value_bytes: u64,
    files: Mutex<Files>,
}

#[derive(Debug)]
struct Files {
    lines: File,
    values: File,
    written: u64,
    has_failed: bool,
}

/// The file of lines of a worker.
pub fn lines_of(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("worker-{rank}.jsonl"))
}

/// The file of values of a worker, one after the other.
pub fn values_of(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("worker-{rank}.values"))
}

/// The hash of `parts`, one after the other.
pub fn hash(parts: &[&[u8]]) -> u64 {
    parts.iter().fold(0, |before, part| xxh3_64(part) ^ before.rotate_left(1))
}

impl Recording {
    /// Creates the folder and the files of a worker. Replaces existing files.
    pub fn create(options: &RecordingOptions, kind: Kind, rank: usize, workers: usize) -> Result<Self> {
        let create = |path: PathBuf| File::create(&path).map_err(|cause| Error::io("create", path.display(), &cause));
        let folder = &options.folder;
        std::fs::create_dir_all(folder).map_err(|cause| Error::io("create", folder.display(), &cause))?;
        let [lines, values] = [lines_of(folder, rank), values_of(folder, rank)].map(create);
        let files = Files { lines: lines?, values: values?, written: 0, has_failed: false };
        let recording = Recording { value_bytes: options.value_bytes, files: Mutex::new(files) };
        recording.write(&RecordedLine::Store { kind, rank, workers });
        Ok(recording)
    }

    /// Writes a line. If that fails, prints a warning once and records nothing more. The job goes on.
    pub fn write(&self, line: &RecordedLine) {
        self.files.lock().write(line);
    }

    /// Records that `value` of `key` has come: its hash, and the bytes of a whole value while there is room
    /// for them.
    pub fn value(&self, key: &Key, update: u64, ids: Option<u64>, value: &[u8]) {
        let (hash, len) = (hash(&[value]), value.len() as u64);
        let mut files = self.files.lock();
        let offset = (ids.is_none() && files.written + len <= self.value_bytes).then_some(files.written);
        if offset.is_some() {
            files.keep(value);
        }
        files.write(&RecordedLine::Value { key: key.clone(), update, ids, hash, offset, len });
    }
}

impl Files {
    fn write(&mut self, line: &RecordedLine) {
        if self.has_failed {
            return;
        }
        let line = serde_json::to_string(line).map(|line| line + "\n").map_err(std::io::Error::from);
        let written = line.and_then(|line| self.lines.write_all(line.as_bytes()));
        self.note(written);
    }

    fn keep(&mut self, value: &[u8]) {
        if self.has_failed {
            return;
        }
        let written = self.values.write_all(value);
        self.written += value.len() as u64;
        self.note(written);
    }

    fn note(&mut self, outcome: std::io::Result<()>) {
        if let Err(cause) = outcome {
            self.has_failed = true;
            notice(&format!("warning: RINGPULL_RECORD: nothing more is recorded: {cause}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_records_writes_its_lines_and_as_many_values_as_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let options = RecordingOptions { folder: folder.path().join("run"), value_bytes: 6 };
        let recording = Recording::create(&options, Kind::Local, 1, 2).unwrap();
        recording.value(&"w".into(), 0, None, &[1, 2, 3, 4]);
        recording.value(&"w".into(), 1, None, &[5, 6, 7, 8]);
        let text = std::fs::read_to_string(lines_of(&options.folder, 1)).unwrap();
        let lines: Vec<RecordedLine> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0], RecordedLine::Store { kind: Kind::Local, rank: 1, workers: 2 });
        let offsets = lines[1..].iter().map(|line| match line {
            RecordedLine::Value { offset, .. } => *offset,
            other => panic!("{other:?}"),
        });
        assert_eq!(offsets.collect::<Vec<_>>(), [Some(0), None]);
        assert_eq!(std::fs::read(values_of(&options.folder, 1)).unwrap(), [1, 2, 3, 4]);
    }
}
