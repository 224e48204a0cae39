//! What a shell and `man` know of the command line.

use std::io::Write as _;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use ringpull_base::{Error, Result};

use super::{Cli, SUCCESS, Status};

/// Prints the completions of a shell.
pub(super) fn completions(shell: Shell) -> Status {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ringpull", &mut text);
    // If the reader has closed the pipe, nobody reads an error.
    drop(std::io::stdout().write_all(&text));
    SUCCESS
}

/// Writes a man page for the command and for each of its subcommands; the folder is created.
pub(super) fn man(folder: &Path) -> Result<Status> {
    let failed = |cause: std::io::Error| Error::io("write man pages to", folder.display(), &cause);
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?;
    Ok(SUCCESS)
}
