//! Converts a job to another kind: an MPIJob to a TrainJob with its runtime, and an MXJob to an MPIJob or a
//! TrainJob.
//!
//! Pods are carried over whole. Parts that the other kind cannot have are listed. The three roles of an MXJob
//! become one MPI job that starts them by `ringpull launch`, so the image must hold `ringpull` and sshd.

use serde_json::{Value, json};

use ringpull_base::{Error, Result};

use crate::jobs::{DISCOVERY, HOSTFILE, TRAINER, prune, runtime_spec};
use crate::schema;

/// The kind of job to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// A TrainingRuntime and a TrainJob of Kubeflow Trainer 2.
    Trainjob,
    /// An MPIJob of mpi-operator.
    Mpijob,
}

/// The converted job.
#[derive(Debug)]
pub struct Conversion {
    /// The objects, in the order to apply them in.
    pub objects: Vec<Value>,
    /// The parts that could not be carried over, each with a remedy.
    pub lost: Vec<String>,
}

/// Converts the first MPIJob or MXJob of a YAML stream.
pub fn convert(text: &str, target: Target) -> Result<Conversion> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|cause| {
        let cause = cause.to_string();
        Error::argument(format!("invalid YAML: {}", cause.lines().next().unwrap_or("")), "correct that line")
    })?;
    let is_job = |it: &&Value| it["kind"] == "MPIJob" || it["kind"] == "MXJob";
    let Some(job) = documents.iter().find(is_job) else {
        return Err(Error::argument("there is no MPIJob or MXJob to convert", "give a file with one"));
    };
    if let Some(fault) = schema::check(job).into_iter().next() {
        return Err(Error::argument(format!("{}: {}", fault.path, fault.what), fault.fix));
    }
    let mut lost = Vec::new();
    let mpijob = match (job["kind"].as_str(), job["apiVersion"].as_str()) {
        (Some("MXJob"), _) => mpijob_of_mxjob(job, &mut lost)?,
        (_, Some("kubeflow.org/v2beta1")) => job.clone(),
        (_, version) => {
            return Err(Error::argument(
                format!("an MPIJob of {} cannot be converted", version.unwrap_or("no version")),
                "write it as kubeflow.org/v2beta1 first: ringpull manifest lint says what changes",
            ));
        }
    };
    let mut objects = match (target, job["kind"] == "MPIJob") {
        (Target::Mpijob, true) => {
            return Err(Error::argument("the job is an MPIJob already", "give --to trainjob"));
        }
        (Target::Mpijob, false) => vec![mpijob],
        (Target::Trainjob, _) => trainjob_of_mpijob(&mpijob, &mut lost)?,
    };
    objects.iter_mut().for_each(prune);
    Ok(Conversion { objects, lost })
}

