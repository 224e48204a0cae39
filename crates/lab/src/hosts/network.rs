//! The commands of iproute2 and util-linux that make and remove the bridge and one host.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringpull_base::{Error, Result};

use super::{address, host_name, name_space};
use ringpull_harness::link::LinkRate;

const CONGESTION_CONTROLS: [&str; 2] = ["cubic", "reno"];
/// The bridge of each rack. [`UPLINK`] has each bridge's end of the link between them.
const BRIDGES: [&str; 2] = ["ringpull0", "ringpull1"];
const UPLINK: [&str; 2] = ["rp-up0", "rp-up1"];

/// Makes one bridge; or, with `uplink`, two bridges with a link of this rate between them.
pub(super) fn add_bridges(uplink: Option<LinkRate>) -> Result<()> {
    let count = if uplink.is_some() { 2 } else { 1 };
    for bridge in &BRIDGES[..count] {
        call("ip", &["link", "add", bridge, "type", "bridge"])?;
        call("ip", &["link", "set", bridge, "up"])?;
    }
    let Some(rate) = uplink else { return Ok(()) };
    call("ip", &["link", "add", UPLINK[0], "type", "veth", "peer", "name", UPLINK[1]])?;
    for (end, bridge) in UPLINK.into_iter().zip(BRIDGES) {
        call("ip", &["link", "set", end, "master", bridge])?;
        call("ip", &["link", "set", end, "up"])?;
        if let Some(shape) = shaping(rate, rate.switch_queue_bytes()) {
            call("tc", &[&["qdisc", "add", "dev", end], words(&shape).as_slice()].concat())?;
        }
    }
    Ok(())
}

pub(super) fn remove_bridges() -> Result<()> {
    let made = [UPLINK[0], BRIDGES[0], BRIDGES[1]].into_iter().filter(|name| interface_exists(name));
    made.into_iter().try_for_each(|name| call("ip", &["link", "del", name]))
}

