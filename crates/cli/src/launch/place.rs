//! Where a process runs, and the command that runs it there.
//!
//! On every place the process runs below the same few lines of shell: in a session of its own, with a watcher that reads
//! orders from the launcher. `term` and `kill` go to the whole session; the end of the input, which is also what a
//! killed launcher or a broken connection looks like, means both.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use ringpull_base::{Error, Result, config};

use super::hostfile::Host;
use crate::lab;

/// Where a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// This host.
    Local,
    /// An emulated host that is up, counted from 1.
    Lab(usize),
    /// A host that ssh reaches without a password.
    Ssh(Host),
}

const SUPERVISOR: &str = r#"exec 3<&0
setsid "$@" 3<&- </dev/null &
p=$!
(
  while read -r order; do
    case $order in term) kill -s TERM -- -$p || kill -s TERM $p ;; kill) kill -s KILL -- -$p || kill -s KILL $p ;; esac
  done
  kill -s TERM -- -$p || kill -s TERM $p
  sleep 2
  kill -s KILL -- -$p || kill -s KILL $p
) <&3 >/dev/null 2>&1 &
w=$!
exec 3<&- 2>/dev/null
wait $p
c=$?
kill -s KILL $w
kill -s KILL -- -$p
exit $c"#;

/// Variables that go to other hosts with a process.
const FORWARDED: [&str; 4] = ["OMP_NUM_THREADS", "KMP_AFFINITY", "LD_LIBRARY_PATH", "PYTHONPATH"];
const FORWARDED_PREFIXES: [&str; 4] = ["RINGPULL_", "MXNET_", "PS_", "AWS_"];

impl Place {
    /// `program` here with these variables added, below its supervisor. Orders are lines on its input.
    pub(crate) fn command(&self, words: &[OsString], env: &[(String, String)]) -> Result<Command> {
        let mut command = match self {
            Place::Ssh(host) => return remote_command(host, words, env),
            Place::Local => Command::new("sh"),
            Place::Lab(number) => {
                let entry = lab::entry(*number);
                let mut command = Command::new(&entry[0]);
                command.args(&entry[1..]).arg("sh");
                command
            }
        };
        command.args(["-c", SUPERVISOR, "ringpull-supervisor"]).args(words);
        command.envs(env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Whether processes at both places run on the same cores: emulated hosts are all this machine.
    pub(crate) fn shares_cores_with(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Ssh(one), Place::Ssh(other)) => one == other,
            (Place::Ssh(_), _) | (_, Place::Ssh(_)) => false,
            _ => true,
        }
    }

    /// The address that other places of the same job reach this one by, where it follows from the place.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Place::Local => None,
            Place::Lab(number) => Some(IpAddr::V4(lab::address(*number))),
            Place::Ssh(host) => host.name.parse().ok(),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Local => out.pad("this host"),
            Place::Lab(number) => out.pad(&lab::host_name(*number)),
            Place::Ssh(host) => out.pad(&host.login),
        }
    }
}

/// `ssh` to a host, up to where the remote command goes.
pub(crate) fn ssh(host: &Host) -> Command {
    let words = config::ssh_command();
    let mut command = Command::new(words.first().map_or("ssh", String::as_str));
    command.args(words.iter().skip(1));
    for option in [
        "BatchMode=yes",
        "ConnectTimeout=5",
        "StrictHostKeyChecking=accept-new",
        "ServerAliveInterval=5",
        "LogLevel=ERROR",
    ] {
        command.args(["-o", option]);
    }
    if let Some(port) = host.port {
        command.args(["-p", &port.to_string()]);
    }
    command.arg(&host.login);
    command
}

/// The folder that processes on other hosts start in.
pub(crate) fn working_folder() -> Result<PathBuf> {
    std::env::current_dir().map_err(|cause| Error::io("read", "the working folder", &cause))
}

fn remote_command(host: &Host, words: &[OsString], env: &[(String, String)]) -> Result<Command> {
    let inherited = std::env::vars().filter(|(name, _)| {
        FORWARDED.contains(&name.as_str()) || FORWARDED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    });
    let folder = host.folder.clone().map_or_else(working_folder, |folder| Ok(folder.into()))?;
    let mut line = vec!["cd".to_owned(), quote(folder.as_os_str()), "&& exec env".to_owned()];
    let set = inherited.chain(env.iter().cloned());
    line.extend(set.map(|(name, value)| quote(OsStr::new(&format!("{name}={value}")))));
    line.extend(["sh -c".to_owned(), quote(OsStr::new(SUPERVISOR)), "ringpull-supervisor".to_owned()]);
    line.extend(words.iter().map(|word| quote(word)));
    let mut command = ssh(host);
    command.arg(line.join(" "));
    Ok(command)
}

/// A word as the shell reads it back.
pub(crate) fn quote(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_the_shell() {
        for word in ["plain", "it's", "$HOME `x` \"q\" \\", ""] {
            let output =
                Command::new("sh").args(["-c", &format!("printf %s {}", quote(OsStr::new(word)))]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
