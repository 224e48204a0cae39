//! The runner that starts real processes: on emulated hosts, on a hostfile's hosts, or on this machine alone.
//!
//! Worker `i` runs on host `i`. A dedicated server has a host after the workers' ones; a shared server runs
//! on worker `s mod n`'s host. The scheduler sits on the first host.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ringpull_base::config::Role;
use ringpull_base::{Error, Result};

use crate::child::{self, Childless};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, Shape};
use crate::launch::hostfile::{self, Host};
use crate::launch::{self, Launch, Port, Sink, Variables, claim_port};
use crate::machine::ProcessorTime;
use crate::mode::{Mode, Placement};
use crate::mpirun::{Hosts, Mpirun, Ranks};
use crate::quiet::wait_until_quiet;
use crate::record::Record;
use crate::rounds::{Job, Runner, TrainSetup, Work, peers};
use crate::text::several;
use crate::variant::Variant;

/// Where the jobs run.
#[derive(Debug, Clone)]
pub enum Place {
    /// On emulated hosts, which this makes and takes down: a worker on each of the shape's, and more for
    /// dedicated servers.
    Lab(Shape),
    /// On the hosts of a file, the last of them for dedicated servers.
    Hostfile {
        /// The file.
        file: PathBuf,
    },
    /// As processes of this machine, without shaped links.
    Local {
        /// Workers.
        workers: usize,
    },
}

/// How long one job may take.
const JOB_LIMIT: Duration = Duration::from_secs(300);
/// How much of a failed job's last words goes into the report.
const LAST_LINES: usize = 12;

#[derive(Debug)]
enum Ready {
    Lab(Lab),
    Ssh(Vec<Host>),
    Local,
}

/// Hosts that are ready, and the program that runs on them.
#[derive(Debug)]
pub struct Launched {
    workers: usize,
    hosts: Ready,
    program: PathBuf,
    /// This program built with MPICH, and its `mpirun`.
    mpich: Option<(PathBuf, Mpirun)>,
    /// After Ctrl-C no further job starts, and the hosts are taken down in order.
    interrupt: Interrupt,
}

impl Launched {
    /// Makes or checks the hosts: the workers' ones and `extra` for dedicated servers.
    pub fn start(place: Place, extra: usize, mpich: Option<(PathBuf, Mpirun)>) -> Result<Self> {
        let program = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
        let interrupt = Interrupt::watch()?;
        let (workers, hosts) = match place {
            Place::Lab(shape) => {
                let lab = Lab::up(Shape { hosts: shape.hosts + extra, ..shape })?;
                (shape.hosts, Ready::Lab(lab))
            }
            Place::Local { workers } => (workers, Ready::Local),
            Place::Hostfile { file } => {
                let hosts = hostfile::read(&file)?;
                let workers = hosts.len().checked_sub(extra).filter(|workers| *workers > 0).ok_or_else(|| {
                    Error::argument(
                        format!(
                            "{} names {} hosts, too few for {extra} dedicated servers",
                            file.display(),
                            hosts.len()
                        ),
                        "name more hosts, or ask for modes with shared servers",
                    )
                })?;
                (workers, Ready::Ssh(hosts))
            }
        };
        if workers == 0 {
            return Err(Error::argument("a comparison needs workers", "ask for at least 1"));
        }
        Ok(Launched { workers, hosts, program, mpich, interrupt })
    }

    /// Where the jobs run, in words.
    pub fn words(&self) -> String {
        let hosts = several(self.workers, "host");
        match &self.hosts {
            Ready::Lab(lab) => {
                let racks = lab.racks().map_or(String::new(), |racks| format!(" {racks}"));
                hosts.replacen(' ', " emulated ", 1) + &racks
            }
            Ready::Ssh(_) => hosts,
            Ready::Local => "processes of one machine".to_owned(),
        }
    }

