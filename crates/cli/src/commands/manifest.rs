//! `ringpull manifest`: Kubernetes manifests of our jobs, and a check of other people's.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;

use ringpull_base::{Error, Result};
use ringpull_kube::lint::{self, Finding, Severity};
use ringpull_kube::quantity::Quantity;
use ringpull_kube::request::{Claim, Gang, Kind, Limits, Request};
use ringpull_kube::{documents, specification, to_yaml};

use super::Format;

/// The arguments of `ringpull manifest`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull manifest train --workers 4 --image reg/ringpull:1 --claim data -- train --kv-store dist_sync_mpi --data /train/data
  ringpull manifest train --workers 2 --gpus 8 --rdma rdma/ib --gang volcano -- python3 train.py
  ringpull manifest compare --workers 4 -- --modes dist_sync_mpi,dist_sync:4shared --bytes 100MB
  ringpull manifest specification '{\"distribution_type\": \"MPI\", \"number_of_workers\": 4}' -- train --kv-store dist_sync_mpi
  ringpull manifest train -- train --kv-store dist_sync_mpi | kubectl apply -f -
  ringpull manifest lint job.yaml                  what will go wrong with an MPIJob; exit code 1 if it would fail, or there is none")]
pub struct ManifestArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// An MPIJob that trains by allreduce (`dist_sync_mpi`).
    #[command(after_help = "Examples:
  ringpull manifest train --workers 4 --image reg/ringpull:1 -- train --kv-store dist_sync_mpi
  ringpull manifest train --workers 4 --claim data -- train --kv-store dist_sync_mpi --checkpoint /train/run.safetensors --resume-if-any
  ringpull manifest train --workers 2 --gpus 8 --rdma rdma/ib --gang volcano -- python3 train.py
  ringpull manifest train -- train --kv-store dist_sync_mpi | kubectl apply -f -")]
    Train(JobArgs),
    /// An MPIJob that compares allreduce and parameter servers on its pods; what follows -- goes to `ringpull compare`.
    Compare(JobArgs),
    /// An MPIJob of scheduler, servers and workers (`dist_sync`, `dist_async`).
    Ps(JobArgs),
    /// A Job of one process.
    Job(JobArgs),
    /// A ClusterTrainingRuntime and a TrainJob for Kubeflow Trainer 2.
    Trainjob(JobArgs),
    /// An MXJob for training-operator 1.8 and earlier.
    Mxjob(JobArgs),
    /// A TFJob.
    Tfjob(JobArgs),
    /// The job that a `distribution_specification` of Kubeflow pipelines describes.
    Specification(SpecificationArgs),
    /// Check MPIJobs: what will go wrong, and the fix.
    Lint(LintArgs),
}

