//! The temporary folder of a rehearsed job, which must end empty, and the faults of folders.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use ringpull_base::{Error, Result};

use super::fault::{Fault, FaultKind, PlantedFile};

/// A path that begins with this is in the job's own folder.
const TMPDIR: &str = "TMPDIR";
/// The names of our files begin with one of these.
const OURS: [&str; 2] = ["ringpull", ".ringpull"];
/// The content of a file that belongs to another user.
const PRECIOUS: &str = "precious\n";
/// The owner of a planted file, if this program may set an owner: `nobody`.
const SOMEBODY: u32 = 65534;

/// The folder for the temporary files of one job, and the faults of folders.
pub(super) struct JobFolders {
    disk: Option<SmallDisk>,
    planted: Option<ForeignEntry>,
    /// Declared last, so removed last: mounts in this folder end first.
    own: TempDir,
}

impl JobFolders {
    pub(super) fn prepare(faults: &[Fault]) -> Result<Self> {
        let own = tempfile::Builder::new().prefix("rehearsed-").tempdir();
        let own = own.map_err(|cause| Error::io("make", "a folder for temporary files", &cause))?;
        let mut folders = JobFolders { disk: None, planted: None, own };
        for fault in faults {
            match &fault.what {
                FaultKind::Fill(folder, _) => folders.mount(folder, false)?,
                FaultKind::Forbid(folder) => folders.mount(folder, true)?,
                FaultKind::Plant(path, kind) => folders.planted = Some(ForeignEntry::plant(&folders.of(path), *kind)?),
                _ => {}
            }
        }
        Ok(folders)
    }

    /// Mounts a small file system on the folder, unless an earlier fault has mounted it.
    fn mount(&mut self, folder: &Path, is_read_only: bool) -> Result<()> {
        let folder = self.of(folder);
        match &self.disk {
            Some(disk) if disk.folder == folder => {}
            Some(_) => return Err(Error::argument("the faults of one job are of two folders", "name the same folder")),
            None => self.disk = Some(SmallDisk::mount(folder, is_read_only)?),
        }
        Ok(())
    }

    /// The job's `TMPDIR`.
    pub(super) fn own(&self) -> &Path {
        self.own.path()
    }

    /// The path that a fault names.
    fn of(&self, path: &Path) -> PathBuf {
        path.strip_prefix(TMPDIR).map_or_else(|_| path.to_owned(), |rest| self.own().join(rest))
    }

    pub(super) fn disk(&self) -> Option<&SmallDisk> {
        self.disk.as_ref()
    }

    /// The wrongs of the job: files that it has left, or changes of another user's files.
    pub(super) fn wrong(&self) -> Option<String> {
        if let Some(harm) = self.planted.as_ref().and_then(ForeignEntry::harm) {
            return Some(harm);
        }
        let is_planted = |path: &Path| self.planted.as_ref().is_some_and(|planted| path.starts_with(&planted.path));
        let left: Vec<String> = files_in(self.own())
            .into_iter()
            .filter(|path| !is_planted(path))
            .map(|path| path.strip_prefix(self.own()).unwrap_or(&path).display().to_string())
            .collect();
        (!left.is_empty()).then(|| format!("files are left in {TMPDIR}: {}", left.join(", ")))
    }
}

/// Our files in a folder, and the files in our folders there. Sockets are left out: those of killed processes
/// stay until the next job removes them.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let is_ours = |entry: &fs::DirEntry| OURS.iter().any(|name| entry.file_name().to_string_lossy().starts_with(name));
    let ours = entries(folder).filter(is_ours).flat_map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => entries(&entry.path()).collect(),
        _ => vec![entry],
    });
    ours.filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_socket())).map(|entry| entry.path()).collect()
}

/// An entry of another user, at a name that the job may use.
struct ForeignEntry {
    path: PathBuf,
    kind: PlantedFile,
    /// A file that must stay as it is.
    precious: PathBuf,
    _folder: TempDir,
}

