//! What `auto` learns about a cluster, and the comparison of everybody's allreduce over sizes, with real MPI ranks.
#![cfg(feature = "mpi")]

use std::path::Path;
use std::process::Command;

use ringpull_processes::Processes;
use serde_json::Value;

/// What rank 0 of `ranks` ranks of `ringpull` with these words prints on stdout, with the cache in `cache`.
fn printed(ranks: usize, words: &[&str], cache: &Path, model: &str) -> String {
    let mut processes = Processes::new();
    let mut command = processes.mpirun(ranks, env!("CARGO_BIN_EXE_ringpull"));
    // Ranks of one host would share its memory, and learn nothing.
    let messages = command.args(words).env("RINGPULL_SHARED_MEMORY", "0");
    processes.succeed("mpirun", messages.env("XDG_CACHE_HOME", cache).env("RINGPULL_MODEL", model));
    processes.rank(0).out
}

fn explained(ranks: usize, cache: &Path, model: &str) -> Value {
    let words = ["bench", "allreduce", "--sizes", "4,64KiB,25MB", "--explain", "--format", "json"];
    let text = printed(ranks, &words, cache, model);
    serde_json::from_str(&text).unwrap_or_else(|cause| panic!("{cause} in {text}"))
}

#[test]
fn a_cluster_is_probed_once_and_a_file_is_taken_at_its_word() {
    let cache = tempfile::tempdir().unwrap();
    let first = explained(2, cache.path(), "cached");
    assert!(first["source"].as_str().unwrap().starts_with("a probe of"), "{first}");
    assert_eq!(first["sizes"].as_array().unwrap().len(), 3);
    let stored: Vec<_> =
        std::fs::read_dir(cache.path().join("ringpull")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(stored.len(), 1, "{stored:?}");
    let mut before = first;
    // On a machine that was busy or idle meanwhile the cached model may not be believed, and is then
    // replaced.
    let was_used = (0..5).any(|_| {
        let again = explained(2, cache.path(), "cached");
        let is_used = again["source"] == "the cache";
        assert_eq!(again["age_seconds"].is_f64(), is_used, "{again}");
        if is_used {
            assert_eq!(again["model"], before["model"]);
        }
        before = again;
        is_used
    });
    assert!(was_used, "five jobs, and none of them went by the cache: {before}");
    let from_file = explained(3, cache.path(), stored[0].to_str().unwrap());
    assert!(from_file["source"].as_str().unwrap().contains("the file"), "{from_file}");
    assert_eq!(from_file["ranks"], 3);
    let default = explained(2, cache.path(), "default");
    assert_eq!(default["model"]["latency_us"], 30.0);
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
