//! Checks that the options of a job fit together, and that each fits the kind of job.

use ringpull_base::Result;

use crate::names::{LONGEST_LABEL, check_image, check_label, is_domain, is_label_value, is_qualified};
use crate::options::{JobKind, PODS, Request, names, used_by, wrong};
use crate::quantity::Quantity;
use JobKind::{Claim, Compare, Job, Mxjob, NetworkPolicy, Ps, Tfjob, Train, Trainjob};

/// Folders that a claim would hide from the image or the operator.
const TAKEN: &str = "/dev /proc /sys /etc /usr /bin /sbin /lib /lib64 /run /var/run /var/lib/dpkg /opt/ringpull";

impl Request {
    /// Returns an error unless the options fit the kind and each other.
    pub fn check(&self) -> Result<()> {
        let (kind, slots, workers) = (self.kind.name(), self.slots(), self.workers);
        for (option, kinds) in used_by() {
            if let Some(word) = self.given.get(option).filter(|_| !kinds.contains(&self.kind)) {
                return wrong(
                    format!("{word} has no effect on a {kind}"),
                    format!("leave it out, or write one of these kinds, which use it: {}", names(kinds)),
                );
            }
        }
        let gpus = self.gpu().map_or(0, |(_, count)| count);
        let above = |one: &Option<Quantity>, other: &Option<Quantity>| {
            one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one.value() > other.value())
        };
        let rules: [(bool, String, &str); 18] = [
            (workers == 0, "invalid --workers 0: expected at least 1".into(), "give --workers of at least 1"),
            (self.slots == Some(0), "invalid --slots 0: expected at least 1".into(), "give --slots of at least 1"),
            (
                gpus > 0 && slots > gpus,
                format!("{slots} ranks would share {gpus} GPUs in each worker"),
                "leave out --slots (one rank for each GPU), or give each worker more GPUs",
            ),
            (
                self.queue.is_some() && self.gang.is_none(),
                "--queue needs a gang scheduler".into(),
                "give --gang volcano too; the queue of Kueue is --kueue",
            ),
            (
                self.rdma_network.is_some() && self.rdma.is_none(),
                "--rdma-network needs --rdma".into(),
                "give the resource of the device too, such as --rdma rdma/ib",
            ),
            (
                self.min_workers.is_some_and(|least| least == 0 || least > workers),
                format!("invalid --min-workers: expected a number between 1 and --workers {workers}"),
                "lower it, or raise --workers",
            ),
            (
                self.max_workers.is_some_and(|most| most < workers),
                format!("invalid --max-workers: expected a number of at least --workers {workers}"),
                "raise it, or lower --workers",
            ),
            (
                self.min_workers.is_some() && self.backoff_limit == 0,
                "--min-workers with --backoff-limit 0: nothing takes the place of a lost launcher".into(),
                "raise it: each lost launcher counts",
            ),
            (
                self.launcher_works && (self.launcher_cpus.is_some() || self.launcher_memory.is_some()),
                "--launcher-works excludes --launcher-cpus and --launcher-memory: the launcher is a worker".into(),
                "leave them out: --cpus and --memory are its limits too",
            ),
            (
                self.host_network && self.launcher_works,
                "--host-network excludes --launcher-works: launcher and worker would share a node's ports".into(),
                "leave one of them out",
            ),
            (
                above(&self.request_cpu, &self.cpus),
                "--request-cpu is above the limit, --cpus".into(),
                "lower it, or raise --cpus",
            ),
            (
                above(&self.request_memory, &self.memory),
                "--request-memory is above the limit, --memory".into(),
                "lower it, or raise --memory",
            ),
            (
                above(&self.shm, &self.memory),
                "--shm is above --memory: what lies in /dev/shm counts towards that limit".into(),
                "lower it, or raise --memory",
            ),
            (
                self.kind == Trainjob && workers < 2,
                "a TrainJob needs two workers: its launcher is the first node".into(),
                "give --workers of at least 2",
            ),
            (
                self.kind == Claim && (self.claim.is_none() || self.claim_size.is_none()),
                "a claim needs its name and its size".into(),
                "give --claim NAME --claim-size 10Gi",
            ),
            (
                self.command.is_empty() && PODS.contains(&self.kind) && self.kind != Compare,
                "the command is missing".into(),
                "give it after --, such as -- train --kv-store dist_sync_mpi",
            ),
            (
                self.min_workers.is_some() && self.loses_its_work(),
                "--min-workers without a checkpoint: each loss of a worker would start the training anew".into(),
                "add --checkpoint /train/run.safetensors --resume-if-any to the command, and --claim",
            ),
            (
                self.affinity_file.as_ref().is_some_and(|file| file.0.len() != 1 || !file.0[0].is_object()),
                "--affinity-file does not hold one object".into(),
                "give a file with nodeAffinity, podAffinity or podAntiAffinity at its top",
            ),
        ];
        match rules.into_iter().find(|(is_broken, ..)| *is_broken) {
            Some((_, what, remedy)) => wrong(what, remedy),
            None => self.check_names().and_then(|()| self.check_command()),
        }
    }

    fn check_names(&self) -> Result<()> {
        let longest = match self.kind {
            Train | Compare | Ps | Tfjob => {
                format!("{}-worker-{}", self.name, self.max_workers.unwrap_or(self.workers).max(1) - 1)
            }
            Mxjob => format!("{}-scheduler-0", self.name),
            Trainjob => format!("{}-launcher-0-0", self.name),
            Job | Claim | NetworkPolicy => self.name.clone(),
        };
        check_label("--name", &self.name)?;
        if longest.len() > LONGEST_LABEL {
            return wrong(
                format!("the host name {longest:?} has {} characters", longest.len()),
                format!("shorten the name by {}: 63 characters are allowed", longest.len() - LONGEST_LABEL),
            );
        }
        let of_one = [
            ("--namespace", &self.namespace),
            ("--claim", &self.claim),
            ("--priority-class", &self.priority_class),
            ("--service-account", &self.service_account),
            ("--storage-class", &self.storage_class),
            ("--queue", &self.queue),
            ("--kueue", &self.kueue),
        ];
        let secrets = self.pull_secret.iter().map(|name| ("--pull-secret", name));
        let sources = self.env_from.iter().map(|(_, name)| ("--env-from", name));
        let singles = of_one.iter().filter_map(|(option, name)| name.as_ref().map(|name| (*option, name)));
        for (option, name) in singles.chain(secrets).chain(sources) {
            if !is_domain(name) {
                check_label(option, name)?;
            }
        }
        if self.claim.is_some() && PODS.contains(&self.kind) {
            self.check_mount()?;
        }
        check_image(&self.image)?;
        for (name, _) in &self.env {
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(legal) {
                return wrong(format!("{name:?} is not the name of a variable"), "give --env NAME=VALUE");
            }
        }
        let of_labels = |option, pairs: &'_ [(String, String)]| {
            let bad = pairs.iter().find(|(name, value)| !is_qualified(name) || !is_label_value(value));
            bad.map_or(Ok(()), |(name, value)| {
                wrong(
                    format!("invalid {option} {name}={value}"),
                    "a name or value has at most 63 letters, digits, - _ and ., and begins and ends with a letter or digit; \
                     a name may have a domain and / before it",
                )
            })
        };
        of_labels("--node-selector", &self.node_selector)?;
        of_labels("--label", &self.label)?;
        match self.annotation.iter().find(|(name, _)| !is_qualified(name)) {
            Some((name, _)) => wrong(
                format!("invalid --annotation {name}"),
                "give a name such as example.com/owner: letters, digits, - _ and .",
            ),
            None => Ok(()),
        }
    }

    fn check_mount(&self) -> Result<()> {
        let path = self.mount.trim_end_matches('/');
        let is_within = |one: &str, other: &str| one == other || one.starts_with(&format!("{other}/"));
        let taken = TAKEN.split(' ').find(|folder| is_within(path, folder) || is_within(folder, path));
        let is_plain = path.split('/').skip(1).all(|name| !["", ".", ".."].contains(&name));
        if !self.mount.starts_with('/') || self.mount.contains([':', ' ']) || !is_plain {
            return wrong(
                format!("invalid --mount {:?}: expected an absolute path without // . and ..", self.mount),
                "give a path such as /train",
            );
        }
        if path.is_empty()
            || taken.is_some()
            || path.ends_with("/.ssh")
            || ["/root", "/home", "/home/mpiuser", "/tmp"].contains(&path)
        {
            let what = if path.is_empty() { "the whole image".to_owned() } else { format!("the pod's own {path}") };
            return wrong(format!("--mount {:?} would hide {what}", self.mount), "give a path such as /train");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ALL;

    fn request(change: impl FnOnce(&mut Request)) -> String {
        let mut request = Request::new(JobKind::Train);
        request.command = ["train", "--kv-store", "dist_sync_mpi"].map(str::to_owned).to_vec();
        change(&mut request);
        request.check().err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn options_that_exclude_each_other_are_an_error_with_a_remedy() {
        type Change = fn(&mut Request);
        fn memory(text: &str) -> Option<Quantity> {
            Quantity::memory(text).ok()
        }
        let cases: [(Change, &str); 35] = [
            (|r| r.name = "my.job".to_owned(), "such as my-job"),
            (|r| r.name = "a".repeat(55), "shorten the name by 1"),
            (|r| r.workers = 0, "at least 1"),
            (|r| (r.gpus, r.slots) = (2, Some(4)), "leave out --slots"),
            (|r| r.queue = Some("q".to_owned()), "--gang volcano"),
            (|r| r.rdma_network = Some("ib".to_owned()), "--rdma rdma/ib"),
            (|r| r.min_workers = Some(3), "between 1 and --workers 2"),
            (|r| r.min_workers = Some(1), "--resume-if-any"),
            (|r| (r.min_workers, r.max_workers) = (Some(1), Some(1)), "at least --workers 2"),
            (|r| (r.min_workers, r.backoff_limit) = (Some(1), 0), "each lost launcher counts"),
            (|r| (r.launcher_works, r.launcher_memory) = (true, memory("1Gi")), "--memory are its limits too"),
            (|r| (r.launcher_works, r.host_network) = (true, true), "leave one of them out"),
            (|r| r.command.clear(), "give it after --"),
            (|r| r.command[2] = "local".to_owned(), "a separate model"),
            (|r| r.command = ["sh", "-c", "mpirun train"].map(str::to_owned).to_vec(), "only what one rank runs"),
            (
                |r| r.command = ["sh", "-c", "cd /train;mpirun train"].map(str::to_owned).to_vec(),
                "only what one rank runs",
            ),
            (|r| r.env = [("1A".to_owned(), String::new())].into(), "NAME=VALUE"),
            (|r| (r.shm, r.memory) = (memory("8Gi"), memory("4Gi")), "raise --memory"),
            (|r| (r.request_memory, r.memory) = (memory("8Gi"), memory("4Gi")), "raise --memory"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "/".to_owned()), "hide the whole image"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "/dev/shm".to_owned()), "hide the pod's own"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "/root/.ssh".to_owned()), "hide the pod's own"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "/opt".to_owned()), "hide the pod's own"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "/tmp/".to_owned()), "hide the pod's own"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "//etc".to_owned()), "without //"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "/./".to_owned()), "without //"),
            (|r| (r.claim, r.mount) = (Some("a".to_owned()), "train".to_owned()), "an absolute path"),
            (|r| r.node_selector = [("a b".to_owned(), "c".to_owned())].into(), "at most 63"),
            (|r| r.label = [("a".to_owned(), "-c".to_owned())].into(), "at most 63"),
            (|r| r.annotation = [("a/b/c".to_owned(), String::new())].into(), "example.com/owner"),
            (|r| r.image = "Registry/Ringpull:1".to_owned(), "lower-case"),
            (|r| r.image = "ringpull:".to_owned(), "registry/name:tag"),
            (|r| r.image = "two words".to_owned(), "registry/name:tag"),
            (|r| r.pull_secret = ["A".to_owned()].into(), "such as a"),
            (|r| r.kind = JobKind::Claim, "--claim-size"),
        ];
        for (change, expected) in cases {
            let error = request(change);
            assert!(error.contains(expected) && error.contains("hint: "), "{expected}: {error}");
        }
        assert_eq!(request(|_| {}), "");
        assert_eq!(request(|r| r.name = "a".repeat(54)), "");
        let digest = format!("sha256:{}", "0f".repeat(32));
        for image in
            ["ringpull", "reg.example:5000/a/b_c:1.2-x", "a@DIGEST", "reg.example/a:1@DIGEST", "ghcr.io/x/y:V1"]
        {
            assert_eq!(request(|r| r.image = image.replace("DIGEST", &digest)), "");
        }
        for wrong in ["a@sha256:0f", &format!("a@{}", digest.to_uppercase()), "a@sha512:0f", "a@"] {
            assert!(request(|r| r.image = wrong.to_owned()).contains("invalid --image"), "{wrong}");
        }
    }

    #[test]
    fn an_option_that_a_kind_does_not_use_is_an_error_that_names_those_that_do() {
        for (option, kinds) in used_by() {
            for kind in ALL {
                let given = [(option.to_owned(), format!("--{option}"))].into();
                let error = Request { given, ..Request::new(*kind) }.check().err();
                let error = error.map_or(String::new(), |error| error.to_string());
                assert_eq!(error.contains("has no effect"), !kinds.contains(kind), "{option} {kind:?}: {error}");
                assert!(kinds.contains(kind) || kinds.iter().all(|kind| error.contains(&kind.name())), "{error}");
            }
        }
    }
}
