//! What a job is to be. Checked as a whole before anything is written; each error names its remedy.

use ringpull_base::{Error, Result};

use super::quantity::Quantity;

/// The kinds of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
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
    /// A TFJob of workers, and of parameter servers if asked for.
    Tfjob,
}

/// The scheduler that places all pods of a job at once or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Gang {
    /// Volcano.
    Volcano,
    /// The coscheduling plugin of scheduler-plugins.
    SchedulerPlugins,
}

/// Limits of one pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Cores.
    pub cpus: Option<Quantity>,
    /// Memory.
    pub memory: Option<Quantity>,
}

/// What a job is to be, and the options that say so.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Request {
    /// What runs it.
    #[arg(skip = Kind::Job)]
    pub kind: Kind,
    /// The name of the job; the names of its pods follow from it.
    #[arg(long, default_value = "ringpull")]
    pub name: String,
    /// The namespace; the context's own if not given.
    #[arg(long)]
    pub namespace: Option<String>,
    /// The image built from mpijob/Dockerfile, or one that is built like it.
    #[arg(long, default_value = "ringpull:latest")]
    pub image: String,
    /// Worker pods.
    #[arg(long, default_value_t = 2)]
    pub workers: u32,
    /// Servers of ps, mxjob and tfjob; for ps and mxjob as many as workers if not given.
    #[arg(long, default_value_t = 0)]
    pub servers: u32,
    /// Ranks in a worker; one for each GPU, or 1, if not given.
    #[arg(long)]
    pub slots: Option<u32>,
    /// GPUs of a worker.
    #[arg(long, default_value_t = 0)]
    pub gpus: u32,
    /// Cores of a worker, such as 4 or 500m.
    #[arg(long, value_parser = Quantity::cpus)]
    pub cpus: Option<Quantity>,
    /// Memory of a worker, such as 8Gi.
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
    /// Place all pods at once or none.
    #[arg(long, value_enum)]
    pub gang: Option<Gang>,
    /// The queue of the gang scheduler.
    #[arg(long)]
    pub queue: Option<String>,
    /// Elastic: start with the workers that answer if they are so many; again after each loss, from the
    /// checkpoint.
    #[arg(long, value_name = "N")]
    pub min_workers: Option<u32>,
    /// The RDMA resource of a worker, such as rdma/ib, `rdma/hca_shared_devices_a` or vpc.amazonaws.com/efa.
    #[arg(long, value_name = "RESOURCE")]
    pub rdma: Option<String>,
    /// The Multus network of the RDMA device.
    #[arg(long, value_name = "NETWORK")]
    pub rdma_network: Option<String>,
    /// The size of /dev/shm [default: 8Gi with GPUs, else the runtime's 64Mi].
    #[arg(long, value_name = "SIZE", value_parser = Quantity::memory)]
    pub shm: Option<Quantity>,
    /// Mount this PersistentVolumeClaim in every pod.
    #[arg(long, value_name = "CLAIM")]
    pub claim: Option<String>,
    /// Where the claim is mounted.
    #[arg(long, default_value = "/train", requires = "claim")]
    pub mount: String,
    /// Write the claim too, ReadWriteMany and of this size.
    #[arg(long, value_name = "SIZE", requires = "claim", value_parser = Quantity::memory)]
    pub claim_size: Option<Quantity>,
    /// The claim's storage class, such as rook-cephfs; the cluster's default if not given.
    #[arg(long, value_name = "CLASS", requires = "claim_size")]
    pub storage_class: Option<String>,
    /// Use the nodes' network, one worker on a node.
    #[arg(long)]
    pub host_network: bool,
    /// Run on nodes with this label.
    #[arg(long, value_name = "LABEL=VALUE", value_parser = pair)]
    pub node_selector: Vec<(String, String)>,
    /// A variable for every rank.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// How often a failed job starts again; with a checkpoint it goes on from there.
    #[arg(long, default_value_t = 3)]
    pub backoff_limit: u32,
    /// End the job after so many seconds.
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
    /// A job of this kind with the settings that the flags have by default.
    #[cfg(any(test, fuzzing))]
    pub fn new(kind: Kind) -> Self {
        use clap::{Args as _, FromArgMatches as _};
        let defaults = Self::augment_args(clap::Command::new("job")).get_matches_from(["job"]);
        Request { kind, ..Self::from_arg_matches(&defaults).expect("every flag has a default") }
    }

    /// Limits of a worker pod, or of the only one.
    pub fn worker(&self) -> Limits {
        Limits { cpus: self.cpus.clone(), memory: self.memory.clone() }
    }

    /// Limits of the launcher pod.
    pub fn launcher(&self) -> Limits {
        Limits { cpus: self.launcher_cpus.clone(), memory: self.launcher_memory.clone() }
    }

    /// The size of /dev/shm; the runtime's 64 MiB if none.
    pub fn shm(&self) -> Option<Quantity> {
        self.shm.clone().or_else(|| (self.gpus > 0).then(|| Quantity::memory("8Gi").ok()).flatten())
    }

    /// Ranks in a worker pod.
    pub fn slots(&self) -> u32 {
        self.slots.unwrap_or(self.gpus.max(1))
    }

    /// Servers of a kind that has them: as many as workers if not given.
    pub fn servers(&self) -> u32 {
        if self.servers == 0 { self.workers } else { self.servers }
    }

    /// Whether the parts fit together.
    pub fn check(&self) -> Result<()> {
        let by_mpi = matches!(self.kind, Kind::Train | Kind::Compare | Kind::Ps);
        self.check_names()?;
        if self.workers == 0 {
            return wrong("a job without workers does nothing", "give --workers of at least 1");
        }
        if self.slots == Some(0) {
            return wrong("a worker without ranks does nothing", "give --slots of at least 1");
        }
        if self.gpus > 0 && self.slots() > self.gpus {
            return wrong(
                format!("{} ranks would share {} GPUs in each worker", self.slots(), self.gpus),
                "leave out --slots (one rank for each GPU), or raise --gpus",
            );
        }
        let servers_go = matches!(self.kind, Kind::Ps | Kind::Mxjob | Kind::Tfjob);
        if self.servers > 0 && !servers_go {
            return wrong(
                format!("{} has no servers", self.kind_name()),
                "leave out --servers, or write a ps, mxjob or tfjob; compare takes its servers from --modes",
            );
        }
        for (given, flag) in [
            (self.launcher_works, "--launcher-works"),
            (self.gang.is_some(), "--gang"),
            (self.min_workers.is_some(), "--min-workers"),
        ] {
            if given && !by_mpi {
                return wrong(format!("{flag} is of MPIJobs alone"), "leave it out, or write a train, compare or ps");
            }
        }
        if self.queue.is_some() && self.gang.is_none() {
            return wrong("--queue is the gang scheduler's", "give --gang volcano too");
        }
        if self.rdma_network.is_some() && self.rdma.is_none() {
            return wrong(
                "--rdma-network without --rdma",
                "give the resource of the device too, such as --rdma rdma/ib",
            );
        }
        if self.min_workers.is_some_and(|least| least == 0 || least > self.workers) {
            return wrong(
                format!("--min-workers must lie between 1 and --workers {}", self.workers),
                "lower it, or raise --workers",
            );
        }
        if self.launcher_works && self.min_workers.is_some() {
            return wrong(
                "--launcher-works and --min-workers do not go together: the launcher's own ranks cannot be left out",
                "leave one of them out",
            );
        }
        if self.host_network && self.launcher_works {
            return wrong(
                "--host-network and --launcher-works do not go together: launcher and worker would share a node's ports",
                "leave one of them out",
            );
        }
        if self.kind == Kind::Trainjob && self.workers < 2 {
            return wrong(
                "a TrainJob's launcher is its first node, and it needs one more",
                "give --workers of at least 2",
            );
        }
        if self.command.is_empty() && self.kind != Kind::Compare {
            return wrong("there is no command to run", "give it after --, such as -- train --kv-store dist_sync_mpi");
        }
        self.check_command()
    }

    fn check_names(&self) -> Result<()> {
        let longest = match self.kind {
            Kind::Train | Kind::Compare | Kind::Ps | Kind::Tfjob => {
                format!("{}-worker-{}", self.name, self.workers.max(1) - 1)
            }
            Kind::Mxjob => format!("{}-scheduler-0", self.name),
            Kind::Trainjob => format!("{}-launcher-0-0", self.name),
            Kind::Job => self.name.clone(),
        };
        label("the job's name", &self.name)?;
        if longest.len() > 63 {
            return wrong(
                format!("{longest:?}, the longest name that follows from the job's, has {} characters", longest.len()),
                format!("shorten the name by {}: a host's name has at most 63", longest.len() - 63),
            );
        }
        if let Some(namespace) = &self.namespace {
            label("the namespace", namespace)?;
        }
        if let Some(claim) = &self.claim {
            label("the claim's name", claim)?;
            if !self.mount.starts_with('/') || self.mount.contains(':') {
                return wrong(
                    format!("{:?} is no place to mount a volume", self.mount),
                    "give an absolute path, such as /train",
                );
            }
        }
        if self.image.is_empty() || self.image.contains(char::is_whitespace) {
            return wrong(format!("{:?} is no name of an image", self.image), "give --image registry/name:tag");
        }
        for (name, _) in &self.env {
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(legal) {
                return wrong(format!("{name:?} is no name of a variable"), "give --env NAME=VALUE");
            }
        }
        Ok(())
    }

    pub(super) fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Train => "train",
            Kind::Compare => "compare",
            Kind::Ps => "ps",
            Kind::Job => "job",
            Kind::Trainjob => "trainjob",
            Kind::Mxjob => "mxjob",
            Kind::Tfjob => "tfjob",
        }
    }
}

