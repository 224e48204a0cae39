//! Settings that the operator refuses, and settings that it accepts but ignores. A refused object stays in
//! the cluster with an event, and nothing runs.

use super::Findings;
use super::job::{Job, MpiJobSpec, RoleView};
use super::launcher::asked;
use super::node::Node;
use crate::jobs::HOSTFILE;
use crate::names::{LONGEST_LABEL, is_label};
use crate::quantity::Quantity;

/// Returns true if the object is of the version that these rules know.
pub(super) fn is_known_version(object: &Node, findings: &mut Findings) -> bool {
    if crate::schema::shape_of(object.value).is_some() {
        return true;
    }
    let version = object.get("apiVersion");
    let group = version.text().and_then(|text| text.split_once('/')).map_or("", |(group, _)| group);
    let (what, fix) = match (object.get("kind").text(), version.text()) {
        (Some("MPIJob"), Some("kubeflow.org/v1")) => (
            "version v1 is training-operator's, removed in Kubeflow Trainer 2; it cannot be installed beside v2beta1",
            "write apiVersion: kubeflow.org/v2beta1, move cleanPodPolicy into runPolicy, and pass variables with mpirun -x",
        ),
        (Some("MPIJob"), _) => ("no maintained operator runs this version", "write apiVersion: kubeflow.org/v2beta1"),
        _ if ["kubeflow.org", "trainer.kubeflow.org"].contains(&group) => (
            "no version of that operator that is still in use has this one",
            "write kubeflow.org/v1, or for Trainer trainer.kubeflow.org/v1alpha1",
        ),
        // Another group's kind of that name.
        _ => return false,
    };
    findings.add("old-version", &version, what, fix);
    false
}

/// Names of fields whose numbers may be negative.
const MAY_BE_NEGATIVE: [&str; 4] = ["priority", "tolerationSeconds", "values", "value"];

/// Kubernetes' schemas allow negative numbers almost everywhere, but its API servers refuse them.
pub(super) fn no_negative_numbers(object: &Node, findings: &mut Findings) {
    let mut within: Vec<Node> = vec![object.get("spec")];
    while let Some(node) = within.pop() {
        if node.number().is_some_and(|number| number < 0) {
            let what = format!("{} is below 0: the object or its pods are refused", node.value);
            findings.found("negative", &node, what);
        }
        within.extend(node.items());
        within.extend(
            node.fields().into_iter().filter(|(name, _)| !MAY_BE_NEGATIVE.contains(name)).map(|(_, field)| field),
        );
    }
}

/// Checks the rules for jobs of every kind.
pub(super) fn check(job: &Job, findings: &mut Findings) {
    name(job, findings);
    for (name, role) in &job.roles {
        if role.pod.get("containers").items().is_empty() {
            let what = format!("{name} has no container: the job is refused");
            findings.found("no-container", &role.pod.get("containers"), what);
        }
        resources(role, findings);
    }
    match job.kind {
        "MXJob" => {
            let fix = "training-operator 1.8 runs it; ringpull manifest convert writes an MPIJob or a TrainJob";
            findings.add("mxjob-gone", &job.object.get("kind"), "training-operator 1.9 and later run no MXJob", fix);
            replicas(
                job,
                &["Scheduler", "Server", "Worker", "TunerTracker", "TunerServer", "Tuner"],
                "mxnet",
                findings,
            );
        }
        "TFJob" => replicas(job, &["PS", "Worker", "Chief", "Master", "Evaluator"], "tensorflow", findings),
        _ => {}
    }
}

/// The roles of an MXJob or TFJob.
fn replicas(job: &Job, known: &[&str], container: &str, findings: &mut Findings) {
    for (name, role) in &job.roles {
        if !known.contains(&name.as_str()) {
            let what = format!("a {} has no role {name}: its pods are not created", job.kind);
            findings.add("replica-name", &role.replica, what, format!("write one of {}", known.join(", ")));
            continue;
        }
        let (all, one) = (role.pod.get("containers"), ["Scheduler", "Chief", "Master"].contains(&name.as_str()));
        if all.items().iter().all(|it| it.get("name").text() != Some(container)) && !all.items().is_empty() {
            let what = format!("no container of {name} is named {container}: the job is refused");
            findings.add("container-name", &all, what, format!("write name: {container}"));
        }
        let count = role.replica.get("replicas");
        if one && count.number().is_some_and(|count| count != 1) {
            findings.found("launcher-replicas", &count, format!("a job has exactly one {name}"));
        } else if count.number().is_some_and(|count| count == 0) {
            findings.found("worker-replicas", &count, "replicas is 0: the role has no pod");
        }
        let policy = role.replica.get("restartPolicy");
        one_of(&policy, &["Always", "OnFailure", "Never", "ExitCode"], "is not a policy", findings);
    }
    let has = |wanted: &str| job.roles.iter().any(|(name, _)| name == wanted);
    let missing: Vec<&str> = match job.kind {
        "MXJob" if job.spec.get("jobMode").text() == Some("MXTrain") => {
            ["Scheduler", "Server", "Worker"].into_iter().filter(|role| !has(role)).collect()
        }
        _ if job.roles.is_empty() => vec!["Worker"],
        _ => Vec::new(),
    };
    if let Some(role) = missing.first() {
        findings.add("no-workers", &job.spec, format!("the job has no {role}"), format!("add a replica spec {role}"));
    }
    one_of(&job.spec.get("jobMode"), &["MXTrain", "MXTune"], "is not a mode", findings);
}

