//! Facts of other hosts. They are requested over ssh in the way in which the processes of a job are started,
//! or gathered by the ranks of a job.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::time::Duration;

use ringpull_base::topology::host_name;
use ringpull_base::{Error, Result};

use super::facts::Facts;
use super::gather::{gather, since_1970_s};
use crate::launch::host::{placed, quote, ssh, with_environment};
use crate::launch::remote::{TimedAnswer, ask_all};
use crate::launch::{Host, SshHost, own_address};
use ringpull_harness::ranks;

/// The time that a host may take to send its facts.
const ANSWER: Duration = Duration::from_secs(60);
/// The default port of ssh, if neither the hostfile nor ssh's configuration names one.
const SSH_PORT: u16 = 22;

/// The facts that arrived, and the hosts that sent none, with the reason.
pub(crate) type HostFacts = (Vec<Facts>, Vec<(String, String)>);

/// The facts of each host of a hostfile, requested in parallel.
pub(crate) fn ask(hosts: &[SshHost]) -> Result<HostFacts> {
    let program = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
    let places = placed(hosts.to_vec(), None);
    // The addresses by which the hosts reach each other. For this host it is its address on the way to the
    // first other host, and no ssh server is needed.
    let own = own_address(places.iter().map(|(host, _)| host)).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let addresses: Vec<String> = places.iter().map(|(host, _)| address_of(host, own)).collect();
    let command = |(number, (host, slots)): (usize, &(Host, usize))| {
        let others = addresses.iter().enumerate().filter(|(other, _)| *other != number).map(|(_, it)| it.as_str());
        let (slots, called) = (slots.to_string(), called(host));
        let mut words = vec!["doctor", "--facts", "--called", &called, "--slots", &slots];
        words.extend(others.flat_map(|other| ["--towards", other]));
        let Host::Ssh(host) = host else {
            let mut command = Command::new(&program);
            command.args(words);
            return (command, Vec::new());
        };
        let words = std::iter::once(quote(program.as_os_str())).chain(words.iter().map(|word| quote(word.as_ref())));
        let script = [with_environment(&[]), words.collect::<Vec<_>>().join(" ").into_bytes()].concat();
        ssh(host, &script)
    };
    let answers = ask_all(places.iter().enumerate().map(command).collect(), ANSWER)?;
    let (mut facts, mut silent) = (Vec::new(), Vec::new());
    for ((host, _), answer) in places.iter().zip(answers) {
        match answer.and_then(|answer| read(&answer)) {
            Ok(answer) => facts.push(answer),
            Err(cause) => silent.push((called(host), cause)),
        }
    }
    Ok((facts, silent))
}

fn read(answer: &TimedAnswer) -> Result<Facts, String> {
    let text = String::from_utf8_lossy(&answer.output.stdout);
    let Some(line) = text.lines().find(|line| line.starts_with('{')) else {
        let words = String::from_utf8_lossy(&answer.output.stderr);
        return Err(words.lines().last().unwrap_or("ssh said nothing").trim().to_owned());
    };
    let mut facts: Facts = serde_json::from_str(line).map_err(|cause| format!("another version answers: {cause}"))?;
    // The host read its clock at its end, shortly before the answer arrived.
    let doubt = (answer.took.as_secs_f64() / 2.0).min(1.0);
    facts.clock = Some((facts.now_s - since_1970_s(answer.arrived), doubt));
    Ok(facts)
}

/// The name of a host in the findings.
fn called(host: &Host) -> String {
    if let Host::Ssh(host) = host { host.name.clone() } else { host_name() }
}

/// The address and port at which other hosts try to reach `host`. The address is `own` if it is this host.
/// The port is 0 if the host needs no ssh server.
fn address_of(host: &Host, own: IpAddr) -> String {
    match host {
        Host::Ssh(host) => format!("{}:{}", host.name, port_of(host)),
        _ => format!("{own}:0"),
    }
}

/// The port that ssh uses for this host.
fn port_of(host: &SshHost) -> u16 {
    host.port.unwrap_or_else(|| {
        let asked = Command::new("ssh").args(["-G", &host.login]).stdin(Stdio::null()).stderr(Stdio::null()).output();
        let text = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("port ")?.parse().ok()).unwrap_or(SSH_PORT)
    })
}

/// Returns on every rank the facts of all hosts of this job. Collective.
pub(crate) fn of_ranks() -> Result<Vec<Facts>> {
    let store = ringpull::create("dist_sync_mpi")?;
    let mut facts: Vec<Facts> = Vec::new();
    for read in ranks::gather(&store, "facts", &gather(None, None, &[], false))? {
        match facts.iter_mut().find(|known| known.machine.host == read.machine.host) {
            Some(known) => known.slots += 1,
            None => facts.push(Facts { slots: 1, ..read }),
        }
    }
    Ok(facts)
}
