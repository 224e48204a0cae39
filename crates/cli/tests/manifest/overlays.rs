//! Everything under `mpijob/` is what `ringpull manifest` writes with the words in its first line, and is
//! valid. With `RENEW=1` the files are written anew.

use std::path::{Path, PathBuf};

use serde_json::Value;

use ringpull_kube::{lint, schema, to_yaml};

use super::{args, kustomize, parse, read, root, written};

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

/// What the linter finds, but for what is true of every MXJob.
fn findings(objects: &[Value]) -> Vec<lint::Finding> {
    let mut found = lint::lint(&to_yaml(objects).unwrap(), None).findings;
    found.retain(|it| it.rule != "mxjob-gone");
    found
}

/// The components, in an order in which they can be used together, and the option that does the same.
const COMPONENTS: [(&str, &[&str]); 7] = [
    ("gang", &["--gang", "volcano"]),
    ("elastic", &["--min-workers", "2"]),
    ("gpu", &["--gpus", "2"]),
    ("rdma", &["--rdma", "rdma/ib"]),
    ("non-root", &["--non-root"]),
    ("network-policy", &[]),
    ("launcher-works", &["--launcher-works"]),
];

const COMMON: &str = "train --workers 4 --cpus 2 --memory 4Gi --claim ringpull-training";
const LAUNCHER: &str = "--launcher-cpus 1 --launcher-memory 1Gi";
const TRAIN: &str = "-- train --kv-store dist_sync_mpi --checkpoint /train/run.safetensors --resume-if-any";

/// A folder with a kustomization in which UP leads to `mpijob/`: kustomize takes relative paths only.
fn overlay(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let depth = folder.path().canonicalize().unwrap().components().count() - 1;
    let mpijob = root().join("mpijob").canonicalize().unwrap();
    let up = format!("{}{}", "../".repeat(depth), mpijob.strip_prefix("/").unwrap().display());
    let header = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n";
    std::fs::write(folder.path().join("kustomization.yaml"), format!("{header}{}", text.replace("UP", &up))).unwrap();
    folder
}

#[test]
fn all_pairs_of_components_are_what_both_options_write() {
    let (mut pairs, mut compared) = (0, 0);
    for (at, (one, first)) in COMPONENTS.iter().enumerate() {
        for (other, second) in &COMPONENTS[at + 1..] {
            let folder =
                overlay(&format!("resources: [UP/base]\ncomponents: [UP/components/{one}, UP/components/{other}]\n"));
            let objects = sorted(kustomize::render(folder.path()));
            for object in &objects {
                assert_eq!(schema::check(object), [], "{one} and {other}");
            }
            assert_eq!(findings(&objects), [], "{one} and {other}");
            if let Some(rendered) = kustomize::installed(folder.path()) {
                assert_eq!(sorted(rendered), objects, "{one} and {other}");
                compared += 1;
            }
            let launcher = if *other == "launcher-works" { "" } else { LAUNCHER };
            let words = [COMMON, launcher].into_iter().flat_map(|words| words.split_whitespace());
            let words = words.chain(first.iter().copied()).chain(second.iter().copied()).chain(TRAIN.split(' '));
            let mut expected = written(&words.collect::<Vec<_>>());
            // An elastic gang is smaller by the option; by the component the operator counts all pods.
            if let Some(gang) = expected[0].pointer_mut("/spec/runPolicy/schedulingPolicy") {
                gang.as_object_mut().unwrap().remove("minAvailable");
            }
            // A component cannot multiply its workers by the slots of another.
            if (*one, *other) == ("elastic", "gpu") {
                let args = "/spec/mpiReplicaSpecs/Launcher/template/spec/containers/0/args";
                let args = expected[0].pointer_mut(args).unwrap();
                assert_eq!((&args[6], &args[8]), (&"8".into(), &"4".into()));
                (args[6], args[8]) = ("4".into(), "2".into());
            }
            assert_eq!(objects.iter().find(|it| it["kind"] == "MPIJob"), expected.first(), "{one} and {other}");
            pairs += 1;
        }
    }
    println!("{pairs} pairs; an installed kustomize rendered {compared} of them alike");
}

#[test]
fn a_prefix_and_an_image_reach_the_job_and_its_claim() {
    let images = "images: [{name: ringpull, newName: reg.example/ringpull, newTag: \"1\"}]";
    let folder = overlay(&format!("namePrefix: a-\nresources: [UP/base, UP/claim]\n{images}\n"));
    let Some(objects) = kustomize::installed(folder.path()) else {
        println!("skipped: neither kustomize nor a kubectl with kustomize 5 is installed");
        return;
    };
    let job = objects.iter().find(|it| it["kind"] == "MPIJob").unwrap();
    let claim = objects.iter().find(|it| it["kind"] == "PersistentVolumeClaim").unwrap();
    assert_eq!(claim["metadata"]["name"], "a-ringpull-training");
    for role in ["Launcher", "Worker"] {
        let pod = &job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"];
        assert_eq!(pod["volumes"][0]["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"], "{role}");
        assert_eq!(pod["containers"][0]["image"], "reg.example/ringpull:1", "{role}");
    }
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
            let is_list = is_kustomization || file.ends_with("names.yaml");
            assert!(is_list, "{} does not say which command wrote it", file.display());
            continue;
        };
        if std::env::var_os("RENEW").is_some() && !is_kustomization {
            let first = read(&file).lines().next().unwrap().to_owned();
            std::fs::write(&file, format!("{first}\n{}", to_yaml(&expected).unwrap())).unwrap();
        }
        let objects = if is_kustomization { kustomize::render(file.parent().unwrap()) } else { parse(&read(&file)) };
        let objects = sorted(objects);
        assert_eq!(objects, expected, "{}", file.display());
        for object in &objects {
            assert_eq!(schema::check(object), [], "{}", file.display());
            args::assert_understood(object);
        }
        assert_eq!(findings(&objects), [], "{}", file.display());
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
