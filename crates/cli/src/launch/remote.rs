//! Checks before a job that the hosts of a list answer, and copies files to them.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use ringpull_base::{Error, Result};

use super::host::{ssh_to, ssh_words, working_folder};
use super::hostfile::{HostList, SshHost};

/// The answer of a host, the time that it took, and the moment at which it arrived.
pub(crate) struct TimedAnswer {
    pub(crate) output: Output,
    pub(crate) took: Duration,
    pub(crate) arrived: SystemTime,
}

/// Runs the commands of all hosts, each with its input, in parallel. A command that has not ended within
/// `limit` is killed, and its result is an error.
pub(crate) fn ask_all(commands: Vec<(Command, Vec<u8>)>, limit: Duration) -> Result<Vec<Result<TimedAnswer, String>>> {
    let (sender, answers) = channel();
    let mut pids = Vec::new();
    for (number, (mut command, input)) in commands.into_iter().enumerate() {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().display().to_string();
        let mut child = command.spawn().map_err(|cause| Error::io("run", program, &cause))?;
        pids.push(Pid::from_child(&child));
        let stdin = child.stdin.take();
        let (sender, asked) = (sender.clone(), Instant::now());
        std::thread::spawn(move || {
            // If a program does not read its input, its own error message gives the reason.
            if let Some(Err(cause)) = stdin.map(|mut stdin| stdin.write_all(&input)) {
                tracing::debug!(%cause, "a question was not read");
            }
            let output = child.wait_with_output();
            sender.send((
                number,
                output.map(|output| TimedAnswer { output, took: asked.elapsed(), arrived: SystemTime::now() }),
            ))
        });
    }
    let deadline = Instant::now() + limit;
    let mut ended: Vec<Option<Result<TimedAnswer, String>>> = pids.iter().map(|_| None).collect();
    while ended.iter().any(Option::is_none) {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((number, answer)) = answers.recv_timeout(left) else { break };
        ended[number] = Some(answer.map_err(|cause| cause.to_string()));
    }
    let silent = |pid: Pid| {
        if let Err(cause) = kill_process(pid, Signal::KILL) {
            tracing::debug!(%cause, "ssh had ended");
        }
        Err(format!("no answer within {} s", limit.as_secs()))
    };
    Ok(ended.into_iter().zip(pids).map(|(answer, pid)| answer.unwrap_or_else(|| silent(pid))).collect())
}

/// Runs `true` on every host, in parallel, and returns the answers.
fn call_all(hosts: &[SshHost]) -> Result<Vec<Result<TimedAnswer, String>>> {
    /// The time within which every host must answer.
    const ANSWER: Duration = Duration::from_secs(8);
    let command = |host| {
        let mut command = ssh_to(host);
        command.arg("true");
        (command, Vec::new())
    };
    ask_all(hosts.iter().map(command).collect(), ANSWER)
}

/// Returns for each host true if it answers.
pub(crate) fn answering(hosts: &[SshHost]) -> Result<Vec<bool>> {
    let is_well = |answer: Result<TimedAnswer, String>| answer.is_ok_and(|answer| answer.output.status.success());
    Ok(call_all(hosts)?.into_iter().map(is_well).collect())
}

/// Returns an error that names the first host that does not answer. The hosts come from `list`.
pub(crate) fn check(hosts: &[SshHost], list: &HostList) -> Result<()> {
    for (host, answer) in hosts.iter().zip(call_all(hosts)?) {
        let words = match answer {
            Ok(TimedAnswer { output, .. }) if output.status.success() => continue,
            // A login shell that refuses says so on stdout.
            Ok(TimedAnswer { output, .. }) => {
                match [output.stderr, output.stdout].iter().find(|text| !text.trim_ascii().is_empty()) {
                    Some(text) => String::from_utf8_lossy(text).trim().replace(['\r', '\n'], " "),
                    None => output.status.to_string(),
                }
            }
            Err(cause) => cause,
        };
        let login = &host.login;
        let port = host.port.map_or(String::new(), |port| format!(" -p {port}"));
        let from = match list {
            HostList::File(path) => format!("the hostfile {}", path.display()),
            HostList::List(_) => "-H".to_owned(),
        };
        let doubt = list.doubt(host).map_or(String::new(), |doubt| format!("; {doubt}"));
        return Err(Error::argument(
            format!("host {login} cannot be reached by ssh: {words}{doubt}"),
            format!("`ssh{port} {login} true` must work without a password; otherwise remove the host from {from}"),
        ));
    }
    Ok(())
}

/// Copies the working folder to the same place on every host.
pub(crate) fn copy_working_folder(hosts: &[SshHost], to: &str) -> Result<()> {
    let from = working_folder()?;
    for host in hosts {
        let shell = ssh_words(host.port).join(" ");
        // rsync takes the text before the first colon as the host, unless it is in brackets.
        let name = if host.name.contains(':') { format!("[{}]", host.name) } else { host.name.clone() };
        let login = host.login.replace(&host.name, &name);
        let status = Command::new("rsync")
            .args(["-a", "-e", &shell, &format!("{}/", from.display()), &format!("{login}:{to}/")])
            .stdin(Stdio::null())
            .status()
            .map_err(|cause| Error::io("run", "rsync", &cause))?;
        if !status.success() {
            return Err(Error::argument(
                format!("the working folder could not be copied to {}:{to}", host.login),
                "rsync must be installed on both hosts, and the folder writable",
            ));
        }
    }
    Ok(())
}
