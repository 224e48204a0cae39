//! Tests the pods' words that the command makes from its own words.

use super::{args, written};

/// The pods' words for each kind.
#[test]
fn the_words_of_every_kind_are_understood_by_their_programs() {
    for words in [
        "train --min-workers 1 -- train --kv-store dist_sync_mpi --checkpoint /train/run.safetensors",
        "compare --claim data -- --modes dist_sync_mpi,dist_sync:1shared --bytes 25MB",
        "ps --servers 3 -- train --kv-store dist_sync",
        "job -- train",
        "trainjob -- train --kv-store dist_sync_mpi",
        "mxjob -- train --kv-store dist_async",
        "tfjob -- python3 train.py",
    ] {
        written(&words.split(' ').collect::<Vec<_>>()).iter().for_each(args::assert_understood);
    }
}

#[test]
fn a_conversion_is_valid_and_names_what_is_lost() {
    let output =
        super::ringpull(&["manifest", "convert", "mpijob/overlays/gpu/../../base/mpijob.yaml", "--to", "trainjob"]);
    let objects = super::parse(&String::from_utf8(output.stdout).unwrap());
    let kinds: Vec<_> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["TrainingRuntime", "TrainJob"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("warning: root: Trainer's key has mode 0640"));
    let mxjob = super::ringpull(&["manifest", "mxjob", "--servers", "4", "--", "train", "--kv-store", "dist_sync"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), mxjob.stdout).unwrap();
    for target in ["mpijob", "trainjob"] {
        let output = super::ringpull(&["manifest", "convert", file.path().to_str().unwrap(), "--to", target]);
        let text = String::from_utf8(output.stdout).unwrap();
        let objects = super::parse(&text);
        assert_eq!(objects.len(), if target == "mpijob" { 1 } else { 2 });
        for object in &objects {
            assert_eq!(ringpull_kube::schema::check(object), [], "{text}");
        }
        assert!(String::from_utf8_lossy(&output.stderr).contains("warning: Server: servers run on the workers"));
        let errors = ringpull_kube::lint::lint(&text, None).findings;
        assert!(errors.iter().all(|it| it.level != ringpull_kube::lint::LintLevel::Error), "{errors:?}");
    }
    let output = super::ringpull(&["manifest", "convert", "mpijob/base/mpijob.yaml", "--to", "mpijob"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_specification_writes_what_the_flags_write() {
    let command = ["--", "train", "--kv-store", "dist_sync_mpi"];
    let dictionary =
        r#"{"distribution_type": "MPI", "number_of_workers": "3", "worker_memory": "4Gi", "launcher_cpus": "1"}"#;
    let flags = ["train", "--workers", "3", "--memory", "4Gi", "--launcher-cpus", "1"];
    assert_eq!(
        written(&[&["specification", dictionary], &command[..]].concat()),
        written(&[&flags[..], &command].concat())
    );
    let job = written(&["specification", "", "--", "train"]);
    assert_eq!((job.len(), &job[0]["kind"]), (1, &"Job".into()));
    let servers = r#"{"distribution_type": "PS", "number_of_workers": 2, "number_of_servers": 1}"#;
    let by_servers = ["--", "train", "--kv-store", "dist_sync"];
    let flags = ["ps", "--servers", "1"];
    assert_eq!(
        written(&[&["specification", servers], &by_servers[..]].concat()),
        written(&[&flags[..], &by_servers].concat())
    );
    let tf = r#"{"distribution_type": "TF"}"#;
    assert_eq!(written(&["specification", tf, "--", "python3", "t.py"])[0]["kind"], "TFJob");
}

#[test]
fn what_cannot_be_written_is_one_error_with_a_remedy() {
    for (words, code, expected) in [
        (&["manifest", "train", "--name", "my.job", "--", "train"][..], 1, "such as my-job"),
        (&["manifest", "train", "--memory", "8GB", "--", "train"], 2, "write 8G"),
        (&["manifest", "train", "--cpus", "8Gi", "--", "train"], 2, "500m"),
        (&["manifest", "specification", "{\"distribution_type\": \"mpi\"}", "--", "train"], 1, "MPI, TF or PS"),
        (&["manifest", "train", "--", "train", "--kv-store", "dist_sync"], 1, "dist_sync_mpi"),
        (&["manifest", "tfjob", "--", "python3", "t.py", "--kvstore=dist_sync_mpi"], 1, "ringpull manifest train"),
        (&["manifest", "specification", "{\"distribution_type\": \"TF\"}", "--", "t", "--kv-store", "dist"], 1, "PS"),
        (&["manifest", "train"], 1, "after --"),
    ] {
        let output = super::ringpull(words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(expected) && text.contains("hint: ") && output.stdout.is_empty(), "{words:?}: {text}");
    }
}
