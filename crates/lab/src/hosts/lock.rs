//! The lock that lets one process at a time create, use or remove the lab. The kernel releases it when its
//! holder ends.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use ringpull_base::{Error, Result};

use super::FOLDER;

/// The lock, which is held as long as this value lives. Started programs do not inherit it.
#[derive(Debug)]
pub(super) struct LabLock {
    _file: File,
}

impl LabLock {
    /// Takes the lock. If another process holds it, the error names this process.
    pub(super) fn take() -> Result<Self> {
        fs::create_dir_all(FOLDER).map_err(|cause| Error::io("create", FOLDER, &cause))?;
        let path = Path::new(FOLDER).join("lock");
        let io = |cause: std::io::Error| Error::io("lock", path.display(), &cause);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder).map_err(io)?;
                return Err(Error::argument(
                    format!("the emulated hosts are in use by process {}", holder.trim()),
                    "wait until it ends, or end it; `ringpull lab down` then removes hosts that are left",
                ));
            }
            Err(cause) => return Err(io(cause.into())),
        }
        file.set_len(0).map_err(io)?;
        let words: Vec<String> = std::env::args().collect();
        writeln!(file, "{} ({})", std::process::id(), words.join(" ")).map_err(io)?;
        Ok(LabLock { _file: file })
    }
}
