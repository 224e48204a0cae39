//! Checkpoints of a training run: one safetensors file with the weights, the optimizer's states, the step and
//! the seed.
//!
//! The file is replaced atomically. So if a run ends while it saves, the earlier checkpoint stays complete.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use xxhash_rust::xxh3::xxh3_64;

use ringpull::internal::{SavedStates, replace_file};
use ringpull::{DType, Error, Key, KvStore, Result, Tensor};

/// The tensor with the file of optimizer states. No weight may have this name.
const STATES: &str = "ringpull.optimizer_states";

/// The state of a run.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The number of steps done.
    pub step: u64,
    /// The seed with which the run began.
    pub seed: u64,
    /// The number of workers; older files have none.
    pub workers: Option<usize>,
    /// The weights by name.
    pub weights: BTreeMap<String, Tensor>,
    /// The content of a file of [`KvStore::save_optimizer_states`].
    pub states: Vec<u8>,
    /// A hash of the file from which the checkpoint was read; 0 if it was not read from a file.
    pub contents: u64,
}

impl Checkpoint {
    /// Makes a checkpoint of these weights and of their optimizer states in `store`. Blocks until every push
    /// is applied.
    pub fn take(store: &KvStore, step: u64, seed: u64, weights: BTreeMap<String, Tensor>) -> Result<Self> {
        let folder = states_folder()?;
        let path = folder.path().join("states");
        store.save_optimizer_states(&path, true)?;
        // The store of a resumed run may lack its other keys.
        let mut saved = SavedStates::read(&path)?;
        saved.states.retain(|key, _| matches!(key, Key::Str(name) if weights.contains_key(&**name)));
        saved.write(&path)?;
        let states = std::fs::read(&path).map_err(|cause| Error::io("read", path.display(), &cause))?;
        Ok(Checkpoint { step, seed, workers: Some(store.num_workers()), weights, states, contents: 0 })
    }

    /// Gives the optimizer's states to `store`. Every worker must do so.
    pub fn restore_states(&self, store: &KvStore) -> Result<()> {
        let folder = states_folder()?;
        let path = folder.path().join("states");
        replace_file("write", &path, &[&self.states])?;
        store.load_optimizer_states(&path)
    }

    /// Writes the file. If that fails, the earlier file stays.
    pub fn write(&self, path: &Path) -> Result<()> {
        let guards = self
            .weights
            .iter()
            .map(|(name, tensor)| Ok((name.as_str(), tensor.read()?)))
            .collect::<Result<Vec<_>>>()?;
        let weights = guards.iter().map(|(name, guard)| (*name, format(guard.dtype()), guard.shape(), guard.bytes()));
        let views = weights
            .chain([(STATES, Dtype::U8, &[self.states.len()][..], &self.states[..])])
            .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(dtype, shape.to_vec(), bytes)?)))
            .collect::<Result<Vec<_>, safetensors::SafeTensorError>>();
        let workers = self.workers.map(|workers| ("workers", workers as u64));
        let metadata = [("step", self.step), ("seed", self.seed)].into_iter().chain(workers);
        let metadata: HashMap<_, _> = metadata.map(|(name, value)| (name.to_owned(), value.to_string())).collect();
        let bytes = views.and_then(|views| safetensors::serialize(views, Some(metadata))).map_err(|cause| {
            Error::argument(format!("cannot write the weights as safetensors: {cause}"), "rename them")
        })?;
        replace_file("write the checkpoint", path, &[&bytes])
    }

    /// Returns an error if no file can be written at `path`. It is called before a run trains for hours.
    pub fn check_place(path: &Path) -> Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let wrong = |what: String, remedy: String| Err(Error::argument(what, remedy));
        if path.is_dir() {
            let what = format!("--checkpoint {} is a folder", path.display());
            return wrong(what, format!("name a file in it, such as {}", path.join("run.safetensors").display()));
        }
        if !folder.is_dir() {
            // Creating it would hide a misspelt path or a volume that is not mounted.
            let what = format!("there is no folder {} for the checkpoint", folder.display());
            return wrong(what, format!("mkdir -p {}, or give another --checkpoint", folder.display()));
        }
        match tempfile::tempfile_in(folder) {
            Ok(_) => Ok(()),
            Err(cause) => wrong(
                format!("no checkpoint can be saved in {}: {cause}", folder.display()),
                "give --checkpoint a file in a folder that this user may write to".to_owned(),
            ),
        }
    }

    /// Reads a file that [`write`](Self::write) made.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::argument(
                    format!("there is no checkpoint {}", path.display()),
                    "--resume-if-any starts without one; every worker reads it, so hosts must share its folder",
                ));
            }
            Err(cause) => return Err(Error::io("read the checkpoint", path.display(), &cause)),
        };
        Self::parse(&bytes).map_err(|why| {
            Error::argument(
                format!("{} ({} bytes) is not a complete checkpoint: {why}", path.display(), bytes.len()),
                "copy it again if it was copied, give --checkpoint a file that this program wrote, or start again without --resume",
            )
        })
    }

    fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let other = |_| "it was cut short, or is not a safetensors file";
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(other)?;
        let tensors = SafeTensors::deserialize(bytes).map_err(other)?;
        let number = |name: &str| header.metadata().as_ref()?.get(name)?.parse::<u64>().ok();
        let mut weights = BTreeMap::new();
        for (name, view) in tensors.iter().filter(|(name, _)| *name != STATES) {
            let dtype = DType::ALL.into_iter().find(|dtype| format(*dtype) == view.dtype());
            let buffer = ringpull::Buffer::copy_of(view.data());
            let tensor = Tensor::from_buffer(dtype.ok_or("it has weights of another dtype")?, view.shape(), buffer);
            weights.insert(name.to_owned(), tensor);
        }
        let states = tensors.tensor(STATES).map_err(|_| "another program wrote it: it has no optimizer's states")?;
        let workers = number("workers").and_then(|workers| usize::try_from(workers).ok());
        match (number("step"), number("seed")) {
            (Some(step), Some(seed)) => {
                let (states, contents) = (states.data().to_vec(), xxh3_64(bytes));
                Ok(Checkpoint { step, seed, workers, weights, states, contents })
            }
            _ => Err("another program wrote it: it has no step and seed"),
        }
    }
}

