//! The command that starts MPI ranks on this host, on emulated hosts or on the hosts of a hostfile, with Open
//! MPI or with MPICH and its relatives. Rank i runs on host i modulo the number of hosts.
//!
//! Host names and options are arguments of `mpirun`, and the ranks get their variables through `env`, which
//! works with every `mpirun`. The job's secret, and variables with the value of this process's environment,
//! are passed by name, because every user of a host can read the arguments of its processes. In this way
//! ranks on hosts that ssh reaches get the user's environment (`launch/environment.rs`).
//!
//! `mpirun` does not read names as the user means them. It cuts off domains, and takes the text before the
//! first colon as the host. It knows neither users nor ports, and runs ranks on this host if it takes a name
//! as one of this host. So names are kept whole. A host that `mpirun` would not understand gets an unused
//! address, which our script in place of ssh translates; the script refuses any other name. Each rank checks
//! that its host has no more ranks than the list says.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::fs::StatVfsMountFlags;
use tempfile::TempDir;

use ringpull_base::{Error, Result, config};

use super::lab;
use super::launch::environment::{self, IN_FRONT};
use super::launch::host::{quote, ssh_words, temporary_folder};
use super::launch::hostfile::names_this_host;
pub use super::launch::{Host, SshHost};

/// The family of an `mpirun`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Open MPI before 5.
    OpenMpi,
    /// Open MPI 5 and later, whose launcher is PRRTE.
    OpenMpi5,
    /// MPICH, Intel MPI and others with the Hydra launcher.
    Mpich,
}

/// An installed `mpirun`.
#[derive(Debug, Clone)]
pub struct Mpirun {
    program: String,
    flavour: Flavour,
    /// True if its jobs go on after the loss of a rank's process.
    survives_losses: bool,
}

/// Ranks that run one program.
#[derive(Debug, Clone)]
pub struct Ranks {
    /// The number of ranks.
    pub count: usize,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Their variables.
    pub env: Vec<(String, String)>,
}

/// A command that is ready to start. It must live until the end of the run: dropping it removes the script
/// that reaches the hosts. The type has no `Debug`, because the environment contains the job's secret.
pub struct MpiCommand {
    /// `mpirun` with its arguments and environment.
    pub command: Command,
    _agent: Option<TempDir>,
}

impl MpiCommand {
    /// The program and its arguments.
    pub fn words(&self) -> Vec<OsString> {
        std::iter::once(self.command.get_program()).chain(self.command.get_args()).map(OsStr::to_owned).collect()
    }

    /// The variables that the launcher itself needs.
    pub fn env(&self) -> Vec<(String, String)> {
        let set = self.command.get_envs().filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?)));
        set.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

impl Mpirun {
    /// The `mpirun` of `RINGPULL_MPIRUN`, or else of the `PATH`.
    pub fn find() -> Result<Self> {
        Mpirun::at(&config::mpirun_program())
    }

    /// This program, if it is an `mpirun`.
    pub fn at(program: &str) -> Result<Self> {
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().map_err(|cause| {
            Error::argument(
                format!("{program} cannot be run: {cause}"),
                "install Open MPI or MPICH (scripts/setup does), or name another with RINGPULL_MPIRUN",
            )
        })?;
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        let flavour = flavour_of(&words).ok_or_else(|| not_known(program, &output))?;
        Ok(Mpirun { program: program.to_owned(), flavour, survives_losses: false })
    }

    /// The `mpirun` for jobs that go on after the loss of a rank's process. `None` if its family cannot do
    /// that.
    pub fn surviving_losses(self) -> Option<Self> {
        (self.flavour == Flavour::OpenMpi5).then_some(Mpirun { survives_losses: true, ..self })
    }

    /// The name of the program.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Its family.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The command that runs ranks of one program on these hosts, or on this host if there are none.
    pub fn command(&self, hosts: &[Host], ranks: Ranks) -> Result<MpiCommand> {
        self.command_of_parts(hosts, &[ranks])
    }

