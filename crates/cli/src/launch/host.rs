//! Where a process runs, and the command that runs it there.
//!
//! On every host the process runs below the same short shell script: in its own session, with a supervisor
//! that reads orders from the launcher. `term` and `kill` signal the whole session. The end of the input,
//! which also follows a killed launcher or a broken connection, means both.
//!
//! Every user of a host can read the arguments of its processes, and variables may hold secrets. So variables
//! go to other hosts before the orders, on the input of a shell that reads them and becomes the supervisor.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

use ringpull_base::{Error, Result, config};

use super::hostfile::SshHost;
use crate::lab;

/// Where a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// This host.
    Local,
    /// An emulated host that is up, counted from 1.
    Lab(usize),
    /// A host that ssh reaches without a password.
    Ssh(SshHost),
}

/// Runs a process in a session of its own, ends it on request or when its input ends, and exits as it does. A
/// shell lets what it runs in the background ignore SIGINT and SIGQUIT: `env` undoes that if it can.
const SUPERVISOR: &str = r#"exec 3<&0
own='env --default-signal=INT,QUIT'
$own true 2>/dev/null || own=
setsid $own "$@" 3<&- </dev/null &
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

/// Sets the variables that its input begins with, and becomes the shell that runs the script `$0` on the rest
/// of the input. `read` consumes no byte of a pipe after the line.
const READER: &str = r#"ringpull_script=
while :; do
  IFS= read -r ringpull_line || exit 1
  case $ringpull_line in
    +*) ringpull_script="$ringpull_script${ringpull_line#+}
" ;;
    *) break ;;
  esac
done
eval "$ringpull_script"
unset ringpull_script ringpull_line
exec sh -c "$0" ringpull-supervisor "$@""#;

/// Variables that are passed on to processes on other hosts.
const FORWARDED: [&str; 4] = ["OMP_NUM_THREADS", "KMP_AFFINITY", "LD_LIBRARY_PATH", "PYTHONPATH"];
const FORWARDED_PREFIXES: [&str; 4] = ["RINGPULL_", "MXNET_", "PS_", "AWS_"];

impl Host {
    /// The command that runs a program with these variables below its supervisor, and the bytes that its
    /// input must begin with. Orders are lines on its input after that.
    pub(crate) fn command(&self, words: &[OsString], env: &[(String, String)]) -> Result<(Command, Vec<u8>)> {
        let mut command = match self {
            Host::Ssh(host) => return remote_command(host, words, env),
            Host::Local => Command::new("sh"),
            Host::Lab(number) => {
                let entry = lab::entry(*number);
                let mut command = Command::new(&entry[0]);
                command.args(&entry[1..]).arg("sh");
                command
            }
        };
        command.args(["-c", SUPERVISOR, "ringpull-supervisor"]).args(words);
        command.envs(env.iter().map(|(name, value)| (name, value)));
        Ok((command, Vec::new()))
    }

    /// Whether processes on both run on the same cores: all emulated hosts are this machine.
    pub(crate) fn shares_cores_with(&self, other: &Host) -> bool {
        match (self, other) {
            (Host::Ssh(one), Host::Ssh(other)) => one == other,
            (Host::Ssh(_), _) | (_, Host::Ssh(_)) => false,
            _ => true,
        }
    }

    /// The address that other hosts of the job reach this one by, if it is known.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Host::Local => None,
            Host::Lab(number) => Some(IpAddr::V4(lab::address(*number))),
            Host::Ssh(host) => host.name.parse().ok(),
        }
    }
}

impl std::fmt::Display for Host {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Host::Local => out.pad("this host"),
            Host::Lab(number) => out.pad(&lab::host_name(*number)),
            Host::Ssh(host) => out.pad(&host.login),
        }
    }
}

/// `ssh` and its options, up to the host's name.
pub(crate) fn ssh_words(port: Option<u16>) -> Vec<String> {
    const OPTIONS: [&str; 5] = [
        "BatchMode=yes",
        "ConnectTimeout=5",
        "StrictHostKeyChecking=accept-new",
        "ServerAliveInterval=5",
        "LogLevel=ERROR",
    ];
    let options = OPTIONS.iter().flat_map(|option| ["-o".to_owned(), (*option).to_owned()]);
    let port = port.into_iter().flat_map(|port| ["-p".to_owned(), port.to_string()]);
    config::ssh_command().into_iter().chain(options).chain(port).collect()
}

