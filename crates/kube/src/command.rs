//! The store that a job's command asks for, and whether it works in this kind of job.

use ringpull_base::Result;

use crate::options::{JobKind, Request, wrong};

impl Request {
    /// An error if the command asks for a store that cannot work in this kind of job.
    pub(super) fn check_command(&self) -> Result<()> {
        let Some(store) = store_of(&self.command) else { return Ok(()) };
        let fits = match self.kind {
            JobKind::Train | JobKind::Trainjob => store == "dist_sync_mpi",
            JobKind::Ps | JobKind::Mxjob => store.starts_with("dist_") && store != "dist_sync_mpi",
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
                "--min-workers, and the command names no checkpoint: each loss of a worker may start the training anew\n  \
                 hint: let the command save its state on the claim and go on from there"
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

/// The word of a command that is one of our training examples, whose store is `local` by default. A bare
/// `train` is ours if it is a program: the first word, or after `--`, `mpirun` or options with at most one
/// value each.
pub(super) fn example(command: &[String]) -> Option<&str> {
    let is_program = |at: usize| {
        let before = |back: usize| at.checked_sub(back).map(|at| command[at].as_str());
        let is_option = |word: Option<&str>| word.is_some_and(|word| word.starts_with('-') && word != "-m");
        at == 0 || is_option(before(1)) || is_option(before(2)) || before(1).is_some_and(is_mpirun)
    };
    let is_ours = |(at, word): (usize, &String)| match word.rsplit_once('/') {
        None => word == "train" && is_program(at),
        Some((folder, "train.py" | "logistic.py")) => folder.contains("examples/"),
        // A folder of data may have that name.
        Some((folder, name)) => name == "train" && (folder.ends_with("examples") || folder.ends_with("bin")),
    };
    command.iter().enumerate().find(|found| is_ours(*found)).map(|(_, word)| word.as_str())
}

/// Whether a word starts MPI ranks.
pub(super) fn is_mpirun(word: &str) -> bool {
    ["mpirun", "mpiexec", "orterun", "prterun", "horovodrun"].contains(&word.rsplit('/').next().unwrap_or(word))
}

/// The value of a command's `--kv-store`.
pub(super) fn store_of(command: &[String]) -> Option<&str> {
    let at = command.iter().position(|word| word == "--kv-store" || word.starts_with("--kv-store="))?;
    command[at].strip_prefix("--kv-store=").or_else(|| command.get(at + 1).map(String::as_str))
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
