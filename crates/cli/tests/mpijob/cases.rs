//! What is tried with simulated jobs.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::operator::{Job, Trouble};
use super::pod::Image;

pub(crate) const LIMIT: Duration = Duration::from_secs(150);
const EPOCHS: [&str; 8] = ["--limit-train", "640", "--batch", "64", "--epochs", "2", "--seed", "3"];
const CHECKPOINT: [&str; 3] = ["--checkpoint", "/train/run.safetensors", "--resume-if-any"];

/// The MPIJob that `ringpull manifest` writes with these options for these words.
pub(crate) fn manifest(options: &[&str], command: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_ringpull"))
        .arg("manifest")
        .args(options)
        .arg("--")
        .args(command)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_saphyr::from_str(&String::from_utf8(output.stdout).unwrap()).unwrap()
}

fn train() -> Vec<&'static str> {
    let words = ["train", "--kv-store", "dist_sync_mpi"];
    [&words[..], &EPOCHS, &CHECKPOINT].concat()
}

/// The hashes that the ranks of a run end with, in their order.
pub(crate) fn hashes(text: &str) -> Vec<String> {
    let mut lines: Vec<(usize, String)> = text
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once("rank ")?;
            let (rank, rest) = rest.split_once(" of ")?;
            Some((rank.parse().ok()?, rest.split_once("weights ")?.1.to_owned()))
        })
        .collect();
    lines.sort();
    lines.into_iter().map(|(_, hash)| hash).collect()
}

/// The hash of the same training by a plain `mpirun` of so many ranks here.
pub(crate) fn plain(ranks: usize) -> String {
    let mut command = Command::new(ringpull_base::config::mpirun_program());
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--bind-to", "none"]).arg(ringpull_processes::example());
    command.args(["--kv-store", "dist_sync_mpi"]).args(EPOCHS);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    hashes(&text).pop().unwrap()
}

/// Runs the job to its end: ranks on all hosts, equal weights, and those of a plain `mpirun`.
pub(crate) fn trains_alike(test: &str, image: &Image, options: &[&str], hosts: usize, ranks: usize, trouble: Trouble) {
    let script = format!("echo host=$(hostname) probe=$PROBE; exec {}", train().join(" "));
    let words = [options, &["--env", "PROBE=passed on"]].concat();
    let mut job =
        Job::new(test, image, &manifest(&[&["train", "--name", "sim"], &words[..]].concat(), &["sh", "-c", &script]));
    let mut launcher = job.launch(trouble);
    let code = launcher.ends_within(LIMIT);
    let text = launcher.text();
    assert_eq!(code, Some(0), "{text}");
    let found = hashes(&text);
    assert_eq!(found.len(), ranks, "{text}");
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 1, "{text}");
    let said: Vec<&str> = text.lines().filter(|line| line.starts_with("host=")).collect();
    assert_eq!((said.len(), said.iter().collect::<BTreeSet<_>>().len()), (ranks, hosts), "{text}");
    assert!(said.iter().all(|line| line.ends_with("probe=passed on")), "{text}");
    assert!(text.contains(&format!("{ranks} ranks on {hosts} hosts")), "{text}");
    assert_eq!(found[0], plain(ranks), "{text}");
}

/// A worker killed in the middle ends the job, not well, in time; the next start goes on from the checkpoint, and
/// ends with the weights of a run that nothing happened to.
pub(crate) fn loses_a_worker(test: &str, image: &Image) {
    let mut words = train();
    let epochs = words.iter().position(|word| *word == "--epochs").unwrap() + 1;
    words[epochs] = "3";
    let job_of = |words: &[&str]| manifest(&["train", "--name", "sim", "--workers", "4"], words);
    let whole = {
        let mut job = Job::new(&format!("{test}w"), image, &job_of(&words));
        let mut launcher = job.launch(Trouble::default());
        assert_eq!(launcher.ends_within(LIMIT), Some(0), "{}", launcher.text());
        hashes(&launcher.text()).pop().unwrap()
    };
    let mut job = Job::new(test, image, &job_of(&words));
    let mut launcher = job.launch(Trouble::default());
    let file = job.network.volume().join("run.safetensors");
    let begun = Instant::now();
    while !file.exists() {
        assert!(launcher.code().is_none() && begun.elapsed() < LIMIT, "{}", launcher.text());
        std::thread::park_timeout(Duration::from_millis(5));
    }
    job.workers[2].kill();
    let killed = Instant::now();
    let code = launcher.ends_within(Duration::from_secs(60));
    assert!(code.is_some_and(|code| code != 0), "{code:?} after {:?}: {}", killed.elapsed(), launcher.text());
    println!("the job ended with {code:?} {:.1} s after its worker", killed.elapsed().as_secs_f64());
    job.start_worker(2);
    job.await_workers();
    let mut again = job.start_launcher(true);
    assert_eq!(again.ends_within(LIMIT), Some(0), "{}", again.text());
    assert_eq!(hashes(&again.text()), vec![whole; 4], "{}", again.text());
    // The first epoch was not trained again.
    assert!(!again.text().contains("step 10 "), "{}", again.text());
}

