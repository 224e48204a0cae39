//! Other people's programs: whether they are installed, and the scripts of ours that measure with them.
//!
//! The scripts travel inside this program. They run with the Python of `.venv-peers`, the folder that
//! `scripts/peers/setup` makes, looked for here and in every folder above.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use ringpull_base::{Error, Result};

use crate::compare::results::TrainSetup;
use crate::layers::Network;
use crate::mode::Peer;

/// How to install and run a peer that is a Python package.
struct Package {
    module: &'static str,
    install: &'static str,
    script: &'static str,
    arguments: &'static [&'static str],
}

fn package(peer: Peer) -> Option<Package> {
    // What the scripts have in common stands before each.
    let mxnet_pushpull = concat!(
        include_str!("../../../../scripts/peers/replay.py"),
        include_str!("../../../../scripts/peers/mxnet_pushpull.py")
    );
    let allreduce = concat!(
        include_str!("../../../../scripts/peers/replay.py"),
        include_str!("../../../../scripts/peers/allreduce.py")
    );
    let (module, install, script, arguments): (_, _, _, &[&str]) = match peer {
        Peer::Mpi => return None,
        Peer::Mxnet => ("mxnet", "scripts/peers/setup", mxnet_pushpull, &[]),
        Peer::Gloo => ("torch", "scripts/peers/setup --gloo", allreduce, &["--peer", "gloo"]),
        Peer::Horovod => ("horovod", "scripts/peers/setup --horovod", allreduce, &["--peer", "horovod"]),
    };
    Some(Package { module, install, script, arguments })
}

/// The command that installs the peer, if it is not there.
pub fn missing(peer: Peer) -> Option<String> {
    let package = package(peer)?;
    let present = python().is_some_and(|python| {
        // Only looked for: MXNet with a role in its environment would start serving when imported.
        let find =
            format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{}') is None)", package.module);
        let found = Command::new(python).args(["-c", &find]).stdin(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    });
    (!present).then(|| package.install.to_owned())
}

/// The words that run the peer's script, up to what it shall measure: `python -c SCRIPT`.
pub fn command(peer: Peer) -> Result<Vec<String>> {
    let not_there = || {
        let install = package(peer).map_or("", |package| package.install);
        Error::argument(format!("peer {peer} is not installed"), format!("install it with `{install}`"))
    };
    let package = package(peer).ok_or_else(not_there)?;
    let python = python().ok_or_else(not_there)?;
    let mut words = vec![python.display().to_string(), "-c".to_owned(), package.script.to_owned()];
    words.extend(package.arguments.iter().map(|&word| word.to_owned()));
    Ok(words)
}

/// The words that let a peer's script replay training of `network`.
pub fn train_args(network: &Network, train: &TrainSetup) -> Vec<String> {
    let layers = network.layers.iter().map(|layer| format!("{}:{}:{}", layer.keys.start, layer.keys.end, layer.part));
    let layers = layers.collect::<Vec<_>>().join(",");
    let mut words = vec!["--layers".to_owned(), layers, "--compute".to_owned(), train.compute_s.to_string()];
    words.extend(train.batch.into_iter().flat_map(|batch| ["--batch".to_owned(), batch.to_string()]));
    words
}

fn python() -> Option<PathBuf> {
    let here = std::env::current_dir().ok();
    let program = std::env::current_exe().ok();
    let above = |path: Option<PathBuf>| {
        path.into_iter().flat_map(|path| path.ancestors().map(PathBuf::from).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let python = |folder: PathBuf| folder.join(".venv-peers/bin/python");
    above(here).into_iter().chain(above(program)).map(python).find(|python| python.is_file())
}
