//! The hosts on which an elastic job may run now: those of a script's output, those in the present content of
//! a hostfile, the emulated hosts, or this host.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ringpull_base::{Error, Result};

use super::decide::Offer;
use crate::lab;
use crate::launch::host::placed;
use crate::launch::hostfile::HostList;
use crate::launch::remote::{answering, ask_all};
use crate::launch::{Host, hostfile};

/// The time that a script may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The source of the hosts.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// This host, with this number of slots.
    Here(usize),
    /// The lines `host[:slots]` of a program's output, and the number of slots for a line without a number.
    Script(PathBuf, usize),
    /// A hostfile, which may change, or a list of hosts.
    Hosts(HostList),
    /// All emulated hosts, with one slot each.
    Lab,
}

/// The way in which hosts are found.
#[derive(Debug, Clone)]
pub(crate) struct Discovery {
    pub(crate) source: Source,
    /// True if the script's names are those of emulated hosts.
    pub(crate) in_lab: bool,
    /// The port of the hosts' ssh servers, if the source has none.
    pub(crate) port: Option<u16>,
}

/// A present host: its offer for the decisions, and its place for starting processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PresentHost {
    pub(crate) offer: Offer,
    pub(crate) host: Host,
}

impl Discovery {
    /// The listed hosts for which `is_wanted` is true.
    pub(super) fn listed(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<PresentHost>> {
        let hosts = match &self.source {
            Source::Here(slots) => return Ok(vec![found(Host::Local, *slots)]),
            Source::Lab => return Ok((1..=lab::hosts_up()).map(|host| found(Host::Lab(host), 1)).collect()),
            Source::Script(script, slots) => hostfile::parse_output(&output_of(script)?, script, *slots)?,
            Source::Hosts(hosts) => hosts.listed()?,
        };
        if self.in_lab {
            let emulated = |host: hostfile::SshHost| Ok(found(Host::Lab(lab::find_host(&host.name)?), host.slots));
            return hosts.into_iter().filter(|host| is_wanted(&host.name)).map(emulated).collect();
        }
        let found = placed(hosts, self.port).into_iter().map(|(host, slots)| found(host, slots)).collect::<Vec<_>>();
        let are_others = found.iter().any(|found| found.host != Host::Local);
        Ok(found.into_iter().filter(|found| !are_others || is_wanted(&found.offer.name)).collect())
    }

    /// The listed and wanted hosts that answer. This host always does.
    pub(super) fn present(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<PresentHost>> {
        let listed = self.listed(is_wanted)?;
        let by_ssh: Vec<hostfile::SshHost> = listed
            .iter()
            .filter_map(|found| match &found.host {
                Host::Ssh(host) => Some(host.clone()),
                _ => None,
            })
            .collect();
        let answers = answering(&by_ssh)?;
        let silent: Vec<&hostfile::SshHost> =
            by_ssh.iter().zip(answers).filter(|(_, answers)| !answers).map(|(host, _)| host).collect();
        for host in &silent {
            tracing::info!("{} does not answer", host.login);
        }
        Ok(listed
            .iter()
            .filter(|found| !silent.iter().any(|silent| found.host == Host::Ssh((*silent).clone())))
            .cloned()
            .collect())
    }
}

fn found(host: Host, slots: usize) -> PresentHost {
    PresentHost { offer: Offer { name: host.to_string(), slots }, host }
}

/// The output of the script.
fn output_of(script: &std::path::Path) -> Result<String> {
    let program = script.display();
    let wrong = |what: String| {
        Error::argument(
            format!("the script {program}, which lists the hosts, {what}"),
            "it must print a line host[:slots] for each host that is present, and end with 0",
        )
    };
    let program = if script.components().count() == 1 && script.exists() {
        // A name without a path would be searched in PATH.
        std::path::Path::new(".").join(script)
    } else {
        script.to_path_buf()
    };
    let answers = ask_all(vec![(Command::new(program), Vec::new())], LIMIT)
        .map_err(|cause| wrong(format!("cannot be run: {cause}")))?;
    match answers.into_iter().next() {
        Some(Ok(answer)) if answer.output.status.success() => {
            Ok(String::from_utf8_lossy(&answer.output.stdout).into_owned())
        }
        Some(Ok(answer)) => {
            let said = String::from_utf8_lossy(&answer.output.stderr).trim().to_owned();
            Err(wrong(format!("failed ({}) {said}", answer.output.status)))
        }
        Some(Err(cause)) => Err(wrong(cause)),
        None => Err(wrong("was not run".to_owned())),
    }
}
