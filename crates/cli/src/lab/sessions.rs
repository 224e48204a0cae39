//! Emulated hosts share processors rank by rank, not session by session.
//!
//! Linux deals processors out to sessions first (autogroups), and MPI's daemon on each emulated host, or each
//! of its ranks, begins one of its own. A yield acts within the session, so there it is one to nobody. Real
//! hosts share no processors. So the kernel's switch is off while a lab is up, and what was set is written
//! down before. The switch is the machine's: labs in two containers that both may set it are not kept apart.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use ringpull_base::{Error, Result};

/// The kernel's switch, where it has one. Processes that start later heed it.
pub(super) const SWITCH: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Writes down in `note` what is set, and switches off. Nothing is changed where that is refused, as in most
/// containers, whose processes have no autogroups anyway.
pub(super) fn level(switch: &Path, note: &Path) -> Result<()> {
    let Ok(set) = fs::read_to_string(switch) else { return Ok(()) };
    if set.trim() == "0" {
        return Ok(());
    }
    fs::write(note, &set).map_err(|cause| Error::io("write", note.display(), &cause))?;
    if let Err(cause) = fs::write(switch, "0\n") {
        tracing::warn!(%cause, "sessions keep their shares of the processors: {}", switch.display());
        return remove(note);
    }
    Ok(())
}

/// Sets again what `note` says, if there is one, and removes it. Where that is refused a warning says what
/// was set.
pub(super) fn restore(switch: &Path, note: &Path) -> Result<()> {
    let set = match fs::read_to_string(note) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        read => read.map_err(|cause| Error::io("read", note.display(), &cause))?,
    };
    // It may never have been switched off.
    if fs::read_to_string(switch).is_ok_and(|now| now != set)
        && let Err(cause) = fs::write(switch, &set)
    {
        // Not an error: it would stand in the way of every later lab.
        tracing::warn!(%cause, "{} was {} before there was a lab, and cannot be set again", switch.display(), set.trim());
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
    fn what_was_set_is_set_again_and_what_was_off_stays_off() {
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
    fn a_lab_that_was_not_taken_down_leaves_the_first_setting_to_the_next() {
        let (_folder, switch, note) = paths();
        fs::write(&switch, "1\n").unwrap();
        level(&switch, &note).unwrap();
        level(&switch, &note).unwrap();
        restore(&switch, &note).unwrap();
        assert_eq!(fs::read_to_string(&switch).unwrap(), "1\n");
    }

    #[test]
    fn where_there_is_no_switch_or_it_is_refused_nothing_is_left() {
        let (folder, switch, note) = paths();
        level(&switch, &note).unwrap();
        restore(&switch, &note).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // Nobody may write it, root either.
        let refused = Path::new("/proc/version");
        if refused.exists() {
            level(refused, &note).unwrap();
            assert!(!note.exists());
            // Ended between the note and the refusal, and refused only since.
            for set in [&fs::read(refused).unwrap()[..], b"1\n"] {
                fs::write(&note, set).unwrap();
                restore(refused, &note).unwrap();
                assert!(!note.exists());
            }
        }
    }
}
