//! Whether a job's command suits its kind: the store that it asks for, and what it saves.

use ringpull_base::Result;

use crate::command::{example, store_of};
use crate::options::{JobKind, Request, wrong};

impl Request {
    /// An error if the command asks for a store that cannot work in this kind of job.
    pub(super) fn check_command(&self) -> Result<()> {
        let Some(store) = store_of(&self.command) else { return Ok(()) };
        let fits = match self.kind {
            JobKind::Train | JobKind::Trainjob => store == "dist_sync_mpi",
            JobKind::Ps | JobKind::Mxjob => {
                store.starts_with("dist_") && !["dist_sync_mpi", "dist_hybrid"].contains(&store)
            }
            JobKind::Job => !store.starts_with("dist_"),
            _ => true,
        };
        if fits {
            return Ok(());
        }
        let (what, should) = match self.kind {
            JobKind::Train | JobKind::Trainjob => ("every rank would train a separate model", "dist_sync_mpi"),
            JobKind::Ps | JobKind::Mxjob => ("its servers would have nothing to do", "dist_sync or dist_async"),
            _ => ("the job is one process", "local or device"),
        };
        wrong(
            format!("{} with --kv-store {store}: {what}", self.kind.name()),
            format!("give the command --kv-store {should}, or write another kind of job"),
        )
    }

    /// Whether the command is our example `train` and saves no checkpoint.
    pub(super) fn loses_its_work(&self) -> bool {
        let ours = example(&self.command).is_some_and(|word| word.rsplit('/').next() == Some("train"));
        ours && !self.command.iter().any(|word| word.starts_with("--checkpoint"))
    }

    /// A warning about the command, with a hint. The job may still be what is wanted.
    pub fn doubt(&self) -> Option<String> {
        let resumes = |word: &String| ["checkpoint", "resume", "restore"].iter().any(|part| word.contains(part));
        if self.min_workers.is_some() && !self.command.iter().any(resumes) {
            return Some(
                "--min-workers, and the command names no checkpoint: commits (ringpull.elastic) are in the workers' \
                 memory, so the loss of all of them starts the training anew\n  \
                 hint: let the command save its state on the claim too, less often, and go on from there"
                    .to_owned(),
            );
        }
        let wanted = match self.kind {
            JobKind::Train | JobKind::Trainjob => "dist_sync_mpi",
            JobKind::Ps | JobKind::Mxjob => "dist_sync",
            _ => return None,
        };
        let example = example(&self.command)?;
        store_of(&self.command).is_none().then(|| {
            format!(
                "{example} without --kv-store uses local: every worker trains a separate model\n  \
                 hint: add --kv-store {wanted} to the command"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_without_a_kind_of_store_is_warned_about() {
        let doubt = |kind, command: &str| {
            let command = command.split(' ').map(str::to_owned).collect();
            Request { command, ..Request::new(kind) }.doubt()
        };
        for (kind, wanted) in
            [(JobKind::Train, "dist_sync_mpi"), (JobKind::Trainjob, "dist_sync_mpi"), (JobKind::Ps, "dist_sync")]
        {
            for command in ["train --data /train", "/opt/bin/train", "python3 examples/mxnet/train.py"] {
                let text = doubt(kind, command).unwrap();
                assert!(text.ends_with(&format!("hint: add --kv-store {wanted} to the command")), "{text}");
            }
        }
        assert_eq!(doubt(JobKind::Job, "train"), None);
        for command in [
            "train --kv-store dist_sync_mpi",
            "train --kv-store=dist_sync_mpi",
            "python3 train.py",
            "python3 cli.py train",
            "python3 -m tool train",
            "python3 tool.py --data /train --val /data/train",
        ] {
            assert_eq!(doubt(JobKind::Train, command), None, "{command}");
        }
    }
}
