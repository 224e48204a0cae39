//! Emulated hosts share processors rank by rank, not session by session.
//!
//! Linux deals processors out to sessions first (autogroups), and an MPI's daemon on each emulated host, or each of its ranks, begins one of its own. A rank
//! that yields then yields to nobody until its session has had its share, so that a job takes tens of milliseconds, or for ever, to find a good order of turns.
//! Real hosts share no processors. So it is switched off while a lab is up, and what was set is written down before.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// The kernel's switch, where it has one. It is heeded by processes that start later.
pub(super) const SWITCH: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Writes down in `note` what is set, and switches off. Nothing is changed where that is not allowed, as in most containers, whose
/// processes have no autogroups anyway.
pub(super) fn level(switch: &Path, note: &Path) -> Result<()> {
    let Ok(set) = fs::read_to_string(switch) else { return Ok(()) };
    if set.trim() == "0" {
        return Ok(());
    }
    fs::write(note, &set).map_err(|cause| Error::io("write", note.display(), &cause))?;
    if let Err(cause) = fs::write(switch, "0\n") {
        tracing::debug!(%cause, "sessions keep their shares of the processors");
        return remove(note);
    }
    Ok(())
}

/// Sets again what `note` says, if there is one, and removes it.
pub(super) fn restore(switch: &Path, note: &Path) -> Result<()> {
    let Ok(set) = fs::read_to_string(note) else { return Ok(()) };
    fs::write(switch, set).map_err(|cause| Error::io("write", switch.display(), &cause))?;
    remove(note)
}

fn remove(note: &Path) -> Result<()> {
    fs::remove_file(note).map_err(|cause| Error::io("remove", note.display(), &cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_set_again_and_what_was_off_stays_off() {
        let folder = tempfile::tempdir().unwrap();
        let [switch, note] = ["switch", "note"].map(|name| folder.path().join(name));
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
    fn a_lab_that_was_not_taken_down_leaves_the_first_setting_to_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let [switch, note] = ["switch", "note"].map(|name| folder.path().join(name));
        fs::write(&switch, "1\n").unwrap();
        level(&switch, &note).unwrap();
        level(&switch, &note).unwrap();
        restore(&switch, &note).unwrap();
        assert_eq!(fs::read_to_string(&switch).unwrap(), "1\n");
    }

    #[test]
    fn where_there_is_no_switch_nothing_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let [switch, note] = ["switch", "note"].map(|name| folder.path().join(name));
        level(&switch, &note).unwrap();
        restore(&switch, &note).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
