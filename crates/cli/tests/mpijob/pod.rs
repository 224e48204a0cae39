//! Pods on this machine: containers of podman and runc on the root file system of the image. Each has the
//! address and the network of its pod. This file also does the other work of the kubelet: volumes, names,
//! signals.
//!
//! `podman kube play` could read a pod's specification itself. But it takes images only from a storage of
//! images, and cannot give a pod an existing network.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process};

/// The capabilities that a container of root has by default.
const CAPABILITIES: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SYS_CHROOT",
    "MKNOD",
    "AUDIT_WRITE",
    "SETFCAP",
];
/// The address of the switch and of the pods' name server.
const SWITCH: u8 = 254;
/// The time within which a container must start, and within which it must end.
const SOON: Duration = Duration::from_secs(60);
/// The time that podman may take after the end of its container.
const LATE: Duration = Duration::from_secs(3);

pub(crate) fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A podman command with a storage of its own in this folder.
fn podman(folder: &Path) -> Command {
    let mut command = Command::new("podman");
    for name in ["root", "runroot", "tmpdir"] {
        command.arg(format!("--{name}={}/podman/{name}", folder.display()));
    }
    command.args(["--storage-driver=vfs", "--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=none"]);
    command
}

/// The reason why this machine cannot run pods, if it cannot.
pub(crate) fn lacks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("pods need root".to_owned());
    }
    for program in ["ip", "podman", "runc", "dnsmasq", "ssh-keygen", "mpirun", "/usr/sbin/sshd"] {
        let found = Command::new(program).arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status();
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

/// Waits until `holds` returns true.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < SOON, "{what}: not within {} s", SOON.as_secs());
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Writes the runtime's own profile of system calls, without the calls `calls`.
pub(crate) fn write_profile_without(calls: &[&str], to: &Path) {
    let text = std::fs::read_to_string("/usr/share/containers/seccomp.json").unwrap();
    let mut profile: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rules = profile["syscalls"].as_array_mut().unwrap();
    for rule in rules.iter_mut() {
        rule["names"].as_array_mut().unwrap().retain(|name| !calls.iter().any(|call| name == call));
    }
    rules.push(serde_json::json!({ "names": calls, "action": "SCMP_ACT_ERRNO", "errnoRet": 1 }));
    std::fs::write(to, profile.to_string()).unwrap();
}

/// The example's data set, which images do not contain.
const DATA: &str = ringpull_base::config::FASHION_MNIST;

/// The path of the folder [`Network::printed`] in a pod.
pub(crate) const PRINTED: &str = "/train/printed";

/// The image's root file system: a folder, and the files laid over it.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    base: String,
    layer: Option<Arc<tempfile::TempDir>>,
    /// Folders of this machine that pods have too.
    lent: Vec<PathBuf>,
}

impl Image {
    /// An image of the files that the Dockerfile adds to its base, laid over this machine's own root file
    /// system, which has the packages.
    pub(crate) fn over_this_machine() -> Image {
        let folder = tempfile::tempdir().unwrap();
        let (layer, programs) = (folder.path().join("files"), folder.path().join("programs"));
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

    /// A Python with our package, in this image or in the checkout's `.venv`. In the second case pods get the
    /// `.venv` too.
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

    /// The folder of the image's own files, which are laid over this machine's files or over those of its
    /// base.
    pub(crate) fn files(&self) -> PathBuf {
        self.layer.as_ref().map_or_else(|| PathBuf::from(&self.base), |layer| layer.path().join("files"))
    }

    /// Mounts the image's files at `root` for one pod. Changes stay in memory.
    fn mount(&self, folder: &Path, root: &Path) {
        let top = folder.join("top");
        std::fs::create_dir_all(&top).unwrap();
        let [upper, work] = ["upper", "work"].map(|name| top.join(name));
        std::fs::create_dir_all(&upper).unwrap();
        std::fs::create_dir_all(&work).unwrap();
        let options = format!("lowerdir={},upperdir={},workdir={}", self.base, upper.display(), work.display());
        run("mount", &["-t", "overlay", "-o", &options, "overlay", &root.display().to_string()]);
        if self.layer.is_some() {
            let files = format!("{}/.", self.files().display());
            run("cp", &["-a", &files, &root.display().to_string()]);
        }
    }

    /// Programs that are bind-mounted into pods, because they are large.
    fn programs(&self) -> Vec<PathBuf> {
        let folder = self.layer.as_ref().map(|layer| std::fs::read_dir(layer.path().join("programs")).unwrap());
        folder.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns true if the image has a file.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files().join(path.trim_start_matches('/')).exists()
    }

    /// An image from a root file system in a folder, such as one that buildah has mounted.
    pub(crate) fn of_folder(root: &str) -> Image {
        Image { base: root.to_owned(), layer: None, lent: Vec::new() }
    }
}

/// The plan of a pod.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) name: String,
    /// The pod's host name: its own name, or with the node's network that of its node.
    pub(crate) host: String,
    pub(crate) address: u8,
    pub(crate) uid: u32,
    pub(crate) group: Option<u32>,
    pub(crate) drop: Vec<String>,
    pub(crate) no_new_privs: bool,
    pub(crate) ssh_folder: String,
    /// The mode of the key, if the operator sets one.
    pub(crate) key_mode: Option<u32>,
    pub(crate) env: Vec<(String, String)>,
    /// Volumes in memory: their paths and sizes.
    pub(crate) memory: Vec<(String, String)>,
    /// Other empty volumes.
    pub(crate) empty: Vec<String>,
    pub(crate) is_read_only: bool,
    /// The memory limit of the pod's control group.
    pub(crate) limit: Option<String>,
    /// A profile of system calls in the place of the runtime's own.
    pub(crate) seccomp: Option<PathBuf>,
    /// The domain in which its short names are looked up first.
    pub(crate) search: String,
    pub(crate) words: Vec<String>,
}

