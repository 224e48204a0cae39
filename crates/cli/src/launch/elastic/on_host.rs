//! The requests of a launcher to a host about the folder of its job's snapshots, and the host's answers.
//!
//! On another host `ringpull snapshots` answers by a line of JSON. The folder is used only if it belongs to
//! this user alone ([`OwnFolder`]): in a place like `/dev/shm` another user may have made it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringpull_base::own_folder::OwnFolder;
use ringpull_base::{Error, Result, config};
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use crate::launch::wrapper::parent_of;

/// The number of attempts to kill processes of earlier generations. The next constant is the time between two
/// attempts.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(200);
/// The programs by which MPI starts ranks on a host. They notice late or never that their launcher has ended.
const DAEMONS: [&str; 4] = ["orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_pr"];

#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotsArgs {
    folder: PathBuf,
    #[command(subcommand)]
    request: Request,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Request {
    /// Lists the names in the folder.
    List,
    /// Takes a generation for a launcher, unless another launcher has taken this generation or a later one.
    /// Ends the processes of earlier generations.
    Begin { generation: u32, launcher: String },
    /// Informs rank 0 that hosts have changed.
    Announce { generation: u32 },
    /// Removes the folder.
    Remove,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum HostAnswer {
    /// The request succeeded. These are the names that were in the folder and its subfolders before.
    Names(Vec<String>),
    /// Another launcher has begun this generation.
    Taken(u32),
    /// The folder cannot be created or used, for this reason.
    NoFolder(String),
    /// Processes of an earlier generation do not end.
    Left,
}

/// Answers a launcher on another host.
pub(crate) fn run(args: &SnapshotsArgs) -> Result<u8> {
    let answer = answer(&args.folder, &args.request);
    println!("{}", serde_json::to_string(&answer).map_err(|cause| Error::io("write", "the answer", &cause.into()))?);
    Ok(0)
}

impl Request {
    /// The words of the command that answers the request.
    pub(super) fn words(&self, folder: &Path) -> Vec<OsString> {
        let request = match self {
            Request::List => vec!["list".to_owned()],
            Request::Begin { generation, launcher } => {
                vec!["begin".to_owned(), generation.to_string(), launcher.clone()]
            }
            Request::Announce { generation } => vec!["announce".to_owned(), generation.to_string()],
            Request::Remove => vec!["remove".to_owned()],
        };
        ["snapshots".into(), folder.into()].into_iter().chain(request.into_iter().map(OsString::from)).collect()
    }
}

/// Answers the request on this host.
pub(super) fn answer(folder: &Path, request: &Request) -> HostAnswer {
    let done = match request {
        Request::List => existing(folder, |found| names(&found)),
        Request::Begin { generation, launcher } => return begin(folder, *generation, launcher),
        Request::Announce { generation } => {
            OwnFolder::open(folder).and_then(|found| found.mark(&format!("changed-{generation}"))).map(|()| Vec::new())
        }
        Request::Remove => existing(folder, |found| found.remove().map(|()| Vec::new())),
    };
    done.map_or_else(|cause| HostAnswer::NoFolder(cause.to_string()), HostAnswer::Names)
}

/// Calls `with` on the folder, if the folder exists.
fn existing(folder: &Path, with: impl FnOnce(OwnFolder) -> io::Result<Vec<String>>) -> io::Result<Vec<String>> {
    match OwnFolder::open(folder) {
        Ok(found) => with(found),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(cause) => Err(cause),
    }
}

/// The names in the folder and in its subfolders of hosts.
fn names(folder: &OwnFolder) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for (name, is_folder) in folder.names()? {
        if is_folder {
            names.extend(folder.below(&name)?.names()?.into_iter().map(|(name, _)| name));
        }
        names.push(name);
    }
    Ok(names)
}

/// The generation that an entry of the folder marks as begun.
fn begun(name: &str) -> Option<u32> {
    name.strip_prefix("generation-").and_then(|number| number.parse().ok())
}

/// Returns an error if a launcher has begun a later generation on this host than that of this process. That
/// launcher has ended all processes of earlier generations that it saw. A process calls this after it has its
/// environment: so either it was seen, or it gets this error.
pub(crate) fn check_generation() -> Result<()> {
    let own: Option<u32> = config::text(config::GENERATION).and_then(|number| number.parse().ok());
    let (Some(own), Some(folder)) = (own, config::text(config::SNAPSHOTS)) else { return Ok(()) };
    let names = OwnFolder::open(Path::new(&folder)).and_then(|folder| folder.names()).unwrap_or_default();
    match names.iter().filter_map(|(name, _)| begun(name)).max() {
        Some(later) if later > own => Err(Error::argument(
            format!("this process of generation {own} does not begin: its job has begun generation {later} here"),
            "let one launcher run the job, or give each job a name of its own with --job",
        )),
        _ => Ok(()),
    }
}

