//! The ssh logins of `mpirun`: the users of both sides, the folder and modes of the key, and the server.

use super::Findings;
use super::job::{MpiJobSpec, RoleView};
use super::node::Node;
use crate::command::is_mpirun;
use crate::options::USER;

/// Capabilities that root's sshd needs and a pod has by default.
const SSHD_CAPABILITIES: [&str; 3] = ["SYS_CHROOT", "SETUID", "SETGID"];

pub(crate) fn check(job: &MpiJobSpec, findings: &mut Findings) {
    users(job, findings);
    names(job, findings);
    key(job, findings);
    server(job, findings);
}

fn users(job: &MpiJobSpec, findings: &mut Findings) {
    let (launcher, worker) = (job.user(&job.launcher), job.user(&job.worker));
    if let (Some(launcher), Some(worker), 2) = (launcher, worker, job.roles().len())
        && launcher != worker
    {
        let at = job.launcher.pod.down("securityContext.runAsUser");
        let what =
            format!("the workers' sshd runs as uid {worker}, and ssh logs in as the launcher's user, {launcher}");
        findings.found("two-users", &at, what);
    }
}

/// An image has user names for root and for one other user. `OpenShift` gives each namespace user numbers of
/// its own, which have no name.
fn names(job: &MpiJobSpec, findings: &mut Findings) {
    for (name, role) in job.roles() {
        let at = role.container.down("securityContext.runAsUser");
        let at = if at.is_there() { at } else { role.pod.down("securityContext.runAsUser") };
        let Some(user) = at.number().filter(|user| ![0, i64::from(USER)].contains(user)) else {
            no_number(name, role, findings);
            continue;
        };
        let what = "ssh and sshd end with \"No user exists for uid";
        if has_known_users(role) {
            findings.add(
                "unknown-user",
                &at,
                format!("the image has names for root and uid {USER} only: {what} {user}\" in the {name}"),
                format!("write runAsUser: {USER}; on OpenShift with a security context constraint such as nonroot-v2"),
            );
        } else {
            findings.add(
                "user-number",
                &at,
                format!("unless /etc/passwd of the image has uid {user}, {what} {user}\" in the {name}"),
                "write the number of a user of the image",
            );
        }
    }
}

/// Returns true if the image is one of ours or of the operator's, unchanged. Images made from these may have
/// more users.
fn has_known_users(role: &RoleView) -> bool {
    let name = role.image().rsplit('/').next().unwrap_or("").split([':', '@']).next();
    role.image().contains("mpioperator/") || ["ringpull", "ringpull-python"].map(Some).contains(&name)
}

/// A pod that may not run as root and names no user runs as the image's user, or on `OpenShift` as any user.
fn no_number(name: &str, role: &RoleView, findings: &mut Findings) {
    let own = |at: &Node| at.down("securityContext.runAsNonRoot").is_true();
    if role.user().is_some() || !(own(&role.pod) || own(&role.container)) {
        return;
    }
    let at = role.pod.get("securityContext");
    if has_known_users(role) && role.is_ours() {
        let what = format!(
            "the image runs as root, which runAsNonRoot refuses, or on OpenShift as a user without a name: the {name} does not start"
        );
        findings.add("unknown-user", &at, what, format!("write runAsUser: {USER} too"));
    } else {
        let what = format!(
            "the image's own user runs the {name}, or on OpenShift one without a name, which ssh and sshd refuse"
        );
        findings.add("user-number", &at, what, "write runAsUser with the number of a user of the image");
    }
}

fn key(job: &MpiJobSpec, findings: &mut Findings) {
    let path = job.key_folder();
    let user = if job.launcher.template.is_there() { job.user(&job.launcher) } else { job.user(&job.worker) };
    if user == Some(0) && path != "/root/.ssh" {
        findings.add(
            "key-place",
            &job.key,
            format!("the pods run as root, whose key must be in /root/.ssh and not in {path}"),
            "leave sshAuthMountPath out, or set runAsUser to the owner of that folder",
        );
    } else if let Some(user) = user.filter(|user| *user != 0 && path == "/root/.ssh") {
        findings.add(
            "key-place",
            &job.key,
            format!("uid {user} cannot read /root/.ssh, where the key is mounted"),
            "write sshAuthMountPath: /home/USER/.ssh with the user's own home",
        );
    }
    own_key(job, findings);
    // Trainer's key has mode 0640 whatever the group.
    for (name, role) in job.roles() {
        let group = role.group_of_files().is_some();
        if job.user(role) == Some(0) && (group || job.is_runtime) && !role.is_ours() {
            let why = if group { "fsGroup makes" } else { "Trainer makes" };
            findings.add(
                "key-mode",
                &role.pod.down("securityContext.fsGroup"),
                format!("{why} the {name}'s key readable by a group: ssh of root refuses it (\"0640 ... too open\")"),
                "run as a user with runAsUser and fsGroup, or take an image whose entrypoint copies the key, as ringpull's does",
            );
        }
    }
}

