//! The description of a job: the options of `ringpull manifest`, and the kinds of job that use each option.
//! `check` checks that the options fit together.

use std::collections::BTreeMap;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, ValueEnum as _};
use serde_json::Value;

use ringpull_base::{Error, Result};

use crate::names::is_qualified;
use crate::quantity::Quantity;

/// The kind of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum JobKind {
    /// An MPIJob that trains by allreduce.
    Train,
    /// An MPIJob that compares allreduce and parameter servers on its pods.
    Compare,
    /// An MPIJob of scheduler, servers and workers.
    Ps,
    /// A Job of one process.
    Job,
    /// A TrainingRuntime and a TrainJob of Kubeflow Trainer 2.
    Trainjob,
    /// An MXJob: scheduler, servers and workers where training-operator 1.8 or earlier runs.
    Mxjob,
    /// A TFJob of workers, and of parameter servers if --servers is given.
    Tfjob,
    /// The PersistentVolumeClaim that jobs mount. It is a separate object, so deleting a job keeps the claim.
    Claim,
    /// A NetworkPolicy: only pods of the job may connect to its pods.
    NetworkPolicy,
}

use JobKind::{Claim, Compare, Job, Mxjob, NetworkPolicy, Ps, Tfjob, Train, Trainjob};

pub(super) const ALL: &[JobKind] = &[Train, Compare, Ps, Job, Trainjob, Mxjob, Tfjob, Claim, NetworkPolicy];
/// Kinds with pods.
pub(super) const PODS: &[JobKind] = &[Train, Compare, Ps, Job, Trainjob, Mxjob, Tfjob];
const SEVERAL: &[JobKind] = &[Train, Compare, Ps, Trainjob, Mxjob, Tfjob];
const MPI: &[JobKind] = &[Train, Compare, Ps, Trainjob];
const MPIJOBS: &[JobKind] = &[Train, Compare, Ps];

/// The kinds that use each option, by groups of kinds. Given to another kind, an option is an error.
const GROUPS: [(&[JobKind], &str); 11] = [
    (ALL, "name namespace label patch"),
    (&[Train, Compare, Ps, Job, Trainjob, Mxjob, Tfjob, Claim], "claim"),
    (&[Claim], "claim-size storage-class"),
    (
        PODS,
        "mount image pull-policy pull-secret annotation kueue suspend ttl deadline backoff-limit cpus \
     memory request-cpu request-memory gpus gpu-resource rdma rdma-network shm non-root host-network \
     node-selector toleration affinity-file priority-class service-account env env-from command",
    ),
    (SEVERAL, "workers gang"),
    (&[Train, Compare, Ps, Mxjob, Tfjob], "queue"),
    (MPI, "slots"),
    (&[Ps, Mxjob, Tfjob], "servers"),
    (&[Train, Compare, Ps, Mxjob], "launcher-cpus launcher-memory"),
    (MPIJOBS, "launcher-works"),
    (&[Train], "min-workers max-workers"),
];

/// Every option, with the kinds that use it.
pub(super) fn used_by() -> impl Iterator<Item = (&'static str, &'static [JobKind])> {
    GROUPS.into_iter().flat_map(|(kinds, options)| options.split(' ').map(move |option| (option, kinds)))
}

/// A scheduler that starts all pods of a job at the same time, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Gang {
    /// Volcano.
    Volcano,
    /// The coscheduling plugin of scheduler-plugins.
    SchedulerPlugins,
}

/// The policy by which a node pulls the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
pub enum PullPolicy {
    /// If the node does not have it.
    IfNotPresent,
    /// Before each start.
    Always,
    /// Never: nodes have it already.
    Never,
}

/// The level of Pod Security that a job passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum PodSecurity {
    /// Namespaces without restrictions.
    Privileged,
    /// Namespaces that enforce `baseline`.
    Baseline,
    /// Namespaces that enforce `restricted`.
    Restricted,
}

/// The largest count that an object of Kubernetes can have.
const MOST: i64 = i32::MAX as i64;

/// The documents of a YAML file.
#[derive(Debug, Clone, PartialEq)]
pub struct Documents(pub Vec<Value>);

