//! `ringpull manifest`: what it writes is valid and says what was asked for; what `lint` finds.
//!
//! The schemas of Kubeflow's objects are not part of this repository: they are read from `RINGPULL_CRDS` or
//! from `../shared/crds`, and the tests that need them say so where they are absent.

mod args;
mod kustomize;
mod lint;
mod matrix;
mod overlays;
mod schema;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn ringpull(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringpull")).args(words).current_dir(root()).output().unwrap()
}

/// What `ringpull manifest` with these words writes.
fn written(words: &[&str]) -> Vec<Value> {
    let output = ringpull(&[&["manifest"], words].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    parse(&String::from_utf8(output.stdout).unwrap())
}

fn parse(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|cause| panic!("{cause}\n{text}"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
}
