//! Optimizer states as a file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use ringpull_base::{Error, Key, Result, files};
use ringpull_kernels::optim::{Optimizer, State};

/// The first bytes of a states file: a name, then the version of its format.
const NAME: &[u8; 15] = b"ringpull-states";
const VERSION: &[u8; 1] = b"2";

/// The states of every key, and the optimizer to which they belong, if it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedStates {
    /// The optimizer, if it was saved too.
    pub optimizer: Option<Optimizer>,
    /// Each key's state.
    pub states: BTreeMap<Key, State>,
}

impl SavedStates {
    /// Writes the file. At any time either the old file or the new one exists.
    pub fn write(&self, path: &Path) -> Result<()> {
        replace_file("write optimizer states to", path, &[&self.to_bytes()?])
    }

    /// Returns the content of a states file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        postcard::to_extend(self, [NAME.as_slice(), VERSION].concat())
            .map_err(|cause| Error::bug(format!("the optimizer states cannot be encoded: {cause}")))
    }

    /// Reads a file that [`write`](Self::write) made.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes =
            std::fs::read(path).map_err(|cause| Error::io("read optimizer states from", path.display(), &cause))?;
        let wrong = |what: &str| {
            Error::argument(format!("{} {what}", path.display()), "give a file that save_optimizer_states wrote")
        };
        Self::from_bytes(&bytes).map_err(wrong)
    }

    /// Reads the content of a file, or returns its fault.
    pub fn from_bytes(bytes: &[u8]) -> std::result::Result<Self, &'static str> {
        let body = bytes.strip_prefix(NAME).ok_or("is not a file of optimizer states")?;
        let body = body.strip_prefix(VERSION).ok_or("has the format of another version of ringpull")?;
        postcard::from_bytes(body).map_err(|_| "is damaged")
    }
}

/// Writes `parts` as the file `path`. At any time either the whole old file or the whole new one exists.
pub fn replace_file(action: &str, path: &Path, parts: &[&[u8]]) -> Result<()> {
    let failed = |cause: &std::io::Error| {
        let cause = std::io::Error::new(cause.kind(), format!("{cause}; the old file is unchanged"));
        Error::io(action, path.display(), &cause)
    };
    files::replace(path, parts).map_err(|cause| failed(&cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("states");
        let states = SavedStates { optimizer: Some(Optimizer::sgd(0.5)), ..SavedStates::default() };
        states.write(&path).unwrap();
        assert_eq!(SavedStates::read(&path).unwrap(), states);
        let error = states.write(&folder.path().join("absent").join("states")).unwrap_err().to_string();
        assert!(error.contains("optimizer states") && error.contains("absent"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("states");
        for (bytes, part) in [
            (&b""[..], "is not a file of"),
            (b"ringpull-states2", "damaged"),
            (b"ringpull-states1", "another version"),
            (b"x", "is not a file of"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = SavedStates::read(&path).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("hint:"), "{error}");
        }
    }
}
