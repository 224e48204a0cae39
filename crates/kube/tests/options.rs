//! Tests the output of each option. The option has an effect on a kind of job or is an error. Every output is
//! valid by its schema, has no findings, and is allowed by the level of Pod Security that the help states.

use std::collections::BTreeSet;

use clap::{Args as _, Command, FromArgMatches as _, ValueEnum as _};
use serde_json::Value;

use ringpull_kube::lint::lint;
use ringpull_kube::options::{JobKind, JobRequest, PodSecurity, Request};
use ringpull_kube::{documents, schema, security, to_yaml};

fn command() -> Command {
    JobRequest::augment_args(Command::new("manifest").no_binary_name(true))
}

fn command_of(kind: JobKind) -> &'static [&'static str] {
    match kind {
        JobKind::Train | JobKind::Trainjob => {
            &["--", "train", "--kv-store", "dist_sync_mpi", "--checkpoint", "/train/run.safetensors"]
        }
        JobKind::Compare => &["--", "--modes", "dist_sync_mpi,dist_sync:1shared", "--bytes", "25MB"],
        JobKind::Ps => &["--", "train", "--kv-store", "dist_sync", "--checkpoint", "/train/run.safetensors"],
        JobKind::Job => &["--", "train"],
        JobKind::Mxjob => &["--", "train", "--kv-store", "dist_async"],
        JobKind::Tfjob => &["--", "python3", "train.py"],
        JobKind::Claim => &["--claim", "data", "--claim-size", "10Gi"],
        JobKind::NetworkPolicy => &[],
    }
}

fn written(kind: JobKind, words: &[&str]) -> Result<(Request, Vec<Value>), String> {
    let matches = command().try_get_matches_from(words).map_err(|error| error.to_string())?;
    let JobRequest(request) = JobRequest::from_arg_matches(&matches).map_err(|error| error.to_string())?;
    let request = Request { kind, ..request };
    let objects = documents(&request).map_err(|error| error.to_string())?;
    Ok((request, objects))
}

/// Each option with a value that is not its default, and the other options that it needs.
const EXAMPLES: [(&[&str], &[&str]); 45] = [
    (&["--name", "other"], &[]),
    (&["--namespace", "team"], &[]),
    (&["--image", "reg.example/ringpull:1"], &[]),
    (&["--pull-policy", "always"], &[]),
    (&["--pull-secret", "registry"], &[]),
    (&["--workers", "3"], &[]),
    (&["--servers", "1"], &[]),
    (&["--slots", "2"], &[]),
    (&["--gpus", "2"], &[]),
    (&["--gpu-resource", "amd.com/gpu=2"], &[]),
    (&["--cpus", "500m"], &[]),
    (&["--memory", "8Gi"], &[]),
    (&["--request-cpu", "250m"], &[]),
    (&["--request-memory", "4Gi"], &[]),
    (&["--launcher-cpus", "1"], &[]),
    (&["--launcher-memory", "512Mi"], &[]),
    (&["--launcher-works"], &[]),
    (&["--non-root"], &[]),
    (&["--gang", "volcano"], &[]),
    (&["--queue", "team"], &["--gang", "volcano"]),
    (&["--kueue", "team"], &[]),
    (&["--min-workers", "1"], &[]),
    (&["--max-workers", "6"], &["--min-workers", "1"]),
    (&["--rdma", "rdma/ib=8"], &[]),
    (&["--rdma-network", "ib"], &["--rdma", "rdma/ib"]),
    (&["--shm", "1Gi"], &[]),
    (&["--claim", "other"], &[]),
    (&["--mount", "/data"], &["--claim", "data"]),
    (&["--claim-size", "20Gi"], &[]),
    (&["--storage-class", "rook-cephfs"], &[]),
    (&["--host-network"], &[]),
    (&["--node-selector", "pool=gpu"], &[]),
    (&["--toleration", "nvidia.com/gpu:NoSchedule"], &[]),
    (&["--affinity-file", "AFFINITY"], &[]),
    (&["--priority-class", "high"], &[]),
    (&["--service-account", "trainer"], &[]),
    (&["--label", "team=a"], &[]),
    (&["--annotation", "example.com/owner=a"], &[]),
    (&["--env", "NCCL_DEBUG=INFO"], &[]),
    (&["--env-from", "secret/s3"], &[]),
    (&["--backoff-limit", "0"], &[]),
    (&["--deadline", "3600"], &[]),
    (&["--ttl", "600"], &[]),
    (&["--suspend"], &[]),
    (&["--patch", "PATCH"], &[]),
];

