//! What the operator refuses, and what it accepts but ignores. After a refusal the object stays, with an
//! event, and nothing runs.

use super::Findings;
use super::job::Job;
use super::node::Node;
use crate::quantity::Quantity;
use crate::request::{LONGEST_LABEL, is_label};

const SPEC: [&str; 7] = [
    "slotsPerWorker",
    "runLauncherAsWorker",
    "sshAuthMountPath",
    "launcherCreationPolicy",
    "mpiImplementation",
    "mpiReplicaSpecs",
    "runPolicy",
];
const RUN_POLICY: [&str; 7] = [
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "backoffLimit",
    "suspend",
    "managedBy",
    "schedulingPolicy",
];
const REPLICA: [&str; 3] = ["replicas", "restartPolicy", "template"];

/// Whether the object is of the version that these rules know.
pub(super) fn is_v2(object: &Node, findings: &mut Findings) -> bool {
    let version = object.get("apiVersion");
    match version.text() {
        Some("kubeflow.org/v2beta1") => return true,
        Some("kubeflow.org/v1") => findings.error(
            "old-version",
            &version,
            "version v1 is training-operator's, removed in Kubeflow Trainer 2; it cannot be installed beside v2beta1",
            "write apiVersion: kubeflow.org/v2beta1, move cleanPodPolicy into runPolicy, and pass variables with mpirun -x",
        ),
        _ => findings.error(
            "old-version",
            &version,
            "no maintained operator runs this version",
            "write apiVersion: kubeflow.org/v2beta1",
        ),
    }
    false
}

pub(crate) fn check(job: &Job, findings: &mut Findings) {
    name(job, findings);
    unknown_fields(job, findings);
    replicas(job, findings);
    words(job, findings);
    run_policy(job, findings);
    scheduling(job, findings);
}

fn name(job: &Job, findings: &mut Findings) {
    let at = job.object.down("metadata.name");
    let Some(name) = at.text() else {
        // `generateName` ends in five characters of the server's.
        if !job.object.down("metadata.generateName").is_there() {
            findings.error("name", &at, "the job has no name", "give metadata.name");
        }
        return;
    };
    let longest = format!("{name}-worker-{}", job.worker_pods().saturating_sub(1).max(0));
    if !is_label(name) {
        let what = format!("{name:?} cannot be part of a pod's host name: the job is refused");
        findings.error("name", &at, what, "use lower-case letters, digits and -, begin with a letter, no dots");
    } else if longest.len() > LONGEST_LABEL {
        let what = format!("the host name {longest} has {} characters; at most 63 are allowed", longest.len());
        findings.error("name", &at, what, format!("shorten the name by {}", longest.len() - LONGEST_LABEL));
    }
}

fn unknown_fields(job: &Job, findings: &mut Findings) {
    let mut look = |at: &Node, known: &[&str]| {
        for (name, field) in at.fields() {
            if known.contains(&name) {
                continue;
            }
            let near = known.iter().find(|other| other.eq_ignore_ascii_case(name));
            let fix = match (near, name) {
                (Some(near), _) => format!("write {near}"),
                (None, "cleanPodPolicy" | "backoffLimit" | "activeDeadlineSeconds" | "ttlSecondsAfterFinished") => {
                    format!("move it to spec.runPolicy.{name}")
                }
                _ => format!("leave it out; the known fields are {}", known.join(", ")),
            };
            findings.error(
                "unknown-field",
                &field,
                format!("v2beta1 has no field {name}: it is dropped or refused"),
                fix,
            );
        }
    };
    look(&job.spec, &SPEC);
    look(&job.spec.get("runPolicy"), &RUN_POLICY);
    for (_, role) in job.roles() {
        look(&role.replica, &REPLICA);
    }
    for (name, field) in job.spec.get("mpiReplicaSpecs").fields() {
        if ["Launcher", "Worker"].contains(&name) {
            continue;
        }
        let near = ["Launcher", "Worker"].into_iter().find(|other| other.eq_ignore_ascii_case(name));
        let fix =
            near.map_or("only Launcher and Worker are read; leave it out".to_owned(), |near| format!("write {near}"));
        let what = format!("the schema accepts {name}, but the operator ignores it and creates none of its pods");
        findings.error("replica-name", &field, what, fix);
    }
}

