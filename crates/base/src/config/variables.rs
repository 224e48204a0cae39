//! Reads one variable of the environment: its value, or an error that names it and the remedy. Also detects
//! misspelt names of ours.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::NEVER;
use super::listed::variables;
use crate::{Error, Result, closest};

/// Variables that `mpijob/image/ringpull-entrypoint` reads, before any process of ours is there.
const OF_THE_IMAGE: [&str; 1] = ["RINGPULL_HOSTFILE"];

/// The names of our own variables without `RINGPULL_`, in lower case.
fn ours() -> impl Iterator<Item = String> {
    let listed = variables().chain(OF_THE_IMAGE);
    listed.filter_map(|name| Some(name.strip_prefix("RINGPULL_")?.to_lowercase()))
}

/// The variable's value, `None` if unset or empty.
pub fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns true if this process's environment has the variable with this value, so that its children need
/// only its name.
pub fn is_in_environment(name: &str, value: &str) -> bool {
    std::env::var_os(name).is_some_and(|own| own == value)
}

pub(super) fn bad(name: &str, expected: &str) -> Error {
    let value = text(name).unwrap_or_default();
    let remedy = if value.is_empty() {
        "set it, as `ringpull launch` and the operators of Kubernetes do, in every process of the job"
    } else if name.starts_with("DMLC_") {
        "correct it, or start the job with `ringpull launch`, which sets it"
    } else {
        "correct it, or unset it for the default"
    };
    wrong(name, &value, expected, remedy.to_owned())
}

pub(super) fn wrong(variable: &str, value: &str, expected: &str, remedy: String) -> Error {
    Error::Environment { variable: variable.to_owned(), value: value.to_owned(), expected: expected.to_owned(), remedy }
}

/// Returns the error for a variable with a value that is not among `names`.
pub(super) fn not_one_of(variable: &str, given: &str, names: &[&str]) -> Error {
    let remedy = match closest(given, names.iter().copied()) {
        Some(name) => format!("did you mean {name}?"),
        None => "correct it, or unset it for the default".to_owned(),
    };
    wrong(variable, given, &format!("one of {}", names.join(", ")), remedy)
}

/// Returns the value of a variable that means yes or no.
pub(super) fn switch(variable: &str, given: &str) -> Result<bool> {
    match given.to_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => {
            let remedy = "correct it, or unset it for the default".to_owned();
            Err(wrong(variable, given, "1 or 0 (or true, false, yes, no, on, off)", remedy))
        }
    }
}

/// Returns the value of a variable of `auto`, 0 and 1; `None` is `auto`.
pub(super) fn switch_or_auto(name: &str, default: Option<bool>) -> Result<Option<bool>> {
    match text(name).as_deref() {
        None => Ok(default),
        Some("auto") => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        Some(given) => Err(not_one_of(name, given, &["auto", "0", "1"])),
    }
}

pub(super) fn parsed<T: FromStr>(name: &str, expected: &str, default: T) -> Result<T> {
    text(name).map_or(Ok(default), |value| value.parse().map_err(|_| bad(name, expected)))
}

pub(super) fn required<T: FromStr>(name: &str, expected: &str) -> Result<T> {
    text(name).and_then(|value| value.parse().ok()).ok_or_else(|| bad(name, expected))
}

pub(super) fn seconds(name: &str, default: Duration) -> Result<Duration> {
    let expected = "a number of seconds, 0.1 to 1e9";
    let seconds = parsed(name, expected, default.as_secs_f64())?;
    limit_of(seconds).ok_or_else(|| bad(name, expected))
}

pub(super) fn seconds_or_never(name: &str, default: Duration) -> Result<Duration> {
    let expected = "a number of seconds, 0.1 to 1e9; 0: never";
    let seconds = parsed(name, expected, default.as_secs_f64())?;
    limit_or_never(seconds).ok_or_else(|| bad(name, expected))
}

fn limit_or_never(seconds: f64) -> Option<Duration> {
    if seconds == 0.0 { Some(NEVER) } else { limit_of(seconds) }
}

/// Converts seconds to a limit, if a healthy process on a busy host can keep it and it can be added to any
/// time.
fn limit_of(seconds: f64) -> Option<Duration> {
    const LIMITS: RangeInclusive<Duration> = Duration::from_millis(100)..=NEVER;
    Duration::try_from_secs_f64(seconds).ok().filter(|limit| LIMITS.contains(limit))
}

/// Returns a line for each environment variable that is nearly one of ringpull's, and so has no effect.
pub fn misspelt_variables() -> Vec<String> {
    std::env::vars_os().filter_map(|(name, _)| misspelt(name.to_str()?)).collect()
}

