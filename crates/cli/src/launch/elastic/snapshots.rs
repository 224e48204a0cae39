//! The memory of an elastic job: a folder on every host for snapshots, which outlives the ranks. The launcher
//! names it, looks which snapshot is the newest, writes a file there for rank 0, and removes it.
//!
//! Ranks write `FOLDER/HOST/snapshot-GENERATION-NUMBER`. `FOLDER/changed-GENERATION` says to rank 0 that
//! hosts have changed; `FOLDER/again-GENERATION` says to the launcher that the ranks have ended for that. Ranks
//! that may be lost in place write `FOLDER/done-GENERATION` when they have come to their end.
//! `FOLDER/generation-GENERATION` is a link to the name of the launcher that has begun it: of two launchers
//! of one job only one can.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringpull_base::{Error, Result, config};

use crate::launch::Host;
use crate::launch::host::{quote, ssh};
use crate::launch::remote::{Answer, ask_all};

/// How long hosts may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long they may take to end what is left of an earlier generation.
const END: Duration = Duration::from_secs(10);
/// How often a host is asked whether the job is to be started again.
const TRIES: u32 = 3;

/// Takes generation `$number` for launcher `$own` in `$folder`, unless another has taken it or a later one.
/// Then it ends the processes of earlier generations: those with the folder in their environment, and the
/// daemon of MPI that has started them, which notices late or never that its launcher is gone. The last word
/// is `begun`; one that fails does not end with that.
const BEGIN: &str = r#"mkdir -p -m 700 "$folder" && cd "$folder" || exit 0
ls . */
for made in generation-*; do
  of=${made#generation-}
  [ "$of" = '*' ] || [ "$of" -le "$number" ] || { echo "taken $of"; exit; }
done
ln -sn "$own" "generation-$number" 2>/dev/null
[ "$(readlink "generation-$number")" = "$own" ] || { echo "taken $number"; exit; }
for made in generation-*; do [ "$made" = "generation-$number" ] || rm -f "$made"; done
tries=0
while left=$(grep -lsxzF "$variable=$folder" /proc/[0-9]*/environ); [ -n "$left" ]; do
  for file in $left; do
    pid=${file#/proc/}
    pid=${pid%/environ}
    above=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
    case $(cat "/proc/${above:-0}/comm" 2>/dev/null) in
      orted | prted | hydra_pmi_proxy | hydra_bstrap_proxy) kill -9 "$above" 2>/dev/null ;;
    esac
    kill -9 "$pid" 2>/dev/null
  done
  tries=$((tries + 1))
  [ $tries -lt 20 ] || exit 0
  sleep 0.2
done
echo begun"#;

#[derive(Debug, Clone)]
pub(super) struct Snapshots {
    folder: PathBuf,
    /// The name of this launcher, which no other has.
    own: String,
}

/// What the folders of some hosts have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Newest {
    /// The newest snapshot: its generation and its number there.
    pub(super) snapshot: Option<(u32, u64)>,
    /// The latest generation that has ended because hosts had changed.
    pub(super) again: Option<u32>,
    /// The latest generation that a launcher has begun.
    pub(super) begun: Option<u32>,
    /// The latest generation of which a rank has come to its end.
    done: Option<u32>,
}

impl Newest {
    /// Whether a rank of this generation, which is the latest, has come to its end.
    pub(super) fn has_ended(&self, generation: u32) -> bool {
        self.done == Some(generation)
    }
}

/// Whether a generation may begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// It may; what the hosts have.
    Ready(Newest),
    /// Another launcher has begun this generation or a later one on this host.
    Taken(String, u32),
    /// These hosts do not answer, cannot have the folder, or cannot end what is left there of an earlier
    /// generation; each with its words.
    Without(Vec<String>),
    /// This host cannot have the folder, for this reason.
    NoFolder(String),
}

