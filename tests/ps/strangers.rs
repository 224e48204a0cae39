//! Who is no node of a job and talks to its ports all the same, by raw sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ringpull_ps::message::MAGIC;

use crate::job::{self, Job};

const SECRET: Option<&str> = Some("what only the nodes of this job know");

/// What a job's node may grow by while strangers talk to it.
const GROWTH: usize = 24 << 20;

/// How long a stranger goes on.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection that says who it is: the first message of a client, by hand.
struct Stranger {
    stream: TcpStream,
}

impl Stranger {
    fn connect(port: u16) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        stream
    }

    fn hello(port: u16, has_secret: bool) -> Self {
        let stream = Stranger::connect(port);
        let mut hello = b"RPULLC\x01".to_vec();
        hello.push(u8::from(has_secret));
        hello.extend([7; 32 + 16]);
        hello.push(8);
        hello.extend(b"stranger");
        hello.resize(89, 0);
        (&stream).write_all(&hello).unwrap();
        Stranger { stream }
    }

    /// Takes the challenge, and proves something. The verdict, if there is one.
    fn prove(&mut self, proof: &[u8; 32]) -> Option<u8> {
        let mut challenge = [0; 40];
        self.stream.read_exact(&mut challenge).ok()?;
        assert_eq!(&challenge[..7], b"RPULLS\x01");
        let mut said = [0; 41];
        said[9..].copy_from_slice(proof);
        self.stream.write_all(&said).ok()?;
        let mut verdict = [0; 41];
        self.stream.read_exact(&mut verdict).ok()?;
        Some(verdict[0])
    }

    /// A frame that claims to be this long.
    fn frame(&mut self, number: u64, header: &[u8], payload_len: u32) -> std::io::Result<()> {
        let mut frame = number.to_le_bytes().to_vec();
        frame.extend(0u64.to_le_bytes());
        frame.extend((header.len() as u32).to_le_bytes());
        frame.extend(payload_len.to_le_bytes());
        frame.extend(header);
        self.stream.write_all(&frame)
    }

    /// Whether the other end closes the connection and has said no more than `most` bytes.
    fn ends_cut_off(mut self, most: usize) -> bool {
        let (mut said, mut buffer) = (0, [0; 4096]);
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return said <= most,
                Ok(count) => said += count,
                Err(cause) => return cause.kind() == ErrorKind::ConnectionReset && said <= most,
            }
        }
    }
}

/// Writes `bytes` again and again, until it is cut off or has gone on for long enough.
fn endlessly(mut stream: TcpStream, first: &[u8], bytes: &[u8]) {
    let start = Instant::now();
    let mut written = stream.write_all(first);
    while written.is_ok() && start.elapsed() < PATIENCE {
        written = stream.write_all(bytes);
    }
}

/// A greeting of ZMTP, which earlier versions spoke, as if a message of endless parts followed.
fn greeting() -> Vec<u8> {
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    greeting.extend(b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    greeting.resize(64, 0);
    greeting
}

fn part() -> Vec<u8> {
    let mut part = vec![3];
    part.extend(60_000u64.to_be_bytes());
    part.resize(60_009, 0x55);
    part
}

/// Strangers of every kind, at each of `ports`, all at once.
fn besiege(ports: &[u16]) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    std::thread::scope(|scope| {
        for port in ports.iter().copied() {
            for said in [&[][..], &[0xff], b"RPULLC\x01", b"RPULLC\x01\x01half of a hello"] {
                let mut stream = Stranger::connect(port);
                stream.write_all(said).unwrap();
                silent.push(stream);
            }
            scope.spawn(move || endlessly(Stranger::connect(port), &greeting(), &part()));
            scope.spawn(move || endlessly(Stranger::connect(port), &[], &[0x47; 4096]));
            scope.spawn(move || endlessly(Stranger::hello(port, true).stream, &[], &[0x47; 4096]));
            scope.spawn(move || {
                assert!(
                    Stranger::hello(port, false).ends_cut_off(40),
                    "without the secret nothing is said but: a secret"
                );
                let mut wrong = Stranger::hello(port, true);
                assert_eq!(wrong.prove(&[9; 32]), Some(1), "the proof is wrong");
                assert!(wrong.ends_cut_off(0));
            });
        }
    });
    silent
}

