//! The objects of each kind of job.

use serde_json::{Value, json};

use crate::options::{Gang, JobKind, Request};
use crate::pod::{PodRole, SNAPSHOTS, metadata, pod, selector, ssh_folder, variable};

/// The path of the operators' list of hosts.
pub(super) const HOSTFILE: &str = "/etc/mpi/hostfile";
/// The path of mpi-operator's script that prints the running workers.
pub(super) const DISCOVERY: &str = "/etc/mpi/discover_hosts.sh";
/// The version of Kubeflow Trainer's objects.
pub(super) const TRAINER: &str = "trainer.kubeflow.org/v1alpha1";

/// The objects of the request, in the order to apply them in.
pub(super) fn objects(request: &Request) -> Vec<Value> {
    match request.kind {
        JobKind::Train | JobKind::Compare | JobKind::Ps => vec![mpijob(request)],
        JobKind::Job => vec![job(request)],
        JobKind::Trainjob => vec![runtime(request), trainjob(request)],
        JobKind::Mxjob => vec![mxjob(request)],
        JobKind::Tfjob => vec![tfjob(request)],
        JobKind::Claim => vec![claim(request)],
        JobKind::NetworkPolicy => vec![network_policy(request)],
    }
}

/// Adds the variables that Open MPI 5 needs: the operators set only those of Open MPI 4. Without the first
/// variable every rank runs on the launcher.
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
        JobKind::Train if request.min_workers.is_some() => elastic_words(request),
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

/// Returns the words that start an elastic job. The job counts ranks, and takes a worker's slots from the
/// operator's variable. By the job's name, a launcher that replaces a lost launcher finds the commits in the
/// workers' memory.
fn elastic_words(request: &Request) -> String {
    let ranks = |workers: u32| u64::from(workers) * u64::from(request.slots());
    let least = ranks(request.min_workers.unwrap_or(request.workers));
    let most = request.max_workers.map_or(String::new(), |most| format!("--max-workers {} ", ranks(most)));
    let (name, first) = (&request.name, ranks(request.workers));
    format!(
        "ringpull launch --elastic --job {name} -n {first} --min-workers {least} {most}--snapshots {SNAPSHOTS} \
         --discover-hosts {DISCOVERY} --"
    )
}

/// The MPIJob of a training, of parameter servers or of a comparison.
fn mpijob(request: &Request) -> Value {
    let mut launcher =
        pod(request, "launcher", if request.launcher_works { PodRole::Worker } else { PodRole::Launcher });
    let container = &mut launcher["spec"]["containers"][0];
    container["args"] = json!(launcher_args(request));
    add_open_mpi_5(container);
    let (pods, elastic) = (request.workers - u32::from(request.launcher_works), request.min_workers.is_some());
    let spec = json!({
        "slotsPerWorker": request.slots(),
        "runLauncherAsWorker": request.launcher_works.then_some(true),
        "sshAuthMountPath": ssh_folder(request),
        // A job that goes on with fewer workers must not wait for all of them. A gang starts all pods
        // together, so its launcher cannot wait for the other pods to run: the entrypoint waits.
        "launcherCreationPolicy":
            if elastic || pods == 0 || request.gang.is_some() { "AtStartup" } else { "WaitForWorkersReady" },
        "mpiImplementation": "OpenMPI",
        "runPolicy": run_policy(request),
        "mpiReplicaSpecs": {
            // Each start is a new pod, so that the log of a failed one can still be read.
            "Launcher": { "replicas": 1, "restartPolicy": "Never", "template": launcher },
            "Worker": (pods > 0).then(|| json!({
                "replicas": pods,
                // A worker that starts again has lost its ranks. An elastic job takes this worker in at its
                // next commit.
                "restartPolicy": if elastic { "OnFailure" } else { "Never" },
                "template": pod(request, "worker", PodRole::SshWorker),
            })),
        },
    });
    object("kubeflow.org/v2beta1", "MPIJob", &job_metadata(request), &spec)
}

/// The Job of one process.
fn job(request: &Request) -> Value {
    let mut pod = pod(request, "training-container", PodRole::Worker);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"][0]["args"] = json!(request.command);
    let spec = json!({
        "backoffLimit": request.backoff_limit,
        "activeDeadlineSeconds": request.deadline,
        "ttlSecondsAfterFinished": request.ttl,
        "suspend": request.suspend.then_some(true),
        "template": pod,
    });
    object("batch/v1", "Job", &job_metadata(request), &spec)
}

/// The specification of a runtime with the MPI policy, with these values at their places. Its launcher may
/// wait for the nodes.
pub(super) fn runtime_spec<const N: usize>(waits: bool, values: [(&str, Value); N]) -> Value {
    let mut spec: Value = serde_json::from_str(include_str!("runtime.json")).expect("runtime.json is valid");
    let no_wait = (!waits).then_some(("/template/spec/replicatedJobs/1/dependsOn", Value::Null));
    for (path, value) in values.into_iter().chain(no_wait) {
        *spec.pointer_mut(path).expect("runtime.json has the place") = value;
    }
    spec
}

