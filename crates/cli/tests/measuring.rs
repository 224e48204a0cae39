//! Tests the cluster file, benches, and the comparison of allreduces over sizes, with real MPI ranks. Also
//! tests predictions.

use std::path::Path;
use std::process::Command;

use ringpull_processes::Processes;
use serde_json::{Value, json};

/// Runs `ringpull` with these words on `ranks` ranks and returns the output of rank 0. The cache is in
/// `cache`; `file` is the cluster file, if any.
fn printed(ranks: usize, words: &[&str], cache: &Path, file: Option<&Path>) -> String {
    let mut processes = Processes::new();
    let mut command = processes.mpirun(ranks, env!("CARGO_BIN_EXE_ringpull"));
    // Ranks of one host would share its memory, and need no network.
    let messages = command.args(words).env("RINGPULL_SHARED_MEMORY", "0").env("XDG_CACHE_HOME", cache);
    messages.env_remove("RINGPULL_CLUSTER").envs(file.map(|file| ("RINGPULL_CLUSTER", file)));
    processes.succeed("mpirun", messages);
    processes.rank(0).out
}

fn explained(ranks: usize, cache: &Path, file: Option<&Path>) -> Value {
    let words = ["bench", "allreduce", "--sizes", "4,64KiB,25MB", "--explain", "--format", "json"];
    let text = printed(ranks, &words, cache, file);
    serde_json::from_str(&text).unwrap_or_else(|cause| panic!("{cause} in {text}"))
}

#[test]
fn a_probe_writes_the_file_that_jobs_of_these_hosts_go_by() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, file) = (folder.path().join("cache"), folder.path().join("cluster.toml"));
    let before = explained(2, &cache, None);
    assert_eq!((&before["source"], &before["model"]["latency_us"]), (&json!("the default"), &json!(30.0)), "{before}");
    let table = printed(2, &["probe", "--out", file.to_str().unwrap()], &cache, None);
    assert!(table.starts_with("host ") && table.contains("Mbit/s"), "{table}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.matches("[[host]]").count(), 2, "{text}");
    let cached = explained(2, &cache, None);
    assert!(cached["source"] == "the cache" && cached["age_seconds"].is_f64(), "{cached}");
    assert_ne!(cached["model"], before["model"]);
    let by_file = explained(2, &folder.path().join("none"), Some(&file));
    assert!(by_file["source"].as_str().unwrap().contains("the file"), "{by_file}");
    assert_eq!(by_file["model"], cached["model"], "the cache has what the file has");
    let of_more = explained(3, &cache, None);
    assert_eq!(of_more["source"], "the default", "the cache knows no such set of hosts");
    let none = explained(2, &cache, Some(Path::new("none")));
    assert_eq!(none["model"], before["model"]);
}

#[test]
fn a_comparison_of_sizes_writes_its_times_and_a_page() {
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    command.args(["compare", "--local", "2", "--sizes", "4,4KiB", "--rounds", "1", "--iters", "1"]);
    command.args(["--peers", "mpi", "--out"]).arg(out.path());
    Processes::new().succeed("compare", command.env("XDG_CACHE_HOME", out.path().join("cache")));
    let page = std::fs::read_to_string(out.path().join("README.md")).unwrap();
    assert!(page.contains("| 2 ranks | ours |") && page.contains("| 4 B |"), "{page}");
    let json: Value = serde_json::from_slice(&std::fs::read(out.path().join("local.json")).unwrap()).unwrap();
    assert_eq!(json["records"].as_array().unwrap().len(), 4);
}

#[test]
fn a_bench_has_a_record_of_each_way_and_of_divided_states() {
    let cache = tempfile::tempdir().unwrap();
    let records = |words: &str| -> Vec<Value> {
        let words: Vec<&str> = words.split(' ').chain(["--iters=1", "--warmup=1", "--format=json"]).collect();
        let text = printed(2, &[&["bench"], &words[..]].concat(), cache.path(), None);
        serde_json::from_str(&text).unwrap_or_else(|cause| panic!("{cause} in {text}"))
    };
    let found = records("reduce_scatter --sizes 4KiB --algorithms auto,native");
    assert_eq!(found.iter().map(|it| &it["algorithm"]).collect::<Vec<_>>(), ["auto", "native"]);
    assert!(found.iter().all(|it| it["verified"] == true && it["ranks"] == 2), "{found:?}");
    let [whole, divided] = ["", " --sharded"].map(|sharded| {
        let found = records(&format!("pushpull --sizes 4KiB --optimizer adam{sharded}"));
        found[0]["state_bytes"].as_u64().unwrap()
    });
    assert_eq!(whole, 2 * divided, "each of two ranks has half of the states");
}

#[test]
fn a_slow_host_makes_a_predicted_step_longer() {
    let step_s = |options: &[&str]| {
        let plain = "advise --model vgg16 --scale 0.1 --compute 0.05 --link 1gbit --hosts 4 --modes dist_sync_mpi --format json";
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
        let output = command.args(plain.split(' ')).args(options).output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        found["rows"][0]["step_s"].as_f64().unwrap()
    };
    assert!(step_s(&["--slow-host", "3=250mbit"]) > 1.5 * step_s(&[]));
}
