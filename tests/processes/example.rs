//! The training example, for tests that run it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The example, which `cargo test` has built, unless it was told to build this test alone: then it is absent, or older than
/// what it is made of, and built here.
pub(crate) fn example() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let profile = own.ancestors().nth(2).unwrap();
    let path = profile.join("examples").join("train");
    let built = path.metadata().and_then(|found| found.modified()).ok();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    if built < newest(&sources.join("src")).max(newest(&sources.join("examples/train"))) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--example", "train", "--target-dir"]).arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the example does not build");
    }
    path
}

/// When the youngest file below `folder` was written.
fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let times = entries.map(|entry| {
        if entry.path().is_dir() {
            newest(&entry.path())
        } else {
            entry.metadata().and_then(|found| found.modified()).ok()
        }
    });
    times.max().flatten()
}
