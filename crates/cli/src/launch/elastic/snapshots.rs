//! The memory of an elastic job: a folder for snapshots on every host, which outlives the ranks. The launcher
//! names the folder, finds the newest snapshot in it, writes a file there for rank 0, and removes it.
//!
//! Ranks write `FOLDER/HOST/snapshot-GENERATION-NUMBER`. `FOLDER/changed-GENERATION` informs rank 0 that
//! hosts have changed; `FOLDER/again-GENERATION` informs the launcher that the ranks have ended for this
//! reason. Ranks that may be lost in place write `FOLDER/done-GENERATION` when their program ends.
//! `FOLDER/generation-GENERATION` is a link to the name of the launcher that has begun the generation: of two
//! launchers of one job only one can make it. `FOLDER/started-GENERATION` exists if all ranks of the
//! generation have started MPI.
//!
//! On its own host the launcher does all this itself. On other hosts `ringpull snapshots` does it for the
//! launcher: [`on_host`](super::on_host).

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringpull_base::{Error, Result, config};

use super::on_host::{HostAnswer, Request, answer};
use crate::launch::Host;
use crate::launch::host::{own_program, ssh};
use crate::launch::remote::{self, ask_all};

/// The time that hosts may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// The time that hosts may take to end processes of an earlier generation.
const END: Duration = Duration::from_secs(10);
/// The number of times that a host is asked whether the job is to be started again.
const TRIES: u32 = 3;

#[derive(Debug, Clone)]
pub(super) struct Snapshots {
    folder: PathBuf,
    /// The unique name of this launcher.
    own: String,
}

/// The contents of the folders of some hosts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Newest {
    /// The newest snapshot: its generation and its number in this generation.
    pub(super) snapshot: Option<(u32, u64)>,
    /// The latest generation that has ended because hosts had changed.
    pub(super) again: Option<u32>,
    /// The latest generation that a launcher has begun.
    pub(super) begun: Option<u32>,
    /// The latest generation whose ranks have all started MPI.
    started: Option<u32>,
    /// The latest generation in which the program of a rank has ended.
    done: Option<u32>,
}

impl Newest {
    /// Returns true if the program of a rank of this generation has ended. The generation must be the latest.
    pub(super) fn has_ended(&self, generation: u32) -> bool {
        self.done == Some(generation)
    }

    /// Returns true if all ranks of this generation have started MPI. The generation must be the latest.
    pub(super) fn has_started(&self, generation: u32) -> bool {
        self.started == Some(generation)
    }
}

/// The answer of the hosts to the begin of a generation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// The generation may begin. This is the content of the hosts' folders.
    Ready(Newest),
    /// Another launcher has begun this generation or a later one on this host.
    Taken(Host, u32),
    /// This host cannot have the folder, for this reason.
    NoFolder(Host, String),
    /// These hosts do not answer, or cannot end processes of an earlier generation. Each has its message.
    Without(Vec<(Host, String)>),
}

impl Snapshots {
    /// Makes the folder of the job `job`, below the folder `base` of every host. Without a name the folder
    /// has a unique name.
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

    /// The contents of these hosts' folders. A host that does not answer counts as empty.
    pub(super) fn newest(&self, hosts: &[Host]) -> Newest {
        let listed = self.ask(hosts, &Request::List, ANSWER);
        read(listed.iter().flat_map(|(_, said)| names(said)))
    }

    /// Returns true if rank 0, which was on this host, has ended to be started again; `None` if the host does
    /// not answer.
    pub(super) fn is_to_go_on(&self, host: &Host, generation: u32) -> Option<bool> {
        let ask =
            || self.ask(std::slice::from_ref(host), &Request::List, ANSWER).pop().filter(|(_, said)| said.is_ok());
        let (_, listed) = (0..TRIES).find_map(|_| ask())?;
        Some(read(names(&listed)).again == Some(generation))
    }

    /// Begins a generation on these hosts. Then no process of an earlier generation is left there.
    pub(super) fn begin(&self, hosts: &[Host], generation: u32) -> Begin {
        let answers = self.ask(hosts, &Request::Begin { generation, launcher: self.own.clone() }, END);
        let mut without = Vec::new();
        for (host, said) in &answers {
            match said {
                Ok(HostAnswer::Taken(by)) => return Begin::Taken(host.clone(), *by),
                Ok(HostAnswer::NoFolder(why)) => return Begin::NoFolder(host.clone(), why.clone()),
                Ok(HostAnswer::Left) => {
                    without.push((host.clone(), "processes of an earlier generation do not end there".to_owned()));
                }
                Ok(HostAnswer::Names(_)) => (),
                Err(why) => without.push((host.clone(), why.clone())),
            }
        }
        if without.is_empty() {
            Begin::Ready(read(answers.iter().flat_map(|(_, said)| names(said))))
        } else {
            Begin::Without(without)
        }
    }

    /// Informs rank 0 that hosts have changed, and returns true if that succeeded. Rank 0 is on the first of
    /// these hosts, and may move to another one when ranks are lost in place.
    pub(super) fn announce(&self, hosts: &[Host], generation: u32) -> bool {
        let is_first =
            |host: &Host| hosts.first().is_some_and(|first| with_files(std::slice::from_ref(first)).contains(host));
        self.ask(hosts, &Request::Announce { generation }, ANSWER)
            .iter()
            .any(|(host, said)| is_first(host) && matches!(said, Ok(HostAnswer::Names(_))))
    }

