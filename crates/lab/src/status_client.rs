//! Asks running jobs for their status at rank 0: by a socket on this host, or at the address where they serve
//! metrics.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use ringpull_base::status::{self, JobStatus};
use ringpull_base::{Error, Result};

/// The place where a job's rank 0 listens.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    Socket(PathBuf),
    Port(String),
}

/// Rank 0 takes up to a second for an answer, and a second more if somebody else asks it at the same time.
const PATIENCE: Duration = Duration::from_secs(4);

/// A job and its answer.
pub type SeenJob = (Place, JobStatus);

/// Finds the jobs that `job` means, and asks each of them. It is an error if there is none.
pub fn find(job: Option<&str>) -> Result<Vec<SeenJob>> {
    if let Some(address) = job.filter(|job| job.contains(':')) {
        let place = Place::Port(address.to_owned());
        let status = ask(&place)?;
        return Ok(vec![(place, status)]);
    }
    let pid = match job {
        None => None,
        Some(job) => Some(job.parse::<u32>().map_err(|_| {
            Error::argument(
                format!("{job:?} is neither the number of a process nor HOST:PORT"),
                "run `ringpull top` alone to see all jobs of this host",
            )
        })?),
    };
    let folder = status::folder();
    let sockets = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| Place::Socket(entry.path()));
    let answers = sockets.filter_map(|place| Some((ask(&place).ok()?, place)));
    let mut found: Vec<SeenJob> = answers.map(|(status, place)| (place, status)).collect();
    let host = ringpull_base::topology::host_name();
    if let Some(pid) = pid {
        found.retain(|(place, status)| {
            let is_rank_0s = matches!(place, Place::Socket(path) if path.ends_with(pid.to_string()));
            is_rank_0s
                || status
                    .processes()
                    .filter_map(|(_, _, process)| process)
                    .any(|process| process.peer.pid == pid && process.peer.host == host)
        });
    }
    found.sort_by_key(|(place, _)| if let Place::Socket(path) = place { path.clone() } else { PathBuf::new() });
    if found.is_empty() {
        let what = pid.map_or_else(
            || "no job has its rank 0 on this host under this user".to_owned(),
            |pid| format!("process {pid} belongs to no job with rank 0 on this host"),
        );
        return Err(Error::argument(
            what,
            "look on the host of rank 0, or start the job with RINGPULL_METRICS=0.0.0.0:9400 and give HOST:9400",
        ));
    }
    Ok(found)
}

fn ask(place: &Place) -> Result<JobStatus> {
    let name = match place {
        Place::Socket(path) => path.display().to_string(),
        Place::Port(address) => address.clone(),
    };
    let failed = |cause: std::io::Error| Error::io("ask", &name, &cause);
    let answer = match place {
        Place::Socket(path) => {
            let stream = UnixStream::connect(path).map_err(failed)?;
            stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
            converse(stream)
        }
        Place::Port(address) => {
            let mut addresses = address.to_socket_addrs().map_err(failed)?;
            let address = addresses.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
            let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
            stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
            converse(stream)
        }
    };
    let answer = answer.map_err(failed)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body)
        .map_err(|cause| failed(std::io::Error::other(format!("no ringpull job answered: {cause}"))))
}

fn converse(mut stream: impl Read + Write) -> std::io::Result<String> {
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: ringpull\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The step of the process, if it is rank 0 of a job on this machine that has `temporary` as its `TMPDIR`.
pub fn step_of(pid: Pid, temporary: &Path) -> Option<u64> {
    let socket = status::folder_in(temporary).join(pid.as_raw_nonzero().to_string());
    let status = ask(&Place::Socket(socket)).ok()?;
    Some(status.ranks.first()?.as_ref()?.steps)
}
