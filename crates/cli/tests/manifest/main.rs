//! Tests `ringpull manifest` as a command: its output is the content of `mpijob/`, and the programs in the
//! pods can parse their words. Its options and rules are tested in `crates/kube/tests`.

mod args;
mod image;
mod kustomize;
mod lint;
mod overlays;
mod words;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn ringpull(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringpull")).args(words).current_dir(root()).output().unwrap()
}

/// The objects that `ringpull manifest` writes for these words.
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