fn format(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
    }
}

fn states_folder() -> Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(|cause| Error::io("make a folder in", std::env::temp_dir().display(), &cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringpull::create;

    fn example() -> Checkpoint {
        let store = create("local").unwrap();
        store.init("w", &Tensor::full(DType::F32, &[2], 1.0)).unwrap();
        store.set_optimizer(&"sgd,momentum=0.5".parse().unwrap()).unwrap();
        store.push("w", &[Tensor::full(DType::F32, &[2], 1.0)], 0).unwrap();
        let weights = DType::ALL.map(|dtype| (dtype.to_string(), Tensor::full(dtype, &[2, 3], 5.0)));
        Checkpoint::take(&store, 12, u64::MAX, weights.into()).unwrap()
    }

    #[test]
    fn what_was_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let written = example();
        written.write(&path).unwrap();
        let read = Checkpoint::read(&path).unwrap();
        assert_eq!((read.step, read.seed, read.workers, &read.states), (12, u64::MAX, Some(1), &written.states));
        for (name, tensor) in &written.weights {
            assert_eq!(tensor.read().unwrap().bytes(), read.weights[name].read().unwrap().bytes(), "{name}");
        }
        read.restore_states(&create("local").unwrap()).unwrap();
    }

    #[test]
    fn a_damaged_file_is_an_error_at_every_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        example().write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for len in (0..bytes.len()).step_by(7) {
            std::fs::write(&path, &bytes[..len]).unwrap();
            let error = Checkpoint::read(&path).unwrap_err().to_string();
            assert!(error.contains("not a complete checkpoint") && error.contains("hint:"), "{error}");
        }
    }

    #[test]
    fn an_absent_checkpoint_and_a_place_for_none_are_errors_with_hints() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let error = Checkpoint::read(&path).unwrap_err().to_string();
        assert!(error.contains("there is no checkpoint") && error.contains("--resume-if-any"), "{error}");
        Checkpoint::check_place(&path).unwrap();
        Checkpoint::check_place(Path::new("run.safetensors")).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it leaves nothing behind");
        let error = Checkpoint::check_place(&folder.path().join("absent/run.safetensors")).unwrap_err().to_string();
        assert!(error.contains("there is no folder") && error.contains("hint: mkdir -p"), "{error}");
        let error = Checkpoint::check_place(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is a folder") && error.contains("hint:"), "{error}");
    }
}
