//! The processes of a job as one `mpirun`: rank 0 is the scheduler, then come the servers, then the workers.
//! A job without servers is plain MPI ranks.

use std::net::{IpAddr, Ipv4Addr};

use ringpull_base::config::Role;
use ringpull_base::{Error, Result};
use rustix::process::Pid;

use super::{Host, Port, Spec, address_towards, claim_port};
use crate::child::{self, Childless, PATIENCE, code_of, output_is_read};
use crate::interrupt::Interrupt;
use crate::mpirun::{Mpirun, Ranks};

/// Runs the job on `hosts` to its end; its exit code. `mpirun` itself ends all processes when one fails. An
/// error if it does not end after its ranks on this host have ended.
pub(crate) fn run(spec: &Spec, hosts: &[Host]) -> Result<i32> {
    let interrupt = Interrupt::watch()?;
    let (parts, _port) = parts(spec, hosts)?;
    let mut ready = Mpirun::find()?.command_of_parts(hosts, &parts)?;
    let mut child = ready.command.spawn().map_err(|cause| Error::io("run", "mpirun", &cause))?;
    let (mut forward, mut childless) =
        (interrupt.forward_to(Pid::from_child(&child)), Childless::watch(child.id(), hosts));
    let (status, killed) = child::wait(&mut child, "mpirun", || {
        forward();
        childless.is_stuck() && output_is_read()
    })?;
    if killed {
        return status.code().ok_or_else(outlived);
    }
    let code = code_of(status);
    // MPICH's mpiexec exits with 0 after a signal.
    Ok(interrupt.signal().filter(|_| code == 0).map_or(code, |signal| 128 + signal))
}

/// What the ranks run, and the scheduler's port, which is claimed until the job has ended.
fn parts(spec: &Spec, hosts: &[Host]) -> Result<(Vec<Ranks>, Option<Port>)> {
    let ranks = |count, env: Vec<(String, String)>| Ranks { count, command: spec.command.clone(), env };
    if spec.servers == 0 {
        return Ok((vec![ranks(spec.workers, spec.variables.of(Role::Worker))], None));
    }
    // Rank 0 is the scheduler and runs on the first host.
    let root = match hosts.first() {
        Some(Host::Ssh(host)) => resolve(&host.name)?,
        first => first.and_then(Host::address).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    };
    let port = claim_port(root)?;
    let one = |(role, index)| ranks(1, spec.env_of(role, index, root, port.number()));
    Ok((spec.roles().map(one).collect(), Some(port)))
}

/// The error of an `mpirun` that was killed because it did not end.
fn outlived() -> Error {
    let what = format!(
        "its processes ended and it did not within {} s, so it was killed and their exit codes are lost: see their \
         own output (Open MPI 4.1 sometimes hangs after ranks fail)",
        PATIENCE.as_secs()
    );
    Error::io("wait for", "mpirun", &std::io::Error::other(what))
}

fn resolve(host: &str) -> Result<IpAddr> {
    use std::net::ToSocketAddrs;
    let found = (host, 0).to_socket_addrs().map_err(|cause| Error::io("resolve", host, &cause))?.next();
    match found.map(|address| address.ip()) {
        // This host's own name often resolves to the loopback address, which other hosts cannot reach.
        Some(address) if !address.is_loopback() || host == "localhost" || host == address.to_string() => Ok(address),
        _ => address_towards(host),
    }
}