/// Amounts of memory that can only be a mistake.
fn resources(role: &RoleView, findings: &mut Findings) {
    for kind in ["limits", "requests"] {
        for (_, amount) in
            role.container.get("resources").get(kind).fields().iter().filter(|(name, _)| *name == "memory")
        {
            let text = amount.text().map_or_else(|| amount.value.to_string(), str::to_owned);
            if let (Ok(_), Err(ringpull_base::Error::InvalidArgument { what, remedy })) =
                (text.parse::<Quantity>(), Quantity::memory(&text))
            {
                findings.add("quantity", amount, what, remedy);
            }
        }
    }
}

fn one_of(at: &Node, known: &[&str], what: &str, findings: &mut Findings) {
    if at.text().is_some_and(|text| !known.contains(&text)) {
        findings.add("wrong-word", at, format!("{} {what}", at.value), format!("write one of {}", known.join(", ")));
    }
}

/// Checks the rules for MPIJobs and for runtimes with the MPI policy.
pub(super) fn check_mpi(job: &MpiJobSpec, findings: &mut Findings) {
    if job.slots.is_there() && job.slots.number().is_some_and(|count| count < 1) {
        let what = format!("{} slots in each worker: no rank can run", job.slots.value);
        findings.found("slots", &job.slots, what);
    }
    if job.is_runtime {
        runtime(job, findings);
    } else {
        mpi_replicas(job, findings);
        words(job, findings);
        run_policy(job, findings);
        scheduling(job, findings);
    }
}

fn runtime(job: &MpiJobSpec, findings: &mut Findings) {
    // A job may have roles of its own, whose launcher makes the list of hosts.
    let words = job.launcher.raw_words().join(" ");
    let words: Vec<&str> = words.split([' ', '"', '\'']).collect();
    if words.windows(2).any(|pair| ["-hostfile", "--hostfile"].contains(&pair[0]) && pair[1] != HOSTFILE) {
        return;
    }
    for (name, role, rule) in [("launcher", &job.launcher, "no-launcher"), ("node", &job.worker, "no-workers")] {
        if !role.template.is_there() {
            let what = format!("no replicated job is named {name}: Trainer sets up no pod as its {name}");
            findings.add(rule, &job.spec.down("template.spec.replicatedJobs"), what, format!("write name: {name}"));
        } else if role.container.get("name").text() != Some("node") {
            let what = format!("no container of {name} is named node: Trainer mounts neither key nor hostfile");
            findings.add("container-name", &role.pod.get("containers"), what, "write name: node");
        }
    }
    let gang = job.spec.get("podGroupPolicy");
    if gang.is_there() && job.waits_for_workers {
        findings.add(
            "gang-deadlock",
            &job.launcher.replica.get("dependsOn"),
            "the gang waits for the launcher's pod, and the launcher waits for the gang's nodes: nothing ever starts",
            "leave out dependsOn, and let the launcher's entrypoint wait",
        );
    }
}

fn name(job: &Job, findings: &mut Findings) {
    let at = job.object.down("metadata.name");
    let Some(name) = at.text() else {
        // The API server adds five characters to `generateName`.
        if !job.object.down("metadata.generateName").is_there() {
            findings.add("name", &at, "the job has no name", "give metadata.name");
        }
        return;
    };
    let pods = |role: &RoleView| role.replica.get("replicas").number().unwrap_or(1).saturating_sub(1).max(0);
    let suffix = |(role, of): &(String, RoleView)| format!("-{}-{}", role.to_lowercase(), pods(of));
    let longest_suffix = match job.kind {
        "MPIJob" | "MXJob" | "TFJob" => job.roles.iter().map(suffix).max_by_key(String::len).unwrap_or_default(),
        "TrainJob" => "-launcher-0-0".to_owned(),
        _ => return,
    };
    let longest = format!("{name}{longest_suffix}");
    if !is_label(name) {
        let what = format!("{name:?} cannot be part of a pod's host name: the job is refused");
        findings.add("name", &at, what, "use lower-case letters, digits and -, begin with a letter, no dots");
    } else if longest.len() > LONGEST_LABEL {
        let what = format!("the host name {longest} has {} characters; at most 63 are allowed", longest.len());
        findings.add("name", &at, what, format!("shorten the name by {}", longest.len() - LONGEST_LABEL));
    }
}

