//! The properties of this process on which the choice depends: the MPI that it has loaded, the launcher that
//! started it, and its environment.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::family::MpiFamily;

/// The variable that names the library of MPI to use, or its folder; or `none`.
pub(crate) const MPI: &str = "RINGPULL_MPI";

/// The number of ancestors among which a launcher is searched, because shells, `env` and debuggers may be
/// between it and a rank.
const GENERATIONS: usize = 8;

/// The properties of this process on which the choice depends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Process {
    /// Libraries of MPI that are in this process.
    pub(crate) loaded: Vec<PathBuf>,
    /// The launcher that made this process a rank.
    pub(crate) launcher: Option<Launcher>,
    /// The value of `RINGPULL_MPI`.
    pub(crate) named: Option<OsString>,
    /// The folder for libraries of this process's environment, such as a virtual environment.
    pub(crate) lib: Option<PathBuf>,
    /// The `mpirun` in the `PATH`.
    pub(crate) mpirun: Option<PathBuf>,
}

/// The `mpirun` of a rank, or its daemon on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launcher {
    pub(crate) family: MpiFamily,
    /// The launcher's program, if this process is allowed to read it.
    pub(crate) program: Option<PathBuf>,
    /// The folders of the launcher's libraries.
    pub(crate) folders: Vec<PathBuf>,
}

impl Process {
    /// Returns the properties of this process, with `lib` as the environment's folder for libraries.
    pub(crate) fn this(lib: Option<&Path>) -> Self {
        Process {
            loaded: libraries(std::process::id()).into_iter().filter(|path| family_of(path).is_some()).collect(),
            launcher: launcher(),
            named: std::env::var_os(MPI).filter(|value| !value.is_empty()),
            lib: lib.map(Path::to_owned),
            mpirun: std::env::var_os("PATH").and_then(|paths| {
                std::env::split_paths(&paths).map(|folder| folder.join("mpirun")).find(|program| program.is_file())
            }),
        }
    }
}

/// The family of a library's file.
pub(crate) fn family_of(path: &Path) -> Option<MpiFamily> {
    MpiFamily::of_file(path.file_name()?.to_str()?)
}

/// Returns the family of a launcher's program, if its real name shows it.
pub(crate) fn family_of_program(program: &Path) -> Option<MpiFamily> {
    MpiFamily::of_launcher(program.canonicalize().ok()?.file_name()?.to_str()?)
}

/// Folders beside a program in which its libraries may be.
pub(crate) fn folders_beside(program: &Path) -> Vec<PathBuf> {
    let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let Some(prefix) = program.parent().and_then(Path::parent) else { return Vec::new() };
    ["lib", "lib64", "lib/release"].iter().map(|folder| prefix.join(folder)).collect()
}

/// Returns the family of the launcher that has set variables of a rank in this process. Slurm sets MPICH's
/// variables even when it starts ranks of Open MPI, and several launchers set `PMIX_RANK`.
fn family_of_rank(has: impl Fn(&str) -> bool) -> Option<MpiFamily> {
    if has("OMPI_COMM_WORLD_SIZE") {
        Some(MpiFamily::OpenMpi)
    } else if has("PMI_RANK") && !has("SLURM_STEP_ID") {
        Some(MpiFamily::Mpich)
    } else {
        None
    }
}

/// Returns the family of the launcher that has made this process a rank.
pub(crate) fn family_of_launcher() -> Option<MpiFamily> {
    family_of_rank(|name| std::env::var_os(name).is_some())
}

fn launcher() -> Option<Launcher> {
    let family = family_of_launcher()?;
    let mut ancestor = std::os::unix::process::parent_id();
    for _ in 0..GENERATIONS {
        let program = std::fs::read_link(format!("/proc/{ancestor}/exe")).ok();
        let name = program.as_deref().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or("");
        if MpiFamily::of_launcher(name).is_some_and(|found| found == family) || matches!(name, "mpirun" | "mpiexec") {
            let program = program?;
            let mut folders = folders_beside(&program);
            let own = libraries(ancestor);
            folders.extend(own.iter().filter_map(|library| Some(library.parent()?.to_owned())));
            return Some(Launcher { family, program: Some(program), folders });
        }
        match parent_of(ancestor) {
            Some(parent) if parent > 1 => ancestor = parent,
            _ => break,
        }
    }
    Some(Launcher { family, program: None, folders: Vec::new() })
}

fn parent_of(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in brackets, may contain anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the libraries that a process has loaded, or none if this process is not allowed to read them.
fn libraries(process: u32) -> BTreeSet<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|start| PathBuf::from(&line[start..])));
    paths.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_of_the_family_whose_launcher_set_its_variables() {
        let family = |names: &[&str]| family_of_rank(|name| names.contains(&name));
        assert_eq!(family(&["OMPI_COMM_WORLD_SIZE", "PMIX_RANK"]), Some(MpiFamily::OpenMpi));
        assert_eq!(family(&["PMI_RANK", "PMI_SIZE"]), Some(MpiFamily::Mpich));
        assert_eq!(family(&["PMI_RANK", "SLURM_STEP_ID"]), None);
        assert_eq!(family(&["PMIX_RANK"]), None);
        assert_eq!(family(&[]), None);
    }

    #[test]
    fn a_process_knows_its_parent_and_its_libraries() {
        assert_eq!(parent_of(std::process::id()), Some(std::os::unix::process::parent_id()));
        assert!(libraries(std::process::id()).iter().any(|path| path.to_string_lossy().contains("libc.so")));
    }

    #[test]
    fn libraries_are_beside_the_program_that_a_link_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("mpi/bin")).unwrap();
        std::fs::write(root.join("mpi/bin/orterun"), "").unwrap();
        std::os::unix::fs::symlink(root.join("mpi/bin/orterun"), root.join("mpirun")).unwrap();
        assert_eq!(folders_beside(&root.join("mpirun"))[0], root.join("mpi/lib"));
    }
}
