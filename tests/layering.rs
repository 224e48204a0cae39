//! What Cargo cannot hold the crates to: the layers inside `ringpull-allreduce`, files that import each other
//! in a circle, where `unsafe` stands, and plain ASCII. It also holds the table of crates in ARCHITECTURE.md
//! true.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers of `crates/allreduce`: each imports only those before it.
const LAYERS: [&str; 4] = ["transport", "interpreter", "communicator", "progress"];

/// The files that may hold `unsafe`.
const UNSAFE: &[&str] = &[
    "src/on_devices/step.rs",
    "src/on_devices/staged.rs",
    "src/communicator/jobs.rs",
    "src/jobs.rs",
    "src/sum_rows.rs",
    "crates/allreduce/src/communicator/begun.rs",
    "crates/allreduce/src/communicator/compressed.rs",
    "crates/allreduce/src/communicator/copies.rs",
    "crates/allreduce/src/communicator/divided.rs",
    "crates/allreduce/src/communicator/executor.rs",
    "crates/allreduce/src/communicator/helped.rs",
    "crates/allreduce/src/communicator/link_games.rs",
    "crates/allreduce/src/communicator/hierarchy.rs",
    "crates/allreduce/src/communicator/node.rs",
    "crates/allreduce/src/communicator/reached.rs",
    "crates/allreduce/src/communicator/sums.rs",
    "crates/allreduce/src/communicator/tests/sharing.rs",
    "crates/allreduce/src/communicator/two_buffers.rs",
    "crates/allreduce/src/interpreter/tests/ahead.rs",
    "crates/allreduce/src/interpreter/flight.rs",
    "crates/allreduce/src/interpreter/run.rs",
    "crates/allreduce/src/interpreter/tests/run.rs",
    "crates/allreduce/src/progress/comm.rs",
    "crates/allreduce/src/progress/hang.rs",
    "crates/allreduce/src/progress/help.rs",
    "crates/allreduce/src/progress/process.rs",
    "crates/allreduce/src/progress/termination.rs",
    "crates/allreduce/src/transport/inproc.rs",
    "crates/allreduce/src/transport/library.rs",
    "crates/allreduce/src/transport/mod.rs",
    "crates/allreduce/src/transport/mpi.rs",
    "crates/allreduce/src/transport/observed.rs",
    "crates/allreduce/src/transport/over_links.rs",
    "crates/allreduce/src/transport/peer_memory.rs",
    "crates/allreduce/src/transport/sockets.rs",
    "crates/allreduce/src/transport/lossy.rs",
    "crates/allreduce/src/transport/ulfm.rs",
    "crates/allreduce/src/transport/window.rs",
    "crates/base/src/buffer/arena.rs",
    "crates/base/src/buffer/mod.rs",
    "crates/base/src/buffer/region.rs",
    "crates/base/src/file_limit.rs",
    "crates/base/src/forked.rs",
    "crates/base/src/tensor/mod.rs",
    "crates/base/src/timeline/recorder.rs",
    "crates/cli/src/gpu_check/lent.rs",
    "crates/cli/src/lib.rs",
    "crates/device/src/cuda/compile.rs",
    "crates/device/src/cuda/gpu.rs",
    "crates/device/src/cuda/launch.rs",
    "crates/device/src/cuda/mod.rs",
    "crates/device/src/cuda/nccl.rs",
    "crates/device/src/cuda/slices.rs",
    "crates/device/src/cuda/survey.rs",
    "crates/device/src/lent.rs",
    "crates/device/src/loan.rs",
    "crates/device/tests/gpus.rs",
    "crates/kernels/src/compress/avx2.rs",
    "crates/kernels/src/compress/avx512.rs",
    "crates/kernels/src/reduce/mod.rs",
    "crates/kernels/src/reduce/portable.rs",
    "crates/kernels/src/reduce/x86.rs",
    "crates/loader/src/load.rs",
    "src/on_devices/direct.rs",
    "src/on_devices/tests.rs",
    // Functions that C calls, and memory that it is given.
    "tests/fake-cuda/src/cubin.rs",
    "tests/fake-cuda/src/driver.rs",
    "tests/fake-cuda/src/machine.rs",
    "tests/fake-cuda/src/memory.rs",
    "tests/fake-cuda/src/nccl/mod.rs",
    "tests/fake-cuda/src/ptx/run.rs",
    "tests/fake-cuda/src/work.rs",
    "tests/fake-cuda/tests/findings.rs",
];

