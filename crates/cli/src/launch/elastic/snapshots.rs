//! The memory of an elastic job: a folder on every host for snapshots, which outlives the ranks. The launcher
//! names it, looks which snapshot is the newest, writes a file there for rank 0, and removes it.
//!
//! Ranks write `FOLDER/HOST/snapshot-GENERATION-NUMBER`. `FOLDER/changed-GENERATION` says to rank 0 that
//! hosts have changed; `FOLDER/again-GENERATION` says to the launcher that the ranks have ended for that.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringpull_base::{Error, Result};

use crate::launch::Host;
use crate::launch::host::{quote, ssh};
use crate::launch::remote::ask_all;

/// How long hosts may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a host is asked whether the job is to be started again.
const TRIES: u32 = 3;

#[derive(Debug, Clone)]
pub(super) struct Snapshots(PathBuf);

/// What the folders of some hosts have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Newest {
    /// The newest snapshot: its generation and its number there.
    pub(super) snapshot: Option<(u32, u64)>,
    /// The latest generation that has ended because hosts had changed.
    pub(super) again: Option<u32>,
}

impl Snapshots {
    /// A folder that no other job has, below this one of every host.
    pub(super) fn new(base: &Path) -> Result<Self> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|cause| Error::io("read", "random bytes", &cause.into()))?;
        Ok(Snapshots(base.join(format!("ringpull-elastic-{:016x}", u64::from_ne_bytes(bytes)))))
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// What these hosts have. One that does not answer has nothing.
    pub(super) fn newest(&self, hosts: &[Host]) -> Newest {
        let listed = on_all(hosts, &self.list());
        read(listed.iter().flat_map(|text| text.lines()))
    }

    /// Whether rank 0, which was on this host, has ended to be started again; `None` if the host does not
    /// answer.
    pub(super) fn is_to_go_on(&self, host: &Host, generation: u32) -> Option<bool> {
        let listed = (0..TRIES).find_map(|_| on_all(std::slice::from_ref(host), &self.list()).pop())?;
        Some(read(listed.lines()).again == Some(generation))
    }

    fn list(&self) -> String {
        format!("cd {} 2>/dev/null && ls . */", self.quoted())
    }

    /// Lets rank 0, which is on this host, know that hosts have changed; whether that is done.
    pub(super) fn announce(&self, host: &Host, generation: u32) -> bool {
        let folder = self.quoted();
        let script = format!("mkdir -p -m 700 {folder} && : >{folder}/changed-{generation} && echo done");
        on_all(std::slice::from_ref(host), &script).iter().any(|said| said.trim() == "done")
    }

    /// Removes what these hosts have.
    pub(super) fn remove(&self, hosts: &[Host]) {
        let (script, hosts) = (format!("rm -rf {}", self.quoted()), commands_of(hosts));
        if on_all(&hosts, &script).len() < hosts.len() {
            let folder = self.0.display();
            eprintln!("warning: a host could not be reached to remove its snapshots: there, rm -r {folder}");
        }
    }

    fn quoted(&self) -> String {
        quote(self.0.as_os_str())
    }
}

/// What the script prints on each host that answers.
fn on_all(hosts: &[Host], script: &str) -> Vec<String> {
    let command = |host: &Host| match host {
        Host::Ssh(host) => {
            let mut command = ssh(host);
            command.arg(format!("sh -c {}", quote(OsStr::new(&format!("{{ {script}; }} || :")))));
            command
        }
        // Emulated hosts have this machine's files.
        Host::Local | Host::Lab(_) => {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{{ {script}; }} || :")]);
            command
        }
    };
    let commands: Vec<Command> = commands_of(hosts).iter().map(command).collect();
    let answers = match ask_all(commands, ANSWER) {
        Ok(answers) => answers,
        Err(cause) => {
            tracing::warn!(%cause, "hosts cannot be asked for their snapshots");
            return Vec::new();
        }
    };
    let answered = answers.into_iter().filter_map(|answer| answer.ok().filter(|one| one.output.status.success()));
    answered.map(|answer| String::from_utf8_lossy(&answer.output.stdout).into_owned()).collect()
}

/// The hosts that have files of their own.
fn commands_of(hosts: &[Host]) -> Vec<Host> {
    let mut own: Vec<Host> = hosts.iter().filter(|host| matches!(host, Host::Ssh(_))).cloned().collect();
    if own.len() < hosts.len() {
        own.push(Host::Local);
    }
    own
}

/// Reads names of files.
fn read<'a>(names: impl Iterator<Item = &'a str>) -> Newest {
    let mut newest = Newest::default();
    for name in names {
        if let Some(of) = name.strip_prefix("snapshot-").and_then(|rest| rest.split_once('-')) {
            let snapshot = of.0.parse().ok().zip(of.1.parse().ok());
            newest.snapshot = newest.snapshot.max(snapshot);
        }
        newest.again = newest.again.max(name.strip_prefix("again-").and_then(|rest| rest.parse().ok()));
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_snapshot_is_of_the_last_generation_that_made_one() {
        let names = "again-2\nchanged-3\n\nh1/:\nsnapshot-0-12\nsnapshot-1-3\nsnapshot-1-4.part\nh2/:\nsnapshot-1-2\n";
        assert_eq!(read(names.lines()), Newest { snapshot: Some((1, 3)), again: Some(2) });
        assert_eq!(read("".lines()), Newest::default());
    }

    #[test]
    fn a_folder_is_made_read_and_removed() {
        let base = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(base.path()).unwrap();
        assert_eq!(snapshots.newest(&[Host::Local]), Newest::default());
        assert!(snapshots.announce(&Host::Local, 4));
        assert_eq!(snapshots.is_to_go_on(&Host::Local, 4), Some(false));
        assert!(snapshots.folder().join("changed-4").is_file());
        std::fs::create_dir(snapshots.folder().join("h1")).unwrap();
        std::fs::write(snapshots.folder().join("h1/snapshot-2-7"), "").unwrap();
        std::fs::write(snapshots.folder().join("again-4"), "").unwrap();
        let hosts = [Host::Local, Host::Lab(1)];
        assert_eq!(snapshots.newest(&hosts), Newest { snapshot: Some((2, 7)), again: Some(4) });
        assert_eq!(snapshots.is_to_go_on(&Host::Local, 4), Some(true));
        assert_eq!(snapshots.is_to_go_on(&Host::Local, 5), Some(false));
        snapshots.remove(&hosts);
        assert!(!snapshots.folder().exists());
    }

    #[test]
    fn a_host_that_does_not_answer_has_not_said_that_the_job_is_done() {
        let base = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(base.path()).unwrap();
        // No server listens there.
        let mut host = crate::launch::hostfile::parse_lines("127.0.0.1").unwrap().remove(0);
        host.port = Some(1);
        let silent = Host::Ssh(host);
        assert_eq!(snapshots.is_to_go_on(&silent, 0), None);
        assert!(!snapshots.announce(&silent, 0));
        // A folder that cannot be made.
        std::fs::write(snapshots.folder(), "").unwrap();
        assert!(!snapshots.announce(&Host::Local, 0));
    }
}
