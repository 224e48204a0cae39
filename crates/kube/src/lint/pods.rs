//! The pods' devices, shared memory, volumes and images, and the proxy of a mesh.

use super::Findings;
use super::job::{Job, Role};
use super::node::Node;

const GPU: &str = "nvidia.com/gpu";
/// Names of volumes that the operator adds.
const RESERVED: [&str; 2] = ["ssh-auth", "mpi-job-config"];

pub(crate) fn check(job: &Job, findings: &mut Findings) {
    gpus(job, findings);
    for (name, role) in job.roles() {
        extended(role, findings);
        rdma(role, findings);
        proxy(name, role, findings);
        for volume in role.pod.get("volumes").items() {
            if volume.get("name").text().is_some_and(|name| RESERVED.contains(&name)) {
                findings.error(
                    "volume-name",
                    &volume.get("name"),
                    "the operator adds a volume of this name",
                    "rename it",
                );
            }
        }
    }
    volumes(job, findings);
    let (one, other) = (job.launcher.container.get("image"), job.worker.container.get("image"));
    if job.worker.replica.is_there() && one.text() != other.text() {
        findings.warn(
            "two-images",
            &other,
            "launcher and workers have different images: their MPI must be exactly the same version",
            "give both one image",
        );
    }
}

fn gpus(job: &Job, findings: &mut Findings) {
    let (launcher, worker) = (job.launcher.limit(GPU), job.worker.limit(GPU));
    if launcher > 0 && !job.launcher_works() {
        findings.error(
            "launcher-gpu",
            &job.launcher.container.down("resources.limits").get(GPU),
            "the operator hides the launcher's GPUs from it: the job holds them without using them",
            "leave them out, or set runLauncherAsWorker: true",
        );
    }
    if worker > 0 && job.launcher_works() && launcher == 0 {
        findings.error(
            "launcher-gpu",
            &job.launcher.container.down("resources.limits"),
            "with runLauncherAsWorker the first ranks run in the launcher, which has no GPU",
            format!("give the launcher {GPU}: {worker} too"),
        );
    }
    if worker > 0 && job.slots() != worker {
        let what = format!("{} ranks and {worker} GPUs in each worker", job.slots());
        findings.warn(
            "gpu-slots",
            &job.spec.get("slotsPerWorker"),
            what,
            format!("write slotsPerWorker: {worker}: one rank for each GPU"),
        );
    }
    let wants = worker > 1 || job.slots() > 8;
    if wants && !has_shm(&job.worker) && job.worker.replica.is_there() {
        findings.warn(
            "dev-shm",
            &job.worker.pod.get("volumes"),
            "/dev/shm is 64 MiB: NCCL and MPI between the ranks of a pod fail with \"No space left on device\"",
            "add an emptyDir {medium: Memory, sizeLimit: 8Gi} mounted at /dev/shm (it counts towards the memory limit)",
        );
    }
}

fn has_shm(role: &Role) -> bool {
    role.container.get("volumeMounts").items().iter().any(|mount| mount.get("mountPath").text() == Some("/dev/shm"))
}

fn extended(role: &Role, findings: &mut Findings) {
    let resources = role.container.get("resources");
    for (name, request) in resources.get("requests").fields() {
        let limit = resources.get("limits").get(name);
        if name.contains('/') && !name.starts_with("kubernetes.io/") && limit.value != request.value {
            findings.error(
                "device-request",
                &request,
                format!(
                    "devices are requested by their limit: {name} has request {} and limit {}",
                    request.value, limit.value
                ),
                format!("write it under limits, with the same number: {name}: {}", request.value),
            );
        }
    }
}

fn rdma(role: &Role, findings: &mut Findings) {
    let limits = role.container.down("resources.limits");
    let device = limits.fields().into_iter().find(|(name, _)| name.starts_with("rdma/") || name.ends_with("/efa"));
    let added = role.container.down("securityContext.capabilities.add").words();
    if let Some((name, at)) = device
        && !added.contains(&"IPC_LOCK")
        && !role.container.down("securityContext.privileged").is_true()
    {
        findings.error(
            "memlock",
            &at,
            format!("{name} registers memory, and a container may not lock enough of it"),
            "add securityContext: {capabilities: {add: [IPC_LOCK]}}",
        );
    }
}

fn proxy(name: &str, role: &Role, findings: &mut Findings) {
    let inject = "sidecar.istio.io/inject";
    let said = |field: &str| role.template.get("metadata").get(field).get(inject).text() == Some("false");
    if !said("annotations") && !said("labels") {
        findings.warn(
            "mesh",
            &role.template.down("metadata.annotations"),
            format!(
                "in a namespace with istio, such as a Kubeflow profile, a proxy joins the {name}: \
                 ranks cannot connect, and the job never ends"
            ),
            format!("annotate the pod with {inject}: \"false\""),
        );
    }
}

/// Volumes of a claim, by the claim's name.
fn claims<'a>(role: &Role<'a>) -> Vec<(&'a str, Node<'a>)> {
    let volumes = role.pod.get("volumes").items().into_iter();
    volumes.filter_map(|volume| Some((volume.down("persistentVolumeClaim.claimName").text()?, volume))).collect()
}

fn is_mounted(role: &Role, volume: &str) -> bool {
    let containers = role.pod.get("containers").items().into_iter();
    let mut mounts = containers.flat_map(|container| container.get("volumeMounts").items());
    mounts.any(|mount| mount.get("name").text() == Some(volume))
}

fn volumes(job: &Job, findings: &mut Findings) {
    for (_, role) in job.roles() {
        for (claim, volume) in claims(role) {
            let name = volume.get("name").text().unwrap_or("");
            if !is_mounted(role, name) {
                let what = format!("the volume {name} of claim {claim} is not mounted");
                findings.warn(
                    "mount",
                    &volume,
                    what,
                    format!("add volumeMounts: [{{name: {name}, mountPath: /train}}]"),
                );
            }
        }
    }
    let of = |role: &Role| -> Vec<(String, String)> {
        let mounts = claims(role).into_iter().filter_map(|(claim, volume)| {
            let mount = role.mount_of(volume.get("name").text()?)?;
            Some((claim.to_owned(), mount.get("mountPath").text()?.to_owned()))
        });
        mounts.collect()
    };
    let (launcher, worker) = (of(&job.launcher), of(&job.worker));
    for (claim, path) in &launcher {
        if let Some((_, other)) = worker.iter().find(|(name, there)| name == claim && there != path) {
            findings.error(
                "mount",
                &job.launcher.container.get("volumeMounts"),
                format!("claim {claim} is mounted at {path} in the launcher and at {other} in the workers"),
                format!("mount it at {other} in both"),
            );
        }
    }
}
