//! The objects of each kind of job.

use serde_json::Value;

use ringpull_base::Result;

use super::document;
use super::pod::{ClaimSpec, EnvVar, JobSpec, Metadata, Object, PodTemplate, Resources};
use super::quantity::Quantity;
use super::replicas::{
    DependsOn, JobSet, JobSetSpec, JobTemplate, MlPolicy, MpiPolicy, MpiReplicas, MpiSpec, MxReplicas, MxSpec, Network,
    Replica, ReplicatedJob, RunPolicy, RuntimeRef, RuntimeSpec, SchedulingPolicy, SuccessPolicy, TfReplicas, TfSpec,
    TrainJobSpec, Trainer,
};
use super::request::{Gang, Kind, Request};
use super::shape::{metadata, plain, ssh_folder, ssh_worker, variable, worker};

/// Where the operators put the list of hosts.
const HOSTFILE: &str = "/etc/mpi/hostfile";

/// What Open MPI 5 needs where the operators speak to 4: without the first, every rank runs on the launcher.
fn open_mpi_5() -> Vec<EnvVar> {
    vec![
        variable("PRTE_MCA_prte_default_hostfile", HOSTFILE),
        variable("PRTE_MCA_plm_ssh_args", "-o ConnectionAttempts=10"),
    ]
}

fn launcher_args(request: &Request) -> Vec<String> {
    let words: Vec<&str> = match request.kind {
        Kind::Compare => vec!["ringpull", "compare", "-H", HOSTFILE],
        Kind::Ps => vec!["ringpull", "launch", "--launcher", "mpi", "-H", HOSTFILE],
        // Without -np every slot of the hostfile gets its rank.
        _ => vec!["mpirun", "--bind-to", "none", "--map-by", "slot"],
    };
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    if request.kind == Kind::Ps {
        let workers = u64::from(request.workers) * u64::from(request.slots());
        words.extend(["-n", &workers.to_string(), "-s", &request.servers().to_string(), "--"].map(str::to_owned));
    }
    words.extend(request.command.iter().cloned());
    if request.kind == Kind::Compare
        && request.claim.is_some()
        && !request.command.iter().any(|word| word.starts_with("--out"))
    {
        words.extend(["--out".to_owned(), format!("{}/compare-out", request.mount)]);
    }
    words
}

/// The MPIJob of a training, of parameter servers or of a comparison.
pub(super) fn mpijob(request: &Request) -> Result<Value> {
    let mut launcher = if request.launcher_works {
        worker(request, "launcher")?
    } else {
        plain(request, "launcher", &request.launcher())
    };
    let container = &mut launcher.spec.containers[0];
    container.args = launcher_args(request);
    container.env.extend(open_mpi_5());
    if let Some(least) = request.min_workers {
        container.env.push(variable("RINGPULL_MIN_HOSTS", &least.to_string()));
    }
    let worker_pods = request.workers - u32::from(request.launcher_works);
    let workers = Replica {
        replicas: Some(worker_pods),
        // A worker that comes back has lost its ranks; with fewer workers allowed, it is there for the next
        // start.
        restart_policy: Some(if request.min_workers.is_some() { "OnFailure" } else { "Never" }.to_owned()),
        template: ssh_worker(request, "worker")?,
    };
    // A gang of all pods never starts while the launcher waits for workers to be ready: it is not counted.
    let scheduling = request.gang.map(|gang| SchedulingPolicy {
        min_available: Some(worker_pods.max(1)),
        queue: request.queue.clone(),
        schedule_timeout_seconds: (gang == Gang::SchedulerPlugins).then_some(300),
    });
    // A job that goes on with fewer workers must not wait for all of them.
    let at_startup = request.min_workers.is_some() || worker_pods == 0;
    let spec = MpiSpec {
        slots_per_worker: Some(request.slots()),
        run_launcher_as_worker: request.launcher_works.then_some(true),
        ssh_auth_mount_path: Some(ssh_folder(request).to_owned()),
        launcher_creation_policy: Some(if at_startup { "AtStartup" } else { "WaitForWorkersReady" }.to_owned()),
        mpi_implementation: Some("OpenMPI".to_owned()),
        run_policy: RunPolicy { scheduling_policy: scheduling, ..run_policy(request, "Running") },
        mpi_replica_specs: MpiReplicas {
            launcher: Replica {
                replicas: Some(1),
                // Each start is a pod of its own, so that the log of a failed one can still be read.
                restart_policy: Some("Never".to_owned()),
                template: launcher,
            },
            worker: (worker_pods > 0).then_some(workers),
        },
    };
    object("kubeflow.org/v2beta1", "MPIJob", metadata(request, &request.name), spec)
}

/// The Job of one process.
pub(crate) fn job(request: &Request) -> Result<Value> {
    let mut pod = worker(request, "training-container")?;
    pod.spec.restart_policy = Some("Never".to_owned());
    pod.spec.containers[0].args.clone_from(&request.command);
    let spec = JobSpec {
        backoff_limit: Some(request.backoff_limit),
        active_deadline_seconds: request.deadline_s,
        ttl_seconds_after_finished: None,
        template: pod,
    };
    object("batch/v1", "Job", metadata(request, &request.name), spec)
}

