//! Each fault is found by its check and by no other.

use super::facts::{Facts, PeerHost, ProbedRank, SshFile};
use ringpull_device::{Library, Survey};

use super::{HostVerdict, judge};
use crate::machine::{Hardware, Machine};

fn healthy(name: &str, peer: &str) -> Facts {
    let rank = ProbedRank { size: 2, level: "multiple".to_owned(), library: "Open MPI 4.1.4".to_owned() };
    Facts {
        machine: Machine {
            host: name.to_owned(),
            version: "1".to_owned(),
            hardware: Hardware { cores: 4, ..Hardware::default() },
            mpirun: Some("mpirun (Open MPI) 4.1.4".to_owned()),
            mpi_library: Some("Open MPI 4.1.4".to_owned()),
            ..Machine::default()
        },
        called: name.to_owned(),
        slots: 4,
        uid: 1000,
        probe: vec![rank.clone(), rank],
        shared_memory: Some((8 << 30, 8 << 30)),
        interfaces: vec!["eth0".to_owned(), "lo".to_owned()],
        own_address: Some("10.0.0.1".to_owned()),
        ssh: vec![SshFile { path: "/home/u/.ssh/id_rsa".to_owned(), mode: 0o600, owner: 1000, is_key: true }],
        clock: Some((0.01, 0.02)),
        python: Some("/venv/bin/python".to_owned()),
        peers: vec![PeerHost {
            host: peer.to_owned(),
            address: Some("10.0.0.2".to_owned()),
            interface: Some("eth0".to_owned()),
            failure: None,
        }],
        ..Facts::default()
    }
}

fn pair() -> [Facts; 2] {
    [healthy("a", "b"), healthy("b", "a")]
}

/// Two GPUs whose driver and NCCL answer.
fn on_gpus(facts: &mut Facts) {
    let there = |version: &str| Library::Version(version.to_owned());
    let devices = vec!["A".to_owned(), "B".to_owned()];
    facts.machine.devices = Survey { driver: there("CUDA 13.0"), nccl: there("2.28.5"), devices, ..Survey::default() };
}

#[test]
fn interfaces_are_matched_as_nccl_does() {
    for (wanted, matches) in [
        ("eth", true),
        ("eth1", false),
        ("ib,eth", true),
        ("=eth", false),
        ("=eth0", true),
        ("^docker", true),
        ("^eth,lo", false),
        ("^=eth", true),
        ("^=eth0,lo", false),
    ] {
        let mut hosts = pair();
        on_gpus(&mut hosts[1]);
        on_gpus(&mut hosts[0]);
        hosts[1].nccl.insert("NCCL_SOCKET_IFNAME".to_owned(), wanted.to_owned());
        let bad = judge(&hosts).into_iter().filter(|finding| finding.verdict != HostVerdict::Good).count();
        assert_eq!(bad, usize::from(!matches), "{wanted}");
    }
}

#[test]
fn healthy_hosts_have_no_finding() {
    let bad: Vec<_> = judge(&pair()).into_iter().filter(|finding| finding.verdict != HostVerdict::Good).collect();
    assert_eq!(bad, []);
}

