//! Jobs as the rules see them: the pods of any kind, and the launcher and workers of MPI jobs.

use serde_json::Value;

use super::node::Node;
use crate::command::{is_mpirun, script_words};

/// A job or a runtime of any kind, with its roles by name.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) kind: &'a str,
    pub(super) object: Node<'a>,
    pub(super) spec: Node<'a>,
    pub(super) roles: Vec<(String, RoleView<'a>)>,
}

/// A role, with the container that the operator works on.
#[derive(Debug, Clone)]
pub(super) struct RoleView<'a> {
    /// The object that has the role's `replicas` and restart policy.
    pub(super) replica: Node<'a>,
    pub(super) template: Node<'a>,
    pub(super) pod: Node<'a>,
    pub(super) container: Node<'a>,
}

/// An MPIJob, or a runtime with the MPI policy, with the changes of a TrainJob.
#[derive(Debug)]
pub(super) struct MpiJobSpec<'a> {
    pub(super) spec: Node<'a>,
    pub(super) is_runtime: bool,
    pub(super) launcher: RoleView<'a>,
    pub(super) worker: RoleView<'a>,
    pub(super) slots: Node<'a>,
    /// The folder of the ssh key.
    pub(super) key: Node<'a>,
    pub(super) launcher_works: bool,
    pub(super) implementation: &'a str,
    /// True if the launcher's pod is created only when every worker is ready.
    pub(super) waits_for_workers: bool,
    metadata: Node<'a>,
    worker_pods: i64,
}

/// Returns true if `trainjob` is a TrainJob that refers to this runtime.
pub(super) fn is_of(trainjob: &Node, runtime: &Node) -> bool {
    trainjob.get("kind").text() == Some("TrainJob")
        && trainjob
            .down("spec.runtimeRef.name")
            .text()
            .is_some_and(|name| runtime.down("metadata.name").text() == Some(name))
        && runtime.get("kind").text().is_some_and(|kind| kind.ends_with("TrainingRuntime"))
}

/// The label that marks the jobs of a runtime that get the trainer settings of a TrainJob.
const STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";

/// Returns true if a job of a runtime gets the settings of a TrainJob's trainer.
pub(super) fn is_trainer(job: &Value) -> bool {
    job["template"]["metadata"]["labels"][STEP] == "trainer"
}

/// Returns the runtime with the settings of this TrainJob merged in. The containers `node` of the jobs with
/// the label [`STEP`] get the trainer's image, words and variables.
pub(super) fn joined(runtime: &Value, trainjob: &Value) -> Value {
    let mut whole = runtime.clone();
    let trainer = &trainjob["spec"]["trainer"];
    let policy = &mut whole["spec"]["mlPolicy"];
    if policy.is_object() {
        for (from, to) in [("numNodes", "/numNodes"), ("numProcPerNode", "/mpi/numProcPerNode")] {
            if let (false, Some(target)) = (trainer[from].is_null(), policy.pointer_mut(to)) {
                *target = trainer[from].clone();
            }
        }
    }
    let jobs = whole.pointer_mut("/spec/template/spec/replicatedJobs").and_then(Value::as_array_mut);
    for job in jobs.into_iter().flatten().filter(|job| is_trainer(job)) {
        let containers = job.pointer_mut("/template/spec/template/spec/containers").and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter(|it| it["name"] == "node") {
            for field in ["image", "command", "args"].into_iter().filter(|field| !trainer[*field].is_null()) {
                container[field] = trainer[field].clone();
            }
            if let Some(more) = trainer["env"].as_array() {
                let own = container["env"].as_array().cloned().unwrap_or_default();
                container["env"] = Value::Array([own, more.clone()].concat());
            }
        }
    }
    whole
}

/// `path` is a path in the runtime after the TrainJob was merged in ([`joined`]). If the TrainJob's trainer
/// put the value there, returns the path of this value in the TrainJob.
pub(super) fn in_trainer(path: &str, runtime: &Node, trainjob: &Node) -> Option<String> {
    let (pod, rest) = path.split_once(".template.spec.template.spec.containers[")?;
    let (container, rest) = rest.split_once("].")?;
    let field = rest.split(['.', '[']).next()?;
    let at = pod.strip_suffix(']')?.rsplit_once('[')?.1.parse::<usize>().ok()?;
    let job = runtime.down("spec.template.spec.replicatedJobs").items().into_iter().nth(at)?;
    let trainer = trainjob.down("spec.trainer").get(field);
    if !is_trainer(job.value) || !["image", "command", "args", "env"].contains(&field) || !trainer.is_there() {
        return None;
    }
    if field != "env" {
        return Some(trainer.path);
    }
    // The trainer's variables come after the container's own.
    let containers = job.down("template.spec.template.spec.containers").items();
    let own = containers.get(container.parse::<usize>().ok()?)?.get("env").items().len();
    let number = rest.strip_prefix("env[")?.split_once(']')?.0.parse::<usize>().ok()?.checked_sub(own)?;
    Some(format!("{}[{number}]", trainer.path))
}