fn misspelt(name: &str) -> Option<String> {
    let (ours, rest) = name.split_once('_')?;
    let (ours, rest) = (closest(ours, ["ringpull"])?.to_uppercase(), rest.to_lowercase());
    let names: Vec<String> = self::ours().collect();
    let meant = format!("{ours}_{}", closest(&rest, names.iter().map(String::as_str))?.to_uppercase());
    (meant != name).then(|| {
        format!("warning: ringpull has no variable {name}, so it has no effect\n  hint: did you mean {meant}?")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SHARED_MEMORY;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn the_error_of_a_wrong_name_has_its_variable_the_names_and_the_closest() {
        let error = |given| not_one_of("RINGPULL_ALGORITHM", given, &["ring", "direct"]).to_string();
        for part in ["RINGPULL_ALGORITHM=\"rign\"", "one of ring, direct", "hint: did you mean ring?"] {
            assert!(error("rign").contains(part), "{}", error("rign"));
        }
        assert!(error("horovod").contains("direct\n  hint: correct it"), "{}", error("horovod"));
    }

    #[test]
    fn a_switch_takes_the_usual_words_and_no_other() {
        for (given, on) in [("1", true), ("True", true), ("yes", true), ("0", false), ("off", false), ("FALSE", false)]
        {
            assert_eq!(switch(SHARED_MEMORY, given), Ok(on), "{given}");
        }
        for given in ["2", "nope", "-"] {
            let error = switch(SHARED_MEMORY, given).unwrap_err().to_string();
            assert!(error.contains(&format!("{SHARED_MEMORY}=\"{given}\"")) && error.contains("1 or 0"), "{error}");
        }
    }

    #[test]
    fn a_misspelt_variable_is_found_among_others() {
        for (given, meant) in [
            ("RINGPULL_TIMOUT", "RINGPULL_TIMEOUT"),
            ("RINGPUL_TIMEOUT", "RINGPULL_TIMEOUT"),
            ("ringpull_algorithm", "RINGPULL_ALGORITHM"),
            ("RINGPULL_DEVICE", "RINGPULL_DEVICES"),
        ] {
            let warning = misspelt(given).unwrap();
            assert!(warning.contains(given) && warning.ends_with(&format!("did you mean {meant}?")), "{warning}");
        }
        for given in
            ["RINGPULL_TIMEOUT", "RINGPULL_TASK", "RINGPULL_WAIT", "RINGPULL_", "PATH", "DMLC_ROLE", "MY_TIMEOUT"]
        {
            assert_eq!(misspelt(given), None, "{given}");
        }
    }

    /// Returns the names of our own variables in `text` between `before` and `after`, without `RINGPULL_`.
    fn named(text: &str, before: &str, after: char) -> BTreeSet<String> {
        let between = |at: usize| text[at + before.len()..].split_once(after)?.0.strip_prefix("RINGPULL_");
        let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c == '_' || c.is_ascii_uppercase());
        text.match_indices(before).filter_map(|(at, _)| between(at)).filter(is_name).map(str::to_lowercase).collect()
    }

    /// Returns the names of variables that the sources in `folder` read, without their tests.
    fn read_in(folder: &Path) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            // The list itself reads nothing.
            if path.ends_with("tests") || path.ends_with("listed.rs") {
                continue;
            }
            if path.is_dir() {
                names.append(&mut read_in(&path));
            } else if is_source && !path.to_string_lossy().ends_with("tests.rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                names.append(&mut named(source.split("#[cfg(test)]").next().unwrap_or_default(), "\"", '"'));
            }
        }
        names
    }

    #[test]
    fn the_variables_that_are_listed_are_those_that_are_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut read: BTreeSet<String> =
            ["src", "crates", "examples"].iter().flat_map(|folder| read_in(&root.join(folder))).collect();
        let script = std::fs::read_to_string(root.join("mpijob/image/ringpull-entrypoint")).unwrap();
        for name in OF_THE_IMAGE {
            assert!(script.contains(name), "{name}");
            read.insert(name.replace("RINGPULL_", "").to_lowercase());
        }
        assert_eq!(read, ours().collect());
    }

    #[test]
    fn a_limit_is_a_time_that_can_be_waited_for() {
        assert_eq!(limit_of(0.5), Some(Duration::from_millis(500)));
        assert_eq!([0.0, -0.0, 0.5].map(limit_or_never), [Some(NEVER), Some(NEVER), limit_of(0.5)]);
        for wrong in [0.0, 0.01, -1.0, f64::NAN, f64::INFINITY, 1e10, 1e18] {
            assert_eq!(limit_of(wrong), None, "{wrong}");
        }
    }
}