#[derive(Debug, Clone, Args)]
struct JobArgs {
    /// The name of the job; the names of its pods follow from it.
    #[arg(long, default_value = "ringpull")]
    name: String,
    /// The namespace; the context's own if not given.
    #[arg(long)]
    namespace: Option<String>,
    /// The image built from mpijob/Dockerfile, or one that is built like it.
    #[arg(long, default_value = "ringpull:latest")]
    image: String,
    /// Worker pods.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Servers of ps, mxjob and tfjob; for ps and mxjob as many as workers if not given.
    #[arg(long, default_value_t = 0)]
    servers: u32,
    /// Ranks in a worker; one for each GPU, or 1, if not given.
    #[arg(long)]
    slots: Option<u32>,
    /// GPUs of a worker.
    #[arg(long, default_value_t = 0)]
    gpus: u32,
    /// Cores of a worker, such as 4 or 500m.
    #[arg(long)]
    cpus: Option<String>,
    /// Memory of a worker, such as 8Gi.
    #[arg(long)]
    memory: Option<String>,
    /// Cores of the launcher.
    #[arg(long)]
    launcher_cpus: Option<String>,
    /// Memory of the launcher.
    #[arg(long)]
    launcher_memory: Option<String>,
    /// Run ranks in the launcher's pod too (runLauncherAsWorker).
    #[arg(long)]
    launcher_works: bool,
    /// Run as uid 1000 with every capability dropped.
    #[arg(long)]
    non_root: bool,
    /// Place all pods at once or none.
    #[arg(long, value_enum)]
    gang: Option<Gang>,
    /// The queue of the gang scheduler.
    #[arg(long)]
    queue: Option<String>,
    /// Elastic: start with the workers that answer if they are so many; again after each loss, from the checkpoint.
    #[arg(long, value_name = "N")]
    min_workers: Option<u32>,
    /// The RDMA resource of a worker, such as rdma/ib, `rdma/hca_shared_devices_a` or vpc.amazonaws.com/efa.
    #[arg(long, value_name = "RESOURCE")]
    rdma: Option<String>,
    /// The Multus network of the RDMA device.
    #[arg(long, value_name = "NETWORK")]
    rdma_network: Option<String>,
    /// The size of /dev/shm [default: 8Gi with GPUs, else the runtime's 64Mi].
    #[arg(long, value_name = "SIZE")]
    shm: Option<String>,
    /// Mount this PersistentVolumeClaim in every pod.
    #[arg(long, value_name = "CLAIM")]
    claim: Option<String>,
    /// Where the claim is mounted.
    #[arg(long, default_value = "/train", requires = "claim")]
    mount: String,
    /// Write the claim too, ReadWriteMany and of this size.
    #[arg(long, value_name = "SIZE", requires = "claim")]
    claim_size: Option<String>,
    /// The claim's storage class, such as rook-cephfs; the cluster's default if not given.
    #[arg(long, value_name = "CLASS", requires = "claim_size")]
    storage_class: Option<String>,
    /// Use the nodes' network, one worker on a node.
    #[arg(long)]
    host_network: bool,
    /// Run on nodes with this label.
    #[arg(long, value_name = "LABEL=VALUE", value_parser = pair)]
    node_selector: Vec<(String, String)>,
    /// A variable for every rank.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// How often a failed job starts again; with a checkpoint it goes on from there.
    #[arg(long, default_value_t = 3)]
    backoff_limit: u32,
    /// End the job after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    deadline: Option<u32>,
    /// What every rank runs.
    #[arg(last = true)]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct SpecificationArgs {
    /// The dictionary as JSON or YAML, a file with it, or - for stdin.
    specification: String,
    #[command(flatten)]
    job: JobArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull manifest lint job.yaml
  kubectl get mpijob my-job -o yaml | ringpull manifest lint - --format json")]
struct LintArgs {
    /// YAML files with one or several documents; - for stdin.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE")?;
    if name.is_empty() { Err("give NAME=VALUE".to_owned()) } else { Ok((name.to_owned(), value.to_owned())) }
}

/// Prints the manifest, or what lint found.
pub fn run(args: ManifestArgs) -> Result<ExitCode> {
    let request = match args.what {
        What::Train(job) => job.request(Kind::Train)?,
        What::Compare(job) => job.request(Kind::Compare)?,
        What::Ps(job) => job.request(Kind::Ps)?,
        What::Job(job) => job.request(Kind::Job)?,
        What::Trainjob(job) => job.request(Kind::Trainjob)?,
        What::Mxjob(job) => job.request(Kind::Mxjob)?,
        What::Tfjob(job) => job.request(Kind::Tfjob)?,
        What::Specification(args) => {
            let mut request = args.job.request(Kind::Job)?;
            specification::apply(&dictionary(&args.specification)?, &mut request)?;
            request
        }
        What::Lint(args) => return run_lint(&args),
    };
    let text = to_yaml(&documents(&request)?)?;
    if let Some(doubt) = request.doubt() {
        eprintln!("warning: {doubt}");
    }
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

impl JobArgs {
    fn request(self, kind: Kind) -> Result<Request> {
        let amount = |text: Option<String>, read: fn(&str) -> Result<Quantity>| text.as_deref().map(read).transpose();
        let shm = self.shm.or_else(|| (self.gpus > 0).then(|| "8Gi".to_owned()));
        let create = self.claim_size.is_some();
        let size = self.claim_size.unwrap_or_else(|| "10Gi".to_owned());
        let claim = match self.claim {
            Some(name) => {
                let size = Quantity::memory(&size)?;
                Some(Claim { name, path: self.mount, create, size, class: self.storage_class })
            }
            None => None,
        };
        Ok(Request {
            name: self.name,
            namespace: self.namespace,
            image: self.image,
            workers: self.workers,
            servers: self.servers,
            slots: self.slots,
            gpus: self.gpus,
            worker: Limits { cpus: amount(self.cpus, Quantity::cpus)?, memory: amount(self.memory, Quantity::memory)? },
            launcher: Limits {
                cpus: amount(self.launcher_cpus, Quantity::cpus)?,
                memory: amount(self.launcher_memory, Quantity::memory)?,
            },
            launcher_works: self.launcher_works,
            non_root: self.non_root,
            gang: self.gang,
            queue: self.queue,
            min_workers: self.min_workers,
            rdma: self.rdma,
            rdma_network: self.rdma_network,
            shm: amount(shm, Quantity::memory)?,
            claim,
            host_network: self.host_network,
            node_selector: BTreeMap::from_iter(self.node_selector),
            env: BTreeMap::from_iter(self.env),
            backoff_limit: self.backoff_limit,
            deadline_s: self.deadline,
            command: self.command,
            ..Request::new(kind)
        })
    }
}

/// The text of a dictionary that was given itself, as a file, or on stdin.
fn dictionary(given: &str) -> Result<String> {
    let is_text = given.trim().is_empty() || given.trim() == "null" || given.contains(['{', ':']);
    if is_text { Ok(given.to_owned()) } else { read(Path::new(given)) }
}

fn read(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|cause| Error::io("read", "stdin", &cause))?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(|cause| Error::io("read", path.display(), &cause))
}

#[derive(Debug, Serialize)]
struct InFile<'a> {
    file: String,
    #[serde(flatten)]
    finding: &'a Finding,
}

