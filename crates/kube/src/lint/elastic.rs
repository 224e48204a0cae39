//! Checks that an elastic job can go on when pods are lost. Its launcher must start with the workers that
//! run, and must be replaced if it is lost. Its workers must start again, and need memory for the commits.

use super::Findings;
use super::job::MpiJobSpec;
use super::store::launch_words;

pub(crate) fn check(job: &MpiJobSpec, findings: &mut Findings) {
    let words = job.launcher.words();
    let Some(own) = launch_words(&words) else { return };
    let own: Vec<&str> = own.iter().take_while(|word| *word != "--").map(String::as_str).collect();
    if !own.contains(&"--elastic") {
        return;
    }
    let value = |option: &str| {
        let given = |(at, word): (usize, _)| match str::strip_prefix(word, option) {
            Some("") => own.get(at + 1).copied(),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        own.iter().copied().enumerate().find_map(given)
    };
    if job.waits_for_workers && !job.is_runtime {
        findings.found(
            "elastic-start",
            &job.spec.get("launcherCreationPolicy"),
            "the launcher is created when every worker is ready, so fewer workers cannot start",
        );
    }
    let policy = job.worker.replica.get("restartPolicy");
    if policy.text() != Some("OnFailure") && !job.is_runtime {
        findings.found(
            "elastic-workers",
            if policy.is_there() { &policy } else { &job.worker.replica },
            "a worker whose container has failed stays as it is, and its slots are lost",
        );
    }
    memory(job, value("--snapshots").unwrap_or("/dev/shm"), findings);
    let limit = job.spec.down("runPolicy.backoffLimit");
    if value("--job").is_none() {
        findings.add(
            "elastic-launcher",
            &job.launcher_words(),
            "a launcher that takes the place of a lost one does not find what is in the workers' memory",
            "give ringpull launch a name for the job: --job NAME",
        );
    } else if limit.number() == Some(0) {
        findings.add(
            "elastic-launcher",
            &limit,
            "a launcher that is lost is not replaced: the job ends",
            "raise backoffLimit: each lost launcher counts",
        );
    }
}

/// Checks that the workers have a volume in memory for commits.
fn memory(job: &MpiJobSpec, folder: &str, findings: &mut Findings) {
    let mounts = job.worker.container.get("volumeMounts");
    let mounted = mounts.items().into_iter().find(|mount| mount.mount_path() == folder);
    let name = mounted.as_ref().and_then(|mount| mount.get("name").text());
    let volumes = job.worker.pod.get("volumes").items();
    let volume = volumes.iter().find(|volume| name.is_some() && volume.get("name").text() == name);
    if volume.is_some_and(|volume| volume.down("emptyDir.medium").text() == Some("Memory")) {
        return;
    }
    let what = if folder == "/dev/shm" && volume.is_none() {
        "commits are written to /dev/shm, which has 64 MiB".to_owned()
    } else {
        format!("commits are written to {folder}, which is not in memory")
    };
    findings.add(
        "elastic-memory",
        mounted.as_ref().unwrap_or(&mounts),
        what,
        format!("mount a volume emptyDir: {{medium: Memory, sizeLimit: 8Gi}} at {folder}, with room for two commits"),
    );
}
