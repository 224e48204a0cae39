//! Tests the book's page with the help of every command, the commands that `ringpull` without arguments
//! shows, and the commands on pages.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::error::ErrorKind;
use clap::{Args as _, Command, CommandFactory as _, Parser as _};

use super::launch::LaunchArgs;
use super::{Cli, FIRST_SCREEN, HELP};
use crate::committed;
use crate::launch::horovodrun;

/// Adds the help of the command `name` and of its subcommands to the page.
fn describe(command: &mut Command, name: &str, page: &mut String) {
    *command = std::mem::take(command).term_width(100).bin_name(name).disable_help_subcommand(true);
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    write!(page, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n")).unwrap();
    for sub in command.get_subcommands_mut().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        let name = format!("{name} {}", sub.get_name());
        describe(sub, &name, page);
    }
}

#[test]
fn the_page_of_commands_has_the_help_of_each() {
    let mut page = String::from(
        "# Commands\n\n<!-- Made by `RENEW=1 cargo test -p ringpull-cli --lib page_of_commands`. -->\n\n\
         This is the output of `ringpull COMMAND --help`. Data goes to stdout, everything else to stderr. The exit\n\
         code is 0 for success, 1 for a failure and 2 for an invalid command line.\n",
    );
    describe(&mut Cli::command(), "ringpull", &mut page);
    committed::keep("docs/reference/commands.md", &page);
}

#[test]
fn the_help_has_every_command_in_its_group_and_fits_a_screen() {
    let command = Cli::command();
    let shown: Vec<_> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    assert!(shown.len() <= 12, "{} commands", shown.len());
    let listed: Vec<&str> = HELP.lines().filter(|line| line.starts_with("  ")).collect();
    let expected: Vec<String> =
        shown.iter().map(|sub| format!("  {:<9} {}", sub.get_name(), sub.get_about().unwrap())).collect();
    assert_eq!(listed, expected);
    assert!(Cli::command().render_help().to_string().lines().count() <= 40);
}

/// The commands on a page: the text behind a prompt, or between backquotes in a table or a sentence.
fn commands_of(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let of_lines = text.lines().filter(|line| line.starts_with("$ ") || line.starts_with("    "));
    let of_words = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let parts = of_lines.chain(of_words).flat_map(|line| line.split(&[';', '|', '&', '(', ')'][..]));
    let own = parts.flat_map(|part| {
        // The command that `launch` or `mpirun` starts counts too.
        let starts: Vec<usize> = part.match_indices("ringpull ").map(|(at, _)| at).collect();
        starts
            .into_iter()
            .filter(|at| *at == 0 || part[..*at].ends_with(' ') && !part[..*at].ends_with("-p "))
            .map(|at| part[at..].to_owned())
    });
    own.map(|command| command.split(" #").next().unwrap_or_default().trim().to_owned()).collect()
}