#[test]
fn the_table_of_architecture_says_what_each_crate_uses() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows: Vec<[&str; 3]> = page
        .lines()
        .filter_map(|line| match line.split('|').map(str::trim).collect::<Vec<_>>()[..] {
            [_, name, folder, _, uses, _] => Some([
                name.strip_prefix('`')?.strip_suffix('`').filter(|name| name.starts_with("ringpull"))?,
                folder.trim_matches('`'),
                uses,
            ]),
            _ => None,
        })
        .collect();
    let short = |name: &str| name.strip_prefix("ringpull-").unwrap_or(name).to_owned();
    let mut above = BTreeSet::new();
    for [name, folder, uses] in &rows {
        let folder = if *folder == "src" { "." } else { folder };
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{folder} is not {name}");
        let used: BTreeSet<String> = section(&manifest, "dependencies")
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|dependency| *dependency == "ringpull" || dependency.starts_with("ringpull-"))
            .map(short)
            .collect();
        let said: BTreeSet<String> = uses.split(", ").filter(|name| *name != "-").map(str::to_owned).collect();
        assert_eq!(used, said, "what {name} uses, by its Cargo.toml and by ARCHITECTURE.md");
        assert!(used.is_subset(&above), "{name} uses a crate that stands below it");
        above.insert(short(name));
    }
    let members = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = section(&members, "workspace.dependencies").filter(|line| line.starts_with("ringpull")).count();
    assert_eq!(rows.len(), members + 1, "every crate has a row, and the Python package, which no crate uses");
}

/// The lines of `[name]` in a `Cargo.toml`.
fn section<'a>(manifest: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let heading = format!("[{name}]");
    manifest.lines().skip_while(move |line| *line != heading).skip(1).take_while(|line| !line.starts_with('['))
}

#[test]
fn every_layer_of_allreduce_imports_only_those_before_it() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (place, layer) in LAYERS.iter().enumerate() {
        for file in sources(&format!("crates/allreduce/src/{layer}")) {
            seen.insert(*layer);
            let imported = paths(&code(&file), "crate");
            wrong.extend(
                LAYERS[place + 1..]
                    .iter()
                    .filter(|above| imported.iter().any(|path| path.split("::").next() == Some(above)))
                    .map(|above| format!("{} imports {above}", file.display())),
            );
        }
    }
    assert_eq!(seen.len(), LAYERS.len(), "a layer has no files");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files that still import each other, crate by crate.
const CIRCLES: &[(&str, &[&str])] = &[
    ("crates/allreduce", &["transport::control", "transport::star"]),
    ("crates/base", &["timeline::recorder", "timeline::trace"]),
    ("crates/kernels", &["compress::avx2", "compress::avx512", "compress::halves", "compress::planes"]),
    ("crates/ps", &["operation", "worker", "worker_loop"]),
];

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle_but_those_named_here() {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let mut names: Vec<String> =
        crates.map(|entry| format!("crates/{}", entry.unwrap().file_name().to_str().unwrap())).collect();
    names.push(String::new());
    let mut found = BTreeSet::new();
    for name in names {
        let imports = modules(&root().join(&name).join("src"));
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            imports.keys().map(|module| (module, reachable(module, &imports))).collect();
        for module in imports.keys().filter(|module| reached[module].contains(module)) {
            // A module and what lies in it may know each other.
            let circle = reached[module].iter().filter(|other| reached[**other].contains(module));
            let circle: Vec<String> = circle.map(|other| (*other).clone()).collect();
            if !circle.iter().all(|other| other.starts_with(&circle[0])) {
                found.insert((name.clone(), circle));
            }
        }
    }
    let named = |(name, circle): &(&str, &[&str])| {
        ((*name).to_owned(), circle.iter().map(|module| (*module).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(found, CIRCLES.iter().map(named).collect());
}

/// The modules of the crate in `folder`, and which others each imports; tests do not count.
fn modules(folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let name = |file: &PathBuf| {
        let path = file.strip_prefix(folder).unwrap().with_extension("");
        path.to_str().unwrap().trim_end_matches("/mod").replace('/', "::")
    };
    let files = sources(folder.strip_prefix(root()).unwrap().to_str().unwrap());
    let files: BTreeMap<String, PathBuf> = files.into_iter().map(|file| (name(&file), file)).collect();
    let imports = |module: &String, file: &PathBuf| {
        let text = code(file);
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
        let paths = paths(text, "crate").into_iter();
        let paths = paths.chain(paths_of_parent(text).into_iter().map(|path| format!("{parent}::{path}")));
        let known = paths.filter_map(|path| {
            let path = path.trim_start_matches("::");
            files
                .keys()
                .filter(|known| path == *known || path.starts_with(&format!("{known}::")))
                .max_by_key(|known| known.len())
        });
        known.filter(|known| *known != module).cloned().collect::<BTreeSet<String>>()
    };
    let counts = files.iter().filter(|(name, _)| !name.ends_with("tests") && *name != "lib" && *name != "main");
    counts.map(|(name, file)| (name.clone(), imports(name, file))).collect()
}

fn paths_of_parent(code: &str) -> Vec<String> {
    // `super::super` is rare, and leads to a module that holds this one.
    paths(code, "super").into_iter().filter(|path| !path.starts_with("super")).collect()
}

/// What stands behind every `root::`, each name of a group by itself.
fn paths(code: &str, root: &str) -> Vec<String> {
    let mut found = Vec::new();
    for rest in code.split(&format!("{root}::")).skip(1) {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c))).unwrap_or(rest.len());
        let (path, rest) = rest.split_at(end);
        match rest.strip_prefix('{') {
            Some(group) if path.is_empty() || path.ends_with("::") => {
                let group = &group[..group.find('}').unwrap_or(group.len())];
                found.extend(group.split(['{', ',']).map(|name| format!("{path}{}", name.trim())));
            }
            _ => found.push(path.to_owned()),
        }
    }
    found
}