/// The files of a ConfigMap: names, modes and texts.
pub(crate) type ConfigMap = [(&'static str, u32, String); 2];

impl Plan {
    /// The options of podman for a container like that of the kubelet.
    fn options(&self) -> Vec<String> {
        let mut options = vec!["--user".to_owned(), self.uid.to_string()];
        options.push("--hostname".to_owned());
        options.push(self.host.clone());
        if self.uid == 0 {
            let is_dropped = |name: &&&str| !self.drop.iter().any(|drop| drop == "ALL" || drop == **name);
            options.push("--cap-drop=ALL".to_owned());
            options.extend(CAPABILITIES.iter().filter(is_dropped).map(|name| format!("--cap-add={name}")));
        } else {
            // Added capabilities would at once be effective for a user.
            options.extend(self.drop.iter().map(|name| format!("--cap-drop={name}")));
        }
        options.extend(self.group.map(|group| format!("--group-add={group}")));
        options.extend(self.no_new_privs.then(|| "--security-opt=no-new-privileges".to_owned()));
        options.extend(self.seccomp.as_ref().map(|file| format!("--security-opt=seccomp={}", file.display())));
        options.extend(
            self.is_read_only
                .then(|| "--read-only=true --read-only-tmpfs=false".split(' ').map(str::to_owned))
                .into_iter()
                .flatten(),
        );
        options.extend(
            self.limit.iter().flat_map(|limit| [format!("--memory={limit}"), format!("--memory-swap={limit}")]),
        );
        for (path, size) in &self.memory {
            options.push(match path.as_str() {
                "/dev/shm" => format!("--shm-size={size}"),
                path => format!("--mount=type=tmpfs,destination={path},tmpfs-size={size},tmpfs-mode=1777,notmpcopyup"),
            });
        }
        options.extend(
            self.empty.iter().map(|path| format!("--mount=type=tmpfs,destination={path},tmpfs-mode=1777,notmpcopyup")),
        );
        options.extend(self.env.iter().map(|(name, value)| format!("--env={name}={value}")));
        for (name, resource) in [("nofile", Resource::Nofile), ("nproc", Resource::Nproc)] {
            let most = getrlimit(resource).maximum.unwrap_or(u64::MAX).min(4096);
            options.push(format!("--ulimit={name}={most}:{most}"));
        }
        options
    }
}

/// A switch and the pods on it. Dropping it ends all pods.
pub(crate) struct Network {
    pub(crate) folder: tempfile::TempDir,
    prefix: String,
    spaces: Vec<String>,
    /// The name server for the pods.
    names: Child,
    starts: u32,
}

/// A running pod.
pub(crate) struct Pod {
    /// The podman process. It ends with the exit code of the container, which it then removes.
    child: Child,
    /// The file with the number of the container's first process.
    pid: PathBuf,
    text: Arc<Mutex<String>>,
    root: PathBuf,
    /// The time at which the container's first process was found to have ended.
    gone: Option<Instant>,
}

pub(crate) fn address(number: u8) -> String {
    format!("10.244.0.{number}")
}

impl Network {
    pub(crate) fn up(test: &str) -> Network {
        let prefix = format!("rp{}{test}", std::process::id());
        let switch = format!("{prefix}s");
        run("ip", &["netns", "add", &switch]);
        let folder = tempfile::tempdir().unwrap();
        run("ip", &["-n", &switch, "link", "add", "br0", "type", "bridge"]);
        run("ip", &["-n", &switch, "address", "add", "10.244.0.254/24", "dev", "br0"]);
        run("ip", &["-n", &switch, "link", "set", "br0", "up"]);
        std::fs::write(folder.path().join("names"), "").unwrap();
        let names = Command::new("ip")
            .args(["netns", "exec", &switch, "dnsmasq", "--keep-in-foreground", "--user=root", "--group=root"])
            .args(["--conf-file=/dev/null", "--pid-file=", "--no-resolv", "--no-hosts", "--local=/cluster.local/"])
            .args([&format!("--listen-address={}", address(SWITCH)), "--bind-interfaces"])
            .arg(format!("--addn-hosts={}", folder.path().join("names").display()))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        // Earlier, SIGHUP (which publishes names) would end the server.
        until("the server of names takes SIGHUP", || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", names.id())).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
            u64::from_str_radix(caught, 16).unwrap() & 1 == 1
        });
        let network = Network { folder, prefix, spaces: vec![switch.clone()], names, starts: 0 };
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

    /// The folder that every pod has at /train.
    pub(crate) fn volume(&self) -> PathBuf {
        self.folder.path().join("volume")
    }

    /// The folder to which the ranks of a job with [`PRINTED`] write, two files each.
    pub(crate) fn printed(&self) -> PathBuf {
        self.volume().join("printed")
    }

    /// Starts a pod.
    pub(crate) fn start(&mut self, image: &Image, plan: &Plan, config: Option<&ConfigMap>) -> Pod {
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
        self.starts += 1;
        let folder = self.folder.path().join(format!("{}.{}", plan.name, self.starts));
        let root = folder.join("root");
        std::fs::create_dir_all(&root).unwrap();
        image.mount(&folder, &root);
        let file = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).unwrap();
            folder.join(name).display().to_string()
        };
        let own = address(plan.address);
        let hosts = file("hosts", &format!("127.0.0.1 localhost\n{own} {}\n", plan.host));
        let resolver = format!(
            "nameserver {}\nsearch {} team.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n",
            address(SWITCH),
            plan.search
        );
        let resolver = file("resolv.conf", &resolver);
        let keys = self.keys(plan, &folder);
        let mut mounts = vec![
            (hosts, "/etc/hosts:ro".to_owned()),
            (resolver, "/etc/resolv.conf:ro".to_owned()),
            (keys.display().to_string(), format!("{}:ro", plan.ssh_folder)),
            (self.volume().display().to_string(), "/train".to_owned()),
            (DATA.to_owned(), format!("{DATA}:ro")),
        ];
        if let Some(files) = config {
            self.write_config(&plan.name, plan.group, files);
            mounts.push((self.config_of(&plan.name).display().to_string(), "/etc/mpi:ro".to_owned()));
        }
        mounts.extend(image.programs().iter().map(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            (path.display().to_string(), format!("/usr/local/bin/{name}:ro"))
        }));
        mounts.extend(image.lent.iter().map(|path| (path.display().to_string(), path.display().to_string())));
        let name = format!("{}-{}", self.prefix, self.starts);
        let pid = folder.join("pid");
        let mut command = podman(self.folder.path());
        command
            .args(["run", "--rm", "--name", &name, "--network", &format!("ns:/run/netns/{space}")])
            .args(["--no-hosts", "--passwd=false", "--workdir=/train", "--log-driver=none"])
            .arg(format!("--pidfile={}", pid.display()))
            .args(plan.options())
            .args(mounts.iter().map(|(from, to)| format!("--volume={from}:{to}")))
            .arg("--rootfs")
            .arg(&root)
            .args(&plan.words)
            // The container's monitor writes a file there when memory is short.
            .current_dir(&folder)
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
        let mut pod = Pod { child, pid, text, root, gone: None };
        until("the container is there", || pod.first().is_some() || pod.code().is_some());
        pod
    }

    /// Writes the Secret with the job's key as the kubelet does: files in a folder with a time stamp, a link
    /// to the folder, and a link to each file.
    fn keys(&self, plan: &Plan, folder: &Path) -> PathBuf {
        let keys = folder.join("keys");
        std::fs::create_dir_all(keys.join("..stamp")).unwrap();
        let mode = if plan.group.is_some() { 0o3777 } else { 0o1777 };
        std::fs::set_permissions(&keys, PermissionsExt::from_mode(mode)).unwrap();
        chown(&keys, Some(0), plan.group).unwrap();
        symlink("..stamp", keys.join("..data")).unwrap();
        // In root's folder the key has mode 0600. If files have a group (fsGroup), its bits are added.
        let of_key = match (plan.ssh_folder.as_str(), plan.group) {
            ("/root/.ssh", None) => 0o600,
            ("/root/.ssh", Some(_)) => 0o640,
            _ => 0o644,
        };
        let of_key = plan.key_mode.unwrap_or(of_key);
        for (name, from, mode) in
            [("id_rsa", "key", of_key), ("id_rsa.pub", "key.pub", 0o644), ("authorized_keys", "key.pub", 0o644)]
        {
            let file = keys.join("..stamp").join(name);
            std::fs::copy(self.folder.path().join(from), &file).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            chown(&file, Some(0), plan.group).unwrap();
            symlink(format!("..data/{name}"), keys.join(name)).unwrap();
        }
        keys
    }

    /// Publishes the addresses of these names, and of no others.
    pub(crate) fn publish(&self, hosts: &str) {
        std::fs::write(self.folder.path().join("names"), hosts).unwrap();
        kill_process(Pid::from_child(&self.names), Signal::HUP).unwrap();
    }

    fn config_of(&self, pod: &str) -> PathBuf {
        self.folder.path().join(format!("{pod}.config"))
    }

    /// Writes a pod's ConfigMap as the kubelet does: the files are in a new folder, to which one link is
    /// moved.
    pub(crate) fn write_config(&self, pod: &str, group: Option<u32>, files: &ConfigMap) {
        let volume = self.config_of(pod);
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

    /// Cuts a pod off from the others, as when its node is lost: its processes cannot close their
    /// connections.
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

    /// Waits until a pod's sshd shows its host keys, and returns them.
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
        if let Err(cause) = self.names.kill().and_then(|()| self.names.wait()) {
            eprintln!("the server of names had ended: {cause}");
        }
        for space in &self.spaces {
            let deleted = Command::new("ip").args(["netns", "delete", space]).status();
            assert!(std::thread::panicking() || deleted.unwrap().success(), "the namespace {space} stays");
        }
    }
}

