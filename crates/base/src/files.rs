//! Files that exist whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::file_limit;

/// Writes `parts` as the file `path`. At any time either the old file or the new one exists, on the disk too.
/// After an error the old file exists. The new file has the usual permissions of this process's files.
pub fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let (place, mut file) = new_in(folder_of(path))?;
    let written = file_limit::without_signal(|| parts.iter().try_for_each(|part| file.write_all(part)));
    if let Err(cause) = written.and_then(|()| file.sync_all()).and_then(|()| fs::rename(&place, path)) {
        // The first cause matters more than a left-over file.
        drop(fs::remove_file(&place));
        return Err(cause);
    }
    File::open(folder_of(path))?.sync_all()
}

/// Returns an error if no file can be made in `folder`.
pub fn try_folder(folder: &Path) -> io::Result<()> {
    let (place, _) = new_in(folder)?;
    fs::remove_file(place)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a file with a name that nothing in `folder` has.
fn new_in(folder: &Path) -> io::Result<(PathBuf, File)> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        // Several hosts may share the folder, and their processes may have equal ids.
        let host = crate::topology::host_name();
        let place = folder.join(format!(".ringpull-{host}-{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&place) {
            Ok(file) => return Ok((place, file)),
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
            Err(cause) => return Err(cause),
        }
    }
}
