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

/// Options of `mpirun` and `horovodrun` without a value, without their dashes.
const FLAGS: &str = "allow-run-as-root oversubscribe nooversubscribe report-bindings tag-output timestamp-output \
    display-map display-allocation verbose v q quiet nolocal pernode bycore byslot bynode use-hwthread-cpus \
    leave-session-attached debug-daemons enable-recovery disable-recovery continuous do-not-launch gloo mpi tcp \
    disable-cache genvall genvnone envall envnone prepend-rank l print-all-exitcodes print-rank-map version V h \
    help merge-stderr-to-stdout display-devel-map noprefix bind-to-core bind-to-socket bind-to-none autotune \
    no-stall-check hierarchical-allreduce hierarchical-allgather";

/// Options with two values.
const PAIRS: &str = "mca gmca omca prtemca pmixmca genv env";

/// Returns the options of the first `mpirun` that starts a program, with their values: its words up to the
/// program, and those after a `:` up to the next one. Without a program, as in `mpirun --version`, they are
/// those of the first `mpirun`. Returns `None` if the command runs no `mpirun`.
pub(super) fn mpirun_options(words: &[String]) -> Option<Vec<&str>> {
    let runs = words.iter().enumerate().filter(|(_, word)| is_mpirun(word)).map(|(at, _)| options_of(&words[at + 1..]));
    let mut runs: Vec<(Vec<&str>, bool)> = runs.collect();
    let at = runs.iter().position(|(_, has_program)| *has_program).unwrap_or(0);
    (at < runs.len()).then(|| runs.swap_remove(at).0)
}

/// Returns the options of an `mpirun` that these words follow, and true if they name a program.
fn options_of(words: &[String]) -> (Vec<&str>, bool) {
    let mut all = words.iter().map(String::as_str).take_while(|word| *word != ";").peekable();
    let (mut own, mut in_program, mut has_program) = (Vec::new(), false, false);
    while let Some(word) = all.next() {
        // A shell may put options in the place of a variable.
        in_program = word != ":" && (in_program || !word.starts_with(['-', '$']));
        has_program |= in_program;
        if in_program {
            continue;
        }
        own.push(word);
        let is_in = |list: &str| list.split_whitespace().any(|name| name == word.trim_start_matches('-'));
        let is_complete = !word.starts_with('-') || word.starts_with("--") && word.contains('=') || is_in(FLAGS);
        for _ in 0..if is_complete { 0 } else { 1 + usize::from(is_in(PAIRS)) } {
            own.extend(all.next_if(|value| !value.starts_with('-')));
        }
    }
    (own, has_program)
}

/// The words of a shell's script, without quotes and comments, and with `;` between its commands.
pub(super) fn script_words(script: &str) -> Vec<String> {
    let (mut words, mut word, mut rest) = (Vec::new(), String::new(), script);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let mut ends = rest.match_indices(c).map(|(at, _)| at);
        match (c, ends.find(|at| c == '\'' || !rest[..*at].ends_with('\\'))) {
            ('"' | '\'', Some(end)) => {
                word.push_str(&rest[..end]);
                rest = &rest[end + 1..];
            }
            ('#', _) if word.is_empty() => rest = rest.find('\n').map_or("", |end| &rest[end..]),
            ('\\', _) => {
                let mut after = rest.chars();
                word.extend(after.next().filter(|c| *c != '\n'));
                rest = after.as_str();
            }
            _ if c.is_whitespace() || ";&|".contains(c) => {
                words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
                words.extend((c == '\n' || !c.is_whitespace()).then(|| ";".to_owned()));
            }
            _ => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// Divides a command into its words, with those of shells' scripts apart and `;` between their commands, and
/// the texts of programs, as `python3 -c` and Kubeflow pipelines have them.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_script_is_divided_as_a_shell_does() {
        for (script, expected) in [
            ("a 'b c' \"d 'e'\" f\"g\"", &["a", "b c", "d 'e'", "fg"][..]),
            ("a \\\n  -b # mpirun -n 2, don't\nc; d && e", &["a", "-b", ";", "c", ";", "d", ";", ";", "e"]),
            ("echo don\\'t \"a \\\" b\" c", &["echo", "don't", "a \\\" b", "c"]),
            ("echo don't", &["echo", "don't"]),
            ("n=$(wc -l < f)#1", &["n=$(wc", "-l", "<", "f)#1"]),
        ] {
            assert_eq!(script_words(script), expected, "{script}");
        }
    }

    #[test]
    fn the_options_of_mpirun_end_where_its_program_begins() {
        for (command, own) in [
            ("mpirun -np 2 a -n 50", "-np 2"),
            (
                "env A=1 /opt/mpirun --np=2 --mca btl tcp,self -x A=B --tag-output ./a -x C",
                "--np=2 --mca btl tcp,self -x A=B --tag-output",
            ),
            ("mpirun -n 1 a -n 5 : -n 3 b -n 7", "-n 1 : -n 3"),
            ("mpirun $OPTIONS -np 4 a -c 1", "$OPTIONS -np 4"),
            ("mpirun -genv A B -genvall -n 2 a", "-genv A B -genvall -n 2"),
            ("mpirun -n 2 a ; mpirun -n 4 b", "-n 2"),
            ("horovodrun -np 2 --gloo -H a:1,b:1 python -v 1", "-np 2 --gloo -H a:1,b:1"),
            ("mpirun -mca", "-mca"),
            ("mpirun --version ; which mpirun ; mpirun --unknown -x A -np 8 python a", "--unknown -x A -np 8"),
            ("horovodrun --tcp -np 8 python a -np 1", "--tcp -np 8"),
        ] {
            assert_eq!(mpirun_options(&words(command)).unwrap().join(" "), own, "{command}");
        }
        assert_eq!(mpirun_options(&words("python a")), None);
    }
}