#[test]
fn strangers_do_nothing_to_a_job_with_a_secret() {
    let mut job = Job::start_with(SECRET, "gradual", 2, 1);
    job.wait_for("worker 0", "ready");
    job.wait_for("worker 1", "ready");
    let mut ports = job.listening_ports("server 0");
    assert_eq!(ports.len(), 1);
    ports.push(job.port);
    let nodes = ["server 0", "scheduler"];
    // One that listens, and one for each of three connections: a second is one that a forked child leaves
    // open. A worker is ready when it has dialled; a server may not have accepted it yet.
    let begun = std::time::Instant::now();
    while nodes.iter().any(|node| job.sockets(node) < 4) && begun.elapsed().as_secs() < 10 {
        std::thread::yield_now();
    }
    assert_eq!(nodes.map(|node| job.sockets(node)), [4, 4]);
    let before = nodes.map(|node| job.memory(node));
    let silent = besiege(&ports);
    for (node, before) in nodes.into_iter().zip(before) {
        let after = job.memory(node);
        assert!(after < before + GROWTH, "{node} grew from {before} to {after} bytes");
        assert_eq!(job.count(node, "refused a connection"), 1, "one line a minute");
    }
    drop(silent);
    job.finish();
}

#[test]
fn strangers_do_not_take_the_place_of_a_worker_that_is_late() {
    let mut job = Job::empty(job::free_port());
    job.secret = SECRET;
    job.add("sums", "scheduler", None, 2, 1);
    job.add("sums", "server", Some(0), 2, 1);
    job.add("sums", "worker", Some(0), 2, 1);
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", job.port)).is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "the scheduler does not listen");
    }
    let silent = besiege(&[job.port]);
    let start = Instant::now();
    job.add("sums", "worker", Some(1), 2, 1);
    job.succeeds();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    drop(silent);
}

#[test]
fn a_node_without_the_secret_or_with_another_is_one_error_on_both_ends() {
    for (of_worker, says, scheduler_says) in [
        (None, "this node has none", "does not know the job's secret"),
        (Some("a secret of another job"), "another secret", "it has another secret"),
    ] {
        let mut job = Job::empty(job::free_port());
        job.secret = SECRET;
        job.add("sums", "scheduler", None, 1, 1);
        job.secret = of_worker;
        job.add("sums", "worker", Some(0), 1, 1);
        job.wait_for("worker 0", says);
        job.wait_for("scheduler", scheduler_says);
        job.fails_slowly(&["RINGPULL_SECRET"]);
    }
    let mut job = Job::empty(job::free_port());
    job.add("sums", "scheduler", None, 1, 1);
    job.secret = SECRET;
    job.add("sums", "worker", Some(0), 1, 1);
    job.wait_for("worker 0", "it has no secret, and this node has one");
    job.wait_for("scheduler", "it has a secret and this node has none");
    job.fails_slowly(&["RINGPULL_SECRET"]);
}

/// Without a secret anybody may speak. What he says is bounded, and what makes no sense is dropped.
#[test]
fn without_a_secret_hostile_bytes_are_dropped_with_a_log_line_and_the_job_goes_on() {
    let mut job = Job::start("gradual", 2, 1);
    job.wait_for("scheduler", "anybody who reaches port");
    job.wait_for("worker 0", "ready");
    job.wait_for("worker 1", "ready");
    let server = job.listening_ports("server 0")[0];
    let nodes = ["server 0", "scheduler"];
    let before = nodes.map(|node| job.memory(node));
    for port in [server, job.port] {
        endlessly(Stranger::connect(port), &greeting(), &part());
        endlessly(Stranger::connect(port), &[], &[0x47; 4096]);
    }
    let mut named = Stranger::hello(server, false);
    assert_eq!(named.prove(&[0; 32]), Some(2), "no worker calls itself so");
    assert!(named.ends_cut_off(0));
    let admitted = || {
        let mut stranger = Stranger::hello(job.port, false);
        assert_eq!(stranger.prove(&[0; 32]), Some(0));
        stranger
    };
    // Frames that are longer than any, without a number, with another's, and that hold no message.
    let mut long = admitted();
    long.frame(1, &[0; 10], u32::MAX).unwrap();
    assert!(long.ends_cut_off(24));
    let mut late = admitted();
    late.frame(7, b"", 0).unwrap();
    assert!(late.ends_cut_off(24));
    for header in
        [b"garbage".to_vec(), [&MAGIC[..], &[7; 100]].concat(), b"RPPS\x09\x00\x00".to_vec(), vec![0xff; 1000]]
    {
        let mut odd = admitted();
        odd.frame(1, &header, 0).unwrap();
        assert!(odd.ends_cut_off(24));
    }
    // Long frames without an end.
    let mut endless = admitted();
    let start = Instant::now();
    let mut number = 0;
    let mut sent = Ok(());
    while sent.is_ok() && start.elapsed() < PATIENCE {
        number += 1;
        sent = endless.frame(number, &vec![0x55; 200_000], 0);
    }
    for (node, before) in nodes.into_iter().zip(before) {
        let after = job.memory(node);
        assert!(after < before + GROWTH, "{node} grew from {before} to {after} bytes");
        assert_eq!(job.count(node, "refused a connection"), 1, "one line a minute");
    }
    job.finish();
}
