//! `ringpull launch` with real processes: tests the environment that they get, and their common end.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ringpull_processes::{Processes, has_mpi};
use rustix::process::{Pid, Signal, kill_process};

mod elastic;
mod every_launcher;
mod hosts;
mod ranks;
mod secrets;
mod slurm;
mod ssh;

const DEADLINE: Duration = Duration::from_secs(30);

fn launch(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    command.arg("launch").args(words).env("RINGPULL_TIMEOUT", "0.5").stdin(Stdio::null());
    command
}

/// Runs the launcher. Returns its output, and the lines of its stdout in order. A test may search in it for
/// the launcher's own messages, and for lines of processes with their names. The launcher reads each
/// process's pipe by lines and is the only writer, so lines are not mixed. Launchers that leave the output to
/// `mpirun` may mix lines, so for these [`Processes`] reads the processes.
fn run(words: &[&str]) -> (Output, Vec<String>) {
    let output = launch(words).output().unwrap();
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    (output, lines)
}

/// Runs a job of this program under `mpirun` to its end. Returns its processes and the launcher's exit code.
fn run_by_mpirun(options: &[&str], program: &[&str]) -> (Processes, Option<i32>) {
    let mut processes = Processes::new();
    let mut command = launch(&[options, &["--launcher", "mpi", "--"]].concat());
    processes.run("launch", command.args(processes.redirected(program)));
    let code = processes.child("launch").wait().unwrap().code();
    (processes, code)
}

/// A program that prints its name, starts a child of its own, and stays. Both have `mark` in their words.
fn stayer(mark: &str) -> String {
    format!("echo here $DMLC_ROLE $DMLC_WORKER_ID; sleep {mark} & sleep {mark}; true")
}

/// A number of seconds for which no other process of this machine sleeps.
fn mark() -> String {
    static MADE: AtomicU32 = AtomicU32::new(3000);
    format!("{}.{:08}", MADE.fetch_add(1, Ordering::Relaxed), std::process::id())
}

