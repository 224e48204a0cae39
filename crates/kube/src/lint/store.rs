//! Checks the store that a command requests: that the kind exists, and that the job has the ranks or servers
//! for it.

use ringpull_base::{Kind, closest};

use super::Findings;
use super::job::{Job, MpiJobSpec, RoleView};
use crate::command::{example, is_mpirun, script_words, store_of};
use crate::suitability::{Need, PeerSetup, misfits, needs};

/// Checks the programs of jobs in which all pods run the same command.
pub(super) fn check_pods(job: &Job, findings: &mut Findings) {
    let pods = |(_, role): &(String, RoleView)| role.replica.get("replicas").number().unwrap_or(1);
    let policy = job.spec.get("mlPolicy");
    let several = policy.get("numNodes").number().unwrap_or(1) > 1;
    let (given, role) = match job.kind {
        "MXJob" => (PeerSetup::Roles, "Worker"),
        "TFJob" if job.roles.iter().map(pods).fold(0_i64, i64::saturating_add) > 1 => (PeerSetup::Apart, "Worker"),
        "TrainingRuntime" | "ClusterTrainingRuntime" if several && !policy.get("mpi").is_there() => {
            (PeerSetup::Apart, "node")
        }
        _ => return,
    };
    let Some((_, worker)) = job.roles.iter().find(|(name, _)| name == role) else { return };
    let mut needs = needs(&worker.raw_words(), &worker.variables());
    // Trainer's variables join the processes that PyTorch's launcher starts.
    needs.retain(|one| one.need != Need::Starts || role != "node");
    if let Some((one, (what, fix))) = misfits(given, &needs).into_iter().find(|(one, _)| one.is_certain) {
        let rule = match one.need {
            Need::Servers | Need::Both => "no-servers",
            Need::Itself | Need::Ranks | Need::Horovod | Need::Store | Need::Starts => "separate-models",
        };
        let at = worker.container.get(if worker.has_command() { "command" } else { "args" });
        findings.add(rule, &at, format!("a {} with {}: {what}", job.kind, one.words), fix);
    }
}

pub(crate) fn check(job: &MpiJobSpec, findings: &mut Findings) {
    let apart = |word: String| if word.contains(char::is_whitespace) { script_words(&word) } else { vec![word] };
    let words: Vec<String> = job.launcher.words().into_iter().flat_map(apart).collect();
    let starts_ranks = words.iter().any(|word| is_mpirun(word)) || launch_words(&words).is_some();
    let alone = starts_ranks && job.ranks() > 1;
    let at = job.launcher_words();
    let Some((_, given)) = store_of(&words) else {
        if let Some(example) = example(&words).filter(|_| alone) {
            let what = format!("{example} without --kv-store uses local: every rank trains a separate model");
            findings.found("default-store", &at, what);
        }
        return;
    };
    // MXNet scripts prefix the kinds of our servers. The value of a shell's variable is not known here.
    let given = given.trim_matches(['"', '\'']);
    let name = given.strip_prefix("ringpull_").unwrap_or(given);
    match name.parse::<Kind>() {
        Ok(Kind::Local | Kind::Device) if alone => findings.add(
            "separate-models",
            &at,
            format!("with --kv-store {given} every rank trains a separate model"),
            "write --kv-store dist_sync_mpi",
        ),
        Ok(kind) => has_its_servers(kind, job, &words, findings),
        Err(_) if given.starts_with('$') => {}
        Err(_) => {
            let is_ours =
                example(&words).is_some() || words.iter().any(|word| word.rsplit('/').next() == Some("ringpull"));
            let fix = match closest(name, Kind::ALL.map(Kind::name)) {
                Some(meant) => format!("did you mean {meant}?"),
                None if is_ours => format!("write one of {}", Kind::names()),
                // A kind of another library.
                None => return,
            };
            let what = format!("--kv-store {given} is not a kind of store: every rank would end with that error");
            findings.add("store-kind", &at, what, fix);
        }
    }
}

fn has_its_servers(kind: Kind, job: &MpiJobSpec, words: &[String], findings: &mut Findings) {
    let at = job.launcher_words();
    // Without -s there are as many servers as workers, so at least one, if the kind has servers.
    match launch_words(words).map(|own| servers(own).unwrap_or(u64::from(kind.has_servers()))) {
        Some(0) if kind.has_servers() => findings.add(
            "no-servers",
            &at,
            format!("{kind} needs servers, and -s 0 starts none"),
            "write -s with the number of servers, or --kv-store dist_sync_mpi",
        ),
        Some(1..) if kind == Kind::DistSyncMpi => {
            let what = "dist_sync_mpi has no servers: ringpull launch starts none, whatever -s says";
            findings.found("idle-servers", &at, what);
        }
        None if kind.has_servers() && starts_workers_alone(job, words) => findings.add(
            "no-servers",
            &at,
            format!("{kind} needs a scheduler and servers, but mpirun starts only workers"),
            "run ringpull launch --launcher mpi -H /etc/mpi/hostfile -n W -s S -- COMMAND (ringpull manifest ps writes it), or ask for dist_sync_mpi",
        ),
        _ => {}
    }
}

/// Returns the words from `ringpull launch` on, if the words run it.
pub(super) fn launch_words(words: &[String]) -> Option<&[String]> {
    let is_ours = |pair: &[String]| pair[0].rsplit('/').next() == Some("ringpull") && pair[1] == "launch";
    words.windows(2).position(is_ours).map(|at| &words[at..])
}

/// The number of servers that the arguments of `ringpull launch` request.
fn servers(words: &[String]) -> Option<u64> {
    let own = words.iter().take_while(|word| *word != "--");
    let own: Vec<&str> = own.map(String::as_str).collect();
    let told = own.iter().enumerate().find_map(|(at, word)| match *word {
        "-s" | "--num-servers" => own.get(at + 1).copied(),
        word => word.strip_prefix("--num-servers=").or_else(|| word.strip_prefix("-s")),
    });
    told?.trim_start_matches('=').parse().ok()
}

/// Returns true if `mpirun` starts a single program whose processes get no role.
fn starts_workers_alone(job: &MpiJobSpec, words: &[String]) -> bool {
    let told = |word: &String| word == ":" || word.contains("DMLC_") || word.ends_with("launch.py");
    words.iter().any(|word| is_mpirun(word)) && !words.iter().any(told) && !job.launcher.has_env("DMLC_ROLE")
}
