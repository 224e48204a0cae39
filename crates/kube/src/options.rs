//! The description of a job: the options of `ringpull manifest`, the kinds of job that use each, and the
//! check that they fit together.

use std::collections::BTreeMap;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, ValueEnum as _};
use serde_json::Value;

use ringpull_base::{Error, Result};

use crate::command::is_mpirun;
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
    /// The PersistentVolumeClaim that jobs mount. It is apart from them, so that deleting a job keeps it.
    Claim,
    /// A NetworkPolicy: only pods of the job may connect to its pods.
    NetworkPolicy,
}

use JobKind::{Claim, Compare, Job, Mxjob, NetworkPolicy, Ps, Tfjob, Train, Trainjob};

const ALL: &[JobKind] = &[Train, Compare, Ps, Job, Trainjob, Mxjob, Tfjob, Claim, NetworkPolicy];
/// Kinds with pods.
const PODS: &[JobKind] = &[Train, Compare, Ps, Job, Trainjob, Mxjob, Tfjob];
const SEVERAL: &[JobKind] = &[Train, Compare, Ps, Trainjob, Mxjob, Tfjob];
const MPI: &[JobKind] = &[Train, Compare, Ps, Trainjob];
const MPIJOBS: &[JobKind] = &[Train, Compare, Ps];

/// The kinds that use each option. Given to another kind, an option is an error.
const USED_BY: [(&str, &[JobKind]); 45] = [
    ("name", ALL),
    ("namespace", ALL),
    ("label", ALL),
    ("patch", ALL),
    ("claim", &[Train, Compare, Ps, Job, Trainjob, Mxjob, Tfjob, Claim]),
    ("claim-size", &[Claim]),
    ("storage-class", &[Claim]),
    ("mount", PODS),
    ("image", PODS),
    ("pull-policy", PODS),
    ("pull-secret", PODS),
    ("annotation", PODS),
    ("kueue", PODS),
    ("suspend", PODS),
    ("ttl", PODS),
    ("deadline", PODS),
    ("backoff-limit", PODS),
    ("cpus", PODS),
    ("memory", PODS),
    ("request-cpu", PODS),
    ("request-memory", PODS),
    ("gpus", PODS),
    ("gpu-resource", PODS),
    ("rdma", PODS),
    ("rdma-network", PODS),
    ("shm", PODS),
    ("non-root", PODS),
    ("host-network", PODS),
    ("node-selector", PODS),
    ("toleration", PODS),
    ("affinity-file", PODS),
    ("priority-class", PODS),
    ("service-account", PODS),
    ("env", PODS),
    ("env-from", PODS),
    ("command", PODS),
    ("workers", SEVERAL),
    ("gang", SEVERAL),
    ("queue", &[Train, Compare, Ps, Mxjob, Tfjob]),
    ("slots", MPI),
    ("servers", &[Ps, Mxjob, Tfjob]),
    ("launcher-cpus", &[Train, Compare, Ps, Mxjob]),
    ("launcher-memory", &[Train, Compare, Ps, Mxjob]),
    ("launcher-works", MPIJOBS),
    ("min-workers", MPIJOBS),
];

/// A scheduler that starts all pods of a job at the same time, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Gang {
    /// Volcano.
    Volcano,
    /// The coscheduling plugin of scheduler-plugins.
    SchedulerPlugins,
}

/// When a node pulls the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PullPolicy {
    /// If the node does not have it.
    IfNotPresent,
    /// Before each start.
    Always,
    /// Never: nodes have it already.
    Never,
}

