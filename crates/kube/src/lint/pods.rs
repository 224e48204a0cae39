//! The pods' devices, shared memory, volumes and images, and the proxy of a mesh.

use super::Findings;
use super::job::{Job, MpiJobSpec, RoleView};
use super::node::Node;
use crate::options::PodSecurity;
use crate::security;

/// Names of volumes that the operator of MPIJobs adds.
const RESERVED: [&str; 2] = ["ssh-auth", "mpi-job-config"];

/// Checks the rules for the pods of any job.
pub(super) fn check(job: &Job, security: Option<PodSecurity>, findings: &mut Findings) {
    for (name, role) in &job.roles {
        devices(role, findings);
        rdma(role, findings);
        names(job, role, findings);
        proxy(&name.to_lowercase(), role, findings);
        volumes(job, role, findings);
        shell_variables(role, findings);
        for (_, path, demand) in security.map_or(Vec::new(), |level| security::breaches(role.pod.value, level)) {
            let at = Node { value: &serde_json::Value::Null, path: format!("{}.{path}", role.pod.path) };
            findings.found("pod-security", &at, format!("{path} {demand}"));
        }
    }
}

/// Checks the rules for launcher and workers.
pub(super) fn check_mpi(job: &MpiJobSpec, findings: &mut Findings) {
    gpus(job, findings);
    for (_, role) in job.roles() {
        let mounts = role.container.get("volumeMounts").items();
        let at_key = mounts.iter().find(|mount| mount.mount_path() == job.key_folder());
        // Trainer takes a volume of its own name as it is.
        if let Some(mount) = at_key.filter(|_| !job.is_runtime) {
            let what = format!("the operator mounts its key at {}: the pod is refused", job.key_folder());
            findings.add("duplicate-mount", mount, what, "leave it out: the operator makes a key for each job");
        }
        for volume in role.pod.get("volumes").items() {
            if volume.get("name").text().is_some_and(|name| RESERVED.contains(&name)) {
                let what = "the operator adds a volume of this name";
                findings.found("volume-name", &volume.get("name"), what);
            }
        }
    }
    two_paths(job, findings);
    let (one, other) = (job.launcher.image(), job.worker.image());
    if job.roles().len() == 2 && one != other && !job.is_runtime {
        findings.add(
            "two-images",
            &job.worker.container.get("image"),
            "launcher and workers have different images: their MPI must be exactly the same version",
            "give both one image",
        );
    }
}

fn gpus(job: &MpiJobSpec, findings: &mut Findings) {
    let (launcher, worker) = (job.launcher.gpu(), job.worker.gpu());
    if let Some((_, at, 1..)) = launcher.as_ref().filter(|_| !job.launcher_works) {
        findings.add(
            "idle-gpus",
            at,
            "no rank runs in the launcher: the job holds its GPUs without using them",
            "leave them out, or let ranks run in the launcher",
        );
    }
    let (name, count) = worker.map_or(("", 0), |(name, _, count)| (name, count));
    if count > 0 && job.launcher_works && launcher.is_none() && job.launcher.template.is_there() {
        findings.add(
            "launcher-gpu",
            &job.launcher.container.down("resources.limits"),
            "the first ranks run in the launcher, which has no GPU",
            format!("give the launcher {name}: {count} too"),
        );
    }
    // Trainer replaces a number of 1 by the number of GPUs.
    if count > 0 && job.slots() != count && !(job.is_runtime && job.slots() == 1) {
        let what = format!("{} ranks and {count} GPUs in each worker", job.slots());
        findings.add("gpu-slots", &job.slots, what, format!("write {count}: one rank for each GPU"));
    }
    let wants = count > 1 || job.slots() > 8;
    if wants && !has_shm(&job.worker) && job.worker.template.is_there() {
        findings.found(
            "dev-shm",
            &job.worker.pod.get("volumes"),
            "/dev/shm is 64 MiB: NCCL and MPI between the ranks of a pod may fail with \"No space left on device\"",
        );
    }
}

