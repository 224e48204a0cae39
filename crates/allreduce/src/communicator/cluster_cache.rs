//! The cluster files in the user's cache folder, one for each set of hosts. A file's name is a hash of each
//! host's name, network interfaces with their hardware addresses and rates, and cores.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use xxhash_rust::xxh3::xxh3_64;

use ringpull_base::topology::host_name;
use ringpull_base::{Error, Result, files};

/// The number of latest files that the cache keeps. It is limited because containers and emulated hosts have
/// new addresses each time they are made.
const KEPT: usize = 32;

/// The time since `file` was written, if that is known.
pub(super) fn age(file: &Path) -> Option<Duration> {
    // Another host's clock, in a shared folder, may be ahead.
    Some(fs::metadata(file).ok()?.modified().ok()?.elapsed().unwrap_or_default())
}

/// Writes a file whole or not at all: another job may read it at the same time.
pub(super) fn store(path: &Path, text: &str) -> Result<()> {
    let io = |cause: std::io::Error| Error::io("write the cluster file", path.display(), &cause);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(io)?;
    files::replace(path, &[text.as_bytes()]).map_err(io)?;
    forget(folder, path);
    Ok(())
}

/// Removes old cluster files from `folder`. It keeps `stored`, which counts as new whatever the clocks of a
/// shared folder say, and the latest of the others.
fn forget(folder: &Path, stored: &Path) {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_ours =
            path.extension()? == "toml" && path.file_name()?.to_str()?.starts_with("cluster-") && path != stored;
        Some((fs::metadata(&path).ok()?.modified().ok()?, path)).filter(|_| is_ours)
    });
    let mut files: Vec<(SystemTime, PathBuf)> = files.collect();
    files.sort_unstable_by(|one, other| other.cmp(one));
    for (_, path) in files.into_iter().skip(KEPT - 1) {
        // Another job may just have removed it, and one file too many does no harm.
        if let Err(cause) = fs::remove_file(&path) {
            tracing::debug!(%cause, "an old cluster file stays: {}", path.display());
        }
    }
}

/// Returns the cache's file for exactly the hosts of these identities, if this user has a cache.
pub(super) fn file_of(identities: &[u64]) -> Option<PathBuf> {
    let mut sorted = identities.to_vec();
    sorted.sort_unstable();
    let name = format!("cluster-{:016x}.toml", xxh3_64(bytemuck::cast_slice(&sorted)));
    Some(ringpull_base::config::cache_folder()?.join("ringpull").join(name))
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
    fn a_cached_file_is_as_old_as_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster-0.toml");
        assert_eq!(age(&path), None);
        store(&path, "").unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(600)).unwrap();
        assert_eq!(age(&path).unwrap().as_secs() / 60, 10);
    }

    #[test]
    fn the_latest_files_are_kept_and_nothing_else_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("notes.toml"), "a user's own").unwrap();
        for index in 0..KEPT + 3 {
            store(&path(&format!("cluster-{index}.toml")), "").unwrap();
            let age = Duration::from_secs((KEPT + 3 - index) as u64);
            let file = fs::File::options().write(true).open(path(&format!("cluster-{index}.toml"))).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        store(&path("cluster-last.toml"), "").unwrap();
        let kept = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(kept, KEPT + 1, "the files of clusters and the user's");
        assert!(path("notes.toml").exists() && path("cluster-last.toml").exists());
        assert!(!path("cluster-3.toml").exists() && path("cluster-4.toml").exists());
    }

    #[test]
    fn a_set_of_hosts_has_one_file_whatever_their_order_and_another_set_another() {
        if let Some(file) = file_of(&[1, 2]) {
            assert_eq!(file_of(&[2, 1]), Some(file.clone()));
            for other in [&[1, 3][..], &[1], &[1, 2, 2]] {
                assert_ne!(file_of(other), Some(file.clone()));
            }
        }
    }
}
