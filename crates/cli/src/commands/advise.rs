//! `ringpull advise`: predicts which mode is worth its hosts, before you have the hosts.

use std::path::PathBuf;

use clap::Args;

use ringpull_base::{Error, Result};

use super::{Format, SUCCESS, Status, print, write};
use ringpull_harness::charts::picture;
use ringpull_harness::layers;
use ringpull_harness::link::LinkRate;
use ringpull_harness::progress::Progress;
use ringpull_harness::shape::{HostRate, own_words};
use ringpull_harness::size::format_size;
use ringpull_harness::text::{parse_seconds, several};
use ringpull_harness::variant::Variant;
use ringpull_lab::advise::predict::Setting;
use ringpull_lab::advise::{Advice, Choice, assumptions, rows, table, verdict};

/// With more hosts a prediction takes minutes.
const MOST_HOSTS: usize = 10_000;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ringpull advise --model vgg16 --compute 2.184 --link 10gbit --latency 50us\n  \
    ringpull advise --model bert-large --compute 0.35 --link 25gbit --hosts 8,64,512 --out advice.svg\n  \
    ringpull advise --model model.txt --compute 0.2 --link 1gbit --hosts 16 --modes dist_sync_mpi,dist_sync:4 --format json\n  \
    ringpull advise --model vgg16 --compute 0.5 --link 10gbit --slow-host 3=5gbit --hosts 4,8\n\n\
    --compute is what one host alone takes for a step: measure it with your framework. --latency is half of\n\
    what `ping` says. Modes are those of `ringpull compare`, without dist_async and topk.")]
pub(crate) struct AdviseArgs {
    /// vgg16, resnet50 or bert-large, or a file of `name shape` or `name shape FLOPs` lines.
    #[arg(long)]
    model: String,
    /// Scale every tensor to this fraction of its elements.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Seconds of computing in a step on one host.
    #[arg(long, value_name = "SECONDS")]
    compute: f64,
    /// The rate of each host's link, such as 10gbit.
    #[arg(long)]
    link: LinkRate,
    /// A worker's host, counted from 1, whose link has a rate of its own: 3=5gbit, or 3=SENDS/RECEIVES. May be
    /// repeated.
    #[arg(long, value_name = "HOST=RATE", value_delimiter = ',')]
    slow_host: Vec<HostRate>,
    /// The time of a message from one host to another, such as 50us.
    #[arg(long, default_value = "50us", value_parser = parse_seconds)]
    latency: f64,
    /// Numbers of workers' hosts, 1 to 10000.
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256,512,1024")]
    hosts: Vec<usize>,
    /// Modes, separated by commas [default: allreduce, plain and compressed, and 1, n/2 and n servers].
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Variant>,
    /// Write a chart of the efficiency to this file, as SVG.
    #[arg(long, value_name = "FILE.svg")]
    out: Option<PathBuf>,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Predicts steps, and prints them.
pub(crate) fn run(args: &AdviseArgs) -> Result<Status> {
    let (mut hosts, choices) = (args.hosts.clone(), choices(args));
    hosts.sort_unstable();
    hosts.dedup();
    let setting = setting(args, &hosts)?;
    let link = format!("{}{}", args.link, own_words(&args.slow_host));
    let progress = Progress::start("simulating");
    let rows = rows(&setting, (&choices, !args.modes.is_empty()), &hosts)?;
    drop(progress);
    let keys = several(setting.network.keys.len(), "tensor");
    let mut advice = Advice {
        model: format!("{}, {keys}, {}", args.model, format_size(setting.bytes())),
        compute_s: setting.compute_s,
        link: link.clone(),
        latency_s: setting.latency_s,
        assumptions: assumptions(&setting, &link, &rows),
        rows,
        verdict: Vec::new(),
    };
    advice.verdict = verdict::sentences(&advice);
    if let Some(file) = &args.out {
        let subtitle = table::headline(&advice);
        let chart = table::curves(&advice, &choices).drawn();
        write(file, &picture::framed(&chart, &subtitle, advice.families().into_iter())?)?;
    }
    print(args.format, &advice, || table::render(&advice, &choices))?;
    Ok(SUCCESS)
}

fn choices(args: &AdviseArgs) -> Vec<Choice> {
    if args.modes.is_empty() { Choice::all() } else { args.modes.iter().copied().map(Choice::fixed).collect() }
}

fn setting(args: &AdviseArgs, hosts: &[usize]) -> Result<Setting> {
    let compute_s = args.compute;
    if let Some(wrong) = hosts.iter().find(|hosts| !(1..=MOST_HOSTS).contains(*hosts)) {
        return Err(Error::argument(
            format!("invalid --hosts {wrong}: expected numbers from 1 to {MOST_HOSTS}"),
            "give numbers of hosts, such as --hosts 8,64",
        ));
    }
    if !(compute_s > 0.0 && compute_s <= 3600.0) {
        return Err(Error::argument(
            format!("invalid --compute {compute_s}: expected seconds above 0 and up to 3600"),
            "give the seconds of computing in a step on one host, such as 2.184",
        ));
    }
    let Some(link_bytes_per_s) = args.link.bytes_per_s() else {
        return Err(Error::argument(
            "--link none has no rate to predict with",
            "give the rate of each host's link, such as --link 10gbit",
        ));
    };
    let network = layers::load(&args.model, args.scale)?;
    let most = hosts.iter().copied().max().unwrap_or(0);
    let of_host = |host: usize| args.slow_host.iter().filter(|slow| slow.host == host).count();
    let wrong = args.slow_host.iter().find(|slow| !(1..=most).contains(&slow.host) || of_host(slow.host) > 1);
    if let Some(wrong) = wrong {
        return Err(Error::argument(
            format!("invalid --slow-host {wrong}: expected each host once, of 1 to {most}"),
            "name a worker's host, counted from 1, such as 3=5gbit",
        ));
    }
    Ok(Setting { network, compute_s, link_bytes_per_s, own: args.slow_host.clone(), latency_s: args.latency })
}
