//! `ringpull plan`: what the ranks of an allreduce send each other.

use clap::{Args, ValueEnum};

use serde::Serialize;

use ringpull_base::config::Config;
use ringpull_base::{AlgorithmChoice, DType, Error, Result};
use ringpull_plan::export::{ExportedMessage, goal, messages, smpi};
use ringpull_plan::{Model, Schedule, Segments, allreduce, allreduce_in_order, choose, predict};

use super::bench::Algorithms;
use super::{SUCCESS, Status, put, to_json_line};
use crate::advise::predict::model;
use crate::link::LinkRate;
use crate::size::{elements, parse_size};
use crate::text::parse_seconds;

/// What fits in memory, message by message.
const MOST_RANKS: usize = 4096;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ringpull plan --ranks 4 --bytes 1MB --algorithm ring\n  \
    ringpull plan --ranks 1000 --bytes 25MB --link 200mbit --format goal > allreduce.goal\n\n\
    auto and segments go by a model of Ethernet hosts; with --link, by that of `ringpull advise`. JSON has a\n\
    line for each rank. A message's `after` names the earlier ones of the same rank that must be done first,\n\
    from 0. GOAL is the input of LogGOPSim: the same, counted from 1. smpi is a trace that SimGrid's\n\
    `smpirun -replay` reads: it posts the messages in the plan's order, each once those before it that it\n\
    needs have arrived or left.")]
pub(crate) struct PlanArgs {
    /// Number of ranks, 1 to 4096.
    #[arg(long)]
    ranks: usize,
    /// The payload, of f32 elements, such as 25MB.
    #[arg(long, default_value = "25MB")]
    bytes: String,
    /// The rate of each host's link, such as 10gbit.
    #[arg(long)]
    link: Option<LinkRate>,
    /// From one host to another, one way, such as 50us.
    #[arg(long, default_value = "50us", value_parser = parse_seconds, requires = "link")]
    latency: f64,
    /// How the buffers are summed.
    #[arg(long, default_value = "auto", value_parser = Algorithms)]
    algorithm: AlgorithmChoice,
    /// For programs.
    #[arg(long, value_enum, default_value_t)]
    format: PlanFormat,
}

/// How a plan is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum PlanFormat {
    /// A line of JSON for each rank.
    #[default]
    Json,
    /// Group Operation Assembly Language.
    Goal,
    /// A trace for `smpirun -replay` of `SimGrid`.
    Smpi,
}

/// The messages of one rank.
#[derive(Serialize)]
struct RankPlan<'a> {
    rank: usize,
    ranks: usize,
    algorithm: &'a str,
    messages: Vec<ExportedMessage>,
}

/// Prints the plan of every rank.
pub(crate) fn run(args: &PlanArgs) -> Result<Status> {
    let ranks = args.ranks;
    if !(1..=MOST_RANKS).contains(&ranks) {
        return Err(Error::argument(
            format!("invalid --ranks {ranks}: expected 1 to {MOST_RANKS}"),
            "give another number",
        ));
    }
    let bytes = parse_size(&args.bytes)?;
    let len = elements(bytes, DType::F32)?;
    let rate = args.link.and_then(LinkRate::bytes_per_s);
    let model = rate.map_or_else(Model::default, |rate| model(rate, args.latency));
    let most_bytes = Config::default().segment_bytes;
    let segments = Segments { most_bytes, is_fixed: false };
    let chosen = match args.algorithm {
        AlgorithmChoice::Auto => Some(choose(&model, bytes, ranks, segments)),
        AlgorithmChoice::Plan(algorithm) => Some(predict(&model, algorithm, bytes, ranks, segments)),
        AlgorithmChoice::Ordered => None,
        AlgorithmChoice::Native | AlgorithmChoice::Nccl => {
            return Err(Error::argument(
                format!("{} has no plan of ours: the library decides", args.algorithm),
                "choose another --algorithm, such as auto or ring",
            ));
        }
    };
    let algorithm = chosen.map_or_else(|| args.algorithm.to_string(), |chosen| chosen.algorithm.name().to_owned());
    if args.format == PlanFormat::Goal {
        put(&format!("num_ranks {ranks}\n"));
    }
    for rank in 0..ranks {
        let (plan, segment_bytes) = match chosen {
            Some(chosen) => (allreduce(chosen.algorithm, rank, ranks, len), chosen.segment_bytes),
            None => (allreduce_in_order(rank, ranks, len), most_bytes),
        };
        let schedule = Schedule::of(&plan, DType::F32, segment_bytes);
        match args.format {
            PlanFormat::Goal => put(&goal(rank, &schedule)),
            PlanFormat::Smpi => put(&smpi(rank, &schedule)),
            PlanFormat::Json => {
                let plan = RankPlan { rank, ranks, algorithm: &algorithm, messages: messages(&schedule) };
                put(&(to_json_line(&plan)? + "\n"));
            }
        }
    }
    Ok(SUCCESS)
}