fn running(mark: &str) -> usize {
    let mut found = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if words.starts_with(b"sleep\0") && String::from_utf8_lossy(&words).contains(mark) {
            found += 1;
        }
    }
    found
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < DEADLINE, "{what}: not within {} s", DEADLINE.as_secs());
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Starts a job that stays, and waits until all `count` processes have printed their names.
fn start_stayers(words: &[&str], count: usize, mark: &str) -> Child {
    let program = stayer(mark);
    let words = [words, &["--", "sh", "-c", &program]].concat();
    let mut child = launch(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Whole lines, as in `run`.
    for _ in 0..count {
        assert!(lines.next().unwrap().unwrap().contains("here"));
    }
    until("every process started its child", || running(mark) == 2 * count);
    // The rest of the output is not used, but must be read.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

#[test]
fn every_process_gets_its_role_and_its_number() {
    let words = "echo $DMLC_ROLE $DMLC_WORKER_ID$DMLC_SERVER_ID of $DMLC_NUM_WORKER $DMLC_NUM_SERVER at $DMLC_PS_ROOT_URI \
                 a=$A b=$B c=$C; \
                 test $DMLC_PS_ROOT_PORT -gt 1023 -a $RINGPULL_LOCAL_WORKERS = 2";
    let options = "-n 2 -s 1 --env A=1 --env-server B:2 --env-worker C:3:4 -- sh -c".split(' ');
    let (output, lines) = run(&options.chain([words]).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected = [
        "[scheduler] scheduler of 2 1 at 127.0.0.1 a=1 b=2 c=",
        "[server 0] server 0 of 2 1 at 127.0.0.1 a=1 b=2 c=",
        "[worker 0] worker 0 of 2 1 at 127.0.0.1 a=1 b= c=3:4",
        "[worker 1] worker 1 of 2 1 at 127.0.0.1 a=1 b= c=3:4",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn launch_py_words_start_the_same_job() {
    let (output, lines) =
        run(&["-n", "1", "-s", "1", "--no-tag", "--launcher", "local", "sh", "-c", "echo $DMLC_ROLE -n"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(lines, ["scheduler -n", "server -n", "worker -n"]);
}

#[test]
fn no_process_begins_with_a_signal_ignored() {
    let (output, lines) = run(&["-n", "1", "-s", "1", "--no-tag", "--", "grep", "SigIgn:", "/proc/self/status"]);
    assert!(output.status.success() && lines.len() == 3, "{output:?}");
    for line in lines {
        let ignored = u64::from_str_radix(line.trim_start_matches("SigIgn:").trim(), 16).unwrap();
        let of = |signal: Signal| (ignored >> (signal.as_raw() - 1)) & 1;
        assert_eq!((of(Signal::INT), of(Signal::QUIT), of(Signal::TERM)), (0, 0, 0), "{line}");
    }
}

#[test]
fn a_failing_worker_ends_everything_with_its_exit_code() {
    let mark = mark();
    let program =
        format!("[ \"$DMLC_WORKER_ID\" = 1 ] && exit 7; trap '' TERM; sleep {mark} & sleep {mark}; sleep {mark}");
    let start = Instant::now();
    let (output, _) = run(&["-n", "2", "-s", "1", "--", "sh", "-c", &program]);
    assert_eq!(output.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&output.stderr).contains("worker 1 ended with exit code 7"), "{output:?}");
    assert!(start.elapsed() < DEADLINE);
    assert_eq!(running(&mark), 0);
}

#[test]
fn nobody_waits_for_workers_that_have_all_failed() {
    let mark = mark();
    let program = format!("[ $DMLC_ROLE != worker ] || exit 7; sleep {mark}");
    let start = Instant::now();
    let mut job = launch(&["-n", "2", "-s", "1", "--", "sh", "-c", &program]);
    let output = job.env("RINGPULL_TIMEOUT", "300").output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(start.elapsed() < DEADLINE, "{output:?}");
    assert_eq!(running(&mark), 0);
}

#[test]
fn jobs_that_start_at_once_do_not_get_the_same_port() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a test of two launchers with the same process id needs root");
        return;
    }
    // Each is the only process of its namespace, as in two containers on a host's network. So both choose the
    // port by the same values.
    let program = "[ $DMLC_ROLE != worker ] || { echo $DMLC_PS_ROOT_PORT; sleep 2; }";
    let jobs = [(), ()].map(|()| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", env!("CARGO_BIN_EXE_ringpull"), "launch", "--no-tag"]);
        command.args(["-n", "1", "-s", "1", "--", "sh", "-c", program]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).spawn().unwrap()
    });
    let ports = jobs.map(|job| {
        let output = job.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    });
    assert!(ports[0] != ports[1] && ports[0].trim().parse::<u16>().is_ok(), "{ports:?}");
}

#[test]
fn survivors_have_the_grace_to_say_what_they_lost() {
    let program = "case $DMLC_ROLE in worker) kill -KILL $$;; *) sleep 0.1; echo lost a worker >&2;; esac";
    let (output, _) = run(&["-n", "1", "-s", "1", "--", "sh", "-c", program]);
    assert_eq!(output.status.code(), Some(137));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("[server 0] lost a worker") && text.contains("ended with signal 9"), "{text}");
}

#[test]
fn an_interrupt_ends_all_processes_and_their_children() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mark = mark();
        let mut child = start_stayers(&["-n", "2", "-s", "1"], 4, &mark);
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(running(&mark), 0);
    }
}

#[test]
fn a_killed_launcher_takes_all_processes_with_it() {
    let mark = mark();
    let mut child = start_stayers(&["-n", "2", "-s", "1"], 4, &mark);
    child.kill().unwrap();
    child.wait().unwrap();
    until("every process ended", || running(&mark) == 0);
}

#[test]
fn what_is_above_a_process_takes_it_along_when_it_is_killed() {
    let mark = mark();
    let program = format!(
        "[ \"$DMLC_WORKER_ID\" = 0 ] || exec sleep {mark}; sleep {mark} & (sleep {mark}; true) & kill -9 $PPID; sleep {mark}"
    );
    let (output, _) = run(&["-n", "1", "-s", "1", "--", "sh", "-c", &program]);
    assert_eq!(output.status.code(), Some(137), "{output:?}");
    until("every process ended", || running(&mark) == 0);
}

