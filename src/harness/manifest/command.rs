//! What a job's command says of its store, and whether the job is one that such a store works in.

use super::request::{Kind, Request, wrong};
use crate::error::Result;

impl Request {
    /// A store that cannot work in the kind of job at hand, said before pods are started for it.
    pub(super) fn check_command(&self) -> Result<()> {
        let Some(store) = store_of(&self.command) else { return Ok(()) };
        let fits = match self.kind {
            Kind::Train | Kind::Trainjob => store == "dist_sync_mpi",
            Kind::Ps | Kind::Mxjob => store.starts_with("dist_") && store != "dist_sync_mpi",
            Kind::Job => !store.starts_with("dist_"),
            Kind::Compare | Kind::Tfjob => true,
        };
        if fits {
            return Ok(());
        }
        let (what, should) = match self.kind {
            Kind::Train | Kind::Trainjob => ("every rank would train a model of its own", "dist_sync_mpi"),
            Kind::Ps | Kind::Mxjob => ("its servers would have nothing to do", "dist_sync or dist_async"),
            _ => ("it is one process", "local or device"),
        };
        wrong(
            format!("{} with --kv-store {store}: {what}", self.kind_name()),
            format!("give the command --kv-store {should}, or write another kind of job"),
        )
    }

    /// What is odd about the command, in words with a hint: the job may still be what is wanted.
    pub fn doubt(&self) -> Option<String> {
        let wanted = match self.kind {
            Kind::Train | Kind::Trainjob => "dist_sync_mpi",
            Kind::Ps | Kind::Mxjob => "dist_sync",
            Kind::Job | Kind::Compare | Kind::Tfjob => return None,
        };
        let example = self.command.iter().find(|word| is_example(word))?;
        store_of(&self.command).is_none().then(|| {
            format!(
                "{example} without --kv-store trains with local: every worker a model of its own\n  hint: add --kv-store {wanted} to the command"
            )
        })
    }
}

/// Whether a word of a command is one of our training examples, whose kind of store is local where none is asked for.
fn is_example(word: &str) -> bool {
    word.rsplit('/').next() == Some("train") || word.contains("examples/") && word.ends_with(".py")
}

/// What a command says its `--kv-store` is.
fn store_of(command: &[String]) -> Option<&str> {
    let at = command.iter().position(|word| word.starts_with("--kv-store"))?;
    command[at].strip_prefix("--kv-store=").or_else(|| command.get(at + 1).map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_without_a_kind_of_store_is_doubted() {
        let doubt = |kind, command: &str| {
            let command = command.split(' ').map(str::to_owned).collect();
            Request { command, ..Request::new(kind) }.doubt()
        };
        for (kind, wanted) in [(Kind::Train, "dist_sync_mpi"), (Kind::Trainjob, "dist_sync_mpi"), (Kind::Ps, "dist_sync")] {
            for command in ["train --data /train", "/opt/bin/train", "python3 examples/mxnet/train.py"] {
                let text = doubt(kind, command).unwrap();
                assert!(text.ends_with(&format!("hint: add --kv-store {wanted} to the command")), "{text}");
            }
        }
        assert_eq!(doubt(Kind::Job, "train"), None);
        for command in ["train --kv-store dist_sync_mpi", "train --kv-store=dist_sync_mpi", "python3 train.py"] {
            assert_eq!(doubt(Kind::Train, command), None, "{command}");
        }
    }
}
