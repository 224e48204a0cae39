//! The runner of rounds that starts real processes: on emulated hosts, on a hostfile's hosts, or on this
//! machine alone.
//!
//! Worker `i` runs on host `i`. Dedicated servers and helpers run on the hosts after the workers'; shared
//! server `s` runs on the host of worker `s mod n`. The scheduler runs on the first host.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringpull_allreduce::communicator::Cluster;
use ringpull_base::config::{self, Role};
use ringpull_base::{Error, Result};
use tempfile::NamedTempFile;

use crate::child::{self, Childless};
use crate::launch::hostfile::HostList;
use crate::launch::{Host, Launch, Port, Sink, Variables, claim_port};
use crate::mpirun::{Mpirun, Ranks};
use ringpull_harness::hardware::ProcessorTime;
use ringpull_harness::interrupt::Interrupt;
use ringpull_harness::layers;
use ringpull_harness::mode::{Mode, ServerPlacement};
use ringpull_harness::quiet::wait_until_quiet;
use ringpull_harness::record::Record;
use ringpull_harness::rounds::{Job, JobRunner, TrainSetup, Work, peers};
use ringpull_harness::shape::{Shape, own_words};
use ringpull_harness::text::several;
use ringpull_harness::variant::Variant;
use ringpull_lab::hosts::Lab;

/// The hosts of the jobs.
#[derive(Debug, Clone)]
pub(crate) enum Testbed {
    /// Emulated hosts, which are created and removed: the hosts of this shape for workers, and more hosts for
    /// dedicated servers.
    Lab(Shape),
    /// The hosts of this file, the last of them for dedicated servers.
    Hostfile(PathBuf),
    /// This machine without shaped links, for this number of workers.
    Local(usize),
}

/// The time that one job may take.
const JOB_LIMIT: Duration = Duration::from_secs(300);
/// MPICH's launcher, beside that of another MPI.
const MPICH: &str = "mpirun.mpich";
/// The number of lines of a failed job's output that the report has.
const LAST_LINES: usize = 12;

/// Hosts that are ready, and the program that runs on them.
#[derive(Debug)]
pub(crate) struct Launched {
    workers: usize,
    /// The workers' hosts, then those for dedicated servers.
    hosts: Vec<Host>,
    lab: Option<Lab>,
    program: PathBuf,
    /// `MXNET_KVSTORE_BIGARRAY_BOUND` of jobs with servers.
    bigarray_bound: Option<usize>,
    /// The cluster file of emulated hosts, after the first job that needs it.
    cluster: Option<NamedTempFile>,
    /// With it no further job starts after Ctrl-C, and the hosts are removed properly.
    interrupt: Interrupt,
}

impl Launched {
    /// Creates or checks the workers' hosts and `extra` hosts for dedicated servers.
    pub(crate) fn start(testbed: Testbed, extra: usize) -> Result<Self> {
        let program = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
        let interrupt = Interrupt::watch()?;
        let (workers, hosts, lab) = match testbed {
            Testbed::Lab(shape) => {
                let (workers, all) = (shape.hosts, shape.hosts + extra);
                let lab = Lab::up(Shape { hosts: all, ..shape })?;
                (workers, (1..=all).map(Host::Lab).collect(), Some(lab))
            }
            Testbed::Local(workers) => (workers, vec![Host::Local; workers + extra], None),
            Testbed::Hostfile(file) => {
                let hosts: Vec<Host> = HostList::of(&file).read()?.into_iter().map(Host::Ssh).collect();
                let workers = hosts.len().checked_sub(extra).filter(|workers| *workers > 0).ok_or_else(|| {
                    let (file, count) = (file.display(), hosts.len());
                    Error::argument(
                        format!(
                            "{file} names {}, too few for {}",
                            several(count, "host"),
                            several(extra, "dedicated server")
                        ),
                        "name more hosts, or choose modes with shared servers",
                    )
                })?;
                (workers, hosts, None)
            }
        };
        if workers == 0 {
            return Err(Error::argument("a comparison needs at least 1 worker", "give a larger number of workers"));
        }
        Ok(Launched { workers, hosts, lab, program, bigarray_bound: None, cluster: None, interrupt })
    }

    /// Returns the testbed for models with scaled tensors.
    pub(crate) fn scaled(mut self, scale: f64) -> Result<Self> {
        self.bigarray_bound = Some(layers::bigarray_bound(scale)?);
        Ok(self)
    }

    /// The hosts of the jobs, in words.
    pub(crate) fn words(&self) -> String {
        let hosts = several(self.workers, "host");
        match (&self.lab, &self.hosts[0]) {
            (Some(lab), _) => {
                let racks = lab.racks().map_or(String::new(), |racks| format!(" {racks}"));
                hosts.replacen(' ', " emulated ", 1) + &own_words(lab.own_links()) + &racks
            }
            (None, Host::Local) => "processes of one machine".to_owned(),
            (None, _) => hosts,
        }
    }