impl ForeignEntry {
    fn plant(path: &Path, kind: PlantedFile) -> Result<Self> {
        let failed = |cause: io::Error| Error::io("plant", path.display(), &cause);
        let folder = tempfile::tempdir().map_err(failed)?;
        let precious = match kind {
            PlantedFile::Link => folder.path().join("precious"),
            PlantedFile::File => path.to_owned(),
            PlantedFile::Folder => path.join("precious"),
        };
        if kind == PlantedFile::Folder {
            fs::create_dir(path).and_then(|()| give_away(path, 0o777)).map_err(failed)?;
        }
        fs::write(&precious, PRECIOUS).and_then(|()| give_away(&precious, 0o666)).map_err(failed)?;
        if kind == PlantedFile::Link {
            symlink(&precious, path).map_err(failed)?;
        }
        Ok(ForeignEntry { path: path.to_owned(), kind, precious, _folder: folder })
    }

    /// The change that was made to the entry, if any.
    fn harm(&self) -> Option<String> {
        let path = self.path.display();
        let is_as_before = fs::symlink_metadata(&self.path).is_ok_and(|found| match self.kind {
            PlantedFile::Link => found.is_symlink(),
            PlantedFile::File => found.is_file(),
            PlantedFile::Folder => found.is_dir() && found.mode() & 0o777 == 0o777,
        });
        if !is_as_before {
            return Some(format!("{path}, which is somebody else's, was replaced"));
        }
        let is_precious = fs::read_to_string(&self.precious).is_ok_and(|text| text == PRECIOUS);
        (!is_precious).then(|| format!("the file of somebody else's at {path} was changed"))
    }
}

impl Drop for ForeignEntry {
    fn drop(&mut self) {
        let removed = match self.kind {
            PlantedFile::Folder => fs::remove_dir_all(&self.path),
            PlantedFile::Link | PlantedFile::File => fs::remove_file(&self.path),
        };
        if let Err(cause) = removed {
            eprintln!("warning: the planted {} is left: {cause}", self.path.display());
        }
    }
}

/// Gives the file or folder the access rights `mode`, and another owner if this process may do so.
fn give_away(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
    if rustix::process::geteuid().is_root() { chown(path, Some(SOMEBODY), Some(SOMEBODY)) } else { Ok(()) }
}

/// A small file system in memory, mounted on a folder while this value lives.
pub(super) struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    fn mount(folder: PathBuf, is_read_only: bool) -> Result<Self> {
        let flags = if is_read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        mount("tmpfs", &folder, "tmpfs", flags, c"size=64m").map_err(|cause| {
            Error::argument(
                format!("a small file system cannot be mounted on {}: {cause}", folder.display()),
                "a full or a forbidden folder is rehearsed in a folder that exists, as root",
            )
        })?;
        Ok(SmallDisk { folder })
    }

    fn file(&self) -> PathBuf {
        self.folder.join("fills-this-file-system")
    }

    pub(super) fn fill(&self) -> Result<()> {
        let path = self.file();
        let mut file = File::create(&path).map_err(|cause| Error::io("create", path.display(), &cause))?;
        let block = vec![0_u8; 1 << 16];
        loop {
            match file.write_all(&block) {
                Ok(()) => {}
                Err(cause) if cause.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(cause) => return Err(Error::io("write", path.display(), &cause)),
            }
        }
    }

    pub(super) fn empty(&self) -> Result<()> {
        let path = self.file();
        fs::remove_file(&path).map_err(|cause| Error::io("remove", path.display(), &cause))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(cause) = unmount(&self.folder, UnmountFlags::DETACH) {
            eprintln!("warning: {} is still a small file system: {cause}", self.folder.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::Moment;
    use super::*;

    #[test]
    fn what_is_done_to_somebody_elses_file_and_what_is_left_is_found() {
        for kind in [PlantedFile::Link, PlantedFile::File, PlantedFile::Folder] {
            let what = FaultKind::Plant("TMPDIR/ringpull-x".into(), kind);
            let folders = JobFolders::prepare(&[Fault { what, at: Moment::Usual, expect: None }]).unwrap();
            assert_eq!(folders.wrong(), None, "{kind:?}");
            let precious = folders.planted.as_ref().unwrap().precious.clone();
            fs::write(&precious, "").unwrap();
            assert!(folders.wrong().unwrap().contains("was changed"), "{kind:?}");
        }
        let folders = JobFolders::prepare(&[]).unwrap();
        fs::create_dir(folders.own().join("ringpull-0")).unwrap();
        fs::write(folders.own().join("the-users"), "").unwrap();
        assert_eq!(folders.wrong(), None);
        fs::write(folders.own().join("ringpull-0/7"), "").unwrap();
        assert_eq!(folders.wrong().as_deref(), Some("files are left in TMPDIR: ringpull-0/7"));
    }
}