/// `ssh` to a host, without the remote command.
pub(crate) fn ssh(host: &SshHost) -> Command {
    let words = ssh_words(host.port);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(&host.login);
    command
}

/// The same for a question, which a host that does not answer at once need not have.
pub(crate) fn ssh_once(host: &SshHost) -> Command {
    let words = ssh_words(host.port);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["-o", "ConnectionAttempts=1"]).arg(&host.login);
    command
}

/// The folder that processes on other hosts start in.
pub(crate) fn working_folder() -> Result<PathBuf> {
    std::env::current_dir().map_err(|cause| Error::io("read", "the working folder", &cause))
}

fn remote_command(host: &SshHost, words: &[OsString], env: &[(String, String)]) -> Result<(Command, Vec<u8>)> {
    let inherited = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_forwarded));
    let set = inherited.chain(env.iter().map(|(name, value)| (name.into(), value.into())));
    let folder = host.folder.clone().map_or_else(working_folder, |folder| Ok(folder.into()))?;
    let mut line = vec!["cd".to_owned(), quote(folder.as_os_str()), "&& exec sh -c".to_owned()];
    line.extend([READER, SUPERVISOR].map(|script| quote(script.as_ref())));
    line.extend(words.iter().map(|word| quote(word)));
    let mut command = ssh(host);
    command.arg(line.join(" "));
    Ok((command, assignments(set)))
}

/// Whether the variable is passed on to other hosts. A shell can set only valid names.
fn is_forwarded(name: &str) -> bool {
    is_name(name) && (FORWARDED.contains(&name) || FORWARDED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

/// Whether a shell can set a variable of this name.
pub(crate) fn is_name(name: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(is_legal) && !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty()
}

/// The lines by which [`READER`] sets these variables: shell commands after a `+`, and a last line.
fn assignments(set: impl Iterator<Item = (OsString, OsString)>) -> Vec<u8> {
    let mut script = Vec::new();
    for (name, value) in set {
        script.extend([b"export ", name.as_bytes(), b"='"].concat());
        for byte in value.as_bytes() {
            match byte {
                b'\'' => script.extend(br"'\''"),
                byte => script.push(*byte),
            }
        }
        script.extend(b"'\n");
    }
    let lines = script.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [b"+", line]);
    lines.chain([&b".\n"[..]]).flatten().copied().collect()
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

    #[test]
    fn variables_survive_the_input_of_a_shell_which_leaves_the_rest_to_its_script() {
        use std::io::Write;
        use std::process::Stdio;

        let values = [&b"plain"[..], b"", b"it's", b"$HOME `x` \"q\" \\", b"\n\n.\n+a\nb\n", b" \t ", b"\xff\xfe"];
        let name = |number: usize| OsString::from(format!("V{number}"));
        let set = values.iter().enumerate().map(|(number, value)| (name(number), OsStr::from_bytes(value).to_owned()));
        let script = "printf '%s|' \"$V0\" \"$V1\" \"$V2\" \"$V3\" \"$V4\" \"$V5\" \"$V6\" \"$1\" \"$2\"; cat";
        let mut command = Command::new("sh");
        command.args(["-c", READER, script, "a b", "c"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let mut input = shell.stdin.take().unwrap();
        input.write_all(&[&assignments(set)[..], b"term\nkill\n"].concat()).unwrap();
        drop(input);
        let expected = [&values[..], &[b"a b", b"c", b"term\nkill\n"]].concat().join(&b'|');
        assert_eq!(shell.wait_with_output().unwrap().stdout, expected);
    }

    #[test]
    fn a_shell_whose_input_ends_before_its_variables_do_runs_nothing() {
        let output = Command::new("sh").args(["-c", READER, "echo ran"]).stdin(std::process::Stdio::null()).output();
        let output = output.unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]));
    }
}
