//! The description of a job: the flags of `ringpull manifest`, and the check that they fit together.

use clap::ValueEnum as _;

use ringpull_base::{Error, Result};

use super::quantity::Quantity;

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
    /// A ClusterTrainingRuntime and a TrainJob of Kubeflow Trainer 2.
    Trainjob,
    /// An MXJob: scheduler, servers and workers where training-operator 1.8 or earlier runs.
    Mxjob,
    /// A TFJob of workers, and of parameter servers if --servers is given.
    Tfjob,
}

/// A scheduler that starts all pods of a job at the same time, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Gang {
    /// Volcano.
    Volcano,
    /// The coscheduling plugin of scheduler-plugins.
    SchedulerPlugins,
}

/// The description of a job, by flags.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Request {
    /// The kind of job.
    #[arg(skip = JobKind::Job)]
    pub kind: JobKind,
    /// The name of the job; the names of its pods follow from it.
    #[arg(long, default_value = "ringpull")]
    pub name: String,
    /// The namespace [default: the context's].
    #[arg(long)]
    pub namespace: Option<String>,
    /// The image built from mpijob/Dockerfile, or one that is built like it.
    #[arg(long, default_value = "ringpull:latest")]
    pub image: String,
    /// Worker pods.
    #[arg(long, default_value_t = 2)]
    pub workers: u32,
    /// Servers of a ps, mxjob or tfjob; 0 means as many as workers for ps and mxjob, and none for tfjob.
    #[arg(long, default_value_t = 0)]
    pub servers: u32,
    /// Ranks in each worker [default: one for each GPU, or 1].
    #[arg(long)]
    pub slots: Option<u32>,
    /// GPUs of each worker.
    #[arg(long, default_value_t = 0)]
    pub gpus: u32,
    /// Cores of each worker, such as 4 or 500m.
    #[arg(long, value_parser = Quantity::cpus)]
    pub cpus: Option<Quantity>,
    /// Memory of each worker, such as 8Gi.
    #[arg(long, value_parser = Quantity::memory)]
    pub memory: Option<Quantity>,
    /// Cores of the launcher.
    #[arg(long, value_parser = Quantity::cpus)]
    pub launcher_cpus: Option<Quantity>,
    /// Memory of the launcher.
    #[arg(long, value_parser = Quantity::memory)]
    pub launcher_memory: Option<Quantity>,
    /// Run ranks in the launcher's pod too (runLauncherAsWorker).
    #[arg(long)]
    pub launcher_works: bool,
    /// Run as uid 1000 with every capability dropped.
    #[arg(long)]
    pub non_root: bool,
    /// Start all pods together, or none.
    #[arg(long, value_enum)]
    pub gang: Option<Gang>,
    /// The queue of the gang scheduler.
    #[arg(long)]
    pub queue: Option<String>,
    /// Make the job elastic: it starts as soon as this many workers answer. After each loss it restarts
    /// from the checkpoint.
    #[arg(long, value_name = "N")]
    pub min_workers: Option<u32>,
    /// The RDMA resource of each worker, such as rdma/ib, `rdma/hca_shared_devices_a` or
    /// vpc.amazonaws.com/efa.
    #[arg(long, value_name = "RESOURCE")]
    pub rdma: Option<String>,
    /// The Multus network of the RDMA device.
    #[arg(long, value_name = "NETWORK")]
    pub rdma_network: Option<String>,
    /// The size of /dev/shm [default: 8Gi with GPUs, else the runtime's 64Mi].
    #[arg(long, value_name = "SIZE", value_parser = Quantity::memory)]
    pub shm: Option<Quantity>,
    /// A PersistentVolumeClaim to mount in every pod.
    #[arg(long, value_name = "CLAIM")]
    pub claim: Option<String>,
    /// Where the claim is mounted.
    #[arg(long, default_value = "/train", requires = "claim")]
    pub mount: String,
    /// Write the claim too, as ReadWriteMany with this size.
    #[arg(long, value_name = "SIZE", requires = "claim", value_parser = Quantity::memory)]
    pub claim_size: Option<Quantity>,
    /// The claim's storage class, such as rook-cephfs [default: the cluster's].
    #[arg(long, value_name = "CLASS", requires = "claim_size")]
    pub storage_class: Option<String>,
    /// Use the nodes' network, with one worker per node.
    #[arg(long)]
    pub host_network: bool,
    /// Run on nodes with this label.
    #[arg(long, value_name = "LABEL=VALUE", value_parser = pair)]
    pub node_selector: Vec<(String, String)>,
    /// A variable for every rank.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// How often a failed job is restarted. With a checkpoint it resumes from there.
    #[arg(long, default_value_t = 3)]
    pub backoff_limit: u32,
    /// End the job after this many seconds.
    #[arg(long = "deadline", value_name = "SECONDS")]
    pub deadline_s: Option<u32>,
    /// What every rank runs.
    #[arg(last = true)]
    pub command: Vec<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE")?;
    if name.is_empty() { Err("give NAME=VALUE".to_owned()) } else { Ok((name.to_owned(), value.to_owned())) }
}

