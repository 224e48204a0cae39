//! The pods of a job, as JSON: a field that is null or empty is left out of the manifest.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::request::{Request, SSH_PORT, USER};

/// Where the image's user keeps the keys of ssh.
pub(super) fn ssh_folder(request: &Request) -> &'static str {
    if request.non_root { "/home/mpiuser/.ssh" } else { "/root/.ssh" }
}

/// The labels of every object of the job.
fn labels(request: &Request) -> Value {
    json!({ "app.kubernetes.io/name": "ringpull", "app.kubernetes.io/instance": request.name })
}

/// The name, the namespace and the labels of an object of the job.
pub(super) fn metadata(request: &Request, name: &str) -> Value {
    json!({ "name": name, "namespace": request.namespace, "labels": labels(request) })
}

/// A variable of a container.
pub(super) fn variable(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

/// A pod that runs ranks and has the devices for them.
pub(super) fn worker(request: &Request, container: &str) -> Value {
    let mut pod = plain(request, container, &json!({ "cpu": request.cpus, "memory": request.memory }));
    let own = &mut pod["spec"]["containers"][0];
    if request.gpus > 0 {
        own["resources"]["limits"]["nvidia.com/gpu"] = json!(request.gpus.to_string());
    }
    if let Some(device) = &request.rdma {
        own["resources"]["limits"][device] = json!("1");
        // Registered memory is locked memory.
        own["securityContext"]["capabilities"]["add"] = json!(["IPC_LOCK"]);
    }
    pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] = json!(request.rdma_network);
    pod["spec"]["hostNetwork"] = json!(request.host_network.then_some(true));
    pod["spec"]["nodeSelector"] = json!(request.node_selector.iter().cloned().collect::<BTreeMap<_, _>>());
    pod
}

/// A worker that `mpirun` starts ranks in by ssh, and that is ready when its sshd listens.
pub(super) fn ssh_worker(request: &Request, container: &str) -> Value {
    let mut pod = worker(request, container);
    let sshd = &mut pod["spec"]["containers"][0];
    sshd["command"] = json!(["/usr/sbin/sshd", "-De"]);
    sshd["env"] = Value::Null;
    sshd["ports"] = json!([{ "name": "ssh", "containerPort": SSH_PORT }]);
    sshd["readinessProbe"] = json!({ "tcpSocket": { "port": SSH_PORT }, "initialDelaySeconds": 1, "periodSeconds": 2 });
    if request.host_network {
        // Two workers of a node could not both listen on the port.
        let workers = json!({
            "training.kubeflow.org/job-name": request.name,
            "training.kubeflow.org/job-role": "worker",
        });
        pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!([{ "labelSelector": { "matchLabels": workers }, "topologyKey": "kubernetes.io/hostname" }]);
    }
    pod
}

/// A pod with the image, the volumes and the user of the job, within `limits`.
pub(super) fn plain(request: &Request, container: &str, limits: &Value) -> Value {
    // Sorted by name; the last value of a name counts.
    let env: BTreeMap<_, _> = request.env.iter().map(|(name, value)| (name, value)).collect();
    let env: Vec<Value> = env.into_iter().map(|(name, value)| variable(name, value)).collect();
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    if let Some(claim) = &request.claim {
        volumes.push(json!({ "name": "training", "persistentVolumeClaim": { "claimName": claim } }));
        mounts.push(json!({ "name": "training", "mountPath": request.mount }));
    }
    if let Some(size) = request.shm() {
        volumes.push(json!({ "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": size } }));
        mounts.push(json!({ "name": "shm", "mountPath": "/dev/shm" }));
    }
    let mut pod = json!({
        "metadata": {
            "labels": labels(request),
            // A mesh's proxy refuses the ranks' connections, and it never ends.
            "annotations": { "sidecar.istio.io/inject": "false" },
        },
        "spec": {
            "enableServiceLinks": false,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": container,
                "image": request.image,
                "env": env,
                "resources": { "limits": limits },
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    });
    if request.non_root {
        pod["spec"]["securityContext"] = json!({
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            // By default every file of a large volume is chowned at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
        });
        pod["spec"]["containers"][0]["securityContext"] =
            json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    }
    pod
}
