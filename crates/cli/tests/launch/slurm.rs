//! Jobs of a running Slurm: tests the statements of the book's page on Slurm. They run on the login host of
//! `scripts/own-slurm`, which has four nodes with four processors each. The nodes share all files except
//! those in `/tmp`.

use super::ranks::{Job, lines_of};
use super::*;

/// Returns true if a Slurm answers on this host.
pub(super) fn answers() -> bool {
    static FOUND: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *FOUND.get_or_init(|| {
        let found = Command::new("sinfo").arg("-h").stderr(Stdio::null()).output();
        found.is_ok_and(|output| output.status.success() && !output.stdout.is_empty())
    })
}

/// A folder that all hosts of a job see.
pub(super) fn shared_folder() -> tempfile::TempDir {
    if answers() { tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")) } else { tempfile::tempdir() }.unwrap()
}

const RINGPULL: &str = env!("CARGO_BIN_EXE_ringpull");
const BENCH: [&str; 6] = [RINGPULL, "bench", "allreduce", "--sizes", "4KB", "--iters=2"];

/// A job with a scheduler, a server and two workers, and one of two ranks.
const KINDS: [(&[&str], &str); 2] = [(&["-n", "2", "--launcher", "slurm", "--"], "rank"), (&SERVERS, "worker")];
const SERVERS: [&str; 7] = ["-n", "2", "-s", "1", "--launcher", "slurm", "--"];

/// Runs a command in a folder. Returns its exit code and its whole output.
fn run_in(folder: &Path, command: &mut Command) -> (Option<i32>, String) {
    let output = command.current_dir(folder).stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.code(), text)
}

/// The lines that our processes and `srun` have written, in order.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().filter(|line| line.starts_with('[')).collect();
    lines.sort_unstable();
    lines
}

/// Returns true, and prints a message, if there is no Slurm here.
fn is_missing() -> bool {
    if !answers() {
        println!("skipped: no Slurm answers here; scripts/own-slurm has one");
    }
    !answers()
}

#[test]
#[ignore = "needs a Slurm that runs: scripts/own-slurm"]
fn it_starts_every_role_and_answers_with_the_exit_code_of_the_first_that_fails() {
    if is_missing() {
        return;
    }
    let folder = shared_folder();
    let job = |words: &[&str], program: &[&str]| {
        run_in(folder.path(), launch(words).args(program).env("RINGPULL_SILENCE", "2").env("RINGPULL_QUIET", "1"))
    };
    let role = "echo $DMLC_ROLE $DMLC_WORKER_ID$DMLC_SERVER_ID of $DMLC_NUM_WORKER at ${DMLC_PS_ROOT_URI%.*} $A";
    let words = [&["--env", "A=1 '2'"], &SERVERS[..]].concat();
    let (code, text) = job(&words, &["sh", "-c", role]);
    let expected =
        ["scheduler", "server 0", "worker 0", "worker 1"].map(|name| format!("[{name}] {name} of 2 at 10.77.0 1 '2'"));
    assert_eq!((code, sorted(&text)), (Some(0), expected.iter().map(String::as_str).collect()), "{text}");
    // Nothing is left where the command was started.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    let (code, text) = job(&["-n", "4", "--launcher", "slurm", "--env", "SLURM_X=1", "--"], &BENCH);
    assert!(code == Some(0) && text.contains("every sum was checked"), "{code:?} {text}");
    let (code, text) = job(KINDS[0].0, &["sh", "-c", "[ $SLURM_PROCID = 0 ] || exit 7; exec sleep 1000"]);
    assert_eq!(code, Some(7), "{text}");
    // For some time the other processes may report which process they lost.
    let fails = "case $DMLC_ROLE$DMLC_WORKER_ID in worker1) exit 7 ;; worker0) trap 'echo told; exit 1' TERM ;; esac\n\
                 while :; do sleep 0.1; done";
    let (code, text) = job(&SERVERS, &["sh", "-c", fails]);
    assert!(code == Some(7) && text.contains("[worker 0] told"), "{code:?} {text}");
}

/// A file named after the launcher's number is not taken as the address. A killed launcher of an earlier
/// version may have left it.
#[test]
#[ignore = "needs a Slurm that runs: scripts/own-slurm"]
fn files_that_other_launchers_have_left_say_nothing() {
    if is_missing() {
        return;
    }
    let folder = shared_folder();
    let words = launch(&SERVERS);
    let mut command = Command::new("sh");
    command.args(["-c", "echo 127.0.0.1 9 | tee .ringpull-meet-$$ >.ringpull-meet-$$.new; exec \"$@\"", "sh"]);
    command.arg(words.get_program()).args(words.get_args()).args(["sh", "-c", "echo $DMLC_PS_ROOT_URI"]);
    let (code, text) = run_in(folder.path(), &mut command);
    assert!(code == Some(0) && !text.contains("127.0.0.1") && text.matches("10.77.0.").count() == 4, "{text}");
}