    /// The command that runs several programs as one job, with ranks in this order.
    pub fn command_of_parts(&self, hosts: &[Host], parts: &[Ranks]) -> Result<MpiCommand> {
        if let Some(Host::Lab(first)) = hosts.first() {
            let names: Vec<String> = hosts.iter().map(Host::to_string).collect();
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--"]).args(lab::entry(*first)).arg(&self.program);
            return self.assemble(command, Reach::Lab, &names, Some(LAB_AGENT), parts);
        }
        let command = Command::new(&self.program);
        if hosts.iter().all(|host| *host == Host::Local) {
            return self.assemble(command, Reach::Here, &[], None, parts);
        }
        let names = names_of(hosts);
        self.assemble(command, Reach::Ssh, &names, Some(&ssh_agent(hosts, &names)), parts)
    }

    fn assemble(
        &self,
        mut command: Command,
        reach: Reach,
        names: &[String],
        agent: Option<&str>,
        parts: &[Ranks],
    ) -> Result<MpiCommand> {
        let agent = agent.map(write_agent).transpose()?;
        let agent_path = agent.as_ref().map(|folder| folder.path().join("agent"));
        for name in std::env::vars_os().map(|(name, _)| name).filter(|name| is_of_outer_job(name)) {
            command.env_remove(name);
        }
        command.env(config::SECRET, config::secret_or_new()?.reveal());
        let passed_on = if reach == Reach::Ssh { environment::passed_on() } else { BTreeMap::new() };
        let inherited: Vec<&str> =
            passed_on.keys().map(|name| &name[..]).filter(|name| !IN_FRONT.contains(name)).collect();
        // The host of each rank.
        let count = parts.iter().map(|part| part.count).sum();
        let on: Vec<&str> = names.iter().map(|name| &name[..]).cycle().take(count).collect();
        let mut ends = parts.iter().scan(0, |end, part| {
            *end += part.count;
            Some((*end - part.count, *end))
        });
        let is_round = ends.all(|(begin, end)| goes_round(&on[begin.min(on.len())..end.min(on.len())]));
        let is_in_order = reach == Reach::Ssh && (self.flavour == Flavour::OpenMpi || !is_round);
        self.add_options(&mut command, reach, agent_path.as_deref(), is_in_order);
        if self.flavour == Flavour::Mpich && reach == Reach::Ssh {
            let all = parts.iter().flat_map(|part| by_name_and_value(&part.env).0);
            let all: BTreeSet<&str> =
                [config::SECRET].into_iter().chain(inherited.iter().copied()).chain(all).collect();
            command.arg("-genvlist").arg(all.into_iter().collect::<Vec<_>>().join(","));
        }
        if self.flavour == Flavour::Mpich && !on.is_empty() {
            // Hydra takes one list for all programs, uses it round robin, and starts a proxy for each item.
            let distinct = if goes_round(&on) { with_counts(&on).split(',').count() } else { on.len() };
            command.args(["-hosts", &on[..distinct].join(",")]);
        }
        let earlier = earlier(&on);
        let mut rank = 0;
        for (number, part) in parts.iter().enumerate() {
            if number > 0 {
                command.arg(":");
            }
            if self.flavour != Flavour::Mpich && !on.is_empty() {
                let on = &on[rank..rank + part.count];
                command.args(["--host", &if is_in_order { on.join(",") } else { with_counts(on) }]);
            }
            rank += part.count;
            let (by_name, given) = by_name_and_value(&part.env);
            let passed: BTreeSet<&str> = [config::SECRET].into_iter().chain(by_name).chain(inherited.clone()).collect();
            command.args(self.naming(&passed.into_iter().collect::<Vec<_>>()));
            command.args(["-n", &part.count.to_string()]);
            if reach == Reach::Ssh {
                command.args(["sh", "-c", ON_HOST, &earlier]);
                command.args(IN_FRONT.map(|name| passed_on.get(name).map_or("", |value| value)));
            }
            if !given.is_empty() {
                command.arg("env").args(given.iter().map(|(name, value)| format!("{name}={value}")));
            }
            command.args(&part.command);
        }
        Ok(MpiCommand { command, _agent: agent })
    }