    /// Removes the folder on these hosts.
    pub(super) fn remove(&self, hosts: &[Host]) {
        let answers = self.ask(hosts, &Request::Remove, ANSWER);
        if answers.iter().any(|(_, said)| !matches!(said, Ok(HostAnswer::Names(_)))) {
            let folder = self.folder.display();
            eprintln!("warning: a host could not be reached to remove its snapshots: there, rm -r {folder}");
        }
    }

    /// Asks each host that has files of its own. Returns each answer, or the reason why there is none.
    fn ask(&self, hosts: &[Host], request: &Request, limit: Duration) -> Vec<(Host, Result<HostAnswer, String>)> {
        let own = with_files(hosts);
        let far = own.iter().filter_map(|host| if let Host::Ssh(host) = host { Some(host) } else { None });
        let asked = request.words(&self.folder);
        let commands = own_program(&[], None, &asked).map(|script| far.map(|host| ssh(host, &script)).collect());
        let mut said = std::thread::scope(|scope| {
            let far = scope.spawn(|| commands.and_then(|commands| ask_all(commands, limit)));
            // Emulated hosts have this machine's files.
            let here = own.contains(&Host::Local).then(|| answer(&self.folder, request));
            let far = far.join().unwrap_or_else(|_| Err(Error::bug("a thread that asks hosts has panicked")));
            (here, far.map(Vec::into_iter).map_err(|cause| cause.to_string()))
        });
        let mut of = |host: &Host| match (host, &mut said) {
            (Host::Ssh(_), (_, Ok(far))) => {
                far.next().unwrap_or_else(|| Err("no answer".to_owned())).and_then(|said| read_answer(&said))
            }
            (Host::Ssh(_), (_, Err(cause))) => Err(cause.clone()),
            (_, (here, _)) => here.take().ok_or_else(|| "no answer".to_owned()),
        };
        own.iter().map(|host| (host.clone(), of(host))).collect()
    }
}

/// The answer of another host, whose shell may print something first.
fn read_answer(said: &remote::TimedAnswer) -> Result<HostAnswer, String> {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().replace(['\r', '\n'], " ");
    last_line(&said.output.stdout).ok_or_else(|| format!("no answer {}", words(&said.output.stderr)).trim().to_owned())
}

fn last_line(printed: &[u8]) -> Option<HostAnswer> {
    let last = printed.trim_ascii().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice(last).ok()
}

fn names(said: &Result<HostAnswer, String>) -> impl Iterator<Item = &str> {
    let names = if let Ok(HostAnswer::Names(names)) = said { &names[..] } else { &[] };
    names.iter().map(String::as_str)
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
        newest.started = newest.started.max(number(config::STARTED));
        newest.done = newest.done.max(number("done-"));
    }
    newest
}

/// Reads an answer of a host, for a fuzz target.
#[cfg(fuzzing)]
pub(crate) fn fuzz(printed: &[u8]) {
    let Some(answer) = last_line(printed) else { return };
    let newest = read(names(&Ok(answer)));
    // Either the number of the next generation is allowed, or there is an error.
    let next = super::take_over("job", &newest);
    assert!(newest.begun.is_none_or(|begun| next.is_ok_and(|(next, _)| next > begun) || begun == u32::MAX));
}

#[cfg(test)]
mod tests {
    use ringpull_base::own_folder::OwnFolder;

    use super::*;
    use crate::launch::host::placed;
    use crate::launch::hostfile::HostList;

    #[test]
    fn the_newest_snapshot_is_of_the_last_generation_that_made_one() {
        let names = "again-2\nchanged-3\ngeneration-3\ngeneration-x\nstarted-3\ndone-2\nh1\n\
                     snapshot-0-12\nsnapshot-1-3\nsnapshot-1-4.part\nh2\nsnapshot-1-2\n";
        let newest = Newest { snapshot: Some((1, 3)), again: Some(2), begun: Some(3), started: Some(3), done: Some(2) };
        assert_eq!(read(names.lines()), newest);
        assert!(!newest.has_ended(3) && Newest { done: Some(3), ..newest }.has_ended(3));
        assert_eq!(read("".lines()), Newest::default());
    }

    #[test]
    fn a_folder_is_made_read_and_removed() {
        let base = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(base.path(), None).unwrap();
        assert_eq!(snapshots.newest(&[Host::Local]), Newest::default());
        assert!(!snapshots.announce(&[Host::Local], 4), "nothing has begun there");
        assert_eq!(snapshots.begin(&[Host::Local], 4), Begin::Ready(Newest::default()));
        assert!(snapshots.announce(&[Host::Local], 4));
        assert_eq!(snapshots.is_to_go_on(&Host::Local, 4), Some(false));
        assert!(snapshots.folder().join("changed-4").is_file());
        OwnFolder::make(&snapshots.folder().join("h1")).unwrap();
        std::fs::write(snapshots.folder().join("h1/snapshot-2-7"), "").unwrap();
        std::fs::write(snapshots.folder().join("again-4"), "").unwrap();
        let hosts = [Host::Local, Host::Lab(1)];
        let newest = Newest { snapshot: Some((2, 7)), again: Some(4), begun: Some(4), ..Newest::default() };
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
        let Begin::NoFolder(Host::Local, why) = snapshots.begin(&[Host::Local], 0) else { panic!("it begins") };
        assert!(why.contains("no folder"), "{why}");
    }
}
