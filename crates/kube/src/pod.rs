//! The pods of a job, as JSON: a field that is null or empty is left out of the manifest.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::options::{JobKind, Request, SSH_PORT, USER};
use crate::quantity::Quantity;

/// The folder of a volume in memory, for the commits of an elastic job's workers. The volume outlives the
/// workers' containers.
pub(super) const SNAPSHOTS: &str = "/run/snapshots";

/// The role of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodRole {
    /// Runs ranks or workers, and has the devices for them.
    Worker,
    /// A worker in which `mpirun` starts ranks by ssh. It is ready when its sshd listens.
    SshWorker,
    /// Has the processors and the memory of a worker, but no devices.
    Server,
    /// A launcher without ranks, or a scheduler. It has processors and memory of its own.
    Launcher,
}

/// Returns the folder in which the image's user keeps the keys of ssh.
pub(super) fn ssh_folder(request: &Request) -> &'static str {
    if request.non_root { "/home/mpiuser/.ssh" } else { "/root/.ssh" }
}

/// The labels of every object of the job.
fn labels(request: &Request) -> Value {
    let own = [("app.kubernetes.io/name", "ringpull"), ("app.kubernetes.io/instance", &request.name)];
    let given = request.label.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    json!(own.into_iter().chain(given).collect::<BTreeMap<_, _>>())
}

/// The labels by which the job's pods are found.
pub(super) fn selector(request: &Request) -> Value {
    json!({ "matchLabels": { "app.kubernetes.io/name": "ringpull", "app.kubernetes.io/instance": request.name } })
}

/// The name, the namespace and the labels of an object of the job.
pub(super) fn metadata(request: &Request, name: &str) -> Value {
    json!({ "name": name, "namespace": request.namespace, "labels": labels(request) })
}

/// A variable of a container.
pub(super) fn variable(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

/// A pod whose container has this name.
pub(super) fn pod(request: &Request, container: &str, role: PodRole) -> Value {
    let (volumes, mounts) = volumes(request, role);
    let is_worker = matches!(role, PodRole::Worker | PodRole::SshWorker);
    // A service mesh's proxy refuses the ranks' connections, and never ends.
    let mut annotations = BTreeMap::from([("sidecar.istio.io/inject", "false".to_owned())]);
    if let Some(port) = is_worker.then(|| metrics_port(request)).flatten() {
        annotations.extend([("prometheus.io/scrape", "true".to_owned()), ("prometheus.io/port", port.to_string())]);
    }
    annotations.extend(request.annotation.iter().map(|(name, value)| (name.as_str(), value.clone())));
    let mut pod = json!({
        "metadata": {
            "labels": labels(request),
            "annotations": annotations,
        },
        "spec": {
            "enableServiceLinks": false,
            "automountServiceAccountToken": false,
            "serviceAccountName": request.service_account,
            "priorityClassName": request.priority_class,
            "imagePullSecrets": request.pull_secret.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>(),
            "nodeSelector": request.node_selector.iter().cloned().collect::<BTreeMap<_, _>>(),
            "tolerations": request.toleration,
            "affinity": request.affinity_file.as_ref().map(|file| &file.0[0]),
            "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": container,
                "image": request.image,
                "imagePullPolicy": request.pull_policy,
                "resources": resources(request, role),
                "volumeMounts": mounts,
                // Root's sshd needs some of the other capabilities.
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["MKNOD", "NET_RAW"] },
                },
            }],
            "volumes": volumes,
        },
    });
    let spec = &mut pod["spec"];
    if request.non_root {
        spec["securityContext"] = json!({
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            // The default changes the owner of every file of a large volume at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": { "type": "RuntimeDefault" },
        });
        spec["containers"][0]["securityContext"]["capabilities"]["drop"] = json!(["ALL"]);
    }
    if role == PodRole::SshWorker {
        let sshd = &mut spec["containers"][0];
        sshd["command"] = json!(["/usr/sbin/sshd", "-De"]);
        sshd["ports"] = json!([{ "name": "ssh", "containerPort": SSH_PORT }]);
        sshd["readinessProbe"] =
            json!({ "tcpSocket": { "port": SSH_PORT }, "initialDelaySeconds": 1, "periodSeconds": 2 });
    } else {
        // Ranks in a worker get the launcher's variables, not those of their pod.
        spec["containers"][0]["env"] = json!(env(request));
        spec["containers"][0]["envFrom"] =
            json!(request.env_from.iter().map(|(kind, name)| json!({ *kind: { "name": name } })).collect::<Vec<_>>());
    }
    if is_worker {
        if request.locks_memory() {
            spec["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["IPC_LOCK"]);
        }
        if request.host_network {
            spec["hostNetwork"] = json!(true);
            // Otherwise the pod would find only the names that the node knows.
            spec["dnsPolicy"] = json!("ClusterFirstWithHostNet");
        }
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] = json!(request.rdma_network);
    }
    if request.host_network && (role == PodRole::SshWorker || is_worker && request.kind == JobKind::Trainjob) {
        keep_apart(request, &mut pod["spec"]["affinity"]);
    }
    pod
}

