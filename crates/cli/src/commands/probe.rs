//! `ringpull probe`: measures hosts and their network, and writes the cluster file that jobs use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use ringpull_allreduce::communicator::{Cluster, Communicator};
use ringpull_base::config::{ClusterSource, Config};
use ringpull_base::{AlgorithmChoice, Error, Result};

use super::{SUCCESS, Status, put, write};
use crate::launched::{Launched, Testbed};
use ringpull_harness::allreduce::connect;
use ringpull_harness::progress::Progress;
use ringpull_harness::text::{grid, several};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull probe -H hosts                                    measure the hosts of a file
  mpirun -n 8 --hostfile hosts ringpull probe                the same, as ranks of your own mpirun
  RINGPULL_CLUSTER=cluster.toml ringpull launch -n 8 -H hosts -- python train.py
  ringpull launch -n 8 --launcher lab -- ringpull probe      measure emulated hosts

A probe takes seconds, or minutes on many slow links. Run it while the hosts are idle, with one
rank on each. Correct the file where you know better: a job takes it at its word.

The user's cache on the first host keeps the measurement, too. Jobs of just these hosts go by that
if RINGPULL_CLUSTER is not set. Without either a job takes it that links carry 3.2 Gbit/s and are
alike: no job measures anything when it starts.")]
pub(crate) struct ProbeArgs {
    /// A file with the hosts to measure, or the hosts themselves: `host1,host2`. Without this option the
    /// process is a rank of an MPI job.
    #[arg(short = 'H', long, value_name = "HOSTFILE")]
    hostfile: Option<PathBuf>,
    /// The file to write; `-` prints it instead of the table.
    #[arg(long, value_name = "FILE", default_value = "cluster.toml")]
    out: PathBuf,
}

/// Measures the network. Rank 0 writes the file; a process that is not a rank writes it itself.
pub(crate) fn run(args: &ProbeArgs) -> Result<Status> {
    let measured = match &args.hostfile {
        Some(file) => Some(of_hosts(file)?),
        None => as_a_rank()?,
    };
    let Some(cluster) = measured else { return Ok(SUCCESS) };
    if args.out == Path::new("-") {
        put(&cluster.text());
        return Ok(SUCCESS);
    }
    write(&args.out, &cluster.text())?;
    put(&table(&cluster));
    let file = args.out.display();
    eprintln!("{file} is written; jobs go by it with RINGPULL_CLUSTER={file}");
    Ok(SUCCESS)
}

/// Measures the hosts of a file by a job with one rank on each host.
fn of_hosts(file: &Path) -> Result<Cluster> {
    let launched = Launched::start(Testbed::Hostfile(file.to_owned()), 0)?;
    let _progress = Progress::start(format!("measuring {}", several(launched.workers(), "host")));
    launched.probe()
}

/// Measures the network together with the other ranks. Returns the measurement on rank 0.
fn as_a_rank() -> Result<Option<Cluster>> {
    let environment = Config::from_env()?;
    let config = Config { algorithm: AlgorithmChoice::Auto, cluster: ClusterSource::None, ..environment };
    let engine = connect(&config, Some(config.segment_bytes))?;
    if engine.size() == 1 {
        return Err(Error::argument(
            "one host has no network to measure",
            "give the hosts by -H HOSTFILE, or start a rank on each: mpirun -n 8 --hostfile HOSTFILE ringpull probe",
        ));
    }
    let progress = (engine.rank() == 0).then(|| Arc::new(Progress::start("measuring")));
    let report = move |words: &str| progress.iter().for_each(|progress| progress.at(words));
    let work = move |comm: &mut Communicator, _| comm.measure_cluster(true, &report);
    let cluster = engine.collective("probe", work)?;
    Ok((engine.rank() == 0).then_some(cluster))
}

/// The hosts, a line for each, and their network.
fn table(cluster: &Cluster) -> String {
    let network = &cluster.network;
    let rate = |own: Option<f64>| format!("{} Mbit/s", own.unwrap_or(network.link_mbit));
    let row = |host: &ringpull_allreduce::communicator::ClusterHost| {
        let rack = host.rack.clone().unwrap_or_else(|| "-".to_owned());
        vec![host.name.clone(), rack, rate(host.sends_mbit), rate(host.receives_mbit)]
    };
    let rows = grid(["host", "rack", "sends", "receives"], cluster.hosts.iter().map(row).collect(), 2);
    let links = if cluster.hosts.iter().any(|host| host.sends_mbit.is_some()) { "differ" } else { "are alike" };
    let burst = match network.burst_mbit {
        0.0 => String::new(),
        rate => format!(", after a rest {rate} Mbit/s for {} kB", network.burst_kb),
    };
    format!(
        "{rows}\n\nthe links {links}: {} Mbit/s{burst}; a message takes {} us on its way, and a rank {} us\n",
        network.link_mbit, network.latency_us, network.message_us
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_host_and_the_rates_of_its_link() {
        let text = "[network]\nlink_mbit = 200\nlatency_us = 50\nburst_mbit = 8000\nburst_kb = 131\n\
                    [[host]]\nname = \"h1\"\nrack = \"a\"\n[[host]]\nname = \"h2\"\nsends_mbit = 100\n";
        let table = table(&Cluster::parse(text).unwrap());
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["h1", "a", "200", "Mbit/s", "200", "Mbit/s"], "{table}");
        assert_eq!(lines[2], ["h2", "-", "100", "Mbit/s", "200", "Mbit/s"], "{table}");
        assert!(table.contains("links differ: 200 Mbit/s, after a rest 8000 Mbit/s for 131 kB; "), "{table}");
    }
}
