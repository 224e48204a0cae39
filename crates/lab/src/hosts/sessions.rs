//! Makes emulated hosts share processors by rank instead of by session.
//!
//! Linux divides processors among sessions first (autogroups), and MPI's daemon on each emulated host, or
//! each of its ranks, starts a session. A rank can yield only to processes of its own session, so it would
//! yield to nobody. Real hosts share no processors. So the kernel's switch for autogroups is off while a lab
//! is up, and a file keeps the switch's previous value. The switch belongs to the machine: two containers
//! that may both set it interfere.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use ringpull_base::{Error, Result};

/// The kernel's switch, which affects processes that start later.
pub(super) const SWITCH: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Saves the switch's value in `note`, and switches it off. Changes nothing if the kernel refuses, as in most
/// containers. Processes in containers have no autogroups.
pub(super) fn level(switch: &Path, note: &Path) -> Result<()> {
    let Ok(set) = fs::read_to_string(switch) else { return Ok(()) };
    if set.trim() == "0" {
        return Ok(());
    }
    fs::write(note, &set).map_err(|cause| Error::io("write", note.display(), &cause))?;
    if let Err(cause) = fs::write(switch, "0\n") {
        tracing::warn!(%cause, "cannot switch off shares of the processors by session: {}", switch.display());
        return remove(note);
    }
    Ok(())
}

/// Restores the value in the file `note`, if the file exists, and removes the file. Warns if the kernel
/// refuses the value.
pub(super) fn restore(switch: &Path, note: &Path) -> Result<()> {
    let set = match fs::read_to_string(note) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        read => read.map_err(|cause| Error::io("read", note.display(), &cause))?,
    };
    // The switch may never have been off.
    if fs::read_to_string(switch).is_ok_and(|now| now != set)
        && let Err(cause) = fs::write(switch, &set)
    {
        // This is no error: an error would prevent every later lab.
        tracing::warn!(%cause, "cannot restore {} to {}", switch.display(), set.trim());
    }
    remove(note)
}

fn remove(note: &Path) -> Result<()> {
    fs::remove_file(note).map_err(|cause| Error::io("remove", note.display(), &cause))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    fn paths() -> (TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let [switch, note] = ["switch", "note"].map(|name| folder.path().join(name));
        (folder, switch, note)
    }

    #[test]
    fn the_switch_is_restored() {
        let (_folder, switch, note) = paths();
        for set in ["1\n", "0\n"] {
            fs::write(&switch, set).unwrap();
            level(&switch, &note).unwrap();
            assert_eq!(fs::read_to_string(&switch).unwrap(), "0\n");
            restore(&switch, &note).unwrap();
            assert_eq!(fs::read_to_string(&switch).unwrap(), set);
            assert!(!note.exists());
        }
    }

    #[test]
    fn the_value_before_a_lab_that_was_not_removed_is_restored_after_the_next() {
        let (_folder, switch, note) = paths();
        fs::write(&switch, "1\n").unwrap();
        level(&switch, &note).unwrap();
        level(&switch, &note).unwrap();
        restore(&switch, &note).unwrap();
        assert_eq!(fs::read_to_string(&switch).unwrap(), "1\n");
    }

    #[test]
    fn without_a_writable_switch_nothing_is_left() {
        let (folder, switch, note) = paths();
        level(&switch, &note).unwrap();
        restore(&switch, &note).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // Nobody may write this file, not even root.
        let refused = Path::new("/proc/version");
        if refused.exists() {
            level(refused, &note).unwrap();
            assert!(!note.exists());
            // The first value: the process ended between the note and the refusal. The second: the kernel
            // refuses only since then.
            for set in [&fs::read(refused).unwrap()[..], b"1\n"] {
                fs::write(&note, set).unwrap();
                restore(refused, &note).unwrap();
                assert!(!note.exists());
            }
        }
    }
}
