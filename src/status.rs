//! Serves the status of a job's processes. It listens at a socket in a folder of the user, for `ringpull
//! top`. If `RINGPULL_METRICS` names a port, it also listens at this port, for Prometheus and for probes.
//! Both use HTTP, are read-only, and belong to rank 0.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, Weak};
use std::thread;
use std::time::{Duration, Instant};

use ringpull_base::status::JobStatus;
use ringpull_base::{Error, Result, config, forked, notice, status};

/// The time limit for a client's request, and for each piece of the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most requests that are answered at once. Others are refused.
const MOST: usize = 8;
/// The greatest length of a request. A longer request is refused.
const LONGEST: usize = 8192;

/// A job, as its rank 0 knows it.
pub(crate) trait WatchedJob: Send + Sync {
    /// Returns the status of the job's processes. Blocks for a moment.
    fn status(&self) -> JobStatus;
    /// Returns the fault by which the job has failed, if it has.
    fn fault(&self) -> Option<Error>;
    /// Returns true if this process leaves the job.
    fn is_leaving(&self) -> bool;
    /// Removes the file when this process leaves the job.
    fn remove_at_end(&self, file: PathBuf);
    /// Does `work` when this process is rank 0. The loss of another process may make it rank 0.
    fn when_first(&self, work: Box<dyn FnOnce() + Send>);
}

impl WatchedJob for ringpull_allreduce::progress::Engine {
    fn status(&self) -> JobStatus {
        self.status()
    }
    fn fault(&self) -> Option<Error> {
        self.first_fault()
    }
    fn is_leaving(&self) -> bool {
        self.is_leaving()
    }
    fn remove_at_end(&self, file: PathBuf) {
        self.remove_at_end(file);
    }
    fn when_first(&self, work: Box<dyn FnOnce() + Send>) {
        self.when_first(work);
    }
}

#[cfg(feature = "ps")]
impl WatchedJob for ringpull_ps::worker::Worker {
    fn status(&self) -> JobStatus {
        self.status()
    }
    fn fault(&self) -> Option<Error> {
        self.fault()
    }
    fn is_leaving(&self) -> bool {
        self.is_leaving()
    }
    fn remove_at_end(&self, file: PathBuf) {
        self.remove_at_end(file);
    }
    fn when_first(&self, work: Box<dyn FnOnce() + Send>) {
        if self.job().rank == 0 {
            work();
        }
    }
}

/// Serves the status of this job when this process is rank 0, which the loss of another may make it. If a
/// socket or a port is not available, the job goes on without it. Returns an error if `RINGPULL_METRICS` is
/// no address.
pub(crate) fn serve(job: &Arc<impl WatchedJob + 'static>) -> Result<()> {
    static ONCE: Once = Once::new();
    let address = config::metrics()?;
    let weak: Weak<dyn WatchedJob> = Arc::downgrade(job) as Weak<dyn WatchedJob>;
    ONCE.call_once(|| {
        let watched = Weak::clone(&weak);
        job.when_first(Box::new(move || watched.upgrade().iter().for_each(|job| listen(job, address))));
    });
    Ok(())
}

fn listen(job: &Arc<dyn WatchedJob>, address: Option<SocketAddr>) {
    let weak = Arc::downgrade(job);
    let found = listen_in(&status::folder()).and_then(|(listener, path)| {
        job.remove_at_end(path);
        forked::close_in_child(listener.as_raw_fd());
        answer(&weak, move || listener.accept().map(|(stream, _)| stream))
    });
    if let Err(cause) = found {
        tracing::debug!(%cause, "`ringpull top` will not find this job");
    }
    let Some(address) = address else { return };
    let listening = TcpListener::bind(address).and_then(|listener| {
        forked::close_in_child(listener.as_raw_fd());
        answer(&weak, move || listener.accept().map(|(stream, _)| stream))
    });
    if let Err(cause) = listening {
        notice(&metrics_warning(address, &cause));
    }
}

fn metrics_warning(address: SocketAddr, cause: &io::Error) -> String {
    format!(
        "warning: this job has no metrics, as {address} cannot be listened at: {cause}\n  hint: set RINGPULL_METRICS to another port, on rank 0's host"
    )
}

