//! The parts of mpi-operator's and Trainer's contract that affect a job: names, hostfile, key, variables,
//! order of starting, retries.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::pod::{ConfigMap, Image, Network, Plan, Pod, address};

/// The first address of a worker. The launcher has the address before it.
const FIRST: u8 = 2;
const NAMESPACE: &str = "team";
const READY: Duration = Duration::from_secs(60);

/// The delays in a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trouble {
    /// The delay of the workers' start after the launcher's. It overrides the manifest's own policy.
    pub(crate) workers_late: Option<Duration>,
    /// The delay until the launcher can resolve the workers' names.
    pub(crate) names_late: Option<Duration>,
}

/// A running job, which follows the contract of its operator.
pub(crate) struct Job {
    pub(crate) network: Network,
    image: Image,
    name: String,
    /// The pods' specifications.
    launcher: Value,
    worker: Value,
    worker_pods: u8,
    slots: i64,
    launcher_works: bool,
    waits_for_workers: bool,
    ssh_folder: String,
    /// True if Kubeflow Trainer runs the job, and not mpi-operator.
    by_trainer: bool,
    pub(crate) workers: Vec<Pod>,
    /// A profile of system calls in place of the runtime's own.
    pub(crate) seccomp: Option<std::path::PathBuf>,
    /// The number of launchers so far. Each has an address of its own.
    launchers: u8,
}

fn number(value: &Value, default: i64) -> i64 {
    value.as_i64().unwrap_or(default)
}

fn group_of(pod: &Value) -> Option<u32> {
    pod["securityContext"]["fsGroup"].as_u64().map(|group| group as u32)
}

/// The empty volumes of a pod's container, those in memory with their sizes as `mount` reads them.
fn empty_of(pod: &Value) -> (Vec<(String, String)>, Vec<String>) {
    let volumes = pod["volumes"].as_array().into_iter().flatten();
    let mounts = || pod["containers"][0]["volumeMounts"].as_array().into_iter().flatten();
    let (mut memory, mut empty) = (Vec::new(), Vec::new());
    for volume in volumes.filter(|volume| volume["emptyDir"].is_object()) {
        let mount = mounts().find(|mount| mount["name"] == volume["name"]).unwrap();
        let path = mount["mountPath"].as_str().unwrap().to_owned();
        if volume["emptyDir"]["medium"] == "Memory" {
            let size = volume["emptyDir"]["sizeLimit"].as_str().unwrap().trim_end_matches('i');
            memory.push((path, size.to_owned()));
        } else {
            empty.push(path);
        }
    }
    (memory, empty)
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned()).collect()
}

impl Job {
    /// An MPIJob, or a TrainingRuntime and its TrainJob.
    pub(crate) fn new(test: &str, image: &Image, objects: &[Value]) -> Job {
        let job = objects.last().unwrap();
        let name = job["metadata"]["name"].as_str().unwrap().to_owned();
        let (network, image, workers) = (Network::up(test), image.clone(), Vec::new());
        let spec = &job["spec"];
        if job["kind"] == "MPIJob" {
            let replicas = &spec["mpiReplicaSpecs"];
            return Job {
                launcher: replicas["Launcher"]["template"]["spec"].clone(),
                worker: replicas["Worker"]["template"]["spec"].clone(),
                worker_pods: number(&replicas["Worker"]["replicas"], 0) as u8,
                slots: number(&spec["slotsPerWorker"], 1),
                launcher_works: spec["runLauncherAsWorker"] == true,
                waits_for_workers: spec["launcherCreationPolicy"] == "WaitForWorkersReady",
                ssh_folder: spec["sshAuthMountPath"].as_str().unwrap_or("/root/.ssh").to_owned(),
                by_trainer: false,
                network,
                image,
                name,
                workers,
                seccomp: None,
                launchers: 0,
            };
        }
        let runtime = &objects[0]["spec"];
        assert_eq!(spec["runtimeRef"]["name"], objects[0]["metadata"]["name"]);
        let jobs = runtime["template"]["spec"]["replicatedJobs"].as_array().unwrap();
        let job_of = |name: &str| jobs.iter().find(|job| job["name"] == name).unwrap();
        let pod = |name: &str| job_of(name)["template"]["spec"]["template"]["spec"].clone();
        let (mut launcher, policy) = (pod("launcher"), &runtime["mlPolicy"]["mpi"]);
        // The launcher runs in the container named `node`.
        assert_eq!(launcher["containers"][0]["name"], "node");
        launcher["containers"][0]["args"] = spec["trainer"]["args"].clone();
        assert_eq!(policy["runLauncherAsNode"], true);
        Job {
            launcher,
            worker: pod("node"),
            worker_pods: number(&spec["trainer"]["numNodes"], 1) as u8 - 1,
            slots: number(&spec["trainer"]["numProcPerNode"], 1),
            launcher_works: true,
            waits_for_workers: job_of("launcher")["dependsOn"][0]["status"] == "Ready",
            ssh_folder: policy["sshAuthMountPath"].as_str().unwrap().to_owned(),
            by_trainer: true,
            network,
            image,
            name,
            workers,
            seccomp: None,
            launchers: 0,
        }
    }

