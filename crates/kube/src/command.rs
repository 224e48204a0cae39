//! What the words of a job's command say: whether they start MPI ranks, which store they ask for, and whether
//! they are one of our examples.

/// The word of a command that is one of our training examples, whose store is `local` by default. A bare
/// `train` is ours if it is a program: the first word, or after `--`, `mpirun` or options with at most one
/// value each.
pub(super) fn example(command: &[String]) -> Option<&str> {
    let is_program = |at: usize| {
        let before = |back: usize| at.checked_sub(back).map(|at| command[at].as_str());
        let is_option = |word: Option<&str>| word.is_some_and(|word| word.starts_with('-') && word != "-m");
        at == 0 || is_option(before(1)) || is_option(before(2)) || before(1).is_some_and(is_mpirun)
    };
    let is_ours = |(at, word): (usize, &String)| match word.rsplit_once('/') {
        None => word == "train" && is_program(at),
        Some((folder, "train.py" | "logistic.py")) => folder.contains("examples/"),
        // A folder of data may have that name.
        Some((folder, name)) => name == "train" && (folder.ends_with("examples") || folder.ends_with("bin")),
    };
    command.iter().enumerate().find(|found| is_ours(*found)).map(|(_, word)| word.as_str())
}

/// Whether a word starts MPI ranks.
pub(super) fn is_mpirun(word: &str) -> bool {
    ["mpirun", "mpiexec", "orterun", "prterun", "horovodrun"].contains(&word.rsplit('/').next().unwrap_or(word))
}

/// The value of a command's `--kv-store`.
pub(super) fn store_of(command: &[String]) -> Option<&str> {
    let at = command.iter().position(|word| word == "--kv-store" || word.starts_with("--kv-store="))?;
    command[at].strip_prefix("--kv-store=").or_else(|| command.get(at + 1).map(String::as_str))
}
