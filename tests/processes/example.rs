//! The training example, for tests that run it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The example, which `cargo test` has built, unless it was asked to build this test alone: then it is
/// absent, or older than what it is made of, and built here.
pub fn example() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let profile = own.ancestors().nth(2).unwrap();
    let path = profile.join("examples").join("train");
    let built = path.metadata().and_then(|found| found.modified()).ok();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sources = ["src", "crates", "examples", "Cargo.toml", "Cargo.lock"].map(|source| newest(&root.join(source)));
    if built < sources.into_iter().max().flatten() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .current_dir(&root)
            .args(["build", "--package", "ringpull-examples", "--example", "train", "--target-dir"])
            .arg(profile.parent().unwrap());
        if !crate::has_mpi() {
            cargo.arg("--no-default-features");
        }
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the example does not build");
    }
    path
}

/// Returns the time of the youngest file below `path`.
fn newest(path: &Path) -> Option<SystemTime> {
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().filter_map(|entry| newest(&entry.path())).max(),
        Err(_) => path.metadata().and_then(|found| found.modified()).ok(),
    }
}
