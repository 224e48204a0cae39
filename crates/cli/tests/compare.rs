//! `bench train` and `compare`, as a user runs them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use ringpull_processes::{Processes, has_mpi};

/// Three layers. The last has the most bytes, and the first takes the most time.
const MODEL: &str = "conv_weight 16x3x3 900\nconv_bias 16 0\nfc_weight 100x200 90\nhead_weight 10x100 10\n";

const BINARY: &str = env!("CARGO_BIN_EXE_ringpull");

fn model(folder: &Path) -> String {
    let path = folder.join("model");
    std::fs::write(&path, MODEL).unwrap();
    path.display().to_string()
}

fn bench<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let words = ["bench", "train", "--model", model, "--compute", "0.02", "--batch", "8", "--iters", "3"];
    [&words[..], &["--warmup", "1", "--format", "json"], more].concat()
}

/// Starts a process or a launcher, which must succeed within the time limit.
fn succeed(processes: &mut Processes, command: &mut Command) {
    processes.start("started", command);
    let in_time = processes.ends_by(Instant::now() + Duration::from_secs(120));
    assert!(in_time && processes.succeeded(), "in time: {in_time}\n{processes}");
}

/// Runs one process to its end and returns its stdout.
fn output(command: &mut Command) -> String {
    let mut processes = Processes::new();
    succeed(&mut processes, command);
    processes.written("started").out
}

/// Checks and returns the only printed record.
fn checked(printed: &str, mode: &str) -> Value {
    let records: Vec<Value> = serde_json::from_str(printed).unwrap();
    let [record] = &records[..] else { panic!("{} records", records.len()) };
    assert_eq!((&record["op"], &record["mode"], &record["ranks"]), (&"train".into(), &mode.into(), &2.into()));
    assert_eq!((record["seconds"].as_array().map(Vec::len), &record["verified"]), (Some(3), &true.into()));
    assert_eq!(record["bytes"], 4 * (144 + 16 + 20_000 + 1000));
    let train = &record["train"];
    assert_eq!((&train["compute_s"], &train["batch"]), (&0.02.into(), &8.into()));
    let [median_s, efficiency, exposed_s, rate] =
        [&record["median_s"], &train["efficiency"], &train["exposed_s"], &train["images_per_s"]]
            .map(|figure| figure.as_f64().unwrap());
    assert!(median_s > 0.0 && (efficiency - 0.02 / median_s).abs() < 1e-9, "{record}");
    assert!((exposed_s - (median_s - 0.02)).abs() < 1e-9 && (rate * median_s - 8.0).abs() < 1e-9, "{record}");
    record.clone()
}

/// The categories of a timeline's events, and the names of the events in the category `wanted`.
fn spans(file: &Path, wanted: &str) -> (Vec<String>, Vec<String>) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|cause| panic!("{}: {cause}", file.display()));
    let value: Value = serde_json::from_str(&text).unwrap();
    let events = value["traceEvents"].as_array().unwrap();
    let word = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let mut categories: Vec<String> = events.iter().map(|event| word(event, "cat")).collect();
    categories.sort();
    categories.dedup();
    let names = events.iter().filter(|event| word(event, "cat") == wanted).map(|event| word(event, "name"));
    (categories, names.collect())
}

fn has_all(categories: &[String], wanted: &[&str]) {
    for category in wanted {
        assert!(categories.iter().any(|found| found == category), "{category} in {categories:?}");
    }
}

#[test]
fn ranks_replay_a_model_and_their_timelines_account_for_its_steps() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let mut processes = Processes::new();
    let mut command = processes.mpirun(2, BINARY);
    command.args(bench(&model(folder.path()), &[])).env("RINGPULL_TIMELINE", &trace);
    // Without fusion each sum has its own span.
    succeed(&mut processes, command.env("RINGPULL_FUSION_BYTES", "0"));
    checked(&processes.rank(0).out, "dist_sync_mpi");

    let files = [0, 1].map(|rank| folder.path().join(format!("trace.{rank}.json")));
    for file in &files {
        let (categories, pushes) = spans(file, "push");
        has_all(&categories, &["step", "compute", "push", "wait", "collective", "pack", "unpack"]);
        assert_eq!(pushes.iter().filter(|name| *name == "fc_weight").count(), 4);
        let (_, collectives) = spans(file, "collective");
        let count = collectives.iter().filter(|name| *name == "fc_weight").count();
        assert_eq!(count, 2 * 5, "an init and four sums, each with two ends");
    }
    let value: Value = serde_json::from_str(&std::fs::read_to_string(&files[1]).unwrap()).unwrap();
    assert!(
        value["otherData"]["round_trip_ns"].as_u64().is_some_and(|round_trip| round_trip > 0),
        "{}",
        value["otherData"]
    );

    let merged = folder.path().join("merged.json");
    let mut words = Command::new(BINARY);
    words.arg("top").args(&files).arg("--out").arg(&merged);
    let table = output(&mut words);
    assert!(table.contains("communication") && table.contains("fc_weight"), "{table}");
    let account: Value = serde_json::from_str(&output(words.args(["--format", "json"]))).unwrap();
    let ranks = account["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2);
    for rank in ranks {
        assert_eq!(rank["steps"], 3);
        let share = rank["share"].as_object().unwrap();
        let of = |name: &str| share[name].as_f64().unwrap();
        let parts = share.keys().filter(|name| *name != "step_s").map(|name| of(name)).sum::<f64>();
        assert!((parts - of("step_s")).abs() < 1e-9 && of("step_s") > 0.0, "{share:?}");
    }
    let value: Value = serde_json::from_str(&std::fs::read_to_string(&merged).unwrap()).unwrap();
    assert_eq!(value["otherData"]["processes"].as_array().map(Vec::len), Some(2));
}

