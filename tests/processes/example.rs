//! The training example, for tests that run it.

use std::path::PathBuf;
use std::process::Command;

/// The example, which `cargo test` has built, unless it was told to build this test alone.
pub(crate) fn example() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let profile = own.ancestors().nth(2).unwrap();
    let path = profile.join("examples").join("train");
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--example", "train"]);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the example does not build");
    }
    path
}
