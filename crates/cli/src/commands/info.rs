//! `ringpull info`: what this build and this machine can do.

use clap::Args;

use ringpull_base::Result;

use super::{Format, print};
use super::{SUCCESS, Status};
use crate::machine::Machine;

#[derive(Debug, Clone, Copy, Args)]
#[command(after_help = "Examples:\n  ringpull info\n  ringpull info --format json | jq .mpirun")]
pub(crate) struct InfoArgs {
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Prints the survey of this machine.
pub(crate) fn run(args: InfoArgs) -> Result<Status> {
    let machine = Machine::survey();
    let line = |(name, value): (&str, String)| format!("{name:<16} {value}\n");
    print(args.format, &machine, || machine.lines().into_iter().map(line).collect())?;
    Ok(SUCCESS)
}
