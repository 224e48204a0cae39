//! The command that starts MPI ranks on this host, on emulated hosts or on the hosts of a hostfile, with Open
//! MPI or with MPICH and its relatives. Rank i runs on host i modulo the number of hosts.
//!
//! Host names and options are arguments of `mpirun`, and the ranks get their variables through `env`, which
//! works with every `mpirun`. The job's secret, and variables that have their value from this process's
//! environment, are passed by name, since every user of a host can read its processes' arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use ringpull_base::{Error, Result, config};

use super::lab;
use super::launch::host::ssh_words;
pub use super::launch::{Host, SshHost};

/// Which family an `mpirun` belongs to.
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
    /// Whether its jobs go on when a rank's process is gone.
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

/// A command ready to start. It must outlive the run: the script that reaches the hosts is removed with it.
/// It has no `Debug`, since its environment contains the job's secret.
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
        let flavour = flavour_of(&words).ok_or_else(|| {
            Error::argument(
                format!("{program} is not a known MPI launcher: {}", words.lines().next().unwrap_or("")),
                "install Open MPI, MPICH or Intel MPI, and name its mpirun with RINGPULL_MPIRUN",
            )
        })?;
        Ok(Mpirun { program: program.to_owned(), flavour, survives_losses: false })
    }

    /// The same for jobs that go on when a rank's process is gone, if it is of a family that can do that.
    pub fn surviving_losses(self) -> Option<Self> {
        (self.flavour == Flavour::OpenMpi5).then_some(Mpirun { survives_losses: true, ..self })
    }

    /// What it was called by.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Which family it belongs to.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The command that runs ranks of one program on these hosts, or on this host if there are none.
    pub fn command(&self, hosts: &[Host], ranks: Ranks) -> Result<MpiCommand> {
        self.command_of_parts(hosts, &[ranks])
    }

    /// The command that runs several programs as one world, in this order of ranks.
    pub fn command_of_parts(&self, hosts: &[Host], parts: &[Ranks]) -> Result<MpiCommand> {
        let names: Vec<String> = hosts.iter().filter_map(name_of).collect();
        match hosts.first() {
            None | Some(Host::Local) => self.assemble(Command::new(&self.program), false, &names, None, parts),
            Some(Host::Lab(first)) => {
                let mut command = Command::new("setpriv");
                command.args(["--pdeathsig", "KILL", "--"]).args(lab::entry(*first)).arg(&self.program);
                self.assemble(command, true, &names, Some(LAB_AGENT), parts)
            }
            Some(Host::Ssh(_)) => {
                self.assemble(Command::new(&self.program), false, &names, Some(&ssh_agent(hosts)), parts)
            }
        }
    }

    /// The command that runs several programs as one world on hosts of these names, which a script reaches
    /// that is called as ssh is.
    pub(crate) fn command_by_agent(&self, names: &[String], agent: &str, parts: &[Ranks]) -> Result<MpiCommand> {
        self.assemble(Command::new(&self.program), false, names, Some(agent), parts)
    }

    fn assemble(
        &self,
        mut command: Command,
        is_lab: bool,
        names: &[String],
        agent: Option<&str>,
        parts: &[Ranks],
    ) -> Result<MpiCommand> {
        let agent = agent.map(write_agent).transpose()?;
        let agent_path = agent.as_ref().map(|folder| folder.path().join("agent"));
        self.add_options(&mut command, is_lab, agent_path.as_deref());
        command.env(config::SECRET, config::secret_or_new()?.reveal());
        let mut rank = 0;
        for (number, part) in parts.iter().enumerate() {
            if number > 0 {
                command.arg(":");
            }
            if !names.is_empty() {
                let on: Vec<&str> = (rank..rank + part.count).map(|rank| names[rank % names.len()].as_str()).collect();
                command.args([if self.flavour == Flavour::Mpich { "-hosts" } else { "--host" }, &self.placing(&on)]);
            }
            rank += part.count;
            let (by_name, given) = by_name_and_value(&part.env);
            command.args(self.naming(&[&[config::SECRET][..], &by_name].concat()));
            command.args(["-n", &part.count.to_string()]);
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

    /// The value of this launcher's option for the hosts of consecutive ranks.
    fn placing(&self, on: &[&str]) -> String {
        let mut distinct: Vec<(&str, usize)> = Vec::new();
        for name in on {
            match distinct.iter_mut().find(|(other, _)| other == name) {
                Some((_, count)) => *count += 1,
                None => distinct.push((name, 1)),
            }
        }
        // Hydra assigns ranks round robin, with one slot per host.
        let slots = |(name, count): &(&str, usize)| match self.flavour {
            Flavour::Mpich => (*name).to_owned(),
            Flavour::OpenMpi | Flavour::OpenMpi5 => format!("{name}:{count}"),
        };
        distinct.iter().map(slots).collect::<Vec<_>>().join(",")
    }

    fn add_options(&self, command: &mut Command, is_lab: bool, agent: Option<&Path>) {
        let network = is_lab.then_some(lab::NETWORK);
        let agent = agent.map(|agent| agent.display().to_string());
        // Open MPI's daemons on other hosts look for the agent too, and crash without one: they use the
        // second.
        let agents = agent.as_ref().map(|agent| format!("{agent} : ssh"));
        match self.flavour {
            Flavour::OpenMpi => {
                command.args(["--oversubscribe", "--bind-to", "none", "--map-by", "node"]);
                command.args(["--mca", "mpi_yield_when_idle", "1"]);
                if let Some(agents) = &agents {
                    command.args(["--mca", "plm_rsh_agent", agents, "--mca", "plm_rsh_no_tree_spawn", "1"]);
                }
                if let Some(network) = network {
                    command.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", network]);
                    command.args(["--mca", "oob_tcp_if_include", network]);
                }
            }
            Flavour::OpenMpi5 => {
                command.args(["--bind-to", "none", "--map-by", "node:OVERSUBSCRIBE"]);
                if self.survives_losses {
                    command.args(["--with-ft", "ulfm"]);
                }
                if let Some(agents) = &agents {
                    command.args(["--prtemca", "plm_ssh_agent", agents, "--prtemca", "plm_ssh_no_tree_spawn", "1"]);
                }
                if let Some(network) = network {
                    command.args(["--prtemca", "prte_if_include", network]);
                    command.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", network]);
                }
            }
            Flavour::Mpich => {
                if let Some(agent) = &agent {
                    command.args(["-launcher", "ssh", "-launcher-exec", agent]);
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

/// Divides variables, of which the last of a name counts, into the names of those that have their values from
/// this process's environment, and the others.
pub fn by_name_and_value(env: &[(String, String)]) -> (Vec<&str>, Vec<&(String, String)>) {
    let counts = |(at, (name, _)): &(usize, &(String, String))| env[at + 1..].iter().all(|(later, _)| later != name);
    let set = env.iter().enumerate().filter(counts).map(|(_, variable)| variable);
    let (by_name, given): (Vec<_>, Vec<_>) = set.partition(|(name, value)| config::is_in_environment(name, value));
    (by_name.into_iter().map(|(name, _)| &name[..]).collect(), given)
}

/// The family of an `mpirun` that calls its version so.
pub(crate) fn flavour_of(version: &str) -> Option<Flavour> {
    if version.contains("HYDRA") || version.contains("Hydra") || version.contains("Intel(R) MPI") {
        return Some(Flavour::Mpich);
    }
    // Debian's `mpirun.openmpi` names itself after the runtime.
    let number = version.split_once("Open MPI) ").or_else(|| version.split_once("OpenRTE) "))?.1;
    let major: u32 = number.split('.').next()?.parse().ok()?;
    Some(if major >= 5 { Flavour::OpenMpi5 } else { Flavour::OpenMpi })
}

fn name_of(host: &Host) -> Option<String> {
    match host {
        Host::Local => None,
        Host::Lab(number) => Some(lab::host_name(*number)),
        Host::Ssh(host) => Some(host.name.clone()),
    }
}

/// Called as `agent [options] hI words...` in place of ssh.
const LAB_AGENT: &str = r#"#!/bin/sh
while :; do case $1 in -[oilpF]) shift 2 ;; -*) shift ;; *) break ;; esac; done
host=$1
shift
exec nsenter --uts=/run/ringpull/lab/$host.uts -- ip netns exec "$host" sh -c "$*"
"#;

fn ssh_agent(hosts: &[Host]) -> String {
    let ssh = ssh_words(None).join(" ");
    let of_host = |host: &Host| {
        let Host::Ssh(host) = host else { return String::new() };
        let port = host.port.map_or(String::new(), |port| format!("-p {port}"));
        format!("  '{}') to='{}'; port='{port}' ;;\n", host.name, host.login)
    };
    [
        "#!/bin/sh\nwhile :; do case $1 in -[oilpF]) shift 2 ;; -*) shift ;; *) break ;; esac; done\nto=$1\nport=\ncase $1 in\n".to_owned(),
        hosts.iter().map(of_host).collect(),
        format!(
            "esac\nshift\nexec {ssh} $port \"$to\" \"$@\"\n"
        ),
    ]
    .concat()
}

fn write_agent(text: &str) -> Result<TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("ringpull-")
        .tempdir()
        .map_err(|cause| Error::io("create", "a temporary folder", &cause))?;
    let path = folder.path().join("agent");
    let io = |cause: std::io::Error| Error::io("write", path.display(), &cause);
    std::fs::write(&path, text).map_err(io)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).map_err(io)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_family_follows_from_the_programs_own_words() {
        assert_eq!(flavour_of("mpirun (Open MPI) 4.1.4\n"), Some(Flavour::OpenMpi));
        assert_eq!(flavour_of("mpirun.openmpi (OpenRTE) 4.1.4\n"), Some(Flavour::OpenMpi));
        assert_eq!(flavour_of("mpirun (Open MPI) 5.0.11\n"), Some(Flavour::OpenMpi5));
        assert_eq!(flavour_of("HYDRA build details:\n    Version: 4.0.2\n"), Some(Flavour::Mpich));
        assert_eq!(flavour_of("cat (GNU coreutils) 9.1"), None);
    }
}
