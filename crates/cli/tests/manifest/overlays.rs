//! Tests that each file under `mpijob/` is the output of `ringpull manifest` with the words in its first
//! line. This output, and that for other words, is valid. With `RENEW=1` the files are written again.

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

/// The findings of the linter, without those that every MXJob has.
fn findings(objects: &[Value]) -> Vec<lint::Finding> {
    let mut found = lint::lint(&to_yaml(objects).unwrap(), None).findings;
    found.retain(|it| it.rule != "mxjob-gone");
    found
}

/// Options of all jobs on a claim.
const ON_CLAIM: &str = "--cpus 2 --memory 4Gi --claim ringpull-training";
const TRAIN: &str = "-- train --kv-store dist_sync_mpi --checkpoint /train/run.safetensors --resume-if-any";

/// Options of `train` that may be combined.
const OPTIONS: [&str; 7] = [
    "--gang volcano",
    "--min-workers 2",
    "--gpus 2",
    "--rdma rdma/ib",
    "--non-root",
    "--kueue team",
    "--launcher-works",
];

/// Jobs of every kind, and objects beside them. CLAIM stands for [`ON_CLAIM`].
const PRINTED: [&str; 9] = [
    "compare --workers 4 CLAIM -- --modes dist_sync_mpi,dist_sync:1shared,dist_sync:4shared --bytes 25MB",
    "ps --workers 4 --servers 4 CLAIM -- train --kv-store dist_sync --checkpoint /train/ps.safetensors",
    "job CLAIM -- train --checkpoint /train/job.safetensors --resume-if-any",
    "trainjob --non-root --workers 4 CLAIM -- train --kv-store dist_sync_mpi --checkpoint /train/run.safetensors",
    "mxjob --workers 4 --servers 4 CLAIM -- train --kv-store dist_sync --checkpoint /train/mx.safetensors",
    "mxjob --image registry.example/mxnet:1.9.1 --workers 4 --servers 4 CLAIM -- python3 t.py --kv-store dist_sync",
    "tfjob --image tensorflow/tensorflow:2.17.0 --workers 4 --servers 2 CLAIM -- python3 /train/train.py",
    "claim --claim ringpull-training --claim-size 10Gi --storage-class rook-cephfs",
    "network-policy",
];

/// A folder with a kustomization in which UP is the path to `mpijob/`. kustomize takes only relative paths.
fn overlay(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let depth = folder.path().canonicalize().unwrap().components().count() - 1;
    let mpijob = root().join("mpijob").canonicalize().unwrap();
    let up = format!("{}{}", "../".repeat(depth), mpijob.strip_prefix("/").unwrap().display());
    let header = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n";
    std::fs::write(folder.path().join("kustomization.yaml"), format!("{header}{}", text.replace("UP", &up))).unwrap();
    folder
}

fn assert_valid(objects: &[Value], words: &str) {
    for object in objects {
        assert_eq!(schema::check(object), [], "{words}");
        args::assert_understood(object);
    }
    assert_eq!(findings(objects), [], "{words}");
}

#[test]
fn what_is_printed_for_every_kind_and_every_pair_of_options_is_valid() {
    let pairs = OPTIONS.iter().enumerate().flat_map(|(at, one)| {
        OPTIONS[at + 1..].iter().map(move |other| format!("train --workers 4 CLAIM {one} {other} {TRAIN}"))
    });
    let all = PRINTED.iter().map(|&words| words.to_owned()).chain(pairs);
    for words in all.map(|words| words.replace("CLAIM", ON_CLAIM)) {
        assert_valid(&written(&words.split(' ').collect::<Vec<_>>()), &words);
    }
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

/// The objects of the command in the first line of a file.
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
        assert_valid(&objects, &file.display().to_string());
        number += 1;
    }
    assert_eq!(number, 5, "a base, its claim and three overlays");
}

#[test]
fn an_installed_kustomize_renders_the_same() {
    let folders = files(&root().join("mpijob"), "kustomization.yaml");
    let mut compared = 0;
    for folder in folders.iter().map(|file| file.parent().unwrap()) {
        let Some(rendered) = kustomize::installed(folder) else {
            println!("skipped: neither kustomize nor a kubectl with kustomize 5 is installed");
            return;
        };
        assert_eq!(sorted(rendered), sorted(kustomize::render(folder)), "{}", folder.display());
        compared += 1;
    }
    println!("kustomize rendered {compared} folders alike");
}
