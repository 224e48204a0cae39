//! Every output over the matrix of options: valid, free of findings, and with arguments that the programs
//! take.

use ringpull_kube::{lint, to_yaml};

use super::{args, schema, written};

const KINDS: [(&str, &[&str]); 7] = [
    ("train", &["--", "train", "--kv-store", "dist_sync_mpi", "--checkpoint", "/train/run.safetensors"]),
    ("compare", &["--", "--modes", "dist_sync_mpi,dist_sync:1shared", "--bytes", "25MB"]),
    ("ps", &["--", "train", "--kv-store", "dist_sync"]),
    ("job", &["--", "train"]),
    ("trainjob", &["--", "train", "--kv-store", "dist_sync_mpi"]),
    ("mxjob", &["--", "train", "--kv-store", "dist_async"]),
    ("tfjob", &["--", "python3", "train.py"]),
];

/// Options of every kind.
const COMMON: [&[&str]; 8] = [
    &[],
    &["--namespace", "team", "--image", "reg/ringpull:1", "--workers", "4"],
    &["--cpus", "500m", "--memory", "8Gi", "--launcher-cpus", "1", "--launcher-memory", "512Mi"],
    &["--claim", "data", "--claim-size", "10Gi", "--storage-class", "rook-cephfs"],
    &["--gpus", "2", "--rdma", "rdma/ib", "--rdma-network", "ib"],
    &["--non-root", "--slots", "2", "--shm", "1Gi"],
    &["--host-network", "--node-selector", "pool=gpu"],
    &["--env", "NCCL_DEBUG=INFO", "--env", "OMP_NUM_THREADS=1", "--deadline", "3600", "--backoff-limit", "0"],
];

/// Options of MPIJobs alone.
const MPI: [&[&str]; 5] = [
    &[],
    &["--launcher-works"],
    &["--gang", "volcano", "--queue", "team"],
    &["--gang", "scheduler-plugins"],
    &["--min-workers", "1"],
];

#[test]
fn every_output_over_the_matrix_is_valid_and_clean() {
    let mut number = 0;
    for (kind, command) in KINDS {
        let own: &[&[&str]] = match kind {
            "train" | "compare" | "ps" => &MPI,
            _ => &[&[]],
        };
        for common in COMMON {
            for special in own {
                if common.contains(&"--host-network") && special.contains(&"--launcher-works") {
                    continue;
                }
                let words = [&[kind][..], common, special, command].concat();
                let documents = written(&words);
                for document in &documents {
                    assert_eq!(schema::faults(document), Vec::<String>::new(), "{words:?}");
                    args::assert_understood(document);
                }
                let report = lint::lint(&to_yaml(&documents).unwrap());
                assert_eq!(report.findings, [], "{words:?}");
                number += 1;
            }
        }
    }
    println!("{number} outputs; schemas: {}", schema::schemas().is_some());
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
        (&["manifest", "train"], 1, "after --"),
    ] {
        let output = super::ringpull(words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(expected) && text.contains("hint: ") && output.stdout.is_empty(), "{words:?}: {text}");
    }
}