    /// The options that pass on variables of this process's environment to all ranks.
    pub fn naming(&self, names: &[&str]) -> Vec<String> {
        match self.flavour {
            // Hydra passes on the whole environment.
            Flavour::Mpich => Vec::new(),
            Flavour::OpenMpi | Flavour::OpenMpi5 => {
                names.iter().flat_map(|name| ["-x".to_owned(), (*name).to_owned()]).collect()
            }
        }
    }

    fn add_options(&self, command: &mut Command, reach: Reach, agent: Option<&Path>, is_in_order: bool) {
        let network = (reach == Reach::Lab).then_some(lab::NETWORK);
        // Open MPI asks the first host for its shell. The script of `ssh_agent` answers this question.
        let asks = if reach == Reach::Ssh { "0" } else { "1" };
        let agent = agent.map(|agent| agent.display().to_string());
        // A shell runs the file, because it may be in a folder without execution. Open MPI's daemons on other
        // hosts look for the agent too and crash without one; they find a shell.
        let agents = agent.as_ref().map(|agent| format!("sh {agent}"));
        if agent.is_some() {
            command.env("OMPI_MCA_orte_keep_fqdn_hostnames", "1").env("PRTE_MCA_prte_keep_fqdn_hostnames", "1");
        }
        match self.flavour {
            Flavour::OpenMpi => {
                let map = if is_in_order { "seq" } else { "node" };
                command.args(["--oversubscribe", "--bind-to", "none", "--map-by", map]);
                command.args(["--mca", "mpi_yield_when_idle", "1"]);
                if let Some(agents) = &agents {
                    command.args(["--mca", "plm_rsh_agent", agents, "--mca", "plm_rsh_no_tree_spawn", "1"]);
                    command.args(["--mca", "plm_rsh_assume_same_shell", asks]);
                }
                if let Some(network) = network {
                    command.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", network]);
                    command.args(["--mca", "oob_tcp_if_include", network]);
                }
            }
            Flavour::OpenMpi5 => {
                let map = if is_in_order { "seq:OVERSUBSCRIBE" } else { "node:OVERSUBSCRIBE" };
                command.args(["--bind-to", "none", "--map-by", map]);
                if self.survives_losses {
                    command.args(["--with-ft", "ulfm"]);
                }
                if let Some(agents) = &agents {
                    command.args(["--prtemca", "plm_ssh_agent", agents, "--prtemca", "plm_ssh_no_tree_spawn", "1"]);
                    command.args(["--prtemca", "plm_ssh_assume_same_shell", asks]);
                }
                if let Some(network) = network {
                    command.args(["--prtemca", "prte_if_include", network]);
                    command.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", network]);
                }
            }
            Flavour::Mpich => {
                if let Some(agent) = &agent {
                    command.args(["-launcher", "ssh", "-launcher-exec"]);
                    if can_execute(agent) {
                        command.arg(agent);
                    } else {
                        command.arg("/bin/sh").env("HYDRA_LAUNCHER_EXTRA_ARGS", agent);
                    }
                }
                if network.is_some() {
                    command.args(["-iface", "eth0"]);
                    command.env("UCX_TLS", "tcp,self").env("MPIR_CVAR_NOLOCAL", "1");
                    command.env("FI_PROVIDER", "tcp").env("I_MPI_FABRICS", "ofi");
                }
            }
        }
        if rustix::process::geteuid().is_root() {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            command.env("PRTE_ALLOW_RUN_AS_ROOT", "1").env("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
    }
}

/// Returns true for the variables by which Open MPI 4 knows the job that this process is a rank of: with them
/// its `mpirun` starts no other job.
fn is_of_outer_job(name: &OsStr) -> bool {
    const NAMES: &str = "OMPI_UNIVERSE_SIZE OMPI_COMM_* OMPI_MCA_ess OMPI_MCA_ess_* OMPI_MCA_orte_app_num OMPI_MCA_orte_ess_* \
                         OMPI_MCA_orte_hnp_uri OMPI_MCA_orte_jobfam_session_dir OMPI_MCA_orte_launch \
                         OMPI_MCA_orte_local_daemon_uri OMPI_MCA_orte_num_nodes OMPI_MCA_orte_precondition_transports \
                         OMPI_MCA_orte_top_session_dir PMIX_*";
    std::env::var_os("OMPI_UNIVERSE_SIZE").is_some()
        && name.to_str().is_some_and(|name| environment::is_among(NAMES, name) && !name.starts_with("PMIX_MCA_"))
}

/// Divides variables, of which the last of a name counts, into the names of those that have their values from
/// this process's environment, and the others.
pub fn by_name_and_value(env: &[(String, String)]) -> (Vec<&str>, Vec<&(String, String)>) {
    let counts = |(at, (name, _)): &(usize, &(String, String))| env[at + 1..].iter().all(|(later, _)| later != name);
    let set = env.iter().enumerate().filter(counts).map(|(_, variable)| variable);
    let (by_name, given): (Vec<_>, Vec<_>) = set.partition(|(name, value)| config::is_in_environment(name, value));
    (by_name.into_iter().map(|(name, _)| &name[..]).collect(), given)
}

/// The family of an `mpirun` that prints this version.
pub(crate) fn flavour_of(version: &str) -> Option<Flavour> {
    if version.contains("HYDRA") || version.contains("Hydra") || version.contains("Intel(R) MPI") {
        return Some(Flavour::Mpich);
    }
    // Debian's `mpirun.openmpi` names itself after the runtime.
    let number = version.split_once("Open MPI) ").or_else(|| version.split_once("OpenRTE) "))?.1;
    let major: u32 = number.split('.').next()?.parse().ok()?;
    Some(if major >= 5 { Flavour::OpenMpi5 } else { Flavour::OpenMpi })
}

/// The error if a program does not report its MPI. It contains the program's own message, for example that of
/// an Open MPI without a home folder.
fn not_known(program: &str, output: &Output) -> Error {
    let words = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let lines = text.lines().map(str::trim).filter(|line| line.contains(char::is_alphabetic));
        lines.take(3).collect::<Vec<_>>().join(" ")
    };
    let said = [words(&output.stdout), words(&output.stderr)].into_iter().find(|words| !words.is_empty());
    let how = if output.status.success() { String::new() } else { format!(" ({})", output.status) };
    let remedy = if config::text("HOME").is_none() {
        "HOME is not set, and Open MPI needs it for a user without a line in /etc/passwd: set it to a folder".to_owned()
    } else {
        "correct what it says, or install Open MPI, MPICH or Intel MPI, and name its mpirun with RINGPULL_MPIRUN"
            .to_owned()
    };
    let said = said.as_deref().unwrap_or("it says nothing");
    Error::argument(format!("{program} is not a known MPI launcher{how}: {said}"), remedy)
}

/// The way in which ranks are reached on their hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Here,
    Lab,
    Ssh,
}

