//! Optimizer states as a file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::key::Key;
use crate::optim::{Optimizer, State};

/// The first bytes of a states file: a name and a format version.
const MAGIC: &[u8; 16] = b"ringpull-states1";

/// The states of every key, and the optimizer they belong to if it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedStates {
    /// The optimizer, if it was saved too.
    pub optimizer: Option<Optimizer>,
    /// Each key's state.
    pub states: BTreeMap<Key, State>,
}

impl SavedStates {
    /// Writes the file so that either the old or the new one is there at any time.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |cause: &std::io::Error| Error::io("write optimizer states to", path.display(), cause);
        let body = postcard::to_stdvec(self).map_err(|cause| {
            Error::argument(format!("the optimizer states cannot be encoded: {cause}"), "report this as a bug")
        })?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|cause| failed(&cause))?;
        file.write_all(MAGIC)
            .and_then(|()| file.write_all(&body))
            .and_then(|()| file.as_file().sync_all())
            .map_err(|cause| failed(&cause))?;
        file.persist(path).map(drop).map_err(|cause| failed(&cause.error))
    }

    /// Reads a file that [`write`](Self::write) made.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes =
            std::fs::read(path).map_err(|cause| Error::io("read optimizer states from", path.display(), &cause))?;
        let wrong = |what: &str| {
            Error::argument(format!("{} {what}", path.display()), "give a file that save_optimizer_states wrote")
        };
        let body = bytes.strip_prefix(MAGIC).ok_or_else(|| wrong("is not a file of optimizer states"))?;
        postcard::from_bytes(body).map_err(|_| wrong("is damaged"))
    }
}
