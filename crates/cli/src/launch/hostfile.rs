//! Lists of hosts in all common spellings: the option `-H`, hostfiles and the output of discovery scripts.
//! One parser reads all of them.
//!
//! A line of a hostfile or script, and an item of a list, names one host and its properties:
//!
//! | spelling | where it is from |
//! | --- | --- |
//! | `host`, `user@host` | PBS's node file, a line for each slot |
//! | `host slots=4 max_slots=8`, also `max-slots`, `count`, `cpus` | Open MPI |
//! | `host:4` | MPICH, Intel MPI, Horovod |
//! | `host:2222`, `host port=2222`, `host:2222 slots=4` | the port of the host's ssh server |
//! | `host 4 queue@host UNDEFINED` | the `PE_HOSTFILE` of Grid Engine |
//! | `[fd00::1]:4`, `fd00::1` | addresses of IPv6; those without brackets have no number |
//!
//! The number behind a colon is a number of slots, except in two cases: if the slots are given separately,
//! and in a hostfile if the number is 22 or at least 1024. In practice no host has this number of slots, and
//! ssh servers have these ports.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ringpull_base::{Error, Result, config};

/// A host that ssh reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshHost {
    /// Its name or address, with the user's name before an `@` if it differs.
    pub login: String,
    /// Its name or address alone.
    pub name: String,
    /// The port of its ssh server. `None` lets ssh choose.
    pub port: Option<u16>,
    /// The number of processes that it takes.
    pub slots: usize,
    /// The folder in which processes start, if it is not the launcher's working folder.
    pub folder: Option<String>,
}

impl SshHost {
    /// Returns true if it is this host and needs no ssh: it has one of this host's names or addresses, no
    /// port and no other user.
    pub(crate) fn is_here(&self) -> bool {
        let user = self.login.strip_suffix(&self.name).and_then(|user| user.strip_suffix('@'));
        let own = ["USER", "LOGNAME"].into_iter().find_map(config::text);
        self.port.is_none() && (user.is_none() || user == own.as_deref()) && names_this_host(&self.name)
    }
}

/// Returns true if this host has the name, or the addresses to which the name resolves.
pub(crate) fn names_this_host(name: &str) -> bool {
    static KNOWN: Mutex<BTreeMap<String, bool>> = Mutex::new(BTreeMap::new());
    if name == "localhost" || rustix::system::uname().nodename().to_string_lossy() == name {
        return true;
    }
    if let Some(known) = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
        return *known;
    }
    let Ok(found) = (name, 0).to_socket_addrs() else { return false };
    let found: Vec<IpAddr> = found.map(|address| address.ip().to_canonical()).collect();
    let own: Vec<IpAddr> = if_addrs::get_if_addrs().unwrap_or_default().iter().map(if_addrs::Interface::ip).collect();
    let is_here = !found.is_empty() && found.iter().all(|address| address.is_loopback() || own.contains(address));
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), is_here);
    is_here
}

/// The hosts that an option names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostList {
    /// The hosts of a file, which may change.
    File(PathBuf),
    /// The hosts in this text.
    List(String),
}

impl HostList {
    /// Takes the option as a file if a file of this name exists or if the text can only be a file's name;
    /// otherwise as the hosts themselves.
    pub(crate) fn of(option: &Path) -> Self {
        match option.to_str() {
            Some(list) if !option.is_file() && !list.contains('/') => HostList::List(list.to_owned()),
            _ => HostList::File(option.to_owned()),
        }
    }

    /// Returns the hosts that are listed now. There may be none.
    pub(crate) fn listed(&self) -> Result<Vec<SshHost>> {
        match self {
            HostList::List(text) => parse_list(text),
            HostList::File(path) => {
                let io = |cause| Error::io("read", path.display(), &cause);
                let text = String::from_utf8(std::fs::read(path).map_err(io)?).map_err(|_| {
                    Error::argument(format!("the hostfile {} is not text in UTF-8", path.display()), "save it as UTF-8")
                })?;
                parse(&text, &format!("the hostfile {}", path.display()), Dialect { slots: 1, has_ports: true })
            }
        }
    }