/// The port at which rank 0 serves metrics, if other hosts may ask there. The pod of rank 0 is not known
/// before the pods run.
fn metrics_port(request: &Request) -> Option<u16> {
    let (_, value) = request.env.iter().rfind(|(name, _)| name == "RINGPULL_METRICS")?;
    let address: SocketAddr = value.parse().ok()?;
    (!address.ip().is_loopback()).then_some(address.port())
}

/// Keeps workers on different nodes: two workers on one node could not both listen on ssh's port.
fn keep_apart(request: &Request, affinity: &mut Value) {
    let workers = match request.kind {
        // Trainer gives its pods no labels, but JobSet does.
        JobKind::Trainjob => json!({ "jobset.sigs.k8s.io/jobset-name": request.name }),
        _ => json!({
            "training.kubeflow.org/job-name": request.name,
            "training.kubeflow.org/job-role": "worker",
        }),
    };
    let term = json!({ "labelSelector": { "matchLabels": workers }, "topologyKey": "kubernetes.io/hostname" });
    let terms = &mut affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    match terms.as_array_mut() {
        Some(terms) => terms.push(term),
        None => *terms = json!([term]),
    }
}

/// The variables, sorted by name. If a name occurs twice, the last value counts.
fn env(request: &Request) -> Vec<Value> {
    let env: BTreeMap<_, _> = request.env.iter().map(|(name, value)| (name, value)).collect();
    env.into_iter().map(|(name, value)| variable(name, value)).collect()
}

fn resources(request: &Request, role: PodRole) -> Value {
    let default = |text: &str, given: bool| (!given).then(|| text.to_owned());
    let text = |quantity: &Option<Quantity>| quantity.as_ref().map(Quantity::to_string);
    let (cpus, memory) = match role {
        PodRole::Launcher => (&request.launcher_cpus, &request.launcher_memory),
        _ => (&request.cpus, &request.memory),
    };
    // If there is a limit and no request, Kubernetes takes the limit as the request too.
    let requests = match role {
        PodRole::Launcher => json!({
            "cpu": default("100m", cpus.is_some()),
            "memory": default("256Mi", memory.is_some()),
        }),
        _ => json!({
            "cpu": text(&request.request_cpu).or(default("1", cpus.is_some())),
            "memory": text(&request.request_memory).or(default("1Gi", memory.is_some())),
        }),
    };
    let mut limits = json!({ "cpu": cpus, "memory": memory });
    if matches!(role, PodRole::Worker | PodRole::SshWorker) {
        let devices =
            request.gpu().into_iter().chain(request.rdma.as_ref().map(|(name, count)| (name.as_str(), *count)));
        devices.for_each(|(name, count)| limits[name] = json!(count.to_string()));
    }
    json!({ "limits": limits, "requests": requests })
}

fn volumes(request: &Request, role: PodRole) -> (Vec<Value>, Vec<Value>) {
    let memory = |size: Option<Quantity>| {
        let size = size.filter(|_| role != PodRole::Launcher)?;
        Some(("emptyDir", json!({ "medium": "Memory", "sizeLimit": size })))
    };
    let claim = request.claim.as_ref().map(|claim| ("persistentVolumeClaim", json!({ "claimName": claim })));
    let all = [
        ("training", request.mount.as_str(), claim),
        ("snapshots", SNAPSHOTS, memory(request.snapshots())),
        ("shm", "/dev/shm", memory(request.shm())),
    ];
    let given = all.into_iter().filter_map(|(name, path, source)| {
        let (kind, source) = source?;
        Some((json!({ "name": name, kind: source }), json!({ "name": name, "mountPath": path })))
    });
    given.unzip()
}
