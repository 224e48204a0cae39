//! `ringpull completions` and `ringpull man`: what a shell and `man` know of the command line.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use ringpull_base::{Error, Result};

use super::{Cli, SUCCESS, Status};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull completions bash > ~/.local/share/bash-completion/completions/ringpull
  ringpull completions fish > ~/.config/fish/completions/ringpull.fish

pip installs those of bash, zsh and fish in share/ of the environment.")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the completions of a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> Status {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ringpull", &mut text);
    // If the reader has closed the pipe, nobody reads an error.
    drop(std::io::stdout().write_all(&text));
    SUCCESS
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull man --out ~/.local/share/man/man1
  man ringpull-launch")]
pub(crate) struct ManArgs {
    /// The folder to write the pages to; it is created.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

/// Writes a man page for the command and for each of its subcommands.
pub(crate) fn man(args: &ManArgs) -> Result<Status> {
    let failed = |cause: std::io::Error| Error::io("write man pages to", args.out.display(), &cause);
    std::fs::create_dir_all(&args.out).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.out).map_err(failed)?;
    Ok(SUCCESS)
}