/// An RFC 1035 label: what the names of services and pods may be.
pub(super) fn label(what: &str, name: &str) -> Result<()> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(legal)
        && !name.ends_with('-')
        && name.len() <= 63
    {
        return Ok(());
    }
    let better: String = name.to_lowercase().chars().map(|c| if legal(c) { c } else { '-' }).collect();
    let better = better.trim_matches(|c: char| c == '-' || c.is_ascii_digit());
    let better = better.chars().take(40).collect::<String>();
    let better = if better.is_empty() { "train-1".to_owned() } else { better };
    wrong(
        format!("{what} {name:?} is no host name"),
        format!("lower-case letters, digits and -, beginning with a letter, no dot, at most 63: such as {better}"),
    )
}

pub(super) fn wrong(what: impl Into<String>, remedy: impl Into<String>) -> Result<()> {
    Err(Error::argument(what, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(change: impl FnOnce(&mut Request)) -> String {
        let mut request = Request::new(Kind::Train);
        request.command = ["train", "--kv-store", "dist_sync_mpi"].map(str::to_owned).to_vec();
        change(&mut request);
        request.check().err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn what_does_not_fit_together_is_an_error_with_a_remedy() {
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
            (|r| r.command[2] = "local".to_owned(), "a model of its own"),
            (|r| (r.kind, r.gang) = (Kind::Mxjob, Some(Gang::Volcano)), "--gang is of MPIJobs"),
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
