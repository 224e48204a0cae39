//! The objects of each kind of job.

use serde_json::{Value, json};

use super::pod::{metadata, plain, ssh_folder, ssh_worker, variable, worker};
use super::quantity::Quantity;
use super::request::{Gang, JobKind, Request};

/// Where the operators put the list of hosts.
const HOSTFILE: &str = "/etc/mpi/hostfile";

/// Adds the variables that Open MPI 5 needs, since the operators set those of Open MPI 4. Without the first,
/// every rank runs on the launcher.
fn add_open_mpi_5(container: &mut Value) {
    container["env"].as_array_mut().into_iter().for_each(|env| {
        env.extend([
            variable("PRTE_MCA_prte_default_hostfile", HOSTFILE),
            variable("PRTE_MCA_plm_ssh_args", "-o ConnectionAttempts=10"),
        ]);
    });
}

fn launcher_args(request: &Request) -> Vec<String> {
    let (ranks, servers) = (u64::from(request.workers) * u64::from(request.slots()), request.servers());
    let words = match request.kind {
        JobKind::Compare => format!("ringpull compare -H {HOSTFILE}"),
        JobKind::Ps => format!("ringpull launch --launcher mpi -H {HOSTFILE} -n {ranks} -s {servers} --"),
        // Without -np every slot of the hostfile gets its rank.
        _ => "mpirun --bind-to none --map-by slot".to_owned(),
    };
    let mut words: Vec<String> = words.split(' ').map(str::to_owned).chain(request.command.clone()).collect();
    let names_folder = request.command.iter().any(|word| word.starts_with("--out"));
    if request.kind == JobKind::Compare && request.claim.is_some() && !names_folder {
        words.extend(["--out".to_owned(), format!("{}/compare-out", request.mount)]);
    }
    words
}

fn launcher_limits(request: &Request) -> Value {
    json!({ "cpu": request.launcher_cpus, "memory": request.launcher_memory })
}

fn worker_limits(request: &Request) -> Value {
    json!({ "cpu": request.cpus, "memory": request.memory })
}

/// The MPIJob of a training, of parameter servers or of a comparison.
pub(super) fn mpijob(request: &Request) -> Value {
    let mut launcher = if request.launcher_works {
        worker(request, "launcher")
    } else {
        plain(request, "launcher", &launcher_limits(request))
    };
    let container = &mut launcher["spec"]["containers"][0];
    container["args"] = json!(launcher_args(request));
    add_open_mpi_5(container);
    if let (Some(least), Some(env)) = (request.min_workers, container["env"].as_array_mut()) {
        env.push(variable("RINGPULL_MIN_HOSTS", &least.to_string()));
    }
    let (pods, elastic) = (request.workers - u32::from(request.launcher_works), request.min_workers.is_some());
    let mut policy = run_policy(request);
    if let Some(gang) = request.gang {
        policy["schedulingPolicy"] = json!({
            // The launcher is not counted: a gang of all pods never starts while the launcher waits for
            // workers.
            "minAvailable": pods.max(1),
            "queue": request.queue,
            "scheduleTimeoutSeconds": (gang == Gang::SchedulerPlugins).then_some(300),
        });
    }
    let spec = json!({
        "slotsPerWorker": request.slots(),
        "runLauncherAsWorker": request.launcher_works.then_some(true),
        "sshAuthMountPath": ssh_folder(request),
        // A job that goes on with fewer workers must not wait for all of them.
        "launcherCreationPolicy": if elastic || pods == 0 { "AtStartup" } else { "WaitForWorkersReady" },
        "mpiImplementation": "OpenMPI",
        "runPolicy": policy,
        "mpiReplicaSpecs": {
            // Each start is a new pod, so that the log of a failed one can still be read.
            "Launcher": { "replicas": 1, "restartPolicy": "Never", "template": launcher },
            "Worker": (pods > 0).then(|| json!({
                "replicas": pods,
                // A worker that comes back has lost its ranks. An elastic job takes it in at its next start.
                "restartPolicy": if elastic { "OnFailure" } else { "Never" },
                "template": ssh_worker(request, "worker"),
            })),
        },
    });
    object("kubeflow.org/v2beta1", "MPIJob", &metadata(request, &request.name), &spec)
}

/// The Job of one process.
pub(super) fn job(request: &Request) -> Value {
    let mut pod = worker(request, "training-container");
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"][0]["args"] = json!(request.command);
    let spec = json!({
        "backoffLimit": request.backoff_limit,
        "activeDeadlineSeconds": request.deadline_s,
        "template": pod,
    });
    object("batch/v1", "Job", &metadata(request, &request.name), &spec)
}

