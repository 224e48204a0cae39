//! What Cargo cannot hold the crates to: the layers inside `ringpull-allreduce`, where `unsafe` stands, and
//! plain ASCII.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The layers of `crates/allreduce`: each imports only those before it.
const LAYERS: [&str; 4] = ["transport", "interpreter", "communicator", "progress"];

/// The files that may hold `unsafe`.
const UNSAFE: &[&str] = &[
    "src/on_devices/step.rs",
    "src/on_devices/staged.rs",
    "src/jobs.rs",
    "crates/allreduce/src/communicator/probe.rs",
    "crates/allreduce/src/communicator/placement.rs",
    "crates/allreduce/src/communicator/hierarchy.rs",
    "crates/allreduce/src/communicator/compressed.rs",
    "crates/allreduce/src/communicator/host.rs",
    "crates/allreduce/src/communicator/node.rs",
    "crates/allreduce/src/communicator/sharing_tests.rs",
    "crates/allreduce/src/interpreter/ahead_tests.rs",
    "crates/allreduce/src/interpreter/flight.rs",
    "crates/allreduce/src/interpreter/run.rs",
    "crates/allreduce/src/interpreter/run_tests.rs",
    "crates/allreduce/src/progress/comm.rs",
    "crates/allreduce/src/progress/process.rs",
    "crates/allreduce/src/transport/group.rs",
    "crates/allreduce/src/transport/inproc.rs",
    "crates/allreduce/src/transport/library.rs",
    "crates/allreduce/src/transport/mod.rs",
    "crates/allreduce/src/transport/mpi.rs",
    "crates/allreduce/src/transport/sockets.rs",
    "crates/allreduce/src/transport/window.rs",
    "crates/base/src/buffer/arena.rs",
    "crates/base/src/buffer/mod.rs",
    "crates/base/src/buffer/region.rs",
    "crates/base/src/tensor/mod.rs",
    "crates/base/src/timeline/recorder.rs",
    "crates/cli/src/gpu_check/lent.rs",
    "crates/device/src/cuda/compile.rs",
    "crates/device/src/cuda/gpu.rs",
    "crates/device/src/cuda/launch.rs",
    "crates/device/src/cuda/mod.rs",
    "crates/device/src/cuda/nccl.rs",
    "crates/device/src/cuda/slices.rs",
    "crates/device/src/cuda/survey.rs",
    "crates/device/src/lent.rs",
    "crates/device/src/loan.rs",
    "crates/kernels/src/compress/avx2.rs",
    "crates/kernels/src/compress/avx512.rs",
    "crates/kernels/src/reduce/mod.rs",
    "crates/kernels/src/reduce/portable.rs",
    "crates/kernels/src/reduce/x86.rs",
    "src/on_devices/direct.rs",
    "src/on_devices/routes_tests.rs",
];

#[test]
fn every_layer_of_allreduce_imports_only_those_before_it() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (place, layer) in LAYERS.iter().enumerate() {
        for file in sources(&format!("crates/allreduce/src/{layer}")) {
            seen.insert(*layer);
            let imported = imports(&code(&file));
            wrong.extend(
                LAYERS[place + 1..]
                    .iter()
                    .filter(|above| imported.contains(**above))
                    .map(|above| format!("{} imports {above}", file.display())),
            );
        }
    }
    assert_eq!(seen.len(), LAYERS.len(), "a layer has no files");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_stays_in_the_files_that_are_named_here() {
    let allowing: BTreeSet<String> = ["src", "crates"]
        .iter()
        .flat_map(|folder| sources(folder))
        .filter(|file| code(file).lines().any(|line| line.contains("allow(unsafe_code)")))
        .map(|file| file.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    assert_eq!(allowing, UNSAFE.iter().map(|&name| name.to_owned()).collect());
}

#[test]
fn every_source_file_is_ascii() {
    let wrong: Vec<String> = ["src", "crates", "tests", "examples", "benches", "python"]
        .iter()
        .flat_map(|folder| sources(folder))
        .filter(|file| !fs::read_to_string(file).unwrap().is_ascii())
        .map(|file| file.display().to_string())
        .collect();
    assert!(wrong.is_empty(), "not ASCII: {}", wrong.join(", "));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), &mut found);
    found.sort();
    found
}

/// The file without its comments.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The first name behind every `crate::`, also inside `crate::{a::b, c}`.
fn imports(code: &str) -> BTreeSet<String> {
    let first = |text: &str| text.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned();
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(first(rest));
            continue;
        };
        let (mut depth, mut start) = (0, 0);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' | ',' if depth == 0 => {
                    found.insert(first(&group[start..at]));
                    start = at + 1;
                    if c == '}' {
                        break;
                    }
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    found
}

#[test]
fn imports_are_read_from_groups_too() {
    let found = imports("use crate::{error::{Error, Result}, key::Key};\nlet x = crate::kind::Kind::Local;");
    assert_eq!(found, ["error", "key", "kind"].map(str::to_owned).into());
}
