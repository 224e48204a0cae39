//! Tests processes on hosts that ssh reaches.

use super::*;

/// An ssh server of this test on loopback, with keys of its own.
pub(super) struct Sshd {
    server: Child,
    folder: tempfile::TempDir,
    pub(super) port: u16,
}

impl Sshd {
    pub(super) fn start() -> Option<Self> {
        if !Path::new("/usr/sbin/sshd").exists() || !rustix::process::geteuid().is_root() {
            eprintln!("skipped: a test of ssh needs root and /usr/sbin/sshd");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        for name in ["host", "user"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(name)]).status();
            assert!(made.unwrap().success());
        }
        std::fs::create_dir_all("/run/sshd").unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // Daemons of several hosts disturb each other in one folder for temporary files.
        let own = format!("TMPDIR=$(mktemp -d -p {}); export TMPDIR; exec sh -c", folder.path().display());
        let config = format!(
            "ForceCommand {own} \"$SSH_ORIGINAL_COMMAND\"\nListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n",
            at("host"),
            at("user.pub")
        );
        std::fs::write(at("config"), config).unwrap();
        let server =
            Command::new("/usr/sbin/sshd").args(["-D", "-e", "-f", &at("config")]).stderr(Stdio::null()).spawn();
        let sshd = Sshd { server: server.unwrap(), folder, port };
        until("sshd listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(sshd)
    }

    fn launch(&self, words: &[&str]) -> Command {
        let hostfile = self.folder.path().join("hosts");
        std::fs::write(&hostfile, format!("# one host\n127.0.0.1:{} slots=2\n", self.port)).unwrap();
        let mut command = launch(&[&["-H", hostfile.to_str().unwrap()], words].concat());
        command.env("RINGPULL_SSH", self.ssh());
        command
    }

    /// The ssh command that reaches this server.
    pub(super) fn ssh(&self) -> String {
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        format!("ssh -F none -i {} -o UserKnownHostsFile={}", at("user"), at("known"))
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

#[test]
fn ssh_carries_roles_environment_and_exit_codes() {
    let Some(sshd) = Sshd::start() else { return };
    // A worker that fails ends the job, so it waits until the other one has written its line.
    let written = sshd.folder.path().join("written");
    let program = format!(
        "echo $DMLC_ROLE \"$A\" $PWD ${{SSH_CONNECTION:+by ssh}}; case $DMLC_ROLE$DMLC_WORKER_ID in worker0) touch {0} ;; \
         worker1) until [ -e {0} ]; do sleep 0.1; done; exit 3 ;; esac",
        written.display()
    );
    let output = sshd.launch(&["-n", "2", "-s", "1", "--env", "A=it's 1", "sh", "-c", &program]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    // Tagged and written whole by the launcher, as in `run`.
    let text = String::from_utf8_lossy(&output.stdout);
    let folder = std::env::current_dir().unwrap();
    assert!(text.contains(&format!("[worker 0] worker it's 1 {} by ssh", folder.display())), "{text}");
}

#[test]
fn modes_are_compared_on_the_hosts_of_a_file() {
    let Some(sshd) = Sshd::start() else { return };
    let (hosts, out) = (sshd.folder.path().join("two"), sshd.folder.path().join("out"));
    std::fs::write(&hosts, format!("127.0.0.1:{0}\nlocalhost:{0}\n", sshd.port)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    command.args(["compare", "--bytes", "4kB", "--rounds", "1", "--iters", "1", "--link", "10gbit", "-H"]).arg(&hosts);
    command.args(["--modes", "dist_sync_mpi,dist_sync:1shared,dist_async:1shared", "--out"]).arg(&out);
    let output = command.env("RINGPULL_SSH", sshd.ssh()).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("by 2 workers, 2 hosts, links of 10gbit") && said.contains("\ndist_async:1shared "),
        "{said}"
    );
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("2 x ") || page.contains("1 x "), "the hosts' own machines are in the report");
}

#[test]
fn processes_behind_ssh_end_with_a_killed_launcher() {
    let Some(sshd) = Sshd::start() else { return };
    let mark = mark();
    let program = stayer(&mark);
    let mut child = sshd.launch(&["-n", "2", "-s", "1", "sh", "-c", &program]).stdout(Stdio::null()).spawn().unwrap();
    until("every process started", || running(&mark) == 8);
    child.kill().unwrap();
    child.wait().unwrap();
    until("every process ended", || running(&mark) == 0);
}

#[test]
fn an_unreachable_host_is_named_within_ten_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let hostfile = folder.path().join("hosts");
    // The port was free a moment ago, so nobody answers.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::write(&hostfile, format!("127.0.0.1:{port}\n")).unwrap();
    let start = Instant::now();
    let (output, _) = run(&["-n", "1", "-H", hostfile.to_str().unwrap(), "true"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("127.0.0.1 cannot be reached by ssh") && text.contains("hint: "), "{text}");
}