/// What a TrainJob refers to: how MPI jobs of this image run.
pub(super) fn runtime(request: &Request) -> Result<Value> {
    let node = ssh_worker(request, "node")?;
    let mut launcher = worker(request, "node")?;
    launcher.spec.containers[0].env.extend(open_mpi_5());
    let job = |mut template: PodTemplate| {
        template.spec.restart_policy = None;
        JobSpec { template, ..JobSpec::default() }
    };
    let trainer = [("trainer.kubeflow.org/trainjob-ancestor-step".to_owned(), "trainer".to_owned())];
    let spec = RuntimeSpec {
        ml_policy: MlPolicy {
            num_nodes: Some(request.workers),
            mpi: MpiPolicy {
                num_proc_per_node: Some(request.slots()),
                mpi_implementation: Some("OpenMPI".to_owned()),
                ssh_auth_mount_path: Some(ssh_folder(request).to_owned()),
                run_launcher_as_node: Some(true),
            },
        },
        template: JobSet {
            spec: JobSetSpec {
                network: Some(Network { publish_not_ready_addresses: Some(true) }),
                success_policy: Some(SuccessPolicy {
                    operator: "All".to_owned(),
                    target_replicated_jobs: vec!["launcher".to_owned()],
                }),
                replicated_jobs: vec![
                    ReplicatedJob {
                        name: "node".to_owned(),
                        depends_on: Vec::new(),
                        template: JobTemplate { metadata: None, spec: job(node) },
                    },
                    ReplicatedJob {
                        name: "launcher".to_owned(),
                        depends_on: vec![DependsOn { name: "node".to_owned(), status: "Ready".to_owned() }],
                        template: JobTemplate {
                            metadata: Some(Metadata { labels: trainer.into(), ..Metadata::default() }),
                            spec: JobSpec { backoff_limit: Some(request.backoff_limit), ..job(launcher) },
                        },
                    },
                ],
            },
        },
    };
    // The runtime is of the whole cluster, so it has no namespace.
    let name = Metadata { namespace: None, ..metadata(request, &format!("{}-runtime", request.name)) };
    object("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", name, spec)
}

/// The TrainJob.
pub(super) fn trainjob(request: &Request) -> Result<Value> {
    let spec = TrainJobSpec {
        runtime_ref: RuntimeRef {
            api_group: "trainer.kubeflow.org".to_owned(),
            kind: "ClusterTrainingRuntime".to_owned(),
            name: format!("{}-runtime", request.name),
        },
        trainer: Trainer {
            image: request.image.clone(),
            args: launcher_args(request),
            num_nodes: Some(request.workers),
            num_proc_per_node: Some(request.slots()),
        },
    };
    object("trainer.kubeflow.org/v1alpha1", "TrainJob", metadata(request, &request.name), spec)
}

/// The MXJob: every role runs the same command and is told its role by `DMLC_*`.
pub(super) fn mxjob(request: &Request) -> Result<Value> {
    let role = |replicas: u32, mut template: PodTemplate| {
        template.spec.containers[0].args.clone_from(&request.command);
        Replica { replicas: Some(replicas), restart_policy: Some("Never".to_owned()), template }
    };
    let spec = MxSpec {
        job_mode: "MXTrain".to_owned(),
        run_policy: run_policy(request, "Running"),
        mx_replica_specs: MxReplicas {
            scheduler: role(1, plain(request, "mxnet", &request.launcher())),
            server: role(request.servers(), plain(request, "mxnet", &request.worker())),
            worker: role(request.workers, worker(request, "mxnet")?),
        },
    };
    object("kubeflow.org/v1", "MXJob", metadata(request, &request.name), spec)
}

/// The TFJob.
pub(super) fn tfjob(request: &Request) -> Result<Value> {
    let role = |replicas: u32, mut template: PodTemplate| {
        template.spec.containers[0].args.clone_from(&request.command);
        Replica { replicas: Some(replicas), restart_policy: Some("OnFailure".to_owned()), template }
    };
    let spec = TfSpec {
        run_policy: run_policy(request, "Running"),
        tf_replica_specs: TfReplicas {
            ps: (request.servers > 0).then(|| role(request.servers, plain(request, "tensorflow", &request.worker()))),
            worker: role(request.workers, worker(request, "tensorflow")?),
        },
    };
    object("kubeflow.org/v1", "TFJob", metadata(request, &request.name), spec)
}

/// The PersistentVolumeClaim.
pub(super) fn claim(request: &Request, name: &str, size: &Quantity) -> Result<Value> {
    let spec = ClaimSpec {
        // Launcher and workers mount it at once, on whatever nodes they are.
        access_modes: vec!["ReadWriteMany".to_owned()],
        storage_class_name: request.storage_class.clone(),
        resources: Resources { requests: [("storage".to_owned(), size.clone())].into(), ..Resources::default() },
    };
    object("v1", "PersistentVolumeClaim", metadata(request, name), spec)
}

fn run_policy(request: &Request, clean_pods: &str) -> RunPolicy {
    RunPolicy {
        clean_pod_policy: Some(clean_pods.to_owned()),
        backoff_limit: Some(request.backoff_limit),
        active_deadline_seconds: request.deadline_s,
        ..RunPolicy::default()
    }
}

fn object<S: serde::Serialize>(api_version: &str, kind: &str, metadata: Metadata, spec: S) -> Result<Value> {
    document(&Object { api_version: api_version.to_owned(), kind: kind.to_owned(), metadata, spec })
}
