//! Tests which part of a user's environment others may read, and the secret of a job.

use super::*;

/// A program in place of ssh, which writes its arguments into `folder` and runs the command here.
fn ssh_that_writes_its_arguments(folder: &Path) -> Command {
    let lines = "printf '%s\\n' \"$@\" >\"${0%/*}/arguments.$$\"\nfor last; do :; done\nexec sh -c \"$last\"";
    let (ssh, hosts) = (script(folder, "ssh", lines), folder.join("hosts"));
    std::fs::write(&hosts, "ann@127.0.0.1\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    command.args(["launch", "--launcher", "ssh", "-H"]).arg(hosts).env("RINGPULL_SSH", ssh);
    command.env("RINGPULL_TIMEOUT", "0.5").stdin(Stdio::null());
    command
}

/// The arguments of each running process.
fn arguments_of_all_processes() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let words = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    words.map(|words| String::from_utf8_lossy(&words).into_owned()).collect()
}

/// A program that writes its variables `AWS_SECRET_ACCESS_KEY` and `RINGPULL_SECRET` into a file of its own
/// in `folder`, and stays.
fn writer_of_secrets(folder: &Path, mark: &str) -> String {
    let folder = folder.display();
    format!(
        "printf '%s|%s|%s' \"$AWS_SECRET_ACCESS_KEY\" \"$RINGPULL_SECRET\" \"$(cat)\" >{folder}/new.$$ && \
         mv {folder}/new.$$ {folder}/seen.$$; exec sleep {mark}"
    )
}

/// The files in `folder` with names that begin with `name`.
fn files_of(folder: &Path, name: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(name));
    named.map(|entry| std::fs::read_to_string(entry.path()).unwrap()).collect()
}

const KEY: &str = "it's a 'secret' of $HOME\n\n.\nin lines";

/// Waits until `count` processes have written their secrets, and checks that they are the same and in no
/// arguments.
fn check_secrets(folder: &Path, count: usize, mark: &str) {
    until("every process wrote", || files_of(folder, "seen").len() == count && running(mark) == count);
    let seen = files_of(folder, "seen");
    let secret = seen[0].strip_prefix(KEY).unwrap().trim_matches('|').to_owned();
    assert_eq!(secret.len(), 64, "{seen:?}");
    assert!(seen.iter().all(|text| *text == format!("{KEY}|{secret}|")), "{seen:?}");
    let arguments = [arguments_of_all_processes(), files_of(folder, "arguments")].concat();
    assert!(arguments.iter().any(|words| words.contains(mark)), "{arguments:?}");
    for words in arguments {
        assert!(!words.contains(&secret) && !words.contains("in lines"), "{words}");
    }
}

/// A launcher that ends with the test, together with all processes that it started.
struct Launcher(Child);

impl Launcher {
    fn terminate(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            self.terminate();
        }
    }
}

#[test]
fn nothing_of_the_environment_stands_in_the_arguments_of_ssh() {
    let (folder, mark) = (tempfile::tempdir().unwrap(), mark());
    let mut command = ssh_that_writes_its_arguments(folder.path());
    command.env("AWS_SECRET_ACCESS_KEY", KEY).env_remove("RINGPULL_SECRET");
    command.args(["-n", "2", "-s", "1", "sh", "-c", &writer_of_secrets(folder.path(), &mark)]);
    let mut child = Launcher(command.spawn().unwrap());
    check_secrets(folder.path(), 4, &mark);
    assert!(files_of(folder.path(), "arguments").len() == 4, "three over ssh, and whether the host answers");
    assert_eq!(child.terminate(), Some(143));
    assert_eq!(running(&mark), 0);
}

#[test]
fn nothing_of_the_environment_stands_in_the_arguments_of_mpirun() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    for (servers, count) in [("0", 2), ("1", 4)] {
        let (folder, mark) = (tempfile::tempdir().unwrap(), mark());
        // MPICH leaves the input of all ranks but the first open.
        let program = format!("exec </dev/null; {}", writer_of_secrets(folder.path(), &mark));
        let words =
            ["-n", "2", "-s", servers, "--launcher", "mpi", "--env", "AWS_SECRET_ACCESS_KEY", "sh", "-c", &program];
        let mut command = launch(&words);
        command.env("AWS_SECRET_ACCESS_KEY", KEY).env_remove("RINGPULL_SECRET").stderr(Stdio::null());
        let mut child = Launcher(command.spawn().unwrap());
        check_secrets(folder.path(), count, &mark);
        assert_ne!(child.terminate(), Some(0));
        until("every process ended", || running(&mark) == 0);
    }
}

#[test]
fn a_job_has_a_secret_of_its_own_or_the_users() {
    let program = ["-n", "1", "-s", "1", "--no-tag", "--", "sh", "-c", "echo $RINGPULL_SECRET"];
    let secrets = |variables: &[(&str, &str)]| {
        let mut command = launch(&program);
        command.env_remove("RINGPULL_SECRET").envs(variables.iter().copied());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        assert!(lines.len() == 3 && lines.iter().all(|line| *line == lines[0]), "{lines:?}");
        lines[0].clone()
    };
    let [one, other] = [(), ()].map(|()| secrets(&[]));
    assert!(one.len() == 64 && one != other);
    assert_eq!(secrets(&[("RINGPULL_SECRET", "the user's own secret")]), "the user's own secret");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, "the secret of a file\n").unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(secrets(&[("RINGPULL_SECRET_FILE", path)]), "the secret of a file");
    let both = [("RINGPULL_SECRET_FILE", path), ("RINGPULL_SECRET", "the user's own secret")];
    assert_eq!(secrets(&both), "the user's own secret");
    for (name, value) in
        [("RINGPULL_SECRET", ""), ("RINGPULL_SECRET", "hunter2"), ("RINGPULL_SECRET_FILE", "/nonexistent/secret")]
    {
        let output = launch(&program).env_remove("RINGPULL_SECRET").env(name, value).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(name) && text.contains("hint: ") && !text.contains("hunter2"), "{text}");
    }
}
