//! `ringpull launch`: starts the processes of a job. It also accepts the options of MXNet's `launch.py`, and
//! those of `horovodrun` (`launch/horovodrun.rs`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use ringpull_base::config::{self, Config};
use ringpull_base::{Error, Kind, Result};

use super::{FAILURE, Status};
use crate::lab;
use crate::launch::batch::{BatchJob, BatchSystem};
use crate::launch::elastic::discovery::{Discovery, Source};
use crate::launch::elastic::{Cooldown, Elastic};
use crate::launch::host::placed;
use crate::launch::hostfile::HostList;
use crate::launch::{Host, Launch, Replacements, Sink, Spec, SshHost, Variables, by_mpi, remote};
use crate::mpirun::Mpirun;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull launch -n 4 -- python train.py                            4 MPI ranks on this host
  ringpull launch -n 8 -H hosts -- python train.py                   on the hosts of a file
  ringpull launch -n 8 --helpers 8 -H hosts -- python train.py       8 more hosts that only reduce
  ringpull launch -n 4 -s 2 -- ./train --kv-store dist_sync          with 2 parameter servers
  ringpull launch -n 4 -s 2 --hybrid -- python train.py              ranks and servers (hybrid)
  ringpull launch -n 8 -s 8 -H hosts --env OMP_NUM_THREADS=1 -- ./train --kv-store dist_async
  ringpull launch -n 8 --launcher slurm -- ./train --kv-store dist_sync_mpi
  ringpull launch -n 8 -s 8 --launcher sge --sge-pe orte -- ./train --kv-store dist_sync
  ringpull launch -n 2 -s 2 -H hosts --launcher ssh python3 train.py     as with MXNet's launch.py
  ringpull launch -np 4 -H host1:2,host2:2 python train.py           as with horovodrun
  ringpull launch --elastic --min-workers 2 --max-workers 8 --discover-hosts ./hosts.sh -- python train.py
  ringpull launch --elastic --in-place -n 4 --min-workers 2 -- python train.py   survivors go on
  ringpull launch --elastic -n 4 -s 2 -- ./train --kv-store dist_sync    goes on without lost workers

A hostfile has one host, host:4 or host slots=4 per line; those of Open MPI, MPICH, PBS and Grid
Engine are read, too. The port of ssh is written port=2222; in a hostfile a number of 22, or from
1024 on, behind the colon is one. Processes on other hosts get the user's environment, but for what
belongs to this host, this login or another job; `ringpull doctor -H` names that.

After a process has failed, the others have 1.5 times RINGPULL_SILENCE to end by themselves. Then
every host sends them SIGTERM, and later SIGKILL; mpirun ends ranks of MPI at once. The exit code is
that of the first process that failed.

After Ctrl-C or SIGTERM each worker's process gets SIGTERM, but not what it has started, and 25 s to
save its state; then SIGKILL. Servers end after the workers. A second Ctrl-C does not wait. The exit
code is 130 or 143. With Grid Engine the batch system ends the processes in its own way.

Lines have the name of their process, and what has come of a line is printed at once. A command in
quotes is run by a shell.