/// How much of Pod Security a job passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum PodSecurity {
    /// Any namespace without restrictions.
    Privileged,
    /// Namespaces that enforce `baseline`.
    Baseline,
    /// Namespaces that enforce `restricted`.
    Restricted,
}

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
    /// The options that were given, each with the word that gave it.
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
    /// When a node pulls the image.
    #[arg(long, value_enum, default_value = "if-not-present")]
    pub pull_policy: PullPolicy,
    /// A Secret with which nodes pull the image.
    #[arg(long, value_name = "SECRET")]
    pub pull_secret: Vec<String>,
    /// Worker pods.
    #[arg(long, default_value_t = 2)]
    pub workers: u32,
    /// Servers; 0 means as many as workers for ps and mxjob, and none for tfjob.
    #[arg(long, default_value_t = 0)]
    pub servers: u32,
    /// Ranks in each worker [default: one for each GPU, or 1].
    #[arg(long)]
    pub slots: Option<u32>,
    /// GPUs of each worker, as nvidia.com/gpu.
    #[arg(long, default_value_t = 0)]
    pub gpus: u32,
    /// GPUs of each worker by the name of their resource, such as amd.com/gpu=2.
    #[arg(long, value_name = "NAME=COUNT", value_parser = device, conflicts_with = "gpus")]
    pub gpu_resource: Option<(String, u32)>,
    /// The limit of cores of each worker, such as 4 or 500m.
    #[arg(long, value_parser = Quantity::cpus)]
    pub cpus: Option<Quantity>,
    /// The limit of memory of each worker, such as 8Gi.
    #[arg(long, value_parser = Quantity::memory)]
    pub memory: Option<Quantity>,
    /// The cores that each worker is sure to have [default: the limit, or 1].
    #[arg(long, value_name = "CPUS", value_parser = Quantity::cpus)]
    pub request_cpu: Option<Quantity>,
    /// The memory that each worker is sure to have [default: the limit, or 1Gi].
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
    /// Run as uid 1000 with every capability dropped: passes Pod Security `restricted`. Without it a job
    /// passes `baseline`; with --rdma (but for EFA) or --host-network it needs a `privileged` namespace.
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
    /// Make the job elastic: it starts as soon as this many workers answer. After each loss it restarts
    /// from the checkpoint.
    #[arg(long, value_name = "N")]
    pub min_workers: Option<u32>,
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
    /// Where the claim is mounted.
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
    /// How often a failed job is restarted. With a checkpoint it resumes from there.
    #[arg(long, default_value_t = 3)]
    pub backoff_limit: u32,
    /// End the job after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub deadline: Option<u32>,
    /// Delete the finished job after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub ttl: Option<u32>,
    /// Create the job without starting it.
    #[arg(long)]
    pub suspend: bool,
    /// A YAML file whose objects are merged into those of the same kind (strategic merge); an unknown field
    /// is an error.
    #[arg(long, value_name = "FILE", value_parser = documents_of)]
    pub patch: Vec<Documents>,
    /// What every rank runs.
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// A request as it is read from a command line: with a note at each option of some kinds only, and with the
/// options that were given.
#[derive(Debug)]
pub struct Asked(pub Request);

