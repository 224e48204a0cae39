//! A folder in which each process of a job has two files of its own: `rank 0.out` and `rank 0.err`.

use std::ffi::OsString;
use std::fmt::{Display, Formatter, Write as _};
use std::path::{Path, PathBuf};

/// A shell script that becomes the command that follows the folder. The process id stays the same, so a
/// launcher's signals reach the command. Open MPI, MPICH's Hydra and Slurm give a process its rank, and
/// `ringpull launch` gives it its role. The script is one line without a `'`, so that every launcher and
/// every shell passes it on unchanged.
const REDIRECT: &str = concat!(
    r#"case ${DMLC_ROLE:-rank} in rank) name="rank ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}}" ;; "#,
    r#"scheduler) name=scheduler ;; server) name="server $DMLC_SERVER_ID" ;; "#,
    r#"*) name="worker ${DMLC_WORKER_ID:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" ;; esac; "#,
    r#"exec "$@" >"$0/$name.out" 2>"$0/$name.err""#
);

/// The output of one process. While it runs, the last line of each stream may be unfinished.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// Output of the process on stdout.
    pub out: String,
    /// Output of the process on stderr.
    pub err: String,
}

impl Written {
    /// Returns the lines of stdout, then the lines of stderr.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.out.lines().chain(self.err.lines())
    }

    /// Returns true if the output contains `words`.
    pub fn contains(&self, words: &str) -> bool {
        self.out.contains(words) || self.err.contains(words)
    }

    /// Returns how often the output contains `words`.
    pub fn count(&self, words: &str) -> usize {
        self.out.matches(words).count() + self.err.matches(words).count()
    }

    /// Returns the text after `mark` on the first line that contains `mark`.
    pub fn after(&self, mark: &str) -> Option<&str> {
        self.lines().find_map(|line| Some(line.split_once(mark)?.1))
    }
}

impl Display for Written {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.lines().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Returns the command that a launcher starts instead of `command`, so that each process writes to its files
/// in `folder`. `folder` is the path that the processes see.
pub fn redirected<W: Into<OsString>>(folder: &Path, command: impl IntoIterator<Item = W>) -> Vec<OsString> {
    let shell = ["/bin/sh".into(), "-c".into(), REDIRECT.into(), folder.as_os_str().to_owned()];
    shell.into_iter().chain(command.into_iter().map(Into::into)).collect()
}

/// Returns the files of a process's output.
pub(crate) fn of(folder: &Path, name: &str) -> [PathBuf; 2] {
    ["out", "err"].map(|stream| folder.join(format!("{name}.{stream}")))
}

/// Reads the output of the process of this name so far. The output is empty if the process never ran.
pub fn written(folder: &Path, name: &str) -> Written {
    let [out, err] = of(folder, name).map(|path| match std::fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(cause) => panic!("{}: {cause}", path.display()),
    });
    Written { out, err }
}

/// Returns the names of all processes that have run, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter_map(|file| file.strip_suffix(".out").map(str::to_owned)).collect();
    names.sort();
    names
}

/// Returns the output of all processes, with the process's name before each line. It is for people, not for
/// searches.
pub fn tagged(folder: &Path) -> String {
    let mut text = String::new();
    for name in names(folder) {
        let Written { out, err } = written(folder, &name);
        out.lines().for_each(|line| writeln!(text, "{name}: {line}").unwrap());
        err.lines().for_each(|line| writeln!(text, "{name} (stderr): {line}").unwrap());
    }
    text
}