/// The uid, gid and group of files of a job that does not run as root: the image's `mpiuser`.
pub const USER: u32 = 1000;
/// The port on which the image's sshd listens, as root and not.
pub const SSH_PORT: u16 = 2222;

impl Request {
    /// A job of this kind with the default of each flag.
    #[cfg(any(test, fuzzing))]
    pub fn new(kind: JobKind) -> Self {
        use clap::{Args as _, FromArgMatches as _};
        let defaults = Self::augment_args(clap::Command::new("job")).get_matches_from(["job"]);
        Request { kind, ..Self::from_arg_matches(&defaults).expect("every flag has a default") }
    }

    /// The size of /dev/shm, `None` for the runtime's 64 MiB.
    pub fn shm(&self) -> Option<Quantity> {
        self.shm.clone().or_else(|| (self.gpus > 0).then(|| Quantity::memory("8Gi").ok()).flatten())
    }

    /// Ranks in a worker pod.
    pub fn slots(&self) -> u32 {
        self.slots.unwrap_or(self.gpus.max(1))
    }

    /// Servers of a kind that has them: by default as many as workers.
    pub fn servers(&self) -> u32 {
        if self.servers == 0 { self.workers } else { self.servers }
    }

    /// An error unless the flags fit together.
    pub fn check(&self) -> Result<()> {
        let by_mpi = matches!(self.kind, JobKind::Train | JobKind::Compare | JobKind::Ps);
        let has_servers = matches!(self.kind, JobKind::Ps | JobKind::Mxjob | JobKind::Tfjob);
        let (kind, slots, gpus, workers) = (self.kind.name(), self.slots(), self.gpus, self.workers);
        let of_mpijobs = |flag: &str| format!("{flag} is of MPIJobs alone, and a {kind} is none");
        let not_of_mpijobs = "leave it out, or write a train, compare or ps";
        self.check_names()?;
        let rules: [(bool, String, &str); 14] = [
            (workers == 0, "invalid --workers 0: expected at least 1".into(), "give --workers of at least 1"),
            (self.slots == Some(0), "invalid --slots 0: expected at least 1".into(), "give --slots of at least 1"),
            (
                gpus > 0 && slots > gpus,
                format!("{slots} ranks would share {gpus} GPUs in each worker"),
                "leave out --slots (one rank for each GPU), or raise --gpus",
            ),
            (
                self.servers > 0 && !has_servers,
                format!("a {kind} has no servers"),
                "leave out --servers, or write a ps, mxjob or tfjob; compare takes its servers from --modes",
            ),
            (self.launcher_works && !by_mpi, of_mpijobs("--launcher-works"), not_of_mpijobs),
            (self.gang.is_some() && !by_mpi, of_mpijobs("--gang"), not_of_mpijobs),
            (self.min_workers.is_some() && !by_mpi, of_mpijobs("--min-workers"), not_of_mpijobs),
            (
                self.queue.is_some() && self.gang.is_none(),
                "--queue needs a gang scheduler".into(),
                "give --gang volcano too",
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
                self.launcher_works && self.min_workers.is_some(),
                "--launcher-works excludes --min-workers: a job cannot leave out the launcher's own ranks".into(),
                "leave one of them out",
            ),
            (
                self.host_network && self.launcher_works,
                "--host-network excludes --launcher-works: launcher and worker would share a node's ports".into(),
                "leave one of them out",
            ),
            (
                self.kind == JobKind::Trainjob && workers < 2,
                "a TrainJob needs two workers: its launcher is the first node".into(),
                "give --workers of at least 2",
            ),
            (
                self.command.is_empty() && self.kind != JobKind::Compare,
                "the command is missing".into(),
                "give it after --, such as -- train --kv-store dist_sync_mpi",
            ),
        ];
        match rules.into_iter().find(|(is_broken, ..)| *is_broken) {
            Some((_, what, remedy)) => wrong(what, remedy),
            None => self.check_command(),
        }
    }

