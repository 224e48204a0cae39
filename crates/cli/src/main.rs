//! The `ringpull` command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    ringpull_cli::commands::Cli::parse().run()
}
