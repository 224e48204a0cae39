//! The meaning of the facts of one host for a job.

use super::facts::Facts;
use super::{HostFinding, HostVerdict};
use ringpull_harness::text::several;

/// The size of /dev/shm that Docker and Kubernetes give a container by default.
const SMALL_SHM: u64 = 64 << 20;
/// Below this a rank's own segment does not fit.
const NEEDED_SHM: u64 = 16 << 20;

/// The finding of a check, and the fix unless it is good.
type Found = (HostVerdict, String, Option<String>);
type NamedCheck = (&'static str, fn(&Facts) -> Vec<Found>);

/// The findings of every check on a single host.
pub(super) fn host(facts: &Facts) -> Vec<HostFinding> {
    let checks: [NamedCheck; 14] = [
        ("mpi", mpi),
        ("threads", threads),
        ("elastic jobs", elastic),
        ("root", root),
        ("slots", slots),
        ("shared memory", shared_memory),
        ("temporary files", temporary_files),
        ("single copy", memory_of_peers),
        ("locked memory", locked_memory),
        ("gpu", gpu),
        ("nccl variables", nccl_variables),
        ("ssh", keys),
        ("name", own_name),
        ("clock", clock),
    ];
    let found = checks.iter().flat_map(|(check, run)| run(facts).into_iter().map(move |found| (*check, found)));
    found.map(|(check, (verdict, what, fix))| HostFinding::new(verdict, check, &facts.called, what, fix)).collect()
}

fn good(what: impl Into<String>) -> Vec<Found> {
    vec![(HostVerdict::Good, what.into(), None)]
}

fn warning(what: impl Into<String>, fix: impl Into<String>) -> Vec<Found> {
    vec![(HostVerdict::Warning, what.into(), Some(fix.into()))]
}

fn failure(what: impl Into<String>, fix: impl Into<String>) -> Vec<Found> {
    vec![(HostVerdict::Failure, what.into(), Some(fix.into()))]
}

fn mpi(facts: &Facts) -> Vec<Found> {
    let Some(mpirun) = &facts.machine.mpirun else {
        let fix = "install Open MPI or MPICH (scripts/setup does), or name one with RINGPULL_MPIRUN";
        return failure(facts.probe_failure.as_deref().unwrap_or("no mpirun on the PATH"), fix);
    };
    let Some(library) = &facts.machine.mpi_library else {
        let Some((why, fix)) = &facts.machine.mpi_missing else { return Vec::new() };
        return warning(format!("{why}; local and the kinds with servers work"), fix);
    };
    if let Some(cause) = &facts.probe_failure {
        let fix = if cause.contains("root") {
            "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or run as a user"
        } else {
            "run `mpirun -n 2 hostname` and fix its error"
        };
        return failure(format!("mpirun cannot start two ranks: {cause}"), fix);
    }
    if facts.probe.iter().any(|rank| rank.size != facts.probe.len()) {
        let what = format!("{mpirun} started ranks that do not see each other: this program has {library}");
        return failure(what, "use the mpirun of this program's MPI (RINGPULL_MPIRUN), or rebuild the program");
    }
    good(format!("{mpirun}, with {library}"))
}

fn temporary_files(facts: &Facts) -> Vec<Found> {
    let Some((folder, fault)) = &facts.temporary else { return Vec::new() };
    let fix = "let TMPDIR name another folder; jobs start without one that can execute files, but compilers need it";
    warning(format!("{folder}: {fault}"), fix)
}

fn threads(facts: &Facts) -> Vec<Found> {
    let Some(rank) = facts.probe.first() else { return Vec::new() };
    let what = format!("MPI supports threads at level {}", rank.level);
    if rank.level == "single" {
        return failure(what, "build MPI with threads: the store calls it from its own thread");
    }
    good(what)
}

fn elastic(facts: &Facts) -> Vec<Found> {
    if facts.machine.mpirun.is_none() { Vec::new() } else { good(facts.machine.elastic()) }
}

fn root(facts: &Facts) -> Vec<Found> {
    let open_mpi = facts.machine.mpirun.as_ref().is_some_and(|version| version.contains("Open MPI"));
    if facts.uid == 0 && open_mpi && !facts.root_allowed {
        let fix = "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; `ringpull launch` does";
        return warning("a plain mpirun refuses to run as root", fix);
    }
    good(format!("uid {} may run mpirun", facts.uid))
}

fn slots(facts: &Facts) -> Vec<Found> {
    let (slots, cores) = (facts.slots, facts.machine.hardware.cores);
    let what = format!("{slots} slots on {cores} cores");
    if slots > cores {
        return warning(what, format!("write slots={cores} in the hostfile, unless ranks are to share cores"));
    }
    good(what)
}

fn shared_memory(facts: &Facts) -> Vec<Found> {
    let fix = "docker run --shm-size 8g; in Kubernetes an emptyDir {medium: Memory} at /dev/shm (ringpull manifest --shm 8Gi)";
    let Some((size, free)) = facts.shared_memory else { return failure("there is no /dev/shm", fix) };
    let what = format!("/dev/shm has {} MiB, {} MiB free", size >> 20, free >> 20);
    if free < NEEDED_SHM {
        return failure(what, fix);
    }
    if size <= SMALL_SHM && (gpus(facts) > 1 || facts.slots > 8) {
        return failure(format!("{what}: NCCL and many ranks need more"), fix);
    }
    if size <= SMALL_SHM { warning(what, fix) } else { good(what) }
}

fn memory_of_peers(facts: &Facts) -> Vec<Found> {
    if facts.ptrace_scope == 0 || facts.may_trace {
        return good("ranks of this host may read each other's memory");
    }
    let what = format!("ranks of this host cannot read each other's memory (ptrace_scope {})", facts.ptrace_scope);
    let change =
        if facts.in_container { "add the capability SYS_PTRACE" } else { "set sysctl kernel.yama.ptrace_scope=0" };
    warning(what, format!("{change}; without it large messages between ranks of a host are copied twice"))
}

fn locked_memory(facts: &Facts) -> Vec<Found> {
    let limit = facts.locked_memory.map_or("no limit".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    if facts.rdma.is_empty() {
        return good(format!("{limit}; there is no RDMA device"));
    }
    let what = format!("{limit} of locked memory for {}", facts.rdma.join(", "));
    if facts.locked_memory.is_some_and(|bytes| bytes < 1 << 30) {
        let fix =
            "ulimit -l unlimited on the node (LimitMEMLOCK=infinity of its container runtime), and IPC_LOCK in the pod";
        return failure(what, fix);
    }
    good(what)
}

/// The number of GPUs. Not every machine has a file in /dev for each GPU of the driver.
fn gpus(facts: &Facts) -> usize {
    facts.gpus.max(facts.machine.devices.devices.len())
}

fn gpu(facts: &Facts) -> Vec<Found> {
    let (devices, gpus) = (&facts.machine.devices, gpus(facts));
    if gpus == 0 {
        return good(format!("there is none; CUDA driver: {}", devices.driver));
    }
    if facts.driver.is_none() && devices.devices.is_empty() {
        let fix = "install NVIDIA's driver; in a container request nvidia.com/gpu and use NVIDIA's runtime";
        return failure(format!("{gpus} GPUs, but no driver answers; CUDA driver: {}", devices.driver), fix);
    }
    let driver = facts.driver.as_deref().unwrap_or("unknown (no nvidia-smi)");
    let what = format!(
        "{gpus} GPUs ({}), driver {driver}, CUDA driver: {}, peer access: {}",
        devices.devices.join(", "),
        devices.driver,
        devices.peer_access()
    );
    if let Some(nccl) = devices.nccl.version() {
        return good(format!("{what}, NCCL {nccl}"));
    }
    let fix =
        "install libnccl2, or put the folder of Python's nvidia-nccl on LD_LIBRARY_PATH: without it GPUs sum by copies";
    warning(format!("{what}, NCCL: {}", devices.nccl), fix)
}

fn nccl_variables(facts: &Facts) -> Vec<Found> {
    if gpus(facts) == 0 || facts.nccl.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let all = facts.interfaces.join(", ");
    if let Some(wanted) = facts.nccl.get("NCCL_SOCKET_IFNAME").filter(|wanted| !matches_one(wanted, &facts.interfaces))
    {
        let what = format!("NCCL_SOCKET_IFNAME={wanted} matches no interface of this host, which has {all}");
        found.extend(failure(what, "name one that every host has, or unset it"));
    }
    let is_on = |name: &str| facts.nccl.get(name).is_some_and(|value| value.trim() == "1");
    for (name, what) in [
        ("NCCL_P2P_DISABLE", "GPUs of a host do not reach each other's memory"),
        ("NCCL_SHM_DISABLE", "GPUs of a host without peer access send over the network"),
    ] {
        if gpus(facts) > 1 && is_on(name) {
            found.extend(warning(format!("{name} is set: {what}"), format!("unset {name}")));
        }
    }
    if is_on("NCCL_COMM_BLOCKING") {
        let what = "NCCL_COMM_BLOCKING is set: ranks cannot sum by NCCL, which would wait for a lost rank for ever";
        found.extend(warning(what, "unset NCCL_COMM_BLOCKING"));
    }
    if !found.is_empty() {
        return found;
    }
    let set: Vec<String> = facts.nccl.iter().map(|(name, value)| format!("{name}={value}")).collect();
    good(set.join(", "))
}

/// Returns true if NCCL would use one of these interfaces. `wanted` is a list of prefixes; after `=` a list
/// of names; after `^` a list of interfaces to leave out.
fn matches_one(wanted: &str, interfaces: &[String]) -> bool {
    let (leaves_out, rest) = wanted.strip_prefix('^').map_or((false, wanted), |rest| (true, rest));
    let (is_exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
    let is_named = |interface: &String| {
        rest.split(',').any(|name| if is_exact { interface == name } else { interface.starts_with(name) })
    };
    interfaces.iter().any(|interface| is_named(interface) != leaves_out)
}

fn keys(facts: &Facts) -> Vec<Found> {
    let mut found = Vec::new();
    for file in &facts.ssh {
        let (path, mode) = (&file.path, file.mode);
        // OpenSSH checks the modes of files that the user owns.
        if file.is_key && file.owner == facts.uid && mode & 0o077 != 0 {
            let fix = format!("chmod 600 {path}; in a pod of root omit fsGroup");
            found.extend(failure(format!("ssh refuses the key {path}: mode {mode:04o} is too open"), fix));
        }
        if !file.is_key && mode & 0o022 != 0 {
            let what = format!("sshd with StrictModes refuses logins: {path} has mode {mode:04o}");
            let fix = format!("chmod go-w {path}, or set StrictModes no in sshd_config, as for a mounted Secret");
            found.extend(warning(what, fix));
        }
    }
    if facts.ssh.is_empty() {
        good("there are no keys: jobs on this host alone need none")
    } else if found.is_empty() {
        good(format!("{} with modes that ssh accepts", several(facts.ssh.len(), "file")))
    } else {
        found
    }
}

fn own_name(facts: &Facts) -> Vec<Found> {
    let name = &facts.machine.host;
    if let Some(address) = &facts.own_address {
        return good(format!("{name} is {address}"));
    }
    let fix = format!("add {name} with its address to /etc/hosts or to DNS");
    warning(format!("its own name {name} does not resolve"), fix)
}

fn clock(facts: &Facts) -> Vec<Found> {
    let Some((offset, doubt)) = facts.clock else { return Vec::new() };
    let what = format!("its clock differs by {offset:+.2} s (+-{doubt:.2})");
    if offset.abs() - doubt > 1.0 {
        return warning(what, "run chrony or ntpd: otherwise logs and checkpoints of several hosts cannot be ordered");
    }
    good(what)
}