    /// The launcher's present address.
    pub(crate) fn launcher_address(&self) -> u8 {
        if self.launchers < 2 { FIRST - 1 } else { 200 + self.launchers }
    }

    fn pod_names(&self) -> Vec<(String, u8)> {
        let (launcher, worker) = if self.by_trainer { ("launcher-0-0", "node-0") } else { ("launcher", "worker") };
        let launcher = (format!("{}-{launcher}", self.name), self.launcher_address());
        let workers = (0..self.worker_pods).map(|number| (format!("{}-{worker}-{number}", self.name), FIRST + number));
        std::iter::once(launcher).chain(workers).collect()
    }

    fn full_name(&self, pod: &str) -> String {
        let rest = if self.by_trainer { String::new() } else { format!(".{NAMESPACE}.svc") };
        format!("{pod}.{}{rest}", self.name)
    }

    /// The job's entries in the cluster's name server.
    fn hosts(&self) -> String {
        let mut text = String::new();
        for (pod, number) in self.pod_names() {
            writeln!(text, "{} {pod}.{}.{NAMESPACE}.svc.cluster.local", address(number), self.name).unwrap();
        }
        text
    }

    fn hostfile(&self) -> String {
        let slots = self.slots;
        let first = usize::from(!self.launcher_works);
        let names = self.pod_names();
        let lines = names[first..].iter().map(|(pod, _)| format!("{} slots={slots}", self.full_name(pod)));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    /// The script that prints the workers with running pods.
    fn discovery(&mut self) -> String {
        let names = self.pod_names();
        let mut text = "#!/bin/sh\n".to_owned();
        if self.launcher_works {
            writeln!(text, "echo {}", self.full_name(&names[0].0)).unwrap();
        }
        // Sorted as text. Pods with numbers beyond the replicas have ended.
        let mut running: Vec<String> = Vec::new();
        for (pod, (name, _)) in self.workers.iter_mut().zip(&names[1..]) {
            if pod.code().is_none() {
                running.push(name.clone());
            }
        }
        running.sort();
        for name in running {
            writeln!(text, "echo {}", self.full_name(&name)).unwrap();
        }
        text
    }

    fn config(&mut self) -> ConfigMap {
        [("hostfile", 0o444, self.hostfile()), ("discover_hosts.sh", 0o555, self.discovery())]
    }

    /// Gives the launcher the new ConfigMap, as the kubelet does up to a minute after a change of pods.
    pub(crate) fn sync(&mut self) {
        let (files, group) = (self.config(), group_of(&self.launcher));
        self.network.write_config(&self.pod_names()[0].0, group, &files);
    }

    /// Changes the number of worker replicas: removes pods beyond this number, or creates new pods.
    pub(crate) fn scale(&mut self, replicas: u8) {
        self.worker_pods = replicas;
        self.workers.truncate(usize::from(replicas));
        self.tell_names();
        for number in self.workers.len() as u8..replicas {
            self.start_worker(number);
        }
    }

    fn plan(&self, launcher: bool, name: &str, number: u8) -> Plan {
        let pod = if launcher { &self.launcher } else { &self.worker };
        let container = &pod["containers"][0];
        let own = &container["securityContext"];
        let mut env: Vec<(String, String)> = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("RINGPULL_WAIT", "90"),
            ("RAYON_NUM_THREADS", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
        for one in container["env"].as_array().into_iter().flatten() {
            env.push((one["name"].as_str().unwrap().to_owned(), one["value"].as_str().unwrap().to_owned()));
        }
        if !self.by_trainer {
            env.push(("K_MPI_JOB_ROLE".to_owned(), if launcher { "launcher" } else { "worker" }.to_owned()));
        }
        if launcher {
            let slots = self.slots.to_string();
            let operators = [
                ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
                ("OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"),
                ("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10"),
                ("OMPI_MCA_orte_set_default_slots", &slots),
            ];
            env.extend(operators.map(|(name, value)| (name.to_owned(), value.to_owned())));
            if !self.launcher_works {
                let hidden = ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"];
                env.extend(hidden.map(|name| (name.to_owned(), String::new())));
            }
        }
        let (command, args) = (words(&container["command"]), words(&container["args"]));
        let drop = words(&own["capabilities"]["drop"]);
        let words = if command.is_empty() && args.is_empty() && !launcher {
            ["/usr/sbin/sshd", "-De"].map(str::to_owned).to_vec()
        } else if command.is_empty() {
            [vec!["ringpull-entrypoint".to_owned()], args].concat()
        } else {
            [command, args].concat()
        };
        let (memory, empty) = empty_of(pod);
        Plan {
            name: name.to_owned(),
            host: if pod["hostNetwork"] == true { format!("node-{number}") } else { name.to_owned() },
            address: number,
            uid: pod["securityContext"]["runAsUser"].as_u64().unwrap_or(0) as u32,
            group: group_of(pod),
            drop,
            no_new_privs: own["allowPrivilegeEscalation"] == false,
            ssh_folder: self.ssh_folder.clone(),
            key_mode: self.by_trainer.then_some(0o640),
            env,
            memory,
            empty,
            is_read_only: own["readOnlyRootFilesystem"] == true,
            limit: container["resources"]["limits"]["memory"]
                .as_str()
                .map(|size| size.trim_end_matches('i').to_owned()),
            seccomp: self.seccomp.clone(),
            // mpi-operator lets workers find each other by their short names.
            search: if launcher || self.by_trainer {
                String::new()
            } else {
                format!("{}.{NAMESPACE}.svc.cluster.local", self.name)
            },
            words,
        }
    }

    /// Starts worker `number`, again if it has run before.
    pub(crate) fn start_worker(&mut self, number: u8) {
        let (name, address) = self.pod_names()[usize::from(number) + 1].clone();
        let plan = self.plan(false, &name, address);
        self.tell_names();
        let pod = self.network.start(&self.image, &plan, None);
        let at = usize::from(number);
        if at < self.workers.len() {
            self.workers[at] = pod;
        } else {
            self.workers.push(pod);
        }
    }

    pub(crate) fn start_workers(&mut self) {
        (0..self.worker_pods).for_each(|number| self.start_worker(number));
    }

    /// Waits until every worker that was started answers.
    pub(crate) fn await_workers(&mut self) {
        let begun = Instant::now();
        for (number, worker) in (0..).zip(&mut self.workers) {
            while !self.network.answers(FIRST + number) {
                assert!(worker.code().is_none() && begun.elapsed() < READY, "worker {number}: {}", worker.text());
                std::thread::park_timeout(Duration::from_millis(20));
            }
        }
    }

    /// Starts the launcher's pod, with all names known or with none known yet.
    pub(crate) fn start_launcher(&mut self, knows_names: bool) -> Pod {
        self.launchers += 1;
        let (name, address) = self.pod_names()[0].clone();
        let (plan, config) = (self.plan(true, &name, address), self.config());
        self.network.publish(&if knows_names { self.hosts() } else { String::new() });
        self.network.start(&self.image, &plan, Some(&config))
    }

    pub(crate) fn tell_names(&self) {
        self.network.publish(&self.hosts());
    }

    /// Starts all pods as the manifest or `trouble` says. Returns the launcher's pod.
    pub(crate) fn launch(&mut self, trouble: Trouble) -> Pod {
        let wait = |late: Duration| {
            let due = Instant::now() + late;
            while let Some(left) = due.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(left);
            }
        };
        if let Some(late) = trouble.workers_late {
            let launcher = self.start_launcher(true);
            wait(late);
            self.start_workers();
            return launcher;
        }
        self.start_workers();
        if self.waits_for_workers {
            self.await_workers();
        }
        let launcher = self.start_launcher(trouble.names_late.is_none());
        if let Some(late) = trouble.names_late {
            wait(late);
            self.tell_names();
        }
        launcher
    }
}