/// Opens a socket for this process in `folder`, which must belong to the user. Removes sockets of processes
/// that have ended.
fn listen_in(folder: &Path) -> io::Result<(UnixListener, PathBuf)> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != rustix::process::getuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!("{} is not this user's alone", folder.display())));
    }
    for entry in fs::read_dir(folder)?.flatten() {
        if UnixStream::connect(entry.path()).is_err_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused) {
            drop(fs::remove_file(entry.path()));
        }
    }
    let path = folder.join(std::process::id().to_string());
    Ok((UnixListener::bind(&path)?, path))
}

/// Accepts clients on a new thread, and answers each on another one, so that no client keeps a probe waiting.
fn answer<C: TimedStream + Send + 'static>(
    job: &Weak<dyn WatchedJob>,
    mut accept: impl FnMut() -> io::Result<C> + Send + 'static,
) -> io::Result<()> {
    let job = Weak::clone(job);
    let converse = |connection, job: Weak<dyn WatchedJob>, _place| {
        if let Err(cause) = converse(connection, &job) {
            tracing::debug!(%cause, "a request for the status");
        }
    };
    let serve = move || {
        let places = Arc::new(());
        loop {
            match accept() {
                Ok(_) if job.strong_count() > 0 && Arc::strong_count(&places) > MOST => {}
                Ok(connection) if job.strong_count() > 0 => {
                    let (job, place) = (Weak::clone(&job), Arc::clone(&places));
                    let name = "ringpull-answer".to_owned();
                    let answering = thread::Builder::new().name(name);
                    drop(answering.spawn(move || converse(connection, job, place)));
                }
                Ok(_) => return,
                // The process may be out of file descriptors for a while.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    thread::Builder::new().name("ringpull-status".to_owned()).spawn(serve).map(drop)
}

/// A stream with a time limit for each piece.
trait TimedStream: Read + Write {
    fn limit(&self, each: Duration) -> io::Result<()>;
}

impl TimedStream for UnixStream {
    fn limit(&self, each: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(each)).and_then(|()| self.set_write_timeout(Some(each)))
    }
}

impl TimedStream for TcpStream {
    fn limit(&self, each: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(each)).and_then(|()| self.set_write_timeout(Some(each)))
    }
}

/// Reads a request, answers it, and ends the connection.
fn converse(mut connection: impl TimedStream, job: &Weak<dyn WatchedJob>) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        connection.limit(left)?;
        match connection.read(&mut piece)? {
            0 => return Ok(()),
            _ if request.len() > LONGEST => return Ok(()),
            read => request.extend_from_slice(&piece[..read]),
        }
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = path.split('?').next().unwrap_or("");
    connection.limit(PATIENCE)?;
    let Some(job) = job.upgrade() else { return Ok(()) };
    let Reply { status, kind, text } = reply(method, path, &*job);
    let body = if method == "HEAD" { "" } else { &text };
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        text.len()
    )?;
    connection.flush()
}

struct Reply {
    status: &'static str,
    kind: &'static str,
    text: String,
}

fn reply(method: &str, path: &str, job: &dyn WatchedJob) -> Reply {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let plain = |status, text| Reply { status, kind: PLAIN, text };
    if !["GET", "HEAD"].contains(&method) {
        return plain("405 Method Not Allowed", "only GET and HEAD\n".to_owned());
    }
    match path {
        "/metrics" => {
            Reply { status: "200 OK", kind: "text/plain; version=0.0.4; charset=utf-8", text: job.status().metrics() }
        }
        "/status" => Reply { status: "200 OK", kind: "application/json", text: job.status().json() },
        // A job with a late rank counts as healthy. Only a fault is unhealthy.
        "/health" | "/ready" => match job.fault() {
            None if job.is_leaving() && path == "/ready" => {
                plain("503 Service Unavailable", "the job is ending\n".to_owned())
            }
            None => plain("200 OK", "ok\n".to_owned()),
            Some(fault) => plain("503 Service Unavailable", format!("{fault}\n")),
        },
        _ => plain("404 Not Found", "there are /metrics, /status, /health and /ready\n".to_owned()),
    }
}
