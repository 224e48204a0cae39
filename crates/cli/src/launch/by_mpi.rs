//! The processes of a job as one `mpirun`: rank 0 is the scheduler, then come the servers, then the workers. Without
//! servers it is plain MPI ranks.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::ExitStatusExt;

use ringpull_base::config::Role;
use ringpull_base::{Error, Result};

use super::{Port, address_towards, claim_port, role_env};
use crate::childless::{Childless, PATIENCE, output_is_taken};
use crate::interrupt::Interrupt;
use crate::lab;
use crate::mpirun::{Hosts, Mpirun, Ranks};

/// A job for `mpirun`.
#[derive(Debug, Clone)]
pub struct MpiJob {
    /// How many workers.
    pub workers: usize,
    /// How many servers; none starts no scheduler either.
    pub servers: usize,
    /// Where they run.
    pub hosts: Hosts,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Variables for every process.
    pub env: Vec<(String, String)>,
    /// Variables for the servers and the scheduler.
    pub env_server: Vec<(String, String)>,
    /// Variables for the workers.
    pub env_worker: Vec<(String, String)>,
}

impl MpiJob {
    /// Runs the job to its end; its exit code. `mpirun` itself ends all when one fails. An error if it does not end
    /// when its ranks on this host have.
    pub fn run(&self) -> Result<i32> {
        let interrupt = Interrupt::watch()?;
        let (parts, _port) = self.parts()?;
        let mut ready = Mpirun::find()?.command_of_parts(&self.hosts, &parts)?;
        let mut child = ready.command.spawn().map_err(|cause| Error::io("run", "mpirun", &cause))?;
        let pid = rustix::process::Pid::from_child(&child);
        let (mut passed_on, mut childless) = (interrupt.count(), Childless::watch(child.id(), &self.hosts));
        loop {
            match child.try_wait().map_err(|cause| Error::io("wait for", "mpirun", &cause))? {
                Some(status) => {
                    let signal = status.signal().map(|signal| 128 + signal);
                    let code = status.code().or(signal).unwrap_or(1);
                    // MPICH's mpiexec calls it success when it was told to end.
                    return Ok(interrupt.signal().filter(|_| code == 0).map_or(code, |signal| 128 + signal));
                }
                None if interrupt.count() > passed_on => {
                    passed_on = interrupt.count();
                    rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                        .map_err(|cause| Error::io("end", "mpirun", &cause.into()))?;
                }
                None if childless.is_stuck() && output_is_taken() => {
                    child.kill().map_err(|cause| Error::io("end", "mpirun", &cause))?;
                    let status = child.wait().map_err(|cause| Error::io("wait for", "mpirun", &cause))?;
                    return status.code().ok_or_else(outlived);
                }
                None => std::thread::park_timeout(std::time::Duration::from_millis(50)),
            }
        }
    }

    /// What is run, and the scheduler's port, which is claimed until the job has ended.
    fn parts(&self) -> Result<(Vec<Ranks>, Option<Port>)> {
        let ranks = |count, env: Vec<(String, String)>| Ranks { count, command: self.command.clone(), env };
        if self.servers == 0 {
            return Ok((vec![ranks(self.workers, [self.env.clone(), self.env_worker.clone()].concat())], None));
        }
        let root = match &self.hosts {
            Hosts::Local => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Hosts::Lab(numbers) => IpAddr::V4(lab::address(numbers.first().copied().unwrap_or(1))),
            // Rank 0 is the scheduler and runs on the first host.
            Hosts::Ssh(hosts) => resolve(&hosts[0].name)?,
        };
        let port = claim_port(root)?;
        let common = [
            ("DMLC_PS_ROOT_URI", root.to_string()),
            ("DMLC_PS_ROOT_PORT", port.number().to_string()),
            ("DMLC_NUM_WORKER", self.workers.to_string()),
            ("DMLC_NUM_SERVER", self.servers.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        let one = |role, index, own: &[(String, String)]| {
            ranks(1, [role_env(role, index).as_slice(), &self.env, own, &common].concat())
        };
        let servers = (0..self.servers).map(|index| one(Role::Server, index, &self.env_server));
        let workers = (0..self.workers).map(|index| one(Role::Worker, index, &self.env_worker));
        let scheduler = std::iter::once(one(Role::Scheduler, 0, &self.env_server));
        Ok((scheduler.chain(servers).chain(workers).collect(), Some(port)))
    }
}

/// What is said of an `mpirun` that was killed because it did not end.
fn outlived() -> Error {
    let what = format!(
        "its processes ended and it did not within {} s, so it was killed, and with it what it knew of their ends: go by what they said \
         (Open MPI 4.1 is known to do this where ranks fail)",
        PATIENCE.as_secs()
    );
    Error::io("wait for", "mpirun", &std::io::Error::other(what))
}

fn resolve(host: &str) -> Result<IpAddr> {
    use std::net::ToSocketAddrs;
    let found = (host, 0).to_socket_addrs().map_err(|cause| Error::io("resolve", host, &cause))?.next();
    match found.map(|address| address.ip()) {
        // This host's own name often stands for the loopback address, which the other hosts cannot reach.
        Some(address) if !address.is_loopback() || host == "localhost" || host == address.to_string() => Ok(address),
        _ => address_towards(host),
    }
}