#[test]
fn every_command_of_the_pages_is_valid() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["", "docs", "docs/how-to", "docs/decisions", "benches", "benches/results/h200", "mpijob", "tests"];
    let pages = folders.iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
    let pages = pages.map(|entry| entry.unwrap().path());
    let (mut number, mut wrong) = (0, Vec::new());
    for page in pages.filter(|page| page.extension().is_some_and(|it| it == "md") && !page.ends_with("CHANGELOG.md")) {
        for command in commands_of(&std::fs::read_to_string(&page).unwrap()) {
            let words: Vec<&str> = command.split_whitespace().collect();
            // The word is another program's option, or part of a shell's variable.
            let is_other = words.get(1).is_none_or(|word| !word.chars().all(|c| c.is_ascii_lowercase()));
            if is_other || words.iter().any(|word| word.starts_with('$')) {
                continue;
            }
            number += 1;
            // Values may be missing, or be placeholders for the reader.
            if let Err(error) = Cli::try_parse_from(&words)
                && matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand)
            {
                wrong.push(format!("{}: {command}: {}", page.display(), error.to_string().lines().next().unwrap()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(number > 100, "only {number} commands were found");
}

#[test]
fn every_example_of_the_help_is_valid() {
    fn examples(command: &Command, found: &mut Vec<String>) {
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        // The meaning of an example, or a file, follows the example.
        let lines = after.lines().filter_map(|line| line.strip_prefix("  ")?.split("  ").next()?.split(" > ").next());
        found.extend(lines.flat_map(|line| commands_of(&format!("$ {line}"))));
        command.get_subcommands().for_each(|sub| examples(sub, found));
    }
    let mut found = Vec::new();
    examples(&Cli::command(), &mut found);
    assert!(found.len() > 80, "only {} examples were found", found.len());
    let launch = LaunchArgs::augment_args(Command::new("launch"));
    let mut wrong = Vec::new();
    for example in found.iter().filter(|example| !example.contains('\'')) {
        let mut words: Vec<OsString> = example.split_whitespace().map(OsString::from).collect();
        if words[1] == "launch" {
            let (rest, _) = horovodrun::translated(words.split_off(2), &launch).unwrap();
            words.extend(rest);
        }
        // Files are read while the options are parsed.
        let error = Cli::try_parse_from(words).err().filter(|error| !error.to_string().contains("cannot be read"));
        wrong.extend(error.map(|error| format!("{example}: {error}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_of_the_first_screen_is_valid() {
    let shown = FIRST_SCREEN.lines().filter_map(|line| line.strip_prefix("  ringpull "));
    let commands: Vec<&str> = shown.filter_map(|line| line.split("   ").next()).collect();
    assert_eq!(commands.len(), 6, "{commands:?}");
    for command in commands {
        let words = std::iter::once("ringpull").chain(command.split_whitespace());
        if let Err(error) = Cli::try_parse_from(words) {
            assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{command}: {error}");
        }
    }
}

/// The texts of tests: files of tests, the part of other files behind `#[cfg(test)]`, and Python's tests.
fn tests() -> Vec<String> {
    fn collect(path: &std::path::Path, is_of_tests: bool, found: &mut Vec<String>) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_of_tests = is_of_tests || name.trim_end_matches(".rs").ends_with("tests");
        if path.is_dir() && !path.is_symlink() && name != "target" {
            std::fs::read_dir(path).unwrap().for_each(|entry| collect(&entry.unwrap().path(), is_of_tests, found));
        } else if matches!(path.extension().and_then(|it| it.to_str()), Some("rs" | "py")) {
            let text = std::fs::read_to_string(path).unwrap();
            let behind = || text.split_once("#[cfg(test)]").map_or("", |(_, tests)| tests);
            found.push(if is_of_tests { text.clone() } else { behind().to_owned() });
        }
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    ["tests", "src", "crates", "examples", "python/tests"]
        .iter()
        .for_each(|folder| collect(&root.join(folder), false, &mut found));
    found
}

#[test]
fn every_option_is_set_by_a_test() {
    fn check(command: &Command, name: &str, tests: &[String], unset: &mut Vec<String>) {
        for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
            let long = option.get_long_and_visible_aliases().unwrap_or_default();
            let long = long.iter().map(|long| format!("--{long}"));
            let short = option.get_short().map(|short| format!("-{short}"));
            let words: Vec<String> = long.chain(short).collect();
            let is_end = |rest: &str| !rest.starts_with(|c: char| c == '-' || c.is_ascii_alphanumeric());
            let is_set = |text: &String| {
                words.iter().any(|word| text.match_indices(word).any(|(at, _)| is_end(&text[at + word.len()..])))
            };
            if !words.is_empty() && !tests.iter().any(is_set) {
                unset.push(format!("{name} {}", words[0]));
            }
        }
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            check(sub, &format!("{name} {}", sub.get_name()), tests, unset);
        }
    }
    let mut unset = Vec::new();
    check(&Cli::command(), "ringpull", &tests(), &mut unset);
    assert!(unset.is_empty(), "no test sets {}", unset.join(", "));
}

#[test]
fn every_variable_is_set_by_a_test() {
    /// `ringpull launch` and `differ` set these variables for their processes. The effect on the processes is
    /// tested.
    const OF_THE_LAUNCHER: [&str; 3] = ["RINGPULL_MEETING", "RINGPULL_MIN_WORKERS", "RINGPULL_RECORD_VALUES"];
    let listed = include_str!("../../../base/src/config/listed.rs").split('"').nth(1).unwrap();
    let names: Vec<&str> =
        listed.split(|c: char| c != '_' && !c.is_ascii_uppercase()).filter(|it| !it.is_empty()).collect();
    assert!(names.len() > 40, "{names:?}");
    let tests = tests();
    let is_set = |name: &&&str| OF_THE_LAUNCHER.contains(*name) || tests.iter().any(|text| text.contains(**name));
    let unset: Vec<_> = names.iter().filter(|name| !is_set(name)).collect();
    assert!(unset.is_empty(), "no test sets {unset:?}");
}