impl<'a> Job<'a> {
    pub(super) fn of(object: &Node<'a>) -> Self {
        let spec = object.get("spec");
        let kind = object.get("kind").text().unwrap_or("");
        let of_replicas = |field: &str, container: Option<&str>| -> Vec<(String, RoleView<'a>)> {
            let roles = spec.get(field).fields().into_iter();
            roles
                .map(|(name, replica)| {
                    (name.to_owned(), RoleView::of(replica.clone(), replica.get("template"), container))
                })
                .collect()
        };
        let roles = match kind {
            "MPIJob" => of_replicas("mpiReplicaSpecs", None),
            "MXJob" => of_replicas("mxReplicaSpecs", Some("mxnet")),
            "TFJob" => of_replicas("tfReplicaSpecs", Some("tensorflow")),
            "TrainJob" => Vec::new(),
            _ => {
                let jobs = spec.down("template.spec.replicatedJobs").items().into_iter();
                let role = |job: Node<'a>| {
                    let name = job.get("name").text().unwrap_or("").to_owned();
                    let container = if ["node", "launcher"].contains(&name.as_str()) { Some("node") } else { None };
                    (name, RoleView::of(job.clone(), job.down("template.spec.template"), container))
                };
                jobs.map(role).collect()
            }
        };
        Job { kind, object: object.clone(), spec, roles }
    }

    fn role(&self, name: &str) -> Option<&RoleView<'a>> {
        self.roles.iter().find(|(other, _)| other == name).map(|(_, role)| role)
    }
}

impl<'a> MpiJobSpec<'a> {
    /// Reads a job. Returns `None` if MPI does not run it.
    pub(super) fn of(job: &Job<'a>) -> Option<Self> {
        let spec = job.spec.clone();
        let absent = |path: &str| {
            let node = spec.down(path);
            RoleView::of(node.clone(), node.get("template"), None)
        };
        if job.kind == "MPIJob" {
            let role =
                |name: &str| job.role(name).cloned().unwrap_or_else(|| absent(&format!("mpiReplicaSpecs.{name}")));
            let worker = role("Worker");
            return Some(MpiJobSpec {
                launcher: role("Launcher"),
                worker_pods: worker.replica.get("replicas").number().unwrap_or(0),
                worker,
                is_runtime: false,
                slots: spec.get("slotsPerWorker"),
                key: spec.get("sshAuthMountPath"),
                launcher_works: spec.get("runLauncherAsWorker").is_true(),
                implementation: spec.get("mpiImplementation").text().unwrap_or("OpenMPI"),
                // Every value except AtStartup means that the launcher waits.
                waits_for_workers: spec
                    .get("launcherCreationPolicy")
                    .text()
                    .is_some_and(|policy| policy != "AtStartup"),
                metadata: job.object.get("metadata"),
                spec,
            });
        }
        let policy = spec.down("mlPolicy.mpi");
        if !policy.is_there() {
            return None;
        }
        let launcher = job.role("launcher").cloned().unwrap_or_else(|| absent("template.spec.replicatedJobs"));
        let worker = job.role("node").cloned().unwrap_or_else(|| absent("template.spec.replicatedJobs"));
        let launcher_works = policy.get("runLauncherAsNode").is_true();
        let nodes = spec.down("mlPolicy.numNodes").number().unwrap_or(1);
        let waits = launcher.replica.get("dependsOn").items().iter().any(|it| it.get("status").text() == Some("Ready"));
        Some(MpiJobSpec {
            worker_pods: if launcher_works { (nodes - 1).max(1) } else { nodes },
            launcher,
            worker,
            is_runtime: true,
            slots: policy.get("numProcPerNode"),
            key: policy.get("sshAuthMountPath"),
            launcher_works,
            implementation: "OpenMPI",
            waits_for_workers: waits,
            metadata: job.object.get("metadata"),
            spec,
        })
    }

    /// Returns true if the job is suspended at first, as every job of a queue of Kueue is.
    pub(super) fn begins_suspended(&self) -> bool {
        let queue = |field: &str| self.metadata.get(field).get("kueue.x-k8s.io/queue-name").is_there();
        self.spec.down("runPolicy.suspend").is_true() || queue("labels") || queue("annotations")
    }

    pub(super) fn slots(&self) -> i64 {
        self.slots.number().unwrap_or(1)
    }

    pub(super) fn worker_pods(&self) -> i64 {
        self.worker_pods
    }

