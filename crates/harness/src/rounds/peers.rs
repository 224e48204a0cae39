//! The programs of others: the check that they are installed, and our scripts that measure them.
//!
//! This program contains the scripts. They run with the Python of `.venv-peers`, which `scripts/peers/setup`
//! creates. `.venv-peers` is searched in the working folder, beside this program, and in all folders above
//! these two.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ringpull_base::{Error, Result};
use ringpull_workload::sparse::SparseSetup;

use super::{Job, Work};
use crate::allreduce::REST_MS;
use crate::variant::Peer;

/// How to install and run a peer that is a Python package.
struct Package {
    module: &'static str,
    install: &'static str,
    script: &'static str,
    arguments: &'static [&'static str],
}

fn package(peer: Peer) -> Option<Package> {
    // Each script begins with the code that all scripts share.
    let mxnet_pushpull = concat!(include_str!("../../peers/replay.py"), include_str!("../../peers/mxnet_pushpull.py"));
    let allreduce = concat!(include_str!("../../peers/replay.py"), include_str!("../../peers/allreduce.py"));
    let (module, install, script, arguments): (_, _, _, &[&str]) = match peer {
        Peer::Mxnet => ("mxnet", "scripts/peers/setup", mxnet_pushpull, &[]),
        Peer::Gloo => ("torch", "scripts/peers/setup --gloo", allreduce, &["--peer", "gloo"]),
        Peer::Horovod => ("horovod", "scripts/peers/setup --horovod", allreduce, &["--peer", "horovod"]),
        Peer::RingpullHorovod => {
            ("ringpull", "scripts/peers/setup --ringpull", allreduce, &["--peer", "ringpull-horovod"])
        }
        Peer::RingpullTorch => ("ringpull", "scripts/peers/setup --ringpull", allreduce, &["--peer", "ringpull-torch"]),
        _ => return None,
    };
    Some(Package { module, install, script, arguments })
}

/// The command that installs the peer, if it is not installed.
pub fn missing(peer: Peer) -> Option<String> {
    let package = package(peer)?;
    let present = python().is_some_and(|python| {
        // MXNet is not imported: with a role in its environment it would start to serve.
        let find =
            format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{}') is None)", package.module);
        let found = Command::new(python).args(["-c", &find]).stdin(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    });
    (!present).then(|| package.install.to_owned())
}

/// The command that measures the peer, without the numbers of iterations: `python -c SCRIPT --lens ...`.
pub fn words(peer: Peer, job: &Job) -> Result<Vec<OsString>> {
    let not_there = || {
        let install = package(peer).map_or("", |package| package.install);
        Error::argument(format!("peer {peer} is not installed"), format!("install it with `{install}`"))
    };
    let package = package(peer).ok_or_else(not_there)?;
    let python = python().ok_or_else(not_there)?;
    let lens: Vec<String> = job.lens().iter().map(ToString::to_string).collect();
    let mut words = vec!["-c".to_owned(), package.script.to_owned()];
    words.extend(package.arguments.iter().map(|&word| word.to_owned()));
    words.push(format!("--lens={}", lens.join(",")));
    match &job.work {
        Work::Buffers(_) => words.extend(["--apart".to_owned(), format!("--rest={REST_MS}")]),
        Work::Keys { .. } => {}
        Work::Rows { table, .. } => {
            let SparseSetup { rows, width, touched, zipf } = table;
            words.push(format!("--sparse={rows}:{width}:{touched}:{zipf}"));
        }
        Work::Steps { network, train, .. } => {
            let layers = network.layers.iter();
            let layers = layers.map(|layer| format!("{}:{}:{}", layer.keys.start, layer.keys.end, layer.part));
            words.push(format!("--layers={}", layers.collect::<Vec<_>>().join(",")));
            words.push(format!("--compute={}", train.compute_s));
            words.extend(train.batch.map(|batch| format!("--batch={batch}")));
        }
    }
    Ok(std::iter::once(python.into_os_string()).chain(words.into_iter().map(OsString::from)).collect())
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

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::record::Record;

    /// The script of a peer whose job has a single rank, so that no sums are needed.
    const ALONE: &str = "
import argparse, json
class Alone:
    name, waits_for_all, rank, ranks = 'alone', False, 0, 1
    barrier = begin = wait = lambda *_: None
    def write(self, key, content): self.content = content
    def read(self, key): return self.content
    def largest(self, numbers): return numbers
arguments = argparse.ArgumentParser()
add_train_arguments(arguments)
options = arguments.parse_args(['--layers=0:1:1', '--compute=0.001'])
options.warmup, options.iters = 1, 2
words = {'mode': 'alone', 'algorithm': 'none', 'servers': 0, 'unit_notes': ''}
print(json.dumps([replay(Alone(), [10], options) | words]))
";

    #[test]
    fn a_replayed_step_of_a_peer_is_a_record_that_is_read() {
        let script = [include_str!("../../peers/replay.py"), ALONE].concat();
        let venv = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/python"));
        let python = if venv.is_file() { venv } else { "python3".into() };
        let Ok(printed) = Command::new(python).args(["-c", &script]).output() else {
            eprintln!("skipped: python3 is not installed");
            return;
        };
        if String::from_utf8_lossy(&printed.stderr).contains("No module named 'numpy'") {
            eprintln!("skipped: python3 has no numpy");
            return;
        }
        let records = Record::parse_list("alone", &String::from_utf8_lossy(&printed.stdout));
        assert_eq!(records.unwrap()[0].seconds.len(), 2, "{printed:?}");
    }

    #[test]
    fn the_setup_script_knows_the_option_that_installs_each_peer() {
        let setup = include_str!("../../peers/setup");
        for peer in Peer::value_variants().iter().filter(|peer| !peer.is_mpi()) {
            let install = package(*peer).unwrap().install;
            let options = install.strip_prefix("scripts/peers/setup").unwrap();
            assert!(setup.contains(options.trim()), "{install}");
        }
    }
}
