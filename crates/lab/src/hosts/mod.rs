//! Emulated hosts on one Linux machine: network namespaces `h1`..`hN` on one bridge, host I at 10.55.0.I,
//! every link shaped in both directions, every host with its own name.
//!
//! ```text
//!   h1 (10.55.0.1)        h2 (10.55.0.2)             the queue on eth0 shapes what the host sends,
//!     eth0                  eth0                      the queue on rp-hI what it receives
//!      |                     |
//!    rp-h1 ---- ringpull0 ---- rp-h2 ...
//! ```
//!
//! A lab in two racks has two bridges, and one shaped link between them. Either each half of the hosts has
//! one bridge, or the hosts alternate between the bridges.
//!
//! One process at a time may change the lab or measure on it. It holds a lock (`lock`), which the kernel
//! releases when that process ends. Files in `/run/ringpull/lab` name each host before it is created, so that
//! [`Lab::remove`] finds all hosts, also if the process was killed while it created them. `network` creates
//! and removes one host; `sessions` sets how hosts share the processors.

mod lock;
mod network;
mod sessions;

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use self::lock::LabLock;
use self::network::LinkAddresses;
use ringpull_base::{Error, Result};
use ringpull_harness::link::LinkRate;
use ringpull_harness::progress::Progress;
pub use ringpull_harness::shape::{HostRate, RackShape, Shape};

/// The network of the lab's hosts, for programs that have an option for the interface to use.
pub const NETWORK: &str = "10.55.0.0/24";

const FOLDER: &str = "/run/ringpull/lab";

/// Emulated hosts that are up, for the one process that holds them. Dropping the `Lab` removes the hosts that
/// this process created.
#[derive(Debug)]
pub struct Lab {
    shape: Shape,
    made_here: bool,
    _lock: LabLock,
}

impl Lab {
    /// Creates the hosts. A lab of the same shape that is already up is used, and left up when the `Lab` is
    /// dropped; any other lab is removed first. It is an error if another process uses the lab.
    pub fn up(shape: Shape) -> Result<Self> {
        shape.check()?;
        need_root()?;
        let lock = LabLock::take()?;
        if read_shape().as_ref() == Some(&shape) {
            sessions::level(Path::new(sessions::SWITCH), &file("sessions"))?;
            return Ok(Lab { shape, made_here: false, _lock: lock });
        }
        clear()?;
        // From here on a drop removes what exists, also when a later step fails.
        let lab = Lab { shape: shape.clone(), made_here: true, _lock: lock };
        sessions::level(Path::new(sessions::SWITCH), &file("sessions"))?;
        network::add_bridges(shape.racks.map(|racks| racks.uplink))?;
        let links = LinkAddresses::new(shape.hosts);
        let progress = Progress::start("making emulated hosts");
        for host in 1..=shape.hosts {
            progress.part(host - 1, shape.hosts, format!("making host h{host}"));
            mark(host)?;
            network::add_host(host, &links, shape.link(host), shape.rack(host))?;
        }
        write_shape(&shape)?;
        Ok(lab)
    }

    /// The two racks, if the lab has racks.
    pub fn racks(&self) -> Option<RackShape> {
        self.shape.racks
    }

    /// The hosts whose links have rates of their own.
    pub fn own_links(&self) -> &[HostRate] {
        &self.shape.own
    }

    /// Switches the link of host `host` on or off.
    #[allow(clippy::unused_self, reason = "only the process that holds the lab may change it")]
    pub fn switch_link(&self, host: usize, is_up: bool) -> Result<()> {
        network::switch_link(host, is_up)
    }

    /// Makes host `host` drop everything that it sends to other hosts, or ends that.
    #[allow(clippy::unused_self, reason = "only the process that holds the lab may change it")]
    pub fn block(&self, host: usize, is_blocked: bool) -> Result<()> {
        network::block(host, is_blocked)
    }

    /// Resets the connections of host `host` with other hosts.
    #[allow(clippy::unused_self, reason = "only the process that holds the lab may change it")]
    pub fn reset(&self, host: usize) -> Result<()> {
        network::reset(host)
    }

    /// Gives the link of host `host` this rate in both directions. `None` gives it the rate of the lab's
    /// shape again.
    pub fn reshape(&self, host: usize, rate: Option<LinkRate>) -> Result<()> {
        network::reshape(host, rate.map_or_else(|| self.shape.link(host), |rate| (rate, rate)))
    }

