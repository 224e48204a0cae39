//! What is done on the hosts of a hostfile before a job: are they there, and have they the files?

use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ringpull_base::{Error, Result};

use super::hostfile::Host;
use super::place::{ssh, working_folder};

/// By when every host must have answered.
const ANSWER: Duration = Duration::from_secs(8);

/// Asks every host for a sign of life, all at once; the first that gives none is the error.
pub fn check(hosts: &[Host]) -> Result<()> {
    let (sender, answers) = channel();
    let mut pids = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        let mut command = ssh(host);
        command.arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|cause| Error::io("run", "ssh", &cause))?;
        pids.push(rustix::process::Pid::from_child(&child));
        let sender = sender.clone();
        std::thread::spawn(move || sender.send((number, child.wait_with_output())));
    }
    let deadline = Instant::now() + ANSWER;
    let mut silent: Vec<usize> = (0..hosts.len()).collect();
    let mut failure = None;
    while !silent.is_empty() && failure.is_none() {
        let Ok((number, output)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) else {
            failure = Some((silent[0], format!("no answer within {} s", ANSWER.as_secs())));
            break;
        };
        silent.retain(|other| *other != number);
        let words = match output {
            Ok(output) if output.status.success() => continue,
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().replace(['\r', '\n'], " "),
            Err(cause) => cause.to_string(),
        };
        failure = Some((number, words));
    }
    for number in silent {
        if let Err(cause) = rustix::process::kill_process(pids[number], rustix::process::Signal::KILL) {
            tracing::debug!(%cause, "ssh had ended");
        }
    }
    failure.map_or(Ok(()), |(number, words)| {
        let login = &hosts[number].login;
        let port = hosts[number].port.map_or(String::new(), |port| format!(" -p {port}"));
        Err(Error::argument(
            format!("host {login} cannot be reached by ssh: {words}"),
            format!("`ssh{port} {login} true` must work without a password; else take the host out of the hostfile"),
        ))
    })
}

/// Copies the working folder to the same place on every host.
pub fn copy_working_folder(hosts: &[Host], to: &str) -> Result<()> {
    let from = working_folder()?;
    for host in hosts {
        let port = host.port.map_or(String::new(), |port| format!(" -p {port}"));
        let shell =
            format!("{} -o BatchMode=yes -o ConnectTimeout=5{port}", ringpull_base::config::ssh_command().join(" "));
        let status = Command::new("rsync")
            .args(["-a", "-e", &shell, &format!("{}/", from.display()), &format!("{}:{to}/", host.login)])
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