#[test]
fn a_worker_that_is_stopped_wakes_to_save_its_state_after_an_interrupt() {
    let folder = tempfile::tempdir().unwrap();
    let program = "case $DMLC_ROLE in
      worker) trap 'echo saved >$1/state; exit 0' TERM; : >$1/runs; kill -STOP $$ ;;
      *) until [ -e $1/state ]; do sleep 0.01; done ;;
    esac";
    let mut command = launch(&["-n", "1", "-s", "1", "--", "sh", "-c", program, "sh"]);
    let mut child = command.arg(folder.path()).stderr(Stdio::null()).spawn().unwrap();
    until("it runs", || folder.path().join("runs").exists());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(std::fs::read_to_string(folder.path().join("state")).unwrap_or_default(), "saved\n");
}

#[test]
fn what_cannot_be_launched_is_one_clear_error() {
    for (words, expected) in [
        (&["-n", "1", "--launcher", "ssh", "--", "true"][..], "needs hosts"),
        (&["-n", "1", "--launcher", "yarn", "--", "true"], "list their hosts: ringpull launch -H HOSTFILE"),
        (&["-n", "1", "-H", "/nonexistent", "--", "true"], "cannot read /nonexistent"),
        (&["-n", "1", "--launcher", "local", "-H", "/dev/null", "--", "true"], "a hostfile is for"),
        (&["-n", "1", "-H", "/dev/null", "--", "true"], "names no host"),
        (&["-n", "1", "-s", "0", "--launcher", "mpi", "--", "no-such-program"], "there is no program no-such-program"),
        (&["-n", "1", "--", "./no-such-program"], "there is no program ./no-such-program"),
    ] {
        let (output, _) = run(words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(expected) && text.contains("error: "), "{text}");
    }
    for words in [
        &["-n", "0", "--", "true"][..],
        &["-n", "1"],
        &["-n", "1", "--env", "=x", "--", "true"],
        &["-n", "1", "--env", "1A=x", "--", "true"],
    ] {
        assert_eq!(run(words).0.status.code(), Some(2));
    }
    let (output, _) = run(&["-n", "0", "--", "true"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("invalid value '0'") && text.contains("-n"), "{text}");
}

#[test]
fn mpirun_starts_the_same_roles() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let program = ["sh", "-c", "echo $DMLC_ROLE $DMLC_WORKER_ID$DMLC_SERVER_ID"];
    let (processes, code) = run_by_mpirun(&["-n", "2", "-s", "1"], &program);
    assert_eq!(code, Some(0), "{processes}");
    assert_eq!(processes.names(), ["launch", "scheduler", "server 0", "worker 0", "worker 1"]);
    for (name, printed) in [
        ("launch", ""),
        ("scheduler", "scheduler\n"),
        ("server 0", "server 0\n"),
        ("worker 0", "worker 0\n"),
        ("worker 1", "worker 1\n"),
    ] {
        assert_eq!(processes.written(name).out, printed, "{name} in {processes}");
    }
    let (processes, code) = run_by_mpirun(&["-n", "3", "-s", "0"], &["sh", "-c", "exit 5"]);
    assert_eq!(code, Some(5), "{processes}");
}

#[test]
fn the_librarys_own_allreduce_is_checked_as_ours_is() {
    let bench = [env!("CARGO_BIN_EXE_ringpull"), "bench", "allreduce", "--algorithm", "native", "--sizes", "8,4KB,1MB"];
    for dtype in ["f32", "i64"] {
        let program = [&bench[..], &["--dtype", dtype, "--iters", "2"]].concat();
        let (processes, code) = run_by_mpirun(&["-n", "3", "-s", "0"], &program);
        let checked = processes.rank(0).out.contains("every sum was checked");
        assert!(code == Some(0) && checked, "{processes}");
    }
}

