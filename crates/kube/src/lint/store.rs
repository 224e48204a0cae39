//! The store that the launcher's words ask for: whether there is such a kind, and whether the job has what it needs.

use ringpull_base::{Kind, closest};

use super::Findings;
use super::job::Job;
use crate::command::{example, is_mpirun, store_of};

const RULE: &str = "store-kind";

pub(crate) fn check(job: &Job, findings: &mut Findings) {
    if !job.launcher.replica.is_there() {
        return;
    }
    let split = |word: &String| word.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let words: Vec<String> = job.launcher.words().iter().flat_map(split).collect();
    let starts_ranks = words.iter().any(|word| is_mpirun(word)) || servers(&words).is_some();
    let alone = starts_ranks && job.ranks() > 1;
    let at = job.launcher.container.get(if job.launcher.has_command() { "command" } else { "args" });
    let Some(given) = store_of(&words) else {
        if let Some(example) = example(&words).filter(|_| alone) {
            let what = format!("{example} without --kv-store trains with local: every rank a model of its own");
            findings.warn("separate-models", &at, what, "add --kv-store dist_sync_mpi");
        }
        return;
    };
    // MXNet scripts ask for our servers by names of their own; what a shell puts in is not known here.
    let given = given.trim_matches(['"', '\'']);
    let name = given.strip_prefix("ringpull_").unwrap_or(given);
    match name.parse::<Kind>() {
        Ok(Kind::Local | Kind::Device) if alone => findings.error(
            "separate-models",
            &at,
            format!("with --kv-store {given} every rank trains a model of its own"),
            "write --kv-store dist_sync_mpi",
        ),
        Ok(kind) => has_its_servers(kind, job, &words, findings),
        Err(_) if given.starts_with('$') => {}
        Err(_) => {
            let is_ours =
                example(&words).is_some() || words.iter().any(|word| word.rsplit('/').next() == Some("ringpull"));
            match closest(name, Kind::ALL.map(Kind::name)) {
                Some(meant) => {
                    let what = format!("--kv-store {given} is no kind of store: every rank would end with that error");
                    findings.error(RULE, &at, what, format!("write {meant}, if that is what is meant"));
                }
                None if is_ours => {
                    let what = format!("--kv-store {given} is no kind of store: every rank would end with that error");
                    findings.error(RULE, &at, what, format!("write one of {}", Kind::names()));
                }
                // Another library's.
                None => {}
            }
        }
    }
}

fn has_its_servers(kind: Kind, job: &Job, words: &[String], findings: &mut Findings) {
    let at = job.launcher.container.get(if job.launcher.has_command() { "command" } else { "args" });
    match servers(words) {
        Some(0) if kind.has_servers() => findings.error(
            "no-servers",
            &at,
            format!("{kind} needs servers, and -s 0 starts none"),
            "write -s with the number of servers, or --kv-store dist_sync_mpi",
        ),
        Some(1..) if kind == Kind::DistSyncMpi => findings.error(
            "idle-servers",
            &at,
            "dist_sync_mpi has no servers, and is refused in a job that has some",
            "write -s 0 behind launch, or --kv-store dist_sync",
        ),
        None if kind.has_servers() && starts_workers_alone(job, words) => findings.error(
            "no-servers",
            &at,
            format!("{kind} needs a scheduler and servers, and mpirun starts workers alone"),
            "run ringpull launch --launcher mpi -H /etc/mpi/hostfile -n W -s S -- COMMAND (ringpull manifest ps writes it), or ask for dist_sync_mpi",
        ),
        _ => {}
    }
}

/// How many servers `ringpull launch` starts, if the words run it: as many as workers where it is not said, so not none.
fn servers(words: &[String]) -> Option<u64> {
    let is_ours = |pair: &[String]| pair[0].rsplit('/').next() == Some("ringpull") && pair[1] == "launch";
    let at = words.windows(2).position(is_ours)?;
    let own = words[at..].iter().take_while(|word| *word != "--");
    let own: Vec<&str> = own.map(String::as_str).collect();
    let told = own.iter().enumerate().find_map(|(at, word)| match *word {
        "-s" | "--num-servers" => own.get(at + 1).copied(),
        word => word.strip_prefix("--num-servers=").or_else(|| word.strip_prefix("-s")),
    });
    Some(told.and_then(|count| count.trim_start_matches('=').parse().ok()).unwrap_or(1))
}

/// Whether `mpirun` starts one program, which nobody tells a role.
fn starts_workers_alone(job: &Job, words: &[String]) -> bool {
    let told = |word: &String| word == ":" || word.contains("DMLC_") || word.ends_with("launch.py");
    words.iter().any(|word| is_mpirun(word)) && !words.iter().any(told) && !job.launcher.has_env("DMLC_ROLE")
}