/// The description of a job, by options.
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub struct Request {
    /// The kind of job.
    #[arg(skip = JobKind::Job)]
    pub kind: JobKind,
    /// The options that were given, each with its word on the command line.
    #[arg(skip)]
    pub given: BTreeMap<String, String>,
    /// The name of the job; the names of its pods follow from it.
    #[arg(long, default_value = "ringpull")]
    pub name: String,
    /// The namespace [default: the context's].
    #[arg(long)]
    pub namespace: Option<String>,
    /// The image built from mpijob/Dockerfile, or one that is built like it.
    #[arg(long, default_value = "ringpull:latest")]
    pub image: String,
    /// The policy by which a node pulls the image.
    #[arg(long, value_enum, default_value = "if-not-present")]
    pub pull_policy: PullPolicy,
    /// A Secret with which nodes pull the image.
    #[arg(long, value_name = "SECRET")]
    pub pull_secret: Vec<String>,
    /// The number of worker pods.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=MOST))]
    pub workers: u32,
    /// The number of servers; 0 means the number of workers for ps and mxjob, and none for tfjob.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=MOST))]
    pub servers: u32,
    /// Ranks in each worker [default: one for each GPU, or 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=MOST))]
    pub slots: Option<u32>,
    /// GPUs of each worker, as nvidia.com/gpu.
    #[arg(long, default_value_t = 0)]
    pub gpus: u32,
    /// GPUs of each worker, by the name of their resource, such as amd.com/gpu=2.
    #[arg(long, value_name = "NAME=COUNT", value_parser = device, conflicts_with = "gpus")]
    pub gpu_resource: Option<(String, u32)>,
    /// The limit of cores of each worker, such as 4 or 500m.
    #[arg(long, value_parser = Quantity::cpus)]
    pub cpus: Option<Quantity>,
    /// The limit of memory of each worker, such as 8Gi.
    #[arg(long, value_parser = Quantity::memory)]
    pub memory: Option<Quantity>,
    /// The cores that are reserved for each worker [default: the limit, or 1].
    #[arg(long, value_name = "CPUS", value_parser = Quantity::cpus)]
    pub request_cpu: Option<Quantity>,
    /// The memory that is reserved for each worker [default: the limit, or 1Gi].
    #[arg(long, value_name = "MEMORY", value_parser = Quantity::memory)]
    pub request_memory: Option<Quantity>,
    /// The limit of cores of the launcher or scheduler.
    #[arg(long, value_parser = Quantity::cpus)]
    pub launcher_cpus: Option<Quantity>,
    /// The limit of memory of the launcher or scheduler.
    #[arg(long, value_parser = Quantity::memory)]
    pub launcher_memory: Option<Quantity>,
    /// Run ranks in the launcher's pod too (runLauncherAsWorker).
    #[arg(long)]
    pub launcher_works: bool,
    /// Run as uid 1000 with every capability dropped: passes Pod Security `restricted`. Without this option a
    /// job passes `baseline`; with --rdma (except EFA) or --host-network it needs a `privileged` namespace.
    #[arg(long)]
    pub non_root: bool,
    /// Start all pods together, or none.
    #[arg(long, value_enum)]
    pub gang: Option<Gang>,
    /// The queue of the gang scheduler.
    #[arg(long)]
    pub queue: Option<String>,
    /// The local queue of Kueue that admits the job.
    #[arg(long, value_name = "QUEUE")]
    pub kueue: Option<String>,
    /// Make the job elastic, with at least this number of workers. When workers are lost or added, it starts
    /// again on the present workers, from its last commit in their memory. The commits of each worker may
    /// take 8Gi, or half of --memory.
    #[arg(long, value_name = "N")]
    pub min_workers: Option<u32>,
    /// The largest number of workers of an elastic job, however many replicas are added [default: all].
    #[arg(long, value_name = "N", requires = "min_workers", value_parser = clap::value_parser!(u32).range(..=MOST))]
    pub max_workers: Option<u32>,
    /// The RDMA resource of each worker, such as rdma/ib, `rdma/hca_shared_devices_a=1` or
    /// vpc.amazonaws.com/efa=4 [default count: 1].
    #[arg(long, value_name = "NAME[=COUNT]", value_parser = device)]
    pub rdma: Option<(String, u32)>,
    /// The Multus network of the RDMA device.
    #[arg(long, value_name = "NETWORK")]
    pub rdma_network: Option<String>,
    /// The size of /dev/shm [default with GPUs: 8Gi, or half of --memory; else the runtime's 64Mi].
    #[arg(long, value_name = "SIZE", value_parser = Quantity::memory)]
    pub shm: Option<Quantity>,
    /// A PersistentVolumeClaim to mount in every pod, or the one to write.
    #[arg(long, value_name = "CLAIM")]
    pub claim: Option<String>,
    /// The path at which the claim is mounted.
    #[arg(long, default_value = "/train", requires = "claim")]
    pub mount: String,
    /// The size of the claim, which is ReadWriteMany.
    #[arg(long, value_name = "SIZE", value_parser = Quantity::memory)]
    pub claim_size: Option<Quantity>,
    /// The claim's storage class, such as rook-cephfs [default: the cluster's].
    #[arg(long, value_name = "CLASS")]
    pub storage_class: Option<String>,
    /// Use the nodes' network, with one worker per node.
    #[arg(long)]
    pub host_network: bool,
    /// Run on nodes with this label.
    #[arg(long, value_name = "LABEL=VALUE", value_parser = pair)]
    pub node_selector: Vec<(String, String)>,
    /// Run on nodes with this taint too.
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]", value_parser = toleration)]
    pub toleration: Vec<Value>,
    /// A YAML file with the pods' `affinity`.
    #[arg(long, value_name = "FILE", value_parser = documents_of)]
    pub affinity_file: Option<Documents>,
    /// The priority class of the pods.
    #[arg(long, value_name = "CLASS")]
    pub priority_class: Option<String>,
    /// The service account of the pods; its token is not mounted.
    #[arg(long, value_name = "ACCOUNT")]
    pub service_account: Option<String>,
    /// A label of every object and pod.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub label: Vec<(String, String)>,
    /// An annotation of every pod.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub annotation: Vec<(String, String)>,
    /// A variable for every rank.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// All keys of a ConfigMap or a Secret as variables of every rank.
    #[arg(long, value_name = "configmap/NAME|secret/NAME", value_parser = env_from)]
    pub env_from: Vec<(&'static str, String)>,
    /// The largest number of restarts of a failed job. With a checkpoint the job resumes from the checkpoint.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(..=MOST))]
    pub backoff_limit: u32,
    /// End the job after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub deadline: Option<u32>,
    /// Delete the finished job after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=MOST))]
    pub ttl: Option<u32>,
    /// Create the job without starting it.
    #[arg(long)]
    pub suspend: bool,
    /// A YAML file whose objects are merged into those of the same kind (strategic merge); an unknown field
    /// is an error.
    #[arg(long, value_name = "FILE", value_parser = documents_of)]
    pub patch: Vec<Documents>,
    /// The command that every rank runs.
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// A request as it is read from a command line. It records which options were given. The help of an option
/// has a note if only some kinds use this option.
#[derive(Debug)]
pub struct JobRequest(pub Request);

impl clap::FromArgMatches for JobRequest {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut request = <Request as clap::FromArgMatches>::from_arg_matches(matches)?;
        for (option, _) in used_by().filter(|(option, _)| is_given(matches, option)) {
            let word = if option == "command" { "the command".to_owned() } else { format!("--{option}") };
            request.given.insert(option.to_owned(), word);
        }
        Ok(JobRequest(request))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn is_given(matches: &ArgMatches, option: &str) -> bool {
    let id = option.replace('-', "_");
    let known = matches.ids().any(|known| known.as_str() == id);
    known && matches.value_source(&id) == Some(ValueSource::CommandLine)
}

impl clap::Args for JobRequest {
    fn augment_args(command: clap::Command) -> clap::Command {
        <Request as clap::Args>::augment_args(command).mut_args(|arg| {
            let kinds = used_by().find(|(option, _)| Some(*option) == arg.get_long());
            match (kinds.map(|(_, kinds)| kinds), arg.get_help().cloned()) {
                (Some(kinds), Some(help)) if kinds != ALL && kinds != PODS => {
                    arg.help(format!("{help} ({})", names(kinds)))
                }
                _ => arg,
            }
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

pub(super) fn names(kinds: &[JobKind]) -> String {
    kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE")?;
    if name.is_empty() { Err("give NAME=VALUE".to_owned()) } else { Ok((name.to_owned(), value.to_owned())) }
}

fn device(text: &str) -> Result<(String, u32), String> {
    let (name, count) = text.split_once('=').unwrap_or((text, "1"));
    let count = count.parse().ok().filter(|count| *count > 0).ok_or("give NAME=COUNT with a COUNT of at least 1")?;
    if name.contains('/') && is_qualified(name) {
        return Ok((name.to_owned(), count));
    }
    Err(format!("{name} is not the name of a device's resource: give one with its domain, such as rdma/ib"))
}

fn toleration(text: &str) -> Result<Value, String> {
    let (rest, effect) = text.rsplit_once(':').map_or((text, None), |(rest, effect)| (rest, Some(effect)));
    if effect.is_some_and(|effect| !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect)) {
        return Err("the effect is NoSchedule, PreferNoSchedule or NoExecute".to_owned());
    }
    let (key, value) = rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
    if !is_qualified(key) {
        return Err("give KEY, KEY=VALUE or KEY=VALUE:EFFECT, such as nvidia.com/gpu:NoSchedule".to_owned());
    }
    let operator = if value.is_some() { "Equal" } else { "Exists" };
    Ok(serde_json::json!({ "key": key, "operator": operator, "value": value, "effect": effect }))
}

/// Returns the field of a container's `envFrom`, and the name for it.
fn env_from(text: &str) -> Result<(&'static str, String), String> {
    match text.split_once('/') {
        Some(("configmap", name)) if !name.is_empty() => Ok(("configMapRef", name.to_owned())),
        Some(("secret", name)) if !name.is_empty() => Ok(("secretRef", name.to_owned())),
        _ => Err("give configmap/NAME or secret/NAME".to_owned()),
    }
}

fn documents_of(path: &str) -> Result<Documents, String> {
    let text = std::fs::read_to_string(Path::new(path)).map_err(|cause| format!("cannot be read: {cause}"))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
        .map_err(|cause| cause.to_string().lines().next().unwrap_or("").to_owned())?;
    if documents.is_empty() { Err("the file is empty".to_owned()) } else { Ok(Documents(documents)) }
}

/// The uid, gid and group of files of a job that does not run as root: the image's `mpiuser`.
pub const USER: u32 = 1000;
/// The port on which the image's sshd listens, as root or as another user.
pub const SSH_PORT: u16 = 2222;
impl Request {
    /// A job of this kind with the default of each option.
    #[cfg(any(test, fuzzing))]
    pub fn new(kind: JobKind) -> Self {
        use clap::{Args as _, FromArgMatches as _};
        let defaults = Self::augment_args(clap::Command::new("job")).get_matches_from(["job"]);
        Request { kind, ..Self::from_arg_matches(&defaults).expect("every option has a default") }
    }

    /// The size of /dev/shm, `None` for the runtime's 64 MiB. It counts towards the limit of memory.
    pub fn shm(&self) -> Option<Quantity> {
        self.shm.clone().or_else(|| self.gpu().and_then(|_| self.share_of_memory()))
    }

    /// The size of the volume for an elastic job's commits. It counts towards the limit of memory too.
    pub(crate) fn snapshots(&self) -> Option<Quantity> {
        self.min_workers.and_then(|_| self.share_of_memory())
    }

    fn share_of_memory(&self) -> Option<Quantity> {
        let roomy = 8.0 * 1024.0 * 1024.0 * 1024.0;
        let mebibytes = |bytes: f64| Quantity::memory(&format!("{}Mi", (bytes / 1024.0 / 1024.0) as u64)).ok();
        match &self.memory {
            Some(memory) if memory.value() < 2.0 * roomy => mebibytes(memory.value() / 2.0),
            _ => Quantity::memory("8Gi").ok(),
        }
    }

    /// The resource of each worker's GPUs, and their number.
    pub fn gpu(&self) -> Option<(&str, u32)> {
        let other = self.gpu_resource.as_ref().map(|(name, count)| (name.as_str(), *count));
        other.or((self.gpus > 0).then_some(("nvidia.com/gpu", self.gpus)))
    }

    /// Ranks in a worker pod.
    pub fn slots(&self) -> u32 {
        self.slots.unwrap_or(self.gpu().map_or(1, |(_, count)| count))
    }

    /// Servers of a kind that has them: by default as many as workers.
    pub fn servers(&self) -> u32 {
        if self.servers == 0 { self.workers } else { self.servers }
    }

    /// Returns true if the container needs the right to lock memory, because its device registers memory.
    /// AWS's plugin for EFA sets the limit itself.
    pub(crate) fn locks_memory(&self) -> bool {
        self.rdma.as_ref().is_some_and(|(name, _)| !name.ends_with("/efa"))
    }

    /// The level of Pod Security that the job's pods pass.
    pub fn pod_security(&self) -> PodSecurity {
        if self.host_network || self.locks_memory() {
            PodSecurity::Privileged
        } else if self.non_root {
            PodSecurity::Restricted
        } else {
            PodSecurity::Baseline
        }
    }
}

impl JobKind {
    /// The name of the subcommand that writes this kind.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

pub(super) fn wrong(what: impl Into<String>, remedy: impl Into<String>) -> Result<()> {
    Err(Error::argument(what, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_in_the_list_of_what_kinds_use() {
        use clap::Args as _;
        let command = Request::augment_args(clap::Command::new("job"));
        for arg in command.get_arguments() {
            let name = arg.get_id().as_str().replace('_', "-");
            assert!(used_by().any(|(option, _)| option == name), "{name} is in no group");
        }
        assert_eq!(command.get_arguments().count(), used_by().count());
    }

    #[test]
    fn shared_memory_by_default_leaves_half_of_the_limit() {
        let shm = |memory: Option<&str>| {
            let memory = memory.map(|text| Quantity::memory(text).unwrap());
            Request { gpus: 2, memory, ..Request::new(JobKind::Train) }.shm().unwrap().to_string()
        };
        assert_eq!((shm(None), shm(Some("4Gi")), shm(Some("64Gi"))), ("8Gi".into(), "2048Mi".into(), "8Gi".into()));
    }
}
