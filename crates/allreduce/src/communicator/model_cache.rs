//! The models of clusters in the user's cache folder: a file for each cluster, whose name is a hash of
//! everything that makes it this cluster: the MPI library, the ranks in order, each one's host name and
//! network interfaces with their hardware addresses and rates, and the cores.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use ringpull_base::topology::host_name;
use ringpull_base::{Error, Result, files};
use ringpull_plan::{LinkRates, Model};

/// Part of every key: a model that another way of measuring or predicting has made is of no use.
const VERSION: u32 = 16;
/// The cache keeps the latest models: containers and emulated hosts are new ones, with new addresses, each
/// time they are made.
const KEPT: usize = 32;

/// A file of the cache, and what `RINGPULL_MODEL` may name.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) model: Model,
    /// Bit `h` of the first number is the rack of host `h`; the second is the number of hosts.
    #[serde(default)]
    pub(super) racks: (u64, usize),
    /// Of each host's link, in bytes per microsecond; none if they are alike, or were not measured.
    #[serde(default)]
    pub(super) rates: Vec<LinkRates>,
    /// For people.
    #[serde(default)]
    pub(super) library: String,
    #[serde(default)]
    pub(super) ranks: usize,
}

/// The model in `path`; an error if it is not there or none that a cluster can have.
pub(super) fn read(path: &Path) -> Result<Stored> {
    let io = |cause: std::io::Error| Error::io("read the model in", path.display(), &cause);
    let stored: Stored = files::read_json(path).map_err(io)?;
    if stored.model.is_sound() {
        Ok(stored)
    } else {
        Err(io(std::io::Error::other("its numbers are impossible for a cluster")))
    }
}

/// How long ago `file` was written, if that is known.
pub(super) fn age(file: &Path) -> Option<Duration> {
    // Another host's clock, in a shared folder, may be ahead.
    Some(fs::metadata(file).ok()?.modified().ok()?.elapsed().unwrap_or_default())
}

/// Whole or not at all: another job may read it at the same time.
pub(super) fn store(path: &Path, stored: &Stored) -> Result<()> {
    let io = |cause: std::io::Error| Error::io("write the model to", path.display(), &cause);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(io)?;
    files::replace_by_json(path, stored).map_err(io)?;
    forget(folder, path);
    Ok(())
}

/// Removes all models from `folder` but `stored`, which is new whatever the clocks of a shared folder say,
/// and the latest others.
fn forget(folder: &Path, stored: &Path) {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_model =
            path.extension()? == "json" && path.file_name()?.to_str()?.starts_with("model-") && path != stored;
        Some((fs::metadata(&path).ok()?.modified().ok()?, path)).filter(|_| is_model)
    });
    let mut models: Vec<(SystemTime, PathBuf)> = files.collect();
    models.sort_unstable_by(|one, other| other.cmp(one));
    for (_, path) in models.into_iter().skip(KEPT - 1) {
        // Another job may just have done it, and a file too many does no harm.
        if let Err(cause) = fs::remove_file(&path) {
            tracing::debug!(%cause, "an old model stays: {}", path.display());
        }
    }
}

/// Where the model of this cluster is kept, if this user has a cache; `names` are the ranks' hosts, hashed.
pub(super) fn file_of(library: &str, names: &[[f64; 1]], hosts: &[Vec<usize>], are_named: bool) -> Option<PathBuf> {
    let mut key = format!("{VERSION} {} {library} {hosts:?} {are_named}", env!("CARGO_PKG_VERSION"));
    key.extend(names.iter().map(|[name]| format!(" {name}")));
    Some(
        ringpull_base::config::cache_folder()?
            .join("ringpull")
            .join(format!("model-{:016x}.json", xxh3_64(key.as_bytes()))),
    )
}

/// Everything about this rank's host that its links' speed may depend on.
pub(super) fn this_host() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut links = Vec::new();
    if let Ok(folder) = fs::read_dir("/sys/class/net") {
        for link in folder.filter_map(|entry| Some(entry.ok()?.path())) {
            let field = |name: &str| fs::read_to_string(link.join(name)).unwrap_or_default().trim().to_owned();
            links.push(format!("{} {} {} {}", link.display(), field("address"), field("mtu"), field("speed")));
        }
    }
    links.sort_unstable();
    format!("{} {cores} {}", host_name(), links.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_as_old_as_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model-0.json");
        assert_eq!(age(&path), None);
        store(&path, &Stored::default()).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(600)).unwrap();
        assert_eq!(age(&path).unwrap().as_secs() / 60, 10);
    }

    #[test]
    fn the_latest_models_are_kept_and_nothing_else_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("notes.json"), "a user's own").unwrap();
        for index in 0..KEPT + 3 {
            store(&path(&format!("model-{index}.json")), &Stored::default()).unwrap();
            let age = Duration::from_secs((KEPT + 3 - index) as u64);
            let file = fs::File::options().write(true).open(path(&format!("model-{index}.json"))).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        store(&path("model-last.json"), &Stored::default()).unwrap();
        let kept = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(kept, KEPT + 1, "the models and the user's file");
        assert!(path("notes.json").exists() && path("model-last.json").exists());
        assert!(!path("model-3.json").exists() && path("model-4.json").exists());
    }

    #[test]
    fn another_library_or_another_host_is_another_cluster() {
        let apart = [vec![0], vec![1]];
        let of = |library: &str, names: &[[f64; 1]]| file_of(library, names, &apart, false);
        if let Some(file) = of("a", &[[1.0], [2.0]]) {
            assert_eq!(of("a", &[[1.0], [2.0]]), Some(file.clone()));
            for other in [of("b", &[[1.0], [2.0]]), of("a", &[[1.0], [3.0]]), of("a", &[[1.0]])] {
                assert_ne!(other, Some(file.clone()));
            }
            let names = [[1.0], [2.0]];
            assert_ne!(file_of("a", &names, &[vec![0, 1]], false), Some(file.clone()));
            assert_ne!(file_of("a", &names, &apart, true), Some(file));
        }
    }
}