#[test]
fn each_fault_is_found_by_its_check_and_by_no_other() {
    type Plant = fn(&mut Facts);
    let failures: [(&str, Plant); 17] = [
        ("mpi", |f| f.machine.mpirun = None),
        ("mpi", |f| f.probe_failure = Some("mpirun has detected an attempt to run as root".to_owned())),
        ("mpi", |f| f.probe.iter_mut().for_each(|rank| rank.size = 1)),
        ("mpi", |f| f.machine.mpirun = Some("mpirun (Open MPI) 5.0.7".to_owned())),
        ("mpi library", |f| f.machine.mpi_library = Some("MPICH 4.0.2".to_owned())),
        ("threads", |f| f.probe.iter_mut().for_each(|rank| rank.level = "single".to_owned())),
        ("shared memory", |f| f.shared_memory = Some((64 << 20, 1 << 20))),
        ("shared memory", |f| {
            (f.slots, f.machine.hardware.cores, f.shared_memory) = (16, 16, Some((64 << 20, 60 << 20)));
        }),
        ("locked memory", |f| (f.rdma, f.locked_memory) = (vec!["mlx5_0".to_owned()], Some(8 << 20))),
        ("gpu", |f| f.gpus = 1),
        ("shared memory", |f| {
            on_gpus(f);
            f.shared_memory = Some((64 << 20, 60 << 20));
        }),
        ("nccl variables", |f| {
            on_gpus(f);
            f.nccl.insert("NCCL_SOCKET_IFNAME".to_owned(), "eth1,ib".to_owned());
        }),
        ("ssh", |f| f.ssh[0].mode = 0o640),
        ("name", |f| f.machine.host = "a".to_owned()),
        ("version", |f| f.machine.version = "2".to_owned()),
        ("reach", |f| f.peers[0].failure = Some("timed out".to_owned())),
        ("reach", |f| f.peers[0].address = Some("127.0.1.1".to_owned())),
    ];
    let warnings: [(&str, Plant); 13] = [
        ("python", |f| f.python = None),
        ("python", |f| f.python = Some("/usr/bin/python".to_owned())),
        ("temporary files", |f| f.temporary = Some(("/t".to_owned(), "no file can be executed there".to_owned()))),
        ("root", |f| f.uid = 0),
        ("slots", |f| f.slots = 9),
        ("shared memory", |f| f.shared_memory = Some((64 << 20, 60 << 20))),
        ("single copy", |f| f.ptrace_scope = 1),
        ("ssh", |f| f.ssh.push(SshFile { path: "/home/u/.ssh".to_owned(), mode: 0o1777, owner: 0, is_key: false })),
        ("clock", |f| f.clock = Some((-30.0, 0.1))),
        ("gpu", |f| (f.gpus, f.driver) = (1, Some("550.54".to_owned()))),
        ("nccl variables", |f| {
            on_gpus(f);
            f.nccl.insert("NCCL_SHM_DISABLE".to_owned(), "1".to_owned());
        }),
        ("nccl variables", |f| {
            on_gpus(f);
            f.nccl.insert("NCCL_COMM_BLOCKING".to_owned(), "1".to_owned());
        }),
        ("name", |f| f.own_address = None),
    ];
    let failures = failures.map(|(check, plant)| (check, plant, HostVerdict::Failure));
    let warnings = warnings.map(|(check, plant)| (check, plant, HostVerdict::Warning));
    for (number, (check, plant, verdict)) in failures.into_iter().chain(warnings).enumerate() {
        let mut hosts = pair();
        plant(&mut hosts[1]);
        let bad: Vec<_> = judge(&hosts).into_iter().filter(|finding| finding.verdict != HostVerdict::Good).collect();
        assert_eq!(bad.len(), 1, "{number}: {bad:?}");
        let found = (bad[0].check, bad[0].host.as_str(), bad[0].verdict);
        assert_eq!(found, (check, "b", verdict), "{number}: {bad:?}");
        assert!(bad[0].fix.as_ref().is_some_and(|fix| !fix.is_empty() && !fix.contains('\n')), "{number}");
    }
}

#[test]
fn a_route_that_works_in_one_direction_is_reported() {
    let mut hosts = pair();
    hosts[1].peers[0].failure = Some("timed out".to_owned());
    let found = judge(&hosts);
    let way = found.iter().find(|finding| finding.verdict == HostVerdict::Failure).unwrap();
    assert!(way.what.contains("the other direction works"), "{}", way.what);
}

#[test]
fn two_interfaces_to_the_other_hosts_are_a_warning() {
    let mut hosts = pair();
    let other = PeerHost { host: "c".to_owned(), interface: Some("docker0".to_owned()), ..hosts[0].peers[0].clone() };
    hosts[0].peers.push(other);
    assert!(judge(&hosts).iter().any(|finding| finding.what.contains("eth0 and docker0")));
}