/// Both send SIGTERM to the ranks, and wait for them. Signals to the launcher itself are tested with every
/// launcher.
#[test]
#[ignore = "needs a Slurm that runs: scripts/own-slurm"]
fn workers_save_their_state_at_scancel() {
    if is_missing() {
        return;
    }
    let program = "trap 'sleep 1; echo saved; exit 0' TERM; echo up $SLURM_JOB_ID; while :; do sleep 0.05; done";
    for signal in [&[][..], &["--signal=TERM"]] {
        for (options, name) in KINDS {
            let mut job = Job::start(options, program);
            let mut seen = Vec::new();
            while (0..2).any(|worker| lines_of(&seen, &format!("{name} {worker}")).is_empty()) {
                seen.extend(job.reads("\n"));
            }
            let text = String::from_utf8_lossy(&seen).into_owned();
            let id = text.lines().next().unwrap().rsplit(' ').next().unwrap();
            let scancel = Command::new("scancel").args(signal).arg(id).status().unwrap();
            assert!(scancel.success());
            let (code, out, err) = job.end();
            let text = [text, String::from_utf8(out).unwrap()].concat();
            assert!(
                code == Some(0) && text.matches("saved").count() == 2,
                "{options:?} {signal:?} {code:?} {text} {err}"
            );
        }
    }
}

#[test]
#[ignore = "needs a Slurm that runs: scripts/own-slurm"]
fn jobs_that_get_none_of_the_environment_start_and_have_what_env_gives() {
    if is_missing() {
        return;
    }
    let folder = shared_folder();
    let program = "echo has $B$C; [ -z \"$D\" ]";
    for (number, (options, _)) in KINDS.iter().enumerate() {
        let words = [&["--env", "B=7", "--env", "C"][..], options, &["sh", "-c", program]].concat();
        let mut command = launch(&words);
        command.env("SLURM_EXPORT_ENV", "NONE").env("C", "8").env("D", "9");
        let (code, text) = run_in(folder.path(), &mut command);
        assert!(code == Some(0) && text.matches("has 78").count() >= 2, "{options:?} {code:?} {text}");
        // As sites recommend to their users.
        let words = [&["--env", "B=7"][..], options, &["sh", "-c", program]].concat();
        let quoted = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let file = folder.path().join("batch");
        std::fs::write(&file, format!("#!/bin/sh\nexec {RINGPULL} launch {quoted}\n")).unwrap();
        let mut sbatch = Command::new("sbatch");
        let out = format!("out{number}");
        sbatch.args(["--export=NONE", "--wait", "--nodes=2", "--ntasks-per-node=2", "--output", &out]).arg(file);
        let (code, said) = run_in(folder.path(), sbatch.env("D", "9"));
        let text = std::fs::read_to_string(folder.path().join(out)).unwrap_or_default();
        assert!(code == Some(0) && text.matches("has 7\n").count() >= 2, "{options:?} {code:?} {said} {text}");
    }
}

#[test]
#[ignore = "needs a Slurm that runs: scripts/own-slurm"]
fn what_the_cluster_cannot_do_is_one_error_with_its_remedy() {
    if is_missing() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = run_in(folder.path(), launch(&SERVERS).args(["sleep", "1000"]));
    let hint = "hint: start the job in a folder of yours that all hosts see";
    assert!(
        code == Some(1) && text.contains("the scheduler cannot write /tmp") && text.contains(hint),
        "{code:?} {text}"
    );

    let folder = shared_folder();
    let small = |variables: &[(&str, &str)]| {
        let mut command = Command::new("salloc");
        command.args(["--ntasks=2", RINGPULL, "launch"]).args(SERVERS).args(["sh", "-c", "echo runs"]);
        run_in(folder.path(), command.envs(variables.iter().copied()))
    };
    let (code, text) = small(&[]);
    let said = "none of the 4 tasks of this job: a scheduler, 1 server, 2 workers";
    assert!(code == Some(1) && text.contains(said) && text.contains("--ntasks=4"), "{code:?} {text}");
    let (code, text) = small(&[("SLURM_OVERCOMMIT", "1")]);
    assert!(code == Some(0) && text.matches("runs").count() == 4, "{code:?} {text}");
}

/// Without this error the MPI library would abort, or every rank would be alone.
#[test]
#[ignore = "needs a Slurm that runs: scripts/own-slurm"]
fn ranks_of_srun_need_the_plugin_of_their_mpi() {
    if is_missing() || std::env::var("RINGPULL_MPIRUN").is_ok() {
        return;
    }
    let folder = shared_folder();
    let srun = |plugin| {
        let words = [&["--nodes=2", "--ntasks=2", plugin][..], &BENCH].concat();
        run_in(folder.path(), Command::new("srun").args(words))
    };
    for plugin in ["--mpi=none", "--mpi=pmi2"] {
        let (code, text) = srun(plugin);
        assert!(code == Some(1) && text.contains("hint: start it with srun --mpi=pmix"), "{plugin} {code:?} {text}");
        assert!(!text.contains("PMI support"), "{text}");
    }
    let (code, text) = srun("--mpi=pmix");
    assert!(code == Some(0) && text.contains("every sum was checked"), "{code:?} {text}");

    let wheel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deps/openmpi5");
    if !wheel.exists() {
        return println!("skipped: Open MPI 5 under Slurm: scripts/setup --openmpi5");
    }
    // This library has neither munge, which Slurm offers, nor the help file with the message about it.
    let mut command = launch(&[&["-n", "2", "--launcher", "slurm", "--"], &BENCH[..]].concat());
    command.env("RINGPULL_MPIRUN", wheel.join("bin/mpirun")).env("RINGPULL_MPI", wheel.join("lib"));
    let (code, text) = run_in(folder.path(), command.env("RINGPULL_TIMEOUT", "30"));
    assert!(code == Some(0) && text.contains("every sum was checked") && !text.contains("Sorry!"), "{code:?} {text}");
}

