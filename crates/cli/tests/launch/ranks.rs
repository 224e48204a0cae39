//! Tests output and signals of the processes of a job with one launcher. It also has the job that
//! [`every_launcher`](super::every_launcher) starts.
//!
//! The launcher reads every process by a separate pipe or connection and writes the output that tests search.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt as _;

use super::*;

/// A job of workers that run these lines of shell. `$me` is a worker's number, and `$F` a folder. Servers and
/// the scheduler end at once.
pub(super) struct Job {
    pub(super) options: Vec<&'static str>,
    folder: tempfile::TempDir,
    pub(super) child: Child,
    out: std::process::ChildStdout,
}

impl Job {
    pub(super) fn start(options: &[&'static str], lines: &str) -> Self {
        let folder = slurm::shared_folder();
        let program = format!(
            "[ ${{DMLC_ROLE:-worker}} = worker ] || exit 0\n\
             me=${{DMLC_WORKER_ID:-${{OMPI_COMM_WORLD_RANK:-${{PMI_RANK:-$SLURM_PROCID}}}}}}\n{lines}"
        );
        let mut command = launch(&[options, &["sh", "-c", &program]].concat());
        command.env("F", folder.path()).env("RINGPULL_QUIET", "1").current_dir(folder.path());
        command.env_remove("PYTHONUNBUFFERED");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        Job { options: options.to_vec(), folder, child, out }
    }

    /// Waits until the job has written `expected` to stdout.
    pub(super) fn reads(&mut self, expected: &str) -> Vec<u8> {
        let (mut seen, mut byte) = (Vec::new(), [0]);
        while !String::from_utf8_lossy(&seen).contains(expected) {
            let count = self.out.read(&mut byte).unwrap();
            assert!(count == 1, "{:?}: {expected:?} is not in {:?}", self.options, String::from_utf8_lossy(&seen));
            seen.push(byte[0]);
        }
        seen
    }

    /// Makes a file for which the workers wait.
    pub(super) fn make(&self, name: &str) {
        std::fs::File::create(self.folder.path().join(name)).unwrap().write_all(b"x").unwrap();
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end. Returns the exit code, as in a shell, and the rest of stdout and stderr.
    pub(super) fn end(mut self) -> (Option<i32>, Vec<u8>, String) {
        let (mut out, mut err) = (Vec::new(), String::new());
        let mut from = self.child.stderr.take().unwrap();
        let reader = std::thread::spawn(move || {
            from.read_to_string(&mut err).unwrap();
            err
        });
        self.out.read_to_end(&mut out).unwrap();
        let status = self.child.wait().unwrap();
        (status.code().or_else(|| Some(128 + status.signal()?)), out, reader.join().unwrap())
    }
}

/// The lines of a worker, without their names.
pub(super) fn lines_of<'a>(out: &'a [u8], name: &str) -> Vec<&'a [u8]> {
    let name = format!("[{name}] ").into_bytes();
    out.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(&name[..])).collect()
}

#[test]
fn ranks_end_with_a_killed_launcher_and_with_a_killed_mpirun() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    for kills_launcher in [true, false] {
        let mark = mark();
        let mut job = Job::start(&["-n", "2", "--"], &format!("echo up; sleep {mark} & sleep {mark}; true"));
        job.reads("] up\n");
        until("both started their children", || running(&mark) == 4);
        if kills_launcher {
            job.child.kill().unwrap();
        } else {
            let children = format!("/proc/{0}/task/{0}/children", job.child.id());
            let mpirun = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
            kill_process(Pid::from_raw(mpirun).unwrap(), Signal::KILL).unwrap();
        }
        let (code, ..) = job.end();
        assert_eq!(code, Some(137));
        until("nothing is left", || running(&mark) == 0);
    }
}

#[test]
fn a_process_that_outlives_its_rank_is_heard_to_its_end() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let program = "(until [ -e $F/go ]; do sleep 0.05; done; echo late) & echo up";
    let mut job = Job::start(&["-n", "1", "--"], program);
    job.reads("up\n");
    job.make("go");
    let (code, out, err) = job.end();
    assert_eq!((code, &out[..]), (Some(0), &b"[rank 0] late\n"[..]), "{err}");
}

