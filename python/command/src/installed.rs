//! Finds the folder in which pip has put the package of a wheel, starting from the wheel's command.

use std::fs;
use std::path::{Path, PathBuf};

/// The name of the package's folder in a folder of packages.
const PACKAGE: &str = "ringpull";

/// The library that defines Python's names for the command, which runs without an interpreter.
pub(crate) const NO_PYTHON: &str = "_no_python.so";

/// The folder of the package in the environment `prefix`, whose `bin` has the command. None if the package is
/// not in this environment.
///
/// If several Pythons have the package in one prefix, only packages of the command's version count, and the
/// one that was installed last is taken.
pub(crate) fn package(prefix: &Path) -> Option<PathBuf> {
    const OWN: &str = concat!("ringpull-", env!("CARGO_PKG_VERSION"), ".dist-info");
    let has_stand_in = |folder: &PathBuf| folder.join(PACKAGE).join(NO_PYTHON).is_file();
    let installed = |folder: &PathBuf| {
        let is_own = folder.join(OWN).is_dir();
        (is_own, fs::metadata(folder.join(OWN).join("RECORD")).and_then(|record| record.modified()).ok())
    };
    Some(packages(prefix).into_iter().filter(has_stand_in).max_by_key(installed)?.join(PACKAGE))
}

/// Folders in which pip puts packages: under `lib`, `pythonX/site-packages` and similar ones; and the prefix
/// itself, which is the folder given to `pip install --target`.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let mut pythons: Vec<PathBuf> = ["lib", "lib64"]
        .iter()
        .filter_map(|lib| fs::read_dir(prefix.join(lib)).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")))
        .collect();
    pythons.sort();
    let of_pythons = pythons.iter().flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)));
    of_pythons.chain([prefix.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn install(packages: &Path, version: &str, age: Duration) {
        let (code, info) =
            (packages.join(PACKAGE).join(NO_PYTHON), packages.join(format!("ringpull-{version}.dist-info")));
        for file in [code, info.join("RECORD")] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            let file = fs::File::create(file).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
    }

    #[test]
    fn the_package_is_found_wherever_pip_puts_it() {
        for place in ["lib/python3.11/site-packages", "lib/python3/dist-packages", "lib64/python3.13/site-packages", ""]
        {
            let prefix = tempfile::tempdir().unwrap();
            assert_eq!(package(prefix.path()), None);
            fs::create_dir_all(prefix.path().join("lib/python3.9/site-packages/numpy")).unwrap();
            fs::create_dir_all(prefix.path().join("lib/python3.10/site-packages").join(PACKAGE)).unwrap();
            install(&prefix.path().join(place), env!("CARGO_PKG_VERSION"), Duration::ZERO);
            assert_eq!(package(prefix.path()), Some(prefix.path().join(place).join(PACKAGE)), "{place}");
        }
    }

    #[test]
    fn of_several_pythons_that_with_the_commands_own_version_and_the_newest_is_taken() {
        let prefix = tempfile::tempdir().unwrap();
        let own = env!("CARGO_PKG_VERSION");
        for (python, version, hours) in [("3.9", own, 3), ("3.10", own, 1), ("3.11", own, 2), ("3.12", "9.0.0", 0)] {
            let packages = prefix.path().join(format!("lib/python{python}/site-packages"));
            install(&packages, version, Duration::from_secs(3600 * hours));
        }
        let expected = prefix.path().join("lib/python3.10/site-packages").join(PACKAGE);
        assert_eq!(package(prefix.path()), Some(expected));
    }
}
