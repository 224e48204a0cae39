//! Reads the facts of this host, without changing anything.

use std::fs;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringpull_base::config;

use super::facts::{Facts, PeerHost, SshFile};
use super::probe;
use crate::machine::{Machine, field, first_line};
use crate::mpirun::Mpirun;

/// The time that a host may take to accept a connection.
const ANSWER: Duration = Duration::from_secs(3);
/// NCCL's variables that decide whether its ranks reach each other, and how they wait.
const NCCL: [&str; 4] = ["NCCL_SOCKET_IFNAME", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_COMM_BLOCKING"];
/// `CAP_SYS_PTRACE`'s bit in a set of capabilities.
const SYS_PTRACE: u32 = 19;

/// The facts of this host, which the hostfile names `called`, and of connections to `peers` (`name:port`).
pub(crate) fn gather(called: Option<String>, slots: Option<usize>, peers: &[String], with_probe: bool) -> Facts {
    let machine = Machine::survey();
    // Checked before the ranks are started, because their launcher may make the folder.
    let temporary = temporary();
    let (probe, probe_failure) =
        match (with_probe && machine.mpi_library.is_some() && machine.mpirun.is_some()).then(probe::run) {
            None => (Vec::new(), None),
            Some(Ok(ranks)) => (ranks, None),
            Some(Err(error)) => (Vec::new(), Some(error.to_string().lines().next().unwrap_or("").to_owned())),
        };
    let probe_failure = probe_failure.or_else(|| {
        let unknown = machine.mpirun.is_none().then(Mpirun::find)?.err()?;
        Some(unknown.to_string().replace("\n  hint: ", "; "))
    });
    Facts {
        called: called.unwrap_or_else(|| machine.host.clone()),
        own_address: address_of(&machine.host).map(|address| address.to_string()),
        slots: slots.unwrap_or(machine.hardware.cores),
        uid: rustix::process::geteuid().as_raw(),
        probe,
        probe_failure,
        root_allowed: config::root_may_run_mpi(),
        in_container: ["/.dockerenv", "/run/.containerenv"].iter().any(|path| Path::new(path).exists())
            || config::text("KUBERNETES_SERVICE_HOST").is_some()
            || config::text("K_MPI_JOB_ROLE").is_some(),
        shared_memory: rustix::fs::statvfs("/dev/shm")
            .ok()
            .map(|it| (it.f_blocks * it.f_frsize, it.f_bavail * it.f_frsize)),
        ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope").unwrap_or(0),
        may_trace: field("/proc/self/status", "CapEff")
            .and_then(|set| u64::from_str_radix(&set, 16).ok())
            .is_some_and(|set| set >> SYS_PTRACE & 1 == 1),
        locked_memory: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
        rdma: names("/sys/class/infiniband"),
        gpus: names("/dev")
            .iter()
            .filter(|name| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u8>().is_ok()))
            .count(),
        driver: driver(),
        nccl: NCCL.iter().filter_map(|name| Some(((*name).to_owned(), config::text(name)?))).collect(),
        python: ["python", "python3"].into_iter().find_map(in_path),
        temporary,
        interfaces: names("/sys/class/net"),
        ssh: ssh_files(),
        clock: None,
        now_s: since_1970_s(SystemTime::now()),
        peers: peers.iter().map(|peer| connect_to(peer)).collect(),
        machine,
    }
}

pub(super) fn since_1970_s(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The place where the shell finds this program.
fn in_path(program: &str) -> Option<String> {
    let folders = config::text("PATH")?;
    let found = std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())?;
    Some(found.display().to_string())
}

/// The folder for temporary files if it has a fault, and the fault.
fn temporary() -> Option<(String, String)> {
    use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
    let folder = std::env::temp_dir();
    let fault = match (access(&folder, Access::WRITE_OK | Access::EXEC_OK), statvfs(&folder)) {
        (Err(cause), _) => format!("no file can be made there: {}", std::io::Error::from(cause)),
        (Ok(()), Ok(found)) if found.f_flag.contains(StatVfsMountFlags::NOEXEC) => {
            "no file can be executed there (noexec)".to_owned()
        }
        _ => return None,
    };
    Some((folder.display().to_string(), fault))
}

fn number(path: &str) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn driver() -> Option<String> {
    let query = ["--query-gpu=driver_version", "--format=csv,noheader"];
    first_line("nvidia-smi", &query).filter(|text| !text.is_empty())
}

fn ssh_files() -> Vec<SshFile> {
    let Some(home) = config::text("HOME") else { return Vec::new() };
    let folder = Path::new(&home).join(".ssh");
    let keys =
        names(&folder.to_string_lossy()).into_iter().filter(|name| name.starts_with("id_") && !name.contains('.'));
    let paths = [folder.clone(), folder.join("authorized_keys")].into_iter().map(|path| (path, false));
    let all = paths.chain(keys.map(|name| (folder.join(name), true)));
    all.filter_map(|(path, is_key)| {
        let data = fs::metadata(&path).ok()?;
        Some(SshFile { path: path.display().to_string(), mode: data.mode() & 0o7777, owner: data.uid(), is_key })
    })
    .collect()
}

fn address_of(name: &str) -> Option<IpAddr> {
    (name, 0).to_socket_addrs().ok()?.next().map(|address| address.ip())
}

fn connect_to(peer: &str) -> PeerHost {
    let (name, port) = peer.rsplit_once(':').unwrap_or((peer, "22"));
    // A host that needs no ssh server may refuse the connection: then it has been reached.
    let (port, may_refuse) = if port == "0" { ("22", true) } else { (port, false) };
    let mut seen = PeerHost { host: name.to_owned(), ..PeerHost::default() };
    let Some(address) = (name, port.parse().unwrap_or(22)).to_socket_addrs().ok().and_then(|mut found| found.next())
    else {
        seen.failure = Some("its name does not resolve".to_owned());
        return seen;
    };
    seen.address = Some(address.ip().to_string());
    seen.interface = interface_towards(address.ip());
    let is_refused = |cause: &Error| may_refuse && cause.kind() == ErrorKind::ConnectionRefused;
    if let Some(cause) = TcpStream::connect_timeout(&address, ANSWER).err().filter(|cause| !is_refused(cause)) {
        seen.failure = Some(format!("port {}: {cause}", address.port()));
    }
    seen
}

/// The interface with the address from which the kernel would send. Sends nothing.
fn interface_towards(address: IpAddr) -> Option<String> {
    let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).ok()?;
    socket.connect((address, 9)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    let all = if_addrs::get_if_addrs().ok()?;
    all.into_iter().find(|interface| interface.ip() == own).map(|interface| interface.name)
}
