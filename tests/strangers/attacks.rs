//! The attacks of strangers on a port. Each attack is a function, and a table lists all attacks.
//!
//! An attack's result reports what went wrong at the port itself: a connection that was not closed, or bytes
//! that no stranger should get. `siege` checks the effect on the job after each attack.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ringpull_ps::message::{Place, Places, PullTarget, Request, ToScheduler, encode};

use crate::greetings::{CHALLENGE, CLIENT_MAGIC, GivenName, PROOF, Speaks, frame, hello, proof};
use crate::overheard::{Overheard, reset_connections};
use crate::port::{OpenPort, Outcome, finish, reset};

/// An attack on one port.
pub(crate) type Attack = fn(&OpenPort) -> Outcome;

/// The time limit of a step while strangers keep every processor busy. It is less than the time limit of a
/// stranger's greeting. Without strangers a step takes a few milliseconds.
const STEP: Duration = Duration::from_secs(2);
/// The time limit of a step during `crowd`. While strangers connect without a pause, a broken connection of
/// the job rarely finds a free place.
const WHILE_CROWDED: Duration = Duration::from_secs(4);

/// All attacks, in their order, each with the time limit of a step during the attack. The attack that fills
/// the queue of a port that accepts no connection comes last.
pub(crate) const ATTACKS: &[(&str, Attack, Duration)] = &[
    ("garbage of each message's length", garbage, STEP),
    ("the right first bytes, and garbage", opening_and_garbage, STEP),
    ("a greeting with another secret", another_secret, STEP),
    ("a node's own name without its secret", impostor, STEP),
    ("a node's own greeting once more", replay, STEP),
    ("what was heard, said back", mirror, STEP),
    ("a push by raw sockets, without a greeting that was accepted", raw_push, STEP),
    ("a valid beginning, and a length of 4 GiB", long_frame, STEP),
    ("MiBs without an end", endless, STEP),
    ("a greeting cut anywhere by a reset", cut_by_reset, STEP),
    ("a greeting cut anywhere by an end", cut_by_end, STEP),
    ("one byte every 100 ms", drip, STEP),
    ("2000 connections that are reset at once", flood, STEP),
    ("200 silent connections", silent, STEP),
    ("a crowd while real connections break", crowd, WHILE_CROWDED),
];

/// The attacks that use all the connections that a port has for unproved strangers.
pub(crate) const CROWDED: &[Attack] = &[silent, drip, endless, flood];

/// The number of repetitions of a single act.
const TIMES: usize = 16;
/// The number of silent connections. A port keeps fewer of them.
pub(crate) const SILENT: usize = 200;
const FLOOD: usize = 2000;
/// The time for which endless writers and crowds go on.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns `len` pseudo-random bytes. They are the same in every run, and differ between seeds.
fn noise(seed: usize, len: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Returns the name of a possible node of the job, with a secret that is not the job's.
fn false_name(speaks: Speaks) -> GivenName {
    let identity = if speaks == Speaks::Servers { b"worker 1".to_vec() } else { b"rank 1".to_vec() };
    let secret = Some(b"the secret of another job".to_vec());
    GivenName { identity, session: [7; 16], secret, ..GivenName::default() }
}

/// Opens `count` connections, or fewer if the port does not accept `count`.
fn connections(port: &OpenPort, count: usize) -> Outcome<Vec<TcpStream>> {
    let mut all = Vec::new();
    for _ in 0..count {
        let Some(stream) = port.connect()? else { break };
        all.push(stream);
    }
    Ok(all)
}

/// Returns a connection and the challenge that it received. Tries again while the port rejects connections
/// because of the other strangers.
fn challenged(port: &OpenPort) -> Outcome<(TcpStream, Vec<u8>)> {
    let (mut challenge, opening) = (vec![0; CHALLENGE], hello(&false_name(port.speaks)));
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let Some(mut stranger) = port.connect()? else { break };
        if say(&stranger, &opening) && stranger.read_exact(&mut challenge).is_ok() {
            return Ok((stranger, challenge));
        }
    }
    Err(format!("a stranger is not challenged within {PATIENCE:?}"))
}

/// Writes `bytes`. Returns false if the other end has closed the connection.
fn say(mut stream: &TcpStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).is_ok()
}

fn silent(port: &OpenPort) -> Outcome {
    let strangers = connections(port, SILENT)?;
    port.sees_off(strangers)
}

