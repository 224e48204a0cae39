//! What is done on the hosts of a hostfile before a job: are they there, and have they the files?

use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use ringpull_base::{Error, Result};

use super::hostfile::Host;
use super::place::{ssh, ssh_words, working_folder};

/// What a host has answered, how long it took, and when it was heard.
pub(crate) struct Answer {
    pub(crate) output: Output,
    pub(crate) took: Duration,
    pub(crate) heard: SystemTime,
}

/// Runs the command of each host, all at once. Those that have not ended within `limit` are killed; an error
/// says so.
pub(crate) fn ask_all(commands: Vec<Command>, limit: Duration) -> Result<Vec<Result<Answer, String>>> {
    let (sender, answers) = channel();
    let mut pids = Vec::new();
    for (number, mut command) in commands.into_iter().enumerate() {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|cause| Error::io("run", "ssh", &cause))?;
        pids.push(Pid::from_child(&child));
        let (sender, asked) = (sender.clone(), Instant::now());
        std::thread::spawn(move || {
            let output = child.wait_with_output();
            sender
                .send((number, output.map(|output| Answer { output, took: asked.elapsed(), heard: SystemTime::now() })))
        });
    }
    let deadline = Instant::now() + limit;
    let mut told: Vec<Option<Result<Answer, String>>> = pids.iter().map(|_| None).collect();
    while told.iter().any(Option::is_none) {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((number, answer)) = answers.recv_timeout(left) else { break };
        told[number] = Some(answer.map_err(|cause| cause.to_string()));
    }
    let silent = |pid: Pid| {
        if let Err(cause) = kill_process(pid, Signal::KILL) {
            tracing::debug!(%cause, "ssh had ended");
        }
        Err(format!("no answer within {} s", limit.as_secs()))
    };
    Ok(told.into_iter().zip(pids).map(|(answer, pid)| answer.unwrap_or_else(|| silent(pid))).collect())
}

/// Asks every host for a sign of life, all at once; the first in the list that gives none is the error.
pub(crate) fn check(hosts: &[Host]) -> Result<()> {
    /// By when every host must have answered.
    const ANSWER: Duration = Duration::from_secs(8);
    let commands = hosts.iter().map(|host| {
        let mut command = ssh(host);
        command.arg("true");
        command
    });
    for (host, answer) in hosts.iter().zip(ask_all(commands.collect(), ANSWER)?) {
        let words = match answer {
            Ok(Answer { output, .. }) if output.status.success() => continue,
            Ok(Answer { output, .. }) => String::from_utf8_lossy(&output.stderr).trim().replace(['\r', '\n'], " "),
            Err(cause) => cause,
        };
        let login = &host.login;
        let port = host.port.map_or(String::new(), |port| format!(" -p {port}"));
        return Err(Error::argument(
            format!("host {login} cannot be reached by ssh: {words}"),
            format!("`ssh{port} {login} true` must work without a password; else take the host out of the hostfile"),
        ));
    }
    Ok(())
}

/// Copies the working folder to the same place on every host.
pub(crate) fn copy_working_folder(hosts: &[Host], to: &str) -> Result<()> {
    let from = working_folder()?;
    for host in hosts {
        let shell = ssh_words(host.port).join(" ");
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
