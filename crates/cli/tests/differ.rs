//! `ringpull differ`: kinds that give the same bits, sums in another order, and a program that causes the
//! difference.

use std::process::{Command, Output};

use serde_json::Value;

use ringpull_processes::{example, has_mpi};

/// Compares jobs of three workers. Returns the output, and the JSON result.
fn differ(options: &[&str], variables: &[(&str, &str)], command: &[&str]) -> (Output, Value) {
    let folder = tempfile::tempdir().unwrap();
    let mut differ = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    differ.args(["differ", "-n", "3", "-s", "2", "--format", "json", "--out"]).arg(folder.path()).args(options);
    let output = differ.arg("--").args(command).envs(variables.iter().copied()).output().unwrap();
    let found = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, found)
}

fn train() -> Vec<String> {
    let program = example().display().to_string();
    let words = [&program, "--limit-train", "192", "--batch", "32", "--kv-store", "{kind}"];
    words.map(str::to_owned).to_vec()
}

#[test]
fn a_ring_adds_in_another_order_than_servers_and_that_is_all_that_differs() {
    if !has_mpi() {
        return;
    }
    let (command, ring) = (train(), [("RINGPULL_SHARED_MEMORY", "0"), ("RINGPULL_ALGORITHM", "ring")]);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let (output, found) = differ(&[], &ring, &command);
    assert_eq!((output.status.code(), found["cause"].as_str()), (Some(0), Some("order-of-addition")), "{output:?}");
    let first = &found["judgement"]["first"]["value"];
    let size = &first["size"];
    assert!(first["update"] == 1 && size["elements"].as_u64() > Some(0), "{first}");
    assert!((1e-9..1e-5).contains(&size["relative"].as_f64().unwrap()), "{first}");
    assert!(found["ordered"]["first"].is_null() && found["ordered"]["values"].as_u64() > Some(30), "{found}");
    assert_eq!(found["jobs"].as_array().map(Vec::len), Some(3), "{found}");
}

#[test]
fn a_program_that_does_not_do_the_same_twice_is_told_so() {
    if !has_mpi() {
        return;
    }
    let same = ["--kinds", "dist_sync_mpi,dist_sync_mpi"];
    let (command, seeded) = (train(), ["--seed", "$(date +%N)"]);
    let line = [&command.iter().map(String::as_str).collect::<Vec<_>>()[..], &seeded].concat().join(" ");
    let (output, found) = differ(&same, &[], &["sh", "-c", &line]);
    assert_eq!((output.status.code(), found["cause"].as_str()), (Some(1), Some("program")), "{output:?}");
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let (output, found) = differ(&same, &[], &command);
    assert_eq!((output.status.code(), found["cause"].as_str()), (Some(0), Some("same")), "{output:?}");
    assert!(found["judgement"]["values"].as_u64() > Some(30) && found["judgement"]["unpaired"] == 0, "{found}");
}

#[test]
fn what_cannot_be_compared_is_refused_and_a_job_that_fails_says_where_it_wrote() {
    let said = |options: &[&str], command: &[&str]| {
        let (output, _) = differ(options, &[], command);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (options, command, part) in [
        (&[][..], &["true"][..], "the command has no {kind}"),
        (&["--kinds", "dist_async,dist_sync_mpi"], &["true", "{kind}"], "no two runs are alike"),
        (&["--kinds", "dist_sync"], &["true", "{kind}"], "--kinds names two kinds"),
        (&[], &["sh", "-c", "exit 3 # {kind}"], "the job with dist_sync ended with exit code 3"),
        (&[], &["sh", "-c", "true # {kind}"], "created no store of ringpull"),
    ] {
        let (code, text) = said(options, command);
        assert!(code == Some(1) && text.contains(part) && text.contains("hint: "), "{part}: {text}");
    }
}
