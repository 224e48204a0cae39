//! Answers what the ranks of a job are doing: at a socket in a folder of the user's, for `ringpull top`, and
//! at a port for Prometheus and for probes, if `RINGPULL_METRICS` names one. Both speak HTTP, are read-only,
//! and belong to rank 0.

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

use ringpull_allreduce::progress::Engine;
use ringpull_base::{Result, config, forked, notice, status};

/// How long a client may take for its request, and for each piece of the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// At most this many requests are answered at once; others are turned away.
const MOST: usize = 8;
/// A longer request is refused.
const LONGEST: usize = 8192;

/// Serves the status of this job as soon as this is rank 0, which may come with the loss of another. If a
/// socket or a port cannot be had, the job goes on without: that is no reason to end it. An error if
/// `RINGPULL_METRICS` is no address.
pub(crate) fn serve(engine: &Arc<Engine>) -> Result<()> {
    static ONCE: Once = Once::new();
    let address = config::metrics()?;
    ONCE.call_once(|| {
        let weak = Arc::downgrade(engine);
        engine.when_first(Box::new(move || weak.upgrade().iter().for_each(|engine| listen(engine, address))));
    });
    Ok(())
}

fn listen(engine: &Arc<Engine>, address: Option<SocketAddr>) {
    let found = listen_in(&status::folder()).and_then(|(listener, path)| {
        engine.remove_at_end(path);
        forked::close_in_child(listener.as_raw_fd());
        answer(engine, move || listener.accept().map(|(stream, _)| stream))
    });
    if let Err(cause) = found {
        tracing::debug!(%cause, "`ringpull top` will not find this job");
    }
    let Some(address) = address else { return };
    let listening = TcpListener::bind(address).and_then(|listener| {
        forked::close_in_child(listener.as_raw_fd());
        answer(engine, move || listener.accept().map(|(stream, _)| stream))
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

/// A socket for this process in `folder`, which must be the user's own. Sockets of processes that have ended
/// are removed.
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

/// Answers those who ask on a thread of its own, each on another, so that none keeps a probe waiting.
fn answer<C: Connection + Send + 'static>(
    engine: &Arc<Engine>,
    mut accept: impl FnMut() -> io::Result<C> + Send + 'static,
) -> io::Result<()> {
    let engine = Arc::downgrade(engine);
    let converse = |connection, engine: Weak<Engine>, _place| {
        if let Err(cause) = converse(connection, &engine) {
            tracing::debug!(%cause, "a request for the status");
        }
    };
    let serve = move || {
        let places = Arc::new(());
        loop {
            match accept() {
                Ok(_) if engine.strong_count() > 0 && Arc::strong_count(&places) > MOST => {}
                Ok(connection) if engine.strong_count() > 0 => {
                    let (engine, place) = (Weak::clone(&engine), Arc::clone(&places));
                    let name = "ringpull-answer".to_owned();
                    let answering = thread::Builder::new().name(name);
                    drop(answering.spawn(move || converse(connection, engine, place)));
                }
                Ok(_) => return,
                // Descriptors may be short for a while.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    thread::Builder::new().name("ringpull-status".to_owned()).spawn(serve).map(drop)
}

/// A stream whose pieces have a time limit.
trait Connection: Read + Write {
    fn limit(&self, each: Duration) -> io::Result<()>;
}

impl Connection for UnixStream {
    fn limit(&self, each: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(each)).and_then(|()| self.set_write_timeout(Some(each)))
    }
}

impl Connection for TcpStream {
    fn limit(&self, each: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(each)).and_then(|()| self.set_write_timeout(Some(each)))
    }
}

/// Reads a request and answers it, which ends the connection.
fn converse(mut connection: impl Connection, engine: &Weak<Engine>) -> io::Result<()> {
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
    let Some(engine) = engine.upgrade() else { return Ok(()) };
    let Reply { status, kind, text } = reply(method, path, &engine);
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

fn reply(method: &str, path: &str, engine: &Engine) -> Reply {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let plain = |status, text| Reply { status, kind: PLAIN, text };
    if !["GET", "HEAD"].contains(&method) {
        return plain("405 Method Not Allowed", "only GET and HEAD\n".to_owned());
    }
    match path {
        "/metrics" => Reply {
            status: "200 OK",
            kind: "text/plain; version=0.0.4; charset=utf-8",
            text: engine.status().metrics(),
        },
        "/status" => Reply { status: "200 OK", kind: "application/json", text: engine.status().json() },
        // A late rank is healthy: only a fault is not.
        "/health" | "/ready" => match engine.first_fault() {
            None if engine.is_leaving() && path == "/ready" => {
                plain("503 Service Unavailable", "the job is ending\n".to_owned())
            }
            None => plain("200 OK", "ok\n".to_owned()),
            Some(fault) => plain("503 Service Unavailable", format!("{fault}\n")),
        },
        _ => plain("404 Not Found", "there are /metrics, /status, /health and /ready\n".to_owned()),
    }
}