    /// Returns the place of the launcher's words: its command, or else its args.
    pub(super) fn launcher_words(&self) -> Node<'a> {
        self.launcher.container.get(if self.launcher.has_command() { "command" } else { "args" })
    }

    /// The ranks that the slots of the hostfile take.
    pub(super) fn ranks(&self) -> i64 {
        self.slots().saturating_mul(self.worker_pods().saturating_add(i64::from(self.launcher_works)))
    }

    /// The roles that are there, with their names.
    pub(super) fn roles(&self) -> Vec<(&'static str, &RoleView<'a>)> {
        let both = [("launcher", &self.launcher), ("worker", &self.worker)];
        both.into_iter().filter(|(_, role)| role.template.is_there()).collect()
    }

    pub(super) fn key_folder(&self) -> &'a str {
        self.key.text().unwrap_or("/root/.ssh").trim_end_matches('/')
    }

    /// Returns the user of a role: the pod's, or root if the key is in root's folder. Returns `None` if the
    /// image decides, or a command that changes the user.
    pub(super) fn user(&self, role: &RoleView) -> Option<i64> {
        let changes =
            |word: &String| ["sudo", "su", "runuser", "gosu"].contains(&word.rsplit('/').next().unwrap_or(""));
        let given = role.user().or_else(|| (self.key_folder() == "/root/.ssh").then_some(0));
        given.filter(|_| !role.words().iter().any(changes))
    }
}

impl<'a> RoleView<'a> {
    fn of(replica: Node<'a>, template: Node<'a>, container: Option<&str>) -> Self {
        let pod = template.get("spec");
        let all = pod.get("containers").items();
        let named = all.iter().find(|it| container.is_none_or(|name| it.get("name").text() == Some(name)));
        let nowhere = || Node { value: &Value::Null, path: format!("{}.containers[0]", pod.path) };
        let container = named.or_else(|| all.first()).cloned().unwrap_or_else(nowhere);
        RoleView { replica, template, pod, container }
    }

    /// The user that the container is to run as, if the pod names one.
    pub(super) fn user(&self) -> Option<i64> {
        let own = self.container.down("securityContext.runAsUser").number();
        own.or_else(|| self.pod.down("securityContext.runAsUser").number())
    }

    pub(super) fn group_of_files(&self) -> Option<i64> {
        self.pod.down("securityContext.fsGroup").number()
    }

    /// The words of the container, with each script as one word.
    pub(super) fn raw_words(&self) -> Vec<String> {
        let all = [self.container.get("command").words(), self.container.get("args").words()].concat();
        all.into_iter().map(str::to_owned).collect()
    }

    /// Returns the words of the container's program, and those of the scripts in it.
    pub(super) fn words(&self) -> Vec<String> {
        fn apart(word: String) -> Vec<String> {
            let ends_a_word = |c: char| c.is_whitespace() || ";&|(`\"'".contains(c);
            let starts = |word: &str| {
                is_mpirun(word) || ["sshd", "ringpull", "sleep"].map(Some).contains(&word.rsplit('/').next())
            };
            let is_script = word.contains(char::is_whitespace) && word.split(ends_a_word).any(starts);
            if is_script { script_words(&word).into_iter().flat_map(apart).collect() } else { vec![word] }
        }
        self.raw_words().into_iter().flat_map(apart).collect()
    }

    /// The variables whose values are written in the object itself (`value`, not `valueFrom`).
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        let value = |(name, at): (&str, Node)| Some((name.to_owned(), at.get("value").text()?.to_owned()));
        self.env().into_iter().filter_map(value).collect()
    }

    /// Returns true if a command replaces the image's entrypoint.
    pub(super) fn has_command(&self) -> bool {
        !self.container.get("command").words().is_empty()
    }

    pub(super) fn env(&self) -> Vec<(&'a str, Node<'a>)> {
        let env = self.container.get("env").items();
        env.into_iter().filter_map(|one| Some((one.get("name").text()?, one))).collect()
    }

    pub(super) fn has_env(&self, name: &str) -> bool {
        self.env().iter().any(|(other, _)| *other == name)
    }

    pub(super) fn image(&self) -> &'a str {
        self.container.get("image").text().unwrap_or("")
    }

    /// Returns true if the image is the operator's or ours: its sshd listens on port 2222.
    pub(super) fn has_known_sshd(&self) -> bool {
        self.image().contains("mpioperator/") || self.is_ours()
    }

    /// Returns true if the image is ours, by its name or by our variables.
    pub(super) fn is_ours(&self) -> bool {
        let last = self.image().rsplit('/').next().unwrap_or("");
        last.contains("ringpull") || self.env().iter().any(|(name, _)| name.starts_with("RINGPULL_"))
    }

    /// Returns the place at which the container mounts the volume of this name.
    pub(super) fn mount_of(&self, volume: &str) -> Option<Node<'a>> {
        let mounts = self.container.get("volumeMounts").items();
        mounts.into_iter().find(|mount| mount.get("name").text() == Some(volume))
    }

    /// The container's first GPU resource: its name, its place and its count.
    pub(super) fn gpu(&self) -> Option<(&'a str, Node<'a>, i64)> {
        let limits = self.container.down("resources.limits").fields();
        limits.into_iter().find(|(name, _)| name.ends_with("/gpu")).map(|(name, at)| {
            let count = at.amount();
            (name, at, count as i64)
        })
    }
}