fn run_lint(args: &LintArgs) -> Result<ExitCode> {
    let mut reports = Vec::new();
    for path in &args.files {
        reports.push((path.display().to_string(), lint::lint(&read(path)?)));
    }
    let found = || reports.iter().flat_map(|(file, report)| report.findings.iter().map(move |one| (file, one)));
    let errors = found().filter(|(_, finding)| finding.severity == Severity::Error).count();
    match args.format {
        Format::Json => {
            let all: Vec<InFile> = found().map(|(file, finding)| InFile { file: file.clone(), finding }).collect();
            let text = serde_json::to_string_pretty(&all)
                .map_err(|cause| Error::io("write", "stdout", &std::io::Error::other(cause)))?;
            println!("{text}");
        }
        Format::Table => {
            for (file, one) in found() {
                let severity = if one.severity == Severity::Error { "error" } else { "warning" };
                println!("{file}: {}\n  {severity}: {} [{}]\n  fix: {}", one.at, one.what, one.rule, one.fix);
            }
            let jobs: usize = reports.iter().map(|(_, report)| report.jobs).sum();
            let warnings = found().count() - errors;
            println!("{jobs} MPIJob(s): {errors} error(s), {warnings} warning(s)");
        }
    }
    let empty = reports.iter().filter(|(_, report)| report.jobs == 0 && report.findings.is_empty());
    let empty: Vec<&String> = empty.map(|(file, _)| file).collect();
    for file in &empty {
        eprintln!(
            "error: {file} holds no MPIJob, and nothing was checked\n  hint: lint knows kind: MPIJob alone; give it that file"
        );
    }
    Ok(if errors > 0 || !empty.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