/// The ClusterTrainingRuntime that a TrainJob refers to: how MPI jobs of this image run.
pub(super) fn runtime(request: &Request) -> Value {
    let mut launcher = worker(request, "node");
    add_open_mpi_5(&mut launcher["spec"]["containers"][0]);
    let spec = json!({
        "mlPolicy": {
            "numNodes": request.workers,
            "mpi": {
                "numProcPerNode": request.slots(),
                "mpiImplementation": "OpenMPI",
                "sshAuthMountPath": ssh_folder(request),
                "runLauncherAsNode": true,
            },
        },
        "template": {
            "spec": {
                "network": { "publishNotReadyAddresses": true },
                "successPolicy": { "operator": "All", "targetReplicatedJobs": ["launcher"] },
                "replicatedJobs": [
                    { "name": "node", "template": { "spec": { "template": ssh_worker(request, "node") } } },
                    {
                        "name": "launcher",
                        "dependsOn": [{ "name": "node", "status": "Ready" }],
                        "template": {
                            "metadata": { "labels": { "trainer.kubeflow.org/trainjob-ancestor-step": "trainer" } },
                            "spec": { "backoffLimit": request.backoff_limit, "template": launcher },
                        },
                    },
                ],
            },
        },
    });
    // A runtime belongs to the whole cluster, so it has no namespace.
    let mut name = metadata(request, &format!("{}-runtime", request.name));
    name["namespace"] = Value::Null;
    object("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", &name, &spec)
}

/// The TrainJob.
pub(super) fn trainjob(request: &Request) -> Value {
    let spec = json!({
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
            "name": format!("{}-runtime", request.name),
        },
        "trainer": {
            "image": request.image,
            "args": launcher_args(request),
            "numNodes": request.workers,
            "numProcPerNode": request.slots(),
        },
    });
    object("trainer.kubeflow.org/v1alpha1", "TrainJob", &metadata(request, &request.name), &spec)
}

/// The MXJob: every process runs the same command and learns its role from `DMLC_*`.
pub(super) fn mxjob(request: &Request) -> Value {
    let role = |replicas, pod| replica(request, replicas, "Never", pod);
    let spec = json!({
        "jobMode": "MXTrain",
        "runPolicy": run_policy(request),
        "mxReplicaSpecs": {
            "Scheduler": role(1, plain(request, "mxnet", &launcher_limits(request))),
            "Server": role(request.servers(), plain(request, "mxnet", &worker_limits(request))),
            "Worker": role(request.workers, worker(request, "mxnet")),
        },
    });
    object("kubeflow.org/v1", "MXJob", &metadata(request, &request.name), &spec)
}

/// The TFJob.
pub(super) fn tfjob(request: &Request) -> Value {
    let role = |replicas, pod| replica(request, replicas, "OnFailure", pod);
    let servers = || role(request.servers, plain(request, "tensorflow", &worker_limits(request)));
    let spec = json!({
        "runPolicy": run_policy(request),
        "tfReplicaSpecs": {
            "PS": (request.servers > 0).then(servers),
            "Worker": role(request.workers, worker(request, "tensorflow")),
        },
    });
    object("kubeflow.org/v1", "TFJob", &metadata(request, &request.name), &spec)
}

/// The PersistentVolumeClaim. Launcher and workers mount it at the same time, on any nodes.
pub(super) fn claim(request: &Request, name: &str, size: &Quantity) -> Value {
    let spec = json!({
        "accessModes": ["ReadWriteMany"],
        "storageClassName": request.storage_class,
        "resources": { "requests": { "storage": size } },
    });
    object("v1", "PersistentVolumeClaim", &metadata(request, name), &spec)
}

/// A role of a job all of whose pods run the request's command.
fn replica(request: &Request, replicas: u32, restart: &str, mut pod: Value) -> Value {
    pod["spec"]["containers"][0]["args"] = json!(request.command);
    json!({ "replicas": replicas, "restartPolicy": restart, "template": pod })
}

fn run_policy(request: &Request) -> Value {
    json!({
        "cleanPodPolicy": "Running",
        "backoffLimit": request.backoff_limit,
        "activeDeadlineSeconds": request.deadline_s,
    })
}

fn object(api_version: &str, kind: &str, metadata: &Value, spec: &Value) -> Value {
    let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec });
    prune(&mut object);
    object
}

/// Removes the fields that are null or empty.
fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, field| match field {
                Value::Null => false,
                Value::Array(list) => !list.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
                _ => true,
            });
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}