#[test]
fn every_option_changes_what_a_kind_writes_or_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let affinity = file(
        "affinity.yaml",
        "nodeAffinity:\n  requiredDuringSchedulingIgnoredDuringExecution:\n    nodeSelectorTerms:\n    - matchExpressions:\n      - {key: zone, operator: In, values: [a]}\n",
    );
    let known: BTreeSet<String> =
        command().get_arguments().filter_map(|arg| arg.get_long().map(|name| format!("--{name}"))).collect();
    let tried: BTreeSet<String> = EXAMPLES.iter().map(|(words, _)| words[0].to_owned()).collect();
    assert_eq!(tried, known, "an option has no example here");
    let (mut changed, mut refused) = (0, 0);
    for kind in JobKind::value_variants() {
        let own = written(*kind, command_of(*kind)).unwrap().1;
        let merged = file(
            "patch.yaml",
            &format!("kind: {}\nmetadata: {{annotations: {{a: b}}}}\n", own[0]["kind"].as_str().unwrap()),
        );
        for (words, beside) in EXAMPLES {
            let filled = |word: &&'static str| match *word {
                "AFFINITY" => affinity.clone(),
                "PATCH" => merged.clone(),
                word => word.to_owned(),
            };
            let words: Vec<String> = words.iter().map(filled).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            // An option may replace an option that the kind has by itself.
            let own = command_of(*kind);
            let own = match own.iter().position(|word| *word == words[0]) {
                Some(at) => [&own[..at], &own[at + 2..]].concat(),
                None => own.to_vec(),
            };
            let beside = if own.contains(&beside.first().copied().unwrap_or("-")) { &[] } else { beside };
            let before = written(*kind, &[beside, command_of(*kind)].concat());
            let after = written(*kind, &[beside, &words[..], &own].concat());
            match (before, after) {
                (Ok((_, before)), Ok((_, after))) => {
                    assert_ne!(before, after, "{kind:?}: {words:?} has no effect");
                    changed += 1;
                }
                (_, Err(error)) => {
                    assert!(error.contains("has no effect on a"), "{kind:?}: {words:?}: {error}");
                    refused += 1;
                }
                (Err(error), Ok(_)) => panic!("{kind:?}: without {words:?}: {error}"),
            }
        }
    }
    println!("{changed} pairs of option and kind change the output, {refused} are errors");
    assert!(changed > 220 && refused > 50);
}

/// Options of every kind with pods.
const COMMON: [&[&str]; 9] = [
    &[],
    &["--namespace", "team", "--image", "reg/ringpull:1", "--kueue", "q", "--label", "a=b", "--annotation", "c=d"],
    &["--cpus", "500m", "--memory", "8Gi", "--request-cpu", "250m", "--claim", "data"],
    &["--gpus", "2", "--rdma", "rdma/ib", "--rdma-network", "ib", "--toleration", "nvidia.com/gpu"],
    &["--gpu-resource", "amd.com/gpu=4", "--memory", "4Gi", "--rdma", "vpc.amazonaws.com/efa=4"],
    &["--non-root", "--shm", "1Gi", "--env-from", "configmap/settings", "--pull-secret", "reg"],
    &["--non-root", "--gpus", "2", "--rdma", "rdma/ib=2"],
    &["--host-network", "--node-selector", "pool=gpu", "--priority-class", "high", "--service-account", "me"],
    &["--env", "NCCL_DEBUG=INFO", "--deadline", "3600", "--backoff-limit", "0", "--ttl", "60", "--suspend"],
];