fn mpi_replicas(job: &MpiJobSpec, findings: &mut Findings) {
    for (name, field) in job.spec.get("mpiReplicaSpecs").fields() {
        if ["Launcher", "Worker"].contains(&name) {
            continue;
        }
        let near = ["Launcher", "Worker"].into_iter().find(|other| other.eq_ignore_ascii_case(name));
        let fix =
            near.map_or("only Launcher and Worker are read; leave it out".to_owned(), |near| format!("write {near}"));
        let what = format!("the schema accepts {name}, but the operator ignores it and creates none of its pods");
        findings.add("replica-name", &field, what, fix);
    }
    let launcher = &job.launcher.replica;
    if !launcher.is_there() {
        let what = "the Launcher is missing: the job is refused";
        findings.add("no-launcher", launcher, what, "add mpiReplicaSpecs.Launcher");
    } else if launcher.get("replicas").number().is_some_and(|count| count != 1) {
        findings.found("launcher-replicas", &launcher.get("replicas"), "a job has exactly one launcher");
    }
    let worker = &job.worker.replica;
    let count = worker.get("replicas");
    let lower_case = job.spec.get("mpiReplicaSpecs").get("worker").is_there();
    let is_wrong = !count.is_there() || count.number().is_some_and(|count| count < 1);
    if worker.is_there() && is_wrong {
        let what = if count.is_there() { "replicas is below 1" } else { "replicas is missing, which means 0" };
        findings.found("worker-replicas", &count, format!("{what}: the job is refused"));
    } else if !worker.is_there() && !job.launcher_works && !lower_case && asked(&job.launcher) != 1 {
        let fix = "add mpiReplicaSpecs.Worker, or set runLauncherAsWorker: true";
        findings.add("no-workers", worker, "the job has no worker, so its hostfile is empty", fix);
    }
    for (name, role) in job.roles() {
        let policy = role.replica.get("restartPolicy");
        if policy.text().is_some_and(|text| !["Never", "OnFailure"].contains(&text)) {
            let what = format!("restartPolicy {} is refused", policy.value);
            findings.found("restart-policy", &policy, what);
        }
        if name == "launcher" && policy.text() != Some("Never") && policy.text().is_none_or(|text| text == "OnFailure")
        {
            findings.found(
                "lost-log",
                &policy,
                "with OnFailure the launcher's pod and its log are deleted when backoffLimit is reached",
            );
        }
        if role.pod.get("restartPolicy").is_there() {
            let fix = "move it to restartPolicy beside template";
            findings.add("pod-restart-policy", &role.pod.get("restartPolicy"), "the operator overrides it", fix);
        }
    }
}

fn words(job: &MpiJobSpec, findings: &mut Findings) {
    let policy = job.spec.get("launcherCreationPolicy");
    one_of(&policy, &["AtStartup", "WaitForWorkersReady"], "is not a policy; it acts as WaitForWorkersReady", findings);
    one_of(&job.spec.down("runPolicy.cleanPodPolicy"), &["None", "Running", "All"], "is not a policy", findings);
}

fn run_policy(job: &MpiJobSpec, findings: &mut Findings) {
    let policy = job.spec.down("runPolicy.cleanPodPolicy");
    if matches!(policy.text(), None | Some("None")) {
        let rule = if job.worker.gpu().is_some() { "idle-gpus" } else { "clean-pods" };
        let default = if policy.is_there() { "" } else { " by default" };
        let what = format!("cleanPodPolicy is None{default}: after the job workers' sshd hold processors and GPUs");
        findings.add(rule, &policy, what, "write runPolicy.cleanPodPolicy: Running");
    }
}

fn scheduling(job: &MpiJobSpec, findings: &mut Findings) {
    let policy = job.spec.down("runPolicy.schedulingPolicy");
    let least = policy.get("minAvailable");
    let all = job.worker_pods().saturating_add(1);
    // The launcher of a job that begins suspended waits for no worker. And Kueue reads the priority of the
    // policy.
    let waits = job.waits_for_workers && !job.begins_suspended();
    if policy.is_there() && waits && least.number().unwrap_or(all) >= all {
        findings.add(
            "gang-deadlock",
            &least,
            "the gang waits for the launcher's pod, and the launcher waits for the gang's workers: nothing ever starts",
            format!("write minAvailable: {}, or launcherCreationPolicy: AtStartup", all - 1),
        );
    }
}
