//! Pods on this machine: namespaces, with an address each, and the root file system of the image.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// What the runtime leaves a container that asks for nothing.
const CAPABILITIES: &str = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap";

pub(crate) fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Why pods cannot be had here.
pub(crate) fn lacks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("pods need root".to_owned());
    }
    for program in ["ip", "nsenter", "unshare", "setpriv", "ssh-keygen", "mpirun", "/usr/sbin/sshd"] {
        let found = Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() {
            return Some(format!("{program} is not installed"));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs tmpfs $0 && cd $0 && mkdir u w m && mount -t overlay -o lowerdir=/,upperdir=u,workdir=w overlay m && ip netns list";
    let output = Command::new("unshare").args(["--mount", "sh", "-c", script]).arg(folder.path()).output().unwrap();
    (!output.status.success())
        .then(|| format!("no overlay or namespace can be made: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// The folder [`Network::printed`] as a pod calls it.
pub(crate) const PRINTED: &str = "/train/printed";

/// The image's root file system: a folder, and what is laid over it.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    base: String,
    layer: Option<Arc<tempfile::TempDir>>,
    /// Folders of this machine that pods have too.
    lent: Vec<PathBuf>,
}

impl Image {
    /// What the Dockerfile lays over its base, over this machine's own root file system, which has the
    /// packages.
    pub(crate) fn over_this_machine() -> Image {
        let folder = tempfile::tempdir().unwrap();
        let [layer, programs] = ["files", "programs"].map(|name| folder.path().join(name));
        std::fs::create_dir(&layer).unwrap();
        std::fs::create_dir(&programs).unwrap();
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let binaries = [PathBuf::from(env!("CARGO_BIN_EXE_ringpull")), ringpull_processes::example()];
        let steps = r#"set -e
work=$1 out=$2 source=$3
mount -t tmpfs tmpfs "$work"
mkdir "$work/u" "$work/w" "$work/m"
mount -t overlay -o "lowerdir=/,upperdir=$work/u,workdir=$work/w" overlay "$work/m"
"$source/install" "$work/m"
umount "$work/m"
cp -a "$work/u/." "$out/""#;
        let work = folder.path().join("work");
        std::fs::create_dir(&work).unwrap();
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", steps, "sh"])
            .args([&work, &layer, &own.join("mpijob/image")])
            .output()
            .unwrap();
        assert!(output.status.success(), "the image: {}", String::from_utf8_lossy(&output.stderr));
        for binary in binaries {
            std::fs::copy(&binary, programs.join(binary.file_name().unwrap())).unwrap();
        }
        Image { base: "/".to_owned(), layer: Some(Arc::new(folder)), lent: Vec::new() }
    }

    /// A Python that has our package, in this image or in the checkout's `.venv`, which pods then have too.
    pub(crate) fn python(&mut self) -> Option<String> {
        if self.layer.is_none() {
            return self.has("/opt/ringpull/examples/torch").then(|| "python3".to_owned());
        }
        let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv").canonicalize().ok()?;
        let python = venv.join("bin/python");
        let has_it = Command::new(&python).args(["-c", "import ringpull.elastic"]).stderr(Stdio::null()).status();
        if !has_it.is_ok_and(|status| status.success()) {
            return None;
        }
        self.lent.push(venv);
        Some(python.display().to_string())
    }

    /// Where the files lie that are the image's own, over this machine's or over its base's.
    pub(crate) fn files(&self) -> PathBuf {
        self.layer.as_ref().map_or_else(|| PathBuf::from(&self.base), |layer| layer.path().join("files"))
    }

    /// Returns true if the image has a file.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files().join(path.trim_start_matches('/')).exists()
    }

    /// A root file system that lies in a folder, such as one that buildah has mounted.
    pub(crate) fn of_folder(root: &str) -> Image {
        Image { base: root.to_owned(), layer: None, lent: Vec::new() }
    }
}

/// What a pod is made from.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) name: String,
    /// What the pod calls itself: its name, or its node's with the node's network.
    pub(crate) host: String,
    pub(crate) address: u8,
    pub(crate) uid: u32,
    pub(crate) group: Option<u32>,
    pub(crate) drop: Vec<String>,
    pub(crate) no_new_privs: bool,
    pub(crate) ssh_folder: String,
    /// The mode of the key that the operator asks for, if it does.
    pub(crate) key_mode: Option<&'static str>,
    pub(crate) env: Vec<(String, String)>,
    /// Volumes in memory: where, and how large.
    pub(crate) memory: Vec<(String, String)>,
    pub(crate) words: Vec<String>,
}

/// The files of a ConfigMap: names, modes and texts.
pub(crate) type ConfigMap = [(&'static str, u32, String); 2];

impl Plan {
    fn capabilities(&self) -> String {
        let dropped: String = self.drop.iter().flat_map(|name| [",-".to_owned(), name.to_lowercase()]).collect();
        if self.drop.iter().any(|name| name == "ALL") { "-all".to_owned() } else { format!("{CAPABILITIES}{dropped}") }
    }
}

/// A switch and the pods on it. Dropping it ends all of them.
pub(crate) struct Network {
    pub(crate) folder: tempfile::TempDir,
    prefix: String,
    spaces: Vec<String>,
}

/// A pod that runs.
pub(crate) struct Pod {
    child: Child,
    text: Arc<Mutex<String>>,
}

pub(crate) fn address(number: u8) -> String {
    format!("10.244.0.{number}")
}

impl Network {
    pub(crate) fn up(test: &str) -> Network {
        let prefix = format!("rp{}{test}", std::process::id());
        let switch = format!("{prefix}s");
        run("ip", &["netns", "add", &switch]);
        let network = Network { folder: tempfile::tempdir().unwrap(), prefix, spaces: vec![switch.clone()] };
        run("ip", &["-n", &switch, "link", "add", "br0", "type", "bridge"]);
        run("ip", &["-n", &switch, "address", "add", "10.244.0.254/24", "dev", "br0"]);
        run("ip", &["-n", &switch, "link", "set", "br0", "up"]);
        let folder = network.folder.path();
        run(
            "ssh-keygen",
            &["-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f", &folder.join("key").display().to_string()],
        );
        std::fs::create_dir(folder.join("volume")).unwrap();
        std::fs::create_dir(network.printed()).unwrap();
        for shared in [network.volume(), network.printed()] {
            run("chmod", &["0777", &shared.display().to_string()]);
        }
        network
    }

    /// What is at /train in every pod.
    pub(crate) fn volume(&self) -> PathBuf {
        self.folder.path().join("volume")
    }

    /// Where the ranks of a job write that were started with [`PRINTED`]: two files each.
    pub(crate) fn printed(&self) -> PathBuf {
        self.volume().join("printed")
    }

    /// Starts a pod. Its name is known to nobody before `hosts` is written.
    pub(crate) fn start(&mut self, image: &Image, plan: &Plan, hosts: &str, config: Option<&ConfigMap>) -> Pod {
        let space = format!("{}{}", self.prefix, plan.address);
        if !self.spaces.contains(&space) {
            let (switch, port) = (self.spaces[0].clone(), format!("p{}", plan.address));
            run("ip", &["netns", "add", &space]);
            self.spaces.push(space.clone());
            run("ip", &["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &space]);
            run("ip", &["-n", &switch, "link", "set", &port, "master", "br0", "up"]);
            run("ip", &["-n", &space, "address", "add", &format!("{}/24", address(plan.address)), "dev", "eth0"]);
            run("ip", &["-n", &space, "link", "set", "lo", "up"]);
        }
        run("ip", &["-n", &space, "link", "set", "eth0", "up"]);
        let folder = self.folder.path().join(&plan.name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("hosts"), hosts).unwrap();
        for file in ["key", "key.pub"] {
            std::fs::copy(self.folder.path().join(file), folder.join(file)).unwrap();
        }
        if !folder.join("volume").exists() {
            std::os::unix::fs::symlink(self.volume(), folder.join("volume")).unwrap();
        }
        if let Some(files) = config {
            self.write_config(&plan.name, plan.group, files);
        }
        let memory: Vec<String> = plan.memory.iter().map(|(path, size)| format!("{path} {size}\n")).collect();
        std::fs::write(folder.join("memory"), memory.concat()).unwrap();
        let lent: Vec<String> = image.lent.iter().map(|path| format!("{}\n", path.display())).collect();
        std::fs::write(folder.join("lent"), lent.concat()).unwrap();
        let env: Vec<String> = plan.env.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        std::fs::write(folder.join("env"), env.concat()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mpijob/pod.sh");
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{space}"))
            .args(["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "sh"])
            .arg(script)
            .arg(&folder)
            .arg(&image.base)
            .arg(image.layer.as_ref().map_or(Path::new("-"), |layer| layer.path()))
            .args([&plan.host, &plan.uid.to_string()])
            .arg(plan.group.map_or("-".to_owned(), |group| group.to_string()))
            .arg(plan.capabilities())
            .args([if plan.no_new_privs { "yes" } else { "no" }, &plan.ssh_folder, plan.key_mode.unwrap_or("-")])
            .args(&plan.words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let text = Arc::new(Mutex::new(String::new()));
        let streams: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for stream in streams {
            let text = Arc::clone(&text);
            std::thread::spawn(move || {
                use std::io::BufRead;
                for line in std::io::BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                    *text.lock().unwrap() += &(String::from_utf8_lossy(&line).into_owned() + "\n");
                }
            });
        }
        Pod { child, text }
    }

    /// Writes the names that a pod knows. The file is bound into the pod, so it is written in place.
    pub(crate) fn write_hosts(&self, pod: &str, hosts: &str) {
        std::fs::write(self.folder.path().join(pod).join("hosts"), hosts).unwrap();
    }

    /// Writes a pod's ConfigMap as the kubelet does: the files are in a new folder, to which one link is
    /// moved.
    pub(crate) fn write_config(&self, pod: &str, group: Option<u32>, files: &ConfigMap) {
        let volume = self.folder.path().join(pod).join("config");
        let old = std::fs::read_link(volume.join("..data")).ok();
        let number: u32 = old.as_ref().map_or(0, |old| old.to_str().unwrap()["..stamp".len()..].parse().unwrap());
        let stamp = format!("..stamp{}", number + 1);
        std::fs::create_dir_all(volume.join(&stamp)).unwrap();
        std::fs::set_permissions(&volume, PermissionsExt::from_mode(0o1777)).unwrap();
        for (name, mode, text) in files {
            let file = volume.join(&stamp).join(name);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(*mode)).unwrap();
            chown(&file, Some(0), group).unwrap();
        }
        symlink(&stamp, volume.join("..data_tmp")).unwrap();
        std::fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        match old {
            Some(old) => std::fs::remove_dir_all(volume.join(old)).unwrap(),
            None => files.iter().for_each(|(name, ..)| symlink(format!("..data/{name}"), volume.join(name)).unwrap()),
        }
    }

    /// Cuts a pod's address off from the others, as when its node is lost: what is there cannot say goodbye.
    pub(crate) fn cut(&self, number: u8) {
        run("ip", &["-n", &format!("{}{number}", self.prefix), "link", "set", "eth0", "down"]);
    }

    /// Returns true if sshd answers at a pod's address: the readiness probe.
    pub(crate) fn answers(&self, number: u8) -> bool {
        let probe = format!("exec 3<>/dev/tcp/{}/2222", address(number));
        let status = Command::new("ip")
            .args(["netns", "exec", &self.spaces[0], "timeout", "1", "bash", "-c", &probe])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.unwrap().success()
    }

    /// The host keys that a pod's sshd shows, once it does.
    pub(crate) fn host_keys(&self, number: u8) -> Vec<String> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            let scan = Command::new("ip")
                .args(["netns", "exec", &self.spaces[0], "ssh-keyscan", "-T", "2", "-p", "2222", &address(number)])
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .output();
            let text = String::from_utf8(scan.unwrap().stdout).unwrap();
            let keys: Vec<String> = text.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect();
            if !keys.is_empty() {
                return keys;
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
        Vec::new()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for space in &self.spaces {
            let deleted = Command::new("ip").args(["netns", "delete", space]).status();
            assert!(std::thread::panicking() || deleted.unwrap().success(), "the namespace {space} stays");
        }
    }
}

impl Pod {
    /// The lines that the pod's own processes have written: its entrypoint's and `mpirun`'s; ranks write
    /// elsewhere.
    pub(crate) fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    /// The exit code, if the pod has ended.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|status| status.code().unwrap_or(137))
    }

    /// The exit code; a pod that does not end within `limit` is ended, and that is none.
    pub(crate) fn ends_within(&mut self, limit: Duration) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if let Some(code) = self.code() {
                return Some(code);
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        self.kill();
        None
    }

    /// Ends everything in the pod at once.
    pub(crate) fn kill(&mut self) {
        if self.code().is_none() {
            // It takes all others with it. The one that waits for it here is no help: a change of user clears
            // the signal that its end would send.
            self.signal(Signal::KILL);
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }

    /// What is in a folder of the pod.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let own = self.child.id();
        let first = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        let folder = format!("/proc/{}/root{path}", first.trim());
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|cause| panic!("{folder}: {cause}"));
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// What the kubelet does first when a pod is to end: SIGTERM to its first process.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        let own = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        for first in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            if let Err(cause) = kill_process(first, signal) {
                eprintln!("the pod had ended: {cause}");
            }
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.kill();
    }
}
