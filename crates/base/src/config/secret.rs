//! The sources of the secret of a job. `ringpull launch` makes one for each job; if something else starts the
//! processes, a file with the secret can be named.
//!
//! It is passed in the environment or in a file, never in arguments, which every user of a host can read. No
//! error shows it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::variables::wrong;
use crate::{Result, Secret};

/// The variable with the secret itself, which launchers set.
pub const SECRET: &str = "RINGPULL_SECRET";
/// The variable with the name of a file that holds it.
pub const SECRET_FILE: &str = "RINGPULL_SECRET_FILE";

/// The hint on how to make a secret.
const MAKE: &str = "`openssl rand -hex 32` makes one; `ringpull launch` makes one by itself if neither variable is set";
const NO_TEXT: &str = "it is not text";

/// The secret that the file `path` holds.
fn in_file(path: &Path) -> Result<Secret> {
    let refused = |why: &str| {
        let expected = format!(
            "a file that can be read and holds {} to {} characters",
            Secret::LENGTHS.start(),
            Secret::LENGTHS.end()
        );
        let remedy = format!("{why}; correct it on every host of the job: {MAKE}");
        let path = if path.as_os_str().is_empty() { "(empty)".to_owned() } else { path.display().to_string() };
        wrong(SECRET_FILE, &path, &expected, remedy)
    };
    // The limit is needed because a file such as a device has no end. A character has at most four bytes.
    let most = 4 * *Secret::LENGTHS.end() as u64 + 2;
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(most).read_to_string(&mut text))
        .map_err(|cause| refused(&said_of(&cause)))?;
    // No environment can hold a zero.
    if text.contains('\0') {
        return Err(refused(NO_TEXT));
    }
    Secret::within(&text).map_err(|length| refused(&format!("it holds {length} characters")))
}

fn said_of(cause: &io::Error) -> String {
    if cause.kind() == io::ErrorKind::InvalidData { NO_TEXT.to_owned() } else { cause.to_string() }
}

/// Returns the secret of this process's job, if it has one. It is `RINGPULL_SECRET`, or the content of the
/// file that `RINGPULL_SECRET_FILE` names. A secret that is too short, or empty, is an error, because a user
/// who sets it expects protection.
pub fn secret() -> Result<Option<Secret>> {
    if let Some(given) = std::env::var_os(SECRET) {
        let found = given.to_str().map_or(Err(given.len()), Secret::within);
        let refused = |length| {
            let value = format!("({length} characters, not shown)");
            let expected = format!("a secret of {} to {} characters", Secret::LENGTHS.start(), Secret::LENGTHS.end());
            wrong(SECRET, &value, &expected, format!("set the same on every node of the job, or unset it: {MAKE}"))
        };
        return found.map(Some).map_err(refused);
    }
    std::env::var_os(SECRET_FILE).map(|path| in_file(Path::new(&path))).transpose()
}

/// Returns the secret as [`secret`] does, or a new one if there is none. For launchers.
pub fn secret_or_new() -> Result<Secret> {
    secret()?.map_or_else(Secret::new_random, Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_a_secret_of_16_characters_or_more_with_or_without_a_line_feed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        for (text, length) in [("", 0), ("\n", 0), ("hush\n", 4), ("fifteen letters\n", 15)] {
            std::fs::write(&path, text).unwrap();
            let error = in_file(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("it holds {length} characters")), "{error}");
            assert!(error.contains(SECRET_FILE) && error.contains("hint: "), "{error}");
            assert!(text.trim().is_empty() || !error.contains(text.trim()), "{error}");
        }
        for text in ["sixteen letters!", "sixteen letters!\n", "sixteen letters!\r\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(in_file(&path).unwrap().reveal(), "sixteen letters!");
        }
        std::fs::write(&path, [0xff; 32]).unwrap();
        assert!(in_file(&path).unwrap_err().to_string().contains(NO_TEXT));
        for (path, said) in [("/nonexistent/secret", "No such file"), ("/dev/zero", NO_TEXT), ("", "(empty)")] {
            let error = in_file(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains(said), "{error}");
        }
    }
}
