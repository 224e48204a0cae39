//! Starts the processes of a parameter-server job and ends them together: one scheduler, the servers, the workers.
//!
//! - [`place`]: where a process runs and the command that runs it there, with the little supervisor that ends its whole
//!   process group when the launcher says so or is gone;
//! - `supervise`: waits for all of them and decides when the rest must end; `output`: what becomes of their output;
//! - [`port`]: where the scheduler listens; [`hostfile`]: hosts by name; [`remote`]: what is done on them over ssh before the job;
//! - [`by_mpi`]: the same job as one `mpirun`; [`batch`]: as one step of Slurm or one job of Grid Engine.
//!
//! Each process learns its role from the `DMLC_*` variables, with ps-lite's meaning.

pub mod batch;
pub mod by_mpi;
pub mod hostfile;
mod output;
pub mod place;
pub mod port;
pub mod remote;
mod supervise;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

pub use self::output::Sink;
pub use self::place::Place;
pub use self::port::{Port, claim_port};
pub use self::supervise::{Ended, Outcome};
use ringpull_base::config::{self, Role};
use ringpull_base::{Error, Result};

/// A job: which place runs which role, the command that all of them run, and what they are told.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Where each worker runs.
    pub workers: Vec<Place>,
    /// Where each server runs.
    pub servers: Vec<Place>,
    /// Where the scheduler runs.
    pub scheduler: Place,
    /// The scheduler's address as the other processes reach it.
    pub root: IpAddr,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Variables for every process.
    pub env: Vec<(String, String)>,
    /// Variables for the servers and the scheduler.
    pub env_server: Vec<(String, String)>,
    /// Variables for the workers.
    pub env_worker: Vec<(String, String)>,
    /// What becomes of the output.
    pub sink: Sink,
    /// How long the others may go on after one failed, and the servers after the last worker.
    pub grace: Duration,
    /// How long the whole job may take; `None` for any time.
    pub limit: Option<Duration>,
}

/// One process of a job. Not to be printed whole: its variables have the job's secret.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) role: Role,
    pub(crate) index: usize,
    pub(crate) place: Place,
    pub(crate) env: Vec<(String, String)>,
}

impl Process {
    /// The process in words: `worker 3`.
    pub(crate) fn name(&self) -> String {
        match self.role {
            Role::Scheduler => "scheduler".to_owned(),
            role => format!("{role} {}", self.index),
        }
    }
}

impl Launch {
    /// A job with its workers and servers at these places, its scheduler at the first place that can be reached by all:
    /// on this host, unless the job runs on emulated hosts.
    pub fn new(workers: Vec<Place>, servers: Vec<Place>, command: Vec<OsString>) -> Result<Self> {
        let Some(first) = workers.first() else {
            return Err(Error::argument("a job needs at least one worker", "give the number of workers with -n"));
        };
        if servers.is_empty() {
            return Err(Error::argument(
                "a job of parameter servers needs at least one server",
                "give the number of servers with -s; dist_sync_mpi needs none: -s 0 --launcher mpi",
            ));
        }
        if command.is_empty() {
            return Err(Error::argument("there is no command to launch", "give it after --"));
        }
        let (scheduler, root) = match first {
            Place::Local => (Place::Local, IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Place::Lab(host) => (Place::Lab(*host), IpAddr::V4(super::lab::address(*host))),
            Place::Ssh(host) => (Place::Local, address_towards(&host.name)?),
        };
        Ok(Launch {
            workers,
            servers,
            scheduler,
            root,
            command,
            env: Vec::new(),
            env_server: Vec::new(),
            env_worker: Vec::new(),
            sink: Sink::Tagged,
            grace: Duration::from_secs(10),
            limit: None,
        })
    }

    /// Runs the job to its end. Every process has ended when this returns, whatever it returns.
    pub fn run(&self) -> Result<Outcome> {
        // Claimed until the job has ended: its scheduler may be started again.
        let port = claim_port(self.root)?;
        supervise::run(self, &self.processes(port.number(), &config::secret_or_new()?))
    }

    fn processes(&self, port: u16, secret: &config::Secret) -> Vec<Process> {
        let process = |role, index: usize, place: &Place| {
            let own = if role == Role::Worker { &self.env_worker } else { &self.env_server };
            let near = self.workers.iter().filter(|other| other.shares_cores_with(place)).count().max(1);
            let near = vec![("RINGPULL_LOCAL_WORKERS".to_owned(), near.to_string())];
            let secret = vec![(config::SECRET.to_owned(), secret.reveal().to_owned())];
            let env =
                [role_env(role, index), near, secret, self.env.clone(), own.clone(), self.common_env(port)].concat();
            let node = place.address().map(|address| ("DMLC_NODE_HOST".to_owned(), address.to_string()));
            Process { role, index, place: place.clone(), env: env.into_iter().chain(node).collect() }
        };
        let servers = self.servers.iter().enumerate().map(|(index, place)| process(Role::Server, index, place));
        let workers = self.workers.iter().enumerate().map(|(index, place)| process(Role::Worker, index, place));
        std::iter::once(process(Role::Scheduler, 0, &self.scheduler)).chain(servers).chain(workers).collect()
    }

    fn common_env(&self, port: u16) -> Vec<(String, String)> {
        [
            ("DMLC_PS_ROOT_URI", self.root.to_string()),
            ("DMLC_PS_ROOT_PORT", port.to_string()),
            ("DMLC_NUM_WORKER", self.workers.len().to_string()),
            ("DMLC_NUM_SERVER", self.servers.len().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// The variables that tell a process which it is.
pub(crate) fn role_env(role: Role, index: usize) -> Vec<(String, String)> {
    let id = match role {
        Role::Worker => Some("DMLC_WORKER_ID"),
        Role::Server => Some("DMLC_SERVER_ID"),
        Role::Scheduler => None,
    };
    let id = id.map(|name| (name.to_owned(), index.to_string()));
    std::iter::once(("DMLC_ROLE".to_owned(), role.to_string())).chain(id).collect()
}

/// The address of this host on the route to `host`: the one that `host` can answer to. Sends nothing.
pub(crate) fn address_towards(host: &str) -> Result<IpAddr> {
    let found = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((host, 9))?;
        socket.local_addr()
    });
    found.map(|address| address.ip()).map_err(|cause| {
        Error::argument(
            format!("host {host} has no address that can be reached from here: {cause}"),
            "check the name in the hostfile, and that this host resolves it",
        )
    })
}
