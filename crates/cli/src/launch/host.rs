//! The place of a process, and the command that runs it there.
//!
//! On every host the process runs below this program ([`wrapper`](super::wrapper)), in a session of its own.
//! The wrapper reads the launcher's orders from its input. The end of the input ends the process, also after
//! the launcher was killed or the connection has broken.
//!
//! Every user of a host can read the arguments of its processes, and variables may hold secrets. And the
//! login shell of a host may be any shell, such as csh, which does not allow line feeds between quotes. So
//! everything that is sent to other hosts is on the input of sh ([`LOGIN`]), before the orders.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringpull_base::{Error, Result, config};
use tempfile::TempDir;

use super::hostfile::SshHost;
use super::{environment, wrapper};
use crate::lab;

/// The place of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// This host.
    Local,
    /// An emulated host that is up, counted from 1.
    Lab(usize),
    /// A host that ssh reaches without a password.
    Ssh(SshHost),
}

/// The command that ssh gives to the login shell of a host. It starts sh, which reads a script and runs it
/// with the rest of the input as the script's input. The script's lines begin with `+`; any other line ends
/// it. `read` consumes no byte of a pipe after the line. Every shell passes these words on as they are: they
/// have no line feed, no exclamation mark and no single quote.
const LOGIN: &str = r#"exec sh -c 'ringpull_n=$(printf "\n."); ringpull_n=${ringpull_n%.}; ringpull_s=; while :; do IFS= read -r ringpull_l || exit 1; case $ringpull_l in +*) ringpull_s=$ringpull_s${ringpull_l#+}$ringpull_n ;; *) break ;; esac; done; eval "$ringpull_s"'"#;

/// Removes the variables of [`LOGIN`].
const UNSET: &[u8] = b"unset ringpull_n ringpull_s ringpull_l\n";

impl Host {
    /// The host, if ssh reaches it.
    pub(crate) fn by_ssh_mut(&mut self) -> Option<&mut SshHost> {
        if let Host::Ssh(host) = self { Some(host) } else { None }
    }

    /// The command that runs a process named `name` with these variables below this program, and the bytes
    /// with which its input must begin. Orders follow; each is one byte, the number of a signal.
    pub(crate) fn command(
        &self,
        name: &str,
        words: &[OsString],
        env: &[(String, String)],
    ) -> Result<(Command, Vec<u8>)> {
        let words = [&wrapper::words_of_supervised(name), words].concat();
        let own = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
        let mut command = match self {
            Host::Ssh(host) => {
                let folder = host.folder.clone().map_or_else(working_folder, |folder| Ok(folder.into()))?;
                return Ok(ssh(host, &own_program(env, Some(&folder), &words)?));
            }
            Host::Local => Command::new(own),
            Host::Lab(number) => {
                let entry = lab::entry(*number);
                let mut command = Command::new(&entry[0]);
                command.args(&entry[1..]).arg(own);
                command
            }
        };
        command.args(words).envs(env.iter().map(|(name, value)| (name, value)));
        Ok((command, Vec::new()))
    }

    /// Returns true if processes on the two hosts run on the same cores. All emulated hosts share this
    /// machine's cores.
    pub(crate) fn shares_cores_with(&self, other: &Host) -> bool {
        match (self, other) {
            (Host::Ssh(one), Host::Ssh(other)) => one == other,
            (Host::Ssh(_), _) | (_, Host::Ssh(_)) => false,
            _ => true,
        }
    }

    /// The address by which other hosts of the job reach this host, if it is known.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Host::Local => None,
            Host::Lab(number) => Some(IpAddr::V4(lab::address(*number))),
            Host::Ssh(host) => host.name.parse().ok(),
        }
    }
}

/// Returns the place of each listed host, and the number of processes that it takes. This host, under any of
/// its names, needs no ssh. The ssh servers of the other hosts have the port `port` unless the list gives
/// another.
pub(crate) fn placed(hosts: Vec<SshHost>, port: Option<u16>) -> Vec<(Host, usize)> {
    let mut placed: Vec<(Host, usize)> = Vec::new();
    for host in hosts {
        let slots = host.slots;
        let host = if host.is_here() { Host::Local } else { Host::Ssh(SshHost { port: host.port.or(port), ..host }) };
        match placed.iter_mut().find(|(known, _)| host == Host::Local && *known == host) {
            Some((_, all)) => *all += slots,
            None => placed.push((host, slots)),
        }
    }
    placed
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
pub(crate) fn ssh_to(host: &SshHost) -> Command {
    let words = ssh_words(host.port);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(&host.login);
    command
}

/// The command by which a host's sh runs a script, whatever the login shell is, and the bytes with which the
/// command's input must begin. The rest of the input is the script's own input.
pub(crate) fn ssh(host: &SshHost, script: &[u8]) -> (Command, Vec<u8>) {
    let mut command = ssh_to(host);
    command.arg(LOGIN);
    let mut input = Vec::new();
    for line in [UNSET, script].concat().split_inclusive(|byte| *byte == b'\n') {
        input.push(b'+');
        input.extend_from_slice(line);
    }
    if input.last() != Some(&b'\n') {
        input.push(b'\n');
    }
    input.extend_from_slice(b".\n");
    (command, input)
}

/// Makes a new folder that only this user can use. By default the user's umask might let others list it or
/// write in it.
pub(crate) fn temporary_folder(prefix: &str, within: &Path) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(0o700)).tempdir_in(within)
}

