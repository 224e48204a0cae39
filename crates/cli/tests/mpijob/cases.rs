//! Trials of jobs in containers.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ringpull_base::config::FASHION_MNIST;
use ringpull_processes::{Processes, example, files};
use serde_json::Value;

use super::operator::{Job, Trouble};
use super::pod::{self, Image, Network, PRINTED, Pod};

pub(crate) const LIMIT: Duration = Duration::from_secs(150);
const EPOCHS: [&str; 8] = ["--limit-train", "640", "--batch", "64", "--epochs", "2", "--seed", "3"];
const CHECKPOINT: [&str; 3] = ["--checkpoint", "/train/run.safetensors", "--resume-if-any"];

const CALM: Trouble = Trouble { workers_late: None, names_late: None };

/// The image. `None`, with a printed line, if pods cannot be simulated here.
pub(crate) fn image() -> Option<Image> {
    let lacks = pod::lacks().or_else(|| {
        (!Path::new(FASHION_MNIST).exists()).then(|| "the package dataset-fashion-mnist is not installed".to_owned())
    });
    if let Some(lacks) = lacks {
        println!("skipped: {lacks}");
        return None;
    }
    Some(match std::env::var("RINGPULL_IMAGE_ROOT") {
        Ok(root) => Image::of_folder(&root),
        Err(_) => Image::over_this_machine(),
    })
}

/// The objects that `ringpull manifest` writes with these options for these words.
pub(crate) fn manifest(options: &[&str], command: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_ringpull"))
        .arg("manifest")
        .args(options)
        .arg("--")
        .args(command)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap()
}

fn train() -> Vec<&'static str> {
    let words = ["train", "--kv-store", "dist_sync_mpi"];
    [&words[..], &EPOCHS, &CHECKPOINT].concat()
}

/// Changes this command so that each rank writes to files of its own.
fn redirected(command: &[&str]) -> Vec<String> {
    let words = files::redirected(Path::new(PRINTED), command);
    words.into_iter().map(|word| word.into_string().unwrap()).collect()
}

