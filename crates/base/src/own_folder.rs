//! Folders for files of this user in a place that all users of a host share, such as `/dev/shm`.
//!
//! Another user may have made a folder or a link of the same name there before. So a folder is used only if
//! it belongs to this user, nobody else has any right to it, and its name is no link. All work in the folder
//! is done through its descriptor, so exchanging the name meanwhile has no effect.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, mkdir, openat, readlinkat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

/// A folder to which only this user has rights.
#[derive(Debug)]
pub struct OwnFolder {
    folder: OwnedFd,
    path: PathBuf,
}

impl OwnFolder {
    /// Opens the folder. Makes it and the folders above it if they do not exist. It is an error if other
    /// users have rights to it.
    pub fn make(path: &Path) -> io::Result<Self> {
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(above)?;
        }
        match mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Self::open(path),
            Err(cause) => Err(cause.into()),
        }
    }

    /// Opens the folder. It is an error if it does not exist, or if other users have rights to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_at(CWD, path, path, 0o077)
    }

    /// Opens a folder in this one. It must be this user's, and no link. Other users cannot reach it through
    /// this one.
    pub fn below(&self, name: &str) -> io::Result<Self> {
        Self::open_at(&self.folder, Path::new(name), &self.path.join(name), 0)
    }

    fn open_at(at: impl AsFd, name: &Path, path: &Path, forbidden: u32) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match openat(at, name, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(io::Error::other("it is a link, or no folder")),
            opened => opened?,
        };
        let found = fstat(&folder)?;
        if found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other(format!("it belongs to another user, of number {}", found.st_uid)));
        }
        if found.st_mode & forbidden != 0 {
            return Err(io::Error::other(format!("other users have rights to it: mode {:o}", found.st_mode & 0o7777)));
        }
        Ok(OwnFolder { folder, path: path.to_path_buf() })
    }

    /// Returns the names of the entries. The flag is true for a folder.
    pub fn names(&self) -> io::Result<Vec<(String, bool)>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                // Some file systems do not report the type of an entry.
                let kind = match entry.file_type() {
                    FileType::Unknown => {
                        let found = statat(&self.folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                        found.map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.st_mode))
                    }
                    kind => kind,
                };
                names.push((name, kind == FileType::Directory));
            }
        }
        Ok(names)
    }

    /// Makes an empty file with this name, unless the name exists.
    pub fn mark(&self, name: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(_) | Err(Errno::EXIST) => Ok(()),
            Err(cause) => Err(cause.into()),
        }
    }

    /// Makes `name` a link to `word`, unless the name exists. Returns true if the link has this word. If
    /// several processes do this at once with different words, one of them gets true.
    pub fn claim(&self, name: &str, word: &str) -> io::Result<bool> {
        match symlinkat(word, &self.folder, name) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => {
                Ok(readlinkat(&self.folder, name, Vec::new()).is_ok_and(|found| found.as_bytes() == word.as_bytes()))
            }
            Err(cause) => Err(cause.into()),
        }
    }

    /// Removes a name that is no folder.
    pub fn forget(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.folder, name, AtFlags::empty())?)
    }

    /// Removes the folder and everything in it.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_dir_all(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn nothing_is_used_that_somebody_else_may_have_put_there() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let why = |name: &str| OwnFolder::make(&at(name)).unwrap_err().to_string();
        let own = OwnFolder::make(&at("above/own")).unwrap();
        assert_eq!(fs::metadata(at("above/own")).unwrap().permissions().mode() & 0o7777, 0o700);
        symlink(at("above/own"), at("link")).unwrap();
        fs::write(at("file"), "").unwrap();
        assert!(why("link").contains("it is a link") && why("file").contains("no folder"));
        for mode in [0o777, 0o750, 0o701, 0o1777] {
            fs::create_dir(at("open")).unwrap();
            fs::set_permissions(at("open"), Permissions::from_mode(mode)).unwrap();
            assert!(why("open").contains("other users have rights"), "{mode:o}: {}", why("open"));
            fs::remove_dir(at("open")).unwrap();
        }
        if rustix::process::geteuid().is_root() {
            OwnFolder::make(&at("theirs")).unwrap();
            std::os::unix::fs::chown(at("theirs"), Some(65534), None).unwrap();
            assert!(why("theirs").contains("belongs to another user, of number 65534"), "{}", why("theirs"));
        }
        assert!(OwnFolder::open(&at("none")).is_err());
        fs::create_dir(at("above/own/h0")).unwrap();
        assert!(own.below("h0").is_ok());
        symlink(place.path(), at("above/own/h1")).unwrap();
        assert!(own.below("h1").is_err());
    }

    #[test]
    fn a_mark_follows_no_link_and_a_name_is_claimed_once() {
        let place = tempfile::tempdir().unwrap();
        let own = OwnFolder::make(&place.path().join("own")).unwrap();
        let precious = place.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        symlink(&precious, place.path().join("own/changed-1")).unwrap();
        own.mark("changed-1").unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        own.mark("changed-2").unwrap();
        assert!(own.claim("generation-1", "me").unwrap() && own.claim("generation-1", "me").unwrap());
        assert!(!own.claim("generation-1", "you").unwrap() && !own.claim("changed-2", "me").unwrap());
        fs::create_dir(place.path().join("own/h1")).unwrap();
        let mut names = own.names().unwrap();
        names.sort();
        let expected = [("changed-1", false), ("changed-2", false), ("generation-1", false), ("h1", true)];
        assert_eq!(names, expected.map(|(name, is_folder)| (name.to_owned(), is_folder)));
        own.forget("generation-1").unwrap();
        assert!(own.claim("generation-1", "you").unwrap());
        own.remove().unwrap();
        assert!(!place.path().join("own").exists() && precious.exists());
    }
}