impl Snapshots {
    /// The folder of the job of this name below this one of every host. Without a name, one that no other job
    /// has.
    pub(super) fn new(base: &Path, job: Option<&str>) -> Result<Self> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|cause| Error::io("read", "random bytes", &cause.into()))?;
        let own = format!("{:016x}", u64::from_ne_bytes(bytes));
        let folder = base.join(format!("ringpull-elastic-{}", job.unwrap_or(&own)));
        Ok(Snapshots { folder, own })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What these hosts have. One that does not answer has nothing.
    pub(super) fn newest(&self, hosts: &[Host]) -> Newest {
        let listed = on_all(hosts, &self.list(), ANSWER);
        read(listed.iter().flat_map(|(_, said)| said.iter().flat_map(|said| said.out.lines())))
    }

    /// Whether rank 0, which was on this host, has ended to be started again; `None` if the host does not
    /// answer.
    pub(super) fn is_to_go_on(&self, host: &Host, generation: u32) -> Option<bool> {
        let ask = || on_all(std::slice::from_ref(host), &self.list(), ANSWER).pop()?.1.ok();
        let listed = (0..TRIES).find_map(|_| ask())?;
        Some(read(listed.out.lines()).again == Some(generation))
    }

    fn list(&self) -> String {
        format!("cd {} 2>/dev/null && ls . */", self.quoted())
    }

    /// Begins a generation on these hosts, where no process of an earlier one is left then.
    pub(super) fn begin(&self, hosts: &[Host], generation: u32) -> Begin {
        let (folder, own, variable) = (self.quoted(), &self.own, config::SNAPSHOTS);
        let script = format!("folder={folder} number={generation} own={own} variable={variable}\n{BEGIN}");
        let answers = on_all(hosts, &script, END);
        let mut names = Vec::new();
        for (host, answer) in &answers {
            let listed = answer.as_ref().map_or("", |said| &said.out[..]);
            names.extend(listed.lines());
            if let Some(taken) = listed.lines().last().and_then(|last| last.strip_prefix("taken ")?.parse().ok()) {
                return Begin::Taken(host.to_string(), taken);
            }
        }
        let mut without = Vec::new();
        for (host, answer) in &answers {
            match answer {
                Ok(said) if said.out.ends_with("begun\n") => (),
                // It fails before it lists anything.
                Ok(said) if said.out.is_empty() && *host == Host::Local => return Begin::NoFolder(said.err.clone()),
                Ok(said) if said.out.is_empty() => without.push(format!("{host} ({})", said.err)),
                Ok(_) => without.push(format!("{host} (processes of an earlier generation do not end there)")),
                Err(why) => without.push(format!("{host} ({why})")),
            }
        }
        if without.is_empty() { Begin::Ready(read(names.into_iter())) } else { Begin::Without(without) }
    }

    /// Lets rank 0 know that hosts have changed; whether that is done. It is on the first of these hosts, and
    /// may come to be on another when ranks are lost in place.
    pub(super) fn announce(&self, hosts: &[Host], generation: u32) -> bool {
        let folder = self.quoted();
        let script = format!("mkdir -p -m 700 {folder} && : >{folder}/changed-{generation} && echo done");
        let is_first =
            |host: &Host| hosts.first().is_some_and(|first| with_files(std::slice::from_ref(first)).contains(host));
        on_all(hosts, &script, ANSWER)
            .iter()
            .any(|(host, said)| is_first(host) && said.as_ref().is_ok_and(|said| said.out.trim() == "done"))
    }

    /// Removes what these hosts have.
    pub(super) fn remove(&self, hosts: &[Host]) {
        let answers = on_all(hosts, &format!("rm -rf {}", self.quoted()), ANSWER);
        if answers.iter().any(|(_, answer)| answer.is_err()) {
            let folder = self.folder.display();
            eprintln!("warning: a host could not be reached to remove its snapshots: there, rm -r {folder}");
        }
    }

    fn quoted(&self) -> String {
        quote(self.folder.as_os_str())
    }
}

/// What a script has written on a host.
struct ScriptOutput {
    out: String,
    /// On stderr, as one line.
    err: String,
}

