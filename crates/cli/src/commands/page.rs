//! The page of the book with the help of every command, and the commands that `ringpull` alone shows.

use std::fmt::Write as _;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory as _, Parser as _};

use super::{Cli, FIRST_SCREEN};
use crate::committed;

/// The help of the command of this full name, and of those under it.
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
         What `ringpull COMMAND --help` prints. Data goes to stdout, everything else to stderr. The exit code is 0\n\
         for success, 1 for a failure and 2 for an invalid command line.\n",
    );
    describe(&mut Cli::command(), "ringpull", &mut page);
    committed::keep("docs/reference/commands.md", &page);
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