fn begin(folder: &Path, generation: u32, launcher: &str) -> HostAnswer {
    let taken = OwnFolder::make(folder).and_then(|found| {
        let names = names(&found)?;
        let later = names.iter().filter_map(|name| begun(name)).filter(|later| *later > generation).max();
        if let Some(later) = later {
            return Ok(Err(later));
        }
        if !found.claim(&format!("generation-{generation}"), launcher)? {
            return Ok(Err(generation));
        }
        let earlier = names.iter().filter(|name| begun(name).is_some_and(|number| number < generation));
        earlier.into_iter().try_for_each(|name| found.forget(name))?;
        Ok(Ok(names))
    });
    match taken {
        Ok(Ok(names)) if end_processes(folder) => HostAnswer::Names(names),
        Ok(Ok(_)) => HostAnswer::Left,
        Ok(Err(by)) => HostAnswer::Taken(by),
        Err(cause) => HostAnswer::NoFolder(cause.to_string()),
    }
}

/// Kills the processes that have the folder in their environment, and the daemon of MPI that has started
/// them. Returns true if none is left.
fn end_processes(folder: &Path) -> bool {
    let entry = [config::SNAPSHOTS.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    for _ in 0..TRIES {
        let left = processes_with(&entry);
        if left.is_empty() {
            return true;
        }
        for pid in left {
            let above = parent_of(pid).filter(|above| DAEMONS.contains(&name_of(*above).as_str()));
            for pid in above.into_iter().chain([pid]) {
                if let Err(cause) = kill_process(pid, Signal::KILL) {
                    tracing::debug!(%cause, "process {} had ended", pid.as_raw_pid());
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
    false
}

/// The other processes with this entry in their environment.
fn processes_with(entry: &[u8]) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    let has_it = |pid: &Pid| {
        let environment = std::fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == entry)
    };
    pids.filter(|pid| *pid != getpid() && has_it(pid)).collect()
}

/// The first 15 bytes of the name of the process's program.
fn name_of(pid: Pid) -> String {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid())).unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: SnapshotsArgs,
    }

    #[test]
    fn the_words_of_a_request_are_read_as_that_request() {
        let folder = Path::new("/a b");
        let begin = Request::Begin { generation: 7, launcher: "me".to_owned() };
        for request in [Request::List, begin, Request::Announce { generation: 3 }, Request::Remove] {
            let read = Words::parse_from(request.words(folder)).args;
            assert_eq!((read.folder.as_path(), format!("{:?}", read.request)), (folder, format!("{request:?}")));
        }
    }

    #[test]
    fn a_generation_is_begun_once_and_names_that_are_none_are_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("job");
        let begin =
            |generation, launcher: &str| answer(&folder, &Request::Begin { generation, launcher: launcher.to_owned() });
        assert_eq!(begin(3, "me"), HostAnswer::Names(Vec::new()));
        assert_eq!(begin(3, "me"), HostAnswer::Names(vec!["generation-3".to_owned()]));
        assert_eq!((begin(3, "you"), begin(2, "me")), (HostAnswer::Taken(3), HostAnswer::Taken(3)));
        std::fs::write(folder.join("generation-x"), "").unwrap();
        let HostAnswer::Names(before) = begin(4, "you") else { panic!("it does not begin") };
        assert!(before.contains(&"generation-3".to_owned()) && !folder.join("generation-3").exists());
        symlink("me", folder.join(format!("generation-{}", u32::MAX))).unwrap();
        assert_eq!(begin(5, "me"), HostAnswer::Taken(u32::MAX));
    }

    #[test]
    fn a_folder_that_somebody_else_has_made_is_neither_used_nor_removed() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("job");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
        let precious = base.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        symlink(&precious, folder.join("changed-1")).unwrap();
        let link = base.path().join("link");
        symlink(&folder, &link).unwrap();
        let begin = Request::Begin { generation: 0, launcher: "me".to_owned() };
        for request in [Request::List, begin, Request::Announce { generation: 1 }, Request::Remove] {
            for folder in [&folder, &link] {
                assert!(matches!(answer(folder, &request), HostAnswer::NoFolder(_)), "{request:?}");
            }
        }
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert!(folder.join("changed-1").is_symlink() && std::fs::read_dir(&folder).unwrap().count() == 1);
    }
}
