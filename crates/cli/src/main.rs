//! The `ringpull` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(ringpull_cli::commands::run())
}