/// With fewer workers allowed a job whose worker never comes back is trained by the others.
pub(crate) fn goes_on_with_fewer(test: &str, image: &Image) {
    let options = ["train", "--name", "sim", "--workers", "3", "--min-workers", "2", "--env", "RINGPULL_WAIT=10"];
    let mut job = Job::new(test, image, &manifest(&options, &train()));
    job.start_workers();
    job.await_workers();
    job.workers[1].kill();
    let mut launcher = job.start_launcher(true);
    let code = launcher.ends_within(LIMIT);
    let text = launcher.text();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("1 of 3 hosts did not answer; going on with the others"), "{text}");
    assert_eq!(hashes(&text), vec![plain(2); 2], "{text}");
}

/// A worker that is not there is named when the wait is over, and no rank starts.
pub(crate) fn names_the_missing(test: &str, image: &Image) {
    let options = ["train", "--name", "sim", "--workers", "2", "--env", "RINGPULL_WAIT=3"];
    let mut job = Job::new(test, image, &manifest(&options, &train()));
    job.start_worker(0);
    let mut launcher = job.start_launcher(true);
    assert_eq!(launcher.ends_within(LIMIT), Some(1), "{}", launcher.text());
    let text = launcher.text();
    assert!(text.contains("1 of 2 hosts did not answer within 3 s; sim-worker-1.sim.team.svc: ssh:"), "{text}");
    assert!(text.contains("hint: ") && hashes(&text).is_empty(), "{text}");
}

/// With an `mpirun` that does not read the operator's hostfile, as Open MPI 5 does not, nothing runs.
pub(crate) fn refuses_ranks_elsewhere(test: &str, image: &Image) {
    let mut manifest = manifest(&["train", "--name", "sim", "--workers", "2"], &["echo", "ran"]);
    let container = &mut manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0];
    // The pod's own copy of mpirun: it forgets where the hosts are.
    let deaf = "mkdir -p /tmp/bin; printf '#!/bin/sh\\nexport OMPI_MCA_rmaps_base_oversubscribe=1\\nunset OMPI_MCA_orte_default_hostfile\\nexec /usr/bin/mpirun \"$@\"\\n' >/tmp/bin/mpirun; chmod +x /tmp/bin/mpirun; PATH=/tmp/bin:$PATH exec ringpull-entrypoint mpirun echo ran";
    container["command"] = serde_json::json!(["sh", "-c", deaf]);
    container.as_object_mut().unwrap().remove("args");
    let mut job = Job::new(test, image, &manifest);
    let mut launcher = job.launch(Trouble::default());
    assert_eq!(launcher.ends_within(LIMIT), Some(1), "{}", launcher.text());
    let text = launcher.text();
    assert!(
        text.contains("the ranks would run on [sim-launcher], but the hostfile names [sim-worker-0 sim-worker-1]"),
        "{text}"
    );
    assert!(!text.lines().any(|line| line == "ran"), "{text}");
}

/// Parameter servers in one MPIJob train as well, and the comparison prints its table.
pub(crate) fn serves_and_compares(test: &str, image: &Image) {
    let words = [&["train", "--kv-store", "dist_sync"][..], &EPOCHS].concat();
    let options = ["ps", "--name", "sim", "--workers", "2", "--servers", "2"];
    let mut job = Job::new(&format!("{test}p"), image, &manifest(&options, &words));
    let mut launcher = job.launch(Trouble::default());
    assert_eq!(launcher.ends_within(LIMIT), Some(0), "{}", launcher.text());
    assert_eq!(hashes(&launcher.text()).len(), 2, "{}", launcher.text());
    let words = [
        "--modes",
        "dist_sync_mpi,dist_sync:1shared",
        "--bytes",
        "1MB",
        "--rounds",
        "1",
        "--iters",
        "1",
        "--out",
        "/train/out",
    ];
    let options = ["compare", "--name", "sim", "--workers", "2"];
    let mut job = Job::new(&format!("{test}c"), image, &manifest(&options, &words));
    let mut launcher = job.launch(Trouble::default());
    assert_eq!(launcher.ends_within(LIMIT), Some(0), "{}", launcher.text());
    let text = launcher.text();
    assert!(text.contains("Every sum was checked") && text.contains("PS shared"), "{text}");
    assert!(job.network.volume().join("out/report.html").exists());
}
