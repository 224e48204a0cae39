//! `ringpull info`: what this build and this machine can do.

use std::process::ExitCode;

use clap::Args;

use ringpull_base::Result;

use super::{Format, to_json};
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
        Format::Json => println!("{}", to_json(&machine)?),
        Format::Table => {
            for (name, value) in machine.lines() {
                println!("{name:<16} {value}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
