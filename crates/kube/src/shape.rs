//! Pods from a request: what launcher, workers and servers have in common.

use std::collections::BTreeMap;

use ringpull_base::Result;

use super::pod::{
    Affinity, AffinityTerm, Capabilities, ClaimSource, Container, EmptyDir, EnvVar, LabelSelector, Metadata, Mount,
    PodAntiAffinity, PodSecurity, PodSpec, PodTemplate, Port, Probe, Resources, Security, TcpSocket, Volume, Words,
};
use super::quantity::Quantity;
use super::request::{Limits, Request, SSH_PORT, USER};

/// Where the user of the image keeps ssh's keys.
pub(super) fn ssh_folder(request: &Request) -> &'static str {
    if request.non_root { "/home/mpiuser/.ssh" } else { "/root/.ssh" }
}

/// The labels that every object of the job carries.
pub(super) fn labels(request: &Request) -> Words {
    [("app.kubernetes.io/name", "ringpull"), ("app.kubernetes.io/instance", &request.name)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

/// The name, namespace and labels of an object of the job.
pub(super) fn metadata(request: &Request, name: &str) -> Metadata {
    Metadata {
        name: Some(name.to_owned()),
        namespace: request.namespace.clone(),
        labels: labels(request),
        ..Metadata::default()
    }
}

/// A pod that computes.
pub(crate) fn worker(request: &Request, container: &str) -> Result<PodTemplate> {
    let mut pod = plain(request, container, &request.worker());
    let devices = Some(("nvidia.com/gpu", request.gpus)).filter(|(_, count)| *count > 0);
    let devices = devices.into_iter().chain(request.rdma.as_deref().map(|name| (name, 1)));
    for (name, count) in devices {
        let limits = pod.spec.containers[0].resources.get_or_insert_default();
        limits.limits.insert(name.to_owned(), count.to_string().parse()?);
    }
    if let (Some(_), security) = (&request.rdma, &mut pod.spec.containers[0].security_context) {
        // Registered memory is locked memory.
        security.get_or_insert_default().capabilities.get_or_insert_default().add.push("IPC_LOCK".to_owned());
    }
    if let (Some(network), Some(metadata)) = (&request.rdma_network, &mut pod.metadata) {
        metadata.annotations.insert("k8s.v1.cni.cncf.io/networks".to_owned(), network.clone());
    }
    if request.host_network {
        pod.spec.host_network = Some(true);
    }
    pod.spec.node_selector = request.node_selector.iter().cloned().collect();
    Ok(pod)
}

/// A worker that serves ssh for `mpirun`, and is ready when it does.
pub(super) fn ssh_worker(request: &Request, container: &str) -> Result<PodTemplate> {
    let mut pod = worker(request, container)?;
    let sshd = &mut pod.spec.containers[0];
    sshd.command = ["/usr/sbin/sshd", "-De"].map(str::to_owned).to_vec();
    sshd.env.clear();
    sshd.ports = vec![Port { name: Some("ssh".to_owned()), container_port: SSH_PORT }];
    sshd.readiness_probe = Some(Probe {
        tcp_socket: TcpSocket { port: SSH_PORT },
        initial_delay_seconds: Some(1),
        period_seconds: Some(2),
    });
    if request.host_network {
        let own: BTreeMap<_, _> = [
            ("training.kubeflow.org/job-name".to_owned(), request.name.clone()),
            ("training.kubeflow.org/job-role".to_owned(), "worker".to_owned()),
        ]
        .into();
        let term = AffinityTerm {
            label_selector: LabelSelector { match_labels: own },
            topology_key: "kubernetes.io/hostname".to_owned(),
        };
        pod.spec.affinity = Some(Affinity {
            pod_anti_affinity: Some(PodAntiAffinity {
                required_during_scheduling_ignored_during_execution: vec![term],
            }),
        });
    }
    Ok(pod)
}

/// A pod with the image, volumes and user of the job, within `limits`.
pub(super) fn plain(request: &Request, container: &str, limits: &Limits) -> PodTemplate {
    let (volumes, volume_mounts) = volumes(request);
    // In the order of their names, and the last of each counts.
    let env: BTreeMap<_, _> = request.env.iter().map(|(name, value)| (name, value)).collect();
    let container = Container {
        name: container.to_owned(),
        image: Some(request.image.clone()),
        env: env.into_iter().map(|(name, value)| variable(name, value)).collect(),
        resources: resources(limits),
        security_context: request.non_root.then(|| Security {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { add: Vec::new(), drop: vec!["ALL".to_owned()] }),
        }),
        volume_mounts,
        ..Container::default()
    };
    let user = PodSecurity {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        // Without it every file of a large volume is chowned at each start.
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
    };
    PodTemplate {
        metadata: Some(Metadata {
            labels: labels(request),
            // A mesh's proxy refuses the ranks' connections, and it never ends.
            annotations: [("sidecar.istio.io/inject".to_owned(), "false".to_owned())].into(),
            ..Metadata::default()
        }),
        spec: PodSpec {
            enable_service_links: Some(false),
            automount_service_account_token: Some(false),
            security_context: request.non_root.then_some(user),
            containers: vec![container],
            volumes,
            ..PodSpec::default()
        },
    }
}

/// A variable of a container.
pub(super) fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()) }
}

fn resources(limits: &Limits) -> Option<Resources> {
    let named = [("cpu", &limits.cpus), ("memory", &limits.memory)];
    let limits: BTreeMap<String, Quantity> =
        named.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount.clone()?))).collect();
    (!limits.is_empty()).then(|| Resources { limits, requests: BTreeMap::new() })
}

fn volumes(request: &Request) -> (Vec<Volume>, Vec<Mount>) {
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    if let Some(claim) = &request.claim {
        let source = ClaimSource { claim_name: claim.clone() };
        volumes.push(Volume { name: "training".to_owned(), persistent_volume_claim: Some(source), empty_dir: None });
        mounts.push(Mount { name: "training".to_owned(), path: request.mount.clone(), read_only: None });
    }
    if let Some(size) = request.shm() {
        let memory = EmptyDir { medium: Some("Memory".to_owned()), size_limit: Some(size) };
        volumes.push(Volume { name: "shm".to_owned(), persistent_volume_claim: None, empty_dir: Some(memory) });
        mounts.push(Mount { name: "shm".to_owned(), path: "/dev/shm".to_owned(), read_only: None });
    }
    (volumes, mounts)
}
