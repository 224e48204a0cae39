//! What the facts of one host mean for a job.

use super::Finding;
use super::facts::Facts;

/// What Docker and Kubernetes give a container.
const SMALL_SHM: u64 = 64 << 20;
/// Below this a rank's own segment does not fit.
const NEEDED_SHM: u64 = 16 << 20;

/// Everything that can be said of a host alone.
pub(super) fn host(facts: &Facts) -> Vec<Finding> {
    let checks = [mpi, threads, root, slots, shared_memory, memory_of_peers, locked_memory, gpu, keys, own_name, clock];
    checks.iter().flat_map(|check| check(facts)).collect()
}

fn mpi(facts: &Facts) -> Vec<Finding> {
    let at = &facts.called;
    let Some(mpirun) = &facts.machine.mpirun else {
        let fix = "install Open MPI or MPICH (scripts/setup does), or name one with RINGPULL_MPIRUN";
        return vec![Finding::failure("mpi", at, "there is no mpirun on the PATH", fix)];
    };
    let Some(library) = &facts.machine.mpi_library else {
        let fix = "build with the mpi feature for dist_sync_mpi; local and the kinds with servers work";
        return vec![Finding::warning("mpi", at, "this program was built without MPI", fix)];
    };
    if let Some(cause) = &facts.probe_failure {
        let fix = if cause.contains("root") {
            "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or run as a user"
        } else {
            "run `mpirun -n 2 hostname` and mend what it says"
        };
        return vec![Finding::failure("mpi", at, format!("mpirun cannot start two ranks: {cause}"), fix)];
    }
    if facts.probe.iter().any(|rank| rank.size != facts.probe.len()) {
        let what = format!("{mpirun} started ranks that do not see each other: this program has {library}");
        let fix = "use the mpirun of the MPI that the program was built with (RINGPULL_MPIRUN), or build anew";
        return vec![Finding::failure("mpi", at, what, fix)];
    }
    vec![Finding::good("mpi", at, format!("{mpirun}, with {library}"))]
}

fn threads(facts: &Facts) -> Vec<Finding> {
    let Some(rank) = facts.probe.first() else { return Vec::new() };
    let what = format!("MPI gives threads at level {}", rank.level);
    if rank.level == "single" {
        let fix = "build MPI with threads; the store calls it from a thread of its own";
        return vec![Finding::failure("threads", &facts.called, what, fix)];
    }
    vec![Finding::good("threads", &facts.called, what)]
}

fn root(facts: &Facts) -> Vec<Finding> {
    let open_mpi = facts.machine.mpirun.as_ref().is_some_and(|words| words.contains("Open MPI"));
    if facts.uid == 0 && open_mpi && !facts.root_allowed {
        let fix = "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; `ringpull launch` does";
        return vec![Finding::warning("root", &facts.called, "a plain mpirun refuses to run as root", fix)];
    }
    vec![Finding::good("root", &facts.called, format!("uid {} may run mpirun", facts.uid))]
}

fn slots(facts: &Facts) -> Vec<Finding> {
    let what = format!("{} slots on {} cores", facts.slots, facts.machine.cores);
    if facts.slots > facts.machine.cores {
        let fix = format!("write slots={} in the hostfile, unless ranks are to share cores", facts.machine.cores);
        return vec![Finding::warning("slots", &facts.called, what, fix)];
    }
    vec![Finding::good("slots", &facts.called, what)]
}

fn shared_memory(facts: &Facts) -> Vec<Finding> {
    let at = &facts.called;
    let fix = "docker run --shm-size 8g; in Kubernetes an emptyDir {medium: Memory} at /dev/shm (ringpull manifest --shm 8Gi)";
    let Some((size, free)) = facts.shared_memory else {
        return vec![Finding::failure("shared memory", at, "there is no /dev/shm", fix)];
    };
    let mib = |bytes: u64| bytes >> 20;
    let what = format!("/dev/shm has {} MiB, {} MiB free", mib(size), mib(free));
    if free < NEEDED_SHM {
        return vec![Finding::failure("shared memory", at, what, fix)];
    }
    if size <= SMALL_SHM && (facts.gpus > 1 || facts.slots > 8) {
        return vec![Finding::failure("shared memory", at, format!("{what}: NCCL and many ranks need more"), fix)];
    }
    if size <= SMALL_SHM {
        return vec![Finding::warning("shared memory", at, what, fix)];
    }
    vec![Finding::good("shared memory", at, what)]
}