/// The name of each host for `mpirun`. In three cases it is an unused address, such as 240.0.0.1 for the
/// first host: if it is a name of this host and ssh is to reach it, if it has colons, or if several hosts
/// have the same name.
fn names_of(hosts: &[Host]) -> Vec<String> {
    let mut distinct: Vec<&SshHost> = Vec::new();
    let name_of = |host| {
        let Host::Ssh(host): &Host = host else { return HERE.to_owned() };
        let at = distinct.iter().position(|known| *known == host).unwrap_or_else(|| {
            distinct.push(host);
            distinct.len() - 1
        });
        let is_shared = distinct[..at].iter().any(|other| other.name == host.name);
        if is_shared || names_this_host(&host.name) || host.name.contains(':') {
            Ipv4Addr::from(u32::from(Ipv4Addr::new(240, 0, 0, 1)) + at as u32).to_string()
        } else {
            host.name.clone()
        }
    };
    hosts.iter().map(name_of).collect()
}

/// Returns true if ranks are on these hosts in turn. Then Open MPI uses the hosts of a program round robin,
/// whatever their slots are. Otherwise it takes the hosts in order, and version 5 then gives ranks a wrong
/// `OMPI_COMM_WORLD_LOCAL_SIZE`.
fn goes_round(on: &[&str]) -> bool {
    let hosts = (1..on.len()).find(|at| on[..*at].contains(&on[*at])).unwrap_or(on.len());
    (hosts..on.len()).all(|at| on[at] == on[at % hosts])
}

