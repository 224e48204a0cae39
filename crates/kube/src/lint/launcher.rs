//! The command line of `mpirun`: the number and place of the ranks that it starts, their environment, and the
//! readiness of their hosts.

use super::Findings;
use super::job::{MpiJobSpec, RoleView};
use crate::command::{is_mpirun, mpirun_options};

/// Variables that the operator sets itself, after the user's.
const OPERATORS: &str = "K_MPI_JOB_ROLE OMPI_MCA_orte_keep_fqdn_hostnames OMPI_MCA_orte_default_hostfile \
    OMPI_MCA_plm_rsh_args OMPI_MCA_orte_set_default_slots I_MPI_HYDRA_HOST_FILE I_MPI_PERHOST \
    HYDRA_HOST_FILE HYDRA_LAUNCH_EXTRA_ARGS";

pub(crate) fn check(job: &MpiJobSpec, findings: &mut Findings) {
    ranks(job, findings);
    open_mpi_5(job, findings);
    environment(job, findings);
    readiness(job, findings);
    root(job, findings);
    first_container(job, findings);
}

/// The options of `mpirun`, if the launcher runs it.
fn mpirun(role: &RoleView) -> Option<Vec<String>> {
    mpirun_options(&role.words()).map(|own| own.into_iter().map(str::to_owned).collect())
}

fn has(words: &[String], options: &[&str]) -> bool {
    words.iter().any(|word| options.contains(&word.as_str()))
}

/// The number of ranks that the launcher's `mpirun` is told to start; 0 if it is not known. The ranks of
/// several programs add up.
pub(super) fn asked(launcher: &RoleView) -> i64 {
    let words = mpirun(launcher).unwrap_or_default();
    let of_program = |own: &[String]| {
        let count = own.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
            Some(("--np" | "--n", count)) => Some(count),
            _ => own
                .get(at + 1)
                .filter(|_| ["-np", "-n", "--np", "--n", "-c"].contains(&word.as_str()))
                .map(String::as_str),
        });
        count.and_then(|count| expanded(count, launcher)?.parse::<i64>().ok()).unwrap_or(0)
    };
    words.split(|word| word == ":").map(of_program).fold(0, i64::saturating_add)
}

fn ranks(job: &MpiJobSpec, findings: &mut Findings) {
    let Some(words) = mpirun(&job.launcher) else { return };
    let asked = asked(&job.launcher);
    let (room, slots, pods) = (job.ranks(), job.slots(), job.ranks() / job.slots().max(1));
    let at = job.launcher_words();
    let over = has(&words, &["--oversubscribe", "-oversubscribe"])
        || words.iter().any(|word| word.to_lowercase().contains(":oversubscribe"));
    if asked > room && room > 0 && !over {
        findings.add(
            "too-few-slots",
            &at,
            format!("{asked} ranks for {pods} workers x {slots} slots = {room}: \"not enough slots\""),
            format!("leave -np out (every slot gets a rank), or raise slotsPerWorker or replicas to make {asked}"),
        );
    } else if asked > 0 && asked < room {
        findings.found(
            "idle-slots",
            &at,
            format!("{asked} ranks for {room} slots: they fill the first workers, and the others stay idle"),
        );
    }
}

/// A word of a script in which the shell, or Kubernetes, has replaced a variable by the container's value.
/// `None` if the value is not known here.
fn expanded(word: &str, role: &RoleView) -> Option<String> {
    let word = word.trim_matches(['"', '\'']);
    let Some(rest) = word.strip_prefix('$') else { return Some(word.to_owned()) };
    let inner = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let inner = inner.or_else(|| rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'))).unwrap_or(rest);
    let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len());
    let (name, default) = inner.split_at(end);
    let default = match default {
        "" => None,
        _ => Some(default.strip_prefix(":-").or_else(|| default.strip_prefix('-'))?.to_owned()),
    };
    // A variable that the script itself sets comes first.
    let script = role.words();
    let own = script.iter().rev().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let own = own.map(|value| value.trim_matches(['"', '\'', ';']).to_owned());
    match own {
        Some(value) => (!value.starts_with('$')).then_some(value),
        None if role.has_env(name) => role.variables().into_iter().find(|(other, _)| other == name).map(|(_, it)| it),
        None => default,
    }
}

/// Returns true if the words of the container use a variable themselves: `$NAME`, `${NAME...}`, or
/// Kubernetes' `$(NAME)`.
fn reads(role: &RoleView, name: &str) -> bool {
    let uses = |rest: &str| {
        let rest = rest.strip_prefix(['{', '(']).unwrap_or(rest);
        let rest = rest.strip_prefix(name);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
    };
    role.raw_words().iter().any(|word| word.split('$').skip(1).any(uses))
}

fn open_mpi_5(job: &MpiJobSpec, findings: &mut Findings) {
    let Some(words) = mpirun(&job.launcher) else { return };
    let named = has(
        &words,
        &["--hostfile", "-hostfile", "--machinefile", "-machinefile", "--default-hostfile", "--host", "-host", "-H"],
    );
    if job.implementation != "OpenMPI" || named || job.launcher.has_env("PRTE_MCA_prte_default_hostfile") {
        return;
    }
    let image = job.launcher.container.get("image");
    let fix =
        "add the variable PRTE_MCA_prte_default_hostfile=/etc/mpi/hostfile to the launcher (Open MPI 4 ignores it)";
    if image.text().is_some_and(brings_open_mpi_5) {
        let what = "this image has Open MPI 5, which ignores the operator's variables: all ranks run on the launcher, and the job succeeds";
        findings.add("open-mpi-5", &image, what, fix);
    } else {
        let what = "if the image has Open MPI 5, all ranks run on the launcher, and the job succeeds";
        findings.add("open-mpi-unknown", &job.launcher.container.get("env"), what, fix);
    }
}

