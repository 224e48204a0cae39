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
    if !is_up_to_date(&path) {
        let mut cargo = Command::new(env!("CARGO"));
        // No package is named, as that would choose other features, with which all is built anew.
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

/// Returns true if the program is there and no source that cargo's list beside it names is younger.
fn is_up_to_date(program: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let (Some(built), Ok(list)) = (modified(program), std::fs::read_to_string(program.with_extension("d"))) else {
        return false;
    };
    let Some((_, sources)) = list.split_once(": ") else { return false };
    let times: Vec<Option<SystemTime>> = sources.split_whitespace().map(|source| modified(Path::new(source))).collect();
    times.into_iter().all(|time| time.is_some_and(|time| time <= built))
}
