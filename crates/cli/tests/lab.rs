//! Tests emulated hosts: their names, the rate of their links, and their complete removal.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ringpull_cli::mpirun::{Host, Mpirun, Ranks};
use ringpull_lab::hosts::{self as lab, Lab, RackShape, Shape};
use ringpull_processes::Processes;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The machine has only one lab, so tests take turns. Returns `None` if this machine cannot have a lab.
fn turn() -> Option<MutexGuard<'static, ()>> {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let possible = rustix::process::geteuid().is_root()
        && Command::new("ip").args(["netns", "list"]).output().is_ok_and(|output| output.status.success());
    if !possible {
        eprintln!("skipped: emulated hosts need root and ip netns");
        return None;
    }
    Some(guard)
}

fn up(hosts: usize, rate: &str) -> Lab {
    up_as(&Shape { hosts, rate: rate.parse().unwrap(), own: Vec::new(), racks: None })
}

fn up_in_racks(hosts: usize, rate: &str, racks: RackShape) -> Lab {
    up_as(&Shape { hosts, rate: rate.parse().unwrap(), own: Vec::new(), racks: Some(racks) })
}

fn up_as(shape: &Shape) -> Lab {
    let start = Instant::now();
    loop {
        match Lab::up(shape.clone()) {
            Err(error) if error.to_string().contains("in use") && start.elapsed() < Duration::from_secs(300) => {
                std::thread::park_timeout(Duration::from_millis(200));
            }
            result => return result.unwrap(),
        }
    }
}

fn ringpull(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    command.args(words).stdin(Stdio::null());
    command
}

/// While a lab is up, a rank that yields also yields to ranks of other hosts. Linux's switch for sessions is
/// off, and its value is saved, unless it was off before or cannot be set.
fn yields_reach_other_hosts() {
    let switch = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").unwrap_or_default();
    let note = Path::new("/run/ringpull/lab/sessions");
    assert!(switch.trim() == "0" || !note.exists(), "noted, but not switched off: {switch}");
    let refused = rustix::fs::access("/proc/sys/kernel/sched_autogroup_enabled", rustix::fs::Access::WRITE_OK).is_err();
    assert!(switch.trim() != "1" || refused, "sessions have their shares");
}

fn nothing_is_left() {
    for path in [
        "/run/netns/h1",
        "/run/netns/h2",
        "/etc/netns/h1",
        "/run/ringpull/lab/h1.uts",
        "/run/ringpull/lab/sessions",
        "/sys/class/net/ringpull0",
    ] {
        assert!(!Path::new(path).exists(), "{path} is left");
    }
    assert!(!std::fs::read_to_string("/proc/self/mounts").unwrap().contains("ringpull/lab"));
}

#[test]
fn every_host_has_its_name_and_finds_the_others() {
    let Some(_turn) = turn() else { return };
    let lab = up(3, "none");
    yields_reach_other_hosts();
    let names = "hostname; getent hosts h3; getent hosts nosuch || echo none";
    let output = ringpull(&["lab", "exec", "h2", "sh", "-c", names]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words, ["h2", "10.55.0.3", "h3", "none"]);
    let code = ringpull(&["lab", "exec", "h1", "sh", "-c", "exit 9"]).status().unwrap().code();
    assert_eq!(code, Some(9));
    let output = ringpull(&["lab", "exec", "h4", "true"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("its hosts are h1 to h3"));
    drop(lab);
    nothing_is_left();
}

/// The program that the goodput test runs on the hosts, in this same test binary.
#[test]
fn goodput_peer() {
    let Ok(role) = std::env::var("LAB_TEST_ROLE") else { return };
    let block = vec![0u8; 1 << 20];
    if role == "receive" {
        let listener = TcpListener::bind("0.0.0.0:5055").unwrap();
        println!("listening");
        let mut stream = listener.accept().unwrap().0;
        let (mut received, mut buffer, start) = (0, vec![0u8; 1 << 20], Instant::now());
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => break,
                count => received += count,
            }
        }
        println!("goodput {}", received as f64 / start.elapsed().as_secs_f64());
    } else {
        let mut stream = std::net::TcpStream::connect("h2:5055").unwrap();
        for _ in 0..24 {
            stream.write_all(&block).unwrap();
        }
    }
}