    /// Returns true if each worker has its own host, with its own network interface.
    pub(crate) fn has_own_hosts(&self) -> bool {
        self.hosts[0] != Host::Local
    }

    /// Returns true if the jobs run on machines other than this one.
    pub(crate) fn has_remote_hosts(&self) -> bool {
        matches!(self.hosts[0], Host::Ssh(_))
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Measures the network of all hosts by a job with one rank on each host.
    pub(crate) fn probe(&self) -> Result<Cluster> {
        let command = vec![self.program.clone().into(), "probe".into(), "--out=-".into()];
        let ranks = Ranks { count: self.hosts.len(), command, env: Vec::new() };
        let (printed, fault) = self.mpi_job(&Mpirun::find()?, ranks, 0)?;
        fault.map_or(Ok(()), Err)?;
        Cluster::parse(&printed).map_err(|cause| failed(&cause, &printed))
    }

    /// The variable with the cluster file of emulated hosts. Their links are measured once in each
    /// comparison, because emulated hosts are new each time and no file has them. If the user names a file,
    /// it is used instead.
    fn cluster_file(&mut self) -> Result<Option<(String, String)>> {
        const CLUSTER: &str = "RINGPULL_CLUSTER";
        if self.lab.is_none() || self.hosts.len() < 2 || config::text(CLUSTER).is_some() {
            return Ok(None);
        }
        if self.cluster.is_none() {
            let io = |cause: std::io::Error| Error::io("write", "the cluster file of emulated hosts", &cause);
            let file = tempfile::Builder::new().prefix("ringpull-").suffix(".toml").tempfile().map_err(io)?;
            std::fs::write(file.path(), self.probe()?.text()).map_err(io)?;
            self.cluster = Some(file);
        }
        let path = |file: &NamedTempFile| (CLUSTER.to_owned(), file.path().display().to_string());
        Ok(self.cluster.as_ref().map(path))
    }

    /// The arguments of `ringpull bench` that measure `variant`.
    fn bench(variant: Variant, job: &Job) -> Vec<String> {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let kind = variant.mode.kind().name();
        let mut words = match &job.work {
            // Waiting is 0: the processor time of waiting ranks is not part of a comparison.
            _ if variant.peer.is_some() => owned(&["allreduce", "--algorithm=native", "--waiting=0"]),
            Work::Buffers(_) => owned(&["allreduce", "--algorithm=auto", "--waiting=0"]),
            Work::Keys { named, .. } | Work::Rows { named, .. } => {
                [owned(&["pushpull", "--kv-store", kind]), named.clone()].concat()
            }
            Work::Steps { named, train, .. } => {
                let TrainSetup { compute_s, batch, .. } = train;
                let batch = batch.map(|batch| format!("--batch={batch}"));
                let train = std::iter::once(format!("--compute={compute_s}")).chain(batch).collect();
                [owned(&["train", "--kv-store", kind]), named.clone(), train].concat()
            }
        };
        if words[0] == "allreduce" {
            let sizes: Vec<String> = job.payloads().iter().map(ToString::to_string).collect();
            words.push(format!("--sizes={}", sizes.join(",")));
        }
        words.extend(variant.compression.map(|compression| format!("--compression={compression}")));
        words.push("--format=json".to_owned());
        words
    }

    /// Runs a job of `workers` with servers to its end. Returns the records that a worker printed.
    fn with_servers(
        &self,
        workers: usize,
        command: Vec<OsString>,
        mode: Mode,
        placement: ServerPlacement,
    ) -> Result<String> {
        let (all, extra) = self.hosts.split_at(self.workers);
        let workers = &all[..workers];
        let of_servers = if placement == ServerPlacement::Dedicated { extra } else { workers };
        let of_servers = of_servers.iter().cycle().take(mode.servers()).cloned().collect();
        let bound = self.bigarray_bound.map(|bound| (layers::BIGARRAY_BOUND.to_owned(), bound.to_string()));
        let variables = Variables { env: bound.into_iter().collect(), ..Variables::default() };
        let mut launch = Launch::new(workers.to_vec(), of_servers, command, variables)?;
        launch.has_ranks = mode.kind().has_ranks();
        launch.sink = Sink::Kept;
        launch.limit = Some(JOB_LIMIT);
        let end = launch.run()?;
        if end.code != 0 {
            let failed_one = end.processes.iter().find(|process| process.code != 0);
            return Err(failed(&end.failure, failed_one.map_or("", |process| &process.stderr)));
        }
        // Any worker may be the one that prints records, and libraries may print something too.
        let workers = end.processes.iter().filter(|process| process.role == Role::Worker);
        Ok(workers.map(|process| &process.stdout[..]).collect::<Vec<_>>().join("\n"))
    }

    /// The variables by which ranks without MPI find each other, with PyTorch's names, and the port on the
    /// first worker's host. The port is claimed while the returned value lives.
    fn meeting_point(&self) -> Result<(Vec<(String, String)>, Port)> {
        let root = self.hosts[0].address().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let name = match &self.hosts[0] {
            Host::Ssh(host) => host.name.clone(),
            Host::Lab(_) | Host::Local => root.to_string(),
        };
        let port = claim_port(root)?;
        let variables = [("MASTER_ADDR", name), ("MASTER_PORT", port.number().to_string())];
        Ok((variables.map(|(variable, value)| (variable.to_owned(), value)).to_vec(), port))
    }

    /// Runs one MPI job to its end: workers on the first hosts, helpers on the hosts after them. Returns the
    /// output of the job, and its error if it failed.
    fn mpi_job(&self, mpirun: &Mpirun, mut ranks: Ranks, helpers: usize) -> Result<(String, Option<Error>)> {
        let hosts = [&self.hosts[..ranks.count], &self.hosts[self.workers..][..helpers]].concat();
        let (meeting_point, _port) = self.meeting_point()?;
        ranks.env.extend(meeting_point);
        let role = (config::ROLE.to_owned(), "helper".to_owned());
        let helping = Ranks { count: helpers, env: [&ranks.env[..], &[role]].concat(), ..ranks.clone() };
        let parts: Vec<Ranks> = [ranks, helping].into_iter().filter(|part| part.count > 0).collect();
        let mut ready = mpirun.command_of_parts(&hosts, &parts)?;
        let (deadline, mut childless) = (Instant::now() + JOB_LIMIT, None);
        let end = child::run(&mut ready.command, "mpirun", |pid| {
            let childless = childless.get_or_insert_with(|| Childless::watch(pid, &hosts));
            Instant::now() > deadline || self.interrupt.count() > 0 || childless.is_stuck()
        })?;
        let what = match end.was_killed {
            false if end.status.success() => return Ok((end.stdout, None)),
            false => format!("mpirun ended with {}", end.status),
            true if self.interrupt.count() > 0 => return Err(failed("interrupted", "")),
            true if Instant::now() <= deadline => "all ranks ended and mpirun did not".to_owned(),
            true => format!("mpirun did not end within {} s", JOB_LIMIT.as_secs()),
        };
        Ok((end.stdout, Some(failed(&what, &end.stderr))))
    }
}

impl JobRunner for Launched {
    fn missing(&mut self, variant: Variant) -> Option<String> {
        if variant.on_mpich {
            return Mpirun::at(MPICH).err().map(|_| "scripts/setup --mpich".to_owned());
        }
        variant.peer.and_then(peers::missing)
    }