    /// Returns the hosts that are listed now. It is an error if there are none.
    pub(crate) fn read(&self) -> Result<Vec<SshHost>> {
        let hosts = self.listed()?;
        if hosts.is_empty() {
            let what = match self {
                HostList::List(text) => format!("-H {text:?} names no host"),
                HostList::File(path) => format!("the hostfile {} names no host", path.display()),
            };
            return Err(Error::argument(
                what,
                "name hosts as host1:2,host2:2, or write host slots=2 on a line for each",
            ));
        }
        Ok(hosts)
    }

    /// Another possible meaning of the list, for the error of a host that does not answer.
    pub(crate) fn doubt(&self, host: &SshHost) -> Option<String> {
        match self {
            _ if host.name.contains(':') && host.slots == 1 => {
                Some(format!("{} was read as an address without a number: slots are written [address]:2", host.name))
            }
            HostList::List(list) if *list == host.login => {
                Some(format!("there is no hostfile {list} in the working folder"))
            }
            HostList::File(_) if host.port.is_none() && host.slots > 1 => {
                Some(format!("{} has {} slots: a port is written port=2222", host.name, host.slots))
            }
            _ => None,
        }
    }
}

/// The hosts of a discovery script's output, which has a line for each. A host without a number has `slots`
/// slots.
pub(crate) fn parse_output(text: &str, script: &Path, slots: usize) -> Result<Vec<SshHost>> {
    parse(text, &format!("the script {}", script.display()), Dialect { slots, has_ports: false })
}

/// The hosts of a list on the command line, between commas, blanks or line feeds.
fn parse_list(text: &str) -> Result<Vec<SshHost>> {
    let joined = without_blanks(text);
    let mut items: Vec<Vec<&str>> = Vec::new();
    for word in joined.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty()) {
        match items.last_mut() {
            Some(item) if word.contains('=') => item.push(word),
            _ => items.push(vec![word]),
        }
    }
    let reading = Dialect { slots: 1, has_ports: false };
    let hosts = items.iter().map(|words| {
        reading.host(words).map_err(|why| invalid(&format!("host {:?} of -H {text:?}", words.join(" ")), &why))
    });
    Ok(merged(hosts.collect::<Result<_>>()?))
}

/// Parses the hosts of lines; errors name their origin `from`.
fn parse(text: &str, from: &str, reading: Dialect) -> Result<Vec<SshHost>> {
    let lines = text.trim_start_matches('\u{feff}').split(['\n', '\r']);
    let hosts = lines.filter_map(|line| {
        let joined = without_blanks(line.split('#').next().unwrap_or_default());
        let words: Vec<&str> = joined.split_whitespace().collect();
        let host = reading.host(&words).map_err(|why| invalid(&format!("line {:?} of {from}", line.trim()), &why));
        (!words.is_empty()).then_some(host)
    });
    Ok(merged(hosts.collect::<Result<_>>()?))
}

fn invalid(what: &str, why: &str) -> Error {
    Error::argument(
        format!("invalid {what}: {why}"),
        "write host, host:4 or host slots=4; addresses of IPv6 as [fd00::1]:4; the port of ssh as port=2222",
    )
}

/// The text with `slots = 2` as `slots=2`.
fn without_blanks(text: &str) -> String {
    text.split('=').map(str::trim).collect::<Vec<_>>().join("=")
}

/// Each host once, with all its slots: PBS has a line for each slot, Grid Engine one for each queue.
fn merged(hosts: Vec<SshHost>) -> Vec<SshHost> {
    let mut distinct: Vec<SshHost> = Vec::new();
    for host in hosts {
        match distinct.iter_mut().find(|known| known.login == host.login && known.port == host.port) {
            Some(known) => known.slots += host.slots,
            None => distinct.push(host),
        }
    }
    distinct
}

/// The reading of words for which programs have different meanings.
#[derive(Debug, Clone, Copy)]
struct Dialect {
    /// The slots of a host without a number.
    slots: usize,
    /// True if a number that is unlikely as a number of slots is a port.
    has_ports: bool,
}