fn has_shm(role: &RoleView) -> bool {
    role.container.get("volumeMounts").items().iter().any(|mount| mount.mount_path() == "/dev/shm")
}

fn devices(role: &RoleView, findings: &mut Findings) {
    let resources = role.container.get("resources");
    let is_device = |name: &str| name.contains('/') && !name.starts_with("kubernetes.io/");
    for (name, limit) in resources.get("limits").fields().into_iter().filter(|(name, _)| is_device(name)) {
        if limit.amount().fract() != 0.0 {
            let what = format!("{name} is {}: a device cannot be divided", limit.value);
            findings.found("fractional-device", &limit, what);
        }
    }
    for (name, request) in resources.get("requests").fields() {
        let limit = resources.get("limits").get(name);
        if !is_device(name) && limit.is_there() && request.amount() > limit.amount() {
            let what =
                format!("request {} of {name} is above its limit {}: the pod is refused", request.value, limit.value);
            findings.add("device-request", &request, what, "lower the request, or raise the limit");
        } else if is_device(name) && limit.amount() != request.amount() {
            findings.add(
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

fn rdma(role: &RoleView, findings: &mut Findings) {
    let limits = role.container.down("resources.limits");
    let device = limits.fields().into_iter().find(|(name, _)| name.starts_with("rdma/"));
    let added = role.container.down("securityContext.capabilities.add").words();
    if let Some((name, at)) = device
        && !added.contains(&"IPC_LOCK")
        && !role.container.down("securityContext.privileged").is_true()
    {
        findings.found("memlock", &at, format!("{name} registers memory, and a container may not lock enough of it"));
    }
}

/// A pod on the node's network asks the node's name servers, unless its `dnsPolicy` says otherwise. The
/// operator of MPIJobs sets this policy for its pods.
fn names(job: &Job, role: &RoleView, findings: &mut Findings) {
    let (policy, at) = (role.pod.get("dnsPolicy"), role.pod.get("hostNetwork"));
    let asks_cluster = ["ClusterFirstWithHostNet", "None"].map(Some).contains(&policy.text());
    if at.is_true() && !asks_cluster && job.kind.ends_with("TrainingRuntime") {
        let what = "with hostNetwork the pod asks the node's name servers, which do not know the names in the hostfile";
        findings.found("host-names", &at, what);
    }
}

fn proxy(name: &str, role: &RoleView, findings: &mut Findings) {
    let inject = "sidecar.istio.io/inject";
    let said = |field: &str| role.template.get("metadata").get(field).get(inject).text() == Some("false");
    if !said("annotations") && !said("labels") {
        let namespace = "in a namespace with istio, such as a Kubeflow profile,";
        let what = format!("{namespace} a proxy joins the {name}: ranks cannot connect, and the job never ends");
        let fix = format!("annotate the pod with {inject}: \"false\"");
        findings.add("mesh", &role.template.down("metadata.annotations"), what, fix);
    }
}

/// Volumes of a claim, by the claim's name.
fn claims<'a>(role: &RoleView<'a>) -> Vec<(&'a str, Node<'a>)> {
    let volumes = role.pod.get("volumes").items().into_iter();
    volumes.filter_map(|volume| Some((volume.down("persistentVolumeClaim.claimName").text()?, volume))).collect()
}

fn is_mounted(role: &RoleView, volume: &str) -> bool {
    let containers = role.pod.get("containers").items().into_iter();
    let mut mounts = containers.flat_map(|container| container.get("volumeMounts").items());
    mounts.any(|mount| mount.get("name").text() == Some(volume))
}

fn volumes(job: &Job, role: &RoleView, findings: &mut Findings) {
    let all = role.pod.get("volumes").items();
    let mut names: Vec<&str> = all.iter().filter_map(|volume| volume.get("name").text()).collect();
    // A JobSet adds a volume for each template of a claim.
    let policies = job.spec.down("template.spec.volumeClaimPolicies").items().into_iter();
    let templates = policies.flat_map(|policy| policy.get("templates").items());
    names.extend(templates.filter_map(|template| template.down("metadata.name").text()));
    for (at, volume) in all.iter().enumerate() {
        let name = volume.get("name").text();
        if name.is_some() && all[..at].iter().any(|other| other.get("name").text() == name) {
            let what = "another volume has this name: the pod is refused";
            findings.add("duplicate-mount", &volume.get("name"), what, "rename it, or leave one of them out");
        }
    }
    for container in ["containers", "initContainers"].iter().flat_map(|list| role.pod.get(list).items()) {
        let mounts = container.get("volumeMounts").items();
        for (at, mount) in mounts.iter().enumerate() {
            let (name, path) = (mount.get("name").text().unwrap_or(""), mount.mount_path());
            if !names.contains(&name) && !RESERVED.contains(&name) {
                let what = format!("the pod has no volume {name}: it is refused");
                let fix = format!("add volumes: [{{name: {name}, ...}}] to the pod");
                findings.add("mount-without-volume", mount, what, fix);
            }
            if mounts[..at].iter().any(|other| other.mount_path() == path) {
                let what = format!("something is mounted at {path} already: the pod is refused");
                findings.add("duplicate-mount", mount, what, "choose another mountPath, or leave one of them out");
            }
        }
        let read_only = container.down("securityContext.readOnlyRootFilesystem");
        if read_only.is_true() && !mounts.iter().any(|mount| ["", "/tmp"].contains(&mount.mount_path())) {
            findings.found("read-only-root", &read_only, "MPI keeps its session in /tmp, which cannot be written");
        }
    }
    let limit = role.container.down("resources.limits.memory").amount();
    for volume in &all {
        let name = volume.get("name").text().unwrap_or("");
        if let Some(claim) = volume.down("persistentVolumeClaim.claimName").text().filter(|_| !is_mounted(role, name)) {
            let what = format!("the volume {name} of claim {claim} is not mounted");
            let fix = format!("add volumeMounts: [{{name: {name}, mountPath: /train}}]");
            findings.add("unused-claim", volume, what, fix);
        }
        if volume.get("hostPath").is_there() {
            let what = "is a folder of the node: Pod Security baseline refuses it, and each node has another";
            findings.found("host-path", volume, format!("{name} {what}"));
        }
        let size = volume.down("emptyDir.sizeLimit");
        if volume.down("emptyDir.medium").text() == Some("Memory") && limit > 0.0 && size.amount() > limit {
            let what = "and the container ends at its memory limit, which is lower";
            findings.found("shm-limit", &size, format!("{name} has sizeLimit {}, {what}", size.value));
        }
    }
}

/// Kubernetes expands `$(NAME)` in a value, and nothing expands a shell's `$NAME`.
fn shell_variables(role: &RoleView, findings: &mut Findings) {
    for (name, at) in role.env() {
        let value = at.get("value").text().unwrap_or("");
        let is_name = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '{');
        if value.split('$').skip(1).any(is_name) {
            let what = format!("{name} is {value:?}: nothing expands a shell's variable here");
            findings.found("shell-variable", &at, what);
        }
    }
}

fn two_paths(job: &MpiJobSpec, findings: &mut Findings) {
    let of = |role: &RoleView| -> Vec<(String, String)> {
        let mounts = claims(role).into_iter().filter_map(|(claim, volume)| {
            let mount = role.mount_of(volume.get("name").text()?)?;
            Some((claim.to_owned(), mount.get("mountPath").text()?.to_owned()))
        });
        mounts.collect()
    };
    let (launcher, worker) = (of(&job.launcher), of(&job.worker));
    for (claim, path) in &launcher {
        if let Some((_, other)) = worker.iter().find(|(name, there)| name == claim && there != path) {
            findings.add(
                "two-paths",
                &job.launcher.container.get("volumeMounts"),
                format!("claim {claim} is mounted at {path} in the launcher and at {other} in the workers"),
                format!("mount it at {other} in both"),
            );
        }
    }
}