/// All that `module` imports, and what that does.
fn reachable<'a>(module: &String, imports: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&String> = imports[module].iter().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(imports.get(module).into_iter().flatten());
        }
    }
    found
}

#[test]
fn types_of_a_crate_have_a_name_each() {
    let mut found: BTreeMap<(String, String), BTreeSet<PathBuf>> = BTreeMap::new();
    for file in sources("src").into_iter().chain(sources("crates")).filter(|file| !is_of_tests(file)) {
        let path = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let owner = path.split("src/").next().unwrap().to_owned();
        for line in code(&file).lines() {
            let item = match line.strip_prefix("pub(") {
                Some(limited) => limited.split_once(") ").map_or(limited, |(_, item)| item),
                None => line.trim_start_matches("pub "),
            };
            let mut words = item.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            if let (Some("struct" | "enum" | "trait" | "type" | "union"), Some(name)) = (words.next(), words.next()) {
                found.entry((owner.clone(), name.to_owned())).or_default().insert(file.clone());
            }
        }
    }
    assert!(found.len() > 300, "types are found: {}", found.len());
    let twice: Vec<_> = found.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "two types of a crate share a name: {twice:#?}");
}

/// Whether the file has nothing but tests.
fn is_of_tests(file: &Path) -> bool {
    file.ends_with("tests.rs") || file.components().any(|part| part.as_os_str() == "tests")
}

#[test]
fn unsafe_code_stays_in_the_files_that_are_named_here() {
    let allowing: BTreeSet<String> = ["src", "crates", "tests/fake-cuda"]
        .iter()
        .flat_map(|folder| sources(folder))
        .filter(|file| code(file).lines().any(|line| line.contains("allow(unsafe_code)")))
        .map(|file| file.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    assert_eq!(allowing, UNSAFE.iter().map(|&name| name.to_owned()).collect());
}

/// One screen, so that a reader gets the decision and not its history.
#[test]
fn pages_of_decisions_are_few_and_fit_a_screen() {
    let pages = fs::read_dir(root().join("docs/decisions")).unwrap().map(|entry| entry.unwrap().path());
    let lines: BTreeMap<PathBuf, usize> =
        pages.map(|page| (page.clone(), fs::read_to_string(&page).unwrap().lines().count())).collect();
    assert!((20..=30).contains(&lines.len()), "{} pages", lines.len());
    let long: Vec<_> = lines.iter().filter(|(_, lines)| **lines > 60).collect();
    assert!(long.is_empty(), "pages of more than 60 lines, whose tables belong in benches/tables.md: {long:?}");
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

#[test]
fn imports_are_read_from_groups_too() {
    let found = paths("use crate::error::{Error, Result};\nlet x = crate::kind::Kind::Local;", "crate");
    assert_eq!(found, ["error::Error", "error::Result", "kind::Kind::Local"]);
}