/// Neither a silent process nor one that writes without end keeps the job alive.
#[test]
fn a_rank_that_fails_ends_its_job_while_a_process_that_it_has_started_holds_its_output() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    for writes in ["true", "while :; do echo on; sleep 0.1; done"] {
        let mark = mark();
        let program = format!("({writes}; exec sleep {mark}) & echo last; printf end >&2; exit 4");
        // MPICH does not end the other ranks of a program that does not use MPI.
        let mut job = Job::start(&["-n", "1", "--"], &program);
        // A deadline: the process sleeps for an hour.
        until("the job has ended", || job.child.try_wait().unwrap().is_some());
        let (code, out, err) = job.end();
        assert!(code == Some(4) && err.contains("[rank 0] end"), "{code:?} {err}");
        assert!(lines_of(&out, "rank 0").contains(&&b"last"[..]));
        until("nothing is left", || running(&mark) == 0);
    }
}

#[test]
fn a_reader_that_is_slow_loses_nothing_and_ends_no_job() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let program = "head -c 30000000 /dev/zero | tr '\\0' x; touch $F/written; exit 3";
    let job = Job::start(&["-n", "1", "--"], program);
    // Nothing of the output is read yet.
    until("the rank has written everything", || job.folder.path().join("written").exists());
    let (code, out, err) = job.end();
    assert_eq!((code, out.len()), (Some(3), "[rank 0] \n".len() + 30_000_000), "{err}");
}

/// The launcher ends processes, and itself, while nobody reads their output. It reports that it ends them,
/// and after a second interrupt waits for no reader.
#[test]
fn a_reader_that_pauses_keeps_no_job_with_servers_from_its_end() {
    let program = "[ $me = 0 ] || { until [ -e $F/go ]; do sleep 0.05; done; exit 3; }\n\
                   trap 'echo x >$F/told; exit 0' TERM\n\
                   head -c 90000000 /dev/zero | tr '\\0' x";
    let start = || {
        let job = Job::start(&["-n", "2", "-s", "1", "--env", "RINGPULL_SILENCE=1", "--"], program);
        until("as much waits as may", || {
            let counts = std::fs::read_to_string(format!("/proc/{}/io", job.child.id())).unwrap();
            counts.lines().next().unwrap().trim_start_matches("rchar: ").parse::<usize>().unwrap() > 64 << 20
        });
        job
    };
    let job = start();
    job.make("go");
    until("the other worker was told to end", || job.folder.path().join("told").exists());
    let (code, _, err) = job.end();
    assert!(code == Some(3) && err.contains("worker 1 ended with exit code 3; the other"), "{code:?} {err}");
    let mut job = start();
    until("the job has ended", || {
        job.signal(Signal::INT);
        job.child.try_wait().unwrap().is_some()
    });
    assert_eq!(job.end().0, Some(130));
}

#[test]
fn a_process_that_leaves_its_session_and_writes_on_and_on_keeps_no_job_with_servers_from_its_end() {
    let program = "[ $me = 0 ] || exit 0; setsid yes on & until [ -e $F/go ]; do sleep 0.05; done";
    let mut job = Job::start(&["-n", "2", "-s", "1", "--"], program);
    job.reads("] on\n");
    job.make("go");
    let (code, _, err) = job.end();
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn a_reader_that_goes_ends_no_job_and_one_line_says_that_the_output_is_dropped() {
    let wait = |name: &str| format!("until [ -e $F/{name} ]; do sleep 0.05; done\n");
    let program = format!("[ $me = 0 ] || exit 0\necho up\n{}echo more\necho more\necho on >&2", wait("go"));
    let mut job = Job::start(&["-n", "2", "-s", "1", "--"], &program);
    job.reads("up\n");
    job.out = std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null").unwrap()).into();
    job.make("go");
    let (code, _, err) = job.end();
    let said = err.matches("ringpull: nobody reads stdout any more").count();
    assert!(code == Some(0) && said == 1 && err.contains("[worker 0] on"), "{code:?} {err}");
}

/// For a program, a file that may not grow is like a full disk.
#[test]
fn a_full_disk_is_a_warning_and_what_comes_when_there_is_room_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let program = "[ $DMLC_ROLE = worker ] || exit 0; echo one; until [ -e $F/go ]; do sleep 0.05; done; echo two";
    let words = launch(&["-n", "1", "-s", "1", "--", "sh", "-c", program]);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -S -f 0; exec \"$@\"", "sh"]);
    command.arg(words.get_program()).args(words.get_args()).env("F", folder.path()).stdin(Stdio::null());
    let mut child = command.stdout(std::fs::File::create(at("log")).unwrap()).stderr(Stdio::piped()).spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("output is lost: stdout cannot be written") {
        assert!(err.read_line(&mut text).unwrap() > 0, "{text}");
    }
    let limit = rustix::process::Rlimit { current: None, maximum: None };
    rustix::process::prlimit(Some(Pid::from_child(&child)), rustix::process::Resource::Fsize, limit).unwrap();
    std::fs::write(at("go"), "x").unwrap();
    err.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success() && text.matches("output is lost").count() == 1, "{text}");
    assert_eq!(std::fs::read_to_string(at("log")).unwrap(), "[worker 0] two\n");
}

