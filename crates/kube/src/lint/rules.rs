//! The rules: for each its name, its level, and the fault that it finds. The book's page of rules is made
//! from this table.

use serde::Serialize;

/// The level of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LintLevel {
    /// The job would fail, or not do as it says.
    Error,
    /// It works, and costs something or is probably not meant so.
    Warning,
    /// It depends on the image or on the cluster, which the linter does not know.
    Note,
}

use LintLevel::{Error, Note, Warning};

/// A rule.
#[derive(Debug)]
pub struct LintRule {
    /// Its name, which is also its anchor in the book.
    pub name: &'static str,
    /// Its level.
    pub level: LintLevel,
    /// The fault that the rule finds.
    pub finds: &'static str,
}

const fn rule(name: &'static str, level: LintLevel, finds: &'static str) -> LintRule {
    LintRule { name, level, finds }
}

/// Every rule, by the subject of its file.
pub const RULES: &[LintRule] = &[
    rule("yaml", Error, "text that is not YAML, or a key that occurs twice"),
    rule("schema", Error, "a field that the kind does not have, or a value of another type"),
    rule("negative", Error, "a negative number where only a count makes sense"),
    rule("old-version", Error, "an MPIJob of version v1, which no maintained operator runs"),
    rule("name", Error, "a name from which no host name can be made"),
    rule("replica-name", Error, "a role that the operator does not know: it creates no pod of it"),
    rule("no-launcher", Error, "an MPI job without a launcher"),
    rule("launcher-replicas", Error, "more than one launcher, scheduler or chief"),
    rule("no-workers", Error, "a job without a worker"),
    rule("worker-replicas", Error, "replicas missing or below 1"),
    rule("no-container", Error, "a pod without a container"),
    rule("container-name", Error, "no container of the name that the operator sets up"),
    rule("restart-policy", Error, "a restart policy that the operator refuses"),
    rule("pod-restart-policy", Warning, "a restart policy in the pod, which the operator overrides"),
    rule("wrong-word", Error, "a word that the schema accepts and the operator does not know"),
    rule("slots", Error, "no slot for a rank"),
    rule("quantity", Error, "an amount of memory below a mebibyte, such as 512m"),
    rule("gang-deadlock", Error, "a gang of all pods whose launcher waits for the others to run"),
    rule("clean-pods", Note, "workers that stay after the job"),
    rule("idle-gpus", Warning, "GPUs of a launcher without ranks, or of workers that stay after the job"),
    rule("lost-log", Note, "a launcher whose log is deleted when it fails for the last time"),
    rule("mxjob-gone", Note, "an MXJob, which training-operator 1.9 and later do not have"),
    rule("two-users", Error, "a launcher that logs in as another user than the workers' sshd runs as"),
    rule("key-place", Error, "a key of ssh where its user does not look for it"),
    rule("key-mode", Error, "a key of ssh that the client refuses because others may read it"),
    rule("unknown-user", Error, "a user that the image has no name for, so that ssh and sshd refuse it"),
    rule("user-number", Note, "a user that ssh and sshd refuse unless the image has a name for it"),
    rule("no-sshd", Error, "workers that do not answer the launcher's ssh"),
    rule("sshd-capabilities", Error, "root's sshd without the capabilities that it needs"),
    rule("host-port", Error, "sshd on the node's own port of ssh"),
    rule("host-names", Warning, "pods on the nodes' network that do not ask the cluster for names"),
    rule("one-per-node", Warning, "workers on the nodes' network, two of which may meet on one node"),
    rule("probe-port", Error, "a readiness probe of a port on which sshd does not listen"),
    rule("no-probe", Note, "workers that count as ready before their sshd listens"),
    rule("start-race", Note, "mpirun may start before the names of the workers resolve"),
    rule("too-few-slots", Error, "more ranks than slots"),
    rule("idle-slots", Warning, "slots that no rank uses"),
    rule("open-mpi-5", Error, "an image of Open MPI 5, on which all ranks run on the launcher"),
    rule("open-mpi-unknown", Note, "all ranks would run on the launcher if the image had Open MPI 5"),
    rule("mpi-image", Error, "an image of another MPI than mpiImplementation"),
    rule("mpi-options", Error, "options of another MPI than mpiImplementation"),
    rule("worker-env", Warning, "variables of workers, which ranks under ssh do not see"),
    rule("entrypoint-env", Note, "variables of workers that only the image's entrypoint can read"),
    rule("launcher-env", Warning, "variables of the launcher that mpirun does not pass on"),
    rule("operator-env", Warning, "variables that the operator sets itself"),
    rule("as-root", Note, "mpirun as root, which Open MPI refuses unless the image allows it"),
    rule("second-container", Error, "mpirun in a container that is not set up for it"),
    rule("elastic-start", Warning, "an elastic job that does not start before all its workers are ready"),
    rule("elastic-workers", Warning, "workers of an elastic job that do not come back"),
    rule("elastic-memory", Warning, "workers of an elastic job without a volume in memory for its commits"),
    rule("elastic-launcher", Warning, "an elastic job that ends with its launcher, or loses its commits with it"),
    rule("separate-models", Error, "ranks that train separate models, because their store is of one process"),
    rule("default-store", Warning, "an example of ours without --kv-store"),
    rule("store-kind", Error, "a kind of store that does not exist"),
    rule("no-servers", Error, "a kind of store with servers in a job without them"),
    rule("idle-servers", Warning, "servers for a kind of store that has none"),
    rule("volume-name", Error, "a volume named as one of the operator's"),
    rule("mount-without-volume", Error, "a mount of a volume that the pod does not have"),
    rule("duplicate-mount", Error, "two mounts at one path, or two volumes of one name"),
    rule("unused-claim", Warning, "a claim that no container mounts"),
    rule("two-paths", Error, "a claim at one path in the launcher and at another in the workers"),
    rule("read-only-root", Error, "a read-only root file system without a place for temporary files"),
    rule("host-path", Note, "a folder of the node"),
    rule("shell-variable", Warning, "a variable such as $PATH in a value, which nothing expands"),
    rule("fractional-device", Error, "a part of a device"),
    rule("device-request", Error, "a device whose request is not its limit, or another request above its limit"),
    rule("launcher-gpu", Error, "ranks in a launcher without GPUs, beside workers with GPUs"),
    rule("gpu-slots", Warning, "another number of ranks than GPUs in a worker"),
    rule("dev-shm", Warning, "64 MiB of shared memory for several GPUs or many ranks"),
    rule("shm-limit", Warning, "a volume in memory that may grow above the limit of memory"),
    rule("memlock", Note, "an RDMA device in a container that may not lock memory"),
    rule("two-images", Warning, "launcher and workers with different images"),
    rule("trainer-ignored", Error, "a trainer of a TrainJob that no job of its runtime takes"),
    rule("mesh", Note, "pods that a service mesh may join"),
    rule("pod-security", Error, "what the level of --pod-security does not allow"),
];

/// The rule of this name.
pub fn rule_of(name: &str) -> Option<&'static LintRule> {
    RULES.iter().find(|rule| rule.name == name)
}