    /// Whether each worker has a network interface of its own host.
    pub fn has_own_hosts(&self) -> bool {
        !matches!(self.hosts, Ready::Local)
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    fn place(&self, host: usize) -> launch::Place {
        match &self.hosts {
            Ready::Lab(_) => launch::Place::Lab(host + 1),
            Ready::Ssh(hosts) => launch::Place::Ssh(hosts[host].clone()),
            Ready::Local => launch::Place::Local,
        }
    }

    /// The words of our own program that measure `variant`.
    fn bench(variant: Variant, job: &Job) -> Vec<String> {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let kind = variant.mode.kind().name();
        let mut words = match &job.work {
            // No rank is made late: what waiting costs is no part of a comparison.
            _ if variant.peer.is_some() => owned(&["allreduce", "--algorithm=native", "--late=0"]),
            Work::Buffers(_) => owned(&["allreduce", "--algorithm=auto", "--late=0"]),
            Work::Keys { named, .. } => [owned(&["pushpull", "--kv-store", kind]), named.clone()].concat(),
            Work::Steps { named, train, .. } => {
                let TrainSetup { compute_s, burn, batch, .. } = train;
                let burn = burn.map(|part| format!("--burn={part}"));
                let batch = batch.map(|batch| format!("--batch={batch}"));
                let train = [Some(format!("--compute={compute_s}")), burn, batch].into_iter().flatten();
                [owned(&["train", "--kv-store", kind]), named.clone(), train.collect()].concat()
            }
        };
        if words[0] == "allreduce" {
            let sizes: Vec<String> = job.payloads().iter().map(ToString::to_string).collect();
            words.push(format!("--sizes={}", sizes.join(",")));
        }
        words.extend(variant.compression.map(|compression| format!("--compression={compression}")));
        words.extend(["--format".to_owned(), "json".to_owned()]);
        words
    }

    fn with_servers(&self, command: Vec<OsString>, servers: usize, placement: Placement) -> Result<String> {
        let server = |index: usize| match placement {
            Placement::Dedicated => self.place(self.workers + index),
            Placement::Shared => self.place(index % self.workers),
        };
        let workers = (0..self.workers).map(|index| self.place(index)).collect();
        let mut launch = Launch::new(workers, (0..servers).map(server).collect(), command, Variables::default())?;
        launch.sink = Sink::Kept;
        launch.limit = Some(JOB_LIMIT);
        let outcome = launch.run()?;
        if outcome.code != 0 {
            let mut words: Vec<String> = Vec::new();
            for process in outcome.processes.iter().filter(|process| process.code != 0) {
                words.push(last_lines(&process.stderr));
            }
            words.dedup();
            return Err(failed(&outcome.failure, words.first().map_or("", String::as_str)));
        }
        let workers = outcome.processes.into_iter().filter(|process| process.role == Role::Worker);
        workers
            .map(|process| process.stdout)
            .find(|text| !text.trim().is_empty())
            .ok_or_else(|| failed("every process ended well, but no worker printed a record", ""))
    }

    /// Where ranks that do not speak MPI find each other, in PyTorch's words: a port on the first worker's
    /// host, which is claimed as long as what this gives lives.
    fn meeting_point(&self) -> Result<(Vec<(String, String)>, Port)> {
        let root = self.place(0).address().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let name = match &self.hosts {
            Ready::Ssh(hosts) => hosts[0].name.clone(),
            Ready::Lab(_) | Ready::Local => root.to_string(),
        };
        let port = claim_port(root)?;
        let number = port.number().to_string();
        Ok((vec![("MASTER_ADDR".to_owned(), name), ("MASTER_PORT".to_owned(), number)], port))
    }

    /// Runs one MPI job of `count` ranks on the first hosts to its end, and gives what it printed and why it
    /// is said to have failed.
    fn mpi_job(
        &self,
        mpirun: &Mpirun,
        count: usize,
        command: Vec<OsString>,
        env: Vec<(String, String)>,
    ) -> Result<(String, Option<Error>)> {
        let hosts = match &self.hosts {
            Ready::Lab(_) => Hosts::Lab((1..=count).collect()),
            Ready::Ssh(hosts) => Hosts::Ssh(hosts[..count].to_vec()),
            Ready::Local => Hosts::Local,
        };
        let (meeting_point, _port) = self.meeting_point()?;
        let env = [env, meeting_point].concat();
        let mut ready = mpirun.command(&hosts, Ranks { count, command, env })?;
        ready.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = ready.command.spawn().map_err(|cause| Error::io("run", "mpirun", &cause))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let out = std::thread::spawn(move || out.map(drain).unwrap_or_default());
        let err = std::thread::spawn(move || err.map(drain).unwrap_or_default());
        let (deadline, mut childless) = (Instant::now() + JOB_LIMIT, Childless::watch(child.id(), &hosts));
        let (status, killed) = child::wait(&mut child, "mpirun", || {
            Instant::now() > deadline || self.interrupt.count() > 0 || childless.is_stuck()
        })?;
        let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
        let fault = match killed {
            false if status.success() => None,
            false => Some(failed(&format!("mpirun ended with {status}"), &err)),
            true if self.interrupt.count() > 0 => return Err(failed("interrupted", "")),
            true if Instant::now() <= deadline => Some(failed("all ranks ended and mpirun did not", &err)),
            true => Some(failed(&format!("mpirun was not finished after {} s", JOB_LIMIT.as_secs()), &err)),
        };
        Ok((out, fault))
    }
}

impl Runner for Launched {
    fn missing(&mut self, variant: Variant) -> Option<String> {
        if variant.on_mpich {
            let install = "scripts/setup --mpich; then scripts/bench builds with it and names the program with --mpich";
            return self.mpich.is_none().then(|| install.to_owned());
        }
        variant.peer.and_then(peers::missing)
    }