fn special(kind: JobKind) -> &'static [&'static [&'static str]] {
    match kind {
        JobKind::Train => &[
            &[],
            &["--launcher-works", "--slots", "2"],
            &["--launcher-cpus", "1", "--launcher-memory", "512Mi", "--workers", "4"],
            &["--gang", "volcano", "--queue", "team"],
            &["--gang", "scheduler-plugins", "--launcher-works"],
            &["--min-workers", "1"],
            &["--min-workers", "1", "--max-workers", "6", "--slots", "2"],
            &["--min-workers", "1", "--gang", "volcano", "--launcher-works"],
        ],
        JobKind::Compare | JobKind::Ps => &[
            &[],
            &["--launcher-works", "--slots", "2"],
            &["--launcher-cpus", "1", "--launcher-memory", "512Mi", "--workers", "4"],
            &["--gang", "volcano", "--queue", "team"],
            &["--gang", "scheduler-plugins", "--launcher-works"],
        ],
        JobKind::Trainjob => &[&[], &["--gang", "volcano"], &["--gang", "scheduler-plugins"]],
        JobKind::Mxjob => &[&[], &["--servers", "1", "--launcher-memory", "1Gi"], &["--gang", "volcano"]],
        JobKind::Tfjob => &[&[], &["--servers", "1"]],
        _ => &[&[]],
    }
}

/// The pods of an object.
fn pods(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(fields) if fields.contains_key("containers") => vec![value],
        Value::Object(fields) => fields.values().flat_map(pods).collect(),
        Value::Array(list) => list.iter().flat_map(pods).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_output_is_valid_and_clean_and_passes_the_stated_pod_security() {
    let mut number = 0;
    for kind in JobKind::value_variants() {
        let has_pods = !matches!(kind, JobKind::Claim | JobKind::NetworkPolicy);
        for common in if has_pods { &COMMON[..] } else { &COMMON[..1] } {
            for special in special(*kind) {
                let excluded = special.contains(&"--launcher-works") && common.contains(&"--host-network")
                    || special.contains(&"--min-workers") && common.contains(&"--backoff-limit")
                    || special.contains(&"--slots") && common.iter().any(|word| word.starts_with("--gpu"));
                if excluded {
                    continue;
                }
                let words = [*common, *special, command_of(*kind)].concat();
                let (request, objects) = written(*kind, &words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
                for object in &objects {
                    assert_eq!(schema::check(object), [], "{words:?}");
                }
                let mut findings = lint(&to_yaml(&objects).unwrap(), None).findings;
                findings.retain(|it| it.rule != "mxjob-gone");
                assert_eq!(findings, [], "{words:?}");
                let stated = request.pod_security();
                let breaches = |level| -> Vec<_> {
                    objects.iter().flat_map(pods).flat_map(|pod| security::breaches(pod, level)).collect()
                };
                assert_eq!(breaches(stated), [], "{words:?}");
                let above = match stated {
                    PodSecurity::Privileged => Some(PodSecurity::Baseline),
                    PodSecurity::Baseline => Some(PodSecurity::Restricted),
                    PodSecurity::Restricted => None,
                };
                // It is also a mistake if the stated level is too low.
                assert!(!has_pods || above.is_none_or(|above| !breaches(above).is_empty()), "{words:?}");
                number += 1;
            }
        }
    }
    println!("{number} outputs");
    assert!(number > 200);
}

#[test]
fn metrics_that_others_may_read_are_announced_on_every_pod_that_may_have_rank_0() {
    let train = ["--", "train", "--kv-store", "dist_sync_mpi"];
    let announced = |kind: JobKind, words: &[&str]| -> Vec<String> {
        let (_, objects) = written(kind, &[words, &train].concat()).unwrap();
        let text = to_yaml(&objects).unwrap();
        text.lines().map(str::trim).filter(|line| line.starts_with("prometheus.io/")).map(str::to_owned).collect()
    };
    let open = ["--env", "RINGPULL_METRICS=0.0.0.0:9400"];
    let one = ["prometheus.io/port: \"9400\"", "prometheus.io/scrape: \"true\""];
    assert_eq!(announced(JobKind::Train, &open), one);
    assert_eq!(announced(JobKind::Train, &[&open[..], &["--launcher-works"]].concat()), [one, one].concat());
    assert_eq!(announced(JobKind::Trainjob, &open), [one, one].concat());
    for within in ["RINGPULL_METRICS=9400", "RINGPULL_METRICS=127.0.0.1:9400"] {
        assert!(announced(JobKind::Train, &["--env", within]).is_empty(), "{within}");
    }
    // A given annotation is on every pod, the launcher's too, and replaces our own.
    let off = "prometheus.io/scrape: \"false\"";
    let given = announced(JobKind::Train, &[&open[..], &["--annotation", "prometheus.io/scrape=false"]].concat());
    assert_eq!(given, [off, one[0], off]);
}