/// The most slots that a host may have.
const MOST_SLOTS: usize = 65_536;

impl Dialect {
    /// Returns the host that these words name, or the reason why they name none.
    fn host(self, words: &[&str]) -> Result<SshHost, String> {
        let (address, rest) = words.split_first().ok_or("there is no host")?;
        let (mut user, name, number) = split(address)?;
        let (mut slots, mut most, mut port) = (None, None, None);
        let rest = match rest.split_first() {
            // Grid Engine: the slots, the queue and the processors.
            Some((count, queue))
                if is_number(count) && queue.len() <= 2 && !queue.iter().any(|it| it.contains('=')) =>
            {
                slots = Some(slots_of(count)?);
                &[]
            }
            _ => rest,
        };
        for word in rest {
            let Some((key, value)) = word.split_once('=') else {
                return Err(format!("{word:?} is not name=value"));
            };
            match &key.to_ascii_lowercase().replace('-', "_")[..] {
                "slots" | "count" | "cpu" | "cpus" | "np" => slots = Some(slots_of(value)?),
                "max_slots" | "slots_max" | "max_count" | "count_max" => most = Some(slots_of(value)?),
                "port" => port = Some(port_of(value)?),
                "user" | "username" | "user_name" => user = Some(value),
                _ => return Err(format!("{key}= is not known: slots=, max_slots=, port= and user= are")),
            }
        }
        if let Some(number) = number {
            let is_port = slots.is_some() || self.has_ports && is_likely_port(number);
            if is_port && port.is_none() {
                port = Some(port_of(number)?);
            } else if slots.is_none() {
                slots = Some(slots_of(number)?);
            } else {
                return Err(format!("{number:?} is neither the port nor the slots, which are given apart"));
            }
        }
        if let (Some(slots), Some(most)) = (slots, most)
            && slots > most
        {
            return Err(format!("it has more slots than max_slots={most}"));
        }
        check(name, user)?;
        let login = user.map_or_else(|| name.to_owned(), |user| format!("{user}@{name}"));
        Ok(SshHost { login, name: name.to_owned(), port, slots: slots.or(most).unwrap_or(self.slots), folder: None })
    }
}

/// The user, the host and the number of `user@host:number`.
fn split(address: &str) -> Result<(Option<&str>, &str, Option<&str>), String> {
    let (user, rest) = address.rsplit_once('@').map_or((None, address), |(user, rest)| (Some(user), rest));
    if let Some(bracketed) = rest.strip_prefix('[') {
        let (inner, behind) = bracketed.split_once(']').ok_or("the bracket is not closed")?;
        let number = match behind.strip_prefix(':') {
            Some(number) => Some(number),
            None if behind.is_empty() => None,
            None => return Err(format!("{behind:?} is not a colon and a number")),
        };
        return if is_ipv6(inner) {
            Ok((user, inner, number))
        } else {
            Err(format!("{inner:?} is no address of IPv6"))
        };
    }
    if rest.contains('[') {
        return Err("ranges of hosts are not expanded: list each host, as `scontrol show hostnames` does".to_owned());
    }
    match rest.split_once(':') {
        Some(_) if is_ipv6(rest) => Ok((user, rest, None)),
        Some((_, number)) if number.contains(':') => Err("it has two colons, and is no address of IPv6".to_owned()),
        Some((name, number)) => Ok((user, name, Some(number))),
        None => Ok((user, rest, None)),
    }
}

/// Returns true if the text is an address of IPv6. It may have the name of an interface behind a percent
/// sign.
fn is_ipv6(text: &str) -> bool {
    text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_likely_port(number: &str) -> bool {
    number.parse::<u64>().is_ok_and(|number| number == 22 || number >= 1024)
}

fn slots_of(text: &str) -> Result<usize, String> {
    let slots = text.parse().ok().filter(|slots| (1..=MOST_SLOTS).contains(slots));
    slots.ok_or_else(|| format!("{text:?} is no number of slots, 1 to {MOST_SLOTS}"))
}

fn port_of(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("{text:?} is no port, 1 to 65535"))
}