/// The `TrainingRuntime` that a TrainJob refers to: how MPI jobs of this image run. It has a namespace, so
/// that two teams do not overwrite each other's.
fn runtime(request: &Request) -> Value {
    let mut launcher = pod(request, "node", PodRole::Worker);
    add_open_mpi_5(&mut launcher["spec"]["containers"][0]);
    // A gang is all pods, so none of them can wait for another to run.
    let spec = runtime_spec(
        request.gang.is_none(),
        [
            ("/mlPolicy/numNodes", json!(request.workers)),
            ("/mlPolicy/mpi/numProcPerNode", json!(request.slots())),
            ("/mlPolicy/mpi/sshAuthMountPath", json!(ssh_folder(request))),
            ("/template/spec/ttlSecondsAfterFinished", json!(request.ttl)),
            ("/template/spec/replicatedJobs/0/template/spec/template", pod(request, "node", PodRole::SshWorker)),
            ("/template/spec/replicatedJobs/1/template/spec/backoffLimit", json!(request.backoff_limit)),
            ("/template/spec/replicatedJobs/1/template/spec/template", launcher),
        ],
    );
    let mut metadata = metadata(request, &format!("{}-runtime", request.name));
    // This label shows the runtime's purpose to the SDK of Trainer.
    metadata["labels"]["trainer.kubeflow.org/framework"] = json!("mpi");
    let mut runtime = object(TRAINER, "TrainingRuntime", &metadata, &spec);
    match request.gang {
        Some(Gang::SchedulerPlugins) => {
            runtime["spec"]["podGroupPolicy"] = json!({ "coscheduling": { "scheduleTimeoutSeconds": 300 } });
        }
        Some(Gang::Volcano) => runtime["spec"]["podGroupPolicy"] = json!({ "volcano": {} }),
        None => {}
    }
    runtime
}

/// The TrainJob.
fn trainjob(request: &Request) -> Value {
    let spec = json!({
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "TrainingRuntime",
            "name": format!("{}-runtime", request.name),
        },
        "activeDeadlineSeconds": request.deadline,
        "suspend": request.suspend.then_some(true),
        "trainer": {
            "image": request.image,
            "args": launcher_args(request),
            "numNodes": request.workers,
            "numProcPerNode": request.slots(),
        },
    });
    object(TRAINER, "TrainJob", &job_metadata(request), &spec)
}

/// The MXJob: every process runs the same command and learns its role from `DMLC_*`.
fn mxjob(request: &Request) -> Value {
    let role = |replicas, role| replica(request, replicas, "Never", "mxnet", role);
    let spec = json!({
        "jobMode": "MXTrain",
        "runPolicy": run_policy(request),
        "mxReplicaSpecs": {
            "Scheduler": role(1, PodRole::Launcher),
            "Server": role(request.servers(), PodRole::Server),
            "Worker": role(request.workers, PodRole::Worker),
        },
    });
    object("kubeflow.org/v1", "MXJob", &job_metadata(request), &spec)
}

/// The TFJob.
fn tfjob(request: &Request) -> Value {
    let role = |replicas, role| replica(request, replicas, "OnFailure", "tensorflow", role);
    let spec = json!({
        "runPolicy": run_policy(request),
        "tfReplicaSpecs": {
            "PS": (request.servers > 0).then(|| role(request.servers, PodRole::Server)),
            "Worker": role(request.workers, PodRole::Worker),
        },
    });
    object("kubeflow.org/v1", "TFJob", &job_metadata(request), &spec)
}

/// The claim that every pod of a job mounts at once.
fn claim(request: &Request) -> Value {
    let spec = json!({
        "accessModes": ["ReadWriteMany"],
        "storageClassName": request.storage_class,
        "resources": { "requests": { "storage": request.claim_size } },
    });
    object("v1", "PersistentVolumeClaim", &metadata(request, request.claim.as_deref().unwrap_or_default()), &spec)
}

/// The NetworkPolicy that lets only pods of the job connect to its pods. The system chooses the ports on
/// which ranks listen.
fn network_policy(request: &Request) -> Value {
    let spec = json!({
        "podSelector": selector(request),
        "policyTypes": ["Ingress"],
        "ingress": [{ "from": [{ "podSelector": selector(request) }] }],
    });
    object("networking.k8s.io/v1", "NetworkPolicy", &metadata(request, &request.name), &spec)
}

/// The metadata of the object that starts the job.
fn job_metadata(request: &Request) -> Value {
    let mut metadata = metadata(request, &request.name);
    metadata["labels"]["kueue.x-k8s.io/queue-name"] = json!(request.kueue);
    metadata
}

/// A role of a job in which all pods run the request's command.
fn replica(request: &Request, replicas: u32, restart: &str, container: &str, role: PodRole) -> Value {
    let mut pod = pod(request, container, role);
    pod["spec"]["containers"][0]["args"] = json!(request.command);
    json!({ "replicas": replicas, "restartPolicy": restart, "template": pod })
}

fn run_policy(request: &Request) -> Value {
    let gang = request.gang.map(|gang| match gang {
        Gang::Volcano => json!({ "queue": request.queue.as_deref().unwrap_or("default") }),
        Gang::SchedulerPlugins => json!({ "queue": request.queue, "scheduleTimeoutSeconds": 300 }),
    });
    let mut policy = json!({
        "cleanPodPolicy": "Running",
        "backoffLimit": request.backoff_limit,
        "activeDeadlineSeconds": request.deadline,
        "ttlSecondsAfterFinished": request.ttl,
        "suspend": request.suspend.then_some(true),
        "schedulingPolicy": gang,
    });
    if let (Some(least), true) = (request.min_workers, request.gang.is_some()) {
        // The default is all pods.
        policy["schedulingPolicy"]["minAvailable"] = json!(least + u32::from(!request.launcher_works));
    }
    policy
}

fn object(api_version: &str, kind: &str, metadata: &Value, spec: &Value) -> Value {
    let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec });
    prune(&mut object);
    object
}

/// Removes the fields that are null or empty.
pub(super) fn prune(value: &mut Value) {
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