/// The hosts of consecutive ranks as a list, each with the number of its ranks.
fn with_counts(on: &[&str]) -> String {
    let mut distinct: Vec<(&str, usize)> = Vec::new();
    for name in on {
        match distinct.iter_mut().find(|(other, _)| other == name) {
            Some((_, count)) => *count += 1,
            None => distinct.push((name, 1)),
        }
    }
    distinct.iter().map(|(name, count)| format!("{name}:{count}")).collect::<Vec<_>>().join(",")
}

/// The number of earlier ranks on the host of each rank.
fn earlier(on: &[&str]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let earlier = on.iter().map(|name| {
        let count = counts.entry(name).or_default();
        *count += 1;
        (*count - 1).to_string()
    });
    earlier.collect::<Vec<_>>().join(",")
}

/// The name of this host in a list of hosts.
const HERE: &str = "localhost";

/// The script that begins a rank. It puts the launcher's `PATH` (`$1`) and `LD_LIBRARY_PATH` (`$2`) before
/// those of the rank's host. It fails if the host has more earlier ranks than the list of hosts allows; `$0`
/// has this number for each rank.
const ON_HOST: &str = r#"rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}} here=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}
wanted=$(echo "$0" | cut -d , -f $((rank + 1)))
if [ "$here" -gt "${wanted:-$here}" ]; then
  echo "ringpull: error: rank $rank is after $here others on the host $(uname -n), where the list of hosts has $wanted: mpirun takes two hosts of the list for one" >&2
  echo "  hint: name each host by another name or address that no other host of the list has" >&2
  exit 1
fi
[ -z "$1" ] || case $PATH: in "$1":*) ;; *) PATH=$1${PATH:+:$PATH} ;; esac
[ -z "$2" ] || case $LD_LIBRARY_PATH: in "$2":*) ;; *) LD_LIBRARY_PATH=$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ;; esac
export PATH
[ -z "$LD_LIBRARY_PATH" ] || export LD_LIBRARY_PATH
unset here rank wanted
shift 2
exec "$@""#;

/// The script in place of ssh for emulated hosts, called as `agent [options] hI words...`.
const LAB_AGENT: &str = r#"#!/bin/sh
{ set +x; } 2>/dev/null
while :; do case $1 in -[oilpF]) shift 2 ;; -*) shift ;; *) break ;; esac; done
host=$1
shift
exec nsenter --uts=/run/ringpull/lab/$host.uts -- ip netns exec "$host" sh -c "$*"
"#;

/// The script in place of ssh for other hosts. Whatever the login shell of a host is, it starts sh, which
/// reads the command. Open MPI writes its command for the host's shell and asks which shell it is; the answer
/// is sh.
fn ssh_agent(hosts: &[Host], names: &[String]) -> String {
    let of_host = |(host, name): (&Host, &String)| {
        let Host::Ssh(host) = host else { return None };
        let port = host.port.map_or(String::new(), |port| format!("-p {port}"));
        Some(format!("  '{name}') to={} port='{port}' ;;\n", quote(host.login.as_ref())))
    };
    let cases: BTreeSet<String> = hosts.iter().zip(names).filter_map(of_host).collect();
    let ssh = ssh_words(None).join(" ");
    [
        LAB_AGENT.split_inclusive('\n').take(3).collect(),
        "case $1 in\n".to_owned(),
        cases.into_iter().collect(),
        r#"  *) echo "ringpull: error: mpirun asks for a host $1, which the list of hosts does not name" >&2; exit 1 ;;
esac
shift
[ "$*" != 'echo $SHELL' ] || { echo /bin/sh; exit; }
"#
        .to_owned(),
        format!("exec {ssh} $port \"$to\" exec sh <<RINGPULL\n$*\nRINGPULL\n"),
    ]
    .concat()
}

/// Returns true if the file is in a folder in which files can be executed.
fn can_execute(path: &str) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

