//! Starts the processes of a job and ends them together: MPI ranks, or one scheduler, servers and workers.
//!
//! - [`host`]: the place of a process and the command that runs it there, below a [`wrapper`] that ends the
//!   process's whole session when the launcher orders that or ends;
//! - `supervise`: waits for all processes, and ends the remaining ones by the table of `ringpull_lab::ends`;
//! - `output`: prints the processes' output; `lines`: merges it into one text;
//! - [`port`]: the port of the scheduler; [`hostfile`]: lists of hosts; [`remote`]: checks and copies over
//!   ssh before the job; [`environment`]: the user's variables that other hosts get;
//! - [`by_mpi`]: the job as one `mpirun`; [`wrapper`]: the program above each rank; `memory_limit`: the
//!   kernel's kills among the wrapper's children; `control`: the launcher's side of a wrapper's connection;
//!   `connection`: the frames between them;
//! - [`batch`]: the job as one step of Slurm or one job of Grid Engine;
//! - [`elastic`]: MPI ranks that are started again when some are lost or hosts are added.
//!
//! [`horovodrun`] translates the options of `horovodrun`.
//!
//! Each process learns its role from the `DMLC_*` variables, with ps-lite's meaning.

pub(crate) mod batch;
pub(crate) mod by_mpi;
mod connection;
mod control;
pub(crate) mod elastic;
pub(crate) mod environment;
pub(crate) mod horovodrun;
pub(crate) mod host;
pub(crate) mod hostfile;
mod lines;
mod memory_limit;
mod output;
pub(crate) mod port;
pub(crate) mod remote;
mod stuck;
mod supervise;
pub(crate) mod wrapper;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::time::Duration;

use self::control::{RankControl, RankHosts};
pub use self::host::Host;
pub use self::hostfile::SshHost;
pub(crate) use self::output::Sink;
pub(crate) use self::port::{Port, claim_port};
pub(crate) use self::supervise::JobEnd;
use ringpull_base::config::{self, Role};
use ringpull_base::{Error, Result, Secret};

/// The program of a job, however its processes are started.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub workers: usize,
    pub servers: usize,
    /// MPI ranks that only reduce for the workers, in a job without servers.
    pub helpers: usize,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    pub variables: Variables,
}

/// Variables for the processes of a job.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Variables {
    /// A variable for every process: NAME=VALUE, NAME:VALUE, or NAME to pass on its current value. Every user
    /// of a host can read arguments, so pass secrets by NAME.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// A variable for the servers and the scheduler.
    #[arg(long, value_name = "NAME:VALUE", value_parser = variable)]
    pub env_server: Vec<(String, String)>,
    /// A variable for the workers.
    #[arg(long, value_name = "NAME:VALUE", value_parser = variable)]
    pub env_worker: Vec<(String, String)>,
}

fn variable(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = match text.find(['=', ':']) {
        Some(at) => (&text[..at], text[at + 1..].to_owned()),
        None => (text, std::env::var(text).map_err(|_| format!("{text} is not set; give NAME=VALUE"))?),
    };
    if !environment::is_name(name) {
        return Err(format!("{name:?} is not the name of a variable; give NAME=VALUE"));
    }
    Ok((name.to_owned(), value))
}

impl Variables {
    /// The variables of a role. If a name occurs twice, the last value counts.
    pub(crate) fn of(&self, role: Role) -> Vec<(String, String)> {
        let own = match role {
            Role::Worker | Role::Helper => &self.env_worker,
            Role::Server | Role::Scheduler => &self.env_server,
        };
        let unbuffered = config::text("PYTHONUNBUFFERED").is_none();
        // With this variable Python does not buffer lines that go into a pipe. (mpirun itself gives ranks a
        // terminal.)
        let first = unbuffered.then(|| ("PYTHONUNBUFFERED".to_owned(), "1".to_owned()));
        first.into_iter().chain([&self.env[..], own].concat()).collect()
    }
}

impl Spec {
    /// The processes of a job with servers: each role with its index among those of the role.
    pub(crate) fn roles(&self) -> impl Iterator<Item = (Role, usize)> {
        let servers = (0..self.servers).map(|index| (Role::Server, index));
        let workers = (0..self.workers).map(|index| (Role::Worker, index));
        std::iter::once((Role::Scheduler, 0)).chain(servers).chain(workers)
    }

