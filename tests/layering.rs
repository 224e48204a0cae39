//! The layers of `src`: each imports only what stands to its left. Also what holds for every source file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const BASE: &[&str] = &[
    "error", "key", "kind", "dtype", "buffer", "remote", "tensor", "sparse", "reduce", "topology", "config",
    "timeline", "spelling",
];

/// Each layer beside the base and what it may import beside the base.
const LAYERS: &[(&str, &[&str])] = &[
    ("transport", &[]),
    ("collective", &["transport"]),
    ("compress", &[]),
    ("optim", &[]),
    ("device", &["compress", "optim"]),
    ("communicator", &["transport", "collective", "compress", "device"]),
    ("progress", &["transport", "collective", "communicator"]),
    ("ps", &["transport", "compress", "optim"]),
    ("store", &["transport", "collective", "compress", "communicator", "progress", "optim", "device", "ps"]),
    ("harness", &["transport", "collective", "compress", "communicator", "progress", "optim", "device", "ps", "store"]),
    (
        "cli",
        &[
            "transport",
            "collective",
            "compress",
            "communicator",
            "progress",
            "optim",
            "device",
            "ps",
            "store",
            "harness",
        ],
    ),
];

/// The files that may hold `unsafe`.
const UNSAFE: &[&str] = &[
    "src/buffer/arena.rs",
    "src/buffer/mod.rs",
    "src/buffer/region.rs",
    "src/collective/flight.rs",
    "src/collective/run.rs",
    "src/communicator/compressed.rs",
    "src/compress/avx2.rs",
    "src/compress/avx512.rs",
    "src/collective/ahead_tests.rs",
    "src/collective/run_tests.rs",
    "src/communicator/direct.rs",
    "src/communicator/host.rs",
    "src/progress/comm.rs",
    "src/communicator/node.rs",
    "src/communicator/routes_tests.rs",
    "src/communicator/sharing_tests.rs",
    "src/device/cuda/compile.rs",
    "src/device/cuda/gpu.rs",
    "src/device/cuda/launch.rs",
    "src/device/cuda/mod.rs",
    "src/device/cuda/nccl.rs",
    "src/device/cuda/slices.rs",
    "src/device/cuda/survey.rs",
    "src/device/lent.rs",
    "src/harness/gpu_check/lent.rs",
    "src/progress/process.rs",
    "src/reduce/mod.rs",
    "src/reduce/portable.rs",
    "src/reduce/x86.rs",
    "src/tensor/mod.rs",
    "src/timeline/recorder.rs",
    "src/transport/group.rs",
    "src/transport/inproc.rs",
    "src/transport/library.rs",
    "src/transport/mod.rs",
    "src/transport/mpi.rs",
    "src/transport/sockets.rs",
    "src/transport/window.rs",
];

const LINES: usize = 450;

#[test]
fn every_layer_imports_only_what_stands_to_its_left() {
    let names: BTreeSet<&str> = BASE.iter().copied().chain(LAYERS.iter().map(|layer| layer.0)).collect();
    let mut wrong = Vec::new();
    for file in sources("src") {
        let within = file.strip_prefix(root().join("src")).unwrap().to_path_buf();
        let layer = within.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
        let allowed: &[&str] = match LAYERS.iter().find(|(name, _)| *name == layer) {
            Some((_, allowed)) => allowed,
            None if BASE.contains(&layer.as_str()) => &[],
            None if ["lib", "main"].contains(&layer.as_str()) => continue,
            None => panic!("src/{layer} is in no layer: name it in tests/layering.rs"),
        };
        for import in imports(&code(&file)) {
            let legal = import == layer || BASE.contains(&import.as_str()) || allowed.contains(&import.as_str());
            if names.contains(import.as_str()) && !legal {
                wrong.push(format!("{} imports {import}", within.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_stays_in_the_files_that_are_named_here() {
    let allowing: BTreeSet<String> = sources("src")
        .iter()
        .filter(|file| code(file).lines().any(|line| line.contains("allow(unsafe_code)")))
        .map(|file| file.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    assert_eq!(allowing, UNSAFE.iter().map(|&name| name.to_owned()).collect());
}

#[test]
fn every_source_file_is_ascii_and_short() {
    let mut wrong = Vec::new();
    for file in ["src", "tests", "examples", "benches", "python"].iter().flat_map(|folder| sources(folder)) {
        let text = fs::read_to_string(&file).unwrap();
        if !text.is_ascii() {
            wrong.push(format!("{} is not ASCII", file.display()));
        }
        if text.lines().count() > LINES {
            wrong.push(format!("{} is longer than {LINES} lines", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
