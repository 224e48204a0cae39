//! The identity that a launcher of MPI gives a process, in variables that the process's children inherit.

use super::variables::text;

/// A process's place in a job of MPI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// A name that no other rank of this host has; `None` if the connection to the launcher that the
    /// variables name is not open in this process.
    pub name: Option<String>,
    /// The rank's number.
    pub rank: String,
    /// The prefix of the variables without which a process is no rank.
    pub variables: &'static str,
}

/// The variables of Open MPI, and of other libraries that use PMIx.
const PMIX: &str = "OMPI_, PMIX_ or PRTE_";
/// The variables of MPICH and Intel MPI.
const PMI: &str = "PMI_";

/// Returns the identity that the launcher's variables give this process for the library of MPI named
/// `library`; `None` if it is no rank, or if its launcher's ranks cannot be distinguished.
///
/// Launchers may be nested, and the variables of an outer launcher are set too. So for each library only its
/// own variables count.
pub fn identity(library: &str) -> Option<Identity> {
    of_variables(library, text, |descriptor| {
        let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
        Some(link.to_str()?.strip_prefix("socket:")?.to_owned())
    })
}

/// Returns the value of `srun --mpi` that the library named `library` needs, in a process that the library
/// would end because `srun` has not started it as one of its ranks. Returns `None` in other processes.
/// `speaks_pmi` returns true if the library was built for Slurm's own PMI.
///
/// Only Open MPI 4 ends such a process. Other libraries make it a job of one rank, which is noticed when MPI
/// has started, and some find their ranks by Slurm's variables alone.
pub fn missing_process_manager(library: &str, speaks_pmi: impl FnOnce() -> bool) -> Option<&'static str> {
    missing_in(library, text, speaks_pmi)
}

fn missing_in(
    library: &str,
    text: impl Fn(&str) -> Option<String>,
    speaks_pmi: impl FnOnce() -> bool,
) -> Option<&'static str> {
    text("SLURM_STEP_ID").filter(|_| library.starts_with("Open MPI 4"))?;
    let is_rank = text("PMIX_NAMESPACE").is_some() || (text("PMI_FD").is_some() && speaks_pmi());
    (!is_rank).then(|| process_manager(library))
}

/// Returns the value of `srun --mpi` by which ranks of the library named `library` find each other.
pub fn process_manager(library: &str) -> &'static str {
    if library.starts_with("Open MPI") { "pmix" } else { "pmi2" }
}

/// Returns the variable for the ways in which a rank may prove its user to `srun`, and the value that the
/// library named `library` needs. Returns `None` if it needs no special value.
///
/// Slurm lists `munge` first. An Open MPI 5 from a wheel lacks `munge`, and prints a long message about that.
pub fn security_mode(library: &str) -> Option<(&'static str, &'static str)> {
    security_mode_in(library, text)
}

fn security_mode_in(library: &str, text: impl Fn(&str) -> Option<String>) -> Option<(&'static str, &'static str)> {
    let name = "PMIX_SECURITY_MODE";
    let is_replaced = library.starts_with("Open MPI 5") && text(name).as_deref() == Some("munge,native");
    is_replaced.then_some((name, "native"))
}

