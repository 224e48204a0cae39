//! A job with servers that has no secret. Anybody may connect, and the scheduler warns of that. A stranger
//! can send only a bounded amount, and frames without sense are dropped.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ringpull_ps::message::MAGIC;

use crate::greetings::{GivenName, Speaks, frame};
use crate::job::Job;
use crate::port::{OpenPort, is_closed};
use crate::vitals::Vitals;

/// The memory by which a node may grow from all these frames. A scheduler keeps the bytes that each admitted
/// node has sent until it handles them.
const GROWTH: usize = 8 << 20;
/// The time for which a sender of endless frames goes on.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connects to `port` under the name of a node. Returns the connection and the verdict.
fn stranger(port: &OpenPort, name: &[u8]) -> (TcpStream, u8) {
    let stream = port.connect().unwrap().expect("it is accepted");
    let wanted = if port.owner == "scheduler" { "the scheduler" } else { &port.owner };
    let name = GivenName { identity: name.to_vec(), wanted: wanted.as_bytes().to_vec(), ..GivenName::default() };
    let verdict = port.speaks.greet(&stream, &name).unwrap_or_else(|cause| panic!("{}: {cause}", port.owner));
    (stream, verdict[0])
}

#[test]
fn without_a_secret_hostile_frames_are_dropped_and_the_job_goes_on() {
    let job = Job::without_a_secret(2, 1);
    job.wait_until_ready(Duration::from_secs(30));
    assert!(job.written("scheduler").contains("anybody who reaches port"), "{job}");
    let ports = job.ports();
    let nodes = ["scheduler", "server 0"];
    let pid = |node: &str| job.members().iter().find(|member| member.name == node).unwrap().pid;
    let before = nodes.map(|node| Vitals::of(pid(node)).unwrap());
    let [scheduler, server] = nodes.map(|node| ports.iter().find(|port| port.owner == node).unwrap());
    assert_eq!((scheduler.speaks, server.speaks), (Speaks::Servers, Speaks::Servers));

    let (unknown, verdict) = stranger(server, b"stranger");
    assert_eq!(verdict, 2, "no worker calls itself so");
    is_closed(&unknown).unwrap();

    // Frames that claim to be too long, a frame with a number that is not the next, and headers that hold no
    // message.
    let next = [&MAGIC[..MAGIC.len() - 1], &[MAGIC[MAGIC.len() - 1] + 1, 0, 0]].concat();
    let headers = [b"garbage".to_vec(), [&MAGIC[..], &[7; 100]].concat(), next, vec![0xff; 1000]];
    let frames =
        [frame(1, [10, u32::MAX], &[0; 10], &[]), frame(1, [u32::MAX, 0], &[], &[]), frame(7, [0, 0], &[], &[])];
    let odd = headers.iter().map(|header| frame(1, [header.len() as u32, 0], header, &[]));
    for said in frames.into_iter().chain(odd) {
        let (admitted, verdict) = stranger(scheduler, b"stranger");
        assert_eq!(verdict, 0, "{job}");
        (&admitted).write_all(&said).unwrap();
        is_closed(&admitted).unwrap_or_else(|what| panic!("{said:?}: {what}\n{job}"));
    }

    // Endless long frames.
    let (admitted, _) = stranger(scheduler, b"endless");
    let begun = Instant::now();
    let header = vec![0x55; 200_000];
    let mut numbers = 1..;
    let mut say = || (&admitted).write_all(&frame(numbers.next().unwrap(), [200_000, 0], &header, &[]));
    while say().is_ok() && begun.elapsed() < PATIENCE {}

    for (node, before) in nodes.into_iter().zip(before) {
        let now = Vitals::of(pid(node)).unwrap_or_else(|| panic!("{node} has ended:\n{job}"));
        let (before, now) = (before.resident_bytes, now.resident_bytes);
        assert!(now <= before + GROWTH, "{node} grew from {before} to {now} bytes");
        let written = job.written(node);
        assert_eq!(written.count("refused a connection"), 1, "one line a minute: {job}");
    }
    job.ends_well();
}