#[test]
fn a_link_carries_about_its_rate() {
    let Some(_turn) = turn() else { return };
    let _lab = up(2, "100mbit");
    let peer = |host: &str, role: &str| {
        let mut command = ringpull(&["lab", "exec", host]);
        command
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "goodput_peer", "--nocapture"])
            .env("LAB_TEST_ROLE", role)
            .stdout(Stdio::piped());
        command
    };
    let mut receiver = peer("h2", "receive").spawn().unwrap();
    let mut out = receiver.stdout.take().unwrap();
    let mut text = String::new();
    let mut byte = [0u8];
    while !text.contains("listening") {
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{text}");
        text.push(char::from(byte[0]));
    }
    assert!(peer("h1", "send").status().unwrap().success());
    out.read_to_string(&mut text).unwrap();
    assert!(receiver.wait().unwrap().success());
    let goodput: f64 = text.split("goodput ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let ratio = goodput / (100e6 / 8.0);
    assert!((0.5..1.05).contains(&ratio), "the link carried {ratio} of its rate");
}

#[test]
fn a_lab_in_use_is_an_error_that_names_the_process() {
    let Some(_turn) = turn() else { return };
    let lab = up(1, "none");
    let output = ringpull(&["lab", "down"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&format!("in use by process {}", std::process::id())), "{text}");
    drop(lab);
    nothing_is_left();
}

#[test]
fn what_a_killed_run_left_is_removed() {
    let Some(_turn) = turn() else { return };
    up(2, "10mbit").leave_up();
    let mut sleeper = ringpull(&["lab", "exec", "h1", "sleep", "3600"]).spawn().unwrap();
    let start = Instant::now();
    while Command::new("ip").args(["netns", "pids", "h1"]).output().unwrap().stdout.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing runs on h1");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    // A damaged lab: its record and one link are missing.
    std::fs::remove_file("/run/ringpull/lab/shape.json").unwrap();
    assert!(Command::new("ip").args(["link", "del", "rp-h1"]).status().unwrap().success());
    let done = ringpull(&["lab", "down"]).status().unwrap();
    assert!(done.success());
    nothing_is_left();
    if sleeper.try_wait().unwrap().is_none() {
        sleeper.kill().unwrap();
    }
    sleeper.wait().unwrap();
    assert!(ringpull(&["lab", "down"]).status().unwrap().success());
}

#[test]
fn mpirun_puts_ranks_on_the_hosts_in_turn() {
    let Some(_turn) = turn() else { return };
    let Ok(mpirun) = Mpirun::find() else {
        eprintln!("skipped: mpirun is not installed");
        return;
    };
    let _lab = up(3, "none");
    let mut processes = Processes::new();
    let ranks = Ranks {
        count: 4,
        command: processes.redirected(["sh", "-c", "echo $(hostname) $A"]),
        env: vec![("A".to_owned(), "passed".to_owned())],
    };
    let mut ready = mpirun.command(&[1, 2, 3].map(Host::Lab), ranks).unwrap();
    processes.succeed("mpirun", &mut ready.command);
    let printed = [0, 1, 2, 3].map(|rank| processes.rank(rank).out);
    assert_eq!(printed, ["h1 passed\n", "h2 passed\n", "h3 passed\n", "h1 passed\n"], "{processes}");
    assert_eq!(processes.written("mpirun").out, "", "nothing else is printed");
    assert_eq!(lab::hosts_up(), 3);
}

/// The output of rank 0 of `ringpull bench allreduce` with `words` over `count` ranks, which are on the lab's
/// hosts in turn.
fn bench_on(hosts: &[usize], count: usize, words: &[&str]) -> String {
    let words = [&["bench", "allreduce", "--sizes", "4,64KiB,3MB", "--format", "json"], words].concat();
    let printed = ranks_on(hosts, count, &words, Path::new("none"));
    printed.split_whitespace().collect()
}

