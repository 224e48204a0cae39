//! Elastic jobs of shell scripts, in which plain files stand for snapshots.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// A job on slots that the test gives, and the folder above its folder of snapshots.
struct Job {
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Job {
    fn new(slots: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let job = Job { folder, child: None };
        job.offer(slots);
        std::fs::write(job.path("discover"), format!("#!/bin/sh\ncat {}\n", job.path("hosts").display())).unwrap();
        std::fs::set_permissions(job.path("discover"), PermissionsExt::from_mode(0o700)).unwrap();
        std::fs::create_dir(job.path("memory")).unwrap();
        job
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn offer(&self, slots: &str) {
        std::fs::write(self.path("new"), slots).unwrap();
        std::fs::rename(self.path("new"), self.path("hosts")).unwrap();
    }

    fn start(self, options: &[&str], script: &str) -> Self {
        let discover = self.path("discover");
        let options = [&["--discover-hosts", discover.to_str().unwrap()], options].concat();
        self.start_on(&options, &[], script)
    }

    fn start_on(mut self, options: &[&str], variables: &[(&str, String)], script: &str) -> Self {
        let mut command = launch(&["--elastic", "--snapshots"]);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.arg(self.path("memory")).args(options).args(["--", "sh", "-c", script, "sh"]).arg(self.folder.path());
        let stdout = std::fs::File::create(self.path("out")).unwrap();
        let stderr = std::fs::File::create(self.path("err")).unwrap();
        self.child = Some(command.stdout(stdout).stderr(stderr).spawn().unwrap());
        self
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The launcher's lines about events.
    fn events(&self) -> Vec<String> {
        let events = self.read("err");
        events.lines().filter_map(|line| line.strip_prefix("ringpull: elastic: ")).map(str::to_owned).collect()
    }

    /// Waits for the job's end and returns the exit code. No snapshot may be left.
    fn code(&mut self) -> Option<i32> {
        let mut status = None;
        until("the job has ended", || {
            status = self.child.as_mut().unwrap().try_wait().unwrap();
            status.is_some()
        });
        let code = status.unwrap().code();
        assert_eq!(std::fs::read_dir(self.path("memory")).unwrap().count(), 0, "{}", self.read("err"));
        code
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sets `rank`, `size` and the host's folder `me`, and prints which rank has begun.
const BEGIN: &str = "rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} size=${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}
me=$RINGPULL_SNAPSHOTS/host; mkdir -p $me; echo $RINGPULL_GENERATION $rank $size >>$1/begun
";

#[test]
fn a_job_goes_on_without_a_lost_rank_and_grows_at_a_commit() {
    if !has_mpi() {
        return;
    }
    let script = format!(
        "{BEGIN}
        case $RINGPULL_GENERATION in
          0) until [ $(wc -l <$1/begun) = 3 ]; do sleep 0.01; done
             : >$me/snapshot-0-1; if [ $rank = 1 ]; then echo localhost:2 >$1/hosts; kill -9 $$; fi; exec sleep 60 ;;
          1) until [ -e $RINGPULL_SNAPSHOTS/changed-1 ]; do sleep 0.01; done; : >$RINGPULL_SNAPSHOTS/again-1 ;;
        esac"
    );
    let mut job = Job::new("localhost:3\n").start(&["--in-place", "--min-workers", "2"], &script);
    until("two have begun", || job.read("begun").lines().count() >= 5);
    job.offer("localhost:4\n");
    assert_eq!(job.code(), Some(0), "{}", job.read("err"));
    let begun = job.read("begun");
    let mut begun: Vec<&str> = begun.lines().collect();
    begun.sort_unstable();
    assert_eq!(begun, ["0 0 3", "0 1 3", "0 2 3", "1 0 2", "1 1 2", "2 0 4", "2 1 4", "2 2 4", "2 3 4"]);
    // The launcher may see the change of hosts before the end of the rank.
    let mut events = job.events();
    events.retain(|said| !said.starts_with("hosts have changed: generation 0"));
    // With Open MPI 4 or MPICH.
    assert!(
        events
            .remove(0)
            .ends_with("ends a job that loses a rank, so the job is started again then; Open MPI 5 can go on in place")
    );
    let expected = [
        "generation 0: 3 workers on this host",
        "generation 0 has ended: ",
        "generation 1: 3 to 2 workers on this host",
        "hosts have changed: generation 1 ends at its next commit, 2 to 4 workers",
        "generation 2: 2 to 4 workers on this host",
    ];
    assert!(events.len() == 5 && events.iter().zip(expected).all(|(said, part)| said.starts_with(part)), "{events:?}");
}

#[test]
fn a_failure_that_comes_back_before_a_snapshot_ends_the_job_with_its_code() {
    if !has_mpi() {
        return;
    }
    let mut job = Job::new("localhost:1\n").start(&["-n", "1"], &format!("{BEGIN} exit 7"));
    assert_eq!(job.code(), Some(7), "{}", job.read("err"));
    assert_eq!(job.read("begun").lines().count(), 3);
    assert!(
        job.events().last().unwrap().contains("it has failed 3 times without a new snapshot"),
        "{:?}",
        job.events()
    );
    // With a snapshot in each generation the job is started again up to the number in the option.
    let script = format!("{BEGIN} : >$me/snapshot-$RINGPULL_GENERATION-1; exit 7");
    for option in ["--max-restarts", "--max-resets"] {
        let mut job = Job::new("localhost:1\n").start(&["-n", "1", option, "1"], &script);
        assert_eq!(job.code(), Some(7), "{}", job.read("err"));
        assert_eq!(job.read("begun").lines().count(), 2);
    }
    // A start for changed hosts counts only for one of the two limits.
    let script = format!("{BEGIN} : >$RINGPULL_SNAPSHOTS/again-$RINGPULL_GENERATION");
    let mut job = Job::new("localhost:1\n").start(&["-n", "1", "--max-restarts", "0", "--max-resets", "2"], &script);
    assert_eq!(job.code(), Some(1), "{}", job.read("err"));
    assert_eq!(job.read("begun").lines().count(), 3);
    assert!(job.events().last().unwrap().contains("started again 2 times"), "{:?}", job.events());
}

#[test]
fn a_job_that_waits_for_hosts_or_runs_is_ended_by_a_signal() {
    if !has_mpi() {
        return;
    }
    let mark = mark();
    let mut job = Job::new("").start(&["--min-workers", "2"], &format!("{BEGIN} sleep {mark}; true"));
    until("it waits", || {
        job.events().iter().any(|said| said.starts_with("waits for hosts: 0 slots present, at least 2"))
    });
    job.offer("localhost:2\n");
    until("both run", || running(&mark) == 2);
    kill_process(Pid::from_child(job.child.as_ref().unwrap()), Signal::TERM).unwrap();
    assert_eq!(job.code(), Some(143), "{}", job.read("err"));
    until("all have ended", || running(&mark) == 0);
    let mut job = Job::new("").start(&["--min-workers", "2"], "true");
    until("it waits", || !job.events().is_empty());
    kill_process(Pid::from_child(job.child.as_ref().unwrap()), Signal::INT).unwrap();
    assert_eq!(job.code(), Some(130), "{}", job.read("err"));
}

#[test]
fn a_hostfile_may_change_and_snapshots_are_on_its_hosts() {
    if !has_mpi() {
        return;
    }
    let Some(sshd) = ssh::Sshd::start() else { return };
    // Two names of this host, under which ssh starts the processes.
    let script = format!(
        "{BEGIN}
        if [ $RINGPULL_GENERATION = 0 ]; then
          : >$me/snapshot-0-1; until [ $(wc -l <$1/begun) = 2 ]; do sleep 0.01; done
          if [ $rank = 1 ]; then cp $1/one $1/hosts; kill -9 $$; fi; exec sleep 60
        fi"
    );
    let line = |host: &str| format!("{host}:{} slots=1\n", sshd.port);
    let job = Job::new(&[line("127.0.0.1"), line("localhost")].concat());
    std::fs::write(job.path("one"), line("127.0.0.1")).unwrap();
    let hosts = job.path("hosts");
    let variables = [("RINGPULL_SSH", sshd.ssh())];
    let mut job = job.start_on(&["--min-workers", "1", "-H", hosts.to_str().unwrap()], &variables, &script);
    assert_eq!(job.code(), Some(0), "{}", job.read("err"));
    let mut events = job.events();
    events.retain(|said| !said.starts_with("hosts have changed"));
    assert_eq!(events[0], "generation 0: 2 workers on 2 hosts");
    assert_eq!(events.last().unwrap(), "generation 1: 2 to 1 worker on 127.0.0.1", "{events:?}");
}

#[test]
fn a_folder_for_commits_is_used_only_if_nobody_else_may_have_made_it() {
    if !has_mpi() {
        return;
    }
    // As another user could do in a shared place.
    let mut job = Job::new("localhost:1\n");
    let planted = job.path("memory/ringpull-elastic-demo");
    std::fs::create_dir(&planted).unwrap();
    std::fs::set_permissions(&planted, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(job.path("precious"), "precious").unwrap();
    for name in ["changed-0", "generation-0", "generation-x", "generation-4294967295"] {
        std::os::unix::fs::symlink(job.path("precious"), planted.join(name)).unwrap();
    }
    job = job.start(&["-n", "1", "--job", "demo"], "true");
    let status = job.child.as_mut().unwrap().wait().unwrap();
    assert_eq!(status.code(), Some(1), "{}", job.read("err"));
    assert!(job.read("err").contains("for commits: other users have rights to it: mode 777"), "{}", job.read("err"));
    assert!(job.read("precious") == "precious" && std::fs::read_dir(&planted).unwrap().count() == 4);
    // A folder that cannot be made gives one error, too.
    for place in ["/proc/none", "precious"] {
        let place = job.path(place);
        let output =
            launch(&["--elastic", "-n", "1", "--snapshots", place.to_str().unwrap(), "--", "true"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains("cannot have the folder"), "{text}");
    }
}

#[test]
fn a_job_does_not_wait_for_ever_for_a_host_on_which_it_cannot_begin() {
    if !has_mpi() {
        return;
    }
    let job = Job::new("");
    // The host answers, but has no ringpull.
    let ssh =
        "#!/bin/sh\nfor word; do :; done\n[ \"$word\" = true ] || { cat >/dev/null; echo none here >&2; exit 127; }\n";
    std::fs::write(job.path("ssh"), ssh).unwrap();
    std::fs::set_permissions(job.path("ssh"), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(job.path("hosts"), "127.0.0.1:1 slots=1\n").unwrap();
    let (hosts, ssh) = (job.path("hosts").display().to_string(), job.path("ssh").display().to_string());
    let options = ["--min-workers", "1", "-H", &hosts, "--cooldown", "1", "1"];
    let mut job = job.start_on(&options, &[("RINGPULL_SSH", ssh)], "true");
    assert_eq!(job.code(), Some(1), "{}", job.read("err"));
    let (events, said) = (job.events(), job.read("err"));
    assert!(events[0].starts_with("generation 0 cannot begin on 127.0.0.1: no answer none here"), "{said}");
    assert!(said.contains("error: generation 0 could not begin: it was tried 3 times"), "{said}");
}

/// The program of a job with servers. Scheduler and servers end with the workers. Workers write their names,
/// and whether the job is elastic, into a file.
const WITH_SERVERS: &str = "case $DMLC_ROLE in worker) ;; *) until [ -e $1/done ]; do sleep 0.01; done; exit ;; esac
echo $DMLC_WORKER_ID $RINGPULL_ELASTIC >>$1/begun
";

#[test]
fn a_worker_that_is_killed_beside_servers_is_started_again_and_the_others_go_on() {
    let script = format!(
        "{WITH_SERVERS}
        if [ $DMLC_WORKER_ID = 1 ] && mkdir $1/killed 2>/dev/null; then kill -9 $$; fi
        until [ $(wc -l <$1/begun) = 4 ]; do sleep 0.01; done; : >$1/done"
    );
    let mut job = Job::new("").start_on(&["-n", "3", "-s", "1"], &[], &script);
    assert_eq!(job.code(), Some(0), "{}", job.read("err"));
    let begun = job.read("begun");
    let mut begun: Vec<&str> = begun.lines().collect();
    begun.sort_unstable();
    assert_eq!(begun, ["0 1", "1 1", "1 1", "2 1"]);
    let said = "worker 1 ended with signal 9; workers left: 2; another one starts in its place";
    assert_eq!(job.events(), [said], "{}", job.read("err"));
}

#[test]
fn a_worker_that_is_stopped_is_killed_when_the_scheduler_has_gone_on_without_it() {
    let script = format!(
        "case $DMLC_ROLE in scheduler) until [ -e $1/stopped ]; do sleep 0.01; done
           echo \"ringpull: worker rank 1 (pid $(cat $1/stopped) on h) is lost: no heartbeat for 3.0 s (during heartbeat)\" >&2 ;;
        esac
        {WITH_SERVERS}
        if [ $DMLC_WORKER_ID = 1 ] && mkdir $1/first 2>/dev/null; then
          echo $$ >$1/pid; mv $1/pid $1/stopped; kill -STOP $$
        fi
        until [ $(wc -l <$1/begun) = $2 ]; do sleep 0.01; done; : >$1/done"
    );
    let silent = "worker 1 is silent, and the job has gone on without it: it is killed";
    let mut job = Job::new("").start_on(&["-n", "2", "-s", "1"], &[], &script.replace("$2", "3"));
    assert_eq!(job.code(), Some(0), "{}", job.read("err"));
    let ended = "worker 1 ended with signal 9; workers left: 1; another one starts in its place";
    assert_eq!(job.events(), [silent, ended], "{}", job.read("err"));
    // No worker is started, and the other one may have ended well before.
    let options = ["-n", "2", "-s", "1", "--max-restarts", "0"];
    let mut job = Job::new("").start_on(&options, &[], &script.replace("$2", "2"));
    assert_eq!(job.code(), Some(0), "{}", job.read("err"));
    assert!(job.events()[1].ends_with("no other one is started in its place"), "{}", job.read("err"));
}

#[test]
fn how_a_server_ends_after_the_workers_is_not_how_the_job_ends() {
    // When the launcher has learned of the end, the program above the worker has ended.
    let script = |end| {
        format!(
            "case $DMLC_ROLE in
              worker) echo $PPID >>$1/above ;;
              server) until [ \"$(cat $1/above 2>/dev/null | wc -l)\" = 2 ]; do sleep 0.01; done
                for pid in $(cat $1/above); do while kill -0 $pid 2>/dev/null; do sleep 0.01; done; done
                {end} ;;
            esac"
        )
    };
    let servers = ["-n", "2", "-s", "2"];
    let kinds: &[&[&str]] = if slurm::answers() {
        &[&["--launcher", "slurm"]]
    } else {
        &[&[], &["--elastic"], &["--hybrid"], &["--launcher", "mpi"]]
    };
    // Its own messages arrive although nobody waits for it.
    let fails = "echo last words >&2; exit 3";
    let ends = [("kill -STOP $$", "ended with signal"), (fails, "ended with exit code 3")];
    let jobs = kinds.iter().flat_map(|kind| ends.map(|end| (*kind, end)));
    let jobs = jobs.filter(|(kind, _)| has_mpi() || !kind.contains(&"mpi") && !kind.contains(&"--hybrid"));
    let jobs = jobs.filter(|(kind, (end, _))| !kind.contains(&"mpi") || end.contains("STOP"));
    let started = jobs.map(|(kind, (end, words))| {
        let folder = slurm::shared_folder();
        let mut command = launch(&[&servers, kind].concat());
        command.env("RINGPULL_SILENCE", "1").args(["--", "sh", "-c", &script(end), "sh"]).arg(folder.path());
        command.current_dir(folder.path());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        (kind, words, folder, child)
    });
    for (kind, words, _folder, child) in started.collect::<Vec<_>>() {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{kind:?}: {text}");
        let is_said = text.contains(&format!("server 0 {words}")) && text.contains("when the workers were done");
        assert!(is_said || kind.contains(&"--launcher"), "{kind:?}: {text}");
        let has_words = (0..2).all(|server| text.contains(&format!("[server {server}] last words")));
        assert!(has_words || words.contains("signal"), "{kind:?}: {text}");
    }
}

#[test]
fn a_job_with_servers_ends_with_too_few_workers_or_with_an_error_of_one() {
    let killed = format!("{WITH_SERVERS} [ $DMLC_WORKER_ID = 0 ] || kill -9 $$; exec sleep 60");
    let mut job =
        Job::new("").start_on(&["-n", "3", "-s", "1", "--min-workers", "2", "--max-restarts", "0"], &[], &killed);
    assert_eq!(job.code(), Some(137), "{}", job.read("err"));
    assert_eq!(job.events().len(), 1, "two are enough: {}", job.read("err"));
    let failed = format!("{WITH_SERVERS} [ $DMLC_WORKER_ID = 0 ] || exit 5; exec sleep 60");
    let mut job = Job::new("").start_on(&["-n", "2", "-s", "1"], &[], &failed);
    assert_eq!(job.code(), Some(5), "{}", job.read("err"));
    assert!(job.events().is_empty(), "{}", job.read("err"));
}

/// Two launchers of one job may begin at the same time. The later one has ended the processes of the earlier
/// one that it saw.
#[test]
fn a_rank_of_an_earlier_generation_does_not_begin() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink("a launcher", folder.path().join("generation-3")).unwrap();
    for (generation, begins) in [("2", false), ("3", true)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
        command.args(["rank", "--name", "rank", "--", "echo", "begins"]);
        command.env("RINGPULL_SNAPSHOTS", folder.path()).env("RINGPULL_GENERATION", generation);
        let output = command.output().unwrap();
        assert_eq!((output.status.success(), output.stdout == b"begins\n"), (begins, begins), "{output:?}");
        let is_said = String::from_utf8_lossy(&output.stderr).contains("has begun generation 3 here");
        assert_eq!(is_said, !begins, "{output:?}");
    }
}