#[test]
fn settings_that_differ_between_ranks_are_an_error_on_each_before_anything_is_sent() {
    for (variable, said) in [
        ("RINGPULL_SEGMENT=$((65536 << $rank))", "disagree on RINGPULL_SEGMENT: rank 0 has 65536; rank 1 has 131072"),
        ("RINGPULL_CHECK_NAN=$rank", "disagree on RINGPULL_CHECK_NAN: rank 0 has 0; rank 1 has 1"),
        ("RINGPULL_SHARED_MEMORY=$rank", "disagree on RINGPULL_SHARED_MEMORY: rank 0 has 0; rank 1 has 1"),
    ] {
        let program = env!("CARGO_BIN_EXE_ringpull");
        let bench = format!(
            "rank=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}; {variable} exec {program} bench allreduce --sizes 25MB"
        );
        let (processes, code) = run_by_mpirun(&["-n", "2", "-s", "0"], &["sh", "-c", &bench]);
        let written = [0, 1].map(|rank| processes.rank(rank).err);
        let counts = written.each_ref().map(|err| err.matches(said).count());
        // Hydra ends the second rank as soon as the first has failed.
        assert!(code != Some(0) && matches!(counts, [0 | 1, 1] | [1, 0]), "{code:?}: {processes}");
        for (err, count) in written.iter().zip(counts) {
            assert!(count == 0 || err.contains("hint: set RINGPULL_"), "{processes}");
        }
    }
}

#[test]
fn helpers_of_a_job_that_goes_on_without_lost_ranks_are_one_error() {
    let options = ["-n", "2", "-s", "0", "--helpers", "1", "--env", "RINGPULL_ELASTIC=1"];
    let bench = [env!("CARGO_BIN_EXE_ringpull"), "bench", "allreduce", "--sizes", "4MB"];
    let (processes, code) = run_by_mpirun(&options, &bench);
    let said = processes.to_string();
    let words = ["(RINGPULL_ELASTIC) cannot have helpers (RINGPULL_ROLE=helper)", "start it without helpers, or unset"];
    assert!(code != Some(0) && words.iter().all(|words| said.contains(words)), "{code:?}: {said}");
}

#[test]
fn servers_are_started_for_a_command_that_names_a_kind_with_servers_or_as_many_as_asked_for() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    // The processes that were started and have run their program, and the launcher's own messages.
    let of = |more: &[&str], kind: &[&str]| {
        let program = ["sh", "-c", "echo role $DMLC_ROLE", "sh"];
        let (processes, code) = run_by_mpirun(&[&["-n", "2"], more].concat(), &[&program[..], kind].concat());
        assert_eq!(code, Some(0), "{processes}");
        let said = processes.written("launch").err;
        let names: Vec<String> = processes.names().into_iter().filter(|name| name != "launch").collect();
        for name in &names {
            let role = name.split(' ').next().filter(|role| *role != "rank").unwrap_or_default();
            assert_eq!(
                processes.written(name).out.trim_end(),
                format!("role {role}").trim_end(),
                "{name}: {processes}"
            );
        }
        (names, said)
    };
    let with_servers = |count: usize| match count {
        1 => vec!["scheduler", "server 0", "worker 0", "worker 1"],
        _ => vec!["scheduler", "server 0", "server 1", "worker 0", "worker 1"],
    };
    let (names, text) = of(&[], &["--kv-store", "dist_sync_mpi"]);
    assert!(names == ["rank 0", "rank 1"] && !text.contains("servers"), "{names:?} {text}");
    let (names, text) = of(&[], &["--kv-store=dist_sync"]);
    assert!(names == with_servers(2) && !text.contains("servers"), "{names:?} {text}");
    let (names, text) = of(&[], &[]);
    assert!(names == ["rank 0", "rank 1"] && !text.contains("servers"), "{names:?} {text}");
    let (names, text) = of(&["-s", "1"], &[]);
    assert!(names == with_servers(1) && !text.contains("no effect"), "{names:?} {text}");
    let (names, text) = of(&["-s", "1"], &["--kv-store", "dist_sync_mpi"]);
    assert!(names == ["rank 0", "rank 1"] && text.contains("-s 1 has no effect"), "{names:?} {text}");
}

#[test]
fn an_mpirun_that_outlives_its_processes_is_ended_and_reported() {
    if !Path::new("/proc/thread-self/children").exists() {
        eprintln!("skipped: this kernel does not list children");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Answers like Open MPI, runs its words and then hangs, as Open MPI's mpirun sometimes does.
    let lines = "[ \"$1\" = --version ] && { echo 'mpirun (Open MPI) 4.1.4'; exit; }\nsleep 2\nexec sleep 40";
    let program = script(folder.path(), "mpirun", lines);
    let alone =
        (&["-n", "2", "-s", "0", "--launcher", "mpi", "--", "true"][..], 1, "its processes ended and it did not");
    let beside_servers = (&["-n", "2", "-s", "1", "--hybrid", "--", "true"][..], 137, "mpirun does not end although");
    for (words, code, said) in [alone, beside_servers] {
        let begun = Instant::now();
        let output = launch(words).env("RINGPULL_MPIRUN", &program).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(said), "{text}");
        assert!(begun.elapsed() < DEADLINE);
    }
}