    /// Of the machine that starts the jobs; with a hostfile the other hosts are not asked.
    fn processor_time(&mut self) -> Option<ProcessorTime> {
        ProcessorTime::read()
    }

    /// Where the jobs run on this machine; the hosts of a hostfile are not asked.
    fn settle(&mut self, last_job: Duration) {
        if matches!(self.hosts, Ready::Ssh(_)) {
            return;
        }
        wait_until_quiet(last_job, &mut ProcessorTime::read, &mut |time| {
            std::thread::sleep(time);
            self.interrupt.count() == 0
        });
    }

    fn run(&mut self, variant: Variant, job: &Job) -> Result<Vec<Record>> {
        if self.interrupt.count() > 0 {
            return Err(failed("interrupted", ""));
        }
        let loops = ["--iters".to_owned(), job.iters.to_string(), "--warmup".to_owned(), job.warmup.to_string()];
        let second = self.mpich.as_ref().filter(|_| variant.on_mpich);
        let words = if let Some(peer) = variant.peer.filter(|peer| !peer.is_mpi()) {
            peers::words(peer, job)?
        } else {
            let program = second.map_or(&self.program, |(program, _)| program);
            let bench = Self::bench(variant, job).into_iter().map(OsString::from);
            [program.into(), "bench".into()].into_iter().chain(bench).collect()
        };
        let command = words.into_iter().chain(loops.map(OsString::from)).collect();
        let name = variant.to_string();
        if let Mode::Servers { servers, placement, .. } = variant.mode {
            return Record::parse_list(&name, &self.with_servers(command, servers, placement)?);
        }
        let mpirun = second.map_or_else(Mpirun::find, |(_, mpirun)| Ok(mpirun.clone()))?;
        let (printed, fault) = self.mpi_job(&mpirun, job.ranks, command, variant.env())?;
        if variant.on_mpich
            && let Ok(records) = Record::parse_list(&name, &printed)
        {
            // All was measured and verified before MPI_Finalize, from which the MPICH 4.0 of Debian does not
            // always come back.
            tracing::debug!(?fault, "the job of MPICH ended after its records");
            return Ok(records);
        }
        fault.map_or(Ok(()), Err)?;
        Record::parse_list(&name, &printed)
    }
}

fn drain(mut from: impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    if let Err(cause) = from.read_to_end(&mut bytes) {
        tracing::warn!(%cause, "a job's output was cut short");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn failed(what: &str, said: &str) -> Error {
    let said = last_lines(said);
    Error::argument(
        if said.is_empty() { what.to_owned() } else { format!("{what}; its last words:\n{said}") },
        "run this variant alone with --modes or --peers and RINGPULL_LOG=debug",
    )
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}
