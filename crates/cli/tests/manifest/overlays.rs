//! Everything under `mpijob/` is what `ringpull manifest` writes with the words in its first line, and is
//! valid.

use std::path::{Path, PathBuf};

use serde_json::Value;

use ringpull_kube::{lint, to_yaml};

use super::{args, kustomize, parse, read, root, schema, written};

fn files(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, name));
        } else if path.file_name().is_some_and(|own| own.to_string_lossy().ends_with(name)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn sorted(mut objects: Vec<Value>) -> Vec<Value> {
    objects.sort_by_key(|object| object["kind"].to_string());
    objects
}

/// The objects that the first line of a file names the command of.
fn of_first_line(file: &Path) -> Option<Vec<Value>> {
    let text = read(file);
    let words = text.lines().next()?.strip_prefix("# ringpull manifest ")?;
    Some(sorted(written(&words.split(' ').collect::<Vec<_>>())))
}

#[test]
fn every_file_is_what_the_command_in_its_first_line_writes() {
    let mut number = 0;
    for file in files(&root().join("mpijob"), ".yaml") {
        let is_kustomization = file.ends_with("kustomization.yaml");
        let Some(expected) = of_first_line(&file) else {
            assert!(is_kustomization, "{} does not say which command wrote it", file.display());
            continue;
        };
        let objects = if is_kustomization { kustomize::render(file.parent().unwrap()) } else { parse(&read(&file)) };
        let objects = sorted(objects);
        assert_eq!(objects, expected, "{}", file.display());
        for object in &objects {
            assert_eq!(schema::faults(object), Vec::<String>::new(), "{}", file.display());
            args::assert_understood(object);
        }
        assert_eq!(lint::lint(&to_yaml(&objects).unwrap()).findings, [], "{}", file.display());
        number += 1;
    }
    assert!(number > 12, "only {number} manifests were found");
}

#[test]
fn an_installed_kustomize_renders_the_same() {
    let folders = files(&root().join("mpijob"), "kustomization.yaml");
    let mut compared = 0;
    for folder in folders.iter().map(|file| file.parent().unwrap()) {
        if folder.to_string_lossy().contains("/components/") {
            continue;
        }
        let Some(rendered) = kustomize::installed(folder) else {
            println!("skipped: neither kustomize nor a kubectl with kustomize 5 is installed");
            return;
        };
        assert_eq!(sorted(rendered), sorted(kustomize::render(folder)), "{}", folder.display());
        compared += 1;
    }
    println!("kustomize rendered {compared} folders alike");
}
