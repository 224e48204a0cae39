//! Tests that the image can be built from the repository's files without those in `.dockerignore`.

use std::path::Path;
use std::process::Command;

use super::{read, root};

/// Returns true if `.dockerignore` leaves a file out. The last pattern that fits decides.
fn is_ignored(path: &str, patterns: &[String]) -> bool {
    let fits = |pattern: &str| {
        let own = pattern.trim_start_matches("**/");
        let parts: Vec<&str> = path.split('/').collect();
        let matches = |part: &str, word: &str| match word.split_once('*') {
            Some((before, after)) => part.len() >= word.len() - 1 && part.starts_with(before) && part.ends_with(after),
            None => part == word,
        };
        if own.len() < pattern.len() {
            return parts.iter().any(|part| matches(part, own));
        }
        let words: Vec<&str> = own.split('/').collect();
        words.len() <= parts.len() && words.iter().zip(&parts).all(|(word, part)| matches(part, word))
    };
    let mut ignored = false;
    for pattern in patterns {
        match pattern.strip_prefix('!') {
            Some(kept) if fits(kept) => ignored = false,
            None if fits(pattern) => ignored = true,
            _ => {}
        }
    }
    ignored
}

#[test]
fn what_the_dockerfile_copies_is_a_whole_workspace() {
    let text = read(&root().join(".dockerignore"));
    let patterns: Vec<String> =
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect();
    assert!(is_ignored("target/debug/ringpull", &patterns) && is_ignored("a/__pycache__/b.pyc", &patterns));
    assert!(
        !is_ignored("target/image/bin/ringpull", &patterns) && is_ignored("python/ringpull/_native.abi3.so", &patterns)
    );
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let Some(listed) = listed.ok().filter(|output| output.status.success()) else {
        println!("skipped: this is no clone of the repository, or git is not installed");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let files = String::from_utf8(listed.stdout).unwrap();
    let files: Vec<&str> = files.split('\0').filter(|path| !path.is_empty() && !is_ignored(path, &patterns)).collect();
    for path in &files {
        let (from, to) = (root().join(path), folder.path().join(path));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        if let Ok(target) = std::fs::read_link(&from) {
            std::os::unix::fs::symlink(target, to).unwrap();
        } else if from.is_file() {
            std::fs::copy(from, to).unwrap();
        }
    }
    // The Dockerfile copies the whole repository, so there is no list that could be stale.
    assert!(read(&root().join("mpijob/Dockerfile")).lines().any(|line| line == "COPY . ."));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Files that the compiler reads beside the sources.
    for source in files.iter().filter(|path| is_source(path)) {
        for included in included(&read(&folder.path().join(source))) {
            let path = folder.path().join(source).parent().unwrap().join(&included);
            assert!(path.exists(), "{source} includes {included}, which the image lacks");
        }
    }
    for script in ["scripts/image-parts", "scripts/wheel", "scripts/sbom.py", "mpijob/image/add"] {
        assert!(folder.path().join(script).exists(), "{script}");
    }
}

/// If a stage begins with another stage, it names this stage directly: buildah 1.28 does not find a stage
/// that an argument names.
#[test]
fn no_stage_of_the_dockerfile_is_named_by_an_argument() {
    let text = read(&root().join("mpijob/Dockerfile"));
    let words = |first: &str| -> Vec<Vec<String>> {
        let lines = text.lines().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        lines.filter(|words| words[0] == first).collect()
    };
    let stages: Vec<String> = words("FROM").into_iter().filter_map(|words| words.get(3).cloned()).collect();
    assert!(stages.len() > 5, "{stages:?}");
    for from in words("FROM") {
        let Some(argument) = from[1].strip_prefix("${").and_then(|name| name.strip_suffix('}')) else { continue };
        let default = words("ARG")
            .into_iter()
            .find_map(|words| Some(words.get(1)?.strip_prefix(&format!("{argument}="))?.to_owned()));
        let default = default.unwrap_or_else(|| panic!("{argument} has no default"));
        assert!(!stages.contains(&default), "FROM {} is the stage {default}", from[1]);
    }
}

fn is_source(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|it| it == "rs") && path.starts_with("crates/") && path.contains("/src/")
}

/// The files that a source includes.
fn included(text: &str) -> Vec<String> {
    let calls = ["include_str!(\"", "include_bytes!(\""];
    let of = |call: &&str| {
        text.split(*call).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect::<Vec<_>>()
    };
    calls.iter().flat_map(of).filter(|path| Path::new(path).extension().is_some()).collect()
}