#[test]
fn a_process_that_an_mpi_job_leaves_behind_holds_nobody_up() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Like an Open MPI that has ended while a process of its job still holds its stderr.
    let answer = "[ \"$1\" = --version ] && { echo 'mpirun (Open MPI) 4.1.4'; exit; }";
    let program = script(folder.path(), "mpirun", &format!("{answer}\necho last >&2\nsleep 40 >/dev/null &\nexit 0"));
    let begun = Instant::now();
    let mut command = launch(&["-n", "2", "-s", "0", "--launcher", "mpi", "--", "true"]);
    let output = command.env("RINGPULL_MPIRUN", &program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(0) && text.contains("last"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn an_mpirun_that_waits_for_a_lost_host_for_ever_is_ended_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    for said in ["with non-zero status, thus causing\nthe job to be terminated.", "=   BAD TERMINATION OF ONE OF YOUR"]
    {
        // Answers like Open MPI, and reports that it ends the job; its child stays.
        let answer = "[ \"$1\" = --version ] && { echo 'mpirun (Open MPI) 4.1.4'; exit; }";
        let lines = format!("{answer}\nprintf '{said}\\n' >&2\nsleep 40 &\nexec sleep 40");
        let program = script(folder.path(), "mpirun", &lines);
        let begun = Instant::now();
        let mut command = launch(&["-n", "2", "-s", "0", "--launcher", "mpi", "--", "true"]);
        command.stdout(Stdio::null()).env("RINGPULL_SILENCE", "0.2").env("RINGPULL_MPIRUN", &program);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && text.contains("it waits for a host that cannot be reached"),
            "{text}"
        );
        assert!(begun.elapsed() < DEADLINE);
    }
}

/// A command that names no kind with servers is started as MPI ranks. Every line has its rank, also a line
/// that was written in pieces. The exit code is that of the ranks.
#[test]
fn a_command_without_servers_runs_as_mpi_ranks_whose_lines_have_their_rank() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let program = "printf a; sleep 0.2; printf 'b\n'; sleep 0.2; echo to stderr >&2; exit 3";
    for words in [
        &["-n", "2", "--", "sh", "-c", program][..],
        &["-n", "2", "-s", "0", "--", "sh", "-c", program],
        &["-n", "2", "-s", "1", "--", "sh", "-c", program, "--kv-store", "dist_sync_mpi"],
    ] {
        let (output, lines) = run(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{errors}");
        assert_eq!(lines.iter().filter(|line| line.starts_with("[rank ")).count(), lines.len(), "{lines:?}");
        assert!(lines.contains(&"[rank 0] ab".to_owned()) || lines.contains(&"[rank 1] ab".to_owned()), "{lines:?}");
        assert!(errors.contains("] to stderr"), "{errors}");
        assert_eq!(errors.contains("-s 1 has no effect"), words.contains(&"1"), "{errors}");
    }
    let (output, lines) = run(&["-n", "2", "--", "echo", "here"]);
    assert_eq!(
        (output.status.code(), lines),
        (Some(0), ["[rank 0] here", "[rank 1] here"].map(str::to_owned).to_vec())
    );
    let (output, lines) = run(&["-n", "2", "--no-tag", "--", "echo", "here"]);
    assert_eq!((output.status.code(), lines), (Some(0), vec!["here".to_owned(); 2]));
}

