//! `ringpull lab`: emulated hosts.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::{Args, Subcommand};

use ringpull_base::{Error, Result};

use super::{SUCCESS, Status};
use ringpull_harness::link::LinkRate;
use ringpull_harness::shape::{HostRate, RackShape, Shape, own_words};
use ringpull_lab::hosts::{self as lab, Lab};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull lab up 8 200mbit
  ringpull lab up 8 1gbit --uplink 250mbit
  ringpull lab up 8 1gbit --rate h3=500mbit
  ringpull lab exec h1 ping -c 3 h2
  ringpull lab exec h3 hostname
  ringpull lab down

The hosts are network namespaces h1..hN on one bridge, with the addresses 10.55.0.1 to 10.55.0.N.
Every link is limited to RATE in both directions, except those of --rate. Needs Linux and root.")]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    action: LabAction,
}

#[derive(Debug, Subcommand)]
enum LabAction {
    /// Create the hosts; replace a lab that is different.
    ///
    /// While the hosts are up, `kernel.sched_autogroup_enabled` is off, so that this machine's processors are
    /// shared by rank and not by session.
    #[command(after_help = "Examples:
  ringpull lab up 8 200mbit                        eight hosts with links of 200 Mbit/s
  ringpull lab up 8 1gbit --uplink 250mbit         two racks of four
  ringpull lab up 8 1gbit --uplink 250mbit --alternate
                                                   neighbours in different racks
  ringpull lab up 8 1gbit --rate h3=500mbit        h3 has a slower link
  ringpull lab up 8 1gbit --rate h3=500mbit/1gbit  h3 sends at 500 Mbit/s and receives at 1 Gbit/s
  ringpull lab up 4 none                           links without a limit")]
    Up {
        /// The number of hosts, 1 to 100.
        hosts: usize,
        /// The rate of every link, such as 200mbit or 1gbit; none for no limit.
        rate: LinkRate,
        /// A host whose link has a rate of its own, such as h3=500mbit, or h3=SENDS/RECEIVES. May be
        /// repeated.
        #[arg(long = "rate", value_name = "HOST=RATE", value_delimiter = ',')]
        own: Vec<HostRate>,
        #[command(flatten)]
        racks: RackArgs,
    },
    /// Change the rates of hosts' links, also while a job runs on the hosts.
    #[command(after_help = "Examples:
  ringpull lab rate h3=100mbit                     from now on h3's link is slow
  ringpull lab rate h3=100mbit/200mbit,h4=50mbit   h3 sends at 100 Mbit/s and receives at 200")]
    Rate {
        /// The hosts and their rates, such as h3=100mbit, or h3=SENDS/RECEIVES.
        #[arg(required = true, value_name = "HOST=RATE", value_delimiter = ',')]
        own: Vec<HostRate>,
    },
    /// Remove the hosts and everything that runs on them.
    Down,
    /// Run a command on a host; its exit code is the command's.
    Exec {
        /// The host, such as h3.
        host: String,
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
}

/// The racks of emulated hosts.
#[derive(Debug, Args)]
pub(crate) struct RackArgs {
    /// Divide the hosts into two racks, each with its own bridge, and join them by one link of this rate.
    #[arg(long, value_name = "RATE")]
    uplink: Option<LinkRate>,
    /// Assign hosts, and so ranks, to the two racks in turn. Without this option the first half of the hosts
    /// is in the first rack.
    #[arg(long, requires = "uplink")]
    alternate: bool,
}

impl RackArgs {
    /// The racks, if any.
    pub(crate) fn racks(&self) -> Option<RackShape> {
        self.uplink.map(|uplink| RackShape { uplink, alternate: self.alternate })
    }
}

/// Creates, removes or enters emulated hosts.
pub(crate) fn run(args: LabArgs) -> Result<Status> {
    match args.action {
        LabAction::Up { hosts, rate, own, racks } => {
            let (racks, own_words) = (racks.racks(), own_words(&own));
            Lab::up(Shape { hosts, rate, own, racks })?.leave_up();
            let racks = racks.map_or(String::new(), |racks| format!(" {racks}"));
            eprintln!(
                "h1 to h{hosts} are up with links of {rate}{own_words}{racks}; remove them with `ringpull lab down`"
            );
        }
        LabAction::Rate { own } => lab::change_rates(&own)?,
        LabAction::Down => Lab::remove()?,
        LabAction::Exec { host, command } => {
            let words = lab::entry(lab::find_host(&host)?);
            let cause = Command::new(&words[0]).args(&words[1..]).args(&command).exec();
            return Err(Error::io("run", &words[0], &cause));
        }
    }
    Ok(SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::commands::{Cli, Command};

    #[test]
    fn a_lab_has_the_hosts_links_and_racks_of_its_options() {
        let line = "ringpull lab up 8 1gbit --rate h3=500mbit,h4=1gbit/100mbit --uplink 250mbit --alternate";
        let Command::Lab(LabArgs { action: LabAction::Up { hosts, rate, own, racks } }) =
            Cli::try_parse_from(line.split(' ')).unwrap().command
        else {
            panic!("{line}")
        };
        assert_eq!((hosts, rate.to_string()), (8, "1gbit".to_owned()));
        assert_eq!(own_words(&own), " with h3=500mbit, h4=1gbit/100mbit");
        assert_eq!(racks.racks().unwrap().to_string(), "in two racks, in turn, joined by one link of 250mbit");
    }
}