/// Submits a job of each kind with these options of `sbatch`, and waits for both. Returns their exit codes
/// and output.
fn batch(folder: &Path, options: &[&str], lines: &str) -> Vec<(Option<i32>, String)> {
    let jobs: Vec<_> = (KINDS.iter().enumerate())
        .map(|(number, (kind, _))| {
            let [file, out] = ["batch", "out"].map(|name| folder.join(format!("{name}{number}")));
            let program = format!("[ ${{DMLC_ROLE:-worker}} = worker ] || exit 0; {lines}");
            let words = kind.iter().copied().chain(["sh", "-c", &program]).map(|word| format!("'{word}'"));
            let words = words.collect::<Vec<_>>().join(" ");
            std::fs::write(&file, format!("#!/bin/sh\nexec {RINGPULL} launch {words}\n")).unwrap();
            let mut sbatch = Command::new("sbatch");
            sbatch.args(["--wait", "--nodes=2", "--ntasks-per-node=2", "--output"]).arg(&out).args(options).arg(file);
            (sbatch.current_dir(folder).stdout(Stdio::null()).spawn().unwrap(), out)
        })
        .collect();
    let ends = jobs.into_iter().map(|(mut job, out)| {
        let code = job.wait().unwrap().code();
        (code, std::fs::read_to_string(out).unwrap_or_default())
    });
    ends.collect()
}

/// Slurm's shortest limit is a minute, and it checks limits twice in a minute.
#[test]
#[ignore = "long: scripts/own-slurm"]
fn workers_save_their_state_before_the_time_limit_and_at_it() {
    if is_missing() {
        return;
    }
    let program = |signal| format!("trap \"sleep 1; echo saved; exit 0\" {signal}; while :; do sleep 0.05; done");
    let folders = [(); 2].map(|()| shared_folder());
    let (before, at) = std::thread::scope(|scope| {
        let before = scope.spawn(|| batch(folders[0].path(), &["--time=1", "--signal=B:USR1@50"], &program("USR1")));
        let at = batch(folders[1].path(), &["--time=1"], &program("TERM"));
        (before.join().unwrap(), at)
    });
    for (code, text) in before {
        assert!(code == Some(0) && text.matches("] saved").count() == 2, "{code:?} {text}");
    }
    // Slurm has a code of its own for a job that it has ended.
    for (code, text) in at {
        assert_eq!(text.matches("] saved").count(), 2, "{code:?} {text}");
    }
}

/// The ranks and the launcher end long before Slurm declares the node down. No other test runs meanwhile.
#[test]
#[ignore = "long: scripts/own-slurm"]
fn the_others_report_a_node_that_is_cut_off_and_the_launcher_ends() {
    if is_missing() {
        return;
    }
    let link = |state| assert!(Command::new("ip").args(["link", "set", "n3", state]).status().unwrap().success());
    let folder = shared_folder();
    let kinds =
        [(&["-n", "4"][..], "dist_sync_mpi", "rank 2"), (&["-n", "2", "-s", "1"], "dist_sync", "worker rank 0")];
    let jobs = kinds.map(|(options, kind, lost)| {
        let path = folder.path().join(kind);
        let file = std::fs::File::create(&path).unwrap();
        let mut salloc = Command::new("salloc");
        salloc.args(["--nodes=4", "--ntasks-per-node=1", RINGPULL, "launch"]).args(options);
        salloc.args(["--launcher", "slurm", "--", RINGPULL, "bench", "pushpull", "--sizes=4KB", "--iters=1000000000"]);
        salloc.args(["--kv-store", kind]).env("RINGPULL_SILENCE", "4").stdin(Stdio::null()).current_dir(folder.path());
        (salloc.stdout(Stdio::null()).stderr(file).spawn().unwrap(), path, lost)
    });
    let text = |path: &PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    for (_, path, _) in &jobs {
        until("the job sums", || text(path).contains("payload 1 of 1"));
    }
    link("down");
    for (mut job, path, lost) in jobs {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = job.try_wait().unwrap() {
                break status;
            }
            // A deadline for a hang: twice as long as Slurm waits for a step.
            assert!(begun.elapsed() < DEADLINE * 5, "{}", text(&path));
            std::thread::park_timeout(Duration::from_millis(100));
        };
        let text = text(&path);
        let is_said = text.contains(&format!("{lost} (pid")) && text.contains("on n3) is lost");
        assert!(status.code() == Some(1) && is_said, "{status} {text}");
    }
    link("up");
}