/// Moves a field out of an object.
fn take(object: &mut Value, path: &str) -> Value {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let fields = object.pointer_mut(parent).and_then(Value::as_object_mut);
    fields.and_then(|fields| fields.remove(name)).unwrap_or(Value::Null)
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn metadata(job: &Value, name: &str) -> Value {
    let own = &job["metadata"];
    json!({ "name": name, "namespace": own["namespace"], "labels": own["labels"], "annotations": own["annotations"] })
}

fn trainjob_of_mpijob(job: &Value, lost: &mut Vec<String>) -> Result<Vec<Value>> {
    let mut spec = job["spec"].clone();
    let name = job["metadata"]["name"].as_str().unwrap_or("job").to_owned();
    let implementation = take(&mut spec, "/mpiImplementation");
    if implementation.as_str().is_some_and(|other| other != "OpenMPI") {
        return Err(Error::argument(
            format!("Trainer's MPI policy has no {implementation}"),
            "take an image with Open MPI, and write mpiImplementation: OpenMPI",
        ));
    }
    let mut launcher = take(&mut spec, "/mpiReplicaSpecs/Launcher");
    let mut worker = take(&mut spec, "/mpiReplicaSpecs/Worker");
    if worker.is_null() {
        return Err(Error::argument(
            "the job has no Worker, and Trainer's MPI policy needs a node",
            "add Worker replicas",
        ));
    }
    let mut pods = [(&mut launcher, "Launcher"), (&mut worker, "Worker")].map(|(replica, role)| {
        let mut template = take(replica, "/template");
        match template.pointer_mut("/spec/containers/0") {
            // Trainer sets up the container of this name.
            Some(container) => container["name"] = json!("node"),
            None => lost.push(format!("{role} has no container")),
        }
        let policy = replica["restartPolicy"].as_str().unwrap_or("Never");
        // A child Job has its restart policy in its pod.
        template["spec"]["restartPolicy"] = json!(policy);
        template
    });
    let works = spec["runLauncherAsWorker"] == true;
    let nodes = worker["replicas"].as_i64().unwrap_or(1) + i64::from(works);
    let slots = spec["slotsPerWorker"].as_i64().unwrap_or(1);
    let container = &mut pods[0]["spec"]["containers"][0];
    let (command, mut args) = (take(container, "/command"), take(container, "/args"));
    let options = args.as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
    if let Some(at) = options.windows(2).position(|pair| pair[0] == "--discover-hosts" && pair[1] == DISCOVERY) {
        (options[at], options[at + 1]) = (json!("-H"), json!(HOSTFILE));
        lost.push("discover_hosts.sh: Trainer writes none, so nodes that are added are not taken in".to_owned());
    }
    let mut policy = take(&mut spec, "/runPolicy");
    let (deadline, suspend) = (take(&mut policy, "/activeDeadlineSeconds"), take(&mut policy, "/suspend"));
    let (ttl, backoff) = (take(&mut policy, "/ttlSecondsAfterFinished"), take(&mut policy, "/backoffLimit"));
    let scheduling = take(&mut policy, "/schedulingPolicy");
    let waits = spec["launcherCreationPolicy"] == "WaitForWorkersReady" && scheduling.is_null();
    let gang = (!scheduling.is_null()).then(|| {
        lost.push("schedulingPolicy: Trainer's gang has no minAvailable, queue or priorityClass; volcano's queue is set in the cluster".to_owned());
        let seconds = scheduling["scheduleTimeoutSeconds"].as_i64().unwrap_or(60);
        json!({ "coscheduling": { "scheduleTimeoutSeconds": seconds } })
    });
    if policy["cleanPodPolicy"].as_str().is_some_and(|word| word != "Running") {
        lost.push(format!(
            "cleanPodPolicy {}: Trainer always deletes the pods that run when the launcher ends",
            policy["cleanPodPolicy"]
        ));
    }
    if policy["managedBy"].is_string() {
        lost.push("managedBy: Trainer's managers have other names; set spec.managedBy of the TrainJob".to_owned());
    }
    let key = spec["sshAuthMountPath"].as_str().unwrap_or("/root/.ssh");
    if key == "/root/.ssh" {
        lost.push("root: Trainer's key has mode 0640, which root's ssh refuses, unless the entrypoint copies it as ringpull's image does; else run as a user with fsGroup".to_owned());
    }
    let [launcher, worker] = pods;
    let runtime_name = format!("{name}-runtime");
    let mut runtime_spec = runtime_spec(
        waits,
        [
            ("/mlPolicy/numNodes", json!(nodes)),
            ("/mlPolicy/mpi/numProcPerNode", json!(slots)),
            ("/mlPolicy/mpi/sshAuthMountPath", json!(key)),
            ("/mlPolicy/mpi/runLauncherAsNode", json!(works)),
            ("/template/spec/ttlSecondsAfterFinished", ttl),
            ("/template/spec/replicatedJobs/0/template/spec/template", worker),
            ("/template/spec/replicatedJobs/1/template/spec/backoffLimit", backoff),
            ("/template/spec/replicatedJobs/1/template/spec/template", launcher),
        ],
    );
    runtime_spec["podGroupPolicy"] = json!(gang);
    let runtime = json!({
        "apiVersion": TRAINER,
        "kind": "TrainingRuntime",
        "metadata": metadata(job, &runtime_name),
        "spec": runtime_spec,
    });
    let trainjob = json!({
        "apiVersion": TRAINER,
        "kind": "TrainJob",
        "metadata": metadata(job, &name),
        "spec": {
            "runtimeRef": { "apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": runtime_name },
            "activeDeadlineSeconds": deadline,
            "suspend": suspend,
            "trainer": { "command": command, "args": args, "numNodes": nodes, "numProcPerNode": slots },
        },
    });
    Ok(vec![runtime, trainjob])
}

fn mpijob_of_mxjob(job: &Value, lost: &mut Vec<String>) -> Result<Value> {
    let spec = &job["spec"];
    if spec["jobMode"] != "MXTrain" {
        return Err(Error::argument(
            format!("jobMode {} is no training", spec["jobMode"]),
            "only MXTrain can be converted",
        ));
    }
    let roles = &spec["mxReplicaSpecs"];
    let count = |role: &str| roles[role]["replicas"].as_u64().unwrap_or(1);
    let (workers, servers) = (count("Worker"), if roles["Server"].is_null() { 0 } else { count("Server") });
    let mut worker = roles["Worker"]["template"].clone();
    if worker.pointer("/spec/containers/0").is_none() {
        return Err(Error::argument("the job has no Worker with a container", "add mxReplicaSpecs.Worker"));
    }
    let container = &mut worker["spec"]["containers"][0];
    let (command, args) = (take(container, "/command"), take(container, "/args"));
    let words: Vec<&str> = texts(&command).into_iter().chain(texts(&args)).collect();
    let start = format!("ringpull launch --launcher mpi -H {HOSTFILE} -n {workers} -s {servers} --");
    let launched: Vec<&str> = start.split(' ').chain(words.iter().copied()).collect();
    let mut launcher = roles["Scheduler"]["template"].clone();
    if launcher.pointer("/spec/containers/0").is_none() {
        launcher = worker.clone();
        take(&mut launcher["spec"]["containers"][0], "/resources");
    }
    let image = worker["spec"]["containers"][0]["image"].clone();
    let env = take(&mut worker["spec"]["containers"][0], "/env");
    for (template, name) in [(&mut launcher, "launcher"), (&mut worker, "worker")] {
        let container = &mut template["spec"]["containers"][0];
        container["name"] = json!(name);
        take(container, "/command");
        take(container, "/ports");
        container["image"] = image.clone();
    }
    launcher["spec"]["containers"][0]["args"] = json!(launched);
    // Ranks see the launcher's variables.
    launcher["spec"]["containers"][0]["env"] = env;
    let sshd = &mut worker["spec"]["containers"][0];
    sshd["command"] = json!(["/usr/sbin/sshd", "-De"]);
    sshd["readinessProbe"] = json!({ "tcpSocket": { "port": 2222 } });
    lost.push(format!(
        "the image {image}: it must hold ringpull, sshd and an entrypoint that waits (mpijob/README.md, \"An image of your own\")"
    ));
    if servers > 0 {
        lost.push("Server: servers run on the workers' pods, within the workers' limits".to_owned());
    }
    for role in ["Scheduler", "Server"] {
        let other = &roles[role]["template"]["spec"]["containers"][0];
        let same = [texts(&other["command"]), texts(&other["args"])].concat() == words;
        if !other.is_null() && !same {
            lost.push(format!("{role}: its command is another than the worker's, which every role runs now"));
        }
    }
    let user = worker["spec"]["securityContext"]["runAsUser"].as_i64().unwrap_or(0);
    Ok(json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata(job, job["metadata"]["name"].as_str().unwrap_or("job")),
        "spec": {
            "slotsPerWorker": 1,
            "sshAuthMountPath": if user == 0 { "/root/.ssh" } else { "/home/mpiuser/.ssh" },
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": spec["runPolicy"],
            "mpiReplicaSpecs": {
                "Launcher": { "replicas": 1, "restartPolicy": "Never", "template": launcher },
                "Worker": { "replicas": workers, "restartPolicy": "Never", "template": worker },
            },
        },
    }))
}