/// As [`manifest`], for a job in which ranks write to files of their own.
fn manifest_of_ranks(options: &[&str], command: &[&str]) -> Vec<Value> {
    let words = redirected(command);
    manifest(options, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The whole output: first of the launcher's pod, then of each rank.
fn all(job: &Job, launcher: &Pod) -> String {
    launcher.text() + &files::tagged(&job.network.printed())
}

/// The hashes that the processes print at their end, in the order of their names. Servers print none.
fn hashes(job: &Job) -> Vec<String> {
    let folder = job.network.printed();
    let of = |name: &String| Some(files::written(&folder, name).after("weights ")?.to_owned());
    files::names(&folder).iter().filter_map(of).collect()
}

/// The hash of the same training by a plain `mpirun` of `ranks` ranks on this machine.
fn plain(ranks: usize) -> String {
    let mut processes = Processes::new();
    let mut command = processes.mpirun(ranks, example());
    processes.succeed("mpirun", command.args(["--kv-store", "dist_sync_mpi"]).args(EPOCHS));
    processes.rank(0).after("weights ").unwrap().to_owned()
}

/// Runs the job to its end. Checks that ranks are on all hosts, and that all weights are equal to those of a
/// plain `mpirun`.
fn trains_alike(test: &str, image: &Image, options: &[&str], hosts: usize, ranks: usize, trouble: Trouble) {
    let script = format!("echo host=$(hostname) probe=$PROBE; exec {}", train().join(" "));
    let words = [options, &["--env", "PROBE=passed on"]].concat();
    let options = if words[0].starts_with("--") { [&["train"], &words[..]].concat() } else { words };
    let options = [&options[..], &["--name", "sim"]].concat();
    let mut job = Job::new(test, image, &manifest_of_ranks(&options, &["sh", "-c", &script]));
    let mut launcher = job.launch(trouble);
    let code = launcher.ends_within(LIMIT);
    let text = all(&job, &launcher);
    assert_eq!(code, Some(0), "{text}");
    let names: Vec<String> = (0..ranks).map(|rank| format!("rank {rank}")).collect();
    assert_eq!(files::names(&job.network.printed()), names, "{text}");
    let found = hashes(&job);
    assert_eq!(found.len(), ranks, "{text}");
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 1, "{text}");
    let printed = names.iter().map(|name| files::written(&job.network.printed(), name).out);
    let said: Vec<String> =
        printed.filter_map(|out| out.lines().find(|line| line.starts_with("host=")).map(str::to_owned)).collect();
    assert_eq!((said.len(), said.iter().collect::<BTreeSet<_>>().len()), (ranks, hosts), "{text}");
    assert!(said.iter().all(|line| line.ends_with("probe=passed on")), "{text}");
    let is_elastic = options.contains(&"--min-workers");
    let processes = if is_elastic { "workers" } else { "ranks" };
    assert!(launcher.text().contains(&format!("{ranks} {processes} on {hosts} hosts")), "{text}");
    assert_eq!(found[0], plain(ranks), "{text}");
}

#[test]
fn an_mpijob_of_four_workers_trains_as_a_plain_mpirun_of_four_ranks() {
    let Some(image) = image() else { return };
    trains_alike("a", &image, &["--workers", "4"], 4, 4, CALM);
}

/// Runs jobs under restrictions that clusters have, one of each kind: the user and the file system, the
/// default 64 MB of shared memory with three ranks in a pod, and a profile of system calls with which no
/// process can read another. No run prints more than the others.
#[test]
#[ignore = "long: scripts/test --all"]
fn restricted_pods_sum_in_silence() {
    /// A case: its name, options of the manifest, a change of each pod, and true if no process may read
    /// another.
    type Case<'a> = (&'a str, &'a [&'a str], &'a dyn Fn(&mut Value), bool);

    let Some(image) = image() else { return };
    let bench = ["ringpull", "bench", "allreduce", "--sizes", "25MB", "--iters", "3"];
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("seccomp.json");
    pod::write_profile_without(&["process_vm_readv", "process_vm_writev"], &profile);
    let read_only = |pod: &mut Value| {
        pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = true.into();
        pod["volumes"] = serde_json::json!([{ "name": "tmp", "emptyDir": {} }]);
        pod["containers"][0]["volumeMounts"] = serde_json::json!([{ "name": "tmp", "mountPath": "/tmp" }]);
    };
    let nothing = |_: &mut Value| ();
    let cases: [Case; 4] = [
        ("ro", &["--workers", "2"], &read_only, false),
        ("rn", &["--workers", "2", "--non-root"], &read_only, false),
        ("sm", &["--workers", "2", "--slots", "3"], &nothing, false),
        ("sc", &["--workers", "2", "--slots", "2"], &nothing, true),
    ];
    for (test, options, change, is_strict) in cases {
        let options = [&["train", "--name", "sim"], options].concat();
        let mut objects = manifest(&options, &bench);
        for role in ["Launcher", "Worker"] {
            change(&mut objects[0]["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]);
        }
        let mut job = Job::new(test, &image, &objects);
        job.seccomp = is_strict.then(|| profile.clone());
        let mut launcher = job.launch(Trouble::default());
        let code = launcher.ends_within(LIMIT);
        let text = launcher.text();
        assert!(code == Some(0) && text.contains("every sum was checked"), "{test} {code:?}: {text}");
        // A refused read of another process's memory.
        assert!(text.lines().count() < 30 && !text.contains("Read -1"), "{test}: {text}");
        // A worker prints nothing either, although its readiness was probed.
        assert!(job.workers.iter().all(|worker| worker.text().is_empty()), "{test}: {}", job.workers[0].text());
    }
}

/// The kernel ends a rank by the same signal as a person would.
#[test]
#[ignore = "long: scripts/test --all"]
fn a_limit_of_memory_that_is_too_small_is_called_so() {
    let Some(image) = image() else { return };
    let options = ["train", "--name", "sim", "--workers", "2", "--memory", "96Mi"];
    let mut job = Job::new("ml", &image, &manifest(&options, &["ringpull", "bench", "allreduce", "--sizes", "200MB"]));
    let mut launcher = job.launch(Trouble::default());
    let code = launcher.ends_within(LIMIT);
    let text = launcher.text();
    assert!(code.is_some_and(|code| code != 0), "{code:?}: {text}");
    assert!(text.contains("has reached its limit of 96 MiB of memory, and the kernel has killed"), "{text}");
    assert!(text.contains("hint: raise resources.limits.memory"), "{text}");
}

/// A user number as `OpenShift` chooses it: each pod ends at once, with a message that says what to do.
#[test]
#[ignore = "long: scripts/test --all"]
fn a_user_without_a_name_is_refused_at_once() {
    let Some(image) = image() else { return };
    let mut objects = manifest(&["train", "--name", "sim", "--workers", "1", "--non-root"], &["true"]);
    for role in ["Launcher", "Worker"] {
        let context = &mut objects[0]["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["securityContext"];
        context["runAsUser"] = 1_000_770_000.into();
    }
    let mut job = Job::new("un", &image, &objects);
    job.start_worker(0);
    let mut launcher = job.start_launcher(true);
    for pod in [&mut launcher, &mut job.workers[0]] {
        let code = pod.ends_within(Duration::from_secs(60));
        let text = pod.text();
        let said = "ssh refuses the user of this pod: 1000770000 has no name in /etc/passwd\n  hint: ";
        assert!(code == Some(1) && text.contains(said) && text.lines().count() == 3, "{code:?} {text}");
    }
}

/// Runs the file that `scripts/pods` gives, and prints the output of its launcher.
#[test]
#[ignore = "for scripts/pods FOLDER FILE"]
fn the_manifest_that_is_given_runs() {
    let Ok(file) = std::env::var("RINGPULL_POD_MANIFEST") else { return };
    let image = image().unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut job = Job::new("m", &image, &objects);
    let mut launcher = job.launch(Trouble::default());
    let code = launcher.ends_within(Duration::from_secs(3600));
    println!("{}", launcher.text());
    for (number, worker) in job.workers.iter().enumerate() {
        worker.text().lines().for_each(|line| println!("worker {number}: {line}"));
    }
    assert_eq!(code, Some(0));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn uid_1000_trains_with_every_capability_dropped() {
    let Some(image) = image() else { return };
    trains_alike("b", &image, &["--workers", "2", "--non-root"], 2, 2, CALM);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn two_slots_in_each_of_two_workers_are_four_ranks_on_two_hosts() {
    let Some(image) = image() else { return };
    trains_alike("c", &image, &["--workers", "2", "--slots", "2"], 2, 4, CALM);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_launcher_that_works_holds_the_first_ranks() {
    let Some(image) = image() else { return };
    trains_alike("d", &image, &["--workers", "2", "--launcher-works"], 2, 2, CALM);
    trains_alike("e", &image, &["--workers", "2", "--launcher-works", "--non-root"], 2, 2, CALM);
}

/// With the nodes' network, pods have the names of their nodes, not names of their own.
#[test]
#[ignore = "long: scripts/test --all"]
fn pods_with_the_names_of_their_nodes_are_taken_for_the_hosts_that_they_are() {
    let Some(image) = image() else { return };
    trains_alike("q", &image, &["--workers", "2", "--host-network"], 2, 2, CALM);
    trains_alike("r", &image, &["trainjob", "--workers", "2", "--host-network"], 2, 2, CALM);
}

/// Trainer's key has mode 0640, which root's client would refuse.
#[test]
#[ignore = "long: scripts/test --all"]
fn a_trainjob_trains_as_root_and_as_uid_1000() {
    let Some(image) = image() else { return };
    trains_alike("s", &image, &["trainjob", "--workers", "3"], 3, 3, CALM);
    trains_alike("t", &image, &["trainjob", "--workers", "2", "--non-root"], 2, 2, CALM);
    trains_alike("u", &image, &["trainjob", "--workers", "2", "--gang", "volcano"], 2, 2, CALM);
}

/// A rank that takes three seconds to save its state after SIGTERM.
const SAVES: &str = "file=/train/rank-$OMPI_COMM_WORLD_RANK; trap 'sleep 3; echo saved >>$file; exit 143' TERM; echo started >$file; while :; do sleep 0.1; done";

fn await_lines(job: &Job, expected: &str, ranks: usize) {
    let read = |rank| std::fs::read_to_string(job.network.volume().join(format!("rank-{rank}"))).unwrap_or_default();
    let begun = Instant::now();
    while (0..ranks).any(|rank| read(rank) != expected) {
        let found: Vec<String> = (0..ranks).map(read).collect();
        assert!(begun.elapsed() < Duration::from_secs(30), "{expected:?}: {found:?}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// The kubelet ends a pod by SIGTERM to its first process, and after the grace period by SIGKILL to all
/// processes.
#[test]
#[ignore = "long: scripts/test --all"]
fn ranks_of_a_pod_that_is_terminated_are_told_and_have_its_grace() {
    let Some(image) = image() else { return };
    for (test, of_worker) in [("v", true), ("w", false)] {
        let options = ["train", "--name", "sim", "--workers", "2"];
        let mut job = Job::new(test, &image, &manifest(&options, &["sh", "-c", SAVES]));
        let mut launcher = job.launch(Trouble::default());
        await_lines(&job, "started\n", 2);
        if of_worker {
            job.workers[0].terminate();
            assert!(job.workers[0].ends_within(Duration::from_secs(20)).is_some(), "the worker does not end");
        } else {
            launcher.terminate();
        }
        let ended = launcher.ends_within(Duration::from_secs(40));
        assert!(ended.is_some(), "the launcher does not end: {of_worker} {}", launcher.text());
        await_lines(&job, "started\nsaved\n", if of_worker { 1 } else { 2 });
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_launcher_that_waits_ends_within_two_seconds_of_sigterm() {
    let Some(image) = image() else { return };
    let mut job = Job::new("x", &image, &manifest(&["train", "--name", "sim", "--workers", "2"], &["true"]));
    job.start_worker(0);
    let mut launcher = job.start_launcher(true);
    let begun = Instant::now();
    // Its first process has set its traps by then.
    while !launcher.text().contains("waiting for") {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", launcher.text());
        std::thread::park_timeout(Duration::from_millis(50));
    }
    launcher.terminate();
    assert_eq!(launcher.ends_within(Duration::from_secs(2)), Some(143), "{}", launcher.text());
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_gang_starts_its_launcher_with_its_workers() {
    let Some(image) = image() else { return };
    trains_alike("y", &image, &["--workers", "2", "--gang", "volcano"], 2, 2, CALM);
    trains_alike("z", &image, &["--workers", "2", "--gang", "volcano", "--launcher-works"], 2, 2, CALM);
}

#[test]
fn pods_with_gpus_start_without_a_gpu_and_say_so() {
    let Some(image) = image() else { return };
    let options = ["train", "--name", "sim", "--workers", "2", "--gpus", "1"];
    let run = |test, options: &[&str], words: &[&str]| {
        let mut job = Job::new(test, &image, &manifest_of_ranks(options, words));
        let mut launcher = job.launch(CALM);
        let code = launcher.ends_within(LIMIT);
        (code, all(&job, &launcher))
    };
    let (code, text) = run("gi", &options, &["ringpull", "info"]);
    assert!(code == Some(0) && text.matches("looked for libcuda.so").count() == 2, "{code:?}: {text}");
    let on_gpus = [&options[..], &["--env", "RINGPULL_DEVICES=cuda"]].concat();
    let (code, text) = run("gd", &on_gpus, &train());
    assert!(code != Some(0) && text.contains("the CUDA driver was not found"), "{code:?}: {text}");
}

/// Without their devices the pods of `--gpus` and `--rdma` run too.
#[test]
#[ignore = "long: scripts/test --all"]
fn all_pairs_of_options_train() {
    let Some(image) = image() else { return };
    let options: [(&[&str], usize); 6] = [
        (&["--gang", "volcano"], 1),
        (&["--min-workers", "2"], 1),
        (&["--gpus", "2"], 2),
        (&["--rdma", "rdma/ib"], 1),
        (&["--non-root"], 1),
        (&["--launcher-works"], 1),
    ];
    for (at, (one, slots)) in options.iter().enumerate() {
        for (number, (other, more)) in options[at + 1..].iter().enumerate() {
            println!("{one:?} and {other:?}");
            let words = [&["--workers", "2"][..], one, other].concat();
            trains_alike(&format!("c{at}{number}"), &image, &words, 2, 2 * slots * more, CALM);
        }
    }
}

/// The Python examples, in an image with Python: the example of MXNet, or that of PyTorch, also with
/// Horovod's names. The job is given by a dictionary, as in the published pipeline.
#[test]
#[ignore = "long: scripts/test --all"]
fn the_examples_of_python_train_in_an_mpijob_and_in_a_trainjob() {
    let Some(image) = image() else { return };
    let examples = "/opt/ringpull/examples";
    if !image.has(&format!("{examples}/mxnet/train.py")) {
        println!("skipped: the image has no Python; RINGPULL_IMAGE_ROOT names one that has");
        return;
    }
    let framework = std::env::var("RINGPULL_IMAGE_FRAMEWORK").unwrap_or_else(|_| "mxnet".to_owned());
    let script = format!("{examples}/{framework}/train.py");
    let start: &[&str] = if framework == "mxnet" { &["python3", "-m", "ringpull.mxnet"] } else { &["python3"] };
    let few = ["--limit-train", "640", "--limit-test", "640"];
    let words = [start, &[&script, "--kv-store", "dist_sync_mpi"], &few].concat();
    let of_horovod = format!("{examples}/horovod/torch_mnist.py");
    let of_horovod = [&["python3", "-m", "ringpull.horovod", &of_horovod, "--epochs", "1"][..], &few].concat();
    let published: &[&str] = &["specification", r#"{"distribution_type": "MPI", "number_of_workers": 2}"#];
    let mut jobs: Vec<(&str, &[&str], &[&str])> = vec![
        ("pm", &["train", "--workers", "2"], &words),
        ("pt", &["trainjob", "--workers", "2"], &words),
        ("pn", &["train", "--workers", "2", "--non-root"], &words),
        ("ps", published, &words),
    ];
    if framework == "torch" {
        jobs.push(("ph", published, &of_horovod));
    }
    for (test, kind, words) in jobs {
        let options = [kind, &["--name", "sim"]].concat();
        let mut job = Job::new(test, &image, &manifest_of_ranks(&options, words));
        let mut launcher = job.launch(Trouble::default());
        let code = launcher.ends_within(LIMIT);
        let text = all(&job, &launcher);
        assert_eq!(code, Some(0), "{text}");
        let found = hashes(&job);
        assert!(found.len() == 2 && found[0] == found[1], "{found:?} {text}");
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn workers_that_come_six_seconds_late_are_waited_for() {
    let Some(image) = image() else { return };
    let late = Trouble { workers_late: Some(Duration::from_secs(6)), names_late: None };
    trains_alike("f", &image, &["--workers", "2"], 2, 2, late);
    trains_alike("g", &image, &["--workers", "2", "--non-root"], 2, 2, late);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn names_that_come_three_seconds_late_are_waited_for() {
    let Some(image) = image() else { return };
    let late = Trouble { workers_late: None, names_late: Some(Duration::from_secs(3)) };
    trains_alike("h", &image, &["--workers", "2"], 2, 2, late);
}

/// If a worker is killed in the middle, the job fails within the time limit. The next start goes on from the
/// checkpoint, and ends with the weights of an undisturbed run.
#[test]
#[ignore = "long: scripts/test --all"]
fn a_lost_worker_ends_the_job_and_the_next_start_loses_nothing() {
    let Some(image) = image() else { return };
    let mut words = train();
    let epochs = words.iter().position(|word| *word == "--epochs").unwrap() + 1;
    words[epochs] = "3";
    let job_of = |words: &[&str]| manifest_of_ranks(&["train", "--name", "sim", "--workers", "4"], words);
    let whole = {
        let mut job = Job::new("iw", &image, &job_of(&words));
        let mut launcher = job.launch(Trouble::default());
        assert_eq!(launcher.ends_within(LIMIT), Some(0), "{}", all(&job, &launcher));
        hashes(&job).pop().unwrap()
    };
    let mut job = Job::new("i", &image, &job_of(&words));
    let mut launcher = job.launch(Trouble::default());
    let file = job.network.volume().join("run.safetensors");
    let begun = Instant::now();
    while !file.exists() {
        assert!(launcher.code().is_none() && begun.elapsed() < LIMIT, "{}", all(&job, &launcher));
        std::thread::park_timeout(Duration::from_millis(5));
    }
    job.workers[2].kill();
    let killed = Instant::now();
    let code = launcher.ends_within(Duration::from_secs(60));
    assert!(code.is_some_and(|code| code != 0), "{code:?} after {:?}: {}", killed.elapsed(), all(&job, &launcher));
    println!("the job ended with {code:?} {:.1} s after its worker", killed.elapsed().as_secs_f64());
    job.start_worker(2);
    job.await_workers();
    // Each rank overwrites its files.
    let mut again = job.start_launcher(true);
    assert_eq!(again.ends_within(LIMIT), Some(0), "{}", all(&job, &again));
    assert_eq!(hashes(&job), vec![whole; 4], "{}", all(&job, &again));
    // The first epoch was not trained again. stderr reports that ranks go on from its last step.
    for rank in 0..4 {
        let written = files::written(&job.network.printed(), &format!("rank {rank}"));
        assert!(!written.out.contains("step 10 "), "{}", all(&job, &again));
    }
}

/// When the wait is over, the missing worker is named, and no rank starts.
#[test]
#[ignore = "long: scripts/test --all"]
fn a_worker_that_never_comes_is_named_and_nothing_runs() {
    let Some(image) = image() else { return };
    let options = ["train", "--name", "sim", "--workers", "2", "--env", "RINGPULL_WAIT=3"];
    let mut job = Job::new("k", &image, &manifest_of_ranks(&options, &train()));
    job.start_worker(0);
    job.await_workers();
    let mut launcher = job.start_launcher(true);
    assert_eq!(launcher.ends_within(LIMIT), Some(1), "{}", launcher.text());
    let text = launcher.text();
    assert!(text.contains("1 of 2 hosts did not answer within 3 s; sim-worker-1.sim.team.svc: ssh:"), "{text}");
    assert!(text.contains("hint: ") && files::names(&job.network.printed()).is_empty(), "{}", all(&job, &launcher));
}

/// With an `mpirun` that does not read the operator's hostfile, as Open MPI 5 does not, nothing runs.
#[test]
#[ignore = "long: scripts/test --all"]
fn ranks_that_would_all_land_on_the_launcher_are_refused() {
    let Some(image) = image() else { return };
    let mut manifest = manifest(&["train", "--name", "sim", "--workers", "2"], &["echo", "ran"]);
    let container = &mut manifest[0]["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0];
    // The pod's own copy of mpirun, which removes the hostfile's variables.
    let words: Vec<String> = redirected(&["echo", "ran"]).iter().map(|word| format!("'{word}'")).collect();
    let deaf = "mkdir -p /tmp/bin; printf '#!/bin/sh\\nexport OMPI_MCA_rmaps_base_oversubscribe=1\\nunset OMPI_MCA_orte_default_hostfile\\nexec /usr/bin/mpirun \"$@\"\\n' >/tmp/bin/mpirun; chmod +x /tmp/bin/mpirun; PATH=/tmp/bin:$PATH exec ringpull-entrypoint mpirun";
    container["command"] = serde_json::json!(["sh", "-c", format!("{deaf} {}", words.join(" "))]);
    container.as_object_mut().unwrap().remove("args");
    let mut job = Job::new("l", &image, &manifest);
    let mut launcher = job.launch(Trouble::default());
    assert_eq!(launcher.ends_within(LIMIT), Some(1), "{}", launcher.text());
    let text = launcher.text();
    assert!(
        text.contains("the ranks would run on [sim-launcher], but the hosts are [sim-worker-0 sim-worker-1]"),
        "{text}"
    );
    assert!(files::names(&job.network.printed()).is_empty(), "{}", all(&job, &launcher));
}

/// Parameter servers in one MPIJob work too, and the comparison prints its table.
#[test]
#[ignore = "long: scripts/test --all"]
fn servers_and_the_comparison_run_on_the_pods_of_one_mpijob() {
    let Some(image) = image() else { return };
    let words = [&["train", "--kv-store", "dist_sync"][..], &EPOCHS].concat();
    let options = ["ps", "--name", "sim", "--workers", "2", "--servers", "2"];
    let mut job = Job::new("mp", &image, &manifest_of_ranks(&options, &words));
    let mut launcher = job.launch(Trouble::default());
    assert_eq!(launcher.ends_within(LIMIT), Some(0), "{}", all(&job, &launcher));
    assert_eq!(hashes(&job).len(), 2, "{}", all(&job, &launcher));
    let words = "--modes dist_sync_mpi,dist_sync:1shared --bytes 1MB --rounds 1 --iters 1 --out /train/out";
    let options = ["compare", "--name", "sim", "--workers", "2"];
    let mut job = Job::new("mc", &image, &manifest(&options, &words.split(' ').collect::<Vec<_>>()));
    let mut launcher = job.launch(Trouble::default());
    assert_eq!(launcher.ends_within(LIMIT), Some(0), "{}", launcher.text());
    let text = launcher.text();
    assert!(text.contains("Every sum was checked") && text.contains("dist_sync:1shared"), "{text}");
    assert!(job.network.volume().join("out/report.html").exists());
}

/// An image has no private host key. Two pods of it have different keys. A mounted key is used.
#[test]
#[ignore = "long: scripts/test --all"]
fn pods_make_host_keys_of_their_own_or_take_those_that_are_mounted() {
    let Some(image) = image() else { return };
    let test = "n";
    for file in std::fs::read_dir(image.files().join("etc/ssh")).unwrap() {
        let path = file.unwrap().path();
        let text = if path.is_file() { std::fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        assert!(!text.contains("PRIVATE KEY"), "the image has the private key {}", path.display());
    }
    let mut network = Network::up(test);
    let mounted = network.volume().join("host_key");
    pod::run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &mounted.display().to_string()]);
    // Removes keys that this machine itself might have.
    let remove = "rm -f /etc/ssh/ssh_host_*";
    let mount = format!("{remove}; cp /train/host_key /etc/ssh/ssh_host_ed25519_key; chmod 644 /etc/ssh/ssh_host_*");
    let pods: Vec<_> = [(0, remove), (0, remove), (1000, "true"), (0, mount.as_str())]
        .into_iter()
        .zip(1..)
        .map(|((uid, before), number)| {
            let plan = pod::Plan {
                name: format!("{test}-worker-{number}"),
                host: format!("{test}-worker-{number}"),
                address: number,
                uid,
                group: None,
                drop: if uid == 0 { Vec::new() } else { vec!["ALL".to_owned()] },
                no_new_privs: false,
                ssh_folder: if uid == 0 { "/root/.ssh" } else { "/home/mpiuser/.ssh" }.to_owned(),
                key_mode: None,
                env: vec![("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned())],
                memory: Vec::new(),
                empty: Vec::new(),
                is_read_only: false,
                limit: None,
                seccomp: None,
                search: String::new(),
                words: ["sh", "-c", &format!("{before}; exec /usr/sbin/sshd -De")].map(str::to_owned).to_vec(),
            };
            network.start(&image, &plan, None)
        })
        .collect();
    let said = || pods.iter().map(Pod::text).collect::<String>();
    let keys: Vec<Vec<String>> = (1..=4).map(|number| network.host_keys(number)).collect();
    assert!(keys.iter().all(|keys| keys.len() == 1), "{keys:?}\n{}", said());
    assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2], "{keys:?}");
    let public = std::fs::read_to_string(network.volume().join("host_key.pub")).unwrap();
    assert!(public.starts_with(&keys[3][0]), "{public} is mounted, and sshd has {:?}", keys[3]);
}
