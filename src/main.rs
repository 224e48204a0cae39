//! The `ringpull` command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    ringpull::cli::Cli::parse().run()
}
