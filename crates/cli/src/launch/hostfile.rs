//! Hostfiles: one `host[:port] [slots=n]` per line; `#` begins a comment.

use std::path::Path;
use std::str::FromStr;

use ringpull_base::{Error, Result};

/// A host that ssh reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshHost {
    /// Its name or address, with the user's name before an `@` if it differs.
    pub login: String,
    /// Its name or address alone.
    pub name: String,
    /// The port of its ssh server, if not ssh's own choice.
    pub port: Option<u16>,
    /// How many processes it takes.
    pub slots: usize,
    /// The folder that processes start in, if not the launcher's working folder.
    pub folder: Option<String>,
}

impl FromStr for SshHost {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let bad =
            || Error::argument(format!("invalid line {line:?} of a hostfile"), "write host, host:port or host slots=4");
        let mut words = line.split_whitespace();
        let address = words.next().ok_or_else(bad)?;
        // A colon more than once is an IPv6 address without a port.
        let (login, port) = match address.split_once(':') {
            Some((login, port)) if !port.contains(':') => (login, Some(port.parse().map_err(|_| bad())?)),
            _ => (address, None),
        };
        let name = login.rsplit('@').next().unwrap_or(login);
        if name.is_empty() || login.starts_with('-') {
            return Err(bad());
        }
        let mut slots = 1;
        for word in words {
            let count = word.strip_prefix("slots=").and_then(|count| count.parse().ok());
            slots = count.filter(|count| *count > 0).ok_or_else(bad)?;
        }
        Ok(SshHost { login: login.to_owned(), name: name.to_owned(), port, slots, folder: None })
    }
}

impl SshHost {
    /// Whether its name is this host's for itself.
    pub(crate) fn is_this(&self) -> bool {
        self.name == "localhost" || self.name == "127.0.0.1"
    }

    /// Whether it is this host, as this user reaches it without ssh: by its name for itself, or by the one
    /// that others have for it.
    pub(crate) fn is_here(&self) -> bool {
        use std::net::{ToSocketAddrs as _, UdpSocket};
        let first = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let own = first(&rustix::system::uname().nodename().to_string_lossy());
        // Other domains may have a host of this name: only an address of this host can be bound.
        let has_its_address = || {
            let found = (&self.name[..], 0).to_socket_addrs();
            found.is_ok_and(|mut found| found.any(|address| UdpSocket::bind(address).is_ok()))
        };
        self.port.is_none()
            && self.login == self.name
            && (self.is_this() || first(&self.name) == own && has_its_address())
    }
}

/// The hosts of an option: those of the file of this name, or the list itself. None if all of a list are this
/// host, which needs no ssh.
pub(crate) fn hosts(option: &Path) -> Result<Vec<SshHost>> {
    let Some(list) = option.to_str().filter(|text| text.contains([':', ',']) && !option.exists()) else {
        return read(option);
    };
    let mut hosts = parse_list(list)?;
    if hosts.iter().all(SshHost::is_this) {
        hosts.clear();
    }
    Ok(hosts)
}

/// Reads a hostfile; a file without hosts is an error.
pub(crate) fn read(path: &Path) -> Result<Vec<SshHost>> {
    let text = std::fs::read_to_string(path).map_err(|cause| Error::io("read", path.display(), &cause))?;
    let hosts = parse(&text)?;
    if hosts.is_empty() {
        return Err(Error::argument(
            format!("the hostfile {} names no host", path.display()),
            "write one host per line: host[:port] [slots=n]",
        ));
    }
    Ok(hosts)
}

/// The hosts that an option names now: those of the file of this name, which may have none, or the list
/// itself.
pub(crate) fn listed(option: &Path) -> Result<Vec<SshHost>> {
    if let Some(list) = option.to_str().filter(|text| text.contains([':', ',']) && !option.exists()) {
        return parse_list(list);
    }
    let text = std::fs::read_to_string(option).map_err(|cause| Error::io("read", option.display(), &cause))?;
    parse(&text)
}

/// The hosts of a list on the command line, as `horovodrun` takes it: `host1:2,host2:2`, the numbers being
/// slots.
fn parse_list(text: &str) -> Result<Vec<SshHost>> {
    text.split(',').map(|item| with_slots(item, 1)).collect()
}

/// The hosts of a discovery script's output, as Horovod has it: a line `host[:slots]` for each. A host takes
/// so many slots if its line has no number.
pub(crate) fn parse_lines(text: &str, slots: usize) -> Result<Vec<SshHost>> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| with_slots(line, slots)).collect()
}

fn with_slots(item: &str, slots: usize) -> Result<SshHost> {
    if let Some((host, slots)) = item.split_once(':') {
        return format!("{host} slots={slots}").parse();
    }
    let host: SshHost = item.parse()?;
    Ok(if item.contains("slots=") { host } else { SshHost { slots, ..host } })
}

/// The hosts of a hostfile's text.
pub(crate) fn parse(text: &str) -> Result<Vec<SshHost>> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    lines.filter(|line| !line.is_empty()).map(str::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_host_its_port_and_its_slots() {
        let host: SshHost = "ann@node1:2222 slots=4".parse().unwrap();
        assert_eq!(
            host,
            SshHost { login: "ann@node1".into(), name: "node1".into(), port: Some(2222), slots: 4, folder: None }
        );
        let host: SshHost = "fe80::1".parse().unwrap();
        assert_eq!((host.name.as_str(), host.port, host.slots), ("fe80::1", None, 1));
    }

    #[test]
    fn a_list_names_hosts_and_their_slots() {
        let hosts = parse_list("node1:4,ann@node2").unwrap();
        assert_eq!((hosts[0].name.as_str(), hosts[0].slots, hosts[0].port), ("node1", 4, None));
        assert_eq!((hosts[1].login.as_str(), hosts[1].slots), ("ann@node2", 1));
        let hosts = parse_lines("node1:4\n\nnode2\n", 2).unwrap();
        assert_eq!(
            hosts.iter().map(|host| (&host.name[..], host.slots)).collect::<Vec<_>>(),
            [("node1", 4), ("node2", 2)]
        );
        assert!(parse_lines("node1:many\n", 1).is_err());
        assert!(parse_list("node1:0").is_err() && parse_list("node1:4,").is_err());
        assert_eq!(super::hosts(Path::new("node1:1,node2:1")).unwrap().len(), 2);
        assert!(super::hosts(Path::new("localhost:4")).unwrap().is_empty());
    }

    #[test]
    fn a_host_is_this_one_by_its_own_name_and_no_other() {
        let is_here = |line: &str| line.parse::<SshHost>().unwrap().is_here();
        assert!(is_here("localhost") && !is_here("localhost:22") && !is_here("ann@localhost"));
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert!(!is_here(&format!("{own}.nowhere.invalid")) && !is_here("nowhere.invalid"));
    }

    #[test]
    fn an_invalid_line_is_an_error() {
        for line in ["node1:ssh", "node1 slots=0", "node1 slots", "-oProxyCommand=x", ":22", "a b"] {
            assert!(line.parse::<SshHost>().is_err(), "{line}");
        }
    }
}
