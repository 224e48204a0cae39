//! The ssh logins of `mpirun`: the users of both sides, the folder and modes of the key, and the server.

use super::Findings;
use super::job::Job;

/// Capabilities that root's sshd needs and a pod has by default.
const SSHD_CAPABILITIES: [&str; 3] = ["SYS_CHROOT", "SETUID", "SETGID"];

pub(crate) fn check(job: &Job, findings: &mut Findings) {
    users(job, findings);
    key(job, findings);
    server(job, findings);
}

fn users(job: &Job, findings: &mut Findings) {
    let (launcher, worker) = (job.launcher.user(), job.worker.user());
    if job.worker.replica.is_there() && job.launcher.replica.is_there() && launcher != worker {
        findings.error(
            "two-users",
            &job.launcher.pod.down("securityContext.runAsUser"),
            format!("the launcher runs as uid {launcher} and the workers as uid {worker}: ssh logs in as the launcher's user"),
            "give both the same runAsUser",
        );
    }
}

fn key(job: &Job, findings: &mut Findings) {
    let at = job.spec.get("sshAuthMountPath");
    let path = at.text().unwrap_or("/root/.ssh").trim_end_matches('/');
    let user = if job.launcher.replica.is_there() { job.launcher.user() } else { job.worker.user() };
    if user == 0 && path != "/root/.ssh" {
        findings.error(
            "key-place",
            &at,
            format!("the pods run as root, whose key must be in /root/.ssh and not in {path}"),
            "leave sshAuthMountPath out, or set runAsUser to the owner of that folder",
        );
    } else if user != 0 && path == "/root/.ssh" {
        findings.error(
            "key-place",
            &at,
            format!("uid {user} cannot read /root/.ssh, where the key is mounted"),
            "write sshAuthMountPath: /home/USER/.ssh with the user's own home",
        );
    }
    for (name, role) in job.roles() {
        if role.user() == 0 && role.group_of_files().is_some() {
            findings.error(
                "key-mode",
                &role.pod.down("securityContext.fsGroup"),
                format!(
                    "fsGroup makes the {name}'s key readable by a group: ssh of root refuses it (\"0640 ... too open\")"
                ),
                "leave fsGroup out for root, or run as a user with runAsUser",
            );
        }
    }
}

fn server(job: &Job, findings: &mut Findings) {
    let worker = &job.worker;
    if !worker.replica.is_there() {
        return;
    }
    let words = worker.words();
    if worker.has_command() && words.first().is_some_and(|word| ["sleep", "tail"].contains(&word.as_str())) {
        findings.error(
            "no-sshd",
            &worker.container.get("command"),
            "the worker only sleeps, as version v1 required: nothing answers the launcher's ssh",
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
    if worker.user() == 0 && !missing.is_empty() {
        findings.error(
            "sshd-capabilities",
            &capabilities.get("drop"),
            format!("root's sshd does not work without {}", missing.join(", ")),
            format!("add: [{}], or run as a user, who needs none of them", missing.join(", ")),
        );
    }
    if worker.pod.get("hostNetwork").is_true() {
        if words.windows(2).any(|pair| pair[0] == "-p" && pair[1] == "22") {
            findings.error(
                "host-port",
                &worker.container.get("command"),
                "with hostNetwork port 22 is the node's own sshd",
                "let sshd listen on another port, such as 2222, on both sides",
            );
        }
        if !worker.pod.down("affinity.podAntiAffinity").is_there() {
            findings.warn(
                "host-port",
                &worker.pod.get("hostNetwork"),
                "two workers on one node cannot both listen on ssh's port: \"Address already in use\"",
                "add podAntiAffinity by kubernetes.io/hostname, so that a node gets one worker",
            );
        }
    }
}