fn memory_of_peers(facts: &Facts) -> Vec<Finding> {
    let at = &facts.called;
    if facts.ptrace_scope > 0 && !facts.may_trace {
        let what = format!("ranks of this host cannot read each other's memory (ptrace_scope {})", facts.ptrace_scope);
        let fix = if facts.in_container {
            "add the capability SYS_PTRACE for large messages between ranks of a pod; without it they are copied twice"
        } else {
            "sysctl kernel.yama.ptrace_scope=0 for large messages between ranks of a host; without it they are copied twice"
        };
        return vec![Finding::warning("single copy", at, what, fix)];
    }
    vec![Finding::good("single copy", at, "ranks of this host may read each other's memory")]
}

fn locked_memory(facts: &Facts) -> Vec<Finding> {
    let at = &facts.called;
    let limit = facts.locked_memory.map_or("no limit".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    if facts.rdma.is_empty() {
        return vec![Finding::good("locked memory", at, format!("{limit}; there is no RDMA device"))];
    }
    let what = format!("{limit} of locked memory for {}", facts.rdma.join(", "));
    if facts.locked_memory.is_some_and(|bytes| bytes < 1 << 30) {
        let fix =
            "ulimit -l unlimited on the node (LimitMEMLOCK=infinity of its container runtime), and IPC_LOCK in the pod";
        return vec![Finding::failure("locked memory", at, what, fix)];
    }
    vec![Finding::good("locked memory", at, what)]
}

fn gpu(facts: &Facts) -> Vec<Finding> {
    let at = &facts.called;
    if facts.gpus == 0 {
        return vec![Finding::good("gpu", at, format!("there is none; CUDA driver: {}", facts.machine.devices.driver))];
    }
    let Some(driver) = &facts.driver else {
        let fix = "install NVIDIA's driver; in a container ask for nvidia.com/gpu and use NVIDIA's runtime";
        let what = format!("{} GPUs, but no driver answers; CUDA driver: {}", facts.gpus, facts.machine.devices.driver);
        return vec![Finding::failure("gpu", at, what, fix)];
    };
    let what = format!(
        "{} GPUs ({}), driver {driver}, CUDA driver: {}, peer access: {}",
        facts.gpus,
        facts.machine.devices.devices.join(", "),
        facts.machine.devices.driver,
        facts.machine.devices.peer_access()
    );
    if let Some(nccl) = facts.machine.devices.nccl.version() {
        return vec![Finding::good("gpu", at, format!("{what}, NCCL {nccl}"))];
    }
    let fix =
        "install libnccl2, or put the folder of Python's nvidia-nccl on LD_LIBRARY_PATH: without it GPUs sum by copies";
    vec![Finding::warning("gpu", at, format!("{what}, NCCL: {}", facts.machine.devices.nccl), fix)]
}

fn keys(facts: &Facts) -> Vec<Finding> {
    let at = &facts.called;
    let mut found = Vec::new();
    for file in &facts.ssh {
        // OpenSSH looks at the modes of files that the user owns.
        if file.is_key && file.owner == facts.uid && file.mode & 0o077 != 0 {
            let what = format!("ssh refuses the key {}: mode {:04o} is too open", file.path, file.mode);
            let fix = format!("chmod 600 {}; in a pod of root leave fsGroup out", file.path);
            found.push(Finding::failure("ssh", at, what, fix));
        }
        if !file.is_key && file.mode & 0o022 != 0 {
            let what = format!("sshd with StrictModes refuses logins: {} has mode {:04o}", file.path, file.mode);
            let fix = format!("chmod go-w {}, or StrictModes no in sshd_config, as for a mounted Secret", file.path);
            found.push(Finding::warning("ssh", at, what, fix));
        }
    }
    if found.is_empty() {
        found.push(Finding::good("ssh", at, format!("{} files with modes that ssh takes", facts.ssh.len())));
    }
    found
}

fn own_name(facts: &Facts) -> Vec<Finding> {
    let at = &facts.called;
    match &facts.own_address {
        None => {
            let what = format!("its own name {} does not resolve", facts.machine.host);
            let fix = format!("add {} with its address to /etc/hosts or to DNS", facts.machine.host);
            vec![Finding::warning("name", at, what, fix)]
        }
        Some(address) => vec![Finding::good("name", at, format!("{} is {address}", facts.machine.host))],
    }
}

fn clock(facts: &Facts) -> Vec<Finding> {
    let Some((offset, doubt)) = facts.clock else { return Vec::new() };
    let what = format!("its clock differs by {offset:+.2} s (+-{doubt:.2})");
    if offset.abs() - doubt > 1.0 {
        let fix = "run chrony or ntpd: logs and checkpoints of different hosts cannot be put in order";
        return vec![Finding::warning("clock", &facts.called, what, fix)];
    }
    vec![Finding::good("clock", &facts.called, what)]
}