fn write_agent(text: &str) -> Result<TempDir> {
    // Launchers split such paths at blanks and colons.
    let base = Some(std::env::temp_dir()).filter(|base| !base.to_string_lossy().contains([' ', '\t', '\n', ':']));
    let base = base.unwrap_or_else(|| "/tmp".into());
    let folder = temporary_folder("ringpull-", &base).map_err(|cause| {
        let what = format!("cannot create a temporary folder in {}: {cause}", base.display());
        Error::argument(what, "set TMPDIR to a folder that is there and can be written")
    })?;
    let path = folder.path().join("agent");
    let io = |cause: std::io::Error| Error::io("write", path.display(), &cause);
    std::fs::write(&path, text).map_err(io)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).map_err(io)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::host::placed;
    use crate::launch::hostfile::HostList;

    #[test]
    fn the_last_variable_of_a_name_counts_and_goes_by_its_name_if_its_value_is_here() {
        let path = config::text("PATH").unwrap();
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let given = [variable("PATH", "/none"), variable("A", "1"), variable("A", "2"), variable("PATH", &path)];
        assert_eq!(by_name_and_value(&given), (vec!["PATH"], vec![&variable("A", "2")]));
        let given = [variable("PATH", &path), variable("PATH", "/none")];
        assert_eq!(by_name_and_value(&given), (vec![], vec![&variable("PATH", "/none")]));
    }

    #[test]
    fn hosts_in_turn_are_told_from_others_and_each_rank_knows_those_before_it() {
        let of = |text: &'static str| text.split(' ').collect::<Vec<_>>();
        assert!(["a", "a a", "a b c", "a b c a b"].into_iter().all(|text| goes_round(&of(text))) && goes_round(&[]));
        assert!(["a b b", "a b a a", "a b c a b b", "a a b"].into_iter().all(|text| !goes_round(&of(text))));
        assert_eq!(with_counts(&of("a b c a b")), "a:2,b:2,c:1");
        assert_eq!(earlier(&of("a b a b b")), "0,0,1,1,2");
    }

    #[test]
    fn a_host_that_mpirun_would_not_understand_has_an_address_that_nobody_has() {
        let hosts = |list: &str| placed(HostList::of(list.as_ref()).read().unwrap(), None);
        let names = |list| names_of(&hosts(list).into_iter().map(|(host, _)| host).collect::<Vec<_>>());
        let list = "a.x.invalid b.x.invalid localhost ann@localhost [fd00:9::1] a.x.invalid:1 port=222";
        let expected = ["a.x.invalid", "b.x.invalid", "localhost", "240.0.0.3", "240.0.0.4", "240.0.0.5"];
        assert_eq!(names(list), expected);
        let all: Vec<Host> = hosts(list).into_iter().map(|(host, _)| host).collect();
        let agent = write_agent(&ssh_agent(&all, &names(list))).unwrap();
        let asked = |words: &[&str]| {
            let output = Command::new("sh").arg(agent.path().join("agent")).args(words).output().unwrap();
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        };
        assert_eq!(asked(&["-x", "240.0.0.3", "echo $SHELL"]), "/bin/sh\n");
        assert!(asked(&["a", "true"]).contains("mpirun asks for a host a, which the list of hosts does not name"));
        let script = std::fs::read_to_string(agent.path().join("agent")).unwrap();
        assert!(script.contains("'240.0.0.5') to='a.x.invalid' port='-p 222'"), "{script}");
    }

    #[test]
    fn the_family_follows_from_the_programs_own_words() {
        assert_eq!(flavour_of("mpirun (Open MPI) 4.1.4\n"), Some(Flavour::OpenMpi));
        assert_eq!(flavour_of("mpirun.openmpi (OpenRTE) 4.1.4\n"), Some(Flavour::OpenMpi));
        assert_eq!(flavour_of("mpirun (Open MPI) 5.0.11\n"), Some(Flavour::OpenMpi5));
        assert_eq!(flavour_of("HYDRA build details:\n    Version: 4.0.2\n"), Some(Flavour::Mpich));
        assert_eq!(flavour_of("cat (GNU coreutils) 9.1"), None);
    }
}