/// Returns an error if no host or user can have this name. The names become words of shell scripts and
/// arguments of programs.
fn check(name: &str, user: Option<&str>) -> Result<(), String> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_legal) {
        return Err(format!("{name:?} is no name of a host"));
    }
    let is_user = |user: &str| {
        let is_legal = |c: char| c.is_ascii_graphic() && !"'\"`$!,".contains(c);
        !user.is_empty() && !user.starts_with('-') && user.chars().all(is_legal)
    };
    user.filter(|user| !is_user(user)).map_or(Ok(()), |user| Err(format!("{user:?} is no name of a user")))
}

/// Reads lists of hosts of every sort, for a fuzz target. No word of a host may be an option of ssh, and a
/// host that is written and read again must be the same.
#[cfg(fuzzing)]
pub(crate) fn fuzz(text: &str) {
    let of_file = |text: &str| parse(text, "the hostfile x", Dialect { slots: 1, has_ports: true });
    for hosts in [of_file(text), parse_list(text), parse_output(text, Path::new("x"), 2)] {
        for host in hosts.unwrap_or_default() {
            assert!(!host.name.is_empty() && !host.login.starts_with('-') && host.slots > 0, "{host:?}");
            assert!(host.login.ends_with(&host.name) && !host.login.contains(char::is_whitespace), "{host:?}");
            let port = host.port.map_or_else(String::new, |port| format!(" port={port}"));
            if host.slots <= MOST_SLOTS && !host.login.contains(['#', '=']) {
                let again = of_file(&format!("{} slots={}{port}", host.login, host.slots));
                assert_eq!(again.expect("what was read is a host"), [host]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts as `login/port*slots`.
    fn words(hosts: Result<Vec<SshHost>>) -> String {
        let word = |host: &SshHost| {
            let port = host.port.map_or(String::new(), |port| format!("/{port}"));
            format!("{}{port}*{}", host.login, host.slots)
        };
        hosts.unwrap().iter().map(word).collect::<Vec<_>>().join(" ")
    }

    fn file(text: &str) -> Result<Vec<SshHost>> {
        parse(text, "the hostfile hosts", Dialect { slots: 1, has_ports: true })
    }

    #[test]
    fn a_hostfile_is_read_in_every_dialect() {
        for (text, expected) in [
            ("a\nann@b slots=4\n\n# none\nc # the third\n", "a*1 ann@b*4 c*1"),
            (
                "a slots=2 max_slots=4\nb max-slots=3\nc SLOTS = 5 Max_Slots= 6\nd count=2\ne cpus=3",
                "a*2 b*3 c*5 d*2 e*3",
            ),
            (
                "a:4\nb:22\nc:2222\nd:2222 slots=2\ne port=222\nf:8 port=22",
                "a*4 b/22*1 c/2222*1 d/2222*2 e/222*1 f/22*8",
            ),
            ("a user=ann\nb username=bob slots=2\nann@c:2", "ann@a*1 bob@b*2 ann@c*2"),
            ("a 2 all.q@a UNDEFINED\nb 1 all.q@b <NULL>\na 1 long.q@a UNDEFINED\nc 3\n", "a*3 b*1 c*3"),
            ("a\na\nb\na\n", "a*3 b*1"),
            ("\u{feff}a slots=2\r\nb\r\n", "a*2 b*1"),
            (
                "[fd00::1]:2\nfd00::2\n[fd00::3]\n[::1]:2222 slots=3\nann@[fe80::1%eth0]:4\nfd00:6::1:2 slots=2",
                "fd00::1*2 fd00::2*1 fd00::3*1 ::1/2222*3 ann@fe80::1%eth0*4 fd00:6::1:2*2",
            ),
            ("", ""),
        ] {
            assert_eq!(words(file(text)), expected, "{text:?}");
        }
    }

    #[test]
    fn a_list_and_a_script_name_slots_behind_the_colon() {
        for (text, expected) in [
            ("a:4,ann@b", "a*4 ann@b*1"),
            ("a, b:2", "a*1 b*2"),
            ("a:1 b:1,", "a*1 b*1"),
            ("a:1,a:1\n", "a*2"),
            ("a:22,b:2222 slots=2", "a*22 b/2222*2"),
            ("a slots=2, b slots = 3\nc", "a*2 b*3 c*1"),
            ("[fe80::1]:2,::1,fd00::2:3", "fe80::1*2 ::1*1 fd00::2:3*1"),
            (",", ""),
        ] {
            assert_eq!(words(parse_list(text)), expected, "{text:?}");
        }
        let script = |text| parse_output(text, Path::new("find.sh"), 3);
        assert_eq!(words(script("# now\na:4\r\n\nb\nc slots=1\n[::1]:2 # own\n")), "a*4 b*3 c*1 ::1*2");
    }

    #[test]
    fn an_error_has_the_users_own_words_and_where_they_are() {
        for (text, why) in [
            ("a slots=0", "\"0\" is no number of slots"),
            ("a  slots = many # four", "line \"a  slots = many # four\" of the hostfile hosts: \"many\" is no number"),
            ("a slots", "\"slots\" is not name=value"),
            ("a b", "\"b\" is not name=value"),
            ("a:70000", "\"70000\" is no port"),
            ("a:ssh", "\"ssh\" is no number of slots"),
            ("a:", "\"\" is no number of slots"),
            (":22", "\"\" is no name of a host"),
            ("a slots=4 max_slots=2", "more slots than max_slots=2"),
            ("a slots=1 weight=2", "weight= is not known"),
            ("-oProxyCommand=x", "no name of a host"),
            ("-x@a", "no name of a user"),
            ("a'b", "\"a'b\" is no name"),
            ("n\u{200b}1", "\\u{200b}"),
            ("a:2:3", "two colons"),
            ("a:2222 slots=2 port=22", "given apart"),
            ("node[1-3]", "ranges of hosts"),
            ("[fe80::1", "not closed"),
            ("[a]:2", "\"a\" is no address of IPv6"),
            ("[::1]2", "not a colon"),
            ("a:99999999999999999999", "is no number of slots"),
        ] {
            let error = file(text).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("of the hostfile hosts"), "{text:?}: {error}");
        }
        let error = parse_list("a:1, b:x").unwrap_err().to_string();
        assert!(error.contains("invalid host \"b:x\" of -H \"a:1, b:x\": \"x\" is no number of slots"), "{error}");
        let error = parse_output("a:1\nno host found\n", Path::new("./find.sh"), 1).unwrap_err().to_string();
        assert!(error.contains("invalid line \"no host found\" of the script ./find.sh"), "{error}");
    }

    #[test]
    fn a_word_that_is_no_file_is_a_host_and_a_path_never_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        let read = |hosts: HostList| hosts.read().map_err(|error| error.to_string());
        assert_eq!(HostList::of(Path::new("node1")).read().unwrap()[0].name, "node1");
        assert!(read(HostList::of(&path)).unwrap_err().contains("cannot read"));
        for (text, said) in [(&b"# none\n"[..], "names no host"), (b"\xff\xfea\0", "not text in UTF-8")] {
            std::fs::write(&path, text).unwrap();
            let error = read(HostList::of(&path)).unwrap_err();
            assert!(error.contains(said) && error.contains("hosts"), "{error}");
        }
        assert!(read(HostList::List(" ,".to_owned())).unwrap_err().contains("-H \" ,\" names no host"));
    }

    #[test]
    fn a_host_is_this_one_by_its_names_and_addresses_and_no_other() {
        let is_here = |item: &str| parse_list(item).unwrap()[0].is_here();
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        for item in ["localhost", "127.0.0.1:2", "127.0.0.2", "[::1]", &own] {
            assert!(is_here(item), "{item}");
        }
        for address in if_addrs::get_if_addrs().unwrap().iter().map(if_addrs::Interface::ip) {
            assert!(is_here(&address.to_string()), "{address}");
        }
        for item in ["localhost port=22", "nobody-here@localhost", "203.0.113.1", "nowhere.invalid"] {
            assert!(!is_here(item), "{item}");
        }
        assert!(!is_here(&format!("{own}.nowhere.invalid")));
    }
}
