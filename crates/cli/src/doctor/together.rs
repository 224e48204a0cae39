//! The meaning of the facts of several hosts together.

use super::HostFinding;
use super::facts::Facts;
use ringpull_harness::text::several;

/// The findings of every check that compares hosts.
pub(super) fn hosts(all: &[Facts]) -> Vec<HostFinding> {
    /// A value that must be the same on all hosts, and the fix if it is not.
    type Same = (&'static str, fn(&Facts) -> Option<String>, &'static str);
    const ONE_BUILD: &str = "copy one build of this program to every host";
    let alike: [Same; 5] = [
        ("mpi", |facts| facts.machine.mpirun.clone(), "install the same MPI on every host"),
        ("mpi library", |facts| facts.machine.mpi_library.clone(), ONE_BUILD),
        ("version", |facts| Some(facts.machine.version.clone()), ONE_BUILD),
        ("driver", |facts| facts.driver.clone(), "install the same NVIDIA driver on every host"),
        (
            "nccl",
            |facts| facts.machine.devices.nccl.version().map(str::to_owned),
            "install the same NCCL on every host",
        ),
    ];
    let mut found: Vec<HostFinding> =
        alike.into_iter().filter_map(|(check, value, fix)| same(all, check, value, fix)).collect();
    found.extend(python(all));
    found.extend(names(all));
    found.extend(reach(all));
    found
}

/// A finding if two hosts have different values.
fn same(all: &[Facts], check: &'static str, value: fn(&Facts) -> Option<String>, fix: &str) -> Option<HostFinding> {
    let known: Vec<(&str, String)> =
        all.iter().filter_map(|facts| Some((facts.called.as_str(), value(facts)?))).collect();
    let (first, expected) = known.first()?;
    let (other, got) = known.iter().find(|(_, got)| got != expected)?;
    Some(HostFinding::failure(check, other, format!("has {got} where {first} has {expected}"), fix))
}

/// A finding if a job finds a different Python, or none, on some host. PATH is passed on, so the first Python
/// is then missing there.
fn python(all: &[Facts]) -> Option<HostFinding> {
    let (first, rest) = all.split_first()?;
    let expected = first.python.as_ref()?;
    let other = rest.iter().find(|facts| facts.python.as_ref() != Some(expected))?;
    let has = other.python.as_deref().unwrap_or("none");
    let what = format!("its python is {has}, and that of {} is {expected}", first.called);
    let fix = "put the environment at the same path on every host, such as a shared folder, or copy it there";
    Some(HostFinding::warning("python", &other.called, what, fix))
}

fn names(all: &[Facts]) -> Option<HostFinding> {
    let twice = all.iter().enumerate().find_map(|(at, one)| {
        all[..at]
            .iter()
            .find(|other| other.machine.host == one.machine.host && other.called != one.called)
            .map(|other| (other, one))
    });
    let (first, second) = twice?;
    let what = format!(
        "{} and {} have the same name {}: ranks take them for one host",
        first.called, second.called, first.machine.host
    );
    Some(HostFinding::failure("name", &second.called, what, "give each host its own name (hostnamectl set-hostname)"))
}

fn reach(all: &[Facts]) -> Vec<HostFinding> {
    let mut found = Vec::new();
    for facts in all {
        let mut ways: Vec<&str> = Vec::new();
        for peer in &facts.peers {
            let fix = match &peer.address {
                None => format!("add {} to DNS or to /etc/hosts of {}", peer.host, facts.called),
                Some(_) => format!(
                    "allow connections from {} to {} (firewall, security group, NetworkPolicy): MPI uses any port",
                    facts.called, peer.host
                ),
            };
            let address = peer.address.as_deref().unwrap_or("");
            if let Some(failure) = &peer.failure {
                let back = all.iter().find(|other| other.called == peer.host).and_then(|other| {
                    other.peers.iter().find(|seen| seen.host == facts.called && seen.failure.is_none())
                });
                let half = if back.is_some() { "; the other direction works" } else { "" };
                let what = format!("cannot reach {} {address}: {failure}{half}", peer.host);
                found.push(HostFinding::failure("reach", &facts.called, what, fix));
            } else if address.starts_with("127.") || address == "::1" {
                let what = format!(
                    "{} resolves to {address} here: its ranks would announce an address that no other host reaches",
                    peer.host
                );
                let fix = format!(
                    "remove {} from the line of 127.0.0.1 or 127.0.1.1 in /etc/hosts of {}",
                    peer.host, facts.called
                );
                found.push(HostFinding::failure("reach", &facts.called, what, fix));
            } else if let Some(interface) = &peer.interface
                && !ways.contains(&interface.as_str())
            {
                ways.push(interface);
            }
        }
        if ways.len() > 1 {
            let what = format!("reaches the others over {}", ways.join(" and "));
            let fix = "name one for all: mpirun --mca btl_tcp_if_include NAME --mca oob_tcp_if_include NAME";
            found.push(HostFinding::warning("reach", &facts.called, what, fix));
        } else if let Some(way) = ways.first()
            && facts.peers.iter().all(|peer| peer.failure.is_none())
        {
            found.push(HostFinding::good(
                "reach",
                &facts.called,
                format!("reaches {} over {way}", several(facts.peers.len(), "host")),
            ));
        }
    }
    found
}