#[test]
fn workers_with_servers_replay_a_model_too() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    for kind in ["dist_sync", "dist_async"] {
        let trace = folder.path().join(format!("{kind}-{{rank}}.json"));
        let mut command = Command::new(BINARY);
        let mut processes = Processes::new();
        command.args(["launch", "-n", "2", "-s", "1", "--env"]);
        command.arg(format!("RINGPULL_TIMELINE={}", trace.display())).arg("--");
        command.args(processes.redirected([&[BINARY][..], &bench(&model, &["--kv-store", kind])].concat()));
        succeed(&mut processes, &mut command);
        let record = checked(&processes.worker(0).out, kind);
        assert_eq!((&record["servers"], &record["algorithm"]), (&1.into(), &"servers".into()));
        let (categories, _) = spans(&folder.path().join(format!("{kind}-1.json")), "push");
        has_all(&categories, &["step", "compute", "push", "request"]);
        has_all(&spans(&folder.path().join(format!("{kind}-server0.json")), "serve").0, &["serve"]);
    }
}

#[test]
fn modes_are_compared_by_their_steps() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut command = Command::new(BINARY);
    command.args(["compare", "--train", "--local", "2", "--model", &model(folder.path()), "--compute", "0.02"]);
    command.args(["--modes", "dist_sync_mpi,dist_sync:1shared,dist_async:1", "--rounds", "1", "--iters", "2"]);
    // Peers that `scripts/peers/setup` has not installed are named and skipped.
    command.args(["--scaling", "1"]);
    let table = output(command.args(["--peers", "mxnet,horovod,gloo", "--out"]).arg(&out));
    assert!(table.contains("efficiency") && table.contains("\ndist_async:1 "), "{table}");
    assert!(table.contains("give --rounds 4 or more"), "one round tells nothing: {table}");
    let results: Value = serde_json::from_str(&std::fs::read_to_string(out.join("results.json")).unwrap()).unwrap();
    let rows = results["rows"].as_array().unwrap();
    let replayed = |row: &Value| row["outcome"]["record"]["train"].is_object();
    assert!(rows.iter().take(3).all(replayed) && rows.len() == 6, "{results}");
    assert!(rows.iter().skip(3).all(|row| replayed(row) || row["outcome"]["status"] == "absent"), "{results}");
    let scaled = results["scaling"][0]["rows"].as_array().unwrap();
    assert!(results["scaling"][0]["workers"] == 1 && scaled.iter().take(3).all(replayed), "{results}");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Scaling efficiency") && page.contains("id=\"scaling\""));
}

#[test]
fn the_report_is_opened_by_the_desktop_and_without_one_its_path_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let (opened, program) = (folder.path().join("opened"), folder.path().join("xdg-open"));
    std::fs::write(&program, format!("#!/bin/sh\necho \"$1\" >{0}.new && mv {0}.new {0}\n", opened.display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let out = folder.path().join("out");
    let compare = |display: &str| {
        let mut command = Command::new(BINARY);
        command.args(["compare", "--local", "2", "--bytes", "4KiB", "--modes", "dist_sync:1", "--rounds", "1"]);
        command.args(["--iters", "1", "--open", "--out"]).arg(&out);
        command.env("PATH", &path).env("DISPLAY", display).env_remove("WAYLAND_DISPLAY");
        let mut processes = Processes::new();
        succeed(&mut processes, &mut command);
        processes.written("started").err
    };
    let page = out.join("report.html").display().to_string();
    let said = compare("");
    assert!(said.contains(&format!("report: {page}")) && said.contains("there is no desktop here"), "{said}");
    assert!(!said.contains('\u{1b}'), "no codes of a terminal: {said}");
    assert!(!compare(":9").contains("warning"));
    let begun = Instant::now();
    while !opened.exists() {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing was opened");
        std::thread::yield_now();
    }
    assert_eq!(std::fs::read_to_string(opened).unwrap().trim(), page);
}

#[test]
fn an_impossible_comparison_is_an_error_with_a_hint() {
    for (words, hint) in [
        (vec!["--peers", "mxnet", "--modes", "dist_sync_mpi"], "dist_sync:1shared"),
        (
            vec!["--train", "--model", "vgg16", "--compute", "1", "--peers", "mpi"],
            "mxnet, horovod, gloo, ringpull-horovod",
        ),
        (vec!["--train", "--model", "vgg16"], "--compute SECONDS"),
        (vec!["--scaling", "3"], "give more --hosts, --local"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let command = &mut Command::new(BINARY);
        command.args(["compare", "--local", "2", "--out"]).arg(folder.path()).args(words).stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(hint), "{said}");
    }
}