    /// Leaves the hosts up when this process ends.
    pub fn leave_up(mut self) {
        self.made_here = false;
    }

    /// Removes a lab, complete or not. It is an error if another process uses the lab.
    pub fn remove() -> Result<()> {
        need_root()?;
        let _lock = LabLock::take()?;
        clear()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.made_here
            && let Err(error) = clear()
        {
            eprintln!("warning: {error}\n  hint: `ringpull lab down` removes what is left of the emulated hosts");
        }
    }
}

/// The address of host `host`, counted from 1.
pub fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 55, 0, host as u8)
}

/// Gives hosts of the present lab these rates. It is an error if another process measures on the lab.
pub fn change_rates(own: &[HostRate]) -> Result<()> {
    need_root()?;
    let _lock = LabLock::take()?;
    let Some(mut shape) = read_shape() else {
        return Err(Error::argument("no lab is up", "make one with `ringpull lab up 8 200mbit`"));
    };
    for rate in own {
        shape.own.retain(|known| known.host != rate.host);
        shape.own.push(*rate);
    }
    shape.check()?;
    own.iter().try_for_each(|rate| network::reshape(rate.host, (rate.sends, rate.receives)))?;
    // From now on a lab of the old shape counts as a different lab.
    write_shape(&shape)
}

/// The number of hosts that the present lab has, whichever process holds it; 0 if none is up.
pub fn hosts_up() -> usize {
    read_shape().map_or(0, |shape| shape.hosts)
}

/// Returns the number of host `hI` of the present lab.
pub fn find_host(name: &str) -> Result<usize> {
    need_root()?;
    let up = hosts_up();
    let number = name.strip_prefix('h').and_then(|digits| digits.parse().ok());
    number.filter(|number| (1..=up).contains(number)).ok_or_else(|| {
        let (what, remedy) = match up {
            0 => (
                format!("there is no host {name}: no lab is up"),
                "make one with `ringpull lab up 8 200mbit`".to_owned(),
            ),
            _ => (format!("there is no host {name} in the lab"), format!("its hosts are h1 to h{up}")),
        };
        Error::argument(what, remedy)
    })
}

/// The words to put before a program's name to run it on host `host`. They enter the host's name first, then
/// its network.
pub fn entry(host: usize) -> Vec<String> {
    let names = name_space(host);
    ["nsenter", &format!("--uts={}", names.display()), "--", "ip", "netns", "exec", &host_name(host)]
        .map(str::to_owned)
        .to_vec()
}

/// The name of host `host`.
pub fn host_name(host: usize) -> String {
    format!("h{host}")
}

fn name_space(host: usize) -> PathBuf {
    file(&format!("h{host}.uts"))
}

fn mark(host: usize) -> Result<()> {
    let path = name_space(host);
    fs::write(&path, "").map_err(|cause| Error::io("write", path.display(), &cause))
}

fn marked() -> Result<Vec<usize>> {
    let entries = match fs::read_dir(FOLDER) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::io("read", FOLDER, &cause)),
    };
    let mut hosts: Vec<usize> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix('h')?.strip_suffix(".uts")?.parse().ok())
        .collect();
    hosts.sort_unstable();
    Ok(hosts)
}

/// A file of the lab's own.
fn file(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

fn read_shape() -> Option<Shape> {
    serde_json::from_slice(&fs::read(file("shape.json")).ok()?).ok()
}

fn write_shape(shape: &Shape) -> Result<()> {
    let path = file("shape.json");
    let text = serde_json::to_string(shape).expect("a shape is plain data");
    fs::write(&path, text).map_err(|cause| Error::io("write", path.display(), &cause))
}

fn clear() -> Result<()> {
    let remove = |path: &Path| match fs::remove_file(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path.display(), &cause)),
        _ => Ok(()),
    };
    remove(&file("shape.json"))?;
    let restored = sessions::restore(Path::new(sessions::SWITCH), &file("sessions"));
    let (hosts, progress) = (marked()?, Progress::start("removing emulated hosts"));
    for (done, host) in hosts.iter().copied().enumerate() {
        progress.part(done, hosts.len(), format!("removing host h{host}"));
        network::remove_host(host)?;
        remove(&name_space(host))?;
    }
    network::remove_bridges()?;
    restored
}

fn need_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::argument(
        "emulated hosts need root",
        "run it as root, or use `ringpull compare --local N`, which runs N processes on this host without shaped links",
    ))
}
