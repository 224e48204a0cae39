//! `ringpull rehearse`: tests each fault on real jobs, and the command's output.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const TRAIN: &str = "bench train --model resnet50 --scale 0.001 --compute 0.05 --iters 40";

/// Rehearses `program` with faults. Returns the output and the jobs.
fn rehearse(options: &str, faults: &str, program: &[&str]) -> (Output, Vec<Value>) {
    rehearse_by(Path::new(env!("CARGO_BIN_EXE_ringpull")), options, faults, program)
}

/// As [`rehearse`], with the command's program under another name.
fn rehearse_by(own: &Path, options: &str, faults: &str, program: &[&str]) -> (Output, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("faults.yaml");
    std::fs::write(&file, faults).unwrap();
    let mut command = Command::new(own);
    command.arg("rehearse").args(options.split(' ')).arg("--faults").arg(&file).arg("--out").arg(folder.path());
    command.args(["--format", "json", "--"]).args(program).env("RINGPULL_SILENCE", "2").stdin(Stdio::null());
    let output = command.output().unwrap();
    let jobs = serde_json::from_slice::<Value>(&output.stdout)
        .map_or(Vec::new(), |mut all| all["jobs"].as_array_mut().map(std::mem::take).unwrap_or_default());
    (output, jobs)
}

/// The words of our example, which trains for two seconds, followed by `more`.
fn train(more: &str) -> Vec<&str> {
    let words = std::iter::once(env!("CARGO_BIN_EXE_ringpull")).chain(TRAIN.split(' '));
    words.chain(more.split(' ').filter(|word| !word.is_empty())).collect()
}

/// The end of each job.
fn ends(jobs: &[Value]) -> Vec<&str> {
    // If an end has an exit code, its name is a key.
    let name = |end: &'static str, job: &Value| (!job["end"][end].is_null()).then_some(end);
    let with_code = |job| name("ended", job).or(name("early", job)).unwrap_or("unknown");
    jobs.iter().map(|job| job["end"].as_str().unwrap_or_else(|| with_code(job))).collect()
}

#[test]
fn a_job_goes_on_or_ends_with_an_error_and_what_was_not_expected_is_said() {
    let faults = "
- {kill: rank 1, at: step 5, expect: ends}
- {stop: rank 1, at: step 5, for: 1s, expect: goes-on}
- {terminate: rank 0, at: 500ms, expect: goes-on}
";
    let (output, jobs) = rehearse("-n 2", faults, &train(""));
    assert_eq!(ends(&jobs), ["went-on", "ended", "went-on", "ended"], "{output:?}");
    assert!(jobs[1]["step"].as_u64() >= Some(5) && jobs[1]["said"]["ranks"] == 1, "{}", jobs[1]);
    let error = jobs[1]["said"]["error"].as_str().unwrap();
    assert!(error.contains("rank 1 (pid") && error.contains("is lost"), "{error}");
    assert!(jobs[1]["wrong"].is_null() && jobs[2]["wrong"].is_null(), "{jobs:?}");
    assert_eq!((jobs[3]["wrong"].as_str(), output.status.code()), (Some("expected that it goes on"), Some(1)));
    assert!(jobs.iter().all(|job| job["left"] == 0), "{jobs:?}");
}

#[test]
fn several_faults_come_to_one_job_which_has_to_go_on() {
    let faults = "
- {stop: rank 1, at: step 5, for: 300ms}
- {stop: rank 0, at: 100ms, for: 300ms, expect: goes-on}
";
    // Ranks are found under any name of this program.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let renamed = folder.path().join("rp");
    std::fs::hard_link(env!("CARGO_BIN_EXE_ringpull"), &renamed).unwrap();
    let (output, jobs) = rehearse_by(&renamed, "-n 2 --together", faults, &train(""));
    assert_eq!(ends(&jobs), ["went-on", "went-on"], "{output:?}");
    assert_eq!(jobs[1]["fault"], "stop rank 1 for 0.3 s, at step 5; stop rank 0 for 0.3 s, after 0.1 s");
    assert_eq!((jobs[1]["wrong"].as_str(), output.status.code()), (None, Some(0)), "{jobs:?}");
    let (output, _) = rehearse("-n 2 --together", "[{kill: rank 1, expect: ends}]", &train(""));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("\"kill rank 1\" ends the job"), "{text}");
    let late = "[{stop: rank 1, at: step 5, for: 300ms}, {stop: rank 1, at: 60min, for: 1s}]";
    let (_, jobs) = rehearse("-n 2 --together", late, &train(""));
    assert_eq!(jobs[1]["wrong"], "it ended before the fault: let it come earlier", "{jobs:?}");
}