#[test]
fn a_command_in_quotes_is_one_for_the_shell_as_with_mxnets_launch_py() {
    let (output, lines) = run(&["-n", "1", "-s", "1", "--launcher", "local", "echo $DMLC_ROLE it\\'s; exit 0"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(lines, ["[scheduler] scheduler it's", "[server 0] server it's", "[worker 0] worker it's"]);
    // The kind of store in the quoted command is used.
    let (output, lines) = run(&["-n", "1", "echo $DMLC_ROLE --kv-store dist_sync"]);
    assert!(output.status.success() && lines.len() == 3, "{output:?}");
}

/// A job that `nohup` has started goes on after SIGHUP. After SIGTERM its servers get the signal only when
/// the workers have saved their state.
#[test]
fn a_job_outlives_the_login_under_nohup_and_servers_outlive_the_workers() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let wait = |name: &str| format!("until [ -e $F/{name} ]; do sleep 0.05; done");
    let program = format!(
        "if [ $DMLC_ROLE = worker ]; then\n\
           trap 'i=0; until [ $i = 20000 ]; do i=$((i + 1)); done; : >$F/saved; exit 0' TERM\n\
           {}; echo ready\n{}; echo went\n\
         else trap '[ -e $F/saved ] || : >$F/early; exit 0' TERM; : >$F/$DMLC_ROLE; fi\n\
         while :; do sleep 0.05; done",
        wait("server"),
        wait("go")
    );
    let words = launch(&["-n", "1", "-s", "1", "--launcher", "mpi", "--", "sh", "-c", &program]);
    let mut command = Command::new("nohup");
    command.arg(words.get_program()).args(words.get_args()).env("F", folder.path()).env("RINGPULL_QUIET", "1");
    command.envs(words.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // Every `read` of a shell of the launcher's has to wait longer than that.
    let mut child = command.env("TMOUT", "1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let mut job = Job { options: vec!["nohup"], folder, child, out };
    job.reads("ready");
    // UCX, which Debian's MPICH uses, replaces the handling of SIGHUP with which the process was started.
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", job.child.id())).unwrap();
    if !maps.contains("libucs") {
        job.signal(Signal::HUP);
    }
    job.make("go");
    job.reads("went");
    job.signal(Signal::TERM);
    let path = job.folder.path().to_owned();
    let folder = std::mem::replace(&mut job.folder, tempfile::tempdir().unwrap());
    let (code, _, err) = job.end();
    assert_eq!(code, Some(143), "{err}");
    assert!(path.join("saved").exists() && !path.join("early").exists(), "{err}");
    drop(folder);
}

#[test]
fn a_rank_may_launch_a_job_of_its_own() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let inner = format!("{} launch -n 2 --no-tag -- sh -c 'echo inner'", env!("CARGO_BIN_EXE_ringpull"));
    let mut command = launch(&["-n", "1", "--no-tag", "--", "sh", "-c", &inner]);
    let output = command.env("RINGPULL_QUIET", "1").output().unwrap();
    assert!(output.status.success() && output.stdout == b"inner\ninner\n", "{output:?}");
}
