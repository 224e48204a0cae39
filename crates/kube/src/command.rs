//! Reads the words of a job's command: the program that they start, the store that they request, and the
//! training example that they run.

/// Returns the word of a command that is one of our training examples. The examples use `local` by default. A
/// bare `train` is our example if it is a program: the first word, or a word after `--`, after `mpirun`, or
/// after options with at most one value each.
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

/// Returns true if a word starts MPI ranks.
pub(super) fn is_mpirun(word: &str) -> bool {
    ["mpirun", "mpiexec", "orterun", "prterun", "horovodrun"].contains(&word.rsplit('/').next().unwrap_or(word))
}

/// Divides a command into its words and the texts of programs, as in `python3 -c` and in Kubeflow pipelines.
/// A shell's script is divided into its words too, with `;` between its commands.
pub(super) fn words_and_programs(command: &[String]) -> (Vec<String>, Vec<&str>) {
    let (mut words, mut programs) = (Vec::new(), Vec::new());
    for (at, word) in command.iter().enumerate() {
        let before = |back: usize| at.checked_sub(back).map_or("", |at| command[at].as_str());
        let is_given_as_text = before(1).starts_with('-') && before(1).ends_with('c');
        let of_python = [before(2), before(3)].iter().any(|word| word.contains("python"));
        if is_given_as_text && of_python || word.contains('\n') && !is_given_as_text {
            programs.push(word.as_str());
        } else {
            for (number, part) in word.split(|c: char| ";&|()`\n".contains(c)).enumerate() {
                words.extend((number > 0).then(|| ";".to_owned()));
                let ends_a_word = |c: char| c.is_whitespace() || "<>\"'".contains(c);
                words.extend(part.split(ends_a_word).filter(|word| !word.is_empty()).map(str::to_owned));
            }
        }
    }
    (words, programs)
}

/// Returns the words that request a kind of store, and the kind. They are an option or a variable with one of
/// the names that MXNet's programs use.
pub(super) fn store_of(command: &[String]) -> Option<(String, &str)> {
    command.iter().enumerate().find_map(|(at, word)| {
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        if !is_store(name) {
            return None;
        }
        if let Some(value) = value {
            return Some((word.clone(), value));
        }
        let next = command.get(at + 1).filter(|_| name.starts_with('-'))?;
        Some((format!("{word} {next}"), next.as_str()))
    })
}

/// Returns true if an option or a variable of this name holds a kind of store, such as `--kvstore` or
/// `KV_STORE`.
pub(super) fn is_store(name: &str) -> bool {
    let letters: String = name.chars().filter(|c| !"-_".contains(*c)).collect::<String>().to_lowercase();
    letters.ends_with("kvstore") || letters.ends_with("kvstoretype")
}