/// What the script writes on each of the hosts that has files of its own, or why the host does not answer.
fn on_all(hosts: &[Host], script: &str, limit: Duration) -> Vec<(Host, Result<ScriptOutput, String>)> {
    let words = format!("{{ {script}\n}} || :");
    let command = |host: &Host| {
        if let Host::Ssh(host) = host {
            return ssh(host, words.as_bytes());
        }
        // Emulated hosts have this machine's files.
        let mut command = Command::new("sh");
        command.args(["-c", &words]);
        (command, Vec::new())
    };
    let own = with_files(hosts);
    let answers = match ask_all(own.iter().map(command).collect(), limit) {
        Ok(answers) => answers,
        Err(cause) => {
            return own.into_iter().map(|host| (host, Err(cause.to_string()))).collect();
        }
    };
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = |answer: Result<Answer, String>| {
        let output = answer?.output;
        let said =
            ScriptOutput { out: words(&output.stdout), err: words(&output.stderr).trim().replace(['\r', '\n'], " ") };
        // A script that fails ends with 0.
        if output.status.success() { Ok(said) } else { Err(format!("no answer {}", said.err).trim().to_owned()) }
    };
    own.into_iter().zip(answers).map(|(host, answer)| (host, said(answer))).collect()
}

/// The hosts that have files of their own.
fn with_files(hosts: &[Host]) -> Vec<Host> {
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
        let number = |prefix| name.strip_prefix(prefix).and_then(|rest| rest.parse().ok());
        newest.again = newest.again.max(number("again-"));
        newest.begun = newest.begun.max(number("generation-"));
        newest.done = newest.done.max(number("done-"));
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::host::placed;
    use crate::launch::hostfile::HostList;

    #[test]
    fn the_newest_snapshot_is_of_the_last_generation_that_made_one() {
        let names = "again-2\nchanged-3\ngeneration-3\ndone-2\n\n\
                     h1/:\nsnapshot-0-12\nsnapshot-1-3\nsnapshot-1-4.part\nh2/:\nsnapshot-1-2\n";
        let newest = Newest { snapshot: Some((1, 3)), again: Some(2), begun: Some(3), done: Some(2) };
        assert_eq!(read(names.lines()), newest);
        assert!(!newest.has_ended(3) && Newest { done: Some(3), ..newest }.has_ended(3));
        assert_eq!(read("".lines()), Newest::default());
    }

    #[test]
    fn a_folder_is_made_read_and_removed() {
        let base = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(base.path(), None).unwrap();
        assert_eq!(snapshots.newest(&[Host::Local]), Newest::default());
        assert!(snapshots.announce(&[Host::Local], 4));
        assert_eq!(snapshots.is_to_go_on(&Host::Local, 4), Some(false));
        assert!(snapshots.folder().join("changed-4").is_file());
        std::fs::create_dir(snapshots.folder().join("h1")).unwrap();
        std::fs::write(snapshots.folder().join("h1/snapshot-2-7"), "").unwrap();
        std::fs::write(snapshots.folder().join("again-4"), "").unwrap();
        let hosts = [Host::Local, Host::Lab(1)];
        let newest = Newest { snapshot: Some((2, 7)), again: Some(4), ..Newest::default() };
        assert_eq!(snapshots.newest(&hosts), newest);
        assert_eq!(snapshots.is_to_go_on(&Host::Local, 4), Some(true));
        assert_eq!(snapshots.is_to_go_on(&Host::Local, 5), Some(false));
        snapshots.remove(&hosts);
        assert!(!snapshots.folder().exists());
    }

    #[test]
    fn a_host_that_does_not_answer_has_not_said_that_the_job_is_done() {
        let base = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(base.path(), None).unwrap();
        // No server listens there.
        let listed = HostList::of("127.0.0.1 port=1".as_ref()).read().unwrap();
        let silent = placed(listed, None).remove(0).0;
        assert_eq!(snapshots.is_to_go_on(&silent, 0), None);
        assert!(!snapshots.announce(std::slice::from_ref(&silent), 0));
        // A folder that cannot be made.
        std::fs::write(snapshots.folder(), "").unwrap();
        assert!(!snapshots.announce(&[Host::Local], 0));
        let Begin::NoFolder(why) = snapshots.begin(&[Host::Local], 0) else { panic!("it begins") };
        assert!(why.contains("mkdir"), "{why}");
    }
}