impl clap::FromArgMatches for Asked {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut request = <Request as clap::FromArgMatches>::from_arg_matches(matches)?;
        for (option, _) in USED_BY.iter().filter(|(option, _)| is_given(matches, option)) {
            let word = if *option == "command" { "the command".to_owned() } else { format!("--{option}") };
            request.given.insert((*option).to_owned(), word);
        }
        Ok(Asked(request))
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

impl clap::Args for Asked {
    fn augment_args(command: clap::Command) -> clap::Command {
        <Request as clap::Args>::augment_args(command).mut_args(|arg| {
            let kinds = USED_BY.iter().find(|(option, _)| Some(*option) == arg.get_long());
            match (kinds.map(|(_, kinds)| *kinds), arg.get_help().cloned()) {
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

fn names(kinds: &[JobKind]) -> String {
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

/// The field of a container's `envFrom`, and the name in it.
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
/// The port on which the image's sshd listens, as root and not.
pub const SSH_PORT: u16 = 2222;
/// Folders that a claim would hide from the image or the operator.
const TAKEN: [&str; 12] =
    ["/dev", "/proc", "/sys", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/run", "/var/run", "/opt/ringpull"];

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
        let roomy = 8.0 * 1024.0 * 1024.0 * 1024.0;
        let mebibytes = |bytes: f64| Quantity::memory(&format!("{}Mi", (bytes / 1024.0 / 1024.0) as u64)).ok();
        let default = || match &self.memory {
            Some(memory) if memory.value() < 2.0 * roomy => mebibytes(memory.value() / 2.0),
            _ => Quantity::memory("8Gi").ok(),
        };
        self.shm.clone().or_else(|| self.gpu().and_then(|_| default()))
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

    /// Whether registered memory needs the right to lock it. AWS's plugin of EFA sets the limit itself.
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

    /// An error unless the options fit the kind and each other.
    pub fn check(&self) -> Result<()> {
        let (kind, slots, workers) = (self.kind.name(), self.slots(), self.workers);
        for (option, kinds) in USED_BY {
            if let Some(word) = self.given.get(option).filter(|_| !kinds.contains(&self.kind)) {
                return wrong(
                    format!("{word} has no effect on a {kind}"),
                    format!("leave it out, or write one of these kinds, which use it: {}", names(kinds)),
                );
            }
        }
        let gpus = self.gpu().map_or(0, |(_, count)| count);
        let above = |one: &Option<Quantity>, other: &Option<Quantity>| {
            one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one.value() > other.value())
        };
        let rules: [(bool, String, &str); 17] = [
            (workers == 0, "invalid --workers 0: expected at least 1".into(), "give --workers of at least 1"),
            (self.slots == Some(0), "invalid --slots 0: expected at least 1".into(), "give --slots of at least 1"),
            (
                gpus > 0 && slots > gpus,
                format!("{slots} ranks would share {gpus} GPUs in each worker"),
                "leave out --slots (one rank for each GPU), or give each worker more GPUs",
            ),
            (
                self.queue.is_some() && self.gang.is_none(),
                "--queue needs a gang scheduler".into(),
                "give --gang volcano too; the queue of Kueue is --kueue",
            ),
            (
                self.rdma_network.is_some() && self.rdma.is_none(),
                "--rdma-network needs --rdma".into(),
                "give the resource of the device too, such as --rdma rdma/ib",
            ),
            (
                self.min_workers.is_some_and(|least| least == 0 || least > workers),
                format!("invalid --min-workers: expected a number between 1 and --workers {workers}"),
                "lower it, or raise --workers",
            ),
            (
                self.launcher_works && (self.launcher_cpus.is_some() || self.launcher_memory.is_some()),
                "--launcher-works excludes --launcher-cpus and --launcher-memory: the launcher is a worker".into(),
                "leave them out: --cpus and --memory are its limits too",
            ),
            (
                self.host_network && self.launcher_works,
                "--host-network excludes --launcher-works: launcher and worker would share a node's ports".into(),
                "leave one of them out",
            ),
            (
                above(&self.request_cpu, &self.cpus),
                "--request-cpu is above the limit, --cpus".into(),
                "lower it, or raise --cpus",
            ),
            (
                above(&self.request_memory, &self.memory),
                "--request-memory is above the limit, --memory".into(),
                "lower it, or raise --memory",
            ),
            (
                above(&self.shm, &self.memory),
                "--shm is above --memory: what lies in /dev/shm counts towards that limit".into(),
                "lower it, or raise --memory",
            ),
            (
                self.kind == Trainjob && workers < 2,
                "a TrainJob needs two workers: its launcher is the first node".into(),
                "give --workers of at least 2",
            ),
            (
                self.kind == Claim && (self.claim.is_none() || self.claim_size.is_none()),
                "a claim needs its name and its size".into(),
                "give --claim NAME --claim-size 10Gi",
            ),
            (
                self.command.is_empty() && PODS.contains(&self.kind) && self.kind != Compare,
                "the command is missing".into(),
                "give it after --, such as -- train --kv-store dist_sync_mpi",
            ),
            (
                MPI.contains(&self.kind) && self.runs_mpirun(),
                "the command runs mpirun, but the manifest starts the ranks itself".into(),
                "give only what one rank runs",
            ),
            (
                self.min_workers.is_some() && self.loses_its_work(),
                "--min-workers without a checkpoint: each loss of a worker would start the training anew".into(),
                "add --checkpoint /train/run.safetensors --resume-if-any to the command, and --claim",
            ),
            (
                self.affinity_file.as_ref().is_some_and(|file| file.0.len() != 1 || !file.0[0].is_object()),
                "--affinity-file does not hold one object".into(),
                "give a file with nodeAffinity, podAffinity or podAntiAffinity at its top",
            ),
        ];
        match rules.into_iter().find(|(is_broken, ..)| *is_broken) {
            Some((_, what, remedy)) => wrong(what, remedy),
            None => self.check_names().and_then(|()| self.check_command()),
        }
    }

    fn runs_mpirun(&self) -> bool {
        self.command.iter().any(|word| word.split_whitespace().any(is_mpirun))
    }

    fn check_names(&self) -> Result<()> {
        let longest = match self.kind {
            Train | Compare | Ps | Tfjob => format!("{}-worker-{}", self.name, self.workers.max(1) - 1),
            Mxjob => format!("{}-scheduler-0", self.name),
            Trainjob => format!("{}-launcher-0-0", self.name),
            Job | Claim | NetworkPolicy => self.name.clone(),
        };
        check_label("--name", &self.name)?;
        if longest.len() > LONGEST_LABEL {
            return wrong(
                format!("the host name {longest:?} has {} characters", longest.len()),
                format!("shorten the name by {}: 63 characters are allowed", longest.len() - LONGEST_LABEL),
            );
        }
        let of_one = [
            ("--namespace", &self.namespace),
            ("--claim", &self.claim),
            ("--priority-class", &self.priority_class),
            ("--service-account", &self.service_account),
            ("--storage-class", &self.storage_class),
            ("--queue", &self.queue),
            ("--kueue", &self.kueue),
        ];
        let secrets = self.pull_secret.iter().map(|name| ("--pull-secret", name));
        let sources = self.env_from.iter().map(|(_, name)| ("--env-from", name));
        let singles = of_one.iter().filter_map(|(option, name)| name.as_ref().map(|name| (*option, name)));
        for (option, name) in singles.chain(secrets).chain(sources) {
            if !is_domain(name) {
                check_label(option, name)?;
            }
        }
        if self.claim.is_some() && PODS.contains(&self.kind) {
            self.check_mount()?;
        }
        check_image(&self.image)?;
        for (name, _) in &self.env {
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(legal) {
                return wrong(format!("{name:?} is not the name of a variable"), "give --env NAME=VALUE");
            }
        }
        let of_labels = |option, pairs: &'_ [(String, String)]| {
            let bad = pairs.iter().find(|(name, value)| !is_qualified(name) || !is_label_value(value));
            bad.map_or(Ok(()), |(name, value)| {
                wrong(
                    format!("invalid {option} {name}={value}"),
                    "a name or value has at most 63 letters, digits, - _ and ., and begins and ends with a letter or digit; \
                     a name may have a domain and / before it",
                )
            })
        };
        of_labels("--node-selector", &self.node_selector)?;
        of_labels("--label", &self.label)?;
        match self.annotation.iter().find(|(name, _)| !is_qualified(name)) {
            Some((name, _)) => wrong(
                format!("invalid --annotation {name}"),
                "give a name such as example.com/owner: letters, digits, - _ and .",
            ),
            None => Ok(()),
        }
    }

    fn check_mount(&self) -> Result<()> {
        let path = self.mount.trim_end_matches('/');
        let taken = TAKEN.iter().find(|folder| path == **folder || path.starts_with(&format!("{folder}/")));
        if !self.mount.starts_with('/') || self.mount.contains([':', ' ']) || self.mount.contains("..") {
            return wrong(
                format!("invalid --mount {:?}: expected an absolute path", self.mount),
                "give a path such as /train",
            );
        }
        if path.is_empty()
            || taken.is_some()
            || path.ends_with("/.ssh")
            || ["/root", "/home", "/home/mpiuser"].contains(&path)
        {
            let what = if path.is_empty() { "the whole image".to_owned() } else { format!("the pod's own {path}") };
            return wrong(format!("--mount {:?} would hide {what}", self.mount), "give a path such as /train");
        }
        Ok(())
    }
}

fn check_image(image: &str) -> Result<()> {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let end = name.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) =
        name[end..].split_once(':').map_or((name, None), |(last, tag)| (&name[..end + last.len()], Some(tag)));
    let legal_tag = |tag: &str| {
        let legal = |c: char| c.is_ascii_alphanumeric() || ['_', '.', '-'].contains(&c);
        !tag.is_empty() && tag.len() <= 128 && tag.chars().all(legal) && !tag.starts_with(['.', '-'])
    };
    let legal_part = |(at, part): (usize, &str)| {
        // The first part may be a registry with a port.
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ['.', '_', '-'].contains(&c);
        !part.is_empty() && part.chars().all(|c| legal(c) || at == 0 && end > 0 && (c == ':' || c.is_ascii_uppercase()))
    };
    if path.split('/').enumerate().all(legal_part) && tag.is_none_or(legal_tag) && digest.is_none_or(is_digest) {
        return Ok(());
    }
    let remedy = if image.chars().any(|c| c.is_ascii_uppercase()) {
        "a repository has lower-case letters only; give --image registry/name:tag"
    } else {
        "give --image registry/name:tag or registry/name@sha256:DIGEST"
    };
    wrong(format!("invalid --image {image:?}"), remedy)
}

/// Whether the text is a digest as registries and the kubelet take it.
fn is_digest(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    text.strip_prefix("sha256:").is_some_and(|digest| digest.len() == 64 && digest.chars().all(legal))
}

impl JobKind {
    /// The name of the subcommand that writes it.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// How long a host's name may be.
pub(super) const LONGEST_LABEL: usize = 63;

/// Whether `name` is an RFC 1035 label: what the names of services and pods may be.
pub(super) fn is_label(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(legal) && !name.ends_with('-')
}

/// Whether `name` is a name of an object: labels with dots between them, each of which may begin with a
/// digit.
pub(super) fn is_domain(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let label =
        |label: &str| !label.is_empty() && label.chars().all(legal) && !label.starts_with('-') && !label.ends_with('-');
    name.len() <= 253 && name.split('.').all(label)
}

/// Whether `value` may be the value of a label.
pub(super) fn is_label_value(value: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&c);
    let outer = |c: char| c.is_ascii_alphanumeric();
    value.len() <= LONGEST_LABEL
        && value.chars().all(legal)
        && (value.is_empty() || value.starts_with(outer) && value.ends_with(outer))
}

/// Whether `name` may be the name of a label, an annotation, a taint or a resource.
pub(super) fn is_qualified(name: &str) -> bool {
    let (domain, name) = name.split_once('/').map_or((None, name), |(domain, name)| (Some(domain), name));
    domain.is_none_or(is_domain) && !name.is_empty() && is_label_value(name)
}

fn check_label(option: &str, name: &str) -> Result<()> {
    if is_label(name) && name.len() <= LONGEST_LABEL {
        return Ok(());
    }
    let legal = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let better: String = name.to_lowercase().chars().map(legal).take(40).collect();
    let better = better.trim_matches(|c: char| c == '-' || c.is_ascii_digit());
    let better = if better.is_empty() { "train-1" } else { better };
    wrong(
        format!("invalid {option} {name:?}: expected lower-case letters, digits and -, at most 63 of them"),
        format!("begin with a letter and use no dot, such as {better}"),
    )
}

pub(super) fn wrong(what: impl Into<String>, remedy: impl Into<String>) -> Result<()> {
    Err(Error::argument(what, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(change: impl FnOnce(&mut Request)) -> String {
        let mut request = Request::new(JobKind::Train);
        request.command = ["train", "--kv-store", "dist_sync_mpi"].map(str::to_owned).to_vec();
        change(&mut request);
        request.check().err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn options_that_exclude_each_other_are_an_error_with_a_remedy() {
        type Change = fn(&mut Request);
        fn memory(text: &str) -> Option<Quantity> {
            Quantity::memory(text).ok()
        }
        let cases: [(Change, &str); 28] = [
            (|r| r.name = "my.job".to_owned(), "such as my-job"),
            (|r| r.name = "a".repeat(55), "shorten the name by 1"),
            (|r| r.workers = 0, "at least 1"),
            (|r| (r.gpus, r.slots) = (2, Some(4)), "leave out --slots"),
            (|r| r.queue = Some("q".to_owned()), "--gang volcano"),
            (|r| r.rdma_network = Some("ib".to_owned()), "--rdma rdma/ib"),
            (|r| r.min_workers = Some(3), "between 1 and --workers 2"),
            (|r| r.min_workers = Some(1), "--resume-if-any"),
            (|r| (r.launcher_works, r.launcher_memory) = (true, memory("1Gi")), "--memory are its limits too"),
            (|r| (r.launcher_works, r.host_network) = (true, true), "leave one of them out"),
            (|r| r.command.clear(), "give it after --"),
            (|r| r.command[2] = "local".to_owned(), "a separate model"),
            (|r| r.command = ["sh", "-c", "mpirun train"].map(str::to_owned).to_vec(), "only what one rank runs"),
            (|r| r.env = [("1A".to_owned(), String::new())].into(), "NAME=VALUE"),
            (|r| (r.shm, r.memory) = (memory("8Gi"), memory("4Gi")), "raise --memory"),
            (|r| (r.request_memory, r.memory) = (memory("8Gi"), memory("4Gi")), "raise --memory"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "/".to_owned()), "hide the whole image"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "/dev/shm".to_owned()), "hide the pod's own"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "/root/.ssh".to_owned()), "hide the pod's own"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "train".to_owned()), "an absolute path"),
            (|r| r.node_selector = [("a b".to_owned(), "c".to_owned())].into(), "at most 63"),
            (|r| r.label = [("a".to_owned(), "-c".to_owned())].into(), "at most 63"),
            (|r| r.annotation = [("a/b/c".to_owned(), String::new())].into(), "example.com/owner"),
            (|r| r.image = "Registry/Ringpull:1".to_owned(), "lower-case"),
            (|r| r.image = "ringpull:".to_owned(), "registry/name:tag"),
            (|r| r.image = "two words".to_owned(), "registry/name:tag"),
            (|r| r.pull_secret = ["A".to_owned()].into(), "such as a"),
            (|r| r.kind = JobKind::Claim, "--claim-size"),
        ];
        for (change, expected) in cases {
            let error = request(change);
            assert!(error.contains(expected) && error.contains("hint: "), "{expected}: {error}");
        }
        assert_eq!(request(|_| {}), "");
        assert_eq!(request(|r| r.name = "a".repeat(54)), "");
        let digest = format!("sha256:{}", "0f".repeat(32));
        for image in
            ["ringpull", "reg.example:5000/a/b_c:1.2-x", "a@DIGEST", "reg.example/a:1@DIGEST", "ghcr.io/x/y:V1"]
        {
            assert_eq!(request(|r| r.image = image.replace("DIGEST", &digest)), "");
        }
        for wrong in ["a@sha256:0f", &format!("a@{}", digest.to_uppercase()), "a@sha512:0f", "a@"] {
            assert!(request(|r| r.image = wrong.to_owned()).contains("invalid --image"), "{wrong}");
        }
    }

    #[test]
    fn an_option_that_a_kind_does_not_use_is_an_error_that_names_those_that_do() {
        for (option, kinds) in USED_BY {
            for kind in ALL {
                let given = [(option.to_owned(), format!("--{option}"))].into();
                let error = Request { given, ..Request::new(*kind) }.check().err();
                let error = error.map_or(String::new(), |error| error.to_string());
                assert_eq!(error.contains("has no effect"), !kinds.contains(kind), "{option} {kind:?}: {error}");
                assert!(kinds.contains(kind) || kinds.iter().all(|kind| error.contains(&kind.name())), "{error}");
            }
        }
    }

    #[test]
    fn every_option_is_in_the_list_of_what_kinds_use() {
        use clap::Args as _;
        let command = Request::augment_args(clap::Command::new("job"));
        for arg in command.get_arguments() {
            let name = arg.get_id().as_str().replace('_', "-");
            assert!(USED_BY.iter().any(|(option, _)| *option == name), "{name} is not in USED_BY");
        }
        assert_eq!(command.get_arguments().count(), USED_BY.len());
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
