//! `ringpull info`: what this build and this machine can do.

use std::process::ExitCode;

use clap::Args;

use ringpull_base::{Error, Result};

use super::Format;
use crate::machine::Machine;

/// The arguments of `ringpull info`.
#[derive(Debug, Clone, Copy, Args)]
#[command(after_help = "Examples:\n  ringpull info\n  ringpull info --format json | jq .mpirun")]
pub struct InfoArgs {
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Prints the survey of this machine.
pub fn run(args: InfoArgs) -> Result<ExitCode> {
    let machine = Machine::survey();
    match args.format {
        Format::Json => {
            let text = serde_json::to_string_pretty(&machine)
                .map_err(|cause| Error::io("write", "stdout", &std::io::Error::other(cause)))?;
            println!("{text}");
        }
        Format::Table => {
            for (name, value) in machine.lines() {
                println!("{name:<16} {value}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
