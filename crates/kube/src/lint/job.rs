//! An MPIJob as the rules see it.

use super::node::Node;
use crate::command::is_mpirun;

/// The job and its two roles.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) object: Node<'a>,
    pub(super) spec: Node<'a>,
    pub(super) launcher: Role<'a>,
    pub worker: Role<'a>,
}

/// A role, with the container that the operator works on, which is the first.
#[derive(Debug)]
pub(super) struct Role<'a> {
    pub(super) replica: Node<'a>,
    pub(super) template: Node<'a>,
    pub(super) pod: Node<'a>,
    pub(super) container: Node<'a>,
}

impl<'a> Job<'a> {
    pub(super) fn of(object: &Node<'a>) -> Self {
        let spec = object.get("spec");
        let role = |name: &str| {
            let replica = spec.down("mpiReplicaSpecs").get(name);
            let template = replica.get("template");
            let pod = template.get("spec");
            let first = pod.get("containers").items().into_iter().next();
            let container = first.unwrap_or_else(|| Node {
                value: &serde_json::Value::Null,
                path: format!("{}.containers[0]", pod.path),
            });
            Role { replica, template, pod, container }
        };
        Job { object: object.clone(), launcher: role("Launcher"), worker: role("Worker"), spec }
    }

    /// The roles that are there, with their names.
    pub(super) fn roles(&self) -> Vec<(&'static str, &Role<'a>)> {
        let both = [("launcher", &self.launcher), ("worker", &self.worker)];
        both.into_iter().filter(|(_, role)| role.replica.is_there()).collect()
    }

    pub(super) fn slots(&self) -> i64 {
        self.spec.get("slotsPerWorker").number().unwrap_or(1)
    }

    pub(super) fn worker_pods(&self) -> i64 {
        self.worker.replica.get("replicas").number().unwrap_or(0)
    }

    pub(super) fn launcher_works(&self) -> bool {
        self.spec.get("runLauncherAsWorker").is_true()
    }

    /// Where the launcher's words are: its command, or else its args.
    pub(super) fn launcher_words(&self) -> Node<'a> {
        self.launcher.container.get(if self.launcher.has_command() { "command" } else { "args" })
    }

    /// The ranks that the slots of the hostfile take.
    pub(super) fn ranks(&self) -> i64 {
        self.slots().saturating_mul(self.worker_pods().saturating_add(i64::from(self.launcher_works())))
    }

    pub(super) fn implementation(&self) -> &'a str {
        self.spec.get("mpiImplementation").text().unwrap_or("OpenMPI")
    }

    /// Whether the launcher pod is created only when every worker is ready. Every value but `AtStartup` means
    /// that.
    pub(super) fn waits_for_workers(&self) -> bool {
        self.spec.get("launcherCreationPolicy").text().is_some_and(|policy| policy != "AtStartup")
    }
}

impl<'a> Role<'a> {
    /// The user that the first container runs as, by default root.
    pub(super) fn user(&self) -> i64 {
        let own = self.container.down("securityContext.runAsUser").number();
        own.or(self.pod.down("securityContext.runAsUser").number()).unwrap_or(0)
    }

    pub(super) fn group_of_files(&self) -> Option<i64> {
        self.pod.down("securityContext.fsGroup").number()
    }

    /// What the container runs. A script for a shell's `-c` is split into words.
    pub(super) fn words(&self) -> Vec<String> {
        let all = [self.container.get("command").words(), self.container.get("args").words()].concat();
        let apart = |word: &str| {
            let is_script = word.split_whitespace().any(is_mpirun) && word.contains(char::is_whitespace);
            if is_script { word.split_whitespace().map(str::to_owned).collect() } else { vec![word.to_owned()] }
        };
        all.iter().flat_map(|word| apart(word)).collect()
    }

    /// Whether a command replaces the image's entrypoint.
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

    pub(super) fn limit(&self, resource: &str) -> i64 {
        let limit = self.container.down("resources.limits").get(resource);
        limit.number().or_else(|| limit.text()?.parse().ok()).unwrap_or(0)
    }

    /// Where the container mounts the volume of this name.
    pub(super) fn mount_of(&self, volume: &str) -> Option<Node<'a>> {
        let mounts = self.container.get("volumeMounts").items();
        mounts.into_iter().find(|mount| mount.get("name").text() == Some(volume))
    }
}