    /// The variables of one process. The scheduler listens at `root` and `port`.
    pub(crate) fn env_of(&self, role: Role, index: usize, root: IpAddr, port: u16) -> Vec<(String, String)> {
        let id = match role {
            Role::Worker => Some(("DMLC_WORKER_ID", index.to_string())),
            Role::Server => Some(("DMLC_SERVER_ID", index.to_string())),
            Role::Scheduler | Role::Helper => None,
        };
        let own = std::iter::once(("DMLC_ROLE", role.to_string())).chain(id);
        let job = [
            ("DMLC_PS_ROOT_URI", root.to_string()),
            ("DMLC_PS_ROOT_PORT", port.to_string()),
            ("DMLC_NUM_WORKER", self.workers.to_string()),
            ("DMLC_NUM_SERVER", self.servers.to_string()),
        ];
        let named = |(name, value): (&str, String)| (name.to_owned(), value);
        own.map(named).chain(self.variables.of(role)).chain(job.map(named)).collect()
    }
}

/// A job whose processes this program starts itself, with the host of each.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub spec: Spec,
    pub workers: Vec<Host>,
    pub servers: Vec<Host>,
    pub scheduler: Host,
    /// The scheduler's address as the other processes reach it.
    pub root: IpAddr,
    /// The place to which the output goes.
    pub sink: Sink,
    /// True if the workers are the ranks of an `mpirun`, as for `dist_hybrid`.
    pub has_ranks: bool,
    /// The time for which the other processes may run after a failure, and the servers after the end of the
    /// last worker.
    pub grace: Duration,
    /// The time that the whole job may take.
    pub limit: Option<Duration>,
    /// If set, the job goes on without workers that are lost.
    pub elastic: Option<Replacements>,
}

/// The way in which a job with servers replaces lost workers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replacements {
    /// The fewest workers with which the job goes on.
    pub least: usize,
    /// The number of workers that may be started in the place of lost ones.
    pub restarts: u32,
}

/// One process of a job. The type has no `Debug`, because its variables contain the job's secret.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) role: Role,
    pub(crate) index: usize,
    pub(crate) host: Host,
    pub(crate) env: Vec<(String, String)>,
    /// The `mpirun` of all workers, if the process runs this instead of the job's program.
    pub(crate) mpirun: Option<Vec<OsString>>,
}

impl Process {
    /// The name of the process, such as `worker 3`.
    pub(crate) fn name(&self) -> String {
        if self.mpirun.is_some() { "mpirun".to_owned() } else { process_name(self.role, self.index) }
    }
}

/// The name of a process, such as `worker 3`.
fn process_name(role: Role, index: usize) -> String {
    match role {
        Role::Scheduler => "scheduler".to_owned(),
        role => format!("{role} {index}"),
    }
}

impl Launch {
    /// Makes a job with its workers and servers on these hosts. Its scheduler runs on this host, or on the
    /// first emulated host.
    pub(crate) fn new(
        workers: Vec<Host>,
        servers: Vec<Host>,
        command: Vec<OsString>,
        variables: Variables,
    ) -> Result<Self> {
        let Some(first) = workers.first() else {
            return Err(Error::argument("a job needs at least one worker", "give the number of workers with -n"));
        };
        if servers.is_empty() {
            return Err(Error::argument(
                "a job of parameter servers needs at least one server",
                "give the number of servers with -s; dist_sync_mpi needs none: -s 0",
            ));
        }
        if command.is_empty() {
            return Err(Error::argument("the command is missing", "give it after --"));
        }
        let (scheduler, root) = match first {
            Host::Lab(host) => (Host::Lab(*host), IpAddr::V4(super::lab::address(*host))),
            _ => (Host::Local, own_address(workers.iter().chain(&servers))?),
        };
        Ok(Launch {
            spec: Spec { workers: workers.len(), servers: servers.len(), helpers: 0, command, variables },
            workers,
            servers,
            scheduler,
            root,
            sink: Sink::Tagged,
            has_ranks: false,
            grace: Duration::from_secs(10),
            limit: None,
            elastic: None,
        })
    }