impl Pod {
    /// The lines of the pod's own processes: of its entrypoint and `mpirun`. Ranks write to other files.
    pub(crate) fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    /// The exit code, if the pod has ended.
    pub(crate) fn code(&mut self) -> Option<i32> {
        let is_gone = |pid: i32| !Path::new("/proc").join(pid.to_string()).exists();
        if self.gone.is_none() && self.first().is_some_and(is_gone) {
            self.gone = Some(Instant::now());
        }
        // podman 4.3 sometimes goes on waiting after its container has ended, for example after a kill.
        if self.gone.is_some_and(|since| since.elapsed() > LATE) {
            self.child.kill().unwrap();
        }
        self.child.try_wait().unwrap().map(|status| status.code().unwrap_or(137))
    }

    /// Waits for the exit code. If the pod does not end within `limit`, ends the pod and returns `None`.
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
            self.signal(Signal::KILL);
            until("the container has ended", || self.code().is_some());
        }
    }

    /// The process id of the pod's first process.
    fn first(&self) -> Option<i32> {
        std::fs::read_to_string(&self.pid).ok()?.trim().parse().ok()
    }

    /// The names in a folder of the pod.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let folder = format!("/proc/{}/root{path}", self.first().unwrap());
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|cause| panic!("{folder}: {cause}"));
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Sends SIGTERM to the pod's first process, as the kubelet does first when a pod is to end.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        if self.gone.is_none()
            && let Some(pid) = self.first().and_then(Pid::from_raw)
            && let Err(cause) = kill_process(pid, signal)
        {
            eprintln!("the pod had ended: {cause}");
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.kill();
        let unmounted = Command::new("umount").arg("-l").arg(&self.root).status();
        assert!(std::thread::panicking() || unmounted.unwrap().success(), "{} stays mounted", self.root.display());
    }
}