#[test]
#[ignore = "takes half a minute: scripts/test --all"]
fn servers_and_their_scheduler_are_lost_and_stopped_too() {
    let faults = "
- {kill: server 1, at: 1s, expect: ends}
- {kill: rank 0, at: 1s, expect: ends}
- {kill: scheduler, at: 1s, expect: ends}
- {stop: server 0, at: 1s, for: 1s, expect: goes-on}
- {stop: rank 1, at: 1s, for: 1s, expect: goes-on}
- {terminate: server 0, at: 1s, for: 10s, expect: ends}
";
    let (output, jobs) = rehearse("-n 2 -s 2", faults, &train("--kv-store dist_sync"));
    assert_eq!(ends(&jobs), ["went-on", "ended", "ended", "ended", "went-on", "went-on", "ended"], "{output:?}");
    assert_eq!(output.status.code(), Some(0), "{jobs:?}");
}

#[test]
fn an_elastic_job_goes_on_without_a_rank() {
    let (output, jobs) = rehearse("-n 2 --elastic", "[{kill: rank 1, at: step 5, expect: goes-on}]", &train(""));
    assert_eq!(ends(&jobs), ["went-on", "went-on"], "{output:?}");
    assert_eq!((&jobs[1]["left"], output.status.code()), (&Value::from(0), Some(0)), "{}", jobs[1]);
}

/// Tests a process that never begins, a process that gets no memory, and a folder that another user has made.
#[test]
fn a_process_fails_before_its_program_begins_or_lacks_memory_or_meets_a_planted_folder() {
    let faults = "
- {fail: rank 1, expect: ends}
- {limit: rank 1, at: step 5, for: 200ms}
";
    let (output, jobs) = rehearse("-n 2", faults, &train(""));
    assert_eq!(ends(&jobs)[..2], ["went-on", "ended"], "{output:?}");
    assert!(jobs[1]["end"]["ended"] == 3 && jobs[2]["step"].as_u64() >= Some(5), "{jobs:?}");
    let planted = "[{plant: TMPDIR/ringpull-elastic-x, as: folder}]";
    let (output, jobs) = rehearse("-n 2 --elastic", planted, &train(""));
    assert!(output.status.code() == Some(0) && jobs[1]["end"]["ended"] == 1, "{output:?}");
}

/// A job of each kind meets random faults, drawn by `SEED`, `NEMESIS` faults for each kind. After each fault
/// the job has the exit code of the launcher's table, and leaves nothing.
#[test]
#[ignore = "takes a quarter of an hour or more: scripts/test --all; needs the Python package"]
fn random_faults_end_every_kind_of_job_as_the_table_of_ends_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let given = |name: &str, usual: u32| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (count, seed) = (given("NEMESIS", 5), given("SEED", 1));
    let folder = tempfile::tempdir().unwrap();
    let mut counts = std::collections::BTreeMap::new();
    let mut wrong = Vec::new();
    let kinds = [
        ("ranks", "-n 3", "dist_sync_mpi"),
        ("helpers", "-n 3 --helpers 1", "dist_sync_mpi"),
        ("servers", "-n 2 -s 2", "dist_sync"),
        ("hybrid", "-n 2 -s 1 --hybrid", "dist_hybrid"),
        ("elastic", "-n 3 --elastic --min-workers 1", "elastic"),
        ("in place", "-n 3 --elastic --in-place --min-workers 1", "elastic"),
        ("elastic, servers", "-n 3 -s 1 --elastic", "elastic_servers"),
        ("ranks on hosts", "-n 3 --hosts 3", "dist_sync_mpi"),
        ("servers on hosts", "-n 2 -s 1 --hosts 3", "dist_sync"),
    ];
    for (number, (kind, options, program)) in kinds.into_iter().enumerate() {
        let open_mpi_5 = root.join(".deps/openmpi5");
        let needs_root = options.contains("--hosts") && !rustix::process::geteuid().is_root();
        if needs_root || (kind == "in place" && !open_mpi_5.is_dir()) {
            eprintln!("skipped: {kind}: needs root, or Open MPI 5 (scripts/setup --openmpi5)");
            continue;
        }
        let out = folder.path().join(number.to_string());
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
        command.arg("rehearse").args(options.split(' ')).args(["--random", &count.to_string()]);
        command.args(["--seed", &(seed + number as u32).to_string(), "--format", "json", "--out"]).arg(&out);
        command.arg("--").arg(root.join(".venv/bin/python")).arg(root.join("python/tests/jobs/nemesis.py"));
        command
            .args([program, "80"])
            .env("RINGPULL_SILENCE", "5")
            .env("RINGPULL_TIMEOUT", "60")
            .env("OMP_NUM_THREADS", "1");
        if kind == "in place" {
            command
                .env("RINGPULL_MPIRUN", open_mpi_5.join("bin/mpirun"))
                .env("LD_LIBRARY_PATH", open_mpi_5.join("lib"));
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{kind}: {output:?}"));
        for job in all["jobs"].as_array().unwrap() {
            let (fault, end) = (job["fault"].as_str().unwrap(), job["end"].to_string().replace('"', ""));
            let name = fault.split(' ').next().unwrap();
            *counts.entry((kind, name.to_owned(), end)).or_insert(0) += 1;
            let log = std::fs::read_to_string(job["log"].as_str().unwrap()).unwrap_or_default();
            if !job["wrong"].is_null() || log.contains("WRONG sum") {
                wrong.push(format!("{kind}: {fault}: {}\n{log}", job["wrong"]));
            }
        }
    }
    for ((kind, fault, end), count) in counts {
        println!("| {kind} | {fault} | {end} | {count} |");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "takes a minute, and needs root: scripts/test --all"]
fn links_of_emulated_hosts_are_cut_and_slow() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: emulated hosts need root");
        return;
    }
    let faults = "