/// `socket` returns the socket of a descriptor, if it is one.
fn of_variables(
    library: &str,
    text: impl Fn(&str) -> Option<String>,
    socket: impl Fn(&str) -> Option<String>,
) -> Option<Identity> {
    let by_pmix = || {
        let (job, rank) = (text("PMIX_NAMESPACE")?, text("PMIX_RANK")?);
        Some(Identity { name: Some(format!("pmix {job} {rank}")), rank, variables: PMIX })
    };
    let by_socket = || {
        let name = socket(&text("PMI_FD")?).map(|socket| format!("pmi {socket}"));
        let rank = text("PMI_RANK").or_else(|| text("PMI_ID"))?;
        Some(Identity { name, rank, variables: PMI })
    };
    let by_port = || {
        let (port, rank) = (text("PMI_PORT")?, text("PMI_ID")?);
        Some(Identity { name: Some(format!("pmi {port} {rank}")), rank, variables: PMI })
    };
    if library.starts_with("Open MPI") { by_pmix() } else { by_socket().or_else(by_port).or_else(by_pmix) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_goes_by_the_variables_of_its_own_launcher() {
        let of = |library: &str, variables: &[(&str, &str)]| {
            let text =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            of_variables(library, text, |descriptor| (descriptor == "6").then(|| "[25064]".to_owned()))
        };
        let named = |library: &str, variables: &[(&str, &str)]| of(library, variables).and_then(|found| found.name);
        let pmix = [("PMIX_NAMESPACE", "prterun-h-12@1"), ("PMIX_RANK", "3")];
        let pmi = [("PMI_FD", "6"), ("PMI_RANK", "1")];
        let both = [pmix, pmi].concat();
        for (library, variables, name) in [
            ("Open MPI 5.0.11", &pmix[..], Some("pmix prterun-h-12@1 3")),
            ("Open MPI 5.0.11", &both, Some("pmix prterun-h-12@1 3")),
            ("Open MPI 5.0.11", &pmi, None),
            ("MPICH 4.0.2", &both, Some("pmi [25064]")),
            ("MPICH 5.0.2", &pmix, Some("pmix prterun-h-12@1 3")),
            ("MPICH 4.0.2", &[("PMI_PORT", "h:4711"), ("PMI_ID", "2")], Some("pmi h:4711 2")),
            ("MPICH 4.0.2", &[], None),
        ] {
            assert_eq!(named(library, variables).as_deref(), name, "{library} {variables:?}");
        }
        // A child that has lost the connection is no rank either.
        let lost = of("MPICH 4.0.2", &[("PMI_FD", "7"), ("PMI_RANK", "1")]).unwrap();
        assert_eq!((lost.name, &*lost.rank), (None, "1"));
    }

    #[test]
    fn an_open_mpi_of_a_wheel_proves_its_user_without_munge_if_it_may() {
        for (library, mode, expected) in [
            ("Open MPI 5.0.11", Some("munge,native"), Some(("PMIX_SECURITY_MODE", "native"))),
            ("Open MPI 5.0.11", Some("munge"), None),
            ("Open MPI 5.0.11", None, None),
            ("Open MPI 4.1.4", Some("munge,native"), None),
        ] {
            assert_eq!(security_mode_in(library, |_| mode.map(str::to_owned)), expected, "{library} {mode:?}");
        }
    }

    #[test]
    fn srun_has_to_give_ranks_of_the_library() {
        let step = [("SLURM_STEP_ID", "0")];
        let pmix = [("PMIX_NAMESPACE", "slurm.pmix.4.0")];
        let pmi2 = [("PMI_FD", "11"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")];
        for (library, variables, speaks_pmi, expected) in [
            ("Open MPI 4.1.4", step.to_vec(), true, Some("pmix")),
            ("Open MPI 4.1.4", [&step[..], &pmi2].concat(), false, Some("pmix")),
            ("Open MPI 4.1.4", [&step[..], &pmi2].concat(), true, None),
            ("Open MPI 4.1.4", [&step[..], &pmix].concat(), false, None),
            ("Open MPI 5.0.11", step.to_vec(), false, None),
            // Slurm's own library of PMI needs no variable of PMI's.
            ("MPICH 4.0.2", step.to_vec(), false, None),
            ("Intel MPI 2021", [&step[..], &pmi2].concat(), false, None),
            // Ranks of an mpirun, or of none.
            ("Open MPI 4.1.4", pmix.to_vec(), false, None),
            ("Open MPI 4.1.4", vec![("SLURM_JOB_ID", "7")], false, None),
        ] {
            let text =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            let found = missing_in(library, text, || speaks_pmi);
            assert_eq!(found, expected, "{library} {variables:?}");
        }
    }
}