fn drip(port: &OpenPort) -> Outcome {
    let mut name = false_name(port.speaks);
    name.secret = Some(Vec::new());
    let opening = hello(&name);
    // Sends all bytes of the greeting but the last. Each byte comes soon, but the greeting takes longer than
    // its time limit and never ends.
    let count = if port.speaks == Speaks::Nothing { 8 } else { opening.len() - 1 };
    let strangers = connections(port, 8)?;
    for byte in opening[..count].chunks(1) {
        if strangers.iter().filter(|stranger| say(stranger, byte)).count() == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    port.sees_off_at_once(strangers)
}

fn garbage(port: &OpenPort) -> Outcome {
    for (seed, len) in port.speaks.lengths().iter().enumerate() {
        let strangers = connections(port, TIMES / 2)?;
        for (index, stranger) in strangers.iter().enumerate() {
            say(stranger, &noise(seed * TIMES + index, *len));
            if *len < port.speaks.enough() {
                finish(stranger);
            }
        }
        port.sees_off_at_once(strangers)?;
    }
    Ok(())
}

fn opening_and_garbage(port: &OpenPort) -> Outcome {
    let strangers = connections(port, TIMES)?;
    for (seed, stranger) in strangers.iter().enumerate() {
        say(stranger, &[&CLIENT_MAGIC[..], &[1], &noise(seed, 4096)].concat());
    }
    port.sees_off_at_once(strangers)
}

fn another_secret(port: &OpenPort) -> Outcome {
    let strangers = connections(port, TIMES)?;
    for stranger in &strangers {
        let answer = port.speaks.greet(stranger, &false_name(port.speaks)).unwrap_or_default();
        if answer.first().is_some_and(|verdict| *verdict != 1) {
            return Err(format!("a stranger with another secret was answered {answer:?}"));
        }
    }
    port.sees_off_at_once(strangers)
}

/// Sends the node's real name, its real session and the flag that the session goes on. Only the proof is
/// wrong.
fn impostor(port: &OpenPort) -> Outcome {
    let known = port.overheard.as_ref().map_or_else(|| false_name(port.speaks), Overheard::name);
    for secret in [None, Some(Vec::new()), Some(b"the secret of another job".to_vec())] {
        let strangers = connections(port, TIMES)?;
        let name = GivenName { secret, ..known.clone() };
        for stranger in &strangers {
            let answer = port.speaks.greet(stranger, &name).unwrap_or_default();
            if answer.first().is_some_and(|verdict| *verdict != 1) {
                return Err(format!("who only knew a node's name was answered {answer:?}"));
            }
            // Send frames although the proof was refused.
            say(stranger, &messages(port.speaks).concat());
        }
        port.sees_off_at_once(strangers)?;
    }
    Ok(())
}

fn replay(port: &OpenPort) -> Outcome {
    let Some(overheard) = &port.overheard else { return Ok(()) };
    let strangers = connections(port, 2 * TIMES)?;
    for (index, stranger) in strangers.iter().enumerate() {
        if index % 2 == 0 {
            // The port may also cut the connection in between.
            overheard.say_again(port.speaks, stranger).ok();
        } else {
            say(stranger, overheard.said());
        }
        say(stranger, &messages(port.speaks).concat());
    }
    port.sees_off_at_once(strangers)
}

fn mirror(port: &OpenPort) -> Outcome {
    if port.speaks == Speaks::Nothing {
        return Ok(());
    }
    let mut strangers = Vec::new();
    for _ in 0..TIMES {
        let (stranger, challenge) = challenged(port)?;
        say(&stranger, &challenge.repeat(5));
        strangers.push(stranger);
    }
    port.sees_off_at_once(strangers)
}

/// Returns messages of an admitted node that would change values or end the job.
fn messages(speaks: Speaks) -> Vec<Vec<u8>> {
    match speaks {
        // The first byte is the type of the message.
        Speaks::ControlStar | Speaks::Nothing => {
            (0..32u8).map(|kind| frame(u64::from(kind) + 1, [4, 0], &[kind, 0, 0, 0], &[])).collect()
        }
        Speaks::Servers => {
            let place = Place { key: "key 1".into(), segment: 0 };
            let poison: Vec<u8> = [1e30f32; 7].into_iter().flat_map(f32::to_le_bytes).collect();
            let places = Places { key: "key 1".into(), segments: vec![0] };
            let reply = Some((PullTarget::Value, 1));
            let push = Request::Push { place, round: 1, optimizer: 0, compression: None, reply };
            let pull = Request::Pull { places, rounds: 0, want: PullTarget::Value, reply: 2 };
            let said = [
                (encode(&ToScheduler::Heartbeat { moved: 1 }), Vec::new()),
                (encode(&push), poison),
                (encode(&pull), Vec::new()),
                (encode(&ToScheduler::Failing(Some("a stranger says so".to_owned()))), Vec::new()),
                (encode(&ToScheduler::Goodbye), Vec::new()),
            ];
            let numbered = said.into_iter().enumerate();
            numbered
                .map(|(index, (header, payload))| {
                    frame(index as u64 + 1, [header.len() as u32, payload.len() as u32], &header, &payload)
                })
                .collect()
        }
    }
}

/// Registers, pulls the weights and pushes 1e30, as if there were no greeting, or as if it had been accepted.
fn raw_push(port: &OpenPort) -> Outcome {
    let name = port.overheard.as_ref().map_or_else(|| false_name(port.speaks), Overheard::name);
    for secret in [None, Some(b"the secret of another job".to_vec())] {
        let name = GivenName { secret, ..name.clone() };
        let strangers = connections(port, TIMES)?;
        for (index, stranger) in strangers.iter().enumerate() {
            if index % 2 == 0 {
                port.speaks.greet(stranger, &name).ok();
            }
            for message in messages(port.speaks) {
                say(stranger, &message);
            }
            // The stranger may have sent less than a whole greeting.
            finish(stranger);
        }
        port.sees_off_at_once(strangers)?;
    }
    Ok(())
}

fn long_frame(port: &OpenPort) -> Outcome {
    let strangers = connections(port, TIMES)?;
    for (index, stranger) in strangers.iter().enumerate() {
        let mut name = false_name(port.speaks);
        if index % 4 == 3 {
            // This byte is the length of a name.
            let mut opening = hello(&name);
            opening[58] = u8::MAX;
            say(stranger, &opening);
            continue;
        }
        if index % 4 == 2 {
            name.secret = None;
        }
        port.speaks.greet(stranger, &name).ok();
        say(stranger, &frame(1, [u32::MAX, u32::MAX], &[], &[]));
        say(stranger, &vec![0x55; 1 << 20]);
    }
    port.sees_off_at_once(strangers)
}

/// Returns a greeting of ZMTP, the protocol of earlier versions, that announces a message of endless parts.
fn old_greeting() -> Vec<u8> {
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    greeting.extend(b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    greeting.resize(64, 0);
    greeting
}

fn endless(port: &OpenPort) -> Outcome {
    let piece = {
        let mut part = vec![3];
        part.extend(60_000u64.to_be_bytes());
        part.resize(60_009, 0x55);
        part
    };
    let opening = hello(&false_name(port.speaks));
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        for first in [&[][..], &old_greeting(), &opening] {
            let Some(stranger) = port.connect()? else { return Ok(()) };
            say(&stranger, first);
            // Write at least once, because the port waits for a stranger who has only begun.
            while say(&stranger, &piece) && begun.elapsed() < PATIENCE {}
            port.sees_off_at_once(vec![stranger])?;
        }
    }
    Ok(())
}

/// Sends greetings and proofs that are cut after every possible number of bytes. `end` ends each connection.
fn cut(port: &OpenPort, mut end: impl FnMut(TcpStream)) -> Outcome {
    let name = false_name(port.speaks);
    let opening = hello(&name);
    for len in 0..opening.len() {
        let Some(stranger) = port.connect()? else { return Ok(()) };
        say(&stranger, &opening[..len]);
        end(stranger);
    }
    let proofs = if port.speaks == Speaks::Servers { PROOF } else { 0 };
    for len in 0..proofs {
        let (stranger, challenge) = challenged(port)?;
        say(&stranger, &proof(&name, &opening, &challenge)[..len]);
        end(stranger);
    }
    Ok(())
}

fn cut_by_reset(port: &OpenPort) -> Outcome {
    cut(port, reset)
}

fn cut_by_end(port: &OpenPort) -> Outcome {
    let mut strangers = Vec::new();
    cut(port, |stranger| {
        finish(&stranger);
        strangers.push(stranger);
    })?;
    port.sees_off_at_once(strangers)
}

fn flood(port: &OpenPort) -> Outcome {
    for _ in 0..FLOOD {
        let Some(stranger) = port.connect()? else { return Ok(()) };
        reset(stranger);
    }
    Ok(())
}

/// Resets connections of the job. The job connects again among strangers who come and go, and strangers who
/// stay.
fn crowd(port: &OpenPort) -> Outcome {
    if port.clients.is_empty() || port.overheard.is_none() {
        return Ok(());
    }
    let opening = hello(&false_name(port.speaks));
    let end = Instant::now() + 2 * PATIENCE;
    let comes_and_goes = || -> Outcome {
        let mut stay = VecDeque::new();
        while Instant::now() < end {
            let Some(stranger) = port.connect()? else { break };
            say(&stranger, &opening[..opening.len() / 2]);
            stay.push_back(stranger);
            if stay.len() > SILENT {
                stay.pop_front().into_iter().for_each(reset);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let crowd = [scope.spawn(comes_and_goes), scope.spawn(comes_and_goes)];
        let mut count = 0;
        while Instant::now() < end {
            for client in &port.clients {
                count += reset_connections(*client, port.at).map_err(|cause| format!("no reset: {cause}"))?;
            }
            std::thread::sleep(PATIENCE / 4);
        }
        crowd.into_iter().try_for_each(|one| one.join().expect("a stranger says what he meets"))?;
        if count > 0 { Ok(()) } else { Err("no connection of the job was reset".to_owned()) }
    })
}