    /// Runs the job to its end. When this returns, every process has ended, also if it returns an error.
    pub(crate) fn run(&self) -> Result<JobEnd> {
        // The claim lasts until the job has ended.
        let port = claim_port(self.root)?;
        let secret = config::secret_or_new()?;
        let mut processes = self.processes(port.number(), &secret);
        if !self.has_ranks {
            return supervise::run(self, &processes, None);
        }
        let first = processes.iter().position(|process| process.role == Role::Worker);
        let first = first.ok_or_else(|| Error::bug("a job has no worker"))?;
        let mut mpirun = processes.swap_remove(first);
        processes.retain(|process| process.role != Role::Worker);
        // Ranks learn their own numbers and addresses.
        mpirun.env.retain(|(name, _)| !["DMLC_WORKER_ID", "DMLC_NODE_HOST"].contains(&name.as_str()));
        let control = RankControl::listen(RankHosts::Hosts(&self.workers), secret, self.sink, Box::new(|_| ()))?;
        // This value, and the files that it names, live until the job has ended.
        let ready = by_mpi::workers_alone(&self.spec, &self.workers, &control, &mpirun.env)?;
        mpirun.env.extend(ready.env());
        mpirun.env.push((config::SECRET.to_owned(), control.secret.reveal().to_owned()));
        (mpirun.mpirun, mpirun.host) = (Some(ready.words()), Host::Local);
        processes.push(mpirun);
        supervise::run(self, &processes, Some(&control))
    }

    fn processes(&self, port: u16, secret: &Secret) -> Vec<Process> {
        let process = |(role, index): (Role, usize)| {
            let host = match role {
                Role::Scheduler => &self.scheduler,
                Role::Server => &self.servers[index],
                Role::Worker | Role::Helper => &self.workers[index],
            };
            let near = self.workers.iter().filter(|other| other.shares_cores_with(host)).count().max(1);
            let here = [("RINGPULL_LOCAL_WORKERS", near.to_string()), (config::SECRET, secret.reveal().to_owned())];
            let node = host.address().map(|address| ("DMLC_NODE_HOST", address.to_string()));
            let named = |(name, value): (&str, String)| (name.to_owned(), value);
            let env = here.map(named).into_iter().chain(self.spec.env_of(role, index, self.root, port));
            Process { role, index, host: host.clone(), env: env.chain(node.map(named)).collect(), mpirun: None }
        };
        self.spec.roles().map(process).collect()
    }
}

/// The address by which these hosts reach this host: the loopback address if this host is the only one.
pub(crate) fn own_address<'a>(mut hosts: impl Iterator<Item = &'a Host>) -> Result<IpAddr> {
    let other = hosts.find_map(|host| if let Host::Ssh(host) = host { Some(host) } else { None });
    other.map_or(Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)), |host| address_towards(&host.name))
}

/// The address of this host on the route to `host`, at which `host` can answer. It is an IPv4 address if
/// there is one. Sends nothing.
pub(crate) fn address_towards(host: &str) -> Result<IpAddr> {
    let failed = |what: String, remedy: &str| Error::argument(format!("host {host} {what}"), remedy);
    let found = (host, 9).to_socket_addrs().map_err(|cause| {
        let hint = "correct the name in the list of hosts, or add it to DNS or /etc/hosts of this host";
        failed(format!("has no address that this host knows: {cause}"), hint)
    })?;
    let (four, six): (Vec<_>, Vec<_>) = found.partition(SocketAddr::is_ipv4);
    let mut last = None;
    for address in four.into_iter().chain(six) {
        let any = if address.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let route = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(address)?;
            socket.local_addr()
        });
        match route.map(|address| address.ip()) {
            Ok(IpAddr::V6(own)) if own.is_unicast_link_local() => {
                last = Some(format!("is reached by {own} alone, which is only valid on one link"));
            }
            Ok(own) => return Ok(own),
            Err(cause) => last = Some(format!("cannot be reached from here by {}: {cause}", address.ip())),
        }
    }
    let why = last.unwrap_or_else(|| "has no address".to_owned());
    Err(failed(why, "give it an address that this host has a route to, and name it by that or by a name of it"))
}