/// Checks the modes of a Secret that the launcher mounts where ssh looks for keys. A mode may be written in
/// octal without the sign of YAML.
fn own_key(job: &MpiJobSpec, findings: &mut Findings) {
    let launcher = &job.launcher;
    for volume in launcher.pod.get("volumes").items() {
        let mount = volume.get("name").text().and_then(|name| launcher.mount_of(name));
        let path = mount.map_or("", |mount| mount.mount_path());
        let items = volume.down("secret.items").items();
        let key = items
            .iter()
            .find(|item| item.get("path").text().is_some_and(|path| path.starts_with("id_") && !path.contains('.')));
        let of_key = key.map(|item| item.get("mode")).filter(Node::is_there);
        let mode = of_key.unwrap_or_else(|| volume.down("secret.defaultMode"));
        let is_private = mode.number().is_some_and(|mode| mode.trailing_zeros() >= 6 || [600, 400].contains(&mode));
        if path.ends_with("/.ssh")
            && volume.get("secret").is_there()
            && (items.is_empty() || key.is_some())
            && !is_private
        {
            let what = format!("others may read the key in {path}: ssh refuses it (\"bad permissions\")");
            findings.add("key-mode", &mode, what, "write defaultMode: 0400");
        }
    }
}

fn server(job: &MpiJobSpec, findings: &mut Findings) {
    let worker = &job.worker;
    if !worker.template.is_there() {
        return;
    }
    let words = worker.words();
    let is_shell = |word: &&String| word.starts_with('-') || word.ends_with("sh") && !word.contains(' ');
    let program = words.iter().find(|word| !is_shell(word)).map_or("", |word| word.rsplit('/').next().unwrap_or(""));
    let others = ["sleep", "tail", "python", "python3", "torchrun"];
    let is_sshd = |word: &String| word.contains("sshd") || word.ends_with("init.d/ssh") || word.ends_with("dropbear");
    let has_sshd =
        words.iter().any(is_sshd) || words.windows(2).any(|pair| pair[0].ends_with("service") && pair[1] == "ssh");
    if worker.has_command() && !has_sshd && (others.contains(&program) || is_mpirun(program)) {
        findings.add(
            "no-sshd",
            &worker.container.get("command"),
            format!("the worker runs {program} instead of sshd: nothing answers the launcher's ssh"),
            "leave command and args out: the operator runs /usr/sbin/sshd -De",
        );
    }
    let capabilities = worker.container.down("securityContext.capabilities");
    let dropped: Vec<String> = capabilities.get("drop").words().iter().map(|word| word.to_uppercase()).collect();
    let added = capabilities.get("add").words();
    let lacks = |name: &&str| {
        (dropped.iter().any(|word| word == "ALL" || word == name)) && !added.iter().any(|word| word == name)
    };
    let missing: Vec<&str> = SSHD_CAPABILITIES.iter().filter(|name| lacks(name)).copied().collect();
    if job.user(worker) == Some(0) && !missing.is_empty() {
        findings.add(
            "sshd-capabilities",
            &capabilities.get("drop"),
            format!("root's sshd does not work without {}", missing.join(", ")),
            format!("add: [{}], or run as a user, who needs none of them", missing.join(", ")),
        );
    }
    if worker.pod.get("hostNetwork").is_true() {
        if words.windows(2).any(|pair| pair[0] == "-p" && pair[1] == "22") {
            findings.found(
                "host-port",
                &worker.container.get("command"),
                "with hostNetwork port 22 is the node's own sshd",
            );
        }
        // Two pods with the same port of the node never get one node.
        let has_ports = worker.pod.get("containers").items().iter().any(|it| !it.get("ports").items().is_empty());
        if !worker.pod.down("affinity.podAntiAffinity").is_there() && !has_ports {
            findings.found(
                "one-per-node",
                &worker.pod.get("hostNetwork"),
                "two workers on one node cannot both listen on ssh's port: \"Address already in use\"",
            );
        }
    }
    probe(job, &words, findings);
}

/// Checks that the readiness probe asks at the port of sshd, if that is known.
fn probe(job: &MpiJobSpec, words: &[String], findings: &mut Findings) {
    let container = &job.worker.container;
    let at = container.down("readinessProbe.tcpSocket.port");
    let named = || container.get("ports").items().into_iter().find(|port| port.get("name").text() == at.text());
    let probed = at.number().or_else(|| named()?.get("containerPort").number());
    let given = words.windows(2).find(|pair| pair[0] == "-p").and_then(|pair| pair[1].parse().ok());
    let port = given.or(job.worker.has_known_sshd().then_some(2222));
    if let (Some(probed), Some(port)) = (probed, port)
        && probed != port
    {
        findings.add(
            "probe-port",
            &at,
            format!("the probe asks at port {probed}, and sshd listens on {port}: no worker is ever ready"),
            format!("write port: {port}"),
        );
    }
}