fn replicas(job: &Job, findings: &mut Findings) {
    let launcher = &job.launcher.replica;
    if !launcher.is_there() {
        findings.error(
            "no-launcher",
            launcher,
            "the Launcher is missing: the job is refused",
            "add mpiReplicaSpecs.Launcher",
        );
    } else if launcher.get("replicas").number().is_some_and(|count| count != 1) {
        findings.error(
            "launcher-replicas",
            &launcher.get("replicas"),
            "a job has exactly one launcher",
            "write replicas: 1",
        );
    }
    let worker = &job.worker.replica;
    let count = worker.get("replicas");
    let lower_case = job.spec.get("mpiReplicaSpecs").get("worker").is_there();
    if worker.is_there() && count.number().is_none_or(|count| count < 1) {
        let what = if count.is_there() { "replicas is below 1" } else { "replicas is missing, which means 0" };
        findings.error("worker-replicas", &count, format!("{what}: the job is refused"), "write replicas: 1 or more");
    } else if !worker.is_there() && !job.launcher_works() && !lower_case {
        let fix = "add mpiReplicaSpecs.Worker, or set runLauncherAsWorker: true";
        findings.error("no-workers", worker, "the job has no worker, so no rank can run", fix);
    }
    for (name, role) in job.roles() {
        let policy = role.replica.get("restartPolicy");
        if policy.text().is_some_and(|text| !["Never", "OnFailure"].contains(&text)) {
            let what = format!("restartPolicy {} is refused", policy.value);
            findings.error("restart-policy", &policy, what, "write Never or OnFailure");
        }
        if name == "launcher" && policy.text() != Some("Never") && policy.text().is_none_or(|text| text == "OnFailure")
        {
            findings.warn(
                "lost-log",
                &policy,
                "with OnFailure the launcher's pod and its log are deleted when backoffLimit is reached",
                "write restartPolicy: Never for the Launcher: then the pod of each start stays",
            );
        }
        if role.pod.get("restartPolicy").is_there() {
            let fix = "move it to restartPolicy beside template";
            findings.warn("pod-restart-policy", &role.pod.get("restartPolicy"), "the operator overrides it", fix);
        }
        if role.pod.get("containers").items().is_empty() {
            let what = format!("the {name} has no container: the job is refused");
            findings.error("no-container", &role.pod.get("containers"), what, "add one container");
        }
    }
}

fn words(job: &Job, findings: &mut Findings) {
    let mut one_of = |at: Node, known: &[&str], what: &str| {
        if at.is_there() && at.text().is_none_or(|text| !known.contains(&text)) {
            findings.error(
                "wrong-word",
                &at,
                format!("{} {what}", at.value),
                format!("write one of {}", known.join(", ")),
            );
        }
    };
    one_of(job.spec.get("mpiImplementation"), &["OpenMPI", "Intel", "MPICH"], "is not an MPI that the operator knows");
    one_of(
        job.spec.get("launcherCreationPolicy"),
        &["AtStartup", "WaitForWorkersReady"],
        "is not a policy; it acts as WaitForWorkersReady",
    );
    one_of(job.spec.down("runPolicy.cleanPodPolicy"), &["None", "Running", "All"], "is not a policy");
    let slots = job.spec.get("slotsPerWorker");
    if slots.is_there() && slots.number().is_none_or(|count| count < 1) {
        let what = format!("slotsPerWorker is {}: no rank can run", slots.value);
        findings.error("slots", &slots, what, "write the number of ranks in a worker, at least 1");
    }
    for (_, role) in job.roles() {
        for kind in ["limits", "requests"] {
            for (name, amount) in role.container.get("resources").get(kind).fields() {
                let text = amount.text().map_or_else(|| amount.value.to_string(), str::to_owned);
                let read = if name == "memory" { Quantity::memory(&text) } else { text.parse() };
                if let Err(ringpull_base::Error::InvalidArgument { what, remedy }) = read
                    && text != "0"
                {
                    findings.error("quantity", &amount, what, remedy);
                }
            }
        }
    }
}

fn run_policy(job: &Job, findings: &mut Findings) {
    let policy = job.spec.down("runPolicy.cleanPodPolicy");
    if matches!(policy.text(), None | Some("None")) && !policy.value.is_number() {
        findings.warn(
            "clean-pods",
            &policy,
            "cleanPodPolicy is None by default: after the job its workers' sshd keep holding processors and GPUs",
            "write runPolicy.cleanPodPolicy: Running",
        );
    }
}

fn scheduling(job: &Job, findings: &mut Findings) {
    let policy = job.spec.down("runPolicy.schedulingPolicy");
    let least = policy.get("minAvailable");
    let all = job.worker_pods().saturating_add(1);
    if policy.is_there() && job.waits_for_workers() && least.number().unwrap_or(all) >= all {
        findings.error(
            "gang-deadlock",
            &least,
            "the gang waits for the launcher's pod, and the launcher waits for the gang's workers: nothing ever starts",
            format!("write minAvailable: {}, or launcherCreationPolicy: AtStartup", all - 1),
        );
    }
}