/// The workers of a job with `--hybrid`, or of a command that names `dist_hybrid`, are ranks of one `mpirun`,
/// beside servers that this program starts. The exit code is that of the ranks.
#[test]
fn the_workers_of_a_hybrid_job_are_ranks_beside_servers() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let program =
        "echo $DMLC_ROLE $DMLC_NUM_WORKER $DMLC_NUM_SERVER ${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE} $DMLC_WORKER_ID";
    for words in [
        &["-n", "2", "-s", "1", "--hybrid", "--", "sh", "-c", program][..],
        &["-n", "2", "-s", "1", "--", "sh", "-c", program, "--kv-store", "dist_hybrid"],
    ] {
        let (output, lines) = run(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        let expected =
            ["[rank 0] worker 2 1 2", "[rank 1] worker 2 1 2", "[scheduler] scheduler 2 1", "[server 0] server 2 1"];
        assert_eq!(lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>(), expected, "{errors}");
    }
    let (output, _) = run(&["-n", "2", "-s", "1", "--hybrid", "--", "sh", "-c", "[ $DMLC_ROLE != worker ] || exit 3"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    for (words, expected) in [
        (&["-n", "2", "-s", "0", "--hybrid", "--", "true"][..], "at least one server"),
        (&["-n", "2", "-s", "1", "--hybrid", "--launcher", "mpi", "--", "true"], "local, ssh and lab"),
    ] {
        let (output, _) = run(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.contains(expected), "{errors}");
    }
}

/// The exit code is that of the lost rank, although a server fails at once because of the loss. An `mpirun`
/// that stays after its ranks have ended, as that of Open MPI 4.1 sometimes does, is killed.
#[test]
fn the_exit_code_of_a_hybrid_job_is_that_of_its_ranks_whatever_mpirun_does() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Servers fail after the rank has ended and its end is known.
    let program = "case $DMLC_ROLE in
      worker) [ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 1 ] || exec sleep 100; echo $$ >$0/new; mv $0/new $0/rank; kill -9 $$ ;;
      server) until [ -e $0/rank ]; do sleep 0.02; done
        until [ ! -e /proc/$(cat $0/rank) ]; do sleep 0.02; done; sleep 0.05; exit 1 ;;
      *) sleep 100 ;;
    esac";
    let stays = folder.path().join("mpirun");
    script(folder.path(), "mpirun", "case $1 in --version) exec mpirun \"$@\" ;; esac\nmpirun \"$@\"\nexec sleep 1000");
    // The server's own exit code is reported.
    let said = "server 0 ended with exit code 1; the other";
    for (of_worker, mpirun, code) in [("", "mpirun", 137), ("exit 0", stays.to_str().unwrap(), 0)] {
        let program = if of_worker.is_empty() { program } else { of_worker };
        let mut command = launch(&["-n", "2", "-s", "1", "--hybrid", "--", "sh", "-c", program]);
        command.arg(folder.path()).env("RINGPULL_SILENCE", "1").env("RINGPULL_MPIRUN", mpirun);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{mpirun}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).contains(said), code != 0, "{mpirun}: {output:?}");
    }
}

/// The words with which `mpirun` reports the end of a job have no meaning in the lines of ranks. They show
/// neither a hang nor a lost rank.
#[test]
fn a_rank_that_prints_the_words_of_an_abort_ends_its_job_with_its_own_code() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let abort = "mpirun noticed that process rank 1 with PID 7 on node h exited on signal 9 (Killed).
mpirun has exited, thus causing the job to be terminated.
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
Per user-direction, the job has been aborted.";
    let fails = format!("echo '{abort}' >&2; [ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} = 0 ] || exec sleep 100; exit 5");
    for options in [&["-n", "2"][..], &["-n", "2", "--elastic", "--max-restarts", "0"]] {
        let mut command = launch(&[options, &["--", "sh", "-c", &fails]].concat());
        let output = command.env("RINGPULL_SILENCE", "0.2").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{options:?}: {text}");
        assert!(text.contains("[rank 0] Per user-direction, the job has been aborted."), "{options:?}: {text}");
        assert!(!text.contains("cannot be reached") && !text.contains("does not end"), "{options:?}: {text}");
        assert!(!text.contains("lost rank 1"), "{options:?}: {text}");
    }
}