/// The operator's own images are on Debian trixie since v0.7.0. Other tags of that image are older, or move
/// from one image to another.
fn brings_open_mpi_5(image: &str) -> bool {
    let Some((_, rest)) = image.split_once("mpioperator/") else { return false };
    let (name, tag) = rest.split_once(':').unwrap_or((rest, ""));
    let numbers: Vec<u32> = tag.trim_start_matches('v').split('.').filter_map(|part| part.parse().ok()).collect();
    ["base", "openmpi", "openmpi-builder"].contains(&name) && numbers.len() >= 2 && (numbers[0], numbers[1]) >= (0, 7)
}

fn environment(job: &MpiJobSpec, findings: &mut Findings) {
    for (name, at) in job.worker.env() {
        let known = job.launcher.has_env(name) || name.starts_with("NVIDIA_") || reads(&job.worker, name);
        // Without a command, arguments go to the image's entrypoint.
        let has_entrypoint = !job.worker.has_command() && job.worker.container.get("args").is_there();
        if !known {
            findings.add(
                if has_entrypoint { "entrypoint-env" } else { "worker-env" },
                &at,
                format!("ranks are children of sshd, so they do not inherit {name} from the worker's container"),
                format!("set {name} in the launcher and pass it with mpirun -x {name}"),
            );
        }
    }
    for (name, at) in job.launcher.env() {
        if OPERATORS.split(' ').any(|other| other == name) {
            let what = format!("the operator sets {name} itself, and its value wins");
            findings.found("operator-env", &at, what);
        }
    }
    // An entrypoint may pass variables on; mpirun itself passes on those that -x names.
    let Some(words) = mpirun(&job.launcher).filter(|_| job.launcher.has_command()) else { return };
    if job.implementation != "OpenMPI" {
        return;
    }
    for (name, at) in job.launcher.env() {
        let own = ["OMPI_", "PMIX_", "PRTE_", "K_MPI_"].iter().any(|prefix| name.starts_with(prefix));
        let passed = words.windows(2).any(|pair| pair[0] == "-x" && pair[1].split('=').next() == Some(name));
        let may_pass = words.iter().any(|word| word.starts_with('$'));
        if !own && !passed && !may_pass && !reads(&job.launcher, name) {
            findings.add(
                "launcher-env",
                &at,
                format!("{name} stays in the launcher: ranks on workers do not see it"),
                format!("add -x {name} after mpirun"),
            );
        }
    }
}

fn readiness(job: &MpiJobSpec, findings: &mut Findings) {
    if !job.worker.template.is_there() {
        return;
    }
    let probe = job.worker.container.get("readinessProbe");
    // For a suspended job the operator creates the launcher's Job at once. When the job is resumed, the
    // launcher starts together with the workers.
    let late = !job.is_runtime && job.begins_suspended();
    let waits = job.waits_for_workers;
    // An entrypoint can wait for the workers, and ours does; a command cannot.
    let words = job.launcher.words();
    let runs_mpirun = words.first().is_some_and(|word| is_mpirun(word));
    let may_wait = has(&words, &["until", "while", "getent", "nslookup", "sleep"])
        || !job.launcher.has_command() && (job.launcher.is_ours() || !runs_mpirun);
    if (!waits || late) && !may_wait {
        let what = if job.implementation == "MPICH" {
            "mpirun starts before its workers listen, and MPICH's then hangs"
        } else {
            "mpirun starts before its workers' names resolve: \"Could not resolve hostname\", at the cost of a retry"
        };
        let policy = job.spec.get("launcherCreationPolicy");
        let at = if job.is_runtime { job.launcher.replica.get("dependsOn") } else { policy };
        let fix = if waits {
            "a job that is suspended or queued at first does not wait for them: let the script of the launcher wait, or take an image whose entrypoint waits, as ringpull's does"
        } else if job.is_runtime {
            "let the launcher dependsOn [{name: node, status: Ready}], with a readinessProbe on the nodes' ssh port"
        } else {
            "write launcherCreationPolicy: WaitForWorkersReady, with a readinessProbe on the workers' ssh port"
        };
        findings.add("start-race", &at, what, fix);
    }
    if waits && !probe.is_there() {
        findings.found("no-probe", &probe, "without a probe a worker counts as ready before its sshd listens");
    }
}

fn root(job: &MpiJobSpec, findings: &mut Findings) {
    let Some(words) = mpirun(&job.launcher).filter(|_| job.launcher.has_command()) else { return };
    let allowed =
        has(&words, &["--allow-run-as-root", "-allow-run-as-root"]) || job.launcher.has_env("OMPI_ALLOW_RUN_AS_ROOT");
    let is_horovod = job.launcher.words().iter().any(|word| word.ends_with("horovodrun"));
    if !is_horovod && job.implementation == "OpenMPI" && job.user(&job.launcher) == Some(0) && !allowed {
        findings.found(
            "as-root",
            &job.launcher.container.get("command"),
            "Open MPI's mpirun refuses to run as root, unless the image allows it",
        );
    }
}

fn first_container(job: &MpiJobSpec, findings: &mut Findings) {
    let others = job.launcher.pod.get("containers").items();
    for container in others.iter().filter(|it| it.path != job.launcher.container.path) {
        let words = [container.get("command").words(), container.get("args").words()].concat();
        if words.iter().any(|word| word.split_whitespace().any(is_mpirun)) {
            findings.add(
                "second-container",
                container,
                "only one container of the pod gets the hostfile, the key and the variables, but this one runs mpirun",
                if job.is_runtime { "name it node" } else { "make it the first container" },
            );
        }
    }
}