    fn check_names(&self) -> Result<()> {
        let longest = match self.kind {
            JobKind::Train | JobKind::Compare | JobKind::Ps | JobKind::Tfjob => {
                format!("{}-worker-{}", self.name, self.workers.max(1) - 1)
            }
            JobKind::Mxjob => format!("{}-scheduler-0", self.name),
            JobKind::Trainjob => format!("{}-launcher-0-0", self.name),
            JobKind::Job => self.name.clone(),
        };
        check_label("--name", &self.name)?;
        if longest.len() > LONGEST_LABEL {
            return wrong(
                format!("the host name {longest:?} has {} characters", longest.len()),
                format!("shorten the name by {}: 63 characters are allowed", longest.len() - LONGEST_LABEL),
            );
        }
        for (flag, name) in [("--namespace", &self.namespace), ("--claim", &self.claim)] {
            name.as_ref().map_or(Ok(()), |name| check_label(flag, name))?;
        }
        if self.claim.is_some() && (!self.mount.starts_with('/') || self.mount.contains(':')) {
            return wrong(
                format!("invalid --mount {:?}: expected an absolute path", self.mount),
                "give a path such as /train",
            );
        }
        if self.image.is_empty() || self.image.contains(char::is_whitespace) {
            return wrong(format!("invalid --image {:?}", self.image), "give --image registry/name:tag");
        }
        for (name, _) in &self.env {
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(legal) {
                return wrong(format!("{name:?} is not the name of a variable"), "give --env NAME=VALUE");
            }
        }
        Ok(())
    }
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

fn check_label(flag: &str, name: &str) -> Result<()> {
    if is_label(name) && name.len() <= LONGEST_LABEL {
        return Ok(());
    }
    let legal = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let better: String = name.to_lowercase().chars().map(legal).take(40).collect();
    let better = better.trim_matches(|c: char| c == '-' || c.is_ascii_digit());
    let better = if better.is_empty() { "train-1" } else { better };
    wrong(
        format!("invalid {flag} {name:?}: expected lower-case letters, digits and -, at most 63 of them"),
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
    fn flags_that_exclude_each_other_are_an_error_with_a_remedy() {
        type Change = fn(&mut Request);
        let cases: [(Change, &str); 14] = [
            (|r| r.name = "my.job".to_owned(), "such as my-job"),
            (|r| r.name = "a".repeat(55), "shorten the name by 1"),
            (|r| r.workers = 0, "at least 1"),
            (|r| (r.gpus, r.slots) = (2, Some(4)), "leave out --slots"),
            (|r| r.servers = 2, "leave out --servers"),
            (|r| r.queue = Some("q".to_owned()), "--gang volcano"),
            (|r| r.rdma_network = Some("ib".to_owned()), "--rdma rdma/ib"),
            (|r| r.min_workers = Some(3), "between 1 and --workers 2"),
            (|r| (r.launcher_works, r.min_workers) = (true, Some(1)), "leave one of them out"),
            (|r| (r.launcher_works, r.host_network) = (true, true), "leave one of them out"),
            (|r| r.command.clear(), "give it after --"),
            (|r| r.command[2] = "local".to_owned(), "a separate model"),
            (|r| (r.kind, r.gang) = (JobKind::Mxjob, Some(Gang::Volcano)), "--gang is of MPIJobs alone"),
            (|r| r.env = [("1A".to_owned(), String::new())].into(), "NAME=VALUE"),
        ];
        for (change, expected) in cases {
            let error = request(change);
            assert!(error.contains(expected) && error.contains("hint: "), "{expected}: {error}");
        }
        assert_eq!(request(|_| {}), "");
        assert_eq!(request(|r| r.name = "a".repeat(54)), "");
    }
}