- {cut: h2, at: step 3, for: 1s, expect: goes-on}
- {slow: h2, at: step 3, to: 10mbit, expect: goes-on}
- {cut: h2, at: step 3, expect: ends}
";
    for (options, more) in [("-n 2 --hosts 2", ""), ("-n 2 -s 1 --hosts 3", "--kv-store dist_sync")] {
        let faults = if more.is_empty() { faults.to_owned() } else { faults.replace("step 3", "1s") };
        let (output, jobs) = rehearse(options, &faults, &train(more));
        assert_eq!(ends(&jobs), ["went-on", "went-on", "went-on", "ended"], "{options}: {output:?}");
        assert!(jobs[3]["said"]["error"].as_str().unwrap().contains("is lost"), "{}", jobs[3]);
        assert_eq!(output.status.code(), Some(0), "{options}: {jobs:?}");
    }
    assert!(Path::new("/run/netns/h1").symlink_metadata().is_err(), "a host is left");
}

/// The kind in the command starts servers, so the usual faults kill one.
#[test]
#[ignore = "takes half a minute: scripts/test --all"]
fn the_usual_faults_kill_a_server_where_the_command_starts_servers() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    command.args(["rehearse", "-n", "2", "--out"]).arg(folder.path()).arg("--").args(train("--kv-store dist_sync"));
    let output = command.env("RINGPULL_SILENCE", "10").stdin(Stdio::null()).output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("kill server 0"), "{output:?}");
    assert_eq!(output.status.code(), Some(0), "{table}");
}

#[test]
fn a_full_disk_comes_and_goes() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a full disk needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = "
import sys, time
full = 0
for step in range(40):
    try:
        with open(sys.argv[1] + f'/checkpoint{step}', 'w') as file:
            file.write('x' * 5000)
        last = 'written'
    except OSError as error:
        full, last = full + 1, 'full'
    time.sleep(0.05)
print('rank full', full, last, flush=True)
";
    let faults = format!("[{{fill: {}, at: 500ms, for: 500ms, expect: goes-on}}]", folder.path().display());
    let path = folder.path().to_str().unwrap();
    let (output, jobs) = rehearse("-n 1", &faults, &["python3", "-c", program, path]);
    assert_eq!((ends(&jobs), output.status.code()), (vec!["went-on", "went-on"], Some(0)), "{output:?}");
    let said = jobs[1]["said"]["error"].as_str().unwrap();
    assert!(said.starts_with("rank full") && !said.contains(" 0 ") && said.ends_with("written"), "{said}");
}

#[test]
fn a_command_that_fails_by_itself_and_faults_that_cannot_come_are_errors() {
    let (output, _) = rehearse("-n 2", "- kill: rank 0", &["false"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("without any fault the job ended with 1"), "{text}");
    let (output, _) = rehearse("-n 2", "- cut: h2", &["true"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("names h2, but the job runs on this host") && text.contains("--hosts 2"), "{text}");
    let (output, jobs) = rehearse("-n 1", "- {kill: rank 0, at: 1min}", &["python3", "-c", "pass"]);
    assert_eq!((ends(&jobs), output.status.code()), (vec!["went-on", "early"], Some(1)), "{output:?}");
}