/// The output of rank 0 of `ringpull` with `words` over `count` ranks, which are on the lab's hosts in turn
/// and use this cluster file.
fn ranks_on(hosts: &[usize], count: usize, words: &[&str], file: &Path) -> String {
    let mut processes = Processes::new();
    let command = processes.redirected(std::iter::once(env!("CARGO_BIN_EXE_ringpull")).chain(words.iter().copied()));
    let variable = |name: &str, path: &Path| (name.to_owned(), path.display().to_string());
    // The cache folder cannot be used.
    let env = vec![variable("RINGPULL_CLUSTER", file), variable("XDG_CACHE_HOME", Path::new("/proc/none"))];
    let hosts: Vec<Host> = hosts.iter().copied().map(Host::Lab).collect();
    let mut ready = Mpirun::find().unwrap().command(&hosts, Ranks { count, command, env }).unwrap();
    processes.succeed("mpirun", &mut ready.command);
    processes.rank(0).out
}

/// Returns true if ranks can be started on the lab's hosts.
fn can_run_ranks() -> bool {
    match Mpirun::find() {
        Err(_) => eprintln!("skipped: mpirun is not installed"),
        // Debian 12's MPICH 4.0.2 over UCX: a plain program of MPI_Init, MPI_Barrier and MPI_Finalize hangs
        // every second time on links of TCP.
        Ok(mpirun) if mpirun.flavour() == ringpull_cli::mpirun::Flavour::Mpich => {
            eprintln!("skipped: MPI_Finalize of this MPICH hangs over TCP");
        }
        Ok(_) => return true,
    }
    false
}

#[test]
fn ranks_that_share_a_host_share_memory_and_hosts_exchange_messages() {
    let Some(_turn) = turn().filter(|_| can_run_ranks()) else { return };
    let lab = up(2, "none");
    for (hosts, count, placement) in [(&[1, 2][..], 4, "[[0,2],[1,3]]"), (&[1, 2, 1], 3, "[[0,2],[1]]")] {
        let told = bench_on(hosts, count, &["--explain"]);
        assert!(told.contains(placement), "{told}");
        // Every sum is checked by the command itself.
        let measured = bench_on(hosts, count, &["--iters", "3", "--warmup", "1"]);
        assert_eq!(measured.matches("\"seconds\"").count(), 3, "{measured}");
    }
    drop(lab);
}

#[test]
fn two_racks_are_joined_by_one_link_of_its_own_rate() {
    let Some(_turn) = turn() else { return };
    let lab = up_in_racks(4, "none", RackShape { uplink: "50mbit".parse().unwrap(), alternate: false });
    let master = |port: &str| std::fs::read_link(format!("/sys/class/net/{port}/master")).unwrap();
    assert!(master("rp-h2").ends_with("ringpull0") && master("rp-h3").ends_with("ringpull1"));
    let shaper = Command::new("tc").args(["qdisc", "show", "dev", "rp-up1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&shaper.stdout).contains("50Mbit"));
    assert!(ringpull(&["lab", "exec", "h1", "getent", "hosts", "h4"]).status().unwrap().success());
    drop(lab);
    assert!(!Path::new("/sys/class/net/ringpull1").exists() && !Path::new("/sys/class/net/rp-up0").exists());
}

#[test]
fn a_probe_finds_the_racks_that_nobody_has_named_and_jobs_go_by_them() {
    let Some(_turn) = turn().filter(|_| can_run_ranks()) else { return };
    let lab = up_in_racks(6, "40mbit", RackShape { uplink: "5mbit".parse().unwrap(), alternate: true });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.toml");
    let hosts = [1, 2, 3, 4, 5, 6];
    let table = ranks_on(&hosts, 6, &["probe", "--out", file.to_str().unwrap()], Path::new("none"));
    assert!(table.contains("\nh6") && table.contains("the links are alike"), "{table}");
    let words = ["bench", "allreduce", "--sizes", "300kB", "--format", "json", "--explain"];
    let told: String = ranks_on(&hosts, 6, &words, &file).split_whitespace().collect();
    assert!(told.contains("[[0,2,4],[1,3,5]]"), "{told}");
    drop(lab);
}