With --elastic and without servers, what is left of a job that has lost ranks is ended, unless it goes
on --in-place, and the job starts again on the hosts that are present, with a worker on every slot, at
most --max-workers. The first time it waits for N slots of -n, up to 30 s after there are A.")]
pub(crate) struct LaunchArgs {
    /// The number of workers.
    #[arg(short = 'n', visible_alias = "num-workers", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(required_unless_present = "elastic")]
    num_workers: Option<u32>,
    /// The number of servers; 0 starts MPI ranks [default: 0; if the command has a `--kv-store` with servers,
    /// the number of workers, as with MXNet's launch.py].
    #[arg(short = 's', long)]
    num_servers: Option<u32>,
    /// Start workers that are MPI ranks and also have servers, for `dist_hybrid` (launchers local, ssh, lab)
    /// [default if the command has `--kv-store dist_hybrid`].
    #[arg(long, conflicts_with_all = ["elastic", "helpers"])]
    hybrid: bool,
    /// The number of helpers, for `dist_sync_mpi`. Helpers are MPI ranks that only reduce for the workers.
    /// They are numbered after the workers and best run on hosts of their own (launchers local, ssh, mpi,
    /// lab).
    #[arg(long, value_name = "K", default_value_t = 0, hide_default_value = true, conflicts_with = "elastic")]
    helpers: u32,
    /// A file with the hosts to run on, or the hosts themselves with their slots: `host1:2,host2:2`. This
    /// host, by any of its names and addresses, needs no ssh server.
    #[arg(short = 'H', long, value_name = "HOSTFILE")]
    hostfile: Option<PathBuf>,
    /// The port of the hosts' ssh servers, if the hostfile has none.
    #[arg(short = 'p', long, value_name = "PORT")]
    ssh_port: Option<u16>,
    /// The way to start processes [default: ssh with a hostfile, else local].
    #[arg(long, value_enum)]
    launcher: Option<Launcher>,
    #[command(flatten)]
    elastic: ElasticOptions,
    #[command(flatten)]
    variables: Variables,
    /// First copy the working folder to this folder of every host, with rsync, and start there (ssh only).
    #[arg(long, value_name = "DIR")]
    sync_dst_dir: Option<String>,
    /// Grid Engine's parallel environment for the job's slots, such as mpi or orte (sge only).
    #[arg(long, value_name = "NAME")]
    sge_pe: Option<String>,
    /// Print output without the name of its process before each line.
    #[arg(long)]
    no_tag: bool,
    /// Omit the line that describes ranks and hosts; sets `RINGPULL_QUIET=1`.
    #[arg(short, long)]
    quiet: bool,
    /// The command that every process runs.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// The heading of these options in the help. A heading for the whole struct would also be the heading of all
/// options after it.
const ELASTIC: &str = "Elastic jobs";

#[derive(Debug, Args)]
struct ElasticOptions {
    /// MPI ranks: when the job has lost ranks or can have more, start it again from its last snapshot in
    /// memory (local, ssh, mpi, lab). With servers: go on without lost workers, and start others in their
    /// place (local, ssh, lab); sets `RINGPULL_ELASTIC=1`.
    #[arg(long, help_heading = ELASTIC)]
    elastic: bool,
    /// MPI ranks: when a rank's process is lost, the other ranks go on in their processes, from the last
    /// commit. The job starts again only to have more ranks, or if the ranks cannot go on: with fewer than A
    /// of --min-workers, with a store, or with an MPI other than Open MPI 5. `RINGPULL_ELASTIC=1` has the
    /// same effect.
    #[arg(long, help_heading = ELASTIC, requires = "elastic")]
    in_place: bool,
    /// The least number of workers. With fewer slots the job waits for hosts; with servers it ends [default:
    /// N of -n; with servers 1].
    #[arg(long, help_heading = ELASTIC, value_name = "A", requires = "elastic", value_parser = clap::value_parser!(u32).range(1..))]
    min_workers: Option<u32>,
    /// The largest number of workers [default: all slots of the hosts; if the job runs only on this host, N
    /// of -n].
    #[arg(long, help_heading = ELASTIC, value_name = "B", requires = "elastic", value_parser = clap::value_parser!(u32).range(1..))]
    max_workers: Option<u32>,
    /// A program that prints a line host[:slots] for each host that is present. It runs once a second.
    /// Without it the hosts are those of the hostfile, which may change. A line without slots gets the number
    /// in `OMPI_MCA_orte_set_default_slots`, which mpi-operator sets, or 1.
    #[arg(long, help_heading = ELASTIC, value_name = "SCRIPT", requires = "elastic", conflicts_with = "hostfile")]
    discover_hosts: Option<PathBuf>,
    /// The largest number of starts of the job after failures; with servers, of workers [default: no limit;
    /// with servers 10].
    #[arg(long, help_heading = ELASTIC, value_name = "N", requires = "elastic")]
    max_restarts: Option<u32>,
    /// The largest number of starts of the job after failures and after changes of hosts together.
    #[arg(long, help_heading = ELASTIC, value_name = "N", requires = "elastic")]
    max_resets: Option<u32>,
    /// The seconds for which a host is left out after its second failure, and the largest such time: the time
    /// doubles with each further failure [default: 10 600].
    #[arg(long, help_heading = ELASTIC, num_args = 2, value_names = ["SECONDS", "MOST"], requires = "elastic",
        value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    cooldown: Option<Vec<u64>>,
    /// The folder for snapshots on each host, in memory.
    #[arg(long, help_heading = ELASTIC, value_name = "DIR", requires = "elastic", default_value = "/dev/shm")]
    snapshots: PathBuf,
    /// The name of the job. With a name the snapshots outlive a launcher that is lost or has failed, and the
    /// next launcher with the same name uses them. They are removed when the job ends with 0.
    #[arg(long, help_heading = ELASTIC, value_name = "NAME", requires = "elastic", value_parser = job_name)]
    job: Option<String>,
}

/// A name that is part of the name of a folder.
fn job_name(text: &str) -> std::result::Result<String, String> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = text.chars().all(is_legal) && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if is_name { Ok(text.to_owned()) } else { Err("give letters, digits, - _ and ., such as resnet-1".to_owned()) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Launcher {
    /// On this host; MPI ranks by mpirun.
    Local,
    /// On the hosts of a hostfile; MPI ranks by mpirun.
    Ssh,
    /// By one mpirun, servers too, here or on the hosts of a hostfile.
    Mpi,
    /// By srun, inside an allocation of Slurm or with one of its own.
    Slurm,
    /// By qsub, as one job of Grid Engine; needs --sge-pe.
    Sge,
    /// A launcher of MXNet's launch.py. Here it is only an error that says what to do.
    #[value(hide = true)]
    Yarn,
    /// On the emulated hosts of `ringpull lab up`.
    Lab,
}

/// Runs the job and returns its exit code.
pub(crate) fn run(mut args: LaunchArgs) -> Result<Status> {
    args.command = as_words(args.command);
    if args.quiet {
        args.variables.env.push((config::QUIET.to_owned(), "1".to_owned()));
    }
    let has_hosts = args.hostfile.is_some() || args.elastic.discover_hosts.is_some();
    let launcher = args.launcher.unwrap_or(if has_hosts { Launcher::Ssh } else { Launcher::Local });
    if launcher == Launcher::Yarn {
        return Err(Error::argument(
            "there is no launcher for Hadoop YARN",
            "get containers with an ssh server from YARN, and list their hosts: ringpull launch -H HOSTFILE",
        ));
    }
    let workers = args.num_workers.or(args.elastic.min_workers).unwrap_or(1);
    let with_servers = match args.elastic.elastic {
        true if servers(workers, args.num_servers, &args.command) == 0 => return run_elastic(args, launcher),
        true => Some(elastic_with_servers(&mut args, launcher)?),
        false => None,
    };
    let (workers, servers) = (workers as usize, servers(workers, args.num_servers, &args.command) as usize);
    let helpers = args.helpers as usize;
    check_helpers(helpers, servers, launcher)?;
    let is_hybrid = args.hybrid || kind_of(&args.command) == Some(Kind::DistHybrid);
    check_hybrid(is_hybrid, servers, launcher)?;
    let config = Config::from_env()?;
    let hosts = read_hosts(&args, launcher)?;
    let is_here = hosts.iter().all(|(host, _)| *host == Host::Local);
    if !matches!(launcher, Launcher::Slurm | Launcher::Sge) && is_here {
        check_program(&args.command)?;
    }
    warn_about_unused_options(&args, launcher);
    // Processes that wait for the failed one notice that within RINGPULL_SILENCE, plus a quarter of it until
    // they check again.
    let grace = config.silence() * 3 / 2;
    let sink = if args.no_tag { Sink::Plain } else { Sink::Tagged };
    let code = if matches!(launcher, Launcher::Slurm | Launcher::Sge) {
        let batch = match (launcher, &args.sge_pe) {
            (Launcher::Slurm, _) => BatchSystem::Slurm,
            (_, Some(environment)) => BatchSystem::Sge { environment: environment.clone() },
            (_, None) => {
                return Err(Error::argument(
                    "--launcher sge needs a parallel environment",
                    "name one that `qconf -spl` lists: --sge-pe NAME",
                ));
            }
        };
        let spec = Spec { workers, servers, helpers, command: args.command, variables: args.variables };
        BatchJob { batch, spec, is_tagged: !args.no_tag }.run()?
    } else {
        let mut hosts = match launcher {
            Launcher::Lab => (1..=lab_hosts()?).map(Host::Lab).collect(),
            _ => one_per_slot(&hosts),
        };
        if servers == 0 || launcher == Launcher::Mpi {
            let spec = Spec { workers, servers, helpers, command: args.command, variables: args.variables };
            return Ok(status(by_mpi::run(&spec, &hosts, sink)?));
        }
        if hosts.is_empty() {
            hosts.push(Host::Local);
        }
        let at = |count: usize| hosts.iter().cycle().take(count).cloned().collect();
        let mut launch = Launch::new(at(workers), at(servers), args.command, args.variables)?;
        launch.sink = sink;
        launch.has_ranks = is_hybrid;
        launch.grace = grace;
        launch.elastic = with_servers;
        launch.run()?.code
    };
    Ok(status(code))
}

/// Returns an error if this sort of job cannot have helpers.
fn check_helpers(helpers: usize, servers: usize, launcher: Launcher) -> Result<()> {
    if helpers > 0 && servers > 0 {
        return Err(Error::argument(
            format!("--helpers {helpers} is for jobs without servers, but this job has servers: {servers}"),
            "let the command ask for dist_sync_mpi and leave out -s, or leave out --helpers",
        ));
    }
    if helpers > 0 && matches!(launcher, Launcher::Slurm | Launcher::Sge) {
        return Err(Error::argument(
            "--helpers is for the launchers local, ssh, mpi and lab",
            "inside an allocation, start one mpirun of two programs: workers, and ranks with RINGPULL_ROLE=helper",
        ));
    }
    Ok(())
}

/// Returns an error if this sort of job cannot have both ranks and servers.
fn check_hybrid(is_hybrid: bool, servers: usize, launcher: Launcher) -> Result<()> {
    if is_hybrid && servers == 0 {
        return Err(Error::argument(
            "a job of dist_hybrid needs at least one server",
            "give the number of servers with -s; dist_sync_mpi needs none",
        ));
    }
    if is_hybrid && !matches!(launcher, Launcher::Local | Launcher::Ssh | Launcher::Lab) {
        return Err(Error::argument(
            "ranks with servers (dist_hybrid) are for the launchers local, ssh and lab",
            "choose one of these, or ask for dist_sync or dist_sync_mpi",
        ));
    }
    Ok(())
}

/// Returns the way in which an elastic job with servers replaces lost workers.
fn elastic_with_servers(args: &mut LaunchArgs, launcher: Launcher) -> Result<Replacements> {
    let options = &args.elastic;
    let Some(workers) = args.num_workers else {
        return Err(Error::argument("an elastic job with servers needs its number of workers", "give it with -n N"));
    };
    if !matches!(launcher, Launcher::Local | Launcher::Ssh | Launcher::Lab) {
        return Err(Error::argument(
            "--elastic with servers is for the launchers local, ssh and lab",
            "choose one of these, or let the command ask for dist_sync_mpi and leave out -s",
        ));
    }
    if args.hybrid || kind_of(&args.command) == Some(Kind::DistHybrid) {
        return Err(Error::argument(
            "a job of dist_hybrid cannot be elastic",
            "leave out --elastic, or let the command ask for dist_sync or dist_sync_mpi",
        ));
    }
    let others = [
        (options.max_workers.is_some(), "--max-workers"),
        (options.discover_hosts.is_some(), "--discover-hosts"),
        (options.max_resets.is_some(), "--max-resets"),
        (options.job.is_some(), "--job"),
        (options.cooldown.is_some(), "--cooldown"),
        (options.in_place, "--in-place"),
    ];
    if let Some((_, option)) = others.iter().find(|(is_given, _)| *is_given) {
        return Err(Error::argument(
            format!("{option} is for elastic jobs without servers"),
            "leave it out: a job with servers has at most N workers of -n, and the servers keep its values",
        ));
    }
    let least = options.min_workers.unwrap_or(1);
    if least > workers {
        return Err(Error::argument(
            format!("--min-workers {least} is more than -n {workers}"),
            "give at least this number with -n",
        ));
    }
    args.variables.env.push(("RINGPULL_ELASTIC".to_owned(), "1".to_owned()));
    Ok(Replacements { least: least as usize, restarts: options.max_restarts.unwrap_or(10) })
}

/// Runs an elastic job of MPI ranks and returns its exit code.
fn run_elastic(args: LaunchArgs, launcher: Launcher) -> Result<Status> {
    let given = |number: Option<u32>| number.or(args.num_workers).map(|number| number as usize);
    let options = &args.elastic;
    let Some(least) = given(options.min_workers) else {
        return Err(Error::argument("--elastic needs the least number of workers", "give it with --min-workers A"));
    };
    let most = options.max_workers.map(|most| most as usize);
    let first =
        args.num_workers.map_or(least, |first| first as usize).clamp(least, most.unwrap_or(usize::MAX).max(least));
    if most.is_some_and(|most| most < least) {
        return Err(Error::argument(
            format!("--min-workers {least} is more than --max-workers"),
            "give at least this number with --max-workers",
        ));
    }
    if matches!(launcher, Launcher::Slurm | Launcher::Sge) {
        return Err(Error::argument(
            "--elastic is for the launchers local, ssh, mpi and lab",
            "inside an allocation, list its hosts with --discover-hosts SCRIPT or -H HOSTFILE",
        ));
    }
    if args.sync_dst_dir.is_some() {
        return Err(Error::argument(
            "--sync-dst-dir does not go with --elastic: hosts may be added later",
            "put the program where every host finds it, such as a shared folder",
        ));
    }
    // The launcher's own commands on other hosts do not begin in the working folder.
    let memory = std::path::absolute(&options.snapshots)
        .map_err(|cause| Error::io("find", options.snapshots.display(), &cause))?;
    let in_lab = launcher == Launcher::Lab;
    let source = match (&options.discover_hosts, &args.hostfile) {
        (Some(script), _) => {
            let slots = config::text("OMPI_MCA_orte_set_default_slots").and_then(|slots| slots.parse().ok());
            Source::Script(script.clone(), slots.filter(|slots| *slots > 0).unwrap_or(1))
        }
        (None, Some(file)) => Source::Hosts(HostList::of(file)),
        (None, None) if in_lab => lab_hosts().map(|_| Source::Lab)?,
        (None, None) => Source::Here(most.unwrap_or(first)),
    };
    let cooldown = match options.cooldown.as_deref() {
        Some([first, longest]) if first <= longest => {
            Cooldown { first: Duration::from_secs(*first), longest: Duration::from_secs(*longest) }
        }
        Some(given) => {
            return Err(Error::argument(
                format!("invalid --cooldown {given:?}: the first number is larger than the second"),
                "give the seconds after the second failure, and then a number that is not smaller",
            ));
        }
        None => Cooldown::default(),
    };
    if matches!(source, Source::Here(_)) {
        check_program(&args.command)?;
    }
    warn_about_unused_options(&args, launcher);
    let in_place = (options.in_place || Config::from_env()?.elastic) && survives_losses()?;
    let code = Elastic {
        in_place,
        least,
        first,
        most: most.unwrap_or(usize::MAX),
        discovery: Discovery { source, in_lab, port: args.ssh_port },
        memory,
        job: options.job.clone(),
        restarts: options.max_restarts,
        resets: options.max_resets,
        cooldown,
        spec: Spec { workers: least, servers: 0, helpers: 0, command: args.command, variables: args.variables },
        sink: if args.no_tag { Sink::Plain } else { Sink::Tagged },
    }
    .run()?;
    Ok(status(code))
}

/// Returns true if this `mpirun` lets a job go on after the loss of a rank's process. If it does not, prints
/// a notice.
fn survives_losses() -> Result<bool> {
    let mpirun = Mpirun::find()?;
    let program = mpirun.program().to_owned();
    let survives = mpirun.surviving_losses().is_some();
    if !survives {
        eprintln!(
            "ringpull: elastic: {program} ends a job that loses a rank, so the job is started again then; Open MPI 5 can go on in place"
        );
    }
    Ok(survives)
}

fn status(code: i32) -> Status {
    u8::try_from(code).unwrap_or(FAILURE)
}

/// The number of servers of the job: the number that was requested, or the number that the kind of store in
/// the command needs. A job without servers consists of MPI ranks.
pub(super) fn servers(workers: u32, servers: Option<u32>, command: &[OsString]) -> u32 {
    let kind = kind_of(command);
    match (servers, kind) {
        (Some(count), Some(Kind::DistSyncMpi)) if count > 0 => {
            eprintln!("warning: -s {count} has no effect: --kv-store dist_sync_mpi has no servers");
            0
        }
        (Some(count), _) => count,
        (None, kind) if kind.is_some_and(Kind::has_servers) => workers,
        (None, _) => 0,
    }
}

/// The kind of store that the command requests, if any.
fn kind_of(command: &[OsString]) -> Option<Kind> {
    kind_asked_for(command)?.parse().ok()
}

/// The word by which the command requests a kind of store, if any.
fn kind_asked_for(command: &[OsString]) -> Option<&str> {
    let words: Vec<&str> = match command {
        // A command for the shell.
        [_, option, text] if option == "-c" => text.to_str()?.split_whitespace().collect(),
        words => words.iter().filter_map(|word| word.to_str()).collect(),
    };
    let at = words.iter().position(|word| word.starts_with("--kv-store") || word.starts_with("--kvstore"))?;
    words[at].split_once('=').map(|(_, store)| store).or(words.get(at + 1).copied())
}

/// Returns the words of a command. A command of one word with blanks is run by the shell, as with MXNet's
/// `launch.py`, unless a program has this name.
fn as_words(command: Vec<OsString>) -> Vec<OsString> {
    match &command[..] {
        [text] if text.to_string_lossy().trim().contains(char::is_whitespace) && !Path::new(text).is_file() => {
            ["sh".into(), "-c".into(), text.clone()].into()
        }
        _ => command,
    }
}

/// Returns an error if this host has no such program. Without this check every process would report it.
fn check_program(command: &[OsString]) -> Result<()> {
    let Some(program) = command.first().map(Path::new) else { return Ok(()) };
    let is_there = if program.components().count() > 1 {
        program.is_file()
    } else {
        let folders = config::text("PATH").unwrap_or_default();
        std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
    };
    if is_there {
        return Ok(());
    }
    Err(Error::argument(
        format!("there is no program {}", program.display()),
        "correct its name, or give its path: a name without a / is searched in PATH",
    ))
}

fn warn_about_unused_options(args: &LaunchArgs, launcher: Launcher) {
    if args.sync_dst_dir.is_some() && args.hostfile.is_none() {
        eprintln!("warning: --sync-dst-dir has no effect: there are no hosts to copy the folder to");
    }
    if args.ssh_port.is_some() && args.hostfile.is_none() && args.elastic.discover_hosts.is_none() {
        eprintln!("warning: --ssh-port has no effect without hosts: name them with -H");
    }
    if args.sge_pe.is_some() && launcher != Launcher::Sge {
        eprintln!("warning: --sge-pe has no effect without --launcher sge");
    }
}

fn lab_hosts() -> Result<usize> {
    lab::find_host("h1")?;
    Ok(lab::hosts_up())
}

/// The hosts of the job, each with its slots.
fn read_hosts(args: &LaunchArgs, launcher: Launcher) -> Result<Vec<(Host, usize)>> {
    let Some(option) = &args.hostfile else {
        return if launcher == Launcher::Ssh {
            Err(Error::argument("--launcher ssh needs hosts", "name a hostfile with -H"))
        } else {
            Ok(Vec::new())
        };
    };
    if !matches!(launcher, Launcher::Ssh | Launcher::Mpi) {
        return Err(Error::argument(
            "a hostfile is for the launchers ssh and mpi",
            "leave out -H, or choose --launcher ssh or --launcher mpi",
        ));
    }
    let list = HostList::of(option);
    let mut hosts = placed(list.read()?, args.ssh_port);
    let mut others: Vec<&mut SshHost> = hosts.iter_mut().filter_map(|(host, _)| host.by_ssh_mut()).collect();
    let names: Vec<SshHost> = others.iter().map(|host| (**host).clone()).collect();
    remote::check(&names, &list)?;
    if let Some(to) = &args.sync_dst_dir {
        remote::copy_working_folder(&names, to)?;
        for host in &mut others {
            host.folder = Some(to.clone());
        }
    }
    Ok(hosts)
}

/// Each host once for each of its slots, round robin. So processes share a host only if there are more
/// processes than hosts.
fn one_per_slot(hosts: &[(Host, usize)]) -> Vec<Host> {
    let most = hosts.iter().map(|(_, slots)| *slots).max().unwrap_or(1);
    (0..most)
        .flat_map(|turn| hosts.iter().filter(move |(_, slots)| *slots > turn).map(|(host, _)| host.clone()))
        .collect()
}