/// A program that runs these lines of shell.
fn script(folder: &Path, name: &str, lines: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[test]
fn words_without_effect_are_warned_about() {
    let (output, _) = run(&["-n", "2", "-s", "1", "--sync-dst-dir", "/tmp/x", "--", "true"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("--sync-dst-dir has no effect"), "{text}");
    let (output, _) = run(&["-n", "2", "-s", "1", "--", "sh", "-c", "true", "--kv-store", "dist_sync"]);
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_batch_system_that_is_not_there_is_one_clear_error() {
    let empty = tempfile::tempdir().unwrap();
    let absent = |words: &[&str]| {
        let output = launch(words).env("PATH", empty.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        text
    };
    let text = absent(&["-n", "2", "-s", "0", "--launcher", "slurm", "--", "true"]);
    assert!(text.contains("srun cannot be run") && text.contains("hint: "), "{text}");
    let text = absent(&["-n", "2", "-s", "0", "--launcher", "sge", "--", "true"]);
    assert!(text.contains("--sge-pe NAME"), "{text}");
    let text = absent(&["-n", "2", "-s", "0", "--launcher", "sge", "--sge-pe", "orte", "--", "true"]);
    assert!(text.contains("qsub cannot be run"), "{text}");
}

#[test]
fn a_signal_that_no_worker_gets_leaves_a_job_of_grid_engine_alone() {
    let folder = tempfile::tempdir().unwrap();
    script(folder.path(), "qsub", "echo runs\nuntil [ -e $F/go ]; do sleep 0.05; done\nexit 5");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut command = launch(&["-n", "1", "--launcher", "sge", "--sge-pe", "orte", "--", "true"]);
    command.env("PATH", path).env("F", folder.path()).current_dir(folder.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |from: &mut dyn BufRead| {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(read(&mut BufReader::new(child.stdout.take().unwrap())), "runs\n");
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    let said = read(&mut BufReader::new(child.stderr.take().unwrap()));
    assert!(said.contains("signal 10 is for no worker: Grid Engine runs them"), "{said}");
    std::fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

/// The lines of the file to which Grid Engine writes the output of the last job in this folder.
fn lines_of_grid_job(folder: &Path) -> Vec<String> {
    let is_output =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ringpull.o"));
    let path = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_output).unwrap();
    let mut lines: Vec<String> = std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    std::fs::remove_file(path).unwrap();
    lines.sort();
    lines
}

#[test]
#[ignore = "needs a Grid Engine that runs: scripts/test --all"]
fn grid_engine_starts_every_role_and_answers_with_the_exit_code() {
    if !Command::new("qhost").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: no Grid Engine answers here; scripts/own-grid has one");
        return;
    }
    let folder = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
    let on_grid = |words: &[&str]| {
        let mut command = launch(&[&["--launcher", "sge", "--sge-pe", "orte"], words].concat());
        command.current_dir(folder.path()).env("RINGPULL_TIMEOUT", "30");
        command
    };
    let program = "echo $DMLC_ROLE $DMLC_WORKER_ID$DMLC_SERVER_ID of $DMLC_NUM_WORKER $A\necho \"it's\" >&2";
    let output = on_grid(&["-n", "2", "-s", "1", "--env", "A=1 '2'", "--", "sh", "-c", program]).output().unwrap();
    let lines = lines_of_grid_job(folder.path());
    assert_eq!(output.status.code(), Some(0), "{output:?} {lines:?}");
    let names = ["scheduler", "server 0", "worker 0", "worker 1"];
    let expected = names.iter().flat_map(|name| [format!("[{name}] it's"), format!("[{name}] {name} of 2 1 '2'")]);
    assert_eq!(lines, expected.collect::<Vec<_>>());
    let bench = [env!("CARGO_BIN_EXE_ringpull"), "bench", "allreduce", "--sizes", "4KB", "--iters", "2"];
    let output = on_grid(&[&["-n", "2", "-s", "0", "--no-tag", "--"], &bench[..]].concat()).output().unwrap();
    let lines = lines_of_grid_job(folder.path());
    assert!(output.status.success() && lines.iter().any(|line| line.contains("every sum was checked")), "{lines:?}");
    let output = on_grid(&["-n", "2", "-s", "0", "--", "sh", "-c", "exit 5"]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?} {:?}", lines_of_grid_job(folder.path()));
    // Ctrl-C ends the job.
    let mark = mark();
    let mut child = on_grid(&["-n", "1", "-s", "1", "--", "sh", "-c", &stayer(&mark)]).spawn().unwrap();
    until("three processes with a child each", || running(&mark) == 6);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    until("no process is left", || running(&mark) == 0);
}
