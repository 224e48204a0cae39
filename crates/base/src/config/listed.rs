//! The variables of the environment with their meaning: for the book, and for the check of misspelt names.
//! They are read in [`config`](super).

/// A variable that processes of a job read, or that `ringpull launch` sets for them.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its default in Markdown; empty if it has none.
    pub default: &'static str,
    /// The meaning of the variable, in Markdown.
    pub meaning: &'static str,
}

const fn variable(name: &'static str, default: &'static str, meaning: &'static str) -> Variable {
    Variable { name, default, meaning }
}

/// All of them, in the order of the book.
pub const VARIABLES: [Variable; 43] = [
    variable(
        "RINGPULL_WARN",
        "30",
        "seconds after which a rank that others wait for is named in a warning, with the key and, from \
         Python, the line where it is; again each time the wait has doubled",
    ),
    variable(
        "RINGPULL_TIMEOUT",
        "1800",
        "seconds after which a rank that lives, and for which others wait, is an error on every rank; 0: \
         never; 0.1 to 1e9. At the start of a job with servers 20 s are added",
    ),
    variable(
        "RINGPULL_SILENCE",
        "30",
        "seconds without a heartbeat after which a process counts as lost; if `RINGPULL_TIMEOUT` is \
         shorter, that holds. A process that has ended counts as lost at once. A connection that breaks is \
         made again",
    ),
    variable(
        "RINGPULL_LOG",
        "`ringpull=warn`",
        "the log of the command and of Python on stderr, in `tracing`'s syntax; with `ringpull=debug` \
         Python prints whole tracebacks",
    ),
    variable(
        "RINGPULL_QUIET",
        "0",
        "1: a job begins without the line on stderr that says where its ranks are; `ringpull launch --quiet` \
         sets it",
    ),
    variable(
        "RINGPULL_ALGORITHM",
        "`auto`",
        "`ring`, `direct`, `circulant`, `doubling`, `star`, `tree` or `native` for every allreduce of a \
         store; `ordered`: every element is added in the order of the ranks, so sums in host memory have \
         the same bits wherever the ranks run, after a restart, and on servers. On one host it costs \
         nothing. On several it is slower: each of `n` ranks moves `n/(n-1)` times the bytes of a ring, \
         and ranks of one host exchange messages instead of sharing memory. `nccl`: tensors on GPUs by \
         NCCL between ranks too, or an error; the rest as by `auto`, which measures whether it pays",
    ),
    variable(
        "RINGPULL_CLUSTER",
        "",
        "the [cluster file](cluster-file.md) that `auto` goes by, or `none`; rank 0's setting counts. Unset: \
         the one that `ringpull probe` has put into the user's cache for these hosts. Without a file the same \
         constants count everywhere: those of links of 3.2 Gbit/s, all alike. A start measures nothing",
    ),
    variable("RINGPULL_SEGMENT", "", "bytes of every message of an allreduce; unset, `auto` chooses, at most 262144"),
    variable(
        "XDG_CACHE_HOME",
        "`~/.cache`",
        "the folder under which `ringpull/cluster-*.toml` keeps what `ringpull probe` has measured, of the \
         latest 32 sets of hosts",
    ),
    variable(
        "RINGPULL_FUSION_BYTES",
        "",
        "short gradients that follow each other in every step are summed together, up to this many bytes. \
         Unset: what the network carries in a few latencies, at most 1048576. 0: each by itself",
    ),
    variable(
        "RINGPULL_DEVICES",
        "",
        "`cuda`, `cuda:0,2` or `sim:4`: the devices of the device kinds (all GPUs if unset) and of \
         `dist_sync_mpi` (host memory if unset)",
    ),
    variable(
        "RINGPULL_MPI_DEVICE_MEMORY",
        "`auto`",
        "gives MPI the memory of devices: `auto` if the MPI library takes it, 0 never, 1 always",
    ),
    variable(
        "RINGPULL_ROLE",
        "`worker`",
        "`helper`: this rank of an MPI job runs no program of its own and only reduces for the workers; set \
         by `ringpull launch --helpers`, or for a part of the job of a plain `mpirun`",
    ),
    variable(
        "RINGPULL_SHARED_MEMORY",
        "1",
        "0 (or `false`, `no`, `off`): ranks of one host exchange messages, as ranks of different hosts do",
    ),
    variable(
        "RINGPULL_READ_MEMORY",
        "`auto`",
        "lets ranks of one host read and write the memory of each other's processes, as the system allows \
         them (`process_vm_readv`): `auto` for two ranks of a host and for ranks that outnumber the cores, 0 \
         never, 1 always. It is for values that other libraries have allocated; else they go through a shared \
         window in pieces",
    ),
    variable(
        "RINGPULL_RACK",
        "",
        "name of the rack of this host; used if every rank has one and there are two. Slurm's topology is used if \
         it is known, and else the racks of the [cluster file](cluster-file.md)",
    ),
    variable(
        "RINGPULL_CHECK_NAN",
        "0",
        "1 (or `true`, `yes`, `on`): a pushed NaN or Inf is an error that names rank and key",
    ),
    variable(
        "RINGPULL_CHECK_REPLICAS",
        "0",
        "K: the ranks of `dist_sync_mpi` compare a hash of what each K-th update of a key gave. They do so \
         when the key is updated next. A difference is an error on every rank, which names the key and the \
         ranks. 0: never. If the program's own arrays hold the values \
         (`keep=False`, MXNet, PyTorch), the sums are compared. With servers it does nothing, since they \
         keep one copy. With values on devices it is an error",
    ),
    variable(
        "RINGPULL_ELASTIC",
        "0",
        "1: the ranks of `dist_sync_mpi` go on without one that is lost, and sum what was not done again. It \
         takes Open MPI 5 under `mpirun --with-ft ulfm`; where that is missing, a notice says so. A job of \
         `dist_sync` or `dist_async` goes on without lost workers, and others may come. Set it alike on every \
         process; `ringpull launch --elastic` does so with servers",
    ),
    variable(
        "RINGPULL_TIMELINE",
        "",
        "the file to which each process writes what it did when, as a Chrome trace; its folder is created",
    ),
    variable(
        "RINGPULL_RECORD",
        "",
        "a folder where each worker writes what it calls of its first store, and when: a line of JSON for each \
         call, in `worker-RANK.jsonl`. `ringpull differ` sets it",
    ),
    variable(
        "RINGPULL_RECORD_VALUES",
        "",
        "with `RINGPULL_RECORD`: the hash of each gradient and value is recorded too, and in `worker-RANK.values` \
         that many bytes of values at most",
    ),
    variable(
        "RINGPULL_METRICS",
        "",
        "a port, or ADDRESS:PORT, at which rank 0 of a job serves `/metrics` (Prometheus), `/status`, \
         `/health` and `/ready`, all read-only. Unset: nothing is served. A port without an address is opened \
         at 127.0.0.1 only",
    ),
    variable(
        "RINGPULL_MPIRUN",
        "`mpirun`",
        "the `mpirun` that `compare` and `launch` use; unset, the one beside the command comes before that of the `PATH`",
    ),
    variable("RINGPULL_MPI", "", "the MPI to use: its library (`libmpi.so.40`, `libmpi.so.12`), its folder, or `none`"),
    variable(
        "RINGPULL_MEETING",
        "",
        "`ADDR:PORT` if `MASTER_ADDR` and `MASTER_PORT`, by which PyTorch's backends find rank 0, are those that `ringpull launch` has \
         chosen; `launch` sets it",
    ),
    variable(
        "RINGPULL_LOCAL_WORKERS",
        "",
        "workers on this host, among which the example shares its cores; `launch` sets it",
    ),
    variable(
        "RINGPULL_SNAPSHOTS",
        "",
        "the folder of each host in which the ranks of an elastic job keep snapshots of their state; \
         `ringpull launch --elastic` sets it and removes the folder",
    ),
    variable(
        "RINGPULL_GENERATION",
        "",
        "the number of earlier starts of an elastic job; `ringpull launch --elastic` sets it",
    ),
    variable(
        "RINGPULL_MIN_WORKERS",
        "1",
        "the fewest ranks of an elastic job that go on without lost ones, in their processes; \
         `ringpull launch --elastic --in-place` sets it",
    ),
    variable("RINGPULL_SSH", "`ssh`", "the ssh that `launch` uses"),
    variable(
        "RINGPULL_SECRET",
        "",
        "a secret of at least 16 characters, which the nodes of a job with servers share. `launch` and \
         `compare` make one for each job and pass it on without showing it in arguments. Without one \
         anybody who reaches the scheduler may join, and the scheduler warns of that. Ranks of \
         `dist_sync_mpi` need none: rank 0 makes one, and MPI carries it",
    ),
    variable(
        "RINGPULL_SECRET_FILE",
        "",
        "the file that holds it, such as a mounted Secret of Kubernetes, if `RINGPULL_SECRET` is not set",
    ),
    variable(
        "DMLC_ROLE",
        "`worker`",
        "the role of a process in a job with servers: `worker`, `server` or `scheduler`. `ringpull launch` \
         sets this and the six that follow",
    ),
    variable("DMLC_PS_ROOT_URI", "", "the host or address on which the scheduler listens"),
    variable("DMLC_PS_ROOT_PORT", "", "the port on which the scheduler listens"),
    variable("DMLC_NUM_WORKER", "", "the number of workers, at least 1"),
    variable("DMLC_NUM_SERVER", "", "the number of servers, at least 1"),
    variable(
        "DMLC_NODE_HOST",
        "",
        "the address of this host as the others reach it; unset, that of the route to the scheduler",
    ),
    variable("DMLC_RANK", "", "the rank that a worker would like; unset, the order of arrival decides"),
    variable("MXNET_KVSTORE_BIGARRAY_BOUND", "1000000", "elements from which a key is split over all servers"),
    variable("PS_HEARTBEAT_INTERVAL", "1", "seconds between heartbeats of a job with servers"),
    variable("PS_HEARTBEAT_TIMEOUT", "30", "the name that ps-lite has for `RINGPULL_SILENCE`, which takes precedence"),
];