    /// The processor time of the machine that starts the jobs, also with a hostfile.
    fn processor_time(&mut self) -> Option<ProcessorTime> {
        ProcessorTime::read()
    }

    /// Waits only if the jobs run on this machine.
    fn settle(&mut self, last_job: Duration) {
        if self.has_remote_hosts() {
            return;
        }
        wait_until_quiet(last_job, &mut ProcessorTime::read, &mut |time| {
            std::thread::sleep(time);
            self.interrupt.count() == 0
        });
    }

    fn interrupted(&self) -> Option<i32> {
        self.interrupt.signal().filter(|_| self.interrupt.count() > 0)
    }

    fn run(&mut self, variant: Variant, job: &Job) -> Result<Vec<Record>> {
        if self.interrupt.count() > 0 {
            return Err(failed("interrupted", ""));
        }
        let words = if let Some(peer) = variant.peer.filter(|peer| !peer.is_mpi()) {
            peers::words(peer, job)?
        } else {
            let bench = Self::bench(variant, job).into_iter().map(OsString::from);
            [self.program.clone().into(), "bench".into()].into_iter().chain(bench).collect()
        };
        let loops = [format!("--iters={}", job.iters), format!("--warmup={}", job.warmup)];
        let command = words.into_iter().chain(loops.map(OsString::from)).collect();
        let name = variant.to_string();
        if let Some(placement) = variant.mode.placement() {
            return Record::parse_list(&name, &self.with_servers(job.ranks, command, variant.mode, placement)?);
        }
        let mpirun = if variant.on_mpich { Mpirun::at(MPICH) } else { Mpirun::find() }?;
        let helpers = if let Mode::Helped { helpers } = variant.mode { helpers } else { 0 };
        let cluster = if variant.peer.is_none() { self.cluster_file()? } else { None };
        let env = variant.env().into_iter().chain(cluster).collect();
        let ranks = Ranks { count: job.ranks, command, env };
        let (printed, fault) = self.mpi_job(&mpirun, ranks, helpers)?;
        if variant.on_mpich
            && let Ok(records) = Record::parse_list(&name, &printed)
        {
            // All samples were verified before MPI_Finalize. With Debian's MPICH 4.0 it sometimes hangs.
            tracing::debug!(?fault, "the job of MPICH ended after its records");
            return Ok(records);
        }
        fault.map_or(Ok(()), Err)?;
        Record::parse_list(&name, &printed)
    }
}

fn failed(what: &str, output: &str) -> Error {
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
    Error::argument(
        if last.is_empty() { what.to_owned() } else { format!("{what}; its last lines:\n{last}") },
        "run this variant alone with --modes or --peers and RINGPULL_LOG=debug",
    )
}