/// The script by which another host runs this program with these words and variables in this folder. The
/// program is found at the same path, or on the host's `PATH`.
pub(crate) fn own_program(env: &[(String, String)], folder: Option<&Path>, words: &[OsString]) -> Result<Vec<u8>> {
    let own = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
    let mut script = with_environment(env);
    if let Some(folder) = folder {
        script.extend([b"cd ", &quoted(folder.as_os_str())[..], b" || exit 1\n"].concat());
    }
    script.extend(b"set -- ");
    for word in words {
        script.extend(quoted(word));
        script.push(b' ');
    }
    script.extend([b"\nfor own in ", &quoted(own.as_os_str())[..], OWN_PROGRAM].concat());
    Ok(script)
}

/// The rest of the script of [`own_program`].
const OWN_PROGRAM: &[u8] = br#" ringpull; do
  ! "$own" rank --help </dev/null >/dev/null 2>&1 || exec "$own" "$@"
done
echo "this host has no ringpull that runs
  hint: install the same ringpull on every host, at the same path or in PATH" >&2
exit 127
"#;

/// The folder in which processes on other hosts start.
pub(crate) fn working_folder() -> Result<PathBuf> {
    std::env::current_dir().map_err(|cause| Error::io("read", "the working folder", &cause))
}

/// The commands by which a shell sets the part of the user's environment that is passed on, and then these
/// variables.
pub(crate) fn with_environment(env: &[(String, String)]) -> Vec<u8> {
    let mut script = Vec::new();
    for (name, value) in environment::passed_on() {
        script.extend(assignment(&name, &value));
        if environment::IN_FRONT.contains(&&name[..]) {
            // The host's own value follows.
            script.truncate(script.len() - 1);
            script.extend(format!("\"${{{name}:+:${name}}}\"\n").into_bytes());
        }
    }
    script.extend(env.iter().flat_map(|(name, value)| assignment(name, value)));
    script
}

/// The command by which a shell sets a variable, with a line feed.
fn assignment(name: &str, value: &str) -> Vec<u8> {
    [b"export ", name.as_bytes(), b"=", &quoted(value.as_ref()), b"\n"].concat()
}

/// Quotes a word for the shell.
pub(crate) fn quote(word: &OsStr) -> String {
    String::from_utf8_lossy(&quoted(word)).into_owned()
}

/// As [`quote`], also for words that are not text.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(br"'\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::hostfile::HostList;

    #[test]
    fn a_temporary_folder_is_this_users_alone() {
        let place = tempfile::tempdir().unwrap();
        let folder = temporary_folder("ringpull-", place.path()).unwrap();
        assert_eq!(folder.path().metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    }

    #[test]
    fn a_word_survives_the_shell() {
        for word in ["plain", "it's", "$HOME `x` \"q\" \\", ""] {
            let output =
                Command::new("sh").args(["-c", &format!("printf %s {}", quote(OsStr::new(word)))]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }

    /// Runs a script as the login shell of a host would.
    fn of_login_shell(shell: &[&str], script: &[u8], orders: &[u8]) -> std::process::Output {
        use std::io::Write;
        use std::process::Stdio;

        let host: SshHost = HostList::of("h".as_ref()).read().unwrap().remove(0);
        let (command, input) = ssh(&host, script);
        assert_eq!(command.get_args().last(), Some(OsStr::new(LOGIN)));
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).arg(LOGIN).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let mut stdin = shell.stdin.take().unwrap();
        stdin.write_all(&[&input, orders].concat()).unwrap();
        drop(stdin);
        shell.wait_with_output().unwrap()
    }

    #[test]
    fn a_script_survives_every_login_shell_which_leaves_the_rest_of_the_input_to_it() {
        let values = ["plain", "", "it's", "$HOME `x` \"q\" \\ !! !$", "\n\n.\n+a\nb\n", " \t ", "gr\u{fc}n"];
        let mut script: Vec<u8> =
            values.iter().enumerate().flat_map(|(number, value)| assignment(&format!("V{number}"), value)).collect();
        script.extend(b"exec sh -c 'printf \"%s|\" \"$V0\" \"$V1\" \"$V2\" \"$V3\" \"$V4\" \"$V5\" \"$V6\" \"$1\" \"$2\"; cat' x 'a b' ");
        script.extend(quoted(OsStr::from_bytes(b"\xff!")));
        let expected =
            [values.map(str::as_bytes).as_slice(), &[b"a b", b"\xff!", b"term\nkill\n"]].concat().join(&b'|');
        for shell in [
            &["sh", "-c"][..],
            &["bash", "-c"],
            &["tcsh", "-f", "-c"],
            &["fish", "-c"],
            &["zsh", "-f", "-c"],
            &["ksh", "-c"],
        ] {
            if Command::new(shell[0]).args(&shell[1..]).arg("true").output().is_err() {
                println!("skipped: {} is not installed", shell[0]);
                continue;
            }
            let output = of_login_shell(shell, &script, b"term\nkill\n");
            assert_eq!(output.stdout, expected, "{shell:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    #[test]
    fn a_shell_whose_input_ends_before_its_script_does_runs_nothing() {
        let mut command = Command::new("sh");
        let output = command.args(["-c", LOGIN]).stdin(std::process::Stdio::null()).output().unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]));
    }
}
