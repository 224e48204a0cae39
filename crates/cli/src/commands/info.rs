//! `ringpull info`: prints the abilities of this build and this machine, completions for a shell, and man
//! pages.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use ringpull_base::{Error, Result};

use super::{Cli, Format, SUCCESS, Status, print};
use crate::machine::Machine;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull info
  ringpull info --format json | jq .mpirun
  ringpull info --completions bash > ~/.local/share/bash-completion/completions/ringpull
  ringpull info --man ~/.local/share/man/man1

pip installs the completions of bash, zsh and fish, and the man pages, in share/ of the environment.")]
pub(crate) struct InfoArgs {
    /// Print the completions of a shell instead.
    #[arg(long, value_enum, value_name = "SHELL")]
    completions: Option<Shell>,
    /// Write man pages to this folder instead: one for the command and one for each of its subcommands.
    #[arg(long, value_name = "FOLDER", conflicts_with = "completions")]
    man: Option<PathBuf>,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Prints the survey of this machine.
pub(crate) fn run(args: &InfoArgs) -> Result<Status> {
    if let Some(shell) = args.completions {
        return Ok(completions(shell));
    }
    if let Some(folder) = &args.man {
        return man(folder);
    }
    let machine = Machine::survey();
    let line = |(name, value): (&str, String)| format!("{name:<16} {value}\n");
    print(args.format, &machine, || machine.lines().into_iter().map(line).collect())?;
    Ok(SUCCESS)
}

/// Prints the completions of a shell.
fn completions(shell: Shell) -> Status {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ringpull", &mut text);
    // If the reader has closed the pipe, nobody reads an error.
    drop(std::io::stdout().write_all(&text));
    SUCCESS
}

/// Writes a man page for the command and for each of its subcommands; the folder is created.
fn man(folder: &Path) -> Result<Status> {
    let failed = |cause: std::io::Error| Error::io("write man pages to", folder.display(), &cause);
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?;
    Ok(SUCCESS)
}
