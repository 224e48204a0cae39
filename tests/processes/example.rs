//! Finds or builds the training example, for the tests that run it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Returns the path of the example. `cargo test` has built it, unless it was asked to build this test alone.
/// In that case the example may be absent or older than its sources, and this function builds it.
pub fn example() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let profile = own.ancestors().nth(2).unwrap();
    let path = profile.join("examples").join("train");
    if !is_up_to_date(&path) {
        let mut cargo = Command::new(env!("CARGO"));
        // No package is named, because a named package would select other features and rebuild everything.
        cargo
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
            .args(["build", "--example", "train", "--target-dir"])
            .arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the example does not build");
    }
    path
}

/// Returns true if the program exists and no source in cargo's list of its sources is newer.
fn is_up_to_date(program: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let (Some(built), Ok(list)) = (modified(program), std::fs::read_to_string(program.with_extension("d"))) else {
        return false;
    };
    let Some((_, sources)) = list.split_once(": ") else { return false };
    let times: Vec<Option<SystemTime>> = sources.split_whitespace().map(|source| modified(Path::new(source))).collect();
    times.into_iter().all(|time| time.is_some_and(|time| time <= built))
}