/// The shaper of one end of a link. `queue_bytes` may wait at it before packets are dropped.
fn shaping(rate: LinkRate, queue_bytes: u64) -> Option<String> {
    let (bits, burst) = (rate.bits_per_s()?, rate.burst_bytes()?);
    Some(format!("root tbf rate {bits}bit burst {burst}b limit {}b", burst + queue_bytes))
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

/// Makes host `host`: its name, its network, its link to its rack's bridge, and the files that name its
/// peers. The host sends and receives at the given rates.
pub(super) fn add_host(
    host: usize,
    links: &LinkAddresses,
    (sends, receives): (LinkRate, LinkRate),
    rack: usize,
) -> Result<()> {
    let name = host_name(host);
    let name = name.as_str();
    if Path::new("/run/netns").join(name).exists() {
        return Err(Error::argument(
            format!("a network namespace {name} exists that `ringpull lab` did not make"),
            format!("remove it if nobody needs it: ip netns del {name}"),
        ));
    }
    call("unshare", &[&format!("--uts={}", name_space(host).display()), "hostname", name])?;
    write_names(host, links.hosts)?;
    call("ip", &["netns", "add", name])?;
    let outer = bridge_end(host);
    let outer = outer.as_str();
    let inner = ["peer", "name", "eth0", "address", &links.of(host), "netns", name];
    call("ip", &[&["link", "add", outer, "type", "veth"], &inner[..]].concat())?;
    call("ip", &["link", "set", outer, "master", BRIDGES[rack]])?;
    call("ip", &["link", "set", outer, "up"])?;
    call("ip", &["-n", name, "addr", "add", &format!("{}/24", address(host)), "dev", "eth0"])?;
    call("ip", &["-n", name, "link", "set", "eth0", "up"])?;
    call("ip", &["-n", name, "link", "set", "lo", "up"])?;
    name_neighbours(host, links)?;
    use_usual_congestion_control(name);
    if let Some(shape) = shaping(receives, receives.switch_queue_bytes()) {
        call("tc", &[&["qdisc", "add", "dev", outer], words(&shape).as_slice()].concat())?;
    }
    if let Some(shape) = shaping(sends, LinkRate::HOST_QUEUE_BYTES) {
        call("tc", &[&["-n", name, "qdisc", "add", "dev", "eth0"], words(&shape).as_slice()].concat())?;
    }
    Ok(())
}

/// Tells a host its peers' link addresses. Addresses that hosts find out by themselves share one Linux table
/// of 1,024 entries for all namespaces of a machine. 64 hosts that all connect to each other would need four
/// times that number.
fn name_neighbours(host: usize, links: &LinkAddresses) -> Result<()> {
    let peers = (1..=links.hosts).filter(|peer| *peer != host);
    let lines = peers.map(|peer| {
        let (address, link) = (address(peer), links.of(peer));
        format!("neigh replace {address} lladdr {link} dev eth0 nud permanent\n")
    });
    run("ip", &["-n", &host_name(host), "-batch", "-"], &lines.collect::<String>()).map(drop)
}

/// The hosts' link addresses (MAC). By its link address a job recognises a host whose link was measured
/// before. So each new lab has new addresses, because the same host may have a link of another rate there.
pub(super) struct LinkAddresses {
    hosts: usize,
    lab: u64,
}

impl LinkAddresses {
    /// Makes addresses for a new lab of `hosts` hosts.
    pub(super) fn new(hosts: usize) -> Self {
        LinkAddresses { hosts, lab: RandomState::new().hash_one(std::process::id()) }
    }

    /// A locally administered address: the lab's bytes, and the last byte of the host's IPv4 address.
    fn of(&self, host: usize) -> String {
        let ([a, b, c, d, ..], [.., last]) = (self.lab.to_be_bytes(), address(host).octets());
        format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{last:02x}")
    }
}

/// Switches the link of host `host` on or off at the bridge. The host keeps its address.
pub(super) fn switch_link(host: usize, is_up: bool) -> Result<()> {
    call("ip", &["link", "set", &bridge_end(host), if is_up { "up" } else { "down" }])
}

/// Makes host `host` drop everything that it sends to other hosts, or ends that. It adds a blackhole route
/// for each half of the network: these are more specific than the route to the whole network, so they win.
pub(super) fn block(host: usize, is_blocked: bool) -> Result<()> {
    let change = if is_blocked { "add" } else { "del" };
    let mut halves = ["10.55.0.0/25", "10.55.0.128/25"].into_iter();
    halves.try_for_each(|half| call("ip", &["-n", &host_name(host), "route", change, "blackhole", half]))
}

/// Resets the connections of host `host` with other hosts.
pub(super) fn reset(host: usize) -> Result<()> {
    call("ip", &["netns", "exec", &host_name(host), "ss", "-K", "dst", super::NETWORK])
}

/// Gives the link of host `host` these rates.
pub(super) fn reshape(host: usize, (sends, receives): (LinkRate, LinkRate)) -> Result<()> {
    let (name, outer) = (host_name(host), bridge_end(host));
    let ends = [
        (receives, receives.switch_queue_bytes(), vec!["qdisc"]),
        (sends, LinkRate::HOST_QUEUE_BYTES, vec!["-n", &name, "qdisc"]),
    ];
    for (rate, queue, place) in ends {
        let end = if place.len() == 1 { outer.as_str() } else { "eth0" };
        match shaping(rate, queue) {
            Some(shape) => {
                call("tc", &[&place[..], &["replace", "dev", end], words(&shape).as_slice()].concat())?;
            }
            // There is no shaper if the link was not shaped.
            None => {
                if let Err(cause) = call("tc", &[&place[..], &["del", "dev", end, "root"]].concat()) {
                    tracing::debug!(%cause, "a link without a shaper stays so");
                }
            }
        }
    }
    Ok(())
}

/// Sets TCP's congestion control to Linux's default (cubic), whatever this machine uses. BBR, for example,
/// sets a timer for every few packets. On one machine for all hosts, the timers would take more processor
/// time than the measured work. If a namespace may not use the default, it sets Reno, which no machine
/// refuses.
fn use_usual_congestion_control(name: &str) {
    let path = "/proc/sys/net/ipv4/tcp_congestion_control";
    let write = |control| call("ip", &["netns", "exec", name, "sh", "-c", &format!("echo {control} > {path}")]);
    let [usual, instead] = CONGESTION_CONTROLS;
    if let Err(cause) = write(usual).or_else(|_| write(instead)) {
        tracing::warn!(%cause, "{name} keeps this machine's TCP congestion control instead of one of {CONGESTION_CONTROLS:?}");
    }
}

/// Ends everything that runs on host `host`, and removes all parts of the host that exist.
pub(super) fn remove_host(host: usize) -> Result<()> {
    let name = host_name(host);
    // The link is removed before its namespace. Otherwise the kernel would remove the link together with the
    // namespace, but at some later time.
    let outer = bridge_end(host);
    if interface_exists(&outer) {
        call("ip", &["link", "del", &outer])?;
    }
    if Path::new("/run/netns").join(&name).exists() && files_of(host).exists() {
        for pid in processes_on(&name)? {
            // The process may have ended by itself in between.
            if let Err(cause) = rustix::process::kill_process(pid, rustix::process::Signal::KILL) {
                tracing::debug!(?pid, %cause, "a process of an emulated host could not be killed");
            }
        }
        call("ip", &["netns", "del", &name])?;
    }
    let files = files_of(host);
    if files.exists() {
        fs::remove_dir_all(&files).map_err(|cause| Error::io("remove", files.display(), &cause))?;
    }
    let parent = Path::new("/etc/netns");
    // Only an empty folder can be removed this way: other people's namespaces keep their files.
    if let Err(cause) = fs::remove_dir(parent) {
        tracing::debug!(%cause, "/etc/netns stays");
    }
    let names = name_space(host);
    let mounts =
        fs::read_to_string("/proc/self/mounts").map_err(|cause| Error::io("read", "/proc/self/mounts", &cause))?;
    for _ in mounts.lines().filter(|line| line.split(' ').nth(1).map(Path::new) == Some(names.as_path())) {
        call("umount", &[&names.to_string_lossy()])?;
    }
    Ok(())
}

fn write_names(host: usize, hosts: usize) -> Result<()> {
    let folder = files_of(host);
    fs::create_dir_all(&folder).map_err(|cause| Error::io("create", folder.display(), &cause))?;
    let mut names = "127.0.0.1 localhost\n".to_owned();
    names.extend((1..=hosts).map(|peer| format!("{} {}\n", address(peer), host_name(peer))));
    // Without a name server, a name that is not in the list fails at once instead of after a wait.
    for (file, text) in [("hosts", names.as_str()), ("resolv.conf", "# emulated host: no name server\n")] {
        if Path::new("/etc").join(file).exists() {
            let path = folder.join(file);
            fs::write(&path, text).map_err(|cause| Error::io("write", path.display(), &cause))?;
        }
    }
    Ok(())
}

fn files_of(host: usize) -> PathBuf {
    Path::new("/etc/netns").join(host_name(host))
}

fn bridge_end(host: usize) -> String {
    format!("rp-h{host}")
}

fn interface_exists(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

fn processes_on(name: &str) -> Result<Vec<rustix::process::Pid>> {
    let text = output("ip", &["netns", "pids", name])?;
    Ok(text.lines().filter_map(|line| rustix::process::Pid::from_raw(line.trim().parse().ok()?)).collect())
}

fn call(program: &str, words: &[&str]) -> Result<()> {
    output(program, words).map(drop)
}

fn output(program: &str, words: &[&str]) -> Result<String> {
    run(program, words, "")
}

/// Runs a program that reads `input`, and returns its output.
fn run(program: &str, words: &[&str], input: &str) -> Result<String> {
    tracing::debug!("{program} {}", words.join(" "));
    let with_input = || {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        // A program that ends before it has read all input reports the reason itself.
        drop(child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    };
    let output = with_input().map_err(|cause| {
        Error::argument(
            format!("emulated hosts need {program}, which cannot be run: {cause}"),
            "install iproute2 and util-linux (scripts/setup does), or add /usr/sbin to PATH if they are there; \
             `ringpull compare --local N` needs neither",
        )
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::argument(
        format!("`{program} {}` failed: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()),
        "emulated hosts need root, network namespaces, veth and tbf; a container must be privileged. `--local N` needs none of it",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_one_lab_and_of_another_have_different_link_addresses() {
        let (one, other) = (LinkAddresses::new(64), LinkAddresses::new(64));
        let all: std::collections::BTreeSet<String> =
            (1..=64).flat_map(|host| [one.of(host), other.of(host)]).collect();
        assert_eq!(all.len(), 128);
        let is_local = |address: &String| address.starts_with("02:") && address.split(':').count() == 6;
        assert!(all.iter().all(is_local), "{all:?}");
    }
}
