//! Facts of other hosts: asked for over ssh, or brought together by the ranks of a job.

use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ringpull;
use ringpull_base::{DType, Error, Result, Tensor};

use super::facts::Facts;
use super::gather::{gather, now_s};
use crate::launch::hostfile::Host;
use crate::launch::place::{quote, ssh};

/// By when every host must have told its facts.
const ANSWER: Duration = Duration::from_secs(60);
/// The port of ssh where the hostfile names none: ssh's own configuration may.
const SSH_PORT: u16 = 22;

/// The facts that came, and the hosts that none came from, with the reason.
pub type Asked = (Vec<Facts>, Vec<(String, String)>);

/// What each host of a hostfile says of itself, all asked at once.
pub fn ask(hosts: &[Host]) -> Result<Asked> {
    let program = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
    let addresses: Vec<String> = hosts.iter().map(|host| format!("{}:{}", host.name, port_of(host))).collect();
    let (sender, answers) = channel();
    let mut pids = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        let others = addresses.iter().enumerate().filter(|(other, _)| *other != number).map(|(_, it)| it.as_str());
        let slots = host.slots.to_string();
        let mut words = vec!["doctor", "--facts", "--called", &host.name, "--slots", &slots];
        for other in others {
            words.extend(["--towards", other]);
        }
        let words = std::iter::once(quote(program.as_os_str())).chain(words.iter().map(|word| quote(word.as_ref())));
        let mut command = ssh(host);
        command.arg(words.collect::<Vec<_>>().join(" "));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let asked = now_s();
        let child = command.spawn().map_err(|cause| Error::io("run", "ssh", &cause))?;
        pids.push(rustix::process::Pid::from_child(&child));
        let sender = sender.clone();
        std::thread::spawn(move || sender.send((number, asked, child.wait_with_output(), now_s())));
    }
    let deadline = Instant::now() + ANSWER;
    let mut told: Vec<Option<std::result::Result<Facts, String>>> = vec![None; hosts.len()];
    while told.iter().any(Option::is_none) {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((number, asked, output, heard)) = answers.recv_timeout(left) else { break };
        told[number] = Some(match output {
            Ok(output) => read(&output.stdout, &output.stderr, asked, heard),
            Err(cause) => Err(cause.to_string()),
        });
    }
    let (mut facts, mut silent) = (Vec::new(), Vec::new());
    for ((host, answer), pid) in hosts.iter().zip(told).zip(pids) {
        match answer {
            Some(Ok(answer)) => facts.push(answer),
            Some(Err(cause)) => silent.push((host.name.clone(), cause)),
            None => {
                if let Err(cause) = rustix::process::kill_process(pid, rustix::process::Signal::KILL) {
                    tracing::debug!(%cause, "ssh had ended");
                }
                silent.push((host.name.clone(), format!("no answer within {} s", ANSWER.as_secs())));
            }
        }
    }
    Ok((facts, silent))
}

fn read(stdout: &[u8], stderr: &[u8], asked: f64, heard: f64) -> std::result::Result<Facts, String> {
    let text = String::from_utf8_lossy(stdout);
    let Some(line) = text.lines().find(|line| line.starts_with('{')) else {
        let words = String::from_utf8_lossy(stderr);
        return Err(words.lines().last().unwrap_or("ssh said nothing").trim().to_owned());
    };
    let mut facts: Facts = serde_json::from_str(line).map_err(|cause| format!("another version answers: {cause}"))?;
    // Its clock was read at the end of what it did, shortly before it was heard.
    let doubt = ((heard - asked) / 2.0).min(1.0);
    facts.clock = Some((facts.now_s - heard, doubt));
    Ok(facts)
}

/// The port that ssh would take, by its own word.
fn port_of(host: &Host) -> u16 {
    host.port.unwrap_or_else(|| {
        let asked = Command::new("ssh").args(["-G", &host.login]).stdin(Stdio::null()).stderr(Stdio::null()).output();
        let text = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("port ")?.parse().ok()).unwrap_or(SSH_PORT)
    })
}

/// The facts of all ranks of this job, on every rank, one for each host. Collective.
pub fn of_ranks() -> Result<Vec<Facts>> {
    let store = ringpull::create("dist_sync_mpi")?;
    let mut own = gather(None, None, &[], false);
    own.now_s = now_s();
    let text = serde_json::to_vec(&own).map_err(|cause| Error::io("write", "facts", &std::io::Error::other(cause)))?;
    let (rank, ranks) = (store.rank(), store.num_workers());
    // Each rank adds its bytes at its own place, where all others add nothing.
    let gathered = |key: &str, each: usize, bytes: &[u8]| -> Result<Vec<f32>> {
        let mut all = vec![0.0f32; ranks * each];
        for (to, byte) in all[rank * each..].iter_mut().zip(bytes) {
            *to = f32::from(*byte);
        }
        let shape = [all.len()];
        store.init(key, &Tensor::zeros(DType::F32, &shape))?;
        let sum = Tensor::zeros(DType::F32, &shape);
        store.push_pull(key, &[Tensor::from_slice(&shape, &all)], std::slice::from_ref(&sum), 0)?;
        sum.to_vec()
    };
    let lens = gathered("lengths", 4, &(text.len() as u32).to_le_bytes())?;
    let len_of = |rank: usize| {
        let bytes = [0, 1, 2, 3].map(|at| lens[rank * 4 + at] as u8);
        u32::from_le_bytes(bytes) as usize
    };
    let each = (0..ranks).map(len_of).max().unwrap_or(0);
    let texts = gathered("facts", each, &text)?;
    let mut facts: Vec<Facts> = Vec::new();
    for other in 0..ranks {
        let bytes: Vec<u8> = texts[other * each..][..len_of(other)].iter().map(|byte| *byte as u8).collect();
        let read: Facts = serde_json::from_slice(&bytes)
            .map_err(|cause| Error::io("read", format!("the facts of rank {other}"), &std::io::Error::other(cause)))?;
        match facts.iter_mut().find(|known| known.host == read.host) {
            Some(known) => known.slots += 1,
            None => facts.push(Facts { slots: 1, ..read }),
        }
    }
    Ok(facts)
}
