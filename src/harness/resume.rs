//! What ranks go on from: one checkpoint, or none on any of them.
//!
//! Every worker reads the file on its own host. Where a folder is not shared some hosts have none, or an older one, and ranks that began
//! at different steps would sum gradients of different batches. So each says what it has found before the first step.

use std::path::Path;

use crate::error::{Error, Result};
use crate::harness::checkpoint::Checkpoint;
use crate::harness::total::total;
use crate::optim::{Optimizer, Rule};
use crate::store::KvStore;

/// The checkpoint at `path`, if every worker has it, and `None` if none has, which is an error where it is `required`. Collective; to be
/// called before the store has its optimizer.
pub(super) fn agreed(store: &KvStore, path: &Path, required: bool) -> Result<Option<Checkpoint>> {
    let found = if path.exists() { Some(Checkpoint::read(path)?) } else { None };
    let (rank, workers) = (store.rank(), store.num_workers());
    if workers > 1 {
        let mut figures = vec![0.0; workers];
        // 0 says that there is none.
        figures[rank] = found.as_ref().map_or(0.0, |saved| saved.step as f64 + 1.0);
        let adding = Optimizer { rule: Rule::Test, ..Optimizer::sgd(1.0) };
        let all = total(store, &adding, "steps of checkpoints", &figures)?;
        let steps: Vec<Option<u64>> = all.iter().map(|step| (*step > 0.0).then(|| *step as u64 - 1)).collect();
        disagreement(path, &steps).map_or(Ok(()), Err)?;
    }
    match found {
        // Read for its error, which says what to do.
        None if required => Checkpoint::read(path).map(Some),
        found => Ok(found),
    }
}

/// An error if the ranks found different `steps`.
fn disagreement(path: &Path, steps: &[Option<u64>]) -> Option<Error> {
    if steps.iter().all(|step| *step == steps[0]) {
        return None;
    }
    let having =
        |wanted: Option<u64>| -> Vec<usize> { (0..steps.len()).filter(|rank| steps[*rank] == wanted).collect() };
    let mut found: Vec<u64> = steps.iter().copied().flatten().collect();
    found.sort_unstable();
    found.dedup();
    let mut views: Vec<String> =
        found.into_iter().map(|step| format!("rank(s) {:?} have step {step}", having(Some(step)))).collect();
    let without = having(None);
    if !without.is_empty() {
        views.insert(0, format!("rank(s) {without:?} have no such file"));
    }
    Some(Error::argument(
        format!("the checkpoint {} is not the same on every host: {}", path.display(), views.join(", ")),
        "put --checkpoint into a folder that all hosts share, or copy one file to every host; to begin anew, remove it on all",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_found_different_checkpoints_are_named() {
        let of =
            |steps: &[Option<u64>]| disagreement(Path::new("run.safetensors"), steps).map(|error| error.to_string());
        assert_eq!(of(&[None, None]), None);
        assert_eq!(of(&[Some(4), Some(4), Some(4)]), None);
        let text = of(&[Some(4), None, Some(4), None]).unwrap();
        assert!(text.contains("rank(s) [1, 3] have no such file, rank(s) [0, 2] have step 4"), "{text}");
        assert!(text.contains("run.safetensors") && text.contains("hint:"), "{text}");
        let text = of(&[Some(8), Some(0)]).unwrap();
        assert!(text.contains("rank(s) [1] have step 0, rank(s) [0] have step 8"), "{text}");
    }
}
