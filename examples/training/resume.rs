//! Finds the checkpoint from which all ranks resume, if there is one.
//!
//! Every worker reads the file on its own host. If the folder is not shared, some hosts may have no file, an
//! older file, or the file of another run. Ranks that resumed from different files would sum gradients of
//! different batches, or update with different optimizer states. So they compare their files before the first
//! step.

use std::path::Path;

use ringpull::{DType, Error, KvStore, Optimizer, Result, Rule, Tensor};

use crate::checkpoint::Checkpoint;

/// Returns the checkpoint at `path` if every worker has the same one. If no worker has one, returns `None`,
/// or an error if a checkpoint is `required`. Collective; must be called before the store has its optimizer.
pub(super) fn agreed(store: &KvStore, path: &Path, required: bool) -> Result<Option<Checkpoint>> {
    let found = if path.exists() { Some(Checkpoint::read(path)?) } else { None };
    let (rank, workers) = (store.rank(), store.num_workers());
    if workers > 1 {
        // Each rank's step plus 1, or 0 without a file, and the hash of its contents.
        let mut figures = vec![0.0; 2 * workers];
        if let Some(saved) = &found {
            figures[2 * rank] = saved.step as f64 + 1.0;
            figures[2 * rank + 1] = (saved.contents & EXACT) as f64;
        }
        let all = allreduce(store, "steps of checkpoints", &figures)?;
        let files: Vec<_> =
            all.chunks(2).map(|file| (file[0] > 0.0).then(|| (file[0] as u64 - 1, file[1] as u64))).collect();
        disagreement(path, &files).map_or(Ok(()), Err)?;
    }
    match found {
        // The read fails and gives the error.
        None if required => Checkpoint::read(path).map(Some),
        found => Ok(found),
    }
}

/// The sums of `figures` over all workers, by a store that has no optimizer yet. Collective; `key` must be
/// new.
fn allreduce(store: &KvStore, key: &str, figures: &[f64]) -> Result<Vec<f64>> {
    let shape = [figures.len()];
    let sums = Tensor::zeros(DType::F64, &shape);
    store.init(key, &sums)?;
    if store.kind().is_async() {
        // Without this optimizer an asynchronous server keeps only the last push.
        store.set_optimizer(&Optimizer { rule: Rule::Test, ..Optimizer::sgd(1.0) })?;
    }
    store.push(key, &[Tensor::from_slice(&shape, figures)], 0)?;
    store.wait_all()?;
    store.barrier()?;
    store.pull(key, std::slice::from_ref(&sums), 0)?;
    sums.to_vec()
}

/// The bits of a hash that an f64 can hold exactly.
const EXACT: u64 = (1 << 52) - 1;

/// Returns an error if the ranks found different `files`. Each file is its step and the hash of its contents.
fn disagreement(path: &Path, files: &[Option<(u64, u64)>]) -> Option<Error> {
    if files.iter().all(|file| *file == files[0]) {
        return None;
    }
    let mut found: Vec<(Option<u64>, Vec<usize>)> = Vec::new();
    for (rank, file) in files.iter().enumerate() {
        match found.iter_mut().find(|(_, ranks)| files[ranks[0]] == *file) {
            Some((_, ranks)) => ranks.push(rank),
            None => found.push((file.map(|(step, _)| step), vec![rank])),
        }
    }
    // Missing files come first, and files of one step in the order of their ranks.
    found.sort_by_key(|(step, _)| *step);
    let views = found.iter().enumerate().map(|(place, (step, ranks))| match step {
        None => format!("rank(s) {ranks:?} have no such file"),
        Some(step) if place > 0 && found[place - 1].0 == Some(*step) => {
            format!("rank(s) {ranks:?} have another file of step {step}")
        }
        Some(step) => format!("rank(s) {ranks:?} have step {step}"),
    });
    let views: Vec<String> = views.collect();
    Some(Error::argument(
        format!("the checkpoint {} is not the same on every host: {}", path.display(), views.join(", ")),
        "put --checkpoint into a folder that all hosts share, or copy one file to every host; to start again from the beginning, remove it on all",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_ranks_with_different_checkpoints() {
        let of = |files: &[Option<(u64, u64)>]| {
            disagreement(Path::new("run.safetensors"), files).map(|error| error.to_string())
        };
        assert_eq!(of(&[None, None]), None);
        assert_eq!(of(&[Some((4, 9)); 3]), None);
        let text = of(&[Some((4, 9)), None, Some((4, 9)), None]).unwrap();
        assert!(text.contains("rank(s) [1, 3] have no such file, rank(s) [0, 2] have step 4"), "{text}");
        assert!(text.contains("run.safetensors") && text.contains("hint:"), "{text}");
        let text = of(&[Some((8, 9)), Some((0, 9))]).unwrap();
        assert!(text.contains("rank(s) [1] have step 0, rank(s) [0] have step 8"), "{text}");
        let text = of(&[Some((4, 9)), Some((4, 1)), Some((4, 9)), Some((3, 5))]).unwrap();
        let views = "rank(s) [3] have step 3, rank(s) [0, 2] have step 4, rank(s) [1] have another file of step 4\n";
        assert!(text.contains(views), "{text}");
    }
}
